//! Whole blocks that are overwritten, beside the ring: no thread waits for another.
//!
//! In the ring each record waits for those before it, and the word that gives out places changes processors with each
//! record. A block that replaces another one of the same file depends on nothing but its inode, whose lock is held until
//! the record is persistent. So it need not stand in the ring's one line: each of the first lanes has a *side ring*, a
//! few places for such records, which only its thread writes. A record there is as any other, of one line and the block.
//!
//! The order is told by the numbers. That of a record aside lies between those of the ring: `p + m`, where `p` is the
//! number of a record that is whole in the ring, and `m` is 1 to 63. It is higher than the inode's version and than all that
//! was reclaimed. A later record of the ring that touches the same inode has a higher number, since it is reserved later.
//! Recovery goes through the records of the ring and of all side rings by ascending numbers.
//!
//! One start holds for all: what lies below it, wherever it stands, is in the image. A place is used again when the
//! start has moved past its record. So a reclaim looks at all side rings:
//! - first it raises `base` to where it wants the start to be, then it waits for threads that chose a lower number;
//! - whoever begins a record aside first says so in its lane, then reads `base`, above which its number will be.
//!
//! Either the reclaim sees the lane or the lane sees the new base (both sequentially consistent).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pmem::Region;

use super::{RecentLines, Ring, RingReader};
use crate::BLOCK;
use crate::error::{Error, Result};
use crate::image::Image;
use crate::in_flight::{Contended, pause};
use crate::layout::inode::STAMP_END;
use crate::layout::record::{
    ALIGN, HEADER, MAGIC, Operations, PLACE, RecordHeader, Touch, with_number,
};
use crate::layout::superblock::Superblock;

/// No record.
const NONE: u64 = 0;

/// The side rings of an open pool.
pub struct SideRings {
    offset: u64,
    rings: Box<[SideRing]>,
    /// Lanes that were given a side ring, or found none left.
    given: AtomicUsize,
    /// The number of a persistent record, which no record aside that is yet to come will be below.
    base: Contended,
}

/// The places of one lane. All but the notes belong to the thread that has the lane.
#[repr(align(128))]
struct SideRing {
    next: AtomicUsize,
    notes: Box<[Note]>,
}

/// What was put into a place last.
#[derive(Default)]
struct Note {
    number: AtomicU64,
    /// Offset of the block in the image.
    target: AtomicU64,
    inode: AtomicU64,
}

/// A record aside that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Aside {
    /// Its number.
    pub number: u64,
    lane: usize,
    ring: usize,
    place: usize,
}

impl SideRings {
    /// All places empty: what they hold is of an epoch that is over.
    pub fn new(superblock: &Superblock) -> SideRings {
        let ring = |_| SideRing {
            next: AtomicUsize::new(0),
            notes: (0..superblock.side_places)
                .map(|_| Note::default())
                .collect(),
        };
        SideRings {
            offset: superblock.side_offset(),
            rings: (0..superblock.side_rings).map(ring).collect(),
            given: AtomicUsize::new(0),
            base: Contended(AtomicU64::new(NONE)),
        }
    }

    /// The side ring of a lane that was not given one yet. It exists if one was left.
    #[cold]
    fn give(&self) -> usize {
        self.given.fetch_add(1, Ordering::Relaxed)
    }

    fn used(&self) -> &[SideRing] {
        let given = self.given.load(Ordering::SeqCst);
        &self.rings[..given.min(self.rings.len())]
    }

    fn at(&self, ring: usize, place: usize) -> u64 {
        self.offset + (ring * self.rings[ring].notes.len() + place) as u64 * PLACE
    }

    /// Flushes the image lines of all records from `start` to `end`, which are applied.
    pub(super) fn flush(&self, start: u64, end: u64, image: &Image) {
        // Its own: since a line was flushed for a record of the ring, one aside may have been applied to it.
        let mut recent = RecentLines::new();
        for note in self.used().iter().flat_map(|ring| &ring.notes) {
            if (start..end).contains(&note.number.load(Ordering::Acquire)) {
                let block = note.target.load(Ordering::Relaxed) / BLOCK as u64;
                let inode = image.layout.inode(note.inode.load(Ordering::Relaxed));
                recent.flush_once(image, image.layout.data_crc(block), 4);
                recent.flush_once(image, inode, STAMP_END as u64);
            }
        }
    }
}

impl Ring {
    /// Records may stand aside from now on, or no more. In a unit all are in the ring, for the other members, and the image may
    /// be read from outside.
    pub fn taking_aside(mut self, takes_aside: bool) -> Ring {
        self.is_read_outside = !takes_aside;
        self.takes_aside = takes_aside && !self.side.rings.is_empty();
        self
    }

    /// Whether records may stand aside.
    #[inline]
    pub fn takes_aside(&self) -> bool {
        self.takes_aside
    }

    /// Begins a record aside, of a block whose inode, which is locked, has this version. `None`: it has to go into the
    /// ring.
    #[inline]
    pub fn begin_aside(&self, version: u64, image: &Image) -> Option<Aside> {
        let (lane, own) = self.in_flight.own_lane()?;
        let ring = match own.load(Ordering::Relaxed) {
            0 => {
                let ring = self.side.give();
                own.store(ring + 1, Ordering::Relaxed);
                ring
            }
            known => known - 1,
        };
        // There are fewer than lanes.
        let side = self.side.rings.get(ring)?;
        let place = side.next.load(Ordering::Relaxed);
        if side.notes[place].number.load(Ordering::Relaxed) >= self.start.load(Ordering::Acquire) {
            self.free_places(side, place, image);
        }
        if self.in_flight.announce(lane) {
            self.region.fence_everywhere();
        }
        let number = (version + 1).max(self.side.base.load(Ordering::SeqCst) + 1);
        // The last number behind a record of the ring is used up, or nothing was put into the ring since it was emptied.
        if number.is_multiple_of(ALIGN as u64) || number < self.start.load(Ordering::Acquire) {
            self.in_flight.retract(lane);
            return None;
        }
        self.in_flight.choose(lane, number);
        side.next
            .store((place + 1) % side.notes.len(), Ordering::Relaxed);
        Some(Aside {
            number,
            lane,
            ring,
            place,
        })
    }

    /// Writes the block of a record aside.
    #[inline]
    pub fn put_aside(&self, aside: Aside, block: &[u8]) {
        let at = self.side.at(aside.ring, aside.place) + ALIGN as u64;
        self.put_at(at, block, true);
    }

    /// Writes the line of a record aside, whose block is there. On return the record is persistent: it waits for nobody.
    #[inline]
    pub fn commit_aside(
        &self,
        aside: Aside,
        mut line: [u64; ALIGN / 8],
        crc: u32,
        target: u64,
        touch: Touch,
    ) {
        line[0] = u64::from(MAGIC) | u64::from(with_number(crc, aside.number)) << 32;
        line[1] = aside.number;
        let at = self.side.at(aside.ring, aside.place);
        if self.defects.skip_record_flush {
            self.region.store_words(at, line);
        } else {
            self.region.write_line(at, line);
        }
        if !self.defects.skip_record_fence {
            self.region.fence();
        }
        let note = &self.side.rings[aside.ring].notes[aside.place];
        note.target.store(target, Ordering::Relaxed);
        note.inode.store(touch.inode, Ordering::Relaxed);
        note.number.store(aside.number, Ordering::Release);
        self.in_flight.persisted_aside(aside.lane, aside.number);
    }

    /// Notes that a record aside was applied to the image.
    #[inline]
    pub fn applied_aside(&self, aside: Aside) {
        self.in_flight.retract(aside.lane);
    }

    /// Lets records aside have numbers behind this one, of a record that is in the ring.
    #[inline]
    pub fn raise_base(&self, number: u64) {
        if self.side.base.load(Ordering::Relaxed) < number {
            self.side.base.fetch_max(number, Ordering::SeqCst);
        }
    }

    /// Waits until no thread has a record aside under way below `number`, nor will have one. To be called before the
    /// start moves there.
    pub(super) fn close_aside(&self, number: u64) {
        self.side.base.fetch_max(number, Ordering::SeqCst);
        let mut spins = 0;
        while self.in_flight.lowest_unapplied() < number {
            spins = pause(spins);
        }
    }

    /// Moves the start past the records of half a side ring, from `place` on.
    #[cold]
    fn free_places(&self, side: &SideRing, place: usize, image: &Image) {
        if self.defects.reuse_places_early {
            return;
        }
        let count = side.notes.len();
        let half = (0..count.div_ceil(2)).map(|ahead| &side.notes[(place + ahead) % count]);
        let highest = half.map(|note| note.number.load(Ordering::Relaxed)).max();
        let highest = highest.unwrap_or(NONE);
        let is_free = || self.start.load(Ordering::Acquire) > highest;
        let mut spins = 0;
        // Whoever is at it takes a few microseconds, to be put to sleep and woken many more; and may do it for this one.
        while !is_free() {
            let Some(guard) = self.reclaiming.try_lock() else {
                spins = pause(spins);
                continue;
            };
            self.reclaim_to(highest + 1, image);
            drop(guard);
            if !is_free() {
                // The start stays before the last record, which numbers aside are counted from: there must be another one.
                self.append_nothing(image);
            }
        }
    }

    /// Appends a record without an operation.
    fn append_nothing(&self, image: &Image) {
        let mut record = [0; ALIGN];
        let crc = self.head(&mut record, ALIGN);
        let place = self.reserve(self.enter(), ALIGN);
        self.commit(place, &mut record, crc, image);
        self.applied(place);
    }

    /// Takes from the side rings every record whose number is `number` or higher. A fence must follow.
    pub(super) fn forget_aside(&self, number: u64) {
        for (ring, side) in self.side.rings.iter().enumerate() {
            for place in 0..side.notes.len() {
                let at = self.side.at(ring, place);
                if u64::from_le(self.region.load(at + 8)) >= number {
                    self.region.store(at, 0);
                    self.region.flush(at, 8);
                }
            }
        }
    }
}

/// The records in the side rings of a pool that recovery has to apply, by ascending numbers, and where each stands.
pub fn records_aside(
    region: &Region,
    superblock: &Superblock,
    image: &Image,
    reader: &RingReader<'_>,
    start: u64,
) -> Result<Vec<(u64, u64)>> {
    let side = superblock.side_offset()..superblock.side_offset() + superblock.side_length();
    let (mut record, mut found) = (Vec::new(), Vec::new());
    for offset in side.step_by(PLACE as usize) {
        let number = u64::from_le(region.load(offset + 8));
        let is_new = number >= start && !number.is_multiple_of(ALIGN as u64);
        if !is_new || reader.read_aside(offset, &mut record).is_none() {
            continue;
        }
        let mut operations = Operations::new(&record, image.length());
        if !operations.all(|operation| operation.is_some_and(|it| image.accepts(&it))) {
            return Err(Error::DamagedRing);
        }
        found.push((number, offset));
    }
    found.sort_unstable();
    Ok(found)
}

impl RingReader<'_> {
    /// The record in the place at `offset` of the pool with its header, if one of the present epoch is whole there.
    pub fn read_aside(&self, offset: u64, into: &mut Vec<u8>) -> Option<RecordHeader> {
        into.resize(PLACE as usize, 0);
        self.region.read(offset, into);
        let header: [u8; HEADER] = *into.first_chunk()?;
        let header: RecordHeader = zerocopy::transmute!(header);
        let plausible = header.magic == MAGIC
            && (header.epoch == self.first_epoch || self.defects.skip_epoch_check)
            && u64::from(header.length) == PLACE
            && header.checked as usize == ALIGN;
        let is_whole = || super::is_intact(&header, into) || self.defects.skip_record_checksum;
        (plausible && is_whole()).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use pmem::Simulation;

    use super::*;
    use crate::{FileKind, Geometry, NewInode, Options, Store, WriteAt};

    fn open(region: &Region) -> Store {
        Store::open(region.clone(), Options::default()).expect("the pool opens")
    }

    /// What is numbered behind a record counts after a crash only if that record is whole.
    #[test]
    fn numbers_aside_are_not_counted_from_a_record_under_way() {
        let region = Region::memory(4 << 20, false).expect("memory");
        Store::format(&region, &Geometry::small()).expect("format");
        let store = open(&region);
        let (ring, image) = (&store.shared.ring, &store.shared.image);
        ring.append_nothing(image);
        let mut record = [0; ALIGN];
        let crc = ring.head(&mut record, ALIGN);
        let under_way = ring.reserve(ring.enter(), ALIGN);
        ring.reclaim_to(under_way.number, image);
        assert!(ring.start.load(Ordering::Relaxed) < under_way.number);
        assert!(ring.side.base.load(Ordering::Relaxed) < under_way.number);
        ring.commit(under_way, &mut record, crc, image);
        ring.applied(under_way);
        // Nor from the last one, as long as there is none behind it.
        ring.reclaim_to(under_way.end, image);
        assert_eq!(ring.start.load(Ordering::Relaxed), under_way.number);
    }

    /// A reclaim flushes an inode's line for a record of the ring, before one aside touches it that lies below its goal.
    #[test]
    fn lines_are_flushed_again_for_a_record_aside() {
        let simulation = Simulation::new(1 << 20);
        Store::format(&simulation.region(), &Geometry::small()).expect("format");
        let store = open(&simulation.region());
        let new = NewInode::new(FileKind::Regular, 0o644);
        let file = store.create(&store.root(), b"file", &new).expect("create");
        for data in [&[1; BLOCK][..], &[2; 64]] {
            let written = store.write(&file, WriteAt::Offset(0), data);
            written.expect("write");
        }
        let (ring, image) = (&store.shared.ring, &store.shared.image);
        let layout = store.layout(&file, 0, BLOCK as u64).expect("layout");
        (0..2).for_each(|_| ring.append_nothing(image));
        let aside = ring.begin_aside(layout.version, image).expect("a place");
        thread::scope(|scope| {
            scope.spawn(|| ring.reclaim_to(aside.number, image));
            // Then it has flushed what is in the ring.
            while ring.side.base.load(Ordering::SeqCst) < aside.number {
                thread::yield_now();
            }
            let touch = Touch {
                inode: file.number(),
                time_ns: 3,
            };
            let target = layout.mapped[0].image_offset;
            store
                .shared
                .overwrite_aside(aside, target, &[3; BLOCK], touch);
        });
        assert!(ring.start.load(Ordering::Relaxed) > aside.number);
        let crashed = simulation.moment().images(1, 0).next().expect("an image");
        let store = open(&Simulation::from_image(crashed).region());
        let mut found = [0; BLOCK];
        let file = store.lookup(&store.root(), b"file").expect("the file");
        store.read(&file, 0, &mut found).expect("read");
        assert!(found == [3; BLOCK]);
    }
}
