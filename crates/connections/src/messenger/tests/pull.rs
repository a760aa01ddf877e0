//! Fragments that are pulled out of the sender's memory.

use super::*;
use crate::messenger::pull::{
    About, CLASSES, LENT_MAX, LOCATION, Location, Memory, POOL, PULL_MIN, Pulls,
};
use fabric::tcp::Tcp;

const FREED_ONE: u32 = 15 << 28 | 1;
const READY: u32 = 13 << 28;

/// Lengths around those at which the way of a fragment, or its buffer, changes.
fn lengths() -> Vec<usize> {
    let sizes = CLASSES.map(|class| class.bytes as usize);
    let around =
        [PULL_MIN, sizes[0], sizes[1], 2 * sizes[1] + PULL_MIN].map(|it| [it - 1, it, it + 1]);
    [around.concat(), vec![0, 10, MESSAGE_MAX]].concat()
}

/// Messages of all lengths go from near to far.
fn send_all(pair: &mut Pair) {
    let lengths = lengths();
    let mut received = Vec::new();
    for (seed, &length) in lengths.iter().enumerate() {
        pair.near.send(pair.to_far, &message(seed, length)).unwrap();
    }
    let start = Instant::now();
    while received.len() < lengths.len() {
        pair.far.wait(&mut received, Duration::from_millis(1));
        pair.near.wait(&mut Vec::new(), Duration::from_millis(1));
        assert!(start.elapsed() < LONG, "{} messages", received.len());
    }
    let expected = lengths.iter().enumerate();
    let expected = expected.map(|(seed, &length)| message(seed, length));
    assert!(messages(received, pair.to_near).into_iter().eq(expected));
}

/// Exports a pool whatever the transport.
fn offer(messenger: &mut Messenger, id: LinkId, provider: Provider) {
    let it = messenger.links[id.slot()].link.as_deref_mut().unwrap();
    it.offer_pool(&mut messenger.transports, provider).unwrap();
}

/// As over verbs: the fragments behind one that is being read wait.
#[test]
fn messages_stay_in_order_while_fragments_are_read() {
    let mut pair = Pair::new(options(Provider::Tcp));
    offer(&mut pair.near, pair.to_far, Provider::Tcp);
    for _ in 0..20 {
        send_all(&mut pair);
    }
    let [pulled, from_arena] = link(&mut pair.far, pair.to_near).stream.pulls.copied_in_all;
    assert!(pulled > 200 && from_arena == 0, "{pulled} {from_arena}");
}

#[test]
fn long_messages_are_pulled_where_reads_are_immediate() {
    for provider in BOTH {
        let mut pair = Pair::new(options(provider));
        // More often than there are buffers.
        for _ in 0..30 {
            send_all(&mut pair);
        }
        let pulled = pair.far.pulled_fragments();
        match provider {
            // The buffers are fewer than the fragments, so that some travel in messages.
            Provider::Shm => assert!(pulled > 300, "{pulled}"),
            _ => assert_eq!(pulled, 0),
        }
        assert_eq!(pair.near.pulled_fragments(), 0);
        // They count although their link has ended.
        pair.far.close(pair.to_near);
        assert_eq!(pair.far.pulled_fragments(), pulled);
    }
}

#[test]
fn data_below_the_threshold_stays_in_its_message() {
    for (pull_min, is_pulled) in [(usize::MAX, false), (1 << 20, true), (0, true)] {
        let mut options = options(Provider::Shm);
        options.pull_min = pull_min;
        let mut pair = Pair::new(options);
        // A pool is offered with a message that finds no other one waiting, and can be used for the next.
        for seed in 0..3 {
            let sent = message(seed, 1 << 20);
            pair.near.send(pair.to_far, &sent).unwrap();
            let mut received = Vec::new();
            let start = Instant::now();
            while received.is_empty() {
                pair.far.wait(&mut received, Duration::from_millis(1));
                pair.near.wait(&mut Vec::new(), Duration::from_millis(1));
                assert!(start.elapsed() < LONG);
            }
            assert_eq!(messages(received, pair.to_near), [sent]);
        }
        send_all(&mut pair);
        let pulled = pair.far.pulled_fragments();
        assert_eq!(pulled > 0, is_pulled, "{pull_min}: {pulled}");
    }
}

#[test]
fn a_lent_buffer_is_not_used_before_the_peer_has_copied_it() {
    let mut pair = Pair::new(options(Provider::Shm));
    send_all(&mut pair);
    send_all(&mut pair);
    // The far side sends nothing by which it would report the last buffers.
    let lent = link(&mut pair.near, pair.to_far).stream.pulls.lent();
    assert!((1..4).contains(&lent), "{lent}");
    pair.far.send(pair.to_near, &message(0, 10)).unwrap();
    pair.far.submit();
    let mut events = Vec::new();
    while events.is_empty() {
        pair.near.wait(&mut events, LONG);
    }
    assert_eq!(link(&mut pair.near, pair.to_far).stream.pulls.lent(), 0);
}

/// Explicit use of a pool (B2).
#[test]
fn a_link_owns_all_buffers_of_its_pool() {
    let device = Tcp::new(TcpOptions::default());
    let pool = Pool::new(&device, &CLASSES, Access::READ).unwrap();
    let mut pulls = Pulls::new(PULL_MIN);
    pulls.offered(Some(&pool));
    pulls.receive(About::Ready(Memory::Pool)).unwrap();
    let are_free = || CLASSES.map(|class| pool.allocate(class.bytes).is_some());
    assert_eq!(are_free(), [false; 2]);
    let data = vec![1; MESSAGE_MAX];
    let fill = |pulls: &mut Pulls, length: u32| {
        let (buffer, filled) = pulls.fill(&data[..length as usize])?;
        assert_eq!(filled, length as usize);
        pulls.sent(buffer, true);
        Some(())
    };
    for class in CLASSES {
        for _ in 0..class.count {
            fill(&mut pulls, class.bytes).unwrap();
        }
        assert_eq!(fill(&mut pulls, class.bytes), None);
    }
    // A buffer that the peer has read returns to the link, not to the pool.
    pulls.receive(About::Freed(1)).unwrap();
    assert_eq!(are_free(), [false; 2]);
    fill(&mut pulls, PULL_MIN as u32).unwrap();
    assert_eq!(fill(&mut pulls, PULL_MIN as u32), None);
    drop(pulls);
    assert_eq!(are_free(), [true; 2]);
}

#[test]
fn a_peer_that_lies_about_pulls_is_lost() {
    let location = |head, length, offset| {
        let location = Location {
            memory: Memory::Pool,
            head,
            length,
            offset,
        };
        (LOCATION, location.encode().to_vec())
    };
    let first = head(0, 4096, 5000);
    // Whether the far side has exported its pool before, and what it says then.
    let cases = [
        (false, location(0, 4096, 0)),
        (true, location(0, 4096, u64::MAX)),
        (true, location(0, 4096, 1 << 40)),
        (true, location(0, MESSAGE_MAX as u32 + 1, 0)),
        (true, location(0, 0, 0)),
        (true, location(first, 5000, 0)),
        (true, location(READY, 4096, 0)),
        (true, (LOCATION, vec![0; 15])),
        (true, (LOCATION | 2, vec![0; 16])),
        (true, (FREED_ONE, Vec::new())),
        (true, (FREED_ONE - 1, Vec::new())),
        (true, (READY, Vec::new())),
        (true, (READY | 1, Vec::new())),
        (true, (READY | 2, Vec::new())),
        // The arena was not exported.
        (true, (LOCATION | 1, location(0, 4096, 0).1)),
        (false, (READY, vec![1])),
        (false, (3 << 30 | 1, Vec::new())),
        (false, (3 << 30, vec![1])),
    ];
    for provider in BOTH {
        for (number, (exported, (immediate, bytes))) in cases.iter().enumerate() {
            let mut pair = Pair::new(options(provider));
            if *exported {
                // Only this side: the near one has no pool.
                let Pair { far, to_near, .. } = &mut pair;
                offer(far, *to_near, provider);
                let start = Instant::now();
                while !link(&mut pair.far, pair.to_near).stream.pulls.is_taken() {
                    pair.far.poll(&mut Vec::new());
                    pair.near.wait(&mut Vec::new(), Duration::from_millis(1));
                    assert!(start.elapsed() < LONG);
                }
            }
            let to_near = link(&mut pair.far, pair.to_near).session.endpoint();
            let queue = pair.far.transports.queue(provider).unwrap();
            let from = Source::Inline(bytes);
            let immediate = Some(*immediate);
            let request = WorkRequest::new(1 << 40, Work::Send { from, immediate });
            queue.post(to_near, &request).unwrap();
            let mut events = Vec::new();
            let start = Instant::now();
            while events.is_empty() && start.elapsed() < LONG {
                pair.far.poll(&mut Vec::new());
                pair.near.wait(&mut events, Duration::from_millis(1));
            }
            assert!(
                matches!(&events[..], [Event::Lost { link, reason: Reason::Fragment(_) }] if *link == pair.to_far),
                "case {number}: {events:?}"
            );
        }
    }
}

#[test]
fn a_peer_that_describes_more_buffers_than_it_has_is_lost() {
    let provider = Provider::Tcp;
    let mut options = options(provider);
    // There are credits for all that it describes.
    options.wanted.queues.window = 2 * LENT_MAX as u32;
    let mut pair = Pair::new(options);
    let Pair { far, to_near, .. } = &mut pair;
    offer(far, *to_near, provider);
    let start = Instant::now();
    while !link(&mut pair.far, pair.to_near).stream.pulls.is_taken() {
        pair.far.poll(&mut Vec::new());
        pair.near.wait(&mut Vec::new(), Duration::from_millis(1));
        assert!(start.elapsed() < LONG);
    }
    let to_near = link(&mut pair.far, pair.to_near).session.endpoint();
    let queue = pair.far.transports.queue(provider).unwrap();
    for number in 0..=LENT_MAX as u64 {
        let location = Location {
            memory: Memory::Pool,
            head: 0,
            length: 4096,
            offset: 0,
        };
        let bytes = location.encode();
        let (from, immediate) = (Source::Inline(&bytes), Some(LOCATION));
        let request = WorkRequest::new(1 << 40 | number, Work::Send { from, immediate });
        queue.post(to_near, &request).unwrap();
    }
    queue.submit();
    // The far side answers no read meanwhile.
    let mut events = Vec::new();
    while events.is_empty() && start.elapsed() < LONG {
        pair.near.wait(&mut events, Duration::from_millis(1));
    }
    assert!(
        matches!(
            &events[..],
            [Event::Lost {
                reason: Reason::Fragment(_),
                ..
            }]
        ),
        "{events:?}"
    );
}

/// The memory of the message is mapped until it is taken.
#[test]
fn a_pulled_message_arrives_though_its_sender_has_ended() {
    let mut pair = Pair::new(options(Provider::Shm));
    send_all(&mut pair);
    send_all(&mut pair);
    let sent = message(1, 64 << 10);
    let before = link(&mut pair.near, pair.to_far).stream.pulls.lent();
    pair.near.send(pair.to_far, &sent).unwrap();
    assert_eq!(
        link(&mut pair.near, pair.to_far).stream.pulls.lent(),
        before + 1
    );
    pair.near.submit();
    let to_near = pair.to_near;
    let endpoint = link(&mut pair.near, pair.to_far).session.endpoint();
    pair.near
        .transports
        .queue(Provider::Shm)
        .unwrap()
        .close(endpoint);
    let (mut events, start) = (Vec::new(), Instant::now());
    while pair.far.find(to_near).is_some() {
        assert!(start.elapsed() < LONG);
        pair.far.poll(&mut events);
    }
    match &events[..] {
        [
            Event::Message { bytes, .. },
            Event::Lost {
                reason: Reason::Transport(fabric::Failure::PeerLost),
                ..
            },
        ] => assert!(*bytes == sent),
        _ => panic!("{events:?}"),
    }
}

/// As when the peer breaks the rules of the control connection meanwhile: the transport reports nothing of it.
#[test]
fn a_link_that_ends_while_its_pool_is_exported_is_reported() {
    let mut pair = Pair::new(options(Provider::Shm));
    let start = Instant::now();
    while !link(&mut pair.near, pair.to_far).is_ready {
        pair.far.poll(&mut Vec::new());
        pair.near.wait(&mut Vec::new(), Duration::from_millis(1));
        assert!(start.elapsed() < LONG);
    }
    let endpoint = link(&mut pair.near, pair.to_far).session.endpoint();
    let queue = pair.near.transports.queue(Provider::Shm).unwrap();
    queue.close(endpoint);
    let refused = pair.near.send(pair.to_far, &message(1, PULL_MIN));
    assert_eq!(refused, Err(SendError::Ended));
    let mut events = Vec::new();
    pair.near.wait(&mut events, LONG);
    assert!(
        matches!(&events[..], [Event::Lost { link, .. }] if *link == pair.to_far),
        "{events:?}"
    );
}

#[test]
fn the_pool_of_a_link_has_a_name_that_exports_cannot_have() {
    let mut pair = Pair::new(options(Provider::Shm));
    let region = pmem::Region::memory(4096, false).unwrap();
    let access = fabric::Access::READ;
    let registered = pair
        .far
        .register(pair.to_near, (&region, 0..4096), access, 1);
    assert!(
        pair.far
            .export(pair.to_near, POOL, &registered.unwrap())
            .is_none()
    );
}
