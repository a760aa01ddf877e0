//! Long fragments, pulled (RBP, rows B1, B3, B4): the sender leaves them in registered buffers, and the receiver copies them from
//! there. One copy less than through a ring of messages.
//!
//! ```text
//!   sender                                              receiver
//!   a pool for this link, exported ─── OFFERED ───────► imports it
//!                                  ◄── READY ──────────
//!   a fragment in a buffer         ─── its location ──► copies the fragment
//!   the buffer is free again       ◄── FREED, a count ─
//!
//!   the client's arena, exported   ─── OFFERED, READY|1 and locations as above; its data is in no buffer of the link
//!
//!  the 32 bits beside a message about pulls:
//!   31 30 │ 29 28 │ 27 .. 0
//!     3   │   0   │ 0            OFFERED: the pool was exported, over the control connection
//!     3   │   0   │ others       about slots (`announced`)
//!     3   │   1   │ memory       READY: the receiver can pull from the pool (0) or the arena (1)
//!     3   │   2   │ memory       a location there: head of the fragment 4, length 4, offset 8, little-endian
//!     3   │   3   │ a count      FREED: so many more fragments have been copied, in their order
//! ```
//! - A buffer is used again only once the peer has reported it, and the pool ends with its link: so a peer that is late never
//!   copies the bytes of another message. A peer can read all of its own link's pool, and nothing of other links.
//! - The peer reports copied fragments with its next message, or once it has copied four: a message of
//!   its own would wake up the sender for nothing.
//! - Where a read takes a while, as over verbs, fragments behind it wait until it has ended: messages stay in order.
//! - While no buffer is free, fragments travel in messages, as short ones do. So pulls hold nothing back.
//! - Data of early answered writes lies in an [`Arena`], which a client lends to all its peers: it is not copied into a buffer, and a
//!   request that is sent again over another link names the same place. The link keeps a share of the data until the peer has
//!   reported it, so its block is not used again before. A link that ends drops its shares, though a read of its peer may be in flight.
//!   Over verbs the key of the link ends first (`link::end_lent`). Over shared memory, or if the adapter refuses to end the key, such a
//!   read may return newer bytes, but only in a request of the link that has ended: the receiver checks the checksums of a request after the copy, and refuses it.
//! - A link takes all buffers of its pool when the pool is made, and manages them itself (B2, explicit use): no other user and no
//!   lock. Buffers for other messages and for transfers are allocated from pools that all links of a thread share (implicit use).

use std::collections::VecDeque;

use bytes::Bytes;
use fabric::buffers::{Class, Taken};
use fabric::{Buffer, Capabilities, Message, Pool, RemoteRegion};
use pmem::Arena;

use super::announced::{self, Note};

/// From this length on the rest of a message is pulled, unless the options of the messenger have another one.
pub const PULL_MIN: usize = 32 << 10;

/// Which data a side of a link leaves in its memory, to be pulled, where the transport has one-sided reads of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pull {
    /// Messages from 32 KiB on, as measured.
    #[default]
    Auto,
    /// All messages that are too long for a slot ([`RequestWay`](super::RequestWay)), so that they contain data.
    Always,
    /// None, and this side pulls nothing either: data travels in messages.
    Never,
}

impl Pull {
    /// The choice of this name.
    pub fn named(name: &str) -> Option<Pull> {
        match name {
            "auto" => Some(Pull::Auto),
            "always" => Some(Pull::Always),
            "never" => Some(Pull::Never),
            _ => None,
        }
    }

    /// Least length that is pulled; [`usize::MAX`] for none.
    pub fn least(self) -> usize {
        match self {
            Pull::Auto => PULL_MIN,
            Pull::Always => announced::LONGEST + 1,
            Pull::Never => usize::MAX,
        }
    }
}
/// Name under which the pool of a link is exported. Others have random names.
pub const POOL: u64 = u64::MAX;
/// Name under which a client's arena is exported.
pub const ARENA_NAME: u64 = u64::MAX - 2;
/// Buffers of a link: for data of 64 KiB, or parts of more, with what describes them.
pub const CLASSES: [Class; 2] = [
    Class {
        bytes: (64 << 10) + 1024,
        count: 16,
    },
    Class {
        bytes: LONGEST,
        count: 8,
    },
];
/// Bytes of the longest fragment that is pulled.
pub const LONGEST: u32 = 256 << 10;
/// Buffers of a link.
pub const BUFFERS: usize = (CLASSES[0].count + CLASSES[1].count) as usize;
/// Fragments in the arena that the peer of a link has not reported, at most.
pub const IN_ARENA_MAX: usize = 16;
/// Fragments of both kinds that a peer has not reported, at most.
pub const LENT_MAX: usize = BUFFERS + IN_ARENA_MAX;
/// Copied fragments that are reported without a message to the peer.
const FREED_MIN: u32 = 4;

const ABOUT: u32 = 3 << 30;
/// The 32 bits of an offer, and with others below them of a message about slots.
pub const OFFERED: u32 = ABOUT;
const READY: u32 = ABOUT | 1 << 28;
/// The 32 bits beside a location in the pool.
pub const LOCATION: u32 = ABOUT | 2 << 28;
const FREED: u32 = ABOUT | 3 << 28;
const KIND: u32 = 15 << 28;
const LOCATION_BYTES: usize = 16;

/// Whether fragments can be pulled at all: where one-sided reads do not need the target's processor, and a location can be sent
/// without a buffer.
pub fn is_possible(capabilities: &Capabilities) -> bool {
    capabilities.passive_target && capabilities.inline_bytes as usize >= LOCATION_BYTES
}

/// Memory that a side lends to its peer, to be pulled from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The buffers of the link.
    Pool,
    /// The arena of the client.
    Arena,
}

impl Memory {
    pub const ALL: [Memory; 2] = [Memory::Pool, Memory::Arena];

    /// The memory that was exported under this name.
    pub fn named(name: u64) -> Option<Memory> {
        match name {
            POOL => Some(Memory::Pool),
            ARENA_NAME => Some(Memory::Arena),
            _ => None,
        }
    }

    fn of(value: u32) -> Option<Memory> {
        Memory::ALL.get(value as usize).copied()
    }
}

/// A message about pulls or slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    Slots(Note),
    Offered,
    Ready(Memory),
    Location(Location),
    Freed(u32),
}

/// Where a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    pub memory: Memory,
    /// The 32 bits that would be beside it.
    pub head: u32,
    pub length: u32,
    pub offset: u64,
}

impl About {
    /// What a message says about pulls or slots; `None` if it is a fragment.
    pub fn of(message: &Message) -> Result<Option<About>, &'static str> {
        let head = message.immediate.unwrap_or_default();
        if head & ABOUT != ABOUT {
            return Ok(None);
        }
        let value = head & !KIND;
        match (head & KIND, message.length() as usize) {
            (OFFERED, 0) if value == 0 => Ok(Some(About::Offered)),
            (OFFERED, 0) => Note::decode(value).map(|note| Some(About::Slots(note))),
            (FREED, 0) if value > 0 => Ok(Some(About::Freed(value))),
            (kind, length) => match (kind, length, Memory::of(value)) {
                (READY, 0, Some(memory)) => Ok(Some(About::Ready(memory))),
                (LOCATION, LOCATION_BYTES, Some(memory)) => {
                    let mut bytes = [0; LOCATION_BYTES];
                    message.read(0, &mut bytes);
                    Location::decode(memory, bytes).map(|it| Some(About::Location(it)))
                }
                _ => Err("a message about pulls is invalid"),
            },
        }
    }
}

impl Location {
    /// The 32 bits beside it.
    pub fn immediate(self) -> u32 {
        LOCATION | self.memory as u32
    }

    pub fn encode(self) -> [u8; LOCATION_BYTES] {
        let mut bytes = [0; LOCATION_BYTES];
        bytes[..4].copy_from_slice(&self.head.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    fn decode(memory: Memory, bytes: [u8; LOCATION_BYTES]) -> Result<Location, &'static str> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let location = Location {
            memory,
            head: word(0),
            length: word(4),
            offset: u64::from(word(12)) << 32 | u64::from(word(8)),
        };
        match location.length {
            1..=LONGEST => Ok(location),
            _ => Err("the length of a fragment to pull is invalid"),
        }
    }
}

/// A fragment that is not part of a message yet.
pub enum Arriving {
    InMessage(Message),
    /// A whole message that was copied out of its slot, and its announcement, which holds the credit.
    FromSlot {
        bytes: Vec<u8>,
        _announcement: Message,
    },
    /// A message that is still in its slot, from this offset on, although its credit may be returned: a test breaks the rule.
    LeftInSlot(u64, usize),
    /// Location from which the data is to be read.
    At(Location),
    /// Being read by the request of this number.
    Read(u64, Location, Buffer),
}

/// The smallest class of buffers that hold so many bytes, at most [`LONGEST`].
fn class_of(length: usize) -> usize {
    usize::from(length > CLASSES[0].bytes as usize)
}

/// Returns a buffer to the link that owns its class.
fn give_back(own: &mut Option<[Taken; CLASSES.len()]>, buffer: Buffer) {
    if let Some(own) = own {
        own[class_of(buffer.capacity() as usize)].release(buffer);
    }
}

/// A fragment that the peer has not reported.
enum Lent {
    Buffer(Buffer),
    /// A share of the data, which lies in the arena.
    InArena(Bytes),
}

/// A rule of pulls or slots that a test breaks on purpose, to see that the simulation notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamDefect {
    /// A fragment is reported as copied when its location arrives.
    ReportBeforeRead,
    /// A fragment is taken out of the buffer of its read, though only an earlier read has completed.
    TakeBeforeRead,
    /// A fragment in a message is taken while a read before it has not completed.
    OvertakeRead,
    /// The sender fills its oldest buffer again, though the peer has not reported it.
    ReuseUnreported,
    /// A block of the arena is free once its location was sent, though the peer has not reported it.
    FreeUnreported,
    /// A link that ends lets go of its data in the arena, though its key has not ended, so that the peer may still read there.
    FreeBeforeKeyEnds,
    /// A slot is written again one message too early: the credit of the message in it may not have come back.
    ReuseSlot,
    /// A message is copied out of its slot some time after its announcement, when its credit may have been returned.
    CopySlotLate,
}

#[cfg(feature = "defects")]
impl StreamDefect {
    /// All rules that tests break.
    pub const ALL: [StreamDefect; 8] = [
        StreamDefect::ReportBeforeRead,
        StreamDefect::TakeBeforeRead,
        StreamDefect::OvertakeRead,
        StreamDefect::ReuseUnreported,
        StreamDefect::FreeUnreported,
        StreamDefect::FreeBeforeKeyEnds,
        StreamDefect::ReuseSlot,
        StreamDefect::CopySlotLate,
    ];
}

/// The pulls of one link, both ways.
pub struct Pulls {
    /// Least length of the rest of a message that is pulled, at least 1; [`usize::MAX`] if nothing is pulled, neither way.
    min: usize,
    /// All buffers of this side's pool, by class, once a message was long enough. Those that are lent are not among them.
    own: Option<[Taken; CLASSES.len()]>,
    /// Whether making a pool was tried.
    is_offered: bool,
    /// Whether the peer has to learn that.
    owes_offer: bool,
    /// Whether the peer can pull from it.
    is_taken: bool,
    /// The arena, once it was exported to the peer.
    arena: Option<Arena>,
    /// Whether exporting it was tried.
    is_arena_offered: bool,
    /// Whether the peer can pull from it.
    is_arena_taken: bool,
    /// Fragments that the peer has not reported yet, in their order.
    lent: VecDeque<Lent>,
    /// A buffer with the next fragment, while its location cannot be sent.
    filled: Option<Buffer>,
    /// Whether the control connection has the peer's pool or slots.
    pub is_announced: bool,
    /// The peer's pool and arena, once it has exported them.
    imported: [Option<RemoteRegion>; 2],
    /// Whether the peer has exported its arena, which this side could not map.
    is_arena_unmapped: bool,
    /// Whether the peer has to learn that this side can pull from them.
    owes_ready: [bool; 2],
    /// Locations, and fragments in messages behind the first of them, in the order of the message. Empty where reads are immediate.
    pub arriving: VecDeque<Arriving>,
    /// Fragments copied by this side, which the peer has to learn.
    copied: u32,
    /// Fragments copied by this side out of the peer's pool and its arena.
    pub copied_in_all: [u64; 2],
    /// The rule that is broken.
    #[cfg(feature = "defects")]
    pub broken: Option<StreamDefect>,
}

impl Pulls {
    /// Nothing is offered yet; data is pulled from this length on.
    pub fn new(min: usize) -> Pulls {
        Pulls {
            min,
            own: None,
            is_offered: false,
            owes_offer: false,
            is_taken: false,
            arena: None,
            is_arena_offered: false,
            is_arena_taken: false,
            lent: VecDeque::new(),
            filled: None,
            is_announced: false,
            imported: [None; 2],
            is_arena_unmapped: false,
            owes_ready: [false; 2],
            arriving: VecDeque::new(),
            copied: 0,
            copied_in_all: [0; 2],
            #[cfg(feature = "defects")]
            broken: None,
        }
    }

    /// Whether this rule is broken. Without the feature `defects` none can be.
    pub fn has(&self, defect: StreamDefect) -> bool {
        #[cfg(feature = "defects")]
        return self.broken == Some(defect);
        #[cfg(not(feature = "defects"))]
        {
            let _ = defect;
            false
        }
    }

    /// Least length of a message that the peer pulls, or why it pulls none.
    pub fn state(&self) -> Result<usize, &'static str> {
        match self {
            _ if self.min == usize::MAX => Err("this side's `pull` is never"),
            _ if !self.is_offered => Err("no message was long enough yet"),
            _ if self.own.is_none() => Err("no pool could be made"),
            _ if !self.is_taken => Err("the peer has not said that it pulls"),
            _ => Ok(self.min),
        }
    }

    /// Whether a message of this length is the first one to be pulled, so that a pool is to be made.
    pub fn wants_pool(&self, length: usize) -> bool {
        length >= self.min && !self.is_offered
    }

    /// A pool was exported to the peer, or there is none. All its buffers are the link's from now on.
    pub fn offered(&mut self, pool: Option<&Pool>) {
        self.own = pool.and_then(|pool| {
            let [short, long] = CLASSES.map(|class| pool.take(class.bytes));
            Some([short?, long?])
        });
        self.owes_offer = self.own.is_some();
        self.is_offered = true;
    }

    /// Whether the arena is to be exported, for data of this length in it.
    pub fn wants_arena(&self, length: usize) -> bool {
        length >= self.min && !self.is_arena_offered
    }

    /// The arena was exported to the peer, or cannot be.
    pub fn offered_arena(&mut self, arena: Option<&Arena>) {
        self.arena = arena.cloned();
        self.owes_offer |= self.arena.is_some();
        self.is_arena_offered = true;
    }

    /// The peer has exported memory. A side that leaves nothing to be pulled does not use it either.
    pub fn imported(&mut self, memory: Memory, region: RemoteRegion) {
        if self.min == usize::MAX {
            return;
        }
        let imported = &mut self.imported[memory as usize];
        self.owes_ready[memory as usize] |= imported.is_none();
        imported.get_or_insert(region);
    }

    /// The peer has exported its arena, which this side cannot map. Returns whether that is new.
    pub fn arena_unmapped(&mut self) -> bool {
        !std::mem::replace(&mut self.is_arena_unmapped, true)
    }

    /// The peer has released the arena. If it never could use it, its data travels in messages. Returns whether that is so.
    pub fn arena_released(&mut self) -> bool {
        !self.is_arena_taken && self.arena.take().is_some()
    }

    /// The peer has withdrawn memory. A later location there ends the link.
    pub fn revoked(&mut self, memory: Memory) {
        self.imported[memory as usize] = None;
        self.owes_ready[memory as usize] = false;
    }

    /// Whether the peer lends its arena, or why it does not, as far as is known.
    pub fn lends(&self) -> Result<(), &'static str> {
        match self.imported[Memory::Arena as usize] {
            Some(_) => Ok(()),
            None if self.min == usize::MAX => Err("this side's `pull` is never"),
            None if self.is_arena_unmapped => Err("this side cannot map the memory; see its log"),
            None => Err("the peer has lent no memory"),
        }
    }

    /// The memory for which the peer has to learn that this side can pull from it.
    fn unready(&self) -> Option<Memory> {
        let mut all = Memory::ALL.into_iter();
        all.find(|memory| self.owes_ready[*memory as usize])
    }

    /// The 32 bits of a message to send before any other one. [`Pulls::sent_owed`] follows when it was sent.
    pub fn owed(&self) -> Option<u32> {
        match self.unready() {
            _ if self.owes_offer => Some(OFFERED),
            Some(memory) => Some(READY | memory as u32),
            None if self.copied > 0 => Some(FREED | self.copied),
            None => None,
        }
    }

    /// Whether owed messages should be sent without waiting for another message.
    pub fn is_due(&self) -> bool {
        self.unready().is_some() || self.copied >= FREED_MIN
    }

    /// The message that was owed first has been sent.
    pub fn sent_owed(&mut self) {
        if std::mem::take(&mut self.owes_offer) {
            return;
        }
        match self.unready() {
            Some(memory) => self.owes_ready[memory as usize] = false,
            None => self.copied = 0,
        }
    }

    /// Takes a message of the peer about pulls.
    pub fn receive(&mut self, about: About) -> Result<(), &'static str> {
        match about {
            About::Offered => self.is_announced = true,
            About::Ready(Memory::Pool) if self.own.is_some() && !self.is_taken => {
                self.is_taken = true;
            }
            About::Ready(Memory::Arena) if self.arena.is_some() && !self.is_arena_taken => {
                self.is_arena_taken = true;
            }
            About::Freed(count) if count as usize <= self.lent.len() => {
                for lent in self.lent.drain(..count as usize) {
                    match lent {
                        Lent::Buffer(buffer) => give_back(&mut self.own, buffer),
                        Lent::InArena(share) => drop(share),
                    }
                }
            }
            _ => return Err("a message about pulls comes out of turn"),
        }
        Ok(())
    }

    /// Returns the offset in the arena and the length of a fragment that begins with these bytes. Nothing if they are not there, or
    /// should travel in another way.
    pub fn in_arena(&self, rest: &[u8]) -> Option<(u64, usize)> {
        let arena = self.arena.as_ref().filter(|_| self.is_arena_taken)?;
        let in_arena = self.lent.iter().filter(|it| matches!(it, Lent::InArena(_)));
        // The location of a filled buffer has these bytes, and is to be sent next.
        if rest.len() < self.min || self.filled.is_some() || in_arena.count() >= IN_ARENA_MAX {
            return None;
        }
        Some((arena.offset_of(rest)?, rest.len().min(LONGEST as usize)))
    }

    /// The location of this data in the arena was sent.
    pub fn sent_in_arena(&mut self, data: Bytes) {
        let share = match self.has(StreamDefect::FreeUnreported) {
            true => Bytes::new(),
            false => data,
        };
        self.lent.push_back(Lent::InArena(share));
    }

    /// A buffer with the first of these bytes, and how many they are. Nothing if they should travel in a message.
    pub fn fill(&mut self, rest: &[u8]) -> Option<(Buffer, usize)> {
        let own = self.own.as_mut().filter(|_| self.is_taken)?;
        if rest.len() < self.min {
            return None;
        }
        let length = rest.len().min(LONGEST as usize);
        let buffer = match self.filled.take() {
            Some(buffer) => buffer,
            None => {
                let unused = own[class_of(length)].allocate();
                let buffer = unused.or_else(|| self.unreported_buffer(length))?;
                buffer.write(0, &rest[..length]);
                buffer
            }
        };
        Some((buffer, length))
    }

    /// The oldest buffer that the peer has not reported, for a sender that breaks the rule.
    fn unreported_buffer(&self, length: usize) -> Option<Buffer> {
        let holds = |buffer: &&Buffer| buffer.capacity() as usize >= length;
        let mut buffers = self.lent.iter().filter_map(|lent| match lent {
            Lent::Buffer(buffer) => Some(buffer),
            Lent::InArena(_) => None,
        });
        let oldest = buffers.find(holds);
        oldest
            .filter(|_| self.has(StreamDefect::ReuseUnreported))
            .cloned()
    }

    /// The location of a filled buffer was sent, or could not be: then the same bytes are to be sent next.
    pub fn sent(&mut self, buffer: Buffer, was_sent: bool) {
        match was_sent {
            true => self.lent.push_back(Lent::Buffer(buffer)),
            false => self.filled = Some(buffer),
        }
    }

    /// Fragments that the peer has not copied, as far as is known.
    #[cfg(test)]
    pub fn lent(&self) -> usize {
        self.lent.len()
    }

    /// Whether the peer can pull.
    #[cfg(test)]
    pub fn is_taken(&self) -> bool {
        self.is_taken
    }

    /// Memory of the peer, from which a fragment is to be copied.
    pub fn source(&self, memory: Memory) -> Result<RemoteRegion, &'static str> {
        self.imported[memory as usize].ok_or("it describes memory that was not exported")
    }

    /// Fragments of the peer of which it cannot use the memory again yet: they are to be read, or it has not learnt that they were.
    pub fn unreported(&self) -> usize {
        let arriving = self.arriving.iter();
        let unread = arriving.filter(|it| matches!(it, Arriving::At(_) | Arriving::Read(..)));
        self.copied as usize + unread.count()
    }

    /// A fragment was copied out of this memory.
    pub fn has_copied(&mut self, memory: Memory) {
        self.copied += 1;
        self.copied_in_all[memory as usize] += 1;
    }
}
