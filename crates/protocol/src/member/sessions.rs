//! Sessions and their slots, as the primary has them in memory. What must outlive it is in the image too.

use std::collections::{BTreeMap, BTreeSet};

use super::intent::SessionRecord;
use super::locks::LockTable;
use crate::map::NodeId;
use crate::wire::{ErrorCode, FileId, Outcome, Refusal};

/// The last request of a slot.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotState {
    /// Number of the slot's latest request.
    pub request: u64,
    /// Its answer and the position that all members need before it is sent; `None` while it is executed.
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
    /// It was read from the image, which has no attributes.
    pub is_restored: bool,
}

/// A client's registered presence.
pub(super) struct Session {
    pub index: u32,
    pub client: NodeId,
    pub heard_at: u64,
    pub slots: Vec<SlotState>,
    /// It may have blocks in its grant.
    pub has_grant: bool,
    /// Files to which a replay was refused. Its client is notified when it has resumed.
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
            has_grant: false,
            refusals: Vec::new(),
            is_ending: false,
        }
    }

    /// State in the image. Its answer then is sent when all members in sync have the records below `needs`.
    pub fn restore(record: &SessionRecord, slots: u16, needs: u64, now: u64) -> Session {
        let mut session = Session::new(record.index, record.client, slots, now);
        for (state, (request, outcome)) in session.slots.iter_mut().zip(&record.slots) {
            *state = SlotState {
                request: *request,
                answer: Some(Answer {
                    outcome: outcome.clone(),
                    position: needs,
                    needs,
                    is_restored: true,
                }),
            };
        }
        session.has_grant = record.has_grant;
        session
    }

    /// A replay has ended so.
    pub fn note_replayed(&mut self, file: Option<FileId>, error: Option<ErrorCode>) {
        let is_known = |file| self.refusals.iter().any(|it| it.file == file);
        if let Some((file, error)) = file.zip(error).filter(|(file, _)| !is_known(*file)) {
            self.refusals.push(Refusal { file, error });
        }
    }
}

/// All sessions of a unit.
#[derive(Default)]
pub(super) struct Sessions {
    pub by_number: BTreeMap<u64, Session>,
    pub locks: LockTable,
}

impl Sessions {
    /// An index in the table that no session has, and at which no ended session has left blocks.
    pub fn free_index(&self, most: u32, is_left: impl Fn(u32) -> bool) -> Option<u32> {
        let taken: BTreeSet<u32> = self.by_number.values().map(|it| it.index).collect();
        (0..most).find(|index| !taken.contains(index) && !is_left(*index))
    }
}
