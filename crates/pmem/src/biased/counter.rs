//! [`BiasedCounter`]: a number that threads add to, by plain stores if one does it alone.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;

use super::bias::Word;
use crate::barrier;

/// Additions in a row by one thread before it owns the counter. Each saves at least 15 ns, and to end it takes microseconds.
const ADDITIONS: u32 = 512;
/// After each end it takes twice as many, up to this power of two as many.
const ENDS_MAX: u32 = 7;
/// A thread is becoming the owner, or ceasing to be.
const CHANGING: u32 = u32::MAX;

/// A word that can be added to in one piece.
trait Sum: Word<Value = u64> {
    fn add(&self, addend: u64) -> u64;
}

impl Sum for AtomicU64 {
    #[inline]
    fn add(&self, addend: u64) -> u64 {
        self.fetch_add(addend, Ordering::AcqRel)
    }
}

/// A value on separate cache lines (two: processors fetch them in pairs).
#[repr(align(128))]
struct Apart<T>(T);

/// How adding threads and threads that change the owner detect each other. An adding thread announces it in its own
/// word, and then reads the owner. A thread that changes the owner announces that, executes a barrier in all threads,
/// and then reads the words of adding threads.
struct Core<V, F> {
    value: Apart<V>,
    /// A number of a thread, 0, or [`CHANGING`].
    owner: F,
}

impl<V: Sum, F: Word<Value = u32>> Core<V, F> {
    /// Adds, for the thread with this number and this word. `None`: another thread owns the counter.
    #[inline]
    fn add<W: Word<Value = u32>>(&self, number: u32, busy: &W, addend: u64) -> Option<u64> {
        busy.note(1);
        let owner = self.owner.look();
        let before = if owner == number {
            let before = self.value.0.peek();
            self.value.0.put(before + addend);
            Some(before)
        } else if owner == 0 {
            Some(self.value.0.add(addend))
        } else {
            None
        };
        busy.put(0);
        before
    }

    /// Makes this thread the owner, if there is none, unless another thread is adding. No other thread changes the
    /// owner meanwhile.
    fn begin(&self, number: u32, is_alone: impl FnOnce() -> bool) -> bool {
        self.owner.announce_everywhere(CHANGING);
        let is_alone = is_alone();
        self.owner.put(if is_alone { number } else { 0 });
        is_alone
    }

    /// Ends the ownership, and waits for the owner if it is adding, as `is_busy` returns. No other thread changes the
    /// owner meanwhile.
    fn end(&self, is_busy: impl Fn(u32) -> bool, mut wait: impl FnMut()) -> bool {
        let owner = self.owner.peek();
        if owner == 0 {
            return false;
        }
        self.owner.announce_everywhere(CHANGING);
        while is_busy(owner) {
            wait();
        }
        self.owner.put(0);
        true
    }
}

/// A number that threads add to. Each has an index, which no other one uses at the same time.
///
/// A thread that adds many times without another one between becomes the *owner*, and then adds by a load and a store.
/// Any other thread ends that, by a barrier in all threads of the process, and all add by locked instructions again.
pub struct BiasedCounter {
    core: Core<AtomicU64, AtomicU32>,
    adders: Box<[Apart<Adder>]>,
    /// Indexes from here on were never used.
    used: AtomicUsize,
    /// Number of times that another thread ended an ownership.
    ends: AtomicU32,
    changing: Mutex<()>,
}

/// State of an index.
#[derive(Default)]
struct Adder {
    busy: AtomicU32,
    /// Additions in a row by this index.
    streak: AtomicU32,
    /// Result of the last addition.
    left: AtomicU64,
}

impl BiasedCounter {
    /// Creates a counter for so many indexes.
    pub fn new(value: u64, indexes: usize) -> BiasedCounter {
        BiasedCounter {
            core: Core {
                value: Apart(AtomicU64::new(value)),
                owner: AtomicU32::new(0),
            },
            adders: (0..indexes).map(|_| Apart(Adder::default())).collect(),
            used: AtomicUsize::new(0),
            ends: AtomicU32::new(0),
            changing: Mutex::new(()),
        }
    }

    /// Returns the number; the caller then sees the earlier operations of the adding threads (acquire).
    #[inline]
    pub fn get(&self) -> u64 {
        self.core.value.0.load(Ordering::Acquire)
    }

    /// Adds, and returns the former value. A thread that sees the new number sees this thread's earlier operations, and
    /// this thread sees those of threads that added before (release and acquire).
    #[inline]
    pub fn add(&self, index: usize, addend: u64) -> u64 {
        let adder = &self.adders[index].0;
        if index >= self.used.load(Ordering::Relaxed) {
            self.used.fetch_max(index + 1, Ordering::SeqCst);
        }
        let number = index as u32 + 1;
        let mut rounds = 0;
        loop {
            if let Some(before) = self.core.add(number, &adder.busy, addend) {
                if self.core.owner.peek() != number {
                    self.count(index, before, addend);
                }
                return before;
            }
            rounds = self.end(rounds);
        }
    }

    /// Counts an addition that others could have come between.
    fn count(&self, index: usize, before: u64, addend: u64) {
        let adder = &self.adders[index].0;
        let streak = match adder.left.load(Ordering::Relaxed) == before {
            true => adder.streak.load(Ordering::Relaxed) + 1,
            false => 0,
        };
        adder.left.store(before + addend, Ordering::Relaxed);
        adder.streak.store(streak, Ordering::Relaxed);
        if streak >= ADDITIONS << self.ends.load(Ordering::Relaxed).min(ENDS_MAX) {
            adder.streak.store(0, Ordering::Relaxed);
            self.begin(index);
        }
    }

    #[cold]
    fn begin(&self, index: usize) {
        let Some(_changing) = self.changing.try_lock() else {
            return;
        };
        if self.core.owner.peek() != 0 || !barrier::are_quick() {
            return;
        }
        let is_alone = || {
            let adders = &self.adders[..self.used.load(Ordering::SeqCst)];
            let mut others = (0..).zip(adders).filter(|(other, _)| *other != index);
            others.all(|(_, adder)| adder.0.busy.look() == 0)
        };
        self.core.begin(index as u32 + 1, is_alone);
    }

    #[cold]
    fn end(&self, rounds: u32) -> u32 {
        let Some(_changing) = self.changing.try_lock() else {
            return pause(rounds);
        };
        let is_busy = |owner: u32| self.adders[owner as usize - 1].0.busy.look() != 0;
        let mut waits = 0;
        if self.core.end(is_busy, || waits = pause(waits)) {
            self.ends.fetch_add(1, Ordering::Relaxed);
        }
        rounds
    }
}

/// Waits a moment: by spinning at first, then by yielding to other threads, which may be the awaited ones.
pub(super) fn pause(rounds: u32) -> u32 {
    if rounds < 200 {
        spin_loop();
    } else {
        thread::yield_now();
    }
    rounds.saturating_add(1)
}

#[cfg(test)]
mod tests;
