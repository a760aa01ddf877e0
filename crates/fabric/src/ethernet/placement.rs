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
//! `fetch` describes reads, which aim at the reader's own memory. Several of one endpoint can be aimed at, one after the other.

use std::collections::VecDeque;
use std::ops::Range;

use parking_lot::Mutex;
use pmem::Region;
use xdp::{DataSocket, Descriptor, Hardware, Port, Shape, SharedAim};

use super::payload::Payload;
use super::protection::{Protection, Sealing};
use super::shared::{Shared, tag};
use crate::{EndpointId, Key, Registration};

#[cfg(all(test, feature = "fuzzing"))]
mod tests;

/// Bytes of a block.
pub const BLOCK: u32 = 4096;
/// Blocks that are aimed at once.
pub const BLOCKS_MAX: u32 = 256;
/// Entries of the rings: all descriptors of these blocks, received or sent.
pub const RING: u32 = 1024;
/// Runs begin below this number.
const NUMBERS: u32 = 1 << 31;
/// Space that the kernel keeps in front of a frame.
const HEADROOM: u64 = 256;
/// The header that stays in front of a frame without stripping.
const HEADER: u64 = 16;
/// Blocks in a step of a seal.
pub const STEP: u32 = 16;

/// A run of blocks that is aimed at.
struct Aim {
    run: Run,
    /// Number of the first frame.
    first: u32,
    /// Descriptors with data that has landed.
    landed: u32,
    /// Bytes before the first block, where a header arrives. They are restored once.
    saved: Option<[u8; HEADER as usize]>,
    /// The seal of blocks that have landed, and how many: from the last one down.
    sealing: Option<Sealing>,
    sealed: u32,
}

/// A run that is to be aimed at again.
struct Paused {
    owner: (u32, EndpointId),
    aim: Aim,
    /// Whether aiming again was tried and was not possible yet.
    is_waiting: bool,
}

/// The part of a port that places data.
pub struct Placement {
    socket: Option<DataSocket>,
    /// Thread and endpoint of all aims.
    owner: (u32, EndpointId),
    /// In the order of their frames.
    aims: VecDeque<Aim>,
    /// Runs of any owners that are to be aimed at again.
    paused: Vec<Paused>,
    /// A frame has landed elsewhere.
    is_astray: bool,
    /// Number of the next frame that is aimed at.
    next: u32,
    /// Something was aimed at by the socket of a separate queue since it was opened.
    is_aimed: bool,
    /// Frames that the socket of a separate queue was given to send, until it reports them.
    sending: VecDeque<u64>,
}

/// Progress of the frames of an aim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    All,
    /// This frame, counted from the first one, is expected.
    Expects(u32),
    /// Something landed where it does not belong, or was taken and lost, or nothing is aimed: it must be aimed again.
    Astray,
}

/// Where the frames of a run begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aimed {
    /// Number of the first frame.
    pub first: u32,
    /// Frames without content that have to precede it: on one queue, the descriptors in front of those that are aimed.
    pub front: u32,
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
    fn new(run: Run) -> Aim {
        Aim {
            run,
            first: 0,
            landed: 0,
            saved: None,
            sealing: None,
            sealed: 0,
        }
    }

    /// Descriptors that are to be aimed at: those behind whole blocks that have landed.
    fn begin(&mut self, shared: &Shared, shape: Shape) -> Range<u32> {
        let mut saved = [0; HEADER as usize];
        shared.region.read(self.run.offset - HEADER, &mut saved);
        self.saved = Some(saved);
        self.landed..self.pieces(shape)
    }

    /// Frames of the whole blocks that have landed.
    fn kept(&self, shape: Shape) -> u32 {
        self.landed / shape.pieces() * shape.frames()
    }

    fn frames(&self, shape: Shape) -> u32 {
        self.run.blocks * shape.frames()
    }

    fn pieces(&self, shape: Shape) -> u32 {
        self.run.blocks * shape.pieces()
    }

    /// All its data has come.
    fn is_whole(&self, shape: Shape) -> bool {
        self.landed == self.pieces(shape)
    }

    /// Where the data of a descriptor goes, and how much it is.
    fn target(&self, shape: Shape, piece: u32) -> (u64, u32) {
        let block = self.run.blocks - 1 - piece / shape.pieces();
        let (at, bytes) = shape.piece(piece % shape.pieces());
        (self.run.offset + u64::from(block * BLOCK + at), bytes)
    }

    /// Adds blocks that have landed to the seal: as many steps as there are, or the last blocks, too.
    fn add_to_seal(&mut self, shared: &Shared, shape: Shape, protection: &Protection) {
        let landed = self.landed / shape.pieces();
        let mut sealing = self
            .sealing
            .take()
            .unwrap_or_else(|| protection.begin_seal());
        while self.sealed + STEP <= landed || (self.sealed < landed && self.is_whole(shape)) {
            let count = STEP.min(landed - self.sealed);
            let end = self.run.blocks - self.sealed;
            add_blocks(&mut sealing, end, count, |block, into| {
                let at = self.run.offset + u64::from(block * BLOCK);
                shared.region.read(at, into);
            });
            self.sealed += count;
        }
        self.sealing = Some(sealing);
    }

    /// Where the memory of a descriptor begins.
    fn fill(&self, shape: Shape, piece: u32) -> u64 {
        let header = if shape.is_stripped() { 0 } else { HEADER };
        self.target(shape, piece).0 - header - HEADROOM
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
            owner: (0, EndpointId(0)),
            aims: VecDeque::new(),
            paused: Vec::new(),
            is_astray: false,
            next: 0,
            is_aimed: false,
            sending: VecDeque::new(),
        }
    }

    fn socket(&mut self, port: &Mutex<Port>) -> Option<&mut DataSocket> {
        if self.socket.is_none()
            && let Ok(socket) = port.lock().data_socket(RING)
        {
            self.open(socket);
        }
        self.socket.as_mut()
    }

    /// Uses a new socket, which has nothing aimed.
    fn open(&mut self, socket: DataSocket) {
        self.socket = Some(socket);
        self.is_aimed = false;
        // A run of the socket before cannot become whole.
        self.is_astray = !self.aims.is_empty();
    }

    /// Closes the socket of a separate queue. It reports none of the frames that it has not reported yet.
    fn close(&mut self, shared: &Shared) {
        self.socket = None;
        for address in self.sending.drain(..) {
            shared.sent(address);
        }
    }

    /// Aims at a run of blocks. Nothing is returned if something else is aimed at, or waits for that.
    pub fn aim(
        &mut self,
        shared: &Shared,
        shape: Shape,
        owner: (u32, EndpointId),
        run: Run,
    ) -> Option<Aimed> {
        if self.paused.iter().any(|it| it.is_waiting) {
            return None;
        }
        let mut aim = Aim::new(run);
        let aimed = self.aim_rest(shared, shape, owner, &mut aim)?;
        self.aims.push_back(aim);
        Some(aimed)
    }

    /// Aims at the blocks of a run that have not landed.
    fn aim_rest(
        &mut self,
        shared: &Shared,
        shape: Shape,
        owner: (u32, EndpointId),
        aim: &mut Aim,
    ) -> Option<Aimed> {
        if !self.aims.is_empty() {
            return None;
        }
        if self.is_astray {
            self.withdraw_all(shared);
        }
        // The place of a frame in its block follows from its number, which must not wrap within a run.
        let first = match self.next {
            0..NUMBERS => self.next.next_multiple_of(shape.frames()),
            _ => 0,
        };
        let front = if shared.is_on_one_queue() {
            self.aim_on_one_queue(shared, shape, owner, (aim, first))?
        } else {
            let count = self.fill(shared, shape, aim, first)?;
            let port = shared.port.lock();
            port.lane()?.open(aim.run.source, first, count);
            0
        };
        self.owner = owner;
        // Only now: the number of a run that is refused remains.
        aim.first = first.wrapping_sub(aim.kept(shape));
        let first = aim.first;
        Some(Aimed { first, front })
    }

    /// The same on one queue. Descriptors in front.
    fn aim_on_one_queue(
        &mut self,
        shared: &Shared,
        shape: Shape,
        owner: (u32, EndpointId),
        (aim, first): (&mut Aim, u32),
    ) -> Option<u32> {
        self.discard(shared);
        let pieces = aim.begin(shared, shape);
        let addresses: Vec<u64> = pieces.map(|piece| aim.fill(shape, piece)).collect();
        let frames = SharedAim {
            source: aim.run.source,
            first,
            count: aim.frames(shape) - aim.kept(shape),
            tag: tag(owner.0),
        };
        let front = shared.port.lock().aim(frames, &addresses)?;
        self.next = first.wrapping_add(frames.count);
        Some(front)
    }

    /// Nothing is aimed at any more.
    fn withdraw_all(&mut self, shared: &Shared) {
        if !shared.is_on_one_queue() {
            if self.is_aimed {
                // The kernel forgets its descriptors with the socket.
                self.close(shared);
            }
            self.is_astray = self.socket.is_none();
            return;
        }
        let is_aimed = |address| !shared.is_for_frames(address);
        let is_withdrawn = shared.port.lock().withdraw(is_aimed);
        self.discard(shared);
        self.is_astray = !is_withdrawn;
    }

    /// Takes what has landed for runs that have ended.
    fn discard(&mut self, shared: &Shared) {
        let Some(socket) = self.socket.as_mut().map(DataSocket::socket) else {
            return;
        };
        while let Some(descriptor) = socket.receive() {
            shared.give_back(descriptor);
        }
        socket.received();
    }

    /// The same, also after runs of this owner. Headers must not reach memory: they would cover the end of another run.
    pub fn aim_next(
        &mut self,
        shared: &Shared,
        shape: Shape,
        owner: (u32, EndpointId),
        run: Run,
    ) -> Option<Aimed> {
        if self.aims.is_empty() {
            return self.aim(shared, shape, owner, run);
        }
        if shared.is_on_one_queue() {
            return None;
        }
        let aimed: u32 = self.aims.iter().map(|aim| aim.pieces(shape)).sum();
        let count = run.blocks * shape.frames();
        let has_room =
            aimed + run.blocks * shape.pieces() <= RING && self.next < NUMBERS && !self.is_astray;
        if !has_room || self.owner != owner || !shape.is_stripped() || self.socket.is_none() {
            return None;
        }
        let first = self.next;
        let mut aim = Aim::new(run);
        self.fill(shared, shape, &mut aim, first)?;
        aim.first = first;
        self.aims.push_back(aim);
        shared.port.lock().lane()?.extend(count);
        Some(Aimed { first, front: 0 })
    }

    /// Gives the memory of a run to the kernel, in the order of its frames. Number of these.
    fn fill(&mut self, shared: &Shared, shape: Shape, aim: &mut Aim, first: u32) -> Option<u32> {
        let socket = self.socket(&shared.port)?;
        let count = aim.frames(shape) - aim.kept(shape);
        for piece in aim.begin(shared, shape) {
            socket.fill(aim.fill(shape, piece));
        }
        socket.filled();
        self.is_aimed = true;
        self.next = first.wrapping_add(count);
        Some(count)
    }

    /// Counts the frames that have come, each for the first run that lacks one.
    fn drain(&mut self, shared: &Shared, shape: Shape) {
        let Some(socket) = self.socket.as_mut().map(DataSocket::socket) else {
            self.is_astray = true;
            return;
        };
        let header = if shape.is_stripped() { 0 } else { HEADER };
        let mut aims = self.aims.iter_mut().peekable();
        while let Some(descriptor) = socket.receive() {
            while aims.next_if(|aim| aim.is_whole(shape)).is_some() {}
            let is_given_back = shared.give_back(descriptor);
            let Some(aim) = aims.peek_mut().filter(|_| !is_given_back) else {
                self.is_astray = true;
                continue;
            };
            let (target, bytes) = aim.target(shape, aim.landed);
            self.is_astray |= descriptor.start() + header != target
                || u64::from(descriptor.length) != u64::from(bytes) + header;
            aim.landed += 1;
        }
        socket.received();
    }

    /// Arrived part of an owner's run with this first frame. Nothing if there is none.
    pub fn progress(
        &mut self,
        shared: &Shared,
        shape: Shape,
        owner: (u32, EndpointId),
        first: u32,
    ) -> Option<Progress> {
        let mut paused = self.paused.iter();
        if paused.any(|it| it.owner == owner && it.aim.first == first) {
            return Some(Progress::Astray);
        }
        if self.owner != owner {
            return None;
        }
        // Read before the frames that it counts.
        let expected = shared.port.lock().lane()?.expected();
        self.drain(shared, shape);
        let aim = self.aims.iter().find(|aim| aim.first == first)?;
        let count = aim.frames(shape);
        Some(if self.is_astray {
            Progress::Astray
        } else if aim.is_whole(shape) {
            Progress::All
        } else {
            // Earlier runs may not have all of theirs.
            let taken = (expected.wrapping_sub(first) as i32).max(0) as u32;
            Progress::Expects(taken.min(count))
        })
    }

    /// Adds blocks that have landed to the seals of their runs, while others are on their way. `protection` is that of the owner's peer.
    pub fn add_to_seals(
        &mut self,
        shared: &Shared,
        shape: Shape,
        protection: impl FnOnce((u32, EndpointId)) -> Option<Protection>,
    ) {
        if self.aims.is_empty() {
            return;
        }
        if let Some(protection) = protection(self.owner) {
            self.drain(shared, shape);
            for aim in &mut self.aims {
                aim.add_to_seal(shared, shape, &protection);
            }
        }
    }

    /// The seal of an owner's whole run with this first frame.
    pub fn seal(
        &mut self,
        shared: &Shared,
        shape: Shape,
        (owner, first): ((u32, EndpointId), u32),
        (protection, request): (&Protection, u64),
    ) -> Option<[u8; 32]> {
        let is_it = |aim: &&mut Aim| self.owner == owner && aim.first == first;
        let aim = self.aims.iter_mut().find(is_it)?;
        aim.add_to_seal(shared, shape, protection);
        Some(aim.sealing.take()?.end(request))
    }

    /// The run of an owner with this first frame has ended.
    pub fn finish(&mut self, shared: &Shared, shape: Shape, owner: (u32, EndpointId), first: u32) {
        let is_it = |aim: &Aim| self.owner == owner && aim.first == first;
        let Some(aim) = self.aims.iter().position(is_it) else {
            return;
        };
        if let Some(mut aim) = self.aims.remove(aim) {
            self.end(shared, shape, &mut aim);
            shared.port.lock().resume();
        }
    }

    /// All runs of an owner have ended.
    pub fn finish_all(&mut self, shared: &Shared, shape: Shape, owner: (u32, EndpointId)) {
        self.paused.retain(|it| it.owner != owner);
        if self.owner == owner {
            while let Some(mut aim) = self.aims.pop_front() {
                self.end(shared, shape, &mut aim);
                shared.port.lock().resume();
            }
        }
    }

    fn end(&mut self, shared: &Shared, shape: Shape, aim: &mut Aim) {
        let is_whole = aim.is_whole(shape);
        if (!is_whole || self.aims.is_empty())
            && let Some(lane) = shared.port.lock().lane()
        {
            lane.close();
        }
        if !is_whole {
            self.withdraw_all(shared);
        }
        // After the last header that may arrive there, and only once: another component may write there later.
        if let Some(saved) = aim.saved.take().filter(|_| !shape.is_stripped()) {
            shared.region.write(aim.run.offset - HEADER, &saved);
        }
    }

    /// Whether a run of any owner is aimed at.
    pub fn is_in_use(&self) -> bool {
        !self.aims.is_empty()
    }

    /// Descriptors in front of those that are aimed.
    pub fn front(&self, shared: &Shared) -> u32 {
        match shared.is_on_one_queue() {
            true => shared.port.lock().front().unwrap_or(0),
            false => 0,
        }
    }

    /// The same with all runs, if one is aimed at by this key.
    pub fn withdraw(&mut self, shared: &Shared, shape: Shape, key: Key) {
        self.paused.retain(|it| it.aim.run.key != key);
        if self.aims.iter().any(|aim| aim.run.key == key) {
            self.finish_all(shared, shape, self.owner);
        }
    }

    /// Aims an owner's only run again, without the whole blocks that have landed unless its data is wrong. Returns the frame that is
    /// expected, too, counted from the first one; nothing if that is not possible yet.
    pub fn aim_again(
        &mut self,
        shared: &Shared,
        shape: Shape,
        owner: (u32, EndpointId),
        first: u32,
    ) -> Option<(Aimed, u32)> {
        let mut aim = self.take(shared, shape, owner, first)?;
        let again = self.aim_rest(shared, shape, owner, &mut aim);
        shared.port.lock().resume();
        let kept = aim.kept(shape);
        match again {
            Some(_) => self.aims.push_back(aim),
            // Others are aimed at, or the kernel frees the queue a little later.
            None => self.paused.push(Paused {
                owner,
                aim,
                is_waiting: true,
            }),
        }
        Some((again?, kept))
    }

    /// Aims at nothing for an owner's only run until it is aimed again.
    pub fn pause(&mut self, shared: &Shared, shape: Shape, owner: (u32, EndpointId), first: u32) {
        if let Some(aim) = self.take(shared, shape, owner, first) {
            self.paused.push(Paused {
                owner,
                aim,
                is_waiting: false,
            });
            shared.port.lock().resume();
        }
    }

    /// Takes a run out, at which nothing is aimed any more.
    fn take(
        &mut self,
        shared: &Shared,
        shape: Shape,
        owner: (u32, EndpointId),
        first: u32,
    ) -> Option<Aim> {
        let is_paused = |it: &Paused| it.owner == owner && it.aim.first == first;
        if let Some(index) = self.paused.iter().position(is_paused) {
            return Some(self.paused.swap_remove(index).aim);
        }
        let is_it = |aim: &Aim| self.owner == owner && aim.first == first;
        let index = self.aims.iter().position(is_it)?;
        let mut aim = self.aims.remove(index)?;
        if self.is_astray || aim.is_whole(shape) || !shared.is_on_one_queue() {
            // Its data is not what was sent, even if all of it has come. On two queues the kernel has lost a frame, so those behind it may
            // have been misplaced.
            let saved = aim.saved;
            aim = Aim {
                first,
                saved,
                ..Aim::new(aim.run)
            };
        }
        aim.landed -= aim.landed % shape.pieces();
        self.end(shared, shape, &mut aim);
        Some(aim)
    }

    /// Whether there is room to send so many descriptors.
    pub fn has_room(&mut self, port: &Mutex<Port>, count: u32) -> bool {
        self.socket(port)
            .is_some_and(|socket| socket.socket().has_room(count))
    }

    /// Gives a part of a frame to the kernel, for which there is room.
    pub fn transmit(&mut self, shared: &Shared, descriptor: Descriptor) {
        if let Some(socket) = &mut self.socket {
            socket.socket().transmit(descriptor);
            // On one queue the port reports it.
            if !shared.is_on_one_queue() {
                self.sending.push_back(descriptor.address);
            }
        }
    }

    /// Lets the kernel send the submitted frames, and takes back those it has sent.
    pub fn flush(&mut self, shared: &Shared) {
        let Some(socket) = &mut self.socket else {
            return;
        };
        socket.socket().flush();
        while let Some(address) = socket.completed() {
            // Usually the oldest one.
            if let Some(at) = self.sending.iter().position(|found| *found == address) {
                self.sending.remove(at);
                shared.sent(address);
            }
        }
    }
}

/// Whether a run of blocks of registered memory can be placed.
pub fn is_placeable(shared: &Shared, memory: &Registration, offset: u64, bytes: u64) -> bool {
    let is_pool = memory.region().address(0, 1) == shared.region.address(0, 1);
    let block = u64::from(BLOCK);
    is_pool && offset.is_multiple_of(block) && is_run(shared, offset, bytes)
}

/// Whether these bytes of the pool, or of the memory for reads behind it, can be aimed at once.
pub fn is_run(shared: &Shared, offset: u64, bytes: u64) -> bool {
    let block = u64::from(BLOCK);
    bytes.is_multiple_of(block)
        && (1..=u64::from(BLOCKS_MAX)).contains(&(bytes / block))
        && offset >= block
        && offset + bytes <= shared.pool_bytes
}

/// The seal of a run of a region.
pub fn seal_of_region(
    protection: &Protection,
    request: u64,
    region: &Region,
    offset: u64,
    bytes: u32,
) -> [u8; 32] {
    seal(protection, request, bytes / BLOCK, |block, into| {
        region.read(offset + u64::from(block * BLOCK), into);
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
    seal(protection, request, bytes / BLOCK, |block, into| {
        data.gather(from + block * BLOCK, into)
    })
}

fn seal(
    protection: &Protection,
    request: u64,
    blocks: u32,
    mut read: impl FnMut(u32, &mut [u8]),
) -> [u8; 32] {
    let mut sealing = protection.begin_seal();
    let mut end = blocks;
    while end > 0 {
        let count = STEP.min(end);
        add_blocks(&mut sealing, end, count, &mut read);
        end -= count;
    }
    sealing.end(request)
}

/// Adds so many blocks below a number to a seal, the last one first.
fn add_blocks(sealing: &mut Sealing, end: u32, count: u32, mut read: impl FnMut(u32, &mut [u8])) {
    sealing.add((count * BLOCK) as usize, |buffer| {
        let blocks = buffer.chunks_exact_mut(BLOCK as usize);
        for (block, into) in (end - count..end).rev().zip(blocks) {
            read(block, into);
        }
    });
}
