//! The area before the image: superblocks, ring states, ring.

use std::collections::HashMap;

use pmem::Region;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::Notes;
use super::bit_flips::{repair_ring_state, repair_superblock};
use crate::BLOCK;
use crate::check::Report;
use crate::check::pool::{check_ring_states, is_grown};
use crate::defects::Defects;
use crate::error::{Error, Result};
use crate::format::inode::{CHANGING, Inode};
use crate::format::record::{ALIGN, HEADER, MAGIC, RecordHeader};
use crate::format::superblock::{
    COMPATIBLE_KNOWN, RING_OFFSET, RING_STATES, RingState, SUPERBLOCKS, Superblock,
};
use crate::image::Image;
use crate::image::recovery::{read_ring_state, read_superblock, replay};
use crate::ring::{RingReader, write_ring_state};
use crate::sequence::Sequence;

/// Position where the ring continues.
#[derive(Clone, Copy)]
pub struct Tail {
    /// The last epoch, and the position of the next record.
    pub sequence: Sequence,
    /// Nothing in the ring may count any more.
    pub resets_ring: bool,
}

/// The superblock, with both copies made whole and alike.
pub fn superblock(region: &Region, notes: &mut Notes) -> Result<Superblock> {
    let found = match read_superblock(region) {
        Ok(superblock) => superblock,
        Err(error) => flipped_superblock(region).ok_or(error)?,
    };
    found.check_alone()?;
    let mut superblock = found;
    superblock.reserved_blocks = found.reserved_blocks.min(found.image_length / BLOCK as u64);
    superblock.crc = superblock.checksum();
    for (copy, offset) in ["first", "second"].into_iter().zip(SUPERBLOCKS) {
        let mut block = [0; BLOCK];
        region.read(offset, &mut block);
        let mut right = block;
        right[..size_of::<Superblock>()].copy_from_slice(superblock.as_bytes());
        // Compatible features that are unknown here may put something behind it.
        if superblock.compatible & !COMPATIBLE_KNOWN == 0 {
            right[size_of::<Superblock>()..].fill(0);
        }
        let (own, _) =
            Superblock::read_from_prefix(&block[..]).expect("a block holds a superblock");
        let is_ahead = own.validate(region.length()).is_ok() && is_grown(&superblock, &own);
        if block != right && !is_ahead {
            // One copy after the other: at each moment one of them is whole, unless none was.
            region.write_flushed(offset, &right);
            region.fence();
            notes.add(
                format!("the {copy} copy of the superblock was rewritten"),
                None,
                None,
            );
        }
    }
    Ok(superblock)
}

/// A superblock of which both copies are damaged, but one only in a bit.
fn flipped_superblock(region: &Region) -> Option<Superblock> {
    if region.length() < RING_OFFSET {
        return None;
    }
    SUPERBLOCKS.into_iter().find_map(|offset| {
        let mut copy = Superblock::new_zeroed();
        region.read(offset, copy.as_mut_bytes());
        let is_mended = repair_superblock(&mut copy);
        (is_mended && copy.validate(region.length()).is_ok()).then_some(copy)
    })
}

/// Replays the ring as recovery does, and returns the position of the next record.
pub fn replay_ring(
    region: &Region,
    superblock: &Superblock,
    image: &Image,
    notes: &mut Notes,
) -> Tail {
    let state = match read_ring_state(region) {
        Ok(state) => {
            let mut report = Report::default();
            check_ring_states(region, &mut report);
            if !report.is_clean() {
                notes.add("the ring's state was rewritten", None, None);
            }
            Some(state)
        }
        Err(_) => {
            let state = flipped_state(region);
            let what = match state {
                Some(_) => "a flipped bit of the ring's state was repaired",
                None => {
                    "the ring's state was lost: all records in the ring were brought into the image"
                }
            };
            notes.add(what, None, None);
            state.or_else(|| lost_state(region, superblock))
        }
    };
    let replayed = state.map(|state| {
        let replayed = replay(region, superblock, image, state, Defects::default());
        replayed.map(|it| it.tail)
    });
    match replayed {
        Some(Ok(tail)) if tail.epoch < u32::MAX => Tail {
            sequence: tail,
            resets_ring: false,
        },
        Some(Ok(mut tail)) => {
            notes.add("the count of openings restarts", None, None);
            tail.epoch = 0;
            Tail {
                sequence: tail,
                resets_ring: true,
            }
        }
        Some(Err(_)) => {
            let what = "the ring was emptied: a record in it has an operation that is not possible";
            notes.add(what, None, None);
            empty_ring(region, superblock, image)
        }
        None => empty_ring(region, superblock, image),
    }
}

/// The state of which both copies are damaged, but one only in a bit.
fn flipped_state(region: &Region) -> Option<RingState> {
    RING_STATES.into_iter().find_map(|offset| {
        let mut state = RingState::new_zeroed();
        region.read(offset, state.as_mut_bytes());
        repair_ring_state(&mut state).then_some(state)
    })
}

/// A state from which all records in the ring are replayed: the newest record, and those of its epoch that precede it
/// without a gap. Replaying more than needed does no harm, since records contain bytes and all later ones follow.
/// Records of an earlier epoch were applied when this one began.
fn lost_state(region: &Region, superblock: &Superblock) -> Option<RingState> {
    let records = records(region, superblock);
    let end = |it: &RecordHeader| it.number + u64::from(it.length);
    let newest = records.iter().max_by_key(|it| (it.epoch, it.number))?;
    let by_end: HashMap<u64, &RecordHeader> = records.iter().map(|it| (end(it), it)).collect();
    let mut first = newest;
    while let Some(before) = by_end
        .get(&first.number)
        .filter(|it| it.epoch == newest.epoch && end(newest) - it.number <= superblock.ring_length)
    {
        first = before;
    }
    Some(RingState::new(newest.epoch.max(1), first.number))
}

/// The headers of all records in the ring that are whole.
fn records(region: &Region, superblock: &Superblock) -> Vec<RecordHeader> {
    let mut record = Vec::new();
    let mut found = Vec::new();
    for at in (0..superblock.ring_length).step_by(ALIGN) {
        let mut bytes = [0; HEADER];
        region.read(superblock.ring_offset + at, &mut bytes);
        let header =
            RecordHeader::read_from_bytes(&bytes).expect("the buffer has the header's size");
        let is_here = header.magic == MAGIC
            && header.number % superblock.ring_length == at
            && header.number < 1 << 62;
        let reader = || RingReader::new(region, superblock, 0, Defects::default());
        if is_here && reader().read(header.number, &mut record).is_some() {
            found.push(header);
        }
    }
    found
}

/// The position of the next record if no ring can be read: beyond all positions in inodes and records.
fn empty_ring(region: &Region, superblock: &Superblock, image: &Image) -> Tail {
    let records = records(region, superblock);
    let behind_records = records
        .iter()
        .map(|it| it.number + u64::from(it.length))
        .max();
    let mut behind = behind_records.unwrap_or_default().max(ALIGN as u64);
    for number in 0..image.layout.inodes() {
        let mut inode = Inode::FREE;
        image.read(image.layout.inode(number), inode.as_mut_bytes());
        let version = inode.version & !CHANGING;
        if inode.stamp_crc == inode.stamp_checksum() && version < 1 << 61 {
            behind = behind.max((version + 1).next_multiple_of(ALIGN as u64));
        }
    }
    Tail {
        sequence: Sequence {
            epoch: 0,
            number: behind,
        },
        resets_ring: true,
    }
}

/// Makes the ring continue at the tail, in the next epoch, which is returned. All replayed records are persistent.
pub fn begin_epoch(region: &Region, superblock: &Superblock, tail: Tail) -> Result<u32> {
    let next = tail.sequence.epoch.checked_add(1);
    let epoch = next.ok_or(Error::DamagedRing)?;
    if tail.resets_ring {
        // Without its first record no other counts; their contents are in the image.
        let first = tail.sequence.number % superblock.ring_length;
        if let Ok(state) = read_ring_state(region) {
            let start = state.start % superblock.ring_length;
            region.zero_flushed(superblock.ring_offset + start, ALIGN as u64);
        }
        region.zero_flushed(superblock.ring_offset + first, ALIGN as u64);
        region.fence();
        region.zero_flushed(superblock.ring_offset, superblock.ring_length);
        region.fence();
    }
    write_ring_state(region, RingState::new(epoch, tail.sequence.number));
    Ok(epoch)
}
