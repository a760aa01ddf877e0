//! Mounts inside nodes: files, the loss of the node with the mount and of others, the end, and mistakes.
#![forbid(unsafe_code)]

mod common;
mod nodes;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::process::Signal;
use serde_json::Value;

use nodes::{Cluster, examine, is_whole, kill, primary, under_load, verify_records};

const PAGE: usize = 4096;

/// As direct reads need it.
#[repr(align(4096))]
struct Page([u8; PAGE]);

/// A new directory of the test.
fn directory(cluster: &Cluster, name: &str) -> PathBuf {
    let path = cluster.scratch.path(name);
    std::fs::create_dir(&path).expect("it is new");
    path.into()
}

/// Starts the cluster with a mount inside.
fn start_inside(cluster: &Cluster, nodes: &str) -> PathBuf {
    let mount = directory(cluster, "mount");
    let text = mount.display().to_string();
    let said = cluster.up(&["--nodes", nodes, "--mount", &text, "--inside"]);
    assert!(said.contains("inside n1"), "{said}");
    mount
}

/// The node with the mount inside.
fn host(status: &Value) -> Value {
    let nodes = status["nodes"].as_array().expect("nodes");
    let has_mount = |node: &&Value| node["mount"]["stage"] == "mounted";
    nodes.iter().find(has_mount).cloned().unwrap_or_default()
}

fn is_served_by_another(before: &Value) -> impl Fn(&Value) -> bool {
    let epoch = before["unit"]["epoch"].clone();
    move |status| status["serving"] == true && status["unit"]["epoch"] != epoch
}

fn is_mounted(directory: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the kernel lists mounts");
    let is_it = |line: &str| line.split(' ').nth(1).map(Path::new) == Some(directory);
    mounts.lines().any(is_it)
}

#[test]
fn a_node_shows_its_cluster_until_it_ends() {
    let cluster = Cluster::new();
    let mount = start_inside(&cluster, "3");
    let status = cluster.wait("all are in sync", is_whole);
    assert_eq!(host(&status)["name"], primary(&status)["name"]);
    // Its data needs no transfer, while the primary is in its process.
    std::fs::write(mount.join("first"), "by calls").expect("written");
    let status = cluster.status();
    let nodes = status["nodes"].as_array().expect("nodes").iter();
    let exports: Vec<&Value> = nodes.map(|node| &node["exports"]).collect();
    assert!(exports.iter().all(|it| **it == 0), "{exports:?}");
    // What one writes, another mount shows, and the other way round.
    let other = directory(&cluster, "other");
    let text = other.display().to_string();
    cluster.tako(&["mount", "tako:///c", &text]).ended(0);
    let long: Vec<u8> = (0..3 << 20).map(|index| (index % 251) as u8).collect();
    std::fs::write(mount.join("inside"), &long).expect("written");
    assert!(std::fs::read(other.join("inside")).expect("read") == long);
    std::fs::write(other.join("outside"), "by messages").expect("written");
    let read = std::fs::read(mount.join("outside")).expect("read");
    assert_eq!(read, b"by messages");
    std::fs::remove_file(mount.join("outside")).expect("it is there");
    assert!(!other.join("outside").exists());
    // A node that is told to end unmounts, also when its mount is in use.
    let held = File::open(mount.join("inside")).expect("it is there");
    kill(primary(&status), Signal::TERM);
    assert!(!is_mounted(&mount));
    let lost = held.read_at(&mut [0; 8], 0);
    assert!(lost.is_err(), "{lost:?}");
    assert!(std::fs::read(other.join("inside")).expect("read") == long);
    // It mounts again, and `tako down` ends all.
    cluster.up_again();
    cluster.wait("it is mounted again", |status| {
        is_whole(status) && host(status)["name"] == "n1"
    });
    assert!(std::fs::read(mount.join("inside")).expect("read") == long);
    drop(held);
    cluster.down(&[]).ended(0);
    assert!(!is_mounted(&mount) && !is_mounted(&other));
    cluster.up_again();
    let status = cluster.wait("it serves without a mount", is_whole);
    assert_eq!(host(&status), Value::Null);
}

/// The threads of the mount read in the store beside each other, and beside a writer: each read shows at least what was written
/// before it began.
#[test]
fn reads_in_the_process_of_the_primary_need_no_message() {
    const READS: u64 = 500;
    let cluster = Cluster::new();
    let mount = start_inside(&cluster, "1");
    let status = cluster.wait("it is mounted", |status| host(status)["name"] == "n1");
    let path = mount.join("file");
    let written = AtomicU64::new(0);
    let file = File::create_new(&path).expect("it is new");
    let write = |value: u64| {
        let words = value.to_le_bytes().repeat(PAGE / 8);
        file.write_all_at(&words, 0).expect("written");
        written.store(value, Ordering::Release);
    };
    let read = || {
        let file = rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty());
        let (file, mut page) = (file.expect("it is there"), Page([0; PAGE]));
        for _ in 0..READS {
            let least = written.load(Ordering::Acquire);
            let count = rustix::io::pread(&file, &mut page.0, 0).expect("read");
            let first = page.0.first_chunk().expect("a word");
            assert!(count == PAGE && page.0.chunks(8).all(|it| it == first));
            assert!(u64::from_le_bytes(*first) >= least);
        }
    };
    write(1);
    read();
    let load = |of: &str| {
        host(&cluster.status())["load"][of]
            .as_u64()
            .expect("a number")
    };
    let before = [load("messages"), load("reads")];
    thread::scope(|scope| {
        scope.spawn(read);
        scope.spawn(read);
    });
    let after = [load("messages"), load("reads")];
    assert!(
        after[0] - before[0] < READS,
        "{before:?} {after:?} {status}"
    );
    assert!(
        after[1] - before[1] >= READS,
        "{before:?} {after:?} {status}"
    );
    thread::scope(|scope| {
        scope.spawn(read);
        scope.spawn(read);
        (2..READS).for_each(write);
    });
}

/// How often the service thread of a node has blocked.
fn blocks(node: &Value) -> usize {
    let tasks = PathBuf::from(format!("/proc/{}/task", node["pid"]));
    let tasks = std::fs::read_dir(tasks).expect("the node runs");
    let path = |task: std::io::Result<std::fs::DirEntry>| task.expect("a thread").path();
    let is_service = |task: &PathBuf| {
        let name = std::fs::read_to_string(task.join("comm"));
        name.is_ok_and(|name| name.trim() == "tako-serve")
    };
    let service = tasks.map(path).find(is_service).expect("a service thread");
    let status = std::fs::read_to_string(service.join("status")).expect("it runs");
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    let count = count.expect("the kernel counts them").trim();
    count.parse().expect("a number")
}

#[test]
fn changes_of_a_mount_inside_do_not_wake_up_the_service_thread() {
    const CHANGES: usize = 500;
    let cluster = Cluster::new();
    let mount = start_inside(&cluster, "1");
    let node = host(&cluster.status());
    let file = File::create(mount.join("file")).expect("made");
    let before = blocks(&node);
    for number in 0..CHANGES as u64 {
        file.write_all_at(&number.to_le_bytes(), 8 * number)
            .expect("written");
    }
    let blocked = blocks(&node) - before;
    // It wakes up by itself a few times in a second.
    assert!(blocked < CHANGES / 8, "{blocked} of {CHANGES}");
}

#[test]
fn a_killed_host_is_a_failover_for_others_and_a_replica_outlives_the_primary() {
    let cluster = Cluster::new();
    let mount = start_inside(&cluster, "3");
    let other = directory(&cluster, "other");
    let text = other.display().to_string();
    cluster.tako(&["mount", "tako:///c", &text]).ended(0);
    let before = cluster.wait("all are in sync", is_whole);
    let counts = under_load(&other, || {
        kill(&host(&before), Signal::KILL);
        cluster.wait("another one serves", is_served_by_another(&before));
    });
    let first =
        || (0..2).for_each(|writer| verify_records(&other, writer, counts[writer as usize]));
    first();
    // The dead mount goes, and the node that is a replica now mounts again.
    cluster.up_again();
    let before = cluster.wait("it is back", |status| {
        is_whole(status) && host(status)["name"] == "n1"
    });
    assert_ne!(primary(&before)["name"], "n1");
    let place = mount.join("later");
    std::fs::create_dir(&place).expect("it is new");
    let later = under_load(&place, || {
        kill(primary(&before), Signal::KILL);
        cluster.wait("another one serves", is_served_by_another(&before));
        cluster.up_again();
        cluster.wait("all are back", is_whole);
    });
    assert!(counts.iter().chain(&later).all(|count| *count > 0));
    (0..2).for_each(|writer| verify_records(&place, writer, later[writer as usize]));
    first();
    cluster.tako(&["umount", &text]).ended(0);
    examine(&cluster);
}

#[test]
fn a_node_without_a_quorum_is_not_held_up_by_its_mount() {
    let cluster = Cluster::new();
    let mount = start_inside(&cluster, "3");
    let before = cluster.wait("all are in sync", is_whole);
    std::fs::write(mount.join("before"), "there").expect("written");
    kill(&host(&before), Signal::KILL);
    let after = cluster.wait("another one serves", is_served_by_another(&before));
    let nodes = after["nodes"].as_array().expect("nodes");
    for node in nodes.iter().filter(|node| node["name"] != "n1") {
        kill(node, Signal::KILL);
    }
    // Others have newer changes: alone, the node does not serve.
    let config = Path::new(&cluster.state()).join("c/n1.toml");
    let config = config.display().to_string();
    let mut serve = cluster.command(&["serve", "--config", &config]);
    let nowhere = || std::process::Stdio::null();
    let alone = Child(common::start(serve.stdout(nowhere()).stderr(nowhere())));
    let status = wait_for_status(&cluster);
    assert_eq!(status["serving"], false);
    let node = &status["nodes"][0];
    assert_ne!(node["mount"], Value::Null);
    kill(node, Signal::TERM);
    drop(alone);
    assert!(!is_mounted(&mount));
    cluster.up_again();
    cluster.wait("it is mounted", |status| host(status)["name"] == "n1");
    assert_eq!(std::fs::read(mount.join("before")).expect("read"), b"there");
}

#[test]
fn an_unmounted_mount_has_no_link_and_its_node_mounts_again_when_it_restarts() {
    let cluster = Cluster::new();
    let mount = start_inside(&cluster, "1").display().to_string();
    std::fs::write(Path::new(&mount).join("file"), "there").expect("written");
    let is_linked = |status: &Value| status["nodes"][0]["links"] != serde_json::json!([]);
    cluster.wait("its client is linked", is_linked);
    cluster.tako(&["umount", &mount]).ended(0);
    cluster.wait("it has ended", |status| {
        status["nodes"][0]["mount"]["stage"] == "ended" && !is_linked(status)
    });
    let up = ["up", "--name", "c", "--mount", &mount, "--inside"];
    let refused = cluster.tako(&up).ended(1);
    assert!(refused.contains("tako down --name c"), "{refused}");
    cluster.down(&[]).ended(0);
    cluster.tako(&up).ended(0);
    assert!(is_mounted(Path::new(&mount)));
}

#[test]
fn a_failed_start_leaves_no_mount_in_a_configuration() {
    let cluster = Cluster::new();
    cluster.up(&["--nodes", "1"]);
    cluster.down(&[]).ended(0);
    let pool = PathBuf::from(cluster.scratch.path("pools")).join("c-n1.pool");
    let kept = cluster.scratch.path("kept");
    std::fs::rename(&pool, &kept).expect("it is there");
    std::fs::create_dir(&pool).expect("it is new");
    let mount = directory(&cluster, "mount").display().to_string();
    let up = ["up", "--name", "c", "--mount", &mount, "--inside"];
    let refused = cluster.tako(&up).ended(1);
    assert!(refused.contains("did not start"), "{refused}");
    std::fs::remove_dir(&pool).expect("it is empty");
    std::fs::rename(&kept, &pool).expect("it was kept");
    cluster.up_again();
    assert_eq!(cluster.status()["nodes"][0]["mount"], Value::Null);
}

/// While `tako up` waits for the pool of the last node, the others serve, and one of them mounts.
#[test]
fn a_failed_start_leaves_no_dead_mount() {
    let cluster = Cluster::new();
    cluster.up(&["--nodes", "3"]);
    cluster.down(&[]).ended(0);
    let pool = PathBuf::from(cluster.scratch.path("pools")).join("c-n3.pool");
    let pool = File::open(pool).expect("it is there");
    flock(&pool, FlockOperation::NonBlockingLockExclusive).expect("nothing uses it");
    let mount = directory(&cluster, "mount").display().to_string();
    let up = ["up", "--name", "c", "--mount", &mount, "--inside"];
    let refused = cluster.tako(&up).ended(1);
    assert!(refused.contains("node n3 did not start"), "{refused}");
    let is_left = is_mounted(Path::new(&mount));
    if is_left {
        let unmounted = std::process::Command::new("umount")
            .args(["-l", &mount])
            .status();
        assert!(unmounted.is_ok_and(|status| status.success()));
    }
    assert!(!is_left, "{mount} is still mounted");
}

/// A process that ends with the test.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        // It has ended, perhaps.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The status, once a node reports it.
fn wait_for_status(cluster: &Cluster) -> Value {
    let start = std::time::Instant::now();
    loop {
        let run = cluster.tako(&["status", "--name", "c", "--json"]);
        if let Ok(status) = serde_json::from_str(&run.out) {
            return status;
        }
        assert!(start.elapsed() < nodes::PATIENCE, "{}", run.err);
    }
}

#[test]
fn mistakes_are_told_in_one_sentence() {
    let cluster = Cluster::new();
    let usage = cluster.tako(&["up", "--name", "c", "--inside"]);
    assert_eq!(usage.code, Some(2), "{}", usage.err);
    let nowhere = cluster.scratch.path("nowhere");
    let up = ["up", "--name", "c", "--mount", &nowhere, "--inside"];
    let refused = cluster.tako(&up).ended(1);
    assert!(refused.contains("does not exist"), "{refused}");
    assert!(!Path::new(&cluster.state()).join("c").exists());
    // Nodes that run do not begin to mount.
    cluster.up(&["--nodes", "1"]);
    let mount = directory(&cluster, "mount").display().to_string();
    let up = ["up", "--name", "c", "--mount", &mount, "--inside"];
    let refused = cluster.tako(&up).ended(1);
    assert!(refused.contains("tako down --name c"), "{refused}");
    // A directory that is a mount already.
    let pool = cluster.scratch.pool("pool", "16M");
    common::tako(&["mount", &pool, &mount]).ended(0);
    cluster.down(&[]).ended(0);
    let refused = cluster.tako(&up).ended(1);
    common::tako(&["umount", &mount]).ended(0);
    assert!(refused.contains("already"), "{refused}");
    // Wrong options, and options without a mount.
    cluster.down(&[]).ended(0);
    let path = Path::new(&cluster.state()).join("c/n1.toml");
    let text = std::fs::read_to_string(&path).expect("a configuration");
    for (line, part) in [
        (
            format!("mount = \"{mount}\"\nmount_options = \"ack=some\"\n"),
            "`ack`",
        ),
        ("mount_options = \"ro\"\n".to_owned(), "needs `mount`"),
        (format!("mount = \"{nowhere}\"\n"), "does not exist"),
    ] {
        std::fs::write(&path, line + &text).expect("written");
        let serve = ["serve", "--config", &path.display().to_string()];
        let refused = cluster.tako(&serve).ended(1);
        assert!(refused.contains(part), "{refused}");
    }
    std::fs::write(&path, text).expect("written");
}
