//! Data that is received where it belongs: the receiver aims its descriptors at the blocks, and the XDP program takes the frame
//! that is expected next, or none.
//!
//! ```text
//!   sender                              receiver
//!   Aim: 1 to 256 blocks there   ───►   may it? aims 3 descriptors at each block, opens the lane
//!                                ◄───   Aimed: numbers from here
//!   3 frames for each block      ═══►   they land in the blocks; a lost one closes the lane to those behind it
//!                                ◄───   Resend: from this number
//!   Placed: seal                 ───►   all there? the seal right? then it is acknowledged
//! ```

use parking_lot::Mutex;
use pmem::Region;
use xdp::{DataSocket, Descriptor, Hardware, Port, Shape};

use super::payload::Payload;
use super::shared::Shared;
use super::wire::Protection;
use crate::{EndpointId, Key, Registration};

/// Bytes of a block.
pub const BLOCK: u32 = 4096;
/// Blocks that are aimed at once.
pub const BLOCKS_MAX: u32 = 256;
/// Entries of the rings: all frames of these blocks.
pub const RING: u32 = 1024;
/// Runs begin below this number.
const NUMBERS: u32 = 1 << 31;
/// Space that the kernel keeps in front of a frame.
const HEADROOM: u64 = 256;
/// The header that stays in front of a frame without stripping.
const HEADER: u64 = 16;
/// Bytes that are hashed in one step.
const STEP: usize = 64 << 10;

/// Present aim.
struct Aim {
    owner: (u32, EndpointId),
    key: Key,
    offset: u64,
    blocks: u32,
    source: Hardware,
    /// Number of the first frame.
    first: u32,
    /// Frames that have landed.
    landed: u32,
    /// Bytes before the first block, where a header arrives.
    saved: [u8; HEADER as usize],
}

/// The part of a port that places data.
pub struct Placement {
    socket: Option<DataSocket>,
    aim: Option<Aim>,
    /// Number of the next frame that is aimed at.
    next: u32,
}

/// Progress of the frames of an aim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    All,
    /// This frame, counted from the first one, is expected.
    Expects(u32),
    /// Something landed where it does not belong, or was taken and lost: it must be aimed again.
    Astray,
}

/// A run of blocks that an endpoint's peer places.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub key: Key,
    pub offset: u64,
    pub blocks: u32,
    pub source: Hardware,
}

impl Aim {
    fn frames(&self, shape: Shape) -> u32 {
        self.blocks * shape.frames()
    }

    /// Where the data of a frame goes, and how much it is.
    fn target(&self, shape: Shape, frame: u32) -> (u64, u32) {
        let (at, bytes) = place(shape, self.blocks, frame);
        (self.offset + u64::from(at), bytes)
    }

    /// Where the memory for a frame begins.
    fn fill(&self, shape: Shape, frame: u32) -> u64 {
        let header = if shape.is_stripped() { 0 } else { HEADER };
        self.target(shape, frame).0 - header - HEADROOM
    }
}

/// Where in a run of blocks the data of a frame goes: from the highest address down.
pub fn place(shape: Shape, blocks: u32, frame: u32) -> (u32, u32) {
    let block = blocks - 1 - frame / shape.frames();
    let (at, bytes) = shape.segment(frame % shape.frames());
    (block * BLOCK + at, bytes)
}

impl Placement {
    pub fn new(socket: DataSocket) -> Placement {
        Placement {
            socket: Some(socket),
            aim: None,
            next: 0,
        }
    }

    fn socket(&mut self, port: &Mutex<Port>) -> Option<&mut DataSocket> {
        if self.socket.is_none() {
            self.socket = port.lock().data_socket(RING).ok();
        }
        self.socket.as_mut()
    }

    /// Aims at a run of blocks. The number of the first frame; nothing if something else is aimed at.
    pub fn aim(
        &mut self,
        shared: &Shared,
        shape: Shape,
        owner: (u32, EndpointId),
        run: Run,
    ) -> Option<u32> {
        if self.aim.is_some() {
            return None;
        }
        // The place of a frame in its block follows from its number, which must not wrap within a run.
        let first = match self.next {
            0..NUMBERS => self.next.next_multiple_of(shape.frames()),
            _ => 0,
        };
        let mut saved = [0; HEADER as usize];
        shared.region.read(run.offset - HEADER, &mut saved);
        let aim = Aim {
            owner,
            key: run.key,
            offset: run.offset,
            blocks: run.blocks,
            source: run.source,
            first,
            landed: 0,
            saved,
        };
        let count = aim.frames(shape);
        let socket = self.socket(&shared.port)?;
        for frame in 0..count {
            socket.fill(aim.fill(shape, frame));
        }
        socket.filled();
        let port = shared.port.lock();
        port.lane()?.open(run.source, first, count);
        self.next = first.wrapping_add(count);
        self.aim = Some(aim);
        Some(first)
    }

    /// Arrived part of an owner's aim. Nothing if there is none.
    pub fn progress(
        &mut self,
        shared: &Shared,
        shape: Shape,
        owner: (u32, EndpointId),
    ) -> Option<Progress> {
        let aim = self.aim.as_mut().filter(|aim| aim.owner == owner)?;
        let Some(socket) = self.socket.as_mut().map(DataSocket::socket) else {
            return Some(Progress::Astray);
        };
        let count = aim.frames(shape);
        let expected = shared.port.lock().lane()?.expected();
        let mut is_astray = false;
        while let Some(descriptor) = socket.receive() {
            let (target, bytes) = match aim.landed < count {
                true => aim.target(shape, aim.landed),
                false => (0, 0),
            };
            let header = if shape.is_stripped() { 0 } else { HEADER };
            is_astray |= descriptor.start() + header != target
                || u64::from(descriptor.length) != u64::from(bytes) + header;
            aim.landed += 1;
        }
        socket.received();
        let taken = expected.wrapping_sub(aim.first);
        Some(if is_astray || taken > count {
            Progress::Astray
        } else if aim.landed == count {
            Progress::All
        } else {
            Progress::Expects(taken)
        })
    }

    /// An owner's aim has ended successfully.
    pub fn finish(&mut self, shared: &Shared, shape: Shape, owner: (u32, EndpointId)) {
        let Some(aim) = self.aim.take_if(|aim| aim.owner == owner) else {
            return;
        };
        restore(shared, shape, &aim);
        if aim.landed != aim.frames(shape) {
            // An aim is withdrawn only with the socket.
            self.socket = None;
        }
    }

    /// The same with whatever uses a key.
    pub fn withdraw(&mut self, shared: &Shared, shape: Shape, key: Key) {
        if let Some(aim) = self.aim.as_ref().filter(|aim| aim.key == key) {
            let owner = aim.owner;
            self.finish(shared, shape, owner);
        }
    }

    /// Aims an owner's blocks again. Nothing is returned if that is not possible yet.
    pub fn aim_again(
        &mut self,
        shared: &Shared,
        shape: Shape,
        owner: (u32, EndpointId),
    ) -> Option<u32> {
        let aim = self.aim.as_ref().filter(|aim| aim.owner == owner)?;
        let run = Run {
            key: aim.key,
            offset: aim.offset,
            blocks: aim.blocks,
            source: aim.source,
        };
        restore(shared, shape, aim);
        self.socket = None;
        let astray = self.aim.take();
        let first = self.aim(shared, shape, owner, run);
        if first.is_none() {
            // The kernel frees the queue a little later: until then the aim is astray.
            self.aim = astray;
        }
        first
    }

    /// Gives a frame to the kernel; whether there was room.
    pub fn transmit(&mut self, port: &Mutex<Port>, descriptor: Descriptor) -> bool {
        self.socket(port)
            .is_some_and(|socket| socket.socket().transmit(descriptor))
    }

    /// Lets the kernel send the submitted frames, and takes back those it has sent.
    pub fn flush(&mut self, mut sent: impl FnMut(u64)) {
        if let Some(socket) = &mut self.socket {
            socket.socket().flush();
            while let Some(address) = socket.completed() {
                sent(address);
            }
        }
    }
}

/// Nothing more is accepted, and bytes covered by a header are restored.
fn restore(shared: &Shared, shape: Shape, aim: &Aim) {
    if let Some(lane) = shared.port.lock().lane() {
        lane.close();
    }
    if !shape.is_stripped() {
        shared.region.write(aim.offset - HEADER, &aim.saved);
    }
}

/// Whether a run of blocks of registered memory can be placed.
pub fn is_placeable(shared: &Shared, memory: &Registration, offset: u64, bytes: u64) -> bool {
    let is_pool = memory.region().address(0, 1) == shared.region.address(0, 1);
    let block = u64::from(BLOCK);
    is_pool
        && offset.is_multiple_of(block)
        && bytes.is_multiple_of(block)
        && (1..=u64::from(BLOCKS_MAX)).contains(&(bytes / block))
        && offset >= block
        && offset + bytes <= shared.pool_bytes
}

/// The seal of a run that has landed.
pub fn seal_of_region(
    protection: &Protection,
    request: u64,
    region: &Region,
    offset: u64,
    bytes: u32,
) -> [u8; 32] {
    seal(protection, request, bytes, |at, into| {
        region.read(offset + u64::from(at), into);
    })
}

/// The seal of a run that is sent.
pub fn seal_of_payload(
    protection: &Protection,
    request: u64,
    data: &Payload,
    from: u32,
    bytes: u32,
) -> [u8; 32] {
    seal(protection, request, bytes, |at, into| {
        data.gather(from + at, into)
    })
}

fn seal(
    protection: &Protection,
    request: u64,
    bytes: u32,
    mut read: impl FnMut(u32, &mut [u8]),
) -> [u8; 32] {
    let mut buffer = vec![0; STEP.min(bytes as usize)];
    let mut sealing = protection.begin_seal(request);
    let mut at = 0;
    while at < bytes {
        let count = (bytes - at).min(STEP as u32) as usize;
        read(at, &mut buffer[..count]);
        sealing.update(&buffer[..count]);
        at += count as u32;
    }
    sealing.end()
}
