//! Superblock (two copies) and ring state (two copies).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Error, Result};
use crate::format::checksum::crc32c;
use crate::format::placement::ImageLayout;

/// Begins every superblock.
pub const MAGIC: [u8; 8] = *b"TAKOPOOL";
/// The one format version that this code reads and writes.
pub const VERSION: u32 = 9;
/// Offsets of the two copies in the pool.
pub const SUPERBLOCKS: [u64; 2] = [0, 4096];
/// Offsets of the two copies of the ring state in the pool.
pub const RING_STATES: [u64; 2] = [8192, 8192 + 64];
/// Where the ring begins in every pool made by this version.
pub const RING_OFFSET: u64 = 12288;
/// Shortest ring, in bytes.
pub const RING_LENGTH_MIN: u64 = 64 << 10;
/// Longest ring, in bytes.
pub const RING_LENGTH_MAX: u64 = 1 << 30;

/// Read-only compatible features known here: data blocks carry checksums.
pub const FEATURE_DATA_CHECKSUMS: u64 = 1;
/// Compatible features that this program supports.
pub const COMPATIBLE_KNOWN: u64 = 0;
/// Features that an ignorant program may read past but not write.
pub const READ_ONLY_COMPATIBLE_KNOWN: u64 = FEATURE_DATA_CHECKSUMS;
/// Incompatible feature: blocks of file data are not those of the unit; the pool belongs to a member with metadata only.
pub const FEATURE_METADATA_ONLY: u64 = 1;
/// Features without which nothing may be read.
pub const INCOMPATIBLE_KNOWN: u64 = FEATURE_METADATA_ONLY;

/// Identity and geometry of a pool; the first of the 4096 bytes of its block, the rest is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Superblock {
    /// Always [`MAGIC`].
    pub magic: [u8; 8],
    /// CRC32C of everything behind it.
    pub crc: u32,
    /// Always [`VERSION`].
    pub version: u32,
    /// Features that an ignorant program may ignore.
    pub compatible: u64,
    /// Features that an ignorant program may read past, but not write.
    pub read_only_compatible: u64,
    /// Features that an ignorant program must refuse.
    pub incompatible: u64,
    /// Identity of this pool.
    pub pool: [u8; 16],
    /// Identity of the storage unit that owns the pool's image.
    pub unit: [u8; 16],
    /// Identity of the cluster; zero in an embedded pool.
    pub cluster: [u8; 16],
    /// Bytes of the whole pool.
    pub pool_length: u64,
    /// Where the ring begins, in bytes from the pool's start.
    pub ring_offset: u64,
    /// Bytes of the ring.
    pub ring_length: u64,
    /// Where the image begins, in bytes from the pool's start.
    pub image_offset: u64,
    /// Bytes of the image; apart from the pool's size, since all pools of a unit hold the same image.
    pub image_length: u64,
    /// Blocks of a group.
    pub blocks_per_group: u32,
    /// Inodes of a group.
    pub inodes_per_group: u32,
    /// Blocks that only changes which free space may take.
    pub reserved_blocks: u64,
    /// When the pool was made, nanoseconds since 1970.
    pub created_ns: i64,
    /// Key of the hash of names.
    pub hash_key: [u8; 16],
}

const CRC_FROM: usize = 12;

impl Superblock {
    /// The checksum that belongs into this superblock.
    pub fn checksum(&self) -> u32 {
        crc32c(&self.as_bytes()[CRC_FROM..])
    }

    /// Whether the image may become another one than other pools have. A pool of a unit names its cluster.
    ///
    /// # Errors
    /// [`Error::OfUnit`]
    pub fn check_alone(&self) -> Result<()> {
        if self.cluster == [0; 16] {
            Ok(())
        } else {
            Err(Error::OfUnit)
        }
    }

    /// Whether data blocks carry checksums.
    pub fn data_checksums(&self) -> bool {
        self.read_only_compatible & FEATURE_DATA_CHECKSUMS != 0
    }

    /// Whether the pool holds metadata only: what its blocks of file data hold means nothing.
    pub fn is_metadata_only(&self) -> bool {
        self.incompatible & FEATURE_METADATA_ONLY != 0
    }

    /// Checks magic number, checksum, version, features and geometry of one copy, in this order.
    pub fn validate(&self, pool_length: u64) -> Result<()> {
        if self.magic != MAGIC {
            return Err(Error::NotAPool);
        }
        if self.version != VERSION && self.crc == self.checksum() {
            return Err(Error::WrongVersion {
                found: self.version,
                known: VERSION,
            });
        }
        if self.crc != self.checksum() {
            return Err(Error::DamagedSuperblock("the checksum is wrong"));
        }
        let unknown = self.incompatible & !INCOMPATIBLE_KNOWN
            | self.read_only_compatible & !READ_ONLY_COMPATIBLE_KNOWN;
        if unknown != 0 {
            return Err(Error::UnknownFeature(unknown));
        }
        if self.pool_length > pool_length {
            return Err(Error::Truncated {
                expected: self.pool_length,
                found: pool_length,
            });
        }
        self.validate_geometry()
    }

    fn validate_geometry(&self) -> Result<()> {
        let ring_end = self.ring_offset.checked_add(self.ring_length);
        let image_end = self.image_offset.checked_add(self.image_length);
        let right = self.ring_offset == RING_OFFSET
            && self.ring_length.is_power_of_two()
            && (RING_LENGTH_MIN..=RING_LENGTH_MAX).contains(&self.ring_length)
            && ring_end.is_some_and(|end| end <= self.image_offset)
            && self.image_offset.is_multiple_of(4096)
            && self.image_length.is_multiple_of(4096)
            && image_end.is_some_and(|end| end <= self.pool_length)
            && ImageLayout::of(self).is_some();
        if right {
            Ok(())
        } else {
            Err(Error::DamagedSuperblock("the geometry is impossible"))
        }
    }
}

/// Where recovery starts reading the ring; one line of 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingState {
    /// CRC32C of everything behind it.
    pub crc: u32,
    /// No record of an earlier epoch counts. It grows with each opening of the pool for writing.
    pub epoch: u32,
    /// Position of the first record that may not be in the image yet.
    pub start: u64,
    /// Reserved bytes, which are zero.
    pub reserved: [u64; 6],
}

impl RingState {
    /// A state with its checksum.
    pub fn new(epoch: u32, start: u64) -> RingState {
        let mut state = RingState {
            crc: 0,
            epoch,
            start,
            reserved: [0; 6],
        };
        state.crc = state.checksum();
        state
    }

    /// The checksum that belongs into this state.
    pub fn checksum(&self) -> u32 {
        crc32c(&self.as_bytes()[4..])
    }

    /// Whether the checksum is right and the position can be one.
    pub fn is_valid(&self) -> bool {
        self.crc == self.checksum()
            && self.start.is_multiple_of(64)
            && self.start < 1 << 62
            && self.epoch != 0
    }
}

const _: () = assert!(size_of::<Superblock>() == 168 && size_of::<RingState>() == 64);
