//! A mount that ends with its test, however that ends.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::common::{apart, command, start, tako};
use crate::transport;

/// Where the kernel lists its connections with FUSE processes, each by the minor number of its device.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// A mount that is served by a child of this process.
pub struct Mounted {
    pub directory: String,
    /// The process that serves the mount.
    pub child: Child,
}

impl Mounted {
    /// Mounts a pool and waits until the directory is ready.
    pub fn new(pool: &str, directory: &str) -> Mounted {
        let options = transport::options();
        let arguments = ["mount", "--foreground", "-o", &options, pool, directory];
        Mounted::by(&mut command(&arguments), directory)
    }

    /// Mounts by a command that stays in the foreground.
    pub fn by(command: &mut Command, directory: &str) -> Mounted {
        std::fs::create_dir_all(directory).unwrap();
        let mut child = start(command.stdout(Stdio::piped()));
        let stdout = child.stdout.take().unwrap();
        let mounted = Mounted {
            directory: directory.into(),
            child,
        };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert!(
            line.contains(" is mounted on "),
            "the mount did not become ready: {line}"
        );
        mounted
    }

    /// The path of `name` in it.
    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }

    /// Ends the kernel's connection with the serving process: all requests fail, so that no process waits for one.
    pub fn abort(&self) {
        if fs::read_dir(CONNECTIONS).is_ok_and(|mut found| found.next().is_none()) {
            let mut mount = Command::new("mount");
            mount.args(["-t", "fusectl", "fusectl", CONNECTIONS]);
            let _ = mount.status();
        }
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let lines = table
            .lines()
            .filter(|line| line.split(' ').nth(4) == Some(&self.directory));
        let minors = lines.filter_map(|line| line.split(' ').nth(2)?.split(':').nth(1));
        for minor in minors {
            // It may have ended by itself.
            let _ = fs::write(format!("{CONNECTIONS}/{minor}/abort"), "1");
        }
    }

    /// Removes the rest of a mount when its process was killed.
    pub fn unmount_dead(&self) {
        let mut helper = Command::new("fusermount3");
        helper.args(["-uz", &self.directory]).stderr(Stdio::null());
        let _ = apart(|| helper.status());
    }

    /// Unmounts, and expects the serving process to end well.
    pub fn unmount(mut self) {
        tako(&["umount", &self.directory]).ended(0);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // After a test that ended well there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.unmount_dead();
    }
}
