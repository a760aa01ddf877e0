//! Reads over Ethernet with blocks that are received in place.

use std::collections::VecDeque;

use fabric::ethernet::{EthernetCounters, FrameFaults, Shape};
use fabric::{Access, Failure, Registration, Source, Work, WorkRequest};

use super::super::suite::{Pair, Random};
use super::{BLOCK, BLOCKS, Placing, Target};

/// A pool of the near side that reads are received in, and memory of the far side.
struct Reading {
    near: Registration,
    /// The near side's pool, as it should be.
    model: Vec<u8>,
    far: Target,
}

impl Reading {
    fn new(pair: &Pair, setup: &Placing, random: &mut Random) -> Reading {
        let pool = setup.pools.borrow()[0].clone();
        let model = random.bytes((BLOCKS * BLOCK) as usize);
        pool.write(0, &model);
        Reading {
            near: pair.near.device.register(&pool, Access::LOCAL).unwrap(),
            model,
            far: Target::new(pair, setup, random),
        }
    }

    /// Applies a read of the far side's memory to the model.
    fn expect(&mut self, to: u64, from: u64, length: u64) {
        let source = &self.far.model[from as usize..][..length as usize];
        self.model[to as usize..][..length as usize].copy_from_slice(source);
    }

    fn check(&self, what: &str) {
        let mut found = vec![0; self.model.len()];
        self.near.region().read(0, &mut found);
        let wrong = (0..found.len()).find(|&at| found[at] != self.model[at]);
        assert_eq!(wrong, None, "{what}");
    }
}

fn counters(setup: &Placing) -> EthernetCounters {
    setup.devices.borrow()[0].counters()
}

/// Reads, one after the other, into random places of the pool.
fn reads(shape: Shape, faults: FrameFaults, rounds: u64) -> EthernetCounters {
    reads_by(&Placing::new(shape, faults), rounds)
}

/// The same over these hosts.
pub(super) fn reads_by(setup: &Placing, rounds: u64) -> EthernetCounters {
    let mut pair = Pair::new(setup);
    let mut random = Random(21);
    let mut reading = Reading::new(&pair, setup, &mut random);
    let remote = pair.import(&reading.far.memory);
    for round in 0..rounds {
        let blocks = 1 + random.below(if round % 4 == 0 { 256 } else { 20 });
        let length = blocks * BLOCK;
        // At any byte.
        let to = BLOCK + random.below((BLOCKS - 1) * BLOCK - length);
        let from = random.below(BLOCKS * BLOCK - length);
        let into = [reading.near.piece(to, length as u32)];
        let read = Work::Read {
            into: &into,
            from: remote.at(from),
        };
        assert_eq!(pair.carry_out(round, read), Ok(0));
        reading.expect(to, from, length);
        reading.check(&format!("round {round}: {length} bytes at {to}"));
    }
    counters(setup)
}

#[test]
fn stripped_blocks_of_reads_land_in_the_buffer_and_nothing_else_changes() {
    assert_eq!(reads(Shape::Strip, FrameFaults::default(), 40).placed, 40);
}

#[test]
fn overlaid_blocks_of_reads_land_in_the_buffer_and_covered_bytes_are_restored() {
    assert_eq!(reads(Shape::Overlay, FrameFaults::default(), 40).placed, 40);
}

#[test]
fn jumbo_frames_of_reads_land_in_the_buffer_and_nothing_else_changes() {
    assert_eq!(reads(Shape::Jumbo, FrameFaults::default(), 40).placed, 40);
}

#[test]
fn lost_doubled_reordered_and_damaged_frames_of_reads_misplace_nothing() {
    for shape in [Shape::Strip, Shape::Overlay, Shape::Jumbo] {
        let faults = FrameFaults {
            loss_permille: 5,
            duplication_permille: 10,
            reorder_permille: 5,
            corruption_permille: 4,
            seed: 6,
        };
        let counters = reads(shape, faults, 30);
        assert!(counters.placed >= 10, "{counters:?}");
        // Damaged data has the wrong seal, and is read again in packets.
        assert!(
            counters.placed < 30 && counters.rejected > 0,
            "{counters:?}"
        );
    }
}

/// Many reads of few blocks are in flight.
fn pipelined(faults: FrameFaults) -> EthernetCounters {
    const DEPTH: usize = 16;
    const READS: u64 = 300;
    let setup = Placing::new(Shape::Strip, faults);
    let mut pair = Pair::new(&setup);
    let mut random = Random(22);
    let mut reading = Reading::new(&pair, &setup, &mut random);
    let remote = pair.import(&reading.far.memory);
    let mut posted = VecDeque::new();
    for number in 0..READS {
        if posted.len() == DEPTH {
            let first = posted.pop_front().unwrap();
            let to_far = pair.to_far;
            pair.until("a read", |near, _| near.outcome(to_far, first).is_some());
        }
        let blocks = 1 + random.below(3);
        let length = blocks * BLOCK;
        let (to, from) = (
            BLOCK + number % 32 * 4 * BLOCK,
            random.below(BLOCKS * BLOCK - length),
        );
        let into = [reading.near.piece(to, length as u32)];
        let read = Work::Read {
            into: &into,
            from: remote.at(from),
        };
        pair.post(WorkRequest::new(number, read));
        posted.push_back(number);
        reading.expect(to, from, length);
    }
    pair.until("all reads", |near, _| near.done.len() == READS as usize);
    assert!(pair.near.done.iter().all(|done| done.outcome == Ok(0)));
    reading.check("all reads");
    counters(&setup)
}

#[test]
fn reads_in_flight_together_are_placed_one_after_the_other() {
    assert_eq!(pipelined(FrameFaults::default()).placed, 300);
}

#[test]
fn lost_frames_of_reads_in_flight_together_are_sent_again() {
    let counters = pipelined(FrameFaults {
        loss_permille: 10,
        reorder_permille: 5,
        seed: 7,
        ..FrameFaults::default()
    });
    assert!(counters.placed > 100, "{counters:?}");
}

/// Each side has the lane of the other one for its writes, and its own for its reads.
#[test]
fn reads_and_writes_of_both_sides_share_the_lanes() {
    let setup = Placing::new(Shape::Strip, FrameFaults::default());
    let mut pair = Pair::new(&setup);
    let mut random = Random(23);
    let mut reading = Reading::new(&pair, &setup, &mut random);
    let remote = pair.import(&reading.far.memory);
    let half = BLOCKS / 2 * BLOCK;
    for round in 0..20 {
        let length = 100 * BLOCK;
        let read = [reading.near.piece(half + BLOCK, length as u32)];
        let read = Work::Read {
            into: &read,
            from: remote.at(half),
        };
        let source = reading.near.piece(BLOCK, length as u32);
        let write = Work::Write {
            from: Source::Pieces(&[source]),
            to: remote.at(BLOCK),
            immediate: None,
        };
        pair.post(WorkRequest::new(2 * round, read));
        pair.post(WorkRequest::new(2 * round + 1, write));
        pair.until("both end", |near, _| near.done.len() == 2);
        assert!(pair.near.done.drain(..).all(|done| done.outcome == Ok(0)));
        reading.expect(half + BLOCK, half, length);
        let written = reading.model[BLOCK as usize..][..length as usize].to_vec();
        reading.far.model[BLOCK as usize..][..length as usize].copy_from_slice(&written);
    }
    reading.check("what was read");
    reading.far.check("what was written");
    assert!(setup.placed() > 0 && counters(&setup).placed > 0);
}

/// The request comes after the key has gone.
#[test]
fn a_withdrawn_key_ends_a_placed_read() {
    let setup = Placing::new(Shape::Strip, FrameFaults::default());
    let mut pair = Pair::new(&setup);
    let reading = Reading::new(&pair, &setup, &mut Random(24));
    let remote = pair.import(&reading.far.memory);
    assert!(pair.far.device.revoke(&reading.far.memory).is_some());
    let into = [reading.near.piece(BLOCK, 8 * BLOCK as u32)];
    let read = Work::Read {
        into: &into,
        from: remote.at(0),
    };
    assert_eq!(pair.carry_out(1, read), Err(Failure::Access));
    reading.check("nothing has landed");
}

/// The adapter delivers data by another queue than that which waits for it.
#[test]
fn an_endpoint_without_data_of_its_reads_is_lost() {
    let mut setup = Placing::new(Shape::Strip, FrameFaults::default());
    setup.queues = [1, 2];
    setup.options.lost_after = std::time::Duration::from_secs(1);
    let mut pair = Pair::new(&setup);
    let reading = Reading::new(&pair, &setup, &mut Random(25));
    let remote = pair.import(&reading.far.memory);
    let into = [reading.near.piece(BLOCK, 8 * BLOCK as u32)];
    let read = Work::Read {
        into: &into,
        from: remote.at(0),
    };
    assert_eq!(pair.carry_out(1, read), Err(Failure::Flushed));
    reading.check("nothing has landed");
}

/// The key goes while frames are missing, which are then sent once more.
#[test]
fn frames_after_a_key_was_withdrawn_disclose_nothing() {
    let faults = FrameFaults {
        loss_permille: 20,
        seed: 8,
        ..FrameFaults::default()
    };
    let setup = Placing::new(Shape::Strip, faults);
    let mut pair = Pair::new(&setup);
    let reading = Reading::new(&pair, &setup, &mut Random(26));
    let remote = pair.import(&reading.far.memory);
    let length = 256 * BLOCK as usize;
    let into = [reading.near.piece(BLOCK, length as u32)];
    let read = Work::Read {
        into: &into,
        from: remote.at(0),
    };
    pair.post(WorkRequest::new(1, read));
    pair.until("all frames", |_, _| {
        setup.devices.borrow()[1].counters().fetched_frames > 0
    });
    assert!(pair.far.device.revoke(&reading.far.memory).is_some());
    let to_far = pair.to_far;
    pair.until("the refusal", |near, _| near.outcome(to_far, 1).is_some());
    assert_eq!(pair.near.outcome(to_far, 1), Some(Err(Failure::Access)));
    let mut found = vec![0; length];
    reading.near.region().read(BLOCK, &mut found);
    let (before, source) = (&reading.model[BLOCK as usize..], &reading.far.model);
    let foreign = (0..length).find(|&at| ![0, before[at], source[at]].contains(&found[at]));
    assert_eq!(foreign, None, "of another place");
}

/// The near side's lane is needed for its reads and for the far side's writes.
#[test]
fn lost_frames_of_reads_do_not_end_writes_of_the_peer() {
    let faults = FrameFaults {
        loss_permille: 10,
        corruption_permille: 2,
        seed: 9,
        ..FrameFaults::default()
    };
    let setup = Placing::new(Shape::Strip, faults);
    let mut pair = Pair::new(&setup);
    // The near side makes a new socket after damage.
    setup.link.enter(0);
    let mut random = Random(27);
    let mut reading = Reading::new(&pair, &setup, &mut random);
    let remote = pair.import(&reading.far.memory);
    let pool = reading.near.region().clone();
    let written = pair.near.device.register(&pool, Access::ALL).unwrap();
    let export = pair.near.queue.export(pair.to_far, &written).unwrap();
    let back = pair.far.queue.import(pair.to_near, export).unwrap();
    let half = BLOCKS / 2 * BLOCK;
    let length = 100 * BLOCK;
    for round in 0..30 {
        let source = reading.far.memory.piece(half, length as u32);
        let write = Work::Write {
            from: Source::Pieces(&[source]),
            to: back.at(half),
            immediate: None,
        };
        let (to_near, far) = (pair.to_near, &mut pair.far);
        far.queue
            .post(to_near, &WorkRequest::new(round, write))
            .unwrap();
        // The near side aims at the blocks of the write before those of its reads.
        pair.far.poll();
        pair.near.poll();
        for part in 0..4 {
            let to = BLOCK + part * 20 * BLOCK;
            let into = [reading.near.piece(to, 20 * BLOCK as u32)];
            let read = Work::Read {
                into: &into,
                from: remote.at(to),
            };
            pair.post(WorkRequest::new(4 * round + part, read));
            reading.expect(to, to, 20 * BLOCK);
        }
        pair.until("all end", |near, far| {
            near.done.len() == 4 && far.done.len() == 1
        });
        let done = pair.near.done.drain(..).chain(pair.far.done.drain(..));
        assert!(done.into_iter().all(|done| done.outcome == Ok(0)));
        reading.expect(half, half, length);
    }
    reading.check("what was read and written");
}
