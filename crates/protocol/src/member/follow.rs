//! Following: records in, tails out.

use std::collections::BTreeMap;
use std::ops::Range;

use super::bounds::FETCHES_MAX;
use super::fetch::Fetching;
use super::intent::{Completion, Intent, NamedData};
use super::join::Joining;
use super::{Member, Role};
use crate::defects::Defect;
use crate::wire::{Body, Bytes, Data, Envelope, Fetch};

/// Records that came too early, at most, in messages. What does not fit is asked for again.
const EARLY_MAX: usize = 64;
/// And in bytes, with their data: what a group keeps to send again, and as much on its way.
const EARLY_BYTES: usize = 8 << 20;

/// Image bytes that came: `skipped` bytes from `offset` on are no metadata.
pub(super) struct Arrived {
    pub offset: u64,
    pub position: u64,
    pub skipped: u64,
    pub bytes: Bytes,
}

impl Arrived {
    pub fn end(&self) -> u64 {
        let start = self.offset.saturating_add(self.skipped);
        start.saturating_add(self.bytes.len() as u64)
    }
}

/// State of a member that follows.
pub(super) struct Following {
    /// Records that came before those in front of them, by position.
    early: BTreeMap<u64, (Bytes, Vec<Data>)>,
    /// Records that are being taken, or wait for data that one of them names.
    held: Option<(u64, Bytes)>,
    /// Fetched ranges of the data that the records beyond the tail name.
    fetched: Vec<Range<u64>>,
    /// The held records are taken though their data is not there any more: newer data is.
    is_lenient: bool,
    /// Data that is missing.
    missing: Fetching,
    /// When something was last asked for.
    pub asked_at: u64,
    /// The way back into the unit, for a member that is not in sync.
    pub joining: Joining,
    /// When it began to ask for that: answers repeat it.
    pub joins_since: u64,
    /// The primary knows this member, which may count records.
    pub is_welcome: bool,
    /// Before its tail is here, the image may show changes without their records.
    pub floor: u64,
    /// The image shows exactly the records, and the primary was notified.
    is_settled: bool,
}

impl Following {
    pub fn new(now: u64) -> Following {
        Following {
            early: BTreeMap::new(),
            held: None,
            fetched: Vec::new(),
            is_lenient: false,
            missing: Fetching::default(),
            asked_at: now,
            joining: Joining::No,
            joins_since: now,
            is_welcome: false,
            floor: 0,
            is_settled: false,
        }
    }

    /// Its state and outstanding requests are void: the image is fetched again.
    pub fn start_over(&mut self) {
        self.early.clear();
        self.held = None;
        self.missing = Fetching::default();
        self.fetched.clear();
        self.is_lenient = false;
        self.is_settled = false;
        self.is_welcome = false;
    }

    pub fn kept(&self) -> usize {
        self.early.len() + self.fetched.len() + self.missing.kept() + self.joining.kept()
    }

    /// Whether there is room for records that came too early.
    fn may_hold(&self, records: &[u8], data: &[Data]) -> bool {
        let bytes = |records: &[u8], data: &[Data]| {
            records.len() + data.iter().map(|data| data.bytes.len()).sum::<usize>()
        };
        let held = self
            .early
            .values()
            .map(|(records, data)| bytes(records, data));
        self.early.len() < EARLY_MAX && held.sum::<usize>() + bytes(records, data) <= EARLY_BYTES
    }

    /// Records ranges to be fetched; returns whether all of them were before.
    fn note_fetched(&mut self, ranges: &[Range<u64>]) -> bool {
        let has = |part: &Range<u64>, range: &Range<u64>| {
            part.start <= range.start && range.end <= part.end
        };
        let before = self.fetched.len();
        for range in ranges {
            if !self.fetched.iter().any(|part| has(part, range)) {
                self.fetched.push(range.clone());
            }
        }
        before == self.fetched.len()
    }

    fn is_complete(&self) -> bool {
        self.missing.is_complete() && self.held.is_none()
    }
}

impl Member {
    fn following(&mut self) -> Option<&mut Following> {
        match &mut self.role {
            Role::Following(following) => Some(following),
            _ => None,
        }
    }

    /// A member in sync with only the unit's records follows by itself; others have to rejoin.
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

    /// Whether the primary may count this member's tail: its image shows exactly its records. A member that catches up
    /// notifies the primary when this holds, and continues if it stays so.
    fn is_caught_up(&self) -> bool {
        let Role::Following(following) = &self.role else {
            return false;
        };
        let is_counted = self.map.is_in_sync(self.node) || following.is_settled;
        is_counted && self.may_follow() && self.tail.number >= following.floor
    }

    /// Is settled from now on if nothing is missing.
    fn settle(&mut self) {
        let tail = self.tail.number;
        if let Some(following) = self.following() {
            following.is_settled |=
                following.is_welcome && following.is_complete() && tail >= following.floor;
        }
    }

    /// End of this member's records, as reported to the primary: nothing, if they are not the unit's.
    fn reported_tail(&self) -> u64 {
        if self.may_follow() {
            self.tail.number
        } else {
            0
        }
    }

    pub(super) fn handle_as_follower(&mut self, now: u64, envelope: &Envelope, body: Body) {
        let Envelope { from, request, .. } = *envelope;
        if from != self.map.primary && !self.defects.has(Defect::SkipEpochCheck) {
            return;
        }
        match body {
            Body::Heartbeat {
                sent_at_ns,
                position,
                ..
            } => self.handle_heartbeat(now, sent_at_ns, position),
            Body::Records {
                from,
                records,
                data,
            }
            | Body::Shipment {
                from,
                records,
                data,
            } => self.handle_records(now, from, records, data),
            Body::Range {
                fetch,
                offset,
                position,
                skipped,
                bytes,
            } => {
                let arrived = Arrived {
                    offset,
                    position,
                    skipped: skipped.into(),
                    bytes,
                };
                self.handle_range(now, fetch, arrived);
            }
            Body::Welcome {
                from,
                position,
                image,
            } => {
                // Otherwise a part of the primary's image would not be refilled: this member asks again when it has grown.
                if image <= self.map.image || self.defects.has(Defect::RefillBeforeGrowth) {
                    self.handle_welcome(now, request, from, position);
                }
            }
            body => self.handle_key(&body),
        }
    }

    fn handle_heartbeat(&mut self, now: u64, sent_at_ns: u64, position: u64) {
        match &self.role {
            // A member that has proposed itself must not give the old primary another lease.
            Role::Standing(candidacy)
                if candidacy.has_proposed && !self.defects.has(Defect::GrantWhileProposing) =>
            {
                return;
            }
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

    /// Requests missing ranges, but not again while the answer may be in flight.
    fn ask_for_gap(&mut self, now: u64) {
        let retry = self.options.retry_ns;
        let Some(following) = self.following() else {
            return;
        };
        if now < following.asked_at + retry {
            return;
        }
        following.asked_at = now;
        if !following.missing.is_complete() {
            following.missing.give_up();
            return self.fetch_missing();
        }
        if !self.defects.has(Defect::DropGapRequest) {
            let from = self.tail.number;
            self.send(self.map.primary, Body::Gap { from });
        }
    }

    fn handle_records(&mut self, now: u64, from: u64, records: Bytes, data: Vec<Data>) {
        if !self.may_follow() {
            return;
        }
        let tail = self.tail.number;
        let Some(following) = self.following() else {
            return;
        };
        let end = from.saturating_add(records.len() as u64);
        if from > tail {
            if following.may_hold(&records, &data) {
                following.early.insert(from, (records, data));
            }
            return self.ask_for_gap(now);
        }
        if end <= tail {
            return self.report();
        }
        // Records held back come first again when their data is there.
        if following.held.is_none() {
            self.take_data(data);
            self.ingest(from, records);
        }
    }

    /// Takes data that came with records, of those behind the tail. In a member in sync nothing else uses its blocks: the
    /// primary fills blocks again only when every such member has the record that freed them.
    fn take_data(&mut self, data: Vec<Data>) {
        let is_lenient = self.defects.has(Defect::TakeDataOutOfSync);
        if !self.map.is_in_sync(self.node) && !is_lenient || self.is_metadata_only() {
            return;
        }
        let tail = self.tail.number;
        for data in data {
            if data.position >= tail || self.defects.has(Defect::TakeOldData) {
                let Data { offset, bytes, .. } = data;
                self.out
                    .intents
                    .push_back(Intent::WriteImage { offset, bytes });
            }
        }
    }

    fn ingest(&mut self, from: u64, records: Bytes) {
        let named = self.named_data();
        let end = from + records.len() as u64;
        let Some(following) = self.following() else {
            return;
        };
        following.held = Some((from, records.clone()));
        if self.defects.has(Defect::ReportBeforeIngest) {
            let is_caught_up = self.is_caught_up();
            let tail = end;
            self.send(self.map.primary, Body::Tail { tail, is_caught_up });
        }
        self.out.intents.push_back(Intent::Ingest {
            from,
            records,
            named,
        });
    }

    /// Data comes before the records that name it, so that no crash hides that it is missing.
    fn named_data(&self) -> NamedData {
        let is_lenient = matches!(&self.role, Role::Following(following) if following.is_lenient);
        if self.is_metadata_only() || self.defects.has(Defect::CountBeforeData) {
            NamedData::Ignored
        } else if is_lenient {
            NamedData::Reported
        } else {
            NamedData::Required
        }
    }

    /// Reports the end of the records to the primary.
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
        let has_advanced = tail.number > self.tail.number;
        if has_advanced {
            self.tail = tail;
            // Records that follow the unit's records are the unit's.
            let lineage = self.map.lineage.iter();
            self.history = lineage
                .filter(|of| of.epoch <= tail.epoch)
                .copied()
                .collect();
        }
        let is_in_sync = self.map.is_in_sync(self.node);
        let Some(following) = self.following() else {
            return;
        };
        let held = following.held.take();
        let was_lenient = std::mem::take(&mut following.is_lenient);
        // Records before it may have overwritten data that was fetched for a later one.
        if has_advanced || missing.is_empty() {
            following.fetched.clear();
        }
        let was_fetched = !was_lenient && following.note_fetched(&missing);
        if was_lenient {
            let rest = held.filter(|(from, records)| from + records.len() as u64 > tail.number);
            if let Some((from, records)) = rest {
                return self.ingest(from, records);
            }
        } else if !missing.is_empty() && was_fetched && !following.is_settled && !is_in_sync {
            // The data is not there any more: the primary did not count this member yet when it changed it.
            following.is_lenient = true;
            if let Some((from, records)) = held {
                return self.ingest(from, records);
            }
        } else if !missing.is_empty() {
            following.is_settled &= !was_fetched;
            following.held = held;
            following.missing = Fetching::of(missing);
            following.asked_at = now;
            // Wrong data that arrived will not be right at once: it is requested again after a while.
            if !(was_fetched && is_in_sync) {
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
        while let Some((from, (records, data))) = following.early.pop_first() {
            if from > tail {
                following.early.insert(from, (records, data));
                return;
            }
            if from + records.len() as u64 > tail {
                self.take_data(data);
                return self.ingest(from, records);
            }
        }
    }

    /// Parts of the image that may be on their way at a time.
    pub(super) fn fetches_max(&self) -> usize {
        let parts = self.options.fetch_window / self.options.refill.max(1);
        parts.clamp(1, FETCHES_MAX as u32) as usize
    }

    /// How data that records name is requested. A member that counts gets exactly that data, since the primary does not
    /// change it in place before all members that it counts have the record. Others take the present data, and are
    /// behind until they have the records for it.
    fn way_to_fetch(&self) -> Fetch {
        match &self.role {
            _ if self.map.is_in_sync(self.node) => Fetch::Data,
            Role::Following(following) if following.is_settled => Fetch::Data,
            _ => Fetch::Refill,
        }
    }

    /// Asks for data that records name.
    fn fetch_missing(&mut self) {
        let fetch = self.way_to_fetch();
        let (part, most) = (self.options.refill, self.fetches_max());
        let Some(following) = self.following() else {
            return;
        };
        for (offset, length) in following.missing.next(part, most) {
            let body = Body::Fetch {
                fetch,
                offset,
                length,
            };
            self.send(self.map.primary, body);
        }
    }

    fn handle_range(&mut self, now: u64, fetch: Fetch, arrived: Arrived) {
        let end = arrived.end();
        let is_asked = fetch == self.way_to_fetch();
        let Some(following) = self.following() else {
            return;
        };
        if following.joining.is_refilling() {
            return match fetch {
                Fetch::Refill | Fetch::Metadata => self.handle_refill(now, arrived),
                Fetch::Data => (),
            };
        }
        let Arrived {
            offset,
            position,
            bytes,
            ..
        } = arrived;
        let held = following.held.as_ref();
        let held_end = held.map_or(0, |(from, records)| from + records.len() as u64);
        // An answer from before the records were made may have gone astray on its way.
        if !is_asked || position < held_end || !following.missing.arrived(&(offset..end)) {
            return;
        }
        following.asked_at = now;
        if fetch == Fetch::Refill {
            following.floor = following.floor.max(position);
        }
        let is_complete = following.missing.is_complete();
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

    /// When there is something to do; never, if all that there is to do is to hear the primary.
    pub(super) fn next_while_following(&self, following: &Following) -> Option<u64> {
        let retry = following.asked_at + self.options.retry_ns;
        let is_waiting =
            !following.is_complete() || !following.early.is_empty() || !self.may_follow();
        match (is_waiting && !self.is_outside(), self.may_stand()) {
            (true, _) => Some(retry),
            (false, true) => Some(self.promised_until),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_records_are_bounded_in_bytes() {
        let mut following = Following::new(0);
        let data = |length| {
            vec![Data {
                position: 900,
                offset: 4096,
                bytes: vec![7; length].into(),
            }]
        };
        assert!(following.may_hold(&[0; 64], &data(EARLY_BYTES - 64)));
        let early = (vec![0; 64].into(), data(EARLY_BYTES - 128));
        following.early.insert(900, early);
        assert!(following.may_hold(&[0; 64], &[]));
        assert!(!following.may_hold(&[0; 64], &data(1)));
    }
}
