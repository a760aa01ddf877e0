//! How a messenger states the ways of short and long messages.

use super::*;
use crate::messenger::announced::SLOTS_NAME;
use crate::messenger::pull::{Memory, POOL, PULL_MIN};

const NONE_YET: &str = "no message was long enough yet";
/// Set for the process that opens no more files.
const OPENS_NONE: &str = "TAKO_TEST_OPENS_NONE";

/// Long and short messages go both ways, until nothing is left to be exchanged about pulls and slots.
fn exchange(pair: &mut Pair) {
    for _ in 0..4 {
        for length in [100, 2 * PULL_MIN] {
            let (mut at_near, mut at_far) = (Vec::new(), Vec::new());
            let start = Instant::now();
            pair.near.send(pair.to_far, &message(1, length)).unwrap();
            pair.far.send(pair.to_near, &message(2, length)).unwrap();
            while at_near.is_empty() || at_far.is_empty() {
                pair.near.wait(&mut at_near, Duration::from_millis(1));
                pair.far.wait(&mut at_far, Duration::from_millis(1));
                assert!(start.elapsed() < LONG);
            }
            assert_eq!(messages(at_near, pair.to_far), [message(2, length)]);
            assert_eq!(messages(at_far, pair.to_near), [message(1, length)]);
        }
    }
}

/// What each side states about pulls.
fn pulls(pair: &Pair) -> [Result<usize, String>; 2] {
    [
        pair.near.least_pulled(pair.to_far).unwrap(),
        pair.far.least_pulled(pair.to_near).unwrap(),
    ]
}

/// What each side states about short messages.
fn requests(pair: &Pair) -> [(RequestWay, Option<&'static str>); 2] {
    [
        pair.near.requests(pair.to_far).unwrap(),
        pair.far.requests(pair.to_near).unwrap(),
    ]
}

#[test]
fn pulls_are_stated_once_the_peer_pulls() {
    let mut pair = Pair::new(options(Provider::Shm));
    assert_eq!(pulls(&pair), [(); 2].map(|()| Err(NONE_YET.into())));
    exchange(&mut pair);
    assert_eq!(pulls(&pair), [Ok(PULL_MIN), Ok(PULL_MIN)]);
    assert!(pair.near.pulled_fragments() > 0);
}

#[test]
fn no_pulls_are_stated_if_the_peer_never_pulls() {
    let mut never = options(Provider::Shm);
    never.pull_min = usize::MAX;
    let mut pair = Pair::of(options(Provider::Shm), never);
    exchange(&mut pair);
    let expected = [
        "the peer has not said that it pulls",
        "this side's `pull` is never",
    ];
    assert_eq!(pulls(&pair), expected.map(|reason| Err(reason.into())));
    let pulled = [&pair.near, &pair.far].map(|side| side.pulled_fragments());
    assert_eq!(pulled, [0, 0]);
}

#[test]
fn a_side_without_slots_has_messages_both_ways() {
    let far = options(Way(Provider::Shm, RequestWay::Announced));
    let mut near = options(Provider::Shm);
    // So many slots cannot be named.
    near.wanted.queues.window = 1025;
    let mut pair = Pair::of(near, far);
    exchange(&mut pair);
    let expected = [
        "there are more credits than slots can be named",
        "the peer has no slots",
    ];
    let expected = expected.map(|reason| (RequestWay::Message, Some(reason)));
    assert_eq!(requests(&pair), expected);
    let announced = [&pair.near, &pair.far].map(|side| side.announced_messages());
    assert_eq!(announced, [0, 0]);
}

#[test]
fn a_side_that_cannot_write_slots_reports_that_it_has_none() {
    let far = options(Way(Provider::Shm, RequestWay::Announced));
    let mut pair = Pair::of(options(Provider::Shm), far);
    let slots = &mut link(&mut pair.near, pair.to_far).stream.slots;
    slots.give_up("the peer's slots cannot be written");
    exchange(&mut pair);
    let expected = [
        "the peer's slots cannot be written",
        "the peer has no slots",
    ];
    let expected = expected.map(|reason| (RequestWay::Message, Some(reason)));
    assert_eq!(requests(&pair), expected);
}

#[test]
fn memory_that_the_peer_has_withdrawn_is_not_used() {
    let mut pair = Pair::new(options(Way(Provider::Shm, RequestWay::Announced)));
    exchange(&mut pair);
    let announced = [(RequestWay::Announced, None); 2];
    assert_eq!(requests(&pair), announced);
    let near = &mut pair.near;
    let found = near.links[pair.to_far.slot()].link.as_deref_mut().unwrap();
    let queue = near.transports.queue(Provider::Shm).unwrap();
    for name in [SLOTS_NAME, POOL] {
        found.session.revoke(queue, name).unwrap();
    }
    let start = Instant::now();
    let expected = (
        RequestWay::Message,
        Some("the peer has withdrawn its slots"),
    );
    while requests(&pair)[1] != expected {
        pair.far.wait(&mut Vec::new(), Duration::from_millis(1));
        assert!(start.elapsed() < LONG);
    }
    while link(&mut pair.far, pair.to_near)
        .stream
        .pulls
        .source(Memory::Pool)
        .is_ok()
    {
        pair.far.wait(&mut Vec::new(), Duration::from_millis(1));
        assert!(start.elapsed() < LONG);
    }
    let before = pair.near.announced_messages();
    let (sent, mut received) = (message(5, 100), Vec::new());
    pair.far.send(pair.to_near, &sent).unwrap();
    while received.is_empty() {
        pair.far.poll(&mut Vec::new());
        pair.near.wait(&mut received, Duration::from_millis(1));
        assert!(start.elapsed() < LONG);
    }
    assert_eq!(messages(received, pair.to_far), [sent]);
    assert_eq!(pair.near.announced_messages(), before);
}

#[test]
fn a_link_states_why_it_has_no_pool() {
    run_alone("ways::this_process_opens_no_more_files", OPENS_NONE);
}

/// A part of the test before, in a process of its own. Without `OPENS_NONE` it does nothing.
#[test]
fn this_process_opens_no_more_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};

    if std::env::var_os(OPENS_NONE).is_none() {
        return;
    }
    let mut pair = Pair::new(options(Provider::Shm));
    let before = getrlimit(Resource::Nofile);
    let next = std::fs::File::open("/dev/null").unwrap();
    let mut limit = before;
    limit.current = Some(std::os::fd::AsRawFd::as_raw_fd(&next) as u64);
    drop(next);
    setrlimit(Resource::Nofile, limit).unwrap();
    exchange(&mut pair);
    let stated = pulls(&pair);
    setrlimit(Resource::Nofile, before).unwrap();
    for state in stated {
        let reason = state.expect_err("a pool needs a descriptor");
        assert!(reason.starts_with("no pool could be made: "), "{reason}");
        assert!(reason.contains("Too many open files"), "{reason}");
    }
    let pulled = [&pair.near, &pair.far].map(|side| side.pulled_fragments());
    assert_eq!(pulled, [0, 0]);
}
