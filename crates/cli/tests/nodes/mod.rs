//! Clusters of real processes on this host, and work on their mounts.

use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{self, Run, Scratch};

/// How long anything may take on a busy machine. Nothing here measures speed; `make demo` prints the time of a failover.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A cluster with a state directory of its own. It ends with the test, however that ends.
pub struct Cluster {
    pub scratch: Scratch,
}

impl Cluster {
    pub fn new() -> Cluster {
        Cluster {
            scratch: Scratch::new(),
        }
    }

    pub fn state(&self) -> String {
        self.scratch.path("state")
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = common::command(arguments);
        command.env("TAKO_STATE", self.state());
        command
    }

    pub fn tako(&self, arguments: &[&str]) -> Run {
        let mut command = self.command(arguments);
        let output = match arguments.first() {
            // A process that another test starts has copies of this one's files for a moment.
            Some(&"down") => common::apart(|| command.output()).expect("it runs"),
            _ => common::run(&mut command),
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Run {
            code: output.status.code(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// Starts the cluster `c` with these options, with pools in the scratch directory.
    pub fn up(&self, options: &[&str]) -> String {
        let pools = self.scratch.path("pools");
        let all = ["up", "--name", "c", "--size", "16M", "--directory", &pools];
        self.tako(&[&all[..], options].concat()).ended(0)
    }

    pub fn status(&self) -> Value {
        let text = self.tako(&["status", "--name", "c", "--json"]).ended(0);
        serde_json::from_str(&text).expect("it is JSON")
    }

    /// Waits until the status is so.
    pub fn wait(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {status:#}");
        }
    }

    pub fn down(&self, arguments: &[&str]) -> Run {
        self.tako(&[&["down", "--name", "c"], arguments].concat())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let is_there = Path::new(&self.state()).join("c").is_dir();
        if is_there && self.down(&["--remove"]).code != Some(0) {
            // A test that failed may have left files open.
            let mount = self.scratch.path("mount");
            let _ = self.tako(&["umount", "-l", &mount]);
            let _ = self.down(&["--remove"]);
        }
    }
}

pub fn kill(node: &Value, signal: Signal) {
    let pid = node["pid"].as_i64().expect("it runs");
    let pid = Pid::from_raw(pid as i32).expect("a process");
    kill_process(pid, signal).expect("it is ours");
}

pub fn is_whole(status: &Value) -> bool {
    status["serving"] == true && status["unit"]["in_sync"] == status["unit"]["members"]
}

/// The mount of the cluster. It is unmounted by `tako down`.
pub fn mounted(cluster: &Cluster) -> PathBuf {
    let directory = cluster.scratch.path("mount");
    std::fs::create_dir(&directory).expect("it is new");
    let up = ["up", "--name", "c", "--mount", &directory];
    let said = cluster.tako(&up).ended(0);
    assert!(said.contains("tako:///c is mounted on"), "{said}");
    directory.into()
}

/// Records in a file of a writer.
const RECORDS: usize = 64;

fn record(writer: u32, number: usize) -> Vec<u8> {
    let text = format!("{writer}.{number} ").repeat(400);
    text.into_bytes()[..400].to_vec()
}

fn path_of(directory: &Path, writer: u32, number: usize) -> PathBuf {
    directory.join(format!("{writer}.{}", number / RECORDS))
}

/// Appends records to files, each synced before the next, until it is told to end. Returns how many were confirmed.
pub fn write_records(directory: &Path, writer: u32, end: &AtomicBool) -> usize {
    let mut count = 0;
    while !end.load(Ordering::Relaxed) {
        let mut options = File::options();
        let is_first = count % RECORDS == 0;
        let path = path_of(directory, writer, count);
        let file = options.append(true).create_new(is_first).open(path);
        let mut file = file.expect("it is there");
        file.write_all(&record(writer, count)).expect("written");
        file.sync_all().expect("synced");
        count += 1;
    }
    count
}

pub fn verify_records(directory: &Path, writer: u32, count: usize) {
    for first in (0..count).step_by(RECORDS) {
        let path = path_of(directory, writer, first);
        let found = std::fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let last = count.min(first + RECORDS);
        let expected: Vec<_> = (first..last)
            .flat_map(|number| record(writer, number))
            .collect();
        assert!(found == expected, "{path:?}");
    }
}

/// Hits the cluster while two threads write; returns how many records each wrote.
pub fn under_load(directory: &Path, hit: impl FnOnce()) -> [usize; 2] {
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let write = |writer| {
            let end = &end;
            scope.spawn(move || write_records(directory, writer, end))
        };
        let writers = [write(0), write(1)];
        // The writers end although a check fails.
        let hit = catch_unwind(AssertUnwindSafe(hit));
        end.store(true, Ordering::Relaxed);
        let counts = writers.map(|writer| writer.join().expect("it wrote"));
        hit.unwrap_or_else(|panic| resume_unwind(panic));
        counts
    })
}

/// All members have the same records, and the check of each pool finds the same files and nothing wrong.
pub fn examine(cluster: &Cluster) {
    let is_equal = |status: &Value| {
        let nodes = status["nodes"].as_array().expect("nodes");
        is_whole(status) && nodes.iter().all(|node| node["tail"] == nodes[0]["tail"])
    };
    cluster.wait("all members are equal", is_equal);
    cluster.down(&[]).ended(0);
    let pools = std::fs::read_dir(cluster.scratch.path("pools")).expect("there are pools");
    let pools = pools.map(|entry| entry.expect("it is readable").path());
    let checks = pools.map(|pool| {
        let said = common::tako(&["check", &pool.display().to_string()]).ended(0);
        said.split(';').next().map(str::to_owned)
    });
    let checks: Vec<_> = checks.collect();
    assert!(checks.iter().all(|it| *it == checks[0]), "{checks:?}");
}
