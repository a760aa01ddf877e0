//! Which records are under way: reserved, but not yet persistent, or not yet applied.
//!
//! Each thread that appends has a lane: two words on cache lines of its own, which others only read. So a thread
//! that works alone shares nothing, and of two threads each fetches one line of the other.
//!
//! A lane is taken, with a lower bound of the number to come, *before* the number is reserved by an atomic addition.
//! Whoever has reserved a later number therefore sees the lane, and a bound that is low enough.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// No record under way.
const IDLE: u64 = u64::MAX;
/// Most threads that append at the same time; more wait for a lane.
const LANES: usize = 256;

/// A word that threads fight for, on cache lines of its own (two: processors fetch them in pairs).
#[repr(align(128))]
pub struct Contended(pub AtomicU64);

impl Deref for Contended {
    type Target = AtomicU64;

    #[inline]
    fn deref(&self) -> &AtomicU64 {
        &self.0
    }
}

/// One appending thread.
#[repr(align(128))]
struct Lane {
    /// Number of its record, or a lower bound, until that is persistent.
    unpersisted: AtomicU64,
    /// Number of its record, or a lower bound, until that is applied. Idle: the lane is free.
    unapplied: AtomicU64,
    /// A number that is over: the next one is not below it.
    bound: AtomicU64,
}

/// A lane that was taken for a record to come.
#[derive(Clone, Copy, Debug)]
pub struct Entered {
    lane: usize,
    bound: u64,
}

/// A reserved place in the order.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Number of the record: its position.
    pub number: u64,
    /// Where the next record starts.
    pub end: u64,
    lane: usize,
}

/// All records under way.
pub struct InFlight {
    next: Contended,
    lanes: Box<[Lane]>,
    /// Lanes from here on were never used.
    used: AtomicUsize,
}

static THREADS: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static PREFERRED: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed) % LANES);
}

impl InFlight {
    /// Nothing under way; the next record has this number.
    pub fn new(next: u64) -> InFlight {
        let lane = |_| Lane {
            unpersisted: AtomicU64::new(IDLE),
            unapplied: AtomicU64::new(IDLE),
            bound: AtomicU64::new(next),
        };
        InFlight {
            next: Contended(AtomicU64::new(next)),
            lanes: (0..LANES).map(lane).collect(),
            used: AtomicUsize::new(0),
        }
    }

    /// The number that the next record will have.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Takes a free lane: the thread's own, unless more threads append than there are lanes.
    #[inline]
    pub fn enter(&self) -> Entered {
        let mut lane = PREFERRED.get();
        loop {
            let Lane {
                unapplied, bound, ..
            } = &self.lanes[lane];
            let bound = bound.load(Ordering::Relaxed);
            let taken =
                unapplied.compare_exchange(IDLE, bound, Ordering::SeqCst, Ordering::Relaxed);
            if taken.is_ok() {
                if lane >= self.used.load(Ordering::Relaxed) {
                    self.used.fetch_max(lane + 1, Ordering::SeqCst);
                }
                return Entered { lane, bound };
            }
            lane = (lane + 1) % LANES;
        }
    }

    /// Takes the next place in the order. Never waits.
    #[inline]
    pub fn reserve(&self, entered: Entered, length: usize) -> Place {
        let lane = &self.lanes[entered.lane];
        lane.unpersisted.store(entered.bound, Ordering::SeqCst);
        let number = self.next.fetch_add(length as u64, Ordering::SeqCst);
        let end = number + length as u64;
        lane.unpersisted.store(number, Ordering::Release);
        lane.unapplied.store(number, Ordering::Release);
        lane.bound.store(end, Ordering::Relaxed);
        Place {
            number,
            end,
            lane: entered.lane,
        }
    }

    fn lanes(&self) -> &[Lane] {
        &self.lanes[..self.used.load(Ordering::SeqCst)]
    }

    /// Notes that the record is persistent, and waits until all before it are.
    #[inline]
    pub fn persisted(&self, place: Place) {
        self.lanes[place.lane]
            .unpersisted
            .store(IDLE, Ordering::Release);
        for lane in self.lanes() {
            let mut spins = 0;
            while lane.unpersisted.load(Ordering::Acquire) < place.number {
                spins = pause(spins);
            }
        }
    }

    /// Notes that the record is applied, which frees its lane.
    #[inline]
    pub fn applied(&self, place: Place) {
        self.lanes[place.lane]
            .unapplied
            .store(IDLE, Ordering::Release);
    }

    /// All records below this number are applied.
    pub fn applied_below(&self) -> u64 {
        // First the end, then the lanes: a record below the end had its lane before.
        let next = self.next.load(Ordering::SeqCst);
        let unapplied = self
            .lanes()
            .iter()
            .map(|lane| lane.unapplied.load(Ordering::SeqCst));
        unapplied.fold(next, u64::min)
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
