//! Effects of the simulated network's links on endpoints.

use fabric::{Failure, Source, Work};
use fabric_simulation::simulated::{LinkOptions, NetworkOptions};

use super::Simulated;
use super::suite::{Pair, Setup};

/// The nodes of a pair.
const NEAR: u32 = 0;
const FAR: u32 = 1;
const DEAD_AFTER_NS: u64 = 1_000_000;

fn network(delay_ns: u64) -> Simulated {
    let options = NetworkOptions {
        links: LinkOptions::steady(delay_ns),
        dead_after_ns: DEAD_AFTER_NS,
    };
    Simulated(fabric_simulation::simulated::Network::new(1, options))
}

fn send(pair: &mut Pair, number: u8) {
    let from = Source::Inline(&[number; 3]);
    pair.post(fabric::WorkRequest::new(
        number.into(),
        Work::Send {
            from,
            immediate: None,
        },
    ));
    pair.near.queue.submit();
}

/// First bytes that the far side has received.
fn received(pair: &Pair) -> Vec<u8> {
    let first = |message: &fabric::Message| message.to_vec()[0];
    pair.far.messages.iter().map(first).collect()
}

#[test]
fn messages_delayed_by_a_cut_arrive_in_order() {
    let setup = network(10_000);
    let mut pair = Pair::new(&setup);
    send(&mut pair, 1);
    pair.await_messages(1);
    let mut healed_ns = 0;
    setup.0.change(|links, now| {
        healed_ns = now + DEAD_AFTER_NS / 2;
        links.cut(NEAR, FAR, healed_ns);
    });
    for number in 2..=9 {
        send(&mut pair, number);
        if setup.0.now_ns() < healed_ns {
            assert_eq!(received(&pair), [1]);
        }
    }
    pair.await_messages(9);
    assert!(setup.0.now_ns() >= healed_ns);
    assert_eq!(received(&pair), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!((pair.near.lost.len(), pair.far.lost.len()), (0, 0));
}

#[test]
fn a_cut_without_an_end_is_ended_by_a_change() {
    let setup = network(10_000);
    let mut pair = Pair::new(&setup);
    setup.0.change(|links, _| links.cut(NEAR, FAR, u64::MAX));
    send(&mut pair, 1);
    for _ in 0..20 {
        pair.near.poll();
        pair.far.poll();
    }
    assert!(setup.0.now_ns() > 2 * 10_000 && received(&pair).is_empty());
    setup.0.change(|links, _| links.heal_all());
    pair.await_messages(1);
}

#[test]
fn a_long_cut_of_one_direction_ends_both_sides() {
    let setup = network(10_000);
    let mut pair = Pair::new(&setup);
    setup.0.change(|links, _| links.cut(NEAR, FAR, u64::MAX));
    send(&mut pair, 1);
    pair.until("the end of both sides", |near, far| {
        !near.lost.is_empty() && !far.lost.is_empty()
    });
    assert_eq!(pair.near.lost, [(pair.to_far, Failure::PeerLost)]);
    assert_eq!(pair.far.lost, [(pair.to_near, Failure::PeerLost)]);
    assert!(setup.0.now_ns() >= DEAD_AFTER_NS);
}

#[test]
fn a_killed_node_is_lost_to_its_peers() {
    let setup = network(10_000);
    let mut pair = Pair::new(&setup);
    setup.0.kill(FAR as usize);
    pair.until("the loss of the peer", |near, _| !near.lost.is_empty());
    assert_eq!(pair.near.lost, [(pair.to_far, Failure::PeerLost)]);
}

#[test]
fn slow_links_and_narrow_ones_take_their_time() {
    let setup = network(10_000);
    let mut pair = Pair::new(&setup);
    let mut takes = |change: &dyn Fn(&mut fabric_simulation::simulated::Links, u64)| {
        setup.0.change(change);
        let start = setup.0.now_ns();
        let count = pair.far.messages.len();
        send(&mut pair, 1);
        pair.await_messages(count + 1);
        setup.0.now_ns() - start
    };
    let usual = takes(&|_, _| ());
    assert!((10_000..20_000).contains(&usual), "{usual}");
    let slow = takes(&|links, now| links.slow(now, NEAR, FAR, 20, u64::MAX));
    assert!((200_000..220_000).contains(&slow), "{slow}");
    let narrow = takes(&|links, _| {
        links.heal_all();
        // Three bytes.
        links.set_options(LinkOptions {
            delay_ns: (30_000, 30_000),
            bytes_per_us: 1,
            ..LinkOptions::steady(0)
        });
    });
    assert!((33_000..43_000).contains(&narrow), "{narrow}");
}

#[test]
fn the_same_seed_and_the_same_calls_give_the_same_run() {
    let run = |seed| {
        let network = fabric_simulation::simulated::Network::new(seed, NetworkOptions::default());
        let setup = Simulated(network);
        let mut pair = Pair::new(&setup as &dyn Setup);
        let mut arrivals = Vec::new();
        for number in 0..100 {
            send(&mut pair, number);
            pair.await_messages(1);
            pair.far.messages.clear();
            arrivals.push(setup.0.now_ns());
        }
        arrivals
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}
