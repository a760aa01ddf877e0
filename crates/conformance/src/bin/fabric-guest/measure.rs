//! The transport beside the plainest use of the same adapters, and its methods beside each other. Emulated: only ratios
//! are meaningful. One thread drives both sides.

use std::thread;

use fabric::{
    Access, Event, GroupAddress, GroupId, Queue, QueueOptions, Registration, Remote, Source, Work,
    WorkRequest,
};
use verbs::Verb;

use crate::compare::{compare, compare_in};
use crate::faults::LONG;
use crate::raw::{self, RawEnd};
use crate::suite::{Pair, Setup, Side, join};
use crate::{messengers, requests};

type Figure = (&'static str, fn(&dyn Setup));

/// Those of these names, or all.
pub fn run(setup: &dyn Setup, names: &[&str]) {
    let all: [Figure; 10] = [
        ("looks", looks),
        ("reads", reads),
        ("pings", pings),
        ("bandwidth", bandwidth),
        ("signals", signals),
        ("inline", inline),
        ("multicast", multicast),
        ("payloads", payloads),
        ("requests", requests::measure),
        ("pulls", |_| messengers::pulls()),
    ];
    for (name, figure) in all {
        if names.is_empty() || names.contains(&name) {
            figure(setup);
        }
    }
}

struct Ends {
    pair: Pair,
    near: Registration,
    far: Registration,
}

impl Ends {
    fn new(setup: &dyn Setup, options: QueueOptions) -> Ends {
        let pair = Pair::with(setup, options, options);
        let near = pair.near.memory(raw::LENGTH, Access::ALL);
        let far = pair.far.memory(raw::LENGTH, Access::ALL);
        Ends { pair, near, far }
    }

    fn remote(&mut self) -> Remote {
        self.pair.import(&self.far).at(0)
    }

    /// Polls the near side until so many requests have ended.
    fn finish(&mut self, count: usize) {
        finish_with(count, |events| {
            self.pair.near.queue.poll(events);
        });
    }
}

/// Polls until so many requests have completed.
fn finish_with(count: usize, mut look: impl FnMut(&mut Vec<Event>)) {
    let mut events = Vec::with_capacity(count);
    while events.len() < count {
        look(&mut events);
    }
    let ended_well = |event: &Event| matches!(event, Event::Done(done) if done.outcome.is_ok());
    assert!(events.iter().all(ended_well));
}

fn finish(end: &mut RawEnd, count: u64) {
    let mut done = 0;
    while done < count {
        done += end.poll().0;
    }
}

/// Cost of a poll that finds nothing.
fn looks(setup: &dyn Setup) {
    let mut ends = Ends::new(setup, QueueOptions::default());
    let (mut near, _far) = raw::connected();
    let mut events = Vec::new();
    let mut tako = |count| {
        for _ in 0..count {
            assert_eq!(ends.pair.near.queue.poll(&mut events), 0);
        }
    };
    let mut raw = |count| {
        for _ in 0..count {
            assert_eq!(near.poll(), (0, 0));
        }
    };
    let names = ["tako", "raw"];
    let ways: [&mut dyn FnMut(u64); 2] = [&mut tako, &mut raw];
    compare("a look in vain", 20_000, names, ways);
}

fn reads(setup: &dyn Setup) {
    let mut ends = Ends::new(setup, QueueOptions::default());
    let (mut near, far) = raw::connected();
    let from = ends.remote();
    let memory = ends.near.clone();
    let mut tako = |count| {
        for id in 0..count {
            let into = [memory.piece(0, 4096)];
            let read = Work::Read { into: &into, from };
            ends.pair.post(WorkRequest::new(id, read));
            ends.finish(1);
        }
    };
    let mut raw = |count| {
        for _ in 0..count {
            let into = [near.memory.piece(0, 4096)];
            let remote = far.memory.remote(0);
            near.post(
                true,
                Verb::Read {
                    into: &into,
                    remote,
                },
            );
            finish(&mut near, 1);
        }
    };
    compare("4 KiB read", 300, ["tako", "raw"], [&mut tako, &mut raw]);
}

fn pings(setup: &dyn Setup) {
    let mut ends = Ends::new(setup, QueueOptions::default());
    let there = ends.remote();
    let pair = &mut ends.pair;
    let export = pair.near.queue.export(pair.to_far, &ends.near).unwrap();
    let back = pair.far.queue.import(pair.to_near, export).unwrap().at(0);
    let (to_far, to_near) = (pair.to_far, pair.to_near);
    let memories = [ends.near.clone(), ends.far.clone()];
    let mut events = Vec::new();
    let mut ping = |side: &mut Queue, other: &mut Queue, endpoint, memory: &Registration, to| {
        let pieces = [memory.piece(0, 8)];
        let write = Work::Write {
            from: Source::Pieces(&pieces),
            to,
            immediate: Some(1),
        };
        let request = WorkRequest::new(1, write).quiet();
        side.post(endpoint, &request).unwrap();
        side.submit();
        while other.poll(&mut events) == 0 {}
        for event in events.drain(..) {
            assert!(matches!(event, Event::Message(_)));
        }
        assert_eq!(side.poll(&mut events), 0);
    };
    let mut tako = |count| {
        for _ in 0..count {
            ping(
                &mut pair.near.queue,
                &mut pair.far.queue,
                to_far,
                &memories[0],
                there,
            );
            ping(
                &mut pair.far.queue,
                &mut pair.near.queue,
                to_near,
                &memories[1],
                back,
            );
        }
    };
    let (mut near, mut far) = raw::connected();
    for _ in 0..8 {
        near.receive();
        far.receive();
    }
    let ping = |side: &mut RawEnd, other: &mut RawEnd| {
        side.write(8, other, Some(1));
        while other.poll().1 == 0 {}
        other.receive();
        side.poll();
    };
    let mut raw = |count| {
        for _ in 0..count {
            ping(&mut near, &mut far);
            ping(&mut far, &mut near);
        }
    };
    let ways: [&mut dyn FnMut(u64); 2] = [&mut tako, &mut raw];
    compare(
        "write with immediate, there and back",
        300,
        ["tako", "raw"],
        ways,
    );
}

/// A polling thread yields the processor after each poll: the kernel's threads, which are the adapters here, have no
/// other one. A waiting thread yields it until something has completed.
fn bandwidth(setup: &dyn Setup) {
    let poll = |queue: &mut Queue, events: &mut Vec<Event>| {
        queue.poll(events);
        thread::yield_now();
    };
    let poll_raw = |end: &mut RawEnd| {
        let done = end.poll().0;
        thread::yield_now();
        done
    };
    writes(setup, "polled", poll, poll_raw);
    let wait = |queue: &mut Queue, events: &mut Vec<Event>| {
        queue.wait(events, LONG);
    };
    let wait_raw = |end: &mut RawEnd| end.wait(LONG);
    writes(setup, "waited for", wait, wait_raw);
}

fn writes(
    setup: &dyn Setup,
    how: &str,
    look: impl Fn(&mut Queue, &mut Vec<Event>),
    look_raw: impl Fn(&mut RawEnd) -> u64,
) {
    // Of two raw pairs one may be a fifth faster than the other, so there are several, each in its turns.
    const PAIRS: usize = 5;
    const ROUNDS: usize = 5 * PAIRS;
    let mut pairs: Vec<_> = (0..PAIRS)
        .map(|_| (Ends::new(setup, QueueOptions::default()), raw::connected()))
        .collect();
    let (mut ends, mut raws): (Vec<_>, Vec<_>) = pairs.drain(..).unzip();
    let mut tako = |count| {
        ends.rotate_left(1);
        let ends = &mut ends[0];
        let to = ends.remote();
        for id in 0..count {
            let pieces = [ends.near.piece(0, raw::LENGTH as u32)];
            let write = Work::Write {
                from: Source::Pieces(&pieces),
                to,
                immediate: None,
            };
            ends.pair.post(WorkRequest::new(id, write));
        }
        let queue = &mut ends.pair.near.queue;
        finish_with(count as usize, |events| look(queue, events));
    };
    let mut raw = |count| {
        raws.rotate_left(1);
        let (near, far) = &mut raws[0];
        for _ in 0..count {
            near.write(raw::LENGTH as u32, far, None);
        }
        let mut done = 0;
        while done < count {
            done += look_raw(near);
        }
    };
    let name = format!("1 MiB writes, 8 at once, {how}");
    let ways: [&mut dyn FnMut(u64); 2] = [&mut tako, &mut raw];
    compare_in(ROUNDS, &name, 8, ["tako", "raw"], ways);
}

fn signals(setup: &dyn Setup) {
    let options = |signal_every| QueueOptions {
        signal_every,
        outstanding: 128,
        ..QueueOptions::default()
    };
    let way = |signal_every| {
        let mut ends = Ends::new(setup, options(signal_every));
        let to = ends.remote();
        move |count| {
            for id in 0..count {
                let write = Work::Write {
                    from: Source::Inline(b"12345678"),
                    to,
                    immediate: None,
                };
                let request = WorkRequest::new(id, write);
                let request = if id + 1 < count {
                    request.quiet()
                } else {
                    request
                };
                while ends
                    .pair
                    .near
                    .queue
                    .post(ends.pair.to_far, &request)
                    .is_err()
                {
                    ends.pair.near.poll();
                }
            }
            ends.finish(1);
        }
    };
    let names = ["every 64th", "every"];
    compare(
        "8-byte writes, signaled",
        1000,
        names,
        [&mut way(64), &mut way(1)],
    );
}

fn inline(setup: &dyn Setup) {
    let way = |by_value: bool| {
        let mut ends = Ends::new(setup, QueueOptions::default());
        move |count| {
            let memory = ends.near.clone();
            for id in 0..count {
                let pieces = [memory.piece(0, 64)];
                let from = match by_value {
                    true => Source::Inline(&[7; 64]),
                    false => Source::Pieces(&pieces),
                };
                let immediate = None;
                let send = Work::Send { from, immediate };
                ends.pair.post(WorkRequest::new(id, send).quiet());
                ends.pair.near.queue.submit();
                while ends.pair.far.messages.is_empty() {
                    ends.pair.far.poll();
                }
                ends.pair.far.messages.clear();
            }
        }
    };
    let names = ["by value", "from memory"];
    compare(
        "64-byte messages",
        300,
        names,
        [&mut way(true), &mut way(false)],
    );
}

fn multicast(setup: &dyn Setup) {
    const GROUP: GroupId = GroupId(1);
    let mut sender = Side::new(setup, QueueOptions::default());
    let mut receivers: Vec<Side> = (0..3)
        .map(|_| Side::new(setup, QueueOptions::default()))
        .collect();
    let address = GroupAddress {
        listens: true,
        is_unchecked: false,
        address: "239.9.9.9".parse().unwrap(),
        port: 0,
        interface: setup.interface(),
    };
    let mut ids = Vec::new();
    for receiver in &mut receivers {
        receiver.queue.join(GROUP, address).unwrap();
        ids.push(join(setup, &mut sender, receiver).0);
    }
    sender.queue.join(GROUP, address).unwrap();
    let ends = std::cell::RefCell::new((sender, receivers));
    let data = Source::Inline(&[7; 200]);
    let await_all = |sender: &mut Side, receivers: &mut [Side]| {
        for receiver in receivers {
            while receiver.messages.is_empty() {
                receiver.poll();
            }
            receiver.messages.clear();
        }
        sender.poll();
    };
    let mut once = |count| {
        let (sender, receivers) = &mut *ends.borrow_mut();
        for _ in 0..count {
            sender.queue.send_to_group(GROUP, data, 1).unwrap();
            await_all(sender, receivers);
        }
    };
    let mut thrice = |count| {
        let (sender, receivers) = &mut *ends.borrow_mut();
        for _ in 0..count {
            for id in &ids {
                let send = Work::Send {
                    from: data,
                    immediate: Some(1),
                };
                sender
                    .queue
                    .post(*id, &WorkRequest::new(1, send).quiet())
                    .unwrap();
            }
            sender.queue.submit();
            await_all(sender, receivers);
        }
    };
    let names = ["one multicast", "three sends"];
    compare("200 bytes to three", 200, names, [&mut once, &mut thrice]);
}

/// Up to which size a payload should travel in its message ([`fabric::Capabilities::in_message_bytes`]).
fn payloads(setup: &dyn Setup) {
    let options = QueueOptions {
        endpoints: 1,
        message_bytes: 64 << 10,
        ..QueueOptions::default()
    };
    let way = |length: u32, in_message: bool| {
        let mut ends = Ends::new(setup, options);
        let to = ends.remote();
        move |count| {
            // All of it, the far side's memory too.
            let ends = &mut ends;
            let memory = ends.near.clone();
            for id in 0..count {
                let pieces = [memory.piece(0, length)];
                let from = Source::Pieces(&pieces);
                let immediate = Some(1);
                let operation = match in_message {
                    true => Work::Send { from, immediate },
                    false => Work::Write {
                        from,
                        to,
                        immediate,
                    },
                };
                ends.pair.post(WorkRequest::new(id, operation).quiet());
                ends.pair.near.queue.submit();
                while ends.pair.far.messages.is_empty() {
                    ends.pair.far.poll();
                }
                ends.pair.far.messages.clear();
            }
        }
    };
    for length in [64, 256, 1024, 4096, 8192, 16_384, 32_768, 65_536] {
        let (mut message, mut pushed) = (way(length, true), way(length, false));
        let ways: [&mut dyn FnMut(u64); 2] = [&mut message, &mut pushed];
        let names = ["in the message", "pushed"];
        compare(&format!("{length} bytes"), 50, names, ways);
    }
}
