//! Metadata blocks being edited. Only the lines that an edit changes are copied; the record contains the changed words
//! of a block.

use std::ops::Range;

use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::BLOCK;
use crate::format::checksum::{crc32c, replace_words};
use crate::format::record::{EDIT_MAX, PARTS_MAX, part};
use crate::format::{BLOCK_CRC, BLOCK_CRC_FROM};
use crate::image::{Block, Image};

const LINE: usize = 64;
/// Changed words this close to each other go into the record together: a separate operation costs as much.
const NEAR: usize = 32;

/// Words of an edit that are checksummed at once.
const SCRATCH: usize = 40;

/// Form of a sealed edit in a record.
pub enum Sealed {
    /// The block did not change.
    Unchanged,
    /// One operation, with the block's new checksum.
    Short(u32),
    /// Several operations, of which one brings the checksum.
    Long,
}

/// A metadata block being edited.
pub struct Edit {
    /// Number of the block.
    pub block: u64,
    /// The block was free until now: unwritten bytes must become zero.
    pub fresh: bool,
    /// One bit for each line that `contents` has. The others are as in the image.
    present: u64,
    /// The changes: whole words, in ascending order, not near each other.
    changed: SmallVec<[Range<usize>; 8]>,
    contents: Box<Block>,
}

impl Edit {
    /// An edit of a block as it is in the image, with room for its contents.
    pub fn of(block: u64, room: Box<Block>) -> Edit {
        Edit {
            block,
            fresh: false,
            present: 0,
            changed: SmallVec::new(),
            contents: room,
        }
    }

    /// An edit of a block that was free, which starts as zeros.
    pub fn of_free(block: u64, mut room: Box<Block>) -> Edit {
        room.fill(0);
        Edit {
            fresh: true,
            present: u64::MAX,
            ..Edit::of(block, room)
        }
    }

    /// Bytes of the block, to be changed.
    pub fn bytes(&mut self, image: &Image, range: Range<usize>) -> &mut [u8] {
        let touched = lines(&range);
        for line in bits(touched & !self.present) {
            let line = line * LINE..(line + 1) * LINE;
            let offset = self.block * BLOCK as u64 + line.start as u64;
            image.read(offset, &mut self.contents[line]);
        }
        self.present |= touched;
        self.note(range.start & !7..range.end.next_multiple_of(8));
        &mut self.contents[range]
    }

    fn note(&mut self, range: Range<usize>) {
        let before = |old: &&Range<usize>| old.end + NEAR < range.start;
        let not_behind = |old: &&Range<usize>| old.start <= range.end + NEAR;
        let first = self.changed.iter().take_while(before).count();
        let last = self.changed.iter().take_while(not_behind).count();
        if first == last {
            self.changed.insert(first, range);
        } else {
            let joined = self.changed[first].start.min(range.start)
                ..self.changed[last - 1].end.max(range.end);
            self.changed.drain(first + 1..last);
            self.changed[first] = joined;
        }
    }

    /// Computes the new checksum, and puts it into the block where the edit is too long for one operation.
    pub fn seal(&mut self, image: &Image) -> Sealed {
        if self.changed.is_empty() {
            return Sealed::Unchanged;
        }
        if self.fresh {
            self.put_crc(image, crc32c(&self.contents[BLOCK_CRC_FROM..]));
            return Sealed::Long;
        }
        let offset = self.block * BLOCK as u64;
        let stored = (image.load(offset) >> (8 * BLOCK_CRC)) as u32;
        // From the old checksum and the difference: damage elsewhere in the block stays detectable.
        let mut scratch = [0u64; SCRATCH];
        let mut crc = stored;
        for range in &self.changed {
            for start in range.clone().step_by(SCRATCH * 8) {
                let end = range.end.min(start + SCRATCH * 8);
                let old = &mut scratch[..(end - start) / 8];
                image.read(offset + start as u64, old.as_mut_bytes());
                crc = replace_words(crc, old, &self.contents[start..end], BLOCK - end);
            }
        }
        if self.is_short() {
            return Sealed::Short(crc);
        }
        self.put_crc(image, crc);
        Sealed::Long
    }

    fn put_crc(&mut self, image: &Image, crc: u32) {
        self.bytes(image, BLOCK_CRC..BLOCK_CRC_FROM)
            .copy_from_slice(&crc.to_le_bytes());
    }

    /// Whether one operation takes all that was changed.
    fn is_short(&self) -> bool {
        let length: usize = self.changed.iter().map(ExactSizeIterator::len).sum();
        self.changed.len() <= PARTS_MAX && 8 + length <= EDIT_MAX && self.changed[0].start >= 8
    }

    /// Encodes the changes as the payload of one operation, and returns its length.
    pub fn encode(&self, payload: &mut [u8; EDIT_MAX]) -> usize {
        let mut end = 8;
        for (index, (at, bytes)) in self.changes().enumerate() {
            payload[2 * index..2 * index + 2].copy_from_slice(&part(at, bytes.len()).to_le_bytes());
            payload[end..end + bytes.len()].copy_from_slice(bytes);
            end += bytes.len();
        }
        end
    }

    /// The changes, in ascending order.
    pub fn changes(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let bytes = |range: &Range<usize>| (range.start, &self.contents[range.clone()]);
        self.changed.iter().map(bytes)
    }

    /// Covers bytes of the image with those that the edit has.
    fn cover(&self, at: usize, bytes: &mut [u8]) {
        let end = at + bytes.len();
        for line in bits(lines(&(at..end)) & self.present) {
            let range = at.max(line * LINE)..end.min((line + 1) * LINE);
            bytes[range.start - at..range.end - at].copy_from_slice(&self.contents[range]);
        }
    }

    /// The room that the edit was given.
    pub fn into_room(self) -> Box<Block> {
        self.contents
    }
}

/// A metadata block as a change sees it: in the image, but for the lines that it edits.
#[derive(Clone, Copy)]
pub struct Contents<'a> {
    image: &'a Image,
    offset: u64,
    edit: Option<&'a Edit>,
}

impl<'a> Contents<'a> {
    /// The block as it is in the image, but for `edit`.
    #[inline]
    pub fn new(image: &'a Image, block: u64, edit: Option<&'a Edit>) -> Contents<'a> {
        Contents {
            image,
            offset: block * BLOCK as u64,
            edit,
        }
    }

    /// The word at a multiple of 8.
    #[inline]
    pub fn word(&self, at: usize) -> u64 {
        match self.edit {
            Some(edit) if edit.present >> (at / LINE) & 1 != 0 => {
                u64::from_le_bytes(edit.contents[at..at + 8].try_into().expect("eight bytes"))
            }
            _ => self.image.load(self.offset + at as u64),
        }
    }

    /// Hints that the bytes from here on are wanted soon.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        self.image.prefetch(self.offset + at as u64, 1);
    }

    /// Copies the edited bytes.
    #[inline]
    pub fn copy(&self, at: usize, into: &mut [u8]) {
        self.image.read(self.offset + at as u64, into);
        if let Some(edit) = self.edit {
            edit.cover(at, into);
        }
    }

    /// Copies the whole block out.
    pub fn whole(&self) -> Block {
        let mut block = [0; BLOCK];
        self.copy(0, &mut block);
        block
    }
}

/// One bit for each line that a range, which is not empty, touches.
fn lines(range: &Range<usize>) -> u64 {
    (u64::MAX >> (63 - (range.end - 1) / LINE)) & (u64::MAX << (range.start / LINE))
}

/// Numbers of the bits that are set.
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (set != 0).then(|| set.trailing_zeros() as usize);
        set &= set.wrapping_sub(1);
        bit
    })
}
