//! Peers that do not keep to the rules, made by hand.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use fabric::tcp::{Tcp, TcpOptions};
use fabric::{
    Access, Device, EndpointId, Event, Failure, GroupAddress, GroupId, Queue, QueueOptions, Role,
    Source,
};
use pmem::Region;
use ring::hmac;

use super::{PATIENCE, exchange, join, open, open_with, options, peer, until};

/// Number of requests that the liar claims to have outstanding.
const OUTSTANDING: u32 = 4;
const ENDPOINT: u32 = 9;
const NONCE: [u8; 32] = [5; 32];

/// A peer that has proved itself.
struct Liar {
    stream: TcpStream,
    /// Its own listener, which proves its process to the other side.
    _listener: TcpListener,
}

fn prove(secret: &[u8], who: &[u8; 8], endpoint: u32, nonce: &[u8], says: u64) -> Vec<u8> {
    let mut about = who.to_vec();
    about.extend(ENDPOINT.to_le_bytes());
    about.extend(endpoint.to_le_bytes());
    about.extend(1u32.to_le_bytes());
    about.extend(NONCE);
    about.extend(nonce);
    about.extend(says.to_le_bytes());
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    hmac::sign(&key, &about).as_ref().to_vec()
}

fn hello(endpoint: u32) -> Vec<u8> {
    let mut hello = b"Tako\x01\0\0\0".to_vec();
    hello.extend(endpoint.to_le_bytes());
    hello.extend(1u32.to_le_bytes());
    hello.extend(NONCE);
    hello
}

impl Liar {
    fn new(queue: &mut Queue) -> (Liar, EndpointId) {
        let (liar, id, proved) = Liar::with_secret(queue, None);
        assert!(proved);
        (liar, id)
    }

    /// Dials, and proves that it knows the secret, or something else; returns whether it is welcome.
    fn with_secret(queue: &mut Queue, other: Option<[u8; 32]>) -> (Liar, EndpointId, bool) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (id, told) = queue.offer().unwrap();
        let told = told.bytes;
        let port = u16::from_le_bytes([told[6], told[7]]);
        let secret = other.unwrap_or_else(|| told[32..64].try_into().unwrap());
        let mut own = b"Tako\x01\0".to_vec();
        own.extend(listener.local_addr().unwrap().port().to_le_bytes());
        own.extend(ENDPOINT.to_le_bytes());
        own.extend(OUTSTANDING.to_le_bytes());
        own.extend(Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
        own.extend([3; 32]);
        own.extend(8u32.to_le_bytes());
        own.extend(1000u32.to_le_bytes());
        let own = fabric::Parameters {
            bytes: own,
            descriptors: Vec::new(),
        };
        queue.accept(id, Role::Listener, peer(own)).unwrap();
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut liar = Liar {
            stream,
            _listener: listener,
        };
        liar.say(&hello(id.0));
        let challenge = liar.hear(queue, 72).unwrap();
        assert_eq!(challenge[0], 1);
        let nonce = &challenge[8..40];
        let proof = prove(&[3; 32], b"listener", id.0, nonce, 0);
        assert_eq!(&challenge[40..], proof);
        liar.say(&0u64.to_le_bytes());
        liar.say(&prove(&secret, b"dialer  ", id.0, nonce, 0));
        let welcome = liar.hear(queue, 8);
        (liar, id, welcome.is_some_and(|bytes| bytes == [0; 8]))
    }

    fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// So many bytes, while the queue is polled; nothing if the connection ends.
    fn hear(&mut self, queue: &mut Queue, count: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        let mut done = 0;
        let start = Instant::now();
        let mut events = Vec::new();
        while done < count {
            queue.poll(&mut events);
            assert!(events.is_empty(), "{events:?}");
            match self.stream.read(&mut bytes[done..]) {
                Ok(0) => return None,
                Ok(taken) => done += taken,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
            assert!(start.elapsed() < PATIENCE);
        }
        Some(bytes)
    }
}

/// A frame's heads: its kind and flags, length, number, acknowledgement, credits and immediate.
fn head(kind: u8, flags: u8, length: u32, number: u64, acknowledged: u64) -> Vec<u8> {
    let mut bytes = vec![kind, flags, 0, 0];
    bytes.extend(length.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(acknowledged.to_le_bytes());
    bytes.extend([0; 8]);
    bytes
}

fn with(mut head: Vec<u8>, operands: [u64; 4]) -> Vec<u8> {
    for operand in operands {
        head.extend(operand.to_le_bytes());
    }
    head
}

/// A liar's message, and the end of its endpoint.
fn refused(name: &str, lie: impl Fn(u64) -> Vec<u8>) {
    let (device, mut queue) = open_with(options(), QueueOptions::default());
    let (_other_device, mut other) = open();
    let (_, honest) = join(&mut other, &mut queue);
    let region = Region::memory(4096, false).unwrap();
    let memory = device
        .register(&region, Access::READ | Access::WRITE)
        .unwrap();
    let (mut liar, id) = Liar::new(&mut queue);
    liar.say(&lie(memory.key().0));
    until(name, &mut [&mut queue], |_, event| match event {
        Event::Lost(lost, failure) => {
            assert_eq!((lost, failure), (id, Failure::Violation), "{name}");
            true
        }
        Event::Message(_) => false,
        other => panic!("{name}: {other:?}"),
    });
    let mut found = vec![0; 4096];
    region.read(0, &mut found);
    assert!(found.iter().all(|byte| *byte == 0), "{name}");
    assert_eq!(device.counters().refused, 1, "{name}");
    exchange(&mut queue, honest, &mut other);
    // Its last frame reports it.
    let mut last = Vec::new();
    let mut events = Vec::new();
    let start = Instant::now();
    loop {
        queue.poll(&mut events);
        match liar.stream.read_to_end(&mut last) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{name}"),
        }
        assert!(start.elapsed() < PATIENCE, "{name}");
    }
    assert_eq!(last[last.len() - 64], 10, "{name}");
}

#[test]
fn frames_that_lie_end_their_endpoint_and_no_other() {
    refused("an unknown kind", |_| head(77, 0, 0, 0, 0));
    refused("junk", |_| vec![0xa5; 5000]);
    refused("a number too high", |_| head(1, 0, 0, 1, 0));
    refused("an acknowledgement of nothing", |_| head(9, 0, 0, 0, 1));
    refused("a message too long", |_| head(1, 0, 4097, 0, 0));
    refused("more messages than credits", |_| {
        let window = u64::from(QueueOptions::default().window);
        (0..=window)
            .flat_map(|number| head(1, 0, 0, number, 0))
            .collect()
    });
    refused("an answer to nothing", |_| head(6, 0, 0, 0, 0));
    refused("an atomic answer to nothing", |_| {
        with(head(7, 0, 0, 0, 0), [0, 0, 5, 0])
    });
    refused("more reads than said", |key| {
        let reads = 0..u64::from(OUTSTANDING) + 1;
        reads
            .flat_map(|number| with(head(3, 0, 0, number, 0), [key, 0, 64, 0]))
            .collect()
    });
    refused("a read of too much", |key| {
        with(head(3, 0, 0, 0, 0), [key, 0, u64::MAX, 0])
    });
}

#[test]
fn requests_for_what_is_not_allowed_end_their_endpoint_and_no_other() {
    refused("a key that opens nothing", |key| {
        with(head(3, 0, 0, 0, 0), [key ^ 1 << 40, 0, 8, 0])
    });
    refused("a range that is too long", |key| {
        with(head(3, 0, 0, 0, 0), [key, 4000, 97, 0])
    });
    refused("a range that wraps", |key| {
        with(head(2, 0, 8, 0, 0), [key, u64::MAX - 3, 0, 0])
    });
    refused("an atomic that is not allowed", |key| {
        with(head(5, 0, 0, 0, 0), [key, 0, 1, 0])
    });
    refused("a write that is too long", |key| {
        let mut write = with(head(2, 0, 4097, 0, 0), [key, 0, 0, 0]);
        write.extend([1; 4097]);
        write
    });
}

#[test]
fn credits_that_were_never_given_end_the_endpoint() {
    let (_device, mut queue) = open();
    let (mut liar, id) = Liar::new(&mut queue);
    let mut credit = head(8, 0, 0, 0, 0);
    credit[24] = 3;
    liar.say(&credit);
    until(
        "the end",
        &mut [&mut queue],
        |_, event| matches!(event, Event::Lost(lost, Failure::Violation) if lost == id),
    );
}

#[test]
fn a_frame_that_never_ends_is_nothing_and_its_buffer_comes_back() {
    let (device, mut queue) = open_with(
        options(),
        QueueOptions {
            window: 1,
            endpoints: 1,
            ..QueueOptions::default()
        },
    );
    let (mut liar, id) = Liar::new(&mut queue);
    liar.say(&head(1, 0, 4000, 0, 0));
    liar.say(&[1; 3000]);
    let mut events = Vec::new();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        queue.poll(&mut events);
        assert!(events.is_empty());
    }
    drop(liar);
    until(
        "the end",
        &mut [&mut queue],
        |_, event| matches!(event, Event::Lost(lost, Failure::PeerLost) if lost == id),
    );
    assert_eq!(device.counters().cut, 1);
    // There is but one buffer.
    let (_other_device, mut other) = open();
    let (to_queue, _) = join(&mut other, &mut queue);
    exchange(&mut other, to_queue, &mut queue);
}

#[test]
fn a_peer_without_the_secret_is_refused() {
    let (device, mut queue) = open();
    let (_liar, _, proved) = Liar::with_secret(&mut queue, Some([8; 32]));
    assert!(!proved);
    let counters = device.counters();
    assert_eq!((counters.joined, counters.unproved), (0, 1));
}

#[test]
fn connections_without_proof_are_dropped_and_delay_no_other() {
    let soon = TcpOptions {
        prove_within: Duration::from_secs(1),
        ..options()
    };
    let (device, mut queue) = open_with(soon, QueueOptions::default());
    let port = {
        let (id, told) = queue.offer().unwrap();
        queue.close(id);
        u16::from_le_bytes([told.bytes[6], told.bytes[7]])
    };
    let many = 3 * options().unproved;
    let mut connections: Vec<TcpStream> = Vec::new();
    for number in 0..many {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        match number % 3 {
            // It sends nothing.
            0 => {}
            1 => stream.write_all(&[0x5a; 4096]).unwrap(),
            // An endpoint that is not.
            _ => stream.write_all(&hello(77)).unwrap(),
        }
        connections.push(stream);
    }
    let (_other_device, mut other) = open();
    let (to_queue, _) = join(&mut other, &mut queue);
    exchange(&mut other, to_queue, &mut queue);
    // Their time ends, and they do.
    let mut events = Vec::new();
    for stream in &mut connections {
        stream.set_nonblocking(true).unwrap();
        let start = Instant::now();
        loop {
            queue.poll(&mut events);
            match stream.read(&mut [0; 100]) {
                Ok(0) => break,
                Err(error) if error.kind() != ErrorKind::WouldBlock => break,
                _ => assert!(start.elapsed() < PATIENCE),
            }
        }
    }
    let counters = device.counters();
    assert!(
        counters.unproved >= 2 * many as u64 / 3 && counters.joined == 1,
        "{counters:?}"
    );
}

#[test]
fn datagrams_without_a_buffer_and_strange_ones_are_counted() {
    let layout = QueueOptions {
        group_buffers: 1,
        ..QueueOptions::default()
    };
    let (device, mut queue): (Tcp, Queue) = open_with(options(), layout);
    let (_other_device, mut other) = open();
    let group = GroupId(1);
    let address = GroupAddress {
        listens: true,
        is_unchecked: false,
        address: Ipv4Addr::new(239, 77, 1, 1),
        port: 7078,
        interface: Ipv4Addr::LOCALHOST,
    };
    queue.join(group, address).unwrap();
    other.join(group, address).unwrap();
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for length in [0, 1, 15, 16, 1000, 5000] {
        let to = (address.address, address.port);
        stranger.send_to(&vec![7; length], to).unwrap();
    }
    for number in 0..3 {
        let text = Source::Inline(b"to all");
        other.send_to_group(group, text, number).unwrap();
    }
    let mut held = Vec::new();
    let mut events = Vec::new();
    let start = Instant::now();
    while device.counters().unbuffered < 2 {
        queue.poll(&mut events);
        held.append(&mut events);
        assert!(start.elapsed() < PATIENCE, "{:?}", device.counters());
    }
    assert_eq!(held.len(), 1);
    assert_eq!(device.counters().strange, 6);
    // Its own messages do not return; the buffer does.
    held.clear();
    queue
        .send_to_group(group, Source::Inline(b"mine"), 1)
        .unwrap();
    other
        .send_to_group(group, Source::Inline(b"again"), 4)
        .unwrap();
    until("a message", &mut [&mut queue], |_, event| match event {
        Event::Message(message) => {
            assert_eq!(
                (message.immediate, message.to_vec()),
                (Some(4), b"again".to_vec())
            );
            true
        }
        other => panic!("{other:?}"),
    });
}
