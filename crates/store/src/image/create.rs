//! Making a pool.

use pmem::Region;
use zerocopy::{FromZeros, IntoBytes};

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::format::group::{self, GroupHeader, LINE_BITS, LINES_MAX, Map};
use crate::format::inode::Inode;
use crate::format::placement::ImageLayout;
use crate::format::record::ALIGN;
use crate::format::superblock::*;
use crate::ring::write_ring_state;
use crate::{BLOCK, ROOT, SYSTEM};

/// Division of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the record ring: a power of two, 64 KiB to 1 GiB.
    pub ring_length: u64,
    /// Blocks of a group: a power of two, 512 to 32768.
    pub blocks_per_group: u32,
    /// Inodes of a group: a multiple of 16, at most 32768.
    pub inodes_per_group: u32,
    /// Whether each data block carries a checksum.
    pub data_checksums: bool,
}

impl Geometry {
    /// Suitable values for a pool of this many bytes: an inode for 16 KiB, at least eight groups, a ring of 16 MiB or a
    /// 32nd.
    pub fn for_length(pool_length: u64) -> Geometry {
        let power_below = |value: u64| 1 << value.max(1).ilog2();
        let blocks_per_group: u64 = power_below(pool_length / BLOCK as u64 / 8).clamp(512, 32768);
        Geometry {
            ring_length: power_below(pool_length / 32).clamp(RING_LENGTH_MIN, 16 << 20),
            blocks_per_group: blocks_per_group as u32,
            inodes_per_group: blocks_per_group as u32 / 4,
            data_checksums: true,
        }
    }

    /// Checks that a pool of this many bytes can be divided so.
    ///
    /// # Errors
    /// [`Error::BadGeometry`].
    pub fn check(&self, pool_length: u64) -> Result<()> {
        new_superblock(pool_length, self).map(drop)
    }

    /// The smallest: for tests that examine many images. Pools from 512 KiB.
    pub fn small() -> Geometry {
        Geometry {
            ring_length: RING_LENGTH_MIN,
            blocks_per_group: 512,
            inodes_per_group: 64,
            data_checksums: true,
        }
    }
}

/// Random bytes for identities and keys.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => unreachable!("getrandom fails only when it does not exist: {error}"),
        }
    }
    bytes
}

/// A random identity (RFC 9562, version 4).
pub fn identity() -> [u8; 16] {
    let mut bytes = random::<16>();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// Makes an empty pool of the whole region; whatever was there is lost. The superblock is written last, so that an
/// interrupted format leaves no pool.
pub fn format(region: &Region, geometry: &Geometry) -> Result<()> {
    let superblock = new_superblock(region.length(), geometry)?;
    clear_superblocks(region);
    let layout = ImageLayout::of(&superblock).expect("the superblock was made from a layout");
    format_image(region, &superblock, &layout, &Founder::current());
    // Whatever the ring held is of no valid epoch: its first record would have to have this number and epoch 1. Not 0:
    // that is the version of what no record has changed.
    region.zero_flushed(superblock.ring_offset, superblock.ring_length);
    region.fence();
    write_ring_state(region, RingState::new(1, ALIGN as u64));
    write_superblocks(region, &superblock);
    Ok(())
}

/// Owner and time of the root directories.
pub struct Founder {
    pub uid: u32,
    pub gid: u32,
    pub created_ns: i64,
}

impl Founder {
    fn current() -> Founder {
        Founder {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            created_ns: Clock::System.now_ns(),
        }
    }
}

/// Writes an image without files.
pub fn format_image(
    region: &Region,
    superblock: &Superblock,
    layout: &ImageLayout,
    founder: &Founder,
) {
    for number in 0..layout.groups() {
        format_group(region, superblock.image_offset, layout, number);
    }
    for (number, permissions) in [(ROOT, 0o755), (SYSTEM, 0o700)] {
        let inode = layout.inode(number);
        write_root(
            region,
            superblock.image_offset + inode,
            (number, permissions),
            founder,
        );
    }
}

/// Turns a region into one that contains no pool.
pub fn clear_superblocks(region: &Region) {
    for offset in SUPERBLOCKS {
        region.zero_flushed(offset, BLOCK as u64);
    }
    region.fence();
}

/// Makes a region the pool that the superblock describes: the last step.
pub fn write_superblocks(region: &Region, superblock: &Superblock) {
    for offset in SUPERBLOCKS {
        region.write_flushed(offset, superblock.as_bytes());
        region.fence();
    }
}

/// Blocks that are kept so that changes which free space always work.
pub fn reserved_blocks(layout: &ImageLayout) -> u64 {
    let data: u64 = (0..layout.groups())
        .map(|group| layout.data_blocks(group))
        .map(|data| data.end - data.start)
        .sum();
    (data / 128).clamp(8, 1024)
}

pub fn new_superblock(pool_length: u64, geometry: &Geometry) -> Result<Superblock> {
    let ring = geometry.ring_length;
    if !ring.is_power_of_two() || !(RING_LENGTH_MIN..=RING_LENGTH_MAX).contains(&ring) {
        return Err(Error::BadGeometry(
            "the ring must be a power of two from 64 KiB to 1 GiB",
        ));
    }
    let image_offset = (RING_OFFSET + ring).next_multiple_of(BLOCK as u64);
    let blocks = pool_length.saturating_sub(image_offset) / BLOCK as u64;
    let layout = ImageLayout::new(blocks, geometry.blocks_per_group, geometry.inodes_per_group)
        .ok_or(Error::BadGeometry(
            "it or its groups are too small; use at least 1 MiB",
        ))?;
    let mut superblock = Superblock {
        magic: MAGIC,
        version: VERSION,
        read_only_compatible: if geometry.data_checksums {
            FEATURE_DATA_CHECKSUMS
        } else {
            0
        },
        pool: identity(),
        unit: identity(),
        pool_length,
        ring_offset: RING_OFFSET,
        ring_length: ring,
        image_offset,
        image_length: layout.blocks() * BLOCK as u64,
        blocks_per_group: geometry.blocks_per_group,
        inodes_per_group: geometry.inodes_per_group,
        reserved_blocks: reserved_blocks(&layout),
        created_ns: Clock::System.now_ns(),
        hash_key: random(),
        ..Superblock::new_zeroed()
    };
    superblock.crc = superblock.checksum();
    Ok(superblock)
}

/// Writes a group without files: what describes it is in use, nothing else.
pub fn format_group(region: &Region, base: u64, layout: &ImageLayout, number: u64) {
    let start = base + layout.header(number);
    let first_data = layout.data_blocks(number).start - number * layout.blocks_per_group;
    region.zero_flushed(start, first_data * BLOCK as u64);
    let mut blocks = [0u64; BLOCK / 8];
    for block in 0..first_data as usize {
        blocks[block / 64] |= 1 << (block % 64);
    }
    let mut inodes = [0u64; BLOCK / 8];
    if number == 0 {
        // Number 0 is no inode, the next two are the directories that nothing leads to.
        inodes[0] = 1 | 1 << ROOT | 1 << SYSTEM;
    }
    let mut header = GroupHeader {
        magic: group::MAGIC,
        group: number,
        ..GroupHeader::new_zeroed()
    };
    header.crc = crate::format::checksum::crc32c(&header.as_bytes()[8..group::LINE_CRCS as usize]);
    for (map, words) in [
        (Map::Blocks, &blocks),
        (Map::Inodes, &inodes),
        (Map::Orphans, &[0; BLOCK / 8]),
    ] {
        region.write_flushed(base + layout.line(number, map, 0), words.as_bytes());
        for line in 0..LINES_MAX {
            let words = &words[line * LINE_BITS as usize / 64..][..LINE_BITS as usize / 64];
            header.line_crcs[map as usize][line] =
                crate::format::checksum::crc32c(words.as_bytes());
        }
    }
    region.write_flushed(start, header.as_bytes());
}

/// Writes an empty directory that is its own parent.
fn write_root(region: &Region, offset: u64, (number, permissions): (u64, u32), founder: &Founder) {
    let now = founder.created_ns;
    let mut root = Inode {
        generation: 1,
        mode: 0o040_000 | permissions,
        links: 2,
        uid: founder.uid,
        gid: founder.gid,
        parent: number,
        modified_ns: now,
        changed_ns: now,
        accessed_ns: now,
        created_ns: now,
        ..Inode::FREE
    };
    root.seal();
    region.write_flushed(offset, root.as_bytes());
}
