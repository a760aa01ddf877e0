//! The primary and the other members: leases, shipping of records, members in sync.

use std::collections::{BTreeMap, VecDeque};

use super::backpressure::Refill;
use super::deferred_requests::DeferredRequests;
use super::grants::Quarantines;
use super::intent::{Completion, Intent, SessionRecord, Ticket};
use super::join::METADATA_STEP;
use super::replay::Replaying;
use super::requests::{Executing, Parked, Waiting};
use super::sessions::Sessions;
use super::waits::Waits;
use super::{Member, Role};
use crate::defects::Defect;
use crate::leases::owners::Owners;
use crate::leases::table::Table;
use crate::map::{NodeId, Sequence, UnitMap};
use crate::wire::{AnswerMode, Body, Envelope, Fetch, FileId, Operation};

/// The primary's state of another member.
pub(super) struct Peer {
    /// It has the records below, and their data.
    pub tail: u64,
    /// It was sent the records below; `None` before its tail is known.
    pub sent: Option<u64>,
    /// Records are being read for it.
    pub is_reading: bool,
    /// It asked to follow from here.
    pub joins_from: Option<u64>,
    /// The number of that question.
    joins_since: u64,
    /// End of the member's lease, by the primary's clock: the member does not become primary before.
    pub lease_until: u64,
    /// Nothing is acknowledged before it has it: it is in sync by the map, or by one that may come into force.
    pub is_counted: bool,
    /// The tail that it must have reached before the map may list it as in sync.
    counted_from: u64,
    /// Version of the map that a proposal was made from by which it is in sync. As long as that is the newest, the
    /// proposal may yet come into force, however late.
    proposed_from: Option<u64>,
    /// It is counted, but is not caught up any more.
    is_leaving: bool,
    /// It cannot get on by records alone.
    pub is_lost: bool,
    pub heard_at: u64,
    pub progressed_at: u64,
    /// When it was last asked where it is, though no heartbeat was due.
    asked_at: u64,
    /// It gets records by the unit's group, and was last sent some then.
    pub grouped_at: Option<u64>,
    /// Where records are that it said it lacks, and when it first did.
    pub gap: Option<(u64, u64)>,
    /// It is refilled, or was, and is not in sync yet.
    pub refill: Option<Refill>,
    /// When it got its first welcome since it was in sync.
    pub welcomed_at: Option<u64>,
}

/// State of the primary.
pub(super) struct Primary {
    /// Tail of the member's own ring.
    pub position: u64,
    /// All members in sync have the records below.
    pub confirmed: u64,
    /// Its tail when it was opened. It is unknown here which of the records below name data that a member still
    /// fetches.
    pub opened_at: u64,
    pub peers: BTreeMap<NodeId, Peer>,
    pub sessions: Sessions,
    /// Requests that wait for locks.
    pub waits: Waits,
    pub replaying: Option<Replaying>,
    /// Requests that wait for leases, or for room in the window.
    pub parked: VecDeque<Parked>,
    /// Messages that wait until all members in sync have enough.
    pub waiting: Vec<Waiting>,
    pub executing: BTreeMap<Ticket, Executing>,
    /// Files with newest data that a record only names: it is not changed in place before the members have it.
    pub held_files: BTreeMap<FileId, u64>,
    /// Ends of records that name data which only this member was given, with its length.
    pub named_here: BTreeMap<u64, u64>,
    /// Shipments that the unit's group takes.
    pub group_room: u32,
    /// Requests that wait until nothing else is to be done.
    pub deferred: DeferredRequests,
    pub next_ticket: Ticket,
    pub next_session: u32,
    pub quarantines: Quarantines,
    /// Leases of clients for reading.
    pub leases: Table,
    /// Leases of clients for writing.
    pub owners: Owners,
    /// Counts changes that were begun: a name may lead elsewhere after each.
    pub begun: u64,
    /// Files may be left that were removed under a primary before.
    pub has_orphans: bool,
    /// Beyond this position changes wait for members that are refilled.
    pub backpressure_above: u64,
    pub is_proposing: bool,
    proposed_at: u64,
    pub heartbeat_at: u64,
    /// End of the last pause that was discounted.
    pub discounted_until: u64,
    pub next_tick: u64,
    serves_without_lease: bool,
}

impl Peer {
    /// One of which nothing is known yet.
    fn new(now: u64, is_counted: bool) -> Peer {
        Peer {
            tail: 0,
            sent: None,
            is_reading: false,
            joins_from: None,
            joins_since: 0,
            lease_until: 0,
            is_counted,
            counted_from: 0,
            proposed_from: None,
            is_leaving: false,
            is_lost: false,
            heard_at: now,
            progressed_at: now,
            asked_at: now,
            grouped_at: None,
            gap: None,
            refill: None,
            welcomed_at: None,
        }
    }

    /// It does not count any more, unless it may be in sync by a map that is still to come.
    fn leave(&mut self, version: u64) {
        if self.proposed_from == Some(version) {
            self.is_leaving = true;
        } else {
            self.is_counted = false;
        }
    }
}

impl Primary {
    /// Whether every member in sync has granted a lease that lasts.
    pub fn has_leases(&self, now: u64) -> bool {
        let mut counted = self.peers.values().filter(|peer| peer.is_counted);
        self.serves_without_lease || counted.all(|peer| peer.lease_until > now)
    }

    /// For how long after `now` no other member can be primary, by this member's clock.
    pub fn valid_ns(&self, now: u64) -> u64 {
        match self.valid_until() {
            u64::MAX => u64::MAX,
            until => until.saturating_sub(now),
        }
    }

    /// No other member can be primary before, by this member's clock; `u64::MAX` if there is none.
    pub fn valid_until(&self) -> u64 {
        let counted = self.peers.values().filter(|peer| peer.is_counted);
        let until = counted.map(|peer| peer.lease_until).min();
        until.unwrap_or(u64::MAX)
    }

    /// Whether requests are served now.
    pub fn may_serve(&self, now: u64) -> bool {
        self.replaying.is_none() && self.has_leases(now)
    }

    pub fn least_tail(&self) -> u64 {
        let counted = self.peers.values().filter(|peer| peer.is_counted);
        counted.map(|peer| peer.tail).fold(self.position, u64::min)
    }

    /// Whether an operation has to wait, as members may still have to fetch data of the file that it changes: a record
    /// names it, or will when everything in flight is done.
    pub fn is_held(&self, operation: &Operation) -> bool {
        let names = |it: &Executing, file| match it {
            Executing::Request { parked, .. } => {
                parked.operation.names_data() && parked.operation.changes() == Some(file)
            }
            _ => false,
        };
        operation.changes().is_some_and(|file| {
            self.held_files.contains_key(&file) || self.executing.values().any(|it| names(it, file))
        })
    }

    pub fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        self.next_ticket
    }
}

impl Member {
    pub(super) fn primary(&mut self) -> Option<&mut Primary> {
        match &mut self.role {
            Role::Serving(primary) => Some(primary),
            _ => None,
        }
    }

    pub(super) fn opened(
        &mut self,
        now: u64,
        tail: Sequence,
        sessions: Vec<SessionRecord>,
        grants: &[(u64, u32)],
    ) {
        let others = self.others().into_iter();
        let peers = others
            .map(|node| (node, Peer::new(now, self.map.is_in_sync(node))))
            .collect();
        let primary = Primary {
            position: tail.number,
            confirmed: 0,
            opened_at: tail.number,
            peers,
            sessions: Sessions::default(),
            waits: Waits::default(),
            replaying: None,
            parked: VecDeque::new(),
            waiting: Vec::new(),
            executing: BTreeMap::new(),
            held_files: BTreeMap::new(),
            named_here: BTreeMap::new(),
            group_room: 0,
            deferred: DeferredRequests::default(),
            next_ticket: 0,
            next_session: 0,
            quarantines: Quarantines::default(),
            leases: Table::new(self.map.epoch),
            owners: Owners::default(),
            begun: 0,
            has_orphans: true,
            backpressure_above: u64::MAX,
            is_proposing: false,
            proposed_at: now,
            heartbeat_at: now,
            discounted_until: now,
            next_tick: now,
            serves_without_lease: self.defects.has(Defect::ServeWithoutLease),
        };
        self.role = Role::Serving(Box::new(primary));
        self.restore_sessions(now, &sessions);
        self.restore_quarantines(grants);
        self.serve_on_time(now);
    }

    pub(super) fn map_changed_while_serving(&mut self, now: u64) {
        let (map, others) = (self.map.clone(), self.others());
        self.discount_pause(now, 0);
        let Some(primary) = self.primary() else {
            return;
        };
        primary.is_proposing = false;
        // A member that has left the unit is not in sync: nothing waits for it.
        primary.peers.retain(|node, _| map.members.contains(node));
        for node in others {
            let new = || Peer::new(now, false);
            primary.peers.entry(node).or_insert_with(new);
        }
        for (node, peer) in &mut primary.peers {
            let was_in_sync = peer.is_counted;
            peer.is_counted = map.is_in_sync(*node);
            peer.proposed_from = None;
            peer.is_leaving = false;
            if was_in_sync && !peer.is_counted {
                peer.sent = None;
                peer.is_lost = false;
            }
            if peer.is_counted {
                (peer.refill, peer.welcomed_at) = (None, None);
            }
        }
        self.update_backpressure(now);
        self.confirm(now);
    }

    pub(super) fn handle_as_primary(&mut self, now: u64, envelope: &Envelope, body: Body) {
        let from = envelope.from;
        let is_member = self.map.members.contains(&from);
        // Not for each message that came meanwhile: it takes longer the more sessions there are.
        self.discount_pause(now, self.options.heartbeat_ns);
        let mode = body.mode();
        match body {
            _ if !is_member => return self.handle_client(now, envelope, body),
            Body::Lease {
                sent_at_ns,
                tail,
                is_caught_up,
            } => {
                let lease_ns = self.options.lease_ns;
                if let Some(peer) = self.peer(from)
                    && sent_at_ns <= now
                {
                    peer.lease_until = peer.lease_until.max(sent_at_ns + lease_ns);
                    peer.heard_at = now;
                }
                self.handle_tail(now, from, tail, is_caught_up);
            }
            Body::Tail { tail, is_caught_up } => self.handle_tail(now, from, tail, is_caught_up),
            Body::Gap { from: position } => {
                let retry = self.options.retry_ns;
                if let Some(peer) = self.peer(from) {
                    peer.note_gap(now, position, retry);
                }
            }
            Body::Join {
                from: position,
                version,
            } => self.handle_join(now, envelope, position, version),
            Body::KeyOpened { session, key } => self.key_opened(from, session, key),
            Body::KeyClosed { session } => self.key_closed(now, from, session),
            Body::Fetch {
                fetch,
                offset,
                length,
            } => self.handle_fetch(now, from, mode, (fetch, offset, length)),
            _ => {}
        }
        self.ship(now);
        self.release_waiting(now);
        self.serve_deferred(now);
    }

    /// A member asks for a part of the image.
    fn handle_fetch(
        &mut self,
        now: u64,
        from: NodeId,
        mode: AnswerMode,
        (fetch, offset, length): (Fetch, u64, u32),
    ) {
        let most = self.options.refill;
        let length = match fetch {
            Fetch::Metadata => length.min(METADATA_STEP),
            Fetch::Data | Fetch::Refill => length.min(most),
        };
        if let Some(peer) = self.peer(from)
            && fetch != Fetch::Data
        {
            peer.note_fetch(now, offset.saturating_add(length.into()));
            self.update_backpressure(now);
            self.serve_parked(now);
        }
        let read = Intent::ReadImage {
            to: from,
            fetch,
            offset,
            length,
            most,
        };
        match self.primary() {
            Some(primary) if mode == AnswerMode::Deferred => primary.deferred.add(from, read),
            _ => self.out.intents.push_back(read),
        }
    }

    pub(super) fn peer(&mut self, node: NodeId) -> Option<&mut Peer> {
        self.primary()?.peers.get_mut(&node)
    }

    fn handle_tail(&mut self, now: u64, from: NodeId, tail: u64, is_caught_up: bool) {
        let (in_sync, version) = (self.map.is_in_sync(from), self.map.version);
        let lease_ns = self.options.lease_ns;
        let Some(primary) = self.primary() else {
            return;
        };
        let position = primary.position;
        let Some(peer) = primary.peers.get_mut(&from) else {
            return;
        };
        if !in_sync && !is_caught_up {
            peer.leave(version);
        }
        // A tail of 0 says that its records are not the unit's.
        let is_known = tail > 0 && tail <= position && (peer.joins_from.is_none() || in_sync);
        if is_known {
            peer.sent = peer.sent.or(Some(tail));
            if tail > peer.tail {
                peer.progressed_at = now;
            }
            let may_count = is_caught_up && !peer.is_stuck(now, lease_ns, position);
            if !in_sync && !peer.is_counted && may_count {
                // It has been refilled since.
                peer.is_lost = false;
                // From now on it counts, so that it misses nothing when the map lists it before this primary knows.
                peer.is_counted = true;
                peer.counted_from = position;
            }
            // Of records that counted members report, those count that they have with all named data.
            peer.tail = match (peer.is_counted, is_caught_up) {
                (true, true) => peer.tail.max(tail),
                (true, false) => peer.tail,
                (false, _) => tail,
            };
        }
        self.update_backpressure(now);
        self.confirm(now);
        self.propose_changes(now);
    }

    /// A member asks to follow. One that is in sync by its map has lost its position: it has to leave first. If its map
    /// was older, it has recovered since.
    fn handle_join(&mut self, now: u64, envelope: &Envelope, position: u64, version: u64) {
        let Envelope { from, request, .. } = *envelope;
        let in_sync = self.map.is_in_sync(from);
        let newest = self.map.version;
        let early = self.defects.has(Defect::InSyncTooEarly);
        let Some(primary) = self.primary() else {
            return;
        };
        let own = primary.position;
        let Some(peer) = primary.peers.get_mut(&from) else {
            return;
        };
        if in_sync {
            peer.is_lost |= version == newest;
            return self.propose_changes(now);
        }
        // A join is no answer: a member in sync could repeat it without answering heartbeats.
        peer.heard_at = now;
        peer.leave(newest);
        if peer.is_counted {
            // It may be in sync by the next map, and must not restart then.
            return self.propose_changes(now);
        }
        if peer.joins_since != request {
            peer.refill = None;
        }
        peer.joins_since = request;
        peer.is_lost = false;
        peer.sent = None;
        if position == 0 || position > own {
            peer.joins_from = None;
            return self.welcome(now, from, own);
        }
        peer.joins_from = Some(position);
        if early {
            (peer.is_counted, peer.counted_from, peer.tail) = (true, 0, position);
        }
        let to = vec![from];
        self.out.intents.push_back(Intent::ReadRecords {
            from: position,
            below: u64::MAX,
            to,
            data_of: Vec::new(),
            is_for_group: false,
        });
    }

    pub(super) fn welcome(&mut self, now: u64, to: NodeId, from: u64) {
        let position = self.primary().map_or(0, |primary| primary.position);
        let Some(peer) = self.peer(to) else {
            return;
        };
        peer.note_welcome(now, from);
        let request = peer.joins_since;
        self.update_backpressure(now);
        let image = self.map.image;
        let welcome = Body::Welcome {
            from,
            position,
            image,
        };
        self.send_as(request, vec![to], welcome);
    }

    pub(super) fn completed_as_primary(&mut self, now: u64, completion: Completion) {
        match completion {
            Completion::Records {
                from,
                to,
                records,
                data,
                is_for_group,
            } => self.records_read(now, (from, to), records, (data, is_for_group)),
            Completion::Image {
                to,
                fetch,
                offset,
                position,
                skipped,
                bytes,
            } => {
                let body = Body::Range {
                    fetch,
                    offset,
                    position,
                    skipped,
                    bytes,
                };
                // The contents of a refill must not get lost with this primary.
                let is_free = fetch == Fetch::Data || self.defects.has(Defect::RefillBeforeTails);
                let needs = if is_free { 0 } else { position };
                let waiting = Waiting::for_member(to, body, needs);
                if let Some(primary) = self.primary() {
                    primary.wait(waiting);
                }
            }
            Completion::Executed { .. } => {
                self.executed(now, completion);
                self.give_turns(now);
            }
            Completion::Resolved { ticket, inodes } => self.resolved(now, ticket, inodes),
            _ => {}
        }
        self.ship(now);
        self.release_waiting(now);
    }

    /// Finds out what all members in sync have.
    pub(super) fn confirm(&mut self, now: u64) {
        let reuse = self.defects.has(Defect::ReuseBeforeTails);
        let Some(primary) = self.primary() else {
            return;
        };
        let confirmed = primary.least_tail();
        if confirmed > primary.confirmed {
            primary.confirmed = confirmed;
            primary.owners.confirmed(confirmed);
            primary
                .held_files
                .retain(|_, position| *position > confirmed);
            primary.named_here = primary.named_here.split_off(&(confirmed + 1));
            let below = if reuse { primary.position } else { confirmed };
            self.out.intents.push_back(Intent::ReleaseFreed { below });
        }
        self.go_on_replaying(now);
        self.reclaim_orphans();
        self.serve_parked(now);
    }

    pub(super) fn serve_on_time(&mut self, now: u64) {
        let (heartbeat_ns, retry) = (self.options.heartbeat_ns, self.options.retry_ns);
        self.discount_pause(now, 0);
        let Some(primary) = self.primary() else {
            return;
        };
        let mut silent = Vec::new();
        for (node, peer) in &mut primary.peers {
            // While nothing is left to do, doing nothing is no fault.
            if peer.tail >= primary.position {
                peer.progressed_at = now;
            }
            // There was no reaction to the sent records. The member knows best what it lacks: it answers, or asks.
            let lacks = peer.sent.is_some_and(|sent| sent > peer.tail);
            if lacks && now >= peer.asked_at + retry && !peer.is_served_by_group(now, retry) {
                peer.asked_at = now;
                silent.push(*node);
            }
        }
        let is_due = now >= primary.heartbeat_at;
        if is_due {
            primary.heartbeat_at = now + heartbeat_ns;
        }
        primary.next_tick = primary.heartbeat_at;
        let heartbeat = Body::Heartbeat {
            sent_at_ns: now,
            position: primary.position,
            confirmed: primary.confirmed,
        };
        let to = if is_due { self.others() } else { silent };
        self.send_all(to, heartbeat);
        if let Some(primary) = self.primary() {
            primary.leases.expire_all(now);
        }
        self.expire_sessions(now);
        self.give_turns(now);
        self.free_grants(now);
        self.update_backpressure(now);
        self.confirm(now);
        self.propose_changes(now);
        self.ship(now);
        self.release_waiting(now);
    }

    /// Asks the membership service to remove failed members, and to count rejoined ones.
    fn propose_changes(&mut self, now: u64) {
        let (lease, heartbeat_ns) = (self.options.lease_ns, self.options.heartbeat_ns);
        let omits_early = self.defects.has(Defect::OmitBeforeMap);
        let counts_pauses = self.defects.has(Defect::CountPauses);
        let map = self.map.clone();
        let silence = self.silence(now);
        let Some((primary, silence)) = self.primary().zip(silence) else {
            return;
        };
        let next_end = silence.next(primary.peers.values());
        primary.next_tick = next_end.map_or(primary.next_tick, |at| at.min(primary.next_tick));
        let is_waiting = primary.is_proposing && now < primary.proposed_at + lease;
        if is_waiting || primary.is_late(now, heartbeat_ns) && !counts_pauses {
            return;
        }
        let mut next = map.next();
        next.in_sync.retain(|node| {
            let peer = primary.peers.get(node);
            peer.is_none_or(|peer| !silence.is_gone(peer))
        });
        for (node, peer) in &mut primary.peers {
            // Nothing would ever be confirmed, and no lease last, if it counted on.
            let is_listed = map.is_in_sync(*node);
            if peer.is_counted && !is_listed && silence.is_gone(peer) {
                peer.leave(map.version);
            }
            let is_back = peer.is_counted
                && !peer.is_leaving
                && peer.tail >= peer.counted_from
                && peer.lease_until > now
                // It may be primary next, and clients were granted leases without its promise.
                && peer.lease_until >= primary.leases.latest();
            if is_back && !is_listed {
                next.in_sync.push(*node);
                peer.proposed_from = Some(map.version);
            }
            peer.is_counted &= !omits_early || next.is_in_sync(*node);
        }
        next.in_sync.sort_unstable();
        // The next version, whatever its contents, invalidates an earlier proposal from this one.
        let is_leaving = primary.peers.values().any(|peer| peer.is_leaving);
        if next.in_sync != map.in_sync || is_leaving {
            primary.is_proposing = true;
            primary.proposed_at = now;
            self.propose(next);
        }
    }

    fn propose(&mut self, map: UnitMap) {
        self.out.intents.push_back(Intent::Propose { map });
    }
}
