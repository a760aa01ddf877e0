//! How the one thread that uses a lock and others who come find each other.
//!
//! The *owner* of a lock stores its key into a word of its own, as a reader does where readers note themselves, and then looks
//! whether it still is the owner. Who comes has the underlying lock, ends that, and then looks at the owner's words. What
//! differs is who pays for the order of store and look: the owner enters again and again, by plain stores, and who comes has
//! a barrier run in all threads. Only under the underlying lock somebody becomes the owner, and no reader is noted then.

use std::sync::atomic::AtomicU32;

use super::bias::{Line, Word, leave};

/// Who owns a lock: the number of its line plus 1, or 0.
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

    /// Begins to use the lock, if the caller, whose number and line these are, owns it: until [`leave`].
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

    /// Makes somebody the owner. The caller has the underlying lock for writing, and nobody owns it.
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
