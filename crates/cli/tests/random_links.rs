//! Links of nodes and mounts on several hosts are cut, restored and slowed down at random, under load: mounts go on, confirmed
//! changes are there afterwards, clients saw one order of all that they did, and all members hold the same.
//!
//! A failure prints its seed.
#![forbid(unsafe_code)]

mod common;
mod hosts;
mod mounted;
mod nodes;
mod random_work;
mod transport;

use std::path::PathBuf;

use hosts::Hosts;
use hosts::cluster::{Cluster, is_whole, primary};
use mounted::Mounted;
use pmem::Random;
use random_work::{Field, Work};
use rustix::process::{Pid, Signal};
use serde_json::Value;

const NODES: usize = 3;
const MOUNTS: usize = 2;
/// Rounds with one cluster and one history.
const ROUNDS: usize = 5;
/// A link is bad until so many operations have begun.
const OPERATIONS: u64 = 100;

/// What happens in a round.
#[derive(Clone, Copy, Debug)]
enum Hit {
    /// The primary is cut off until another member serves.
    CutPrimary,
    /// Until it is left out.
    CutReplica,
    /// Until its session has ended.
    CutMount,
    /// Both at once: writes that were acknowledged to the mount may be lost with the primary.
    CutMountAndPrimary,
    /// For some operations of the other mount.
    BlinkMount,
    SlowPrimary,
    SlowReplica,
    SlowMount,
}

const HITS: [Hit; 8] = [
    Hit::CutMount,
    Hit::CutPrimary,
    Hit::SlowPrimary,
    Hit::CutMountAndPrimary,
    Hit::BlinkMount,
    Hit::CutReplica,
    Hit::SlowMount,
    Hit::SlowReplica,
];

/// A cluster, its mounts, and what is done there.
struct Nodes {
    mounts: Vec<Mounted>,
    cluster: Cluster,
}

fn sessions(status: &Value) -> u64 {
    status["unit"]["sessions"].as_u64().unwrap_or_default()
}

impl Nodes {
    fn new() -> Nodes {
        let cluster = Cluster::start(NODES, Hosts::new(NODES + MOUNTS), "transport = \"tcp\"\n");
        let status = cluster.wait("they serve", is_whole);
        let source = status["source"].as_str().expect("a source");
        let mounts = (0..MOUNTS).map(|number| mount(&cluster, source, number));
        Nodes {
            mounts: mounts.collect(),
            cluster,
        }
    }

    /// Waits until the status is so; a member may take over meanwhile.
    fn wait(&self, work: &Work, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        self.cluster.wait(what, |status| {
            work.note_moment();
            is_so(status)
        })
    }

    /// Takes hosts off the network until the status is so.
    fn cut(&self, work: &Work, hosts: &[usize], is_so: impl Fn(&Value) -> bool) {
        let set_links = |state| {
            let links = hosts.iter();
            links.for_each(|host| self.cluster.hosts.set_link(*host, state));
        };
        set_links("down");
        self.wait(work, "the cut shows", is_so);
        set_links("up");
    }

    fn slow_down(&self, host: usize, work: &Work) {
        if !self.cluster.hosts.slow_down(host) {
            println!("this kernel cannot slow down a link");
        }
        let until = work.begun() + OPERATIONS;
        self.wait(work, "work goes on", |_| work.begun() >= until);
        self.cluster.hosts.speed_up(host);
    }
}

impl Field for Nodes {
    type Hit = Hit;

    fn mounts(&mut self) -> &mut Vec<Mounted> {
        &mut self.mounts
    }

    fn hit(&mut self, hit: Hit, random: &mut Random, work: &Work) {
        let all = |status: &Value| is_whole(status) && sessions(status) == MOUNTS as u64;
        let before = self.cluster.wait("all are there", all);
        let victim = random.below(MOUNTS);
        let leads = primary(&before);
        let replica = (leads + 1 + random.below(NODES - 1)) % NODES;
        let is_replaced =
            |now: &Value| now["serving"] == true && now["unit"]["epoch"] != before["unit"]["epoch"];
        let is_left_out = |now: &Value| {
            now["serving"] == true && now["unit"]["in_sync"] != before["unit"]["in_sync"]
        };
        let has_ended = |now: &Value| now["serving"] == true && sessions(now) < MOUNTS as u64;
        // Only a mount that is cut off itself may lose its session.
        let is_cut = matches!(
            hit,
            Hit::CutMount | Hit::CutMountAndPrimary | Hit::BlinkMount
        );
        work.may_fail(victim, is_cut);
        match hit {
            Hit::CutPrimary => self.cut(work, &[leads], is_replaced),
            Hit::CutReplica => {
                self.cut(work, &[replica], |now| is_left_out(now) || is_replaced(now))
            }
            Hit::CutMount => self.cut(work, &[NODES + victim], has_ended),
            Hit::CutMountAndPrimary => self.cut(work, &[NODES + victim, leads], |now| {
                is_replaced(now) && has_ended(now)
            }),
            Hit::BlinkMount => {
                let until = work.begun() + OPERATIONS / 4;
                self.cut(work, &[NODES + victim], |_| work.begun() >= until);
            }
            Hit::SlowPrimary => self.slow_down(leads, work),
            Hit::SlowReplica => self.slow_down(replica, work),
            Hit::SlowMount => self.slow_down(NODES + victim, work),
        }
        for mounted in &self.mounts {
            // A call that was in flight when the session ended fails; none after it does.
            let read = || std::fs::read(mounted.path("f0"));
            let is_victim = mounted.directory == self.mounts[victim].directory;
            let second = read().or_else(|error| match is_victim && is_cut {
                true => read(),
                false => Err(error),
            });
            assert!(second.is_ok(), "{}: {second:?}", mounted.directory);
        }
        let after = self.wait(work, "all are back", all);
        work.may_fail(victim, false);
        let is_lossy = is_cut && before["unit"]["epoch"] != after["unit"]["epoch"];
        work.may_have_lost_since(is_lossy.then_some(victim));
    }

    fn examine(mut self) {
        self.mounts.drain(..).for_each(Mounted::unmount);
        let is_equal = |status: &Value| {
            let nodes = status["nodes"].as_array().expect("nodes");
            let has_tail = |node: &Value| node["tail"] == nodes[0]["tail"];
            sessions(status) == 0 && is_whole(status) && nodes.iter().all(has_tail)
        };
        self.cluster.wait("all members are equal", is_equal);
        for node in &mut self.cluster.nodes {
            let pid = Pid::from_child(node);
            assert!(nodes::ends_by(pid, Signal::TERM, nodes::PATIENCE));
        }
        let pool = |node: usize| self.cluster.scratch.path(&format!("n{node}.pool")).into();
        let pools: Vec<PathBuf> = (1..=NODES).map(pool).collect();
        nodes::compare(&pools);
    }
}

fn mount(cluster: &Cluster, source: &str, number: usize) -> Mounted {
    let directory = cluster.scratch.path(&format!("mount{number}"));
    let host = NODES + number;
    let mut command = cluster.hosts.command(host, common::TAKO);
    command.args(["mount", "--foreground", source, &directory]);
    let keys = cluster.scratch.path(&format!("keys/n{}", host + 1));
    Mounted::by(command.env("TAKO_KEYS", keys), &directory)
}

fn history(seed: u64, hits: &[Hit]) {
    let work = Work::new(MOUNTS).beyond_errors();
    random_work::history(Nodes::new(), &work, seed, hits);
}

#[test]
fn clients_see_one_order_while_links_are_cut_and_slow() {
    random_work::histories(&HITS, ROUNDS, history);
}
