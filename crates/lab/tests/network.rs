//! A client's network session with nodes of this process: calls from threads, a lost primary, nodes that rejoin.
#![forbid(unsafe_code)]

mod copies;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use client::network::{Io, Network, Options};
use client::{RequestError, Requests};
use connections::control::{Address, Identity};
use connections::messenger::{self, Event, Messenger};
use fabric::Provider;
use operations::{Acknowledge, FileId, FileKind, Operation, Outcome, OwnedNewInode, WriteAt};
use protocol::cluster::FIRST_CLIENT;
use protocol::wire::{Body, Envelope, Message, VERSION};
use rustix::time::{ClockId, clock_gettime};
use server::membership::{DirectoryMembership, Membership};
use server::node::{Node, NodeConfig};
use store::Clock;

/// Tests run one at a time: one measures the processor time of the process.
static TURN: Mutex<()> = Mutex::new(());
/// Nothing that works takes so long.
const LONG: Duration = Duration::from_secs(120);

/// Longer than a session that is not heard of.
const UNHEARD: Duration = Duration::from_secs(4);

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
    /// Sources of the nodes' time stamps.
    clocks: Vec<Clock>,
    provider: Provider,
    membership: Arc<dyn Membership>,
    scratch: Scratch,
}

impl Cluster {
    fn start(nodes: u8, provider: Provider) -> Cluster {
        Cluster::with_clocks(vec![Clock::System; nodes.into()], provider)
    }

    fn with_clocks(clocks: Vec<Clock>, provider: Provider) -> Cluster {
        let nodes = clocks.len();
        let scratch = Scratch::new();
        let membership = DirectoryMembership::open(&scratch.0.join("map")).unwrap();
        let mut cluster = Cluster {
            _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner),
            nodes: (0..nodes).map(|_| None).collect(),
            clocks,
            provider,
            membership: Arc::new(membership),
            scratch,
        };
        for index in 0..nodes {
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
            ether_types: None,
            data_queue: None,
            requests: Default::default(),
            pull: Default::default(),
            group: Default::default(),
            group_parity: false,
            pool: self.scratch.0.join(format!("n{index}.pool")),
            pool_length: 64 << 20,
            metadata_only: false,
            members: self.nodes.len() as u8,
            metadata_members: 0,
            min_sync: 0,
            spare_after: 0,
            clock: self.clocks[index].clone(),
        };
        let log = Arc::new(|line: std::fmt::Arguments<'_>| println!("{line}"));
        self.nodes[index] = Some(Node::start(&config, &self.membership, log).unwrap());
    }

    fn connect(&self, timeout: Option<Duration>) -> Network {
        self.connect_with(timeout, Io::Server)
    }

    fn connect_with(&self, timeout: Option<Duration>, io: Io) -> Network {
        let map = self.membership.read().unwrap().unwrap();
        let identity = Identity::local(map.cluster, "client").unwrap();
        let sockets = (0..self.nodes.len()).map(|index| Address::Unix(self.socket(index)));
        let mut options = Options::new(identity, sockets.collect());
        options.only = Some(self.provider);
        options.timeout = timeout;
        options.io = io;
        Network::connect(options).unwrap()
    }

    /// Bytes of files that the nodes have moved in messages.
    fn moved(&self) -> u64 {
        let nodes = self.nodes.iter().flatten();
        let status = nodes.map(|node| node.asker().status(LONG).unwrap());
        status
            .map(|status| status.load.read + status.load.written)
            .sum()
    }

    /// Fragments of early answered writes that the nodes have copied out of the memory of clients.
    fn pulled_early(&self) -> u64 {
        let nodes = self.nodes.iter().flatten();
        let status = nodes.map(|node| node.asker().status(LONG).unwrap());
        status.filter_map(|status| status.pulled_early).sum()
    }

    /// Number of clients that access memories of nodes.
    fn exports(&self) -> usize {
        let nodes = self.nodes.iter().flatten();
        let status = nodes.map(|node| node.asker().status(LONG).unwrap());
        status.map(|status| status.exports).sum()
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
        data: data.into(),
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
    let (_keep, never) = mpsc::channel::<()>();
    assert!(never.recv_timeout(UNHEARD).is_err());
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
    let shm = [(Provider::Shm, Io::Server), (Provider::Shm, Io::Client)];
    let tcp = [(Provider::Tcp, Io::Server), (Provider::Tcp, Io::Client)];
    for (provider, io) in shm.into_iter().chain(tcp) {
        let mut cluster = Cluster::start(3, provider);
        let network = Arc::new(cluster.connect_with(None, io));
        let file = create(&network, "file");
        // Whole blocks.
        const LENGTH: u64 = 12_288;
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
        let (written, _) = network.one_sided();
        assert_eq!(written > 0, io == Io::Client, "{provider}");
        for number in 0..WRITES {
            let bytes = read(&network, file, number * LENGTH, LENGTH as u32);
            assert!(bytes == data(number as usize, LENGTH as usize), "{number}");
        }
    }
}

/// Repeats an action until so many writes and reads were one-sided: keys and layouts arrive meanwhile.
fn until_one_sided(network: &Network, more: (u64, u64), mut work: impl FnMut(u64)) {
    let (start, before) = (Instant::now(), network.one_sided());
    for round in 0.. {
        work(round);
        let (writes, reads) = network.one_sided();
        if writes >= before.0 + more.0 && reads >= before.1 + more.1 {
            return;
        }
        assert!(start.elapsed() < LONG, "{:?}", network.one_sided());
    }
}

#[test]
fn data_goes_one_sided_and_the_servers_move_none_of_it() {
    const LENGTH: usize = 256 << 10;
    for provider in [Provider::Shm, Provider::Tcp] {
        let cluster = Cluster::start(3, provider);
        cluster.primary();
        let network = cluster.connect_with(None, Io::Client);
        let other = cluster.connect(None);
        let file = create(&network, "file");
        let round_trip = |round: u64| {
            let bytes = data(round as usize, LENGTH);
            write(&network, file, 0, bytes.clone());
            assert!(read(&network, file, 0, LENGTH as u32) == bytes, "{round}");
            assert!(read(&other, file, 0, LENGTH as u32) == bytes, "{round}");
            let part = read(&network, file, 5000, 100);
            assert!(part == bytes[5000..5100], "{round}");
        };
        until_one_sided(&network, (10, 20), round_trip);
        // By now there are keys to all members and a layout.
        let before = (network.one_sided(), cluster.moved());
        for round in 0..20 {
            let offset = (round * 4096) % LENGTH as u32;
            read(&network, file, offset.into(), 4096);
        }
        assert_eq!(network.one_sided(), (before.0.0, before.0.1 + 20));
        assert_eq!(cluster.moved(), before.1, "{provider}");
        let bytes = data(3, LENGTH);
        until_one_sided(&network, (3, 0), |_| {
            write(&network, file, 0, bytes.clone());
        });
        assert!(read(&other, file, 0, LENGTH as u32) == bytes);
        assert_eq!(cluster.exports(), 3);
        drop(network);
        let start = Instant::now();
        while cluster.exports() > 0 {
            assert!(
                start.elapsed() < LONG,
                "memory of the ended session is open"
            );
        }
    }
}

#[test]
fn reads_at_once_return_what_ordinary_reads_do() {
    const BLOCK: usize = 4096;
    const PART: u64 = 1 << 20;
    let cluster = Cluster::start(3, Provider::Shm);
    cluster.primary();
    let network = cluster.connect_with(None, Io::Client);
    let file = create(&network, "file");
    // Blocks 1, 3 and 4 have data, and so have the last of the first part and the first ones of the next, of which the last is short.
    let end = PART + 2 * BLOCK as u64 + 100;
    write(&network, file, BLOCK as u64, data(1, BLOCK));
    write(&network, file, 3 * BLOCK as u64, data(2, 2 * BLOCK));
    write(&network, file, PART - BLOCK as u64, data(3, 3 * BLOCK));
    write(&network, file, PART + 2 * BLOCK as u64, data(4, 100));
    let (blocks, tail) = (|count: u64| count * BLOCK as u64, end - 100);
    let ranges = [
        ("only a hole", 0, BLOCK),
        ("a hole at the start", 0, 2 * BLOCK),
        ("a hole in the middle", blocks(1), 4 * BLOCK),
        ("a hole at the end", blocks(3), 4 * BLOCK),
        ("holes everywhere", 0, 8 * BLOCK),
        ("two parts", PART - blocks(2), 4 * BLOCK),
        ("a tail", tail, BLOCK),
        ("two parts and a tail", PART - blocks(1), 8 * BLOCK),
        ("behind the end", tail + blocks(1), BLOCK),
    ];
    for (what, offset, length) in ranges {
        let expected = read(&network, file, offset, length as u32);
        let mut into = vec![0xff; length];
        let start = Instant::now();
        let count = loop {
            if let Some(count) = network.read_locally(file, offset, &mut into, false) {
                break count;
            }
            into.fill(0xff);
            // Keys, layouts and leases come with ordinary reads.
            assert!(read(&network, file, offset, length as u32) == expected);
            assert!(start.elapsed() < LONG, "{what}");
        };
        assert_eq!(count, expected.len(), "{what}");
        assert!(into[..count] == expected, "{what}");
    }
}

#[test]
fn a_session_stays_open_after_reads_at_once() {
    let cluster = Cluster::start(1, Provider::Shm);
    let (network, other) = (
        cluster.connect_with(None, Io::Client),
        cluster.connect(None),
    );
    let file = create(&network, "file");
    let bytes = data(1, 4096);
    write(&network, file, 0, bytes.clone());
    let mut into = vec![0; 4096];
    let start = Instant::now();
    while network.read_locally(file, 0, &mut into, false).is_none() {
        assert!(read(&network, file, 0, 4096) == bytes);
        assert!(start.elapsed() < LONG);
    }
    // Without its name only the session's hold keeps the file.
    ask(&network, Operation::Hold { file });
    let unlink = Operation::Unlink {
        directory: other.root(),
        name: "file".into(),
    };
    ask(&other, unlink);
    // So long that the keeper finds the connection in use.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        network.read_locally(file, 0, &mut into, false);
    }
    let (_keep, never) = mpsc::channel::<()>();
    assert!(never.recv_timeout(UNHEARD).is_err());
    assert!(read(&network, file, 0, 4096) == bytes);
}

#[test]
fn reads_at_once_delay_no_other_session() {
    let cluster = Cluster::start(1, Provider::Shm);
    let (network, other) = (
        cluster.connect_with(None, Io::Client),
        cluster.connect(None),
    );
    let file = create(&network, "file");
    write(&network, file, 0, data(0, 4096));
    let (still_measured, is_done) = mpsc::channel::<()>();
    let median = thread::scope(|scope| {
        let (network, is_done) = (&network, is_done);
        scope.spawn(move || {
            let mut into = vec![0; 4096];
            // Until the other end is dropped, also by a panic.
            while is_done.try_recv() == Err(mpsc::TryRecvError::Empty) {
                if network.read_locally(file, 0, &mut into, false).is_none() {
                    read(network, file, 0, 4096);
                }
            }
        });
        let _still_measured = still_measured;
        let timed = |seed| {
            let start = Instant::now();
            write(&other, file, 0, data(seed, 4096));
            start.elapsed()
        };
        let mut times: Vec<Duration> = (0..40).map(timed).collect();
        times.sort_unstable();
        times[20]
    });
    // Each write waits until the lease of the reader is given back or has ended, after a second.
    assert!(median < Duration::from_millis(300), "{median:?}");
}

#[test]
fn a_wrong_key_opens_no_memory_and_ends_the_link() {
    for provider in [Provider::Shm, Provider::Tcp] {
        let cluster = Cluster::start(1, provider);
        cluster.primary();
        let map = cluster.membership.read().unwrap().unwrap();
        let identity = Identity::local(map.cluster, "client").unwrap();
        let mut options = messenger::Options::default();
        options.control.messages = VERSION.into();
        options.wanted.only = Some(provider);
        let mut messenger = Messenger::open(identity, options).unwrap();
        let address = Address::Unix(cluster.socket(0));
        let link = messenger.dial_now(&address, Some("n0")).unwrap();
        let envelope = Envelope {
            cluster: map.number(),
            from: FIRST_CLIENT,
            session: 1,
            ..Envelope::default()
        };
        let export = Body::Export {
            key: 1,
            writes: true,
        };
        for body in [Body::Hello { map_version: 0 }, export] {
            let bytes = Message { envelope, body }.encode(false);
            messenger.send(link, &bytes.into()).unwrap();
        }
        let (start, mut events) = (Instant::now(), Vec::new());
        while !events.iter().any(|it| matches!(it, Event::Lost { .. })) {
            assert!(start.elapsed() < LONG, "{events:?}");
            messenger.wait(&mut events, Duration::from_secs(1));
        }
        let is_exported = |it: &Event| matches!(it, Event::Exported { .. });
        assert!(!events.iter().any(is_exported), "{provider}: {events:?}");
    }
}

#[test]
fn a_peer_with_another_version_of_messages_is_refused() {
    let cluster = Cluster::start(1, Provider::Shm);
    cluster.primary();
    let network = cluster.connect(None);
    let map = cluster.membership.read().unwrap().unwrap();
    let address = Address::Unix(cluster.socket(0));
    for version in [VERSION - 1, VERSION + 1] {
        let identity = Identity::local(map.cluster, "client").unwrap();
        let mut options = messenger::Options::default();
        options.control.messages = version.into();
        let mut messenger = Messenger::open(identity, options).unwrap();
        let refused = messenger.dial_now(&address, Some("n0")).unwrap_err();
        let sentence = format!(
            " speaks version {VERSION} of messages and this node {version}; use one version of tako on all nodes and clients"
        );
        assert!(refused.to_string().ends_with(&sentence), "{refused}");
    }
    // Others do not notice.
    let file = create(&network, "file");
    write(&network, file, 0, data(1, 100));
    assert_eq!(read(&network, file, 0, 100), data(1, 100));
}

/// Wall clocks are hours apart, and jump by hours while nodes serve. A member that was lost with its pool is filled by the primary:
/// it has no record of the changes before.
#[test]
fn clocks_that_jump_keep_time_stamps_in_order_across_takeovers() {
    const HOUR_NS: i64 = 3_600_000_000_000;
    let now = Clock::System.now_ns();
    let walls = [0, -7].map(|hours| Arc::new(AtomicI64::new(now + hours * HOUR_NS)));
    let clocks = walls.iter().map(|wall| Clock::Manual(wall.clone()));
    let mut cluster = Cluster::with_clocks(clocks.collect(), Provider::Shm);
    let network = cluster.connect(None);
    let file = create(&network, "file");
    let changed = || {
        let outcome = ask(&network, Operation::Attributes { file });
        outcome.attributes.expect("they are there").changed_ns
    };
    let mut newest = changed();
    for round in 0..4 {
        let primary = cluster.primary();
        let other = 1 - primary;
        let is_filled = round % 2 == 1;
        if is_filled {
            cluster.nodes[other] = None;
        }
        walls[primary].fetch_add(3 * HOUR_NS, Ordering::Relaxed);
        write(&network, file, 0, data(2 * round, 100));
        assert!(changed() >= newest + HOUR_NS, "round {round}");
        newest = changed();
        if is_filled {
            let pool = cluster.scratch.0.join(format!("n{other}.pool"));
            std::fs::remove_file(pool).unwrap();
            cluster.start_node(other);
            assert_eq!(cluster.primary(), primary);
        }
        cluster.nodes[primary] = None;
        walls[other].fetch_sub(HOUR_NS, Ordering::Relaxed);
        write(&network, file, 0, data(2 * round + 1, 100));
        assert!(
            changed() >= newest,
            "round {round}: {} s back",
            (newest - changed()) / 1_000_000_000
        );
        newest = changed();
        assert_eq!(read(&network, file, 0, 100), data(2 * round + 1, 100));
        cluster.start_node(primary);
    }
}
