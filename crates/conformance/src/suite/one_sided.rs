//! Reads, writes and atomics.

use fabric::{Access, Refusal, Source, Work, WorkRequest};

use super::{Pair, Random, Setup};

const MEMORY: u64 = 4 << 20;

fn contents(memory: &fabric::Registration, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.region().read(offset, &mut bytes);
    bytes
}

pub fn writes_and_reads_of_every_length(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let mut random = Random(4);
    let far = pair.far.memory(MEMORY, Access::ALL);
    let near = pair.near.memory(MEMORY, Access::LOCAL);
    let remote = pair.import(&far);
    assert_eq!(remote.length(), MEMORY);
    for (id, length) in [1, 8, 63, 64, 65, 4096, 4097, 100_000, 1 << 20, 3 << 20]
        .into_iter()
        .enumerate()
    {
        let bytes = random.bytes(length);
        let (here, there) = (random.below(1000), random.below(1000));
        near.region().write(here, &bytes);
        let pieces = [near.piece(here, length as u32)];
        let write = Work::Write {
            from: Source::Pieces(&pieces),
            to: remote.at(there),
            immediate: None,
        };
        assert_eq!(pair.carry_out(id as u64, write), Ok(0));
        // A read behind it shows it, whatever a completed write proves.
        near.region().write(here, &vec![0; length]);
        let read = Work::Read {
            into: &pieces,
            from: remote.at(there),
        };
        assert_eq!(pair.carry_out(1000 + id as u64, read), Ok(0));
        assert!(contents(&near, here, length) == bytes, "{length} bytes");
        assert!(contents(&far, there, length) == bytes, "{length} bytes");
    }
    // Inline, and up to the very end.
    let write = Work::Write {
        from: Source::Inline(b"the end"),
        to: remote.at(MEMORY - 7),
        immediate: None,
    };
    assert_eq!(pair.carry_out(1, write), Ok(0));
    pair.until("a write", |_, _| {
        contents(&far, MEMORY - 7, 7) == b"the end"
    });
    assert!(pair.far.messages.is_empty() && pair.far.done.is_empty());
}

pub fn reads_at_once_are_like_others(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let far = pair.far.memory(MEMORY, Access::READ);
    let secret = pair.far.memory(4096, Access::WRITE);
    let (remote, secret) = (pair.import(&far), pair.import(&secret));
    let bytes = Random(6).bytes(100_000);
    far.region().write(77, &bytes);
    let mut got = b"before".to_vec();
    let to_far = pair.to_far;
    let mut load = |from, length| pair.near.queue.load(to_far, (from, length), &mut got);
    let refused = [
        load(secret.at(0), 8),
        load(remote.at(MEMORY - 7), 8),
        load(remote.at(u64::MAX), 8),
    ];
    assert!(
        refused
            .iter()
            .all(|outcome| matches!(outcome, Err(Refusal::Invalid(_))))
    );
    let loaded = load(remote.at(77), 100_000);
    if !pair.near.queue.capabilities().immediate_reads {
        return assert!(matches!(loaded, Err(Refusal::Invalid(_))));
    }
    assert_eq!(loaded, Ok(()));
    assert!(got == [&b"before"[..], &bytes].concat());
    pair.near.queue.close(to_far);
    let ended = pair.near.queue.load(to_far, (remote.at(77), 8), &mut got);
    assert_eq!(ended, Err(Refusal::NoEndpoint));
}

pub fn a_part_of_a_region_is_reached_from_its_start(setup: &dyn Setup) {
    const PART: std::ops::Range<u64> = 8192..12_288;
    let mut pair = Pair::new(setup);
    let region = pmem::Region::memory(MEMORY, false).unwrap();
    let far = pair.far.device.register_part(&region, PART, Access::ALL);
    let far = far.unwrap();
    let near = pair.near.memory(4096, Access::LOCAL);
    let remote = pair.import(&far);
    assert_eq!(remote.length(), PART.end - PART.start);
    near.region().write(0, b"first");
    let pieces = [near.piece(0, 5)];
    let write = Work::Write {
        from: Source::Pieces(&pieces),
        to: remote.at(0),
        immediate: None,
    };
    assert_eq!(pair.carry_out(1, write), Ok(0));
    let pieces = [near.piece(100, 5)];
    let read = Work::Read {
        into: &pieces,
        from: remote.at(0),
    };
    assert_eq!(pair.carry_out(2, read), Ok(0));
    assert_eq!(contents(&near, 100, 5), b"first");
    assert_eq!(contents(&far, PART.start, 5), b"first");
}

pub fn pieces_are_scattered_and_gathered(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let far = pair.far.memory(1 << 20, Access::READ | Access::WRITE);
    let (one, other) = (
        pair.near.memory(1 << 18, Access::LOCAL),
        pair.near.memory(1 << 18, Access::ALL),
    );
    let bytes = Random(5).bytes(1 << 18);
    one.region().write(0, &bytes);
    other.region().write(0, &bytes);
    let remote = pair.import(&far);
    let pieces = [
        one.piece(5, 70_000),
        other.piece(100_000, 4096),
        one.piece(0, 1),
    ];
    let write = Work::Write {
        from: Source::Pieces(&pieces),
        to: remote.at(77),
        immediate: None,
    };
    assert_eq!(pair.carry_out(1, write), Ok(0));
    let expected = [&bytes[5..70_005], &bytes[100_000..104_096], &bytes[..1]].concat();
    let into = [
        other.piece(1, 3),
        one.piece(200_000, 60_000),
        other.piece(9, 14_094),
    ];
    let read = Work::Read {
        into: &into,
        from: remote.at(77),
    };
    assert_eq!(pair.carry_out(2, read), Ok(0));
    let got = [
        contents(&other, 1, 3),
        contents(&one, 200_000, 60_000),
        contents(&other, 9, 14_094),
    ];
    assert!(got.concat() == expected);
}

pub fn atomics_are_carried_out_once(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    if !pair.near.queue.capabilities().atomics {
        return;
    }
    let far = pair.far.memory(4096, Access::ATOMIC | Access::READ);
    let remote = pair.import(&far);
    let at = remote.at(64);
    for round in 0..1000u64 {
        let add = Work::FetchAndAdd { at, addend: 3 };
        assert_eq!(pair.carry_out(round, add), Ok(round * 3));
    }
    let swap = |expected, new| Work::CompareAndSwap { at, expected, new };
    assert_eq!(pair.carry_out(1, swap(1, 2)), Ok(3000));
    assert_eq!(pair.carry_out(2, swap(3000, u64::MAX)), Ok(3000));
    assert_eq!(
        pair.carry_out(3, Work::FetchAndAdd { at, addend: 6 }),
        Ok(u64::MAX)
    );
    assert_eq!(far.region().load(64), 5);
    // Many at once.
    for id in 0..40 {
        pair.post(WorkRequest::new(id, Work::FetchAndAdd { at, addend: 1 }));
    }
    pair.until("all of them", |near, _| near.done.len() == 40);
    for (number, done) in pair.near.done.iter().enumerate() {
        assert_eq!(
            (done.id.0, done.outcome),
            (number as u64, Ok(5 + number as u64))
        );
    }
}

pub fn a_receiver_of_a_message_sees_the_writes_before_it(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    if !pair.near.queue.capabilities().order.writes_before_messages {
        return;
    }
    let far = pair.far.memory(1 << 20, Access::WRITE);
    let near = pair.near.memory(1 << 20, Access::LOCAL);
    let remote = pair.import(&far);
    let mut random = Random(6);
    for round in 0..200u64 {
        let length = 1 + random.below(200_000) as u32;
        let bytes = random.bytes(length as usize);
        near.region().write(0, &bytes);
        let pieces = [near.piece(0, length)];
        let write = Work::Write {
            from: Source::Pieces(&pieces),
            to: remote.at(round),
            immediate: None,
        };
        pair.post(WorkRequest::new(round, write).quiet());
        let send = Work::Send {
            from: Source::Inline(b""),
            immediate: Some(1),
        };
        pair.post(WorkRequest::new(1000 + round, send));
        pair.await_messages(1);
        pair.far.messages.clear();
        assert!(
            contents(&far, round, length as usize) == bytes,
            "round {round}"
        );
        pair.until("the end", |near, _| near.done.pop().is_some());
    }
}

pub fn reads_see_writes_posted_before_them(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    if !pair.near.queue.capabilities().order.reads_after_writes {
        return;
    }
    let far = pair.far.memory(4096, Access::READ | Access::WRITE);
    let near = pair.near.memory(4096, Access::LOCAL);
    let remote = pair.import(&far);
    for round in 1..1000u64 {
        let word = round.to_ne_bytes();
        let write = Work::Write {
            from: Source::Inline(&word),
            to: remote.at(8),
            immediate: None,
        };
        pair.post(WorkRequest::new(round, write).quiet());
        let into = [near.piece(16, 8)];
        let read = Work::Read {
            into: &into,
            from: remote.at(8),
        };
        assert_eq!(pair.carry_out(5000 + round, read), Ok(0));
        assert_eq!(near.region().load(16), round);
    }
}

/// The data first, then its version: as clients read files.
pub fn reads_are_in_order(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    if !pair.near.queue.capabilities().order.reads {
        return;
    }
    let far = pair.far.memory(4096, Access::READ);
    let near = pair.near.memory(4096, Access::LOCAL);
    let remote = pair.import(&far);
    let region = far.region().clone();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The version goes up before the data does: data read first is never newer than the version read second.
        scope.spawn(|| {
            let mut version = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                version += 1;
                region.store(1024, version);
                region.store(0, version);
                std::thread::yield_now();
            }
        });
        for round in 0..500u64 {
            let (data, version) = ([near.piece(0, 8)], [near.piece(64, 8)]);
            let read = |into, offset| Work::Read {
                into,
                from: remote.at(offset),
            };
            pair.post(WorkRequest::new(2 * round, read(&data, 0)).quiet());
            assert_eq!(pair.carry_out(2 * round + 1, read(&version, 1024)), Ok(0));
            let (data, version) = (near.region().load(0), near.region().load(64));
            assert!(
                data <= version,
                "round {round}: data {data}, version {version}"
            );
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

pub fn a_write_can_announce_itself(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let far = pair.far.memory(1 << 16, Access::WRITE);
    let near = pair.near.memory(1 << 16, Access::LOCAL);
    let remote = pair.import(&far);
    let mut random = Random(7);
    for round in 0..500u32 {
        let length = 1 + random.below(10_000) as u32;
        let bytes = random.bytes(length as usize);
        near.region().write(3, &bytes);
        let pieces = [near.piece(3, length)];
        let write = Work::Write {
            from: Source::Pieces(&pieces),
            to: remote.at(round.into()),
            immediate: Some(round),
        };
        assert_eq!(pair.carry_out(round.into(), write), Ok(0));
        pair.await_messages(1);
        let message = pair.far.messages.pop().unwrap();
        assert_eq!((message.immediate, message.length()), (Some(round), 0));
        assert!(contents(&far, round.into(), length as usize) == bytes);
    }
}
