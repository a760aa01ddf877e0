//! An inode: 256 bytes in the inode table.
//!
//! The first line holds what a write changes, so that a small write replaces one cache line of it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::extent::Extent;
use crate::checksum::crc32c;

/// Bytes of an inode.
pub const INODE: usize = 256;
/// Extents (or child nodes) that fit into the inode itself.
pub const ROOT_ENTRIES: usize = 4;
/// Bytes of a symbolic link's target that fit into the inode.
pub const INLINE_TARGET_MAX: usize = 128;

/// `S_IFMT`: the bits of the mode that tell the kind.
pub const KIND_MASK: u32 = 0o170_000;

/// One file, directory or link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Inode {
    /// CRC32C of 16 bytes: the CRC32C of the bytes 16..256, then generation and version.
    pub crc: u32,
    /// Counts the files that had this number; grows with each.
    pub generation: u32,
    /// Sequence number of the record that changed the inode or its data last. Bit 63: bytes are changing in place.
    pub version: u64,
    /// Bytes of the file; for a directory, of its leaves; for a symbolic link, of its target.
    pub size: u64,
    /// Blocks held: data, leaves and nodes of the extent tree.
    pub blocks: u64,
    /// Last change of the data, nanoseconds since 1970.
    pub modified_ns: i64,
    /// Last change of data or inode, nanoseconds since 1970.
    pub changed_ns: i64,
    /// Last read as recorded, nanoseconds since 1970.
    pub accessed_ns: i64,
    /// Names that lead here; for a directory 2 plus its subdirectories.
    pub links: u32,
    /// Kind and permissions as in `st_mode`; zero when the inode is free.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// When the file was made, nanoseconds since 1970.
    pub created_ns: i64,
    /// Project, for quotas; 0 is none.
    pub project: u32,
    /// Inode flags; none is defined yet.
    pub flags: u32,
    /// Device number of a device node.
    pub device: u64,
    /// Inode number of the parent; directories only.
    pub parent: u64,
    /// Block of extended attributes; 0 is none.
    pub attributes: u64,
    /// Names in the directory, without `.` and `..`.
    pub entries: u64,
    /// Levels of the extent tree below the root; 0: the root holds extents.
    pub depth: u16,
    /// Entries of the root in use.
    pub count: u16,
    /// Zero.
    pub reserved: u32,
    /// Root of the extent tree, or a short symbolic link's target.
    pub root: [Extent; ROOT_ENTRIES],
}

impl Inode {
    /// A free inode that never was one.
    pub const FREE: Inode = zerocopy::transmute!([0u8; INODE]);

    /// The checksum of all but generation and version: what a record carries. See [`stamp`].
    pub fn partial_checksum(&self) -> u32 {
        crc32c(&self.as_bytes()[16..])
    }

    /// The checksum that belongs into this inode.
    pub fn checksum(&self) -> u32 {
        stamp(
            u64::from(self.generation) << 32 | u64::from(self.partial_checksum()),
            self.version,
        ) as u32
    }

    /// Whether the checksum is right; an inode that was never written is all zero.
    pub fn is_intact(&self) -> bool {
        self.crc == self.checksum() || self.as_bytes() == [0; INODE]
    }

    /// The bits of the mode that tell the kind.
    pub fn kind_bits(&self) -> u32 {
        self.mode & KIND_MASK
    }

    /// Whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind_bits() == 0o040_000
    }
}

/// Gives an inode, whose first 16 bytes carry a partial checksum, its version: records carry inodes unstamped, since
/// their number is known only when they are otherwise complete. Takes the first word (checksum and generation) and
/// returns it with the whole checksum. Words, not bytes: a load of bytes stored apart would wait for the record's fence.
#[inline]
pub fn stamp(first_word: u64, version: u64) -> u64 {
    let crc = crc32c([first_word, version].as_bytes());
    first_word >> 32 << 32 | u64::from(crc)
}

const _: () = assert!(size_of::<Inode>() == INODE);
const _: () =
    assert!(std::mem::offset_of!(Inode, uid) == 64 && std::mem::offset_of!(Inode, root) == 128);
