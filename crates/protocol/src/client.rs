//! A client of a unit: a session, requests in flight, and writes that may have to be replayed.

mod active;
mod ended;
mod held_leases;
mod local_outcome;
mod owning;
mod slots;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::defects::{Defect, Defects};
use crate::leases::holder::Holder;
use crate::map::{NodeId, Sequence, UnitMap};
use crate::member::READS_MAX;
use crate::wire::{
    Acknowledge, BODY_MAX, Body, Bytes, DATA_MAX, Envelope, ErrorCode, FileId, Held, Message,
    Operation, Outcome, Refusal, Replay,
};
use crate::{NO_SLOT, Outgoing, SLOTS_MAX, Transmit, UnitOptions};
use active::Active;
pub use active::{AtOnce, AtOncePiece, Transfer, TransferKind, TransferOutcome, Word};
pub use held_leases::{Keep, Recalled};
use local_outcome::local_outcome;
pub use owning::Ownership;
use slots::Slots;

/// Identity of a submitted request.
pub type Ticket = u64;
type Owning = BTreeSet<Ticket>;

/// Writes that may be unconfirmed, at most: then new changes wait.
const UNCONFIRMED_MAX: usize = 64;
/// Their data, with that of the writes in flight, at most: so that one message holds all replays. The rest of its body
/// is room for the other fields of a replay.
const UNCONFIRMED_DATA_MAX: usize = BODY_MAX - (64 << 10);
/// Files with unreported refused writes, at most: then no write is answered before all have it.
const REFUSED_MAX: usize = 64;
/// Held files in one message.
const HOLDS_AT_ONCE: usize = 10_000;
const _: () = assert!(DATA_MAX <= UNCONFIRMED_DATA_MAX && UNCONFIRMED_MAX + SLOTS_MAX < 1024);

/// Notifications of a client to its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An operation has ended.
    Done {
        /// Ticket of the request.
        ticket: Ticket,
        /// Outcome of the operation.
        outcome: Outcome,
        /// The cacheable part of it.
        keep: Keep,
    },
    /// The caches have to drop their contents of an inode, and then [`Client::invalidated`] is called.
    Recalled(Recalled),
    /// Contents that are kept under leases of these inodes, and have not ended, may be kept until then.
    Renewed {
        /// Numbers of the inodes.
        inodes: Vec<u64>,
        /// New end of the leases, by this client's clock.
        until: u64,
    },
    /// The lock of a wait is free, and reserved for its owner for a while.
    LockTurn {
        /// Number of the wait.
        wait: u64,
    },
    /// The session has expired, and with it its locks and everything in flight.
    SessionOver,
}

/// Which side moves the data of reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The primary: it comes and goes in messages.
    #[default]
    ServerActive,
    /// The client, which reaches into the members' memories, wherever it can: for writes and reads of at least so many bytes.
    ClientActive {
        /// Bytes of the shortest write.
        write: u32,
        /// Bytes of the shortest read.
        read: u32,
    },
}

impl Mode {
    /// The client moves the data itself, of any length.
    pub const CLIENT_ACTIVE: Mode = Mode::ClientActive { write: 0, read: 0 };
}

struct Pending {
    ticket: Ticket,
    request: u64,
    acknowledge: Acknowledge,
    operation: Arc<Operation>,
    sent_at: Option<u64>,
    /// When it was sent first: the time of a lease counts from then.
    asked_at: Option<u64>,
    /// The number that was given last when it began.
    began_at: u64,
    /// Its user was already notified.
    is_told: bool,
}

/// That a write was refused which its user believes to be done.
struct Refused {
    error: ErrorCode,
    /// The number of this note. An fsync that began before does not end it: it may be older than the write.
    noted_at: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SessionState {
    None,
    Opening { sent_at: u64 },
    Open { number: u64 },
}

/// One client of one unit.
pub struct Client {
    node: NodeId,
    options: UnitOptions,
    defects: Defects,
    mode: Mode,
    map: UnitMap,
    session: SessionState,
    /// The primary of this epoch knows the unconfirmed writes.
    is_resumed: bool,
    resumed_in: u32,
    resume_sent_at: u64,
    keep_alive_at: u64,
    /// By this client's clock, the session cannot have been ended before.
    fresh_until: u64,
    queue: VecDeque<(Ticket, Operation, Acknowledge)>,
    slots: Slots,
    reads: BTreeMap<u64, Pending>,
    unconfirmed: Vec<Replay>,
    /// Writes of sessions that have ended: answered by the primary of this epoch, and not confirmed. They are never replayed.
    left_behind: Vec<(Sequence, FileId)>,
    /// Files that the session holds: the next primary does not know them.
    holds: BTreeMap<FileId, u64>,
    active: Active,
    /// The leases of the session, and whether it asks for any.
    leases: Holder,
    keeps: bool,
    /// Writes that ask for the lease for writing.
    owning: Owning,
    /// Writes and reads that were done one-sided.
    one_sided: (u64, u64),
    /// Refused writes that their user considers done: the next fsync of the file returns the error.
    refused: BTreeMap<FileId, Refused>,
    next_number: u64,
    outgoing: VecDeque<Outgoing>,
    events: VecDeque<Event>,
}

impl Client {
    /// A client without a session. `first_number` is one that no earlier process on this node has used.
    pub fn new(node: NodeId, options: UnitOptions, defects: Defects, first_number: u64) -> Client {
        Client {
            node,
            options,
            defects,
            mode: Mode::default(),
            map: UnitMap::default(),
            session: SessionState::None,
            is_resumed: true,
            resumed_in: 0,
            resume_sent_at: 0,
            keep_alive_at: 0,
            fresh_until: 0,
            queue: VecDeque::new(),
            slots: Slots::default(),
            reads: BTreeMap::new(),
            unconfirmed: Vec::new(),
            left_behind: Vec::new(),
            holds: BTreeMap::new(),
            active: Active::default(),
            leases: Holder::default(),
            keeps: false,
            owning: Owning::new(),
            one_sided: (0, 0),
            refused: BTreeMap::new(),
            next_number: first_number,
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Whether it moves data itself, from now on.
    pub fn with_mode(mut self, mode: Mode) -> Client {
        self.mode = mode;
        self
    }

    /// Changes which side moves the data of operations that begin from now on.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// Until when, by this client's clock, its locks are its own for certain.
    pub fn fresh_until(&self) -> u64 {
        self.fresh_until
    }

    /// The newest epoch with a primary that has all writes of this client.
    pub fn resumed_in(&self) -> u32 {
        self.resumed_in
    }

    /// Number of one-sided writes and reads.
    pub fn one_sided(&self) -> (u64, u64) {
        self.one_sided
    }

    /// Whether a write to the file was refused though its user considers it done: the next fsync will report it.
    pub fn is_refused(&self, file: FileId) -> bool {
        self.refused.contains_key(&file)
    }

    /// The session, if there is one.
    pub fn session(&self) -> Option<u64> {
        match self.session {
            SessionState::Open { number } => Some(number),
            _ => None,
        }
    }

    /// The session, if a read of any file may pass its requests in flight: the primary has all writes that users consider
    /// done.
    pub fn may_read_locally(&self) -> Option<u64> {
        let is_behind = self.told().next().is_some();
        let is_idle = self.mode == Mode::ServerActive && self.active.is_idle();
        self.session()
            .filter(|_| self.is_resumed && is_idle && !is_behind)
    }

    /// Submits an operation, and returns the request's identity.
    /// [`Event::Done`] reports its end.
    pub fn submit(&mut self, now: u64, operation: Operation, acknowledge: Acknowledge) -> Ticket {
        self.next_number += 1;
        let ticket = self.next_number;
        if operation == Operation::CloseSession && self.session == SessionState::None {
            self.tell_done(ticket, Outcome::done());
            return ticket;
        }
        if !self.begin_run(now, ticket, &operation, acknowledge) {
            self.queue.push_back((ticket, operation, acknowledge));
        }
        self.advance(now);
        ticket
    }

    /// A map came from the membership service.
    pub fn handle_map(&mut self, now: u64, map: UnitMap) {
        if map.version <= self.map.version || map.fault(&self.defects).is_some() {
            return;
        }
        let is_new_primary = map.epoch != self.map.epoch;
        self.map = map;
        if is_new_primary {
            self.epoch_changed();
            self.leases.epoch_changed(self.map.epoch);
            self.refuse_left_behind();
            self.is_resumed = self.session().is_none();
            self.forget_sent();
        }
        self.members_changed(now);
        self.advance(now);
    }

    /// Handles a message that arrived.
    pub fn handle_message(&mut self, now: u64, bytes: &Bytes) {
        if let Ok(message) = Message::decode(bytes, &self.defects) {
            self.handle_decoded(now, message);
        }
    }

    /// The same with a message that was decoded, or never encoded.
    pub fn handle_decoded(&mut self, now: u64, message: Message) {
        let Envelope {
            cluster,
            unit,
            epoch,
            session,
            request,
            ..
        } = message.envelope;
        // An answer of a primary that is none any more does not count: the new one has not heard of the request.
        let is_current = epoch == self.map.epoch || self.defects.has(Defect::AcceptOldReply);
        if cluster != self.options.cluster || unit != self.options.unit || !is_current {
            return;
        }
        if let Body::SessionOpened { slots } = message.body {
            self.session_opened(now, session, slots);
        } else if self.session() != Some(session) {
            return;
        }
        match message.body {
            Body::Reply {
                slot,
                outcome,
                position,
                confirmed,
                grant,
            } => {
                let sequence = Sequence::new(epoch, position);
                if let Some(pending) = self.take_pending(slot, request) {
                    let keep = self.take_grant(now, &pending, &outcome, grant);
                    let positions = (sequence, confirmed);
                    self.replied(now, (slot, pending), outcome, keep, positions);
                }
                self.drop_confirmed(epoch, confirmed);
            }
            Body::Recall { inode, number } => self.recalled(now, inode, number),
            Body::Renewed { lasts_ns, inodes } => self.renewed(now, request, lasts_ns, inodes),
            Body::LockTurn { wait } => self.events.push_back(Event::LockTurn { wait }),
            Body::Alive {
                confirmed,
                valid_ns,
            } => {
                self.drop_confirmed(epoch, confirmed);
                // A replaced primary may not know it, and the new one counts the silence from its own start.
                if valid_ns > 0 {
                    self.extend_validity(now, request, valid_ns);
                    self.extend_session(request);
                }
            }
            // A repeated one says nothing about writes since the first.
            Body::Resumed { refusals } if !self.is_resumed => {
                self.is_resumed = true;
                self.resumed_in = epoch;
                // Whatever was replayed is at all members in sync; nothing was sent since.
                self.unconfirmed.clear();
                for Refusal { file, error } in refusals {
                    self.note_refused(file, error);
                }
            }
            Body::Key { member, key } => self.handle_key(member, key),
            Body::Expired => self.session_over(),
            _ => {}
        }
        self.advance(now);
    }

    /// Messages to the primary, and its answers, may be lost: the link to it has ended, and there is a new one.
    pub fn handle_link(&mut self, now: u64) {
        self.keep_alive_at = 0;
        self.forget_sent();
        self.advance(now);
    }

    fn forget_sent(&mut self) {
        self.resume_sent_at = 0;
        if let SessionState::Opening { sent_at } = &mut self.session {
            *sent_at = 0;
        }
        let pending = self.slots.pending_mut().map(|(_, it)| it);
        for pending in pending.chain(self.reads.values_mut()) {
            pending.sent_at = None;
        }
    }

    /// Executes what is due at this time.
    pub fn handle_timeout(&mut self, now: u64) {
        self.advance(now);
    }

    /// When [`Client::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.map.epoch == 0 {
            return None;
        }
        let retry = self.options.handshake_retry_ns();
        let pending = self.slots.pending().chain(self.reads.values());
        let sent = pending.filter_map(|it| it.sent_at);
        let resend = sent.filter_map(|at| self.options.resend_at(at)).min();
        let session = match self.session {
            SessionState::Open { .. } if self.is_resumed => Some(self.keep_alive_at),
            SessionState::Open { .. } => Some(self.resume_sent_at + retry),
            SessionState::Opening { sent_at } => Some(sent_at + retry),
            SessionState::None => None,
        };
        resend
            .into_iter()
            .chain(session)
            .chain(self.active_timeout())
            .min()
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.poll_outgoing().map(Outgoing::encode)
    }

    /// The next message to send, not encoded yet.
    pub fn poll_outgoing(&mut self) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }

    /// Returns the next event for the user.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn send(&mut self, session: u64, request: u64, body: Body) {
        let envelope = Envelope {
            cluster: self.options.cluster,
            epoch: self.map.epoch,
            tenant: 0,
            unit: self.options.unit,
            session,
            request,
            from: self.node,
        };
        self.outgoing.push_back(Outgoing {
            to: vec![self.map.primary],
            message: Message { envelope, body },
            with_parity: self.options.parity,
        });
    }

    /// Sends whatever is due.
    fn advance(&mut self, now: u64) {
        if self.map.epoch == 0 {
            return;
        }
        let retry = self.options.handshake_retry_ns();
        match self.session {
            SessionState::None if self.queue.is_empty() && self.active.is_idle() => {}
            SessionState::None => self.open_session(now),
            SessionState::Opening { sent_at } if now >= sent_at + retry => self.open_session(now),
            SessionState::Opening { .. } => {}
            SessionState::Open { number } if !self.is_resumed => {
                if now >= self.resume_sent_at + retry {
                    self.resume_sent_at = now;
                    let replays = self.unconfirmed.clone();
                    let holds = self.send_holds(number);
                    let owned = self.leases.owned();
                    let resume = Body::Resume {
                        holds,
                        replays,
                        owned,
                    };
                    self.send(number, 0, resume);
                }
            }
            SessionState::Open { number } => {
                self.advance_active(now);
                self.keep_alive(now, number);
                self.begin_queued();
                self.send_pending(now, number);
            }
        }
    }

    /// Reports the held files of the session to a new primary. Returns how many.
    fn send_holds(&mut self, session: u64) -> u64 {
        let held = self.holds.iter();
        let all: Vec<Held> = held
            .map(|(file, count)| Held {
                file: *file,
                count: *count,
            })
            .collect();
        for part in all.chunks(HOLDS_AT_ONCE) {
            let holds = part.to_vec();
            self.send(session, 0, Body::Holds { holds });
        }
        all.len() as u64
    }

    /// Counts holds as the primary does.
    fn count_holds(&mut self, operation: &Operation, outcome: &Outcome) {
        match operation {
            // Without attributes the file was removed before it could be held again after a takeover.
            operation if operation.takes_hold() && outcome.attributes.is_some() => {
                *self.holds.entry(outcome.file).or_default() += 1;
            }
            Operation::Release { holds } => {
                for Held { file, count } in holds {
                    if let Some(held) = self.holds.get_mut(file) {
                        *held = held.saturating_sub(*count);
                    }
                }
                self.holds.retain(|_, count| *count > 0);
            }
            _ => {}
        }
    }

    fn open_session(&mut self, now: u64) {
        self.session = SessionState::Opening { sent_at: now };
        self.next_number += 1;
        let request = self.next_number;
        self.send(0, request, Body::OpenSession);
    }

    fn session_opened(&mut self, now: u64, number: u64, slots: u16) {
        if !matches!(self.session, SessionState::Opening { .. }) {
            return;
        }
        self.session = SessionState::Open { number };
        self.is_resumed = true;
        self.slots = Slots::new(slots);
        self.keep_alive_at = now;
    }

    fn keep_alive(&mut self, now: u64, session: u64) {
        if now < self.keep_alive_at {
            return;
        }
        let waits = self
            .queue
            .front()
            .is_some_and(|(_, it, _)| !self.has_room_for(it));
        let pause = match self.unconfirmed.len() {
            0 if !self.active.relies_on_primary() => self.options.session_ns / 4,
            // Waiting requests may begin as soon as something is confirmed.
            1.. if waits => self.options.retry_ns,
            _ => self.options.heartbeat_ns,
        };
        self.keep_alive_at = now + pause;
        self.send(session, now, Body::KeepAlive);
    }

    /// Whether all that would have to be replayed fits into one message, with this.
    fn has_room_for(&self, operation: &Operation) -> bool {
        self.fits(operation, 1)
    }

    /// Whether it fits into this part of such a message.
    fn fits(&self, operation: &Operation, part: usize) -> bool {
        let unconfirmed = self.unconfirmed.iter().map(|it| &it.operation);
        let others = unconfirmed.chain(self.slots.pending().map(|it| &it.operation));
        let data: usize = others.map(|it| it.data_length()).sum();
        self.unconfirmed.len() < UNCONFIRMED_MAX / part
            && data + operation.data_length() <= UNCONFIRMED_DATA_MAX / part
    }

    /// Gives slots to what waits for one.
    fn begin_queued(&mut self) {
        while let Some((_, operation, _)) = self.queue.front() {
            let is_change = operation.is_change();
            let is_full = is_change && !self.has_room_for(operation);
            let free = self.slots.free();
            // Its user believes that a write is done which may still be on its way: nothing on that file overtakes it.
            let is_behind = self.depends_on_told(operation);
            // The primary drops more.
            let too_many_reads = !is_change && self.reads.len() >= READS_MAX;
            if is_full || is_behind || is_change && free.is_none() || too_many_reads {
                return;
            }
            let Some((ticket, operation, mut acknowledge)) = self.queue.pop_front() else {
                return;
            };
            // The answer confirms all before it. Without one, what waits for room waits for a keep-alive.
            let is_filling = !self.fits(&operation, 2);
            if is_filling || self.refused.len() >= REFUSED_MAX {
                acknowledge = Acknowledge::All;
            }
            let pending = Pending {
                ticket,
                request: ticket,
                acknowledge,
                operation: Arc::new(operation),
                sent_at: None,
                asked_at: None,
                began_at: self.next_number,
                is_told: false,
            };
            match free.filter(|_| is_change) {
                Some(slot) => self.slots.put(slot, pending),
                None => {
                    self.reads.insert(ticket, pending);
                }
            }
        }
    }

    /// Files with a write in flight that its user considers done.
    fn told(&self) -> impl Iterator<Item = FileId> {
        let told = self.slots.pending().filter(|it| it.is_told);
        told.filter_map(|it| it.operation.file())
    }

    fn is_behind(&self, file: FileId) -> bool {
        self.told().any(|it| it == file)
    }

    fn depends_on_told(&self, operation: &Operation) -> bool {
        self.told().any(|file| operation.depends_on(file))
    }

    fn send_pending(&mut self, now: u64, session: u64) {
        let options = &self.options;
        let changes = self.slots.pending_mut();
        let reads = self.reads.values_mut().map(|it| (NO_SLOT, it));
        let mut due = Vec::new();
        for (slot, pending) in changes.chain(reads) {
            let was_sent = pending.sent_at.map(|at| options.resend_at(at));
            if was_sent.is_some_and(|again| again.is_none_or(|again| now < again)) {
                continue;
            }
            pending.sent_at = Some(now);
            pending.asked_at.get_or_insert(now);
            let acknowledge = pending.acknowledge;
            let operation = pending.operation.clone();
            if let Some(outcome) = local_outcome(&operation, acknowledge)
                && !pending.is_told
            {
                pending.is_told = true;
                self.events.push_back(done(pending.ticket, outcome));
            }
            let wants_lease = match pending.operation.is_write() {
                true => Client::wants_ownership(pending, &self.owning),
                false => self.keeps,
            };
            let body = Body::Request {
                slot,
                acknowledge,
                wants_lease,
                operation,
            };
            due.push((pending.request, body));
        }
        for (request, body) in due {
            self.send(session, request, body);
        }
    }

    fn take_pending(&mut self, slot: u16, request: u64) -> Option<Pending> {
        if slot == NO_SLOT {
            return self.reads.remove(&request);
        }
        self.slots.take(slot, request)
    }

    fn replied(
        &mut self,
        now: u64,
        (slot, pending): (u16, Pending),
        mut outcome: Outcome,
        keep: Keep,
        (sequence, confirmed): (Sequence, u64),
    ) {
        let file = pending.operation.file();
        if let Some((file, error)) = file.zip(outcome.error).filter(|_| pending.is_told) {
            self.note_refused(file, error);
        }
        self.tell_refused(&pending, &mut outcome.error);
        if outcome.is_done() {
            self.count_holds(&pending.operation, &outcome);
        }
        let is_open =
            pending.operation.is_write() && outcome.is_done() && sequence.number > confirmed;
        if is_open && !self.defects.has(Defect::ForgetUnconfirmed) {
            self.unconfirmed.push(Replay {
                sequence,
                slot,
                request: pending.request,
                operation: self.replayed_as(&pending, &outcome),
            });
        }
        let has_closed = *pending.operation == Operation::CloseSession && outcome.is_done();
        self.own_change_ended(&pending.operation);
        match (&*pending.operation, file) {
            (operation, Some(file)) if operation.is_change() => self.active.layouts.forget(file),
            (
                Operation::Read {
                    note_read: true, ..
                },
                Some(file),
            ) => self.active.layouts.note(file, now),
            _ => {}
        }
        if !pending.is_told {
            self.tell(now, pending.ticket, outcome, keep);
        }
        if has_closed {
            self.end_session();
        }
    }

    /// A primary under leases has answered a message sent at this time.
    fn extend_session(&mut self, asked_at: u64) {
        let spare = self.options.session_ns * self.options.drift_permille / 1000;
        let until = asked_at.saturating_add(self.options.session_ns);
        self.fresh_until = self.fresh_until.max(until.saturating_sub(spare));
    }

    fn note_refused(&mut self, file: FileId, error: ErrorCode) {
        self.next_number += 1;
        let noted_at = self.next_number;
        let refused = self.refused.entry(file);
        refused.or_insert(Refused { error, noted_at }).noted_at = noted_at;
    }

    /// An fsync that succeeded reports writes before it that were refused.
    fn tell_refused(&mut self, ended: &Pending, error: &mut Option<ErrorCode>) {
        let files: Vec<FileId> = match &*ended.operation {
            Operation::Sync { file } => vec![*file],
            Operation::SyncAll => self.refused.keys().copied().collect(),
            _ => return,
        };
        for file in files {
            let Some(refused) = self.refused.get(&file) else {
                continue;
            };
            if error.is_none() && !self.defects.has(Defect::ForgetRefused) {
                *error = Some(refused.error);
            }
            if ended.began_at >= refused.noted_at {
                self.refused.remove(&file);
            }
        }
    }

    fn drop_confirmed(&mut self, epoch: u32, confirmed: u64) {
        let is_open = |it: &Sequence| it.epoch != epoch || it.number > confirmed;
        self.unconfirmed.retain(|it| is_open(&it.sequence));
        self.left_behind.retain(|(sequence, _)| is_open(sequence));
    }

    /// The primary has ended the session, because it was silent, or because this client has closed it and missed the answer.
    fn session_over(&mut self) {
        let is_closing = |it: &Pending| *it.operation == Operation::CloseSession;
        if !self.reads.values().any(is_closing) {
            self.events.push_back(Event::SessionOver);
        }
        self.end_session();
    }

    /// Everything that is in flight fails, except a close of the session. The next operation gets a new session.
    fn end_session(&mut self) {
        self.session = SessionState::None;
        self.holds.clear();
        self.leases = Holder::default();
        self.owning.clear();
        self.leave_writes_behind();
        let told = self.end_active();
        let changes = std::mem::take(&mut self.slots).into_pending();
        let reads = std::mem::take(&mut self.reads);
        // A request that waited for a slot was made in this session too.
        for (ticket, _, _) in std::mem::take(&mut self.queue) {
            self.tell_done(ticket, Outcome::failed(ErrorCode::SessionEnded));
        }
        let all = changes.chain(reads.into_values());
        for pending in all.filter(|it| !told.contains(&it.ticket)) {
            match &*pending.operation {
                Operation::CloseSession => self.tell_done(pending.ticket, Outcome::done()),
                operation if pending.is_told => {
                    let files = operation.file().into_iter();
                    files.for_each(|file| self.note_refused(file, ErrorCode::SessionEnded));
                }
                _ => self.tell_done(pending.ticket, Outcome::failed(ErrorCode::SessionEnded)),
            }
        }
    }

    fn tell_done(&mut self, ticket: Ticket, outcome: Outcome) {
        self.events.push_back(done(ticket, outcome));
    }
}

/// The end of an operation of which nothing may be kept.
fn done(ticket: Ticket, outcome: Outcome) -> Event {
    let keep = Keep::default();
    Event::Done {
        ticket,
        outcome,
        keep,
    }
}

#[cfg(test)]
mod tests;
