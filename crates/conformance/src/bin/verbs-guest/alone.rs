//! Working cases, between the devices of one guest.

use std::net::Ipv4Addr;
use std::time::Duration;

use verbs::{
    Address, Completion, Data, Error, GRH, GROUP_QUEUE_PAIR, Group, Kind, Patience, Peer,
    QueuePair, Receive, Request, SharedReceiveQueue, State, Verb,
};

use crate::Cases;
use crate::endpoint::{Endpoint, KEY, connect, connected, pattern, request, send, write};
use crate::faults::system;

pub fn run(cases: &mut Cases) {
    cases.run("the choice is explained", explained);
    cases.run("send and receive", messages);
    cases.run("write and read, in several packets and pieces", one_sided);
    cases.run("more reads than the other end works at", reads_that_wait);
    cases.run("write with a word beside it", write_with_word);
    cases.run("compare and swap, fetch and add", atomics);
    cases.run("inline bytes", inline);
    cases.run("every 16th request is signaled", selective);
    cases.run("batches longer than the queue", full);
    cases.run("a shared receive queue of two pairs", shared);
    cases.run("waiting for a completion", waiting);
    cases.run("ports with packets of unlike length", packets);
    cases.run("datagrams", datagrams);
    cases.run("multicast to two", multicast);
}

fn explained() {
    let endpoint = Endpoint::new("rxe2");
    assert_eq!(
        endpoint.device.explanation(),
        "rxe2 port 1, GID 1 (10.0.0.2, RoCE v2): the device that was asked for"
    );
    assert_eq!(endpoint.device.port().mtu, 4096);
    assert!(endpoint.device.limits().atomics);
    let ports = verbs::ports().unwrap();
    let names: Vec<&str> = ports.iter().map(|port| port.device.as_str()).collect();
    assert_eq!(names, ["rxe1", "rxe2", "rxe3"]);
}

fn messages() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, far) = connected(&a, &b);
    assert_eq!(near.state().unwrap(), State::Ready);
    let sent = pattern(1, 10_000);
    a.fill(0, &sent);
    b.receive(&far, 7, 4096, 16_384);
    b.receive(&far, 8, 65_536, 16_384);
    let pieces = [a.memory.piece(0, 10_000)];
    let word = request(
        2,
        Verb::Send {
            data: Data::Pieces(&[]),
            immediate: Some(0x1234_5678),
        },
    );
    near.post(&[send(1, &pieces), word]).unwrap();
    assert_eq!(a.succeed(1).kind(), Kind::Send);
    a.succeed(2);
    let received = b.succeed(7);
    assert_eq!(
        (received.kind(), received.length()),
        (Kind::Receive, 10_000)
    );
    assert_eq!(received.immediate(), None);
    assert_eq!(received.queue_pair(), far.number());
    assert!(b.bytes(4096, 10_000) == sent, "the message is another one");
    let received = b.succeed(8);
    assert_eq!(
        (received.length(), received.immediate()),
        (0, Some(0x1234_5678))
    );
}

fn one_sided() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, _far) = connected(&a, &b);
    let sent = pattern(2, 70_000);
    a.fill(100, &sent[..30_000]);
    a.fill(200_000, &sent[30_000..]);
    let pieces = [a.memory.piece(100, 30_000), a.memory.piece(200_000, 40_000)];
    near.post(&[write(1, &pieces, b.remote(333))]).unwrap();
    assert_eq!(a.succeed(1).kind(), Kind::Write);
    assert!(
        b.bytes(333, 70_000) == sent,
        "what was written is something else"
    );
    let into = [
        a.memory.piece(400_000, 50_000),
        a.memory.piece(500_000, 20_000),
    ];
    let remote = b.remote(333);
    near.post(&[request(
        2,
        Verb::Read {
            into: &into,
            remote,
        },
    )])
    .unwrap();
    assert_eq!(a.succeed(2).kind(), Kind::Read);
    let mut read = a.bytes(400_000, 50_000);
    read.extend(a.bytes(500_000, 20_000));
    assert!(read == sent, "what was read is something else");
}

fn reads_that_wait() {
    const READS: u32 = 40;
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, far) = (a.reliable(), b.reliable());
    let few = |peer| Peer {
        reads_served: 1,
        reads_begun: 1,
        ..peer
    };
    near.connect(&few(far.peer()), &Patience::default())
        .unwrap();
    far.connect(&few(near.peer()), &Patience::default())
        .unwrap();
    b.fill(0, &pattern(5, 40_000));
    let remote = b.remote(0);
    for number in 0..READS {
        let at = u64::from(number) * 1000;
        let into = [a.memory.piece(at, 1000)];
        let read = Verb::Read {
            into: &into,
            remote: remote.plus(at),
        };
        near.post(&[request(at, read)]).unwrap();
    }
    for number in 0..READS {
        a.succeed(u64::from(number) * 1000);
    }
    assert!(
        a.bytes(0, 40_000) == pattern(5, 40_000),
        "what was read is something else"
    );
}

fn write_with_word() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, far) = connected(&a, &b);
    a.fill(0, &pattern(3, 5000));
    // Of the receive request the completion is used, not the memory.
    far.post_receives(&[Receive { id: 9, into: &[] }]).unwrap();
    let pieces = [a.memory.piece(0, 5000)];
    let operation = Verb::Write {
        data: Data::Pieces(&pieces),
        remote: b.remote(64),
        immediate: Some(42),
    };
    near.post(&[request(1, operation)]).unwrap();
    a.succeed(1);
    let written = b.succeed(9);
    assert_eq!(
        (written.kind(), written.immediate()),
        (Kind::Written, Some(42))
    );
    assert_eq!(written.length(), 5000);
    assert!(
        b.bytes(64, 5000) == pattern(3, 5000),
        "the word came before the bytes"
    );
}

/// Packets have the length that the smaller port supports.
fn packets() {
    system("/bin/ip link set port3 mtu 1500");
    let (a, c) = (Endpoint::new("rxe1"), Endpoint::new("rxe3"));
    assert_eq!((a.device.port().mtu, c.device.port().mtu), (4096, 1024));
    for (from, to) in [(&a, &c), (&c, &a)] {
        let (near, _far) = connected(from, to);
        from.fill(0, &pattern(9, 20_000));
        near.post(&[write(
            1,
            &[from.memory.piece(0, 20_000)],
            to.remote(100_000),
        )])
        .unwrap();
        from.succeed(1);
        assert!(
            to.bytes(100_000, 20_000) == pattern(9, 20_000),
            "what was written is something else"
        );
    }
    system("/bin/ip link set port3 mtu 4200");
}

fn atomics() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, _far) = connected(&a, &b);
    let word = b.memory.region();
    word.store(80, 5);
    let into = a.memory.piece(0, 8);
    let remote = b.remote(80);
    let swap = |id, expected, new| {
        let operation = Verb::CompareAndSwap {
            into,
            remote,
            expected,
            new,
        };
        request(id, operation)
    };
    for (id, expected, new, before, after) in [(1, 5, 17, 5, 17), (2, 5, 18, 17, 17)] {
        near.post(&[swap(id, expected, new)]).unwrap();
        assert_eq!(a.succeed(id).kind(), Kind::Atomic);
        assert_eq!((a.word(0), word.load(80)), (before, after));
    }
    near.post(&[request(
        3,
        Verb::FetchAndAdd {
            into,
            remote,
            add: 1 << 40,
        },
    )])
    .unwrap();
    a.succeed(3);
    assert_eq!((a.word(0), word.load(80)), (17, 17 + (1 << 40)));
}

fn inline() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, far) = connected(&a, &b);
    assert!(near.inline_max() >= 128, "{}", near.inline_max());
    let mut bytes = pattern(4, 100);
    b.receive(&far, 1, 0, 4096);
    let immediate = None;
    let message = request(
        1,
        Verb::Send {
            data: Data::Inline(&bytes),
            immediate,
        },
    );
    let remote = b.remote(8192);
    let operation = Verb::Write {
        data: Data::Inline(&bytes),
        remote,
        immediate,
    };
    near.post(&[message, request(2, operation)]).unwrap();
    // They were copied when they were posted.
    bytes.fill(0);
    a.succeed(1);
    a.succeed(2);
    assert_eq!(b.succeed(1).length(), 100);
    assert_eq!(b.bytes(0, 100), pattern(4, 100));
    assert_eq!(b.bytes(8192, 100), pattern(4, 100));
}

fn selective() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, _far) = connected(&a, &b);
    a.fill(0, &pattern(5, 64 * 64));
    let pieces: Vec<_> = (0..64)
        .map(|index| [a.memory.piece(index * 64, 64)])
        .collect();
    let writes: Vec<Request<'_>> = (1..=64)
        .map(|id: u64| Request {
            signaled: id.is_multiple_of(16),
            ..write(id, &pieces[id as usize - 1], b.remote((id - 1) * 64))
        })
        .collect();
    // The queue is as long as this: each completion frees the requests before it.
    for _ in 0..5 {
        near.post(&writes).unwrap();
        for id in [16, 32, 48, 64] {
            a.succeed(id);
        }
    }
    assert!(
        a.completions
            .poll(&mut [Completion::default(); 8])
            .unwrap()
            .is_empty()
    );
    assert!(
        b.bytes(0, 64 * 64) == pattern(5, 64 * 64),
        "a write is missing"
    );
}

fn full() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, far) = (a.reliable(), b.reliable());
    let for_ever = Patience {
        receiver_retries: 7,
        ..Patience::default()
    };
    connect(&near, &far, &for_ever);
    // The first one waits for the receiver, and all others for it.
    let piece = [a.memory.piece(0, 8)];
    let sends: Vec<Request<'_>> = (0..1000).map(|id| send(id, &piece)).collect();
    let posted = match near.post(&sends) {
        Err(Error::QueueFull { posted }) => posted as u64,
        other => panic!("{other:?}"),
    };
    assert!((64..256).contains(&posted), "{posted}");
    for id in 0..posted {
        b.receive(&far, id, 8, 8);
        a.succeed(id);
        b.succeed(id);
    }
    b.receive(&far, posted, 8, 8);
    near.post(&sends[..1]).unwrap();
    a.succeed(0);
    b.succeed(posted);
}

fn shared() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let shared = SharedReceiveQueue::new(&b.domain, 16).unwrap();
    let end = || QueuePair::reliable(&b.domain, &b.queues(Some(&shared))).unwrap();
    let near = [a.reliable(), a.reliable()];
    let far = [end(), end()];
    for (near, far) in near.iter().zip(&far) {
        connect(near, far, &Patience::default());
    }
    let places: Vec<_> = (0..4)
        .map(|index| [b.memory.piece(index * 4096, 4096)])
        .collect();
    let receives: Vec<_> = (0..4)
        .map(|id: u64| Receive {
            id,
            into: &places[id as usize],
        })
        .collect();
    shared.post(&receives).unwrap();
    for (id, end) in [0, 1, 1, 0].into_iter().enumerate() {
        a.fill(0, &pattern(id as u64, 500));
        near[end]
            .post(&[send(id as u64, &[a.memory.piece(0, 500)])])
            .unwrap();
        a.succeed(id as u64);
        let received = b.succeed(id as u64);
        assert_eq!(received.queue_pair(), far[end].number());
        assert_eq!(b.bytes(id as u64 * 4096, 500), pattern(id as u64, 500));
    }
}

fn waiting() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, far) = connected(&a, &b);
    b.receive(&far, 1, 0, 64);
    b.completions.arm().unwrap();
    assert!(!b.completions.wait(20).unwrap(), "nothing was sent");
    near.post(&[send(1, &[a.memory.piece(0, 8)])]).unwrap();
    assert!(b.completions.wait(60_000).unwrap(), "nothing came");
    b.succeed(1);
    a.succeed(1);
    // It was not armed again.
    b.receive(&far, 2, 0, 64);
    near.post(&[send(2, &[a.memory.piece(0, 8)])]).unwrap();
    a.succeed(2);
    assert!(!b.completions.take_event().unwrap());
}

fn datagrams() {
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::new("rxe2"));
    let (near, far) = (a.datagram(), b.datagram());
    let address = Address::new(&a.domain, b.device.gid().gid, b.device.port().lid).unwrap();
    a.fill(0, &pattern(6, 1000));
    b.receive_datagram(&far, 3, 0, 4096);
    let pieces = [a.memory.piece(0, 1000)];
    let operation = Verb::SendTo {
        data: Data::Pieces(&pieces),
        immediate: Some(99),
        address: &address,
        queue_pair: far.number(),
        key: KEY,
    };
    near.post(&[request(1, operation)]).unwrap();
    a.succeed(1);
    let received = b.succeed(3);
    assert!(received.has_header());
    assert_eq!(
        (received.source(), received.immediate()),
        (near.number(), Some(99))
    );
    assert_eq!(received.length(), 1000 + GRH);
    assert_eq!(b.bytes(GRH.into(), 1000), pattern(6, 1000));
    near.reset().unwrap();
    b.receive_datagram(&far, 4, 0, 4096);
    near.post(&[request(2, operation)]).unwrap();
    a.succeed(2);
    b.succeed(4);
    // The header of IPv4 ends with source and destination.
    assert_eq!(b.bytes(u64::from(GRH) - 8, 8), [10, 0, 0, 1, 10, 0, 0, 2]);
}

fn multicast() {
    let sides = [
        Endpoint::new("rxe1"),
        Endpoint::new("rxe2"),
        Endpoint::new("rxe3"),
    ];
    let name = Ipv4Addr::new(239, 1, 2, 3);
    let [a, receivers @ ..] = &sides;
    let sender = a.datagram();
    let to = Group::join(&a.domain, name, 10_000).unwrap();
    let ends: Vec<_> = receivers.iter().map(Endpoint::datagram).collect();
    let groups: Vec<_> = receivers
        .iter()
        .map(|endpoint| Group::join(&endpoint.domain, name, 10_000).unwrap())
        .collect();
    let attached: Vec<_> = groups
        .iter()
        .zip(&ends)
        .map(|(group, end)| group.attach(end).unwrap())
        .collect();
    let message = |id| {
        let data = Data::Inline(b"to all");
        let operation = Verb::SendTo {
            data,
            immediate: Some(5),
            address: to.address(),
            queue_pair: GROUP_QUEUE_PAIR,
            key: to.key(),
        };
        sender.post(&[request(id, operation)]).unwrap();
        a.succeed(id);
    };
    for (endpoint, end) in receivers.iter().zip(&ends) {
        endpoint.receive_datagram(end, 1, 0, 100);
        endpoint.receive_datagram(end, 2, 0, 100);
    }
    message(1);
    for endpoint in receivers {
        let received = endpoint.succeed(1);
        assert_eq!(
            (received.length(), received.immediate()),
            (6 + GRH, Some(5))
        );
        assert_eq!(endpoint.bytes(GRH.into(), 6), b"to all");
    }
    // A member that has left gets nothing more.
    drop(attached);
    drop(groups);
    message(2);
    let late = receivers[0].complete_within(Duration::from_millis(200));
    assert!(late.is_none(), "{late:?}");
}
