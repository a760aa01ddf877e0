//! The area before the image: superblocks, ring states, ring.

use pmem::Region;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::Report;
use crate::BLOCK;
use crate::defects::Defects;
use crate::error::Result;
use crate::format::superblock::{
    COMPATIBLE_KNOWN, RING_STATES, RingState, SUPERBLOCKS, Superblock,
};
use crate::image::Image;
use crate::image::recovery::{Replayed, read_ring_state, read_superblock, replay};
use crate::ring::RingReader;

/// Positions beyond this are not reached in the life of any pool, and sums with them must not overflow.
const POSITION_MAX: u64 = 1 << 62;

/// The superblock, after checking that both copies are whole and alike.
pub fn check_superblocks(region: &Region, report: &mut Report) -> Result<Superblock> {
    let superblock = read_superblock(region)?;
    for (copy, offset) in ["first", "second"].into_iter().zip(SUPERBLOCKS) {
        let mut block = [0; BLOCK];
        region.read(offset, &mut block);
        let (found, rest) = block.split_at(size_of::<Superblock>());
        let found =
            Superblock::read_from_bytes(found).expect("the slice has the superblock's size");
        match found.validate(region.length()) {
            Err(error) => report.add(
                format!("the {copy} copy of the superblock is bad: {error}"),
                None,
                None,
            ),
            Ok(()) if is_grown(&superblock, &found) => {}
            Ok(()) if found != superblock => {
                report.add("the two copies of the superblock differ", None, None)
            }
            Ok(()) => {
                // Compatible features that are unknown here may put something there.
                if superblock.compatible & !COMPATIBLE_KNOWN == 0
                    && rest.iter().any(|byte| *byte != 0)
                {
                    report.add(
                        format!("the {copy} copy of the superblock is not zero behind its end"),
                        None,
                        None,
                    );
                }
            }
        }
    }
    if superblock.reserved_blocks > superblock.image_length / BLOCK as u64 {
        report.add(
            "the superblock reserves more blocks than there are",
            None,
            None,
        );
    }
    Ok(superblock)
}

/// Whether the second copy is the result of a crash while the pool grew.
pub fn is_grown(first: &Superblock, second: &Superblock) -> bool {
    let like_first = Superblock {
        crc: first.crc,
        pool_length: first.pool_length,
        image_length: first.image_length,
        reserved_blocks: first.reserved_blocks,
        ..*second
    };
    like_first == *first
        && second.pool_length > first.pool_length
        && second.image_length >= first.image_length
}

/// Brings the records of the ring into the image, and returns the position behind the last one.
pub fn replay_ring(
    region: &Region,
    superblock: &Superblock,
    image: &Image,
    report: &mut Report,
) -> u64 {
    check_ring_states(region, report);
    let Ok(state) = read_ring_state(region) else {
        return u64::MAX;
    };
    if state.start > POSITION_MAX {
        report.add(
            format!(
                "the record ring cannot have come to position {}",
                state.start
            ),
            None,
            None,
        );
        return u64::MAX;
    }
    if state.epoch == u32::MAX {
        report.add("the pool was opened as often as it can be", None, None);
    }
    match replay(region, superblock, image, state, Defects::default()) {
        Ok(Replayed { tail, .. }) => {
            report.records_replayed = count_records(region, superblock, state, tail.number);
            tail.number
        }
        Err(_) => {
            report.add(
                "a record in the ring has an operation that is not possible; nothing was replayed",
                None,
                None,
            );
            u64::MAX
        }
    }
}

fn count_records(region: &Region, superblock: &Superblock, state: RingState, end: u64) -> u64 {
    let reader = RingReader::new(region, superblock, state.epoch, Defects::default());
    let (mut position, mut count, mut record) = (state.start, 0, Vec::new());
    while position < end
        && let Some(header) = reader.read(position, &mut record)
    {
        position += u64::from(header.length);
        count += 1;
    }
    count
}

/// The copies are written one after the other, so a crash leaves them equal, or one of them cut off between its two
/// words, or one of them older. The distance of the newer one ahead or, after a rewind, behind, is unbounded.
pub fn check_ring_states(region: &Region, report: &mut Report) {
    let [first, second] = RING_STATES.map(|offset| {
        let mut state = RingState::new_zeroed();
        region.read(offset, state.as_mut_bytes());
        state
    });
    let mut finding = |what: &str| report.add(format!("{what} of the ring's state"), None, None);
    match (first.is_valid(), second.is_valid()) {
        (true, true) if [first, second].iter().any(|state| state.reserved != [0; 6]) => {
            finding("there are bytes that should be zero in a copy");
        }
        (true, true) => {}
        (true, false) if !is_cut_off(&second, &first) => finding("there is a damaged second copy"),
        (false, true) if !is_cut_off(&first, &second) => finding("there is a damaged first copy"),
        (false, false) => finding("there are only damaged copies"),
        _ => {}
    }
}

/// Whether a crash can leave `torn` of a write over, or to become, the state `whole`.
fn is_cut_off(torn: &RingState, whole: &RingState) -> bool {
    let words = |state: &RingState| (state.crc, state.epoch, state.start);
    let (torn_words, whole_words) = (words(torn), words(whole));
    let one_is_whole = (torn_words.0, torn_words.1) == (whole_words.0, whole_words.1)
        || torn_words.2 == whole_words.2;
    one_is_whole && torn.reserved == [0; 6]
}
