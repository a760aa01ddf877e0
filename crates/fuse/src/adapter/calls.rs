//! Requests that are being served out of a cluster, which may be unreachable: then the caller waits, and can be killed.
//!
//! The kernel reports any signal that a waiting caller gets, and only the first one. A signal that does not end the
//! caller must not end its call, as on a disk. So a thread watches for the end of signaled callers.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use client::Interrupt;
use parking_lot::Mutex;

use super::Later;
use crate::wire;

/// How often signaled callers are examined.
const TICK: Duration = Duration::from_millis(50);
/// Ticks for which a signal without its request is remembered: the request may be on its way to its thread.
const TICKS_UNSEEN: u32 = 20;

#[derive(Default)]
pub(super) struct Calls {
    in_flight: Mutex<InFlight>,
    /// None while no thread examines callers.
    signaled: Mutex<Option<Sender<u64>>>,
}

#[derive(Default)]
struct InFlight {
    calls: HashMap<(u64, Part), Call>,
    /// The mount has ended: nothing waits any more.
    has_ended: bool,
}

/// What a thread does for a request: for one, two threads may be at work.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    Executes,
    /// Waits for the answer of another thread.
    Waits,
}

#[derive(Clone)]
struct Call {
    interrupt: Interrupt,
    /// Thread of the caller; 0 if it is not visible from here.
    thread: u32,
}

/// Answer of another thread to a request, with the data after its header.
pub(crate) type Answered = (wire::OutHeader, Vec<u8>);

/// An answer that another thread is to give.
pub(crate) struct LaterAnswer {
    /// Ends the wait for it with nothing.
    say: Sender<Option<Answered>>,
    hear: Receiver<Option<Answered>>,
}

impl LaterAnswer {
    pub(crate) fn new() -> (LaterAnswer, Later) {
        let (say, hear) = mpsc::channel();
        let answer = say.clone();
        let later: Later = Box::new(move |head, body: &[u8]| {
            // The mount may have ended.
            let _ = answer.send(Some((head, body.to_vec())));
        });
        (LaterAnswer { say, hear }, later)
    }
}

impl Calls {
    /// Serves a request of this thread so that it can be interrupted.
    pub(super) fn serve<T>(&self, unique: u64, thread: u32, serve: impl FnOnce() -> T) -> T {
        self.run((unique, Part::Executes), thread, serve)
    }

    fn run<T>(&self, key: (u64, Part), thread: u32, serve: impl FnOnce() -> T) -> T {
        let call = Call {
            interrupt: Interrupt::default(),
            thread,
        };
        {
            let mut in_flight = self.in_flight.lock();
            in_flight.calls.insert(key, call.clone());
            if in_flight.has_ended {
                call.interrupt.interrupt();
            }
        }
        let result = call.interrupt.scope(serve);
        self.in_flight.lock().calls.remove(&key);
        result
    }

    /// Waits for the answer of another thread to a request; none if the mount has ended.
    pub(super) fn wait_for(
        &self,
        unique: u64,
        thread: u32,
        answer: LaterAnswer,
    ) -> Option<Answered> {
        self.run((unique, Part::Waits), thread, || {
            let current = Interrupt::current();
            let LaterAnswer { say, hear } = answer;
            let wake = move || drop(say.send(None));
            let current = current.inspect(|it| it.set_wake(Some(Box::new(wake))));
            // A killed caller's wait is ended by the locks.
            let answered = loop {
                if self.has_ended() {
                    break None;
                }
                if let Ok(Some(answered)) = hear.recv() {
                    break Some(answered);
                }
            };
            current.inspect(|it| it.set_wake(None));
            answered
        })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.in_flight.lock().has_ended
    }

    /// The caller of a request has got a signal.
    pub(super) fn signal(&self, unique: u64) {
        if let Some(signaled) = &*self.signaled.lock() {
            // Its thread ends with the mount.
            let _ = signaled.send(unique);
        }
    }

    /// Interrupts all requests, and later ones: the mount has ended.
    pub(super) fn interrupt_all(&self) {
        let mut in_flight = self.in_flight.lock();
        in_flight.has_ended = true;
        for call in in_flight.calls.values() {
            call.interrupt.interrupt();
        }
    }

    /// Starts the thread that ends the calls of killed callers. It ends with [`Calls::end`].
    pub(super) fn start(calls: &Arc<Calls>) -> io::Result<JoinHandle<()>> {
        let (say, signaled) = mpsc::channel();
        *calls.signaled.lock() = Some(say);
        let calls = Arc::downgrade(calls);
        let thread = thread::Builder::new().name("tako-signaled".into());
        thread.spawn(move || watch(&signaled, &calls))
    }

    pub(super) fn end(&self) {
        *self.signaled.lock() = None;
    }

    /// Interrupts a request if its caller is being killed. Returns whether it was seen. Another thread may begin to execute
    /// it later, so it is examined until it is answered.
    fn examine(&self, unique: u64) -> bool {
        let parts = {
            let in_flight = self.in_flight.lock();
            [Part::Executes, Part::Waits].map(|part| in_flight.calls.get(&(unique, part)).cloned())
        };
        let mut is_seen = false;
        for call in parts.into_iter().flatten() {
            is_seen = true;
            if is_killed(call.thread) {
                call.interrupt.interrupt();
            }
        }
        is_seen
    }
}

fn watch(signaled: &Receiver<u64>, calls: &Weak<Calls>) {
    // Requests of signaled callers, with the ticks for which they may stay unseen.
    let mut watched: Vec<(u64, u32)> = Vec::new();
    loop {
        let next = match watched.is_empty() {
            true => signaled.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => signaled.recv_timeout(TICK),
        };
        match next {
            Ok(unique) => watched.push((unique, TICKS_UNSEEN)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let Some(calls) = calls.upgrade() else {
            return;
        };
        watched.retain_mut(|(unique, ticks)| match calls.examine(*unique) {
            true => {
                // It was seen: when it is not any more, it has been answered.
                *ticks = 1;
                true
            }
            false => {
                *ticks -= 1;
                *ticks > 0
            }
        });
    }
}

/// Whether SIGKILL is pending for a thread, which is how the kernel ends all threads of a process. For an invisible
/// thread it is assumed.
fn is_killed(thread: u32) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let Ok(status) = std::fs::read_to_string(format!("/proc/{thread}/status")) else {
        return true;
    };
    let pending = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.unwrap_or(0)
    };
    (pending("SigPnd:") | pending("ShdPnd:")) & KILL != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_lives_is_not_killed() {
        assert!(!is_killed(std::process::id()));
        assert!(is_killed(u32::MAX));
    }

    #[test]
    fn a_call_ends_when_its_caller_is_gone() {
        let calls = Arc::new(Calls::default());
        let thread = Calls::start(&calls).expect("a thread");
        let (say, hear) = mpsc::channel();
        // The signal comes before the request.
        calls.signal(7);
        calls.serve(7, u32::MAX, || {
            let current = Interrupt::current().expect("a request is served");
            current.set_wake(Some(Box::new(move || {
                // It may be woken up twice.
                let _ = say.send(());
            })));
            if !current.is_interrupted() {
                hear.recv().expect("an interrupt");
            }
            assert!(current.is_interrupted());
        });
        calls.end();
        thread.join().expect("the thread ends");
    }

    /// The thread that waits may come before the one that executes the request, or after it.
    #[test]
    fn all_threads_of_a_request_are_interrupted() {
        let calls = Calls::default();
        let is_interrupted = || Interrupt::current().is_some_and(|it| it.is_interrupted());
        calls.serve(7, u32::MAX, || {
            let (wait, _later) = LaterAnswer::new();
            thread::scope(|scope| {
                let waits = scope.spawn(|| calls.wait_for(7, u32::MAX, wait));
                while calls.in_flight.lock().calls.len() < 2 {
                    thread::yield_now();
                }
                assert!(calls.examine(7) && is_interrupted());
                calls.interrupt_all();
                assert!(waits.join().unwrap().is_none());
            });
            assert_eq!(calls.in_flight.lock().calls.len(), 1);
        });
        assert!(!calls.examine(7));
    }

    #[test]
    fn a_signal_that_does_not_kill_leaves_the_call() {
        let calls = Arc::new(Calls::default());
        calls.serve(9, std::process::id(), || {
            assert!(calls.examine(9));
            let current = Interrupt::current().expect("a request is served");
            assert!(!current.is_interrupted());
            calls.interrupt_all();
            assert!(current.is_interrupted());
        });
        assert!(!calls.examine(9));
    }
}
