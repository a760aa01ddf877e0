//! A host that sends any frames, and receives them, without the transport.

use fabric::{Parameters, Peer};
use pmem::Region;
use pmem::checksum::crc32c_of;
use xdp::{
    DataSocket, Descriptor, Interface, Modes, PlacedOptions, Port, PortOptions, Shape, Socket,
};

use super::link::INTERFACE;

/// EtherTypes of data and of commands.
const DATA: [u8; 2] = [0x80, 0x00];
pub const COMMAND: [u8; 2] = [0x80, 0x01];
pub const HEADER: usize = 72;
const CHECK: usize = 16;
const CHUNK: u64 = 2048;
/// Memory for so many frames that are received, and as many that are sent.
const FRAMES: u64 = 256;

/// Packet of a peer without authentication; `docs/ETHERNET.md` draws it.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    pub kind: u8,
    pub flags: u8,
    pub sequence: u64,
    pub body: &'a [u8],
}

/// The interface of a host, with sockets.
pub struct RawHost {
    pub hardware: [u8; 6],
    region: Region,
    port: Port,
    socket: Socket,
    data: Option<DataSocket>,
    next: u64,
}

impl RawHost {
    /// Attaches to the interface of the thread's namespace; with a queue for data of blocks, if one is given.
    pub fn open(data: Option<(u32, Shape)>) -> RawHost {
        let interface = Interface::named(INTERFACE).unwrap();
        let region = Region::memory(2 * FRAMES * CHUNK, false).unwrap();
        let layout = PortOptions {
            queue: 0,
            types: [0x8000, 0x8001],
            chunk: CHUNK as u32,
            ring: FRAMES as u32,
            sockets: 3,
            modes: Modes::Fastest,
            placed: data.map(|(queue, shape)| PlacedOptions { queue, shape }),
        };
        let mut port = Port::open(&interface, &region, &layout).unwrap();
        for frame in 0..FRAMES {
            assert!(port.fill(frame * CHUNK));
        }
        port.filled();
        let socket = port.socket(FRAMES as u32).unwrap();
        port.direct(1, &socket).unwrap();
        let data = data.map(|_| port.data_socket(FRAMES as u32).unwrap());
        RawHost {
            hardware: interface.hardware.0,
            region,
            port,
            socket,
            data,
            next: 0,
        }
    }

    /// The greeting of this host to a transport with this greeting.
    pub fn peer(&self, greeting: &Parameters) -> Peer {
        let mut bytes = greeting.bytes.clone();
        bytes[8..14].copy_from_slice(&self.hardware);
        Peer {
            parameters: Parameters {
                bytes,
                descriptors: Vec::new(),
            },
            address: None,
            process: None,
        }
    }

    fn write(&mut self, frame: &[u8]) -> Descriptor {
        let address = (FRAMES + self.next % FRAMES) * CHUNK;
        self.next += 1;
        self.region.write(address, frame);
        Descriptor {
            address,
            length: frame.len() as u32,
            options: 0,
        }
    }

    /// Sends a frame by the queue of commands.
    pub fn send(&mut self, frame: &[u8]) {
        let descriptor = self.write(frame);
        assert!(self.socket.transmit(descriptor) && self.socket.flush());
        while self.port.completed().is_some() {}
    }

    /// Sends a packet to an endpoint with this greeting.
    pub fn tell(&mut self, greeting: &Parameters, packet: Packet<'_>) {
        let frame = self.packet(&greeting.bytes, packet);
        self.send(&frame);
    }

    /// Sends a frame by the queue of data.
    pub fn send_data(&mut self, frame: &[u8]) {
        let descriptor = self.write(frame);
        let data = self.data.as_mut().expect("a queue for data");
        assert!(data.socket().transmit(descriptor) && data.socket().flush());
        while data.completed().is_some() {}
        while self.port.completed().is_some() {}
    }

    /// Frames that have come.
    pub fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some(descriptor) = self.socket.receive() {
            let mut frame = vec![0; descriptor.length as usize];
            self.region.read(descriptor.start(), &mut frame);
            assert!(self.port.fill(descriptor.base() / CHUNK * CHUNK));
            frames.push(frame);
        }
        self.socket.received();
        self.port.filled();
        frames
    }

    /// A packet with a valid checksum.
    fn packet(&self, hello: &[u8], packet: Packet<'_>) -> Vec<u8> {
        let mut frame = [&hello[8..14], &self.hardware, &COMMAND[..]].concat();
        // Numbers of greetings have the other order.
        frame.extend([hello[15], hello[14], 4, packet.kind, packet.flags, 0]);
        frame.extend((packet.body.len() as u32).to_le_bytes());
        frame.extend(&hello[4..8]);
        frame.extend(7u32.to_le_bytes());
        frame.extend(packet.sequence.to_le_bytes());
        frame.resize(HEADER - CHECK, 0);
        let check = crc32c_of(&[&frame, packet.body]);
        frame.extend(check.to_le_bytes());
        frame.resize(HEADER, 0);
        [&frame, packet.body].concat()
    }

    /// The frame of data with this number.
    pub fn data(&self, to: &Parameters, number: u32, segment: &[u8]) -> Vec<u8> {
        let tag = 0x8000 | (number & 0x7fff) as u16;
        let head = [&to.bytes[8..14], &self.hardware, &DATA[..]].concat();
        [&head, &tag.to_be_bytes()[..], segment].concat()
    }
}

impl RawHost {
    /// A frame without content.
    pub fn empty(&self, to: &Parameters) -> Vec<u8> {
        let head = [&to.bytes[8..14], &self.hardware, &COMMAND[..]].concat();
        [&head[..14], &[0x80, 0], &[0; 48]].concat()
    }
}

/// Kind of a received packet, its sequence, and its body.
pub fn parts(frame: &[u8]) -> (u8, u64, &[u8]) {
    let sequence = frame[32..40]
        .first_chunk()
        .map(|it| u64::from_le_bytes(*it));
    (frame[17], sequence.unwrap(), &frame[HEADER..])
}
