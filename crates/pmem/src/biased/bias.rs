//! How readers that publish themselves and a writer detect each other, apart from the protected value.
//!
//! A reader stores the key of the lock into its own word, and then checks whether the lock is still biased. A writer,
//! which holds the underlying lock, ends the bias, and then checks whether a word holds the key. Each checks after its
//! own store is visible to all, so at least one of them sees the other: the reader takes the slow path, or the writer
//! waits. The bias returns only under the underlying lock, which a writer holds exclusively.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::barrier;

/// A word, by what its loads and stores have to promise.
pub trait Word {
    type Value: Copy + PartialEq;

    /// Loads it; that promises nothing.
    fn peek(&self) -> Self::Value;
    /// Loads it; nothing after it is done earlier, and no [`Word::announce`] before it is seen later.
    fn look(&self) -> Self::Value;
    /// Stores it; nothing before it is seen later.
    fn put(&self, value: Self::Value);
    /// Stores it, so that all see it before anything after it is done.
    fn announce(&self, value: Self::Value);
    /// Stores the value before all later operations, for threads that read after a [`Word::announce_everywhere`].
    fn note(&self, value: Self::Value);
    /// Stores the value, visible to all before any later operation; for each other thread there is a moment between:
    /// its operations before are visible, and those after see this value.
    fn announce_everywhere(&self, value: Self::Value);
}

macro_rules! word {
    ($atomic:ty, $value:ty) => {
        impl Word for $atomic {
            type Value = $value;

            #[inline]
            fn peek(&self) -> $value {
                self.load(Ordering::Relaxed)
            }

            #[inline]
            fn look(&self) -> $value {
                self.load(Ordering::SeqCst)
            }

            #[inline]
            fn put(&self, value: $value) {
                self.store(value, Ordering::Release);
            }

            #[inline]
            fn announce(&self, value: $value) {
                // One locked instruction, where a store and a fence would be two.
                self.swap(value, Ordering::SeqCst);
            }

            #[inline]
            fn note(&self, value: $value) {
                self.store(value, Ordering::Relaxed);
                barrier::here();
            }

            fn announce_everywhere(&self, value: $value) {
                self.store(value, Ordering::SeqCst);
                barrier::everywhere();
            }
        }
    };
}

word!(AtomicU32, u32);
word!(AtomicU64, u64);
word!(AtomicUsize, usize);

/// Locks that a thread can have noted at the same time.
const SLOTS: usize = 8;

/// Locks that a thread reads: their keys, 0 where there is none. On separate cache lines (two: processors fetch them in
/// pairs).
#[repr(align(128))]
pub struct Line<W>([W; SLOTS]);

impl Line<AtomicUsize> {
    pub const fn new() -> Line<AtomicUsize> {
        Line([const { AtomicUsize::new(0) }; SLOTS])
    }
}

/// Whether readers of a lock note themselves: 1 if so, else 0.
pub struct Bias<F>(F);

impl Bias<AtomicU32> {
    pub const fn new() -> Bias<AtomicU32> {
        Bias(AtomicU32::new(0))
    }
}

impl<F: Word<Value = u32>> Bias<F> {
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.peek() != 0
    }

    /// Begins to read by the fast path, if that is possible: returns the word that publishes it until [`leave`]. `own`
    /// is the caller's line, `key` is not 0 and belongs to the lock alone.
    #[inline]
    pub fn enter<'a, W: Word<Value = usize>>(&self, own: &'a Line<W>, key: usize) -> Option<&'a W> {
        if !self.is_on() {
            return None;
        }
        let slot = own.free()?;
        slot.announce(key);
        if self.0.look() != 0 {
            return Some(slot);
        }
        leave(slot);
        None
    }

    /// Lets readers note themselves. The caller has the underlying lock for reading.
    pub fn begin(&self) {
        self.0.put(1);
    }

    /// Ends the bias. The caller holds the underlying lock for writing. [`Line::names`] finds remaining readers.
    pub fn end(&self) {
        self.0.announce(0);
    }
}

/// Ends what [`Bias::enter`] began.
#[inline]
pub fn leave<W: Word<Value = usize>>(slot: &W) {
    slot.put(0);
}

impl<W: Word<Value = usize>> Line<W> {
    /// Returns an empty word; for the thread that owns the line.
    #[inline]
    pub fn free(&self) -> Option<&W> {
        self.0.iter().find(|slot| slot.peek() == 0)
    }

    /// The words in which the thread may have published itself: a writer that ended the bias waits at each of them
    /// until it differs from the key. Later words with the key belong to readers that see that the bias has ended.
    pub fn names(&self, key: usize) -> impl Iterator<Item = &W> {
        self.0.iter().filter(move |slot| slot.look() == key)
    }
}

#[cfg(test)]
pub mod tests;
