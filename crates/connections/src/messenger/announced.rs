//! Short messages by writes that announce themselves (self-identified requests of Octopus, row O3): a one-sided write puts the
//! message into a slot in the receiver's memory, and its 32 immediate bits name connection and slot.
//!
//! ```text
//!   the side that dials                                  the other side
//!   its slots, exported      ─── SLOTS, a connection ──► imports them
//!   imports them             ◄── SLOTS, a connection ─── its slots, exported
//!   a request in a slot      ─── WRITTEN ──────────────► copies it out of the slot
//!   copies it out of the slot ◄── WRITTEN ────────────── the answer in a slot
//!
//!  the 32 bits:
//!   31 30 │ 29 28 │ 27 26 │ 25 .. 10     │ 9 .. 0
//!     3   │   0   │   1   │ a connection │ 0          SLOTS: slots were exported, over the control connection; the number of the
//!                                                     connection for writes to them
//!     3   │   0   │   2   │ a connection │ a slot     WRITTEN: beside a write to this slot
//!     3   │   0   │   3   │ 0            │ 0          UNABLE: this side is to announce, but has no slots
//!  a slot: length of the message 4, little-endian; the message
//! ```
//! - A link has as many slots as its receiver has credits. The n-th message that takes a credit uses slot n modulo that number, if it
//!   is announced, and can be posted only once the credit of the message before it in that slot has come back.
//! - The receiver copies a slot as soon as the announcement arrives, before it returns any credit. So a credit that has come back
//!   proves that all slots up to its message were copied, in whichever order messages are dropped.
//! - The length is read once, and checked. A peer that changes a slot meanwhile changes the bytes of its own message.
//! - Over shm only the peer of the link has its slots mapped. Over verbs all links of a process are in one protection domain: an
//!   authenticated peer that guesses the key and the address of another link's slots can change the bytes of messages there.
//! - Messages that are empty, or longer than a slot, travel as before. Writes and messages of an endpoint arrive in order.

use fabric::{Access, Capabilities, Device, Error, Registration, Remote, RemoteRegion};
use pmem::Region;

/// Name under which the slots of a link are exported. Others have random names.
pub const SLOTS_NAME: u64 = u64::MAX - 1;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 512;
/// Bytes of the longest message in a slot.
pub const LONGEST: usize = SLOT_BYTES - LENGTH_BYTES;
/// Bytes of a message's length, which is before it in the slot.
pub const LENGTH_BYTES: usize = 4;
/// The greatest number of slots that 32 bits can name.
const SLOTS_MAX: u64 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 10;
/// Memory is made in these units.
const PAGE: u64 = 4096;

const SLOTS: u32 = 1 << 26;
const WRITTEN: u32 = 2 << 26;
const UNABLE: u32 = 3 << 26;
const KIND: u32 = 3 << 26;

/// How short messages of a link travel, in both directions. The side that dials chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestWay {
    /// In messages of the transport.
    #[default]
    Message,
    /// By writes that announce themselves, where the target's processor does not execute writes.
    Announced,
}

impl RequestWay {
    /// The way of this name.
    pub fn named(name: &str) -> Option<RequestWay> {
        match name {
            "message" => Some(RequestWay::Message),
            "announced" => Some(RequestWay::Announced),
            _ => None,
        }
    }
}

/// Returns why messages cannot be announced with these capabilities and credits, if so.
pub fn obstacle(capabilities: &Capabilities, window: u32) -> Option<&'static str> {
    if !capabilities.passive_target {
        Some("the target's processor would execute the writes")
    } else if !capabilities.order.writes_before_messages {
        Some("an announcement could arrive before its write")
    } else if u64::from(window) > SLOTS_MAX {
        Some("there are more credits than slots can be named")
    } else {
        None
    }
}

/// Makes one slot of 512 bytes for each credit of the peer.
///
/// # Errors
/// [`Error::Region`], [`Error::Memory`].
pub fn make(device: &dyn Device, window: u32) -> Result<Registration, Error> {
    let bytes = u64::from(window) * SLOT_BYTES as u64;
    let region = Region::memory(bytes.next_multiple_of(PAGE), false)?;
    device.register_part(&region, 0..bytes, Access::WRITE)
}

/// A message about slots, or the announcement of a write to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// Slots were exported, for writes with this number of the connection.
    Slots(u16),
    Written {
        connection: u16,
        slot: u16,
    },
    Unable,
}

impl Note {
    /// Decodes the lower 28 of the immediate bits.
    pub fn decode(value: u32) -> Result<Note, &'static str> {
        let (connection, slot) = ((value >> SLOT_BITS) as u16, value as u16 & 0x3ff);
        match value & KIND {
            SLOTS if slot == 0 => Ok(Note::Slots(connection)),
            WRITTEN => Ok(Note::Written { connection, slot }),
            UNABLE if value == UNABLE => Ok(Note::Unable),
            _ => Err("a message about slots is invalid"),
        }
    }

    /// Its lower 28 immediate bits.
    pub fn encode(self) -> u32 {
        match self {
            Note::Slots(connection) => SLOTS | u32::from(connection) << SLOT_BITS,
            Note::Written { connection, slot } => {
                WRITTEN | u32::from(connection) << SLOT_BITS | u32::from(slot)
            }
            Note::Unable => UNABLE,
        }
    }
}

/// Puts a message into the bytes of a slot. Returns how many of them it takes.
pub fn fill(slot: &mut [u8; SLOT_BYTES], bytes: &[u8]) -> usize {
    let length = LENGTH_BYTES + bytes.len();
    slot[..LENGTH_BYTES].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    slot[LENGTH_BYTES..length].copy_from_slice(bytes);
    length
}

/// A message in a slot of this side.
pub struct InSlot<'a> {
    own: &'a Registration,
    pub offset: u64,
    pub length: usize,
}

impl InSlot<'_> {
    /// Appends the message, copied out of the slot.
    pub fn append_to(&self, into: &mut Vec<u8>) {
        let region = self.own.region();
        region.append_to(self.offset, self.length, into);
    }
}

/// The slots of one link, both ways.
#[derive(Default)]
pub struct Slots {
    /// Number of the connection in announcements to this side.
    connection: u16,
    /// Whether this side is to export slots: it has dialed and chosen so, or the peer has exported some.
    is_wanted: bool,
    /// Slots of this side, which the peer writes.
    own: Option<Registration>,
    /// Why this side has none, though they are wanted.
    obstacle: Option<&'static str>,
    /// A note that is to be sent before any other message.
    owed: Option<Note>,
    /// The peer's slots, once it has exported some.
    imported: Option<RemoteRegion>,
    /// The peer's number of the connection, once it has sent one.
    peer_connection: Option<u16>,
    /// Messages to the peer that took a credit.
    sent: u64,
    /// Messages that came by slots.
    pub received: u64,
}

impl Slots {
    /// Nothing is exported yet. `connection`: the number that the peer is to name.
    pub fn new(connection: u16, requests: RequestWay) -> Slots {
        Slots {
            connection,
            is_wanted: requests == RequestWay::Announced,
            ..Slots::default()
        }
    }

    /// Whether slots are to be made, or why not is to be found out.
    pub fn wants_slots(&self) -> bool {
        self.is_wanted && self.own.is_none() && self.obstacle.is_none()
    }

    /// Slots were exported to the peer, or there are none for this reason.
    pub fn offered(&mut self, own: Result<Registration, &'static str>) {
        match own {
            Ok(own) => {
                self.own = Some(own);
                self.owed = Some(Note::Slots(self.connection));
            }
            Err(reason) => {
                self.obstacle = Some(reason);
                // The peer knows already that it should announce.
                self.owed = Some(Note::Unable);
            }
        }
    }

    /// The peer, which can hold `window` messages, has exported its slots.
    ///
    /// # Errors
    /// The peer broke the rules: there are too few slots for its credits, or more than can be named.
    pub fn imported(&mut self, region: RemoteRegion, window: u32) -> Result<(), &'static str> {
        let count = region.length() / SLOT_BYTES as u64;
        if !(u64::from(window.max(1))..=SLOTS_MAX).contains(&count) {
            return Err("the number of its slots is invalid");
        }
        self.imported.get_or_insert(region);
        Ok(())
    }

    /// The peer has withdrawn its slots.
    pub fn revoked(&mut self) {
        if self.imported.is_some() {
            self.give_up("the peer has withdrawn its slots");
        }
    }

    /// The note that is to be sent before any other message. [`Slots::note_sent`] is called when it was sent.
    pub fn owed(&self) -> Option<Note> {
        self.owed
    }

    /// The note of [`Slots::owed`] has been sent.
    pub fn note_sent(&mut self) {
        self.owed = None;
    }

    /// The peer has sent a note.
    ///
    /// # Errors
    /// The peer broke the rules.
    pub fn note_received(&mut self, note: Note) -> Result<Option<InSlot<'_>>, &'static str> {
        match note {
            Note::Slots(connection) if self.peer_connection.is_none() => {
                self.peer_connection = Some(connection);
                self.is_wanted = true;
                if self.own.is_none() && self.obstacle.is_some() {
                    self.owed = Some(Note::Unable);
                }
                Ok(None)
            }
            Note::Unable if self.obstacle.is_none() && self.peer_connection.is_none() => {
                self.obstacle = Some("the peer has no slots");
                Ok(None)
            }
            Note::Written { connection, slot } => self.find(connection, slot).map(Some),
            _ => Err("a message about slots comes out of turn"),
        }
    }

    /// The message in a slot that the peer has announced.
    fn find(&mut self, connection: u16, slot: u16) -> Result<InSlot<'_>, &'static str> {
        let own = self.own.as_ref();
        let own = own.ok_or("it announces a write to slots that were not exported")?;
        if connection != self.connection {
            return Err("it announces a write of another connection");
        }
        let offset = u64::from(slot) * SLOT_BYTES as u64;
        if offset >= own.part().end {
            return Err("it announces a write to a slot that does not exist");
        }
        let mut length = [0; LENGTH_BYTES];
        own.region().read(offset, &mut length);
        let length = u32::from_le_bytes(length) as usize;
        if !(1..=LONGEST).contains(&length) {
            return Err("the length of a message in a slot is invalid");
        }
        self.received += 1;
        Ok(InSlot {
            own,
            offset: offset + LENGTH_BYTES as u64,
            length,
        })
    }

    /// A message that was found in a slot before.
    pub fn at(&self, offset: u64, length: usize) -> Option<InSlot<'_>> {
        let own = self.own.as_ref()?;
        Some(InSlot {
            own,
            offset,
            length,
        })
    }

    /// Where a message of this length goes, and its announcement. `None`: it goes in a message. So many slots stay unused, none unless
    /// a test breaks the rule.
    pub fn next(&self, length: usize, unused: u64) -> Option<(Remote, Note)> {
        let (region, connection) = (self.imported?, self.peer_connection?);
        // Both directions are announced, or none.
        self.own.as_ref()?;
        if !(1..=LONGEST).contains(&length) {
            return None;
        }
        let slot = self.sent % (region.length() / SLOT_BYTES as u64 - unused);
        let to = region.at(slot * SLOT_BYTES as u64);
        let slot = slot as u16;
        Some((to, Note::Written { connection, slot }))
    }

    /// The peer does not let this side write its slots, for this reason. A side that has made none yet makes none either.
    pub fn give_up(&mut self, reason: &'static str) {
        self.imported = None;
        if self.wants_slots() {
            self.owed = Some(Note::Unable);
        }
        self.obstacle = Some(reason);
    }

    /// A message was posted that takes a credit.
    pub fn count_sent(&mut self) {
        self.sent += 1;
    }

    /// How short messages travel, and why they are not announced if that was chosen.
    pub fn state(&self) -> (RequestWay, Option<&'static str>) {
        match (self.imported, self.peer_connection) {
            (Some(_), Some(_)) if self.own.is_some() => (RequestWay::Announced, None),
            _ => (RequestWay::Message, self.obstacle),
        }
    }
}
