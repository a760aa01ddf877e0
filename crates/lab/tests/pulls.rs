//! Pulls of long messages, and short ones by writes that announce themselves, over a simulated network, on seeded schedules; and
//! their rules broken on purpose.
//!
//! A read takes a while, and both sides go on meanwhile. In each run one side ends the link and both join again: the messages that have
//! not arrived are sent again. Each message must arrive whole, once and in order.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::iter;

use connections::messenger::simulation::{ANNOUNCED_MAX, LOST, PULL_MIN, Side, StreamDefect};
use fabric::{Error, Queue, Role};
use fabric_simulation::simulated::{Network, NetworkOptions};
use operations::Bytes;
use pmem::{Arena, Block, Random};

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
/// Steps for which the queue of a link that has ended executes reads, at most.
const CLOSING_STEPS: usize = 100;

/// Blocks of an arena, and their size: few, so that they are used again soon.
const BLOCKS: u32 = 3;
const BLOCK_BYTES: usize = 64 << 10;
/// Bytes of a message before its data in the arena.
const FIELDS: usize = 100;

/// One side, and the messages in both directions.
struct Party {
    /// Nothing once it has ended the link.
    side: Option<Side>,
    /// Counts of the links that it has ended.
    counted: [u64; 3],
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

    /// Ends the link on this side. Then it writes other data into the free blocks of its arena. Returns the queue of the link.
    fn end(&mut self) -> Option<Queue> {
        self.counted = self.counts();
        let queue = self.side.take()?.end();
        let mut blocks: Vec<Block> = iter::from_fn(|| self.arena.allocate()).collect();
        for block in &mut blocks {
            block.write(0, &[u8::MAX; BLOCK_BYTES]);
        }
        Some(queue)
    }

    /// Fragments that were pulled out of pools, those that were pulled out of arenas, and messages that were announced.
    fn counts(&self) -> [u64; 3] {
        let of_side = self.side.as_ref().map_or([0; 3], |side| {
            let [of_pools, of_arenas] = side.pulled();
            [of_pools, of_arenas, side.announced()]
        });
        add(self.counted, of_side)
    }

    /// Acts, unless it has ended the link.
    fn step(&mut self, random: &mut Random) -> Result<(), String> {
        let Some(mut side) = self.side.take() else {
            return Ok(());
        };
        let done = self.act(&mut side, random);
        self.side = Some(side);
        done
    }

    /// Sends or polls. Checks the messages that arrive.
    fn act(&mut self, side: &mut Side, random: &mut Random) -> Result<(), String> {
        if random.below(3) == 0
            && let Some(bytes) = self.to_send.pop_front()
        {
            let pieces = self.in_pieces(bytes);
            side.send(pieces);
            return Ok(());
        }
        let polled = side.poll();
        for received in polled? {
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

/// The queue of a side that has ended its link, and for how many steps it is kept.
struct Closing {
    queue: Option<Queue>,
    steps: usize,
}

/// A schedule of two parties.
struct Run {
    seed: u64,
    defect: Option<StreamDefect>,
    random: Random,
    /// Fragments that a side reads at once.
    reads: u32,
    parties: [Party; 2],
    /// A link that one party has ended and the other one has not.
    closing: Option<Closing>,
    /// One party ends the link when no more messages than these have to arrive.
    ends_at: Option<usize>,
}

impl Run {
    fn new(seed: u64, defect: Option<StreamDefect>) -> Run {
        let mut random = Random::new(seed);
        let reads = 1 + random.below(4) as u32;
        let [to_far, to_near] = [(); 2].map(|()| messages(&mut random));
        let parties = [to_near, to_far].map(|expected| Party {
            side: None,
            counted: [0; 3],
            arena: Arena::new(BLOCK_BYTES, BLOCKS).expect("there is memory"),
            lends: lends(seed),
            to_send: VecDeque::new(),
            expected,
        });
        let ends_at = Some(random.below(2 * MESSAGES));
        let mut run = Run {
            seed,
            defect,
            random,
            reads,
            parties,
            closing: None,
            ends_at,
        };
        run.join();
        run
    }

    /// Makes a link, over which all goes that has not arrived.
    fn join(&mut self) {
        let arenas = [0, 1].map(|index| self.parties[index].arena.clone());
        let sides = join(self.seed, self.reads, &arenas, self.defect);
        let sides = sides.expect("two sides are joined");
        for (party, side) in self.parties.iter_mut().zip(sides) {
            party.side = Some(side);
        }
        let [near, far] = &mut self.parties;
        near.to_send = far.expected.clone();
        far.to_send = near.expected.clone();
    }

    /// Lets one party act. Once both have ended the link, there is another one.
    fn step(&mut self) -> Result<(), String> {
        let index = self.random.below(2);
        let stepped = self.parties[index].step(&mut self.random);
        if self.closing.is_none() {
            stepped?;
            if self.ends_at.is_some_and(|most| self.missing() <= most) {
                self.ends_at = None;
                self.closing = Some(Closing {
                    queue: self.parties[index].end(),
                    steps: self.random.below(CLOSING_STEPS),
                });
            }
            return Ok(());
        }
        match stepped {
            // The end of the link was reported.
            Err(error) if error.starts_with(LOST) => {
                self.closing = None;
                self.parties[index].end();
                self.join();
                Ok(())
            }
            other => {
                self.keep_closing();
                other
            }
        }
    }

    /// After some steps the queue of the side that has ended its link is closed, too.
    fn keep_closing(&mut self) {
        if let Some(closing) = &mut self.closing {
            match closing.steps.checked_sub(1) {
                Some(fewer) => closing.steps = fewer,
                None => closing.queue = None,
            }
        }
    }

    /// Number of messages that have not arrived.
    fn missing(&self) -> usize {
        self.parties.iter().map(|it| it.expected.len()).sum()
    }
}

/// Runs a schedule. Returns the number of fragments that were pulled out of pools, of those that were pulled out of arenas, and of
/// messages that were announced, or what is wrong with a message.
fn run(seed: u64, defect: Option<StreamDefect>) -> Result<[u64; 3], String> {
    let mut run = Run::new(seed, defect);
    for _ in 0..STEPS_MAX {
        run.step()?;
        if run.missing() == 0 {
            let [near, far] = &run.parties;
            return Ok(add(near.counts(), far.counts()));
        }
    }
    // No broken rule is found by this.
    panic!("seed {seed}: {} messages do not arrive", run.missing());
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
