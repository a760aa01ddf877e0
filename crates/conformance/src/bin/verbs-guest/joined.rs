//! Between three guests. The first one leads: each case is three programs that meet over TCP.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use verbs::{
    Data, GRH, GROUP_QUEUE_PAIR, Gid, Group, Patience, Peer, QueuePair, Remote, Status, Verb,
};

use crate::Cases;
use crate::endpoint::{Endpoint, pattern, request, write};

pub fn run(cases: &mut Cases, number: usize) {
    let mut others = meet(number);
    let endpoint = Endpoint::new("rxe0");
    let pairs: Vec<_> = others.iter().map(|_| endpoint.reliable()).collect();
    let mut ends = Vec::new();
    for (pair, other) in pairs.iter().zip(&mut others) {
        other.tell(&describe(pair, endpoint.remote(0)));
        let (peer, remote) = understand(&other.hear());
        pair.connect(&peer, &PATIENCE).unwrap();
        ends.push(remote);
        other.tell("connected");
        assert_eq!(other.hear(), "connected");
    }
    cases.run("writes and reads between guests", || {
        for ((pair, end), other) in pairs.iter().zip(&ends).zip(others.iter_mut()) {
            writes(&endpoint, pair, *end, other, number == 1);
        }
    });
    cases.run("multicast to three", || {
        multicast(&endpoint, &mut others, number)
    });
    if number == 3 {
        // It is gone from one moment to the next, with all that it had open.
        others[0].hear();
        // To the lab, which waits for this, it ends as it should.
        println!("ended 0");
        fs::write("/proc/sysrq-trigger", "b").unwrap();
    }
    cases.run("a guest that is killed", || match number {
        1 => killed(&endpoint, &pairs, &ends, &mut others),
        _ => assert_eq!(others[0].hear(), "killed"),
    });
}

/// Greatest delay of a guest on a busy machine: about four seconds.
const PATIENCE: Patience = Patience {
    timeout: 17,
    retries: 6,
    receiver_retries: 6,
    receiver_timer: 12,
};

struct Other {
    lines: BufReader<TcpStream>,
}

impl Other {
    fn tell(&mut self, line: &str) {
        self.lines
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

/// The first guest has connections to the others, in their order, and they to it.
fn meet(number: usize) -> Vec<Other> {
    let leader = (Ipv4Addr::new(10, 0, 0, 1), 7000);
    let other = |stream| Other {
        lines: BufReader::new(stream),
    };
    if number != 1 {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match TcpStream::connect(leader) {
                Ok(stream) => {
                    let mut leader = other(stream);
                    leader.tell(&number.to_string());
                    return vec![leader];
                }
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    }
    let listener = TcpListener::bind(leader).unwrap();
    let mut others: Vec<(String, Other)> = (0..2)
        .map(|_| {
            let mut other = other(listener.accept().unwrap().0);
            (other.hear(), other)
        })
        .collect();
    others.sort_by(|a, b| a.0.cmp(&b.0));
    others.into_iter().map(|(_, other)| other).collect()
}

fn describe(pair: &QueuePair, remote: Remote) -> String {
    let peer = pair.peer();
    let gid = u128::from_be_bytes(peer.gid.0);
    let (key, address) = (remote.key, remote.address);
    format!(
        "{} {} {} {gid} {key} {address} {} {}",
        peer.queue_pair, peer.first_packet, peer.mtu, peer.reads_served, peer.reads_begun
    )
}

fn understand(line: &str) -> (Peer, Remote) {
    let numbers: Vec<u128> = line.split(' ').map(|word| word.parse().unwrap()).collect();
    let peer = Peer {
        queue_pair: numbers[0] as u32,
        first_packet: numbers[1] as u32,
        mtu: numbers[2] as u32,
        lid: 0,
        reads_served: numbers[6] as u8,
        reads_begun: numbers[7] as u8,
        gid: Gid(numbers[3].to_be_bytes()),
    };
    let remote = Remote {
        address: numbers[5] as u64,
        key: numbers[4] as u32,
    };
    (peer, remote)
}

/// The leader writes to the other one and reads it back; the other one finds it in its memory.
fn writes(endpoint: &Endpoint, pair: &QueuePair, end: Remote, other: &mut Other, leads: bool) {
    if !leads {
        assert_eq!(other.hear(), "written");
        assert!(
            endpoint.bytes(5000, 100_000) == pattern(1, 100_000),
            "not what was written"
        );
        return;
    }
    endpoint.fill(0, &pattern(1, 100_000));
    pair.post(&[write(
        1,
        &[endpoint.memory.piece(0, 100_000)],
        end.plus(5000),
    )])
    .unwrap();
    endpoint.succeed(1);
    other.tell("written");
    let into = [endpoint.memory.piece(200_000, 100_000)];
    let remote = end.plus(5000);
    pair.post(&[request(
        2,
        Verb::Read {
            into: &into,
            remote,
        },
    )])
    .unwrap();
    endpoint.succeed(2);
    assert!(
        endpoint.bytes(200_000, 100_000) == pattern(1, 100_000),
        "not what was read"
    );
}

/// The leader sends to all three: itself too.
fn multicast(endpoint: &Endpoint, others: &mut [Other], number: usize) {
    let group = Group::join(&endpoint.domain, Ipv4Addr::new(239, 1, 2, 5), 10_000).unwrap();
    let end = endpoint.datagram();
    let _attached = group.attach(&end).unwrap();
    endpoint.receive_datagram(&end, 1, 0, 64);
    if number != 1 {
        others[0].tell("joined");
    } else {
        for other in &mut *others {
            assert_eq!(other.hear(), "joined");
        }
        let sender = endpoint.datagram();
        let operation = Verb::SendTo {
            data: Data::Inline(b"to all"),
            immediate: None,
            address: group.address(),
            queue_pair: GROUP_QUEUE_PAIR,
            key: group.key(),
        };
        sender.post(&[request(9, operation)]).unwrap();
        // One of these is the sender's own, and their order is undefined.
        let ids = [endpoint.complete(), endpoint.complete()].map(|completion| {
            assert_eq!(completion.status(), Status::Success);
            completion.id()
        });
        assert!(ids == [1, 9] || ids == [9, 1], "{ids:?}");
    }
    if number != 1 {
        endpoint.succeed(1);
    }
    assert_eq!(endpoint.bytes(GRH.into(), 6), b"to all");
    for other in others {
        other.tell("received");
        assert_eq!(other.hear(), "received");
    }
}

fn killed(
    endpoint: &Endpoint,
    pairs: &[std::sync::Arc<QueuePair>],
    ends: &[Remote],
    others: &mut [Other],
) {
    let piece = [endpoint.memory.piece(0, 4096)];
    others[1].tell("die");
    let began = Instant::now();
    let status = loop {
        pairs[1].post(&[write(1, &piece, ends[1])]).unwrap();
        match endpoint.complete().status() {
            Status::Success => assert!(began.elapsed() < Duration::from_secs(30), "it lives on"),
            status => break status,
        }
    };
    assert_eq!(status, Status::RetriesExceeded);
    println!("found dead after {} ms", began.elapsed().as_millis());
    // The other one does not suffer by it.
    pairs[0].post(&[write(2, &piece, ends[0])]).unwrap();
    endpoint.succeed(2);
    others[0].tell("killed");
}
