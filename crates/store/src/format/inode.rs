//! An inode: 256 bytes in the inode table.
//!
//! The first line holds the fields that a write changes, so that a small write replaces, and checksums, one cache line
//! of it.

use pmem::checksum;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::extent::Extent;
use crate::format::checksum::crc32c;

/// Bytes of an inode.
pub const INODE: usize = 256;
/// Bytes of the first line, which holds the fields that a write changes.
pub const FIRST_LINE: usize = 64;
/// Offset of the stamp's checksum.
pub const STAMP_CRC: u64 = std::mem::offset_of!(Inode, stamp_crc) as u64;
/// Offset of the stamp, version and times of change: all that a write in place changes.
pub const STAMP: u64 = std::mem::offset_of!(Inode, version) as u64;
/// Where the stamp ends.
pub const STAMP_END: usize = std::mem::offset_of!(Inode, size);
/// Extents (or child nodes) that fit into the inode itself.
pub const ROOT_ENTRIES: usize = 4;
/// Bit of the version word: bytes of the file are changing in place, and the rest of the word has no meaning.
pub const CHANGING: u64 = 1 << 63;
/// Bytes of a symbolic link's target that fit into the inode.
pub const INLINE_TARGET_MAX: usize = 128;

/// Flag of a file of the system directory with blocks that clients fill: its data has no checksums.
pub const FLAG_GRANT: u32 = 1;

/// Flag of an immutable file or directory.
pub const FLAG_IMMUTABLE: u32 = 2;
/// Flag of a file that is only written to at its end, or of a directory that names only come into.
pub const FLAG_APPEND_ONLY: u32 = 4;
/// Every flag there is.
pub const FLAGS_KNOWN: u32 = FLAG_GRANT | FLAG_IMMUTABLE | FLAG_APPEND_ONLY;

/// `S_IFMT`: the bits of the mode for the kind.
pub const KIND_MASK: u32 = 0o170_000;

/// One file, directory or link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Inode {
    /// CRC32C of the bytes 32..64, exclusive or `rest_crc`.
    pub crc: u32,
    /// CRC32C of the bytes 8..32: the fields that change with every write have a separate checksum, so that the record
    /// of a write need not contain the rest.
    pub stamp_crc: u32,
    /// Sequence number of the last record that changed the inode or its data, apart from the access time. [`CHANGING`]: bytes
    /// are changing in place.
    pub version: u64,
    /// Last change of the data, nanoseconds since 1970.
    pub modified_ns: i64,
    /// Last change of data or inode, nanoseconds since 1970.
    pub changed_ns: i64,
    /// Bytes of the file; for a directory, of its leaves; for a symbolic link, of its target.
    pub size: u64,
    /// Blocks held: data, leaves and nodes of the extent tree.
    pub blocks: u64,
    /// Names in the directory, without `.` and `..`; else zero.
    pub entries: u64,
    /// Names that lead here; for a directory 2 plus its subdirectories.
    pub links: u32,
    /// Kind and permissions as in `st_mode`; zero when the inode is free.
    pub mode: u32,
    /// CRC32C of the bytes 68..256.
    pub rest_crc: u32,
    /// User that owns the file.
    pub uid: u32,
    /// Number of the owning group.
    pub gid: u32,
    /// Project, for quotas; 0 is none.
    pub project: u32,
    /// When the file was made, nanoseconds since 1970.
    pub created_ns: i64,
    /// Some of [`FLAGS_KNOWN`].
    pub flags: u32,
    /// Levels of the extent tree below the root; 0: the root holds extents.
    pub depth: u16,
    /// Entries of the root in use.
    pub count: u16,
    /// Device number of a device node.
    pub device: u32,
    /// Counts the files that had this number; grows with each.
    pub generation: u32,
    /// Inode number of the parent; directories only.
    pub parent: u64,
    /// Block of extended attributes; 0 is none.
    pub attributes: u64,
    /// Last read as recorded, nanoseconds since 1970.
    pub accessed_ns: i64,
    /// Root of the extent tree, or a short symbolic link's target.
    pub root: [Extent; ROOT_ENTRIES],
}

impl Inode {
    /// A free inode that never was one.
    pub const FREE: Inode = zerocopy::transmute!([0u8; INODE]);

    /// The checksum of all but the first line, which `rest_crc` should hold.
    pub fn rest_checksum(&self) -> u32 {
        crc32c(&self.as_bytes()[FIRST_LINE + 4..])
    }

    /// The checksum of the first line but for the stamp, if `rest_crc` is right.
    #[inline]
    pub fn checksum(&self) -> u32 {
        crc32c(&self.as_bytes()[STAMP_END..FIRST_LINE]) ^ self.rest_crc
    }

    /// Returns the value for `stamp_crc`.
    #[inline]
    pub fn stamp_checksum(&self) -> u32 {
        stamp_checksum(self.version, self.modified_ns, self.changed_ns)
    }

    /// Makes the checksums right.
    pub fn seal(&mut self) {
        self.rest_crc = self.rest_checksum();
        self.crc = self.checksum();
        self.stamp_crc = self.stamp_checksum();
    }

    /// Whether the checksums are right; an inode that was never written is all zero.
    pub fn is_intact(&self) -> bool {
        let right = self.crc == self.checksum()
            && self.stamp_crc == self.stamp_checksum()
            && self.rest_crc == self.rest_checksum();
        right || self.as_bytes() == [0; INODE]
    }

    /// Makes it a free one. Of a free inode only the first line counts: number and generation stay, so that old handles
    /// are found out.
    pub fn free(&mut self) {
        (self.size, self.blocks, self.entries) = (0, 0, 0);
        (self.modified_ns, self.changed_ns) = (0, 0);
        (self.links, self.mode) = (0, 0);
    }

    /// The bits of the mode for the kind.
    pub fn kind_bits(&self) -> u32 {
        self.mode & KIND_MASK
    }

    /// The generation of what gets this inode next.
    pub fn next_generation(&self) -> u32 {
        self.generation.wrapping_add(1)
    }

    /// Whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind_bits() == 0o040_000
    }
}

/// The checksum of an inode's stamp: its version and the times of change.
#[inline]
pub fn stamp_checksum(version: u64, modified_ns: i64, changed_ns: i64) -> u32 {
    !checksum::words(!0, &[version, modified_ns as u64, changed_ns as u64])
}

const _: () = assert!(size_of::<Inode>() == INODE);
const _: () = assert!(
    STAMP_END as u64 == STAMP + 24
        && std::mem::offset_of!(Inode, rest_crc) == FIRST_LINE
        && std::mem::offset_of!(Inode, root) == 128
);
