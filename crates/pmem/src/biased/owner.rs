//! How the one thread that uses a lock and other threads detect each other.
//!
//! The *owner* of a lock stores its key into its own word, as a published reader does, and then checks whether it still
//! is the owner. Another thread takes the underlying lock, ends the ownership, and then reads the owner's words. The
//! difference is the cost of ordering store and load: the owner enters often, by plain stores, and the other thread
//! executes a barrier in all threads. A thread becomes the owner only under the underlying lock, and no reader is
//! published then.

use std::sync::atomic::AtomicU32;

use super::bias::{Line, Word, leave};

/// Owner of a lock: the number of its line plus 1, or 0.
pub struct Owner<F>(F);

impl Owner<AtomicU32> {
    pub const fn new() -> Owner<AtomicU32> {
        Owner(AtomicU32::new(0))
    }
}

impl<F: Word<Value = u32>> Owner<F> {
    #[inline]
    pub fn get(&self) -> u32 {
        self.0.peek()
    }

    /// Begins to use the lock, if the caller, with this number and line, owns it: until [`leave`].
    #[inline]
    pub fn enter<'a, W: Word<Value = usize>>(
        &self,
        number: u32,
        own: &'a Line<W>,
        key: usize,
    ) -> Option<&'a W> {
        let slot = own.free()?;
        slot.note(key);
        if self.0.look() == number {
            return Some(slot);
        }
        leave(slot);
        None
    }

    /// Sets the owner. The caller holds the underlying lock for writing, and there is no owner.
    pub fn begin(&self, number: u32) {
        self.0.put(number);
    }

    /// Ends it. The caller has the underlying lock for writing. If the owner is using the lock, [`Line::names`] finds it.
    pub fn end(&self) {
        self.0.announce_everywhere(0);
    }
}

#[cfg(test)]
mod tests;
