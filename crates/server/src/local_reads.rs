//! Reads of a client in the primary's own process, which its threads execute without entering the member.
//!
//! ```text
//!   client's thread   LocalReads::read ── the store, under its own locks ──► may_answer ─► data, or a request by message
//!   service thread    step ─► publish: until when it serves, what is confirmed, whether the session is open
//! ```
//! Such a read makes no record and is granted no lease, so the member needs not know of it. `docs/PROTOCOL.md` has the rules.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use operations::FileId;
use parking_lot::RwLock;
use protocol::member::{OwnerChange, ReadPermit};
use protocol::{Defect, Defects};

use crate::execute::Serving;

/// The way of local reads to the store, while the pool is open for changes.
#[derive(Default)]
pub struct LocalReads {
    serving: RwLock<Option<Arc<Serving>>>,
    /// Number of times that the pool was opened for changes or closed, and that a session got a lease for writing.
    turns: AtomicU64,
    /// Sessions that own files by leases for writing, by inode.
    owners: RwLock<HashMap<u64, u64>>,
    /// The session of the client in this process; 0 without one.
    session: AtomicU64,
    /// By the node's clock, nanoseconds: no other member serves before.
    until: AtomicU64,
    /// All members in sync have the records below.
    confirmed: AtomicU64,
    /// Reads that were answered.
    answered: AtomicU64,
    defects: Defects,
}

/// A read that was executed. It counts only if [`LocalReads::may_answer`] agrees.
#[derive(Clone, Copy, Debug)]
pub struct LocalRead {
    /// Bytes read: fewer than asked for at the end of the file.
    pub count: usize,
    /// All members in sync must have the records below.
    needs: u64,
    turns: u64,
}

impl LocalReads {
    pub(crate) fn new(defects: &Defects) -> LocalReads {
        LocalReads {
            defects: defects.clone(),
            ..LocalReads::default()
        }
    }

    /// Reads from a file into the buffer. `None` if the member does not serve, another session owns the file, the read fails, or
    /// it has to note the access time: then the request needs a message.
    pub fn read(
        &self,
        file: FileId,
        offset: u64,
        into: &mut [u8],
        note_read: bool,
    ) -> Option<LocalRead> {
        // A change of role closes the pool after the reads that have begun.
        let serving = self.serving.try_read()?;
        let executor = &serving.as_ref()?.executor;
        let turns = self.turns.load(Ordering::Acquire);
        // Before the first permit, writes may be missing that their clients replay.
        let has_served = self.until.load(Ordering::Acquire) > 0;
        if !has_served && !self.defects.has(Defect::LocalReadBeforeReplay) {
            return None;
        }
        // The owner may have answered writes.
        if self.has_other_owner(file) {
            return None;
        }
        let (count, version) = executor.read_into(file, offset, into, note_read).ok()??;
        Some(LocalRead {
            count,
            needs: version + 1,
            turns,
        })
    }

    /// Whether the client of this session may get the data at this time by the node's clock.
    pub fn may_answer(&self, read: &LocalRead, session: u64, now: u64) -> bool {
        let is_permitted = now < self.until.load(Ordering::Acquire);
        let is_confirmed = read.needs <= self.confirmed.load(Ordering::Acquire)
            || self.defects.has(Defect::LocalReadBeforeTails);
        // Read last: whatever was published was for this session, or one before.
        let is_own = session == self.session.load(Ordering::Acquire);
        let is_same_turn = read.turns == self.turns.load(Ordering::Acquire);
        let may = is_permitted && is_confirmed && is_own && is_same_turn;
        self.answered.fetch_add(may.into(), Ordering::Relaxed);
        may
    }

    fn has_other_owner(&self, file: FileId) -> bool {
        let owner = self.owners.read().get(&file.inode).copied();
        owner.is_some_and(|owner| owner != self.session())
            && !self.defects.has(Defect::LocalReadOwned)
    }

    /// Number of reads that were answered.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// The session of the client in this process has a new number.
    pub fn set_session(&self, session: u64) {
        self.session.store(session, Ordering::Release);
    }

    pub(crate) fn session(&self) -> u64 {
        self.session.load(Ordering::Acquire)
    }

    /// Files have other owners from now on. Called before the messages of a step leave the process.
    pub(crate) fn note_owners(&self, changes: &[OwnerChange]) {
        if changes.is_empty() {
            return;
        }
        let mut owners = self.owners.write();
        for OwnerChange { inode, session } in changes {
            match session {
                Some(session) => owners.insert(*inode, *session),
                None => owners.remove(inode),
            };
        }
        drop(owners);
        // Reads that have begun may show a part of what an owner answers.
        if changes.iter().any(|it| it.session.is_some()) {
            self.turns.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// States what the member permits from now on. Called before the messages of a step leave the process.
    pub(crate) fn publish(&self, permit: ReadPermit) {
        self.confirmed.store(permit.confirmed, Ordering::Release);
        self.until.store(permit.until, Ordering::Release);
    }

    /// The pool was opened for changes.
    pub(crate) fn open(&self, serving: Arc<Serving>) {
        let mut open = self.serving.write();
        self.owners.write().clear();
        self.turns.fetch_add(1, Ordering::AcqRel);
        *open = Some(serving);
    }

    /// The pool is about to be closed for changes. Waits for reads that are being executed.
    pub(crate) fn close(&self) {
        let mut open = self.serving.write();
        self.publish(ReadPermit::default());
        self.turns.fetch_add(1, Ordering::AcqRel);
        *open = None;
    }
}

#[cfg(test)]
mod tests;
