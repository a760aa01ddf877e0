//! Opening a pool: superblock, ring state, replay.
//!
//! Recovery is replaying the ring: every whole record from the ring's start on is applied, in order, as long as epochs
//! do not decrease. Records contain the new bytes of the image, so it does not matter how many of them had reached it,
//! and a crash during recovery is no different from one before it. The records that a crash cut off, and later ones
//! that were persistent by chance, have an old epoch once the ring state is written.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicI64;

use parking_lot::Mutex;
use pmem::Region;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::ATOMIC_WRITE_MAX;
use crate::defects::Defects;
use crate::error::{Error, Result};
use crate::format::record::{Kind, Operations, RecordOperation};
use crate::format::superblock::{
    MAGIC, RING_OFFSET, RING_STATES, RingState, SUPERBLOCKS, Superblock,
};
use crate::image::Image;
use crate::image::allocator::Allocator;
use crate::image::deferred_frees::DeferredFrees;
use crate::image::transaction::ReplyLocks;
use crate::image::volume::{PoolOptions, Volume};
use crate::order::{Ordered, Rank};
use crate::ring::CachedLines;
use crate::ring::{Ring, RingReader, write_ring_state};
use crate::sequence::Sequence;

/// Reads the superblock of a pool: the first copy that is valid.
///
/// # Errors
/// Why the first is not, if none is.
pub fn read_superblock(region: &Region) -> Result<Superblock> {
    if region.length() < RING_OFFSET {
        return Err(Error::NotAPool);
    }
    let copies = SUPERBLOCKS.map(|offset| {
        let mut superblock = Superblock::new_zeroed();
        region.read(offset, superblock.as_mut_bytes());
        superblock.validate(region.length()).map(|()| superblock)
    });
    match copies {
        [Ok(superblock), _] | [_, Ok(superblock)] => Ok(superblock),
        // Of two invalid copies the error of the better one is reported.
        [Err(Error::NotAPool), Err(error)] | [Err(error), Err(_)] => Err(error),
    }
}

/// Whether a region has a superblock, of whatever version and state.
pub fn has_superblock(region: &Region) -> bool {
    SUPERBLOCKS.iter().any(|offset| {
        let mut magic = [0; MAGIC.len()];
        let is_inside = region.length() >= offset + MAGIC.len() as u64;
        if is_inside {
            region.read(*offset, &mut magic);
        }
        magic == MAGIC
    })
}

/// Position in the ring where recovery starts, if that can be read.
pub fn recovery_start(region: &Region) -> Option<u64> {
    let is_whole = region.length() >= RING_OFFSET;
    let state = is_whole.then(|| read_ring_state(region))?;
    state.ok().map(|state| state.start)
}

/// Where recovery starts: the furthest of the two copies that are valid.
pub fn read_ring_state(region: &Region) -> Result<RingState> {
    let states = RING_STATES.map(|offset| {
        let mut bytes = [0; size_of::<RingState>()];
        region.read(offset, &mut bytes);
        RingState::read_from_bytes(&bytes).expect("the buffer has the state's size")
    });
    let valid = states.into_iter().filter(RingState::is_valid);
    valid
        .max_by_key(|state| (state.epoch, state.start))
        .ok_or(Error::DamagedRing)
}

/// Result of replaying the ring of a pool.
pub(crate) struct Replayed {
    /// Where the next record goes.
    pub tail: Sequence,
    /// The newest time of change in the records, in nanoseconds since 1970.
    pub newest_ns: i64,
}

/// Replays the ring of a pool and makes it ready for work, in the given epoch or else the next one. Returns also the newest
/// time of change in the ring's records.
///
/// A pool of a unit is opened in an epoch that the unit agreed on: an epoch chosen by one pool would name records that
/// the others do not have.
pub fn recover(region: Region, options: &PoolOptions, epoch: Option<u32>) -> Result<(Volume, i64)> {
    let defects = options.defects;
    let superblock = read_superblock(&region)?;
    if epoch.is_none() {
        superblock.check_alone()?;
    }
    let state = read_ring_state(&region)?;
    let mut image =
        Image::new(region.clone(), &superblock).with_parts_in_caches(options.between_system_calls);
    image.is_read_outside = options.hold_freed;
    let Replayed { tail, newest_ns } = replay(&region, &superblock, &image, state, defects)?;
    let next = tail.epoch.checked_add(1).ok_or(Error::DamagedRing)?;
    let epoch = epoch.unwrap_or(next);
    if epoch < next {
        return Err(Error::InvalidArgument(
            "a pool is opened for writing in a higher epoch than that of its last record",
        ));
    }
    // The replayed lines are persistent before the ring state releases their records.
    region.fence_everywhere();
    let allocator = Allocator::load(&image, superblock.reserved_blocks, options.place)?;
    write_ring_state(&region, RingState::new(epoch, tail.number));
    let ring = Ring::new(region, &superblock, epoch, tail.number, defects);
    let ring = ring.read_outside(options.hold_freed);
    Ok((
        Volume {
            image,
            ring,
            allocator,
            owners: Ordered::mutex(Rank::Owners, ()),
            deferred_frees: options.hold_freed.then(DeferredFrees::default),
            replies: ReplyLocks::new(options.hold_freed),
            defects,
            atomic_write_max: ATOMIC_WRITE_MAX.min(superblock.ring_length as usize),
            superblock: Mutex::new(superblock),
            clock: options.clock.clone(),
            ahead_ns: AtomicI64::new(0),
        },
        newest_ns,
    ))
}

/// Applies all whole records in order.
pub(crate) fn replay(
    region: &Region,
    superblock: &Superblock,
    image: &Image,
    state: RingState,
    defects: Defects,
) -> Result<Replayed> {
    let reader = RingReader::new(region, superblock, state.epoch, defects);
    let mut references = References::default();
    let mut record = Vec::new();
    let mut newest_ns = 0;
    let mut end = state.start;
    while let Some(header) = reader.read(end, &mut record) {
        if end + u64::from(header.length) > state.start + superblock.ring_length {
            break;
        }
        for operation in Operations::new(&record, image.length()) {
            // The checksum was right, so this is no crash: the record was made wrong or changed on purpose.
            let operation = operation
                .filter(|operation| image.accepts(operation))
                .ok_or(Error::DamagedRing)?;
            newest_ns = newest_ns.max(operation.changed_ns());
            if operation.kind == Kind::Extent && !defects.replay_over_references {
                references.add(
                    operation.target,
                    operation.target + u64::from(operation.length),
                    end,
                );
            }
        }
        end += u64::from(header.length);
    }
    let epoch = reader.epoch();
    let reader = RingReader::new(region, superblock, state.epoch, defects);
    let apply = |record: &[u8], number: u64| {
        for operation in Operations::new(record, image.length()).flatten() {
            if !references.covers(&operation, number) {
                image.apply(&operation, number);
                image.cached_ranges(&operation, |at, length| image.flush(at, length));
            }
        }
    };
    let mut position = state.start;
    while position < end {
        let Some(header) = reader.read(position, &mut record) else {
            break;
        };
        apply(&record, position);
        position += u64::from(header.length);
    }
    let tail = Sequence { epoch, number: end };
    Ok(Replayed { tail, newest_ns })
}

/// Ranges of the image that a record names as out-of-line data. Their bytes are in no record, so an earlier record,
/// from when the blocks had another use, must not be replayed over them.
#[derive(Default)]
pub(crate) struct References {
    /// Start of a range → its end and the position of the last record that names it.
    ranges: BTreeMap<u64, (u64, u64)>,
}

impl References {
    /// Notes a range; positions are added in ascending order, so the new one wins where ranges overlap.
    pub fn add(&mut self, start: u64, end: u64, position: u64) {
        let overlapping: Vec<_> = self
            .ranges
            .range(..end)
            .rev()
            .take_while(|(_, (other_end, _))| *other_end > start)
            .map(|(other, value)| (*other, *value))
            .collect();
        for (other, (other_end, other_position)) in overlapping {
            self.ranges.remove(&other);
            if other < start {
                self.ranges.insert(other, (start, other_position));
            }
            if other_end > end {
                self.ranges.insert(end, (other_end, other_position));
            }
        }
        self.ranges.insert(start, (end, position));
    }

    /// Whether the bytes that the operation of the record at `position` writes were named by a later one. Operations
    /// stay within one block unless they are ranges named themselves, and references are whole blocks. If it touches
    /// an inode, that was replaced later too: a block changes hands by records that bring the inode.
    pub fn covers(&self, operation: &RecordOperation<'_>, position: u64) -> bool {
        if matches!(operation.kind, Kind::Extent | Kind::Line | Kind::Inode) {
            return false;
        }
        let before = self.ranges.range(..=operation.target).next_back();
        before.is_some_and(|(_, (end, named))| *end > operation.target && *named > position)
    }
}
