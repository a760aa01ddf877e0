//! A cluster with a node on each of several hosts, with keys.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Hosts;
use crate::common::{self, Scratch};

/// Time limit on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Cluster {
    /// A process on each of the first hosts.
    pub nodes: Vec<Child>,
    pub hosts: Hosts,
    pub scratch: Scratch,
    /// Lines of each node's configuration.
    options: String,
}

impl Cluster {
    /// Makes keys for all hosts, and starts a node on each of the first ones.
    pub fn start(count: usize, hosts: Hosts, options: &str) -> Cluster {
        let mut cluster = Cluster::prepare(hosts, options);
        for node in 0..count {
            let path = cluster.configure(node, count, &cluster.scratch.path("keys"));
            cluster.nodes.push(cluster.serve(node, &path, &[]));
        }
        cluster
    }

    /// Makes keys for all hosts.
    pub fn prepare(hosts: Hosts, options: &str) -> Cluster {
        let cluster = Cluster {
            nodes: Vec::new(),
            hosts,
            scratch: Scratch::new(),
            options: options.into(),
        };
        let keys = cluster.scratch.path("keys");
        common::tako(&["keys", "init", &keys, "n1"]).ended(0);
        for host in 1..cluster.hosts.count() {
            common::tako(&["keys", "issue", &keys, &format!("n{}", host + 1)]).ended(0);
        }
        cluster
    }

    pub fn configure(&self, node: usize, count: usize, keys: &str) -> String {
        let name = format!("n{}", node + 1);
        let text = format!(
            "cluster = \"hosts\"\nname = \"{name}\"\nlisten = [\"{}:7474\"]\nkeys = \"{keys}/{name}\"\n{}\
             [pool]\npath = \"{}\"\nsize = \"64M\"\n[membership]\ndirectory = \"{}\"\n[unit]\nmembers = {count}\n",
            self.hosts.address(node),
            self.options,
            self.scratch.path(&format!("{name}.pool")),
            self.scratch.path("membership"),
        );
        let path = self.scratch.path(&format!("{name}.toml"));
        std::fs::write(&path, text).expect("written");
        path
    }

    /// Starts a node; `before` is a program with its arguments that starts it, if it is not empty.
    pub fn serve(&self, node: usize, config: &str, before: &[&str]) -> Child {
        let words = [before, &[common::TAKO, "serve", "--config", config]].concat();
        let mut command = self.hosts.command(node, words[0]);
        command.args(&words[1..]);
        command.env("TAKO_STATE", self.scratch.path("state"));
        common::start(command.stdout(Stdio::null()).stderr(Stdio::inherit()))
    }

    /// Ends a node of `count`, and starts it with these lines in its configuration.
    pub fn restart(&mut self, node: usize, count: usize, options: &str) {
        let _ = self.nodes[node].kill();
        let _ = self.nodes[node].wait();
        self.options = options.into();
        let path = self.configure(node, count, &self.scratch.path("keys"));
        self.nodes[node] = self.serve(node, &path, &[]);
    }

    /// Error of the first host's node when it does not start.
    pub fn refused(&self, config: &str) -> String {
        let mut command = self.hosts.command(0, common::TAKO);
        command.args(["serve", "--config", config]);
        command.env("TAKO_STATE", self.scratch.path("state"));
        let output = common::run(&mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    }

    /// The status, as soon as a node answers.
    pub fn status(&self) -> Option<Value> {
        self.status_in(&self.scratch.path("state"))
    }

    /// The status on the host of this node, which has no other node.
    pub fn status_at(&self, node: &str) -> Option<Value> {
        let state = self.scratch.path(&format!("state-{node}"));
        std::fs::create_dir_all(format!("{state}/hosts")).expect("it is new");
        let socket = |state: &str| format!("{state}/hosts/{node}.status");
        let shared = socket(&self.scratch.path("state"));
        std::os::unix::fs::symlink(shared, socket(&state)).expect("linked");
        self.status_in(&state)
    }

    fn status_in(&self, state: &str) -> Option<Value> {
        let mut command = common::command(&["status", "--name", "hosts", "--json"]);
        command.env("TAKO_STATE", state);
        let output = common::run(&mut command);
        serde_json::from_slice(&output.stdout).ok()
    }

    pub fn wait(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        wait(|| self.status(), what, is_so)
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

/// Asks for the status until it is as wanted, and returns it.
pub fn wait(ask: impl Fn() -> Option<Value>, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let status = ask();
        if let Some(status) = status.as_ref().filter(|status| is_so(status)) {
            return status.clone();
        }
        assert!(start.elapsed() < PATIENCE, "{what}: {status:#?}");
    }
}

pub fn is_whole(status: &Value) -> bool {
    status["serving"] == true && status["unit"]["in_sync"] == status["unit"]["members"]
}

/// The number of the primary's host.
pub fn primary(status: &Value) -> usize {
    let name = status["unit"]["primary"].as_str().expect("a primary");
    name[1..].parse::<usize>().expect("a number") - 1
}

/// The links that nodes report.
pub fn links(status: &Value) -> Vec<&Value> {
    let nodes = status["nodes"].as_array().expect("nodes").iter();
    nodes
        .flat_map(|node| node["links"].as_array().expect("links"))
        .collect()
}
