//! Mounts of clusters of processes that move the data of files themselves, one-sided: `-o io=client`. And messages that travel
//! one-sided: `-o requests=announced` and `-o pull=`.
#![forbid(unsafe_code)]

mod common;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::Scratch;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Nothing that works takes so long.
const LONG: Duration = Duration::from_secs(60);
/// Bytes of a file, and of one write or read.
const LENGTH: usize = 4 << 20;
const PART: usize = 128 << 10;

/// A cluster of three nodes and a mount of it. Both end with the test, however that ends.
struct Cluster {
    scratch: Scratch,
}

impl Cluster {
    fn up() -> Cluster {
        let cluster = Cluster {
            scratch: Scratch::new(),
        };
        let pools = cluster.scratch.path("pools");
        let size = ["--nodes", "3", "--size", "48M", "--directory", &pools];
        cluster.tako(&[&["up", "--name", "c"][..], &size].concat());
        cluster.wait("all members are in sync", |status| {
            status["serving"] == true && status["unit"]["in_sync"] == 3
        });
        cluster
    }

    fn run(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = common::command(arguments);
        command.env("TAKO_STATE", self.scratch.path("state"));
        match arguments.first() {
            // A process that another test starts has copies of this one's files for a moment.
            Some(&"down") => common::apart(|| command.output()).expect("it runs"),
            _ => common::run(&mut command),
        }
    }

    fn tako(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    fn mount(&self, options: &str) -> PathBuf {
        let directory = self.scratch.path("mount");
        if !Path::new(&directory).exists() {
            std::fs::create_dir(&directory).expect("it is new");
        }
        self.tako(&["mount", "tako:///c", &directory, "-o", options]);
        directory.into()
    }

    fn umount(&self) {
        self.tako(&["umount", &self.scratch.path("mount")]);
    }

    fn status(&self) -> Value {
        let text = self.tako(&["status", "--name", "c", "--json"]);
        serde_json::from_str(&text).expect("it is JSON")
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(start.elapsed() < LONG, "{what}: {status:#}");
        }
    }

    /// Report of the primary.
    fn primary(&self) -> Value {
        let status = self.wait("a primary serves", |status| status["serving"] == true);
        let nodes = status["nodes"].as_array().expect("nodes");
        let primary = nodes.iter().find(|node| node["role"] == "primary");
        primary.expect("it is listed").clone()
    }

    fn kill_primary(&self) {
        let pid = self.primary()["pid"].as_i64().expect("it runs");
        let pid = Pid::from_raw(pid as i32).expect("a process");
        kill_process(pid, Signal::KILL).expect("it is ours");
    }

    /// Bytes of files that the nodes have moved in messages.
    fn moved(&self) -> u64 {
        let status = self.status();
        let nodes = status["nodes"].as_array().expect("nodes");
        let moved = |node: &Value| {
            let load = &node["load"];
            Some(load["read"].as_u64()? + load["written"].as_u64()?)
        };
        nodes.iter().filter_map(moved).sum()
    }

    /// Writes or reads a file until the nodes have moved little of it in messages: keys, layouts and blocks come with the
    /// first requests, and none is waited for long.
    fn until_few_moved(&self, mut work: impl FnMut(usize)) {
        let start = Instant::now();
        for round in 0.. {
            let before = self.moved();
            work(round);
            let moved = self.moved() - before;
            if moved < LENGTH as u64 / 4 {
                return;
            }
            assert!(start.elapsed() < LONG, "{moved} bytes in messages");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.run(&["umount", "-l", &self.scratch.path("mount")]);
        let _ = self.run(&["down", "--name", "c", "--remove"]);
    }
}

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| ((at / 7 + seed) % 251) as u8)
        .collect()
}

/// Writes a file in parts past the page cache; returns the contents.
fn write(path: &Path, seed: usize) -> Vec<u8> {
    let contents = bytes(seed, LENGTH);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path);
    let file = file.expect("it can be made");
    for (index, part) in contents.chunks(PART).enumerate() {
        let at = (index * PART) as u64;
        file.write_all_at(part, at).expect("it has room");
    }
    file.sync_all().expect("it is synced");
    contents
}

/// Mounts, writes and reads; then all that was written is what each member has.
fn data_goes_one_sided(transport: &str) {
    let cluster = Cluster::up();
    let mount = cluster.mount(&format!("io=client,transport={transport}"));
    let mut contents = Vec::new();
    cluster.until_few_moved(|round| contents = write(&mount.join("file"), round));
    let nodes = cluster.status()["nodes"].clone();
    let exports = nodes.as_array().expect("nodes").iter();
    assert!(
        exports.map(|node| &node["exports"]).all(|it| it == 1),
        "{nodes:#}"
    );
    cluster.umount();
    // Nothing of it is in the page cache of a new mount.
    let options = format!("ro,cache=none,io=client,transport={transport}");
    let mount = cluster.mount(&options);
    cluster.until_few_moved(|_| {
        assert!(std::fs::read(mount.join("file")).expect("it is there") == contents);
    });
    cluster.umount();
    verify_members(&cluster, &[("file", &contents)]);
}

/// Has each member's pool checked, data included, and the contents read from each as the only one.
fn verify_members(cluster: &Cluster, files: &[(&str, &Vec<u8>)]) {
    cluster.wait("all members are in sync", |status| {
        status["unit"]["in_sync"] == 3
    });
    for (name, contents) in files {
        let output = cluster.run(&["cat", &format!("tako:///c:/{name}")]);
        assert!(output.stdout == **contents, "{name}");
    }
    cluster.tako(&["down", "--name", "c"]);
    let pools = std::fs::read_dir(cluster.scratch.path("pools")).expect("it is there");
    let paths = pools.map(|entry| entry.expect("it can be listed").path());
    let pools: Vec<_> = paths.filter(|path| path.extension().is_some()).collect();
    assert_eq!(pools.len(), 3, "{pools:?}");
    for pool in pools {
        cluster.tako(&["check", &pool.display().to_string()]);
    }
}

#[test]
fn mounts_move_data_over_shared_memory_without_the_servers() {
    data_goes_one_sided("shm");
}

#[test]
fn mounts_move_data_one_sided_over_tcp() {
    data_goes_one_sided("tcp");
}

/// Long writes need blocks of the pools, which other mounts get when this one does not use them.
#[test]
fn a_mount_that_chooses_writes_long_data_one_sided_and_returns_its_blocks() {
    let cluster = Cluster::up();
    let mount = cluster.mount("io=auto,transport=shm");
    let free = || {
        let found = rustix::fs::statvfs(&mount).expect("it is mounted");
        found.f_bfree * found.f_frsize
    };
    let before = free();
    let file = File::create(mount.join("file")).expect("it can be made");
    let part = bytes(1, 1 << 20);
    cluster.until_few_moved(|_| {
        for at in (0..LENGTH as u64).step_by(part.len()) {
            file.write_all_at(&part, at).expect("it has room");
        }
        file.sync_all().expect("it is synced");
    });
    let start = Instant::now();
    // The rest is what the file and the grant need to be described.
    while free() + LENGTH as u64 + PART as u64 <= before {
        assert!(start.elapsed() < LONG, "{} of {before} are free", free());
    }
    drop(file);
    cluster.umount();
    verify_members(&cluster, &[("file", &part.repeat(4))]);
}

#[test]
fn a_primary_killed_in_the_middle_loses_nothing_that_was_synced() {
    let cluster = Cluster::up();
    let mount = cluster.mount("io=client,transport=shm");
    cluster.until_few_moved(|round| drop(write(&mount.join("first"), round)));
    let mut files = Vec::new();
    for number in 0..4 {
        let name = format!("file{number}");
        if number == 2 {
            let path = mount.join("halfway");
            let file = File::create(&path).expect("it can be made");
            file.write_all_at(&bytes(9, PART), 0).expect("it has room");
            cluster.kill_primary();
        }
        let contents = write(&mount.join(&name), number);
        files.push((name, contents));
    }
    files.push(("halfway".into(), bytes(9, PART)));
    for (name, contents) in &files {
        assert!(std::fs::read(mount.join(name)).expect("it is there") == *contents);
    }
    cluster.umount();
    cluster.tako(&["up", "--name", "c"]);
    let files: Vec<_> = files.iter().map(|(name, it)| (name.as_str(), it)).collect();
    verify_members(&cluster, &files);
}

/// How messages between this node and its links of a kind travel.
fn ways<'a>(node: &'a Value, is_node: bool, key: &str) -> Vec<&'a str> {
    let links = node["links"].as_array().expect("links").iter();
    let links = links.filter(|link| link["is_node"] == is_node);
    links
        .map(|link| link[key].as_str().expect("a way"))
        .collect()
}

#[test]
fn requests_announce_themselves_and_outlive_their_primary() {
    let cluster = Cluster::up();
    let mount = cluster.mount("requests=announced,io=server,transport=shm");
    let path = |number: usize| mount.join(format!("file{number}"));
    let contents = |number: usize| bytes(number, 100 + number);
    let work = |number: usize| {
        std::fs::write(path(number), contents(number)).expect("it has room");
        File::open(path(number))
            .and_then(|file| file.sync_all())
            .expect("it is synced");
    };
    for number in 0..100 {
        if number == 50 {
            let primary = cluster.primary();
            // Each file takes more than one request; the first ones went in messages.
            assert!(primary["announced"].as_u64() > Some(50), "{primary:#}");
            assert_eq!(ways(&primary, false, "requests"), ["announced"]);
            // The mount chose it for its own links only.
            assert!(
                ways(&primary, true, "requests")
                    .iter()
                    .all(|it| *it == "messages")
            );
            cluster.kill_primary();
        }
        work(number);
    }
    let primary = cluster.primary();
    assert!(primary["announced"].as_u64() > Some(50), "{primary:#}");
    assert_eq!(ways(&primary, false, "requests"), ["announced"]);
    for number in 0..100 {
        let read = std::fs::read(path(number)).expect("it is there");
        assert!(read == contents(number), "file {number}");
    }
    cluster.umount();
    cluster.tako(&["up", "--name", "c"]);
    let last = contents(99);
    verify_members(&cluster, &[("file99", &last)]);
}

#[test]
fn early_answered_writes_are_copied_out_of_the_mount_and_outlive_a_primary() {
    /// The longest write that is answered early.
    const EARLY: usize = 64 << 10;
    const WRITES: usize = 64;
    let cluster = Cluster::up();
    let mount = cluster.mount("ack=primary,cache=writeback,io=server,transport=shm");
    let path = |number: usize| mount.join(format!("file{number}"));
    let write = |number: usize| {
        let file = File::create(path(number)).expect("it is made");
        for at in 0..WRITES {
            let data = bytes(number * WRITES + at, EARLY);
            file.write_all_at(&data, (at * EARLY) as u64)
                .expect("it has room");
        }
        file
    };
    let check = |primary: Value| {
        assert_eq!(
            ways(&primary, false, "write_cache"),
            ["copied from its memory"]
        );
        let count = primary["pulled_early"].as_u64().expect("a count");
        assert!(count > 0, "{primary:#}");
    };
    write(0).sync_all().expect("it is synced");
    check(cluster.primary());
    let unsynced = write(1);
    cluster.kill_primary();
    unsynced.sync_all().expect("it is synced");
    drop(unsynced);
    write(2).sync_all().expect("it is synced");
    check(cluster.primary());
    let contents = |number: usize| -> Vec<u8> {
        let parts = (0..WRITES).map(|at| bytes(number * WRITES + at, EARLY));
        parts.flatten().collect()
    };
    let all = [0, 1, 2].map(contents);
    for (number, contents) in all.iter().enumerate() {
        let read = std::fs::read(path(number)).expect("it is there");
        assert!(read == *contents, "file {number}");
    }
    cluster.umount();
    cluster.tako(&["up", "--name", "c"]);
    verify_members(&cluster, &[("file1", &all[1]), ("file2", &all[2])]);
}

#[test]
fn status_gives_the_reason_for_messages_over_tcp() {
    let cluster = Cluster::up();
    let mount = cluster.mount("requests=announced,pull=always,transport=tcp");
    std::fs::write(mount.join("file"), bytes(1, PART)).expect("it has room");
    let primary = cluster.primary();
    let reason = "messages: the target's processor would execute the writes";
    assert_eq!(ways(&primary, false, "requests"), [reason]);
    let reason = "nothing: the target's processor would execute the reads";
    assert_eq!(ways(&primary, false, "pull"), [reason]);
    let reason = "in messages: the target's processor would execute the reads";
    assert_eq!(ways(&primary, false, "write_cache"), [reason]);
    let text = cluster.tako(&["status", "--name", "c"]);
    assert!(text.contains("; requests messages: the target's"), "{text}");
    assert_eq!(
        ["announced", "pulled", "pulled_early"].map(|counter| primary[counter].as_u64()),
        [Some(0); 3]
    );
    cluster.umount();
}

/// Fragments that the primary has pulled out of the memory of a mount with these options, for five writes of this length.
fn pulled(cluster: &Cluster, options: &str, length: usize) -> u64 {
    let mount = cluster.mount(&format!("io=server,transport=shm,{options}"));
    let file = File::create(mount.join("pulled")).expect("it can be made");
    let count = || cluster.primary()["pulled"].as_u64().expect("a count");
    let write = |number| {
        let written = file.write_all_at(&bytes(number, length), 0);
        written.expect("it has room");
        file.sync_all().expect("it is synced");
    };
    // The pool of a link is made with its first message that is long enough, which still travels in fragments.
    (0..5).for_each(write);
    let before = count();
    (5..10).for_each(write);
    let pulled = count() - before;
    drop(file);
    let read = std::fs::read(mount.join("pulled")).expect("it is there");
    assert!(read == bytes(9, length), "{options}, {length} bytes");
    cluster.umount();
    pulled
}

#[test]
fn data_is_pulled_as_the_mount_chose() {
    let cluster = Cluster::up();
    let (short, long) = (16 << 10, 64 << 10);
    for (options, at_short, at_long) in [
        ("pull=auto", 0, 5),
        ("pull=always", 5, 5),
        ("pull=never", 0, 0),
        // Short messages in slots change nothing of that.
        ("pull=always,requests=announced", 5, 5),
    ] {
        assert_eq!(pulled(&cluster, options, short), at_short, "{options}");
        assert_eq!(pulled(&cluster, options, long), at_long, "{options}");
    }
}

#[test]
fn nodes_announce_and_pull_as_their_configuration_says() {
    let cluster = Cluster::up();
    cluster.tako(&["down", "--name", "c"]);
    for node in ["n1", "n2", "n3"] {
        let path = cluster.scratch.path(&format!("state/c/{node}.toml"));
        let text = std::fs::read_to_string(&path).expect("it is there");
        let text = format!("requests = \"announced\"\npull = \"always\"\n{text}");
        std::fs::write(&path, text).expect("it has room");
    }
    cluster.tako(&["up", "--name", "c"]);
    let mount = cluster.mount("io=server,transport=shm");
    let contents = bytes(1, 8 << 10);
    std::fs::write(mount.join("file"), &contents).expect("it has room");
    cluster.wait(
        "replicas have pulled and got announced messages",
        |status| {
            let nodes = status["nodes"].as_array().expect("nodes").iter();
            let replicas = nodes.filter(|node| node["role"] == "replica");
            let is_more = |value: &Value| value.as_u64() > Some(0);
            let counts = replicas.filter(|it| is_more(&it["pulled"]) && is_more(&it["announced"]));
            let is_done = counts.count() == 2;
            if !is_done {
                std::fs::write(mount.join("file"), &contents).expect("it has room");
            }
            is_done
        },
    );
    let primary = cluster.primary();
    let (requests, pull) = (
        ways(&primary, true, "requests"),
        ways(&primary, true, "pull"),
    );
    assert_eq!(
        (requests, pull),
        (vec!["announced"; 2], vec!["from 509 bytes on"; 2])
    );
    // The mount dials, and has chosen nothing.
    assert_eq!(ways(&primary, false, "requests"), ["messages"]);
    cluster.umount();
    verify_members(&cluster, &[("file", &contents)]);
}
