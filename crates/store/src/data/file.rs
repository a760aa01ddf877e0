//! Data of files: read, write, cut, find holes.
//!
//! Small writes are inline in the record and applied in place. Whole blocks of larger ones go, once, to fresh blocks
//! that are persistent before the record that names them: after a crash a reader sees the old or the new data.

use std::sync::atomic::Ordering;

use crate::data::Files;
use crate::error::{Error, Result};
use crate::format::checksum::{crc32c, in_zeros, remainder};
use crate::format::inode::{FIRST_LINE, INODE, Inode};
use crate::format::record::Touch;
use crate::image::allocator::Run;
use crate::image::change::{BLOCKS_MAX, Change};
use crate::image::transaction::Transaction;
use crate::inode::flags::{check_growable, check_unguarded};
use crate::inode::live::LiveInode;
use crate::inode::reclaim::{SIZE_MAX, check_data, check_regular};
use crate::inode::tree::{Found, Lookup, Tree};
use crate::{ATOMIC_WRITE_MAX, BLOCK, FileExtent, WriteAt, Written};

/// Writes up to this length are inline in the record. Inline each byte is written twice past the cache, out of line
/// once, but with a second fence and changes of the extent tree (docs/performance/pool.md has the crossing point).
const BY_VALUE_MAX: usize = 8192;

const BLOCK_U64: u64 = BLOCK as u64;

impl Files {
    /// Reads at most `into.len()` bytes; fewer only at the end of the file.
    pub fn read(&self, node: &LiveInode, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.read_locked(node.number(), &node.state.read(), offset, into)
    }

    /// Reads from a file that is locked.
    pub(crate) fn read_locked(
        &self,
        number: u64,
        state: &Inode,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        check_regular(state)?;
        let length = state.size.saturating_sub(offset).min(into.len() as u64) as usize;
        let into = &mut into[..length];
        let lookup = Lookup::new(&self.volume().image, number, state);
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            let (block, inside) = (at / BLOCK_U64, (at % BLOCK_U64) as usize);
            let found = lookup.find(block)?;
            let run = match found {
                Some((_, blocks)) => blocks,
                None => lookup
                    .written_or_after(block)?
                    .map_or(u64::MAX, |next| next.logical - block),
            };
            let bytes = run
                .saturating_mul(BLOCK_U64)
                .saturating_sub(inside as u64)
                .min((length - done) as u64);
            let part = &mut into[done..done + bytes as usize];
            match found {
                Some((physical, _)) => {
                    let read = self.read_run(physical, inside, part);
                    read.inspect_err(|error| {
                        // In a run the numbers of blocks grow alike, in the file and in the image.
                        if let Error::Corrupt { block: bad, .. } = *error {
                            let offset = (block + (bad - physical)) * BLOCK_U64;
                            self.lost_data.tell(number, offset, bad);
                        }
                    })?;
                }
                None => part.fill(0),
            }
            done += bytes as usize;
        }
        Ok(length)
    }

    /// Reads from consecutive blocks, checking each: whole ones always, others when they are first touched.
    fn read_run(&self, mut block: u64, inside: usize, into: &mut [u8]) -> Result<()> {
        let head = if inside > 0 {
            into.len().min(BLOCK - inside)
        } else {
            0
        };
        let (head, rest) = into.split_at_mut(head);
        if !head.is_empty() {
            self.read_part(block, inside, head)?;
            block += 1;
        }
        let (whole, tail) = rest.split_at_mut(rest.len() / BLOCK * BLOCK);
        if !whole.is_empty() {
            self.read_whole(block, whole)?;
            block += (whole.len() / BLOCK) as u64;
        }
        if tail.is_empty() {
            Ok(())
        } else {
            self.read_part(block, 0, tail)
        }
    }

    /// Copies whole blocks and checks the copies.
    fn read_whole(&self, first: u64, into: &mut [u8]) -> Result<()> {
        let image = &self.volume().image;
        if !image.data_checksums || self.volume().defects.skip_data_checksum {
            image.read(first * BLOCK_U64, into);
            return Ok(());
        }
        let mut more = into.len() / BLOCK;
        for (block, bytes) in (first..).zip(into.chunks_exact_mut(BLOCK)) {
            more -= 1;
            let crc = image.read_data(block, bytes, more);
            check_data(crc, image.data_crc(block), block)?;
        }
        Ok(())
    }

    fn read_part(&self, block: u64, inside: usize, into: &mut [u8]) -> Result<()> {
        let image = &self.volume().image;
        if !image.is_verified(block) {
            self.read_whole(block, &mut [0; BLOCK])?;
            image.set_verified(block);
        }
        image.read(block * BLOCK_U64 + inside as u64, into);
        Ok(())
    }

    /// Writes data at an offset, or at the end.
    /// Up to 1 MiB it is one change: whole or not at all, and persistent on return. More is done in pieces, but a
    /// transaction with a reply takes no more than one change.
    pub fn write(
        &self,
        transaction: &mut Transaction<'_>,
        node: &LiveInode,
        at: WriteAt,
        data: &[u8],
    ) -> Result<Written> {
        self.prefetch_overwrite(node, at, data.len());
        let mut state = node.state.write();
        let offset = match at {
            WriteAt::Offset(offset) => {
                check_unguarded(&state)?;
                offset
            }
            WriteAt::End => {
                check_growable(&state)?;
                state.size
            }
        };
        check_writable(&state, offset, data.len())?;
        let length = if transaction.is_whole() {
            self.check_atomic(data)?;
            self.write_piece(transaction, node, &mut state, offset, data)?;
            data.len()
        } else {
            self.write_pieces(transaction, node, &mut state, offset, data)?
        };
        Ok(Written { offset, length })
    }

    /// Writes in one change.
    ///
    /// # Errors
    /// Beside those of [`Files::write`]: [`Error::NoSpace`] if not all of the data fits, and [`Error::InvalidArgument`] if it
    /// is more than one change can be. Nothing is written then.
    pub fn write_whole(
        &self,
        transaction: &mut Transaction<'_>,
        node: &LiveInode,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        self.check_atomic(data)?;
        let mut state = node.state.write();
        check_writable(&state, offset, data.len())?;
        self.write_piece(transaction, node, &mut state, offset, data)
    }

    fn check_atomic(&self, data: &[u8]) -> Result<()> {
        if data.len() > self.volume().atomic_write_max {
            return Err(Error::InvalidArgument(
                "the data of one change is at most 1 MiB, and no longer than the ring",
            ));
        }
        Ok(())
    }

    /// Has the lines fetched that an overwrite will probably read. In a row of writes the lock is free when the stores of
    /// the last one have drained, and this is done meanwhile.
    #[inline]
    fn prefetch_overwrite(&self, node: &LiveInode, at: WriteAt, length: usize) {
        if let WriteAt::Offset(offset) = at {
            let (block, inside) = (offset / BLOCK_U64, (offset % BLOCK_U64) as usize);
            let shift = node.shift.load(Ordering::Relaxed);
            let image = &self.volume().image;
            image.prefetch_data(block.wrapping_add(shift), inside, length);
        }
    }

    /// Returns how many bytes there was room for.
    fn write_pieces(
        &self,
        transaction: &mut Transaction<'_>,
        node: &LiveInode,
        state: &mut Inode,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let mut length = 0;
        for piece in data.chunks(self.volume().atomic_write_max) {
            let at = offset + length as u64;
            match self.write_piece(transaction, node, state, at, piece) {
                Ok(()) => length += piece.len(),
                Err(Error::NoSpace) if length > 0 => break,
                // Overwriting in place needs no space.
                Err(Error::NoSpace) if piece.len() > BY_VALUE_MAX => {
                    self.write_piece(transaction, node, state, offset, &piece[..BY_VALUE_MAX])?;
                    return Ok(BY_VALUE_MAX);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(length)
    }

    /// Writes in one record. Nothing happens without data.
    fn write_piece(
        &self,
        transaction: &mut Transaction<'_>,
        node: &LiveInode,
        state: &mut Inode,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        transaction.set_end(offset + data.len() as u64);
        let mut change = Change::new(self.volume());
        let time_ns = self.volume().now_ns();
        if self.overwrite(&mut change, node, state, offset, data, time_ns)? {
            // No reader sees the state before the lock is free, and a commit does not fail.
            (state.modified_ns, state.changed_ns) = (time_ns, time_ns);
            state.version = change.commit(transaction);
            return Ok(());
        }
        let (mut new, number) = (*state, node.number());
        let mut writer = Writer {
            store: self,
            tree: Tree::new(&mut change, number, &mut new),
            in_place: true,
        };
        if data.len() <= BY_VALUE_MAX {
            writer.by_value(offset, data)?;
        } else {
            let head = (offset.next_multiple_of(BLOCK_U64) - offset) as usize;
            let whole = (data.len() - head) / BLOCK * BLOCK;
            let middle = offset + head as u64;
            writer.by_value(offset, &data[..head])?;
            writer.by_reference(middle / BLOCK_U64, &data[head..head + whole])?;
            writer.by_value(middle + whole as u64, &data[head + whole..])?;
        }
        let in_place = writer.in_place;
        new.size = new.size.max(offset + data.len() as u64);
        (new.modified_ns, new.changed_ns) = (time_ns, time_ns);
        change.inode(number, &mut new, if in_place { FIRST_LINE } else { INODE });
        *state = new;
        state.version = change.commit(transaction);
        Ok(())
    }

    /// Puts data into the change that goes to one block of the file, which has the block for itself and does not grow: of
    /// the inode only the stamp changes. False if the data goes elsewhere.
    #[inline]
    fn overwrite<'d>(
        &self,
        change: &mut Change<'d>,
        node: &LiveInode,
        state: &Inode,
        offset: u64,
        data: &'d [u8],
        time_ns: i64,
    ) -> Result<bool> {
        let (block, inside) = (offset / BLOCK_U64, (offset % BLOCK_U64) as usize);
        let is_within = data.len() <= BLOCK - inside && offset + data.len() as u64 <= state.size;
        if !is_within {
            return Ok(false);
        }
        let image = &self.volume().image;
        let lookup = Lookup::new(image, node.number(), state);
        let Found::Own(physical) = lookup.find_to_change(block)? else {
            return Ok(false);
        };
        let shift = physical.wrapping_sub(block);
        if node.shift.load(Ordering::Relaxed) != shift {
            node.shift.store(shift, Ordering::Relaxed);
        }
        let touch = Some(Touch {
            inode: node.number(),
            time_ns,
        });
        if data.len() == BLOCK {
            change.block(physical, data, touch);
        } else {
            let target = physical * BLOCK_U64 + inside as u64;
            let difference = image.data_remainder(target, data.len()) ^ remainder(data);
            let crc = image.changed_crc(physical, inside, data.len(), difference);
            change.data(target, data, crc, touch);
        }
        Ok(true)
    }

    /// The next offset at or behind `offset` that holds data.
    pub fn next_data(&self, node: &LiveInode, offset: u64) -> Result<Option<u64>> {
        let state = node.state.read();
        check_regular(&state)?;
        let lookup = Lookup::new(&self.volume().image, node.number(), &state);
        let extent = lookup.written_or_after(offset / BLOCK_U64)?;
        let start = extent.map(|extent| (extent.logical * BLOCK_U64).max(offset));
        Ok(start.filter(|start| *start < state.size))
    }

    /// The extent that holds the byte at `offset`, or the next one behind it. It stays there until the file is changed.
    pub fn next_extent(&self, node: &LiveInode, offset: u64) -> Result<Option<FileExtent>> {
        let state = node.state.read();
        check_regular(&state)?;
        let lookup = Lookup::new(&self.volume().image, node.number(), &state);
        let found = lookup.holding_or_after(offset / BLOCK_U64)?;
        Ok(found.map(|extent| FileExtent {
            offset: extent.logical * BLOCK_U64,
            length: u64::from(extent.length) * BLOCK_U64,
            pool_offset: self.volume().image.start() + extent.physical * BLOCK_U64,
            is_unwritten: !extent.is_written(),
        }))
    }

    /// The next offset at or behind `offset` that is a hole; the end of the file is one.
    pub fn next_hole(&self, node: &LiveInode, offset: u64) -> Result<u64> {
        let state = node.state.read();
        check_regular(&state)?;
        let lookup = Lookup::new(&self.volume().image, node.number(), &state);
        let mut at = offset;
        while at < state.size
            && let Some((_, blocks)) = lookup.find(at / BLOCK_U64)?
        {
            at = (at / BLOCK_U64 + blocks) * BLOCK_U64;
        }
        Ok(at.min(state.size))
    }
}

/// Puts written data into a change.
pub(crate) struct Writer<'a, 'b, 's> {
    pub store: &'a Files,
    pub tree: Tree<'b, 's>,
    /// No block was added or replaced so far.
    pub in_place: bool,
}

impl<'s> Writer<'_, '_, 's> {
    /// Data in the record: in place where the file has blocks, into new cleared blocks where it has none.
    pub fn by_value(&mut self, offset: u64, mut data: &'s [u8]) -> Result<()> {
        let mut at = offset;
        while !data.is_empty() {
            let (block, inside) = (at / BLOCK_U64, (at % BLOCK_U64) as usize);
            let (part, rest) = data.split_at(data.len().min(BLOCK - inside));
            (at, data) = (at + part.len() as u64, rest);
            let found = match self.tree.lookup().find_to_change(block)? {
                Found::Hole => None,
                Found::Own(physical) => Some(physical),
                Found::Shared(old) if !self.store.volume().defects.overwrite_shared => {
                    self.in_place = false;
                    self.tree.replace_shared(block, old, inside, part)?;
                    continue;
                }
                Found::Shared(physical) => Some(physical),
            };
            let physical = found.map_or_else(|| self.start_block(block, part.len()), Ok)?;
            if part.len() == BLOCK {
                self.tree.change.block(physical, part, None);
            } else {
                let image = &self.store.volume().image;
                let target = physical * BLOCK_U64 + inside as u64;
                let crc = match found {
                    Some(_) => {
                        let old = image.data_remainder(target, part.len());
                        image.changed_crc(physical, inside, part.len(), old ^ remainder(part))
                    }
                    None => in_zeros(part, BLOCK - inside - part.len()),
                };
                self.tree.change.data(target, part, crc, None);
            }
        }
        Ok(())
    }

    /// A new block for a hole, cleared if the data does not fill it.
    fn start_block(&mut self, block: u64, length: usize) -> Result<u64> {
        self.in_place = false;
        let run = match self.tree.take_unwritten(block, 1)? {
            Some(run) => run,
            None => {
                let goal = self.tree.goal(block)?;
                self.tree.change.allocate(goal, 1)?
            }
        };
        if length < BLOCK && !self.store.volume().defects.skip_clearing {
            self.tree.change.zero(run.block * BLOCK_U64, BLOCK as u32);
        }
        self.tree.add(block, run)?;
        Ok(run.block)
    }

    /// At most `count` blocks that hold no data, for the file's blocks from `block` on: those that were allocated for it,
    /// or new ones.
    fn fresh_run(&mut self, block: u64, goal: Option<u64>, count: usize) -> Result<Run> {
        if let Some(run) = self.tree.take_unwritten(block, count as u64)? {
            return Ok(run);
        }
        let end = block + count as u64;
        let unwritten = self.tree.lookup().unwritten_between(block, end)?;
        let count = unwritten.unwrap_or(end) - block;
        self.tree.change.allocate(goal, count as u32)
    }

    /// Whole blocks to fresh places, persistent before the record; the old blocks are freed by it.
    fn by_reference(&mut self, first: u64, data: &[u8]) -> Result<()> {
        self.in_place = false;
        let image = &self.store.volume().image;
        let mut runs: Vec<Run> = Vec::new();
        let mut crcs: Vec<u32> = Vec::with_capacity(data.len() / BLOCK);
        let mut goal = self.tree.goal(first)?;
        let mut rest = data;
        while !rest.is_empty() {
            let run = self.fresh_run(first + crcs.len() as u64, goal, rest.len() / BLOCK)?;
            let (part, behind) = rest.split_at(run.length as usize * BLOCK);
            for (block, bytes) in (run.block..).zip(part.chunks_exact(BLOCK)) {
                crcs.push(if image.data_checksums {
                    crc32c(bytes)
                } else {
                    0
                });
                image.write_unreferenced(block * BLOCK_U64, bytes);
            }
            goal = Some(run.block + u64::from(run.length));
            runs.push(run);
            rest = behind;
        }
        self.tree.change.fence_data();
        let end = first + crcs.len() as u64;
        let replaced = self
            .tree
            .lookup()
            .floor(first)?
            .filter(|old| (old.logical, old.end()) == (first, end));
        if let (Some(old), [run]) = (replaced, &runs[..]) {
            self.tree.change.extent(run.block, &crcs);
            return self.tree.exchange(&old, *run);
        }
        if self.tree.remove(first, end)? != first {
            return Err(Error::NoSpace);
        }
        let (mut logical, mut crcs) = (first, &crcs[..]);
        for run in runs {
            let (own, behind) = crcs.split_at(run.length as usize);
            self.tree.change.extent(run.block, own);
            self.tree.add(logical, run)?;
            (logical, crcs) = (logical + u64::from(run.length), behind);
        }
        Ok(())
    }
}

pub(crate) fn check_writable(inode: &Inode, offset: u64, length: usize) -> Result<()> {
    check_regular(inode)?;
    match offset.checked_add(length as u64) {
        Some(end) if end <= SIZE_MAX => Ok(()),
        _ => Err(Error::FileTooLarge),
    }
}

const _: () = assert!(BY_VALUE_MAX <= BLOCKS_MAX * BLOCK && BY_VALUE_MAX <= ATOMIC_WRITE_MAX);
