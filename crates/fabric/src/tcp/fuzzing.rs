//! Data of an authenticated connection, parsed as a link does.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;

use pmem::Region;
use zerocopy::IntoBytes;

use super::frame::{HEAD_BYTES, HEADS_BYTES, parse};
use super::group;
use super::input::{End, Shared, Supplied};
use super::link::{Link, Other, State};
use super::proof::{Hello, Introduction};
use crate::{
    Access, EndpointId, Limits, RegionDescriptor, Registration, RemoteRegion, Report, Request,
    Role, Supply, Table, Work,
};

/// Stands for the key of the accessible memory: no input knows its value.
const KEY: [u8; 8] = *b"the key!";
const MEMORY: u64 = 4096;
const BUFFERS: u32 = 3;
const BUFFER: u32 = 64;
const PEER: EndpointId = EndpointId(0);

/// The beginning, parsed as each possible type.
pub fn heads(input: &[u8]) {
    if let Ok(Some(frame)) = parse(input) {
        let mut bytes = [0; HEADS_BYTES];
        let length = frame.write(&mut bytes);
        assert_eq!(bytes[..length], input[..length]);
    }
    if let Some(told) = Introduction::parse(input) {
        assert_eq!(told.as_bytes(), input);
    }
    if let Some(hello) = Hello::parse(input) {
        assert_eq!(hello.as_bytes(), input);
    }
    if group::parse(input).is_some() {
        assert!(input.len() <= group::HEAD_BYTES + group::MESSAGE_BYTES);
    }
}

/// All that a connection brings, frame by frame.
pub fn connection(input: &[u8]) {
    let region = Region::memory(2 * MEMORY, false).expect("memory");
    let table = Table::default();
    let memory = table
        .insert(&region, 0..region.length(), Access::ALL)
        .expect("a key");
    let mut input = input.to_vec();
    for at in 0..input.len().saturating_sub(KEY.len() - 1) {
        if input[at..].starts_with(&KEY) {
            input[at..at + KEY.len()].copy_from_slice(&memory.key().0.to_le_bytes());
        }
    }
    let (mut near, far) = UnixStream::pair().expect("a pair of sockets");
    near.set_nonblocking(true).expect("a socket");
    far.set_nonblocking(true).expect("a socket");
    // Bytes that do not fit into the socket are left out.
    let _ = near.write(&input);
    drop(near);

    let mut link = joined(&memory);
    link.connection = Some(far.into());
    let mut free = buffers(&memory);
    let mut reports = Vec::new();
    let mut rounds = 0;
    loop {
        let received = link.receive(&mut Shared {
            table: &table,
            free: &mut free,
            reports: &mut reports,
        });
        match received {
            Ok(_) => rounds += 1,
            Err(End::Cut | End::Refuse(..) | End::Ended) => break,
        }
        assert!(rounds <= input.len() + 1, "it goes on for ever");
    }
    // A frame contains a message or credits, and of at most both own requests.
    assert!(reports.len() <= 2 * (input.len() / HEAD_BYTES) + 4);
    let arrivals = reports.iter().filter_map(|report| match report {
        Report::Received { buffer, .. } => buffer.as_ref(),
        _ => None,
    });
    let lengths: Vec<u32> = arrivals.map(|arrival| arrival.length).collect();
    assert!(lengths.iter().all(|length| (1..=BUFFER).contains(length)));
    assert!(lengths.len() + free.len() <= BUFFERS as usize);
}

/// A link that waits for the results of a read and an atomic.
fn joined(memory: &Registration) -> Link {
    let limits = Limits {
        outstanding: 4,
        window: BUFFERS,
        message_bytes: BUFFER,
    };
    let mut link = Link::new(PEER, limits, [0; 32]);
    link.state = State::Joined;
    link.other = Some(Other {
        role: Role::Dialer,
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        endpoint: 0,
        secret: [0; 32],
        outstanding: 4,
    });
    link.imports.push(RegionDescriptor {
        key: memory.key(),
        base: 0,
        length: MEMORY,
        access: Access::ALL,
    });
    let from = RemoteRegion {
        start: 0,
        endpoint: PEER,
        number: 0,
        length: MEMORY,
        access: Access::ALL,
    }
    .at(0);
    let into = [memory.piece(MEMORY, 16)];
    let operations = [
        Work::Read { into: &into, from },
        Work::FetchAndAdd {
            at: from,
            addend: 1,
        },
    ];
    for (sequence, operation) in (0..).zip(operations) {
        link.post(Request {
            sequence,
            signaled: true,
            operation: &operation,
            returned: 0,
        });
    }
    link
}

fn buffers(memory: &Registration) -> Vec<Supplied> {
    let buffer = |number| Supplied {
        supply: Supply::Endpoint(number),
        registration: memory.clone(),
        offset: MEMORY + u64::from((number + 1) * BUFFER),
        length: BUFFER,
    };
    (0..BUFFERS).map(buffer).collect()
}
