//! Groups: one send reaches all, or some.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fabric::{GroupAddress, GroupId, Multicast, Origin, QueueOptions, Source, Work};

use super::{Pair, Random, Setup, Side};

const GROUP: GroupId = GroupId(7);

fn address(setup: &dyn Setup) -> GroupAddress {
    // Tests run at the same time, in this process and in others: each has a separate group.
    static GROUPS: AtomicU32 = AtomicU32::new(0);
    let number = std::process::id() * 16 + GROUPS.fetch_add(1, Ordering::Relaxed);
    let [low, high, ..] = number.to_le_bytes();
    GroupAddress {
        listens: true,
        is_unchecked: false,
        address: Ipv4Addr::new(239, 77, high, low),
        port: 20_000 + (number % 10_000) as u16,
        interface: setup.interface(),
    }
}

pub fn groups_are_reached_by_one_send(setup: &dyn Setup) {
    let mut sides: Vec<Side> = (0..4)
        .map(|_| Side::new(setup, QueueOptions::default()))
        .collect();
    let Multicast::Lossy { bytes: longest, .. } = sides[0].queue.capabilities().multicast else {
        return;
    };
    let address = address(setup);
    for side in &mut sides {
        side.queue.join(GROUP, address).unwrap();
    }
    let mut random = Random(9);
    let memory = sides[0].memory(1 << 16, fabric::Access::LOCAL);
    let bytes = random.bytes(longest as usize);
    memory.region().write(0, &bytes);
    let too_long = [memory.piece(0, longest + 1)];
    let refused = sides[0]
        .queue
        .send_to_group(GROUP, Source::Pieces(&too_long), 0);
    assert!(refused.is_err());
    let mut received = vec![BTreeSet::new(); 4];
    let mut sent = 0u32;
    let start = Instant::now();
    while received[1..].iter().any(|numbers| numbers.len() < 100) {
        assert!(start.elapsed() < super::PATIENCE, "{received:?} of {sent}");
        let length = 1 + sent * 7919 % longest;
        let pieces = [memory.piece(0, length)];
        sides[0]
            .queue
            .send_to_group(GROUP, Source::Pieces(&pieces), sent)
            .unwrap();
        sent += 1;
        for (numbers, side) in received.iter_mut().zip(&mut sides) {
            side.poll();
            for message in side.messages.drain(..) {
                assert_eq!(message.origin, Origin::Group(GROUP));
                let number = message.immediate.unwrap();
                let length = 1 + number * 7919 % longest;
                assert!(
                    message.to_vec() == bytes[..length as usize],
                    "message {number}"
                );
                numbers.insert(number);
            }
        }
    }
    assert!(received[0].is_empty(), "a sender hears itself");
    // A side that does not poll loses messages, but not more than that.
    sides[3].queue.leave(GROUP);
    for _ in 0..1000 {
        let pieces = [memory.piece(0, 100)];
        sides[0]
            .queue
            .send_to_group(GROUP, Source::Pieces(&pieces), 0)
            .unwrap();
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        sides.iter_mut().for_each(|side| {
            side.poll();
        });
    }
    assert!(sides[3].messages.len() <= 64, "it has left");
    assert!(!sides[2].messages.is_empty() && sides[2].lost.is_empty());
}

pub fn a_side_that_only_sends_to_a_group_receives_nothing_of_it(setup: &dyn Setup) {
    let mut sides: Vec<Side> = (0..3)
        .map(|_| Side::new(setup, QueueOptions::default()))
        .collect();
    if sides[0].queue.capabilities().multicast == Multicast::None {
        return;
    }
    let address = address(setup);
    for (side, listens) in sides.iter_mut().zip([false, true, false]) {
        let address = GroupAddress { listens, ..address };
        side.queue.join(GROUP, address).unwrap();
    }
    // Each of the two senders reaches the one that listens.
    for sender in [0, 2] {
        let start = Instant::now();
        // Late messages of the other one do not count.
        let number = sender as u32;
        while !sides[1]
            .messages
            .iter()
            .any(|it| it.immediate == Some(number))
        {
            assert!(start.elapsed() < super::PATIENCE, "{sender} sends in vain");
            let sent = sides[sender]
                .queue
                .send_to_group(GROUP, Source::Inline(b"x"), number);
            sent.unwrap();
            for side in &mut sides {
                side.poll();
            }
        }
        sides[1].messages.clear();
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        sides.iter_mut().for_each(|side| {
            side.poll();
        });
    }
    assert!(sides[0].messages.is_empty() && sides[2].messages.is_empty());
}

pub fn empty_messages_of_groups_take_nothing_from_endpoints(setup: &dyn Setup) {
    let few = QueueOptions {
        endpoints: 1,
        window: 2,
        group_buffers: 2,
        ..QueueOptions::default()
    };
    let mut pair = Pair::with(setup, few, few);
    if pair.near.queue.capabilities().multicast == Multicast::None {
        return;
    }
    let address = address(setup);
    pair.near.queue.join(GROUP, address).unwrap();
    pair.far.queue.join(GROUP, address).unwrap();
    for number in 0..200 {
        let queue = &mut pair.near.queue;
        queue
            .send_to_group(GROUP, Source::Inline(&[]), number)
            .unwrap();
        pair.near.poll();
        pair.far.poll();
    }
    pair.linger();
    let held = pair.far.messages.len();
    assert!((1..=2).contains(&held), "{held} of a group are held");
    let note = Work::Send {
        from: Source::Inline(&[]),
        immediate: Some(9),
    };
    assert_eq!(pair.carry_out(1, note), Ok(0));
    pair.await_messages(held + 1);
    assert_eq!(
        pair.far.messages[held].origin,
        Origin::Endpoint(pair.to_near)
    );
}

pub fn without_groups_there_are_none(setup: &dyn Setup) {
    let mut side = Side::new(setup, QueueOptions::default());
    if side.queue.capabilities().multicast == Multicast::None {
        assert!(side.queue.join(GROUP, address(setup)).is_err());
        assert!(
            side.queue
                .send_to_group(GROUP, Source::Inline(b"x"), 0)
                .is_err()
        );
    }
}
