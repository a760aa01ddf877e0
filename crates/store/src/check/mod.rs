//! Checks whether a pool conforms to `docs/LAYOUT.md`, down to the last bit.
//!
//! The check replays the ring as opening does, into a mapping that its caller keeps from the medium, and then trusts
//! nothing: neither the volatile state of a store nor one structure's statements about another. In order:
//! 1. `pool`: both superblocks, both ring states, the ring;
//! 2. `maps`: group headers and bitmaps; 3. `inodes`: the whole inode table;
//! 4. `contents` for each inode in use: `tree` (extents, each block claimed once), `data`, `directory`;
//! 5. `links`: names against link counts, parents, the way from the root; `maps` again: claimed blocks against the bitmap;
//! 6. `owners`: how many extents lead to a block against the count beside its checksum.
//!
//! Any bytes are allowed as input: every block is read a bounded number of times, and memory grows with the image's
//! metadata only.

pub(crate) mod bitset;
mod contents;
mod data;
mod directory;
mod inodes;
mod links;
mod maps;
pub(crate) mod owned;
mod owners;
pub(crate) mod pool;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeSet;
use std::fmt;

use pmem::Region;

use crate::BLOCK;
use crate::error::{Error, Result};
use crate::format::superblock::Superblock;
use crate::image::Image;
use bitset::Bitset;
use inodes::Live;
use owned::Owned;

/// Findings that are listed; a pool with more is a ruin.
const FINDINGS_MAX: usize = 1000;

/// Options that select the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// Whether all data, of files and of long symbolic links, is read and compared with its checksums; metadata is
    /// checked always. The data of a pool that holds metadata only is never checked.
    pub data: bool,
}

impl Default for CheckOptions {
    fn default() -> CheckOptions {
        CheckOptions { data: true }
    }
}

/// Something in a pool that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The problem, in words.
    pub what: String,
    /// Number of the inode that it concerns.
    pub inode: Option<u64>,
    /// Number of the 4 KiB block of the image where it is.
    pub block: Option<u64>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.inode, self.block) {
            (Some(inode), Some(block)) => write!(f, "inode {inode}, block {block}: ")?,
            (Some(inode), None) => write!(f, "inode {inode}: ")?,
            (None, Some(block)) => write!(f, "block {block}: ")?,
            (None, None) => {}
        }
        f.write_str(&self.what)
    }
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// All that is wrong; of more than a thousand findings, the first thousand.
    pub findings: Vec<Finding>,
    /// Inodes in use, the root included.
    pub inodes: u64,
    /// Directories among them, the root included.
    pub directories: u64,
    /// Blocks that files and directories hold.
    pub blocks_used: u64,
    /// Inodes with something left to reclaim.
    pub orphans: u64,
    /// Records that the ring held.
    pub records_replayed: u64,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn add(&mut self, what: impl Into<String>, inode: Option<u64>, block: Option<u64>) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding {
                what: what.into(),
                inode,
                block,
            });
        }
    }
}

/// Checks a pool that is not open. The records in its ring are replayed into `region`, which therefore should be a
/// private mapping; nothing else is written.
///
/// # Errors
/// Those of opening a pool that has no valid superblock: there is nothing to check then. All other damage is reported.
pub fn check(region: &Region, options: &CheckOptions) -> Result<Report> {
    let mut report = Report::default();
    let superblock = pool::check_superblocks(region, &mut report)?;
    let image = Image::new(region.clone(), &superblock);
    let end = pool::replay_ring(region, &superblock, &image, &mut report);
    let layout = &image.layout;
    let inode_bits = || Bitset::new(layout.groups(), layout.inodes_per_group);
    let block_bits = || Bitset::new(layout.groups(), layout.blocks_per_group);
    let mut checker = Checker {
        image: &image,
        superblock: &superblock,
        options: CheckOptions {
            data: options.data && !superblock.is_metadata_only(),
        },
        end,
        report,
        used_blocks: block_bits(),
        claimed: block_bits(),
        owned: Owned::new(layout.groups(), layout.blocks_per_group),
        compared: block_bits(),
        lost: BTreeSet::new(),
        used_inodes: inode_bits(),
        orphans: inode_bits(),
        live: Vec::new(),
        index: vec![inodes::NONE; layout.inodes() as usize],
        buffer: vec![0; data::CHUNK_BLOCKS * BLOCK],
    };
    checker.load_maps();
    checker.scan_inodes();
    checker.check_contents();
    checker.check_links();
    checker.compare_blocks();
    checker.compare_owners();
    Ok(checker.report)
}

/// A check in progress.
struct Checker<'a> {
    image: &'a Image,
    superblock: &'a Superblock,
    options: CheckOptions,
    /// Position behind the last record: no inode can be newer.
    end: u64,
    report: Report,
    /// The block bitmaps as stored in the image.
    used_blocks: Bitset,
    /// Blocks that something leads to.
    claimed: Bitset,
    /// Number of extents that refer to blocks with possibly several owners.
    owned: Owned,
    /// Blocks among them with data that was compared with its checksum.
    compared: Bitset,
    /// Blocks among these that did not match it.
    lost: BTreeSet<u64>,
    /// The inode bitmaps as stored in the image.
    used_inodes: Bitset,
    /// The orphan bitmaps as stored in the image.
    orphans: Bitset,
    /// Inodes in use, by ascending number.
    live: Vec<Live>,
    /// Where in `live` an inode is; [`inodes::NONE`] when it is not in use.
    index: Vec<u32>,
    /// Buffer for data that is being checksummed.
    buffer: Vec<u8>,
}

impl Checker<'_> {
    /// Reports what concerns an inode, in the inode itself.
    fn inode_finding(&mut self, number: u64, what: impl Into<String>) {
        self.report.add(what, Some(number), None);
    }

    /// Reports what concerns a block of an inode.
    fn block_finding(&mut self, number: u64, block: u64, what: impl Into<String>) {
        self.report.add(what, Some(number), Some(block));
    }
}

/// Text of an error of the image's accessors, for a finding that names the location itself.
fn damage(error: &Error) -> String {
    match error {
        Error::Corrupt { what, .. } => format!("{what} is damaged"),
        other => other.to_string(),
    }
}
