//! The bell of a queue: by it peers wake a blocked thread up, and report events other than messages.
//!
//! ```text
//!  line 0   sleeping: 1 from before the thread looks for the last time until it is awake; also what it sleeps at.
//!           2 while it blocks at other descriptors, too: then the bell's eventfd wakes it up
//!  line 1   changes: added to after a change of what is beside the messages of a ring
//! ```
//! **No wake-up is lost.** The sleeper stores 1, executes a full fence, checks everything, and then sleeps while the
//! word is 1. The other side stores its event, executes a full fence, and then loads the word. One of the two fences is
//! first. If it is the sleeper's, the other side loads 1, stores 0 and wakes: either before the sleeper sleeps, and
//! then the kernel finds another word than 1, or after. If it is the other side's, the sleeper sees the event when it
//! checks. (With release and acquire alone both stores could still be in the store buffers when both sides load.)
//!
//! The other one stores the news of a whole batch, and then has one fence for all of it
//! ([decision 0017](../../../../docs/decisions/0017-fences-of-bells.md)).
//!
//! All peers of a queue can store to its bell, also malicious ones, and a peer can be killed between its store of 0 and
//! its wake-up. So a sleeper relies on it for at most a [nap](NAP): then everything is checked anyway.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use pmem::{LINE, Lines, Region};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};

use super::ring;
use crate::Error;

/// Two lines, of which the first word counts.
const SLEEPING: usize = 0;
const CHANGES: usize = 1;
const LINES: usize = 2;
/// Value stored by a sleeper: 1 in whichever half of the word the kernel reads.
const ASLEEP: u64 = 1 << 32 | 1;
/// Value stored when the thread blocks at descriptors, one of which is the bell's.
const BLOCKED: u64 = 1 << 33 | 2;

/// The longest sleep without checking everything.
pub const NAP: Duration = Duration::from_millis(100);

/// A queue's own bell, or a peer's.
#[derive(Clone)]
pub struct Doorbell {
    lines: Lines,
    memory: Region,
    event: Arc<OwnedFd>,
}

impl Doorbell {
    /// This queue's own bell.
    ///
    /// # Errors
    /// [`Error::Region`], [`Error::System`].
    pub fn new() -> Result<Doorbell, Error> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|errno| Error::System {
            what: "make an eventfd".to_owned(),
            source: errno.into(),
            remedy: "raise the limit of open files (`ulimit -n`)",
        })?;
        let memory = Region::memory((LINES * LINE) as u64, false)?;
        Ok(Doorbell::over(memory, event))
    }

    /// Maps the bell of a peer.
    ///
    /// # Errors
    /// [`Error::Peer`], [`Error::Region`].
    pub fn attach(memory: OwnedFd, event: OwnedFd) -> Result<Doorbell, Error> {
        if !is_eventfd(&event) {
            return Err(Error::Peer { what: "eventfd" });
        }
        let memory = ring::attach(memory, (LINES * LINE) as u64, "bell")?;
        Ok(Doorbell::over(memory, event))
    }

    fn over(memory: Region, event: OwnedFd) -> Doorbell {
        Doorbell {
            lines: ring::lines(&memory, LINES),
            memory,
            event: Arc::new(event),
        }
    }

    /// Descriptors for a peer: of the memory and of the eventfd.
    ///
    /// # Errors
    /// [`Error::Region`], [`Error::System`].
    pub fn share(&self) -> Result<[OwnedFd; 2], Error> {
        let event = self.event.try_clone().map_err(|source| Error::System {
            what: "copy a descriptor".to_owned(),
            source,
            remedy: "raise the limit of open files (`ulimit -n`)",
        })?;
        Ok([self.memory.share(true)?, event])
    }

    /// Differs from its former value if there was a change; with a malicious peer, it may not.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.lines.load(CHANGES, 0)
    }

    /// Sleeps until the bell rings, unless `news` finds that something has arrived meanwhile.
    pub fn sleep(&self, timeout: Duration, news: impl FnOnce() -> bool) {
        self.announce(ASLEEP);
        let timeout = timeout.min(NAP);
        if !news() {
            self.memory.sleep_while(0, 1, Some(timeout));
        }
        self.awake();
    }

    /// Announces that the thread will block at [`Doorbell::event`], among others. The caller then checks for events again,
    /// blocks for no longer than a [nap](NAP), and ends it with [`Doorbell::awake`].
    pub fn block(&self) {
        self.announce(BLOCKED);
    }

    /// The descriptor that becomes readable when a blocked thread is woken up.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// The thread is awake.
    pub fn awake(&self) {
        self.lines.store(SLEEPING, 0, 0);
    }

    /// Makes the eventfd unreadable until the next wake-up.
    pub fn drain(&self) {
        // It fails only if there was no wake-up.
        let _ = rustix::io::read(&*self.event, &mut [0u8; 8]);
    }

    fn announce(&self, how: u64) {
        self.lines.store(SLEEPING, 0, how);
        fence(Ordering::SeqCst);
    }

    /// Reports a change, and wakes a sleeper up.
    pub fn change(&self) {
        self.memory.fetch_and_add((CHANGES * LINE) as u64, 1);
        fence(Ordering::SeqCst);
        self.wake();
    }

    /// Wakes a sleeper up. A full fence must be between the event and this.
    #[inline]
    pub fn wake(&self) {
        match self.lines.load(SLEEPING, 0) {
            0 => {}
            BLOCKED => {
                self.lines.store(SLEEPING, 0, 0);
                // It fails only if the peer has filled it, and so is readable.
                let _ = rustix::io::write(&*self.event, &1u64.to_ne_bytes());
            }
            _ => {
                self.lines.store(SLEEPING, 0, 0);
                self.memory.wake(0);
            }
        }
    }
}

/// Whether a descriptor of a peer can be written to without waiting, and to no other effect than a wake-up.
fn is_eventfd(descriptor: &OwnedFd) -> bool {
    let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let is_event = text.lines().any(|line| line.starts_with("eventfd-count:"));
    is_event && fcntl_getfl(descriptor).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}
