//! Processes of mounts of a cluster are killed: what uses the mounts ends.
#![forbid(unsafe_code)]

mod common;
mod mounted;
mod nodes;
mod transport;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use mounted::Mounted;
use nodes::{Cluster, PATIENCE, ends_by, kill, primary};
use rustix::process::{Pid, Signal, kill_process};

/// How long users of a killed mount may wait.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// A message arrives, or a call enters the kernel, within this. If it does not, nothing is blocked, as the test finds.
const ARRIVES_WITHIN: Duration = Duration::from_millis(300);

fn mount(cluster: &Cluster, name: &str) -> Mounted {
    let directory = cluster.scratch.path(name);
    let arguments = ["mount", "--foreground", "tako:///c", &directory];
    Mounted::by(&mut cluster.command(&arguments), &directory)
}

fn signal(mount: &Mounted, signal: Signal) {
    kill_process(Pid::from_child(&mount.child), signal).expect("it runs");
}

fn make_directory(path: String) -> Receiver<io::Result<()>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(fs::create_dir(path)));
    receiver
}

/// Whether a thread of the process, of this name, waits in the kernel and cannot be killed.
fn is_blocked(process: u32, name: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    tasks.flatten().any(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.contains(&format!("({name}) D"))
    })
}

/// A thread of the mount expires a name in the kernel, where a change without an answer holds the directory's lock: it cannot be
/// killed, and keeps the kernel's device open. Only the close of the device would fail the change.
#[test]
fn calls_end_when_the_process_of_their_mount_is_killed() {
    let cluster = Cluster::serving("1", "16M");
    let node = cluster.status();
    let node = primary(&node);
    let (victim, other) = (mount(&cluster, "victim"), mount(&cluster, "other"));
    fs::create_dir(victim.path("directory")).expect("a new directory");
    fs::write(victim.path("directory/known"), "").expect("a new file");
    fs::metadata(victim.path("directory/known")).expect("it is there");
    // The other's change makes the node recall the name, which the stopped mount does not read yet.
    signal(&victim, Signal::STOP);
    let others = make_directory(other.path("directory/others"));
    assert!(others.recv_timeout(ARRIVES_WITHIN).is_err());
    let changed = make_directory(victim.path("directory/own"));
    assert!(changed.recv_timeout(ARRIVES_WITHIN).is_err());
    kill(node, Signal::STOP);
    signal(&victim, Signal::CONT);
    let start = Instant::now();
    while !is_blocked(victim.child.id(), "tako-names") {
        assert!(start.elapsed() < PATIENCE, "nothing is blocked");
        thread::yield_now();
    }
    let has_ended = ends_by(Pid::from_child(&victim.child), Signal::KILL, ENDS_WITHIN);
    let result = changed.recv_timeout(ENDS_WITHIN);
    // A failed test leaves nothing that waits.
    victim.abort();
    kill(node, Signal::CONT);
    assert!(matches!(result, Ok(Err(_))), "{result:?}");
    assert!(has_ended, "the process goes on");
    let others = others.recv_timeout(PATIENCE).expect("an answer");
    others.expect("the other mount works");
    assert!(!Path::new(&victim.path("directory/known")).exists());
    other.unmount();
}
