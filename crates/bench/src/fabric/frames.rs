//! Frames alone: the plainest loop over AF_XDP sockets, as the limit of the transport over Ethernet. Blocks are received where they
//! belong. Nothing is numbered but by the XDP program, authenticated, copied, or sent again.

use std::time::Instant;

use pmem::Region;
use xdp::{
    DataSocket, Descriptor, Hardware, Interface, Mode, Modes, PlacedOptions, Port, PortOptions,
    Shape, Socket,
};

use super::{PATIENCE, Placement, with_far};
use crate::Error;

/// Blocks of a transfer, at most.
const BLOCKS_MAX: u64 = 256;
const BLOCK: u64 = 4096;
/// Bytes for a frame, of every shape, and where the kernel puts what it receives.
const CHUNK: u64 = 4096;
const HEADROOM: u64 = 256;
const HEADER: u64 = 16;
/// Memory for blocks, after one that headers reach into. Then that for received commands, for the sent one, and for sent data.
const COMMANDS: u64 = (BLOCKS_MAX + 1) * BLOCK;
const COMMAND: u64 = COMMANDS + 64 * CHUNK;
const DATA: u64 = COMMAND + CHUNK;
const FRAMES: u64 = 256;
/// A jumbo frame is longer than its chunk.
const LENGTH: u64 = DATA + (FRAMES + 1) * CHUNK;
const RING: u32 = 1024;
const COMMAND_BYTES: u32 = 256;
/// Frames that are given to the kernel in one call.
const BATCH: u32 = 64;
const TYPES: [u16; 2] = [0x8000, 0x8001];
const TAG: u16 = 1;
/// Polls between two looks at the clock.
const POLLS: u32 = 1 << 16;

/// One side of a cable, in its network namespace.
pub struct RawEnd {
    port: Port,
    socket: Socket,
    data: DataSocket,
    shape: Shape,
    /// Number of the next frame of data.
    next: u32,
}

/// Both sides of a cable.
pub struct RawFrames {
    pub near: RawEnd,
    pub far: RawEnd,
}

fn failed(error: xdp::Error) -> Error {
    Error::Fabric(error.to_string())
}

impl RawEnd {
    /// The side of this thread's network namespace.
    pub fn open(interface: &str, shape: Shape) -> Result<RawEnd, Error> {
        let interface = Interface::named(interface).map_err(failed)?;
        let region = Region::memory(LENGTH, false)?;
        region.populate();
        let options = PortOptions {
            queue: 0,
            types: TYPES,
            chunk: shape.chunk(),
            ring: RING,
            sockets: 4,
            modes: Modes::Only(Mode::NativeCopy),
            placed: Some(PlacedOptions { queue: 1, shape }),
        };
        let mut port = Port::open(&interface, &region, &options).map_err(failed)?;
        for chunk in 0..64 {
            port.fill(COMMANDS + chunk * CHUNK);
        }
        port.filled();
        let socket = port.socket(RING).map_err(failed)?;
        port.direct(TAG, &socket).map_err(failed)?;
        let data = port.data_socket(RING).map_err(failed)?;
        Ok(RawEnd {
            port,
            socket,
            data,
            shape,
            next: 0,
        })
    }

    fn hardware(&self) -> Hardware {
        self.port.interface().hardware
    }

    /// Writes the headers of all frames, which go to this address.
    fn address_to(&self, to: Hardware) {
        let [data, command] = TYPES.map(u16::to_be_bytes);
        let region = self.port.region();
        let header = [&to.0[..], &self.hardware().0, &command, &TAG.to_be_bytes()].concat();
        region.write(COMMAND, &header);
        let header = [&to.0[..], &self.hardware().0, &data].concat();
        (0..FRAMES).for_each(|frame| region.write(DATA + frame * CHUNK, &header));
    }

    fn say(&mut self) {
        while self.port.completed().is_some() {}
        self.socket.transmit(Descriptor {
            address: COMMAND,
            length: COMMAND_BYTES,
            options: 0,
        });
        self.socket.flush();
    }

    fn hear(&mut self) -> Result<(), Error> {
        let descriptor = awaited(|| self.socket.receive())?;
        self.socket.received();
        self.port.fill(descriptor.base() / CHUNK * CHUNK);
        self.port.filled();
        Ok(())
    }

    /// The next so many blocks are received where they belong.
    fn aim(&mut self, from: Hardware, blocks: u32) {
        let header = if self.shape.is_stripped() { 0 } else { HEADER };
        let pieces = self.shape.pieces();
        for piece in 0..blocks * pieces {
            let block = u64::from(blocks - piece / pieces);
            let (at, _) = self.shape.piece(piece % pieces);
            let target = block * BLOCK + u64::from(at);
            self.data.fill(target - header - HEADROOM);
        }
        self.data.filled();
        let count = blocks * self.shape.frames();
        if let Some(lane) = self.port.lane() {
            lane.open(from, self.next, count);
        }
        self.next += count;
    }

    fn await_blocks(&mut self, blocks: u32) -> Result<(), Error> {
        for _ in 0..blocks * self.shape.pieces() {
            awaited(|| self.data.socket().receive())?;
        }
        self.data.socket().received();
        Ok(())
    }

    fn send_frame(&mut self, address: u64, bytes: u32) {
        let header = HEADER as u32;
        let mut transmit = |address, length, options| {
            self.data.socket().transmit(Descriptor {
                address,
                length,
                options,
            });
        };
        if self.shape == Shape::Jumbo {
            transmit(address, header, Descriptor::CONTINUES);
            transmit(address + HEADER, bytes, 0);
        } else {
            transmit(address, header + bytes, 0);
        }
    }

    fn send_blocks(&mut self, blocks: u32) {
        let end = self.next + blocks * self.shape.frames();
        while self.next < end {
            while self.data.completed().is_some() {}
            for number in self.next..end.min(self.next + BATCH) {
                let address = DATA + u64::from(number) % FRAMES * CHUNK;
                let tag = 0x8000 | (number as u16 & 0x7fff);
                self.port
                    .region()
                    .write(address + HEADER - 2, &tag.to_be_bytes());
                let (_, bytes) = self.shape.segment(number % self.shape.frames());
                self.send_frame(address, bytes);
            }
            self.next = end.min(self.next + BATCH);
            self.data.socket().flush();
        }
    }
}

/// What comes, polling all the time.
fn awaited<T>(mut poll: impl FnMut() -> Option<T>) -> Result<T, Error> {
    let start = Instant::now();
    loop {
        for _ in 0..POLLS {
            if let Some(found) = poll() {
                return Ok(found);
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > PATIENCE {
            return Err(Error::Fabric("a frame was lost".into()));
        }
    }
}

impl RawFrames {
    /// Two sides of a cable.
    pub fn of(near: RawEnd, far: RawEnd) -> RawFrames {
        near.address_to(far.hardware());
        far.address_to(near.hardware());
        RawFrames { near, far }
    }

    /// The time of a command there and one back, in ns.
    pub fn ping(&mut self, count: u64) -> Result<Vec<f64>, Error> {
        self.together(
            count,
            |far| far.hear().map(|()| far.say()),
            |near| {
                near.say();
                near.hear()
            },
        )
    }

    /// The time of blocks there and a command back, in ns.
    pub fn write(&mut self, count: u64, bytes: usize) -> Result<Vec<f64>, Error> {
        let blocks = (bytes as u64 / BLOCK) as u32;
        let from = self.near.hardware();
        self.far.aim(from, blocks);
        let landed = move |far: &mut RawEnd| {
            far.await_blocks(blocks)?;
            far.aim(from, blocks);
            far.say();
            Ok(())
        };
        let took = self.together(count, landed, |near| {
            near.send_blocks(blocks);
            near.hear()
        });
        // What is aimed at still.
        self.near.send_blocks(blocks);
        self.far.await_blocks(blocks)?;
        took
    }

    /// The time of a command there and blocks back, in ns.
    pub fn read(&mut self, count: u64, bytes: usize) -> Result<Vec<f64>, Error> {
        let blocks = (bytes as u64 / BLOCK) as u32;
        let from = self.far.hardware();
        let serve = move |far: &mut RawEnd| {
            far.hear()?;
            far.send_blocks(blocks);
            Ok(())
        };
        self.together(count, serve, |near| {
            near.aim(from, blocks);
            near.say();
            near.await_blocks(blocks)
        })
    }

    fn together(
        &mut self,
        count: u64,
        mut far_step: impl FnMut(&mut RawEnd) -> Result<(), Error> + Send,
        mut near_step: impl FnMut(&mut RawEnd) -> Result<(), Error>,
    ) -> Result<Vec<f64>, Error> {
        let RawFrames { near, far } = self;
        let took = with_far(
            Placement::Apart,
            || (0..count).try_for_each(|_| far_step(far)),
            || {
                let start = Instant::now();
                (0..count).try_for_each(|_| near_step(near))?;
                Ok(start.elapsed().as_nanos() as f64)
            },
        )?;
        Ok(vec![took / count as f64])
    }
}
