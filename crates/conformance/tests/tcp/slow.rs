//! Peers that do not poll, and keys that are withdrawn while their memory is read.

use std::time::Instant;

use fabric::{Access, Device, Event, Failure, QueueOptions, Source, Work, WorkRequest};
use pmem::Region;

use super::{exchange, hasty, join, open, open_with, until};

const LARGE: u64 = 64 << 20;

#[test]
fn a_key_withdrawn_while_its_memory_is_read_ends_the_read() {
    let (near_device, mut near) = open();
    let (far_device, mut far) = open();
    let (to_far, to_near) = join(&mut near, &mut far);
    exchange(&mut near, to_far, &mut far);
    let region = Region::memory(LARGE, false).unwrap();
    let secret = far_device.register(&region, Access::READ).unwrap();
    let own = Region::memory(LARGE, false).unwrap();
    let own = near_device.register(&own, Access::LOCAL).unwrap();
    let export = far.export(to_near, &secret).unwrap();
    let remote = near.import(to_far, export).unwrap();
    let into = [own.piece(0, LARGE as u32)];
    let read = Work::Read {
        into: &into,
        from: remote.at(0),
    };
    near.post(to_far, &WorkRequest::new(7, read)).unwrap();
    near.submit();
    let mut events = Vec::new();
    // The connection takes some of it, by far not all.
    let start = Instant::now();
    while own.region().load(0) == 0 {
        region.store(0, 1);
        far.poll(&mut events);
        near.poll(&mut events);
        assert!(start.elapsed() < super::PATIENCE && events.is_empty());
    }
    assert!(far_device.revoke(&secret).is_some());
    // Later stores must never be seen.
    for at in (0..LARGE).step_by(4096) {
        region.store(at + 8, u64::MAX);
    }
    let mut told = Vec::new();
    until(
        "the end of both",
        &mut [&mut near, &mut far],
        |side, event| {
            told.push(match event {
                Event::Done(done) => (side, Some(done.outcome), None),
                Event::Lost(_, failure) => (side, None, Some(failure)),
                Event::Message(message) => panic!("{message:?}"),
            });
            told.len() == 3
        },
    );
    told.sort_by_key(|(side, ..)| *side);
    assert_eq!(told[0], (0, Some(Err(Failure::Access)), None));
    assert_eq!(told[1], (0, None, Some(Failure::Access)));
    assert_eq!(told[2], (1, None, Some(Failure::Violation)));
    for at in (0..LARGE).step_by(4096) {
        assert_eq!(own.region().load(at + 8), 0, "offset {at}");
    }
    assert_eq!(far_device.counters().refused, 1);
}

#[test]
fn a_peer_that_does_not_poll_delays_no_other_and_is_lost() {
    let layout = QueueOptions {
        endpoints: 2,
        ..QueueOptions::default()
    };
    let (device, mut near) = open_with(hasty(), layout);
    let (stuck_device, mut stuck) = open();
    let (_far_device, mut far) = open();
    let (to_stuck, from_stuck) = join(&mut near, &mut stuck);
    exchange(&mut near, to_stuck, &mut stuck);
    let (to_far, _) = join(&mut near, &mut far);
    exchange(&mut near, to_far, &mut far);
    let region = Region::memory(4 << 20, false).unwrap();
    let memory = stuck_device.register(&region, Access::ALL).unwrap();
    let export = stuck.export(from_stuck, &memory).unwrap();
    let remote = near.import(to_stuck, export).unwrap();
    let own = device.register(&region, Access::LOCAL).unwrap();
    let pieces = [own.piece(0, 4 << 20)];
    // The greatest outstanding amount: more than any socket takes.
    let mut posted = 0;
    let write = Work::Write {
        from: Source::Pieces(&pieces),
        to: remote.at(0),
        immediate: None,
    };
    while near
        .post(to_stuck, &WorkRequest::new(posted, write))
        .is_ok()
    {
        posted += 1;
    }
    assert_eq!(posted, u64::from(QueueOptions::default().outstanding));
    near.submit();
    let start = Instant::now();
    let mut flushed = 0;
    let mut is_lost = false;
    while !is_lost {
        assert!(
            start.elapsed() < super::PATIENCE,
            "the peer that is stuck is not lost"
        );
        // It works all the time.
        near.post(to_far, &super::message(1, b"and now?")).unwrap();
        let mut rest = 2;
        until("an echo", &mut [&mut near, &mut far], |side, event| {
            match event {
                Event::Message(_) => rest -= 1,
                Event::Done(done) if done.endpoint == to_far && side == 0 => rest -= 1,
                Event::Done(done) => {
                    assert_eq!(done.outcome, Err(Failure::Flushed));
                    flushed += 1;
                }
                Event::Lost(id, failure) => {
                    assert_eq!((id, failure), (to_stuck, Failure::PeerLost));
                    is_lost = true;
                }
            }
            rest == 0
        });
    }
    assert_eq!(flushed, posted);
}
