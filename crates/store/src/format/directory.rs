//! A directory's leaf: one 4 KiB block with all names that have hashes beginning with the leaf's prefix.
//!
//! ```text
//! | header | slots, growing up →          ← entries, growing down |
//! ```
//! Leaves are the directory's file blocks: the leaf of prefix p and depth d is at logical block p << (32 - d), so the
//! extent tree is the index, and the leaf of a hash is the one at the largest logical block not above its top 32 bits.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Begins every leaf.
pub const MAGIC: u32 = u32::from_le_bytes(*b"TKDL");
/// Offset of the first slot.
pub const SLOTS: usize = 64;
/// Bytes of a slot.
pub const SLOT: usize = 4;
/// Bytes of an entry before its name.
pub const ENTRY: usize = 32;
/// Bits of a key that distinguish names of one hash.
pub const DISCRIMINATOR_BITS: u32 = 16;
/// Bits of a hash in a key: keys have 62 bits, so that cookies stay positive.
pub const HASH_BITS: u32 = 46;
/// Bits of a hash that choose the leaf.
pub const PREFIX_BITS: u32 = 32;

/// First line of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LeafHeader {
    /// Always [`MAGIC`].
    pub magic: u32,
    /// CRC32C of the bytes 8..4096.
    pub crc: u32,
    /// Inode of the directory.
    pub owner: u64,
    /// Number of this block, so that a misplaced one is found.
    pub block: u64,
    /// Own logical block: the prefix, shifted to 32 bits.
    pub logical: u64,
    /// Bits of the prefix.
    pub depth: u16,
    /// Number of slots in use.
    pub count: u16,
    /// Lowest offset of an entry.
    pub heap: u16,
    /// Bytes of entries that no slot points to any more.
    pub dead: u16,
    /// Generation of the owner.
    pub generation: u32,
    /// Reserved bytes, which are zero.
    pub reserved: u32,
    /// Reserved bytes, which are zero.
    pub padding: [u64; 2],
}

/// Offset of a leaf's owner in its header.
pub const OWNER: usize = std::mem::offset_of!(LeafHeader, owner);
/// Offset of a leaf's logical block in its header.
pub const LOGICAL: usize = std::mem::offset_of!(LeafHeader, logical);
/// Offset of a leaf's [`Shape`] in its header.
pub const SHAPE: usize = std::mem::offset_of!(LeafHeader, depth);

/// The part of a leaf's header that changes with its names, the one word from `depth` to `dead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Shape {
    /// Bits of the prefix.
    pub depth: u16,
    /// Number of slots in use.
    pub count: u16,
    /// Lowest offset of an entry.
    pub heap: u16,
    /// Bytes of entries that no slot points to any more.
    pub dead: u16,
}

impl Shape {
    /// Bytes between the slots and the entries.
    pub fn gap(&self) -> usize {
        (self.heap as usize).saturating_sub(SLOTS + self.count as usize * SLOT)
    }
}

/// Where an entry is, and 16 bits of its hash to find it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Slot {
    /// The low 16 bits of the hash.
    pub tag: u16,
    /// Offset of the entry in the leaf.
    pub offset: u16,
}

/// A name; its bytes follow, padded with zeros to a multiple of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EntryHeader {
    /// Hash and discriminator: the order of reading and the cookie.
    pub key: u64,
    /// Number of the inode.
    pub number: u64,
    /// Generation of the inode.
    pub generation: u32,
    /// Storage unit of the inode; 0: this one.
    pub unit: u32,
    /// Kind of the inode: the top 4 bits of its mode.
    pub kind: u8,
    /// Bytes of the name, 1..=255.
    pub name_length: u8,
    /// Reserved bytes, which are zero.
    pub reserved: [u8; 6],
}

/// Bytes that an entry of a name of `length` bytes takes, without its slot.
pub const fn entry_size(length: usize) -> usize {
    (ENTRY + length).next_multiple_of(8)
}

const _: () = assert!(size_of::<LeafHeader>() == SLOTS && size_of::<EntryHeader>() == ENTRY);
