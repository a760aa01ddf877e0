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
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use mounted::Mounted;
use nodes::{Cluster, examine, is_whole, kill, primary};
use pmem::Random;
use random_work::Work;
use rustix::process::Signal;
use serde_json::Value;

const MOUNTS: usize = 2;
/// Threads that work in each mount.
const CLIENTS: u32 = 2;
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
    /// In good order.
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
struct Field {
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

impl Field {
    fn new() -> Field {
        let cluster = Cluster::serving("3", "16M");
        let mounts = (0..MOUNTS).map(|number| mount(&cluster, number)).collect();
        Field { mounts, cluster }
    }

    /// Hits the cluster, and waits until it is whole again.
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
        if !matches!(hit, Hit::KillMount) {
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

/// Writes until nothing fits any more.
fn fill(path: &str) {
    let mut file = File::create_new(path).expect("it is new");
    let piece = vec![1; 64 << 10];
    while file.write_all(&piece).is_ok() {}
}

/// So many rounds of work on one cluster.
fn history(seed: u64, hits: &[Hit]) {
    let mut random = Random::new(seed);
    let mut field = Field::new();
    let work = Work::new(MOUNTS);
    work.prepare(&field.mounts[0].directory);
    for (number, mounted) in field.mounts.iter().enumerate() {
        work.mounted(number, &mounted.directory);
    }
    let hit = thread::scope(|scope| {
        for client in 0..MOUNTS as u32 * CLIENTS {
            let (work, seed) = (&work, random.next_number());
            scope.spawn(move || work.run((client / CLIENTS) as usize, client, seed));
        }
        let hit = catch_unwind(AssertUnwindSafe(|| {
            for hit in hits {
                field.hit(*hit, &mut random, &work);
            }
        }));
        work.end();
        if hit.is_err() {
            // Threads that wait for the cluster end with their mount.
            field.mounts.clear();
        }
        hit
    });
    hit.unwrap_or_else(|panic| {
        eprintln!("seed {seed}, {hits:?}");
        resume_unwind(panic)
    });
    let examined = work.examine(&field.mounts[0].directory);
    let count = examined.unwrap_or_else(|error| panic!("seed {seed}, {hits:?}: {error}"));
    println!("seed {seed}: {hits:?}, {count} operations");
    field.mounts.drain(..).for_each(Mounted::unmount);
    examine(&field.cluster);
}

/// Rounds of `make test`: the same each time, as far as what happens goes.
#[test]
fn clients_see_one_order_while_nodes_and_mounts_are_killed() {
    if std::env::var_os("TAKO_SOAK").is_none() {
        return history(1, &HITS[..ROUNDS]);
    }
    for seed in 0..200 / ROUNDS as u64 {
        let mut random = Random::new(seed);
        let hits: Vec<Hit> = (0..ROUNDS).map(|_| *random.pick(&HITS)).collect();
        history(seed, &hits);
    }
}
