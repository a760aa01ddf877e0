//! A cluster of processes with wall clocks that are set by hours while programs write: nodes of this program, since the dates of
//! `tako serve` cannot be set without those of all processes, and a mount by `tako mount`.
#![forbid(unsafe_code)]

mod common;
mod mounted;
mod nodes;
mod transport;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use protocol::{ClusterMap, NO_NODE, UnitMap};
use server::membership::{DirectoryMembership, Membership};
use server::node::{Node, NodeConfig};
use store::Clock;

use common::{Scratch, TAKO};
use mounted::Mounted;
use nodes::{PATIENCE, compare, under_load, verify_records};

/// Set for a process that is a node: its index, the directory of the cluster, and the seconds by which its date is set forward.
const SERVES: [&str; 3] = ["TAKO_TEST_SERVES", "TAKO_TEST_DIRECTORY", "TAKO_TEST_DATE"];
const NODES: usize = 3;
const HOUR: i64 = 3600;
/// Dates are shown so much later than they are set, on a busy machine, in seconds.
const LATE: i64 = 30;
/// How often a node reads its date.
const TICK: Duration = Duration::from_millis(2);

fn membership(directory: &Path) -> DirectoryMembership {
    DirectoryMembership::open(&directory.join("state/c/membership")).expect("it can be opened")
}

/// A node of the tests below, in a separate process, until its input ends. Each line of its input sets its date. Without the variables
/// [`SERVES`] this test does nothing.
#[test]
fn this_process_is_a_node() {
    let [Ok(node), Ok(directory), Ok(offset)] = SERVES.map(std::env::var) else {
        return;
    };
    let (directory, mut offset) = (Path::new(&directory), seconds(&offset));
    let date = Arc::new(AtomicI64::new(0));
    let show = |offset: i64| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.expect("later").as_nanos() as i64;
        date.store(now + offset * 1_000_000_000, Ordering::Relaxed);
    };
    show(offset);
    let name = format!("n{node}");
    let path = |end: &str| directory.join(format!("{name}.{end}"));
    let config = NodeConfig {
        cluster: "c".into(),
        listen: vec![path("socket").display().to_string()],
        keys: None,
        transport: None,
        interface: None,
        ether_types: None,
        data_queue: None,
        requests: Default::default(),
        pull: Default::default(),
        group: Default::default(),
        group_parity: false,
        pool: directory.join("pools").join(&name),
        pool_length: 64 << 20,
        metadata_only: false,
        members: NODES as u8,
        metadata_members: 0,
        min_sync: 0,
        spare_after: 0,
        clock: Clock::Manual(date.clone()),
        name,
    };
    let membership: Arc<dyn Membership> = Arc::new(membership(directory));
    let log = Arc::new(|line: std::fmt::Arguments<'_>| println!("{line}"));
    let _node = Node::start(&config, &membership, log).expect("it starts");
    let (set, dates) = channel();
    thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let line = line.expect("it is text");
            set.send(seconds(&line)).expect("the node runs");
        }
    });
    loop {
        match dates.recv_timeout(TICK) {
            Ok(set) => offset = set,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        show(offset);
    }
}

fn seconds(text: &str) -> i64 {
    text.trim().parse().expect("a number")
}

/// A cluster on this host. Its processes end with it.
struct Cluster {
    directory: PathBuf,
    nodes: Vec<Child>,
    offsets: [i64; NODES],
    scratch: Scratch,
}

impl Cluster {
    fn new() -> Cluster {
        let scratch = Scratch::new();
        let directory = PathBuf::from(scratch.path("cluster"));
        std::fs::create_dir_all(directory.join("pools")).expect("it is new");
        std::fs::create_dir_all(directory.join("state/c/membership")).expect("it is new");
        let mut cluster = Cluster {
            directory,
            nodes: Vec::new(),
            offsets: [0; NODES],
            scratch,
        };
        for node in 0..NODES {
            let child = cluster.serve(node);
            cluster.nodes.push(child);
        }
        let is_whole = |unit: &UnitMap| unit.in_sync.len() == NODES && unit.primary != NO_NODE;
        cluster.wait("all are in sync", is_whole);
        cluster
    }

    fn serve(&self, node: usize) -> Child {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.args(["--exact", "this_process_is_a_node", "--nocapture"]);
        command.env(SERVES[0], node.to_string());
        command.env(SERVES[1], &self.directory);
        command.env(SERVES[2], self.offsets[node].to_string());
        common::start(command.stdin(Stdio::piped()).stdout(Stdio::null()))
    }

    /// Sets the date of a node forward by so many seconds in all.
    fn set_date(&mut self, node: usize, offset: i64) {
        let input = self.nodes[node].stdin.as_mut().expect("a pipe");
        writeln!(input, "{offset}").expect("the node runs");
        self.offsets[node] = offset;
    }

    fn map(&self) -> ClusterMap {
        let map = membership(&self.directory).read();
        map.expect("it is readable").unwrap_or_default()
    }

    fn unit(&self) -> UnitMap {
        let units = self.map().units;
        units
            .into_iter()
            .next()
            .map_or_else(UnitMap::default, |it| it.map)
    }

    /// The index of the primary.
    fn primary(&self) -> usize {
        let map = self.map();
        let primary = map.node(self.unit().primary).expect("a primary");
        primary.name[1..].parse().expect("a number")
    }

    fn wait(&self, what: &str, is_so: impl Fn(&UnitMap) -> bool) {
        let (start, membership) = (Instant::now(), membership(&self.directory));
        while !is_so(&self.unit()) {
            assert!(start.elapsed() < PATIENCE, "{what}: {:?}", self.unit());
            let next = membership.wait(self.map().version, Duration::from_secs(1));
            next.expect("it is readable");
        }
    }

    fn mount(&self) -> Mounted {
        let directory = self.scratch.path("mount");
        let mut command = Command::new(TAKO);
        let options = transport::options();
        command.args([
            "mount",
            "--foreground",
            "-o",
            &options,
            "tako:///c",
            &directory,
        ]);
        command.env("TAKO_STATE", self.directory.join("state"));
        Mounted::by(command.stdin(Stdio::null()), &directory)
    }

    fn end(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
    }
}

/// Seconds since 1970 by the clock of this process.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("later").as_secs() as i64
}

/// Appends to a file, and returns its time of change, in nanoseconds.
fn change(path: &str) -> i64 {
    let mut file = File::options()
        .create(true)
        .append(true)
        .open(path)
        .expect("it opens");
    file.write_all(b"changed").expect("written");
    file.sync_all().expect("synced");
    let found = file.metadata().expect("it is there");
    assert_eq!(found.mtime(), found.ctime());
    found.mtime() * 1_000_000_000 + found.mtime_nsec()
}

/// Changes a file until its time of change is about so many seconds from now. False: another member took over meanwhile.
fn wait_for_stamp(cluster: &Cluster, (path, epoch): (&str, u32), offset: i64) -> bool {
    let start = Instant::now();
    loop {
        let stamp = change(path) / 1_000_000_000;
        if cluster.unit().epoch != epoch {
            return false;
        }
        if (stamp - now() - offset).abs() < LATE {
            return true;
        }
        assert!(start.elapsed() < PATIENCE, "{} s from now", stamp - now());
    }
}

/// Sets the dates of the primary and of the replicas by an hour, there and back. Whether the primary stayed the same: on a
/// machine that is busy for a whole lease another may take over without a step.
fn step_dates(cluster: &mut Cluster, path: &str) -> bool {
    let (before, primary) = (cluster.unit(), cluster.primary());
    for offset in [HOUR, 0, -HOUR, 0] {
        cluster.set_date(primary, offset);
        if !wait_for_stamp(cluster, (path, before.epoch), offset) {
            return false;
        }
    }
    let mut newest = change(path);
    for node in (0..NODES).filter(|node| *node != primary) {
        for offset in [HOUR, -HOUR, 0] {
            cluster.set_date(node, offset);
            let stepped = Instant::now();
            // Longer than a lease lasts.
            while stepped.elapsed() < Duration::from_millis(1500) {
                let stamp = change(path);
                // The date of another primary may have been set back.
                if cluster.unit().epoch != before.epoch {
                    return false;
                }
                assert!(stamp >= newest, "{} ns back", newest - stamp);
                newest = stamp;
            }
        }
    }
    let after = cluster.unit();
    (after.epoch, &after.in_sync) == (before.epoch, &before.in_sync)
}

#[test]
fn dates_that_are_set_while_programs_write_cost_no_data_and_no_takeover() {
    let mut cluster = Cluster::new();
    let mount = cluster.mount();
    let path = mount.path("stamped");
    let directory = PathBuf::from(&mount.directory);
    let counts = under_load(&directory, || {
        let is_calm = (0..4).any(|_| step_dates(&mut cluster, &path));
        assert!(
            is_calm,
            "each time another member took over, or one was left out"
        );
    });
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    for (writer, count) in counts.into_iter().enumerate() {
        verify_records(&directory, writer as u32, count);
    }
    mount.unmount();
    examine(cluster);
}

/// The dates of the replicas are hours behind when the primary is lost, and those of programs do not follow.
#[test]
fn time_stamps_of_a_file_do_not_go_back_when_a_member_with_an_older_date_takes_over() {
    let mut cluster = Cluster::new();
    let mount = cluster.mount();
    let path = mount.path("stamped");
    let mut newest = change(&path);
    for round in 0..3 {
        let primary = cluster.primary();
        let epoch = cluster.unit().epoch;
        for node in (0..NODES).filter(|node| *node != primary) {
            cluster.set_date(node, -HOUR * (round + 1));
        }
        newest = newest.max(change(&path));
        let _ = cluster.nodes[primary].kill();
        let _ = cluster.nodes[primary].wait();
        for _ in 0..20 {
            let stamp = change(&path);
            assert!(stamp >= newest, "round {round}: {} ns back", newest - stamp);
            newest = stamp;
        }
        assert!(cluster.unit().epoch > epoch, "{:?}", cluster.unit());
        cluster.nodes[primary] = cluster.serve(primary);
        cluster.wait("all are in sync again", |unit| unit.in_sync.len() == NODES);
    }
    mount.unmount();
    examine(cluster);
}

/// Ends the nodes when their pools are equal.
fn examine(mut cluster: Cluster) {
    // The end of the mount's session is a record.
    cluster.wait("all are in sync", |unit| unit.in_sync.len() == NODES);
    cluster.end();
    let pools = (0..NODES).map(|node| cluster.directory.join(format!("pools/n{node}")));
    let pools: Vec<_> = pools.collect();
    compare(&pools);
}
