//! Pools with damaged bytes: reading may fail, but must not return anything else than the written data.

use std::sync::Arc;

use pmem::{Random, Region};
use store::{CheckOptions, Defects};

use crate::embedded::Embedded;
use crate::explorer::{Prepared, guarded};
use crate::pool::options;
use crate::tree::{Tree, snapshot};

const LINE: usize = 64;
const BLOCK: usize = 4096;

/// Results for damaged pools.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fates {
    /// Everything was still read right: the damage hit nothing in use, or one of two copies.
    pub harmless: usize,
    /// An error was reported.
    pub refused: usize,
}

/// Damages a closed pool `count` times, each time a new copy. An error describes a pool that was read wrongly, damage
/// that the check does not find although the store does, or a panic.
pub fn inflict(
    prepared: &Prepared,
    count: usize,
    seed: u64,
    defects: Defects,
) -> Result<Fates, String> {
    let length = prepared.image().len() as u64;
    let scratch = Region::memory(length, false).map_err(|error| error.to_string())?;
    let expected = prepared.model(&Arc::default()).tree();
    let mut random = Random::new(seed);
    let mut fates = Fates::default();
    for index in 0..count {
        let mut image = prepared.image().to_vec();
        let what = harm(&mut image, &mut random);
        let fate = guarded(|| {
            scratch.write(0, &image);
            match read(&scratch, defects) {
                Ok(tree) => compare(&tree, &expected).map(|()| true),
                Err(refusal) => {
                    scratch.write(0, &image);
                    compare_with_check(&scratch, &refusal).map(|()| false)
                }
            }
        });
        match fate.map_err(|error| format!("damage {index} of seed {seed}, {what}: {error}"))? {
            true => fates.harmless += 1,
            false => fates.refused += 1,
        }
    }
    Ok(fates)
}

fn compare(tree: &Tree, expected: &Tree) -> Result<(), String> {
    match tree.difference("the damaged pool", expected, "the model") {
        Some(difference) => Err(format!("it is read without an error, but\n{difference}")),
        None => Ok(()),
    }
}

/// Opens a pool and reads all of it.
fn read(region: &Region, defects: Defects) -> Result<Tree, String> {
    let options = options(&Arc::default(), defects);
    let mut system = Embedded::open(region.clone(), options).map_err(|error| error.to_string())?;
    snapshot(&mut system)
}

fn compare_with_check(region: &Region, refusal: &str) -> Result<(), String> {
    match store::check(region, &CheckOptions::default()) {
        Ok(report) if report.is_clean() => Err(format!(
            "the check finds nothing, but reading says: {refusal}"
        )),
        _ => Ok(()),
    }
}

/// Damages the image, and returns a description.
fn harm(image: &mut [u8], random: &mut Random) -> String {
    let blocks = image.len() / BLOCK;
    match random.below(8) {
        0 => {
            let line = random.below(image.len() / LINE) * LINE;
            for byte in &mut image[line..line + LINE] {
                *byte = random.next_number() as u8;
            }
            format!("noise in the line at {line}")
        }
        1 => {
            let block = random.below(blocks) * BLOCK;
            image[block..block + BLOCK].fill(0);
            format!("zeros in the block at {block}")
        }
        2 => {
            let (from, to) = (random.below(blocks) * BLOCK, random.below(blocks) * BLOCK);
            image.copy_within(from..from + BLOCK, to);
            format!("the block of {from} at {to}")
        }
        _ => {
            let (at, bit) = (random.below(image.len()), random.below(8));
            image[at] ^= 1 << bit;
            format!("bit {bit} flipped in the byte at {at}")
        }
    }
}
