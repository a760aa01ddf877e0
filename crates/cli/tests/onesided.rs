//! Mounts of clusters of processes that move the data of files themselves, one-sided: `-o io=client`.
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

#[test]
fn a_primary_killed_in_the_middle_loses_nothing_that_was_synced() {
    let cluster = Cluster::up();
    let mount = cluster.mount("io=client,transport=shm");
    cluster.until_few_moved(|round| drop(write(&mount.join("first"), round)));
    let status = cluster.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    let primary = nodes.iter().find(|node| node["role"] == "primary");
    let pid = primary
        .and_then(|node| node["pid"].as_i64())
        .expect("it runs");
    let pid = Pid::from_raw(pid as i32).expect("a process");
    let mut files = Vec::new();
    for number in 0..4 {
        let name = format!("file{number}");
        if number == 2 {
            let path = mount.join("halfway");
            let file = File::create(&path).expect("it can be made");
            file.write_all_at(&bytes(9, PART), 0).expect("it has room");
            kill_process(pid, Signal::KILL).expect("it is ours");
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
