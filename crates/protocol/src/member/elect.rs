//! Election: members in sync that hear nothing from the primary stand for primary.
//!
//! A member promises each time it grants a lease; it stands only when that promise has expired by its own clock, so the
//! old primary, which needs a lease of every member in sync, serves no more. The membership service decides: of two
//! proposals for one epoch it takes one.

use std::collections::BTreeMap;

use super::intent::Intent;
use super::{Member, Role};
use crate::defects::Defect;
use crate::map::{NodeId, Sequence};
use crate::wire::Body;

/// State of a member that stands for primary.
pub(super) struct Candidacy {
    /// Tails of the other candidates and supporters, and whether their records are all the unit's.
    heard: BTreeMap<NodeId, (Sequence, bool)>,
    /// From then on it may have become primary: it grants no lease any more.
    pub has_proposed: bool,
    /// It has stepped back behind a higher tail once.
    has_deferred: bool,
    /// Before then it does not propose a map with too few members in sync: the primary may serve with the others, and leaves
    /// it out until then.
    alone_at: u64,
    pub next: u64,
}

impl Candidacy {
    pub fn kept(&self) -> usize {
        self.heard.len()
    }
}

impl Member {
    /// Only a member in sync has everything that was acknowledged, and only if it has the data too. If some of its
    /// records are not the unit's, no primary since then knows its tail: nothing was acknowledged that it does not
    /// have.
    pub(super) fn may_stand(&self) -> bool {
        if self.is_metadata_only() && !self.defects.has(Defect::PromoteMetadataOnly) {
            return false;
        }
        self.map.is_in_sync(self.node)
            || self.defects.has(Defect::PromoteOutOfSync) && self.map.members.contains(&self.node)
    }

    pub(super) fn stand(&mut self, now: u64) {
        self.role = Role::Standing(Candidacy {
            heard: BTreeMap::new(),
            has_proposed: false,
            has_deferred: false,
            alone_at: now + 2 * self.options.lease_ns,
            next: now + 2 * self.options.retry_ns,
        });
        let tail = self.tail;
        self.send_all(self.rivals(), Body::Candidate { tail });
    }

    fn rivals(&self) -> Vec<NodeId> {
        let in_sync = self.map.in_sync.iter().copied();
        in_sync.filter(|node| *node != self.node).collect()
    }

    pub(super) fn handle_candidate(&mut self, now: u64, from: NodeId, tail: Sequence) {
        // A member that still hears the primary does not help to replace it.
        let is_free = match &self.role {
            Role::Following(_) => now >= self.promised_until,
            Role::Standing(_) => true,
            _ => false,
        };
        if !is_free || !self.map.is_in_sync(from) {
            return;
        }
        if matches!(self.role, Role::Following(_)) && self.may_stand() {
            self.stand(now);
        }
        if let Role::Standing(candidacy) = &mut self.role {
            candidacy.heard.insert(from, (tail, true));
        }
        let (tail, is_sound) = (self.tail, self.is_sound());
        self.send(from, Body::Support { tail, is_sound });
    }

    pub(super) fn handle_support(&mut self, from: NodeId, tail: Sequence, is_sound: bool) {
        let is_rival = self.map.is_in_sync(from);
        if let Role::Standing(candidacy) = &mut self.role
            && is_rival
        {
            candidacy.heard.insert(from, (tail, is_sound));
        }
    }

    pub(super) fn stand_on_time(&mut self, now: u64) {
        let own = (self.tail, std::cmp::Reverse(self.node));
        let retry = self.options.retry_ns;
        let Role::Standing(candidacy) = &mut self.role else {
            return;
        };
        // A metadata-only member does not stand: no other member yields to it.
        let rivals = candidacy.heard.iter();
        let is_outrun = rivals
            .filter(|(node, _)| !self.map.is_metadata_only(**node))
            .any(|(node, (tail, is_sound))| *is_sound && (*tail, std::cmp::Reverse(*node)) > own);
        candidacy.next = now + 4 * retry;
        if is_outrun && !candidacy.has_deferred {
            // The one with the higher tail proposes itself, if it is still there.
            candidacy.has_deferred = true;
            let tail = self.tail;
            return self.send_all(self.rivals(), Body::Candidate { tail });
        }
        // A supporter with more records than the new primary has to undo them first.
        let supporters = candidacy
            .heard
            .iter()
            .filter(|(_, (tail, is_sound))| *is_sound && *tail <= self.tail)
            .map(|(node, _)| *node)
            .filter(|node| self.map.in_sync.contains(node));
        let mut in_sync: Vec<_> = supporters.chain([self.node]).collect();
        in_sync.sort_unstable();
        let is_short = in_sync.len() < self.options.min_sync && self.map.in_sync.len() > 1;
        if is_short && now < candidacy.alone_at {
            let tail = self.tail;
            return self.send_all(self.rivals(), Body::Candidate { tail });
        }
        candidacy.has_proposed = true;
        let mut map = self.map.clone();
        if !self.is_sound() {
            map.adopt(&self.history);
        }
        let map = map.promote(self.node, self.tail, in_sync);
        self.proposed = Some(map.epoch);
        self.out.intents.push_back(Intent::Propose { map });
    }
}
