//! Blocks that others fill: where a file's data is, fresh blocks for data to come, and their way into a file.
//!
//! A grant is a file of the system directory. Its blocks are in use, so they are not allocated again, and no readable
//! file contains them, so their contents are arbitrary. A client's data becomes a part of a file by one record, which
//! moves the blocks and contains their checksums.

use std::ops::Range;
use std::sync::Arc;

use crate::BLOCK;
use crate::data::Files;
use crate::error::{Error, Result};
use crate::format::checksum::crc32c;
use crate::format::inode::{FLAG_GRANT, INODE, Inode};
use crate::image::allocator::Run;
use crate::image::change::Change;
use crate::image::transaction::Transaction;
use crate::inode::flags::check_unguarded;
use crate::inode::live::LiveInode;
use crate::inode::reclaim::{SIZE_MAX, check_regular};
use crate::inode::tree::{Lookup, Tree};
use crate::ring::CachedLines;

const BLOCK_U64: u64 = BLOCK as u64;
/// Blocks that one operation names: fewer than its length field can express.
const NAMED_MAX: usize = 1024;

/// A range of a file, and where in the image it is. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Where it begins in the file.
    pub file_offset: u64,
    /// Where it begins in the image.
    pub image_offset: u64,
    /// Length of the mapped range.
    pub length: u64,
}

/// Where a part of a file is in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLayout {
    /// Number of the record that changed the file last: the layout is right as long as it stays.
    pub version: u64,
    /// Where in the image the word is that holds the version.
    pub version_offset: u64,
    /// Generation of the inode.
    pub generation: u32,
    /// Bytes of the file.
    pub size: u64,
    /// Mapped ranges, in order. Between are holes.
    pub mapped: Vec<Mapped>,
    /// The checksum of each block that is mapped, in order, as the image has it; none if it has none of data.
    pub checksums: Vec<u32>,
}

/// Whole blocks of a grant that are to become blocks of a file.
#[derive(Clone, Copy, Debug)]
pub struct Adoption<'a> {
    /// Where they go in the file, in bytes: a multiple of a block.
    pub offset: u64,
    /// Where they are in the grant, in bytes: a multiple of a block.
    pub grant_offset: u64,
    /// The checksum of each.
    pub crcs: &'a [u32],
    /// The file's size afterwards, if it is not larger already. Behind it the blocks hold zeros.
    pub size: u64,
}

impl Files {
    /// Where `length` bytes of a file from `offset` on are in the image, as far as the file reaches.
    pub fn layout(&self, node: &LiveInode, offset: u64, length: u64) -> Result<FileLayout> {
        let state = node.state.read();
        check_regular(&state)?;
        let lookup = Lookup::new(&self.volume().image, node.number(), &state);
        let end = offset.saturating_add(length).min(state.size);
        let image = &self.volume().image;
        let (mut mapped, mut checksums, mut at) = (Vec::new(), Vec::new(), offset);
        while at < end {
            let Some(extent) = lookup.written_or_after(at / BLOCK_U64)? else {
                break;
            };
            let start = at.max(extent.logical * BLOCK_U64);
            let stop = end.min(extent.end() * BLOCK_U64);
            if start >= stop {
                break;
            }
            mapped.push(Mapped {
                file_offset: start,
                image_offset: extent.physical * BLOCK_U64 + (start - extent.logical * BLOCK_U64),
                length: stop - start,
            });
            if image.data_checksums {
                let blocks = start / BLOCK_U64..stop.div_ceil(BLOCK_U64);
                let physical = blocks.map(|block| block - extent.logical + extent.physical);
                checksums.extend(physical.map(|block| image.data_crc(block)));
            }
            at = stop;
        }
        Ok(FileLayout {
            version: state.version,
            version_offset: self.volume().image.layout.inode(node.number())
                + std::mem::offset_of!(Inode, version) as u64,
            generation: state.generation,
            size: state.size,
            mapped,
            checksums,
        })
    }

    /// Appends so many fresh blocks to a grant: a file of the system directory that is empty, or has none but such
    /// blocks. Nothing is written into them. One record.
    pub fn reserve_extents(
        &self,
        transaction: &mut Transaction<'_>,
        node: &LiveInode,
        blocks: u32,
    ) -> Result<Vec<Mapped>> {
        let mut state = node.state.write();
        check_regular(&state)?;
        let is_empty = state.size == 0 && state.blocks == 0;
        if blocks == 0 || !(is_empty || is_grant(&state)) || state.size > SIZE_MAX / 2 {
            return Err(Error::InvalidArgument(
                "blocks are reserved in an empty file or a grant",
            ));
        }
        let (mut new, mut change) = (*state, Change::new(self.volume()));
        let mut logical = state.size.div_ceil(BLOCK_U64);
        let (mut left, mut goal, mut reserved) = (blocks, None, Vec::new());
        while left > 0 {
            // In pieces so small that one record cannot take them all, the pool is as good as full.
            if !change.has_room_for(4 * BLOCK) {
                return Err(Error::NoSpace);
            }
            let run = change.allocate(goal, left)?;
            let mut tree = Tree::new(&mut change, node.number(), &mut new);
            tree.add(logical, run)?;
            let length = u64::from(run.length);
            reserved.push(Mapped {
                file_offset: logical * BLOCK_U64,
                image_offset: run.block * BLOCK_U64,
                length: length * BLOCK_U64,
            });
            (left, goal) = (left - run.length, Some(run.block + length));
            logical += length;
        }
        new.size = logical * BLOCK_U64;
        new.flags |= FLAG_GRANT;
        change.inode(node.number(), &mut new, INODE);
        *state = new;
        state.version = change.commit(transaction);
        Ok(reserved)
    }

    /// Moves whole blocks from a grant into a file, where they replace former contents. They must match the checksums,
    /// and are made persistent first. One record, with the returned number.
    pub fn adopt(
        &self,
        transaction: &mut Transaction<'_>,
        target: &Arc<LiveInode>,
        grant: &Arc<LiveInode>,
        adoption: &Adoption<'_>,
    ) -> Result<u64> {
        if target.number() == grant.number() {
            return Err(Error::InvalidArgument(
                "a grant's blocks go to another file",
            ));
        }
        // In ascending order, as everywhere.
        let (mut state, mut source);
        if target.number() < grant.number() {
            state = target.state.write();
            source = grant.state.write();
        } else {
            source = grant.state.write();
            state = target.state.write();
        }
        check_regular(&state)?;
        check_regular(&source)?;
        check_unguarded(&state)?;
        let size = check_adoption(&state, &source, adoption)?;
        let (mut new, mut source_new) = (*state, *source);
        let mut change = Change::new(self.volume());
        let mut tree = Tree::new(&mut change, grant.number(), &mut source_new);
        let first = adoption.grant_offset / BLOCK_U64;
        let runs = tree.take_out(first, first + adoption.crcs.len() as u64)?;
        self.secure(&runs, adoption, size)?;
        tree.change.fence_data();
        let mut tree = Tree::new(&mut change, target.number(), &mut new);
        tree.put_in(adoption.offset / BLOCK_U64, &runs, adoption.crcs)?;
        if !change.has_room_for(BLOCK) {
            return Err(Error::NoSpace);
        }
        new.size = size;
        new.modified_ns = self.volume().now_ns();
        new.changed_ns = new.modified_ns;
        change.inode(target.number(), &mut new, INODE);
        change.inode(grant.number(), &mut source_new, INODE);
        let number = change.commit(transaction);
        (*state, *source) = (new, source_new);
        (state.version, source.version) = (number, number);
        Ok(number)
    }

    /// Checks the contents of the blocks, and flushes them.
    fn secure(&self, runs: &[Run], adoption: &Adoption<'_>, size: u64) -> Result<()> {
        let image = &self.volume().image;
        let blocks = runs
            .iter()
            .flat_map(|run| run.block..run.block + u64::from(run.length));
        let offsets = (adoption.offset..).step_by(BLOCK);
        let mut contents = [0; BLOCK];
        for ((block, crc), offset) in blocks.zip(adoption.crcs).zip(offsets) {
            image.read_block(block, &mut contents);
            let inside = size.saturating_sub(offset).min(BLOCK_U64) as usize;
            let is_right = !image.data_checksums || crc32c(&contents) == *crc;
            if !is_right || contents[inside..].iter().any(|byte| *byte != 0) {
                return Err(Error::Corrupt {
                    what: "data in a grant",
                    block,
                });
            }
        }
        for run in runs {
            image.flush(run.block * BLOCK_U64, u64::from(run.length) * BLOCK_U64);
        }
        Ok(())
    }

    /// Frees blocks of a file, which leaves a hole: in as many records as it takes, the number of the last is returned.
    pub fn punch(
        &self,
        transaction: &mut Transaction<'_>,
        node: &LiveInode,
        blocks: Range<u64>,
    ) -> Result<u64> {
        let mut state = node.state.write();
        check_regular(&state)?;
        if blocks.is_empty() {
            return Err(Error::InvalidArgument("there are no blocks in the range"));
        }
        let offset = |block: u64| block.saturating_mul(BLOCK_U64).min(SIZE_MAX);
        let range = offset(blocks.start)..offset(blocks.end);
        self.punch_range(transaction, node.number(), &mut state, range)
    }
}

impl Tree<'_, '_> {
    /// Turns the blocks `from..to` into a hole, and returns their former mappings.
    fn take_out(&mut self, from: u64, to: u64) -> Result<Vec<Run>> {
        let (mut runs, mut at) = (Vec::new(), from);
        while at < to {
            let extent = self.lookup().floor(at)?;
            let extent = extent
                .filter(|extent| extent.end() > at && !extent.is_shared())
                .ok_or(Error::InvalidArgument(
                    "the grant does not have these blocks",
                ))?;
            let end = extent.end().min(to);
            runs.push(self.unmap(&extent, at, end)?);
            at = end;
        }
        Ok(runs)
    }

    /// Maps the blocks from `first` on to runs that hold data with these checksums; former blocks are freed.
    fn put_in(&mut self, first: u64, runs: &[Run], mut crcs: &[u32]) -> Result<()> {
        let end = first + crcs.len() as u64;
        if self.remove(first, end)? != first {
            return Err(Error::NoSpace);
        }
        let mut logical = first;
        for run in runs {
            let (own, behind) = crcs.split_at(run.length as usize);
            let first = run.block..;
            for (block, crcs) in first.step_by(NAMED_MAX).zip(own.chunks(NAMED_MAX)) {
                self.change.extent(block, crcs);
            }
            self.add(logical, *run)?;
            (logical, crcs) = (logical + u64::from(run.length), behind);
        }
        Ok(())
    }
}

pub(crate) fn is_grant(inode: &Inode) -> bool {
    inode.flags & FLAG_GRANT != 0
}

/// The file's size afterwards, if the blocks may go there.
fn check_adoption(state: &Inode, grant: &Inode, adoption: &Adoption<'_>) -> Result<u64> {
    let Adoption {
        offset,
        grant_offset,
        crcs,
        size,
    } = *adoption;
    let length = crcs.len() as u64 * BLOCK_U64;
    let end = |offset: u64| {
        let end = offset.checked_add(length);
        end.filter(|end| *end <= SIZE_MAX && offset.is_multiple_of(BLOCK_U64))
    };
    let size = state.size.max(size);
    let fits = length > 0
        && is_grant(grant)
        && !is_grant(state)
        && end(grant_offset).is_some()
        && size <= SIZE_MAX
        && end(offset).is_some_and(|end| end <= size.next_multiple_of(BLOCK_U64));
    if fits {
        Ok(size)
    } else {
        Err(Error::InvalidArgument(
            "whole blocks of a grant go to whole blocks of a file, not behind its end",
        ))
    }
}
