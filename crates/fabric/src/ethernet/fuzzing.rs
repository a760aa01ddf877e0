//! Frames of a peer, parsed and executed as a link does, without an interface.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pmem::Region;
use xdp::{DataSocket, Hardware, Interface, PlacedOptions, Port, PortOptions, Shape, Socket};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::input::{self, Fate};
use super::link::{Asked, Link, Other, Pending, State};
use super::local::{Local, Supplied, Target};
use super::payload::Payload;
use super::placement::Placement;
use super::protection::Protection;
use super::shared::{Member, Shared};
use super::wire::{HEADER_BYTES, Header, Hello, Kind, TYPES, UNSEQUENCED, VERSION, parse};
use super::{EthernetOptions, PlacedPool};
use crate::{Access, EndpointId, Registration, Report, Supply};

/// Stands for the key of the accessible memory: no input knows its value.
const KEY: [u8; 8] = *b"the key!";
const BLOCK: u64 = 4096;
/// Memory that peers reach, behind a block that they do not reach. Buffers and the memory of reads follow.
const MEMORY: std::ops::Range<u64> = BLOCK..9 * BLOCK;
const READS: u64 = 10 * BLOCK;
const POOL: u64 = 20 * BLOCK;
/// Entries of each ring.
const ENTRIES: u32 = 64;
/// Entries of the ring for received frames, and frames: more than a run and those in front of it need.
const RING: u32 = 256;
const FRAMES: u32 = 512;
/// Set in the flags of the first packet: data comes by the queue of all other frames.
const SHARED: u8 = 0x80;
/// Time between two packets.
const STEP: Duration = Duration::from_millis(2);
const BUFFERS: u32 = 3;
const BUFFER: u32 = 64;
/// Contents of the memory that must not change.
const UNTOUCHED: u8 = 0x5a;
const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Bytes in front of a packet's body in an input: length 2, kind, flags, number, acknowledged.
const HEAD: usize = 6;

/// The beginning, parsed as a frame and as a greeting.
pub fn frame(input: &[u8]) {
    if let Some(packet) = parse(input) {
        assert_eq!(packet.header.as_bytes(), &input[..HEADER_BYTES]);
        assert!(packet.body.len() <= input.len() - HEADER_BYTES);
        let _ = Protection::Checksum.is_right(&packet);
        let _ = Protection::Checksum.open(&mut input.to_vec());
    }
    if let Ok(hello) = Hello::read_from_bytes(input) {
        assert_eq!(hello.as_bytes(), input);
    }
}

/// Packets, one after the other, each with the right check.
pub fn packets(input: &[u8]) {
    // A bit of the first packet's flags that has no other meaning.
    let is_shared = input.get(3).is_some_and(|flags| flags & SHARED != 0);
    let (mut local, memory) = interface(is_shared);
    let mut link = joined(&local, &memory);
    let region = memory.region().clone();
    let mut input = input.to_vec();
    for at in 0..input.len().saturating_sub(KEY.len() - 1) {
        if input[at..].starts_with(&KEY) {
            input[at..at + KEY.len()].copy_from_slice(&memory.key().0.to_le_bytes());
        }
    }
    let (mut rest, mut count) = (&input[..], 0);
    let mut now = Instant::now();
    while let Some((head, behind)) = rest.split_first_chunk::<HEAD>() {
        let length = usize::from(u16::from_le_bytes([head[0], head[1]])).min(behind.len());
        let (body, after) = behind.split_at(length);
        rest = after;
        count += 1;
        let Some(mut frame) = packet(&link, head, body) else {
            continue;
        };
        if parse(&frame).is_none() {
            continue;
        }
        if input::take(&mut link, &mut local, &mut frame, now) == Fate::Goes {
            break;
        }
        link.transmit(&mut local, now);
        link.acknowledge(&mut local, now, true);
        now += STEP;
        link.check(&mut local, now);
    }
    check(&local, &link, &region, count);
}

/// Only what the peer may change has changed, and nothing was reported that did not happen.
fn check(local: &Local, link: &Link, region: &Region, packets: usize) {
    let reaches = |at: u64| MEMORY.contains(&at) || (READS..READS + 2 * BLOCK).contains(&at);
    let mut found = vec![0; POOL as usize];
    region.read(0, &mut found);
    let buffers = READS + 2 * BLOCK..READS + 3 * BLOCK;
    let wrong = (0..POOL)
        .find(|&at| !reaches(at) && !buffers.contains(&at) && found[at as usize] != UNTOUCHED);
    assert_eq!(wrong, None, "memory that peers do not reach has changed");
    // A packet is executed when it is next: it has credits and a message, and those behind it were kept.
    assert!(local.news.len() <= 3 * packets + 4);
    let arrivals = local.news.iter().filter_map(|report| match report {
        Report::Received { buffer, .. } => buffer.as_ref(),
        _ => None,
    });
    let lengths: Vec<u32> = arrivals.map(|arrival| arrival.length).collect();
    assert!(lengths.iter().all(|length| (1..=BUFFER).contains(length)));
    let coming = link.coming.iter().filter(|it| it.buffer.is_some()).count();
    let buffers = lengths.len() + local.free.len() + coming;
    assert_eq!(buffers, BUFFERS as usize, "a buffer is lost");
}

/// A frame with this head and body. Its number is near the one that the link expects.
pub(super) fn packet(link: &Link, head: &[u8; HEAD], body: &[u8]) -> Option<Vec<u8>> {
    let [_, _, kind, flags, number, acknowledged] = *head;
    let is_sequenced = Kind::from_byte(kind).is_none_or(Kind::is_sequenced);
    let sequence = match is_sequenced {
        true => {
            link.incoming
                .expected
                .wrapping_add_signed(i64::from(number as i8))
                & !UNSEQUENCED
        }
        false => UNSEQUENCED | u64::from(number),
    };
    let expected = link.outgoing.next();
    let mut header = Header::new_zeroed();
    header.source = SOURCE;
    header.version = VERSION;
    header.kind = kind;
    header.flags = flags;
    header.length = (body.len() as u32).into();
    header.immediate = 7.into();
    header.sequence = sequence.into();
    header.expected = expected.saturating_sub(u64::from(acknowledged % 8)).into();
    header.selective = u64::from(acknowledged / 8).into();
    header.check = Protection::Checksum.protect(&header, &mut body.to_vec());
    Some([header.as_bytes(), body].concat())
}

/// A thread at an interface that is not there, and the memory that peers reach. Data comes by the queue of all other frames, or by
/// another one.
pub(super) fn interface(is_shared: bool) -> (Local, Registration) {
    interface_with(is_shared, FRAMES)
}

/// The same with so many frames to receive.
pub(super) fn interface_with(is_shared: bool, frames: u32) -> (Local, Registration) {
    let mut options = EthernetOptions {
        authenticated: false,
        transports: 1,
        receive_frames: frames,
        shape: Shape::Strip,
        ..EthernetOptions::default()
    };
    let bytes = POOL + options.frame_memory();
    let region = Region::memory(bytes, false).expect("memory");
    region.write(0, &vec![UNTOUCHED; POOL as usize]);
    options.pool = Some(PlacedPool {
        region: region.clone(),
        queue: u32::from(!is_shared),
        read_bytes: 0,
    });
    let interface = Interface {
        name: "none".to_owned(),
        index: 1,
        hardware: Hardware([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        is_up: true,
        addresses: Vec::new(),
    };
    let layout = PortOptions {
        queue: 0,
        types: TYPES,
        chunk: options.shape.chunk(),
        ring: RING,
        sockets: 3,
        modes: options.modes,
        placed: Some(PlacedOptions {
            queue: u32::from(!is_shared),
            shape: options.shape,
        }),
    };
    let mut port = Port::detached(&interface, &region, &layout);
    if is_shared {
        for frame in 0..u64::from(frames) {
            assert!(port.fill(POOL + frame * u64::from(layout.chunk)));
        }
        port.filled();
    }
    let placement = Placement::new(DataSocket::detached(ENTRIES));
    let placement = Some((Mutex::new(placement), options.shape));
    let shared = Arc::new(Shared::over(options, port, placement, POOL));
    let memory = shared.table.insert(&region, MEMORY, Access::ALL);
    let socket = Socket::detached(ENTRIES);
    let member = Member::new(0, &socket).expect("a descriptor");
    let mut local = Local::new(&shared, socket, Arc::new(member));
    let memory = memory.expect("a key");
    for number in 0..BUFFERS {
        let offset = READS + 2 * BLOCK + u64::from(number * BUFFER);
        let piece = memory.piece(offset, BUFFER);
        local
            .free
            .push(Supplied::new(Supply::Endpoint(number), piece));
    }
    (local, memory)
}

/// A link that waits for the results of two reads and an atomic, and for the other side to aim at a write.
pub(super) fn joined(local: &Local, memory: &Registration) -> Link {
    let mut link = Link::new(EndpointId(0), [0; 32]);
    link.state = State::Ready;
    link.other = Some(Other {
        target: Target {
            hardware: SOURCE,
            tag: 1,
            endpoint: 0,
        },
        to: Protection::Checksum,
        from: Protection::Checksum,
        body_bytes: local.shared.frame_bytes as usize - HEADER_BYTES,
        places: Some(Shape::Strip),
    });
    let (key, offset) = (memory.key().0, MEMORY.start);
    let read = |at, length| Asked::Read {
        into: Payload::pieces(&[memory.piece(READS + at, length)]),
        at: 0,
        key,
        offset,
    };
    let asked = [
        read(0, 16),
        Asked::Atomic {
            kind: Kind::Add,
            key,
            offset,
            operand: 1,
            new: 0,
        },
        read(BLOCK, BLOCK as u32),
        Asked::Write {
            data: Payload::pieces(&[memory.piece(MEMORY.start, 2 * BLOCK as u32)]),
            at: 0,
            key,
            offset,
            immediate: None,
        },
    ];
    for (sequence, asked) in (0..).zip(asked) {
        link.requests.push_back(Pending {
            sequence,
            signaled: true,
            asked,
            last: None,
            answered: false,
            unplaced: false,
            value: 0,
        });
    }
    link
}
