//! Blocking at all transports, all control connections and a [`Handle`] at once.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use super::joining::Arrived;
use super::{Event, Messenger, UNREADY_EVERY};
use crate::Error;
use crate::control::Caller;

/// Control connections that are read after one wait.
const READABLE: usize = 64;

/// By which other threads reach a messenger. Clones reach the same one.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Waker>);

impl Handle {
    pub(super) fn new(waker: Arc<Waker>) -> Handle {
        Handle(waker)
    }

    /// Ends a [`Messenger::wait`], or the next one.
    pub fn wake(&self) {
        self.0.call();
    }

    /// Gives a caller to the messenger, which reports it as [`Event::Accepted`].
    pub fn pass(&self, caller: Caller) {
        self.0.pass(Arrived::Caller(caller));
    }
}

/// What a messenger shares with other threads.
#[derive(Debug)]
pub struct Waker {
    event: OwnedFd,
    /// Whether the eventfd was written to since the messenger took what had arrived.
    is_called: AtomicBool,
    arrived: Mutex<Vec<Arrived>>,
}

impl Waker {
    pub fn pass(&self, arrived: Arrived) {
        self.arrived.lock().push(arrived);
        self.call();
    }

    pub fn call(&self) {
        if !self.is_called.swap(true, Ordering::AcqRel) {
            // The count is 0 or 1: there is room.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Takes what has arrived; whether there may be something.
    pub fn take(&self, arrived: &mut Vec<Arrived>) -> bool {
        if !self.is_called.load(Ordering::Acquire) {
            return false;
        }
        // Unreadable before the flag: a call after it writes again.
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        // A call that found the flag set wrote nothing. A plain store could pass its reader by: what that caller has changed must
        // be visible from here on.
        self.is_called.swap(false, Ordering::AcqRel);
        arrived.append(&mut self.arrived.lock());
        true
    }
}

/// What a messenger blocks at, besides its transports.
pub struct Blocker {
    sessions: OwnedFd,
    waker: Arc<Waker>,
}

impl Blocker {
    pub fn new() -> Result<Blocker, Error> {
        let failed = |what: &str, errno: rustix::io::Errno| Error::System {
            what: what.to_owned(),
            source: io::Error::from(errno),
            remedy: "raise the limit of open files (`ulimit -n`)",
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let sessions = epoll::create(epoll::CreateFlags::CLOEXEC);
        Ok(Blocker {
            sessions: sessions.map_err(|errno| failed("make an epoll descriptor", errno))?,
            waker: Arc::new(Waker {
                event: event.map_err(|errno| failed("make an eventfd", errno))?,
                is_called: AtomicBool::new(false),
                arrived: Mutex::default(),
            }),
        })
    }

    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// Whether the control connection of the link in this slot is waited for from now on.
    pub fn add(&self, session: &impl AsFd, slot: usize) -> bool {
        let data = epoll::EventData::new_u64(slot as u64);
        epoll::add(&self.sessions, session, data, epoll::EventFlags::IN).is_ok()
    }

    pub fn remove(&self, session: &impl AsFd) {
        // It fails only if it was never added.
        let _ = epoll::delete(&self.sessions, session);
    }

    /// Slots of links with readable control connections.
    fn readable(&self, slots: &mut Vec<usize>) {
        let mut events = [const { MaybeUninit::uninit() }; READABLE];
        let now = Timespec::default();
        if let Ok((events, _)) = epoll::wait(&self.sessions, &mut events, Some(&now)) {
            slots.extend(events.iter().map(|event| event.data.u64() as usize));
        }
    }
}

impl Messenger {
    /// Blocks until there may be something to poll, so long at most.
    pub(super) fn block(&mut self, mut timeout: Duration, events: &mut Vec<Event>) {
        if !self.unready.is_empty() {
            timeout = timeout.min(UNREADY_EVERY);
        }
        for lane in &self.lanes {
            if let Some(queue) = self.transports.queue(lane.provider) {
                timeout = timeout.min(queue.arm(timeout));
            }
        }
        let mut ready = Vec::with_capacity(8);
        let is_readable = self.poll_descriptors(timeout, &mut ready);
        for (lane, ready) in self.lanes.iter().zip(ready) {
            if let Some(queue) = self.transports.queue(lane.provider) {
                queue.disarm(ready);
            }
        }
        if is_readable {
            self.hear_sessions(events);
        }
    }

    /// Adds to `ready` whether each lane is; returns whether control connections are.
    fn poll_descriptors(&self, timeout: Duration, ready: &mut Vec<bool>) -> bool {
        let mut entries = vec![
            PollFd::new(&self.waker.event, PollFlags::IN),
            PollFd::new(&self.blocker.sessions, PollFlags::IN),
        ];
        let mut ends = Vec::with_capacity(self.lanes.len());
        for lane in &self.lanes {
            let descriptors = self.transports.descriptors(lane.provider).into_iter();
            entries.extend(descriptors.map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN)));
            ends.push(entries.len());
        }
        let timeout = Timespec {
            tv_sec: timeout.as_secs().min(1 << 20) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // Interrupted or not: everything is polled afterwards.
        let _ = poll(&mut entries, Some(&timeout));
        let is_ready = |entry: &PollFd<'_>| !entry.revents().is_empty();
        let mut begin = 2;
        for end in ends {
            ready.push(entries[begin..end].iter().any(is_ready));
            begin = end;
        }
        is_ready(&entries[1])
    }

    /// Takes what peers say over control connections, if they say something.
    pub(super) fn hear_sessions(&mut self, events: &mut Vec<Event>) {
        let mut slots = std::mem::take(&mut self.readable);
        self.blocker.readable(&mut slots);
        for slot in slots.drain(..) {
            self.hear(slot, events);
        }
        self.readable = slots;
    }
}
