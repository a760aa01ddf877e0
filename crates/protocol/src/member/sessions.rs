//! Sessions, their slots and locks, as the primary has them in memory. What must outlive it is in the image too.

use std::collections::BTreeMap;

use super::intent::SessionRecord;
use crate::map::NodeId;
use crate::wire::{FileId, Outcome, Refusal, Status};

/// Locks that a session may hold.
pub const LOCKS_MAX: usize = 32;

/// The last request of a slot.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotState {
    /// Its number.
    pub request: u64,
    /// Its answer and what must be at all members before it is given; `None` while it is carried out.
    pub answer: Option<Answer>,
}

/// An answer that may be asked for again.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub outcome: Outcome,
    /// Where its record ends, 0 for none.
    pub position: u64,
    /// Before all members in sync have the records below, it is not given.
    pub needs: u64,
}

/// A client's registered presence.
pub(super) struct Session {
    pub index: u32,
    pub client: NodeId,
    pub heard_at: u64,
    pub slots: Vec<SlotState>,
    pub locks: Vec<Option<FileId>>,
    /// It may have blocks in its grant.
    pub has_grant: bool,
    /// Files to which a replay was refused. Its client is told when it has resumed.
    pub refusals: Vec<Refusal>,
    /// It is being ended: nothing is done for it any more.
    pub is_ending: bool,
}

impl Session {
    pub fn new(index: u32, client: NodeId, slots: u16, now: u64) -> Session {
        Session {
            index,
            client,
            heard_at: now,
            slots: vec![SlotState::default(); usize::from(slots)],
            locks: vec![None; LOCKS_MAX],
            has_grant: false,
            refusals: Vec::new(),
            is_ending: false,
        }
    }

    /// As the image has it. What it answered then is given when all members in sync have the records below `needs`.
    pub fn restore(record: &SessionRecord, slots: u16, needs: u64, now: u64) -> Session {
        let mut session = Session::new(record.index, record.client, slots, now);
        for (state, (request, outcome)) in session.slots.iter_mut().zip(&record.slots) {
            *state = SlotState {
                request: *request,
                answer: Some(Answer {
                    outcome: outcome.clone(),
                    position: needs,
                    needs,
                }),
            };
        }
        session.has_grant = record.has_grant;
        for (lock, known) in session.locks.iter_mut().zip(&record.locks) {
            *lock = *known;
        }
        session
    }

    /// A replay has ended so.
    pub fn note_replayed(&mut self, file: Option<FileId>, status: Status) {
        let is_known = |file| self.refusals.iter().any(|it| it.file == file);
        if let Some(file) = file.filter(|file| status != Status::Done && !is_known(*file)) {
            self.refusals.push(Refusal { file, status });
        }
    }
}

/// All sessions of a unit.
#[derive(Default)]
pub(super) struct Sessions {
    pub by_number: BTreeMap<u64, Session>,
}

impl Sessions {
    /// A place in the table that no session has, and none that is over has left blocks at.
    pub fn free_index(&self, most: u32, is_left: impl Fn(u32) -> bool) -> Option<u32> {
        let is_taken = |index| self.by_number.values().any(|it| it.index == index);
        (0..most).find(|index| !is_taken(*index) && !is_left(*index))
    }

    /// Who has a file's lock, and where among its locks.
    pub fn holder(&self, file: FileId) -> Option<(u64, u16)> {
        self.by_number.iter().find_map(|(number, session)| {
            let place = session.locks.iter().position(|lock| *lock == Some(file))?;
            Some((*number, place as u16))
        })
    }
}
