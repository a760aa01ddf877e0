//! Locks of files of a cluster.

use operations::{Details, Lock, Operation, WAIT_ENDED};

use super::super::Result;
use super::{Remote, invalid};
use crate::TurnListener;

/// State of a wait in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    Kept,
    /// The lock is free now, and reserved for its owner.
    HasTurn,
    /// It has ended: its owner has taken the lock, or has ended the wait.
    Ended,
}

impl Remote {
    pub(crate) fn set_lock(&self, number: u64, lock: Lock) -> Result<()> {
        let file = self.file(number);
        self.call(Operation::SetLock { file, lock }).map(drop)
    }

    /// Waits for a lock, or continues to wait.
    pub(crate) fn wait_lock(&self, number: u64, lock: Lock, wait: u64) -> Result<Waiting> {
        let file = self.file(number);
        let outcome = self.call(Operation::WaitLock { file, lock, wait })?;
        Ok(match outcome.count {
            0 => Waiting::Kept,
            WAIT_ENDED => Waiting::Ended,
            _ => Waiting::HasTurn,
        })
    }

    pub(crate) fn end_wait(&self, wait: u64) -> Result<()> {
        self.call(Operation::EndWait { wait }).map(drop)
    }

    pub(crate) fn await_turns(&self, listener: Option<TurnListener>) {
        self.0.requests.await_turns(listener);
    }

    pub(crate) fn test_lock(&self, number: u64, lock: Lock) -> Result<Option<Lock>> {
        let file = self.file(number);
        match self.call(Operation::TestLock { file, lock })?.details {
            Details::Lock(found) => Ok(found),
            _ => Err(invalid("a lock is missing")),
        }
    }

    pub(crate) fn unlock(&self, number: u64, range: Lock) -> Result<()> {
        let file = self.file(number);
        self.call(Operation::Unlock { file, range }).map(drop)
    }

    pub(crate) fn unlock_handle(&self, number: u64, handle: u64) -> Result<()> {
        let file = self.file(number);
        self.call(Operation::UnlockHandle { file, handle })
            .map(drop)
    }
}
