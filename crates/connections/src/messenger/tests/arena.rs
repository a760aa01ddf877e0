//! Arenas that are lent: data that peers copy out of the memory of a client.

use rustix::net::{Shutdown, shutdown};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::*;
use crate::messenger::pull::PULL_MIN;
use pmem::Region;

/// Set for the process that maps no more memory.
const MAPS_NONE: &str = "TAKO_TEST_MAPS_NONE";
/// More than that process may map.
const TOO_MUCH: u64 = 1 << 30;

/// A message with data in a block of an arena, in pieces.
fn in_pieces(arena: &Arena, seed: usize, length: usize) -> [Bytes; 3] {
    let bytes = message(seed, length);
    let mut block = arena.allocate().expect("a block is free");
    block.write(0, &bytes[100..length - 1]);
    let data = Bytes::from_owner(block);
    [bytes.slice(..100), data, bytes.slice(length - 1..)]
}

/// Sends a message with data in the arena, which arrives whole at the far side.
fn send_from_arena(pair: &mut Pair, arena: &Arena, seed: usize, length: usize) {
    let pieces = in_pieces(arena, seed, length);
    pair.near.send_pieces(pair.to_far, pieces).unwrap();
    let (mut received, start) = (Vec::new(), Instant::now());
    while received.is_empty() {
        pair.far.wait(&mut received, Duration::from_millis(1));
        pair.near.wait(&mut Vec::new(), Duration::from_millis(1));
        assert!(start.elapsed() < LONG);
    }
    assert_eq!(messages(received, pair.to_near), [message(seed, length)]);
}

#[test]
fn data_in_an_arena_is_copied_by_the_peer_and_shared_until_it_has_reported_it() {
    for provider in BOTH {
        let arena = Arena::new(64 << 10, 4).unwrap();
        let mut pair = Pair::new(options(provider));
        pair.near.lend(arena.clone());
        for seed in 0..20 {
            let length = PULL_MIN + 101 + 1000 * seed;
            send_from_arena(&mut pair, &arena, seed, length);
            // The far side reports what it has copied.
            pair.far.send(pair.to_near, &message(0, 10)).unwrap();
            pair.far.submit();
            let mut answer = Vec::new();
            while answer.is_empty() {
                pair.near.wait(&mut answer, LONG);
            }
            assert_eq!(arena.free_blocks(), 4);
        }
        let lends = pair.far.lends(pair.to_near).unwrap();
        let pulled = pair.far.pulled_from_arenas();
        match provider {
            // The first message exports the arena, and at most one more is sent before the far side has reported that it has it.
            Provider::Shm => assert_eq!((lends, pulled >= 18), (Ok(()), true), "{pulled}"),
            _ => {
                let reason = "the target's processor would execute the reads";
                assert_eq!((lends, pulled), (Err(reason), 0));
                assert_eq!(pair.far.pulled_fragments(), 0);
            }
        }
        assert_eq!(pair.near.take_refusal(), None);
    }
}

#[test]
fn a_block_of_an_arena_is_not_free_while_a_peer_may_read_it() {
    let provider = Provider::Shm;
    let arena = Arena::new(64 << 10, 4).unwrap();
    let mut pair = Pair::new(options(provider));
    pair.near.lend(arena.clone());
    let length = 64 << 10;
    let is_unreported = |pair: &mut Pair, seed: usize| {
        send_from_arena(pair, &arena, seed, length);
        arena.free_blocks() == 3
    };
    // The first messages travel before the peer can pull. It does not report one fragment by itself.
    assert!((0..1000).any(|seed| is_unreported(&mut pair, seed)));
    assert_eq!(pair.far.pulled_from_arenas(), 1);
    // A link that has ended keeps no share.
    pair.near.close(pair.to_far);
    assert_eq!(arena.free_blocks(), 4);
}

#[test]
fn a_link_goes_on_without_an_arena_that_the_peer_cannot_map() {
    run_alone("arena::this_process_maps_no_more", MAPS_NONE);
}

/// A part of the test before, in a process of its own. Without `MAPS_NONE` it does nothing.
#[test]
fn this_process_maps_no_more() {
    if std::env::var_os(MAPS_NONE).is_none() {
        return;
    }
    let arena = Arena::new(64 << 10, (TOO_MUCH >> 16) as u32).unwrap();
    let mut pair = Pair::new(options(Provider::Shm));
    let length = PULL_MIN + 101;
    // Until both have made and mapped their pools.
    let before = Arena::new(64 << 10, 8).unwrap();
    for seed in 0..4 {
        send_from_arena(&mut pair, &before, seed, length);
    }
    pair.near.lend(arena.clone());
    let region = Region::memory(TOO_MUCH, false).unwrap();
    let registered = pair
        .near
        .register(pair.to_far, (&region, 0..TOO_MUCH), Access::READ, 1);
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let mut limit = getrlimit(Resource::As);
    limit.current = Some(pages * 4096 + TOO_MUCH / 2);
    setrlimit(Resource::As, limit).unwrap();

    for seed in 4..12 {
        send_from_arena(&mut pair, &arena, seed, length);
    }
    let stated = pair.far.lends(pair.to_near).unwrap();
    assert_eq!(stated, Err("this side cannot map the memory; see its log"));
    let logged = pair.far.take_refusal().expect("a reason");
    assert!(logged.starts_with("near (process "), "{logged}");
    assert!(logged.contains("Cannot allocate memory"), "{logged}");
    let logged = pair.near.take_refusal().expect("a reason");
    assert!(logged.contains(" cannot map it; see its log"), "{logged}");
    assert_eq!(
        (pair.far.take_refusal(), pair.near.take_refusal()),
        (None, None)
    );
    assert_eq!(pair.far.pulled_from_arenas(), 0);
    // The key has ended, and no data is shared with the link.
    assert!(link(&mut pair.near, pair.to_far).arena.is_none());
    assert_eq!(arena.free_blocks(), (TOO_MUCH >> 16) as usize);

    // Without other memory it does not go on.
    pair.near
        .export(pair.to_far, 77, &registered.unwrap())
        .unwrap()
        .unwrap();
    let (mut events, start) = (Vec::new(), Instant::now());
    while events.is_empty() {
        pair.far.wait(&mut events, Duration::from_millis(1));
        assert!(start.elapsed() < LONG);
    }
    assert!(
        matches!(
            &events[..],
            [Event::Lost {
                reason: Reason::Control(control::Error::Memory { .. }),
                ..
            }]
        ),
        "{events:?}"
    );
}

#[test]
fn a_refusal_is_kept_until_it_is_read() {
    let arena = Arena::new(64 << 10, 4).unwrap();
    let mut pair = Pair::new(options(Provider::Shm));
    let (other, _) = join(&mut pair.near, &mut pair.far);
    let start = Instant::now();
    while [pair.to_far, other]
        .iter()
        .any(|id| !link(&mut pair.near, *id).is_ready)
    {
        pair.far.poll(&mut Vec::new());
        pair.near.wait(&mut Vec::new(), Duration::from_millis(1));
        assert!(start.elapsed() < LONG);
    }
    pair.near.lend(arena.clone());
    let session = &link(&mut pair.near, pair.to_far).session;
    shutdown(session, Shutdown::Both).unwrap();
    for id in [pair.to_far, other] {
        let pieces = in_pieces(&arena, 1, PULL_MIN + 101);
        pair.near.send_pieces(id, pieces).unwrap();
    }
    assert!(pair.near.take_refusal().is_some());
    assert_eq!(pair.near.take_refusal(), None);
}
