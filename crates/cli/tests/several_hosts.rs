//! A cluster of nodes on several hosts, with keys, over TCP.
#![forbid(unsafe_code)]

mod common;
mod hosts;

use std::path::Path;

use serde_json::Value;

use hosts::Hosts;
use hosts::cluster::{Cluster, is_whole, links, primary};

#[test]
fn nodes_on_several_hosts_serve_with_keys_and_without_one_of_them() {
    let mut cluster = Cluster::start(3, Hosts::new(3), "transport = \"tcp\"\n");
    let status = cluster.wait("they serve", is_whole);
    let source = status["source"].as_str().expect("a source");
    assert!(source.starts_with("tako://10.0.0."), "{source}");
    assert!(
        source.ends_with("/hosts") && source.contains(":7474,"),
        "{source}"
    );
    let links = links(&status);
    assert!(links.len() >= 4);
    for link in links {
        assert_eq!(link["transport"], "tcp");
        assert_ne!(link["passed_over"].as_array().map(Vec::len), Some(0));
    }
    // A host with a replica alone does not know whether the primary serves.
    let replica = format!("n{}", (primary(&status) + 1) % 3 + 1);
    let seen = cluster.status_at(&replica).expect("it answers");
    assert_eq!(seen["unit"]["primary"], status["unit"]["primary"]);
    assert_eq!(seen["serving"], Value::Null, "{seen:#}");
    // The host of the primary goes off the network. The process lives, and its leases end.
    let lost = primary(&status);
    cluster.hosts.set_link(lost, "down");
    cluster.wait("another one serves", |now| {
        now["serving"] == true && now["unit"]["epoch"] != status["unit"]["epoch"]
    });
    cluster.hosts.set_link(lost, "up");
    cluster.wait("the host is back", is_whole);
    // A node with keys of another cluster is refused in one sentence.
    let keys = cluster.scratch.path("foreign");
    common::tako(&["keys", "init", &keys, "n1"]).ended(0);
    let _ = cluster.nodes[0].kill();
    let _ = cluster.nodes[0].wait();
    let config = cluster.configure(0, 3, &keys);
    let said = cluster.refused(&config);
    assert!(said.contains("the keys are of cluster"), "{said}");
    // So is a node with a configuration that names a pool that is used by itself.
    let alone = cluster.scratch.pool("alone", "16M");
    let config = cluster.configure(0, 3, &cluster.scratch.path("keys"));
    let text = std::fs::read_to_string(&config).expect("it was written");
    let pool = cluster.scratch.path("n1.pool");
    std::fs::write(&config, text.replace(&pool, &alone)).expect("written");
    let said = cluster.refused(&config);
    assert!(said.contains("is a pool by itself"), "{said}");
    assert!(Path::new(&pool).exists());
}
