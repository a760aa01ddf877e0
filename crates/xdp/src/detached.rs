//! Sockets and a port over memory of this process, without an interface or the kernel: nothing arrives, and nothing leaves. Fuzz
//! targets and the tests of their corpus need no capabilities so.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use pmem::Region;
use rustix::net::xdp::XdpRingOffset;

use crate::bpf::{Link, SocketMap};
use crate::port::PortParts;
use crate::ring::{Consumer, Entry, Producer};
use crate::{DataSocket, Interface, Lane, Mode, Port, PortOptions, Socket};

/// Where the parts of a ring are.
const OFFSETS: XdpRingOffset = XdpRingOffset {
    producer: 0,
    consumer: 64,
    flags: Some(128),
    desc: 192,
};
/// Bytes of the memory of each ring and lane.
const BYTES: u64 = 4096;

fn memory() -> OwnedFd {
    let region = Region::memory(BYTES, false).expect("memory");
    region.share(true).expect("memory can be shared")
}

fn producer<T: Entry>(size: u32) -> Producer<T> {
    Producer::map(memory().as_fd(), 0, &OFFSETS, size).expect("it is mapped")
}

fn consumer<T: Entry>(size: u32) -> Consumer<T> {
    Consumer::map(memory().as_fd(), 0, &OFFSETS, size).expect("it is mapped")
}

impl Socket {
    /// A socket with rings of so many entries, 128 at most, and nothing behind them.
    pub fn detached(size: u32) -> Socket {
        Socket::of(consumer(size), producer(size), memory())
    }
}

impl DataSocket {
    /// The same for data.
    pub fn detached(size: u32) -> DataSocket {
        DataSocket::of(producer(size), consumer(size), Socket::detached(size))
    }
}

impl Port {
    /// A port without a program.
    pub fn detached(interface: &Interface, region: &Region, options: &PortOptions) -> Port {
        let lane = options
            .placed
            .map(|_| Arc::new(Lane::over(memory()).expect("it is mapped")));
        Port::of(PortParts {
            link: Link::detached(memory()),
            map: SocketMap::detached(memory()),
            fill: producer(options.ring),
            completion: consumer(options.ring),
            owner: memory(),
            region: region.clone(),
            interface: interface.clone(),
            mode: Mode::NativeCopy,
            lane,
            options: options.clone(),
        })
    }
}
