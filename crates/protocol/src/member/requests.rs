//! Requests of clients to the primary: each executed once, and answered when enough members have it.

use std::sync::Arc;

use super::intent::{Completion, Intent, RequestId, Ticket};
use super::locks::LockEdit;
use super::sessions::{Answer, Session, SlotState};
use super::{Member, Out};
use crate::NO_SLOT;
use crate::defects::Defect;
use crate::leases::Grant;
use crate::map::NodeId;
use crate::wire::{Acknowledge, Body, Envelope, Message, Operation, Outcome};

/// A request on its way through the primary.
#[derive(Clone, Debug)]
pub(super) struct Parked {
    pub session: u64,
    pub request: u64,
    pub slot: u16,
    pub acknowledge: Acknowledge,
    pub wants_lease: bool,
    pub operation: Arc<Operation>,
    /// Files behind the names that it changes, once they are known.
    pub targets: Option<Targets>,
}

/// The files that names lead to.
#[derive(Clone, Debug)]
pub(super) struct Targets {
    pub inodes: Vec<u64>,
    /// Number of changes begun by then.
    pub begun: u64,
}

impl Parked {
    pub fn id(&self) -> RequestId {
        RequestId {
            session: self.session,
            slot: self.slot,
            number: self.request,
        }
    }
}

/// Purpose of an intent.
pub(super) enum Executing {
    Request {
        parked: Parked,
        is_replay: bool,
        /// The edit of the session's locks that is being recorded.
        edit: Option<LockEdit>,
    },
    /// Attributes are read for an answer that was given before.
    Recall {
        parked: Parked,
        answer: Answer,
    },
    /// The files behind the names of a change are looked up.
    Resolve {
        parked: Parked,
    },
    OpenSession {
        session: u64,
        request: u64,
        client: NodeId,
    },
    EndSession {
        session: u64,
        /// Number of the request of its client that closes it.
        request: Option<u64>,
    },
    FreeGrant {
        session: u64,
    },
    ReclaimOrphans,
}

/// A message that waits until all members in sync have the records below `needs`.
pub(super) struct Waiting {
    needs: u64,
    pub to: NodeId,
    pub session: u64,
    pub request: u64,
    pub body: Body,
    /// The answer shows contents of files, so that it needs leases.
    is_service: bool,
}

impl Waiting {
    pub fn for_member(to: NodeId, body: Body, needs: u64) -> Waiting {
        Waiting {
            needs,
            to,
            session: 0,
            request: 0,
            body,
            is_service: false,
        }
    }
}

impl Out {
    fn send_to_client(&mut self, envelope: Envelope, to: NodeId, body: Body) {
        self.send(vec![to], Message { envelope, body });
    }
}

impl Member {
    fn envelope_of(&self, session: u64, request: u64) -> Envelope {
        Envelope {
            cluster: self.options.cluster,
            unit: self.options.unit,
            epoch: self.map.epoch,
            session,
            request,
            from: self.node,
            ..Envelope::default()
        }
    }

    pub(super) fn tell_client(&mut self, to: NodeId, session: u64, request: u64, body: Body) {
        let envelope = self.envelope_of(session, request);
        self.out.send_to_client(envelope, to, body);
    }

    /// Sends a client a message when all members in sync have the records below `needs`.
    pub(super) fn tell_client_when(&mut self, needs: u64, to: NodeId, session: u64, body: Body) {
        if let Some(primary) = self.primary() {
            primary.wait(Waiting {
                needs,
                to,
                session,
                request: 0,
                body,
                is_service: true,
            });
        }
    }

    pub(super) fn handle_client(&mut self, now: u64, envelope: &Envelope, body: Body) {
        let Envelope {
            session,
            request,
            from,
            ..
        } = *envelope;
        if body == Body::OpenSession {
            self.open_session(now, from, request);
            return self.after_client(now);
        }
        let Some(primary) = self.primary() else {
            return;
        };
        let is_overdue = primary.owners.is_overdue(session);
        let known = primary.sessions.by_number.get_mut(&session);
        match known {
            Some(known) if known.client == from && !known.is_ending => {
                if !is_overdue {
                    known.heard_at = now;
                }
            }
            // A session that is being ended is notified at its end: then its locks and holds are free.
            Some(_) => return,
            None => return self.tell_client(from, session, request, Body::Expired),
        }
        match body {
            // It ends as if it were silent.
            Body::KeepAlive if is_overdue => {}
            Body::KeepAlive => self.keep_alive(now, from, session, request),
            Body::OpenKeys => self.open_keys(session),
            Body::Holds { holds } => primary.note_holds(session, holds),
            Body::Resume {
                holds,
                replays,
                owned,
            } => {
                self.reclaim_owned(now, session, &owned);
                self.handle_resume(now, session, holds, replays);
            }
            Body::Request {
                slot,
                acknowledge,
                wants_lease,
                operation,
            } => {
                primary.deferred.note_ordinary(now);
                primary.park(Parked {
                    session,
                    request,
                    slot,
                    acknowledge,
                    wants_lease,
                    operation,
                    targets: None,
                });
                self.serve_parked(now);
            }
            Body::Renew { inodes } => self.renew(now, session, request, inodes),
            Body::RecallAnswer { inode, number } => {
                self.recall_answered(now, session, inode, number)
            }
            _ => {}
        }
        self.after_client(now);
    }

    /// Answers a client how long its leases stay valid.
    fn keep_alive(&mut self, now: u64, from: NodeId, session: u64, request: u64) {
        let (lease, drift) = (self.options.lease_ns, self.options.drift_permille);
        let Some(primary) = self.primary() else {
            return;
        };
        if primary.replaying.is_some() {
            return;
        }
        let valid = primary.valid_ns(now).min(lease);
        let alive = Body::Alive {
            confirmed: primary.confirmed,
            valid_ns: valid - valid * drift / 1000,
        };
        self.tell_client(from, session, request, alive);
    }

    fn after_client(&mut self, now: u64) {
        self.give_turns(now);
        self.ship(now);
        self.release_waiting(now);
    }

    /// Takes up what waits, if there are leases for it and room in the window.
    pub(super) fn serve_parked(&mut self, now: u64) {
        let window = self.options.window;
        let unbounded = self.defects.has(Defect::WindowUnbounded);
        let changes_named = self.defects.has(Defect::ChangeNamedData);
        let is_short = self.map.in_sync.len() < self.options.min_sync;
        let Some(primary) = self.primary() else {
            return;
        };
        if !primary.may_serve(now) {
            return;
        }
        primary.leases.reopen();
        for _ in 0..primary.parked.len() {
            let Some(primary) = self.primary() else {
                return;
            };
            let Some(parked) = primary.parked.pop_front() else {
                return;
            };
            let makes_record = parked.operation.makes_record();
            let is_full = (primary.is_full(window) || primary.has_backpressure()) && !unbounded;
            let is_held = primary.is_held(&parked.operation) && !changes_named;
            let waits_for_members = is_short && parked.operation.is_change();
            if waits_for_members || makes_record && (is_full || is_held) {
                primary.parked.push_back(parked);
            } else if parked.operation.is_wait() {
                self.handle_wait(now, &parked);
            } else {
                let free = self.recall_owned(now, parked);
                let free = free.and_then(|parked| self.recall_for(now, parked));
                if let Some(parked) = free {
                    self.begin(now, parked);
                }
            }
        }
    }

    /// Begins a request, unless it was begun before: then it gets, or will get, the first answer.
    fn begin(&mut self, now: u64, parked: Parked) {
        let forgets = self.defects.has(Defect::ForgetSlots);
        let Some(primary) = self.primary() else {
            return;
        };
        let Some(session) = primary.sessions.by_number.get_mut(&parked.session) else {
            return;
        };
        if session.is_ending {
            return;
        }
        if parked.operation.is_change() {
            let Some(state) = session.slots.get_mut(usize::from(parked.slot)) else {
                return;
            };
            if parked.request < state.request {
                return;
            }
            if parked.request == state.request && !forgets {
                if let Some(answer) = state.answer.clone() {
                    self.answer_again(now, parked, answer);
                }
                return;
            }
            // The one before is still being executed: no client sends two at a time in one slot.
            if state.request > 0 && state.answer.is_none() && !forgets {
                return;
            }
            *state = SlotState {
                request: parked.request,
                answer: None,
            };
            primary.begun += 1;
            primary.forget_answer(&parked);
        }
        if *parked.operation == Operation::CloseSession {
            let (session, request) = (parked.session, parked.request);
            self.end_session(session, Some(request));
            return;
        }
        self.execute(parked, false);
    }

    pub(super) fn keep_answer(&mut self, parked: &Parked, answer: &Answer) {
        if !parked.operation.is_change() {
            return;
        }
        let Some(primary) = self.primary() else {
            return;
        };
        let session = primary.sessions.by_number.get_mut(&parked.session);
        let slot = session.and_then(|it| it.slots.get_mut(usize::from(parked.slot)));
        if let Some(state) = slot
            && state.request == parked.request
        {
            state.answer = Some(answer.clone());
        }
    }

    pub(super) fn answer(&mut self, parked: &Parked, answer: Answer) {
        self.answer_with(parked, answer, Grant::default());
    }

    pub(super) fn answer_with(&mut self, parked: &Parked, answer: Answer, grant: Grant) {
        let Some(primary) = self.primary() else {
            return;
        };
        let Some(session) = primary.sessions.by_number.get(&parked.session) else {
            return;
        };
        let body = Body::Reply {
            slot: parked.slot,
            outcome: answer.outcome,
            position: answer.position,
            confirmed: 0,
            grant,
        };
        primary.wait(Waiting {
            needs: answer.needs,
            to: session.client,
            session: parked.session,
            request: parked.request,
            body,
            is_service: true,
        });
    }

    /// The store has executed something.
    pub(super) fn executed(&mut self, now: u64, completion: Completion) {
        let Completion::Executed {
            ticket,
            outcome,
            position,
            tail,
            depends_on,
            is_by_reference,
        } = completion
        else {
            return;
        };
        let Some(primary) = self.primary() else {
            return;
        };
        primary.position = primary.position.max(tail);
        let is_done = outcome.is_done();
        match primary.executing.remove(&ticket) {
            Some(Executing::Request {
                parked,
                is_replay,
                edit,
            }) => {
                if let Some(edit) = edit.filter(|_| !is_done) {
                    primary.sessions.locks.undo(parked.session, &edit);
                    primary.waits.locks_changed(parked.operation.file());
                }
                // One that failed has named nothing.
                if let Some(end) = position.filter(|_| is_by_reference) {
                    primary.note_named(&parked.operation, end);
                }
                if self.keep_listing(&parked, &outcome) {
                    return self.confirm(now);
                }
                let answer = Answer {
                    outcome,
                    position: position.unwrap_or(0),
                    needs: self.needs(&parked, position, depends_on),
                    is_restored: false,
                };
                self.keep_answer(&parked, &answer);
                if is_replay {
                    self.note_replayed(&parked, answer.outcome.error);
                } else {
                    let grant = self.grant_for(now, &parked, &answer.outcome);
                    self.answer_with(&parked, answer, grant);
                }
            }
            Some(Executing::Recall { parked, answer }) => {
                self.recalled(&parked, answer, &outcome, depends_on);
            }
            Some(Executing::OpenSession {
                session,
                request,
                client,
            }) => {
                if is_done {
                    self.session_opened(session, request, client);
                } else {
                    // The image does not know it. Its client asks again.
                    primary.sessions.by_number.remove(&session);
                }
            }
            Some(Executing::EndSession { session, request }) => {
                self.session_end_recorded(now, session, request);
            }
            Some(Executing::FreeGrant { session }) => self.grant_freed(session, is_done),
            // Its completion is another one.
            Some(Executing::Resolve { .. }) => {}
            Some(Executing::ReclaimOrphans) => primary.has_orphans = outcome.count > 0,
            None => {}
        }
        self.confirm(now);
    }

    /// A record contains the end of a session.
    fn session_end_recorded(&mut self, now: u64, session: u64, request: Option<u64>) {
        let revives = self.defects.has(Defect::ReviveSession);
        let Some(primary) = self.primary() else {
            return;
        };
        let unlocked = primary.sessions.locks.end(session);
        primary.waits.locks_changed(unlocked);
        if revives && let Some(state) = primary.sessions.by_number.get_mut(&session) {
            (state.is_ending, state.heard_at) = (false, now);
        } else if let Some(ended) = primary.sessions.by_number.remove(&session) {
            primary.leases.end(session);
            primary.owners.end(session, primary.position);
            self.session_ended(session, &ended);
            self.session_closed(session, ended.client, request);
        }
        self.replayed();
        self.free_grants(now);
    }

    /// Position that all members in sync must have before the answer is sent.
    fn needs(&self, parked: &Parked, position: Option<u64>, depends_on: u64) -> u64 {
        let operation = &*parked.operation;
        if matches!(operation, Operation::Sync { .. } | Operation::SyncAll) {
            let early = self.defects.has(Defect::SyncBeforeTails);
            return if early { 0 } else { depends_on };
        }
        let Some(position) = position.filter(|_| operation.is_change()) else {
            // It shows what others wrote: that must not get lost any more.
            let is_layout = matches!(operation, Operation::Layout { .. });
            let early = self.defects.has(Defect::ReadBeforeTails)
                || is_layout && self.defects.has(Defect::LayoutBeforeTails);
            return if early { 0 } else { depends_on };
        };
        if operation.is_write() {
            let waits = parked.acknowledge == Acknowledge::All;
            return if waits { position } else { 0 };
        }
        let is_grant = matches!(operation, Operation::Grant { .. });
        let early = self.defects.has(Defect::AcknowledgeBeforeTails)
            || is_grant && self.defects.has(Defect::GrantBeforeTails);
        // It also shows attributes, which others may have changed since.
        if early { 0 } else { position.max(depends_on) }
    }

    fn open_session(&mut self, now: u64, client: NodeId, request: u64) {
        let (epoch, window) = (self.map.epoch, self.options.window);
        let (most, slots) = (self.options.sessions, self.options.slots);
        let Some(primary) = self.primary() else {
            return;
        };
        if !primary.may_serve(now) || primary.is_full(window) {
            return;
        }
        let quarantines = &primary.quarantines;
        let is_left = |index| quarantines.has_index(index);
        let Some(index) = primary.sessions.free_index(most, is_left) else {
            return;
        };
        if primary.is_opening(client) {
            return;
        }
        primary.next_session += 1;
        let session = u64::from(epoch) << 32 | u64::from(primary.next_session);
        let ticket = primary.ticket();
        let state = Session::new(index, client, slots, now);
        primary.sessions.by_number.insert(session, state);
        let executing = Executing::OpenSession {
            session,
            request,
            client,
        };
        primary.executing.insert(ticket, executing);
        self.out.intents.push_back(Intent::OpenSession {
            ticket,
            index,
            session,
            client,
        });
    }

    fn session_opened(&mut self, session: u64, request: u64, client: NodeId) {
        let slots = self.options.slots;
        let Some(primary) = self.primary() else {
            return;
        };
        primary.wait(Waiting {
            needs: primary.position,
            to: client,
            session,
            request,
            body: Body::SessionOpened { slots },
            is_service: true,
        });
    }

    /// Ends silent sessions: by a record, so that every later primary knows it too.
    pub(super) fn expire_sessions(&mut self, now: u64) {
        let timeout = self.options.session_ns;
        let in_memory = self.defects.has(Defect::ExpireInMemory);
        let Some(primary) = self.primary() else {
            return;
        };
        if primary.replaying.is_some() || !primary.has_leases(now) {
            return;
        }
        let sessions = primary.sessions.by_number.iter();
        let silent: Vec<u64> = sessions
            .filter(|(_, it)| now > it.heard_at + timeout && !it.is_ending)
            .map(|(number, _)| *number)
            .collect();
        for session in silent {
            if in_memory {
                if let Some(primary) = self.primary() {
                    primary.sessions.by_number.remove(&session);
                    let unlocked = primary.sessions.locks.end(session);
                    primary.waits.end(session);
                    primary.waits.locks_changed(unlocked);
                }
            } else {
                self.end_session(session, None);
            }
        }
    }

    /// Ends a session, at the request of its client or because it was silent.
    pub(super) fn end_session(&mut self, session: u64, request: Option<u64>) -> Option<Ticket> {
        let primary = self.primary()?;
        let ticket = primary.ticket();
        let state = primary.sessions.by_number.get_mut(&session)?;
        state.is_ending = true;
        let index = state.index;
        primary.waits.end(session);
        primary
            .executing
            .insert(ticket, Executing::EndSession { session, request });
        self.out.intents.push_back(Intent::EndSession {
            ticket,
            session,
            index,
        });
        Some(ticket)
    }

    /// Answers the client that has closed its session, when all members in sync know that it has ended.
    fn session_closed(&mut self, session: u64, client: NodeId, request: Option<u64>) {
        let Some((primary, request)) = self.primary().zip(request) else {
            return;
        };
        primary.wait(Waiting {
            needs: primary.position,
            to: client,
            session,
            request,
            body: Body::Reply {
                slot: NO_SLOT,
                outcome: Outcome::done(),
                position: 0,
                confirmed: 0,
                grant: Grant::default(),
            },
            is_service: true,
        });
    }

    /// Sends messages that have waited long enough.
    pub(super) fn release_waiting(&mut self, now: u64) {
        let envelope = self.envelope_of(0, 0);
        let Some(primary) = self.primary() else {
            return;
        };
        let (confirmed, has_leases) = (primary.confirmed, primary.has_leases(now));
        let is_ready = |it: &mut Waiting| it.needs <= confirmed && (has_leases || !it.is_service);
        let ready: Vec<_> = primary.waiting.extract_if(.., is_ready).collect();
        for mut waiting in ready {
            if let Body::Reply {
                confirmed: known, ..
            } = &mut waiting.body
            {
                *known = confirmed;
            }
            let envelope = Envelope {
                session: waiting.session,
                request: waiting.request,
                ..envelope
            };
            self.out.send_to_client(envelope, waiting.to, waiting.body);
        }
    }
}
