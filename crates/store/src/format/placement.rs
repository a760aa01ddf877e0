//! Where everything in an image is.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::BLOCK;
use crate::format::group::{LINE_BITS, LINE_CRCS, LINES_MAX, Map};
use crate::format::inode::INODE;
use crate::format::superblock::Superblock;

/// Where a group's parts are. Derived from the superblock; all block numbers count from the image's start.
#[derive(Debug)]
pub struct ImageLayout {
    /// Blocks of the image. It only grows.
    blocks: AtomicU64,
    /// Blocks of a whole group; the last may be shorter.
    pub blocks_per_group: u64,
    /// Inodes of a group.
    pub inodes_per_group: u64,
    /// First block of the counts of owners in a group.
    owners: u64,
    /// First block of the inode table in a group.
    inode_table: u64,
    /// First data block in a group.
    first_data: u64,
}

/// First block of the data checksums in a group: behind header and three bitmaps.
const CHECKSUMS: u64 = 4;
/// A last group with fewer data blocks than this is left out.
const LAST_GROUP_DATA_MIN: u64 = 16;

impl ImageLayout {
    /// The layout that a superblock describes, if it is possible.
    pub fn of(superblock: &Superblock) -> Option<ImageLayout> {
        let blocks = superblock.image_length / BLOCK as u64;
        let layout = ImageLayout::new(
            blocks,
            superblock.blocks_per_group,
            superblock.inodes_per_group,
        )?;
        (layout.blocks() == blocks).then_some(layout)
    }

    /// The layout of an image of at most `blocks` blocks; `None` when it has no room for one group.
    pub fn new(blocks: u64, blocks_per_group: u32, inodes_per_group: u32) -> Option<ImageLayout> {
        let most = LINE_BITS * LINES_MAX as u32;
        let possible = blocks_per_group.is_power_of_two()
            && (LINE_BITS..=most).contains(&blocks_per_group)
            && inodes_per_group.is_multiple_of((BLOCK / INODE) as u32)
            && (1..=most).contains(&inodes_per_group);
        if !possible {
            return None;
        }
        let (per_group, inodes) = (u64::from(blocks_per_group), u64::from(inodes_per_group));
        let words = (per_group * 4).div_ceil(BLOCK as u64);
        let owners = CHECKSUMS + words;
        let inode_table = owners + words;
        let first_data = inode_table + inodes * INODE as u64 / BLOCK as u64;
        let last = blocks % per_group;
        let blocks = if last < first_data + LAST_GROUP_DATA_MIN {
            blocks - last
        } else {
            blocks
        };
        let layout = ImageLayout {
            blocks: AtomicU64::new(blocks),
            blocks_per_group: per_group,
            inodes_per_group: inodes,
            owners,
            inode_table,
            first_data,
        };
        (blocks > 0 && first_data + LAST_GROUP_DATA_MIN <= per_group).then_some(layout)
    }

    /// Blocks of the image.
    #[inline]
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    /// Makes the image longer.
    pub fn grow(&self, blocks: u64) {
        self.blocks.store(blocks, Ordering::Release);
    }

    /// Returns the number of groups in the image.
    #[inline]
    pub fn groups(&self) -> u64 {
        // A power of two: a shift, since this is on every path.
        (self.blocks() + self.blocks_per_group - 1) >> self.blocks_per_group.trailing_zeros()
    }

    /// Inodes of the image; number 0 is none.
    pub fn inodes(&self) -> u64 {
        self.groups() * self.inodes_per_group
    }

    /// Blocks of this group.
    pub fn group_blocks(&self, group: u64) -> u64 {
        self.blocks_per_group
            .min(self.blocks() - group * self.blocks_per_group)
    }

    /// Data blocks of this group, counted from the image's start.
    pub fn data_blocks(&self, group: u64) -> std::ops::Range<u64> {
        let start = group * self.blocks_per_group;
        start + self.first_data..start + self.group_blocks(group)
    }

    /// Whether the run lies within the data blocks of one group.
    pub fn is_data_run(&self, block: u64, length: u64) -> bool {
        let data = self.data_blocks((block / self.blocks_per_group).min(self.groups() - 1));
        length > 0 && data.contains(&block) && length <= data.end - block
    }

    /// Offset of a group's header.
    pub fn header(&self, group: u64) -> u64 {
        group * self.blocks_per_group * BLOCK as u64
    }

    /// Offset of a line of a group's bitmap.
    pub fn line(&self, group: u64, map: Map, line: usize) -> u64 {
        self.header(group) + (1 + map as u64) * BLOCK as u64 + line as u64 * 64
    }

    /// Offset of the checksum of the bitmap line at `target`, `None` when none is there.
    pub fn line_crc(&self, target: u64) -> Option<u64> {
        // A power of two: shifts, since this is on every path.
        let shift = self.blocks_per_group.trailing_zeros() + BLOCK.trailing_zeros();
        let (group, inside) = (target >> shift, target & ((1 << shift) - 1));
        let map = (inside / BLOCK as u64)
            .checked_sub(1)
            .filter(|map| *map < 3)?;
        let line = inside % BLOCK as u64 / 64;
        Some(self.header(group) + LINE_CRCS + (map * LINES_MAX as u64 + line) * 4)
    }

    /// Offset of an inode.
    pub fn inode(&self, number: u64) -> u64 {
        let (group, index) = (
            number / self.inodes_per_group,
            number % self.inodes_per_group,
        );
        self.header(group) + self.inode_table * BLOCK as u64 + index * INODE as u64
    }

    /// Offset of the checksum of a data block.
    pub fn data_crc(&self, block: u64) -> u64 {
        // A power of two: shifts, since this is on every path.
        let shift = self.blocks_per_group.trailing_zeros();
        let (group, index) = (block >> shift, block & (self.blocks_per_group - 1));
        self.header(group) + CHECKSUMS * BLOCK as u64 + index * 4
    }

    /// Offset of the count of a block's owners.
    #[inline]
    pub fn owners(&self, block: u64) -> u64 {
        self.data_crc(block) + (self.owners - CHECKSUMS) * BLOCK as u64
    }
}
