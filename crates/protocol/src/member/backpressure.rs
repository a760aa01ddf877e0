//! Backpressure: changes wait for members that are refilled.
//!
//! A member that is refilled needs the records from its welcome on. The ring does not hold them for ever: if clients write
//! faster than the member is refilled, they are gone when it needs them, and the refill starts over. So the primary's
//! records are ahead of such a member by at most a quarter of the ring, and by half of it more as the refill gets on. Then
//! changes wait, and what the member asks for comes first. A member that is not heard from, or makes no progress, is not
//! waited for, and no member for longer than [`BACKPRESSURE_LEASES`]: a large image takes too long.

use super::Member;
use super::serve::{Peer, Primary};
use crate::defects::Defect;

/// Changes wait for a member that is not in sync for so many leases at most, from its first welcome on.
const BACKPRESSURE_LEASES: u64 = 20;

/// A member's refill, as the primary knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refill {
    /// Records that it needs begin here.
    pub from: u64,
    /// It has asked for the image up to here.
    pub asked: u64,
}

impl Peer {
    /// Notes that a member was welcomed, and its refill begins.
    /// A repeated one changes nothing: the member may have received the first.
    pub fn note_welcome(&mut self, now: u64, from: u64) {
        if self.refill.is_none() {
            self.progressed_at = now;
            self.refill = Some(Refill { from, asked: 0 });
        }
        self.welcomed_at.get_or_insert(now);
    }

    /// Notes that the member asks for the image up to here.
    pub fn note_fetch(&mut self, now: u64, end: u64) {
        if let Some(refill) = self.refill.as_mut().filter(|it| end > it.asked) {
            refill.asked = end;
            self.progressed_at = now;
        }
    }

    /// Up to where records may be made so that the ring holds those that this member needs.
    fn may_follow_below(&self, now: u64, lease: u64, (ring, image): (u64, u64)) -> Option<u64> {
        let refill = self.refill.filter(|_| !self.is_counted)?;
        let is_at_work = now <= self.heard_at.min(self.progressed_at) + lease
            && now <= self.welcomed_at? + BACKPRESSURE_LEASES * lease;
        let part = ring / 2 * (refill.asked.min(image) >> 10) / (image >> 10).max(1);
        is_at_work.then(|| self.tail.max(refill.from) + ring / 4 + part)
    }
}

impl Primary {
    /// Whether changes wait for a member that is refilled.
    pub fn has_backpressure(&self) -> bool {
        self.position + self.records_under_way() > self.backpressure_above
    }
}

impl Member {
    /// Finds out how far records may be ahead of members that are refilled.
    pub(super) fn update_backpressure(&mut self, now: u64) {
        let (lease, ring) = (self.options.lease_ns, self.options.ring);
        let sizes = (ring, self.options.image.max(self.map.image));
        let is_on = ring > 0 && !self.defects.has(Defect::OutrunRefill);
        let Some(primary) = self.primary() else {
            return;
        };
        let peers = primary.peers.values().filter(|_| is_on);
        let ends = peers.filter_map(|peer| peer.may_follow_below(now, lease, sizes));
        primary.backpressure_above = ends.min().unwrap_or(u64::MAX);
    }
}
