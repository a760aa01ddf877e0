//! Execution of a request by the primary: locks in its own memory, everything else in the store.

use std::sync::Arc;

use super::Member;
use super::intent::{Intent, Slot, Ticket};
use super::locks::LockEdit;
use super::requests::{Executing, Parked};
use super::serve::Primary;
use super::sessions::Answer;
use crate::defects::Defect;
use crate::leases::Grant;
use crate::wire::{Details, ErrorCode, Operation, Outcome};

/// Next step of the primary for a request.
enum Step {
    /// The store executes it.
    Store,
    /// The store records an edit of the session's locks.
    Locks(LockEdit),
    /// It is answered at once.
    Answer(Outcome),
}

impl Member {
    /// Has a request executed.
    pub(super) fn execute(&mut self, parked: Parked, is_replay: bool) {
        let own_unit = self.options.unit;
        let keeps =
            parked.operation.is_change() && !self.defects.has(Defect::ForgetSlotsAtTakeover);
        let ignores_turns = self.defects.has(Defect::GrantReservedLock);
        let Some(primary) = self.primary() else {
            return;
        };
        let Some(session) = primary.sessions.by_number.get_mut(&parked.session) else {
            return;
        };
        let slot = Slot {
            index: session.index,
            session: parked.session,
            slot: parked.slot,
            request: parked.request,
        };
        session.has_grant |= matches!(*parked.operation, Operation::Grant { .. });
        let is_foreign = parked.operation.files().any(|file| file.unit != own_unit);
        let step = if is_foreign {
            Step::Answer(Outcome::failed(ErrorCode::OtherUnit))
        } else {
            next_step(primary, &parked, ignores_turns)
        };
        let ticket = primary.ticket();
        let (intent, edit) = match step {
            Step::Answer(outcome) => return self.answer_at_once(&parked, outcome, is_replay),
            Step::Locks(edit) => {
                primary.waits.locks_changed(parked.operation.file());
                let parts = edit.parts.iter();
                let intent = Intent::NoteLocks {
                    ticket,
                    parts: parts.map(|it| (it.first, it.after.clone())).collect(),
                    count: edit.count,
                    slot,
                };
                (intent, Some(edit))
            }
            Step::Store => {
                let intent = Intent::Execute {
                    ticket,
                    request: parked.id(),
                    operation: parked.operation.clone(),
                    slot: keeps.then_some(slot),
                };
                (intent, None)
            }
        };
        let executing = Executing::Request {
            parked,
            is_replay,
            edit,
        };
        primary.executing.insert(ticket, executing);
        self.out.intents.push_back(intent);
    }

    /// Answers without the store.
    pub(super) fn answer_at_once(&mut self, parked: &Parked, outcome: Outcome, is_replay: bool) {
        let Some(primary) = self.primary() else {
            return;
        };
        // A lock that another session holds is in a record that might still get lost.
        let answer = Answer {
            outcome,
            position: 0,
            needs: primary.position,
            is_restored: false,
        };
        if is_replay {
            return self.note_replayed(parked, answer.outcome.error);
        }
        self.keep_answer(parked, &answer);
        self.answer(parked, answer);
    }

    /// Gives the answer of a slot again. One from the image has no attributes: they are read, and a hold is taken again,
    /// which was lost with the primary before.
    pub(super) fn answer_again(&mut self, now: u64, parked: Parked, mut answer: Answer) {
        if answer.is_restored {
            complete(&mut answer.outcome, &parked.operation);
        }
        let is_whole = !answer.is_restored || !answer.outcome.is_done();
        if is_whole || !parked.operation.returns_attributes() {
            // What it shows may have changed since.
            let grant = match self.defects.has(Defect::GrantWithRepeatedAnswer) {
                true => self.grant_for(now, &parked, &answer.outcome),
                false => Grant::default(),
            };
            return self.answer_with(&parked, answer, grant);
        }
        let file = match &*parked.operation {
            Operation::Create { .. } | Operation::CreateUnnamed { .. } => Some(answer.outcome.file),
            operation => operation.file(),
        };
        let Some((primary, file)) = self.primary().zip(file) else {
            return;
        };
        let operation = if parked.operation.takes_hold() {
            Operation::Hold { file }
        } else {
            Operation::Attributes { file }
        };
        let ticket: Ticket = primary.ticket();
        let intent = Intent::Execute {
            ticket,
            request: parked.id(),
            operation: Arc::new(operation),
            slot: None,
        };
        let recall = Executing::Recall { parked, answer };
        primary.executing.insert(ticket, recall);
        self.out.intents.push_back(intent);
    }

    /// Attributes for an answer from the image were read, or the file is gone: then the answer has none.
    pub(super) fn recalled(
        &mut self,
        parked: &Parked,
        mut answer: Answer,
        read: &Outcome,
        depends_on: u64,
    ) {
        if read.is_done() {
            answer.outcome.file = read.file;
            answer.outcome.attributes = read.attributes;
            answer.needs = answer.needs.max(depends_on);
        }
        answer.is_restored = false;
        self.keep_answer(parked, &answer);
        self.answer(parked, answer);
    }
}

/// Completes an outcome from the image, where a write or copy has the end of its data as count.
fn complete(outcome: &mut Outcome, operation: &Operation) {
    let end = outcome.count;
    match operation {
        Operation::Write { data, .. } => {
            outcome.count = data.len() as u64;
            outcome.offset = end.saturating_sub(outcome.count);
        }
        Operation::CopyRange { to_offset, .. } => {
            outcome.count = end.saturating_sub(*to_offset);
            outcome.offset = *to_offset;
        }
        Operation::Commit { offset, .. } => outcome.offset = *offset,
        _ => {}
    }
}

/// Changes locks in memory, in the order of requests; the record follows.
fn next_step(primary: &mut Primary, parked: &Parked, ignores_turns: bool) -> Step {
    let locks = &mut primary.sessions.locks;
    let session = parked.session;
    let edit = match &*parked.operation {
        Operation::SetLock { file, lock }
            if primary.waits.is_reserved(session, *file, lock) && !ignores_turns =>
        {
            Err(ErrorCode::Locked)
        }
        Operation::SetLock { file, lock } => {
            let edit = locks.set(session, *file, lock);
            if edit.is_ok() {
                primary.waits.taken(session, *file, lock);
            }
            edit
        }
        Operation::Unlock { file, range } => locks.remove(session, *file, range),
        Operation::UnlockHandle { file, handle } => locks.remove_handle(session, *file, *handle),
        Operation::TestLock { file, lock } => {
            let conflict = locks.conflict(session, *file, lock);
            return Step::Answer(Outcome::with(Details::Lock(conflict)));
        }
        _ => return Step::Store,
    };
    match edit {
        Ok(edit) if edit.is_empty() => Step::Answer(Outcome::done()),
        Ok(edit) => Step::Locks(edit),
        Err(error) => Step::Answer(Outcome::failed(error)),
    }
}
