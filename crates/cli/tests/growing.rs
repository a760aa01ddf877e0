//! Clusters of real processes that grow while they are in use.
#![forbid(unsafe_code)]

mod common;
mod mounted;
mod nodes;
mod transport;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use common::{Scratch, tako};
use mounted::Mounted;
use nodes::{Cluster, examine, is_whole, kill, mounted, primary};

const SMALL: u64 = 16 << 20;
const LARGE: u64 = 64 << 20;

fn total(status: &Value) -> u64 {
    status["unit"]["space"]["total"].as_u64().expect("space")
}

fn write(path: impl AsRef<Path>, length: usize) {
    let mut file = File::create(path).expect("it can be made");
    file.write_all(&vec![7; length]).expect("it has room");
    file.sync_all().expect("synced");
}

fn has(path: impl AsRef<Path>, length: usize) {
    assert!(std::fs::read(path).expect("it is there") == vec![7; length]);
}

/// One member is away when the others grow, and one mount writes into their memories itself.
#[test]
fn a_cluster_grows_while_it_is_in_use() {
    let cluster = Cluster::serving("3", "16M");
    let directory = mounted(&cluster);
    let path = cluster.scratch.path("other");
    let arguments = [
        "mount",
        "--foreground",
        "-o",
        "io=client",
        "tako:///c",
        &path,
    ];
    let other = Mounted::by(&mut cluster.command(&arguments), &path);
    write(other.path("before"), 1 << 20);
    let status = cluster.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    let away = nodes.iter().find(|node| node["role"] == "replica");
    kill(away.expect("a replica"), Signal::KILL);
    cluster.wait("it is left out", |status| status["unit"]["in_sync"] == 2);
    let said = cluster
        .tako(&["grow", "tako:///c", "--size", "64M"])
        .ended(0);
    assert!(said.contains("have 67108864 bytes now"), "{said}");
    let grown = cluster.wait("the primary has grown", |after| {
        after["serving"] == true && total(after) > total(&status)
    });
    assert!(total(&grown) > LARGE - SMALL, "{grown:#}");
    assert_eq!(primary(&grown)["pool"], LARGE);
    write(directory.join("file"), LARGE as usize / 3);
    write(other.path("more"), LARGE as usize / 3);
    cluster.up_again();
    cluster.wait("the node is back, as long as the others", is_whole);
    cluster.lose_primary();
    has(other.path("file"), LARGE as usize / 3);
    has(directory.join("more"), LARGE as usize / 3);
    has(directory.join("before"), 1 << 20);
    drop(other);
    cluster.up_again();
    examine(&cluster);
}

#[test]
fn a_spare_grows_with_the_unit() {
    let cluster = Cluster::new();
    cluster.up(&["--nodes", "2", "--spares", "1", "--spare-after", "1"]);
    let before = cluster.wait("all are in sync", is_whole);
    let directory = mounted(&cluster);
    cluster
        .tako(&["grow", "tako:///c", "--size", "64M"])
        .ended(0);
    write(directory.join("file"), LARGE as usize / 2);
    kill(primary(&before), Signal::KILL);
    let is_replaced = |status: &Value| {
        let nodes = status["nodes"].as_array().expect("nodes");
        let spare = nodes.iter().find(|node| node["name"] == "n3");
        is_whole(status) && spare.is_some_and(|it| it["in_sync"] == true)
    };
    cluster.wait("the spare is in sync", is_replaced);
    cluster.lose_primary();
    has(directory.join("file"), LARGE as usize / 2);
}

/// Its process does not restart: it follows with the longer image.
#[test]
fn a_stopped_member_grows_when_it_continues() {
    let cluster = Cluster::serving("3", "16M");
    let before = cluster.status();
    let nodes = before["nodes"].as_array().expect("nodes");
    let stopped = nodes.iter().find(|node| node["role"] == "replica");
    let stopped = stopped.expect("a replica");
    kill(stopped, Signal::STOP);
    cluster.wait("it is left out", |status| status["unit"]["in_sync"] == 2);
    let grow = ["grow", "tako:///c", "--size", "64M"];
    cluster.tako(&grow).ended(0);
    kill(stopped, Signal::CONT);
    let has_grown = |status: &Value| {
        let nodes = status["nodes"].as_array().expect("nodes");
        is_whole(status) && nodes.iter().all(|node| node["pool"] == LARGE)
    };
    let after = cluster.wait("it has grown", has_grown);
    let nodes = after["nodes"].as_array().expect("nodes");
    assert!(nodes.iter().any(|node| node["pid"] == stopped["pid"]));
    let file = cluster.scratch.path("file");
    write(&file, LARGE as usize / 3);
    cluster.tako(&["cp", &file, "tako:///c:/file"]).ended(0);
    examine(&cluster);
}

/// A file system of so many bytes.
struct Small(String);

impl Small {
    fn new(directory: String, size: &str) -> Small {
        std::fs::create_dir(&directory).expect("it is new");
        let mut mount = Command::new("mount");
        let options = format!("size={size}");
        mount.args(["-t", "tmpfs", "-o", &options, "none", &directory]);
        assert!(mount.status().expect("there is mount").success());
        Small(directory)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.0]).status();
    }
}

#[test]
fn mkfs_keeps_a_pool_that_it_cannot_replace() {
    let scratch = Scratch::new();
    let small = Small::new(scratch.path("small"), "32M");
    let pool = format!("{}/pool", small.0);
    let root = format!("{pool}:/");
    tako(&["mkfs", &pool, "--size", "16M"]).ended(0);
    tako(&["mkdir", &format!("{root}kept")]).ended(0);
    for (size, reason) in [("64M", "no room"), ("64K", "at least 1 MiB")] {
        let refused = tako(&["mkfs", &pool, "--size", size, "--force"]).ended(1);
        assert!(refused.contains(reason), "{refused}");
        assert_eq!(tako(&["ls", &root]).ended(0), "kept\n", "of {size}");
    }
    let length = || std::fs::metadata(&pool).expect("it is there").len();
    assert_eq!(length(), SMALL);
    // It fits only where the old one was.
    tako(&["mkfs", &pool, "--size", "24M", "--force"]).ended(0);
    assert_eq!(
        (tako(&["ls", &root]).ended(0).as_str(), length()),
        ("", 24 << 20)
    );
}

#[test]
fn a_refused_request_gives_back_the_room_of_all_nodes() {
    let scratch = Scratch::new();
    let small = Small::new(scratch.path("small"), "32M");
    let cluster = Cluster::serving("2", "16M");
    cluster.down(&[]).ended(0);
    let pool = |node: &str| cluster.scratch.path(&format!("pools/c-{node}.pool"));
    let moved = format!("{}/pool", small.0);
    std::fs::copy(pool("n2"), &moved).expect("there is room");
    std::fs::remove_file(pool("n2")).expect("it is there");
    symlink(&moved, pool("n2")).expect("the name is free");
    cluster.up_again();
    let refused = cluster
        .tako(&["grow", "tako:///c", "--size", "64M"])
        .ended(1);
    assert!(refused.contains("node n2: "), "{refused}");
    let lengths = |status: &Value| {
        let nodes = status["nodes"].as_array().expect("nodes").clone();
        nodes.into_iter().filter_map(|node| node["pool"].as_u64())
    };
    cluster.wait("the room is given back", |status| {
        lengths(status).all(|length| length == SMALL)
    });
    let length = |path: &str| std::fs::metadata(path).expect("it is there").len();
    assert_eq!([pool("n1"), moved].map(|path| length(&path)), [SMALL; 2]);
    let grow = ["grow", "tako:///c", "--size", "24M"];
    cluster.tako(&grow).ended(0);
    let status = cluster.wait("they have grown", |status| {
        lengths(status).all(|length| length > SMALL)
    });
    assert!(total(&status) > SMALL, "{status:#}");
    examine(&cluster);
}

#[test]
fn a_cluster_without_room_stays_as_it_is() {
    let cluster = Cluster::serving("2", "16M");
    let before = total(&cluster.status());
    let refused = |size: &str, sentence: &str| {
        let said = cluster
            .tako(&["grow", "tako:///c", "--size", size])
            .ended(1);
        let start = "tako: growing the pools of cluster c failed: ";
        assert!(said.starts_with(start), "{said}");
        assert!(said.contains(sentence), "{said}");
    };
    refused("1T", "node n");
    refused("8M", "its pools have 16777216 bytes; name a larger size");
    assert_eq!(total(&cluster.status()), before);
    cluster.tako(&["grow", "tako:///c"]).ended(2);
    let elsewhere = cluster.tako(&["grow", "tako://10.0.0.1:7474/c", "--size", "1G"]);
    assert!(elsewhere.ended(2).contains("on the host of a node"));
    let none = cluster
        .tako(&["grow", "tako:///d", "--size", "1G"])
        .ended(1);
    assert!(none.contains("no node of cluster d runs on this host"));
    // The request was ended by its refusal: the next one counts.
    cluster
        .tako(&["grow", "tako:///c", "--size", "32M"])
        .ended(0);
    cluster.wait("it has grown", |status| total(status) > before);
}

#[test]
fn mkfs_replaces_the_pool_behind_a_symbolic_link_and_refuses_hard_links() {
    let scratch = Scratch::new();
    let pool = scratch.pool("pool", "8M");
    let link = scratch.path("link");
    symlink("pool", &link).unwrap();
    tako(&["mkfs", &link, "--size", "16M", "--force"]).ended(0);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&pool).unwrap().len(), 16 << 20);
    tako(&["check", &pool]).ended(0);

    for (target, why) in [("none", "leads nowhere"), ("loop", "cannot be followed")] {
        let link = scratch.path("loop");
        symlink(target, &link).unwrap();
        let refused = tako(&["mkfs", &link, "--size", "16M", "--force"]).ended(1);
        assert!(refused.contains(why), "{refused}");
        fs::remove_file(&link).unwrap();
    }

    let other = scratch.path("other");
    fs::hard_link(&pool, &other).unwrap();
    for name in [&pool, &other, &link] {
        let refused = tako(&["mkfs", name, "--size", "24M", "--force"]).ended(1);
        assert!(refused.contains("2 names"), "{refused}");
        assert_eq!(fs::metadata(&pool).unwrap().len(), 16 << 20);
    }
    fs::remove_file(&other).unwrap();
    tako(&["mkfs", &pool, "--size", "24M", "--force"]).ended(0);
}
