//! Virtual time, the queue of what happens when, and clocks that are not quite right.

use std::collections::BTreeMap;

/// An instant of virtual time, in nanoseconds from the start of the run.
pub type Time = u64;

/// One microsecond, in nanoseconds.
pub const MICROSECOND: Time = 1_000;
/// One millisecond, in nanoseconds.
pub const MILLISECOND: Time = 1_000_000;
/// One second, in nanoseconds.
pub const SECOND: Time = 1_000_000_000;

/// A time in milliseconds, to be read.
pub fn milliseconds(time: Time) -> String {
    format!("{}.{:06} ms", time / MILLISECOND, time % MILLISECOND)
}

/// Events by time; those of one instant in the order in which they were added.
pub struct Queue<E> {
    events: BTreeMap<(Time, u64), E>,
    added: u64,
    now: Time,
}

impl<E> Queue<E> {
    /// A queue without events, at time 0.
    pub fn new() -> Queue<E> {
        Queue {
            events: BTreeMap::new(),
            added: 0,
            now: 0,
        }
    }

    /// The time of the event that was taken last.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Adds an event. One that is late happens now, as time never goes back.
    pub fn add(&mut self, at: Time, event: E) {
        self.events.insert((at.max(self.now), self.added), event);
        self.added += 1;
    }

    /// The time of the next event.
    pub fn next_time(&self) -> Option<Time> {
        self.events.keys().next().map(|(at, _)| *at)
    }

    /// Takes the next event; it is that time now.
    pub fn take(&mut self) -> Option<(Time, E)> {
        let ((at, _), event) = self.events.pop_first()?;
        self.now = at;
        Some((at, event))
    }

    /// Number of waiting events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns whether no event is waiting.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

impl<E> Default for Queue<E> {
    fn default() -> Queue<E> {
        Queue::new()
    }
}

const MILLION: u64 = 1_000_000;

/// A node's own clock: it started at another time than the others, and runs a bit too fast or too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// When the drift last changed, in virtual and in local time: no change makes the clock jump.
    since: Time,
    local_since: Time,
    /// Local nanoseconds in a million virtual ones.
    rate: u64,
}

impl Clock {
    /// A clock that shows `offset_ns` at the start and gains `drift_ppm` nanoseconds in a million.
    pub fn new(offset_ns: u64, drift_ppm: i32) -> Clock {
        Clock {
            since: 0,
            local_since: offset_ns,
            rate: rate(drift_ppm),
        }
    }

    /// Gives the clock another drift from now on.
    pub fn set_drift(&mut self, now: Time, drift_ppm: i32) {
        *self = Clock {
            since: now,
            local_since: self.local(now),
            rate: rate(drift_ppm),
        };
    }

    /// Time of the clock at a virtual instant that is not before the last change of its drift.
    pub fn local(&self, at: Time) -> u64 {
        let passed = u128::from(at.saturating_sub(self.since)) * u128::from(self.rate);
        saturated(u128::from(self.local_since) + passed / u128::from(MILLION))
    }

    /// The first virtual instant, from the last change of its drift on, at which the clock shows at least `local`.
    pub fn instant(&self, local: u64) -> Time {
        let left = u128::from(local.saturating_sub(self.local_since)) * u128::from(MILLION);
        saturated(u128::from(self.since) + left.div_ceil(u128::from(self.rate)))
    }
}

/// A pause of a process that goes on with the time that it has read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldTime {
    /// When the pause began.
    pub from: Time,
    /// When it ended.
    pub until: Time,
}

impl OldTime {
    /// The time that the process assumes, in what it does at once when it continues.
    pub fn shown(old: Option<OldTime>, now: Time) -> Time {
        old.filter(|it| it.until == now).map_or(now, |it| it.from)
    }
}

fn rate(drift_ppm: i32) -> u64 {
    let rate = MILLION as i64 + i64::from(drift_ppm);
    assert!(rate > 0, "no clock runs backwards");
    rate as u64
}

fn saturated(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use pmem::Random;

    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_order() {
        let mut queue = Queue::new();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b')] {
            queue.add(at, event);
        }
        assert_eq!((queue.len(), queue.next_time()), (4, Some(1)));
        let order: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
        assert_eq!(order, [(1, 'a'), (3, 'b'), (5, 'c'), (5, 'd')]);
        assert_eq!((queue.is_empty(), queue.now()), (true, 5));
    }

    #[test]
    fn a_late_event_happens_now() {
        let mut queue = Queue::new();
        queue.add(10, 'a');
        queue.take();
        queue.add(10, 'b');
        queue.add(3, 'c');
        assert_eq!(queue.take(), Some((10, 'b')));
        assert_eq!(queue.take(), Some((10, 'c')));
        assert_eq!(queue.take(), None);
    }

    #[test]
    fn a_deadline_is_the_first_instant_that_shows_it() {
        let mut random = Random::new(7);
        for _ in 0..2000 {
            let drift = random.below(2000) as i32 - 1000;
            let mut clock = Clock::new(random.between(0, SECOND), drift);
            if random.one_in(2) {
                let now = random.between(0, 100 * SECOND);
                clock.set_drift(now, random.below(400_000) as i32 - 200_000);
            }
            let first = clock.local(0).max(clock.local_since);
            let local = first + random.between(1, 100 * SECOND);
            let at = clock.instant(local);
            assert!(clock.local(at) >= local);
            assert!(clock.local(at - 1) < local);
        }
    }

    #[test]
    fn a_change_of_drift_does_not_make_the_clock_jump() {
        let mut clock = Clock::new(1000, 500);
        assert_eq!(clock.local(2 * MILLION), 1000 + 2 * MILLION + 1000);
        let shown = clock.local(3 * MILLION);
        clock.set_drift(3 * MILLION, -100);
        assert_eq!(clock.local(3 * MILLION), shown);
        assert_eq!(clock.local(4 * MILLION), shown + MILLION - 100);
        assert_eq!(clock.instant(shown), 3 * MILLION);
        assert_eq!(clock.instant(0), 3 * MILLION);
    }

    #[test]
    fn a_deadline_that_never_comes_is_the_end_of_time() {
        assert_eq!(Clock::new(0, -1000).instant(u64::MAX), Time::MAX);
        assert_eq!(Clock::new(5, 0).local(Time::MAX), u64::MAX);
    }
}
