//! Inodes that something of this session refers to: the kernel, or an open file.

use std::collections::HashMap;

use operations::{FileId, Held};
use parking_lot::Mutex;

const SHARDS: usize = 64;

/// References and holds by the inode number that users see.
///
/// The primary counts holds, and this table counts the ones that were granted. The last reference gives all of them back,
/// so that a hold that is granted at the same time, and not counted here yet, is not lost.
pub(super) struct Table {
    shards: Box<[Mutex<HashMap<u64, Entry>>]>,
}

#[derive(Clone, Copy)]
struct Entry {
    file: FileId,
    /// References of the kernel and of open files.
    references: u64,
    /// Holds that the primary has granted.
    holds: u64,
}

impl Default for Table {
    fn default() -> Table {
        Table {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl Table {
    fn shard(&self, number: u64) -> &Mutex<HashMap<u64, Entry>> {
        &self.shards[number as usize % SHARDS]
    }

    /// Generation of a number that something refers to.
    pub(super) fn generation(&self, number: u64) -> Option<u32> {
        let shard = self.shard(number).lock();
        shard.get(&number).map(|entry| entry.file.generation)
    }

    /// Number of references to a file.
    pub(super) fn references(&self, number: u64) -> u64 {
        let shard = self.shard(number).lock();
        shard.get(&number).map_or(0, |entry| entry.references)
    }

    /// Adds a reference to a file, with the holds that were granted for it.
    pub(super) fn add(&self, number: u64, file: FileId, holds: u64) {
        let mut shard = self.shard(number).lock();
        let entry = shard.entry(number).or_insert(Entry {
            file,
            references: 0,
            holds: 0,
        });
        if entry.file != file && file.generation != FileId::ANY_GENERATION {
            // The number is in use again: without a hold the old file could be removed.
            (entry.file, entry.holds) = (file, 0);
        }
        entry.references += 1;
        entry.holds += holds;
    }

    /// Adds a reference, and returns whether the session holds the file.
    pub(super) fn refer(&self, number: u64, file: FileId) -> bool {
        self.add(number, file, 0);
        let shard = self.shard(number).lock();
        shard.get(&number).is_some_and(|entry| entry.holds > 0)
    }

    /// Adds a reference to a file that the session holds. Returns whether it does.
    pub(super) fn refer_held(&self, number: u64, file: FileId) -> bool {
        let mut shard = self.shard(number).lock();
        let entry = shard.get_mut(&number);
        let held = entry.filter(|entry| entry.file == file && entry.holds > 0);
        held.map(|entry| entry.references += 1).is_some()
    }

    /// Counts a hold of this file that was granted after [`Table::refer`].
    pub(super) fn note_hold(&self, number: u64, file: FileId) {
        if let Some(entry) = self.shard(number).lock().get_mut(&number) {
            entry.file = file;
            entry.holds += 1;
        }
    }

    /// Removes references. The last one returns the holds to release.
    pub(super) fn release(&self, number: u64, count: u64) -> Option<Held> {
        let mut shard = self.shard(number).lock();
        let entry = shard.get_mut(&number)?;
        entry.references = entry.references.saturating_sub(count);
        if entry.references > 0 {
            return None;
        }
        let Entry { file, holds, .. } = shard.remove(&number)?;
        (holds > 0).then_some(Held { file, count: holds })
    }

    /// Returns the holds of all files.
    pub(super) fn holds(&self) -> Vec<Held> {
        let shards = self.shards.iter().map(|shard| shard.lock());
        let held = |entry: &Entry| Held {
            file: entry.file,
            count: entry.holds,
        };
        shards
            .flat_map(|shard| shard.values().map(held).collect::<Vec<_>>())
            .filter(|held| held.count > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(generation: u32) -> FileId {
        FileId {
            unit: 2,
            inode: 5,
            generation,
        }
    }

    #[test]
    fn the_last_reference_gives_back_all_holds() {
        let (table, number) = (Table::default(), 5);
        table.add(number, file(1), 1);
        table.add(number, file(1), 1);
        assert!(table.refer(number, file(1)));
        assert_eq!(table.generation(number), Some(1));
        assert_eq!(table.release(number, 2), None);
        let held = Held {
            file: file(1),
            count: 2,
        };
        assert_eq!(table.holds(), [held]);
        assert_eq!(table.release(number, 1), Some(held));
        assert_eq!((table.generation(number), table.holds()), (None, vec![]));
        assert_eq!(table.release(number, 1), None);
    }

    #[test]
    fn a_number_that_is_used_again_has_the_new_generation_and_its_holds() {
        let (table, number) = (Table::default(), 5);
        table.add(number, file(1), 0);
        assert!(!table.refer(number, file(1)));
        table.add(number, file(2), 1);
        assert_eq!(table.generation(number), Some(2));
        assert_eq!(table.release(number, 2), None);
        let held = Held {
            file: file(2),
            count: 1,
        };
        assert_eq!(table.release(number, 1), Some(held));
    }
}
