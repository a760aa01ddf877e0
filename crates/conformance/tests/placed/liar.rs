//! A peer that is no transport: it sends any packets (`docs/ETHERNET.md` draws them), and nothing else.

use fabric::ethernet::{FrameFaults, Shape};
use fabric::{Access, Export, Failure, Parameters, Peer, QueueOptions, Role, Work, WorkRequest};
use pmem::Region;
use pmem::checksum::crc32c_of;
use xdp::{Descriptor, Interface, Modes, Port, PortOptions};

use super::super::link::INTERFACE;
use super::super::suite::Side;
use super::{BLOCK, Placing};

const HEADER: usize = 72;
const CHECK: usize = 16;
/// Kind of a packet with data of a read.
const DATA: u8 = 6;

/// The first packet to an endpoint.
fn packet(source: [u8; 6], hello: &[u8], kind: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = [&hello[8..14], &source, &[0x80, 0]].concat();
    // Numbers of greetings have the other order.
    frame.extend([hello[15], hello[14], 2, kind, 0, 0]);
    frame.extend((body.len() as u32).to_le_bytes());
    frame.extend(&hello[4..8]);
    frame.resize(HEADER - CHECK, 0);
    let check = crc32c_of(&[&frame, body]);
    frame.extend(check.to_le_bytes());
    frame.resize(HEADER, 0);
    [&frame, body].concat()
}

/// If the read ended with it, frames could land in its memory when that is used for something else.
#[test]
fn data_in_packets_for_a_read_that_is_aimed_at_is_a_violation() {
    let mut setup = Placing::new(Shape::Strip, FrameFaults::default());
    setup.options.authenticated = false;
    let mut near = Side::new(&setup, QueueOptions::default());
    let pool = setup.pools.borrow()[0].clone();
    let memory = near.device.register(&pool, Access::ALL).unwrap();
    let (to_liar, ours) = near.queue.offer().unwrap();

    setup.link.enter(1);
    let interface = Interface::named(INTERFACE).unwrap();
    let source = interface.hardware.0;
    let region = Region::memory(64 * 2048, false).unwrap();
    let layout = PortOptions {
        queue: 0,
        types: setup.options.types,
        chunk: 2048,
        ring: 64,
        sockets: 1,
        modes: Modes::Fastest,
        placed: None,
    };
    let port = Port::open(&interface, &region, &layout).unwrap();
    let mut socket = port.socket(64).unwrap();
    let mut theirs = ours.bytes.clone();
    theirs[8..14].copy_from_slice(&source);
    let peer = Peer {
        parameters: Parameters {
            bytes: theirs,
            descriptors: Vec::new(),
        },
        address: None,
        process: None,
    };
    near.queue.accept(to_liar, Role::Dialer, peer).unwrap();
    let export = Export {
        descriptor: memory.descriptor(),
        memory: None,
    };
    let remote = near.queue.import(to_liar, export).unwrap();
    let into = [memory.piece(BLOCK, BLOCK as u32)];
    let read = Work::Read {
        into: &into,
        from: remote.at(BLOCK),
    };
    near.queue
        .post(to_liar, &WorkRequest::new(1, read))
        .unwrap();
    near.queue.submit();

    // Of the first request, from its beginning.
    let body = [&[0; 12], &[7; 1000][..]].concat();
    let lie = packet(source, &ours.bytes, DATA, &body);
    region.write(0, &lie);
    let frame = Descriptor {
        address: 0,
        length: lie.len() as u32,
        options: 0,
    };
    assert!(socket.transmit(frame) && socket.flush());
    let start = std::time::Instant::now();
    while near.lost.is_empty() {
        near.poll();
        assert!(start.elapsed().as_secs() < 20, "it is not found");
    }
    assert_eq!(near.lost, [(to_liar, Failure::Violation)]);
}
