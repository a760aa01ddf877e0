//! What one name's coming or going changes in a leaf.

use zerocopy::IntoBytes;

use crate::BLOCK;
use crate::checksum::replace_words;
use crate::edit::Contents;
use crate::image::Image;
use crate::layout::BLOCK_CRC;
use crate::layout::directory::*;
use crate::layout::record::{EDIT_MAX, Kind, Operation, part, parts};

/// The word that a slot is in, and its lowest bit there.
pub(super) fn slot_place(index: usize) -> (usize, usize) {
    (SLOTS + index / 2 * 2 * SLOT, index % 2 * 8 * SLOT)
}

/// What one name's coming or going changes in a leaf.
pub struct Patch {
    pub(super) block: u64,
    /// As in a record.
    payload: [u8; EDIT_MAX],
    length: usize,
    count: usize,
}

impl Patch {
    pub(super) fn new(block: u64, shape: Shape) -> Patch {
        let mut patch = Patch {
            block,
            payload: [0; EDIT_MAX],
            length: 8,
            count: 0,
        };
        patch
            .push(SHAPE, size_of::<Shape>())
            .copy_from_slice(shape.as_bytes());
        patch
    }

    /// Adds a part of whole words, and gives its bytes to be filled in.
    pub(super) fn push(&mut self, at: usize, length: usize) -> &mut [u8] {
        let field = 2 * self.count..2 * self.count + 2;
        self.payload[field].copy_from_slice(&part(at, length).to_le_bytes());
        self.count += 1;
        let start = self.length;
        self.length += length;
        &mut self.payload[start..start + length]
    }

    pub(super) fn push_slot(&mut self, leaf: Contents<'_>, index: usize, slot: Slot) {
        let (at, shift) = slot_place(index);
        let slot: u32 = zerocopy::transmute!(slot);
        let others = leaf.word(at) & !(u64::from(u32::MAX) << shift);
        let word = others | u64::from(slot) << shift;
        self.push(at, 8).copy_from_slice(&word.to_le_bytes());
    }

    /// Offsets in the block, and bytes.
    pub fn parts(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let list = self.payload[..8].try_into().expect("eight bytes");
        let mut rest = &self.payload[8..];
        parts(u64::from_le_bytes(list)).map(move |(at, length)| {
            let (bytes, behind) = rest.split_at(length);
            rest = behind;
            (at, bytes)
        })
    }

    /// The leaf has no name left.
    pub fn empties_leaf(&self) -> bool {
        let shape: Shape =
            zerocopy::transmute!(*self.payload[8..].first_chunk::<8>().expect("the shape"));
        shape.count == 0
    }

    /// As an operation, for a leaf as it is in the image.
    pub fn operation(&self, image: &Image) -> Operation<'_> {
        let target = self.block * BLOCK as u64;
        let stored = (image.load(target) >> (8 * BLOCK_CRC)) as u32;
        // From the old checksum and the difference: damage elsewhere in the block stays detectable.
        let crc = self.parts().fold(stored, |crc, (at, bytes)| {
            let after = BLOCK - at - bytes.len();
            let start = target + at as u64;
            if bytes.len() == 8 {
                let mut old = [image.load(start)];
                return replace_words(crc, &mut old, bytes, after);
            }
            let mut old = [0; EDIT_MAX / 8];
            let old = &mut old[..bytes.len() / 8];
            image.read(start, old.as_mut_bytes());
            replace_words(crc, old, bytes, after)
        });
        Operation {
            kind: Kind::Edit,
            target,
            length: self.length as u32,
            crc,
            touch: None,
            payload: &self.payload[..self.length],
        }
    }
}

// A patch has room for the list, the shape, a word of slots and the longest entry.
const _: () = assert!(8 + 8 + 8 + entry_size(crate::NAME_LENGTH_MAX) <= EDIT_MAX);
