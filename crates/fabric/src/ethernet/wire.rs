//! Frames: the link-layer header of 16 bytes, and the packet header behind it. [`protection`](super::protection) protects them.
//!
//! `docs/ETHERNET.md` draws them; a test holds the two together.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, big_endian};

use crate::Failure;

/// EtherTypes that are used unless others are chosen: of data, and of commands.
pub const TYPES: [u16; 2] = [0x8000, 0x8001];
/// Bytes of a command: shorter packets are filled up with zeros.
pub const COMMAND_BYTES: usize = 256;
/// Raised with the format.
pub const VERSION: u8 = 4;
/// Bytes in front of a packet's body.
pub const HEADER_BYTES: usize = size_of::<Header>();
/// Bytes of the header that the check does not cover: itself.
pub const CHECK_BYTES: usize = 16;
/// The tag of frames to groups.
pub const GROUP_TAG: u16 = 0;
/// Set in the sequence of packets that are not repeated.
pub const UNSEQUENCED: u64 = 1 << 63;

/// Flag: the last packet of a request.
pub const LAST: u8 = 1;
/// Flag: the immediate is part of the request.
pub const IMMEDIATE: u8 = 2;
/// Flag: the count of credits is asked for.
pub const ASK: u8 = 4;

/// Beginning of every frame.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    pub destination: [u8; 6],
    pub source: [u8; 6],
    pub ether_type: big_endian::U16,
    /// Socket of the receiver's port.
    pub tag: big_endian::U16,
    pub version: u8,
    pub kind: u8,
    pub flags: u8,
    /// Packets that the receiver of this one may have in flight to its sender; 0: as many as the numbers allow.
    pub window: u8,
    /// Bytes of the body.
    pub length: U32,
    /// Number of the receiver's endpoint.
    pub endpoint: U32,
    pub immediate: U32,
    /// Number of the packet; with [`UNSEQUENCED`] set, of those that are not repeated.
    pub sequence: U64,
    /// Next sequence that the sender expects from the receiver.
    pub expected: U64,
    /// Bit n: packet `expected + 1 + n` has come.
    pub selective: U64,
    /// Tag, keyed hash or checksum of all before it and the body.
    pub check: [u8; CHECK_BYTES],
}

/// Kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Part of a message.
    Send = 1,
    /// Part of a write.
    Write = 2,
    /// A read is asked for.
    Read = 3,
    /// Compare and swap.
    Swap = 4,
    /// Fetch and add.
    Add = 5,
    /// Part of the data of a read.
    Data = 6,
    /// Former value of an atomic's word.
    Value = 7,
    /// A request is refused; the endpoint ends with it.
    Refused = 8,
    /// Blocks are to be aimed at.
    Aim = 9,
    /// They are, or will not be.
    Aimed = 10,
    /// All frames for them were sent.
    Placed = 11,
    /// A read is asked for, and its blocks are aimed at.
    Fetch = 12,
    /// All frames for them were sent.
    Fetched = 13,
    /// No content besides the header.
    Acknowledge = 16,
    /// The same, and an answer is wanted.
    Probe = 17,
    /// A count of credits.
    Credit = 18,
    /// The endpoint is closed.
    Closed = 19,
    /// Frames for blocks are wanted again.
    Resend = 20,
    /// Frames for blocks that are read are wanted again.
    Refetch = 21,
    /// A message to a group.
    Group = 32,
}

impl Kind {
    pub fn from_byte(byte: u8) -> Option<Kind> {
        use Kind::{
            Acknowledge, Add, Aim, Aimed, Closed, Credit, Data, Fetch, Fetched, Group, Placed,
            Probe, Read, Refetch, Refused, Resend, Send, Swap, Value, Write,
        };
        let all = [
            Send,
            Write,
            Read,
            Swap,
            Add,
            Data,
            Value,
            Refused,
            Aim,
            Aimed,
            Placed,
            Fetch,
            Fetched,
            Resend,
            Refetch,
            Acknowledge,
            Probe,
            Credit,
            Closed,
            Group,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Whether packets of this kind are numbered, acknowledged and repeated.
    pub fn is_sequenced(self) -> bool {
        (self as u8) < Kind::Acknowledge as u8
    }
}

/// Body of [`Kind::Send`], with data behind it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Send {
    /// Bytes of the message.
    pub total: U32,
    /// Where in it the data goes.
    pub at: U32,
    /// Total of returned credits.
    pub returned: U32,
}

/// Body of [`Kind::Write`], with data behind it; of [`Kind::Read`], [`Kind::Aim`] and [`Kind::Fetch`], without.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Transfer {
    /// The requester's number of the request.
    pub request: U64,
    pub key: U64,
    /// Where the range begins.
    pub offset: U64,
    /// Bytes of the range.
    pub total: U32,
    /// Where in it the data goes. Fetch: number of the first frame.
    pub at: U32,
}

/// Body of [`Kind::Swap`] and [`Kind::Add`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Atomic {
    pub request: U64,
    pub key: U64,
    pub offset: U64,
    /// Expected value, or addend.
    pub operand: U64,
    /// Value to store if the comparison succeeds.
    pub new: U64,
}

/// Body of [`Kind::Data`], with data behind it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Data {
    pub request: U64,
    /// Where in the range the data goes.
    pub at: U32,
}

/// Body of [`Kind::Value`], [`Kind::Refused`], [`Kind::Aimed`], [`Kind::Resend`] and [`Kind::Refetch`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Answer {
    pub request: U64,
    /// Former value, or [`failure_number`], or numbers of frames.
    pub value: U64,
}

/// Body of [`Kind::Placed`] and [`Kind::Fetched`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Placed {
    pub request: U64,
    /// Tag, or checksum, of the blocks, from the last one to the first, and of the request's number.
    pub seal: [u8; 32],
}

/// Body of [`Kind::Group`], with the message behind it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Group {
    /// The group's IPv4 address and port.
    pub address: U32,
    pub port: U16,
    pub reserved: U16,
}

/// A received frame with a valid header and check.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    pub header: &'a Header,
    pub kind: Kind,
    pub body: &'a [u8],
}

/// Parses a received frame, without verifying its check.
pub fn parse(frame: &[u8]) -> Option<Packet<'_>> {
    let (header, rest) = Header::ref_from_prefix(frame).ok()?;
    let kind = Kind::from_byte(header.kind)?;
    let sequence = header.sequence.get();
    let is_sequenced = sequence & UNSEQUENCED == 0;
    let fits =
        header.version == VERSION && (kind == Kind::Group || is_sequenced == kind.is_sequenced());
    let body = rest.get(..header.length.get() as usize)?;
    fits.then_some(Packet { header, kind, body })
}

/// A target's code for a request that it refuses.
pub fn failure_number(failure: Failure) -> u64 {
    match failure {
        Failure::Access => 1,
        Failure::MemoryGone => 2,
        _ => 3,
    }
}

/// The failure with this number; nothing if there is none.
pub fn failure(number: u64) -> Option<Failure> {
    match number {
        1 => Some(Failure::Access),
        2 => Some(Failure::MemoryGone),
        3 => Some(Failure::Violation),
        _ => None,
    }
}

/// Data that one side of an endpoint sends to the other over the control connection.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Hello {
    pub version: U32,
    pub endpoint: U32,
    pub hardware: [u8; 6],
    pub tag: U16,
    pub types: [U16; 2],
    /// Bytes of the longest frame that this side can receive.
    pub frame_bytes: U32,
    /// 1 if packets must be authenticated.
    pub authenticated: U32,
    /// Kind of placement: 0 none, 1 overlay, 2 strip, 3 jumbo; on one queue 4 overlay, 5 strip.
    pub placement: U32,
    pub secret: [u8; 32],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_room_for_every_body_without_data() {
        assert_eq!(HEADER_BYTES, 72);
        let longest = size_of::<Transfer>().max(size_of::<Atomic>());
        assert!(HEADER_BYTES + longest <= COMMAND_BYTES);
    }
}
