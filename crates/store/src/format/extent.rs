//! Extents, and the 4 KiB nodes of the tree that holds a file's extents.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A run of blocks of a file; in an inner node, a child.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Extent {
    /// First block of the file that it holds. In an inner node: a lower bound of the child's keys.
    pub logical: u64,
    /// First block of the image. In an inner node: the child's block.
    pub physical: u64,
    /// Blocks. In an inner node: 0.
    pub length: u32,
    /// Device class of the blocks; 0: memory, the only one yet.
    pub class: u8,
    /// Encoding of the blocks; 0: as they are, the only one yet.
    pub encoding: u8,
    /// [`UNWRITTEN`], [`SHARED`] or 0; in an inner node 0.
    pub flags: u16,
    /// Sequence of the newest snapshot older than the extent; 0: none.
    pub birth: u64,
}

impl Extent {
    /// The extent of plain blocks in memory.
    pub fn new(logical: u64, physical: u64, length: u32) -> Extent {
        Extent {
            logical,
            physical,
            length,
            class: 0,
            encoding: 0,
            flags: 0,
            birth: 0,
        }
    }

    /// The extent of blocks that were allocated and hold nothing yet.
    pub fn unwritten(logical: u64, physical: u64, length: u32) -> Extent {
        Extent {
            flags: UNWRITTEN,
            ..Extent::new(logical, physical, length)
        }
    }

    /// The extent of blocks that other extents may hold, too.
    pub fn shared(logical: u64, physical: u64, length: u32) -> Extent {
        Extent {
            flags: SHARED,
            ..Extent::new(logical, physical, length)
        }
    }

    /// Whether other extents may share blocks of it: only the owner counts tell.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.flags & SHARED != 0
    }

    /// Whether the blocks hold data of the file.
    #[inline]
    pub fn is_written(&self) -> bool {
        self.flags & UNWRITTEN == 0
    }

    /// The block of the image that holds this block of the file, which is inside this extent.
    #[inline]
    pub fn block_of(&self, logical: u64) -> u64 {
        self.physical + (logical - self.logical)
    }

    /// The block behind the last one.
    pub fn end(&self) -> u64 {
        self.logical + u64::from(self.length)
    }

    /// Whether `next` continues this extent, in the file and in the image.
    pub fn continues_with(&self, next: &Extent) -> bool {
        self.end() == next.logical
            && self.physical + u64::from(self.length) == next.physical
            && (self.class, self.encoding, self.flags, self.birth)
                == (next.class, next.encoding, next.flags, next.birth)
    }
}

/// Flag of an extent: its blocks read as zeros. Their contents and checksums have no meaning.
pub const UNWRITTEN: u16 = 1;
/// Flag of an extent with data: each block may have further owners, as many as its count states.
pub const SHARED: u16 = 2;
/// Begins every tree node.
pub const MAGIC: u32 = u32::from_le_bytes(*b"TKND");
/// Most entries in a node.
pub const NODE_ENTRIES: usize = 126;
/// Offset of the first entry in a node.
pub const ENTRIES: usize = 64;
/// Most levels below the root: 4 × 126^6 extents are more than a pool has blocks.
pub const DEPTH_MAX: u16 = 6;

/// First line of a node; the entries follow, sorted by their logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NodeHeader {
    /// Always [`MAGIC`].
    pub magic: u32,
    /// CRC32C of the bytes 8..4096.
    pub crc: u32,
    /// Inode that owns this tree.
    pub owner: u64,
    /// Number of this block, so that a misplaced one is found.
    pub block: u64,
    /// 0: entries are extents; else children of the level below.
    pub level: u16,
    /// Entries in use; never 0.
    pub count: u16,
    /// Generation of the owner.
    pub generation: u32,
    /// Reserved bytes, which are zero.
    pub reserved: [u64; 4],
}

const _: () = assert!(size_of::<Extent>() == 32 && size_of::<NodeHeader>() == ENTRIES);
const _: () = assert!(ENTRIES + NODE_ENTRIES * size_of::<Extent>() <= crate::BLOCK);
