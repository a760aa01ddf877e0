//! Guesses at what names lead to, so that an inode and the name's entry are on their way from memory while the leaf is
//! searched. A wrong guess does no harm: nothing is concluded from it.
//!
//! A hint is a word, and there are as many as the pool has inodes, at most 8 MiB.

use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::FromZeros;

/// Most slots.
const SLOTS_MAX: u64 = 1 << 20;
/// Bits of the parts of a hint, from the lowest on: discriminator, line, slot, number.
const BITS: [u32; 3] = [13, 6, 7];
/// Spreads directories over the tags.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The probable target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Inode number.
    pub number: u64,
    /// The slot in the leaf.
    pub slot: usize,
    /// The line in the leaf where the entry begins.
    pub line: usize,
}

/// Hints for recently used or created names.
pub struct Hints {
    slots: Box<[AtomicU64]>,
}

impl Hints {
    /// For a pool of so many inodes.
    pub fn new(inodes: u64) -> Hints {
        let slots = inodes.next_power_of_two().min(SLOTS_MAX);
        // Pages that no hint was put into yet take no memory.
        let slots = <[AtomicU64]>::new_box_zeroed_with_elems(slots as usize);
        Hints {
            slots: slots.expect("8 MiB of memory"),
        }
    }

    /// The index of a hint. It depends only on the hash, so that it can be prefetched before the directory is known.
    #[inline]
    fn place(&self, hash: u64) -> &AtomicU64 {
        &self.slots[hash as usize & (self.slots.len() - 1)]
    }

    /// Has the hint for names of this hash fetched.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        pmem::prefetch(self.place(hash));
    }

    /// The probable target of the name with this hash.
    #[inline]
    pub fn get(&self, directory: u64, hash: u64) -> Option<Hint> {
        let word = self.place(hash).load(Ordering::Relaxed);
        let mut rest = word;
        let [tag_found, line, slot] = BITS.map(|bits| {
            let part = rest & ((1 << bits) - 1);
            rest >>= bits;
            part
        });
        let hint = Hint {
            number: rest,
            slot: slot as usize,
            line: line as usize,
        };
        (tag_found == tag(directory, hash) && hint.number != 0).then_some(hint)
    }

    /// Stores its target.
    #[inline]
    pub fn set(&self, directory: u64, hash: u64, hint: Hint) {
        let parts = [hint.line as u64, hint.slot as u64, hint.number];
        let word = parts.iter().rev().zip([BITS[2], BITS[1], BITS[0]]);
        let word = word.fold(0, |word, (part, bits)| (word | part) << bits);
        self.place(hash)
            .store(word | tag(directory, hash), Ordering::Relaxed);
    }
}

fn tag(directory: u64, hash: u64) -> u64 {
    (hash ^ directory.wrapping_mul(SPREAD)) >> 20 & ((1 << BITS[0]) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_found_by_directory_and_hash() {
        let hints = Hints::new(100);
        let hint = Hint {
            number: 12345,
            slot: 90,
            line: 63,
        };
        hints.set(7, 0x3fff_0123_4567, hint);
        assert_eq!(hints.get(7, 0x3fff_0123_4567), Some(hint));
        assert_eq!(hints.get(8, 0x3fff_0123_4567), None);
        assert_eq!(hints.get(7, 0x3fff_0123_4566), None);
    }
}
