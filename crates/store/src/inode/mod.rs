//! Inodes: those in use, their trees of extents, attributes, flags, extended attributes and access control lists.

pub(crate) mod acl;
pub(crate) mod attributes;
pub(crate) mod extents;
pub(crate) mod flags;
pub(crate) mod live;
pub(crate) mod reclaim;
pub(crate) mod tree;
pub(crate) mod xattr;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::image::volume::Volume;
use crate::inode::live::{LiveInode, NodeTable};

/// The layer of inodes: those in use, their attributes and what keeps them alive.
pub struct Inodes {
    pub(crate) volume: Volume,
    pub(crate) table: NodeTable,
}

impl Inodes {
    pub(crate) fn new(volume: Volume) -> Inodes {
        Inodes {
            volume,
            table: NodeTable::new(),
        }
    }

    /// The live inode of this number; [`Error::Stale`] when there is none.
    #[inline]
    pub fn node(&self, number: u64) -> Result<Arc<LiveInode>> {
        self.table.get(&self.volume.image, number)
    }

    /// Keeps an inode alive even when its last name goes.
    pub fn hold(&self, node: &Arc<LiveInode>) -> Result<()> {
        let state = node.state.read();
        if state.mode == 0 {
            return Err(Error::Stale);
        }
        // Under the lock: a thread that removes the last name either sees this hold or has freed the inode already.
        node.holds.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Ends `count` holds of an inode.
    /// The last one of an inode without a name frees it.
    pub fn release(&self, node: &Arc<LiveInode>, count: u64) -> Result<()> {
        if node.holds.fetch_sub(count, Ordering::AcqRel) != count {
            return Ok(());
        }
        if node.state.read().links > 0 {
            return Ok(());
        }
        self.reclaim_unused(node)
    }

    /// Frees an inode without a name and without a hold. No other lock is held, so no thread waits for it.
    pub(crate) fn reclaim_unused(&self, node: &Arc<LiveInode>) -> Result<()> {
        let mut state = node.state.write();
        if state.mode != 0 && state.links == 0 && !node.is_held() {
            return self.reclaim(node, &mut state);
        }
        Ok(())
    }

    /// Frees an orphan that has neither a name nor a hold.
    ///
    /// # Errors
    /// It is damaged, and stays an orphan.
    pub fn reclaim_orphan(&self, number: u64) -> Result<()> {
        self.reclaim_unused(&self.node(number)?)
    }
}
