//! The README's ways to a cluster of several machines, and to peers without a server, command by command.
#![forbid(unsafe_code)]

mod common;
mod hosts;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::Scratch;
use hosts::{Hosts, INTERFACE};
use serde_json::Value;

/// Machines that the README names: 10.0.0.1 to 10.0.0.4.
const MACHINES: usize = 4;
/// Time limit of a command on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The hosts of the README's peers.
const PEERS: [&str; 2] = ["a", "b"];
/// In place of scp: each machine's directory is beside that of the others.
const SCP: &str = "scp() {
    local last=${!#} file
    last=${last#root@}
    for file in \"${@:2:$#-2}\"; do cp -r \"$file\" \"../${last%%:*}/${last#*:}\" || return 1; done
}";

/// A shell on a machine, in a directory with the examples.
struct Shell {
    child: Child,
    input: ChildStdin,
    /// Lines that it printed.
    output: Receiver<String>,
}

impl Shell {
    fn start(hosts: &Hosts, host: usize, scratch: &Scratch) -> Shell {
        let directory = scratch.path(&hosts.address(host));
        fs::create_dir(&directory).expect("it is new");
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        std::os::unix::fs::symlink(examples, format!("{directory}/examples")).expect("linked");
        let program = Path::new(common::TAKO).parent().expect("a file");
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", program.display());
        // Its mounts are its own, as a machine's are.
        let mut command = hosts.command(host, "unshare");
        command
            .args(["--mount", "bash"])
            .current_dir(&directory)
            .env("PATH", path)
            .env("TAKO_STATE", format!("{directory}/state"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = common::start(&mut command);
        let input = child.stdin.take().expect("it is piped");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let (printed, output) = channel();
        // Ends with the last process that has the pipe.
        thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .all(|line| printed.send(line).is_ok())
        });
        let mut shell = Shell {
            child,
            input,
            output,
        };
        shell.run(SCP);
        shell.run("mount -t tmpfs none /dev/shm && mount -t tmpfs none /mnt");
        shell
    }

    /// Runs a line, expects success, and returns its output.
    fn run(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}\necho \"ended $?\"").expect("the shell runs");
        let mut printed = String::new();
        loop {
            let next = self.output.recv_timeout(PATIENCE);
            let next = next.unwrap_or_else(|error| panic!("{line}: {error}: {printed}"));
            match next.strip_prefix("ended ") {
                Some(status) => {
                    assert_eq!(status, "0", "{line}: {printed}");
                    return printed;
                }
                None => printed += &format!("{next}\n"),
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The commands of a section, each with the machines that it is for.
fn commands(title: &str) -> Vec<(Vec<usize>, String)> {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = fs::read_to_string(readme).expect("it is there");
    let section = readme.split(&format!("## {title}\n")).nth(1);
    let section = section.expect("there is such a section");
    let block = section.split("```").nth(1).expect("it has commands");
    let mut machines = Vec::new();
    let mut commands = Vec::new();
    for line in block.lines().filter(|line| !line.is_empty()) {
        if let Some(where_to) = line.strip_prefix("# on ") {
            let named = where_to.split("10.0.0.").skip(1);
            let number = |text: &str| text[..1].parse::<usize>().expect("a number") - 1;
            machines = named.map(number).collect();
        } else {
            commands.push((machines.clone(), line.to_owned()));
        }
    }
    commands
}

/// Waits until the nodes serve and are in sync. The failure contains their reports until then.
fn wait_until_served(nodes: &mut [Shell]) {
    let start = Instant::now();
    loop {
        let nodes = nodes.iter_mut();
        let all: Vec<_> = nodes
            .map(|node| node.run("tako status --name lab 2>&1 || true"))
            .collect();
        let says = |what| all.iter().any(|status| status.contains(what));
        if says("served by") && says("3 of 3 members in sync") {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{all:#?}");
    }
}

#[test]
fn the_commands_of_several_machines_make_a_cluster_that_outlives_a_machine() {
    let commands = commands("Several machines");
    assert!((1..=10).contains(&commands.len()), "{commands:#?}");
    let scratch = Scratch::new();
    let hosts = Hosts::new(MACHINES);
    let start = |host| Shell::start(&hosts, host, &scratch);
    let mut shells: Vec<_> = (0..MACHINES).map(start).collect();
    for (machines, command) in &commands {
        assert!(!machines.is_empty(), "{command}: on which machine?");
        if command.starts_with("tako mount") {
            wait_until_served(&mut shells[..MACHINES - 1]);
        }
        for machine in machines {
            shells[*machine].run(command);
        }
    }
    let client = &mut shells[MACHINES - 1];
    client.run("echo contents > /mnt/file && sync /mnt/file");
    hosts.set_link(0, "down");
    let client = &mut shells[MACHINES - 1];
    assert_eq!(client.run("cat /mnt/file"), "contents\n");
    client.run("echo more >> /mnt/file && sync /mnt/file && tako umount /mnt");
}

/// The status of a host's own cluster, as soon as both of its mounts are there.
fn wait_until_mounted(shell: &mut Shell, cluster: &str) -> Value {
    let start = Instant::now();
    loop {
        let printed = shell.run(&format!("tako status --name {cluster} --json || true"));
        let status: Value = serde_json::from_str(&printed).unwrap_or_default();
        let node = &status["nodes"][0];
        if node["mount"]["stage"] == "mounted" && node["peers"][0]["stage"] == "mounted" {
            return status;
        }
        assert!(start.elapsed() < PATIENCE, "{status:#}");
    }
}

fn is_of(link: &Value, name: &str) -> bool {
    let peer = link["peer"].as_str().expect("a name");
    peer.split(' ').next() == Some(name)
}

#[test]
fn the_commands_of_peers_make_two_hosts_that_mount_each_other_over_frames() {
    let commands = commands("Peers without a server");
    assert!((1..=5).contains(&commands.len()), "{commands:#?}");
    let scratch = Scratch::new();
    let hosts = Hosts::new(PEERS.len());
    let start = |host| Shell::start(&hosts, host, &scratch);
    let mut shells: Vec<_> = (0..PEERS.len()).map(start).collect();
    for (machines, command) in &commands {
        let here = format!("s/eth0/{INTERFACE}/; s/NODE/");
        let command = command.replace("s/NODE/", &here);
        for machine in machines {
            shells[*machine].run(&command);
        }
    }
    let write = |shell: &mut Shell, name| {
        shell.run(&format!(
            "seq 100000 > /mnt/a/{name} && cp /mnt/a/{name} /mnt/b/ && sync /mnt/a /mnt/b"
        ));
    };
    let verify = |shells: &mut [Shell], name| {
        for shell in shells {
            shell.run(&format!(
                "cmp /mnt/a/{name} <(seq 100000) && cmp /mnt/b/{name} /mnt/a/{name}"
            ));
        }
    };
    for (host, name) in PEERS.into_iter().enumerate() {
        let status = wait_until_mounted(&mut shells[host], name);
        write(&mut shells[host], name);
        let links = status["nodes"][0]["links"].as_array().expect("links");
        let mut peers = links.iter().filter(|link| !is_of(link, name));
        assert!(
            peers.all(|link| link["transport"] == "ethernet"),
            "{status:#}"
        );
    }
    for name in PEERS {
        verify(&mut shells, name);
    }
    // Programs wait for the host that is away, and go on.
    let away = &mut shells[1];
    let status = wait_until_mounted(away, PEERS[1]);
    away.run(&format!("kill -9 {} && wait", status["nodes"][0]["pid"]));
    away.run("tako serve --config peer.toml &");
    write(&mut shells[0], "later");
    wait_until_mounted(&mut shells[1], PEERS[1]);
    verify(&mut shells, "later");
}

#[test]
fn the_unit_of_systemd_starts_a_node() {
    let unit = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/tako-serve@.service"
    );
    let unit = fs::read_to_string(unit).expect("it is there");
    let mut section = "";
    let mut settings = Vec::new();
    for line in unit.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.strip_suffix(']').expect("a section ends");
        } else if !line.is_empty() && !line.starts_with('#') {
            let (key, value) = line.split_once('=').expect("a setting has a value");
            settings.push((section, key, value));
        }
    }
    let of = |section, key| {
        let mut found = settings.iter().filter(|it| (it.0, it.1) == (section, key));
        let value = found.next().expect("it is set").2;
        assert!(found.next().is_none(), "{key} is set twice");
        value
    };
    assert_eq!(of("Service", "Type"), "notify");
    assert_eq!(of("Install", "WantedBy"), "multi-user.target");
    let scratch = Scratch::new();
    let start = of("Service", "ExecStart").replace("/etc/tako/%i", &scratch.path("n1"));
    let mut words = start.split(' ');
    assert!(
        words
            .next()
            .is_some_and(|program| program.ends_with("/tako"))
    );
    // The program accepts the arguments, and finds no such configuration.
    let refused = common::tako(&words.collect::<Vec<_>>()).ended(1);
    assert!(refused.contains("n1.toml"), "{refused}");
}
