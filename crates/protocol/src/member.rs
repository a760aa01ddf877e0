//! A member of a unit: it follows the primary, stands for primary when the primary is lost, or is the primary.
//!
//! - `follow`: records in, tails out; gaps, missing data;
//! - `fetch`: which image bytes are missing, and on their way;
//! - `join`: coming back after having been away;
//! - `elect`: election of the next primary;
//! - `serve`: the primary's view of the others, leases, shipping of records;
//! - `silence`: when the primary leaves out a member;
//! - `deferred_requests`: work of an idle primary;
//! - `requests`, `execute`, `sessions`, `locks`, `replay`: what clients ask of the primary;
//! - `granted_leases`: leases for what clients keep, and their recall;
//! - `backpressure`: changes that wait for members that are refilled;
//! - `grants`: keys for clients that reach into the members' memories, and their end;
//! - `bounds`: how much of it is kept;
//! - `view`: state of a primary, for observers.

mod backpressure;
mod bounds;
mod deferred_requests;
mod elect;
mod execute;
mod fetch;
mod follow;
mod granted_leases;
mod grants;
mod intent;
mod join;
mod locks;
mod owning;
mod replay;
mod requests;
mod serve;
mod sessions;
mod ship;
mod silence;
mod view;
mod waits;

use std::collections::{BTreeMap, VecDeque};

pub use crate::leases::owners::OwnerChange;
pub(crate) use bounds::READS_MAX;
pub use intent::{Completion, Intent, LockRun, NamedData, RequestId, SessionRecord, Slot, Ticket};
pub use locks::{HeldLock, LOCKS_MAX};
pub use view::{ReadPermit, View};

use crate::defects::{Defect, Defects};
use crate::map::{EpochStart, NodeId, Sequence, UnitMap};
use crate::wire::{Body, Bytes, Envelope, Message};
use crate::{Outgoing, Transmit, UnitOptions};
use elect::Candidacy;
use follow::Following;
use join::Joining;
use serve::Primary;

/// Current role of a member.
enum Role {
    Following(Following),
    Standing(Candidacy),
    /// The pool is being opened for changes, in the map's epoch.
    Opening,
    Serving(Box<Primary>),
    /// The pool is being closed for changes.
    Closing,
}

/// One member of a unit.
pub struct Member {
    node: NodeId,
    options: UnitOptions,
    defects: Defects,
    map: UnitMap,
    role: Role,
    /// End of this pool's records. While the role is `Serving`, the primary knows it.
    tail: Sequence,
    /// The epochs of the records that this pool has.
    history: Vec<EpochStart>,
    /// This member has promised, by its own clock, not to become primary before.
    promised_until: u64,
    /// The epoch that it has proposed to be primary of. Only that one, since this process started, may it open.
    proposed: Option<u32>,
    /// Sessions with a key to the memory here, by their places in the table.
    keys: BTreeMap<u32, u64>,
    out: Out,
}

/// Output of a state machine.
#[derive(Default)]
pub(crate) struct Out {
    pub with_parity: bool,
    pub outgoing: VecDeque<Outgoing>,
    pub intents: VecDeque<Intent>,
}

impl Out {
    pub fn send(&mut self, to: Vec<NodeId>, message: Message) {
        self.outgoing.push_back(Outgoing {
            to,
            message,
            with_parity: self.with_parity,
        });
    }
}

impl Member {
    /// A member with a process that just started: its pool is open for following, has records up to `tail`, and those
    /// in its ring are of the epochs `history`.
    pub fn new(
        node: NodeId,
        options: UnitOptions,
        defects: Defects,
        tail: Sequence,
        history: Vec<EpochStart>,
        now: u64,
    ) -> Member {
        let out = Out {
            with_parity: options.parity,
            ..Out::default()
        };
        let mut member = Member {
            node,
            options,
            defects,
            map: UnitMap::default(),
            role: Role::Following(Following::new(now)),
            tail,
            history,
            promised_until: now,
            proposed: None,
            keys: BTreeMap::new(),
            out,
        };
        // It does not know any more what the process promised before it ended.
        if !member.defects.has(Defect::ForgetPromiseAtRestart) {
            member.promise(now);
        }
        member
    }

    /// The newest map that this member has received.
    pub fn map(&self) -> &UnitMap {
        &self.map
    }

    /// Whether it serves as primary now, under leases.
    pub fn is_serving(&self, now: u64) -> bool {
        matches!(&self.role, Role::Serving(primary) if primary.may_serve(now))
    }

    /// Up to where its records reach.
    pub fn tail(&self) -> Sequence {
        match &self.role {
            Role::Serving(primary) => Sequence::new(self.map.epoch, primary.position),
            _ => self.tail,
        }
    }

    /// A map came from the membership service.
    pub fn handle_map(&mut self, now: u64, map: UnitMap) {
        if map.version <= self.map.version || map.fault(&self.defects).is_some() {
            return;
        }
        let same_epoch = map.epoch == self.map.epoch;
        // For a process that just started no primary is new.
        let is_first = self.map.version == 0;
        let is_left_out = map.primary != self.node && self.defects.has(Defect::GrowPrimaryOnly);
        if map.image > self.map.image && !is_left_out {
            let length = map.image;
            self.out.intents.push_back(Intent::GrowImage { length });
        }
        self.map = map;
        match &mut self.role {
            Role::Serving(_) if same_epoch => self.map_changed_while_serving(now),
            Role::Serving(_) => {
                self.role = Role::Closing;
                self.out.intents.push_back(Intent::Follow);
            }
            // The tail is not known before the pool is open or closed; then this is checked again.
            Role::Opening | Role::Closing => {}
            Role::Following(following) if same_epoch => {
                following.is_welcome = false;
                // A member in sync has rejoined: an answer in flight has no meaning any more.
                if self.map.is_in_sync(self.node) {
                    following.joining = Joining::No;
                }
            }
            Role::Following(_) | Role::Standing(_) => {
                if !is_first {
                    self.promise(now);
                }
                self.begin_role(now);
            }
        }
    }

    /// Takes the part that the map gives to this member. A new primary was promised as much time as if it had been
    /// heard of.
    fn begin_role(&mut self, now: u64) {
        let is_elected = self.map.primary == self.node && self.proposed == Some(self.map.epoch);
        if is_elected {
            self.role = Role::Opening;
            let epoch = self.map.epoch;
            self.out.intents.push_back(Intent::OpenForWriting { epoch });
        } else {
            self.role = Role::Following(Following::new(now));
        }
    }

    /// Promises not to become primary for as long as a lease asked for now may last, by any clock.
    fn promise(&mut self, now: u64) {
        let lease = self.options.lease_ns;
        let until = if self.defects.has(Defect::PromoteBeforeLease) {
            now + lease / 4
        } else {
            now + lease + lease * self.options.drift_permille / 1000
        };
        self.promised_until = self.promised_until.max(until);
    }

    /// Whether this pool has no data of files.
    fn is_metadata_only(&self) -> bool {
        self.map.is_metadata_only(self.node)
    }

    /// Whether the map does not list this member, or not any more: it sends no requests.
    fn is_outside(&self) -> bool {
        self.map.version > 0 && !self.map.members.contains(&self.node)
    }

    /// Whether all records of this pool are the unit's.
    fn is_sound(&self) -> bool {
        self.map.common_prefix(&self.history, self.tail) == Some(self.tail.number)
    }

    /// Handles a message that arrived.
    /// Invalid messages, and those of another cluster, are dropped.
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
            ..
        } = message.envelope;
        if cluster != self.options.cluster || unit != self.options.unit {
            return;
        }
        if epoch != self.map.epoch && !self.defects.has(Defect::SkipEpochCheck) {
            return;
        }
        let Message { envelope, body } = message;
        let from = envelope.from;
        match body {
            Body::Candidate { tail } => self.handle_candidate(now, from, tail),
            Body::Support { tail, is_sound } => self.handle_support(from, tail, is_sound),
            body => match &mut self.role {
                Role::Serving(_) => self.handle_as_primary(now, &envelope, body),
                Role::Following(_) | Role::Standing(_) => {
                    self.handle_as_follower(now, &envelope, body);
                }
                Role::Opening | Role::Closing => {}
            },
        }
    }

    /// An intent was executed.
    pub fn handle_completion(&mut self, now: u64, completion: Completion) {
        match completion {
            Completion::Proposed { map } => {
                if let Role::Serving(primary) = &mut self.role {
                    primary.is_proposing = false;
                }
                self.handle_map(now, map);
            }
            Completion::Opened {
                tail,
                sessions,
                grants,
            } => self.opened(now, tail, sessions, &grants),
            Completion::KeyOpened { .. } | Completion::KeyClosed { .. } => {
                self.key_completed(now, &completion);
            }
            Completion::Following { tail, history } => {
                self.tail = tail;
                self.history = history;
                self.promise(now);
                self.begin_role(now);
            }
            Completion::Executed { .. }
            | Completion::Resolved { .. }
            | Completion::Records { .. }
            | Completion::Image { .. } => {
                self.completed_as_primary(now, completion);
            }
            Completion::Ingested { .. } | Completion::Touched { .. } => {
                self.completed_as_follower(now, completion);
            }
        }
    }

    /// Executes what is due at this time.
    pub fn handle_timeout(&mut self, now: u64) {
        match self.role {
            Role::Following(_) => self.follow_on_time(now),
            Role::Standing(_) => self.stand_on_time(now),
            Role::Serving(ref primary) => {
                if now >= primary.next_tick {
                    self.serve_on_time(now);
                }
                self.serve_deferred(now);
            }
            Role::Opening | Role::Closing => {}
        }
    }

    /// When [`Member::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        match &self.role {
            Role::Following(following) => self.next_while_following(following),
            Role::Standing(candidacy) => Some(candidacy.next),
            Role::Serving(primary) => {
                let deferred = primary.next_deferred(&self.options);
                Some(deferred.map_or(primary.next_tick, |at| at.min(primary.next_tick)))
            }
            Role::Opening | Role::Closing => None,
        }
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.poll_outgoing().map(Outgoing::encode)
    }

    /// The next message to send, not encoded yet.
    pub fn poll_outgoing(&mut self) -> Option<Outgoing> {
        self.out.outgoing.pop_front()
    }

    /// The next thing for the host to do.
    pub fn poll_intent(&mut self) -> Option<Intent> {
        self.out.intents.pop_front()
    }

    fn send(&mut self, to: NodeId, body: Body) {
        self.send_all(vec![to], body);
    }

    fn send_all(&mut self, to: Vec<NodeId>, body: Body) {
        self.send_as(0, to, body);
    }

    fn send_as(&mut self, request: u64, to: Vec<NodeId>, body: Body) {
        let envelope = Envelope {
            cluster: self.options.cluster,
            unit: self.options.unit,
            epoch: self.map.epoch,
            from: self.node,
            request,
            ..Envelope::default()
        };
        if !to.is_empty() {
            self.out.send(to, Message { envelope, body });
        }
    }

    fn others(&self) -> Vec<NodeId> {
        let all = self.map.members.iter().copied();
        all.filter(|node| *node != self.node).collect()
    }
}
