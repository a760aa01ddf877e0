//! Requirements of every test: a separate directory, and the program.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::StatVfs;
use rustix::io::fcntl_dupfd_cloexec;

/// Bytes that the tests of one file need at most.
const ROOM: u64 = 4 << 30;

/// A directory of a test, in memory where there is room. It goes with all that is in it.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let memory = Path::new("/dev/shm");
        let has_room = |found: &StatVfs| found.f_bavail * found.f_frsize >= ROOM;
        let parent = match rustix::fs::statvfs(memory) {
            Ok(found) if has_room(&found) => memory.into(),
            _ => std::env::temp_dir(),
        };
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("tako-cli-{}-{count}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    /// The path of `name` in it.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).into_os_string().into_string().unwrap()
    }

    /// A new pool in it.
    pub fn pool(&self, name: &str, size: &str) -> String {
        let pool = self.path(name);
        tako(&["mkfs", &pool, "--size", size]).ended(0);
        pool
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test that failed may have left it in any state.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Output of a command and its exit status.
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// A process that is being started has copies of this one's open files until it runs its own program. A test that
/// unmounts meanwhile finds the mount in use.
static APART: Mutex<()> = Mutex::new(());

/// A descriptor above those that tests use.
const HIGH: i32 = 512;

/// Unmounts, or starts a process, while no other test does the other.
pub fn apart<T>(work: impl FnOnce() -> T) -> T {
    let _guard = APART.lock().unwrap_or_else(PoisonError::into_inner);
    work()
}

/// Starts a process that may run beside a test that unmounts.
pub fn start(command: &mut Command) -> Child {
    apart(|| {
        let (mut end, copied) = std::io::pipe().unwrap();
        // A new program closes its copies of open files in ascending order, a moment after `spawn` returns: this one last.
        let last = fcntl_dupfd_cloexec(&copied, HIGH).unwrap();
        drop(copied);
        let child = command.spawn().unwrap();
        drop(last);
        let _ = end.read(&mut [0]).unwrap();
        child
    })
}

/// Runs a process to its end.
pub fn run(command: &mut Command) -> Output {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    start(command).wait_with_output().unwrap()
}

/// Runs the program to its end.
pub fn tako(arguments: &[&str]) -> Run {
    let mut command = command(arguments);
    let output = match arguments.first() {
        Some(&"umount") => apart(|| command.output()).unwrap(),
        _ => run(&mut command),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Run {
        code: output.status.code(),
        out: text(&output.stdout),
        err: text(&output.stderr),
    }
}

/// Path of the program under test.
pub const TAKO: &str = env!("CARGO_BIN_EXE_tako");

/// The program, ready to run.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(TAKO);
    command.args(arguments).stdin(Stdio::null());
    command
}

impl Run {
    /// Expects this exit code, and returns the output on success, and the one sentence of a failure.
    pub fn ended(self, code: i32) -> String {
        let Run { out, err, .. } = self;
        assert_eq!(self.code, Some(code), "{err}{out}");
        if code == 0 {
            assert_eq!(err, "");
            return out;
        }
        let is_sentence =
            err.starts_with("tako: ") && err.ends_with('\n') && err.lines().count() == 1;
        assert!(is_sentence, "{err}");
        err
    }
}
