//! Blocks with several owners: extents of files that hold the same data.
//!
//! The bitmap tells whether a block has an owner, a count beside its data checksum how many more. A block is free when
//! its last owner releases it; while it has more than one, its bytes do not change.
//!
//! **Serialization.** The owners of a block are inodes with separate locks, so counts have a lock besides these. A
//! change holds it from before it reads the first count until it is applied: the image's counts are then those of the
//! last record in the order, and a record can contain their new values.
//!
//! **Without the lock** the owner of a block, with its inode locked, may check whether there are others. A block gets a
//! further owner from an existing one, by a change that locks both. So none means none until the inode's lock is
//! released, and a record that removed the last other owner is persistent: it was applied.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use pmem::LINE;
use zerocopy::IntoBytes;

use crate::BLOCK;
use crate::error::{Error, Result};
use crate::format::group::{OWNERS_MAX, owners, owners_word};
use crate::format::record::OPERATION;
use crate::image::Image;
use crate::image::allocator::Run;
use crate::image::volume::Volume;
use crate::order::LockGuard;

/// Counts in a line.
const COUNTS: u64 = LINE as u64 / 4;

type Line = [u32; COUNTS as usize];

/// The lock of a change, and the counts that it changes.
pub struct Owners<'s> {
    image: &'s Image,
    /// Lines with counts that change, by the number of their first block divided by [`COUNTS`].
    lines: BTreeMap<u64, Line>,
    _turn: LockGuard<'s, ()>,
}

impl<'s> Owners<'s> {
    /// Waits for the lock.
    pub fn new(volume: &'s Volume) -> Owners<'s> {
        Owners {
            image: &volume.image,
            lines: BTreeMap::new(),
            _turn: volume.owners.lock(),
        }
    }

    /// Gives each block of a run one owner more. False, and nothing is changed, if one has as many as can be.
    pub fn add(&mut self, run: Run) -> Result<bool> {
        let mut is_full = false;
        self.visit(run, |_, count| {
            is_full |= count == OWNERS_MAX;
            count
        })?;
        if !is_full {
            self.visit(run, |_, count| count + 1)?;
        }
        Ok(!is_full)
    }

    /// Takes an owner from each block of a run. Returns those that had no other.
    pub fn remove(&mut self, run: Run) -> Result<Vec<Run>> {
        // Nothing is changed when a count is damaged.
        self.visit(run, |_, count| count)?;
        let mut freed: Vec<Run> = Vec::new();
        self.visit(run, |block, count| {
            if count > 0 {
                return count - 1;
            }
            match freed.last_mut() {
                Some(last) if last.block + u64::from(last.length) == block => last.length += 1,
                _ => freed.push(Run { block, length: 1 }),
            }
            0
        })?;
        Ok(freed)
    }

    /// Puts what `change` makes of them in the place of the counts of a run.
    fn visit(&mut self, run: Run, mut change: impl FnMut(u64, u16) -> u16) -> Result<()> {
        let end = run.block + u64::from(run.length);
        let mut block = run.block;
        while block < end {
            let entry = self.lines.entry(block / COUNTS);
            let old = match &entry {
                Entry::Occupied(line) => *line.get(),
                Entry::Vacant(line) => load(self.image, *line.key()),
            };
            let (mut new, line_end) = (old, (block / COUNTS + 1) * COUNTS);
            for block in block..end.min(line_end) {
                let word = &mut new[(block % COUNTS) as usize];
                let count = owners(*word).ok_or(Error::Corrupt {
                    what: "a count of owners",
                    block: self.image.layout.owners(block) / BLOCK as u64,
                })?;
                *word = owners_word(change(block, count));
            }
            if new != old {
                entry.insert_entry(new);
            }
            block = line_end;
        }
        Ok(())
    }

    /// Bytes that the counts take in a record, at most.
    pub fn record_length(&self) -> usize {
        self.lines.len() * (LINE + OPERATION)
    }

    /// Hands out where in the image which bytes go.
    pub fn emit(&self, mut emit: impl FnMut(u64, &[u8])) {
        let mut lines = self.lines.iter().peekable();
        let mut bytes = Vec::new();
        while let Some((number, line)) = lines.next() {
            let target = offset(self.image, *number);
            bytes.clear();
            bytes.extend_from_slice(line.as_bytes());
            let follows = |number: u64, bytes: &[u8]| {
                offset(self.image, number) == target + bytes.len() as u64
            };
            while let Some((_, line)) = lines.next_if(|(number, _)| follows(**number, &bytes)) {
                bytes.extend_from_slice(line.as_bytes());
            }
            emit(target, &bytes);
        }
    }
}

/// Where in the image a line of counts is.
fn offset(image: &Image, line: u64) -> u64 {
    image.layout.owners(line * COUNTS)
}

fn load(image: &Image, line: u64) -> Line {
    let mut counts = [0; COUNTS as usize];
    image.read(offset(image, line), counts.as_mut_bytes());
    counts
}
