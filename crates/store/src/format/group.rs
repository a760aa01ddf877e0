//! A group: a run of blocks with its own bitmaps, checksums and inodes.
//!
//! ```text
//! | header | block bitmap | inode bitmap | orphan bitmap | checksums … | owners … | inodes … | data … |
//! ```
//! A bitmap is changed by words, and checked by lines of 512 bits. Their checksums are in the header block.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits in a bitmap line, which has a separate checksum.
pub const LINE_BITS: u32 = 512;
/// Most lines in a bitmap: one block.
pub const LINES_MAX: usize = 64;
/// Begins every group header.
pub const MAGIC: u32 = u32::from_le_bytes(*b"TKGR");

/// Most owners that a block can have beside the first.
pub const OWNERS_MAX: u16 = u16::MAX;

/// The number of owners besides the first, as stored in the image: twice, so that damage is detected.
#[inline]
pub const fn owners_word(owners: u16) -> u32 {
    (owners as u32) << 16 | owners as u32
}

/// Decodes [`owners_word`]; `None`: it is damaged.
#[inline]
pub fn owners(word: u32) -> Option<u16> {
    let owners = word as u16;
    (word == owners_word(owners)).then_some(owners)
}

/// Which of a group's bitmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// Bits of the blocks in use.
    Blocks = 0,
    /// Bits of the inodes in use.
    Inodes = 1,
    /// Inodes with something to reclaim: no link left, or extents behind the end of the file.
    Orphans = 2,
}

impl Map {
    /// All bitmaps of a group.
    pub const ALL: [Map; 3] = [Map::Blocks, Map::Inodes, Map::Orphans];
}

/// The header block of a group; the rest of the block is zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GroupHeader {
    /// Always [`MAGIC`].
    pub magic: u32,
    /// CRC32C of the bytes 8..64. The line checksums are not covered: each covers its line.
    pub crc: u32,
    /// Number of the group.
    pub group: u64,
    /// Reserved bytes, which are zero.
    pub reserved: [u64; 6],
    /// CRC32C of each line of each bitmap, in the order of [`Map`].
    pub line_crcs: [[u32; LINES_MAX]; 3],
}

/// Offset of the first line checksum in the header block.
pub const LINE_CRCS: u64 = 64;

const _: () = assert!(size_of::<GroupHeader>() == 64 + 3 * 4 * LINES_MAX);
