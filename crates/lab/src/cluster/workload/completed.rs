//! Operations that have ended, as the history notes them.

use super::outcomes::{answer, is_refused};
use super::rare::listed;
use super::{
    Acknowledge, ErrorCode, History, Lost, Operation, Outcome, Pending, Response, SYNCED_WITHIN,
    Ticket, Time, Unsynced, Worker, renamed,
};

impl Worker {
    /// An fsync has ended, or reports that a write before it failed: then any of them may not have happened.
    fn synced(
        &mut self,
        now: Time,
        sync: &Pending,
        is_done: bool,
        history: &mut History,
        lost: &mut Lost,
    ) {
        let file = sync.operation.file();
        let is_of = |write: &Unsynced| file.is_none_or(|file| write.file == file);
        let is_new = |write: &Unsynced| is_of(write) && write.completed + SYNCED_WITHIN >= now;
        self.has_synced |= is_done && self.unsynced.iter().any(is_new);
        let is_before = |write: &mut Unsynced| is_of(write) && write.completed <= sync.invoked;
        let left_behind = self.left_behind.extract_if(.., is_before);
        let unsynced = self.unsynced.extract_if(.., is_before).chain(left_behind);
        if is_done {
            unsynced.for_each(drop);
        } else {
            lost.writes.extend(unsynced.map(|it| (it.ids, it.invoked)));
        }
        for write in self.sent.extract_if(.., is_before).filter(|_| is_done) {
            for id in write.ids {
                history.complete(id, Response::Written, now);
            }
        }
    }

    pub(super) fn done(
        &mut self,
        now: Time,
        ticket: Ticket,
        outcome: &Outcome,
        history: &mut History,
        lost: &mut Lost,
    ) {
        let Some(pending) = self.pending.remove(&ticket) else {
            return;
        };
        if let (Some(_), Operation::Attributes { .. }) = (&pending.page, &pending.operation) {
            return self.attributes_read(now, pending, outcome, history);
        }
        if self.is_wide {
            let times = (pending.invoked, now);
            let answered = (&pending.operation, outcome);
            let client = self.identity();
            self.locks
                .answered(client, times, answered, &mut lost.waits);
            self.wide.answered(&pending.operation, outcome);
        }
        let is_done = outcome.is_done();
        let is_read = matches!(pending.operation, Operation::Read { .. });
        self.has_met_damage |= is_read && outcome.error == Some(ErrorCode::Corrupt);
        self.note_held(&pending.operation, outcome);
        match &pending.operation {
            Operation::CloseSession if is_done => {
                self.lose(pending.invoked, now, lost);
                lost.closed += 1;
            }
            Operation::Sync { .. } | Operation::SyncAll => {
                self.synced(now, &pending, is_done, history, lost);
            }
            Operation::Write { file, .. } if is_done => {
                let write = Unsynced {
                    ids: pending.ids.clone(),
                    file: *file,
                    invoked: pending.invoked,
                    completed: now,
                };
                match pending.acknowledge {
                    Acknowledge::Sent => return self.sent.push(write),
                    Acknowledge::Primary => self.unsynced.push(write),
                    Acknowledge::All => {}
                }
            }
            _ => {}
        }
        match (&pending.operation, &pending.ids[..]) {
            (Operation::Rename { mode, .. }, [from, to]) => {
                return renamed(now, (*mode, outcome.error), (*from, *to), history);
            }
            (Operation::ReadDirectory { .. }, ids) => return listed(now, ids, outcome, history),
            _ => {}
        }
        if is_refused(&pending.operation, outcome) {
            pending.ids.iter().for_each(|id| history.withdraw(*id));
            return;
        }
        for id in &pending.ids {
            if let Some(answered) = answer(&pending.operation, outcome, &self.wide) {
                history.complete(*id, answered, now);
            }
        }
    }
}
