//! Intents of a primary on the store: requests with their slots, locks, sessions.

use std::sync::Arc;

use parking_lot::Mutex;
use protocol::member::{Completion, LockRun, RequestId, Slot, Ticket};
use protocol::wire::{ErrorCode, FileId, Held, Operation, Outcome};
use protocol::{Defect, Defects};
use store::{Error, Fallocate, LiveInode, Reply, Transaction, WriteAt};

use crate::executor::{Executor, Request};
use crate::table;

const _: () = assert!(operations::NAME_LENGTH_MAX == store::NAME_LENGTH_MAX);
const _: () = assert!(operations::DATA_MAX == store::ATOMIC_WRITE_MAX);

/// A pool that is open for changes, and the files of its sessions.
pub struct Serving {
    pub executor: Executor,
    pub sessions: Arc<LiveInode>,
    pub locks: Arc<LiveInode>,
    /// Blocks that a session's grant may have.
    pub grant_blocks: u32,
    /// Removed files that were there when the pool was opened, and are to be reclaimed.
    pub orphans: Mutex<Vec<u64>>,
    /// Rules that are broken.
    pub defects: Defects,
}

/// Removed files that are reclaimed at a time.
const RECLAIMED_AT_ONCE: usize = 4;

impl Serving {
    /// Executes a client's request in the store.
    /// The record of a change carries its answer.
    pub fn execute(
        &self,
        ticket: Ticket,
        request: RequestId,
        operation: &Operation,
        slot: Option<&Slot>,
    ) -> Completion {
        // Before the change: its record contains the answer.
        if let Err(error) = self.prepare(operation, slot) {
            return self.noted(ticket, Err(error));
        }
        let before = self.executor.store.volume().tail().number;
        let slot = slot.filter(|_| operation.is_change());
        let request = Request {
            id: request,
            operation,
        };
        let reply = slot.map(|slot| self.reply(slot, operation));
        let mut transaction = match &reply {
            Some(reply) => Transaction::with_reply(reply),
            None => Transaction::embedded(),
        };
        let result = match self.run_active(&mut transaction, operation, slot) {
            Some(result) => result,
            None => self.executor.run(&mut transaction, &request),
        };
        let (outcome, version) = match result {
            Ok(executed) => (executed.outcome, Some(executed.version)),
            Err(error) => (Outcome::failed(error.code()), None),
        };
        let mut position = transaction.position();
        // A commit of damaged data is executed, and refused: its data comes again.
        let is_answered = !transaction.has_carried_reply() && outcome.is_done();
        if let Some(slot) = slot.filter(|_| is_answered) {
            position = self.note_answer(slot, operation, &outcome).or(position);
        }
        if slot.is_some() && self.defects.has(Defect::TakeNeighboursPosition) {
            position = position.map(|_| before);
        }
        // Read after the execution: what it has seen was applied, and so persistent before. Records that other threads
        // have made meanwhile may count too: then the answer waits longer than it has to.
        let tail = self.executor.store.volume().tail().number;
        Completion::Executed {
            ticket,
            outcome,
            position,
            tail,
            depends_on: version.map_or(tail, |version| tail.min(version + 1)),
            is_by_reference: operation.names_data(),
        }
    }

    /// Records that may be made again if the request is executed again.
    fn prepare(&self, operation: &Operation, slot: Option<&Slot>) -> Result<(), Error> {
        match (operation, slot) {
            (Operation::Grant { .. }, Some(slot)) => self.make_grant(slot.index),
            (
                Operation::Write {
                    file,
                    drop_privileges: Some(set_id),
                    ..
                }
                | Operation::Commit {
                    file,
                    drop_privileges: Some(set_id),
                    ..
                },
                _,
            ) => {
                let node = self.executor.node(*file)?;
                self.executor.store.inodes().drop_privileges(&node, *set_id)
            }
            _ => Ok(()),
        }
    }

    /// The reply that the record of a change puts into the slot.
    fn reply(&self, slot: &Slot, operation: &Operation) -> Reply<'_> {
        let (answer, wr_ids) = expected(operation);
        let writes = matches!(
            operation,
            Operation::Write { .. } | Operation::CopyRange { .. }
        );
        Reply {
            file: &self.sessions,
            offset: table::slot_offset(slot),
            bytes: table::slot(slot, &answer, wr_ids),
            inode_at: Some(table::INODE_AT),
            end_at: writes.then_some(table::END_AT),
        }
    }

    /// Stores an answer in a separate record, for a request that had nothing to change, and returns the record's end.
    fn note_answer(&self, slot: &Slot, operation: &Operation, outcome: &Outcome) -> Option<u64> {
        let (mut answer, _) = expected(operation);
        if matches!(
            operation,
            Operation::Write { .. } | Operation::CopyRange { .. }
        ) {
            answer.count = outcome.offset + outcome.count;
        }
        let entry = table::slot(slot, &answer, [0; 2]);
        let at = WriteAt::Offset(table::slot_offset(slot));
        let mut transaction = Transaction::embedded();
        let store = &self.executor.store;
        // The block is there: the session was opened with it. If it can't be written, the request is executed again.
        let _ = store
            .files()
            .write(&mut transaction, &self.sessions, at, &entry);
        transaction.position()
    }

    /// Records locks, a record for each part, the last with the answer to the request that changes them.
    pub fn note_locks(
        &self,
        ticket: Ticket,
        parts: &[LockRun],
        count: u64,
        slot: &Slot,
    ) -> Completion {
        let answer = Outcome {
            count,
            ..Outcome::default()
        };
        let reply = Reply {
            file: &self.sessions,
            offset: table::slot_offset(slot),
            bytes: table::slot(slot, &answer, [0; 2]),
            inode_at: None,
            end_at: None,
        };
        let mut transaction = Transaction::with_reply(&reply);
        let (last, others) = parts.split_last().expect("an edit changes something");
        let mut others = others.iter();
        let result = others
            .try_for_each(|part| self.write_locks(&mut Transaction::embedded(), slot, part))
            .and_then(|()| self.write_locks(&mut transaction, slot, last));
        let mut completion = self.noted(ticket, result);
        if let Completion::Executed {
            outcome, position, ..
        } = &mut completion
        {
            outcome.count = count;
            *position = transaction.position();
        }
        completion
    }

    fn write_locks(
        &self,
        transaction: &mut Transaction<'_>,
        slot: &Slot,
        (first, locks): &LockRun,
    ) -> Result<(), Error> {
        let offset = table::locks_offset(slot.index) + (first * table::ENTRY) as u64;
        let entries = locks.iter().map(|held| table::lock(slot.session, *held));
        let entries: Vec<u8> = entries.flatten().collect();
        let (files, at) = (self.executor.store.files(), WriteAt::Offset(offset));
        files
            .write(transaction, &self.locks, at, &entries)
            .map(|_| ())
    }

    /// Frees the blocks of a session's locks but the first one, which is kept for the next session.
    fn free_locks(&self, index: u32) -> Result<(), Error> {
        let start = table::locks_offset(index) + store::BLOCK as u64;
        let end = table::locks_offset(index) + table::LOCKS;
        let files = self.executor.store.files();
        match files.next_data(&self.locks, start)? {
            Some(data) if data < end => files.fallocate(
                &mut Transaction::embedded(),
                &self.locks,
                Fallocate::PunchHole,
                start,
                end - start,
            ),
            _ => Ok(()),
        }
    }

    /// Begins a session in the table of sessions.
    /// Slots and locks of earlier sessions do not name it.
    pub fn open_session(
        &self,
        ticket: Ticket,
        index: u32,
        session: u64,
        client: u32,
    ) -> Completion {
        let at = WriteAt::Offset(table::block_offset(index));
        let mut block = [0; store::BLOCK];
        block[..table::ENTRY].copy_from_slice(&table::header(session, client));
        let opened = self.executor.store.files().write(
            &mut Transaction::embedded(),
            &self.sessions,
            at,
            &block,
        );
        self.noted(ticket, opened.map(|_| ()))
    }

    /// Ends a session: its slots and locks do not count any more, its holds are released. Its grant stays.
    pub fn end_session(&self, ticket: Ticket, session: u64, index: u32) -> Completion {
        let ended = self.try_to_end(index);
        // Blocks that stay are freed when the next session of this index ends.
        let _ = self.free_locks(index);
        for file in self.executor.holds.end(session) {
            self.executor.release_all(file);
        }
        self.noted(ticket, ended)
    }

    /// Holds files again that a session held under the primary before. A file that is gone stays gone.
    pub fn restore_holds(&self, session: u64, holds: &[Held]) {
        let executor = &self.executor;
        for held in holds.iter().filter(|held| held.count > 0) {
            let node = executor.node(held.file);
            if let Ok(node) = node
                && executor.store.inodes().hold(&node).is_ok()
            {
                executor.holds.restore(session, held);
            }
        }
    }

    /// Frees a few removed files that no session holds.
    pub fn reclaim_orphans(&self, ticket: Ticket) -> Completion {
        let (some, left) = {
            let mut orphans = self.orphans.lock();
            let rest = orphans.len().saturating_sub(RECLAIMED_AT_ONCE);
            (orphans.split_off(rest), orphans.len())
        };
        for number in some {
            // Damage in an orphan must not keep the unit from serving: it stays one, and `check` reports it.
            let _ = self.executor.store.inodes().reclaim_orphan(number);
        }
        let mut completion = self.noted(ticket, Ok(()));
        if let Completion::Executed { outcome, .. } = &mut completion {
            outcome.count = left as u64;
        }
        completion
    }

    fn try_to_end(&self, index: u32) -> Result<(), Error> {
        let store = &self.executor.store;
        let at = table::block_offset(index);
        let mut header = [0; table::ENTRY];
        store.files().read(&self.sessions, at, &mut header)?;
        let header = table::ended(&header);
        let at = WriteAt::Offset(at);
        store
            .files()
            .write(&mut Transaction::embedded(), &self.sessions, at, &header)?;
        Ok(())
    }

    /// The completion of records that have no request, or may be several: all that there are by now count.
    pub(crate) fn noted(&self, ticket: Ticket, result: Result<(), Error>) -> Completion {
        let tail = self.executor.store.volume().tail().number;
        let outcome = match result {
            Ok(()) => Outcome::done(),
            Err(error) => Outcome::failed(error.code()),
        };
        Completion::Executed {
            ticket,
            outcome,
            position: Some(tail),
            tail,
            depends_on: tail,
            is_by_reference: false,
        }
    }

    pub(crate) fn node(&self, file: FileId) -> Result<Arc<LiveInode>, Error> {
        self.executor.node(file)
    }
}

/// The outcome that the record of a change has, as far as it is known before, and the transfers that brought its data.
fn expected(operation: &Operation) -> (Outcome, [u64; 2]) {
    let mut outcome = Outcome::default();
    let mut transfers = [0; 2];
    match operation {
        Operation::SetAttributes { file, .. } | Operation::Link { file, .. } => {
            outcome.file = *file;
        }
        Operation::Commit {
            wr_ids, checksums, ..
        } => {
            outcome.count = (checksums.len() * store::BLOCK) as u64;
            transfers = *wr_ids;
        }
        _ => {}
    }
    (outcome, transfers)
}

/// The data of a commit has to be sent again.
pub(crate) fn again() -> Outcome {
    Outcome::failed(ErrorCode::Again)
}
