//! Clusters on this host: started, looked at, hit, stopped, started again.
#![forbid(unsafe_code)]

mod common;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Run, Scratch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A cluster with a state directory of its own. It ends with the test, however that ends.
struct Cluster {
    scratch: Scratch,
}

impl Cluster {
    fn new() -> Cluster {
        Cluster {
            scratch: Scratch::new(),
        }
    }

    fn state(&self) -> String {
        self.scratch.path("state")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = common::command(arguments);
        command.env("TAKO_STATE", self.state());
        command
    }

    fn tako(&self, arguments: &[&str]) -> Run {
        let output = common::run(&mut self.command(arguments));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Run {
            code: output.status.code(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// Starts the cluster `c` with so many nodes, with pools in the scratch directory.
    fn up(&self, nodes: &str) -> String {
        let pools = self.scratch.path("pools");
        let all = ["up", "--name", "c", "--nodes", nodes, "--size", "16M"];
        self.tako(&[&all[..], &["--directory", &pools]].concat())
            .ended(0)
    }

    fn status(&self) -> Value {
        let text = self.tako(&["status", "--name", "c", "--json"]).ended(0);
        serde_json::from_str(&text).expect("it is JSON")
    }

    /// Waits until the status is so.
    fn wait(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{what}: {status:#}"
            );
        }
    }

    fn down(&self, arguments: &[&str]) -> Run {
        self.tako(&[&["down", "--name", "c"], arguments].concat())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if Path::new(&self.state()).join("c").is_dir() {
            let _ = self.down(&["--remove"]);
        }
    }
}

fn primary(status: &Value) -> &Value {
    let nodes = status["nodes"].as_array().expect("nodes");
    let found = nodes.iter().find(|node| node["role"] == "primary");
    found.expect("a primary")
}

fn kill(node: &Value, signal: Signal) {
    let pid = node["pid"].as_i64().expect("it runs");
    let pid = Pid::from_raw(pid as i32).expect("a process");
    kill_process(pid, signal).expect("it is ours");
}

fn is_whole(status: &Value) -> bool {
    status["serving"] == true && status["unit"]["in_sync"] == status["unit"]["members"]
}

#[test]
fn a_cluster_starts_survives_its_primary_and_starts_again() {
    let cluster = Cluster::new();
    let said = cluster.up("3");
    assert!(said.contains("3 nodes serve tako:///c"), "{said}");
    let before = cluster.wait("all are in sync", is_whole);
    assert_eq!(before["source"], "tako:///c");
    kill(primary(&before), Signal::KILL);
    let killed = Instant::now();
    let after = cluster.wait("another one serves", |status| {
        status["serving"] == true && status["unit"]["primary"] != before["unit"]["primary"]
    });
    assert!(
        killed.elapsed() < Duration::from_secs(3),
        "{:?}",
        killed.elapsed()
    );
    assert_eq!(after["unit"]["in_sync"], 2);
    cluster.tako(&["up", "--name", "c"]).ended(0);
    cluster.wait("the node is back", is_whole);
    cluster.down(&[]).ended(0);
    let refused = cluster.tako(&["status", "--name", "c"]).ended(1);
    assert!(refused.contains("tako up --name c"), "{refused}");
    cluster.tako(&["up", "--name", "c"]).ended(0);
    let again = cluster.wait("it serves again", is_whole);
    assert_eq!(again["identity"], before["identity"]);
    cluster.down(&["--remove"]).ended(0);
    assert!(!Path::new(&cluster.scratch.path("pools")).exists());
    assert!(!Path::new(&cluster.state()).join("c").exists());
}

#[test]
fn a_stopped_primary_is_replaced_and_follows_when_it_goes_on() {
    let cluster = Cluster::new();
    cluster.up("3");
    let before = cluster.wait("all are in sync", is_whole);
    kill(primary(&before), Signal::STOP);
    let stopped = Instant::now();
    cluster.wait("another one serves", |status| {
        status["serving"] == true && status["unit"]["primary"] != before["unit"]["primary"]
    });
    // Each question to the stopped process takes its time, too.
    assert!(
        stopped.elapsed() < Duration::from_secs(8),
        "{:?}",
        stopped.elapsed()
    );
    kill(primary(&before), Signal::CONT);
    cluster.wait("it follows", is_whole);
}

#[test]
fn mistakes_are_told_in_one_sentence_and_leave_nothing() {
    let cluster = Cluster::new();
    let refused = cluster.down(&[]).ended(1);
    assert!(refused.contains("there is no cluster c"), "{refused}");
    cluster.tako(&["up", "--name", "No!"]).ended(2);
    // A pool that is too small to be one: nothing is left of the attempt.
    let pools = cluster.scratch.path("pools");
    let up = ["up", "--name", "c", "--nodes", "2", "--directory", &pools];
    let refused = cluster
        .tako(&[&up[..], &["--size", "64K"]].concat())
        .ended(1);
    assert!(refused.contains("node n1 did not start: "), "{refused}");
    assert!(!Path::new(&cluster.state()).join("c").exists());
    assert!(!Path::new(&pools).exists());
    // A file that is no pool is not overwritten.
    std::fs::create_dir(&pools).expect("it is gone");
    let pool = Path::new(&pools).join("c-n2.pool");
    std::fs::write(&pool, vec![7; 1 << 20]).expect("written");
    let refused = cluster
        .tako(&[&up[..], &["--size", "16M"]].concat())
        .ended(1);
    assert!(refused.contains("c-n2.pool"), "{refused}");
    assert_eq!(std::fs::read(&pool).expect("it is there"), vec![7; 1 << 20]);
    std::fs::remove_file(&pool).expect("it is there");
    cluster
        .tako(&[&up[..], &["--size", "16M"]].concat())
        .ended(0);
    let refused = cluster
        .tako(&["up", "--name", "c", "--nodes", "3"])
        .ended(1);
    assert!(refused.contains("has 2 nodes"), "{refused}");
    // A pool of the unit is not opened alone.
    cluster.down(&[]).ended(0);
    let pool = pool.display().to_string();
    let refused = cluster.tako(&["mount", &pool, &pools]).ended(1);
    assert!(refused.contains("unit"), "{refused}");
    let refused = common::tako(&["ls", &format!("{pool}:/")]).ended(1);
    assert!(refused.contains("unit"), "{refused}");
}

#[test]
fn half_made_configurations_are_refused() {
    let cluster = Cluster::new();
    let path = cluster.scratch.path("node.toml");
    let serve = |text: &str| {
        std::fs::write(&path, text).expect("written");
        cluster.tako(&["serve", "--config", &path]).ended(1)
    };
    let missing = serve("cluster = \"c\"\n");
    assert!(missing.contains("name"), "{missing}");
    let sections = "[pool]\npath = \"/nowhere/p\"\nsize = \"16M\"\n[membership]\ndirectory = \"D\"\n[unit]\nmembers = 1\n";
    let sections = sections.replace('D', &cluster.scratch.path("membership"));
    let with = |listen: &str| {
        serve(&format!(
            "cluster = \"c\"\nname = \"n1\"\nlisten = [{listen}]\n{sections}"
        ))
    };
    let without_address = with("");
    assert!(
        without_address.contains("`listen` is empty"),
        "{without_address}"
    );
    let without_keys = with("\"127.0.0.1:0\"");
    assert!(without_keys.contains("/nowhere/p"), "{without_keys}");
    let alone = cluster.scratch.pool("alone", "16M");
    let sections = sections.replace("/nowhere/p", &alone);
    let text = format!("cluster = \"c\"\nname = \"n1\"\nlisten = [\"/tmp/s\"]\n{sections}");
    let refused = serve(&text);
    assert!(refused.contains("is a pool by itself"), "{refused}");
}
