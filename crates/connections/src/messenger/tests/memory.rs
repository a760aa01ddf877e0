//! Transfers into and out of memory that a peer exports.

use pmem::Region;

use super::*;
use fabric::Access;

const START: u64 = 8192;
const LENGTH: u64 = 4 << 20;
const MARK: u64 = 9;
const NAME: u64 = 77;

/// The far messenger's region, of which a part is exported to the near one.
fn export(pair: &mut Pair, access: Access) -> (Region, fabric::Registration) {
    let region = Region::memory(START + LENGTH, false).unwrap();
    let part = START..START + LENGTH;
    let registered = pair
        .far
        .register(pair.to_near, (&region, part), access, MARK);
    let registered = registered.unwrap();
    let exported = pair.far.export(pair.to_near, NAME, &registered);
    exported.unwrap().unwrap();
    let event = next(pair);
    let name = match event {
        Event::Exported { name, .. } => name,
        event => panic!("{event:?}"),
    };
    assert_eq!(name, NAME);
    (region, registered)
}

/// The next events of the near messenger, while the far one works.
fn some(pair: &mut Pair) -> Vec<Event> {
    let (start, mut events) = (Instant::now(), Vec::new());
    while start.elapsed() < LONG {
        pair.far.poll(&mut Vec::new());
        if pair.near.wait(&mut events, Duration::from_millis(1)) > 0 {
            return events;
        }
    }
    panic!("nothing happens");
}

fn next(pair: &mut Pair) -> Event {
    let mut events = some(pair);
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

fn transfer(pair: &mut Pair, id: u64, offset: u64, direction: Direction) -> Option<Bytes> {
    let transfer = Transfer {
        id,
        name: NAME,
        offset,
        direction,
    };
    assert!(pair.near.transfer(pair.to_far, transfer));
    match next(pair) {
        Event::Transferred {
            id: ended, outcome, ..
        } if ended == id => outcome,
        event => panic!("{event:?}"),
    }
}

#[test]
fn transfers_reach_the_exported_part_and_nothing_else() {
    for provider in BOTH {
        let mut pair = Pair::new(options(provider));
        let (region, _) = export(&mut pair, Access::READ | Access::WRITE);
        for (id, length) in [(1, 8), (2, 4096), (3, 70_000), (4, TRANSFER_MAX)] {
            let bytes = message(id, length as usize);
            let written = transfer(&mut pair, id as u64, 4096, Direction::Write(bytes.clone()));
            assert_eq!(written, Some(Bytes::new()), "{provider:?}");
            let mut there = vec![0; length as usize];
            region.read(START + 4096, &mut there);
            assert!(there == bytes, "{provider:?}: {length} bytes");
            let read = transfer(&mut pair, 10, 4096, Direction::Read(length));
            assert!(read == Some(bytes), "{provider:?}: {length} bytes");
        }
        for (offset, direction) in [
            (LENGTH - 4, Direction::Read(8)),
            (u64::MAX - 4, Direction::Read(8)),
            (0, Direction::Read(TRANSFER_MAX + 1)),
            (0, Direction::Read(0)),
            (LENGTH, Direction::Write(vec![1].into())),
        ] {
            let refused = transfer(&mut pair, 20, offset, direction);
            assert_eq!(refused, None, "{provider:?}: {offset}");
        }
        let unknown = Transfer {
            id: 30,
            name: NAME + 1,
            offset: 0,
            direction: Direction::Read(8),
        };
        assert!(!pair.near.transfer(pair.to_far, unknown));
    }
}

#[test]
fn memory_that_is_exported_for_reading_is_not_written() {
    for provider in BOTH {
        let mut pair = Pair::new(options(provider));
        let (region, _) = export(&mut pair, Access::READ);
        let refused = transfer(&mut pair, 1, 0, Direction::Write(vec![1; 8].into()));
        assert_eq!(refused, None, "{provider:?}");
        assert_eq!(region.load(START), 0);
    }
}

#[test]
fn many_transfers_at_once_wait_for_buffers() {
    for provider in BOTH {
        let mut pair = Pair::new(options(provider));
        let (region, _) = export(&mut pair, Access::READ);
        region.write(START, &message(5, LENGTH as usize));
        for id in 0..40 {
            let transfer = Transfer {
                id,
                name: NAME,
                offset: id,
                direction: Direction::Read(TRANSFER_MAX),
            };
            assert!(pair.near.transfer(pair.to_far, transfer));
        }
        let mut ended = Vec::new();
        while ended.len() < 40 {
            for event in some(&mut pair) {
                match event {
                    Event::Transferred {
                        id,
                        outcome: Some(bytes),
                        ..
                    } => {
                        assert!(bytes == message(5 + id as usize, TRANSFER_MAX as usize));
                        ended.push(id);
                    }
                    event => panic!("{provider:?}: {event:?}"),
                }
            }
        }
        ended.sort_unstable();
        assert!(ended.into_iter().eq(0..40), "{provider:?}");
    }
}

#[test]
fn a_revoked_key_opens_nothing_once_the_proof_is_there() {
    for provider in BOTH {
        let mut pair = Pair::new(options(provider));
        let (_region, registered) = export(&mut pair, Access::READ);
        let is_revoked = pair.far.revoke(provider, &registered);
        // Shared memory stays mapped until the link ends; over TCP the target checks the key.
        assert_eq!(is_revoked, provider == Provider::Tcp);
        if provider == Provider::Tcp {
            let late = Transfer {
                id: 1,
                name: NAME,
                offset: 0,
                direction: Direction::Read(8),
            };
            assert!(pair.near.transfer(pair.to_far, late));
            let event = next(&mut pair);
            assert!(matches!(event, Event::Lost { .. }), "{event:?}");
        } else {
            pair.near.close(pair.to_far);
            let start = Instant::now();
            // A child that another test is just starting has the descriptors for a moment.
            while !pair.far.revoke(provider, &registered) {
                assert!(start.elapsed() < LONG, "it is mapped");
                thread::yield_now();
            }
        }
    }
}
