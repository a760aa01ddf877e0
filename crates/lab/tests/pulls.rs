//! Pulls of long messages, and short ones by writes that announce themselves, over a simulated network, on seeded schedules; and
//! their rules broken on purpose.
//!
//! A read takes a while, and both sides go on meanwhile. Each message must arrive whole, once and in order.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use connections::messenger::simulation::{ANNOUNCED_MAX, PULL_MIN, Side, StreamDefect};
use fabric::{Error, Role};
use fabric_simulation::simulated::{Network, NetworkOptions};
use operations::Bytes;
use pmem::{Arena, Random};

/// Runs: each succeeds without a broken rule.
const SEEDS: u64 = 200;
/// Runs among which each broken rule is found.
const BROKEN_SEEDS: u64 = 1000;
/// Messages of a run, each way.
const MESSAGES: usize = 40;
/// Credits, in turns: with few of them slots are used again soon, with many of them buffers of pulls are.
const WINDOWS: [u32; 3] = [4, 8, 32];
/// Steps after which a run is stuck.
const STEPS_MAX: usize = 200_000;

/// Blocks of an arena, and their size: few, so that they are used again soon.
const BLOCKS: u32 = 3;
const BLOCK_BYTES: usize = 64 << 10;
/// Bytes of a message before its data in the arena.
const FIELDS: usize = 100;

/// One side, and the messages in both directions.
struct Party {
    side: Side,
    /// Memory out of which the peer copies data of some long messages.
    arena: Arena,
    /// Whether it does so in this run.
    lends: bool,
    to_send: VecDeque<Bytes>,
    /// Messages that the peer has sent and that have not arrived, in order.
    expected: VecDeque<Bytes>,
}

impl Party {
    /// A message to be sent. The data of some long ones moves into the arena, if that has a free block.
    fn in_pieces(&self, mut bytes: Bytes) -> [Bytes; 3] {
        let block = match self.lends && bytes.len() >= FIELDS + PULL_MIN {
            true => self.arena.allocate(),
            false => None,
        };
        let Some(mut block) = block else {
            return [bytes, Bytes::new(), Bytes::new()];
        };
        let mut data = bytes.split_off(FIELDS);
        let end = data.split_off(data.len().min(BLOCK_BYTES));
        block.write(0, &data);
        [bytes, Bytes::from_owner(block), end]
    }

    /// Sends or polls. Checks the messages that arrive.
    fn step(&mut self, random: &mut Random) -> Result<(), String> {
        if random.below(3) == 0
            && let Some(bytes) = self.to_send.pop_front()
        {
            let pieces = self.in_pieces(bytes);
            self.side.send(pieces);
            return Ok(());
        }
        for received in self.side.poll()? {
            match self.expected.pop_front() {
                Some(sent) if sent == received => {}
                Some(sent) => {
                    let is_other = |(one, other): (&u8, &u8)| one != other;
                    let at = sent.iter().zip(&received).position(is_other);
                    let lengths = (sent.len(), received.len());
                    return Err(format!("other bytes from {at:?} on, lengths {lengths:?}"));
                }
                None => return Err("more messages than were sent".into()),
            }
        }
        Ok(())
    }
}

/// The messages of one direction: some fit into a slot, about half of them are pulled, some in many fragments.
fn messages(random: &mut Random) -> VecDeque<Bytes> {
    let mut one = |number: usize| {
        let length = match random.below(10) {
            0..3 => random.below(ANNOUNCED_MAX + 2),
            3..5 => random.below(PULL_MIN),
            5..9 => random.between(PULL_MIN as u64, 80 << 10) as usize,
            _ => random.below(2 << 20),
        };
        // Two messages differ at each offset.
        let byte = |at: usize| (at % 251 + number) as u8;
        (0..length).map(byte).collect()
    };
    (0..MESSAGES).map(&mut one).collect()
}

/// Whether arenas are lent in a run: with them, few buffers of links are used.
fn lends(seed: u64) -> bool {
    seed % 2 == 1
}

fn join(
    seed: u64,
    reads: u32,
    arenas: &[Arena; 2],
    defect: Option<StreamDefect>,
) -> Result<[Side; 2], Error> {
    let network = Network::new(seed, NetworkOptions::default());
    let window = WINDOWS[seed as usize % WINDOWS.len()];
    let (near, of_near) = Side::new(network.device(), reads, window)?;
    let (far, of_far) = Side::new(network.device(), reads, window)?;
    let [mut near, mut far] = [near, far].map(|side| side.with_defect(defect));
    far.join(Role::Listener, of_near)?;
    near.join(Role::Dialer, of_far)?;
    near.import(far.offer_pool()?)?;
    far.import(near.offer_pool()?)?;
    if lends(seed) {
        near.import_arena(far.lend(&arenas[1])?)?;
        far.import_arena(near.lend(&arenas[0])?)?;
    }
    near.import_slots(far.offer_slots()?)?;
    far.import_slots(near.offer_slots()?)?;
    Ok([near, far])
}

/// Runs a schedule. Returns the number of fragments that were pulled out of pools, of those that were pulled out of arenas, and of
/// messages that were announced, or what is wrong with a message.
fn run(seed: u64, defect: Option<StreamDefect>) -> Result<[u64; 3], String> {
    let mut random = Random::new(seed);
    let reads = 1 + random.below(4) as u32;
    let arenas = [(); 2].map(|()| Arena::new(BLOCK_BYTES, BLOCKS).expect("there is memory"));
    let sides = join(seed, reads, &arenas, defect).expect("two sides are joined");
    let sent = [(); 2].map(|()| messages(&mut random));
    let [to_far, to_near] = sent;
    let [near, far] = sides;
    let [of_near, of_far] = arenas;
    let mut parties = [(near, of_near), (far, of_far)].map(|(side, arena)| Party {
        side,
        arena,
        lends: lends(seed),
        to_send: VecDeque::new(),
        expected: VecDeque::new(),
    });
    (parties[0].expected, parties[1].expected) = (to_near.clone(), to_far.clone());
    (parties[0].to_send, parties[1].to_send) = (to_far, to_near);
    for _ in 0..STEPS_MAX {
        let index = random.below(2);
        parties[index].step(&mut random)?;
        if parties.iter().all(|party| party.expected.is_empty()) {
            let counts = parties.map(|Party { side, .. }| {
                let [of_pools, of_arenas] = side.pulled();
                [of_pools, of_arenas, side.announced()]
            });
            return Ok(add(counts[0], counts[1]));
        }
    }
    // No broken rule is found by this.
    let missing = parties.map(|party| party.expected.len());
    panic!("seed {seed}: messages that do not arrive, each way: {missing:?}");
}

fn add(one: [u64; 3], other: [u64; 3]) -> [u64; 3] {
    [0, 1, 2].map(|index| one[index] + other[index])
}

#[test]
fn messages_arrive_whole_and_in_order_on_any_schedule() {
    let mut counts = [0; 3];
    for seed in 0..SEEDS {
        let ended = run(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        counts = add(counts, ended);
    }
    let [of_pools, of_arenas, announced] = counts;
    println!("{of_pools} and {of_arenas} fragments were pulled, {announced} messages announced");
    assert!(of_pools > SEEDS * MESSAGES as u64 / 4);
    assert!(of_arenas > 2 * SEEDS);
    assert!(announced > SEEDS * MESSAGES as u64 / 4);
}

#[test]
fn each_broken_rule_is_found() {
    for defect in StreamDefect::ALL {
        let mut seeds = 0..BROKEN_SEEDS;
        let found = seeds.find_map(|seed| Some((seed, run(seed, Some(defect)).err()?)));
        match found {
            Some((seed, error)) => println!("{defect:?} is found by seed {seed}: {error}"),
            None => panic!("{defect:?} is not found"),
        }
    }
}
