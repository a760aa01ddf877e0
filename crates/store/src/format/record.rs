//! A record: one atomic change of the image, as stored in the ring.
//!
//! ```text
//! | header, 32 bytes | operation, 16 bytes | payload, padded to 8 | operation | payload | … | zeros to 64 | blocks … |
//! ```
//! An operation on file data may touch the file's inode, by 16 bytes between its header and its payload: then one line and
//! the data are the record of a write in place. Whole data blocks ride behind the rest, in the order of their operations,
//! each under its own checksum: they go from the caller's buffer into the ring without another copy, and are checksummed
//! once.

use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::BLOCK;
use crate::format::checksum::crc32c;
use crate::format::inode::Inode;

/// Begins every record.
pub const MAGIC: u32 = u32::from_le_bytes(*b"TKRC");
/// Records start and end at multiples of this many bytes.
pub const ALIGN: usize = 64;
/// Bytes of a record's header.
pub const HEADER: usize = 32;
/// Where the part of a record begins that does not depend on its number.
const CONTENTS: usize = 16;
/// Where the time of change is in an inode.
const CHANGED: usize = std::mem::offset_of!(Inode, changed_ns);
/// Bytes of an operation's header.
pub const OPERATION: usize = 16;
/// Longest payload of one operation.
pub const PAYLOAD_MAX: usize = (1 << 24) - 1;

/// First 32 bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RecordHeader {
    /// Always [`MAGIC`].
    pub magic: u32,
    /// CRC32C of the bytes 16..`checked`, exclusive or the low half of `number` / 64.
    pub crc: u32,
    /// Number of the record in the unit's one order: its position in the ring, in bytes since the pool was made.
    pub number: u64,
    /// Epoch in which the record was made.
    pub epoch: u32,
    /// Bytes of the record, blocks included.
    pub length: u32,
    /// Where the operations end and the blocks begin, in bytes from the record's start.
    pub checked: u32,
    /// Reserved bytes, which are zero.
    pub reserved: u32,
}

/// The checksum of a record without its number, which it gets last. `checked` are its bytes before the blocks.
#[inline]
pub fn contents_checksum(checked: &[u8]) -> u32 {
    crc32c(&checked[CONTENTS..])
}

/// The checksum of a record with its number: a torn header must not make a record of an earlier lap one of this lap.
#[inline]
pub fn with_number(contents_checksum: u32, number: u64) -> u32 {
    contents_checksum ^ (number / ALIGN as u64) as u32
}

/// Effect of an operation on the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The payload goes to the target.
    Bytes = 1,
    /// `length` bytes at the target become zero.
    Zero = 2,
    /// The payload, the first bytes of an inode, goes to the target, with the record's number as its version and the
    /// checksum of the stamp that this makes.
    Inode = 3,
    /// The payload goes to the target, inside one data block; the block's checksum becomes `crc`.
    Data = 4,
    /// The data blocks at the target were written before the record; the payload is their checksums.
    Extent = 5,
    /// The payload is words of one line of a bitmap; the line's checksum in the group's header becomes `crc`.
    Line = 6,
    /// A whole data block, which rides behind the operations, goes to the target; `crc` is its checksum.
    Block = 7,
    /// The payload is [`parts`] of a metadata block; the block's checksum becomes `crc`.
    Edit = 8,
}

impl Kind {
    #[inline]
    fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Bytes,
            2 => Kind::Zero,
            3 => Kind::Inode,
            4 => Kind::Data,
            5 => Kind::Extent,
            6 => Kind::Line,
            7 => Kind::Block,
            8 => Kind::Edit,
            _ => return None,
        })
    }
}

/// Bit of the kind's byte: a [`Touch`] comes before the payload.
const TOUCHES: u8 = 0x80;

/// The change of data is the last of its file, and the inode changes in nothing else: its times of change become
/// `time_ns`, its version the record's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Touch {
    /// Number of the inode.
    pub inode: u64,
    /// Nanoseconds since 1970.
    pub time_ns: i64,
}

/// Bytes of a touch.
pub const TOUCH: usize = size_of::<Touch>();

/// Header of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawOperation {
    /// Kind in the low 7 bits, then whether it touches an inode; length in bytes in the upper 24.
    kind_and_length: u32,
    crc: u32,
    target: u64,
}

/// One validated operation of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordOperation<'a> {
    /// Kind of the operation.
    pub kind: Kind,
    /// Offset in the image, in bytes.
    pub target: u64,
    /// Bytes of the image that it covers.
    pub length: u32,
    /// New checksum of the block ([`Kind::Data`], [`Kind::Block`], [`Kind::Edit`]) or of the line ([`Kind::Line`]).
    pub crc: u32,
    /// Effect on its file's inode; only changes of data have one.
    pub touch: Option<Touch>,
    /// The bytes behind the operation's header, or the block.
    pub payload: &'a [u8],
}

impl RecordOperation<'_> {
    /// When it changes an inode, nanoseconds since 1970; 0 if it changes none.
    pub fn changed_ns(&self) -> i64 {
        let of_inode = self.payload.get(CHANGED..).and_then(<[u8]>::first_chunk);
        match (self.touch, self.kind, of_inode) {
            (Some(touch), ..) => touch.time_ns,
            (None, Kind::Inode, Some(time)) => i64::from_le_bytes(*time),
            _ => 0,
        }
    }

    /// Bytes of payload for an operation of this kind and length.
    fn payload_length(kind: Kind, length: usize) -> usize {
        match kind {
            Kind::Zero | Kind::Block => 0,
            Kind::Extent => length / BLOCK * 4,
            _ => length,
        }
    }

    /// Whether the operation is valid in a record of an image of this length.
    fn is_valid(&self, image_length: u64) -> bool {
        let (target, length) = (self.target, u64::from(self.length));
        let block = BLOCK as u64;
        let inside = length > 0
            && target
                .checked_add(length)
                .is_some_and(|end| end <= image_length);
        let may_touch = matches!(self.kind, Kind::Bytes | Kind::Data | Kind::Block);
        inside
            && (may_touch || self.touch.is_none())
            && match self.kind {
                Kind::Bytes | Kind::Zero => true,
                Kind::Inode => target.is_multiple_of(256) && [64, 128, 256].contains(&length),
                Kind::Data => target / block == (target + length - 1) / block,
                Kind::Extent => target.is_multiple_of(block) && length.is_multiple_of(block),
                Kind::Block => target.is_multiple_of(block) && length == block,
                Kind::Line => {
                    (target | length).is_multiple_of(8) && target / 64 == (target + length - 1) / 64
                }
                Kind::Edit => target.is_multiple_of(block) && length <= EDIT_MAX as u64,
            }
    }

    #[inline]
    fn raw(&self) -> RawOperation {
        let kind = self.kind as u8 | self.touch.map_or(0, |_| TOUCHES);
        RawOperation {
            kind_and_length: u32::from(kind) | self.length << 8,
            crc: self.crc,
            target: self.target,
        }
    }

    /// Whether the payload of an edit is as long as its parts, and they lie in the block, after its checksum.
    fn has_valid_parts(&self) -> bool {
        let Some((list, bytes)) = self.payload.split_first_chunk() else {
            return false;
        };
        let list = u64::from_le_bytes(*list);
        parts(list).all(|(at, length)| at >= 8 && length > 0)
            && parts(list).map(|(_, length)| length).sum::<usize>() == bytes.len()
    }
}

/// Most parts of an edit: a word of 16 bits each.
pub const PARTS_MAX: usize = 4;
/// Longest payload of an edit.
pub const EDIT_MAX: usize = 320;

/// The parts that the first word of an edit's payload lists, as offset in the block and length in bytes. Their bytes,
/// whole words, follow it in the same order.
#[inline]
pub fn parts(list: u64) -> impl Iterator<Item = (usize, usize)> {
    (0..PARTS_MAX)
        .map(move |index| (list >> (16 * index)) as u16 as usize)
        .take_while(|part| *part != 0)
        .map(|part| {
            let at = (part >> 7) * 8;
            // Never out of the block, even where the list is read from a damaged ring.
            (at, ((part & 127) * 8).min(BLOCK - at))
        })
}

/// The field of [`parts`] that encodes a part.
#[inline]
pub fn part(at: usize, length: usize) -> u16 {
    debug_assert!((at | length).is_multiple_of(8) && at < BLOCK && length / 8 < 128);
    ((at / 8) << 7 | (length / 8)) as u16
}

/// Appends one operation to the body of a record, and returns where its payload is.
#[inline]
pub fn encode(body: &mut Vec<u8>, operation: &RecordOperation<'_>) -> Range<usize> {
    let at = body.len();
    let start = at + OPERATION + operation.touch.map_or(0, |_| TOUCH);
    let end = start + RecordOperation::payload_length(operation.kind, operation.length as usize);
    body.resize(end.next_multiple_of(8), 0);
    body[at..at + OPERATION].copy_from_slice(operation.raw().as_bytes());
    if let Some(touch) = &operation.touch {
        body[at + OPERATION..start].copy_from_slice(touch.as_bytes());
    }
    body[start..end].copy_from_slice(&operation.payload[..end - start]);
    start..end
}

/// Sets the checksum of the operation with a payload beginning at `payload` in the body of a record.
#[inline]
pub fn set_crc(body: &mut [u8], payload: usize, touch: Option<Touch>, crc: u32) {
    let at = payload - touch.map_or(0, |_| TOUCH) - OPERATION + size_of::<u32>();
    body[at..at + size_of::<u32>()].copy_from_slice(&crc.to_le_bytes());
}

/// Goes through the operations of a record; damage ends it with `None` in place of an operation.
#[derive(Clone)]
pub struct Operations<'a> {
    rest: &'a [u8],
    blocks: &'a [u8],
    image_length: u64,
}

impl<'a> Operations<'a> {
    /// The operations of a whole record, header included, for an image of `image_length` bytes.
    pub fn new(record: &'a [u8], image_length: u64) -> Operations<'a> {
        let header = RecordHeader::read_from_prefix(record)
            .map(|(header, _)| header)
            .ok();
        let checked = header.map_or(0, |header| header.checked as usize);
        let operations = record.get(HEADER..checked).unwrap_or(&[]);
        let blocks = record.get(checked..).unwrap_or(&[]);
        Operations::of(operations, blocks, image_length)
    }

    /// The operations encoded in `rest`, with the blocks that some of them name.
    pub fn of(rest: &'a [u8], blocks: &'a [u8], image_length: u64) -> Operations<'a> {
        Operations {
            rest,
            blocks,
            image_length,
        }
    }

    fn split(&mut self) -> Option<RecordOperation<'a>> {
        let (mut operation, payload) = parse_head(self.rest, self.image_length)?;
        let end = payload.end.next_multiple_of(8);
        operation.payload = self.rest.get(payload)?;
        if operation.kind == Kind::Block {
            (operation.payload, self.blocks) = self.blocks.split_at_checked(BLOCK)?;
        }
        if operation.kind == Kind::Edit && !operation.has_valid_parts() {
            return None;
        }
        self.rest = self.rest.get(end..)?;
        Some(operation)
    }
}

/// The operation that begins `bytes`, without its payload, and where that is in them, or behind them.
#[inline]
pub fn parse_head(
    bytes: &[u8],
    image_length: u64,
) -> Option<(RecordOperation<'static>, Range<usize>)> {
    let (head, rest) = bytes.split_first_chunk::<OPERATION>()?;
    let raw: RawOperation = zerocopy::transmute!(*head);
    let byte = raw.kind_and_length as u8;
    let touch = if byte & TOUCHES != 0 {
        let touch = rest.first_chunk::<TOUCH>()?;
        Some(zerocopy::transmute!(*touch))
    } else {
        None
    };
    let operation = RecordOperation {
        kind: Kind::from_byte(byte & !TOUCHES)?,
        target: raw.target,
        length: raw.kind_and_length >> 8,
        crc: raw.crc,
        touch,
        payload: &[],
    };
    let start = OPERATION + touch.map_or(0, |_| TOUCH);
    let length = RecordOperation::payload_length(operation.kind, operation.length as usize);
    operation
        .is_valid(image_length)
        .then_some((operation, start..start + length))
}

impl<'a> Iterator for Operations<'a> {
    type Item = Option<RecordOperation<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Option<RecordOperation<'a>>> {
        // Padding is zeros, and no kind is zero.
        if self.rest.len() < OPERATION || self.rest[0] == 0 {
            return None;
        }
        let operation = self.split();
        if operation.is_none() {
            self.rest = &[];
        }
        Some(operation)
    }
}

/// The checksum that belongs into a whole record's header, if the header leaves its operations inside it.
pub fn record_checksum(header: &RecordHeader, record: &[u8]) -> Option<u32> {
    let checked = record.get(..header.checked as usize)?;
    (checked.len() >= HEADER).then(|| with_number(contents_checksum(checked), header.number))
}

/// Whether a record's checksums are all right: that of the operations and that of each block.
pub fn is_intact(header: &RecordHeader, record: &[u8]) -> bool {
    let block_is_right = |operation: Option<RecordOperation<'_>>| {
        operation.is_none_or(|it| it.kind != Kind::Block || crc32c(it.payload) == it.crc)
    };
    record_checksum(header, record) == Some(header.crc)
        && Operations::new(record, u64::MAX).all(block_is_right)
}

const _: () =
    assert!(size_of::<RecordHeader>() == HEADER && size_of::<RawOperation>() == OPERATION);
