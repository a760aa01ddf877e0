//! Clusters of real processes on this host, and work on their mounts.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::reachable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use crate::common::{self, Run, Scratch};

/// Time limit on a busy machine. Nothing here measures speed; `make demo` prints the time of a failover.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A cluster with a separate state directory. It ends with the test, in any case.
pub struct Cluster {
    pub scratch: Scratch,
}

impl Cluster {
    pub fn new() -> Cluster {
        Cluster {
            scratch: Scratch::new(),
        }
    }

    /// A cluster that serves, of so many nodes with pools of this size: `3`, or `2+1` where the last ones hold metadata only.
    pub fn serving(nodes: &str, size: &str) -> Cluster {
        let cluster = Cluster::new();
        let pools = cluster.scratch.path("pools");
        let up = ["up", "--name", "c", "--directory", &pools, "--size", size];
        let form = match nodes.split_once('+') {
            Some((data, metadata)) => vec!["--data-nodes", data, "--metadata-nodes", metadata],
            None => vec!["--nodes", nodes],
        };
        cluster.tako(&[&up[..], &form].concat()).ended(0);
        cluster.wait("all are in sync", is_whole);
        cluster
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
            Some(&("down" | "umount")) => common::apart(|| command.output()).expect("it runs"),
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

    /// Starts the nodes that do not run.
    pub fn up_again(&self) {
        self.tako(&["up", "--name", "c"]).ended(0);
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

    /// Kills the primary, and waits until another member serves. A single member is started again.
    pub fn lose_primary(&self) {
        let before = self.wait("there is a primary", |status| status["serving"] == true);
        kill(primary(&before), Signal::KILL);
        if before["unit"]["members"] == 1 {
            self.up_again();
        } else {
            self.wait("another one serves", |status| {
                status["serving"] == true && status["unit"]["epoch"] != before["unit"]["epoch"]
            });
        }
    }

    pub fn down(&self, arguments: &[&str]) -> Run {
        self.tako(&[&["down", "--name", "c"], arguments].concat())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !Path::new(&self.state()).join("c").is_dir() {
            return;
        }
        let status = self.tako(&["status", "--name", "c", "--json"]).out;
        if let Ok(status) = serde_json::from_str::<Value>(&status) {
            // A stopped process does not end.
            let nodes = status["nodes"].as_array().into_iter().flatten();
            for pid in nodes.filter_map(|node| Pid::from_raw(node["pid"].as_i64()? as i32)) {
                let _ = kill_process(pid, Signal::CONT);
            }
        }
        if self.down(&["--remove"]).code != Some(0) {
            // A test that failed may have left files open.
            let mount = self.scratch.path("mount");
            let _ = self.tako(&["umount", "-l", &mount]);
            let _ = self.down(&["--remove"]);
        }
    }
}

pub fn primary(status: &Value) -> &Value {
    let nodes = status["nodes"].as_array().expect("nodes");
    let found = nodes.iter().find(|node| node["role"] == "primary");
    found.expect("a primary")
}

/// Sends a signal to a node. A node that is asked to end has ended when this returns.
pub fn kill(node: &Value, signal: Signal) {
    let pid = node["pid"].as_i64().expect("it runs");
    let pid = Pid::from_raw(pid as i32).expect("a process");
    let is_to_end = signal == Signal::KILL || signal == Signal::TERM;
    let within = if is_to_end { PATIENCE } else { Duration::ZERO };
    let has_ended = ends_by(pid, signal, within);
    assert!(has_ended || !is_to_end, "{node} goes on");
}

/// Sends a signal to a process; whether it ends within this time.
pub fn ends_by(pid: Pid, signal: Signal, within: Duration) -> bool {
    let process = pidfd_open(pid, PidfdFlags::empty()).expect("it runs");
    pidfd_send_signal(&process, signal).expect("it is ours");
    let timeout = Timespec {
        tv_sec: within.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut ends = [PollFd::new(&process, PollFlags::IN)];
    poll(&mut ends, Some(&timeout)) == Ok(1)
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
/// Files of a writer. Its oldest is replaced when there are more, so that a fast machine does not fill the pool.
const FILES: usize = 50;

fn record(writer: u32, number: usize) -> Vec<u8> {
    let text = format!("{writer}.{number} ").repeat(400);
    text.into_bytes()[..400].to_vec()
}

fn path_of(directory: &Path, writer: u32, number: usize) -> PathBuf {
    directory.join(format!("{writer}.{}", number / RECORDS % FILES))
}

/// Appends records to the newest file, each synced before the next, until it is stopped. Returns how many were confirmed.
pub fn write_records(directory: &Path, writer: u32, end: &AtomicBool) -> usize {
    let mut count = 0;
    while !end.load(Ordering::Relaxed) {
        let mut options = File::options();
        let is_first = count % RECORDS == 0;
        let path = path_of(directory, writer, count);
        if is_first && count >= FILES * RECORDS {
            std::fs::remove_file(&path).expect("it is there");
        }
        let file = options.append(true).create_new(is_first).open(path);
        let mut file = file.expect("it is there");
        file.write_all(&record(writer, count)).expect("written");
        file.sync_all().expect("synced");
        count += 1;
    }
    count
}

pub fn verify_records(directory: &Path, writer: u32, count: usize) {
    let oldest = count.div_ceil(RECORDS).saturating_sub(FILES) * RECORDS;
    for first in (oldest..count).step_by(RECORDS) {
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

/// Ends the mount that `tako up` has made, and stops the cluster. All members have the same records, the check of each pool
/// finds the same files and nothing wrong, and all reachable bytes are the same.
pub fn examine(cluster: &Cluster) {
    let mount = cluster.scratch.path("mount");
    if is_mounted(&mount) {
        cluster.tako(&["umount", &mount]).ended(0);
    }
    let is_equal = |status: &Value| {
        let nodes = status["nodes"].as_array().expect("nodes");
        let has_tail = |node: &Value| node["tail"] == nodes[0]["tail"];
        // Sessions end with a record.
        let is_idle = status["unit"]["sessions"] == 0;
        is_idle && is_whole(status) && nodes.iter().all(has_tail)
    };
    cluster.wait("all members are equal", is_equal);
    cluster.down(&[]).ended(0);
    let pools = std::fs::read_dir(cluster.scratch.path("pools")).expect("there are pools");
    let pools: Vec<PathBuf> = pools
        .map(|entry| entry.expect("it is readable").path())
        .collect();
    compare(&pools);
}

/// The check of each pool finds the same files and nothing wrong, and all reachable bytes are the same.
pub fn compare(pools: &[PathBuf]) {
    let checks = pools.iter().map(|pool| {
        let said = common::tako(&["check", &pool.display().to_string()]).ended(0);
        said.split(';').next().map(str::to_owned)
    });
    let checks: Vec<_> = checks.collect();
    assert!(checks.iter().all(|it| *it == checks[0]), "{checks:?}");
    for pool in &pools[1..] {
        let difference = reachable::compare(&pools[0], pool).expect("both are whole");
        assert_eq!(difference, None, "{pool:?} differs from {:?}", pools[0]);
    }
}

/// Whether something is mounted on a directory of a scratch directory.
fn is_mounted(directory: &str) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the kernel lists mounts");
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(directory))
}
