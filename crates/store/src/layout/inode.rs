//! An inode: 256 bytes in the inode table.
//!
//! The first line holds what a write changes, so that a small write replaces one cache line of it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::extent::Extent;
use crate::checksum::{append, crc32c};

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
    /// CRC32C of the bytes 16..256, then the generation, then the version.
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

    /// The checksum without the version: what a record carries. See [`stamp`].
    pub fn partial_checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        append(crc32c(&bytes[16..]), &bytes[4..8])
    }

    /// The checksum that belongs into this inode.
    pub fn checksum(&self) -> u32 {
        append(self.partial_checksum(), self.version.as_bytes())
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

/// Gives the first 16 bytes of an inode, with a partial checksum, its version: records carry inodes unstamped, since
/// their sequence is known only when they are otherwise complete.
pub fn stamp(first: &mut [u8; 16], version: u64) {
    let partial = u32::from_le_bytes([first[0], first[1], first[2], first[3]]);
    first[..4].copy_from_slice(&append(partial, &version.to_le_bytes()).to_le_bytes());
    first[8..].copy_from_slice(&version.to_le_bytes());
}

const _: () = assert!(size_of::<Inode>() == INODE);
const _: () =
    assert!(std::mem::offset_of!(Inode, uid) == 64 && std::mem::offset_of!(Inode, root) == 128);
