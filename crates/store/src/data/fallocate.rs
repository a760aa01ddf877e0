//! Blocks of a file that are allocated, freed or moved without writing data, as by `fallocate(2)`.

use std::ops::Range;

use crate::BLOCK;
use crate::Fallocate;
use crate::data::Files;
use crate::error::{Error, Result};
use crate::format::inode::{INODE, Inode};
use crate::image::change::Change;
use crate::image::transaction::Transaction;
use crate::inode::extents::{BLOCKS_PER_RECORD, EXTENT_ROOM, EXTENTS_PER_RECORD};
use crate::inode::flags::{check_growable, check_unguarded};
use crate::inode::live::LiveInode;
use crate::inode::reclaim::{SIZE_MAX, check_regular};
use crate::inode::tree::{Lookup, Tree};

const BLOCK_U64: u64 = BLOCK as u64;

impl Files {
    /// Changes the blocks of a range, in bytes, of a regular file. No reader sees a part of it. After a crash a range
    /// may be partly allocated, punched or zeroed; a collapse or insertion is done completely or not at all.
    pub fn fallocate(
        &self,
        transaction: &mut Transaction<'_>,
        node: &LiveInode,
        mode: Fallocate,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let mut state = node.state.write();
        check_regular(&state)?;
        match mode {
            Fallocate::Allocate { .. } => check_growable(&state)?,
            _ => check_unguarded(&state)?,
        }
        if length == 0 {
            return Err(Error::InvalidArgument("the range has no byte"));
        }
        let end = offset.checked_add(length).filter(|end| *end <= SIZE_MAX);
        let end = end.ok_or(Error::FileTooLarge)?;
        let number = node.number();
        match mode {
            Fallocate::Allocate { keep_size } => {
                let size = if keep_size { state.size } else { end };
                self.allocate_holes(transaction, number, &mut state, offset..end, size)
            }
            Fallocate::PunchHole => self
                .punch_range(transaction, number, &mut state, offset..end)
                .map(drop),
            Fallocate::ZeroRange { keep_size } => {
                let size = if keep_size { state.size } else { end };
                self.zero_range(transaction, number, &mut state, offset..end, size)
            }
            Fallocate::CollapseRange => self.collapse(transaction, number, &mut state, offset..end),
            Fallocate::InsertRange => {
                self.insert_hole(transaction, number, &mut state, offset..end)
            }
        }
    }

    /// Puts `new` in the place of the inode, with the time, and commits. The last record carries the reply.
    fn commit_range(
        &self,
        transaction: &mut Transaction<'_>,
        mut change: Change<'_>,
        inode: (u64, &mut Inode, Inode),
        is_last: bool,
    ) {
        let (number, state, new) = inode;
        *state = new;
        state.modified_ns = self.volume().now_ns();
        state.changed_ns = state.modified_ns;
        change.inode(number, state, INODE);
        state.version = match is_last {
            true => change.commit(transaction),
            false => change.commit_step(transaction),
        };
    }

    /// Gives blocks to the holes of a range, and lets the file grow to `size`.
    fn allocate_holes(
        &self,
        transaction: &mut Transaction<'_>,
        number: u64,
        state: &mut Inode,
        range: Range<u64>,
        size: u64,
    ) -> Result<()> {
        let end = range.end.div_ceil(BLOCK_U64);
        let mut at = range.start / BLOCK_U64;
        self.check_space(number, state, at..end)?;
        loop {
            let mut new = *state;
            let mut change = Change::new(self.volume());
            let mut tree = Tree::new(&mut change, number, &mut new);
            at = tree.fill_holes(at, end)?;
            if at == end {
                new.size = new.size.max(size);
            }
            self.commit_range(transaction, change, (number, state, new), at == end);
            if at == end {
                return Ok(());
            }
        }
    }

    /// Refuses to begin if there are too few free blocks.
    fn check_space(&self, number: u64, state: &Inode, blocks: Range<u64>) -> Result<()> {
        let allocator = &self.volume().allocator;
        let available = allocator
            .free_blocks()
            .saturating_sub(allocator.reserved_blocks());
        let lookup = Lookup::new(&self.volume().image, number, state);
        let mut missing = blocks.end - blocks.start;
        let mut at = blocks.start;
        while missing > available
            && let Some(extent) = lookup.holding_or_after(at)?
            && extent.logical < blocks.end
        {
            let start = extent.logical.max(blocks.start);
            missing -= extent.end().min(blocks.end) - start;
            at = extent.end();
        }
        if missing > available {
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    /// Frees the whole blocks of a range and zeros the remaining parts, in as many records as needed. Returns the
    /// number of the last record.
    pub(crate) fn punch_range(
        &self,
        transaction: &mut Transaction<'_>,
        number: u64,
        state: &mut Inode,
        range: Range<u64>,
    ) -> Result<u64> {
        let (mut edges, blocks) = edges_and_blocks(&range);
        loop {
            let mut new = *state;
            let mut change = Change::with_reserve(self.volume());
            let mut tree = Tree::new(&mut change, number, &mut new);
            for edge in edges.drain(..) {
                tree.clear_part(edge)?;
            }
            let left = tree.remove_step(blocks.start, blocks.end)?;
            let is_done = left == blocks.start;
            self.commit_range(transaction, change, (number, state, new), is_done);
            if is_done {
                return Ok(state.version);
            }
        }
    }

    /// Zeros with blocks: in one change if it has room for that and the pool has blocks for it, while the old ones are
    /// still there.
    fn zero_range(
        &self,
        transaction: &mut Transaction<'_>,
        number: u64,
        state: &mut Inode,
        range: Range<u64>,
        size: u64,
    ) -> Result<()> {
        let (edges, blocks) = edges_and_blocks(&range);
        let mut new = *state;
        let mut change = Change::new(self.volume());
        let mut tree = Tree::new(&mut change, number, &mut new);
        let mut is_done = true;
        for edge in edges {
            match tree.clear_part(edge) {
                // A block that other files have too is replaced.
                Err(Error::NoSpace) => is_done = false,
                result => result?,
            }
        }
        is_done = is_done && tree.remove_step(blocks.start, blocks.end)? == blocks.start;
        if is_done {
            let end = range.end.div_ceil(BLOCK_U64);
            let filled = tree.fill_holes(range.start / BLOCK_U64, end);
            is_done = filled == Ok(end);
        }
        if is_done {
            new.size = new.size.max(size);
            self.commit_range(transaction, change, (number, state, new), true);
            return Ok(());
        }
        drop(change);
        // The last record of all carries the reply.
        self.punch_range(&mut Transaction::embedded(), number, state, range.clone())?;
        self.allocate_holes(transaction, number, state, range, size)
    }

    fn collapse(
        &self,
        transaction: &mut Transaction<'_>,
        number: u64,
        state: &mut Inode,
        range: Range<u64>,
    ) -> Result<()> {
        let blocks = whole_blocks(&range)?;
        if range.end >= state.size {
            return Err(Error::InvalidArgument(
                "a range that is taken out ends before the file does; truncate the file instead",
            ));
        }
        let mut new = *state;
        let mut change = Change::with_reserve(self.volume());
        let mut tree = Tree::new(&mut change, number, &mut new);
        if tree.remove(blocks.start, blocks.end)? != blocks.start {
            return Err(Error::TooManyPieces);
        }
        // Lower bounds of nodes may still lie in the range.
        let distance = blocks.end - blocks.start;
        tree.move_keys(blocks.start, &|key| key.max(blocks.end) - distance)?;
        new.size -= range.end - range.start;
        self.commit_range(transaction, change, (number, state, new), true);
        Ok(())
    }

    fn insert_hole(
        &self,
        transaction: &mut Transaction<'_>,
        number: u64,
        state: &mut Inode,
        range: Range<u64>,
    ) -> Result<()> {
        let blocks = whole_blocks(&range)?;
        if range.start >= state.size {
            return Err(Error::InvalidArgument(
                "a range that is put in begins before the file's end; truncate the file instead",
            ));
        }
        let distance = range.end - range.start;
        let size = state.size.checked_add(distance);
        let size = size
            .filter(|size| *size <= SIZE_MAX)
            .ok_or(Error::FileTooLarge)?;
        let mut new = *state;
        let mut change = Change::with_reserve(self.volume());
        let mut tree = Tree::new(&mut change, number, &mut new);
        // Blocks may be allocated far behind the file's end.
        let last = tree.lookup().floor(u64::MAX)?.map_or(0, |last| last.end());
        if last + distance / BLOCK_U64 > SIZE_MAX / BLOCK_U64 {
            return Err(Error::FileTooLarge);
        }
        tree.divide_at(blocks.start)?;
        tree.move_keys(blocks.start, &|key| key + distance / BLOCK_U64)?;
        new.size = size;
        self.commit_range(transaction, change, (number, state, new), true);
        Ok(())
    }
}

/// The parts of blocks at the ends of a range of bytes, and the whole blocks between them.
fn edges_and_blocks(range: &Range<u64>) -> (Vec<Range<u64>>, Range<u64>) {
    let first = range.start.next_multiple_of(BLOCK_U64);
    let last = range.end / BLOCK_U64 * BLOCK_U64;
    if first > last {
        return (vec![range.clone()], 0..0);
    }
    let edges = vec![range.start..first, last..range.end];
    (edges, first / BLOCK_U64..last / BLOCK_U64)
}

fn whole_blocks(range: &Range<u64>) -> Result<Range<u64>> {
    if !range.start.is_multiple_of(BLOCK_U64) || !range.end.is_multiple_of(BLOCK_U64) {
        return Err(Error::InvalidArgument(
            "what is taken out of a file, or put into it, is whole blocks of 4096 bytes",
        ));
    }
    Ok(range.start / BLOCK_U64..range.end / BLOCK_U64)
}

impl Tree<'_, '_> {
    /// Allocates blocks for the holes from `at` to `end`, as many as the record has room for, and returns the end of
    /// the allocated part.
    fn fill_holes(&mut self, mut at: u64, end: u64) -> Result<u64> {
        let (mut goal, mut blocks_left) = (None, BLOCKS_PER_RECORD);
        for _ in 0..EXTENTS_PER_RECORD {
            let next = self.lookup().holding_or_after(at)?;
            match next.filter(|next| next.logical < end) {
                Some(next) if next.logical <= at => {
                    goal = Some(next.physical + u64::from(next.length));
                    at = next.end().min(end);
                }
                next => {
                    let hole = next.map_or(end, |next| next.logical) - at;
                    let run = self.change.allocate(goal, hole.min(blocks_left) as u32)?;
                    self.add_unwritten(at, run)?;
                    blocks_left -= u64::from(run.length);
                    at += u64::from(run.length);
                    goal = Some(run.block + u64::from(run.length));
                }
            }
            if at == end || blocks_left == 0 || !self.change.has_room_for(EXTENT_ROOM) {
                break;
            }
        }
        Ok(at)
    }
}
