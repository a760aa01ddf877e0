//! Three ways of a short request and its answer (O3): in messages, written to a slot that the write itself announces, and
//! written to a slot that the receiver polls. And what completions cost (M4).

use std::time::Instant;

use fabric::{
    Access, Provider, QueueOptions, Registration, RemoteRegion, Source, Work, WorkRequest,
};

use super::{End, Ends, Placement, device, memory, with_far};
use crate::Error;
use crate::harness::{Side, interleave};
use crate::report::{Quantity, Row};
use crate::setup::Bench;

/// Bytes of a request and of its answer: those of a lookup.
const BYTES: u32 = 192;
/// Slots of a connection.
const SLOTS: u64 = 16;
/// Bytes of a slot: its data, and behind it the number of the request, which comes last.
const SLOT: u64 = 256;
/// Round trips in a round.
const COUNT: u64 = 200;
/// Sends in a round of those that are not reported.
const SENDS: u64 = 4096;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Message,
    /// A write with 32 bits that name connection and slot.
    Announced,
    Polled,
}

pub fn measure(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for provider in super::with_ways() {
        let slots = std::cell::RefCell::new(Slots::new(provider)?);
        let side = |way| -> Side<'_> {
            let slots = &slots;
            Box::new(move || Ok(vec![slots.borrow_mut().round(way)? / COUNT as f64]))
        };
        let sides = vec![side(Way::Message), side(Way::Announced), side(Way::Polled)];
        let measured = interleave(bench.scale.rounds, sides)?;
        for (side, what) in [(1, "announced by its write"), (2, "in a polled slot")] {
            let title = format!("{name}, {provider}: {BYTES} B {what}");
            let row = Row::new(&title, Quantity::ns(measured.median(side, 0)));
            let limit = Quantity::ns(measured.median(0, 0));
            let ratio = measured.ratio((0, 0), (side, 0));
            rows.push(row.beside("in messages", limit, ratio, None));
        }
        rows.push(completions(bench, provider)?);
    }
    Ok(rows)
}

/// One side: its slots, which the peer writes, and the peer's.
struct Party {
    own: Registration,
    peer: RemoteRegion,
}

struct Slots {
    ends: Ends,
    near: Party,
    far: Party,
    /// Number of the last request.
    number: u64,
}

impl Slots {
    fn new(provider: Provider) -> Result<Slots, Error> {
        let device = device(provider)?;
        let mut ends = Ends::new(&*device, super::options(true))?;
        let near = memory(&*device, SLOTS * SLOT, Access::WRITE)?;
        let far = memory(&*device, SLOTS * SLOT, Access::WRITE)?;
        let far_for_near = ends.import(&far)?;
        let export = ends.near.queue.export(ends.to_far, &near)?;
        let near_for_far = ends.far.queue.import(ends.to_near, export)?;
        Ok(Slots {
            ends,
            near: Party {
                own: near,
                peer: far_for_near,
            },
            far: Party {
                own: far,
                peer: near_for_far,
            },
            number: 0,
        })
    }

    /// Time of the round trips in ns.
    fn round(&mut self, way: Way) -> Result<f64, Error> {
        let first = self.number + 1;
        self.number += COUNT;
        let numbers = first..=self.number;
        let Slots {
            ends, near, far, ..
        } = self;
        let (to_far, to_near) = (ends.to_far, ends.to_near);
        let (near_end, far_end) = (&mut ends.near, &mut ends.far);
        let serve = {
            let numbers = numbers.clone();
            move || {
                for number in numbers {
                    far.receive(way, number, far_end)?;
                    far.send(way, number, far_end, to_near)?;
                }
                Ok(())
            }
        };
        with_far(Placement::Apart, serve, || {
            let start = Instant::now();
            for number in numbers {
                near.send(way, number, near_end, to_far)?;
                near.receive(way, number, near_end)?;
            }
            Ok(start.elapsed().as_nanos() as f64)
        })
    }
}

impl Party {
    fn send(
        &self,
        way: Way,
        number: u64,
        end: &mut End,
        to: fabric::EndpointId,
    ) -> Result<(), Error> {
        let mut bytes = [number as u8; BYTES as usize];
        bytes[BYTES as usize - 8..].copy_from_slice(&number.to_ne_bytes());
        let from = Source::Inline(&bytes);
        let slot = number % SLOTS;
        let to_slot = self.peer.at(slot * SLOT);
        let operation = match way {
            Way::Message => Work::Send {
                from,
                immediate: None,
            },
            Way::Announced => Work::Write {
                from,
                to: to_slot,
                immediate: Some(1 << 16 | slot as u32),
            },
            Way::Polled => Work::Write {
                from,
                to: to_slot,
                immediate: None,
            },
        };
        end.post(to, &WorkRequest::new(number, operation).quiet())?;
        end.queue.submit();
        Ok(())
    }

    /// Waits for a request or an answer, and copies it.
    fn receive(&self, way: Way, number: u64, end: &mut End) -> Result<(), Error> {
        let mut bytes = [0; BYTES as usize];
        let offset = number % SLOTS * SLOT;
        let region = self.own.region();
        match way {
            Way::Message => return end.take_message(&mut bytes),
            Way::Announced => while end.count_waiting()?.1 == 0 {},
            Way::Polled => {
                while region.load(offset + u64::from(BYTES) - 8) != number {
                    // Over tcp this thread executes the peer's writes.
                    end.count()?;
                }
            }
        }
        region.read(offset, &mut bytes);
        std::hint::black_box(&bytes);
        Ok(())
    }
}

impl End {
    /// Waits for a message, and copies it.
    fn take_message(&mut self, into: &mut [u8]) -> Result<(), Error> {
        loop {
            self.queue.wait(&mut self.events, super::PATIENCE);
            for event in &self.events {
                if let fabric::Event::Message(message) = event {
                    message.read(0, into);
                    std::hint::black_box(&into);
                }
            }
            if self.sort()?.1 > 0 {
                return Ok(());
            }
        }
    }
}

/// Completions of sends that report none, beside a completion for each.
fn completions(bench: &Bench, provider: Provider) -> Result<Row, Error> {
    let device = device(provider)?;
    let options = |signal_every| QueueOptions {
        signal_every,
        ..super::options(true)
    };
    let (mut few, mut each) = (
        Ends::new(&*device, options(QueueOptions::default().signal_every))?,
        Ends::new(&*device, options(1))?,
    );
    let before = few.near.queue.counters();
    let sides: Vec<Side<'_>> = vec![
        Box::new(|| Ok(vec![sends(&mut few)?])),
        Box::new(|| Ok(vec![sends(&mut each)?])),
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    let after = few.near.queue.counters();
    let signaled = (after.signaled - before.signaled) as f64;
    let share = signaled / (after.posted - before.posted) as f64;
    let title = format!("{provider} sends without notification: {share:.3} completions each");
    Ok(measured.row(0, &title, "1 completion each", None))
}

/// Time of a send in ns.
fn sends(ends: &mut Ends) -> Result<f64, Error> {
    let (near, far, to_far) = (&mut ends.near, &mut ends.far, ends.to_far);
    let receive = || {
        let mut received = 0;
        while received < SENDS {
            received += far.count()?.1;
        }
        Ok(())
    };
    let note = Work::Send {
        from: Source::Inline(&[7; 56]),
        immediate: None,
    };
    let start = Instant::now();
    with_far(Placement::Apart, receive, || {
        for number in 0..SENDS {
            near.post(to_far, &WorkRequest::new(number, note).quiet())?;
            near.queue.submit();
        }
        Ok(())
    })?;
    near.count()?;
    Ok(start.elapsed().as_nanos() as f64 / SENDS as f64)
}
