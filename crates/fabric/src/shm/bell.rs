//! The bell of a queue: by it peers wake a thread that sleeps, and say that something else than a message has come.
//!
//! ```text
//!  line 0   sleeping: 1 from before the thread looks for the last time until it is awake; also what it sleeps at
//!  line 1   changes: added to after a change of what is beside the messages of a ring
//! ```
//! **No wake-up is lost.** The sleeper stores 1, has a full fence, looks at everything, and then sleeps while the word
//! is 1. The other one stores its news, has a full fence, and then loads the word. One of the two fences is first. If
//! it is the sleeper's, the other one loads 1, stores 0 and wakes: either before the sleeper sleeps, and then the
//! kernel finds another word than 1, or after. If it is the other one's, the sleeper sees the news when it looks. (With
//! release and acquire alone both stores could still be on their way out of the processors when both load.)
//!
//! **Who has news needs no fence where both sides have barriers.** A fence with each message waits until its line has come
//! over, which takes longer than all the rest. So it is the sleeper that pays: its fence is `membarrier`, by which the
//! kernel runs one in each thread that runs in a process that has registered for it
//! (`MEMBARRIER_CMD_GLOBAL_EXPEDITED`); a thread that does not run has had one when it was stopped. Wherever in the other
//! one's instructions that fence comes, it is after the news, or before the load of the word, or both: they are in this
//! order for the compiler. So it stands for the other one's fence. (The other one looks after each message, and wakes who slept at
//! the end of the batch.) A process says that it has registered, and looks in this
//! way before it sleeps, when an endpoint is set up; a peer that lies about it misses wake-ups of its own, or is looked
//! at late. Where the kernel has no such barriers there are fences on both sides.
//!
//! All peers of a queue can store to its bell, also those that lie, and a peer can be killed between its store of 0 and
//! its wake. So nobody relies on it for more than a [nap](NAP): then everything is looked at anyway.

use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use pmem::{LINE, Lines, Region};
use rustix::thread::{MembarrierCommand, membarrier};

use super::ring;
use crate::Error;

/// Two lines, of which the first word counts.
const SLEEPING: usize = 0;
const CHANGES: usize = 1;
const LINES: usize = 2;
/// What is stored when somebody sleeps: 1 in whichever half of the word the kernel looks at.
const ASLEEP: u64 = 1 << 32 | 1;

/// The longest sleep without looking at everything.
pub const NAP: Duration = Duration::from_millis(100);
/// The same where a barrier has failed, though it was there before.
const SHORT_NAP: Duration = Duration::from_millis(1);

/// Registers this process for the barriers of others; whether it has them.
pub fn has_barriers() -> bool {
    membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
        && membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// A queue's own bell, or a peer's.
#[derive(Clone)]
pub struct Bell {
    lines: Lines,
    memory: Region,
}

impl Bell {
    /// The own one.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn new() -> Result<Bell, Error> {
        Ok(Bell::over(Region::memory((LINES * LINE) as u64, false)?))
    }

    /// A peer's.
    ///
    /// # Errors
    /// [`Error::Peer`], [`Error::Region`].
    pub fn attach(descriptor: OwnedFd) -> Result<Bell, Error> {
        ring::attach(descriptor, (LINES * LINE) as u64, "bell").map(Bell::over)
    }

    fn over(memory: Region) -> Bell {
        Bell {
            lines: ring::lines(&memory, LINES),
            memory,
        }
    }

    /// A descriptor for a peer.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn share(&self) -> Result<OwnedFd, Error> {
        Ok(self.memory.share(true)?)
    }

    /// Differs from what it was if there was a change; if a peer lies, it may not.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.lines.load(CHANGES, 0)
    }

    /// Sleeps until somebody rings, unless `news` finds that something has come meanwhile. `barrier`: peers may have news
    /// without a fence.
    pub fn sleep(&self, mut timeout: Duration, barrier: bool, news: impl FnOnce() -> bool) {
        self.lines.store(SLEEPING, 0, ASLEEP);
        fence(Ordering::SeqCst);
        if barrier && membarrier(MembarrierCommand::GlobalExpedited).is_err() {
            timeout = timeout.min(SHORT_NAP);
        }
        if !news() {
            self.memory.sleep_while(0, 1, Some(timeout));
        }
        self.lines.store(SLEEPING, 0, 0);
    }

    /// Says that there was a change, and wakes who sleeps.
    pub fn change(&self) {
        self.memory.fetch_and_add((CHANGES * LINE) as u64, 1);
        fence(Ordering::SeqCst);
        self.wake();
    }

    /// Whether somebody sleeps: what must be between the news and this is the same as for [`Bell::wake`].
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.lines.load(SLEEPING, 0) != 0
    }

    /// Wakes who sleeps. A full fence must be between the news and this, or where both sides have barriers, one for the
    /// compiler.
    #[inline]
    pub fn wake(&self) {
        if self.is_asleep() {
            self.lines.store(SLEEPING, 0, 0);
            self.memory.wake(0);
        }
    }
}
