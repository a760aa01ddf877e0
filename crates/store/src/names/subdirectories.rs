//! Directories that were found lately, by parent and name: paths lead through the same ones again and again.
//!
//! An entry is made under the read lock of its parent, and dropped under the write lock, before the record that removes
//! the name. So an entry found here, without any of these locks, is the name's target, or was while its change was
//! still in flight.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::inode::live::LiveInode;

/// Names that are remembered at most. Where two fall together, the later one stays.
const SLOTS: usize = 1024;

struct Subdirectory {
    parent: u64,
    name: Box<[u8]>,
    node: Arc<LiveInode>,
}

/// A volatile index of names of directories.
pub struct Subdirectories {
    slots: Box<[Mutex<Option<Subdirectory>>]>,
}

impl Subdirectories {
    pub fn new() -> Subdirectories {
        Subdirectories {
            slots: (0..SLOTS).map(|_| Mutex::default()).collect(),
        }
    }

    fn slot(&self, parent: u64, hash: u64) -> &Mutex<Option<Subdirectory>> {
        &self.slots[(parent ^ hash) as usize % SLOTS]
    }

    /// The directory of this name, if it is remembered. `hash` is the name's.
    pub fn get(&self, parent: u64, hash: u64, name: &[u8]) -> Option<Arc<LiveInode>> {
        let slot = self.slot(parent, hash).lock();
        let known = slot
            .as_ref()
            .filter(|known| known.parent == parent && *known.name == *name)?;
        Some(known.node.clone())
    }

    /// Remembers a name; its parent is locked.
    pub fn remember(&self, parent: u64, hash: u64, name: &[u8], node: &Arc<LiveInode>) {
        *self.slot(parent, hash).lock() = Some(Subdirectory {
            parent,
            name: name.into(),
            node: node.clone(),
        });
    }

    /// Forgets a name which is about to be taken away, or to lead elsewhere; its parent is locked for writing.
    pub fn forget(&self, parent: u64, hash: u64) {
        *self.slot(parent, hash).lock() = None;
    }
}
