//! A cluster of nodes on several hosts, with keys, over TCP.
#![forbid(unsafe_code)]

mod common;
mod hosts;

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::Scratch;
use hosts::Hosts;
use serde_json::Value;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct Cluster {
    nodes: Vec<Child>,
    hosts: Hosts,
    scratch: Scratch,
}

impl Cluster {
    /// Makes keys for so many nodes and starts them.
    fn start(count: usize) -> Cluster {
        let mut cluster = Cluster {
            nodes: Vec::new(),
            hosts: Hosts::new(count),
            scratch: Scratch::new(),
        };
        let keys = cluster.scratch.path("keys");
        common::tako(&["keys", "init", &keys, "n1"]).ended(0);
        for node in 1..count {
            common::tako(&["keys", "issue", &keys, &format!("n{}", node + 1)]).ended(0);
        }
        for node in 0..count {
            let path = cluster.configure(node, count, &keys);
            cluster.nodes.push(cluster.serve(node, &path));
        }
        cluster
    }

    fn configure(&self, node: usize, count: usize, keys: &str) -> String {
        let name = format!("n{}", node + 1);
        let text = format!(
            "cluster = \"hosts\"\nname = \"{name}\"\nlisten = [\"{}:7474\"]\nkeys = \"{keys}/{name}\"\n\
             [pool]\npath = \"{}\"\nsize = \"16M\"\n[membership]\ndirectory = \"{}\"\n[unit]\nmembers = {count}\n",
            self.hosts.address(node),
            self.scratch.path(&format!("{name}.pool")),
            self.scratch.path("membership"),
        );
        let path = self.scratch.path(&format!("{name}.toml"));
        std::fs::write(&path, text).expect("written");
        path
    }

    fn serve(&self, node: usize, config: &str) -> Child {
        let mut command = self.hosts.command(node, common::TAKO);
        command
            .args(["serve", "--config", config])
            .stdin(Stdio::null());
        command.env("TAKO_STATE", self.scratch.path("state"));
        common::start(command.stdout(Stdio::null()).stderr(Stdio::inherit()))
    }

    /// What the node of the first host says when it does not start.
    fn refused(&self, config: &str) -> String {
        let mut command = self.hosts.command(0, common::TAKO);
        command
            .args(["serve", "--config", config])
            .stdin(Stdio::null());
        command.env("TAKO_STATE", self.scratch.path("state"));
        let output = common::run(&mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    }

    /// The status, as soon as a node answers.
    fn status(&self) -> Option<Value> {
        let mut command = common::command(&["status", "--name", "hosts", "--json"]);
        command.env("TAKO_STATE", self.scratch.path("state"));
        let output = common::run(&mut command);
        serde_json::from_slice(&output.stdout).ok()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let status = self.status();
            if let Some(status) = status.as_ref().filter(|status| is_so(status)) {
                return status.clone();
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {status:#?}");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

fn is_whole(status: &Value) -> bool {
    status["serving"] == true && status["unit"]["in_sync"] == status["unit"]["members"]
}

#[test]
fn nodes_on_several_hosts_serve_with_keys_and_without_one_of_them() {
    let mut cluster = Cluster::start(3);
    let status = cluster.wait("they serve", is_whole);
    let source = status["source"].as_str().expect("a source");
    assert!(source.starts_with("tako://10.0.0."), "{source}");
    assert!(
        source.ends_with("/hosts") && source.contains(":7474,"),
        "{source}"
    );
    let nodes = status["nodes"].as_array().expect("nodes");
    let links = nodes
        .iter()
        .flat_map(|node| node["links"].as_array().expect("links"));
    assert!(links.clone().count() >= 4);
    for link in links {
        assert_eq!(link["transport"], "tcp");
        assert_ne!(link["passed_over"].as_array().map(Vec::len), Some(0));
    }
    // The host of the primary goes off the network. The process lives, and its leases end.
    let primary = status["unit"]["primary"].as_str().expect("a primary");
    let lost: usize = primary[1..].parse::<usize>().expect("a number") - 1;
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
