//! The bell of a queue: by it peers wake a thread that sleeps, and say that something else than a message has come.
//!
//! ```text
//!  line 0   sleeping: 1 from before the thread looks for the last time until it is awake; also what it sleeps at.
//!           2 while it blocks at other descriptors, too: then the bell's eventfd wakes it up
//!  line 1   changes: added to after a change of what is beside the messages of a ring
//! ```
//! **No wake-up is lost.** The sleeper stores 1, has a full fence, looks at everything, and then sleeps while the word
//! is 1. The other one stores its news, has a full fence, and then loads the word. One of the two fences is first. If
//! it is the sleeper's, the other one loads 1, stores 0 and wakes: either before the sleeper sleeps, and then the
//! kernel finds another word than 1, or after. If it is the other one's, the sleeper sees the news when it looks. (With
//! release and acquire alone both stores could still be on their way out of the processors when both load.)
//!
//! The other one stores the news of a whole batch, and then has one fence for all of it
//! ([decision 0017](../../../../docs/decisions/0017-fences-of-bells.md)).
//!
//! All peers of a queue can store to its bell, also those that lie, and a peer can be killed between its store of 0 and
//! its wake. So nobody relies on it for more than a [nap](NAP): then everything is looked at anyway.

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
/// What is stored when somebody sleeps: 1 in whichever half of the word the kernel looks at.
const ASLEEP: u64 = 1 << 32 | 1;
/// What is stored when the thread blocks at descriptors, of which the bell's is one.
const BLOCKED: u64 = 1 << 33 | 2;

/// The longest sleep without looking at everything.
pub const NAP: Duration = Duration::from_millis(100);

/// A queue's own bell, or a peer's.
#[derive(Clone)]
pub struct Bell {
    lines: Lines,
    memory: Region,
    event: Arc<OwnedFd>,
}

impl Bell {
    /// This queue's own bell.
    ///
    /// # Errors
    /// [`Error::Region`], [`Error::System`].
    pub fn new() -> Result<Bell, Error> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|errno| Error::System {
            what: "make an eventfd".to_owned(),
            source: errno.into(),
            remedy: "raise the limit of open files (`ulimit -n`)",
        })?;
        let memory = Region::memory((LINES * LINE) as u64, false)?;
        Ok(Bell::over(memory, event))
    }

    /// A peer's bell.
    ///
    /// # Errors
    /// [`Error::Peer`], [`Error::Region`].
    pub fn attach(memory: OwnedFd, event: OwnedFd) -> Result<Bell, Error> {
        if !is_eventfd(&event) {
            return Err(Error::Peer { what: "eventfd" });
        }
        let memory = ring::attach(memory, (LINES * LINE) as u64, "bell")?;
        Ok(Bell::over(memory, event))
    }

    fn over(memory: Region, event: OwnedFd) -> Bell {
        Bell {
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

    /// Differs from what it was if there was a change; if a peer lies, it may not.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.lines.load(CHANGES, 0)
    }

    /// Sleeps until somebody rings, unless `news` finds that something has come meanwhile.
    pub fn sleep(&self, timeout: Duration, news: impl FnOnce() -> bool) {
        self.announce(ASLEEP);
        let timeout = timeout.min(NAP);
        if !news() {
            self.memory.sleep_while(0, 1, Some(timeout));
        }
        self.awake();
    }

    /// Announces that the thread will block at [`Bell::event`], among others. The caller then looks for news once more, blocks
    /// for no longer than a [nap](NAP), and ends it with [`Bell::awake`].
    pub fn block(&self) {
        self.announce(BLOCKED);
    }

    /// The descriptor that is readable when a thread that blocks is woken up.
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

    /// Says that there was a change, and wakes who sleeps.
    pub fn change(&self) {
        self.memory.fetch_and_add((CHANGES * LINE) as u64, 1);
        fence(Ordering::SeqCst);
        self.wake();
    }

    /// Wakes who sleeps. A full fence must be between the news and this.
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
