//! Records in flight: reserved, but not yet persistent, or not yet applied.
//!
//! Each thread that appends has a lane, its own as long as it lives: a few words on cache lines which others only read,
//! once when they get their place, and after their fence only if a record before theirs was not persistent then. So a
//! thread that works alone shares nothing, and of two each waits for one line, that of the word which gives out places.
//!
//! A lane announces a lower bound of its number *before* the number is reserved by an addition. A thread that reserves
//! a later number therefore sees the bound, or a later value: the addition releases the bound, and the later addition
//! acquires it.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// No record in flight.
const IDLE: u64 = u64::MAX;
/// Lanes that belong to a thread each, as long as it lives.
const OWNED: usize = 256;
/// Lanes for all other threads; of those that append at the same time, more than these wait.
const SHARED: usize = 64;

/// A contended word, on separate cache lines (two: processors fetch them in pairs).
#[repr(align(128))]
pub struct Contended(pub AtomicU64);

impl Deref for Contended {
    type Target = AtomicU64;

    #[inline]
    fn deref(&self) -> &AtomicU64 {
        &self.0
    }
}

/// State of a thread that appends records.
#[repr(align(128))]
struct Lane {
    /// Number of its record, or a lower bound, until that is persistent.
    unpersisted: AtomicU64,
    /// Number of its record, or a lower bound, until that is applied. Idle: the lane is free.
    unapplied: AtomicU64,
    /// A number that has passed: the next one is not below it.
    bound: AtomicU64,
    /// Number of its last record that is persistent. Stores past the caches for the records before that one are too.
    fenced: AtomicU64,
    /// The thread that had the lane last; 0: none had it.
    thread: AtomicUsize,
}

/// A lane that was taken for a record to come.
#[derive(Clone, Copy, Debug)]
pub struct Entered {
    lane: usize,
    bound: u64,
    /// Another thread had the lane before: its stores past the caches must be made persistent first.
    pub took_over: bool,
}

/// A reserved place in the order.
#[derive(Clone, Copy, Debug)]
pub struct Reservation {
    /// Number of the record: its position.
    pub number: u64,
    /// Where the next record starts.
    pub end: u64,
    lane: usize,
    /// Records before this one may not have been persistent when it got its place.
    follows: bool,
}

/// All records in flight.
pub struct InFlight {
    /// The number of the next record.
    next: Contended,
    lanes: Box<[Lane]>,
    /// Lanes from here on were never used.
    used: AtomicUsize,
    /// The last result of [`InFlight::persisted_below`].
    persisted: AtomicU64,
}

/// State of a thread for all rings.
struct Thread {
    /// No other thread has or had this number.
    number: usize,
    /// Its own lane, if there was one left.
    lane: Option<usize>,
}

static THREADS: AtomicUsize = AtomicUsize::new(0);
/// Lanes that belong to no living thread.
static UNOWNED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// Lanes that ever belonged to a thread.
static OWNED_EVER: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD: Thread = Thread::new();
}

impl Thread {
    /// A new number, never 0.
    fn number() -> usize {
        THREADS.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn new() -> Thread {
        let fresh = || {
            let lane = OWNED_EVER.fetch_add(1, Ordering::Relaxed);
            (lane < OWNED).then_some(lane)
        };
        Thread {
            number: Thread::number(),
            lane: UNOWNED.lock().pop().or_else(fresh),
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        UNOWNED.lock().extend(self.lane);
    }
}

impl InFlight {
    /// No record in flight; the next record has this number.
    pub fn new(next: u64) -> InFlight {
        let lane = |_| Lane {
            unpersisted: AtomicU64::new(IDLE),
            unapplied: AtomicU64::new(IDLE),
            bound: AtomicU64::new(next),
            fenced: AtomicU64::new(next),
            thread: AtomicUsize::new(0),
        };
        InFlight {
            next: Contended(AtomicU64::new(next)),
            lanes: (0..OWNED + SHARED).map(lane).collect(),
            used: AtomicUsize::new(0),
            persisted: AtomicU64::new(next),
        }
    }

    /// The number that the next record will have.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Takes a lane: the thread's own, if it has one.
    #[inline]
    pub fn enter(&self) -> Entered {
        let known = THREAD.try_with(|thread| (thread.number, thread.lane));
        // A thread that is ending has lost its lane.
        let (thread, own) = known.unwrap_or_else(|_| (Thread::number(), None));
        let is_idle = |lane: &usize| self.lanes[*lane].unapplied.load(Ordering::Relaxed) == IDLE;
        let Some(index) = own.filter(is_idle) else {
            return self.enter_shared(thread);
        };
        let lane = &self.lanes[index];
        let bound = lane.bound.load(Ordering::Relaxed);
        lane.unapplied.store(bound, Ordering::Relaxed);
        self.entered(index, bound, thread)
    }

    #[cold]
    fn enter_shared(&self, thread: usize) -> Entered {
        let mut index = OWNED + thread % SHARED;
        loop {
            let lane = &self.lanes[index];
            let bound = lane.bound.load(Ordering::Relaxed);
            let taken =
                lane.unapplied
                    .compare_exchange(IDLE, bound, Ordering::SeqCst, Ordering::Relaxed);
            if taken.is_ok() {
                return self.entered(index, bound, thread);
            }
            index = OWNED + (index + 1 - OWNED) % SHARED;
        }
    }

    #[inline]
    fn entered(&self, index: usize, bound: u64, thread: usize) -> Entered {
        if index >= self.used.load(Ordering::Relaxed) {
            self.used.fetch_max(index + 1, Ordering::SeqCst);
        }
        let lane = &self.lanes[index];
        let before = lane.thread.load(Ordering::Relaxed);
        if before != thread {
            lane.thread.store(thread, Ordering::Relaxed);
        }
        Entered {
            lane: index,
            bound,
            took_over: ![0, thread].contains(&before),
        }
    }

    /// The lanes that were ever used.
    #[inline]
    fn lanes(&self) -> &[Lane] {
        &self.lanes[..self.used.load(Ordering::SeqCst)]
    }

    /// Takes the next place in the order. Never waits.
    #[inline]
    pub fn reserve(&self, entered: Entered, length: usize) -> Reservation {
        let lane = &self.lanes[entered.lane];
        lane.unpersisted.store(entered.bound, Ordering::Relaxed);
        let number = self.next.fetch_add(length as u64, Ordering::AcqRel);
        let end = number + length as u64;
        lane.unpersisted.store(number, Ordering::Release);
        lane.unapplied.store(number, Ordering::Release);
        lane.bound.store(end, Ordering::Relaxed);
        // No thread gets a lower number any more, so a lane that is not behind now never will be, and mostly none is:
        // then nothing needs to be read after the fence.
        let is_behind = |other: &Lane| other.unpersisted.load(Ordering::Acquire) < number;
        let follows = self.lanes().iter().any(is_behind);
        Reservation {
            number,
            end,
            lane: entered.lane,
            follows,
        }
    }

    /// Records that the record is persistent, as are, by the same fence, this thread's earlier stores, and waits until
    /// all records before it are too.
    #[inline]
    pub fn persisted(&self, place: Reservation) {
        let own = &self.lanes[place.lane];
        own.unpersisted.store(IDLE, Ordering::Release);
        own.fenced.store(place.number, Ordering::Release);
        if !place.follows {
            return;
        }
        for lane in self.lanes() {
            let mut spins = 0;
            while lane.unpersisted.load(Ordering::Acquire) < place.number {
                spins = pause(spins);
            }
        }
    }

    /// Notes that the record is applied, which frees its lane.
    #[inline]
    pub fn applied(&self, place: Reservation) {
        self.lanes[place.lane]
            .unapplied
            .store(IDLE, Ordering::Release);
    }

    /// All records below this number are applied.
    pub fn applied_below(&self) -> u64 {
        // First the end, then the lanes: a record below the end had its lane before.
        let next = self.next();
        let unapplied = self
            .lanes()
            .iter()
            .map(|lane| lane.unapplied.load(Ordering::Acquire));
        unapplied.fold(next, u64::min)
    }

    /// All records below this number are persistent. It never falls.
    pub fn persisted_below(&self) -> u64 {
        // First the end, then the lanes, as above.
        let next = self.next();
        let unpersisted = self
            .lanes()
            .iter()
            .map(|lane| lane.unpersisted.load(Ordering::Acquire));
        // A lane's bound may lie below the bound known before.
        let below = unpersisted.fold(next, u64::min);
        self.persisted.fetch_max(below, Ordering::AcqRel).max(below)
    }

    /// Whether a thread has made no fence since it applied a record from `start` to `end`. All of them are applied.
    pub fn is_unfenced(&self, start: u64, end: u64) -> bool {
        // A lane's last record may be the one at which its fence was, or one behind it.
        let last_is_within = |lane: &Lane| {
            let fenced = lane.fenced.load(Ordering::Acquire);
            (start..end).contains(&fenced)
        };
        self.lanes().iter().any(last_is_within)
    }
}

/// Waits a moment: on the processor at first, then by letting others run.
#[inline]
pub fn pause(spins: u32) -> u32 {
    if spins < 200 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
    spins.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_waits_for_those_before_it() {
        let in_flight = InFlight::new(640);
        let first = in_flight.reserve(in_flight.enter(), 64);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let place = in_flight.reserve(in_flight.enter(), 128);
                in_flight.persisted(place);
                let first_was_persistent = in_flight.lanes[first.lane]
                    .unpersisted
                    .load(Ordering::Acquire)
                    == IDLE;
                in_flight.applied(place);
                first_was_persistent
            });
            while in_flight.next() < 640 + 64 + 128 {
                std::thread::yield_now();
            }
            assert_eq!(in_flight.applied_below(), 640);
            in_flight.persisted(first);
            assert!(second.join().expect("the thread ends"));
        });
        assert_eq!(in_flight.applied_below(), 640);
        in_flight.applied(first);
        assert_eq!(in_flight.applied_below(), 640 + 64 + 128);
    }
}
