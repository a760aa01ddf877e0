//! [`BiasedLock`]: a reader-writer lock with readers that share no cache line.

mod bias;
mod counter;
mod owner;

use std::fmt;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::lock_api::{GuardNoSend, RawRwLock as _};
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use bias::{Bias, Line, leave};
pub use counter::BiasedCounter;
use counter::pause;
use owner::Owner;

use crate::barrier;

/// Threads with a separate line; further concurrent threads take the slow path.
const LINES: usize = 256;
/// Reads without a writer between them, for each line that was ever used, before readers publish themselves. The next
/// writer reads each of these lines once, so a read pays for a small part of that scan.
const READS_PER_LINE: u32 = 16;
/// Writes in a row by one thread before it owns the lock. Each saves at least 15 ns, and to end it takes microseconds.
const WRITES: u32 = 512;
/// After each end it takes twice as many, up to this power of two as many.
const ENDS_MAX: u32 = 7;
/// Back-off of a writer from a lock that another writer uses, before each attempt: in all about ten changes of names.
const RESTS: [Duration; 5] = {
    const SHORT: Duration = Duration::from_micros(1);
    const LONG: Duration = Duration::from_micros(3);
    [SHORT, LONG, LONG, LONG, LONG]
};
/// Number of polls after that, without a pause, before the writer may block.
const LOOKS: u32 = 300;

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
/// After many reads the lock is biased: a reader then publishes itself in its thread's line, and writes no line that
/// another thread writes. A writer takes the underlying lock, ends the bias, and waits for the published readers.
/// Without readers a writer reads one word more than with the underlying lock.
///
/// A writer waits for the readers present when it arrived and for those before it in the underlying lock, which later
/// readers use as well. As there, a thread that holds the lock must not request it again.
///
/// After many writes by one thread, without another thread between, that thread owns the lock: it then publishes that
/// it holds the lock in its line, by plain stores, and executes no locked instruction, which would wait for all its
/// stores, including those past the caches. Another thread takes the underlying lock and ends the ownership, by a
/// barrier in all threads, which costs microseconds.
#[repr(C, align(16))]
pub struct BiasedLock<T> {
    // Both beside the word of the underlying lock, which is written with them.
    bias: Bias<AtomicU32>,
    /// Reads since the last writer, about.
    reads: AtomicU32,
    owner: Owner<AtomicU32>,
    /// 1 while the owner has it.
    is_in: AtomicU32,
    /// Thread that last held the underlying lock for writing.
    writer: AtomicU32,
    /// Number of its writes without another thread between.
    writes: AtomicU32,
    /// Number of times that another thread ended an ownership.
    ends: AtomicU32,
    lock: RwLock<T>,
}

/// The value can be read, and is not changed.
pub struct ReadGuard<'a, T>(Held<'a, T>);

/// The value can be read and changed.
pub struct WriteGuard<'a, T>(Held<'a, T>);

/// That a thread has a lock. Two words, which are handed on in registers: as an enumeration of guards it is stored and loaded
/// again, and the load waits for the lock's own stores.
struct Held<'a, T> {
    lock: &'a BiasedLock<T>,
    /// Where the thread has noted it, as a reader or the owner; without, it has the underlying lock.
    slot: Option<&'static AtomicUsize>,
    /// The thread that took it.
    _stays: PhantomData<*const ()>,
}

impl<'a, T> Held<'a, T> {
    #[inline]
    fn noted(lock: &'a BiasedLock<T>, slot: &'static AtomicUsize) -> Held<'a, T> {
        Held {
            lock,
            slot: Some(slot),
            _stays: PhantomData,
        }
    }

    /// The guard's destructor releases the underlying lock.
    #[inline]
    fn locked(lock: &'a BiasedLock<T>) -> Held<'a, T> {
        Held {
            lock,
            slot: None,
            _stays: PhantomData,
        }
    }
}

impl<T> BiasedLock<T> {
    /// Creates a lock that is free.
    pub const fn new(value: T) -> BiasedLock<T> {
        BiasedLock {
            bias: Bias::new(),
            reads: AtomicU32::new(0),
            owner: Owner::new(),
            is_in: AtomicU32::new(0),
            writer: AtomicU32::new(0),
            writes: AtomicU32::new(0),
            ends: AtomicU32::new(0),
            lock: RwLock::new(value),
        }
    }

    /// Identifies the lock: no other held lock has the same key.
    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Waits for it, for reading.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let noted = self.note().or_else(|| self.enter());
        if noted.is_none() {
            self.read_slowly();
        }
        ReadGuard(match noted {
            Some(slot) => Held::noted(self, slot),
            None => Held::locked(self),
        })
    }

    #[inline]
    fn note(&self) -> Option<&'static AtomicUsize> {
        if !self.bias.is_on() {
            return None;
        }
        self.bias.enter(&READERS[own()?], self.key())
    }

    /// Takes the lock if the caller's thread owns it.
    #[inline]
    fn enter(&self) -> Option<&'static AtomicUsize> {
        let owner = self.owner.get();
        if owner == 0 {
            return None;
        }
        let own = own().filter(|own| number(*own) == owner)?;
        self.enter_as(own)
    }

    #[inline]
    fn enter_as(&self, own: usize) -> Option<&'static AtomicUsize> {
        let slot = self.owner.enter(number(own), &READERS[own], self.key())?;
        // A second request by the same thread waits for itself, as with the underlying lock.
        if self.is_in.load(Ordering::Relaxed) != 0 {
            leave(slot);
            return None;
        }
        self.is_in.store(1, Ordering::Relaxed);
        Some(slot)
    }

    /// Takes the underlying lock; [`ReadGuard`] releases it.
    #[inline(never)]
    fn read_slowly(&self) {
        let mut guard = self.lock.read();
        if self.owner.get() != 0 {
            drop(guard);
            let alone = self.lock.write();
            self.end_owner();
            guard = RwLockWriteGuard::downgrade(alone);
        }
        let reads = self.reads.load(Ordering::Relaxed) + 1;
        let used = USED.load(Ordering::Relaxed).max(1) as u32;
        if reads < READS_PER_LINE * used {
            // Readers that count at the same time may count as one.
            self.reads.store(reads, Ordering::Relaxed);
        } else {
            self.bias.begin();
        }
        mem::forget(guard);
    }

    /// Waits for it, for writing.
    #[inline]
    pub fn write(&self) -> WriteGuard<'_, T> {
        WriteGuard(match self.enter().or_else(|| self.write_slowly()) {
            Some(slot) => Held::noted(self, slot),
            None => Held::locked(self),
        })
    }

    /// Takes the underlying lock, which [`WriteGuard`] releases, or becomes the owner and holds the lock as such.
    #[inline]
    fn write_slowly(&self) -> Option<&'static AtomicUsize> {
        let guard = match self.lock.try_write() {
            Some(guard) => guard,
            None => self.write_behind(),
        };
        self.end_owner();
        let was_read = self.was_read();
        if was_read {
            for slot in self.end_bias() {
                let mut rounds = 0;
                while slot.load(Ordering::SeqCst) == self.key() {
                    rounds = pause(rounds);
                }
            }
        }
        if self.count_write(was_read)
            && let Some(slot) = self.begin_owner()
        {
            // The next holder of the underlying lock finds the owner published.
            drop(guard);
            return Some(slot);
        }
        mem::forget(guard);
        None
    }

    /// Waits for the underlying lock, which is held.
    #[cold]
    fn write_behind(&self) -> RwLockWriteGuard<'_, T> {
        let taken = match self.lock.is_locked_exclusive() {
            true => self.let_write(rest_for).or_else(|| self.look_often()),
            // Readers may follow one another without end: queueing puts the writer between them.
            false => None,
        };
        taken.unwrap_or_else(|| self.lock.write())
    }

    /// Lets another thread that writes again and again do so for a while, and takes the lock if it pauses. If each took it
    /// from the other after one write, all lines that both write would change processors for each.
    fn let_write(&self, rest_for: impl Fn(Duration)) -> Option<RwLockWriteGuard<'_, T>> {
        let written = || [&self.writer, &self.writes].map(|word| word.load(Ordering::Relaxed));
        let mut before = written();
        RESTS.into_iter().find_map(|rest| {
            rest_for(rest);
            let now = written();
            let pauses = now == mem::replace(&mut before, now);
            pauses.then(|| self.lock.try_write()).flatten()
        })
    }

    /// Takes the lock if it becomes free soon: blocking and being woken up takes longer.
    fn look_often(&self) -> Option<RwLockWriteGuard<'_, T>> {
        (0..LOOKS).find_map(|_| {
            spin_loop();
            let is_free = !self.lock.is_locked();
            is_free.then(|| self.lock.try_write()).flatten()
        })
    }

    /// Takes the lock for writing if it is free.
    pub fn try_write(&self) -> Option<WriteGuard<'_, T>> {
        if let Some(slot) = self.enter() {
            return Some(WriteGuard(Held::noted(self, slot)));
        }
        let guard = self.lock.try_write()?;
        let owner = self.owner.get();
        if owner != 0 {
            self.owner.end();
            if self.noted_by(owner).next().is_some() {
                self.owner.begin(owner);
                return None;
            }
            self.note_end();
        }
        if self.was_read() && self.end_bias().next().is_some() {
            // The next writer has to scan for published readers, too.
            self.reads.store(1, Ordering::Relaxed);
            self.bias.begin();
            return None;
        }
        mem::forget(guard);
        Some(WriteGuard(Held::locked(self)))
    }

    /// Returns whether the thread that holds the underlying lock for writing should become the owner.
    #[inline]
    fn count_write(&self, was_read: bool) -> bool {
        let own = own().map_or(0, number);
        if was_read || own == 0 || self.writer.load(Ordering::Relaxed) != own {
            self.writer.store(own, Ordering::Relaxed);
            self.writes.store(0, Ordering::Relaxed);
            return false;
        }
        let writes = self.writes.load(Ordering::Relaxed).saturating_add(1);
        self.writes.store(writes, Ordering::Relaxed);
        writes >= WRITES << self.ends.load(Ordering::Relaxed).min(ENDS_MAX)
    }

    /// Makes the thread that holds the underlying lock for writing the owner, which then holds the lock. No reader is
    /// published.
    #[cold]
    fn begin_owner(&self) -> Option<&'static AtomicUsize> {
        let own = own().filter(|_| barrier::are_quick())?;
        self.owner.begin(number(own));
        let slot = self.enter_as(own);
        if slot.is_none() {
            // The thread has published its maximum of locks. No other thread has seen that it owns this one.
            self.owner.begin(0);
        }
        slot
    }

    /// Ends the ownership: the caller holds the underlying lock for writing, and the former owner does not hold the
    /// lock on return.
    #[inline]
    fn end_owner(&self) {
        let owner = self.owner.get();
        if owner != 0 {
            self.wait_for_owner(owner);
        }
    }

    #[cold]
    fn wait_for_owner(&self, owner: u32) {
        self.owner.end();
        let (mut had_it, mut rounds) = (false, 0);
        for slot in self.noted_by(owner) {
            had_it = true;
            while slot.load(Ordering::SeqCst) == self.key() {
                rounds = pause(rounds);
            }
        }
        if had_it {
            // The owner's stores past the caches are not ordered with its release.
            barrier::everywhere();
        }
        self.note_end();
    }

    /// Where the owner of this number has noted that it has the lock.
    fn noted_by(&self, owner: u32) -> impl Iterator<Item = &'static AtomicUsize> {
        READERS[owner as usize - 1].names(self.key())
    }

    fn note_end(&self) {
        self.ends.fetch_add(1, Ordering::Relaxed);
        self.writes.store(0, Ordering::Relaxed);
    }

    /// Whether readers were counted since the last writer. The caller is the next one.
    #[inline]
    fn was_read(&self) -> bool {
        // With the bias there is a count: it came when the count was full.
        self.reads.load(Ordering::Relaxed) != 0
    }

    /// Ends the bias: the caller holds the underlying lock for writing. Returns the entries of readers that are still
    /// published.
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

/// Yields the processor repeatedly for this time: other threads may hold the lock and need it.
fn rest_for(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        thread::yield_now();
    }
}

/// The line of this thread; one that is ending has lost it.
#[inline]
fn own() -> Option<usize> {
    OWN.try_with(|own| own.0).ok().flatten()
}

/// The number of a thread with this line, as an owner; never 0.
#[inline]
fn number(own: usize) -> u32 {
    own as u32 + 1
}

impl<T> Held<'_, T> {
    /// Clears the published entry, if there is one; returns whether there was.
    #[inline]
    fn leave(&self) -> bool {
        if let Some(slot) = self.slot {
            // While there is an owner, no other thread is published.
            if self.lock.is_in.load(Ordering::Relaxed) != 0 {
                self.lock.is_in.store(0, Ordering::Relaxed);
            }
            leave(slot);
        }
        self.slot.is_some()
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value is written by a thread that holds `lock` for writing and has waited for all published
        // threads, or owns it and is published. This guard holds `lock` for reading, or is published, until it is
        // dropped; the reference lives no longer than it does. An owner is published once at a time, and while there is
        // one no reader is.
        unsafe { &*self.0.lock.lock.data_ptr() }
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.0.leave() {
            // SAFETY: without a note `read_slowly` left the underlying lock to this guard, which has not left its thread.
            unsafe { self.0.lock.lock.raw().unlock_shared(GuardNoSend::new()) }
        }
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds `lock` for writing and has waited for all published threads, or it is the owner's,
        // which is published once at a time. Until it is dropped no other thread reads or writes; the reference lives
        // no longer than it does.
        unsafe { &*self.0.lock.lock.data_ptr() }
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and this is the only reference that the guard has given out.
        unsafe { &mut *self.0.lock.lock.data_ptr() }
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.0.leave() {
            // SAFETY: without a note `write_slowly` or `try_write` left the underlying lock to this guard, which has not left
            // its thread.
            unsafe { self.0.lock.lock.raw().unlock_exclusive(GuardNoSend::new()) }
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for WriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
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

#[cfg(test)]
mod tests;
