//! The record ring: the one order of changes.
//!
//! Positions count bytes since the pool was made; a record's number is its position. A thread
//! 1. reserves its place by one addition, atomic unless it alone appends (this is the order),
//! 2. copies its record there, flushes it and fences,
//! 3. marks it persistent and waits until all before it are: it is committed,
//! 4. applies it to the image and marks it applied.
//!
//! Threads copy at the same time; in step 3 a thread waits at most for the copies of records before its own. Appending
//! threads reclaim space: the image lines of the oldest records, all applied, are flushed, then the ring's start moves
//! on. Until that is persistent, twice, the space is not written again.

mod follow;
pub(crate) mod in_flight;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use pmem::Region;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::BLOCK;
use crate::defects::Defects;
use crate::format::record::{
    ALIGN, HEADER, Kind, MAGIC, OPERATION, RecordHeader, RecordOperation, TOUCH, contents_checksum,
    is_intact, parse_head, with_number,
};
use crate::format::superblock::{RING_STATES, RingState, Superblock};
use crate::order::{Ordered, Rank};
use crate::ring::in_flight::{Contended, Entered, InFlight, Reservation, pause};

/// Bytes of records with image lines that one thread flushes at once: enough to amortize moving the start, and few
/// enough for a short pause.
const RECLAIM_STEP: u64 = 128 << 10;
/// Prefetch distance after the end of a short record in the ring, in lines.
const AHEAD: u64 = 6;
/// Longest record, in bytes, of which a reclaim has all lines fetched: those of the commonest changes of names.
const SHORT_RECORD: u64 = 512;
/// Longest record, in bytes.
const RECORD_MAX: u64 = 512 << 10;

/// The image that records are applied to, and the ring's knowledge of its lines in the caches.
pub trait CachedLines {
    /// Bytes of the image.
    fn length(&self) -> u64;
    /// Gives `visit` offset and length of each range that applying an operation leaves in the caches.
    fn cached_ranges(&self, operation: &RecordOperation<'_>, visit: impl FnMut(u64, u64));
    /// Flushes the lines of a range; a fence must follow.
    fn flush(&self, offset: u64, length: u64);
}

/// The ring of an open pool.
pub struct Ring {
    region: Region,
    offset: u64,
    length: u64,
    epoch: u32,
    in_flight: InFlight,
    is_read_outside: bool,
    start: Contended,
    reclaiming: Ordered<Mutex<()>>,
    defects: Defects,
}

impl Ring {
    /// An empty ring that continues at `position` in `epoch`. The caller has written the same ring state.
    pub fn new(
        region: Region,
        superblock: &Superblock,
        epoch: u32,
        position: u64,
        defects: Defects,
    ) -> Ring {
        Ring {
            region,
            offset: superblock.ring_offset,
            length: superblock.ring_length,
            epoch,
            in_flight: InFlight::new(position),
            is_read_outside: false,
            start: Contended(AtomicU64::new(position)),
            reclaiming: Ordered::mutex(Rank::Reclaiming, ()),
            defects,
        }
    }

    /// Whether other processes read the image, as in a pool of a unit.
    pub fn read_outside(self, is_read_outside: bool) -> Ring {
        Ring {
            is_read_outside,
            ..self
        }
    }

    /// Longest record that fits, in bytes.
    pub fn record_max(&self) -> usize {
        (self.length / 2).min(RECORD_MAX) as usize
    }

    /// Bytes of records that recovery would read now.
    pub fn used(&self) -> u64 {
        self.in_flight.next() - self.start.load(Ordering::Relaxed)
    }

    /// Announces an append of this thread.
    /// This may wait for other threads to end theirs, so no lock of the allocator may be held.
    #[inline]
    pub fn enter(&self) -> Entered {
        let entered = self.in_flight.enter();
        if entered.took_over {
            self.region.fence_everywhere();
        }
        entered
    }

    /// Fills in the header of a record of `length` bytes but for its number, and gives the checksum of the rest.
    /// `record` is the header, the operations and the padding; blocks follow it in the ring.
    #[inline]
    pub fn head(&self, record: &mut [u8], length: usize) -> u32 {
        let header = RecordHeader {
            magic: MAGIC,
            crc: 0,
            number: 0,
            epoch: self.epoch,
            length: length as u32,
            checked: record.len() as u32,
            reserved: 0,
        };
        record[..HEADER].copy_from_slice(header.as_bytes());
        contents_checksum(record)
    }

    /// Takes the next place in the order. This never waits, so it can be done under any lock.
    #[inline]
    pub fn reserve(&self, entered: Entered, length: usize) -> Reservation {
        self.in_flight.reserve(entered, length)
    }

    /// Writes the blocks of a record to their place, behind its other `checked` bytes, before [`Ring::commit`]: they may
    /// be on their way while the rest is made.
    #[inline]
    pub fn put_blocks(
        &self,
        place: Reservation,
        checked: usize,
        blocks: &[&[u8]],
        image: &impl CachedLines,
    ) {
        self.wait_for_room(place, image);
        let first = place.number + checked as u64;
        for (index, block) in (0..).zip(blocks) {
            self.put(first + index * BLOCK as u64, block, true);
        }
    }

    /// Writes a record, but for its blocks, to its place and returns once it and all before it are persistent. `record`
    /// got its [`Ring::head`], which gave `crc`.
    #[inline]
    pub fn commit(
        &self,
        place: Reservation,
        record: &mut [u8],
        crc: u32,
        image: &impl CachedLines,
    ) {
        let crc_and_number = [
            u64::from(MAGIC) | u64::from(with_number(crc, place.number)) << 32,
            place.number,
        ];
        record[..16].copy_from_slice(crc_and_number.as_bytes());
        self.wait_for_room(place, image);
        // The ring's lines of a long record are in no cache, those of short ones the processor fetches ahead.
        let is_long = place.end - place.number > record.len() as u64;
        self.put(place.number, record, is_long);
        self.end_commit(place);
    }

    #[inline]
    fn end_commit(&self, place: Reservation) {
        if !self.defects.skip_record_fence {
            self.region.fence();
        }
        self.in_flight.persisted(place);
        // Storing to a line that is in no cache takes long. The next records are probably as long as this one: of a
        // long one the first line goes through the caches.
        let lines = (place.end - place.number) / ALIGN as u64;
        let ahead = if lines > AHEAD {
            0..1
        } else {
            AHEAD..AHEAD + lines
        };
        for line in ahead {
            let next = (place.end + line * ALIGN as u64) & (self.length - 1);
            self.region.prefetch(self.offset + next);
        }
    }

    /// Notes that the record was applied to the image; `is_streamed`: perhaps in part around the caches.
    #[inline]
    pub fn applied(&self, place: Reservation, is_streamed: bool) {
        if self.is_read_outside && is_streamed {
            // Stores past the caches are not ordered with the release of the inode's lock, and other processes do not
            // use that lock.
            self.region.order_stores();
        }
        self.in_flight.applied(place);
    }

    /// Waits until the space is free, and reclaims meanwhile.
    #[inline]
    fn wait_for_room(&self, place: Reservation, image: &impl CachedLines) {
        let used = place.end - self.start.load(Ordering::Acquire);
        if used > self.length / 2 {
            self.make_room(place, image);
        }
    }

    #[inline(never)]
    fn make_room(&self, place: Reservation, image: &impl CachedLines) {
        self.reclaim(image, false);
        let mut spins = 0;
        loop {
            let used = place.end - self.start.load(Ordering::Acquire);
            if used <= self.length {
                return;
            }
            self.reclaim(image, true);
            spins = pause(spins);
        }
    }

    /// Copies a record into the ring, around its end if need be.
    #[inline]
    fn put(&self, position: u64, record: &[u8], is_long: bool) {
        let at = position & (self.length - 1);
        let before_end = (self.length - at) as usize;
        let (first, second) = record.split_at(record.len().min(before_end));
        self.put_at(self.offset + at, first, is_long);
        if !second.is_empty() {
            self.put_at(self.offset, second, is_long);
        }
    }

    #[inline]
    fn put_at(&self, offset: u64, bytes: &[u8], is_long: bool) {
        if self.defects.skip_record_flush {
            self.region.write(offset, bytes);
        } else if is_long {
            self.region.write_streamed(offset, bytes);
        } else {
            self.region.write_flushed(offset, bytes);
        }
    }

    /// Frees a part of the ring. `urgent`: wait for another thread that is at it.
    fn reclaim(&self, image: &impl CachedLines, urgent: bool) {
        let guard = if urgent {
            Some(self.reclaiming.lock())
        } else {
            self.reclaiming.try_lock()
        };
        if guard.is_none() {
            return;
        }
        let start = self.start.load(Ordering::Acquire);
        let goal = start + (self.length / 16).min(RECLAIM_STEP);
        self.reclaim_to(goal, image);
    }

    /// Flushes the image lines of the oldest records, as many as are applied, up to the first end behind `goal`.
    fn reclaim_to(&self, goal: u64, image: &impl CachedLines) {
        let start = self.start.load(Ordering::Acquire);
        let applied = self.in_flight.applied_below();
        let mut recent = RecentLines::new();
        let mut position = start;
        while position < goal && position < applied {
            position = self.flush_record(position, image, &mut recent);
        }
        if position == start {
            return;
        }
        // Another thread may have applied around the caches and not have made a fence since.
        if self.in_flight.is_unfenced(start, position) && !self.defects.reclaim_unfenced {
            self.region.fence_everywhere();
        } else {
            self.region.fence();
        }
        self.move_start(position);
    }

    /// Makes `position` the place where recovery starts. Two copies, one after the other: a torn one leaves the other.
    fn move_start(&self, position: u64) {
        write_ring_state(&self.region, RingState::new(self.epoch, position));
        self.start.store(position, Ordering::Release);
    }

    /// Applies nothing, but flushes all applied lines and empties the ring. No operation may be in flight.
    pub fn drain(&self, image: &impl CachedLines) {
        let _guard = self.reclaiming.lock();
        self.reclaim_to(u64::MAX, image);
    }

    /// Flushes the image lines of the record at `position`, which this process wrote, and returns its end.
    #[inline]
    fn flush_record(
        &self,
        position: u64,
        image: &impl CachedLines,
        recent: &mut RecentLines,
    ) -> u64 {
        let mut line = [0; ALIGN];
        self.region
            .read(self.offset + (position & (self.length - 1)), &mut line);
        let (header, _) = RecordHeader::read_from_prefix(&line).expect("a line holds a header");
        // Neighbouring records tend to have one length; they lie too far apart for the processor to guess. The operations
        // of a short one are in all of its lines, those of one with data behind it in the first.
        let length = u64::from(header.length);
        let ahead = position + 4 * length;
        let lines = if length > SHORT_RECORD {
            1
        } else {
            length / ALIGN as u64
        };
        for line in 0..lines {
            let at = (ahead + line * ALIGN as u64) & (self.length - 1);
            self.region.prefetch(self.offset + at);
        }
        let end = position + length;
        if self.defects.reclaim_without_flush {
            return end;
        }
        let operations_end = header.checked as usize;
        // Most records are one operation, described by the first line.
        let mut at = HEADER + self.flush_operation(&line[HEADER..], image, recent);
        while at + OPERATION <= operations_end {
            let mut head = [0; HEAD];
            self.copy(position + at as u64, &mut head);
            let length = self.flush_operation(&head, image, recent);
            if length == 0 {
                break;
            }
            at += length;
        }
        end
    }

    /// Flushes the image lines of the operation that begins `bytes`, and returns its length, 0 if there is none.
    #[inline]
    fn flush_operation(
        &self,
        bytes: &[u8],
        image: &impl CachedLines,
        recent: &mut RecentLines,
    ) -> usize {
        let Some((operation, payload)) = parse_head(bytes, image.length()) else {
            return 0;
        };
        let operation = RecordOperation {
            // The first word gives the range of an edit.
            payload: bytes.get(payload.start..).unwrap_or_default(),
            ..operation
        };
        if operation.kind == Kind::Edit && operation.payload.len() < 8 {
            return 0;
        }
        image.cached_ranges(&operation, |at, length| {
            recent.flush_once(image, at, length)
        });
        payload.end.next_multiple_of(8)
    }

    fn copy(&self, position: u64, into: &mut [u8]) {
        copy_from_ring(&self.region, self.offset, self.length, position, into);
    }
}

/// Bytes of an operation that describe its changed lines. Later bytes, which if long are in memory and in no cache, are
/// skipped.
const HEAD: usize = OPERATION + TOUCH;

/// Writes both copies of the ring state, each persistent before the next is touched. A damaged copy comes first: the
/// other one is all there is until then.
pub fn write_ring_state(region: &Region, state: RingState) {
    let mut offsets = RING_STATES;
    let mut second = RingState::new_zeroed();
    region.read(offsets[1], second.as_mut_bytes());
    if !second.is_valid() {
        offsets.reverse();
    }
    for offset in offsets {
        region.write_flushed(offset, state.as_bytes());
        region.fence();
    }
}

/// Reads records out of a ring, one after the other, checking each.
///
/// Epochs never fall from one record to the next, beginning with that of the ring state. So a record that was left
/// behind the end by an earlier epoch is refused, for
/// - a record is only ever written behind a tail, and in no lower epoch than that of the tail;
/// - no record in the ring has a higher epoch than its state: a replica raises the state's epoch before it writes the
///   first record of a higher one, and a rewind removes records of a higher one from the ring;
/// - every opening for writing takes a higher epoch than the state had, so than all that was written before, seen or
///   not, and its records come first behind the end at which it found the ring.
pub struct RingReader<'a> {
    region: &'a Region,
    offset: u64,
    length: u64,
    epoch: Cell<u32>,
    defects: Defects,
}

impl<'a> RingReader<'a> {
    /// For recovery: the ring of a pool that is not open.
    pub fn new(
        region: &'a Region,
        superblock: &Superblock,
        epoch: u32,
        defects: Defects,
    ) -> RingReader<'a> {
        RingReader {
            region,
            offset: superblock.ring_offset,
            length: superblock.ring_length,
            epoch: Cell::new(epoch),
            defects,
        }
    }

    /// The epoch of the last record read; before the first, that of the ring state.
    pub fn epoch(&self) -> u32 {
        self.epoch.get()
    }

    /// The record at `position` with its header, if one that may follow the last one read is whole there.
    pub fn read(&self, position: u64, into: &mut Vec<u8>) -> Option<RecordHeader> {
        let mut bytes = [0; HEADER];
        self.copy(position, &mut bytes);
        let header =
            RecordHeader::read_from_bytes(&bytes).expect("the buffer has the header's size");
        let length = header.length as usize;
        let plausible = header.magic == MAGIC
            && (header.epoch >= self.epoch.get() || self.defects.skip_epoch_check)
            && header.number == position
            && length.is_multiple_of(ALIGN)
            && (ALIGN..=self.length as usize).contains(&length)
            && (HEADER..=length).contains(&(header.checked as usize));
        if !plausible {
            return None;
        }
        into.resize(length, 0);
        self.copy(position, into);
        let right = is_intact(&header, into) && into[..HEADER] == bytes;
        if !right && !self.defects.skip_record_checksum {
            return None;
        }
        self.epoch.set(header.epoch);
        Some(header)
    }

    fn copy(&self, position: u64, into: &mut [u8]) {
        copy_from_ring(self.region, self.offset, self.length, position, into);
    }
}

/// Copies bytes out of a ring, around its end if need be.
#[inline]
fn copy_from_ring(region: &Region, offset: u64, length: u64, position: u64, into: &mut [u8]) {
    let at = position & (length - 1);
    let first = into.len().min((length - at) as usize);
    region.read(offset + at, &mut into[..first]);
    if first < into.len() {
        region.read(offset, &mut into[first..]);
    }
}

/// Remembers recently flushed lines, since hot lines are in many records and a second flush costs as much.
struct RecentLines {
    lines: Box<[u64; 1024]>,
}

impl RecentLines {
    fn new() -> RecentLines {
        RecentLines {
            lines: Box::new([u64::MAX; 1024]),
        }
    }

    #[inline]
    fn flush_once(&mut self, image: &impl CachedLines, offset: u64, length: u64) {
        let (mut line, end) = (offset / 64, offset + length);
        while line * 64 < end {
            let slot = &mut self.lines[line as usize % 1024];
            if *slot != line {
                *slot = line;
                image.flush(line * 64, 64);
            }
            line += 1;
        }
    }
}
