//! Where a directory's leaves are: a volatile index beside its extent tree, which answers the same by halving two nodes.
//!
//! A slot represents all hashes with the same first bits, and names the leaf that was found for one of them; the leaf's
//! header tells whether it is the leaf of another hash. Leaves are entered under the directory's lock for reading. A
//! thread that adds or drops one, under the lock for writing, clears all slots of its range before. So a slot always
//! names a leaf of the directory: its block gets no other use unless it was dropped.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::format::directory::PREFIX_BITS;

/// In a directory with fewer leaves the tree is as fast.
const LEAVES_MIN: u64 = 8;
/// Bits of a hash that distinguish slots, for directories of ever more leaves. Each is used until there are at most two
/// slots for each leaf.
const LEVELS: [u32; 8] = [6, 8, 10, 12, 14, 16, 18, 20];
/// An empty slot: no leaf is in this block.
const NONE: u64 = 0;

/// The slots of one level.
type Level = OnceLock<Box<[AtomicU64]>>;

/// The index of one directory.
#[derive(Debug, Default)]
pub struct Leaves {
    levels: OnceLock<Box<[Level; LEVELS.len()]>>,
    /// The level that was used last.
    last: AtomicUsize,
    /// It was used since [`Leaves::take_used`].
    used: AtomicBool,
}

impl Leaves {
    /// The block of a leaf of the directory, which has so many, that may be that of the prefix.
    #[inline]
    pub fn get(&self, leaves: u64, prefix: u64) -> Option<u64> {
        let found = self.at(level(leaves)?, prefix);
        if found.is_some() && !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        found
    }

    #[inline]
    fn at(&self, level: usize, prefix: u64) -> Option<u64> {
        let slots = self.levels.get()?[level].get()?;
        let block = slots[slot(level, prefix)].load(Ordering::Relaxed);
        (block != NONE).then_some(block)
    }

    /// A guess at the block, without the directory's lock.
    #[inline]
    pub fn guess(&self, prefix: u64) -> Option<u64> {
        self.at(self.last.load(Ordering::Relaxed), prefix)
    }

    /// Enters the leaf of a prefix.
    pub fn remember(&self, leaves: u64, prefix: u64, block: u64) {
        let Some(level) = level(leaves) else {
            return;
        };
        let slots = |level: u32| (0..1 << level).map(|_| AtomicU64::new(NONE)).collect();
        let levels = self.levels.get_or_init(Box::default);
        let slots = levels[level].get_or_init(|| slots(LEVELS[level]));
        slots[slot(level, prefix)].store(block, Ordering::Relaxed);
        self.last.store(level, Ordering::Relaxed);
    }

    /// Clears the slots of a nonempty range of prefixes.
    pub fn forget(&self, prefixes: Range<u64>) {
        let Some(levels) = self.levels.get() else {
            return;
        };
        for (level, slots) in levels.iter().enumerate() {
            if let Some(slots) = slots.get() {
                let range = slot(level, prefixes.start)..=slot(level, prefixes.end - 1);
                let forget = |slot: &AtomicU64| slot.store(NONE, Ordering::Relaxed);
                slots[range].iter().for_each(forget);
            }
        }
    }

    /// Whether it was used since this was asked last.
    pub fn take_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) && self.used.swap(false, Ordering::Relaxed)
    }
}

/// The level for a directory with so many leaves, if it needs one.
#[inline]
fn level(leaves: u64) -> Option<usize> {
    if leaves < LEAVES_MIN {
        return None;
    }
    let bits = u64::BITS - leaves.leading_zeros() + 1;
    let level = (bits.saturating_sub(LEVELS[0])).div_ceil(2) as usize;
    Some(level.min(LEVELS.len() - 1))
}

#[inline]
fn slot(level: usize, prefix: u64) -> usize {
    (prefix >> (PREFIX_BITS - LEVELS[level])) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_two_slots_for_each_leaf() {
        assert_eq!(level(LEAVES_MIN - 1), None);
        for leaves in [8, 15, 16, 31, 32, 1000, 1024, 2000, 100_000] {
            let slots = 1 << LEVELS[level(leaves).unwrap()];
            assert!(
                (2 * leaves..=16 * leaves).contains(&slots),
                "{leaves} leaves"
            );
        }
        assert_eq!(level(u64::MAX), Some(LEVELS.len() - 1));
    }

    #[test]
    fn cleared_slots_are_cleared_on_every_level() {
        let leaves = Leaves::default();
        let quarter = 1 << (PREFIX_BITS - 2);
        for count in [10, 100, 1000] {
            for part in 0..4 {
                leaves.remember(count, part * quarter + 5, part + 1);
            }
        }
        leaves.forget(2 * quarter..3 * quarter);
        for count in [10, 100, 1000] {
            let found = [0, 1, 2, 3].map(|part| leaves.get(count, part * quarter + 5));
            assert_eq!(found, [Some(1), Some(2), None, Some(4)]);
        }
        leaves.forget(0..4 * quarter);
        assert_eq!(leaves.get(100, 5), None);
    }
}
