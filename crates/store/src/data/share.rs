//! Copying without copying: extents of a file that another file, or another place of it, holds too.
//!
//! A shared block is never written: new data goes to a new block, by the record that removes an owner from the old one
//! (see [`crate::image::owners`]).

use crate::BLOCK;
use crate::data::Files;
use crate::data::file::{Writer, check_writable};
use crate::data::grant::is_grant;
use crate::error::{Error, Result};
use crate::format::extent::{Extent, SHARED};
use crate::format::inode::{INODE, Inode};
use crate::image::allocator::Run;
use crate::image::change::Change;
use crate::image::transaction::Transaction;
use crate::inode::flags::check_unguarded;
use crate::inode::live::LiveInode;
use crate::inode::reclaim::check_regular;
use crate::inode::tree::{Lookup, Tree};

const BLOCK_U64: u64 = BLOCK as u64;
/// Most blocks that one change shares, so that others wait for short times only.
const SHARED_AT_ONCE: u64 = 1024;

/// A copy of a range, in bytes, between files that are locked.
#[derive(Clone, Copy)]
struct Copy {
    from: u64,
    /// The inode that is copied from.
    source: Inode,
    offset: u64,
    to: u64,
    /// The inode that is copied to.
    target: Inode,
    to_offset: u64,
    length: u64,
}

impl Files {
    /// Copies from one file, or one range in it, to another, in one change: whole blocks are shared, the parts of
    /// blocks at the ends copied; a hole stays one. Returns the number of bytes, fewer if not all fits into one record;
    /// none if nothing can be shared: the offsets differ within their blocks, there is no whole block, or the ends need
    /// blocks that the pool does not have. Then the caller must read and write the data.
    ///
    /// # Errors
    /// Ranges of one file must not overlap.
    pub fn share(
        &self,
        transaction: &mut Transaction<'_>,
        (from, offset): (&LiveInode, u64),
        (to, to_offset): (&LiveInode, u64),
        length: u64,
    ) -> Result<u64> {
        if length < BLOCK_U64 && !offset.is_multiple_of(BLOCK_U64)
            || offset % BLOCK_U64 != to_offset % BLOCK_U64
        {
            return Ok(0);
        }
        // In ascending order, as everywhere.
        let (mut source, mut target) = (None, None);
        if from.number() < to.number() {
            source = Some(from.state.write());
        }
        let target = target.insert(to.state.write());
        if from.number() > to.number() {
            source = Some(from.state.write());
        }
        check_regular(source.as_deref().unwrap_or(target))?;
        check_unguarded(target)?;
        let mut copy = Copy {
            from: from.number(),
            source: *source.as_deref().unwrap_or(target),
            offset,
            to: to.number(),
            target: **target,
            to_offset,
            length,
        };
        copy.length = length.min(copy.source.size.saturating_sub(offset));
        check_writable(&copy.target, to_offset, copy.length as usize)?;
        if copy.is_within_one_file() && offset.abs_diff(to_offset) < copy.length {
            return Err(Error::InvalidArgument(
                "ranges of one file that overlap are not copied; copy to another place",
            ));
        }
        if is_grant(&copy.source) || is_grant(&copy.target) {
            return Ok(0);
        }
        let mut most = SHARED_AT_ONCE;
        while most > 0 {
            match self.share_at_most(transaction, &copy, most) {
                Ok(None) => most /= 2,
                Ok(Some((done, new))) => {
                    **target = new.target;
                    if let Some(source) = &mut source {
                        **source = new.source;
                    }
                    return Ok(done);
                }
                Err(Error::NoSpace) => return Ok(0),
                Err(error) => return Err(error),
            }
        }
        Ok(0)
    }

    /// Shares at most so many blocks. Returns how many bytes were copied, and the inodes; nothing if the record has no
    /// room for it, or a block has as many owners as can be.
    fn share_at_most(
        &self,
        transaction: &mut Transaction<'_>,
        copy: &Copy,
        most: u64,
    ) -> Result<Option<(u64, Copy)>> {
        let mut new = *copy;
        let first = copy.offset.div_ceil(BLOCK_U64);
        let end = copy.shared_end();
        if end <= first {
            return Ok(Some((0, new)));
        }
        let last = end.min(first + most);
        let head = (first * BLOCK_U64 - copy.offset) as usize;
        // Bytes beyond the end of the file in its last block are zeros.
        let shared_to = (last * BLOCK_U64 - copy.offset).min(copy.length);
        let done = if last == end { copy.length } else { shared_to };
        let mut ends = [0; 2 * BLOCK];
        let (head_bytes, rest) = ends.split_at_mut(head);
        let tail_bytes = &mut rest[..(done - shared_to) as usize];
        self.read_locked(copy.from, &copy.source, copy.offset, head_bytes)?;
        let tail_offset = copy.offset + shared_to;
        self.read_locked(copy.from, &copy.source, tail_offset, tail_bytes)?;
        let mut change = Change::new(self.volume());
        let extents = self.extents_with_data(copy, first, last)?;
        for part in extents.iter().map(|extent| part(extent, first, last)) {
            if !change.share(run(&part))? {
                return Ok(None);
            }
        }
        new.mark_shared(&mut change, &extents)?;
        let mut writer = Writer {
            store: self,
            tree: Tree::new(&mut change, copy.to, &mut new.target),
            in_place: false,
        };
        writer.by_value(copy.to_offset, head_bytes)?;
        writer.by_value(copy.to_offset + shared_to, tail_bytes)?;
        let tree = &mut writer.tree;
        let to_block = |block: u64| copy.to_offset.div_ceil(BLOCK_U64) + (block - first);
        if tree.remove(to_block(first), to_block(last))? != to_block(first) {
            return Ok(None);
        }
        for part in extents.iter().map(|extent| part(extent, first, last)) {
            tree.add_shared(to_block(part.logical), run(&part))?;
        }
        if !change.has_room_for(2 * INODE) {
            return Ok(None);
        }
        transaction.set_end(copy.to_offset + done);
        new.commit(transaction, self, change, copy.to_offset + done);
        Ok(Some((done, new)))
    }

    /// The extents of the source with data between two of its blocks.
    fn extents_with_data(&self, copy: &Copy, first: u64, last: u64) -> Result<Vec<Extent>> {
        let lookup = Lookup::new(&self.volume().image, copy.from, &copy.source);
        let (mut found, mut at) = (Vec::new(), first);
        while at < last
            && let Some(extent) = lookup.written_or_after(at)?
            && extent.logical < last
        {
            found.push(extent);
            at = extent.end();
        }
        Ok(found)
    }
}

impl Copy {
    fn is_within_one_file(&self) -> bool {
        self.from == self.to
    }

    /// The block of the source behind the last one that can be shared: a whole one, or the last of its file if it
    /// becomes that of the other, too.
    fn shared_end(&self) -> u64 {
        let end = self.offset + self.length;
        let is_last = end == self.source.size && self.to_offset + self.length >= self.target.size;
        if is_last && !self.is_within_one_file() {
            end.div_ceil(BLOCK_U64)
        } else {
            end / BLOCK_U64
        }
    }

    /// Notes in the source that its blocks may have further owners.
    fn mark_shared(&mut self, change: &mut Change<'_>, extents: &[Extent]) -> Result<()> {
        let inode = match self.is_within_one_file() {
            true => &mut self.target,
            false => &mut self.source,
        };
        let mut tree = Tree::new(change, self.from, inode);
        for extent in extents.iter().filter(|extent| !extent.is_shared()) {
            let shared = Extent {
                flags: SHARED,
                ..*extent
            };
            tree.replace(extent.logical, Some(&shared))?;
        }
        Ok(())
    }

    /// Commits; the target ends at `end` or behind it.
    fn commit(
        &mut self,
        transaction: &mut Transaction<'_>,
        store: &Files,
        mut change: Change<'_>,
        end: u64,
    ) {
        let target = &mut self.target;
        target.size = target.size.max(end);
        target.modified_ns = store.volume().now_ns();
        target.changed_ns = target.modified_ns;
        change.inode(self.to, target, INODE);
        if !self.is_within_one_file() {
            change.inode(self.from, &mut self.source, INODE);
        }
        let number = change.commit(transaction);
        (self.target.version, self.source.version) = (number, number);
    }
}

/// Part of an extent between two blocks of the file.
fn part(extent: &Extent, first: u64, last: u64) -> Extent {
    let (start, end) = (extent.logical.max(first), extent.end().min(last));
    Extent::shared(start, extent.block_of(start), (end - start) as u32)
}

fn run(extent: &Extent) -> Run {
    Run {
        block: extent.physical,
        length: extent.length,
    }
}
