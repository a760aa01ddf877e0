//! Brings a damaged pool to a state in which the check finds nothing but data that is lost.
//!
//! Repair trusts data under a valid checksum, and rebuilds everything derived from it: bitmaps, counts, the order of
//! names. It goes through the whole pool:
//! 1. `pool`: superblocks, ring states, replay, as in recovery;
//! 2. `inodes`: which there are; 3. `trees`: which blocks each holds, metadata first, then data, each block once;
//! 4. `names`: which names lead where, and what no name leads to: that gets one in `/lost+found`;
//! 5. `leaves`, `space`: directories and trees that cannot stay, rebuilt in free blocks;
//! 6. `records`: all that differs is written.
//!
//! A flipped bit is corrected where its checksum identifies it (`flips`).
//!
//! **A crash during repair** leaves a pool with the same result of a repair, or with less loss. Changes go through the
//! ring, as all changes do. A new tree or leaf is made in unreferenced blocks, and is persistent and marked as used
//! before one record, the inode's, refers to it; only then the old ones are marked as free. So at each moment an inode
//! has its old contents or its new ones, and a repeated repair finds the same contents. Everything else is derived from
//! that: a repair that was interrupted between two records is run again.

mod bit_flips;
mod inodes;
mod leaves;
mod names;
mod pool;
mod records;
mod space;
#[cfg(test)]
mod tests;
mod trees;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pmem::Region;

use crate::FileKind;
use crate::check::bitset::Bitset;
use crate::check::owned::Owned;
use crate::check::{CheckOptions, Finding, Report, check};
use crate::clock::Clock;
use crate::error::Result;
use crate::format::extent::Extent;
use crate::format::inode::Inode;
use crate::format::superblock::Superblock;
use crate::image::{Block, Image};

/// Notes that are listed; a pool with more is a ruin.
const NOTES_MAX: usize = 10_000;
/// In place of an index: none.
const NONE: u32 = u32::MAX;

/// Result of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Corrections and losses, in words; the first ten thousand of them.
    pub done: Vec<Finding>,
    /// Findings of a check now: data that does not match its checksum, and damage that there was no space to repair.
    pub left: Report,
}

/// Actions of a repair so far.
#[derive(Default)]
struct Notes(Vec<Finding>);

impl Notes {
    fn add(&mut self, what: impl Into<String>, inode: Option<u64>, block: Option<u64>) {
        if self.0.len() < NOTES_MAX {
            let what = what.into();
            self.0.push(Finding { what, inode, block });
        }
    }
}

/// Repairs a pool that is not open; one without damage is only recovered.
///
/// # Errors
/// Those of opening a pool without a valid or repairable superblock; [`crate::Error::OfUnit`]: the other members of its
/// unit have the right bytes.
pub fn repair(region: &Region) -> Result<Repair> {
    let mut notes = Notes::default();
    let superblock = pool::superblock(region, &mut notes)?;
    let image = Image::new(region.clone(), &superblock);
    let tail = pool::replay_ring(region, &superblock, &image, &mut notes);
    let layout = &image.layout;
    let mut repairer = Repairer {
        image: &image,
        superblock: &superblock,
        end: tail.sequence.number,
        now_ns: Clock::System.now_ns(),
        notes,
        files: Vec::new(),
        index: vec![NONE; layout.inodes() as usize],
        cleared: BTreeMap::new(),
        names: Vec::new(),
        claimed: Bitset::new(layout.groups(), layout.blocks_per_group),
        owned: Owned::new(layout.groups(), layout.blocks_per_group),
        next_free: 0,
        fresh: BTreeSet::new(),
        unreadable: BTreeSet::new(),
        fixes: BTreeMap::new(),
        lost_data: Vec::new(),
        tails: Vec::new(),
    };
    repairer.scan_inodes();
    repairer.walk_trees();
    repairer.read_leaves();
    repairer.settle_names();
    repairer.claim_data();
    repairer.put_together();
    repairer.write(region, tail)?;
    let done = repairer.notes.0;
    // The ring is empty, or nothing had to be written: the check's own replay changes nothing.
    let left = check(region, &CheckOptions::default())?;
    Ok(Repair { done, left })
}

/// A repair in progress.
struct Repairer<'a> {
    image: &'a Image,
    superblock: &'a Superblock,
    /// Position behind the last record: no inode can be newer.
    end: u64,
    now_ns: i64,
    notes: Notes,
    /// Inodes in use, by ascending number except a new `lost+found`.
    files: Vec<File>,
    /// Where in `files` an inode is, or [`NONE`].
    index: Vec<u32>,
    /// Inodes that are free from now on, as they are to be.
    cleared: BTreeMap<u64, Inode>,
    names: Vec<Name>,
    /// Blocks that something leads to, now or when all is done.
    claimed: Bitset,
    /// Number of extents that refer to blocks with possibly several owners.
    owned: Owned,
    /// No block before this one is free.
    next_free: u64,
    /// Blocks among the claimed that were free.
    fresh: BTreeSet<u64>,
    /// Blocks that match no checksum, to try each once.
    unreadable: BTreeSet<u64>,
    /// Metadata blocks that change in place.
    fixes: BTreeMap<u64, Box<Block>>,
    /// Blocks in place of lost data, with checksums that must not match.
    lost_data: Vec<(u64, u32)>,
    /// Last blocks of files, with the offset behind which they must become zero.
    tails: Vec<(u64, usize)>,
}

/// An inode in use, and its contents.
struct File {
    number: u64,
    kind: FileKind,
    /// The inode as found.
    found: Inode,
    /// The inode after repair.
    inode: Inode,
    was_orphan: bool,
    /// Blocks of its extent tree.
    nodes: Vec<u64>,
    /// Its extents, by logical block.
    extents: Vec<Extent>,
    /// Blocks of the file of which nothing is known any more.
    lost: Vec<Range<u64>>,
    /// Its tree can stay as it is.
    keeps_tree: bool,
    /// Leaves of a directory, in order.
    leaves: Vec<Leaf>,
    /// All its leaves can stay as they are.
    keeps_leaves: bool,
    /// Names that lead here.
    names: u32,
    /// Index of the name that leads here, of several the last one.
    named_by: u32,
    /// Names of directories in it.
    subdirectories: u32,
    /// Number of names in the directory.
    entries: u64,
    /// It is given up.
    is_gone: bool,
}

/// A leaf of a directory that could be read.
struct Leaf {
    block: u64,
    logical: u64,
    depth: u32,
    /// It can stay as it is.
    stays: bool,
}

/// A name in a directory.
struct Name {
    /// Index of the directory in `files`.
    directory: u32,
    /// Index of its leaf there; [`NONE`]: it has none yet.
    leaf: u32,
    key: u64,
    number: u64,
    generation: u32,
    kind: u8,
    name: Box<[u8]>,
    /// It was where another name's hash leads.
    is_moved: bool,
    is_dropped: bool,
}

impl Repairer<'_> {
    fn note(&mut self, number: u64, what: impl Into<String>) {
        self.notes.add(what, Some(number), None);
    }

    fn note_block(&mut self, number: u64, block: u64, what: impl Into<String>) {
        self.notes.add(what, Some(number), Some(block));
    }

    fn is_live(&self, number: u64) -> bool {
        self.file_index(number).is_some()
    }

    /// Index of an inode in use.
    fn file_index(&self, number: u64) -> Option<usize> {
        let index = *self.index.get(usize::try_from(number).ok()?)?;
        let index = (index != NONE).then_some(index as usize)?;
        (!self.files[index].is_gone).then_some(index)
    }
}
