//! Data of requests, kept until their end.

use pmem::Region;
use smallvec::SmallVec;

use crate::{Key, Piece, Registration, Source};

/// A range of registered memory that stays registered while a request needs it.
pub struct Range {
    memory: Registration,
    offset: u64,
    length: u32,
}

/// Data of a request: where it is, or where it goes.
pub enum Payload {
    Inline(SmallVec<[u8; 64]>),
    Ranges(SmallVec<[Range; 1]>),
}

impl Payload {
    pub fn of(source: &Source<'_>) -> Payload {
        match source {
            Source::Inline(bytes) => Payload::Inline(SmallVec::from_slice(bytes)),
            Source::Pieces(pieces) => Payload::pieces(pieces),
        }
    }

    pub fn pieces(pieces: &[Piece<'_>]) -> Payload {
        let ranges = pieces.iter().map(|piece| Range {
            memory: piece.registration.clone(),
            offset: piece.offset,
            length: piece.length,
        });
        Payload::Ranges(ranges.collect())
    }

    pub fn length(&self) -> u32 {
        match self {
            Payload::Inline(bytes) => bytes.len() as u32,
            Payload::Ranges(ranges) => ranges.iter().map(|range| range.length).sum(),
        }
    }

    /// The key and the offset, if all of it is one range of this region.
    pub fn range_of(&self, region: &Region) -> Option<(Key, u64)> {
        match self {
            Payload::Ranges(ranges) if ranges.len() == 1 => {
                let Range { memory, offset, .. } = &ranges[0];
                let is_it = memory.region().address(0, 1) == region.address(0, 1);
                is_it.then(|| (memory.key(), *offset))
            }
            _ => None,
        }
    }

    /// Copies a part of the data out.
    pub fn gather(&self, at: u32, into: &mut [u8]) {
        match self {
            Payload::Inline(bytes) => {
                into.copy_from_slice(&bytes[at as usize..at as usize + into.len()]);
            }
            Payload::Ranges(_) => self.each(at, into.len(), |region, offset, place| {
                region.read(offset, &mut into[place]);
            }),
        }
    }

    /// Copies a part of the data into a region.
    pub fn copy_to(&self, at: u32, into: &Region, start: u64, length: u32) {
        match self {
            Payload::Inline(bytes) => {
                into.write(start, &bytes[at as usize..(at + length) as usize]);
            }
            Payload::Ranges(_) => self.each(at, length as usize, |region, offset, place| {
                let start = start + place.start as u64;
                into.copy_from(start, region, offset, place.len());
            }),
        }
    }

    /// Copies a part of the data in.
    pub fn scatter(&self, at: u32, from: &[u8]) {
        self.each(at, from.len(), |region, offset, place| {
            region.write(offset, &from[place]);
        });
    }

    /// Calls with each stretch of memory of a part of the data, and its place in the part.
    fn each(
        &self,
        at: u32,
        length: usize,
        mut act: impl FnMut(&Region, u64, std::ops::Range<usize>),
    ) {
        let Payload::Ranges(ranges) = self else {
            return;
        };
        let mut skip = at as usize;
        let mut done = 0;
        for range in ranges {
            let bytes = range.length as usize;
            if skip >= bytes {
                skip -= bytes;
                continue;
            }
            let count = (bytes - skip).min(length - done);
            let region = range.memory.region();
            act(region, range.offset + skip as u64, done..done + count);
            skip = 0;
            done += count;
            if done == length {
                return;
            }
        }
    }
}
