//! Reports of a poll, and their time.

use super::super::{Tcp, TcpOptions};
use super::*;
use crate::Work;

const LATE: Duration = Duration::from_secs(240);
const END: EndpointId = EndpointId(0);

fn side() -> (TcpTransport, Peer) {
    let device = Tcp::new(TcpOptions {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        lost_after: LATE,
        prove_within: LATE,
        ..TcpOptions::default()
    });
    let mut side = TcpTransport::open(device.common).unwrap();
    let limits = Limits {
        outstanding: 4,
        window: 4,
        message_bytes: 64,
    };
    let parameters = side.prepare(END, limits).unwrap();
    let peer = Peer {
        parameters,
        address: None,
        process: None,
    };
    (side, peer)
}

/// Two sides that have been joined.
fn sides() -> [TcpTransport; 2] {
    let ((mut near, to_near), (mut far, to_far)) = (side(), side());
    far.establish(END, Role::Listener, to_near).unwrap();
    near.establish(END, Role::Dialer, to_far).unwrap();
    let mut sides = [near, far];
    let is_joined = |side: &mut TcpTransport| side.link(END).unwrap().state == State::Joined;
    let start = Instant::now();
    while !sides.iter_mut().all(is_joined) {
        sides.iter_mut().for_each(|side| side.poll(&mut Vec::new()));
        assert!(start.elapsed() < LATE / 2, "they do not meet");
    }
    sides
}

#[test]
fn a_joined_endpoint_cannot_be_late() {
    let mut sides = sides();
    let start = Instant::now();
    // A second attempt may have been begun before the first one was known to have come.
    while !sides.iter().all(TcpTransport::has_few) {
        sides.iter_mut().for_each(|side| side.poll(&mut Vec::new()));
        assert!(start.elapsed() < LATE / 2, "somebody is looked for");
    }
}

#[test]
fn polled_data_is_reported_before_it_is_acknowledged() {
    let [mut near, mut far] = sides();
    far.poll(&mut Vec::new());
    let operation = Work::Send {
        from: Source::Inline(b""),
        immediate: Some(7),
    };
    let request = Request {
        sequence: 0,
        signaled: true,
        operation: &operation,
        returned: 0,
    };
    near.post(END, request);
    near.submit();
    let mut reports = Vec::new();
    let start = Instant::now();
    while reports.is_empty() {
        far.look(16);
        far.poll(&mut reports);
        assert!(start.elapsed() < LATE / 2, "it does not come");
    }
    assert!(matches!(reports[..], [Report::Received { .. }]));
    assert_eq!(far.link(END).unwrap().output.due(), Due::Soon);
    // Nothing takes it along.
    let mut ends = Vec::new();
    while ends.is_empty() {
        far.poll(&mut reports);
        near.poll(&mut ends);
        assert!(start.elapsed() < LATE / 2, "it does not end");
    }
    assert!(matches!(ends[..], [Report::Done { sequence: 0, .. }]));
}
