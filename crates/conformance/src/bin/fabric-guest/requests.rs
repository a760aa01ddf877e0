//! Ways of a short request and its answer (O3), over one endpoint, with one thread on both sides.

use std::hint::black_box;

use fabric::{
    Access, EndpointId, Event, QueueOptions, Registration, RemoteRegion, Source, Work, WorkRequest,
};

use crate::compare::compare;
use crate::suite::{Pair, Setup, Side};

/// Bytes of a request and of its answer: those of a lookup.
const BYTES: usize = 192;
/// Slots of a connection, and bytes of each. The last word of the data is the number of the request.
const SLOTS: u64 = 16;
const SLOT: u64 = 256;
const COUNT: u64 = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Message,
    /// A write with 32 bits that name connection and slot.
    Announced,
    /// A write to a slot that the receiver polls.
    Polled,
}

/// All ways, beside messages.
pub fn measure(setup: &dyn Setup) {
    let others = [
        ("announced by its write", Way::Announced),
        ("in a polled slot", Way::Polled),
    ];
    for (name, other) in others {
        let (mut messages, mut others) =
            (Calls::new(setup, Way::Message), Calls::new(setup, other));
        let ways: [&mut dyn FnMut(u64); 2] = [&mut |count| others.run(count), &mut |count| {
            messages.run(count)
        }];
        let names = [name, "in messages"];
        compare("192 bytes and their answer", COUNT, names, ways);
    }
}

/// What one side has for the other one's writes, and what it knows of the other side's.
struct Slots {
    own: Registration,
    peer: RemoteRegion,
}

struct Calls {
    way: Way,
    pair: Pair,
    near: Slots,
    far: Slots,
    /// Number of the last request.
    number: u64,
}

impl Calls {
    fn new(setup: &dyn Setup, way: Way) -> Calls {
        let mut pair = Pair::with(setup, QueueOptions::default(), QueueOptions::default());
        let near = pair.near.memory(SLOTS * SLOT, Access::WRITE);
        let far = pair.far.memory(SLOTS * SLOT, Access::WRITE);
        let far_for_near = pair.import(&far);
        let export = pair.near.queue.export(pair.to_far, &near).unwrap();
        let near_for_far = pair.far.queue.import(pair.to_near, export).unwrap();
        Calls {
            way,
            pair,
            near: Slots {
                own: near,
                peer: far_for_near,
            },
            far: Slots {
                own: far,
                peer: near_for_far,
            },
            number: 0,
        }
    }

    fn run(&mut self, count: u64) {
        let Pair {
            near,
            far,
            to_far,
            to_near,
        } = &mut self.pair;
        for _ in 0..count {
            self.number += 1;
            let (way, number) = (self.way, self.number);
            self.near.send(way, number, near, *to_far);
            self.far.receive(way, number, far);
            self.far.send(way, number, far, *to_near);
            self.near.receive(way, number, near);
            // Their own completions.
            near.poll();
            far.poll();
        }
    }
}

impl Slots {
    fn send(&self, way: Way, number: u64, side: &mut Side, to: EndpointId) {
        let mut bytes = [number as u8; BYTES];
        bytes[BYTES - 8..].copy_from_slice(&number.to_ne_bytes());
        let (from, slot) = (Source::Inline(&bytes), number % SLOTS);
        let write = |immediate| Work::Write {
            from,
            to: self.peer.at(slot * SLOT),
            immediate,
        };
        let operation = match way {
            Way::Message => Work::Send {
                from,
                immediate: None,
            },
            Way::Announced => write(Some(1 << 16 | slot as u32)),
            Way::Polled => write(None),
        };
        let request = WorkRequest::new(number, operation).quiet();
        side.queue.post(to, &request).unwrap();
        side.queue.submit();
    }

    /// Waits for a request or an answer, and copies it.
    fn receive(&self, way: Way, number: u64, side: &mut Side) {
        let mut bytes = [0; BYTES];
        let (region, at) = (self.own.region(), number % SLOTS * SLOT);
        if way == Way::Polled {
            while region.load(at + BYTES as u64 - 8) != number {
                std::hint::spin_loop();
            }
            region.read(at, &mut bytes);
        } else {
            let mut events = Vec::with_capacity(1);
            while side.queue.poll(&mut events) == 0 {}
            for event in events {
                match (event, way) {
                    (Event::Message(message), Way::Message) => message.read(0, &mut bytes),
                    (Event::Message(message), _) => {
                        let slot = u64::from(message.immediate.unwrap() & 0xffff);
                        region.read(slot * SLOT, &mut bytes);
                    }
                    (event, _) => panic!("{event:?}"),
                }
            }
        }
        assert_eq!(bytes[BYTES - 8..], number.to_ne_bytes());
        black_box(&bytes);
    }
}
