//! Clusters that are set up wrong, full, or asked for by the wrong name: one sentence each, and nothing is lost.
#![forbid(unsafe_code)]

mod common;
mod nodes;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

use common::{Run, Scratch};
use serde_json::Value;

use nodes::{Cluster, examine, is_whole, mounted};

/// One node that listens on a network, with keys.
struct KeyedNode {
    child: Child,
    port: u16,
    scratch: Scratch,
}

impl KeyedNode {
    fn start() -> KeyedNode {
        let scratch = Scratch::new();
        common::tako(&["keys", "init", &scratch.path("keys"), "n1"]).ended(0);
        for node in ["n2", "client"] {
            common::tako(&["keys", "issue", &scratch.path("keys"), node]).ended(0);
        }
        let (child, port) = serve(&scratch);
        KeyedNode {
            port,
            child,
            scratch,
        }
    }

    /// Restarts the node's process.
    fn serve(&mut self) {
        (self.child, self.port) = serve(&self.scratch);
    }

    /// Runs a command of a client with these keys.
    fn ask(&self, keys: &str, arguments: &[&str]) -> Run {
        let mut command = common::command(arguments);
        command.env("TAKO_KEYS", self.scratch.path(keys));
        command.env("TAKO_STATE", self.scratch.path("state"));
        let output = common::run(&mut command);
        Run {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Error of another node that does not start.
    fn refused(&self, config: &str) -> String {
        // One that starts does not end.
        let mut serve = Command::new("timeout");
        serve.args(["60", common::TAKO, "serve", "--config", config]);
        serve.env("TAKO_STATE", self.scratch.path("state"));
        let output = common::run(&mut serve);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }
}

/// Starts the node, and returns its process and port.
fn serve(scratch: &Scratch) -> (Child, u16) {
    let config = configure(scratch, "n1", 0, "keys/n1");
    let mut serve = common::command(&["serve", "--config", &config]);
    serve.env("TAKO_STATE", scratch.path("state"));
    let mut child = common::start(serve.stdout(Stdio::piped()).stderr(Stdio::inherit()));
    let mut line = String::new();
    let output = child.stdout.take().expect("it is piped");
    BufReader::new(output).read_line(&mut line).expect("text");
    let port = line.trim().rsplit(':').next();
    let port = port.and_then(|it| it.parse().ok()).unwrap_or(0);
    (child, port)
}

impl Drop for KeyedNode {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes the configuration of a node of a unit with one member.
fn configure(scratch: &Scratch, name: &str, port: u16, keys: &str) -> String {
    let text = format!(
        "cluster = \"bad\"\nname = \"{name}\"\nlisten = [\"127.0.0.1:{port}\"]\nkeys = \"{}\"\n\
         [pool]\npath = \"{}\"\nsize = \"16M\"\n[membership]\ndirectory = \"{}\"\n[unit]\nmembers = 1\n",
        scratch.path(keys),
        scratch.path(&format!("{name}.pool")),
        scratch.path("membership"),
    );
    let path = scratch.path(&format!("{name}.toml"));
    std::fs::write(&path, text).expect("written");
    path
}

#[test]
fn clients_with_wrong_keys_or_names_and_nodes_with_a_port_in_use_are_refused() {
    let node = KeyedNode::start();
    let source = format!("tako://127.0.0.1:{}", node.port);
    let file = node.scratch.path("file");
    std::fs::write(&file, "contents").expect("written");
    let path = format!("{source}/bad:/file");
    node.ask("keys/client", &["cp", &file, &path]).ended(0);
    let other = node.ask("keys/client", &["ls", &format!("{source}/other:/")]);
    let other = other.ended(1);
    assert!(other.contains("serve cluster bad, not other"), "{other}");
    common::tako(&["keys", "init", &node.scratch.path("foreign"), "client"]).ended(0);
    let status = node.ask(
        "keys/client",
        &["status", &format!("{source}/bad"), "--json"],
    );
    let status: Value = serde_json::from_str(&status.ended(0)).expect("it is JSON");
    assert_eq!(status["serving"], true, "{status:#}");
    assert_eq!(status["nodes"][0]["role"], "primary", "{status:#}");
    let link = &status["nodes"][0]["links"][0];
    assert_eq!(link["peer"], "this program", "{status:#}");
    assert!(link["transport"].is_string(), "{status:#}");
    // This program does not know the node's pool.
    assert!(
        status["unit"]["survives"]["process_crash"].is_null(),
        "{status:#}"
    );
    // Its map is not where `tako up` keeps maps: its node is asked for it.
    let listed = node.ask("keys/client", &["ls", "tako:///bad:/"]).ended(0);
    assert_eq!(listed.trim(), "file");
    let foreign = node.ask("foreign/client", &["cat", &path]).ended(1);
    assert!(foreign.contains("is not trusted"), "{foreign}");
    let without = node.ask("nowhere", &["cat", &path]).ended(1);
    assert!(without.contains("nowhere"), "{without}");
    // Another node at the same address, one with keys of another name, and the same node again.
    let taken = node.refused(&configure(&node.scratch, "n2", node.port, "keys/n2"));
    assert!(taken.contains("cannot listen at 127.0.0.1"), "{taken}");
    let wrong = node.refused(&configure(&node.scratch, "n2", 0, "keys/client"));
    assert!(
        wrong.contains("the keys are of node client, not n2"),
        "{wrong}"
    );
    let twice = node.refused(&configure(&node.scratch, "n1", 0, "keys/n1"));
    assert!(twice.contains("n1.pool is in use"), "{twice}");
    let found = node.ask("keys/client", &["cat", &path]).ended(0);
    assert_eq!(found, "contents");
}

#[test]
fn nodes_that_disagree_or_have_one_name_are_refused() {
    let mut node = KeyedNode::start();
    let source = format!("tako://127.0.0.1:{}/bad", node.port);
    let file = node.scratch.path("file");
    std::fs::write(&file, "contents").expect("written");
    let path = format!("{source}:/file");
    node.ask("keys/client", &["cp", &file, &path]).ended(0);
    let edited = |name: &str, from: &str, to: &str| {
        let config = configure(&node.scratch, name, 0, &format!("keys/{name}"));
        let text = std::fs::read_to_string(&config).expect("written");
        assert!(text.contains(from), "{text}");
        let path = node.scratch.path("edited.toml");
        std::fs::write(&path, text.replacen(from, to, 1)).expect("written");
        path
    };
    let keys = node.scratch.path("keys/n2");
    let foreign = node.scratch.path("foreign");
    common::tako(&["keys", "init", &foreign, "n2"]).ended(0);
    let sections = [
        ("members = 1", "members = 2", "made with 1; set it to 1"),
        ("members = 1", "members = 1\nmin_sync = 1", "`min_sync = 1`"),
        ("members = 1", "members = 1\nspares = 1", "`spares`"),
        ("size = \"16M\"", "", "`size`"),
        ("[membership]\ndirectory", "[membership]\n#", "`membership`"),
        (
            "cluster = \"bad\"",
            "cluster = \"good\"",
            "keeps cluster bad",
        ),
        (&keys, &format!("{foreign}/n2"), "the keys are of cluster"),
        (&keys, "/nowhere", "/nowhere/"),
    ];
    for (from, to, sentence) in sections {
        let refused = node.refused(&edited("n2", from, to));
        assert!(refused.contains(sentence), "{from}, {to}: {refused}");
    }
    // A second node of a name with a pool of its own would count as the first one with a new pool.
    let refused = node.refused(&edited("n1", "n1.pool", "other.pool"));
    let sentence = format!(
        "another node n1 of cluster bad runs, at 127.0.0.1:{}",
        node.port
    );
    assert!(refused.contains(&sentence), "{refused}");
    let found = node.ask("keys/client", &["cat", &path]).ended(0);
    assert_eq!(found, "contents");
    let grow = ["grow", &source, "--size", "32M"];
    node.ask("keys/client", &grow).ended(0);
    // Nothing of them is in the cluster.
    node.child.kill().expect("it is ours");
    node.child.wait().expect("it is ours");
    node.serve();
    let path = format!("tako://127.0.0.1:{}/bad:/file", node.port);
    let found = node.ask("keys/client", &["cat", &path]).ended(0);
    assert_eq!(found, "contents");
}

#[test]
fn a_full_cluster_says_so_keeps_what_it_has_and_takes_more_when_there_is_room() {
    const PART: usize = 256 << 10;
    let cluster = Cluster::new();
    cluster.up(&["--nodes", "3"]);
    let directory = mounted(&cluster);
    cluster.wait("all are in sync", is_whole);
    let path = directory.join("large");
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(path);
    let file = file.expect("there is room for a name");
    let part = |number: usize| vec![number as u8 + 1; PART];
    let mut count = 0;
    let full = loop {
        let written = file.write_all_at(&part(count), (count * PART) as u64);
        match written.and_then(|()| file.sync_all()) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
    assert!(count > 8, "{count}");
    let verify = |count: usize| {
        for number in 0..count {
            let mut found = vec![0; PART];
            let read = file.read_exact_at(&mut found, (number * PART) as u64);
            read.expect("it is readable");
            assert!(found == part(number), "part {number}");
        }
    };
    verify(count);
    // Space is released, and taken again.
    file.set_len((count / 2 * PART) as u64).expect("it is cut");
    count /= 2;
    let mut more = File::create(directory.join("more")).expect("there is room");
    more.write_all(&part(7)).expect("there is room");
    more.sync_all().expect("there is room");
    verify(count);
    drop((file, more));
    examine(&cluster);
}
