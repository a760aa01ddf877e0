//! Compares two pools in all reachable bytes: the part that the pools of a unit have in common.
//!
//! A pool that has metadata only is compared in all but data: of a block of data, its checksum.
//!
//! Not compared are the superblock and the ring, which are separate for each pool; free blocks, and their checksums;
//! the contents of grants' blocks, which are undefined, and of blocks without data.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use pmem::{Access, Region};
use store::format::directory;
use store::format::extent::{self, ENTRIES, Extent, NodeHeader};
use store::format::inode::{FLAG_GRANT, INODE, Inode, KIND_MASK};
use store::format::superblock::{SUPERBLOCKS, Superblock};
use store::format::xattr;
use store::{BLOCK, FileKind, PoolOptions, Replica};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const BLOCK_U64: u64 = BLOCK as u64;
/// Blocks before a group's checksums: the header and three bitmaps.
const MAPS: u64 = 4;

/// The image in a region, as it is: what its ring holds was replayed.
struct Image<'a> {
    region: &'a Region,
    superblock: Superblock,
}

/// Selects the compared part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All reachable bytes, data of files too.
    Whole,
    /// Every reachable byte except data of files.
    Metadata,
}

/// A pool with its records in the image, and its part of the image. The file of a pool stays as it is; a pool on a device, which
/// has no private mapping, is replayed in place.
///
/// # Errors
/// The pool cannot be opened, or is damaged.
pub fn open(pool: &Path) -> Result<(Region, Part), String> {
    let explain = |error: &dyn std::error::Error| format!("{}: {error}", pool.display());
    let region = match Region::open(pool, Access::Private) {
        Err(pmem::Error::SharedOnly { .. }) => Region::open(pool, Access::ReadWrite),
        opened => opened,
    };
    let region = region.map_err(|error| explain(&error))?;
    let replica = Replica::open(region.clone(), PoolOptions::default());
    let replica = replica.map_err(|error| explain(&error))?;
    match replica.superblock().is_metadata_only() {
        true => Ok((region, Part::Metadata)),
        false => Ok((region, Part::Whole)),
    }
}

/// The first difference between two pools of one unit, in words, in the part that both have.
///
/// # Errors
/// One of them cannot be opened, or is damaged.
pub fn compare(first: &Path, second: &Path) -> Result<Option<String>, String> {
    let [(first, part), (second, other)] = [open(first)?, open(second)?];
    let part = match (part, other) {
        (Part::Whole, Part::Whole) => Part::Whole,
        _ => Part::Metadata,
    };
    Ok(difference(&first, &second, part))
}

/// The first difference between the images in two regions, in words. No operation may be in flight in either.
pub fn difference(first: &Region, second: &Region, part: Part) -> Option<String> {
    let [first, second] = [first, second].map(Image::new);
    let geometry = |image: &Image<'_>| {
        let it = &image.superblock;
        (it.image_length, it.blocks_per_group, it.inodes_per_group)
    };
    if geometry(&first) != geometry(&second) {
        return Some("the images have different forms".into());
    }
    // The data blocks of all grants, and those that were allocated and hold no data yet.
    let empty = first.blocks(|is_grant, extent| is_grant || !extent.is_written());
    (0..first.groups()).find_map(|group| first.group_difference(&second, group, &empty, part))
}

/// The blocks of all grants.
pub fn grants(region: &Region) -> BTreeSet<u64> {
    Image::new(region).blocks(|is_grant, _| is_grant)
}

/// Whether this range of the image, in bytes, lies in blocks of grants.
pub fn is_granted(region: &Region, range: Range<u64>) -> bool {
    let grants = grants(region);
    let mut blocks = range.start / BLOCK_U64..range.end.div_ceil(BLOCK_U64);
    blocks.all(|block| grants.contains(&block))
}

impl<'a> Image<'a> {
    fn new(region: &'a Region) -> Image<'a> {
        let mut superblock = Superblock::new_zeroed();
        region.read(SUPERBLOCKS[0], superblock.as_mut_bytes());
        Image { region, superblock }
    }

    fn per_group(&self) -> u64 {
        self.superblock.blocks_per_group.into()
    }

    fn groups(&self) -> u64 {
        (self.superblock.image_length / BLOCK_U64).div_ceil(self.per_group())
    }

    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.region
            .read(self.superblock.image_offset + offset, &mut bytes);
        bytes
    }

    fn block(&self, block: u64) -> Vec<u8> {
        self.read(block * BLOCK_U64, BLOCK)
    }

    /// First block of the counts of owners, of the inode table, and first data block, in a group.
    fn parts(&self) -> (u64, u64, u64) {
        let words = (self.per_group() * 4).div_ceil(BLOCK_U64);
        let (owners, inodes) = (MAPS + words, MAPS + 2 * words);
        let table = u64::from(self.superblock.inodes_per_group) * INODE as u64 / BLOCK_U64;
        (owners, inodes, inodes + table)
    }

    fn group_difference(
        &self,
        other: &Image<'_>,
        group: u64,
        empty: &BTreeSet<u64>,
        part: Part,
    ) -> Option<String> {
        let start = group * self.per_group();
        let end = (start + self.per_group()).min(self.superblock.image_length / BLOCK_U64);
        let (owners, inodes, data) = self.parts();
        for inside in (0..MAPS).chain(owners..data) {
            let block = start + inside;
            let what = match inside {
                0 => "the group header",
                1 => "the bitmap of blocks",
                2 => "the bitmap of inodes",
                3 => "the bitmap of orphans",
                _ if inside < inodes => "the counts of owners",
                _ => "the inode table",
            };
            if let Some(at) = first_difference(&self.block(block), &other.block(block)) {
                return Some(format!(
                    "{what} of group {group} differs at byte {at} of block {block}"
                ));
            }
        }
        let bitmap = self.block(start + 1);
        let is_used = |inside: u64| bitmap[inside as usize / 8] >> (inside % 8) & 1 != 0;
        let blocks = start + data..end;
        for block in blocks.filter(|block| is_used(block - start) && !empty.contains(block)) {
            let crc = (start + MAPS) * BLOCK_U64 + (block - start) * 4;
            if self.read(crc, 4) != other.read(crc, 4) {
                return Some(format!("the checksum of block {block} differs"));
            }
            let contents = self.block(block);
            if part == Part::Metadata && !is_metadata(&contents) {
                continue;
            }
            if let Some(at) = first_difference(&contents, &other.block(block)) {
                return Some(format!("block {block} differs at byte {at}"));
            }
        }
        None
    }

    /// The data blocks of such extents; the first argument tells whether one is a grant's.
    fn blocks(&self, is_wanted: fn(bool, &Extent) -> bool) -> BTreeSet<u64> {
        let mut blocks = BTreeSet::new();
        let (_, inodes, data) = self.parts();
        for group in 0..self.groups() {
            let table = (inodes..data).map(|inside| self.block(group * self.per_group() + inside));
            for bytes in table.collect::<Vec<_>>().concat().chunks_exact(INODE) {
                let inode = Inode::read_from_bytes(bytes).expect("the chunk has an inode's size");
                if inode.mode & KIND_MASK == FileKind::Regular.bits() {
                    let root = &inode.root[..inode.count as usize];
                    let is_grant = inode.flags & FLAG_GRANT != 0;
                    let is_wanted = |extent: &Extent| is_wanted(is_grant, extent);
                    self.add_blocks(root, inode.depth, &is_wanted, &mut blocks);
                }
            }
        }
        blocks
    }

    fn add_blocks(
        &self,
        entries: &[Extent],
        level: u16,
        is_wanted: &dyn Fn(&Extent) -> bool,
        blocks: &mut BTreeSet<u64>,
    ) {
        for entry in entries {
            if level == 0 {
                let run = entry.physical..entry.physical + u64::from(entry.length);
                blocks.extend(run.filter(|_| is_wanted(entry)));
                continue;
            }
            let node = self.block(entry.physical);
            let (header, _) = NodeHeader::read_from_prefix(&node).expect("a node is a block");
            let children: Vec<Extent> = node[ENTRIES..]
                .chunks_exact(size_of::<Extent>())
                .take(header.count as usize)
                .map(|bytes| Extent::read_from_bytes(bytes).expect("the chunk has its size"))
                .collect();
            self.add_blocks(&children, level - 1, is_wanted, blocks);
        }
    }
}

/// Whether a block is a node of an extent tree or of a directory, or has extended attributes.
fn is_metadata(block: &[u8]) -> bool {
    [extent::MAGIC, directory::MAGIC, xattr::MAGIC]
        .iter()
        .any(|magic| block.starts_with(&magic.to_le_bytes()))
}

fn first_difference(first: &[u8], second: &[u8]) -> Option<usize> {
    first.iter().zip(second).position(|(a, b)| a != b)
}
