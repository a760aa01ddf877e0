//! The open store.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use pmem::Region;

use crate::clock::Clock;
use crate::data::bad_blocks::LostDataTold;
use crate::defects::Defects;
use crate::error::{Error, Result};
use crate::format::superblock::Superblock;
use crate::image::change::Shared;
use crate::image::recovery::recover;
use crate::inode::attributes::attributes;
use crate::inode::live::{LiveInode, NodeTable};
use crate::names::directory::hash_name;
use crate::names::subdirectories::Subdirectories;
use crate::order::{Ordered, Rank};
use crate::{ATOMIC_WRITE_MAX, BLOCK, NAME_LENGTH_MAX, ROOT, SYSTEM};
use crate::{Attributes, Statistics};

/// Options for opening a pool.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where time stamps come from.
    pub clock: Clock,
    /// The pool is one of a unit. Blocks and inodes that a record frees stay out of use until [`Store::release_freed`]:
    /// other pools may not have the record yet. And the image may be read from outside.
    pub hold_freed: bool,
    /// Each call occurs between two system calls, as those of a mount do, and the second one waits for stores past the
    /// caches. So parts of blocks go through the caches, and are flushed later.
    pub between_system_calls: bool,
    /// Rules to break, for tests.
    pub defects: Defects,
}

/// A pool that is open: the one way to read and change its files. Any number of threads may call it; each call does
/// its work on the calling thread.
pub struct Store {
    pub(crate) shared: Shared,
    pub(crate) nodes: NodeTable,
    root: Arc<LiveInode>,
    system: Arc<LiveInode>,
    pub(crate) subdirectories: Subdirectories,
    /// Serialises renames between directories.
    pub(crate) renames: Ordered<Mutex<()>>,
    /// Longest write that is one record, in bytes: 1 MiB, less with a ring shorter than that.
    pub(crate) atomic_write_max: usize,
    pub(crate) lost_data: LostDataTold,
    /// Locked for as long as the pool grows.
    pub(crate) superblock: Mutex<Superblock>,
    hash_key: [u8; 16],
    clock: Clock,
    /// Nanoseconds by which time stamps are ahead of the clock.
    ahead_ns: AtomicI64,
}

impl Store {
    /// Opens a pool: checks it, replays its ring and reclaims its orphans.
    ///
    /// # Errors
    /// [`Error::OfUnit`]: such a pool is opened in an epoch of its unit. Or it is no pool, or a damaged one.
    pub fn open(region: Region, options: Options) -> Result<Store> {
        Store::open_as(region, options, None)
    }

    /// Opens a pool for writing in exactly this epoch, which must be higher than that of its tail. Removed files stay until
    /// [`Store::reclaim_orphan`].
    pub fn open_in_epoch(region: Region, epoch: u32, options: Options) -> Result<Store> {
        Store::open_as(region, options, Some(epoch))
    }

    fn open_as(region: Region, options: Options, epoch: Option<u32>) -> Result<Store> {
        let (superblock, shared, newest_ns) = recover(region, &options, epoch)?;
        let nodes = NodeTable::new();
        let root = root_directory(&nodes, &shared, ROOT, "the root directory")?;
        let system = root_directory(&nodes, &shared, SYSTEM, "the system directory")?;
        let store = Store {
            shared,
            nodes,
            root,
            system,
            subdirectories: Subdirectories::new(),
            renames: Ordered::mutex(Rank::Renames, ()),
            atomic_write_max: ATOMIC_WRITE_MAX.min(superblock.ring_length as usize),
            lost_data: LostDataTold::default(),
            hash_key: superblock.hash_key,
            superblock: Mutex::new(superblock),
            clock: options.clock,
            ahead_ns: AtomicI64::new(0),
        };
        if epoch.is_some() {
            // The time stamps come from another member's clock.
            let directories = [&store.root, &store.system];
            let changed = directories.map(|node| node.state.read().changed_ns);
            store.stamp_after(changed.into_iter().fold(newest_ns, i64::max));
        }
        for number in store.orphans() {
            // In a unit a session may still hold it: `reclaim_orphan` follows when all sessions have resumed.
            let is_removed = |node: &Arc<LiveInode>| node.state.read().links == 0;
            if let Ok(node) = store.node(number)
                && !(epoch.is_some() && is_removed(&node))
            {
                // Damage in an orphan must not keep the pool from opening: it stays one, and `check` reports it.
                let _ = store.reclaim(&node, &mut node.state.write());
            }
        }
        Ok(store)
    }

    /// Numbers of all inodes that have something to reclaim.
    pub fn orphans(&self) -> Vec<u64> {
        self.shared.allocator.orphans()
    }

    /// Frees an orphan that has neither a name nor a hold.
    ///
    /// # Errors
    /// It is damaged, and stays an orphan.
    pub fn reclaim_orphan(&self, number: u64) -> Result<()> {
        self.reclaim_unused(&self.node(number)?)
    }

    /// Applies all records and empties the ring. No other operation may be in flight.
    pub fn close(&self) -> Result<()> {
        self.shared.ring.drain(&self.shared.image);
        Ok(())
    }

    /// The pool's superblock.
    pub fn superblock(&self) -> Superblock {
        *self.superblock.lock()
    }

    /// The region that holds the pool.
    pub fn region(&self) -> &Region {
        self.shared.image.region()
    }

    /// Bytes of the ring that recovery would have to read now.
    pub fn ring_used(&self) -> u64 {
        self.shared.ring.used()
    }

    /// The root directory.
    pub fn root(&self) -> Arc<LiveInode> {
        self.root.clone()
    }

    /// The system directory, a separate root that no path reaches. Its files are made and used as others are.
    pub fn system(&self) -> Arc<LiveInode> {
        self.system.clone()
    }

    /// The live inode of this number; [`Error::Stale`] when there is none.
    #[inline]
    pub fn node(&self, number: u64) -> Result<Arc<LiveInode>> {
        self.nodes.get(&self.shared.image, number)
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

    /// Like [`Store::attributes_of`], and [holds](Store::hold) it.
    pub fn lookup_held(&self, directory: &LiveInode, name: &[u8]) -> Result<Attributes> {
        let hash = self.hash(name);
        let node = {
            let state = directory.state.read();
            let (number, _) = self.find_any(directory, &state, hash, name)?;
            // Still under the lock, as in `lookup`.
            self.node(number)?
        };
        let state = node.state.read();
        if state.links == 0 {
            return Err(Error::Stale);
        }
        // Under the lock, as in `hold`.
        node.holds.fetch_add(1, Ordering::AcqRel);
        Ok(attributes(node.number(), &state))
    }

    /// Ends `count` holds. The last one of an inode without a name frees it.
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

    /// Figures of the whole pool.
    pub fn statistics(&self) -> Statistics {
        let (layout, allocator) = (&self.shared.image.layout, &self.shared.allocator);
        let blocks = (0..layout.groups())
            .map(|group| layout.data_blocks(group))
            .map(|data| data.end - data.start)
            .sum();
        let blocks_free = allocator.free_blocks();
        Statistics {
            block_size: BLOCK as u32,
            blocks,
            blocks_free,
            blocks_available: blocks_free.saturating_sub(allocator.reserved_blocks()),
            inodes: layout.inodes() - 2,
            inodes_free: allocator.free_inodes(),
            name_length_max: NAME_LENGTH_MAX as u32,
            write_max: self.write_max() as u32,
        }
    }

    /// Longest write that is one change, in bytes.
    pub fn write_max(&self) -> usize {
        self.atomic_write_max
    }

    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        hash_name(&self.hash_key, name)
    }

    /// Gives no time stamp before this one from now on, in nanoseconds since 1970: the clock that gave it may be ahead of this
    /// one.
    pub fn stamp_after(&self, newest_ns: i64) {
        let ahead = newest_ns.saturating_sub(self.clock.now_ns());
        self.ahead_ns.fetch_max(ahead, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> i64 {
        let ahead = self.ahead_ns.load(Ordering::Relaxed);
        self.clock.now_ns().saturating_add(ahead)
    }
}

/// A directory that must be there.
fn root_directory(
    nodes: &NodeTable,
    shared: &Shared,
    number: u64,
    what: &'static str,
) -> Result<Arc<LiveInode>> {
    let root = nodes.get(&shared.image, number)?;
    if !root.state.read().is_directory() {
        let block = shared.image.layout.inode(number) / BLOCK as u64;
        return Err(Error::Corrupt { what, block });
    }
    Ok(root)
}
