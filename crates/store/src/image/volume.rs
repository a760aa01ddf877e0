//! The space of an open pool: its image, its ring, and what is free in it.

use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use pmem::Region;

use crate::clock::Clock;
use crate::defects::Defects;
use crate::error::{Error, Result};
use crate::format::superblock::Superblock;
use crate::image::Image;
use crate::image::allocator::Allocator;
use crate::image::deferred_frees::DeferredFrees;
use crate::image::transaction::ReplyLocks;
use crate::order::Ordered;
use crate::ring::{CachedLines, Ring};
use crate::sequence::Sequence;
use crate::{BLOCK, NAME_LENGTH_MAX, Statistics};

/// Options for opening a pool.
#[derive(Clone, Debug, Default)]
pub struct PoolOptions {
    /// Where time stamps come from.
    pub clock: Clock,
    /// The pool is one of a unit. Blocks and inodes that a record frees stay out of use until [`Volume::release_freed`]:
    /// other pools may not have the record yet. And the image may be read from outside.
    pub hold_freed: bool,
    /// Each call occurs between two system calls, as those of a mount do, and the second one waits for stores past the
    /// caches. So parts of blocks go through the caches, and are flushed later.
    pub between_system_calls: bool,
    /// The place in the image where every thread starts to search for free space, numbered as threads are, which otherwise spread over it.
    /// With it, results do not depend on the thread.
    pub place: Option<u32>,
    /// Rules to break, for tests.
    pub defects: Defects,
}

/// The layer of records: blocks, inodes and their changes as bytes, without the meaning of files and names.
pub struct Volume {
    /// Image of the file system.
    pub(crate) image: Image,
    /// Ring in which changes of the image are recorded.
    pub(crate) ring: Ring,
    /// Free blocks and inodes.
    pub(crate) allocator: Allocator,
    /// Lock for changing owner counts.
    pub(crate) owners: Ordered<Mutex<()>>,
    /// Freed space that must not be used yet, if other pools of the unit still need it.
    pub(crate) deferred_frees: Option<DeferredFrees>,
    /// Locks of the blocks that replies go to.
    pub(crate) replies: ReplyLocks,
    /// Rules broken on purpose.
    pub(crate) defects: Defects,
    /// Locked for as long as the pool grows.
    pub(crate) superblock: Mutex<Superblock>,
    /// Longest write that is one record, in bytes: 1 MiB, less with a ring shorter than that.
    pub(crate) atomic_write_max: usize,
    pub(crate) clock: Clock,
    /// Nanoseconds by which time stamps are ahead of the clock.
    pub(crate) ahead_ns: AtomicI64,
}

/// Amount of a pool's data with several owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Blocks with several owners.
    pub blocks: u64,
    /// Blocks that the copies would take besides, if they did not share these.
    pub saved: u64,
}

impl Volume {
    /// Returns the pool's superblock.
    pub fn superblock(&self) -> Superblock {
        *self.superblock.lock()
    }

    /// The region that holds the pool.
    pub fn region(&self) -> &Region {
        self.image.region()
    }

    /// Bytes of the ring that recovery would have to read now.
    pub fn ring_used(&self) -> u64 {
        self.ring.used()
    }

    /// Numbers of all inodes that have something to reclaim.
    pub fn orphans(&self) -> Vec<u64> {
        self.allocator.orphans()
    }

    /// Figures of the whole pool.
    pub fn statistics(&self) -> Statistics {
        let (layout, allocator) = (&self.image.layout, &self.allocator);
        let blocks = (0..layout.groups())
            .map(|group| layout.data_blocks(group))
            .map(|data| data.end - data.start)
            .sum();
        Statistics {
            block_size: BLOCK as u32,
            blocks,
            blocks_free: allocator.free_blocks(),
            blocks_available: self.blocks_available(),
            inodes: layout.inodes() - 2,
            inodes_free: allocator.free_inodes(),
            name_length_max: NAME_LENGTH_MAX as u32,
            write_max: self.write_max() as u32,
        }
    }

    /// Blocks of the image, with those of metadata.
    pub fn blocks(&self) -> u64 {
        self.image.layout.blocks()
    }

    /// Blocks that changes may take.
    pub fn blocks_available(&self) -> u64 {
        let allocator = &self.allocator;
        let reserved = allocator.reserved_blocks();
        allocator.free_blocks().saturating_sub(reserved)
    }

    /// Longest write that is one change, in bytes.
    pub fn write_max(&self) -> usize {
        self.atomic_write_max
    }

    /// Adds up the counts of owners of the whole pool: a 1024th of it is read. Damaged ones are left out.
    pub fn sharing(&self) -> Sharing {
        let image = &self.image;
        let mut sharing = Sharing::default();
        for block in (0..image.layout.groups()).flat_map(|group| image.layout.data_blocks(group)) {
            let count = u64::from(image.owners(block).unwrap_or_default());
            sharing.blocks += u64::from(count > 0);
            sharing.saved += count;
        }
        sharing
    }

    /// Lets blocks and inodes be used again that records with numbers below `below` freed: every pool that counts has
    /// these records. Without [`crate::PoolOptions::hold_freed`] nothing waits for this.
    pub fn release_freed(&self, below: u64) {
        if let Some(frees) = &self.deferred_frees {
            frees.release(below, &self.allocator);
        }
    }

    /// Where the last committed record ends, and the epoch in which the pool is open.
    pub fn tail(&self) -> Sequence {
        Sequence {
            epoch: self.ring.epoch(),
            number: self.ring.persisted_below(),
        }
    }

    /// Bytes of the image.
    pub fn image_length(&self) -> u64 {
        self.image.length()
    }

    /// Copies bytes of the image out, as they are now: a record that is being applied may be there in part.
    pub fn read_image(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        check_range(&self.image, offset, into.len())?;
        self.image.read(offset, into);
        Ok(())
    }

    /// Appends whole committed records from the position `from` on to `into`, as [`crate::Replica::read_records`].
    pub fn read_records(&self, from: u64, limit_bytes: usize, into: &mut Vec<u8>) -> Option<u64> {
        let end = self.tail().number;
        self.ring.read_records(from, end, limit_bytes, into)
    }

    /// Gives no time stamp before this one from now on, in nanoseconds since 1970: the clock that gave it may be ahead of this
    /// one.
    pub fn stamp_after(&self, newest_ns: i64) {
        let ahead = newest_ns.saturating_sub(self.clock.now_ns());
        self.ahead_ns.fetch_max(ahead, Ordering::Relaxed);
    }

    /// The newest time of change of all files, in nanoseconds since 1970. Damaged inodes do not count.
    pub(crate) fn newest_change_ns(&self) -> i64 {
        let inodes = self.allocator.inodes().into_iter();
        let intact = inodes.filter_map(|number| self.image.inode(number).ok());
        intact.map(|inode| inode.changed_ns).max().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> i64 {
        let ahead = self.ahead_ns.load(Ordering::Relaxed);
        self.clock.now_ns().saturating_add(ahead)
    }
}

pub(crate) fn check_range(image: &Image, offset: u64, length: usize) -> Result<()> {
    let end = offset.checked_add(length as u64);
    if end.is_some_and(|end| end <= image.length()) {
        Ok(())
    } else {
        Err(Error::InvalidArgument("the range is not in the image"))
    }
}
