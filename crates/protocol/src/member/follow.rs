//! Following: records in, tails out.

use std::collections::BTreeMap;
use std::ops::Range;

use super::intent::{Completion, Intent};
use super::join::Joining;
use super::{Member, Role};
use crate::defects::Defect;
use crate::map::NodeId;
use crate::wire::{Body, Fetch};

/// Records that came too early, at most, in messages. What does not fit is asked for again.
const EARLY_MAX: usize = 64;

/// State of a member that follows.
pub(super) struct Following {
    /// Records that came before those in front of them, by position.
    early: BTreeMap<u64, Vec<u8>>,
    /// Records that are being taken, or wait for data that one of them names.
    held: Option<(u64, Vec<u8>)>,
    /// Ranges that were asked for. Their records are not taken before: after a crash nothing tells that data is missing.
    missing: Vec<Range<u64>>,
    /// Ranges that came for the held records.
    fetched: Vec<Range<u64>>,
    /// When something was last asked for.
    pub asked_at: u64,
    /// The way back into the unit, for a member that is not in sync.
    pub joining: Joining,
    /// The primary knows of this member, which may count records.
    pub is_welcome: bool,
    /// Before its tail is here, the image may show changes whose records this member does not have.
    pub floor: u64,
    /// No record is taken without its data any more, as the primary was told.
    is_strict: bool,
}

impl Following {
    pub fn new(now: u64) -> Following {
        Following {
            early: BTreeMap::new(),
            held: None,
            missing: Vec::new(),
            fetched: Vec::new(),
            asked_at: now,
            joining: Joining::No,
            is_welcome: false,
            floor: 0,
            is_strict: false,
        }
    }

    /// What it has and waits for is void: the image is made anew.
    pub fn start_over(&mut self) {
        self.early.clear();
        self.held = None;
        self.missing.clear();
        self.fetched.clear();
        self.is_strict = false;
        self.is_welcome = false;
    }

    pub fn kept(&self) -> usize {
        self.early.len() + self.missing.len() + self.fetched.len()
    }

    fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.held.is_none()
    }
}

impl Member {
    fn following(&mut self) -> Option<&mut Following> {
        match &mut self.role {
            Role::Following(following) => Some(following),
            _ => None,
        }
    }

    /// A member in sync whose records are all the unit's follows by itself; others have to join.
    fn may_follow(&self) -> bool {
        match &self.role {
            Role::Following(following) => {
                following.is_welcome
                    || self.map.is_in_sync(self.node)
                        && (self.is_sound() || self.defects.has(Defect::KeepForeignRecords))
            }
            _ => false,
        }
    }

    /// Whether records are taken only with their data. A member in sync does so; one that catches up begins when its image
    /// shows nothing that its records do not, tells the primary, and goes on if it can.
    fn is_strict(&self) -> bool {
        let Role::Following(following) = &self.role else {
            return false;
        };
        self.map.is_in_sync(self.node) || following.is_strict
    }

    /// Whether the primary may count this member's tail.
    fn is_caught_up(&self) -> bool {
        self.may_follow() && self.is_strict()
    }

    /// Becomes strict if nothing is missing.
    fn settle(&mut self) {
        let tail = self.tail.number;
        if let Some(following) = self.following() {
            following.is_strict |=
                following.is_welcome && following.is_complete() && tail >= following.floor;
        }
    }

    /// How far this member's records reach, as the primary may know it: nothing, if they are not the unit's.
    fn reported_tail(&self) -> u64 {
        if self.may_follow() {
            self.tail.number
        } else {
            0
        }
    }

    pub(super) fn handle_as_follower(&mut self, now: u64, from: NodeId, body: Body) {
        if from != self.map.primary && !self.defects.has(Defect::SkipEpochCheck) {
            return;
        }
        match body {
            Body::Heartbeat {
                sent_at_ns,
                position,
                ..
            } => self.handle_heartbeat(now, sent_at_ns, position),
            Body::Records { from, records } => self.handle_records(now, from, records),
            Body::Range {
                fetch,
                offset,
                position,
                bytes,
            } => self.handle_range(now, fetch, offset, position, bytes),
            Body::Welcome { from, position } => self.handle_welcome(now, from, position),
            body => self.handle_key(&body),
        }
    }

    fn handle_heartbeat(&mut self, now: u64, sent_at_ns: u64, position: u64) {
        match &self.role {
            // Who has proposed itself must not give the old primary another lease.
            Role::Standing(candidacy) if candidacy.has_proposed => return,
            Role::Standing(_) => self.role = Role::Following(Following::new(now)),
            _ => {}
        }
        self.promise(now);
        // Where nothing changes any more, no record brings this about.
        self.settle();
        let (tail, is_caught_up) = (self.reported_tail(), self.is_caught_up());
        let lease = Body::Lease {
            sent_at_ns,
            tail,
            is_caught_up,
        };
        self.send(self.map.primary, lease);
        if self.may_follow() && position > self.tail.number {
            self.ask_for_gap(now);
        } else if !self.may_follow() {
            self.join(now);
        }
    }

    /// Asks for what is missing, but not again while the answer may be on its way.
    fn ask_for_gap(&mut self, now: u64) {
        let retry = self.options.retry_ns;
        let Some(following) = self.following() else {
            return;
        };
        if now < following.asked_at + retry {
            return;
        }
        following.asked_at = now;
        if !following.missing.is_empty() {
            return self.fetch_missing();
        }
        if !self.defects.has(Defect::DropGapRequest) {
            let from = self.tail.number;
            self.send(self.map.primary, Body::Gap { from });
        }
    }

    fn handle_records(&mut self, now: u64, from: u64, records: Vec<u8>) {
        if !self.may_follow() {
            return;
        }
        let tail = self.tail.number;
        let Some(following) = self.following() else {
            return;
        };
        let end = from.saturating_add(records.len() as u64);
        if from > tail {
            if following.early.len() < EARLY_MAX {
                following.early.insert(from, records);
            }
            return self.ask_for_gap(now);
        }
        if end <= tail {
            return self.report();
        }
        // What was held back comes first again when its data is there.
        if following.held.is_none() {
            self.ingest(from, records);
        }
    }

    fn ingest(&mut self, from: u64, records: Vec<u8>) {
        let is_strict = self.is_strict();
        let end = from + records.len() as u64;
        let Some(following) = self.following() else {
            return;
        };
        following.held = Some((from, records.clone()));
        let fetched = if is_strict {
            Vec::new()
        } else {
            following.fetched.clone()
        };
        if self.defects.has(Defect::ReportBeforeIngest) {
            let is_caught_up = self.is_caught_up();
            let tail = end;
            self.send(self.map.primary, Body::Tail { tail, is_caught_up });
        }
        self.out.intents.push_back(Intent::Ingest {
            from,
            records,
            fetched,
        });
    }

    /// Tells the primary how far the records reach.
    fn report(&mut self) {
        let (tail, is_caught_up) = (self.reported_tail(), self.is_caught_up());
        self.send(self.map.primary, Body::Tail { tail, is_caught_up });
    }

    pub(super) fn completed_as_follower(&mut self, now: u64, completion: Completion) {
        match completion {
            Completion::Ingested { tail, missing } => self.ingested(now, tail, missing),
            Completion::Touched { ranges } => self.touched(now, ranges),
            _ => {}
        }
    }

    fn ingested(&mut self, now: u64, tail: crate::map::Sequence, missing: Vec<Range<u64>>) {
        if tail.number > self.tail.number {
            self.tail = tail;
            // What follows the unit's records is the unit's.
            let lineage = self.map.lineage.iter();
            self.history = lineage
                .filter(|of| of.epoch <= tail.epoch)
                .copied()
                .collect();
        }
        let (is_in_sync, is_strict) = (self.map.is_in_sync(self.node), self.is_strict());
        let Some(following) = self.following() else {
            return;
        };
        if missing.is_empty() {
            following.held = None;
            following.fetched.clear();
        } else {
            // If it came and is not right, it will not be: the primary did not count this member yet when that changed.
            let has_come =
                |it: &Range<u64>| following.fetched.iter().any(|of| of.contains(&it.start));
            let is_wrong = is_strict && missing.iter().any(has_come);
            following.is_strict &= is_in_sync || !is_wrong;
            if is_strict {
                following.fetched.clear();
            }
            following.missing = missing;
            following.asked_at = now;
            // Else it is asked for again when a while has passed.
            if !is_wrong {
                self.fetch_missing();
            }
        }
        self.settle();
        self.report();
        self.ingest_early();
    }

    fn ingest_early(&mut self) {
        let tail = self.tail.number;
        let Some(following) = self.following() else {
            return;
        };
        if following.held.is_some() {
            return;
        }
        while let Some((from, records)) = following.early.pop_first() {
            if from > tail {
                following.early.insert(from, records);
                return;
            }
            if from + records.len() as u64 > tail {
                return self.ingest(from, records);
            }
        }
    }

    /// Asks for data that records name. A strict member gets just that data, since the primary does not change it in place
    /// before all members that it counts have the record. Others take what there is, and are behind until they have the
    /// records for it.
    fn fetch_missing(&mut self) {
        let fetch = if self.is_strict() {
            Fetch::Data
        } else {
            Fetch::Refill
        };
        let refill = u64::from(self.options.refill);
        let Some(following) = self.following() else {
            return;
        };
        for range in following.missing.clone().into_iter().take(16) {
            let length = (range.end - range.start).min(refill) as u32;
            let offset = range.start;
            let body = Body::Fetch {
                fetch,
                offset,
                length,
            };
            self.send(self.map.primary, body);
        }
    }

    fn handle_range(&mut self, now: u64, fetch: Fetch, offset: u64, position: u64, bytes: Vec<u8>) {
        let end = offset.saturating_add(bytes.len() as u64);
        let Some(following) = self.following() else {
            return;
        };
        if following.joining.is_refilling() {
            return self.handle_refill(now, offset, position, bytes);
        }
        let held = following.held.as_ref();
        let held_end = held.map_or(0, |(from, records)| from + records.len() as u64);
        let asked = following
            .missing
            .iter_mut()
            .find(|range| range.start == offset && end <= range.end);
        // An answer from before the records were made may have gone astray on its way.
        let Some(range) = asked.filter(|_| !bytes.is_empty() && position >= held_end) else {
            return;
        };
        range.start = end;
        following.missing.retain(|range| !range.is_empty());
        if fetch == Fetch::Refill {
            following.floor = following.floor.max(position);
        }
        let is_complete = following.missing.is_empty();
        let fetched = &mut following.fetched;
        if !fetched.iter().any(|it| it.contains(&offset)) {
            fetched.push(offset..end);
        }
        let again = following.held.clone().filter(|_| is_complete);
        self.out
            .intents
            .push_back(Intent::WriteImage { offset, bytes });
        match again {
            Some((from, records)) => self.ingest(from, records),
            None if is_complete => {
                self.settle();
                self.report();
            }
            None => self.fetch_missing(),
        }
    }

    pub(super) fn follow_on_time(&mut self, now: u64) {
        if now >= self.promised_until && self.may_stand() {
            return self.stand(now);
        }
        if !self.may_follow() {
            return self.join(now);
        }
        let is_missing = self
            .following()
            .is_some_and(|following| !following.is_complete() || !following.early.is_empty());
        if is_missing {
            self.ask_for_gap(now);
        }
    }

    pub(super) fn next_while_following(&self, following: &Following) -> u64 {
        let retry = following.asked_at + self.options.retry_ns;
        let is_waiting =
            !following.is_complete() || !following.early.is_empty() || !self.may_follow();
        match (is_waiting, self.may_stand()) {
            (true, _) => retry,
            (false, true) => self.promised_until,
            (false, false) => self.promised_until.max(retry),
        }
    }
}
