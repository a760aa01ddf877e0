//! Work of a new primary before it serves: it hears all sessions, and executes lost writes again.
//!
//! A client was told that its write is done when only the old primary had it. It keeps such writes until it learns that
//! all members in sync have them, and sends the remaining ones to the new primary. They are executed in their original
//! order, over all clients: between two writes of one byte by two clients the later one has to win again. Sessions that
//! do not resume are ended; their unsynced writes may be lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Member;
use super::intent::{Intent, SessionRecord};
use super::requests::{Executing, Parked};
use super::serve::Primary;
use super::sessions::{Session, SlotState};
use crate::defects::Defect;
use crate::map::Sequence;
use crate::wire::{Acknowledge, Body, ErrorCode, FileId, Held, Operation, Replay};

/// State of a new primary before it serves.
pub(super) struct Replaying {
    /// Sessions that were not heard of yet, and until when they are waited for.
    missing: BTreeSet<u64>,
    until: u64,
    /// All writes to be executed again, with their sessions.
    replays: Vec<(Sequence, u64, Replay)>,
    /// The same in order, once all sessions were heard.
    queue: Option<VecDeque<(u64, Replay)>>,
    /// Sessions and their slots in which one was refused, and why.
    refused: BTreeMap<(u64, u16), ErrorCode>,
    /// Files that sessions hold, as far as reported.
    holds: BTreeMap<u64, BTreeMap<FileId, u64>>,
    /// Number of replayed intents that are in flight.
    left: usize,
}

impl Replaying {
    /// Sessions have so much longer to resume.
    pub fn discount(&mut self, pause: u64) {
        self.until = self.until.saturating_add(pause);
    }
}

/// Most files that a session holds across a takeover.
const HOLDS_MAX: usize = 1 << 20;

impl Primary {
    /// A session reports its held files, before it resumes.
    pub fn note_holds(&mut self, session: u64, holds: Vec<Held>) {
        let replaying = self.replaying.as_mut();
        if let Some(replaying) = replaying.filter(|it| it.missing.contains(&session)) {
            let known = replaying.holds.entry(session).or_default();
            known.extend(holds.iter().map(|held| (held.file, held.count)));
            while known.len() > HOLDS_MAX {
                known.pop_last();
            }
        }
    }
}

impl Member {
    pub(super) fn restore_sessions(&mut self, now: u64, records: &[SessionRecord]) {
        let (timeout, slots) = (self.options.session_ns, self.options.slots);
        let forgets_locks = self.defects.has(Defect::ForgetLocksAtTakeover);
        let Some(primary) = self.primary() else {
            return;
        };
        let needs = primary.position;
        for record in records {
            let session = Session::restore(record, slots, needs, now);
            primary.sessions.by_number.insert(record.session, session);
            if !forgets_locks {
                let locks = &mut primary.sessions.locks;
                locks.put(record.session, 0, &record.locks);
            }
        }
        primary.replaying = Some(Replaying {
            missing: records.iter().map(|record| record.session).collect(),
            until: now + timeout,
            replays: Vec::new(),
            queue: None,
            refused: BTreeMap::new(),
            holds: BTreeMap::new(),
            left: 0,
        });
    }

    pub(super) fn handle_resume(
        &mut self,
        now: u64,
        session: u64,
        holds: u64,
        replays: Vec<Replay>,
    ) {
        let forgets_holds = self.defects.has(Defect::ForgetHolds);
        let Some(primary) = self.primary() else {
            return;
        };
        let mut restored = None;
        match &mut primary.replaying {
            Some(replaying) => {
                let known = replaying.holds.get(&session).map_or(0, BTreeMap::len);
                if known < holds.min(HOLDS_MAX as u64) as usize {
                    // Some of them were lost on the way. The client sends all again.
                    return;
                }
                restored = replaying.holds.remove(&session);
                if replaying.missing.remove(&session) && replaying.queue.is_none() {
                    // Nothing but writes is answered before it is confirmed.
                    let its = replays
                        .into_iter()
                        .filter(|replay| replay.operation.is_write())
                        .map(|replay| (replay.sequence, session, replay));
                    replaying.replays.extend(its);
                }
            }
            // The answer got lost. Its replays were executed, or it would have been ended.
            None => self.welcome_back(session),
        }
        if let Some(restored) = restored.filter(|_| !forgets_holds) {
            let held = restored
                .into_iter()
                .map(|(file, count)| Held { file, count });
            let holds = held.collect();
            self.out
                .intents
                .push_back(Intent::RestoreHolds { session, holds });
        }
        self.go_on_replaying(now);
    }

    /// Has files reclaimed that were removed while a session held them that has ended, or that is not known to hold them.
    /// A few at a time, as far as the window has room.
    pub(super) fn reclaim_orphans(&mut self) {
        let window = self.options.window;
        let Some(primary) = self.primary() else {
            return;
        };
        let is_running = |it: &Executing| matches!(it, Executing::ReclaimOrphans);
        let waits = primary.replaying.is_some()
            || primary.is_full(window)
            || primary.executing.values().any(is_running);
        if !primary.has_orphans || waits {
            return;
        }
        let ticket = primary.ticket();
        primary.executing.insert(ticket, Executing::ReclaimOrphans);
        self.out
            .intents
            .push_back(Intent::ReclaimOrphans { ticket });
    }

    fn welcome_back(&mut self, session: u64) {
        let Some(primary) = self.primary() else {
            return;
        };
        let needs = primary.position;
        if let Some(known) = primary.sessions.by_number.get(&session) {
            let (client, refusals) = (known.client, known.refusals.clone());
            self.tell_client_when(needs, client, session, Body::Resumed { refusals });
        }
    }

    /// A replay was executed, or refused.
    pub(super) fn note_replayed(&mut self, parked: &Parked, error: Option<ErrorCode>) {
        let replaying = self.primary().and_then(|it| it.replaying.as_mut());
        if let Some((replaying, error)) = replaying.zip(error) {
            let slot = (parked.session, parked.slot);
            replaying.refused.insert(slot, error);
        }
        self.note_refusal(parked.session, &parked.operation, error);
        self.replayed();
    }

    fn note_refusal(&mut self, session: u64, operation: &Operation, error: Option<ErrorCode>) {
        let sessions = self.primary().map(|it| &mut it.sessions.by_number);
        if let Some(session) = sessions.and_then(|it| it.get_mut(&session)) {
            session.note_replayed(operation.changes(), error);
        }
    }

    /// One of the intents was executed.
    pub(super) fn replayed(&mut self) {
        if let Some(replaying) = self.primary().and_then(|it| it.replaying.as_mut()) {
            replaying.left = replaying.left.saturating_sub(1);
        }
    }

    /// Takes the next steps towards serving, as far as they can be taken now.
    pub(super) fn go_on_replaying(&mut self, now: u64) {
        while self.take_step(now) {}
    }

    /// Takes one step; `false` if there is none to take now.
    fn take_step(&mut self, now: u64) -> bool {
        let window = self.options.window;
        let out_of_order = self.defects.has(Defect::ReplayOutOfOrder);
        let waits = !self.defects.has(Defect::ServeBeforeReplay);
        let changes_named = self.defects.has(Defect::ChangeNamedData);
        let Some(primary) = self.primary() else {
            return false;
        };
        let is_full = primary.position > primary.confirmed + window;
        let Some(replaying) = &mut primary.replaying else {
            return false;
        };
        if replaying.left > 0 {
            return false;
        }
        let Some(queue) = &mut replaying.queue else {
            let is_caught_up = primary.confirmed >= primary.opened_at || changes_named;
            let is_complete = replaying.missing.is_empty() || now >= replaying.until || !waits;
            if is_complete && is_caught_up {
                replaying.replays.sort_by_key(|(sequence, _, _)| *sequence);
                if out_of_order {
                    replaying.replays.reverse();
                }
                let replays = std::mem::take(&mut replaying.replays);
                let queue = replays.into_iter().map(|(_, session, it)| (session, it));
                replaying.queue = Some(queue.collect());
                let mut silent = std::mem::take(&mut replaying.missing);
                silent.retain(|_| waits);
                replaying.left = silent.len();
                for session in silent {
                    self.end_session(session, None);
                }
                return true;
            }
            return false;
        };
        let is_held = queue.front().is_some_and(|(_, replay)| {
            let file = replay.operation.changes();
            file.is_some_and(|file| primary.held_files.contains_key(&file)) && !changes_named
        });
        if is_full || is_held {
            return false;
        }
        match queue.pop_front() {
            Some((session, replay)) => {
                self.replay(session, replay);
                true
            }
            None => {
                primary.replaying = None;
                let sessions: Vec<u64> = primary.sessions.by_number.keys().copied().collect();
                for session in sessions {
                    self.welcome_back(session);
                }
                false
            }
        }
    }

    /// Executes a request again, unless the image has it. After a refused one no other of its slot is: its record would
    /// tell the next primary that all before it were executed, and this one may die before it notifies the client.
    fn replay(&mut self, session: u64, replay: Replay) {
        let Some(primary) = self.primary() else {
            return;
        };
        let refused = primary.replaying.as_ref().map(|it| &it.refused);
        let error = refused.and_then(|it| it.get(&(session, replay.slot)).copied());
        if error.is_some() {
            return self.note_refusal(session, &replay.operation, error);
        }
        let known = primary.sessions.by_number.get_mut(&session);
        let slot = known.and_then(|it| it.slots.get_mut(usize::from(replay.slot)));
        let Some(state) = slot.filter(|state| state.request < replay.request) else {
            return;
        };
        *state = SlotState {
            request: replay.request,
            answer: None,
        };
        if let Some(replaying) = &mut primary.replaying {
            replaying.left += 1;
        }
        let parked = Parked {
            session,
            request: replay.request,
            slot: replay.slot,
            acknowledge: Acknowledge::All,
            wants_lease: false,
            operation: replay.operation,
            targets: None,
        };
        self.execute(parked, true);
    }
}
