//! A peer that is no transport: it sends any packets (`docs/ETHERNET.md` draws them), and nothing else.

use std::time::{Duration, Instant};

use fabric::ethernet::{FrameFaults, Shape};
use fabric::{
    Access, EndpointId, Export, Failure, Parameters, QueueOptions, Registration, Role, Work,
    WorkRequest,
};
use pmem::Region;

use super::super::raw::{Packet, RawHost};
use super::super::suite::{Random, Side};
use super::{BLOCK, BLOCKS, Placing};

/// Kinds of packets, as `docs/ETHERNET.md` numbers them.
const DATA: u8 = 6;
const PROBE: u8 = 17;
const LAST_KIND: u64 = 21;
const UNSEQUENCED: u64 = 1 << 63;
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A side with a pool, and a host that lies to it.
pub(super) struct Lied {
    pub setup: Placing,
    pub near: Side,
    pub pool: Region,
    pub liar: RawHost,
}

impl Lied {
    pub fn new(shape: Shape) -> Lied {
        Lied::over(Placing::new(shape, FrameFaults::default()), shape)
    }

    /// The same over interfaces with one queue.
    pub fn on_one_queue(shape: Shape) -> Lied {
        let setup = Placing::on_one_queue(shape, FrameFaults::default());
        Lied::over(setup, shape)
    }

    pub fn over(mut setup: Placing, shape: Shape) -> Lied {
        setup.options.authenticated = false;
        let near = Side::new(&setup, QueueOptions::default());
        let pool = setup.pools.borrow()[0].clone();
        setup.link.enter(1);
        let liar = RawHost::open(Some((setup.queues[1], shape)));
        // The side makes new sockets.
        setup.link.enter(0);
        Lied {
            setup,
            near,
            pool,
            liar,
        }
    }

    /// An endpoint to the liar, and what it says of itself.
    pub fn join(&mut self) -> (EndpointId, Parameters) {
        let (to_liar, greeting) = self.near.queue.offer().unwrap();
        let peer = self.liar.peer(&greeting);
        self.near.queue.accept(to_liar, Role::Dialer, peer).unwrap();
        (to_liar, greeting)
    }

    pub fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Side, &mut RawHost) -> bool) {
        let start = Instant::now();
        while !is_so(&mut self.near, &mut self.liar) {
            self.near.poll();
            assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        }
    }

    /// The pool outside of a range is as it was.
    pub fn check(&self, model: &[u8], within: std::ops::Range<u64>) {
        let mut found = vec![0; model.len()];
        self.pool.read(0, &mut found);
        let wrong =
            (0..model.len()).find(|&at| found[at] != model[at] && !within.contains(&(at as u64)));
        assert_eq!(wrong, None);
    }
}

/// If the read ended with it, frames could land in its memory when that is used for something else.
#[test]
fn data_in_packets_for_a_read_that_is_aimed_at_is_a_violation() {
    let mut lied = Lied::new(Shape::Strip);
    let memory = lied.near.device.register(&lied.pool, Access::ALL).unwrap();
    let (to_liar, greeting) = lied.join();
    let export = Export {
        descriptor: memory.descriptor(),
        memory: None,
    };
    let remote = lied.near.queue.import(to_liar, export).unwrap();
    let into = [memory.piece(BLOCK, BLOCK as u32)];
    let read = Work::Read {
        into: &into,
        from: remote.at(BLOCK),
    };
    let request = WorkRequest::new(1, read);
    lied.near.queue.post(to_liar, &request).unwrap();
    lied.near.queue.submit();
    // Of the first request, from its beginning.
    let lie = Packet {
        kind: DATA,
        flags: 0,
        sequence: 0,
        body: &[&[0; 12], &[7; 1000][..]].concat(),
    };
    lied.liar.tell(&greeting, lie);
    lied.until("the end", |near, _| !near.lost.is_empty());
    assert_eq!(lied.near.lost, [(to_liar, Failure::Violation)]);
}

/// A body of random fields, some of which are valid.
fn random_body(random: &mut Random, memory: &Registration) -> Vec<u8> {
    let some = |random: &mut Random| {
        let key = memory.descriptor().key.0;
        let length = memory.descriptor().length;
        let all = [
            0,
            1,
            8,
            BLOCK,
            length - BLOCK,
            length,
            key,
            u64::MAX,
            1 << 31,
        ];
        match random.below(4) {
            0 => random.draw(),
            _ => all[random.below(all.len() as u64) as usize],
        }
    };
    let mut body = Vec::new();
    // Request, key and offset; often right.
    match random.below(2) {
        0 => (0..3).for_each(|_| body.extend(some(random).to_le_bytes())),
        _ => {
            let blocks = memory.descriptor().length / BLOCK;
            let offset = random.below(blocks + 1) * BLOCK;
            let words = [some(random), memory.descriptor().key.0, offset];
            words
                .iter()
                .for_each(|word| body.extend(word.to_le_bytes()));
        }
    }
    let total = [0, 8, 4096, 8192, 1 << 20, u32::MAX][random.below(6) as usize];
    body.extend(total.to_le_bytes());
    body.extend((some(random) as u32).to_le_bytes());
    let data = random.below(1300) as usize;
    body.extend(random.bytes(data));
    body.truncate(random.below(body.len() as u64 + 1) as usize);
    body
}

/// Each lie has an endpoint of its own, since most of them end it.
#[test]
fn random_packets_of_a_peer_change_no_memory_but_what_was_exported() {
    let mut lied = Lied::new(Shape::Strip);
    let mut random = Random(31);
    let model = random.bytes((BLOCKS * BLOCK) as usize);
    lied.pool.write(0, &model);
    let part = 100 * BLOCK..200 * BLOCK;
    let device = lied.near.device.clone();
    let memory = device.register_part(&lied.pool, part.clone(), Access::ALL);
    let memory = memory.unwrap();
    let (mut lost, mut kept) = (0, 0);
    for round in 0..1500 {
        let (to_liar, greeting) = lied.join();
        lied.liar.receive();
        for sequence in 0..1 + random.below(4) {
            let kind = 1 + random.below(LAST_KIND) as u8;
            let lie = Packet {
                kind,
                flags: random.below(8) as u8,
                sequence: if kind < 16 {
                    sequence
                } else {
                    UNSEQUENCED | (1 + sequence)
                },
                body: &random_body(&mut random, &memory),
            };
            lied.liar.tell(&greeting, lie);
            let number = random.below(6) as u32;
            let bytes = if number % 3 == 2 { 1104 } else { 1496 };
            let frame = lied.liar.data(&greeting, number, &random.bytes(bytes));
            lied.liar.send_data(&frame);
        }
        let probe = Packet {
            kind: PROBE,
            flags: 0,
            sequence: UNSEQUENCED | 100,
            body: &[],
        };
        lied.liar.tell(&greeting, probe);
        lied.near.lost.clear();
        lied.until("an answer, or the end", |near, liar| {
            !near.lost.is_empty() || !liar.receive().is_empty()
        });
        match lied.near.lost.is_empty() {
            true => kept += 1,
            false => lost += 1,
        }
        lied.near.messages.clear();
        lied.near.queue.close(to_liar);
        if round % 100 == 0 {
            lied.check(&model, part.clone());
        }
    }
    lied.check(&model, part);
    assert!(lost > 100 && kept > 100, "{lost} lost, {kept} kept");
}
