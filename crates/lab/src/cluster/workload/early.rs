//! Writes that a client answers early, under leases for writing, as a mount with `cache=writeback` does.

use std::collections::BTreeMap;

use protocol::answered::Found;
use protocol::client::{Client, Keep, Recalled, Ticket};
use protocol::wire::{Acknowledge, Details, ErrorCode, FileId, Operation, Outcome};
use protocol::{Answered, Defects};

use super::{
    History, Id, MILLISECOND, Response, Time, Unsynced, Worker, WriteAt, answer, kernel_cache, keys,
};

/// Writes are sent after so long.
const SENT_AFTER: Time = 300 * MILLISECOND;

/// An operation that was answered early. The history learns of it when its file was sent: what is lost never happened.
struct Noted {
    file: FileId,
    ids: Vec<Id>,
    answered: Response,
    at: Time,
}

/// An operation that waits until a file was sent.
pub(super) struct Postponed {
    pub operation: Operation,
    pub acknowledge: Acknowledge,
    pub ids: Vec<Id>,
    pub invoked: Time,
}

/// Early answers of one process.
#[derive(Default)]
pub(super) struct Answering {
    early: Answered,
    noted: Vec<Noted>,
    /// Those of which the writes are being sent.
    sending: Vec<Noted>,
    /// Requests by which a file is sent.
    requests: BTreeMap<Ticket, FileId>,
    errors: BTreeMap<FileId, ErrorCode>,
    postponed: Vec<Postponed>,
    recalls: Vec<Recalled>,
}

impl Answering {
    pub fn new(defects: &Defects) -> Answering {
        Answering {
            early: Answered::with_defects(defects.clone()),
            ..Answering::default()
        }
    }

    /// Number of operations that wait, or have to be sent.
    pub fn waiting(&self) -> usize {
        self.postponed.len() + usize::from(self.early.oldest().is_some()) + self.requests.len()
    }

    /// When the next file is to be sent, by the clock of the machine.
    pub fn due(&self) -> Option<u64> {
        self.early.oldest().map(|at| at + SENT_AFTER)
    }

    pub fn is_unsent(&self, file: FileId) -> bool {
        self.early.is_unsent(file)
    }

    fn is_in_the_way(&self, operation: &Operation) -> bool {
        operation.files().any(|file| self.early.is_unsent(file))
    }

    /// The session has ended: all that was not sent is lost.
    pub fn session_over(&mut self, session: Option<u64>) {
        if let Some(session) = session {
            let lost = self.early.session_over(session);
            self.noted.retain(|it| !lost.contains(&it.file));
        }
        self.recalls.clear();
    }
}

impl Worker {
    /// Answers an operation early, or keeps it until its file was sent.
    pub(super) fn use_answered(
        &mut self,
        now: Time,
        operation: &Operation,
        acknowledge: Acknowledge,
        history: &mut History,
    ) -> bool {
        if !self.is_early || self.client.is_none() {
            return false;
        }
        let local = self.local(now);
        let invoke = |history: &mut History, client| {
            let asked = keys(operation, &self.wide).into_iter();
            let ids = asked.map(|(key, asked)| history.invoke(client, key, asked, now));
            ids.collect::<Vec<Id>>()
        };
        let client = self.identity();
        match operation {
            Operation::Write {
                file,
                at: WriteAt::Offset(offset),
                data,
                ..
            } => {
                let is_shared = self.files.contains(file);
                let early = &mut self.answering.early;
                if is_shared && early.write(local, *file, *offset, data, None) {
                    let ids = invoke(history, client);
                    self.keeping.begin(file.inode);
                    self.keeping.end(file.inode);
                    self.note(*file, ids, Response::Written, now);
                    return true;
                }
            }
            Operation::Read {
                file,
                offset,
                length,
                ..
            } => {
                let early = &self.answering.early;
                if let Found::Here(data) = early.read(local, *file, *offset, *length as usize) {
                    let outcome = Outcome::with(Details::Data(data.into()));
                    if let Some(answered) = answer(operation, &outcome, &self.wide) {
                        let ids = invoke(history, client);
                        self.note(*file, ids, answered, now);
                    }
                    self.kept += 1;
                    return true;
                }
            }
            _ => {}
        }
        let skips = matches!(operation, Operation::Read { .. })
            && self.defects.has(protocol::Defect::SkipAnswered);
        if skips || !self.answering.is_in_the_way(operation) {
            return false;
        }
        let ids = invoke(history, client);
        self.answering.postponed.push(Postponed {
            operation: operation.clone(),
            acknowledge,
            ids,
            invoked: now,
        });
        true
    }

    fn note(&mut self, file: FileId, ids: Vec<Id>, answered: Response, at: Time) {
        self.answering.noted.push(Noted {
            file,
            ids,
            answered,
            at,
        });
    }

    /// A write was executed: the file may be the session's own.
    pub(super) fn take_ownership(
        &mut self,
        client: &Client,
        ticket: Ticket,
        outcome: &Outcome,
        keep: Keep,
    ) {
        let known = self.answering.requests.get(&ticket).copied();
        let pending = self.pending.get(&ticket);
        let file = known.or_else(|| pending.and_then(|it| it.operation.file()));
        let Some(file) = file.filter(|_| keep.covers.owned) else {
            return;
        };
        if let Some(ownership) = client.ownership(file.inode) {
            let end = match known {
                Some(_) => 0,
                None => outcome.offset + outcome.count,
            };
            self.answering.early.granted(file, ownership, end);
        }
    }

    /// A write of a file that is sent has ended. Returns false for other requests.
    pub(super) fn was_sent(
        &mut self,
        now: Time,
        ticket: Ticket,
        outcome: &Outcome,
        history: &mut History,
    ) -> bool {
        let own = &mut self.answering;
        let Some(file) = own.requests.remove(&ticket) else {
            return false;
        };
        if let Some(error) = outcome.error {
            own.errors.entry(file).or_insert(error);
        }
        if own.requests.values().any(|other| *other == file) {
            return true;
        }
        let error = own.errors.remove(&file);
        own.early.sent(file, error);
        self.keeping.end(file.inode);
        let sent: Vec<Noted> = own.sending.extract_if(.., |it| it.file == file).collect();
        if error.is_some() {
            // Only a client with a defect sends them again.
            if self.defects.has(protocol::Defect::FlushInNextSession) {
                own.noted.extend(sent);
            }
            return true;
        }
        for Noted {
            ids, answered, at, ..
        } in sent
        {
            for id in &ids {
                history.complete(*id, answered, at);
            }
            if answered == Response::Written {
                self.unsynced.push(Unsynced {
                    ids,
                    file,
                    invoked: at,
                    completed: now,
                });
            }
        }
        true
    }

    /// A lease is recalled, and the caches have dropped it: answers when its file was sent.
    pub(super) fn answer_recall(&mut self, client: &mut Client, recalled: Recalled) {
        match self.answering.early.unsent(recalled.inode) {
            Some(_) => self.answering.recalls.push(recalled),
            None => client.invalidated(recalled),
        }
    }

    pub(super) fn close_early(&mut self, now: Time, recalled: &Recalled) {
        let local = self.local(now);
        self.answering.early.recalled(local, recalled);
    }

    /// Sends what is due, and goes on with what waited for it.
    pub(super) fn send_answered(&mut self, now: Time, client: &mut Client) {
        let local = self.local(now);
        let own = &mut self.answering;
        let old = local.checked_sub(SENT_AFTER);
        let mut files = old.map_or(Vec::new(), |old| own.early.due(Some(old)));
        let waits = own.postponed.iter().flat_map(|it| it.operation.files());
        files.extend(waits);
        let recalled = own.recalls.iter();
        files.extend(recalled.filter_map(|it| own.early.unsent(it.inode)));
        for file in files {
            let Some(taken) = self.answering.early.take(file, usize::MAX) else {
                continue;
            };
            self.keeping.begin(file.inode);
            let own = &mut self.answering;
            let noted = own.noted.extract_if(.., |it| it.file == file);
            own.sending.extend(noted);
            for write in taken.writes {
                let acknowledge = Acknowledge::Primary;
                let ticket = client.submit_in(local, taken.session, write, acknowledge);
                own.requests.insert(ticket, file);
            }
        }
        let own = &mut self.answering;
        let early = &own.early;
        let is_clean = |it: &mut Recalled| early.unsent(it.inode).is_none();
        for recalled in own.recalls.extract_if(.., is_clean) {
            client.invalidated(recalled);
        }
        let postponed = std::mem::take(&mut own.postponed);
        for waiting in postponed {
            match self.answering.is_in_the_way(&waiting.operation) {
                true => self.answering.postponed.push(waiting),
                false => self.submit(now, client, waiting),
            }
        }
    }

    /// Asks the cluster for an operation that the history has.
    pub(super) fn submit(&mut self, now: Time, client: &mut Client, asked: Postponed) {
        let local = self.local(now);
        let Postponed {
            operation,
            acknowledge,
            ids,
            invoked,
        } = asked;
        if let Some(inode) = kernel_cache::changed_inode(&operation) {
            self.keeping.begin(inode);
        }
        let changed = kernel_cache::changed_inode(&operation);
        let read = kernel_cache::read_inode(&operation).or(changed);
        let stamp = read.map_or(0, |inode| self.keeping.stamp(inode));
        let owns = self.is_early
            && matches!(&operation, Operation::Write { file, at: WriteAt::Offset(_), .. } if self.files.contains(file));
        let ticket = match owns {
            true => client.submit_owning(local, operation.clone(), acknowledge),
            false => client.submit(local, operation.clone(), acknowledge),
        };
        let pending = super::Pending {
            ids,
            operation,
            acknowledge,
            invoked,
            stamp,
            page: None,
            window: None,
        };
        self.pending.insert(ticket, pending);
    }
}
