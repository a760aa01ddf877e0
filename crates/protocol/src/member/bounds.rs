//! Bounds on the state that others can make a member keep, however often they repeat a message, and whatever they send.
//!
//! For each session the primary keeps one change of a slot and [`READS_MAX`] requests without one, from their arrival to
//! their answer, [`WAITS_MAX`](super::waits::WAITS_MAX) waits for locks (four times as many for all sessions), and as many leases as the options say; for each member [`FETCHES_MAX`] ranges. Sessions are bounded by the table of sessions, members by the
//! map. Excess messages are dropped: their senders retry. The lists are short, so they are searched.

use super::requests::{Executing, Parked, Waiting};
use super::serve::Primary;
use super::{Member, Role};
use crate::map::NodeId;
use crate::wire::Body;

/// Requests without a slot that a session may have in flight.
pub const READS_MAX: usize = 64;
/// Ranges that wait for one member.
pub(super) const FETCHES_MAX: usize = 64;

impl Parked {
    /// Whether both use the same entry: of two changes of one slot only the newer one counts, since a client sends the
    /// next when it has the answer to the one before. A read has a separate entry.
    fn displaces(&self, other: &Parked) -> bool {
        let is_change = self.operation.is_change();
        self.session == other.session
            && is_change == other.operation.is_change()
            && if is_change {
                self.slot == other.slot
            } else {
                self.request == other.request
            }
    }
}

impl Executing {
    /// Greatest length of its records.
    fn record_max(&self) -> u64 {
        match self {
            Executing::Request { parked, .. } if parked.operation.makes_record() => {
                parked.operation.record_max()
            }
            // There are few sessions.
            _ => 0,
        }
    }
}

impl Primary {
    /// Whether members lack so much, or will when everything in flight is done, that changes have to wait.
    pub fn is_full(&self, window: u64) -> bool {
        self.position + self.records_under_way() > self.confirmed + window
    }

    /// Greatest length of the records that are being made.
    pub fn records_under_way(&self) -> u64 {
        self.executing.values().map(Executing::record_max).sum()
    }

    /// Keeps a request until it is served, unless it is in flight already or too many are.
    pub fn park(&mut self, parked: Parked) {
        let slots = self.sessions.by_number.get(&parked.session);
        let slots = slots.map_or(0, |session| session.slots.len());
        let is_change = parked.operation.is_change();
        if is_change && usize::from(parked.slot) >= slots {
            return;
        }
        if !is_change && !self.has_room_for_read(&parked) {
            return;
        }
        if self.is_resolving(&parked) {
            return;
        }
        match self.parked.iter_mut().find(|it| parked.displaces(it)) {
            Some(other) if parked.request > other.request => *other = parked,
            Some(_) => {}
            None => self.parked.push_back(parked),
        }
    }

    /// Whether the names of this change, or of a newer one of its slot, are being looked up.
    fn is_resolving(&self, change: &Parked) -> bool {
        self.executing.values().any(|it| match it {
            Executing::Resolve { parked } => {
                parked.displaces(change) && parked.request >= change.request
            }
            _ => false,
        })
    }

    /// Whether a read is not in flight yet, and its session has not too many of them.
    fn has_room_for_read(&self, read: &Parked) -> bool {
        let is_read = |it: &Parked| it.session == read.session && !it.operation.is_change();
        let parked = self.parked.iter().filter(|it| is_read(it));
        let executing = self.executing.values().filter_map(|it| match it {
            Executing::Request { parked, .. } => Some(parked),
            _ => None,
        });
        let executing = executing.filter(|it| is_read(it));
        let before = parked.chain(executing).map(|it| (it.request, it.slot));
        let waiting = self.waiting.iter().filter_map(|it| match it.body {
            Body::Reply { slot, .. } if it.session == read.session => Some((it.request, slot)),
            _ => None,
        });
        let mut count = 0;
        let is_new = before.chain(waiting).all(|it| {
            count += 1;
            it != (read.request, read.slot)
        });
        is_new && count < READS_MAX
    }

    /// Keeps a message until enough is confirmed, in place of an obsolete one. One that waits already continues to
    /// wait: a later one would wait for more.
    pub fn wait(&mut self, waiting: Waiting) {
        let is_reply = matches!(waiting.body, Body::Reply { .. });
        let is_same = |it: &Waiting| match (&it.body, &waiting.body) {
            (Body::Reply { slot, .. }, Body::Reply { slot: own, .. }) => {
                it.session == waiting.session && it.request == waiting.request && slot == own
            }
            (
                Body::Range { fetch, offset, .. },
                Body::Range {
                    fetch: own,
                    offset: at,
                    ..
                },
            ) => it.to == waiting.to && (fetch, offset) == (own, at),
            (body, own) => !is_reply && it.session == waiting.session && body == own,
        };
        if self.waiting.iter().any(is_same) || !self.has_room_for_range(&waiting) {
            return;
        }
        self.waiting.push(waiting);
    }

    fn has_room_for_range(&self, waiting: &Waiting) -> bool {
        let is_range = |it: &&Waiting| it.to == waiting.to && matches!(it.body, Body::Range { .. });
        !is_range(&waiting) || self.waiting.iter().filter(is_range).count() < FETCHES_MAX
    }

    /// Drops the previous answer of a slot: a client that sends the next request has it, or does not need it.
    pub fn forget_answer(&mut self, parked: &Parked) {
        self.waiting.retain(|it| {
            let Body::Reply { slot, .. } = it.body else {
                return true;
            };
            it.session != parked.session || slot != parked.slot || it.request >= parked.request
        });
    }

    /// Whether a client is about to receive a session: if it asks again, it gets that one.
    pub fn is_opening(&self, client: NodeId) -> bool {
        let mut executing = self.executing.values();
        let mut waiting = self.waiting.iter();
        executing.any(
            |it| matches!(it, Executing::OpenSession { client: other, .. } if *other == client),
        ) || waiting.any(|it| it.to == client && matches!(it.body, Body::SessionOpened { .. }))
    }
}

impl Member {
    /// Number of list entries: fuzzing compares it with a bound.
    pub(crate) fn kept(&self) -> usize {
        let of_role = match &self.role {
            Role::Following(following) => following.kept(),
            Role::Standing(candidacy) => candidacy.kept(),
            Role::Serving(primary) => {
                let sessions = primary.sessions.by_number.len();
                let requests = primary.parked.len() + primary.executing.len();
                let others = primary.held_files.len() + primary.quarantines.len();
                let others =
                    others + primary.leases.kept() + primary.owners.kept() + primary.waits.len();
                sessions + requests + primary.deferred.kept() + primary.waiting.len() + others
            }
            Role::Opening | Role::Closing => 0,
        };
        of_role + self.keys.len()
    }
}
