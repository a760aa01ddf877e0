//! Blocks and inodes that were freed and must not be used yet: a pool of the unit that has not the record that freed
//! them still has them in its files, where others read them.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::image::allocator::{Allocator, Run};

/// Space that one record freed.
#[derive(Default)]
struct Freed {
    runs: SmallVec<[Run; 2]>,
    inode: Option<u64>,
}

/// Freed space, by the number of the record that freed it.
#[derive(Default)]
pub struct DeferredFrees(Mutex<BTreeMap<u64, Freed>>);

impl DeferredFrees {
    /// Keeps the space that the record `number` freed.
    pub fn defer(&self, number: u64, runs: &[Run], inode: Option<u64>) {
        if runs.is_empty() && inode.is_none() {
            return;
        }
        let runs = runs.into();
        self.0.lock().insert(number, Freed { runs, inode });
    }

    /// Frees the space that records below this number freed.
    pub fn release(&self, below: u64, allocator: &Allocator) {
        let released = {
            let mut deferred = self.0.lock();
            let kept = deferred.split_off(&below);
            std::mem::replace(&mut *deferred, kept)
        };
        for freed in released.into_values() {
            for run in freed.runs {
                allocator.give_back(run);
            }
            if let Some(number) = freed.inode {
                allocator.give_back_inode(number);
            }
        }
    }
}
