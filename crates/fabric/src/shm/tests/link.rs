//! Another process, which runs the same test, and a control connection to it: lines of text, and descriptors that each
//! opens at the other by their numbers.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::{
    Access, EndpointId, Export, Key, Parameters, Peer, Queue, RegionDescriptor, Registration,
    RemoteRegion, Role,
};

/// Marks the other process.
const OTHER: &str = "TAKO_FABRIC_OTHER";
/// Beginning of the test's lines: the output of the test framework uses the same stream.
const MARK: &str = "@ ";

/// A peer in another process.
/// It is killed when this goes.
pub struct Other {
    pub child: Child,
    pub link: Link,
}

/// A connection to it, or to the one that started this.
pub struct Link {
    pid: i32,
    input: Box<dyn BufRead>,
    output: Box<dyn Write>,
}

impl Other {
    /// Runs a test in another process.
    pub fn start(test: &str) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(OTHER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let link = Link {
            pid: child.id() as i32,
            input: Box::new(BufReader::new(child.stdout.take().unwrap())),
            output: Box::new(child.stdin.take().unwrap()),
        };
        Other { child, link }
    }

    /// Waits until it has ended well.
    pub fn ends(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Link {
    /// In the other process.
    pub fn to_parent() -> Option<Link> {
        std::env::var_os(OTHER)?;
        Some(Link {
            pid: rustix::process::getppid()?.as_raw_nonzero().get(),
            input: Box::new(BufReader::new(std::io::stdin())),
            output: Box::new(std::io::stdout()),
        })
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.output, "\n{MARK}{line}").unwrap();
        self.output.flush().unwrap();
    }

    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.input.read_line(&mut line).unwrap(),
                0,
                "the other process has ended"
            );
            if let Some(line) = line.strip_prefix(MARK) {
                return line.trim_end().to_owned();
            }
        }
    }

    fn open(&self, number: RawFd, writable: bool) -> OwnedFd {
        let path = format!("/proc/{}/fd/{number}", self.pid);
        let opened = OpenOptions::new().read(true).write(writable).open(path);
        // An eventfd cannot be opened, only copied.
        opened.map_or_else(|_| self.copy(number), OwnedFd::from)
    }

    fn copy(&self, number: RawFd) -> OwnedFd {
        let pid = Pid::from_raw(self.pid).unwrap();
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        pidfd_getfd(process, number, PidfdGetfdFlags::empty()).unwrap()
    }

    /// Sends a queue's offer to the other one, and returns the other's.
    pub fn exchange(&mut self, ours: &Parameters) -> Parameters {
        let mut line = String::new();
        for byte in &ours.bytes {
            write!(line, "{byte:02x}").unwrap();
        }
        for descriptor in &ours.descriptors {
            write!(line, " {}", descriptor.as_raw_fd()).unwrap();
        }
        self.say(&line);
        let line = self.hear();
        let mut words = line.split(' ');
        let digits = words.next().unwrap();
        let theirs = Parameters {
            bytes: (0..digits.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
                .collect(),
            descriptors: words
                .map(|word| self.open(word.parse().unwrap(), true))
                .collect(),
        };
        // Each has opened the other's descriptors, which may be closed from now on.
        self.say("opened");
        assert_eq!(self.hear(), "opened");
        theirs
    }

    /// An endpoint to the other process.
    pub fn join(&mut self, queue: &mut Queue, role: Role) -> EndpointId {
        let (id, ours) = queue.offer().unwrap();
        let peer = Peer {
            parameters: self.exchange(&ours),
            address: None,
            process: Some(
                pidfd_open(Pid::from_raw(self.pid).unwrap(), PidfdFlags::empty()).unwrap(),
            ),
        };
        queue.accept(id, role, peer).unwrap();
        id
    }

    pub fn export(&mut self, queue: &mut Queue, to: EndpointId, memory: &Registration) {
        let Export { descriptor, memory } = queue.export(to, memory).unwrap();
        let memory = memory.unwrap();
        let (length, access) = (descriptor.length, descriptor.access.bits());
        self.say(&format!("{length} {access} {}", memory.as_raw_fd()));
        assert_eq!(self.hear(), "opened");
    }

    pub fn import(&mut self, queue: &mut Queue, from: EndpointId) -> RemoteRegion {
        let line = self.hear();
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let access = Access::from_bits(numbers[1] as u8).unwrap();
        let memory = self.open(numbers[2] as RawFd, access.allows(Access::WRITE));
        self.say("opened");
        let descriptor = RegionDescriptor {
            key: Key(0),
            base: 0,
            length: numbers[0],
            access,
        };
        let memory = Some(memory);
        queue.import(from, Export { descriptor, memory }).unwrap()
    }
}
