//! Copies, allocations and sleeps of a request, counted in a process that contains the client and the nodes.
//!
//! A library that is preloaded counts `memcpy` and allocations, the crate pmem its own copies. Copies by the kernel, between
//! a program and the mount, are not in this process: one per direction of the data.

use std::cell::{Cell, RefCell};
use std::fs;
use std::process::Command;

use protocol::Answered;
use protocol::answered::BLOCK_BYTES;
use protocol::client::Ownership;

use super::*;

const SOURCE: &str = include_str!("counts.c");
const FILE: &str = "TAKO_COUNTS";
const BATCHES: usize = 5;
const BATCH: usize = 8;

/// Sums since the process began.
#[derive(Clone, Copy)]
struct Counts {
    copied: u64,
    allocations: u64,
}

impl Counts {
    fn now() -> Counts {
        let file = fs::read(std::env::var(FILE).unwrap()).unwrap();
        let word = |at: usize| u64::from_ne_bytes(file[at..at + 8].try_into().unwrap());
        Counts {
            copied: word(0) + pmem::copied_bytes(),
            allocations: word(8),
        }
    }
}

/// How often threads of this process have blocked.
fn sleeps() -> u64 {
    let mut sum = 0;
    for task in fs::read_dir("/proc/self/task").unwrap() {
        // A thread may have ended.
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|it| it.strip_prefix("voluntary_ctxt_switches:"));
        sum += line.map_or(0, |count| count.trim().parse::<u64>().unwrap());
    }
    sum
}

#[test]
fn data_of_a_request_is_copied_a_bounded_number_of_times() {
    if std::env::var_os(FILE).is_some() {
        return count_all();
    }
    let scratch = Scratch::new();
    let [source, library, counts] =
        ["counts.c", "counts.so", "counts"].map(|name| scratch.0.join(name));
    fs::write(&source, SOURCE).unwrap();
    fs::write(&counts, [0; 4096]).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-fno-builtin", "-o"]);
    assert!(
        compiler
            .arg(&library)
            .arg(&source)
            .status()
            .unwrap()
            .success()
    );
    let name = "copies::data_of_a_request_is_copied_a_bounded_number_of_times";
    let mut counted = Command::new(std::env::current_exe().unwrap());
    counted.args([name, "--exact", "--nocapture", "--test-threads=1"]);
    let status = counted
        .env("LD_PRELOAD", &library)
        .env(FILE, &counts)
        .status();
    assert!(status.unwrap().success());
}

/// Most copies of the data of 64 KiB and more, by members, form and operation. The targets are 4 for one-sided data and 5 for
/// messages, with one member.
const COPIES_MAX: [(u8, Io, [f64; 2]); 4] = [
    (1, Io::Server, [3.2, 4.2]),
    (1, Io::Client, [2.2, 1.1]),
    (3, Io::Server, [13.8, 4.2]),
    (3, Io::Client, [6.5, 1.1]),
];

fn count_all() {
    println!("| form | members | operation | length | copies | allocations | sleeps |");
    for (members, io, most) in COPIES_MAX {
        let cluster = Cluster::start(members, Provider::Shm);
        cluster.primary();
        let network = cluster.connect_with(None, io);
        for length in [4096, 64 << 10, 1 << 20] {
            let copies = count(&network, members, io, length);
            let are_few = copies
                .iter()
                .zip(most)
                .all(|(copies, most)| *copies <= most);
            assert!(are_few || length < 64 << 10, "{copies:?}, at most {most:?}");
        }
        if io == Io::Server {
            let copies = count_early(&cluster, &network, members);
            // The mount copies once, to where the primary copies from.
            assert!(copies <= most[0], "{copies}, at most {}", most[0]);
        }
    }
}

/// Prints what a write that a mount answers early costs, from its caller to the pool. Returns its copies.
fn count_early(cluster: &Cluster, network: &Network, members: u8) -> f64 {
    let file = create(network, "early");
    let memory = network.write_memory(BLOCK_BYTES, 64);
    let mut answered = memory.map(Answered::with_arena).expect("there is memory");
    let ownership = Ownership {
        session: 1,
        number: (1, 1),
        until: u64::MAX,
    };
    answered.granted(file, ownership, 0);
    let answered = RefCell::new(answered);
    // Other contents each time, but none are made meanwhile.
    let given: Vec<Vec<u8>> = (0..2).map(|seed| data(seed, BLOCK_BYTES)).collect();
    let round = Cell::new(0);
    let write_early = || {
        let mut answered = answered.borrow_mut();
        let data = &given[round.replace(round.get() + 1) % 2];
        assert!(answered.write(0, file, 0, data, None));
        let taken = answered.take(file, BLOCK_BYTES).expect("it was written");
        for operation in taken.writes {
            ask(network, operation);
        }
        answered.sent(file, None);
    };
    // The primary learns of the memory with a message.
    (0..BATCH).for_each(|_| write_early());
    let form = format!("early | {members} | write");
    let before = cluster.pulled_early();
    let copies = median_cost(network, (file, BLOCK_BYTES), &form, &write_early);
    let writes = (BATCHES * BATCH) as u64;
    // On a busy machine a few may go in messages.
    assert!(cluster.pulled_early() - before > writes / 2);
    copies
}

/// Prints what writes and reads of this length cost. Returns their copies.
fn count(network: &Network, members: u8, io: Io, length: usize) -> [f64; 2] {
    let file = create(network, &format!("file{length}"));
    // Other contents each time: members skip blocks that they have.
    let seed = Cell::new(0);
    let write_once = || write(network, file, 0, data(seed.replace(seed.get() + 1), length));
    let read_once = || {
        let operation = Operation::Read {
            file,
            offset: 0,
            length: length as u32,
            note_read: false,
        };
        assert_eq!(ask(network, operation).data().len(), length);
    };
    write_once();
    if io == Io::Client {
        until_one_sided(network, (3, 3), |_| {
            write_once();
            read_once();
        });
    }
    if io == Io::Client {
        let [copies, allocations] = cost_at_once(network, file, length);
        println!(
            "| {io:?} | {members} | read at once | {length} | {copies:.1} | {allocations:.0} |"
        );
        assert!(
            copies <= 1.1 && allocations < 1.0,
            "{copies}, {allocations}"
        );
    }
    let works: [(&str, &dyn Fn()); 2] = [("write", &write_once), ("read", &read_once)];
    works.map(|(name, work)| {
        let form = format!("{io:?} | {members} | {name}");
        median_cost(network, (file, length), &form, work)
    })
}

/// Prints what an operation costs. Returns its copies.
fn median_cost(
    network: &Network,
    (file, length): (FileId, usize),
    form: &str,
    work: &dyn Fn(),
) -> f64 {
    // A busy machine may make requests go another way: the median does not show it.
    let mut batches: Vec<[f64; 3]> = (0..BATCHES)
        .map(|_| cost(network, file, length, work))
        .collect();
    let [copies, allocations, sleeps] = [0, 1, 2].map(|figure| {
        batches.sort_by(|a, b| a[figure].total_cmp(&b[figure]));
        batches[BATCHES / 2][figure]
    });
    println!("| {form} | {length} | {copies:.1} | {allocations:.0} | {sleeps:.1} |");
    copies
}

/// Copies of the data, allocations and sleeps of one operation, as the mean of a batch.
fn cost(network: &Network, file: FileId, length: usize, work: &dyn Fn()) -> [f64; 3] {
    // Outside, since it allocates.
    let asleep = sleeps();
    let before = Counts::now();
    (0..BATCH).for_each(|_| work());
    // The replicas have the data, too.
    ask(network, Operation::Sync { file });
    let after = Counts::now();
    let each = |after: u64, before: u64| (after - before) as f64 / BATCH as f64;
    let copies = each(after.copied, before.copied) / length as f64;
    let allocations = each(after.allocations, before.allocations);
    [copies, allocations, each(sleeps(), asleep)]
}

/// Copies and allocations of a read at once, from the pool to the memory of the caller: the fewest of several batches, since other
/// threads count, too.
fn cost_at_once(network: &Network, file: FileId, length: usize) -> [f64; 2] {
    let mut into = vec![0; length];
    let mut read = || network.read_locally(file, 0, &mut into, false) == Some(length);
    let mut least = [f64::MAX; 2];
    let (start, mut tries, mut batches) = (Instant::now(), 0, 0);
    // On a busy machine most tries may find the connection in use.
    let is_enough = |tries, batches| tries >= 20 * BATCHES && batches >= BATCHES;
    // The nodes may be at work for longer than that.
    while (!is_enough(tries, batches) || least[1] >= 1.0) && start.elapsed() < LONG {
        tries += 1;
        let before = Counts::now();
        if !(0..BATCH).all(|_| read()) {
            // The primary has to promise, or to list the blocks: an ordinary read asks for that.
            let note_read = false;
            ask(
                network,
                Operation::Read {
                    file,
                    offset: 0,
                    length: 4096,
                    note_read,
                },
            );
            continue;
        }
        batches += 1;
        let after = Counts::now();
        let each = |after: u64, before: u64| (after - before) as f64 / BATCH as f64;
        let copies = each(after.copied, before.copied) / length as f64;
        let allocations = each(after.allocations, before.allocations);
        least = [least[0].min(copies), least[1].min(allocations)];
    }
    least
}
