//! A host on the link that sees all frames to another one, and sends them again or changed.

use std::time::{Duration, Instant};

use fabric::ethernet::{EthernetCounters, EthernetOptions};
use fabric::{Access, Failure, RemoteRegion, Source, Work, WorkRequest};

use super::link::{INTERFACE, Link, OnLink, options};
use super::raw::RawHost;
use super::suite::{Pair, Side};

/// Longest wait for an event.
const PATIENCE: Duration = Duration::from_secs(60);
const LENGTH: usize = 4000;

/// Two hosts at a switch, and a third one that receives what the switch forwards to the second one.
fn spied_on() -> (OnLink, RawHost) {
    spied_on_with(options())
}

/// The same with these options.
fn spied_on_with(options: EthernetOptions) -> (OnLink, RawHost) {
    let link = Link::bridge(3);
    // It remembers no host, so it forwards every frame to all.
    link.on_switch("link set switch type bridge ageing_time 0");
    let shown = link.on(1, || xdp::Interface::named(INTERFACE).unwrap().hardware);
    link.ip(2, &format!("link set {INTERFACE} address {shown}"));
    link.enter(2);
    let spy = RawHost::open(None);
    (OnLink::over(link, options), spy)
}

fn far(setup: &OnLink) -> EthernetCounters {
    setup.ethernet(1).counters()
}

/// Polls one side only, until a condition holds.
fn poll_until(what: &str, side: &mut Side, is_so: impl Fn(&Side) -> bool) {
    let start = Instant::now();
    while !is_so(side) {
        side.poll();
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
    }
}

fn write(pair: &mut Pair, id: u64, remote: RemoteRegion, byte: u8) {
    let write = Work::Write {
        from: Source::Inline(&[byte; 200]),
        to: remote.at(0),
        immediate: Some(id as u32),
    };
    assert_eq!(pair.carry_out(id, write), Ok(0));
}

#[test]
fn recorded_packets_change_nothing_when_they_are_sent_again() {
    let (setup, mut spy) = spied_on();
    let mut pair = Pair::new(&setup);
    let memory = pair.far.memory(4096, Access::ALL);
    let remote = pair.import(&memory);
    write(&mut pair, 1, remote, 1);
    let recorded = spy.receive();
    assert!(!recorded.is_empty());
    write(&mut pair, 2, remote, 2);
    pair.await_messages(2);
    let check = |pair: &Pair, messages: usize| {
        let mut found = [0; 200];
        memory.region().read(0, &mut found);
        assert_eq!(found, [2; 200]);
        assert_eq!(pair.far.messages.len(), messages);
        assert!(pair.far.lost.is_empty() && pair.near.lost.is_empty());
    };
    let before = far(&setup).duplicates;
    for _ in 0..3 {
        recorded.iter().for_each(|frame| spy.send(frame));
    }
    let all = 3 * recorded.len() as u64;
    pair.until("the repeated packets", |_, _| {
        far(&setup).duplicates >= before + all
    });
    check(&pair, 2);
    // With the number of another endpoint of the same hosts, which the check covers.
    pair.near.queue.close(pair.to_far);
    pair.join_again(&setup);
    let (before, endpoint) = (far(&setup).rejected, pair.to_near.0.to_le_bytes());
    for frame in &recorded {
        let mut frame = frame.clone();
        frame[24..28].copy_from_slice(&endpoint);
        spy.send(&frame);
    }
    pair.until("the packets of another endpoint", |_, _| {
        far(&setup).rejected >= before + recorded.len() as u64
    });
    pair.far.lost.clear();
    let remote = pair.import(&memory);
    check(&pair, 2);
    write(&mut pair, 3, remote, 2);
    pair.await_messages(3);
    check(&pair, 3);
}

/// The first host sends nothing any more, and the third one sends what it has recorded all the time.
#[test]
fn recorded_packets_keep_no_link_alive() {
    const LOST_AFTER: Duration = Duration::from_secs(2);
    let (setup, mut spy) = spied_on_with(EthernetOptions {
        lost_after: LOST_AFTER,
        ..options()
    });
    let mut pair = Pair::new(&setup);
    let memory = pair.far.memory(4096, Access::ALL);
    let remote = pair.import(&memory);
    write(&mut pair, 1, remote, 1);
    pair.await_messages(1);
    let recorded = spy.receive();
    let before = far(&setup).duplicates;
    let (start, mut again_at) = (Instant::now(), Instant::now());
    while pair.far.lost.is_empty() {
        assert!(start.elapsed() < 4 * LOST_AFTER, "it is kept alive");
        if Instant::now() >= again_at {
            again_at = Instant::now() + LOST_AFTER / 20;
            recorded.iter().for_each(|frame| spy.send(frame));
        }
        pair.far.poll();
    }
    assert_eq!(pair.far.lost, [(pair.to_near, Failure::PeerLost)]);
    assert!(far(&setup).duplicates >= before + 10);
}

/// A frame with one bit changed of each byte of its header, and cut ones.
fn changed(frame: &[u8]) -> Vec<Vec<u8>> {
    // Frames with another destination, type or socket do not come to the transport.
    let bits = (6..12).chain(16..72).map(|byte| {
        let mut frame = frame.to_vec();
        frame[byte] ^= 1 << (byte % 8);
        frame
    });
    let cut = [20, 71, 72, 100, frame.len() - 1].map(|length| frame[..length].to_vec());
    let mut body = frame.to_vec();
    *body.last_mut().unwrap() ^= 0x80;
    bits.chain(cut).chain([body]).collect()
}

/// The third host has packets that the second one did not receive yet.
#[test]
fn unreceived_packets_that_were_changed_or_cut_change_nothing() {
    let (setup, mut spy) = spied_on();
    let mut pair = Pair::new(&setup);
    let memory = pair.far.memory(LENGTH as u64, Access::ALL);
    let remote = pair.import(&memory);
    write(&mut pair, 1, remote, 1);
    let near = pair.near.memory(LENGTH as u64, Access::LOCAL);
    near.region().write(0, &[2; LENGTH]);
    spy.receive();
    setup.link().on_switch("link set port1 nomaster");
    let pieces = [near.piece(0, LENGTH as u32)];
    let write = Work::Write {
        from: Source::Pieces(&pieces),
        to: remote.at(0),
        immediate: Some(2),
    };
    pair.post(WorkRequest::new(2, write));
    pair.near.queue.submit();
    let mut fresh = Vec::new();
    let start = Instant::now();
    while fresh.len() < LENGTH.div_ceil(1500) {
        fresh.extend(spy.receive());
        assert!(start.elapsed() < PATIENCE, "too few frames came");
    }
    setup.link().on_switch("link set port1 master switch");
    let refused = || {
        let EthernetCounters {
            rejected, strange, ..
        } = far(&setup);
        rejected + strange
    };
    let before = refused();
    let mut sent = 0;
    // Commands are excluded: they end with zeros, which the receiver does not read.
    for frame in fresh.iter().filter(|frame| frame.len() > 256) {
        for changed in changed(frame) {
            spy.send(&changed);
            sent += 1;
            poll_until("a refusal", &mut pair.far, |_| refused() >= before + sent);
        }
    }
    assert!(sent > 100);
    let mut found = vec![0; LENGTH];
    memory.region().read(0, &mut found);
    assert!(
        found[..200].iter().all(|byte| *byte == 1),
        "the write before"
    );
    assert!(found[200..].iter().all(|byte| *byte == 0));
    assert!(pair.far.lost.is_empty() && pair.far.messages.len() == 1);
    // Unchanged, the last one first, each twice: the second host did not have them, and executes each once.
    for frame in fresh.iter().rev() {
        spy.send(frame);
        spy.send(frame);
    }
    poll_until("the message", &mut pair.far, |far| far.messages.len() >= 2);
    memory.region().read(0, &mut found);
    assert!(found.iter().all(|byte| *byte == 2));
    let to_far = pair.to_far;
    pair.until("the end of the write", |near, _| {
        near.outcome(to_far, 2) == Some(Ok(0))
    });
    assert_eq!(pair.far.messages.len(), 2);
}
