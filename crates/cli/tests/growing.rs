//! Clusters of real processes that grow while they are in use.
#![forbid(unsafe_code)]

mod common;
mod mounted;
mod nodes;
mod transport;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

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
    assert!(
        elsewhere
            .ended(2)
            .contains("on the host of one of its nodes")
    );
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
