//! Shortening files, and freeing what nothing leads to any more.

use std::ops::Range;
use std::sync::Arc;

use crate::BLOCK;
use crate::error::{Error, Result};
use crate::format::checksum::crc32c;
use crate::format::inode::{INODE, Inode};
use crate::image::change::Change;
use crate::image::transaction::Transaction;
use crate::inode::Inodes;
use crate::inode::live::LiveInode;
use crate::inode::tree::{Found, Tree};
use crate::inode::xattr::free_xattrs;

const BLOCK_U64: u64 = BLOCK as u64;
/// Largest size of a file, in bytes.
pub const SIZE_MAX: u64 = 1 << 62;
static ZEROS: [u8; BLOCK] = [0; BLOCK];

impl Inodes {
    /// Puts a new size of a file into the change. True when extents are left for [`Inodes::reclaim`] to remove.
    pub(crate) fn resize(
        &self,
        change: &mut Change<'_>,
        number: u64,
        inode: &mut Inode,
        size: u64,
    ) -> Result<bool> {
        if size > SIZE_MAX {
            return Err(Error::FileTooLarge);
        }
        let shrinks = size < inode.size;
        inode.size = size;
        if !shrinks {
            return Ok(false);
        }
        let mut tree = Tree::new(change, number, inode);
        // Bytes beyond the end are always zero: growing again must not show old ones.
        tree.clear_part(size..size.next_multiple_of(BLOCK_U64))?;
        let from = size.div_ceil(BLOCK_U64);
        let unfinished = tree.remove_step(from, u64::MAX)? != from;
        if unfinished {
            tree.change.orphan(number, true);
        }
        Ok(unfinished)
    }

    /// Frees the extents behind the end of a file, and the inode too when no name and no holder is left, in as many
    /// records as it takes. The inode is noted as an orphan, so a crash on the way is made up for at the next start.
    pub(crate) fn reclaim(&self, node: &Arc<LiveInode>, state: &mut Inode) -> Result<()> {
        let number = node.number();
        loop {
            let removed = state.links == 0 && !node.is_held();
            let mut new = *state;
            let mut change = Change::with_reserve(&self.volume);
            let from = if removed || state.is_directory() {
                0
            } else {
                state.size.div_ceil(BLOCK_U64)
            };
            let has_tree = has_tree(state);
            let mut tree = Tree::new(&mut change, number, &mut new);
            let done = !has_tree || tree.remove_step(from, u64::MAX)? == from;
            if done {
                change.orphan(number, state.links == 0 && !removed);
                if removed {
                    free_inode(&mut change, number, &mut new);
                }
            }
            change.inode(number, &mut new, INODE);
            *state = new;
            state.version = change.commit(&mut Transaction::embedded());
            if done {
                if removed {
                    self.table.remove(node);
                }
                return Ok(());
            }
        }
    }
}

impl Tree<'_, '_> {
    /// Puts zeros into a range, in bytes, inside one block, if there is data.
    pub(crate) fn clear_part(&mut self, range: Range<u64>) -> Result<()> {
        let (block, inside) = (range.start / BLOCK_U64, (range.start % BLOCK_U64) as usize);
        if range.is_empty() {
            return Ok(());
        }
        let zeros = &ZEROS[..(range.end - range.start) as usize];
        match self.lookup().find_to_change(block)? {
            Found::Hole => {}
            Found::Shared(old) => self.replace_shared(block, old, inside, zeros)?,
            Found::Own(physical) => {
                let image = self.change.image();
                let target = physical * BLOCK_U64 + inside as u64;
                // Zeros have no remainder.
                let old = image.data_remainder(target, zeros.len());
                let crc = image.changed_crc(physical, inside, zeros.len(), old);
                self.change.data(target, zeros, crc, None);
            }
        }
        Ok(())
    }

    /// Puts bytes into a block of the file that something else has, too: all of it goes to a new block. The record has the
    /// contents: a member that takes it needs no data of the primary's, which may have changed them since.
    pub fn replace_shared(
        &mut self,
        logical: u64,
        old: u64,
        inside: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let goal = self.goal(logical)?;
        let run = self.change.allocate(goal, 1)?;
        let image = self.change.image();
        let mut contents = [0; BLOCK];
        image.read_block(old, &mut contents);
        if image.data_checksums && bytes.len() < BLOCK {
            // Damaged data is not copied: its damage would not be detectable any more.
            check_data(crc32c(&contents), image.data_crc(old), old)?;
        }
        contents[inside..inside + bytes.len()].copy_from_slice(bytes);
        let crc = crc32c(&contents);
        self.change
            .data(run.block * BLOCK_U64, &contents, crc, None);
        if self.remove(logical, logical + 1)? != logical {
            return Err(Error::NoSpace);
        }
        self.add(logical, run)
    }
}

pub(crate) fn check_data(found: u32, stored: u32, block: u64) -> Result<()> {
    if found == stored {
        Ok(())
    } else {
        Err(Error::Corrupt {
            what: "data",
            block,
        })
    }
}

pub(crate) fn check_regular(inode: &Inode) -> Result<()> {
    match inode.mode & crate::format::inode::KIND_MASK {
        0o100_000 => Ok(()),
        0 => Err(Error::Stale),
        0o040_000 => Err(Error::IsADirectory),
        _ => Err(Error::InvalidArgument("this is not a regular file")),
    }
}

/// Whether the inode's root holds extents and not a link's target.
pub(crate) fn has_tree(inode: &Inode) -> bool {
    inode.count > 0
}

/// Puts the freeing of an inode into a change.
pub(crate) fn free_inode(change: &mut Change<'_>, number: u64, inode: &mut Inode) {
    free_xattrs(change, inode);
    inode.free();
    change.free_inode(number);
}
