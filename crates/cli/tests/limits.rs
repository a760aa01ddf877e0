//! Limits that clusters keep: the pause of a program when a node is lost, the processor time of an idle cluster, and how
//! mounts of a cluster that does not answer end or continue.
#![forbid(unsafe_code)]

mod common;
mod mounted;
mod nodes;
mod transport;

use std::fmt::Debug;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use mounted::Mounted;
use nodes::{Cluster, PATIENCE, ends_by, is_whole, kill, mounted, primary};

/// Other work on the machine makes some rounds too long: most of so many have to keep the limit.
const ROUNDS: usize = 5;

/// Fails unless the median of some rounds is within the limit. Ends when it is known on which side the median is.
fn assert_median<T: PartialOrd + Debug>(limit: T, what: &str, mut round: impl FnMut() -> T) {
    let mut found = Vec::new();
    let is_median = |count: usize| 2 * count > ROUNDS;
    loop {
        found.push(round());
        let within = found.iter().filter(|it| **it <= limit).count();
        if is_median(within) {
            return println!("{what}: {found:?}");
        }
        let is_missed = is_median(found.len() - within);
        assert!(!is_missed, "{what}: {found:?}, most beyond {limit:?}");
    }
}

/// The longest time that one of many small synchronized writes takes, from the first one to one that was begun after the hit.
fn longest_pause(directory: &Path, hit: impl FnOnce()) -> Duration {
    const BEFORE: u64 = 20;
    let (count, is_hit, is_over) = (
        AtomicU64::new(0),
        AtomicBool::new(false),
        AtomicBool::new(false),
    );
    let file = File::create(directory.join("ticks")).expect("it can be made");
    let write = || {
        let mut longest = Duration::ZERO;
        loop {
            let ends = is_over.load(Ordering::Acquire);
            let start = Instant::now();
            file.write_all_at(&[7; 64], 0).expect("written");
            file.sync_all().expect("synced");
            if is_hit.load(Ordering::Acquire) {
                longest = longest.max(start.elapsed());
            }
            count.fetch_add(1, Ordering::Release);
            if ends {
                return longest;
            }
        }
    };
    thread::scope(|scope| {
        let writer = scope.spawn(write);
        while count.load(Ordering::Acquire) < BEFORE {
            thread::yield_now();
        }
        is_hit.store(true, Ordering::Release);
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(hit));
        is_over.store(true, Ordering::Release);
        let longest = writer.join().expect("it wrote");
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        longest
    })
}

fn replica(status: &Value) -> &Value {
    let nodes = status["nodes"].as_array().expect("nodes");
    let found = nodes.iter().find(|node| node["role"] == "replica");
    found.expect("a replica")
}

/// Waits until a node of this name is left out of the members in sync, and another one or the same leads.
fn is_left_out(cluster: &Cluster, name: &Value) {
    cluster.wait("it is left out", |status| {
        let nodes = status["nodes"].as_array().expect("nodes");
        let mut found = nodes.iter().filter(|node| node["name"] == *name);
        status["serving"] == true && found.all(|node| node["in_sync"] == false)
    });
}

fn mount(cluster: &Cluster, name: &str) -> Mounted {
    let directory = cluster.scratch.path(name);
    let arguments = ["mount", "--foreground", "tako:///c", &directory];
    Mounted::by(&mut cluster.command(&arguments), &directory)
}

#[test]
fn programs_pause_for_a_short_time_when_a_node_is_lost() {
    let cluster = Cluster::serving("3", "16M");
    let directory = mounted(&cluster);
    let lose = |choose: fn(&Value) -> &Value, signal: Signal| {
        let before = cluster.wait("all are in sync", is_whole);
        let node = choose(&before);
        let pause = longest_pause(&directory, || {
            kill(node, signal);
            is_left_out(&cluster, &node["name"]);
        });
        match signal {
            Signal::STOP => kill(node, Signal::CONT),
            _ => cluster.up_again(),
        }
        pause
    };
    let takeover = Duration::from_secs(3);
    assert_median(takeover, "the primary is killed", || {
        lose(primary, Signal::KILL)
    });
    assert_median(takeover, "the primary is stopped", || {
        lose(primary, Signal::STOP)
    });
    // The primary waits for a lease of 1 s before it leaves out a member, and for one change of the map.
    let removal = Duration::from_millis(1500);
    assert_median(removal, "a replica is stopped", || {
        lose(replica, Signal::STOP)
    });
    assert_median(removal, "a replica is killed", || {
        lose(replica, Signal::KILL)
    });
    // The session of a killed mount ends after 3 s: until then its writes may still arrive.
    assert_median(
        Duration::from_millis(4500),
        "the primary and a mount are killed",
        || {
            let mut other = mount(&cluster, "other");
            fs::write(other.path("other"), "contents").expect("written");
            let before = cluster.wait("all are in sync", is_whole);
            let pause = longest_pause(&directory, || {
                other.child.kill().expect("it is ours");
                kill(primary(&before), Signal::KILL);
                is_left_out(&cluster, &primary(&before)["name"]);
            });
            other.child.wait().expect("it was killed");
            drop(other);
            cluster.up_again();
            pause
        },
    );
}

/// Processor time of a process since it started, in nanoseconds, without threads that have ended.
fn processor_time(pid: u64) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let times = tasks.filter_map(|task| {
        let found = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        found.split(' ').next()?.parse::<u64>().ok()
    });
    times.sum()
}

#[test]
fn an_idle_cluster_and_its_mount_use_less_than_a_hundredth_of_a_processor() {
    const WINDOW: Duration = Duration::from_secs(5);
    // Leases in use are renewed for 10 s: those windows are not idle.
    const RENEWALS: usize = 2;
    let cluster = Cluster::serving("3", "16M");
    let mounted = mount(&cluster, "mount");
    fs::write(mounted.path("file"), "contents").expect("written");
    let status = cluster.wait("all are in sync", is_whole);
    let nodes = status["nodes"].as_array().expect("nodes");
    let nodes = nodes
        .iter()
        .map(|node| node["pid"].as_u64().expect("it runs"));
    let pids: Vec<u64> = nodes.chain([u64::from(mounted.child.id())]).collect();
    assert_eq!(pids.len(), 4);
    let used = || pids.iter().map(|pid| processor_time(*pid)).sum::<u64>();
    let share = || {
        let (before, start) = (used(), Instant::now());
        while start.elapsed() < WINDOW {
            thread::park_timeout(WINDOW - start.elapsed().min(WINDOW));
        }
        (used() - before) as f64 / start.elapsed().as_nanos() as f64
    };
    for _ in 0..RENEWALS {
        println!("while leases are renewed: {:.4}", share());
    }
    assert_median(0.01, "share of a processor", share);
    assert_eq!(fs::read(mounted.path("file")).expect("read"), b"contents");
    mounted.unmount();
}

/// Kills all nodes that `tako status` reports.
fn stop(cluster: &Cluster) {
    let status = cluster.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    nodes.iter().for_each(|node| kill(node, Signal::KILL));
}

/// A process that waits for the cluster: it reads a file that was never read before.
fn reader(path: &str) -> Child {
    let mut cat = Command::new("cat");
    common::start(cat.arg(path).stdout(Stdio::null()).stderr(Stdio::null()))
}

#[test]
fn a_mount_of_a_stopped_cluster_that_is_detached_ends_with_its_last_caller() {
    let cluster = Cluster::serving("1", "16M");
    for has_caller in [false, true] {
        let mut mounted = mount(&cluster, "mount");
        fs::write(mounted.path("file"), "contents").expect("written");
        stop(&cluster);
        let caller = has_caller.then(|| reader(&mounted.path("other")));
        let detached = common::apart(|| {
            let mut umount = Command::new("umount");
            umount.args(["-l", &mounted.directory]).status()
        });
        assert!(detached.expect("it runs").success());
        if let Some(mut caller) = caller {
            caller.kill().expect("it is ours");
            caller.wait().expect("it ends although it waited");
        }
        let process = Pid::from_child(&mounted.child);
        let ended = ends_by(process, Signal::CONT, PATIENCE);
        if !ended {
            mounted.abort();
        }
        assert!(ended, "the mount goes on; with a caller: {has_caller}");
        mounted.child.wait().expect("it has ended");
        cluster.up_again();
        cluster.wait("it serves again", is_whole);
    }
}

#[test]
fn calls_wait_for_a_stopped_cluster_or_fail_and_the_log_has_a_line_each_way() {
    let cluster = Cluster::serving("1", "16M");
    let logged = |name: &str| cluster.scratch.path(&format!("{name}.log"));
    let mount = |name: &str, options: &str| {
        let directory = cluster.scratch.path(name);
        let arguments = [
            "mount",
            "--foreground",
            "-o",
            options,
            "tako:///c",
            &directory,
        ];
        let log = File::create(logged(name)).expect("it can be made");
        Mounted::by(cluster.command(&arguments).stderr(log), &directory)
    };
    let (hard, soft) = (mount("hard", "hard"), mount("soft", "soft,timeout=2"));
    fs::write(hard.path("file"), "contents").expect("written");
    stop(&cluster);
    let (hard_path, soft_path) = (hard.path("made"), soft.path("made"));
    let waiting = thread::spawn(move || fs::write(hard_path, "later"));
    let refused = fs::write(soft_path, "never").expect_err("there is no cluster");
    assert_eq!(refused.raw_os_error(), Some(5), "{refused}");
    let lines = |name: &str, sentence: &str| {
        let log = fs::read_to_string(logged(name)).expect("a log");
        let lines = log.lines().filter(|line| line.contains(sentence));
        lines.count()
    };
    let start = Instant::now();
    while lines("hard", "the cluster does not answer") == 0 {
        assert!(start.elapsed() < PATIENCE, "no line in the log");
        thread::yield_now();
    }
    assert!(!waiting.is_finished());
    cluster.up_again();
    waiting.join().expect("it wrote").expect("it waited");
    assert_eq!(fs::read(hard.path("made")).expect("read"), b"later");
    assert_eq!(fs::read(soft.path("made")).expect("read"), b"later");
    assert_eq!(lines("hard", "the cluster does not answer"), 1);
    assert_eq!(lines("hard", "the cluster answers again"), 1);
    for mounted in [hard, soft] {
        mounted.unmount();
    }
}
