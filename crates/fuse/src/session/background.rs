//! Keeps a client on its processor.
//!
//! When a thread answers, the client wakes up. As long as that thread runs, the scheduler considers its processor busy,
//! and wakes the client on another, idle one, which costs more than the request. A processor where only threads of
//! `SCHED_IDLE` run counts as free: then the client continues there at once. But such a thread hardly runs beside any
//! program that computes. So the queue threads are in the background only under many requests, and a guard checks
//! whether one of them is kept from running; then none is in the background, for a while.
//!
//! A thread in the background does not block while its client runs: it yields, and is ready when the client waits for
//! the next answer. So it may be runnable for long without a request, while the client computes. The guard
//! distinguishes the two cases by taking that thread out of the background alone: it blocks, or it answers.
//!
//! A request that waits for a cluster wakes threads of other processes, and those this one; in the background that takes
//! longer. So a thread of a cluster's mount is in the background only while its requests are short.

use std::cell::Cell;
use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use fuse_device::{Scheduling, set_background};
use rustix::process::Pid;
use rustix::thread::gettid;

/// Interval of the guard's checks: a thread in the background that is kept from running waits twice this.
const TICK: Duration = Duration::from_millis(4);
/// So many requests in that time are many: until then each costs several times as much, and a program that unpacks an
/// archive may be done before long.
const BURST: u64 = 20;
/// Time after which fewer requests count as many.
const LOOK: Duration = Duration::from_millis(100);
/// So many in that time are many.
const MANY: u64 = 100;
/// Checks without the background after a thread was kept from running; doubled each time, up to the second.
const PAUSE: [u32; 2] = [10, 640];
/// Checks in the background after which the pause is reset.
const CALM: u32 = 100;
/// A request that takes so long may have waited for a cluster: answers without a wait take 3 to 6 µs, apart from long reads.
const LONG: Duration = Duration::from_micros(8);
/// So many shorter ones in a row show that requests wait for nothing now.
const SHORT_RUN: u32 = 8;

/// The threads of a session's queues.
pub(super) struct Background {
    seats: Box<[Seat]>,
    guard: OnceLock<Thread>,
    /// The guard waits for a request.
    is_resting: AtomicBool,
    /// The threads are in the background.
    is_on: AtomicBool,
}

/// State of a thread. Separate from the others': each writes its own with every request.
#[derive(Default)]
#[repr(align(64))]
struct Seat {
    /// Its number to the kernel; 0 before it runs, and when it has ended.
    thread: AtomicI32,
    answered: AtomicU64,
    /// Number of its answered requests when it last blocked.
    blocked_at: AtomicU64,
    /// Its requests wait: it stays out of the background.
    waits: AtomicBool,
}

/// A thread's own side of it.
pub(super) struct Answering<'a> {
    background: &'a Background,
    seat: &'a Seat,
    /// Short requests since the last long one.
    short_run: Cell<u32>,
}

impl Background {
    /// For so many threads.
    pub(super) fn new(threads: usize) -> Background {
        Background {
            seats: (0..threads).map(|_| Seat::default()).collect(),
            guard: OnceLock::new(),
            is_resting: AtomicBool::new(false),
            is_on: AtomicBool::new(false),
        }
    }

    /// This thread answers from now on. `may_wait` says that requests may wait for a cluster.
    pub(super) fn enter(&self, seat: usize, may_wait: bool) -> Answering<'_> {
        let seat = &self.seats[seat];
        seat.waits.store(may_wait, Ordering::SeqCst);
        seat.thread.store(gettid().as_raw_pid(), Ordering::Release);
        Answering {
            background: self,
            seat,
            short_run: Cell::new(0),
        }
    }

    fn wake(&self) {
        if let Some(guard) = self.guard.get() {
            guard.unpark();
        }
    }

    fn answered(&self) -> u64 {
        let answered = |seat: &Seat| seat.answered.load(Ordering::Relaxed);
        self.seats.iter().map(answered).sum()
    }

    fn threads(&self) -> impl Iterator<Item = (&Seat, Pid)> {
        let running = |seat| Some((seat, Seat::pid(seat)?));
        self.seats.iter().filter_map(running)
    }

    fn set_all(&self, background: bool) {
        self.is_on.store(background, Ordering::SeqCst);
        for (seat, thread) in self.threads() {
            seat.set_background(thread, background);
        }
    }

    /// The guard's work, until all threads have ended. It rests while there are no requests.
    pub(super) fn watch(&self) {
        let own = gettid();
        let may_return = set_background(own, true).and_then(|()| set_background(own, false));
        if may_return.is_err() {
            // A thread would have to stay in the background.
            return;
        }
        let _ = self.guard.set(thread::current());
        let mut pause = PAUSE[0];
        while self.threads().next().is_some() {
            if !self.wait_for_many() {
                continue;
            }
            self.set_all(true);
            let (was_stuck, looks) = self.stay();
            self.set_all(false);
            if looks >= CALM {
                pause = PAUSE[0];
            }
            if was_stuck {
                thread::park_timeout(LOOK * pause);
                pause = (pause * 2).min(PAUSE[1]);
            }
        }
    }

    /// Waits for many requests; false if the threads are to be checked again.
    fn wait_for_many(&self) -> bool {
        let before = self.answered();
        let mut seen = before;
        for _ in 0..ticks() {
            thread::park_timeout(TICK);
            let answered = self.answered();
            if answered - seen >= BURST {
                return true;
            }
            seen = answered;
        }
        let answered = seen - before;
        if answered == 0 {
            self.is_resting.store(true, Ordering::SeqCst);
            // A thread that ended before that has not been seen to block.
            if self.threads().next().is_some() {
                thread::park();
            }
        }
        answered >= MANY
    }

    /// Guards the threads under many requests. Returns whether one was kept from running, and after how many checks.
    fn stay(&self) -> (bool, u32) {
        let mut was_stuck_before: Vec<Option<u64>> = vec![None; self.seats.len()];
        for look in 0.. {
            let before = self.answered();
            for _ in 0..ticks() {
                thread::park_timeout(TICK);
                for (number, seat) in self.seats.iter().enumerate() {
                    let stuck_at = self.stuck_at(seat);
                    if let Some(answered) = stuck_at
                        && was_stuck_before[number] == stuck_at
                        && self.is_kept_from_answering(seat, answered)
                    {
                        return (true, look);
                    }
                    was_stuck_before[number] = stuck_at;
                }
            }
            if self.answered() - before < MANY {
                return (false, look);
            }
        }
        unreachable!("looks do not end by themselves")
    }

    /// Whether a thread that has been runnable since it answered so many requests would answer one. If it does not, it
    /// has yielded.
    fn is_kept_from_answering(&self, seat: &Seat, answered: u64) -> bool {
        let blocked_at = || seat.blocked_at.load(Ordering::Relaxed);
        // Then another thread has woken it up.
        if blocked_at() == answered {
            return true;
        }
        let Some(thread) = seat.pid() else {
            return false;
        };
        if set_background(thread, false).is_err() {
            return true;
        }
        thread::park_timeout(TICK);
        let has_yielded = blocked_at() == answered;
        if has_yielded {
            seat.set_background(thread, true);
        }
        !has_yielded
    }

    /// The number of requests a thread has answered, if it is runnable.
    fn stuck_at(&self, seat: &Seat) -> Option<u64> {
        let thread = seat.pid()?;
        let path = format!("/proc/self/task/{}/stat", thread.as_raw_pid());
        let stat = fs::read(path).ok()?;
        wants_to_run(&stat).then(|| seat.answered.load(Ordering::Relaxed))
    }
}

impl Seat {
    /// The thread, while it runs.
    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.thread.load(Ordering::Acquire))
    }

    /// Lets the thread be in the background or not. It never is while its requests wait, also if they begin to at this
    /// moment.
    fn set_background(&self, thread: Pid, background: bool) {
        let waits = || self.waits.load(Ordering::SeqCst);
        // One that has just ended needs nothing.
        if !background || !waits() {
            let _ = set_background(thread, background);
        }
        if background && waits() {
            let _ = set_background(thread, false);
        }
    }
}

/// Ticks per observation window.
fn ticks() -> u32 {
    (LOOK.as_micros() / TICK.as_micros()) as u32
}

impl Answering<'_> {
    /// Notes that a request was answered.
    pub(super) fn answered(&self) {
        let answered = &self.seat.answered;
        answered.store(answered.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let resting = &self.background.is_resting;
        if resting.load(Ordering::Relaxed) && resting.swap(false, Ordering::SeqCst) {
            self.background.wake();
        }
    }

    /// Notes that a request was answered that may have waited for a cluster, and took so long.
    pub(super) fn answered_within(&self, time: Duration) {
        let waits = self.seat.waits.load(Ordering::Relaxed);
        if time >= LONG {
            self.short_run.set(0);
            if !waits {
                self.set_waits(true);
            }
        } else if waits {
            self.short_run.set(self.short_run.get() + 1);
            if self.short_run.get() >= SHORT_RUN {
                self.set_waits(false);
            }
        }
        self.answered();
    }

    fn set_waits(&self, waits: bool) {
        self.seat.waits.store(waits, Ordering::SeqCst);
        let is_on = || self.background.is_on.load(Ordering::SeqCst);
        if !is_on() {
            return;
        }
        self.seat.set_background(gettid(), !waits);
        // The guard may have taken all out of it meanwhile.
        if !waits && !is_on() {
            self.seat.set_background(gettid(), false);
        }
    }
}

impl Scheduling for Answering<'_> {
    fn yields(&self) -> bool {
        let is_on = self.background.is_on.load(Ordering::Relaxed);
        is_on && !self.seat.waits.load(Ordering::Relaxed)
    }

    fn blocks(&self) {
        let answered = self.seat.answered.load(Ordering::Relaxed);
        self.seat.blocked_at.store(answered, Ordering::Relaxed);
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.seat.thread.store(0, Ordering::SeqCst);
        self.background.wake();
    }
}

/// Whether `/proc/PID/stat` says running, or runnable. The state follows the name, which may contain any bytes.
fn wants_to_run(stat: &[u8]) -> bool {
    let name_end = stat.iter().rposition(|byte| *byte == b')');
    name_end.is_some_and(|end| stat.get(end + 2) == Some(&b'R'))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);
    /// Held by tests with threads that never wait: they would keep each other from running.
    static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

    #[test]
    fn states_are_read() {
        assert!(wants_to_run(b"12 (tako) R 1 2 3"));
        assert!(wants_to_run(b"12 (a) S (b) R 1 2 3"));
        assert!(!wants_to_run(b"12 (tako R) S 1 2 3"));
        assert!(!wants_to_run(b"12 (tako)"));
        assert!(!wants_to_run(b""));
    }

    #[test]
    fn the_guard_ends_with_the_threads() {
        let background = Background::new(2);
        let answering: Vec<_> = (0..2).map(|seat| background.enter(seat, false)).collect();
        thread::scope(|scope| {
            let guard = scope.spawn(|| background.watch());
            answering.iter().for_each(Answering::answered);
            drop(answering);
            guard.join().unwrap();
        });
    }

    #[test]
    fn a_burst_is_seen_before_a_look_is_over() {
        let (background, is_done) = (Background::new(1), AtomicBool::new(false));
        let _ = background.guard.set(thread::current());
        thread::scope(|scope| {
            scope.spawn(|| {
                let answering = background.enter(0, false);
                while !is_done.load(Ordering::Relaxed) {
                    answering.answered();
                }
            });
            let start = Instant::now();
            // On a busy machine this thread may run late, but not each time.
            let is_seen = loop {
                let before = Instant::now();
                let is_seen = background.wait_for_many() && before.elapsed() < LOOK;
                if is_seen || start.elapsed() > PATIENCE {
                    break is_seen;
                }
            };
            is_done.store(true, Ordering::Relaxed);
            assert!(is_seen);
        });
    }

    /// The policy of a thread, field 41 of its `stat`.
    fn policy(thread: Pid) -> i32 {
        let path = format!("/proc/self/task/{}/stat", thread.as_raw_pid());
        let stat = fs::read_to_string(path).unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        rest.split_whitespace().nth(38).unwrap().parse().unwrap()
    }

    #[test]
    fn a_thread_is_in_the_background_while_its_requests_are_short() {
        if !may_return() {
            return;
        }
        let background = Background::new(1);
        let answering = background.enter(0, true);
        let is_away = || policy(gettid()) == libc::SCHED_OTHER;
        background.set_all(true);
        assert!(is_away() && !answering.yields());
        for _ in 1..SHORT_RUN {
            answering.answered_within(Duration::ZERO);
        }
        assert!(is_away());
        answering.answered_within(Duration::ZERO);
        assert!(!is_away() && answering.yields());
        answering.answered_within(LONG);
        assert!(is_away() && !answering.yields());
        for _ in 0..SHORT_RUN {
            answering.answered_within(Duration::ZERO);
        }
        assert!(!is_away());
        background.set_all(false);
        assert!(is_away() && !answering.yields());
    }

    /// Whether a thread may leave the background, which the tests of that take.
    fn may_return() -> bool {
        let tried = set_background(gettid(), true).and_then(|()| set_background(gettid(), false));
        if tried.is_err() {
            println!("leaving the background needs the right to raise priorities: not tried");
        }
        tried.is_ok()
    }

    /// Retries until it succeeds, or [`PATIENCE`] has expired: on a busy machine threads may run late, but not each
    /// time.
    fn succeeds(attempt: impl FnMut() -> bool) -> bool {
        let start = Instant::now();
        std::iter::repeat_with(attempt)
            .take_while(|_| start.elapsed() < PATIENCE)
            .any(|success| success)
    }

    #[test]
    fn a_thread_that_has_yielded_returns_to_the_background_alone() {
        if !may_return() {
            return;
        }
        let _alone = ALONE.lock();
        let (background, is_done) = (Background::new(2), AtomicBool::new(false));
        let (say, entered) = mpsc::channel();
        thread::scope(|scope| {
            // It blocks outside of any background.
            scope.spawn(|| {
                let answering = background.enter(0, false);
                say.send(()).unwrap();
                while !is_done.load(Ordering::Relaxed) {
                    if policy(gettid()) == libc::SCHED_OTHER {
                        answering.blocks();
                    }
                }
            });
            entered.recv().unwrap();
            let other = scope.spawn(|| {
                let _answering = background.enter(1, false);
                say.send(()).unwrap();
                thread::park();
            });
            entered.recv().unwrap();
            background.set_all(true);
            let threads: Vec<Pid> = background.threads().map(|(_, thread)| thread).collect();
            let seat = &background.seats[0];
            let has_yielded = succeeds(|| {
                // It has answered since it last blocked, and wants to run.
                let answered = seat.answered.fetch_add(1, Ordering::Relaxed) + 1;
                let is_kept = background.is_kept_from_answering(seat, answered);
                if is_kept {
                    set_background(threads[0], true).unwrap();
                }
                !is_kept
            });
            let policies = threads.iter().map(|thread| policy(*thread));
            let all_are_back = policies.eq([libc::SCHED_IDLE; 2]);
            is_done.store(true, Ordering::Relaxed);
            background.set_all(false);
            other.thread().unpark();
            assert!(has_yielded && all_are_back);
        });
    }

    #[test]
    fn a_thread_that_is_kept_from_running_leaves_the_background() {
        if !may_return() {
            return;
        }
        let _alone = ALONE.lock();
        // Each time by a separate guard: one that has seen all leave waits longer and longer.
        assert!(succeeds(leaves_the_background));
    }

    /// Whether a thread that wants to run, and answers nothing, is in the background, and then is not, beside another one
    /// that answers many requests.
    fn leaves_the_background() -> bool {
        let (background, is_done) = (Background::new(2), AtomicBool::new(false));
        let (say, entered) = mpsc::channel();
        thread::scope(|scope| {
            for seat in 0..2 {
                let (background, is_done, say) = (&background, &is_done, say.clone());
                scope.spawn(move || {
                    let answering = background.enter(seat, false);
                    answering.answered();
                    say.send((seat, gettid())).unwrap();
                    while !is_done.load(Ordering::Relaxed) {
                        if seat == 1 {
                            answering.answered();
                        }
                    }
                });
            }
            let both: Vec<(usize, Pid)> = entered.iter().take(2).collect();
            let kept = both.iter().find(|(seat, _)| *seat == 0).unwrap().1;
            scope.spawn(|| background.watch());
            let start = Instant::now();
            let changes_to = |wanted| {
                while start.elapsed() < LOOK * 5 {
                    if policy(kept) == wanted {
                        return true;
                    }
                }
                false
            };
            let has_left = changes_to(libc::SCHED_IDLE) && changes_to(libc::SCHED_OTHER);
            is_done.store(true, Ordering::Relaxed);
            // A thread in the background might not see the end for long.
            background.set_all(false);
            has_left
        })
    }
}
