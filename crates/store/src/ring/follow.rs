//! The ring of a pool that follows, and reading records for those that do.
//!
//! Records stay readable after the ring's start has moved past them, until later ones take their space. The record at a
//! position shows whether it is still held: it contains its own position, and so does each after it.

use std::sync::atomic::Ordering;

use super::{CachedLines, Ring, write_ring_state};
use crate::format::record::{ALIGN, HEADER, MAGIC, RecordHeader, is_intact};
use crate::format::superblock::RingState;

impl Ring {
    /// The ring after recovery: records from `start` on are applied, but their image lines are not released.
    pub fn resumed(mut self, start: u64) -> Ring {
        *self.start.0.get_mut() = start;
        self
    }

    /// The epoch of the records that are appended.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Bytes of the ring.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// All records below this number are persistent.
    pub fn persisted_below(&self) -> u64 {
        self.in_flight.persisted_below()
    }

    /// Puts whole records to their place behind the last one, and returns once they are persistent; `apply` follows.
    /// They take at most half of the ring. `at_once`: a crash leaves all of them or none.
    pub fn append(
        &self,
        records: &[u8],
        at_once: bool,
        image: &impl CachedLines,
        apply: impl FnOnce(),
    ) {
        let place = self.in_flight.reserve(self.enter(), records.len());
        self.wait_for_room(place, image);
        let (first, rest) = records.split_at(ALIGN);
        if at_once {
            // An attempt that a crash cut off may have left the same line there.
            self.put(place.number, &[0; ALIGN], false);
            self.region.fence();
        }
        if !rest.is_empty() {
            let behind = place.number + ALIGN as u64;
            self.put(behind, rest, rest.len() > HEADER * ALIGN);
        }
        if at_once {
            // Nothing counts before the first line of the first record is there.
            self.region.fence();
        }
        self.put(place.number, first, false);
        if !self.defects.skip_record_fence {
            self.region.fence();
        }
        self.in_flight.persisted(place);
        apply();
        self.in_flight.applied(place);
    }

    /// Continues in another epoch, not below that of any record: the next record is of it. All records in the ring are
    /// applied before, so that no record of an earlier epoch is needed.
    pub fn go_on_in(&mut self, epoch: u32, image: &impl CachedLines) {
        self.drain(image);
        self.epoch = epoch;
        self.move_start(self.in_flight.next());
    }

    /// Removes from the ring every record, whole or not, with a number of at least `number`.
    pub fn forget_from(&self, number: u64) {
        for at in (0..self.length).step_by(ALIGN) {
            let slot = self.offset + at;
            let [first, own] = [slot, slot + 8].map(|at| u64::from_le(self.region.load(at)));
            if first as u32 == MAGIC && own >= number && own & (self.length - 1) == at {
                self.region.store(slot, 0);
                self.region.flush(slot, 8);
            }
        }
        self.region.fence();
    }

    /// Continues at `number` in `epoch`, where `number` may lie before or after the end: makes the ring state so, and
    /// removes later records. Everything was drained.
    ///
    /// While stale records of `highest`, the epoch of the last one, may be there, the state has no lower epoch: a store
    /// that is opened on the way takes a higher one than theirs.
    pub fn restart(&self, highest: u32, epoch: u32, number: u64) {
        write_ring_state(&self.region, RingState::new(highest.max(epoch), number));
        self.forget_from(number);
        if epoch < highest {
            write_ring_state(&self.region, RingState::new(epoch, number));
        }
    }

    /// The header at `position` if a record is valid there. Its data may be overwritten at any time.
    fn header_at(&self, position: u64, end: u64) -> Option<RecordHeader> {
        let mut bytes = [0; HEADER];
        self.copy(position, &mut bytes);
        let header: RecordHeader = zerocopy::transmute!(bytes);
        let length = u64::from(header.length);
        let plausible = header.magic == MAGIC
            && header.number == position
            && length.is_multiple_of(ALIGN as u64)
            && (ALIGN as u64..=end - position).contains(&length)
            && (HEADER as u64..=length).contains(&u64::from(header.checked));
        plausible.then_some(header)
    }

    /// Whether the bytes from `position` on were not overwritten up to now. To be asked after they were read.
    fn holds(&self, position: u64) -> bool {
        std::sync::atomic::fence(Ordering::Acquire);
        self.in_flight.next() <= position.saturating_add(self.length)
    }

    /// Appends whole records from the position `from` on to `into`: at least one if there is one before `end`, at most
    /// `limit` bytes otherwise. Returns the position behind them; `None` when no record at `from` is held.
    pub fn read_records(
        &self,
        from: u64,
        end: u64,
        limit: usize,
        into: &mut Vec<u8>,
    ) -> Option<u64> {
        if from >= end {
            return (from == end).then_some(end);
        }
        if !self.holds(from) {
            return None;
        }
        let mut position = from;
        while position < end && (position == from || position - from < limit as u64) {
            let length = u64::from(self.header_at(position, end)?.length);
            if position > from && position + length - from > limit as u64 {
                break;
            }
            position += length;
        }
        let start = into.len();
        into.resize(start + (position - from) as usize, 0);
        self.copy(from, &mut into[start..]);
        // The first one is fully validated: the position came from elsewhere.
        let first = self.header_at(from, end).filter(|header| {
            let record = into[start..].get(..header.length as usize);
            record.is_some_and(|record| {
                record.starts_with(zerocopy::IntoBytes::as_bytes(header))
                    && is_intact(header, record)
            })
        });
        if first.is_none() || !self.holds(from) {
            into.truncate(start);
            return None;
        }
        Some(position)
    }

    /// The epochs of the records before `end` that are held, each with the position of its first one.
    pub fn epochs(&self, end: u64) -> Vec<(u32, u64)> {
        let mut epochs: Vec<(u32, u64)> = Vec::new();
        let mut position = end.saturating_sub(self.length).max(ALIGN as u64);
        while position < end {
            let Some(header) = self.header_at(position, end) else {
                // The oldest record that is held whole begins further on; from there on each follows the last.
                epochs.clear();
                position += ALIGN as u64;
                continue;
            };
            if epochs
                .last()
                .is_none_or(|(epoch, _)| *epoch != header.epoch)
            {
                epochs.push((header.epoch, position));
            }
            position += u64::from(header.length);
        }
        epochs
    }
}
