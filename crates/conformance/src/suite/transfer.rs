//! Messages.

use fabric::{Access, Origin, QueueOptions, Source, Work, WorkRequest};

use super::{Pair, Random, Setup, Side, join};

const LENGTHS: &[usize] = &[0, 1, 7, 8, 63, 64, 65, 127, 128, 1000, 2048, 4095, 4096];

pub fn messages_of_every_length_arrive_whole(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let mut random = Random(1);
    let inline_bytes = pair.near.queue.capabilities().inline_bytes as usize;
    let memory = pair.near.memory(8192, Access::LOCAL);
    for (id, &length) in LENGTHS.iter().cycle().take(200).enumerate() {
        let bytes = random.bytes(length);
        memory.region().write(100, &bytes);
        let pieces = [memory.piece(100, length as u32)];
        let from = match id % 2 == 0 && length <= inline_bytes {
            true => Source::Inline(&bytes),
            false => Source::Pieces(&pieces),
        };
        let send = Work::Send {
            from,
            immediate: None,
        };
        assert_eq!(pair.carry_out(id as u64, send), Ok(0));
        pair.await_messages(1);
        let message = pair.far.messages.pop().unwrap();
        assert_eq!(message.origin, Origin::Endpoint(pair.to_near));
        assert_eq!(message.immediate, None);
        assert_eq!(message.to_vec(), bytes, "message {id} of {length} bytes");
        assert!(pair.far.messages.is_empty());
    }
}

pub fn messages_are_gathered_from_pieces(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let mut random = Random(2);
    let (one, other) = (
        pair.near.memory(4096, Access::LOCAL),
        pair.near.memory(4096, Access::READ),
    );
    let bytes = random.bytes(4096);
    one.region().write(0, &bytes);
    other.region().write(0, &bytes);
    let pieces = [one.piece(3, 100), other.piece(4000, 96), one.piece(1000, 1)];
    let send = Work::Send {
        from: Source::Pieces(&pieces),
        immediate: Some(9),
    };
    assert_eq!(pair.carry_out(1, send), Ok(0));
    pair.await_messages(1);
    let expected = [&bytes[3..103], &bytes[4000..], &bytes[1000..1001]].concat();
    assert_eq!(pair.far.messages[0].to_vec(), expected);
}

pub fn immediates_arrive_with_and_without_data(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    for (id, (immediate, data)) in [
        (Some(0), &b""[..]),
        (Some(u32::MAX), &b"data"[..]),
        (None, &b"data"[..]),
        (None, &b""[..]),
        (Some(0x1234_5678), &b"x"[..]),
    ]
    .into_iter()
    .enumerate()
    {
        let send = Work::Send {
            from: Source::Inline(data),
            immediate,
        };
        assert_eq!(pair.carry_out(id as u64, send), Ok(0));
        pair.await_messages(1);
        let message = pair.far.messages.pop().unwrap();
        assert_eq!(
            (message.immediate, message.to_vec()),
            (immediate, data.to_vec())
        );
    }
}

pub fn messages_arrive_in_order(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let mut expected = 0;
    for number in 0..2000u32 {
        let bytes = number.to_le_bytes();
        let send = Work::Send {
            from: Source::Inline(&bytes),
            immediate: Some(number),
        };
        pair.post_meanwhile(WorkRequest::new(number.into(), send).quiet(), |far| {
            for message in far.messages.drain(..) {
                assert_eq!(message.immediate, Some(expected));
                assert_eq!(message.to_vec(), expected.to_le_bytes());
                expected += 1;
            }
        });
    }
    pair.until("all messages", |_, far| {
        expected += far.messages.drain(..).count() as u32;
        expected == 2000
    });
    assert!(pair.near.done.is_empty());
}

pub fn both_sides_send_at_once(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let (to_far, to_near) = (pair.to_far, pair.to_near);
    let (mut sent, mut received) = ([0u64; 2], [0u64; 2]);
    let bytes = Random(3).bytes(1000.min(pair.near.queue.capabilities().inline_bytes as usize));
    let send = Work::Send {
        from: Source::Inline(&bytes),
        immediate: None,
    };
    pair.until("messages both ways", |near, far| {
        for (side, endpoint, which) in [(near, to_far, 0), (far, to_near, 1)] {
            let request = WorkRequest::new(sent[which], send).quiet();
            if sent[which] < 3000 && side.queue.post(endpoint, &request).is_ok() {
                sent[which] += 1;
            }
            for message in side.messages.drain(..) {
                assert_eq!(message.length() as usize, bytes.len());
                received[which] += 1;
            }
            assert!(side.lost.is_empty());
        }
        received == [3000, 3000]
    });
}

pub fn one_queue_has_many_endpoints(setup: &dyn Setup) {
    let options = QueueOptions {
        endpoints: 20,
        window: 4,
        ..QueueOptions::default()
    };
    let mut pair = Pair::with(setup, QueueOptions::default(), options);
    let mut others: Vec<(Side, _)> = Vec::new();
    for _ in 0..19 {
        let mut side = Side::new(setup, QueueOptions::default());
        let (to_far, to_near) = join(setup, &mut side, &mut pair.far);
        others.push((side, (to_far, to_near)));
    }
    assert!(pair.far.queue.offer().is_err(), "there is room for 20");
    for round in 0..20u32 {
        for (number, (side, (to_far, _))) in others.iter_mut().enumerate() {
            let bytes = [number as u8; 40];
            let send = Work::Send {
                from: Source::Inline(&bytes),
                immediate: Some(round),
            };
            // The count of credits may be in flight.
            pair.until("room for a message", |_, _| {
                side.poll();
                let request = WorkRequest::new(round.into(), send);
                side.queue.post(*to_far, &request).is_ok()
            });
            side.queue.submit();
        }
        pair.until("a message of each", |_, far| {
            for (side, _) in &mut others {
                side.poll();
            }
            far.messages.len() == 19
        });
        for message in pair.far.messages.drain(..) {
            assert_eq!(message.immediate, Some(round));
            let number = others
                .iter()
                .position(|(_, (_, id))| message.origin == Origin::Endpoint(*id));
            assert_eq!(message.to_vec(), [number.unwrap() as u8; 40]);
        }
    }
}
