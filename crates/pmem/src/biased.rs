//! [`BiasedLock`]: a reader-writer lock whose readers share no line.

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

/// Threads with a line of their own; those that come while so many live read the slow way.
const LINES: usize = 256;
/// Reads without a writer between them, for each line that was ever used, before readers note themselves. The next
/// writer looks at each of these lines once, so that a read pays for a small part of such a look.
const READS_PER_LINE: u32 = 16;
/// Writes in a row by one thread before it owns the lock. Each saves at least 15 ns, and to end it takes microseconds.
const WRITES: u32 = 512;
/// After each end it takes twice as many, up to this power of two as many.
const ENDS_MAX: u32 = 7;
/// How long a writer stays away from a lock that another one uses, each time before it looks: in all for about ten changes
/// of names.
const RESTS: [Duration; 5] = {
    const SHORT: Duration = Duration::from_micros(1);
    const LONG: Duration = Duration::from_micros(3);
    [SHORT, LONG, LONG, LONG, LONG]
};
/// How often it looks then, at once again, before it may be put to sleep.
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
/// After a good many reads it is biased: a reader then notes in a line of its thread that it reads, and writes nothing
/// that another thread does. A writer takes the underlying lock, ends the bias, and waits for those who are noted.
/// Without readers a writer looks at one word more than with the underlying lock.
///
/// A writer waits for those who read when it came and for those before it in the underlying lock, which later readers
/// go to as well. As there, a thread that has the lock must not ask for it again.
///
/// After a good many writes by one thread, which nobody came between, that thread owns it: it then notes in its line that it
/// has the lock, by plain stores, and takes no locked instruction, which would wait for all that it has stored, around the
/// caches too. Who else comes takes the underlying lock and ends that, by a barrier in all threads, which costs
/// microseconds.
#[repr(C, align(16))]
pub struct BiasedLock<T> {
    // Both beside the word of the underlying lock, which is written with them.
    bias: Bias<AtomicU32>,
    /// Reads since the last writer, about.
    reads: AtomicU32,
    owner: Owner<AtomicU32>,
    /// 1 while the owner has it.
    is_in: AtomicU32,
    /// Who had the underlying lock for writing last.
    writer: AtomicU32,
    /// How often, nobody having come between.
    writes: AtomicU32,
    /// How often there was an owner and somebody else came.
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

    /// Whoever drops it gives the underlying lock back.
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
    /// A lock that nobody has.
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

    /// No other lock that somebody has can have the same.
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

    /// For the owner, which has it then.
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
        // Who asks for it a second time waits for itself, as with the underlying lock.
        if self.is_in.load(Ordering::Relaxed) != 0 {
            leave(slot);
            return None;
        }
        self.is_in.store(1, Ordering::Relaxed);
        Some(slot)
    }

    /// Takes the underlying lock, which is given back by [`ReadGuard`].
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
            // Readers who count at the same time may count as one.
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

    /// Takes the underlying lock, which is given back by [`WriteGuard`], or becomes the owner, as whom it has the lock.
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
            // Who has the underlying lock now finds the owner noted.
            drop(guard);
            return Some(slot);
        }
        mem::forget(guard);
        None
    }

    /// Waits for the underlying lock, which somebody has.
    #[cold]
    fn write_behind(&self) -> RwLockWriteGuard<'_, T> {
        let taken = match self.lock.is_locked_exclusive() {
            true => self.let_write(rest_for).or_else(|| self.look_often()),
            // Readers may follow one another without end: who queues comes between them.
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

    /// Takes the lock if it is free soon: to be put to sleep and woken takes longer.
    fn look_often(&self) -> Option<RwLockWriteGuard<'_, T>> {
        (0..LOOKS).find_map(|_| {
            spin_loop();
            let is_free = !self.lock.is_locked();
            is_free.then(|| self.lock.try_write()).flatten()
        })
    }

    /// Takes it for writing, if nobody has it.
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
            // The next writer has to look for who is noted, too.
            self.reads.store(1, Ordering::Relaxed);
            self.bias.begin();
            return None;
        }
        mem::forget(guard);
        Some(WriteGuard(Held::locked(self)))
    }

    /// For who has the underlying lock for writing: whether it is time for its thread to own the lock.
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

    /// For who has the underlying lock for writing, nobody being noted: makes its thread the owner, which has the lock.
    #[cold]
    fn begin_owner(&self) -> Option<&'static AtomicUsize> {
        let own = own().filter(|_| barrier::are_quick())?;
        self.owner.begin(number(own));
        let slot = self.enter_as(own);
        if slot.is_none() {
            // It has as many locks as it can note. Nobody has seen that it owns this one.
            self.owner.begin(0);
        }
        slot
    }

    /// For who has the underlying lock for writing: nobody owns it from now on, and who did does not have it.
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
            // What the owner has stored around the caches is not ordered with its leaving.
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

/// Lets time pass, and others run, who may have the lock and want the processor.
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
    /// Ends what was noted, if anything was.
    #[inline]
    fn leave(&self) -> bool {
        if let Some(slot) = self.slot {
            // While there is an owner, nobody else is noted.
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
        // SAFETY: the value is written by who has `lock` for writing and has waited for all who are noted, or owns it and is
        // noted. This guard has `lock` for reading, or is noted, until it is dropped; the reference lives no longer than it
        // does. An owner is noted once at a time, and while there is one no reader is.
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
        // SAFETY: this guard has `lock` for writing and has waited for all who are noted, or it is the owner's, which is
        // noted once at a time. Until it is dropped nobody else reads or writes; the reference lives no longer than it does.
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
