//! The block of an inode's extended attributes: a header, then the attributes one behind the other.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Begins every block of extended attributes.
pub const MAGIC: u32 = u32::from_le_bytes(*b"TKXA");
/// Offset of the first attribute.
pub const ENTRIES: usize = 64;
/// Bytes of an attribute before its name, and what attributes are aligned to.
pub const ENTRY: usize = 4;

/// First line of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct XattrHeader {
    /// Always [`MAGIC`].
    pub magic: u32,
    /// CRC32C of the bytes 8..4096.
    pub crc: u32,
    /// Inode that owns these attributes.
    pub owner: u64,
    /// Number of this block, so that a misplaced one is found.
    pub block: u64,
    /// Number of attributes in the block; never 0.
    pub count: u16,
    /// Where the last one ends; what follows is zero.
    pub end: u16,
    /// Generation of the owner.
    pub generation: u32,
    /// Reserved bytes, which are zero.
    pub reserved: [u64; 4],
}

/// An extended attribute in its block.
/// The bytes of its name and of its value follow, and zeros up to a multiple of 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct XattrEntry {
    /// Bytes of the name, with its namespace: 1 to 255.
    pub name_length: u8,
    /// Reserved bytes, which are zero.
    pub reserved: u8,
    /// Bytes of the value.
    pub value_length: u16,
}

const _: () = assert!(size_of::<XattrHeader>() == ENTRIES && size_of::<XattrEntry>() == ENTRY);
