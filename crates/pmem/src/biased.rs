//! [`BiasedLock`]: a reader-writer lock whose readers share no line.

mod bias;

use std::fmt;
use std::hint::spin_loop;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bias::{Bias, Line, leave};

/// Threads with a line of their own; those that come while so many live read the slow way.
const LINES: usize = 256;
/// Reads without a writer between them, for each line that was ever used, before readers note themselves. The next
/// writer looks at each of these lines once, so that a read pays for a small part of such a look.
const READS_PER_LINE: u32 = 16;

static READERS: [Line<AtomicUsize>; LINES] = [const { Line::new() }; LINES];
/// Lines from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Lines that belong to no living thread.
static UNOWNED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: Own = Own::new();
}

/// The line of a thread, if there was one left.
struct Own(Option<usize>);

impl Own {
    fn new() -> Own {
        let mut unowned = UNOWNED.lock();
        let used = USED.load(Ordering::Relaxed);
        let fresh = || (used < LINES).then_some(used);
        let own = unowned.pop().or_else(fresh);
        if own == Some(used) {
            // Before anything is noted there: a writer that must see that sees this.
            USED.store(used + 1, Ordering::SeqCst);
        }
        Own(own)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        UNOWNED.lock().extend(self.0);
    }
}

/// A reader-writer lock after BRAVO (Dice and Kogan, "BRAVO – Biased Locking for Reader-Writer Locks", USENIX ATC 2019).
///
/// After a good many reads it is biased: a reader then notes in a line of its thread that it reads, and writes nothing
/// that another thread does. A writer takes the underlying lock, ends the bias, and waits for those who are noted.
/// Without readers a writer looks at one word more than with the underlying lock.
///
/// A writer waits for those who read when it came and for those before it in the underlying lock, which later readers
/// go to as well. As there, a thread that has the lock must not ask for it again.
#[repr(C, align(16))]
pub struct BiasedLock<T> {
    // Both beside the word of the underlying lock, which is written with them.
    bias: Bias<AtomicU32>,
    /// Reads since the last writer, about.
    reads: AtomicU32,
    lock: RwLock<T>,
}

/// The value can be read, and is not changed.
pub struct ReadGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    held: Held<'a, T>,
}

/// How it is read.
enum Held<'a, T> {
    Noted(&'static AtomicUsize),
    Locked { _guard: RwLockReadGuard<'a, T> },
}

impl<T> BiasedLock<T> {
    /// A lock that nobody has.
    pub const fn new(value: T) -> BiasedLock<T> {
        BiasedLock {
            bias: Bias::new(),
            reads: AtomicU32::new(0),
            lock: RwLock::new(value),
        }
    }

    /// No other lock that somebody has can have the same.
    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Waits for it, for reading.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let held = match self.note() {
            Some(slot) => Held::Noted(slot),
            None => self.read_slowly(),
        };
        ReadGuard { lock: self, held }
    }

    #[inline]
    fn note(&self) -> Option<&'static AtomicUsize> {
        if !self.bias.is_on() {
            return None;
        }
        // A thread that is ending has lost its line.
        let own = OWN.try_with(|own| own.0).ok().flatten()?;
        self.bias.enter(&READERS[own], self.key())
    }

    #[inline(never)]
    fn read_slowly(&self) -> Held<'_, T> {
        let guard = self.lock.read();
        let reads = self.reads.load(Ordering::Relaxed) + 1;
        let used = USED.load(Ordering::Relaxed).max(1) as u32;
        if reads < READS_PER_LINE * used {
            // Readers who count at the same time may count as one.
            self.reads.store(reads, Ordering::Relaxed);
        } else {
            self.bias.begin();
        }
        Held::Locked { _guard: guard }
    }

    /// Waits for it, for writing.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let guard = self.lock.write();
        if self.was_read() {
            for slot in self.end_bias() {
                let mut rounds = 0;
                while slot.load(Ordering::SeqCst) == self.key() {
                    rounds = pause(rounds);
                }
            }
        }
        guard
    }

    /// Takes it for writing, if nobody has it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let guard = self.lock.try_write()?;
        if self.was_read() && self.end_bias().next().is_some() {
            // The next writer has to look for who is noted, too.
            self.reads.store(1, Ordering::Relaxed);
            self.bias.begin();
            return None;
        }
        Some(guard)
    }

    /// Whether readers were counted since the last writer. The caller is the next one.
    #[inline]
    fn was_read(&self) -> bool {
        // With the bias there is a count: it came when the count was full.
        self.reads.load(Ordering::Relaxed) != 0
    }

    /// For who has the underlying lock for writing: no reader notes itself from now on. Where somebody still does.
    #[cold]
    fn end_bias(&self) -> impl Iterator<Item = &'static AtomicUsize> {
        self.reads.store(0, Ordering::Relaxed);
        let was_on = self.bias.is_on();
        if was_on {
            self.bias.end();
        }
        let used = if was_on {
            USED.load(Ordering::SeqCst)
        } else {
            0
        };
        let key = self.key();
        READERS[..used].iter().flat_map(move |line| line.names(key))
    }
}

/// Waits a moment: on the processor at first, then by letting others run, who may be those that are waited for.
fn pause(rounds: u32) -> u32 {
    if rounds < 200 {
        spin_loop();
    } else {
        thread::yield_now();
    }
    rounds.saturating_add(1)
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value is written by who has `lock` for writing and has waited for all who are noted. This guard has
        // `lock` for reading, or is noted, until it is dropped; the reference lives no longer than it does.
        unsafe { &*self.lock.lock.data_ptr() }
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Held::Noted(slot) = self.held {
            leave(slot);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for ReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for BiasedLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}
