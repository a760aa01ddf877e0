//! Writes over Ethernet with blocks that are received in place.

mod forged;
mod liar;
mod one_queue;
mod reads;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use fabric::ethernet::{Ethernet, EthernetOptions, FrameFaults, PlacedPool, Shape};
use fabric::{
    Access, Device, Failure, Queue, QueueOptions, Registration, Source, Work, WorkRequest,
};
use pmem::Region;

use super::link::{INTERFACE, Link, options};
use super::suite::{Pair, Random, Setup};

const BLOCK: u64 = 4096;
/// Blocks of a pool that can be written to.
const BLOCKS: u64 = 600;

/// Two hosts with a pool each.
struct Placing {
    link: Link,
    options: EthernetOptions,
    /// By which data leaves and comes, of each host.
    queues: [u32; 2],
    devices: RefCell<Vec<Arc<Ethernet>>>,
    pools: RefCell<Vec<Region>>,
    next: Cell<usize>,
}

impl Placing {
    fn new(shape: Shape, faults: FrameFaults) -> Placing {
        let link = Link::pair();
        if shape == Shape::Jumbo {
            for host in 0..2 {
                link.ip(host, &format!("link set {INTERFACE} mtu 9000"));
            }
        }
        Placing {
            link,
            options: EthernetOptions {
                faults,
                shape,
                transports: 2,
                ..options()
            },
            queues: [1, 1],
            devices: RefCell::default(),
            pools: RefCell::default(),
            next: Cell::new(0),
        }
    }

    /// The same over interfaces with one queue, by which everything comes.
    fn on_one_queue(shape: Shape, faults: FrameFaults) -> Placing {
        let placing = Placing::new(shape, faults);
        Placing {
            link: Link::cable(1),
            queues: [0, 0],
            options: EthernetOptions {
                receive_frames: 2048,
                ..placing.options.clone()
            },
            ..placing
        }
    }

    /// Runs of blocks that the far side has received where they belong.
    fn placed(&self) -> u64 {
        self.devices.borrow()[1].counters().placed
    }
}

impl Setup for Placing {
    fn device(&self) -> Arc<dyn Device> {
        let host = self.next.replace(self.next.get() + 1);
        let bytes = BLOCKS * BLOCK + self.options.frame_memory();
        let pool = Region::memory(bytes, false).unwrap();
        let options = EthernetOptions {
            pool: Some(PlacedPool {
                region: pool.clone(),
                queue: self.queues[host],
                read_bytes: 0,
            }),
            ..self.options.clone()
        };
        self.link.enter(host);
        let device = Arc::new(Ethernet::open(options).unwrap());
        self.pools.borrow_mut().push(pool);
        self.devices.borrow_mut().push(device.clone());
        device
    }
}

/// The far side's pool, registered, and its image as it should be.
struct Target {
    memory: Registration,
    model: Vec<u8>,
}

impl Target {
    fn new(pair: &Pair, setup: &Placing, random: &mut Random) -> Target {
        let pool = setup.pools.borrow()[1].clone();
        let model = random.bytes((BLOCKS * BLOCK) as usize);
        pool.write(0, &model);
        Target {
            memory: pair.far.device.register(&pool, Access::ALL).unwrap(),
            model,
        }
    }

    fn check(&self, what: &str) {
        let mut found = vec![0; self.model.len()];
        self.memory.region().read(0, &mut found);
        let wrong = (0..found.len()).find(|&at| found[at] != self.model[at]);
        assert_eq!(wrong, None, "{what}");
    }
}

fn writes(setup: &Placing, rounds: u64) {
    let mut pair = Pair::new(setup);
    let mut random = Random(11);
    let mut target = Target::new(&pair, setup, &mut random);
    let remote = pair.import(&target.memory);
    let near = pair.near.memory(BLOCKS * BLOCK, Access::LOCAL);
    for round in 0..rounds {
        let blocks = 1 + random.below(if round % 4 == 0 { 500 } else { 20 });
        let first = 1 + random.below(BLOCKS - blocks);
        // Some do not end with a block.
        let more = if round % 3 == 0 {
            random.below(BLOCK)
        } else {
            0
        };
        let start = first * BLOCK;
        let length = (blocks * BLOCK + more).min(BLOCKS * BLOCK - start);
        let bytes = random.bytes(length as usize);
        near.region().write(8, &bytes);
        let pieces = [near.piece(8, 1000), near.piece(1008, length as u32 - 1000)];
        let write = Work::Write {
            from: Source::Pieces(&pieces),
            to: remote.at(start),
            immediate: (round % 2 == 0).then_some(round as u32),
        };
        assert_eq!(pair.carry_out(round, write), Ok(0));
        target.model[start as usize..][..length as usize].copy_from_slice(&bytes);
        target.check(&format!("round {round}: {length} bytes at {start}"));
        if round % 2 == 0 {
            pair.await_messages(1);
            let message = pair.far.messages.pop().unwrap();
            assert_eq!(message.immediate, Some(round as u32));
        }
    }
    assert!(setup.placed() >= rounds);
}

#[test]
fn stripped_blocks_land_where_they_belong_and_nothing_else_changes() {
    writes(&Placing::new(Shape::Strip, FrameFaults::default()), 40);
}

#[test]
fn overlaid_blocks_land_where_they_belong_and_what_headers_cover_is_restored() {
    writes(&Placing::new(Shape::Overlay, FrameFaults::default()), 40);
}

#[test]
fn jumbo_frames_land_in_two_chunks_where_they_belong_and_nothing_else_changes() {
    writes(&Placing::new(Shape::Jumbo, FrameFaults::default()), 40);
}

#[test]
fn lost_doubled_reordered_and_damaged_frames_misplace_nothing() {
    for shape in [Shape::Strip, Shape::Overlay, Shape::Jumbo] {
        let faults = FrameFaults {
            loss_permille: 5,
            duplication_permille: 10,
            reorder_permille: 5,
            corruption_permille: 1,
            seed: 5,
        };
        writes(&Placing::new(shape, faults), 30);
    }
}

/// The lane is another endpoint's: the write goes by packets instead.
#[test]
fn two_writers_share_one_lane() {
    let setup = Placing::new(Shape::Strip, FrameFaults::default());
    let mut pair = Pair::new(&setup);
    let mut random = Random(12);
    let mut target = Target::new(&pair, &setup, &mut random);
    let first = pair.import(&target.memory);
    let (other_far, other_near) = super::suite::join(&setup, &mut pair.near, &mut pair.far);
    let export = pair.far.queue.export(other_near, &target.memory).unwrap();
    let second = pair.near.queue.import(other_far, export).unwrap();
    let near = pair.near.memory(BLOCKS * BLOCK, Access::LOCAL);
    let bytes = random.bytes(500 * BLOCK as usize);
    near.region().write(0, &bytes);
    let half = 250 * BLOCK;
    for round in 0..20 {
        let pieces = [near.piece(0, half as u32)];
        let other = [near.piece(half, half as u32)];
        let write = |pieces, to| Work::Write {
            from: Source::Pieces(pieces),
            to,
            immediate: None,
        };
        let (one, two) = (
            write(&pieces, first.at(BLOCK)),
            write(&other, second.at(BLOCK + half)),
        );
        let (to_far, queue) = (pair.to_far, &mut pair.near.queue);
        queue.post(to_far, &WorkRequest::new(round, one)).unwrap();
        queue
            .post(other_far, &WorkRequest::new(round, two))
            .unwrap();
        pair.until("both ends", |near, _| near.done.len() == 2);
        assert!(pair.near.done.drain(..).all(|done| done.outcome == Ok(0)));
    }
    target.model[BLOCK as usize..][..bytes.len()].copy_from_slice(&bytes);
    target.check("both halves");
}

/// Frames of the transport lie behind the pool: no peer reaches them, whatever its key.
#[test]
fn the_memory_for_frames_is_out_of_reach() {
    let setup = Placing::new(Shape::Strip, FrameFaults::default());
    let mut pair = Pair::new(&setup);
    let target = Target::new(&pair, &setup, &mut Random(13));
    let remote = pair.import(&target.memory);
    let write = Work::Write {
        from: Source::Inline(b"forged"),
        to: remote.at(BLOCKS * BLOCK),
        immediate: None,
    };
    assert_eq!(pair.carry_out(1, write), Err(Failure::Access));
}

/// The key goes while blocks are aimed at.
#[test]
fn a_withdrawn_key_ends_what_is_aimed() {
    withdraw_while_aimed(&Placing::new(Shape::Overlay, FrameFaults::default()));
}

#[test]
fn a_withdrawn_key_ends_what_is_aimed_on_one_queue() {
    for shape in [Shape::Overlay, Shape::Strip] {
        withdraw_while_aimed(&Placing::on_one_queue(shape, FrameFaults::default()));
    }
}

fn withdraw_while_aimed(setup: &Placing) {
    let mut pair = Pair::new(setup);
    let mut random = Random(14);
    let target = Target::new(&pair, setup, &mut random);
    let remote = pair.import(&target.memory);
    let near = pair.near.memory(BLOCKS * BLOCK, Access::LOCAL);
    let pieces = [near.piece(0, 256 * BLOCK as u32)];
    let write = Work::Write {
        from: Source::Pieces(&pieces),
        to: remote.at(10 * BLOCK),
        immediate: None,
    };
    pair.post(WorkRequest::new(1, write));
    pair.near.queue.submit();
    // It aims at the blocks.
    pair.far.poll();
    assert!(pair.far.device.revoke(&target.memory).is_some());
    let to_far = pair.to_far;
    pair.until("the refusal", |near, _| near.outcome(to_far, 1).is_some());
    assert_eq!(pair.near.outcome(to_far, 1), Some(Err(Failure::Access)));
    target.check("nothing has landed");
}

/// A thread ends while blocks are aimed at for it: another one can aim afterwards.
#[test]
fn a_thread_that_ends_leaves_nothing_aimed() {
    for setup in [
        Placing::new(Shape::Overlay, FrameFaults::default()),
        Placing::on_one_queue(Shape::Overlay, FrameFaults::default()),
    ] {
        let mut pair = Pair::new(&setup);
        let mut random = Random(17);
        let mut target = Target::new(&pair, &setup, &mut random);
        let remote = pair.import(&target.memory);
        let near = pair.near.memory(BLOCKS * BLOCK, Access::LOCAL);
        let bytes = random.bytes(256 * BLOCK as usize);
        near.region().write(0, &bytes);
        let pieces = [near.piece(0, bytes.len() as u32)];
        let write = |to| Work::Write {
            from: Source::Pieces(&pieces),
            to,
            immediate: None,
        };
        pair.post(WorkRequest::new(1, write(remote.at(10 * BLOCK))));
        pair.near.queue.submit();
        pair.far.poll();
        setup.link.enter(1);
        let device = &*pair.far.device;
        let far = Queue::over(device, device.open().unwrap(), QueueOptions::default()).unwrap();
        drop(std::mem::replace(&mut pair.far.queue, far));
        target.check("nothing has landed");
        pair.join_again(&setup);
        let remote = pair.import(&target.memory);
        let write = write(remote.at(300 * BLOCK));
        // The kernel frees a queue a little later: until then data comes in packets.
        let is_placed = (2..200).any(|round| {
            assert_eq!(pair.carry_out(round, write), Ok(0));
            setup.placed() == 1
        });
        assert!(is_placed);
        target.model[300 * BLOCK as usize..][..bytes.len()].copy_from_slice(&bytes);
        target.check("the second write");
    }
}

/// Two peers have a key of the same pool each.
#[test]
fn keys_of_a_pool_are_withdrawn_one_by_one() {
    withdraw_one_by_one(&Placing::new(Shape::Strip, FrameFaults::default()));
}

#[test]
fn keys_of_a_pool_are_withdrawn_one_by_one_on_one_queue() {
    for shape in [Shape::Overlay, Shape::Strip] {
        withdraw_one_by_one(&Placing::on_one_queue(shape, FrameFaults::default()));
    }
}

fn withdraw_one_by_one(setup: &Placing) {
    let mut pair = Pair::new(setup);
    let mut random = Random(16);
    let mut target = Target::new(&pair, setup, &mut random);
    let pool = target.memory.region().clone();
    let other = pair.far.device.register(&pool, Access::ALL).unwrap();
    let kept = pair.import(&target.memory);
    let (other_far, other_near) = super::suite::join(setup, &mut pair.near, &mut pair.far);
    let export = pair.far.queue.export(other_near, &other).unwrap();
    let withdrawn = pair.near.queue.import(other_far, export).unwrap();
    let near = pair.near.memory(BLOCKS * BLOCK, Access::LOCAL);
    let bytes = random.bytes(256 * BLOCK as usize);
    near.region().write(0, &bytes);
    let pieces = [near.piece(0, bytes.len() as u32)];
    let write = |to| Work::Write {
        from: Source::Pieces(&pieces),
        to,
        immediate: None,
    };
    let to_far = pair.to_far;
    for round in 0..3 {
        pair.post(WorkRequest::new(round, write(kept.at(10 * BLOCK))));
        pair.near.queue.submit();
        // It aims at the blocks by the first key.
        pair.far.poll();
        assert!(pair.far.device.revoke(&other).is_some());
        if round == 0 {
            let refused = WorkRequest::new(9, write(withdrawn.at(300 * BLOCK)));
            pair.near.queue.post(other_far, &refused).unwrap();
        }
        pair.until("the end", |near, _| near.outcome(to_far, round).is_some());
        assert_eq!(pair.near.outcome(to_far, round), Some(Ok(0)));
    }
    pair.until("the refusal", |near, _| {
        near.outcome(other_far, 9).is_some()
    });
    assert_eq!(pair.near.outcome(other_far, 9), Some(Err(Failure::Access)));
    assert!(setup.placed() >= 3);
    target.model[10 * BLOCK as usize..][..bytes.len()].copy_from_slice(&bytes);
    target.check("by the first key only");
}

/// The adapter delivers data by another queue than that which waits for it.
#[test]
fn an_endpoint_without_its_data_is_lost() {
    let mut setup = Placing::new(Shape::Strip, FrameFaults::default());
    setup.queues = [2, 1];
    setup.options.lost_after = std::time::Duration::from_secs(1);
    let mut pair = Pair::new(&setup);
    let target = Target::new(&pair, &setup, &mut Random(15));
    let remote = pair.import(&target.memory);
    let near = pair.near.memory(BLOCKS * BLOCK, Access::LOCAL);
    let pieces = [near.piece(0, 4 * BLOCK as u32)];
    let write = Work::Write {
        from: Source::Pieces(&pieces),
        to: remote.at(10 * BLOCK),
        immediate: None,
    };
    assert_eq!(pair.carry_out(1, write), Err(Failure::Flushed));
    target.check("nothing has landed");
}
