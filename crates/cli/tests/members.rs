//! Members of other kinds: with metadata only, and spares.
#![forbid(unsafe_code)]

mod common;
mod nodes;

use rustix::process::Signal;
use serde_json::Value;

use nodes::{Cluster, examine, is_whole, kill, mounted, under_load, verify_records};

/// Some writers, one data node lost, then another: the files are as they were written, and every check is clean.
fn metadata_members(metadata: u8, data: u8) {
    let cluster = Cluster::new();
    cluster.up(&[
        "--metadata-nodes",
        &metadata.to_string(),
        "--data-nodes",
        &data.to_string(),
    ]);
    let directory = mounted(&cluster);
    let status = cluster.wait("all are in sync", is_whole);
    let nodes = status["nodes"].as_array().expect("nodes");
    let with_metadata_only = nodes.iter().filter(|node| node["role"] == "metadata");
    assert_eq!(with_metadata_only.count(), usize::from(metadata));
    let large = vec![0xa7; 3 << 20];
    std::fs::write(directory.join("large"), &large).expect("written");
    std::os::unix::fs::symlink("t".repeat(900), directory.join("link")).expect("linked");
    let counts = under_load(&directory, || {
        for name in ["n1", "n2"] {
            let status = cluster.wait("all are in sync", is_whole);
            let nodes = status["nodes"].as_array().expect("nodes");
            let node = nodes.iter().find(|node| node["name"] == name);
            kill(node.expect("there is one"), Signal::KILL);
            cluster.wait("it is left out and another one serves", |status| {
                let nodes = status["nodes"].as_array().expect("nodes");
                let node = nodes.iter().find(|node| node["name"] == name);
                status["serving"] == true && node.is_some_and(|node| node["in_sync"] == false)
            });
            cluster.tako(&["up", "--name", "c"]).ended(0);
        }
        cluster.wait("all are back", is_whole);
    });
    (0..2).for_each(|writer| verify_records(&directory, writer as u32, counts[writer]));
    assert!(std::fs::read(directory.join("large")).expect("read") == large);
    let link = std::fs::read_link(directory.join("link")).expect("read");
    assert_eq!(link.as_os_str().len(), 900);
    examine(&cluster);
    // The member with metadata only never had the data.
    let blocks = |node: &str| {
        let pool = cluster.scratch.path(&format!("pools/c-{node}.pool"));
        let pool = std::fs::read(pool).expect("it is there");
        let blocks = pool.chunks(4096);
        blocks.filter(|block| *block == &large[..4096]).count()
    };
    assert_eq!([blocks("m1"), blocks("n1")], [0, large.len() / 4096]);
}

#[test]
fn a_member_with_metadata_only_never_leads_and_its_pool_is_clean() {
    metadata_members(1, 2);
}

#[test]
fn five_and_seven_members_may_have_metadata_only() {
    metadata_members(1, 4);
    metadata_members(3, 4);
}

/// The node of this name in a status.
fn node<'a>(status: &'a Value, name: &str) -> &'a Value {
    let nodes = status["nodes"].as_array().expect("nodes");
    let found = nodes.iter().find(|node| node["name"] == name);
    found.expect("there is one")
}

fn is_spare(status: &Value, name: &str) -> bool {
    is_whole(status) && node(status, name)["role"] == "spare"
}

#[test]
fn a_spare_takes_the_place_of_a_node_that_is_away() {
    let cluster = Cluster::new();
    let said = cluster.up(&["--nodes", "3", "--spares", "1", "--spare-after", "2"]);
    assert!(
        said.contains("3 nodes serve") && said.contains("1 stands by"),
        "{said}"
    );
    let directory = mounted(&cluster);
    cluster.wait("all are in sync", |status| is_spare(status, "n4"));
    let counts = under_load(&directory, || {
        let status = cluster.status();
        kill(node(&status, "n1"), Signal::KILL);
        cluster.wait("the spare has its place", |status| {
            is_whole(status) && node(status, "n4")["in_sync"] == true
        });
        cluster.tako(&["up", "--name", "c"]).ended(0);
        cluster.wait("n1 is the spare", |status| is_spare(status, "n1"));
        // A process that was stopped for so long starts over.
        let status = cluster.status();
        kill(node(&status, "n2"), Signal::STOP);
        cluster.wait("n1 has its place", |status| {
            is_whole(status) && node(status, "n1")["in_sync"] == true
        });
        kill(node(&status, "n2"), Signal::CONT);
        let after = cluster.wait("n2 is the spare", |status| {
            is_spare(status, "n2") && node(status, "n2")["tail"].is_u64()
        });
        assert_eq!(node(&after, "n2")["pid"], node(&status, "n2")["pid"]);
    });
    (0..2).for_each(|writer| verify_records(&directory, writer as u32, counts[writer]));
    cluster.down(&[]).ended(0);
    for member in ["n1", "n3", "n4"] {
        let pool = cluster.scratch.path(&format!("pools/c-{member}.pool"));
        common::tako(&["check", &pool]).ended(0);
    }
}

#[test]
fn a_lost_pool_is_filled_again_and_a_unit_that_lost_all_says_so() {
    let cluster = Cluster::new();
    cluster.up(&["--nodes", "3"]);
    let directory = mounted(&cluster);
    std::fs::write(directory.join("file"), "contents").expect("written");
    let pool = |node: u32| cluster.scratch.path(&format!("pools/c-n{node}.pool"));
    let status = cluster.wait("all are in sync", is_whole);
    kill(node(&status, "n3"), Signal::KILL);
    std::fs::remove_file(pool(3)).expect("it was there");
    cluster.tako(&["up", "--name", "c"]).ended(0);
    cluster.wait("n3 has everything again", is_whole);
    let read = std::fs::read_to_string(directory.join("file"));
    assert_eq!(read.expect("it is readable"), "contents");
    cluster.down(&[]).ended(0);
    (1..=3).for_each(|node| std::fs::remove_file(pool(node)).expect("it was there"));
    let refused = cluster.tako(&["up", "--name", "c"]).ended(1);
    assert!(refused.contains("has lost its contents"), "{refused}");
}
