//! Failures between the devices of one guest, and the state after them.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use verbs::{
    Address, CompletionQueue, Data, Event, GROUP_QUEUE_PAIR, Group, Patience, QueuePair, Queues,
    Registration, Remote, State, Status, Verb,
};

use crate::Cases;
use crate::endpoint::{
    Endpoint, KEY, all_rights, connect, connected, pattern, request, send, write,
};

pub fn run(cases: &mut Cases) {
    cases.run(
        "a receiver that is late, and one that never comes",
        late_receiver,
    );
    cases.run("a wrong key, and the pair after it", wrong_key);
    cases.run(
        "memory that is not registered here, and too short",
        local_errors,
    );
    cases.run("a revoked key", revoked);
    cases.run("a key revoked while it is used", revoked_in_use);
    cases.run("a failed end", failed_end);
    cases.run("a completion queue that overflows", overflow);
    cases.run("lost packets", loss);
    cases.run("a cut link, and what comes after it", cut);
    cases.run("events of a port", events);
}

/// Runs a program of the guest.
pub fn system(line: &str) {
    let mut words = line.split(' ');
    let status = Command::new(words.next().unwrap_or_default())
        .args(words)
        .status();
    assert!(status.unwrap().success(), "{line}");
}

const IMPATIENT: Patience = Patience {
    timeout: 14,
    retries: 2,
    receiver_retries: 2,
    receiver_timer: 12,
};

/// Both ends discard their state, and are connected again.
fn reconnect(near: &QueuePair, far: &QueuePair) {
    near.reset().unwrap();
    far.reset().unwrap();
    connect(near, far, &IMPATIENT);
}

/// The connection carries a write.
fn works(a: &Endpoint, b: &Endpoint, near: &QueuePair) {
    a.fill(0, &pattern(77, 5000));
    near.post(&[write(77, &[a.memory.piece(0, 5000)], b.remote(300_000))])
        .unwrap();
    a.succeed(77);
    assert!(
        b.bytes(300_000, 5000) == pattern(77, 5000),
        "what was written is something else"
    );
}

fn late_receiver() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, far) = (a.reliable(), b.reliable());
    let for_ever = Patience {
        receiver_retries: 7,
        ..IMPATIENT
    };
    connect(&near, &far, &for_ever);
    let piece = [a.memory.piece(0, 8)];
    near.post(&[send(1, &piece)]).unwrap();
    assert!(a.complete_within(Duration::from_millis(50)).is_none());
    b.receive(&far, 1, 0, 64);
    a.succeed(1);
    b.succeed(1);
    reconnect(&near, &far);
    near.post(&[send(2, &piece)]).unwrap();
    a.fail(2, Status::ReceiverNotReady);
    assert_eq!(near.state().unwrap(), State::Failed);
}

fn wrong_key() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, far) = connected(&a, &b);
    let piece = [a.memory.piece(0, 8)];
    let key = b.remote(0).key ^ 0xff00;
    let wrong = Remote { key, ..b.remote(0) };
    near.post(&[write(1, &piece, wrong), write(2, &piece, b.remote(0))])
        .unwrap();
    a.fail(1, Status::RemoteAccess);
    a.fail(2, Status::Flushed);
    assert_eq!(near.state().unwrap(), State::Failed);
    near.post(&[write(3, &piece, b.remote(0))]).unwrap();
    a.fail(3, Status::Flushed);
    let before = near.peer();
    reconnect(&near, &far);
    assert_ne!(near.peer().first_packet, before.first_packet);
    works(&a, &b, &near);
    // Neither does an address outside the memory.
    near.post(&[write(4, &piece, b.remote(0).plus(1 << 20))])
        .unwrap();
    a.fail(4, Status::RemoteAccess);
}

fn local_errors() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, far) = connected(&a, &b);
    // Memory of another device's domain.
    near.post(&[write(1, &[b.memory.piece(0, 8)], b.remote(0))])
        .unwrap();
    let completion = a.complete();
    assert_ne!(completion.status(), Status::Success);
    reconnect(&near, &far);
    b.receive(&far, 2, 0, 64);
    near.post(&[send(3, &[a.memory.piece(0, 65)])]).unwrap();
    // Which error it is that a message is too long, devices do not agree on.
    assert_ne!(b.complete().status(), Status::Success);
    let status = a.complete().status();
    assert!(
        matches!(status, Status::RemoteInvalid | Status::RemoteOperation),
        "{status}"
    );
}

fn revoked() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, far) = connected(&a, &b);
    let region = b.memory.region();
    let granted = Registration::new(&b.domain, region, 4096, 4096, all_rights()).unwrap();
    let remote = granted.remote(4096);
    a.fill(0, &pattern(1, 64));
    let piece = [a.memory.piece(0, 64)];
    near.post(&[write(1, &piece, remote)]).unwrap();
    a.succeed(1);
    drop(granted);
    a.fill(0, &pattern(2, 64));
    near.post(&[write(2, &piece, remote)]).unwrap();
    a.fail(2, Status::RemoteAccess);
    assert_eq!(b.bytes(4096, 64), pattern(1, 64));
    // The other registration of the same bytes is as it was.
    reconnect(&near, &far);
    near.post(&[write(3, &piece, b.remote(4096))]).unwrap();
    a.succeed(3);
    assert_eq!(b.bytes(4096, 64), pattern(2, 64));
}

/// One thread writes as fast as it can, while another one takes the key back: then nothing changes any more.
fn revoked_in_use() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    for round in 0..8 {
        let (near, _far) = connected(&a, &b);
        let region = b.memory.region();
        let granted = Registration::new(&b.domain, region, 0, 65_536, all_rights()).unwrap();
        let remote = granted.remote(0);
        let begun = AtomicBool::new(false);
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for id in 1.. {
                    a.fill(0, &[id as u8; 32_768]);
                    near.post(&[write(id, &[a.memory.piece(0, 32_768)], remote)])
                        .unwrap();
                    let completion = a.complete();
                    begun.store(true, Ordering::Release);
                    if completion.status() != Status::Success {
                        return completion.status();
                    }
                }
                unreachable!("numbers end");
            });
            while !begun.load(Ordering::Acquire) {
                thread::yield_now();
            }
            drop(granted);
            let then = b.bytes(0, 65_536);
            assert_eq!(
                writer.join().unwrap(),
                Status::RemoteAccess,
                "round {round}"
            );
            assert!(
                b.bytes(0, 65_536) == then,
                "round {round}: written after the key was revoked"
            );
        });
    }
}

fn overflow() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let few = CompletionQueue::new(&a.device, 4).unwrap();
    let queues = Queues {
        send: few,
        ..a.queues(None)
    };
    let near = QueuePair::reliable(&a.domain, &queues).unwrap();
    let far = b.reliable();
    connect(&near, &far, &IMPATIENT);
    let piece = [a.memory.piece(0, 8)];
    for id in 0..32 {
        // The pair may have failed already.
        let _ = near.post(&[write(id, &piece, b.remote(0))]);
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while a.device.next_event().unwrap() != Some(Event::CompletionQueueFailed) {
        assert!(Instant::now() < deadline, "no event comes");
        thread::yield_now();
    }
}

fn failed_end() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, far) = (a.reliable(), b.reliable());
    connect(&near, &far, &IMPATIENT);
    b.receive(&far, 5, 0, 64);
    far.fail().unwrap();
    b.fail(5, Status::Flushed);
    near.post(&[write(1, &[a.memory.piece(0, 8)], b.remote(0))])
        .unwrap();
    assert_ne!(a.complete().status(), Status::Success);
    reconnect(&near, &far);
    works(&a, &b, &near);
}

fn loss() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, far) = (a.reliable(), b.reliable());
    let patient = Patience {
        retries: 7,
        ..Patience::default()
    };
    connect(&near, &far, &patient);
    system("/bin/tc qdisc add dev port1 root netem loss 5%");
    for id in 0..60 {
        a.fill(0, &pattern(id, 8000));
        let pieces = [a.memory.piece(0, 8000)];
        near.post(&[write(id, &pieces, b.remote(65_536))]).unwrap();
        a.succeed(id);
        let is_same = b.bytes(65_536, 8000) == pattern(id, 8000);
        assert!(is_same, "write {id} is another one");
    }
    system("/bin/tc qdisc change dev port1 root netem loss 20%");
    let arrived = datagrams(&a, &b, 60);
    system("/bin/tc qdisc del dev port1 root");
    assert!((60..120).contains(&arrived), "{arrived} of 120 arrived");
    assert_eq!(datagrams(&a, &b, 10), 20);
}

/// Sends so many datagrams to one, and as many to a group that it belongs to. Returns how many arrive.
fn datagrams(a: &Endpoint, b: &Endpoint, count: u64) -> usize {
    let (sender, receiver) = (a.datagram(), b.datagram());
    let address = Address::new(&a.domain, b.device.gid().gid, 0).unwrap();
    let name = Ipv4Addr::new(239, 1, 2, 4);
    let groups = [a, b].map(|endpoint| Group::join(&endpoint.domain, name, 10_000).unwrap());
    let _attached = groups[1].attach(&receiver).unwrap();
    let to = |address, queue_pair| Verb::SendTo {
        data: Data::Inline(b"datagram"),
        immediate: None,
        address,
        queue_pair,
        key: KEY,
    };
    let ways = [
        to(&address, receiver.number()),
        to(groups[0].address(), GROUP_QUEUE_PAIR),
    ];
    let mut arrived = 0;
    for id in 0..count {
        for way in ways {
            b.receive_datagram(&receiver, id, 0, 64);
            sender.post(&[request(id, way)]).unwrap();
            a.succeed(id);
        }
        while b.complete_within(Duration::from_millis(20)).is_some() {
            arrived += 1;
        }
    }
    arrived
}

fn cut() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, far) = (a.reliable(), b.reliable());
    connect(&near, &far, &IMPATIENT);
    works(&a, &b, &near);
    system("/bin/ip link set plug2 down");
    let began = Instant::now();
    let piece = [a.memory.piece(0, 8)];
    near.post(&[write(1, &piece, b.remote(0))]).unwrap();
    a.fail(1, Status::RetriesExceeded);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    println!("retries exceeded after {} ms", took.as_millis());
    system("/bin/ip link set plug2 up");
    let deadline = Instant::now() + Duration::from_secs(30);
    // The bridge takes its time; a new pair, and the old one, work then.
    loop {
        reconnect(&near, &far);
        near.post(&[write(2, &piece, b.remote(0))]).unwrap();
        match a.complete().status() {
            Status::Success => break,
            status => assert!(Instant::now() < deadline, "{status}"),
        }
    }
    works(&a, &b, &near);
    let (near, _far) = connected(&a, &b);
    works(&a, &b, &near);
}

fn events() {
    let endpoint = Endpoint::new("rxe3");
    while endpoint.device.next_event().unwrap().is_some() {}
    let next = || {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match endpoint.device.next_event().unwrap() {
                Some(event @ (Event::PortDown(_) | Event::PortActive(_))) => return event,
                _ => assert!(Instant::now() < deadline, "no event comes"),
            }
            thread::yield_now();
        }
    };
    system("/bin/ip link set port3 down");
    assert_eq!(next(), Event::PortDown(1));
    assert_eq!(
        endpoint.device.port_now().unwrap().state,
        verbs::PortState::Down
    );
    let error = verbs::Device::open(&verbs::Wanted {
        device: Some("rxe3".to_owned()),
        ..verbs::Wanted::default()
    });
    let text = error.unwrap_err().to_string();
    assert!(
        text.starts_with("no port is active (rxe3 port 1 is down); "),
        "{text}"
    );
    system("/bin/ip link set port3 up");
    assert_eq!(next(), Event::PortActive(1));
}
