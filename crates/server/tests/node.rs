//! Nodes in one process: a unit forms, serves, loses its primary, and takes a restarted node back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use server::membership::{DirectoryMembership, Membership};
use server::node::{Node, NodeConfig, NodeError, NodeStatus, Role};

/// Time limit on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("tako-node-{name}-{}", std::process::id());
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        let path = base.join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory");
        Scratch(path)
    }

    fn membership(&self) -> Arc<dyn Membership> {
        let directory = self.0.join("membership");
        Arc::new(DirectoryMembership::open(&directory).expect("a directory"))
    }

    fn config(&self, index: usize, members: u8) -> NodeConfig {
        let path = |end: &str| self.0.join(format!("n{index}.{end}"));
        NodeConfig {
            cluster: "lab".into(),
            name: format!("n{index}"),
            listen: vec![path("sock").display().to_string()],
            keys: None,
            transport: None,
            interface: None,
            ether_types: None,
            data_queue: None,
            requests: Default::default(),
            pull: Default::default(),
            group: Default::default(),
            group_parity: false,
            pool: path("pool"),
            pool_length: 8 << 20,
            metadata_only: false,
            members,
            metadata_members: 0,
            min_sync: 0,
            spare_after: 0,
            clock: Default::default(),
        }
    }

    fn start(&self, index: usize, members: u8) -> Result<Node, NodeError> {
        let log = Arc::new(|line: std::fmt::Arguments<'_>| println!("{line}"));
        Node::start(&self.config(index, members), &self.membership(), log)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn status(node: &Node) -> NodeStatus {
    let status = node.asker().status(PATIENCE);
    status.expect("the node answers")
}

/// Waits until the nodes' statuses are so.
fn wait_until(
    scratch: &Scratch,
    nodes: &[Node],
    what: &str,
    is_so: impl Fn(&[NodeStatus]) -> bool,
) -> Vec<NodeStatus> {
    let (start, membership) = (Instant::now(), scratch.membership());
    loop {
        let statuses: Vec<_> = nodes.iter().map(status).collect();
        if is_so(&statuses) {
            return statuses;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: {statuses:#?}");
        let known = statuses.iter().map(|it| it.map_version).max();
        let next = membership.wait(known.unwrap_or(0), Duration::from_millis(10));
        next.expect("the map is readable");
    }
}

fn serves(statuses: &[NodeStatus]) -> bool {
    let all = statuses.iter().all(|it| it.is_in_sync);
    all && statuses.iter().filter(|it| it.is_serving).count() == 1
}

#[test]
fn one_node_serves_alone_and_again_after_a_restart() {
    let scratch = Scratch::new("one");
    for _ in 0..2 {
        let node = scratch.start(1, 1).expect("it starts");
        let statuses = wait_until(&scratch, &[node], "it serves", serves);
        assert_eq!(statuses[0].role, Role::Primary);
    }
}

#[test]
fn a_unit_survives_its_primary_and_takes_it_back() {
    let scratch = Scratch::new("three");
    let start = |index| scratch.start(index, 3).expect("it starts");
    let mut nodes: Vec<_> = (1..=3).map(start).collect();
    let statuses = wait_until(&scratch, &nodes, "they serve", serves);
    let primary = statuses.iter().position(|it| it.is_serving);
    let primary = primary.expect("one serves");
    drop(nodes.remove(primary));
    wait_until(&scratch, &nodes, "another one serves", |all| {
        all.iter().any(|it| it.is_serving)
    });
    nodes.push(start(primary + 1));
    let statuses = wait_until(&scratch, &nodes, "all are in sync", serves);
    assert_ne!(statuses[2].role, Role::Primary);
}

#[test]
fn a_node_that_lost_its_pool_is_filled_again() {
    let scratch = Scratch::new("lost");
    let start = |index| scratch.start(index, 2).expect("it starts");
    let mut nodes: Vec<_> = (1..=2).map(start).collect();
    let statuses = wait_until(&scratch, &nodes, "they serve", serves);
    let lost = usize::from(statuses[0].is_serving);
    drop(nodes.remove(lost));
    std::fs::remove_file(scratch.config(lost + 1, 2).pool).expect("it was there");
    nodes.push(start(lost + 1));
    wait_until(&scratch, &nodes, "both are in sync", serves);
    // The unit's last pool in sync is not given up for an empty one.
    drop(nodes);
    for index in 1..=2 {
        std::fs::remove_file(scratch.config(index, 2).pool).expect("it was there");
    }
    let first = scratch.start(1, 2).expect("n2 may still have it");
    let second = scratch.start(2, 2).err().expect("no node has it");
    assert!(second.to_string().contains("(n1, n2)"), "{second}");
    drop(first);
}

#[test]
fn a_pool_of_another_cluster_or_no_pool_is_refused() {
    let scratch = Scratch::new("refused");
    let config = scratch.config(1, 1);
    std::fs::write(&config.pool, vec![7; 1 << 20]).expect("written");
    let refused = scratch.start(1, 1).err().expect("it is no pool");
    assert!(matches!(refused, NodeError::Pool { .. }), "{refused}");
    std::fs::remove_file(&config.pool).expect("it was there");
    let node = scratch.start(1, 1).expect("it starts");
    let busy = scratch.start(1, 1).err().expect("it runs already");
    assert!(busy.to_string().contains("n1.pool"), "{busy}");
    drop(node);
    std::fs::remove_dir_all(scratch.0.join("membership")).expect("it was there");
    let refused = scratch.start(1, 1).err().expect("it is another cluster");
    assert!(matches!(refused, NodeError::OtherUnit { .. }), "{refused}");
}
