//! One-sided access over links: memory that peers export, and transfers into and out of it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pmem::checksum::crc32c;
use pmem::{Arena, Region};

use super::announced::{self, SLOTS_NAME};
use super::fragment::Outgoing;
use super::link::Link;
use super::pull::Memory;
use super::{Event, Lane, LinkId, Messenger, Reason, SendError, pull};
use crate::control;
use crate::transports::Transports;
use fabric::buffers::Class;
use fabric::{
    Access, Buffer, Completion, EndpointId, Error, Piece, Pool, Provider, Queue, ReadMemory,
    Refusal, Registration, Remote, RemoteRegion, Source, Work, WorkRequest,
};

/// Buffers for the data of transfers.
const CLASSES: [Class; 3] = [
    Class {
        bytes: 4 << 10,
        count: 64,
    },
    Class {
        bytes: 64 << 10,
        count: 16,
    },
    Class {
        bytes: TRANSFER_MAX,
        count: 8,
    },
];
/// Each poll reads control connections for so long after an export was asked for.
const EXPECTED_WITHIN: Duration = Duration::from_secs(1);
/// Bytes of a block with a checksum.
const BLOCK: usize = 4096;
/// Longest transfer, in bytes.
pub const TRANSFER_MAX: u32 = 1 << 20;

/// Which way a transfer goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Direction {
    /// These bytes go into the peer's memory.
    Write(Bytes),
    /// So many bytes come out of it.
    Read(u32),
    /// So many bytes come out of it, and go to this offset of the memory, which their event does not contain.
    ReadTo(ReadTarget, u64, u32),
}

/// Memory of this side that reads land in without a copy by this process. Clones share it; it stays reserved while one is left, or a
/// transfer to it is in flight.
#[derive(Clone, Debug)]
pub struct ReadTarget(Arc<Target>);

#[derive(Debug)]
struct Target {
    provider: Provider,
    registration: Registration,
    memory: ReadMemory,
}

impl PartialEq for ReadTarget {
    fn eq(&self, other: &ReadTarget) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ReadTarget {}

impl ReadTarget {
    /// Memory of a transport, and the region that it is a part of, registered.
    pub fn new(provider: Provider, registration: Registration, memory: ReadMemory) -> ReadTarget {
        ReadTarget(Arc::new(Target {
            provider,
            registration,
            memory,
        }))
    }

    /// Transport that it is memory of. Transfers over links of others do not reach it.
    pub fn provider(&self) -> Provider {
        self.0.provider
    }

    /// The region that it is a part of, and where it begins there.
    pub fn range(&self) -> (&Region, u64) {
        (self.0.registration.region(), self.0.memory.start)
    }
}

/// One-sided access to a peer's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Number that the caller gives to the transfer; its outcome carries it.
    pub id: u64,
    /// The peer's name of the memory.
    pub name: u64,
    /// Offset in the region, in bytes.
    pub offset: u64,
    /// Which way, and what.
    pub direction: Direction,
}

/// The transfers of one link.
#[derive(Default)]
pub struct Transfers {
    /// Memory of the peer.
    regions: BTreeMap<u64, RemoteRegion>,
    /// Requests that the transport does not take yet.
    waiting: VecDeque<Transfer>,
    /// By the number of the request.
    posted: BTreeMap<u64, Posted>,
}

struct Posted {
    id: u64,
    /// Where a read puts its bytes, and how many.
    into: Option<(Buffer, u32)>,
    /// Memory of the caller that it puts them in instead, which stays reserved.
    _target: Option<ReadTarget>,
}

/// Result of an attempt to post a transfer.
enum Attempt {
    Posted,
    Held,
    /// It has ended: with this data, or since it can never be executed.
    Ended(Option<Bytes>),
}

impl Messenger {
    /// Makes a part of a region known to the transport of a link, marked (see [`Registration::with_mark`]).
    ///
    /// # Errors
    /// [`Error::NoEndpoint`] if the link has ended, and those of [`fabric::Device::register_part`].
    pub fn register(
        &self,
        link: LinkId,
        (region, part): (&Region, Range<u64>),
        access: Access,
        mark: u64,
    ) -> Result<Registration, Error> {
        let provider = self.provider(link).ok_or(Error::NoEndpoint)?;
        let device = self.transports.device(provider).ok_or(Error::NoEndpoint)?;
        let registration = device.register_part(region, part, access)?;
        Ok(registration.with_mark(mark))
    }

    /// Has peers copy data of messages out of an arena from now on, where the transport has one-sided reads of its own.
    pub fn lend(&mut self, arena: Arena) {
        self.arena = Some(arena);
    }

    /// Why data of an arena, of this side or of a peer, travels in messages over a link. Once for each link and side.
    pub fn take_refusal(&mut self) -> Option<String> {
        self.refusals.pop_front()
    }

    /// Whether the peer of a link lends its arena, or why not, as far as this side knows.
    pub fn lends(&self, id: LinkId) -> Option<Result<(), &'static str>> {
        let device = self.transports.device(self.provider(id)?)?;
        let link = self.find(id)?;
        Some(match pull::is_possible(&device.capabilities()) {
            false => Err("the target's processor would execute the reads"),
            true => link.stream.pulls.lends(),
        })
    }

    /// Exports memory to the peer of a link that is used from this message on.
    pub(super) fn offer_memory(&mut self, id: LinkId, message: &Outgoing) -> Result<(), SendError> {
        let Some(link) = self.links[id.slot()].link.as_deref_mut() else {
            return Ok(());
        };
        let (provider, length) = (self.lanes[link.lane].provider, message.length());
        let (pulls, slots) = (&link.stream.pulls, &link.stream.slots);
        let longest = message.longest();
        let arena = self
            .arena
            .as_ref()
            .filter(|arena| pulls.wants_arena(longest.len()) && arena.offset_of(longest).is_some());
        let mut offered = Ok(());
        if pulls.wants_pool(length) || slots.wants_slots() {
            let sizes = (length, self.options.wanted.queues.window);
            offered = link.offer_memory(&mut self.transports, provider, sizes);
        }
        if let (Ok(()), Some(arena)) = (&offered, arena) {
            let lent = link.offer_arena(&mut self.transports, (provider, arena));
            offered = lent.map(|lent| self.refusals.extend(lent.err()));
        }
        offered.map_err(|error| {
            self.failed.push((id, error));
            SendError::Ended
        })
    }

    /// The transport of a link.
    pub fn provider(&self, link: LinkId) -> Option<Provider> {
        self.choice(link).map(|choice| choice.provider)
    }

    /// Withdraws the key of memory that was registered with this transport. Returns whether no peer accesses it any
    /// more: if not, ask again later.
    pub fn revoke(&self, provider: Provider, registration: &Registration) -> bool {
        let device = self.transports.device(provider);
        device.is_none_or(|device| device.revoke(registration).is_some())
    }

    /// Lets the peer of a link reach registered memory, under a name below `u64::MAX - 2`.
    ///
    /// # Errors
    /// [`control::Error`]: close the link. `None` if it has ended, or the name is not below.
    pub fn export(
        &mut self,
        link: LinkId,
        name: u64,
        registration: &Registration,
    ) -> Option<Result<(), control::Error>> {
        let provider = self.provider(link).filter(|_| name < pull::ARENA_NAME)?;
        let session = &mut self.links[link.slot()].link.as_deref_mut()?.session;
        let queue = self.transports.queue(provider)?;
        Some(session.export(queue, name, registration))
    }

    /// Frames of peers' writes and of own reads that were received where they belong, over all transports; and frames of reads that
    /// peers received so.
    pub fn placed_frames(&self) -> [u64; 2] {
        let providers = self.transports.providers().into_iter();
        let devices = providers.filter_map(|provider| self.transports.device(provider));
        devices.fold([0; 2], |[placed, fetched], device| {
            [
                placed + device.placed_frames(),
                fetched + device.fetched_frames(),
            ]
        })
    }

    /// Memory of so many bytes that reads over some transport land in without a copy, and that a read changes nowhere else. `None` if
    /// no transport has it.
    pub fn read_target(&mut self, bytes: u64) -> Option<ReadTarget> {
        self.lanes.iter_mut().find_map(|lane| {
            let device = self.transports.device(lane.provider)?;
            // Buffers of a transport that has no such memory would use up memory for frames.
            if !device.read_memory(BLOCK as u64)?.is_exact {
                return None;
            }
            // The buffers for transfers come first: only the rest of the memory is for others.
            lane.transfers(&self.transports)?;
            let memory = device.read_memory(bytes).filter(|it| it.is_exact)?;
            if lane.targets.is_none() {
                let registered = device.register(&memory.region, Access::LOCAL);
                lane.targets = registered.ok();
            }
            Some(ReadTarget::new(
                lane.provider,
                lane.targets.clone()?,
                memory,
            ))
        })
    }

    /// A peer was asked to export memory: control connections are read soon, also by a thread that never blocks.
    pub fn expect_export(&mut self) {
        self.expects_until = Some(Instant::now() + EXPECTED_WITHIN);
    }

    /// Begins a transfer, which ends with [`Event::Transferred`], or with the link. Each is executed once at most, and
    /// those of one link in order.
    ///
    /// Whether the link and the memory are there; if not, nothing was and will be done.
    pub fn transfer(&mut self, id: LinkId, transfer: Transfer) -> bool {
        let is_known = |link: &Link| link.transfers.regions.contains_key(&transfer.name);
        if !self.find(id).is_some_and(is_known) {
            return false;
        }
        let Some(link) = self.links[id.slot()].link.as_deref_mut() else {
            return false;
        };
        link.transfers.waiting.push_back(transfer);
        self.post_transfers(id);
        true
    }

    /// Copies bytes of a peer's memory, under its name and from an offset on, into memory of the caller: at once, where the
    /// transport maps the peer's memory. Blocks of 4096 bytes are checked on the way by these CRC32C, one for each; without any, nothing
    /// is checked. A later read sees memory that is no older.
    ///
    /// Whether the bytes are there, and right. If not, part of `into` may have been overwritten.
    pub fn read_at_once(
        &mut self,
        id: LinkId,
        (name, offset): (u64, u64),
        into: &mut [u8],
        checksums: &[u32],
    ) -> bool {
        if self.find(id).is_none() || into.len() > TRANSFER_MAX as usize {
            return false;
        }
        let Some(link) = self.links[id.slot()].link.as_deref_mut() else {
            return false;
        };
        let queue = self.transports.queue(self.lanes[link.lane].provider);
        let (Some(region), Some(queue)) = (link.transfers.regions.get(&name), queue) else {
            return false;
        };
        let (from, length) = (region.at(offset), into.len() as u32);
        let mut is_right = true;
        let loaded = queue.load_by(
            link.session.endpoint(),
            (from, length),
            &mut |memory, offset| {
                is_right = copy_checked((memory, offset), into, checksums);
            },
        );
        loaded.is_ok() && is_right
    }

    /// Posts what waits on a link.
    fn post_transfers(&mut self, id: LinkId) {
        let Some(link) = self.links[id.slot()].link.as_deref_mut() else {
            return;
        };
        let lane = &mut self.lanes[link.lane];
        let provider = lane.provider;
        let pool = lane.transfers(&self.transports);
        let (Some(queue), Some(pool)) = (self.transports.queue(provider), pool) else {
            return;
        };
        while let Some(transfer) = link.transfers.waiting.pop_front() {
            match link.post_transfer(queue, pool, &transfer) {
                Attempt::Posted => {}
                Attempt::Held => {
                    link.transfers.waiting.push_front(transfer);
                    if !self.held.contains(&id) {
                        self.held.push(id);
                    }
                    break;
                }
                Attempt::Ended(outcome) => self.ended.push((id, transfer.id, outcome)),
            }
        }
    }

    /// A request of a link has ended: if it was a transfer, that is reported, and more may be posted.
    pub(super) fn transferred(
        &mut self,
        lane: usize,
        completion: &Completion,
        events: &mut Vec<Event>,
    ) {
        let Some(slot) = self.slot_of(lane, completion.endpoint) else {
            return;
        };
        let link = LinkId::new(slot, self.links[slot].generation);
        let Some(found) = self.links[slot].link.as_deref_mut() else {
            return;
        };
        // After a failure the link ends.
        if completion.outcome.is_err() {
            return;
        }
        let Some(Posted { id, into, .. }) = found.transfers.posted.remove(&completion.id.0) else {
            return self.read_fragments(slot, completion.id.0, events);
        };
        let mut bytes = Vec::new();
        if let Some((buffer, length)) = into {
            buffer.append_to(length, &mut bytes);
        }
        let outcome = Some(bytes.into());
        events.push(Event::Transferred { link, id, outcome });
    }

    /// A request has ended that was no transfer: it may have read a fragment.
    fn read_fragments(&mut self, slot: usize, ended: u64, events: &mut Vec<Event>) {
        let link = LinkId::new(slot, self.links[slot].generation);
        let Some(found) = self.links[slot].link.as_deref_mut() else {
            return;
        };
        if found.stream.pulls.arriving.is_empty() {
            return;
        }
        let taken = found.stream.take_arrived(ended);
        if found.stream.pulls.is_due() || found.stream.has_unread() {
            self.fall_behind(slot);
        }
        match taken {
            Ok(whole) => events.extend(whole.into_iter().map(|bytes| Event::Message {
                link,
                bytes: bytes.into(),
            })),
            Err(what) => self.end(slot, Reason::Fragment(what), events),
        }
    }

    /// Begins to read one fragment of a link; whether there was one, and room for it.
    pub(super) fn post_read(&mut self, slot: usize, events: &mut Vec<Event>) -> bool {
        let Some(link) = self.links[slot].link.as_deref_mut() else {
            return false;
        };
        let lane = &self.lanes[link.lane];
        let queue = self.transports.queue(lane.provider);
        // A link that pulls has made the pool.
        let (Some(queue), Some(pool)) = (queue, lane.transfers.as_ref()) else {
            return false;
        };
        match link.stream.post_read(queue, pool) {
            Ok(is_posted) => is_posted,
            Err(what) => {
                self.end(slot, Reason::Fragment(what), events);
                false
            }
        }
    }

    /// Posts held requests, and reports transfers that ended without a completion.
    pub(super) fn post_held(&mut self, events: &mut Vec<Event>) {
        let mut held = std::mem::take(&mut self.held);
        for link in held.drain(..) {
            if self.find(link).is_some() {
                self.post_transfers(link);
            }
        }
        for (link, id, outcome) in std::mem::take(&mut self.ended) {
            if self.find(link).is_some() {
                events.push(Event::Transferred { link, id, outcome });
            }
        }
    }
}

/// Where the data of a transfer is on this side: in a buffer, or at an offset of memory of the caller.
fn place<'a>(
    buffer: Option<&'a Buffer>,
    target: Option<(&'a ReadTarget, u64)>,
    length: u32,
) -> Option<[Piece<'a>; 1]> {
    let in_target = |(ReadTarget(target), at): (&'a ReadTarget, u64)| {
        let offset = target.memory.start + at;
        target.registration.piece(offset, length)
    };
    let piece = buffer.map(|buffer| buffer.piece(0, length));
    piece.or_else(|| target.map(in_target)).map(|piece| [piece])
}

/// Copies bytes from an offset of a region, and returns whether their blocks have these checksums; without any, nothing is checked.
fn copy_checked((from, offset): (&Region, u64), into: &mut [u8], checksums: &[u32]) -> bool {
    if checksums.is_empty() {
        from.read(offset, into);
        return true;
    }
    let (mut at, mut more) = (offset, into.len());
    let mut is_right = into.len().div_ceil(BLOCK) == checksums.len();
    for (block, expected) in into.chunks_mut(BLOCK).zip(checksums) {
        more -= block.len();
        let found = match from.read_summed(at, block, more) {
            Some(register) => !register,
            None => {
                from.read(at, block);
                crc32c(block)
            }
        };
        is_right &= found == *expected;
        at += block.len() as u64;
    }
    is_right
}

/// Reads by loads, without a request, where the transport maps the peer's memory.
fn load(queue: &mut Queue, endpoint: EndpointId, from: (Remote, u32)) -> Attempt {
    let mut bytes = Vec::new();
    match queue.load(endpoint, from, &mut bytes) {
        Ok(()) => Attempt::Ended(Some(bytes.into())),
        // With the link.
        Err(Refusal::NoEndpoint) => Attempt::Posted,
        Err(_) => Attempt::Ended(None),
    }
}

impl Lane {
    /// Its buffers for the data of transfers, made at the first use. Nothing if they cannot be registered.
    pub fn transfers(&mut self, transports: &Transports) -> Option<&Pool> {
        if self.transfers.is_none() {
            let device = transports.device(self.provider)?;
            self.transfers = Pool::for_reads(device, &CLASSES).ok();
        }
        self.transfers.as_ref()
    }
}

impl Link {
    /// Makes the memory that is used from a message of this length on, and exports it. Without it, all data travels in messages.
    ///
    /// # Errors
    /// [`control::Error`]: end the link, which the transport will not report.
    pub fn offer_memory(
        &mut self,
        transports: &mut Transports,
        provider: Provider,
        (length, window): (usize, u32),
    ) -> Result<(), control::Error> {
        if self.stream.slots.wants_slots() {
            self.offer_slots(transports, provider, window)?;
        }
        if !self.stream.pulls.wants_pool(length) {
            return Ok(());
        }
        let device = transports.device(provider);
        match device.is_some_and(|device| pull::is_possible(&device.capabilities())) {
            true => self.offer_pool(transports, provider),
            false => {
                self.stream.pulls.offered(None);
                Ok(())
            }
        }
    }

    /// Makes slots that the peer writes, and exports them, if the transport can have them.
    fn offer_slots(
        &mut self,
        transports: &mut Transports,
        provider: Provider,
        window: u32,
    ) -> Result<(), control::Error> {
        let made = transports.device(provider).map(|device| {
            match announced::obstacle(&device.capabilities(), window) {
                Some(reason) => Err(reason),
                None => announced::make(device, window).map_err(|_| "no memory can be registered"),
            }
        });
        let mut own = made.unwrap_or(Err("the transport is not there"));
        if let (Ok(slots), Some(queue)) = (&own, transports.queue(provider))
            && self.export_own(queue, SLOTS_NAME, slots)?.is_err()
        {
            own = Err("the slots could not be exported");
        }
        self.stream.slots.offered(own);
        Ok(())
    }

    /// Makes a pool of buffers from which the peer pulls, and exports it.
    ///
    /// # Errors
    /// As [`Link::offer_memory`].
    pub fn offer_pool(
        &mut self,
        transports: &mut Transports,
        provider: Provider,
    ) -> Result<(), control::Error> {
        self.stream.pulls.offered(None);
        let device = transports.device(provider);
        let pool = device.map(|device| Pool::new(device, &pull::CLASSES, Access::READ));
        let pool = match pool.zip(transports.queue(provider)) {
            Some((Ok(pool), queue)) => {
                let exported = self.export_own(queue, pull::POOL, pool.registration())?;
                exported.map(|()| pool).map_err(|error| error.to_string())
            }
            Some((Err(error), _)) => Err(error.to_string()),
            None => Err("the transport is not there".into()),
        };
        match pool {
            Ok(pool) => self.stream.pulls.offered(Some(&pool)),
            Err(error) => self.no_pool = Some(error),
        }
        Ok(())
    }

    /// Exports the arena of the client, out of which the peer copies data.
    ///
    /// # Errors
    /// As [`Link::offer_memory`]. Returns why the peer does not get it, if the link goes on without.
    pub fn offer_arena(
        &mut self,
        transports: &mut Transports,
        (provider, arena): (Provider, &Arena),
    ) -> Result<Result<(), String>, control::Error> {
        self.stream.pulls.offered_arena(None);
        let device = transports.device(provider);
        let Some(device) = device.filter(|it| pull::is_possible(&it.capabilities())) else {
            return Ok(Ok(()));
        };
        let registration = match device.register(arena.region(), Access::READ) {
            Ok(registration) => registration,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let Some(queue) = transports.queue(provider) else {
            return Ok(Ok(()));
        };
        if let Err(error) = self.export_own(queue, pull::ARENA_NAME, &registration)? {
            return Ok(Err(error.to_string()));
        }
        // The key ends with the link.
        self.arena = Some(registration);
        self.stream.pulls.offered_arena(Some(arena));
        Ok(Ok(()))
    }

    /// Exports memory of the link itself. Returns why the peer does not get it, if the link goes on without.
    fn export_own(
        &mut self,
        queue: &mut Queue,
        name: u64,
        registration: &Registration,
    ) -> Result<Result<(), control::Error>, control::Error> {
        let endpoint = self.session.endpoint();
        match self.session.export(queue, name, registration) {
            Ok(()) => Ok(Ok(())),
            Err(
                error @ (control::Error::Endpoint { .. }
                | control::Error::Closed { .. }
                | control::Error::Refused { .. }
                | control::Error::System { .. }),
            ) if queue.message_bytes(endpoint).is_some() => Ok(Err(error)),
            Err(error) => Err(error),
        }
    }

    /// The peer has exported memory.
    pub fn exported(&mut self, name: u64, region: RemoteRegion) {
        self.transfers.regions.insert(name, region);
    }

    /// Memory of the peer may not be reached any more.
    pub fn revoked(&mut self, name: u64) {
        match name {
            pull::POOL => self.stream.pulls.revoked(Memory::Pool),
            pull::ARENA_NAME => self.stream.pulls.revoked(Memory::Arena),
            SLOTS_NAME => self.stream.slots.revoked(),
            _ => drop(self.transfers.regions.remove(&name)),
        }
    }

    fn post_transfer(&mut self, queue: &mut Queue, pool: &Pool, transfer: &Transfer) -> Attempt {
        let Some(region) = self.transfers.regions.get(&transfer.name) else {
            return Attempt::Ended(None);
        };
        let (remote, endpoint) = (region.at(transfer.offset), self.session.endpoint());
        let inline = queue.capabilities().inline_bytes as usize;
        let length = match &transfer.direction {
            Direction::Write(bytes) => bytes.len(),
            Direction::Read(length) | Direction::ReadTo(.., length) => *length as usize,
        };
        if length == 0 || length > TRANSFER_MAX as usize {
            return Attempt::Ended(None);
        }
        if matches!(transfer.direction, Direction::Read(_)) && queue.capabilities().immediate_reads
        {
            return load(queue, endpoint, (remote, length as u32));
        }
        let is_inline = matches!(transfer.direction, Direction::Write(_)) && length <= inline;
        let target = match &transfer.direction {
            Direction::ReadTo(target, at, _) => Some((target, *at)),
            _ => None,
        };
        let buffer = match is_inline || target.is_some() {
            true => None,
            false => match pool.allocate(length as u32) {
                Some(buffer) => Some(buffer),
                None => return Attempt::Held,
            },
        };
        let pieces = place(buffer.as_ref(), target, length as u32);
        let pieces = pieces.as_ref().map_or(&[][..], |pieces| &pieces[..]);
        let operation = match &transfer.direction {
            Direction::Read(_) | Direction::ReadTo(..) => Work::Read {
                into: pieces,
                from: remote,
            },
            Direction::Write(bytes) => Work::Write {
                from: match &buffer {
                    Some(buffer) => {
                        buffer.write(0, bytes);
                        Source::Pieces(pieces)
                    }
                    None => Source::Inline(bytes),
                },
                to: remote,
                immediate: None,
            },
        };
        self.stream.posted += 1;
        let request = WorkRequest::new(self.stream.posted, operation);
        let posted = match &buffer {
            Some(buffer) => queue.post(endpoint, &request.keeping(buffer)),
            None => queue.post(endpoint, &request),
        };
        match posted {
            Ok(()) => {
                let is_read = matches!(transfer.direction, Direction::Read(_));
                let into = buffer.filter(|_| is_read);
                let posted = Posted {
                    id: transfer.id,
                    into: into.map(|buffer| (buffer, length as u32)),
                    _target: target.map(|(target, _)| target.clone()),
                };
                self.transfers.posted.insert(self.stream.posted, posted);
                Attempt::Posted
            }
            Err(Refusal::Held) => Attempt::Held,
            Err(_) => Attempt::Ended(None),
        }
    }
}
