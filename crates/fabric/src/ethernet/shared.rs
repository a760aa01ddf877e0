//! State that the threads of a process share of an interface: the port, its memory, and the groups that they have
//! joined.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU16, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pmem::Region;
use rustix::event::{EventfdFlags, eventfd};
use smallvec::SmallVec;
use xdp::{
    Descriptor, Hardware, Interface, Lane, Membership, Mode, PlacedOptions, Port, PortOptions,
    Shape, Socket,
};

use super::link::RESERVED;
use super::placement::{BLOCK, Placement, RING};
use super::{Counts, EthernetOptions, PlacedPool, count, wire};
use crate::{Access, Error, Failure, Key, Provider, ReadMemory, Registration, Table};

/// Bytes of a chunk that the kernel keeps in front of a received frame.
const HEADROOM: u32 = 256;
/// Frames that a thread can have on their way.
pub const TRANSMIT_FRAMES: u32 = 512;
/// Packets in flight that each peer may have, at least.
const WINDOW_LEAST: u8 = 8;
/// Greatest number of waiting entries for another thread of this process.
const INBOX_MAX: usize = 256;
/// Where the tag is in a frame.
const TAG_AT: usize = 14;
/// Least MTU: commands fit, and every packet has room for data.
const MTU_LEAST: u32 = 512;
/// Bytes of an Ethernet header, which the MTU does not count.
const ETHERNET_HEADER: u32 = 14;

/// The port of a process.
pub struct Shared {
    pub options: EthernetOptions,
    pub table: Table,
    pub counts: Counts,
    pub interface: Interface,
    pub mode: Mode,
    /// Bytes of the longest frame.
    pub frame_bytes: u32,
    pub region: Region,
    pub port: Mutex<Port>,
    /// Which frames of placed data are expected.
    pub lane: Option<Arc<Lane>>,
    /// State and shape of placed data.
    pub placement: Option<(Mutex<Placement>, Shape)>,
    /// Bytes of the region that are not for frames.
    pub pool_bytes: u64,
    /// Number of submissions of each transmit frame to the kernel.
    in_kernel: Vec<AtomicU16>,
    members: Mutex<Vec<Option<Arc<Member>>>>,
    /// Endpoints of all threads, by which the memory for received frames is divided.
    endpoints: AtomicI32,
    /// Owners of parts of the memory for reads.
    readers: Mutex<Vec<(Range<u64>, Weak<()>)>>,
}

/// A thread's place at the port.
pub struct Member {
    pub slot: u32,
    /// The socket, to direct frames of groups to.
    socket: OwnedFd,
    groups: Mutex<Vec<(u32, u16)>>,
    inbox: Mutex<VecDeque<Passed>>,
    /// Counts arrivals in the inbox.
    pub event: OwnedFd,
}

/// Data from one thread of this process to another one.
#[derive(Clone, Debug)]
pub enum Passed {
    Message(GroupMessage),
    /// A frame for the interface that it was sent by.
    Frame(Vec<u8>),
}

/// A message to a group.
#[derive(Clone, Debug)]
pub struct GroupMessage {
    pub address: u32,
    pub port: u16,
    pub immediate: u32,
    pub data: Vec<u8>,
}

/// A frame to be placed: numbers of transmit frames with its parts, and their bytes.
pub struct PlacedFrame(pub SmallVec<[(u32, u32); 2]>);

fn system(what: &str, source: rustix::io::Errno) -> Error {
    Error::System {
        what: what.to_owned(),
        source: source.into(),
        remedy: "raise the limit of open files",
    }
}

/// The interface with this name, if packets fit into its frames.
fn usable(name: &str, options: &EthernetOptions) -> Result<Interface, Error> {
    let interface = Interface::named(name)?;
    let is_on_one_queue = |pool: &PlacedPool| pool.queue == options.queue;
    if options.shape == Shape::Jumbo && options.pool.as_ref().is_some_and(is_on_one_queue) {
        let what = "jumbo frames on the queue of all other frames";
        return Err(Error::Unsupported {
            provider: Provider::Ethernet,
            what,
        });
    }
    let least = match options.pool {
        Some(_) => options.shape.mtu(),
        None => MTU_LEAST,
    };
    if interface.mtu < least {
        let (interface, mtu) = (interface.name, interface.mtu);
        return Err(xdp::Error::Mtu {
            interface,
            mtu,
            least,
        }
        .into());
    }
    Ok(interface)
}

/// The memory for frames, and how many bytes in front of them are the pool's.
fn memory(options: &EthernetOptions) -> Result<(Region, u64), Error> {
    let bytes = Shared::frame_memory(options);
    let Some(pool) = &options.pool else {
        return Ok((Region::memory(bytes, false)?, 0));
    };
    let too_short = Error::Memory {
        provider: Provider::Ethernet,
        memory: format!("{:?}", pool.region),
        reason: "it has no room for frames; make it longer by `EthernetOptions::frame_memory`",
    };
    let rest = pool.region.length().checked_sub(bytes).ok_or(too_short)?;
    let chunk = u64::from(options.shape.chunk());
    Ok((pool.region.clone(), rest / chunk * chunk))
}

impl Shared {
    pub fn open(options: EthernetOptions) -> Result<Shared, Error> {
        let Some(name) = &options.interface else {
            return Err(Error::NoInterface);
        };
        let interface = usable(name, &options)?;
        let receive = Shared::receive_frames(&options);
        let transports = options.transports.clamp(1, 64);
        let transmit = transports * TRANSMIT_FRAMES;
        let shape = match options.pool {
            Some(_) => options.shape,
            // Packets are as long as frames can be.
            None if interface.mtu >= Shape::Jumbo.mtu() => Shape::Jumbo,
            None => Shape::Strip,
        };
        let options = EthernetOptions {
            receive_frames: receive,
            transports,
            shape,
            ..options
        };
        let (region, pool_bytes) = memory(&options)?;
        let placed = options.pool.as_ref().map(|pool| PlacedOptions {
            queue: pool.queue,
            shape: options.shape,
        });
        let chunk = options.shape.chunk();
        let layout = PortOptions {
            queue: options.queue,
            types: options.types,
            chunk,
            ring: receive.max(transmit.next_power_of_two()),
            sockets: transports + 2,
            modes: options.modes,
            placed,
        };
        let mut port = Port::open(&interface, &region, &layout)?;
        for frame in 0..receive {
            port.fill(pool_bytes + u64::from(frame) * u64::from(chunk));
        }
        port.filled();
        let placement = match placed {
            Some(placed) => {
                let placement = Placement::new(port.data_socket(RING)?);
                Some((Mutex::new(placement), placed.shape))
            }
            None => None,
        };
        Ok(Shared::over(options, port, placement, pool_bytes))
    }

    /// Over an open port, with the state and the shape of placed data.
    pub fn over(
        options: EthernetOptions,
        port: Port,
        placement: Option<(Mutex<Placement>, Shape)>,
        pool_bytes: u64,
    ) -> Shared {
        let chunk = options.shape.chunk();
        let (interface, region) = (port.interface().clone(), port.region().clone());
        let transmit = options.transports * TRANSMIT_FRAMES;
        Shared {
            table: Table::default(),
            counts: Counts::default(),
            mode: port.mode(),
            frame_bytes: (interface.mtu + ETHERNET_HEADER).min(chunk - HEADROOM),
            in_kernel: (0..transmit).map(|_| AtomicU16::new(0)).collect(),
            members: Mutex::new((0..options.transports).map(|_| None).collect()),
            endpoints: AtomicI32::new(0),
            readers: Mutex::default(),
            lane: port.lane().cloned(),
            port: Mutex::new(port),
            placement,
            pool_bytes,
            interface,
            region,
            options,
        }
    }

    /// A part of the memory for reads that has no owner.
    pub fn read_memory(&self, bytes: u64) -> Option<ReadMemory> {
        let pool = self.options.pool.as_ref()?;
        let block = u64::from(BLOCK);
        let start = self.pool_bytes.checked_sub(pool.read_bytes)?;
        // A header or the kernel's headroom precedes a block.
        let mut start = start.next_multiple_of(block).max(block);
        let mut readers = self.readers.lock();
        readers.retain(|(_, owner)| owner.strong_count() > 0);
        let mut index = 0;
        // They are in order: the first gap that is long enough.
        for (part, _) in &*readers {
            if part.start >= start + bytes {
                break;
            }
            start = part.end.next_multiple_of(block);
            index += 1;
        }
        let end = start.checked_add(bytes)?;
        if end > self.pool_bytes {
            return None;
        }
        let owner = Arc::new(());
        readers.insert(index, (start..end, Arc::downgrade(&owner)));
        Some(ReadMemory {
            region: self.region.clone(),
            start,
            is_exact: self.options.shape.is_stripped(),
            owner,
        })
    }

    /// Whether placed data comes by the queue of all other frames.
    pub fn is_on_one_queue(&self) -> bool {
        let pool = self.options.pool.as_ref();
        pool.is_some_and(|pool| pool.queue == self.options.queue)
    }

    /// So many endpoints more.
    pub fn count_endpoints(&self, more: i32) {
        self.endpoints.fetch_add(more, Ordering::Relaxed);
    }

    /// Packets that each endpoint's peer may have in flight to it, as packets have it: otherwise peers that send first fill the memory, and
    /// frames of the others are lost again and again. 0 is no limit.
    pub fn window(&self) -> u8 {
        let memory = match self.is_on_one_queue() {
            true => Port::SHARED_LEVEL,
            false => self.options.receive_frames,
        };
        let endpoints = self.endpoints.load(Ordering::Relaxed).max(1) as u32;
        // The kernel and other frames need some, too.
        let share = memory / 2 / endpoints;
        u8::try_from(share).map_or(0, |share| share.max(WINDOW_LEAST))
    }

    /// On one queue: frames without content that have to precede data.
    pub fn front(&self) -> u32 {
        let placement = self.placement.as_ref();
        placement.map_or(0, |(placement, _)| placement.lock().front(self))
    }

    /// Whether an address is of the memory for frames.
    pub fn is_for_frames(&self, address: u64) -> bool {
        address >= self.pool_bytes
    }

    /// Takes the memory of a frame back that was received instead of data; whether it was one.
    pub fn give_back(&self, descriptor: Descriptor) -> bool {
        let is_for_frames = self.is_for_frames(descriptor.base());
        if is_for_frames {
            let chunk = descriptor.base() / self.chunk() * self.chunk();
            self.port.lock().fill(chunk);
        }
        is_for_frames
    }

    /// Frames that can wait to be received.
    fn receive_frames(options: &EthernetOptions) -> u32 {
        let frames = options.receive_frames.clamp(64, 1 << 16);
        frames.next_power_of_two()
    }

    /// Bytes of memory for frames.
    pub fn frame_memory(options: &EthernetOptions) -> u64 {
        let receive = Shared::receive_frames(options);
        let transmit = options.transports.clamp(1, 64) * TRANSMIT_FRAMES;
        u64::from(receive + transmit) * u64::from(options.shape.chunk())
    }

    /// A thread's socket and place.
    pub fn join(&self) -> Result<(Socket, Arc<Member>), Error> {
        let mut members = self.members.lock();
        let Some(slot) = members.iter().position(Option::is_none) else {
            let endpoints = members.len();
            return Err(Error::Full { endpoints });
        };
        let port = self.port.lock();
        let size = self.options.receive_frames.max(TRANSMIT_FRAMES);
        let socket = port.socket(size)?;
        let member = Arc::new(Member::new(slot as u32, &socket)?);
        port.direct(tag(slot as u32), &member.socket)?;
        members[slot] = Some(member.clone());
        self.lead(&members, &port);
        Ok((socket, member))
    }

    /// Frames of a group's address are received until the membership is dropped.
    pub fn listen(&self, address: u32) -> Result<Membership, Error> {
        let hardware = group_hardware(address);
        Ok(Membership::join(&self.interface, hardware)?)
    }

    /// Frames no longer arrive at this index. The rest in its socket's ring can be taken out after that.
    pub fn leave(&self, slot: u32) {
        let mut members = self.members.lock();
        members[slot as usize] = None;
        let port = self.port.lock();
        port.forget(tag(slot));
        self.lead(&members, &port);
    }

    /// Frames of groups go to the first place, which passes them on.
    fn lead(&self, members: &[Option<Arc<Member>>], port: &Port) {
        port.forget(wire::GROUP_TAG);
        if let Some(first) = members.iter().flatten().next() {
            // Without it groups lose everything, which they may.
            let _ = port.direct(wire::GROUP_TAG, &first.socket);
        }
    }

    /// Returns memory of received frames, and takes back that of sent frames. Returns whether the kernel must be woken
    /// up to use the memory.
    pub fn exchange(&self, received: &mut Vec<u64>) -> bool {
        let mut port = self.port.lock();
        for address in received.drain(..) {
            // On one queue a frame may have got memory that was aimed at: it is not for frames.
            if !self.is_for_frames(address) {
                continue;
            }
            let taken = port.fill(address / self.chunk() * self.chunk());
            debug_assert!(taken, "the ring has room for all frames");
        }
        let wake = port.filled();
        while let Some(address) = port.completed() {
            self.sent(address);
        }
        wake
    }

    /// The kernel has sent a frame.
    pub fn sent(&self, address: u64) {
        let chunk = (address - self.pool_bytes) / self.chunk();
        let frame = chunk - u64::from(self.options.receive_frames);
        self.in_kernel[frame as usize].fetch_sub(1, Ordering::Release);
    }

    /// Gives frames to the kernel that are placed: as many as there is room for. How many that is.
    pub fn transmit_placed(&self, frames: &[PlacedFrame]) -> usize {
        let Some((placement, _)) = &self.placement else {
            return 0;
        };
        let mut placement = placement.lock();
        let mut given = 0;
        for PlacedFrame(parts) in frames {
            if !placement.has_room(&self.port, parts.len() as u32) {
                break;
            }
            for (index, &(frame, length)) in parts.iter().enumerate() {
                let continues = index + 1 < parts.len();
                self.hand_over(frame);
                let descriptor = Descriptor {
                    address: self.address(frame),
                    length,
                    options: if continues { Descriptor::CONTINUES } else { 0 },
                };
                placement.transmit(self, descriptor);
            }
            given += 1;
        }
        placement.flush(self);
        given
    }

    /// Takes back placed frames that the kernel has sent, if no other thread does something with placed data.
    fn collect_placed(&self) {
        let placement = self.placement.as_ref();
        if let Some(mut placement) = placement.and_then(|(placement, _)| placement.try_lock()) {
            placement.flush(self);
        }
    }

    /// Does something with registered memory that a peer named, if it may. Memory for frames is none of it.
    pub fn with<R>(
        &self,
        key: Key,
        access: Access,
        offset: u64,
        length: u64,
        act: impl FnOnce(&Registration) -> R,
    ) -> Result<R, Failure> {
        let found = self.table.with(key, access, offset, length, |memory| {
            let is_region = memory.region().address(0, 1) == self.region.address(0, 1);
            (!is_region || offset + length <= self.pool_bytes).then(|| act(memory))
        });
        found.and_then(|done| done.ok_or(Failure::Access))
    }

    /// Bytes of the memory for one frame.
    pub fn chunk(&self) -> u64 {
        self.options.shape.chunk().into()
    }

    /// Transmit frames of a place.
    pub fn transmit_frames(&self, slot: u32) -> Range<u32> {
        slot * TRANSMIT_FRAMES..(slot + 1) * TRANSMIT_FRAMES
    }

    /// Where a transmit frame is in the memory.
    pub fn address(&self, frame: u32) -> u64 {
        self.pool_bytes + u64::from(self.options.receive_frames + frame) * self.chunk()
    }

    /// A transmit frame is given to the kernel.
    pub fn hand_over(&self, frame: u32) {
        self.in_kernel[frame as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The kernel did not take it.
    pub fn take_back(&self, frame: u32) {
        self.in_kernel[frame as usize].fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the kernel has nothing to do with a transmit frame.
    pub fn is_back(&self, frame: u32) -> bool {
        self.in_kernel[frame as usize].load(Ordering::Acquire) == 0
    }

    /// Gives a message to the members of its group in other threads of this process.
    pub fn pass_on(&self, from: u32, message: &GroupMessage) {
        let members = self.members.lock();
        for member in members.iter().flatten() {
            if member.slot != from && member.is_in(message.address, message.port) {
                member.put(Passed::Message(message.clone()));
            }
        }
    }
}

impl Shared {
    /// A run of so many frames has been placed here.
    pub fn count_placed(&self, frames: u32) {
        count(&self.counts.placed);
        let counter = &self.counts.placed_frames;
        counter.fetch_add(frames.into(), Ordering::Relaxed);
    }

    /// Passes on a frame for this interface, which does not receive its own frames. Returns whether it is one.
    pub fn loop_back(&self, frame: &[u8]) -> bool {
        let own = &self.interface.hardware.0;
        if frame.get(..own.len()) != Some(own) {
            return false;
        }
        let members = self.members.lock();
        let target = members
            .iter()
            .flatten()
            .find(|member| frame.get(TAG_AT..TAG_AT + 2) == Some(&tag(member.slot).to_be_bytes()));
        if let Some(member) = target {
            member.put(Passed::Frame(frame.to_vec()));
        }
        true
    }
}

/// The hardware address of a group (RFC 1112): the lower 23 bits of its own.
pub fn group_hardware(address: u32) -> Hardware {
    let [_, b, c, d] = address.to_be_bytes();
    Hardware([0x01, 0x00, 0x5e, b & 0x7f, c, d])
}

/// The tag of frames for a place.
pub fn tag(slot: u32) -> u16 {
    slot as u16 + 1
}

impl Member {
    /// A thread with this socket.
    pub fn new(slot: u32, socket: &Socket) -> Result<Member, Error> {
        let fd = rustix::io::fcntl_dupfd_cloexec(socket.as_fd(), 0);
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Member {
            slot,
            socket: fd.map_err(|error| system("copy a descriptor", error))?,
            groups: Mutex::default(),
            inbox: Mutex::default(),
            event: event.map_err(|error| system("make an event descriptor", error))?,
        })
    }

    pub fn join_group(&self, address: u32, port: u16) {
        self.groups.lock().push((address, port));
    }

    pub fn leave_group(&self, address: u32, port: u16) {
        let mut groups = self.groups.lock();
        let found = groups.iter().position(|group| *group == (address, port));
        if let Some(found) = found {
            groups.swap_remove(found);
        }
    }

    fn is_in(&self, address: u32, port: u16) -> bool {
        self.groups.lock().contains(&(address, port))
    }

    fn put(&self, message: Passed) {
        let mut inbox = self.inbox.lock();
        if inbox.len() < INBOX_MAX {
            inbox.push_back(message);
            // It can only fail when it has been counted before.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Whether something is in the inbox.
    pub fn has_come(&self) -> bool {
        !self.inbox.lock().is_empty()
    }

    pub fn take(&self) -> VecDeque<Passed> {
        let mut inbox = self.inbox.lock();
        if !inbox.is_empty() {
            let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        }
        std::mem::take(&mut *inbox)
    }
}

/// A thread's transmit frames.
pub struct Frames {
    shared: Arc<Shared>,
    free: Vec<u32>,
    /// Not needed any more, but perhaps still with the kernel.
    retired: Vec<u32>,
}

impl Frames {
    pub fn new(shared: &Arc<Shared>, slot: u32) -> Frames {
        Frames {
            free: Vec::new(),
            retired: shared.transmit_frames(slot).collect(),
            shared: shared.clone(),
        }
    }

    /// Number that can be taken, as far as is known.
    pub fn available(&mut self) -> usize {
        if self.free.len() < TRANSMIT_FRAMES as usize / 4 && !self.retired.is_empty() {
            self.collect();
            if self.free.len() <= RESERVED {
                // After the last frames of a run nothing else takes them back.
                self.shared.collect_placed();
                self.collect();
            }
        }
        self.free.len()
    }

    fn collect(&mut self) {
        let (shared, free) = (&self.shared, &mut self.free);
        self.retired.retain(|&frame| {
            let is_back = shared.is_back(frame);
            if is_back {
                free.push(frame);
            }
            !is_back
        });
    }

    pub fn take(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            self.available();
        }
        self.free.pop()
    }

    pub fn release(&mut self, frame: u32) {
        if self.shared.is_back(frame) {
            self.free.push(frame);
        } else {
            self.retired.push(frame);
        }
    }
}
