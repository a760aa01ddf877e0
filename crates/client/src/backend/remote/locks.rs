//! Locks of files of a cluster.

use operations::{Details, Lock, Operation};

use super::super::Result;
use super::{Remote, invalid};

impl Remote {
    pub(crate) fn set_lock(&self, number: u64, lock: Lock) -> Result<()> {
        let file = self.file(number);
        self.call(Operation::SetLock { file, lock }).map(drop)
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
