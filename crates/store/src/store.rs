//! The open store.

use std::sync::Arc;

use pmem::Region;

use crate::data::Files;
use crate::error::Result;
use crate::image::create::{self, Geometry};
use crate::image::recovery::recover;
use crate::image::volume::{PoolOptions, Volume};
use crate::inode::Inodes;
use crate::inode::live::LiveInode;
use crate::names::Names;

/// A pool that is open: the one way to read and change its files. Any number of threads may call it; each call does
/// its work on the calling thread.
///
/// Each layer has a type of its own, which contains that of the layer below:
///
/// ```text
///   Names ─► Files ─► Inodes ─► Volume
/// ```
pub struct Store {
    names: Names,
}

impl Store {
    /// Makes an empty pool of the whole region; whatever was there is lost.
    pub fn format(region: &Region, geometry: &Geometry) -> Result<()> {
        create::format(region, geometry)
    }

    /// Opens a pool: checks it, replays its ring and reclaims its orphans.
    ///
    /// # Errors
    /// [`crate::Error::OfUnit`]: such a pool is opened in an epoch of its unit. Or it is no pool, or a damaged one.
    pub fn open(region: Region, options: PoolOptions) -> Result<Store> {
        Store::open_as(region, options, None)
    }

    /// Opens a pool for writing in exactly this epoch, which must be higher than that of its tail. Removed files stay until
    /// [`Inodes::reclaim_orphan`].
    pub fn open_in_epoch(region: Region, epoch: u32, options: PoolOptions) -> Result<Store> {
        Store::open_as(region, options, Some(epoch))
    }

    fn open_as(region: Region, options: PoolOptions, epoch: Option<u32>) -> Result<Store> {
        let (volume, newest_ns) = recover(region, &options, epoch)?;
        let names = Names::open(Files::new(Inodes::new(volume)))?;
        let store = Store { names };
        if epoch.is_some() && !options.defects.stamp_by_own_clock {
            // The time stamps come from another member's clock, and those of a pool that was filled by it from no record.
            let newest_ns = match newest_ns {
                0 => store.volume().newest_change_ns(),
                _ => newest_ns,
            };
            let directories = [store.root(), store.system()];
            let changed = directories.map(|node| node.state.read().changed_ns);
            let newest_ns = changed.into_iter().fold(newest_ns, i64::max);
            store.volume().stamp_after(newest_ns);
        }
        for number in store.volume().orphans() {
            // In a unit a session may still hold it: `reclaim_orphan` follows when all sessions have resumed.
            let is_removed = |node: &Arc<LiveInode>| node.state.read().links == 0;
            if let Ok(node) = store.inodes().node(number)
                && !(epoch.is_some() && is_removed(&node))
            {
                // Damage in an orphan must not keep the pool from opening: it stays one, and `check` reports it.
                let _ = store.inodes().reclaim(&node, &mut node.state.write());
            }
        }
        Ok(store)
    }

    /// Space, records and time stamps.
    #[inline]
    pub fn volume(&self) -> &Volume {
        &self.inodes().volume
    }

    /// Inodes and their attributes.
    #[inline]
    pub fn inodes(&self) -> &Inodes {
        &self.files().inodes
    }

    /// Returns the layer for data of files.
    #[inline]
    pub fn files(&self) -> &Files {
        &self.names.files
    }

    /// Returns the layer for directories and links.
    #[inline]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the root directory.
    pub fn root(&self) -> Arc<LiveInode> {
        self.names.root.clone()
    }

    /// The system directory, a separate root that no path reaches. Its files are made and used as others are.
    pub fn system(&self) -> Arc<LiveInode> {
        self.names.system.clone()
    }

    /// Applies all records and empties the ring. No other operation may be in flight.
    pub fn close(&self) -> Result<()> {
        let volume = self.volume();
        volume.ring.drain(&volume.image);
        Ok(())
    }

    /// The layer of records alone, the rest is closed. No operation may be in flight.
    pub(crate) fn into_volume(self) -> Volume {
        self.names.files.inodes.volume
    }
}
