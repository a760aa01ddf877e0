//! Nodes and mounts of clusters are killed, stopped and started again at random, under load: confirmed writes are there
//! afterwards, clients saw one order of all their operations, and all members hold the same.
//!
//! A failure prints its seed.

mod common;
mod mounted;
mod nodes;
mod random_work;
mod transport;

use std::fs::File;
use std::io::Write;

use mounted::Mounted;
use nodes::{Cluster, examine, is_whole, kill, primary};
use pmem::Random;
use random_work::{Field, Work};
use rustix::process::Signal;
use serde_json::Value;

const MOUNTS: usize = 2;
/// Rounds with one cluster and one history.
const ROUNDS: usize = 5;

/// Disturbances in a round.
#[derive(Clone, Copy, Debug)]
enum Hit {
    KillPrimary,
    KillReplica,
    /// Changes wait until one of them is back.
    KillReplicas,
    StopPrimary,
    StopReplica,
    /// The primary ends in order and is started again.
    RestartPrimary,
    KillMount,
    KillMountAndPrimary,
    /// While the pool is full.
    KillPrimaryOfFull,
}

const HITS: [Hit; 9] = [
    Hit::KillMountAndPrimary,
    Hit::StopPrimary,
    Hit::KillPrimaryOfFull,
    Hit::KillReplica,
    Hit::KillMount,
    Hit::KillPrimary,
    Hit::StopReplica,
    Hit::KillReplicas,
    Hit::RestartPrimary,
];

/// A cluster, its mounts, and their workload.
struct Nodes {
    mounts: Vec<Mounted>,
    cluster: Cluster,
}

fn mount(cluster: &Cluster, number: usize) -> Mounted {
    let directory = cluster.scratch.path(&format!("mount{number}"));
    let arguments = ["mount", "--foreground", "tako:///c", &directory];
    Mounted::by(&mut cluster.command(&arguments), &directory)
}

fn replicas(status: &Value) -> Vec<&Value> {
    let nodes = status["nodes"].as_array().expect("nodes");
    let others = nodes.iter().filter(|node| node["role"] != "primary");
    others.collect()
}

impl Nodes {
    fn new() -> Nodes {
        let cluster = Cluster::serving("3", "16M");
        let mounts = (0..MOUNTS).map(|number| mount(&cluster, number)).collect();
        Nodes { mounts, cluster }
    }

    /// Stops a node for as long as it takes the others to do without it.
    fn stop(&self, before: &Value, node: &Value) {
        kill(node, Signal::STOP);
        let name = &node["name"];
        self.cluster.wait("the others do without it", |status| {
            let nodes = status["nodes"].as_array().expect("nodes");
            let is_out = nodes
                .iter()
                .any(|it| it["name"] == *name && it["in_sync"] == false);
            status["serving"] == true
                && (is_out || status["unit"]["epoch"] != before["unit"]["epoch"])
        });
        kill(node, Signal::CONT);
    }

    fn kill_mount(&mut self, victim: usize, and: impl FnOnce()) {
        self.mounts[victim].child.kill().expect("it is ours");
        and();
        self.mounts[victim].child.wait().expect("it is ours");
    }
}

impl Field for Nodes {
    type Hit = Hit;

    fn mounts(&mut self) -> &mut Vec<Mounted> {
        &mut self.mounts
    }

    fn hit(&mut self, hit: Hit, random: &mut Random, work: &Work) {
        let before = self.cluster.wait("all are in sync", is_whole);
        let victim = random.below(MOUNTS);
        let replicas = replicas(&before);
        let replica = replicas[random.below(replicas.len())];
        match hit {
            Hit::KillPrimary => kill(primary(&before), Signal::KILL),
            Hit::KillReplica => kill(replica, Signal::KILL),
            Hit::KillReplicas => replicas.iter().for_each(|it| kill(it, Signal::KILL)),
            Hit::StopPrimary => self.stop(&before, primary(&before)),
            Hit::StopReplica => self.stop(&before, replica),
            Hit::RestartPrimary => kill(primary(&before), Signal::TERM),
            Hit::KillMount => self.kill_mount(victim, || ()),
            Hit::KillMountAndPrimary => {
                self.kill_mount(victim, || kill(primary(&before), Signal::KILL));
            }
            Hit::KillPrimaryOfFull => {
                let path = self.mounts[victim].path("filler");
                fill(&path);
                self.cluster.lose_primary();
                std::fs::remove_file(&path).expect("it is there");
            }
        }
        let is_lost = |status: &Value| {
            let is_same =
                status["serving"] == true && status["unit"]["epoch"] == before["unit"]["epoch"];
            let all = status["unit"]["members"] == status["unit"]["in_sync"];
            !(is_same && all)
        };
        // A stopped replica has been missed already, and may be back by now.
        if !matches!(hit, Hit::KillMount | Hit::StopReplica) {
            self.cluster.wait("it is noticed", is_lost);
        }
        self.cluster.up_again();
        let after = self.cluster.wait("all are back", is_whole);
        if matches!(hit, Hit::KillMount | Hit::KillMountAndPrimary) {
            // Also by chance, on a busy machine.
            if before["unit"]["epoch"] != after["unit"]["epoch"] {
                work.may_have_lost(victim);
            }
            work.leave(victim);
            // It removes the rest of the mount.
            drop(self.mounts.remove(victim));
            self.mounts.insert(victim, mount(&self.cluster, victim));
            work.mounted(victim, &self.mounts[victim].directory);
        }
    }

    fn examine(mut self) {
        self.mounts.drain(..).for_each(Mounted::unmount);
        examine(&self.cluster);
    }
}

/// Writes until nothing fits any more.
fn fill(path: &str) {
    let mut file = File::create_new(path).expect("it is new");
    let piece = vec![1; 64 << 10];
    while file.write_all(&piece).is_ok() {}
}

fn history(seed: u64, hits: &[Hit]) {
    let work = Work::new(MOUNTS);
    random_work::history(Nodes::new(), &work, seed, hits);
}

#[test]
fn clients_see_one_order_while_nodes_and_mounts_are_killed() {
    random_work::histories(&HITS, ROUNDS, history);
}
