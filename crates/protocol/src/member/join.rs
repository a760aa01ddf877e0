//! Rejoining: undo records that the unit lacks, fetch ranges that changed meanwhile, follow.
//!
//! 1. The member finds the common part of its records with the unit's, and asks to follow from there. If it can't tell,
//!    or the primary does not hold those records any more, everything is refilled.
//! 2. It fetches every range that its other records changed. These records stay in its ring until all is fetched: if it
//!    crashes, it starts over and finds the same ranges.
//! 3. It discards them and follows. The fetched ranges show changes up to some position; before its records reach that,
//!    it is not in sync.

use std::ops::Range;

use super::fetch::Fetching;
use super::follow::Arrived;
use super::intent::Intent;
use super::{Member, Role};
use crate::defects::Defect;
use crate::map::{EpochStart, Sequence};
use crate::wire::{Body, Fetch};

/// The epoch of a pool that was formatted and never opened for changes.
const FORMATTED: u32 = 1;
/// Bytes of the image in which the primary searches for metadata at a time.
pub(super) const METADATA_STEP: u32 = 16 << 20;

/// Progress of a member that rejoins.
pub(super) enum Joining {
    No,
    /// The primary was asked.
    Asking {
        from: u64,
    },
    /// The store was asked what to fetch.
    Measuring {
        from: u64,
    },
    /// Ranges are being fetched.
    Refilling {
        from: u64,
        missing: Fetching,
    },
}

impl Joining {
    pub fn kept(&self) -> usize {
        match self {
            Joining::Refilling { missing, .. } => missing.kept(),
            _ => 0,
        }
    }

    pub fn is_refilling(&self) -> bool {
        matches!(self, Joining::Refilling { .. })
    }
}

impl Member {
    fn joining(&mut self) -> Option<&mut Joining> {
        match &mut self.role {
            Role::Following(following) => Some(&mut following.joining),
            _ => None,
        }
    }

    /// Whether this pool was only formatted: it has no record, and lacks the contents from before the first.
    fn is_blank(&self) -> bool {
        let has_record = |of: &EpochStart| of.start < self.tail.number;
        self.tail.epoch == FORMATTED && !self.history.iter().any(has_record)
    }

    /// The position up to which this pool's records are the unit's, as far as it can tell.
    fn common_position(&self) -> u64 {
        if self.defects.has(Defect::KeepForeignRecords) {
            return self.tail.number;
        }
        if self.is_blank() && !self.defects.has(Defect::TrustBlankPool) {
            return 0;
        }
        let common = self.map.common_prefix(&self.history, self.tail);
        common.unwrap_or(0)
    }

    /// Takes, or repeats, the next step back.
    pub(super) fn join(&mut self, now: u64) {
        let retry = self.options.retry_ns;
        if self.is_outside() {
            return;
        }
        let Role::Following(following) = &mut self.role else {
            return;
        };
        if now < following.asked_at + retry {
            return;
        }
        following.asked_at = now;
        if matches!(following.joining, Joining::No) {
            following.joins_since = now;
        }
        let joins_since = following.joins_since;
        match &following.joining {
            Joining::No | Joining::Asking { .. } => {
                let from = self.common_position();
                if let Some(joining) = self.joining() {
                    *joining = Joining::Asking { from };
                }
                let (primary, version) = (self.map.primary, self.map.version);
                self.send_as(joins_since, vec![primary], Body::Join { from, version });
            }
            Joining::Measuring { .. } => {}
            Joining::Refilling { .. } => {
                if let Some(Joining::Refilling { missing, .. }) = self.joining() {
                    missing.give_up();
                }
                self.fetch_refill();
            }
        }
    }

    /// The primary will send records from here on. Its answer to an earlier question, about other records, may be from
    /// long ago.
    pub(super) fn handle_welcome(&mut self, now: u64, request: u64, from: u64, position: u64) {
        let Role::Following(following) = &mut self.role else {
            return;
        };
        if request != following.joins_since {
            return;
        }
        let asked = match following.joining {
            Joining::Asking { from } => from,
            // The records that it waited for are gone meanwhile.
            _ if following.is_welcome && from > self.tail.number => 0,
            _ => return,
        };
        following.asked_at = now;
        following.start_over();
        following.floor = position.max(following.floor);
        following.joining = Joining::Measuring { from };
        let position = if asked == from { from } else { 0 };
        self.out
            .intents
            .push_back(Intent::TouchedSince { position });
    }

    pub(super) fn touched(&mut self, now: u64, ranges: Vec<Range<u64>>) {
        let Role::Following(following) = &mut self.role else {
            return;
        };
        let Joining::Measuring { from } = following.joining else {
            return;
        };
        following.asked_at = now;
        following.joining = Joining::Refilling {
            from,
            missing: Fetching::of(ranges),
        };
        self.go_on_refilling();
    }

    fn go_on_refilling(&mut self) {
        let Some(Joining::Refilling { from, missing }) = self.joining() else {
            return;
        };
        if !missing.is_complete() {
            return self.fetch_refill();
        }
        let from = *from;
        let before = |of: &&EpochStart| of.start < from;
        let lineage = &self.map.lineage;
        let epoch = lineage.iter().rfind(before).or(lineage.first());
        let to = Sequence::new(epoch.map_or(0, |of| of.epoch), from);
        self.out.intents.push_back(Intent::Rewind { to });
        self.tail = to;
        self.history = lineage
            .iter()
            .filter(|of| of.epoch <= to.epoch)
            .copied()
            .collect();
        if let Role::Following(following) = &mut self.role {
            following.joining = Joining::No;
            following.is_welcome = true;
        }
        let tail = from;
        self.send(
            self.map.primary,
            Body::Tail {
                tail,
                is_caught_up: false,
            },
        );
    }

    /// A metadata-only member fetches the same ranges; the primary leaves out data.
    fn fetch_refill(&mut self) {
        let most = self.fetches_max();
        let (fetch, part) = if self.is_metadata_only() {
            (Fetch::Metadata, METADATA_STEP)
        } else {
            (Fetch::Refill, self.options.refill)
        };
        let Some(Joining::Refilling { missing, .. }) = self.joining() else {
            return;
        };
        for (offset, length) in missing.next(part, most) {
            let body = Body::Fetch {
                fetch,
                offset,
                length,
            };
            self.send(self.map.primary, body);
        }
    }

    pub(super) fn handle_refill(&mut self, now: u64, arrived: Arrived) {
        let end = arrived.end();
        let Arrived {
            offset,
            position,
            skipped,
            bytes,
        } = arrived;
        if skipped > 0 && !self.is_metadata_only() {
            return;
        }
        let Role::Following(following) = &mut self.role else {
            return;
        };
        let Joining::Refilling {
            missing,
            from: follow_from,
        } = &mut following.joining
        else {
            return;
        };
        // An earlier answer may have been lost on its way: no record updates its contents.
        if position < *follow_from || !missing.arrived(&(offset..end)) {
            return;
        }
        following.floor = following.floor.max(position);
        following.asked_at = now;
        if !bytes.is_empty() {
            let offset = offset + skipped;
            self.out
                .intents
                .push_back(Intent::WriteImage { offset, bytes });
        }
        self.go_on_refilling();
    }
}
