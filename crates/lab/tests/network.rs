//! A client's network session with nodes of this process: calls from threads, a lost primary, nodes that come back.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use client::network::{Network, Options};
use client::{RequestError, Requests};
use fabric::Provider;
use fabric::control::{Address, Identity};
use operations::{Acknowledge, FileId, FileKind, Operation, Outcome, OwnedNewInode, WriteAt};
use rustix::time::{ClockId, clock_gettime};
use server::membership::{DirectoryMembership, Membership};
use server::node::{Node, NodeConfig};

/// Each test takes its turn: one measures the processor time of the process.
static TURN: Mutex<()> = Mutex::new(());
/// Nothing that works takes so long.
const LONG: Duration = Duration::from_secs(120);

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tako-network-{}-{count}", std::process::id());
        let path = Path::new("/dev/shm").join(name);
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Nodes of one cluster, each of which may be down.
struct Cluster {
    _turn: MutexGuard<'static, ()>,
    nodes: Vec<Option<Node>>,
    provider: Provider,
    membership: Arc<dyn Membership>,
    scratch: Scratch,
}

impl Cluster {
    fn start(nodes: u8, provider: Provider) -> Cluster {
        let scratch = Scratch::new();
        let membership = DirectoryMembership::open(&scratch.0.join("map")).unwrap();
        let mut cluster = Cluster {
            _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner),
            nodes: (0..nodes).map(|_| None).collect(),
            provider,
            membership: Arc::new(membership),
            scratch,
        };
        for index in 0..usize::from(nodes) {
            cluster.start_node(index);
        }
        cluster
    }

    fn socket(&self, index: usize) -> PathBuf {
        self.scratch.0.join(format!("n{index}.socket"))
    }

    fn start_node(&mut self, index: usize) {
        let config = NodeConfig {
            cluster: "test".into(),
            name: format!("n{index}"),
            listen: vec![self.socket(index).display().to_string()],
            keys: None,
            transport: Some(self.provider),
            interface: None,
            pool: self.scratch.0.join(format!("n{index}.pool")),
            pool_length: 64 << 20,
            metadata_only: false,
            members: self.nodes.len() as u8,
            metadata_members: 0,
            min_sync: 0,
            spare_after: 0,
        };
        let log = Arc::new(|line: std::fmt::Arguments<'_>| println!("{line}"));
        self.nodes[index] = Some(Node::start(&config, &self.membership, log).unwrap());
    }

    fn connect(&self, timeout: Option<Duration>) -> Network {
        let map = self.membership.read().unwrap().unwrap();
        let identity = Identity::local(map.cluster, "client").unwrap();
        let sockets = (0..self.nodes.len()).map(|index| Address::Unix(self.socket(index)));
        let mut options = Options::new(identity, sockets.collect());
        options.only = Some(self.provider);
        options.timeout = timeout;
        Network::connect(options).unwrap()
    }

    /// Index of the primary, once all members are in sync.
    fn primary(&self) -> usize {
        let start = Instant::now();
        let mut version = 0;
        while start.elapsed() < LONG {
            let map = self.membership.wait(version, LONG).unwrap().unwrap();
            version = map.version;
            let unit = &map.units[0].map;
            if let Some(node) = map.node(unit.primary)
                && unit.in_sync.len() == self.nodes.len()
            {
                return node.name[1..].parse().unwrap();
            }
        }
        panic!("the members do not come in sync");
    }
}

/// The outcome of a call that succeeds.
fn ask(network: &Network, operation: Operation) -> Outcome {
    let outcome = network.call(operation, Acknowledge::Primary).unwrap();
    outcome.into_result().unwrap()
}

fn create(network: &Network, name: &str) -> FileId {
    let operation = Operation::Create {
        directory: network.root(),
        name: name.into(),
        new: OwnedNewInode {
            kind: FileKind::Regular,
            permissions: 0o644,
            uid: 0,
            gid: 0,
            device: 0,
            target: Vec::new(),
            umask: 0,
        },
        hold: false,
    };
    ask(network, operation).file
}

fn write(network: &Network, file: FileId, offset: u64, data: Vec<u8>) {
    let operation = Operation::Write {
        file,
        at: WriteAt::Offset(offset),
        data,
        drop_privileges: None,
    };
    ask(network, operation);
}

fn read(network: &Network, file: FileId, offset: u64, length: u32) -> Vec<u8> {
    let operation = Operation::Read {
        file,
        offset,
        length,
        note_read: false,
    };
    ask(network, operation).data().to_vec()
}

fn data(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| ((at + seed) % 251) as u8).collect()
}

#[test]
fn calls_of_many_threads_get_their_own_outcomes() {
    for provider in [Provider::Shm, Provider::Tcp] {
        let cluster = Cluster::start(1, provider);
        let network = cluster.connect(None);
        thread::scope(|scope| {
            for number in 0..4 {
                let network = &network;
                scope.spawn(move || {
                    let file = create(network, &format!("file{number}"));
                    for round in 0..50 {
                        let length = [10, 4096, 20_000, 1 << 20][(round + number) % 4];
                        let bytes = data(number * 7 + round, length);
                        write(network, file, 0, bytes.clone());
                        assert!(read(network, file, 0, length as u32) == bytes);
                    }
                    ask(network, Operation::Sync { file });
                });
            }
        });
    }
}

#[test]
fn an_idle_session_uses_no_processor_and_stays_open() {
    let cluster = Cluster::start(1, Provider::Shm);
    let network = cluster.connect(None);
    let file = create(&network, "file");
    let used = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let before = used();
    // Longer than a session that is not heard of.
    let (_keep, never) = std::sync::mpsc::channel::<()>();
    assert!(never.recv_timeout(Duration::from_secs(4)).is_err());
    let used = used() - before;
    assert!(used < Duration::from_millis(80), "{used:?}");
    write(&network, file, 0, data(1, 100));
}

#[test]
fn calls_wait_for_a_node_that_restarts_or_end_when_they_are_late() {
    for provider in [Provider::Shm, Provider::Tcp] {
        let mut cluster = Cluster::start(1, provider);
        let soft = cluster.connect(Some(Duration::from_millis(300)));
        let hard = Arc::new(cluster.connect(None));
        let file = create(&hard, "file");
        write(&hard, file, 0, data(1, 100));
        cluster.nodes[0] = None;
        let late = soft.call(Operation::Sync { file }, Acknowledge::Primary);
        assert!(
            matches!(late, Err(RequestError::Unreachable(_))),
            "{late:?}"
        );
        let waits = thread::spawn({
            let hard = hard.clone();
            move || read(&hard, file, 0, 100)
        });
        cluster.start_node(0);
        assert!(waits.join().unwrap() == data(1, 100));
    }
}

#[test]
fn a_lost_primary_is_replaced_and_nothing_confirmed_is_missing() {
    for provider in [Provider::Shm, Provider::Tcp] {
        let mut cluster = Cluster::start(3, provider);
        let network = Arc::new(cluster.connect(None));
        let file = create(&network, "file");
        const LENGTH: u64 = 10_000;
        const WRITES: u64 = 300;
        let begun = Arc::new(Barrier::new(2));
        let writes = thread::spawn({
            let (network, begun) = (network.clone(), begun.clone());
            move || {
                let mut longest = Duration::ZERO;
                for number in 0..WRITES {
                    let start = Instant::now();
                    let bytes = data(number as usize, LENGTH as usize);
                    write(&network, file, number * LENGTH, bytes);
                    if number == 100 {
                        begun.wait();
                    }
                    longest = longest.max(start.elapsed());
                }
                longest
            }
        });
        let primary = cluster.primary();
        begun.wait();
        cluster.nodes[primary] = None;
        let longest = writes.join().unwrap();
        println!("{provider}: the longest write took {longest:?}");
        for number in 0..WRITES {
            let bytes = read(&network, file, number * LENGTH, LENGTH as u32);
            assert!(bytes == data(number as usize, LENGTH as usize), "{number}");
        }
    }
}
