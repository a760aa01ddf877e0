//! Blocking at all transports, all control connections and a [`Handle`] at once.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use super::establish::Arrived;
use super::{Event, Messenger, UNREADY_EVERY};
use crate::control::Caller;
use fabric::Error;

/// Control connections that are read after one wait.
const READABLE: usize = 64;

/// Access of other threads to a messenger. Clones reach the same one.
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

    /// Whether [`Handle::wake`] was called since the last poll.
    pub fn is_called(&self) -> bool {
        self.0.is_called.load(Ordering::Acquire)
    }

    /// Gives a caller to the messenger, which reports it as [`Event::Accepted`].
    pub fn pass(&self, caller: Caller) {
        self.0.pass(Arrived::Caller(caller));
    }
}

/// State that a messenger shares with other threads.
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

    /// Takes arrived inputs; returns whether there may be some.
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

/// Descriptors at which a messenger blocks, besides its transports.
pub struct Blocker {
    sessions: OwnedFd,
    waker: Arc<Waker>,
    descriptors: Descriptors,
}

/// Where the descriptor of the control connections is among those of a blocker.
const SESSIONS: usize = 1;

impl Blocker {
    pub fn new() -> Result<Blocker, Error> {
        let failed = |what: &str, errno: rustix::io::Errno| Error::System {
            what: what.to_owned(),
            source: io::Error::from(errno),
            remedy: "raise the limit of open files (`ulimit -n`)",
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|errno| failed("make an eventfd", errno))?;
        let sessions = epoll::create(epoll::CreateFlags::CLOEXEC);
        let sessions = sessions.map_err(|errno| failed("make an epoll descriptor", errno))?;
        Ok(Blocker {
            descriptors: duplicate(&[event.as_fd(), sessions.as_fd()])?,
            sessions,
            waker: Arc::new(Waker {
                event,
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

/// What a thread blocks at after [`Messenger::arm`]. It does not need the messenger, which other threads may use meanwhile.
pub struct Armed {
    /// The waker's and that of the control connections.
    own: Descriptors,
    /// Those of each lane.
    lanes: Vec<Descriptors>,
    timeout: Duration,
}

/// Duplicates of descriptors that a messenger blocks at.
pub type Descriptors = Arc<[OwnedFd]>;

/// Duplicates descriptors, for threads without the messenger.
///
/// # Errors
/// [`Error::System`]: there are no more descriptors.
pub fn duplicate(descriptors: &[BorrowedFd<'_>]) -> Result<Descriptors, Error> {
    let duplicates = descriptors.iter().map(BorrowedFd::try_clone_to_owned);
    let duplicates: io::Result<Descriptors> = duplicates.collect();
    duplicates.map_err(|source| Error::System {
        what: "duplicate a descriptor".to_owned(),
        source,
        remedy: "raise the limit of open files (`ulimit -n`)",
    })
}

/// What was readable when [`Armed::block`] returned.
pub struct Ready {
    lanes: Vec<bool>,
    sessions: bool,
}

impl Armed {
    /// How long it blocks at most: not at all if something has come already.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Blocks until there may be something to poll, or the timeout of [`Messenger::arm`] has passed.
    pub fn block(self) -> Ready {
        let lanes = self.lanes.iter().flat_map(|lane| lane.iter());
        let all = self.own.iter().chain(lanes);
        let mut entries: Vec<_> = all.map(|it| PollFd::new(it, PollFlags::IN)).collect();
        let timeout = Timespec {
            tv_sec: self.timeout.as_secs().min(1 << 20) as i64,
            tv_nsec: self.timeout.subsec_nanos().into(),
        };
        // Interrupted or not: everything is polled afterwards.
        let _ = poll(&mut entries, Some(&timeout));
        let is_ready = |entry: &PollFd<'_>| !entry.revents().is_empty();
        let mut rest = &entries[self.own.len()..];
        let lanes = self.lanes.iter().map(|lane| {
            let (own, others) = rest.split_at(lane.len());
            rest = others;
            own.iter().any(is_ready)
        });
        Ready {
            lanes: lanes.collect(),
            sessions: is_ready(&entries[SESSIONS]),
        }
    }
}

impl Messenger {
    /// Prepares to block: from now on peers wake the thread that calls [`Armed::block`], after which
    /// [`Messenger::disarm`] and [`Messenger::poll`] follow. Another thread may use the messenger meanwhile, if it calls
    /// [`Messenger::disarm`] first and this at its end.
    pub fn arm(&mut self, mut timeout: Duration) -> Armed {
        if !self.failed.is_empty() {
            timeout = Duration::ZERO;
        }
        if !self.unready.is_empty() {
            timeout = timeout.min(UNREADY_EVERY);
        }
        for lane in &self.lanes {
            if let Some(queue) = self.transports.queue(lane.provider) {
                timeout = timeout.min(queue.arm(timeout));
            }
        }
        let lanes = self.lanes.iter().map(|lane| {
            // An adapter that has failed would be readable for ever.
            match self.transports.descriptors(lane.provider).is_empty() {
                true => Arc::default(),
                false => lane.descriptors.clone(),
            }
        });
        Armed {
            own: self.blocker.descriptors.clone(),
            lanes: lanes.collect(),
            timeout,
        }
    }

    /// Ends what [`Messenger::arm`] began. `ready` is what [`Armed::block`] returned; `None` for a thread that did not block.
    pub fn disarm(&mut self, ready: Option<&Ready>, events: &mut Vec<Event>) {
        for (index, lane) in self.lanes.iter().enumerate() {
            if let Some(queue) = self.transports.queue(lane.provider) {
                queue.disarm(ready.is_some_and(|ready| ready.lanes[index]));
            }
        }
        if ready.is_some_and(|ready| ready.sessions) {
            self.hear_sessions(events);
        }
    }

    /// Blocks until there may be something to poll, so long at most.
    pub(super) fn block(&mut self, timeout: Duration, events: &mut Vec<Event>) {
        let ready = self.arm(timeout).block();
        self.disarm(Some(&ready), events);
    }

    /// Takes messages of peers over control connections, if there are any.
    pub(super) fn hear_sessions(&mut self, events: &mut Vec<Event>) {
        let mut slots = std::mem::take(&mut self.readable);
        self.blocker.readable(&mut slots);
        for slot in slots.drain(..) {
            self.hear(slot, events);
        }
        self.readable = slots;
    }
}
