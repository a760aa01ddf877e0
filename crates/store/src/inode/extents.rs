//! Ranges of a file's blocks: added, removed, cut.

use crate::BLOCK;
use crate::error::Result;
use crate::format::extent::Extent;
use crate::image::allocator::Run;
use crate::inode::tree::Tree;

/// Extents that one record frees or allocates at most, so that others wait for short times only.
pub(crate) const EXTENTS_PER_RECORD: usize = 128;
/// And blocks: for each 512 of them the record carries a line of a bitmap.
pub(crate) const BLOCKS_PER_RECORD: u64 = 32_768;
/// Room that one more extent may need in a record: nodes of the tree that divide.
pub const EXTENT_ROOM: usize = 4 * BLOCK;
/// Blocks that may have several owners and are freed in one go.
const RELEASED_AT_ONCE: u64 = 256;
/// Room that their counts need in a record.
const COUNTS_ROOM: usize = 2048;

impl Tree<'_, '_> {
    /// Maps blocks of the file that are holes to a run of the image, joining it to the extent that it continues.
    pub fn add(&mut self, logical: u64, run: Run) -> Result<()> {
        self.add_extent(&Extent::new(logical, run.block, run.length))
    }

    /// The same, with a run that holds no data yet.
    pub fn add_unwritten(&mut self, logical: u64, run: Run) -> Result<()> {
        self.add_extent(&Extent::unwritten(logical, run.block, run.length))
    }

    /// The same, with a run that something else has, too.
    pub fn add_shared(&mut self, logical: u64, run: Run) -> Result<()> {
        self.add_extent(&Extent::shared(logical, run.block, run.length))
    }

    fn add_extent(&mut self, extent: &Extent) -> Result<()> {
        self.inode.blocks = self.inode.blocks.saturating_add(u64::from(extent.length));
        if extent.logical > 0
            && let Some(before) = self.lookup().floor(extent.logical - 1)?
            && before.continues_with(extent)
        {
            let joined = Extent {
                length: before.length + extent.length,
                ..before
            };
            return self.replace(before.logical, Some(&joined));
        }
        self.insert(extent)
    }

    /// Takes at most `count` blocks from `logical` on out of the file if they are allocated and hold no data yet: they
    /// are to be added again, with data.
    pub fn take_unwritten(&mut self, logical: u64, count: u64) -> Result<Option<Run>> {
        let found = self.lookup().floor(logical)?;
        match found.filter(|extent| extent.end() > logical && !extent.is_written()) {
            Some(extent) => {
                let end = extent.end().min(logical + count);
                self.unmap(&extent, logical, end).map(Some)
            }
            None => Ok(None),
        }
    }

    /// Replaces a whole extent by a run of the same length; the former blocks are freed.
    pub fn exchange(&mut self, old: &Extent, run: Run) -> Result<()> {
        self.free(
            old,
            Run {
                block: old.physical,
                length: old.length,
            },
        )?;
        self.replace(
            old.logical,
            Some(&Extent::new(old.logical, run.block, run.length)),
        )
    }

    /// Turns the blocks `from..to` into holes and frees them, as long as the record has room. Works from the end, and
    /// returns the first block of the emptied range: `from` when it is done.
    pub fn remove(&mut self, from: u64, to: u64) -> Result<u64> {
        self.remove_some(from, to, usize::MAX, u64::MAX)
    }

    /// The same, but no more than others can wait for.
    pub fn remove_step(&mut self, from: u64, to: u64) -> Result<u64> {
        self.remove_some(from, to, EXTENTS_PER_RECORD, BLOCKS_PER_RECORD)
    }

    fn remove_some(
        &mut self,
        from: u64,
        to: u64,
        extents_max: usize,
        blocks_max: u64,
    ) -> Result<u64> {
        let (mut end, mut blocks_left) = (to, blocks_max);
        for _ in 0..extents_max {
            if blocks_left == 0 {
                return Ok(end);
            }
            let last = if end > from {
                self.lookup().floor(end - 1)?
            } else {
                None
            };
            let Some(extent) = last.filter(|extent| extent.end() > from) else {
                return Ok(from);
            };
            let to = extent.end().min(end);
            let mut start = extent.logical.max(from).max(to.saturating_sub(blocks_left));
            let mut room = EXTENT_ROOM;
            if extent.is_shared() {
                start = start.max(to.saturating_sub(RELEASED_AT_ONCE));
                room += COUNTS_ROOM;
            }
            if !self.change.has_room_for(room) {
                return Ok(end);
            }
            self.cut(&extent, start, to)?;
            blocks_left -= to - start;
            end = start;
        }
        Ok(
            if end == from
                || self
                    .lookup()
                    .floor(end - 1)?
                    .is_none_or(|e| e.end() <= from)
            {
                from
            } else {
                end
            },
        )
    }

    /// The block behind that of the file's previous block, so that files grow contiguously.
    pub fn goal(&self, block: u64) -> Result<Option<u64>> {
        let Some(before) = block.checked_sub(1) else {
            return Ok(None);
        };
        let found = self.lookup().find(before)?;
        Ok(found.map(|(physical, _)| physical + 1))
    }

    /// Divides the extent that reaches over a block of the file, if one does, so that one begins there.
    pub fn divide_at(&mut self, logical: u64) -> Result<()> {
        let found = match logical.checked_sub(1) {
            Some(before) => self.lookup().floor(before)?,
            None => None,
        };
        let Some(extent) = found.filter(|extent| extent.end() > logical) else {
            return Ok(());
        };
        let [before, after] = divided(&extent, logical, logical);
        self.replace(extent.logical, Some(&before))?;
        self.insert(&after)
    }

    /// Frees the part `from..to` of an extent.
    fn cut(&mut self, extent: &Extent, from: u64, to: u64) -> Result<()> {
        let run = self.unmap(extent, from, to)?;
        self.free(extent, run)
    }

    /// Frees blocks that an extent held.
    fn free(&mut self, extent: &Extent, run: Run) -> Result<()> {
        if extent.is_shared() {
            return self.change.release(run);
        }
        self.change.free(run);
        Ok(())
    }

    /// Turns the part `from..to` of an extent into a hole, and returns its blocks, which stay in use.
    pub fn unmap(&mut self, extent: &Extent, from: u64, to: u64) -> Result<Run> {
        let [before, after] = divided(extent, from, to);
        match (before.length, after.length) {
            (0, 0) => self.replace(extent.logical, None)?,
            (0, _) => {
                // Its key changes, and may now belong into another leaf: an extent that grew can reach over the
                // lower bound of the next leaf.
                self.replace(extent.logical, None)?;
                self.insert(&after)?;
            }
            (_, 0) => self.replace(extent.logical, Some(&before))?,
            _ => {
                self.replace(extent.logical, Some(&before))?;
                self.insert(&after)?;
            }
        }
        let length = (to - from) as u32;
        self.inode.blocks = self.inode.blocks.saturating_sub(u64::from(length));
        Ok(Run {
            block: extent.physical + (from - extent.logical),
            length,
        })
    }
}

/// The parts of an extent before `from`, and from `to` on.
fn divided(extent: &Extent, from: u64, to: u64) -> [Extent; 2] {
    let before = Extent {
        length: (from - extent.logical) as u32,
        ..*extent
    };
    let after = Extent {
        logical: to,
        physical: extent.physical + (to - extent.logical),
        length: (extent.end() - to) as u32,
        ..*extent
    };
    [before, after]
}
