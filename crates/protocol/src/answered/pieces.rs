//! Parts of a file that were written.

use std::collections::BTreeMap;

use operations::Bytes;
use pmem::{Arena, Block};

/// Longest part, in bytes. Every pool takes so much as one change.
pub(super) const PART_MAX: usize = 64 << 10;

/// Memory of a part besides its data, in bytes.
const PART_OVERHEAD: usize = 128;
/// Parts that are taken at a time, at most.
const TAKEN_MAX: usize = 256;

/// Least bytes of a part that moves into a block of the arena: shorter ones are copied into their messages.
const IN_ARENA_MIN: usize = 32 << 10;

/// Data of a part.
#[derive(Debug)]
pub(super) enum Part {
    Ordinary(Vec<u8>),
    /// In memory out of which peers copy it.
    InArena(Block),
}

impl Default for Part {
    fn default() -> Part {
        Part::Ordinary(Vec::new())
    }
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        match self {
            Part::Ordinary(data) => data,
            Part::InArena(block) => block.as_ref(),
        }
    }
}

impl Part {
    fn length(&self) -> usize {
        self.as_ref().len()
    }

    /// Writes data from here on, over what is there and behind it. A part that becomes long moves into the arena, if that has a free
    /// block.
    fn write(&mut self, arena: Option<&Arena>, at: usize, data: &[u8]) {
        if let Part::Ordinary(before) = self
            && before.len().max(at + data.len()) >= IN_ARENA_MIN
            && let Some(mut block) = arena.and_then(Arena::allocate)
        {
            block.write(0, &before[..at]);
            block.write(at, data);
            block.write(
                at + data.len(),
                before.get(at + data.len()..).unwrap_or_default(),
            );
            *self = Part::InArena(block);
            return;
        }
        match self {
            Part::InArena(block) => block.write(at, data),
            Part::Ordinary(all) => {
                let (over, behind) = data.split_at(data.len().min(all.len() - at));
                all[at..][..over.len()].copy_from_slice(over);
                all.extend_from_slice(behind);
            }
        }
    }

    /// The data, to be shared.
    fn into_bytes(self) -> Bytes {
        match self {
            Part::Ordinary(data) => data.into(),
            Part::InArena(block) => Bytes::from_owner(block),
        }
    }
}

/// Written parts by offset. They do not overlap, and none crosses a multiple of [`PART_MAX`]: each is one write. Parts that are
/// being sent are [`Bytes`], which their requests share.
#[derive(Debug, Default)]
pub(super) struct Pieces<D = Part> {
    by_offset: BTreeMap<u64, D>,
    bytes: usize,
}

impl<D: AsRef<[u8]>> Pieces<D> {
    pub fn is_empty(&self) -> bool {
        self.by_offset.is_empty()
    }

    /// Memory of all parts, about, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes + PART_OVERHEAD * self.by_offset.len()
    }

    /// End of the last part.
    pub fn end(&self) -> u64 {
        let last = self.by_offset.last_key_value();
        last.map_or(0, |(offset, data)| offset + data.as_ref().len() as u64)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &D)> {
        let parts = self.by_offset.iter();
        parts.map(|(offset, data)| (*offset, data))
    }

    /// Whether there is data in a range.
    pub fn touches(&self, start: u64, end: u64) -> bool {
        let last = self.by_offset.range(..end).next_back();
        let reaches = |(offset, data): (&u64, &D)| offset + data.as_ref().len() as u64 > start;
        start < end && last.is_some_and(reaches)
    }
}

impl Pieces {
    /// Takes the first parts, until they have so many bytes, or are many. Their data is not copied.
    pub fn take(&mut self, most: usize) -> Pieces<Bytes> {
        let mut taken = Pieces::default();
        while taken.bytes() < most && taken.by_offset.len() < TAKEN_MAX {
            let Some((offset, data)) = self.by_offset.pop_first() else {
                break;
            };
            self.bytes -= data.length();
            taken.bytes += data.length();
            taken.by_offset.insert(offset, data.into_bytes());
        }
        taken
    }

    /// Writes data over what is there. Long parts are in the arena, if it is not full.
    pub fn put(&mut self, arena: Option<&Arena>, mut offset: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let room = PART_MAX as u64 - offset % PART_MAX as u64;
            let (part, rest) = data.split_at(data.len().min(room as usize));
            self.put_part(arena, offset, part);
            (offset, data) = (offset + part.len() as u64, rest);
        }
    }

    /// The same, within a multiple of [`PART_MAX`]. The part joins the ones that it touches.
    fn put_part(&mut self, arena: Option<&Arena>, offset: u64, data: &[u8]) {
        let group = offset - offset % PART_MAX as u64;
        let before = self.by_offset.range(group..=offset).next_back();
        let before = before.filter(|(start, it)| *start + it.length() as u64 >= offset);
        let start = before.map_or(offset, |(start, _)| *start);
        let mut joined = self.by_offset.remove(&start).unwrap_or_default();
        self.bytes -= joined.length();
        joined.write(arena, (offset - start) as usize, data);
        while let Some((next, end)) = self.next_touched(group, start, joined.length()) {
            let behind = self.by_offset.remove(&next).unwrap_or_default();
            self.bytes -= behind.length();
            let more = behind.as_ref().get((end - next) as usize..);
            joined.write(arena, joined.length(), more.unwrap_or_default());
        }
        self.bytes += joined.length();
        self.by_offset.insert(start, joined);
    }

    /// The next part of a group that one of this start and length overlaps or touches, and the end of that one.
    fn next_touched(&self, group: u64, start: u64, length: usize) -> Option<(u64, u64)> {
        let end = start + length as u64;
        let last = end.min(group + PART_MAX as u64 - 1);
        let next = self.by_offset.range(start..=last).next();
        next.map(|(offset, _)| (*offset, end))
    }

    /// The data of a range, if one part has all of it.
    pub fn get(&self, offset: u64, length: usize) -> Option<Vec<u8>> {
        let (start, data) = self.by_offset.range(..=offset).next_back()?;
        let at = usize::try_from(offset - start).ok()?;
        let found = data.as_ref().get(at..at.checked_add(length)?)?;
        Some(found.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_join_and_newer_data_wins() {
        let mut pieces = Pieces::default();
        for (offset, data) in [
            (10, "aaaa"),
            (20, "bbbb"),
            (13, "cccccccc"),
            (30, "d"),
            (9, "e"),
        ] {
            pieces.put(None, offset, data.as_bytes());
        }
        let parts: Vec<(u64, &[u8])> = pieces.iter().map(|(at, it)| (at, it.as_ref())).collect();
        assert_eq!(parts, [(9, &b"eaaaccccccccbbb"[..]), (30, &b"d"[..])]);
        assert_eq!((pieces.bytes, pieces.end()), (16, 31));
        pieces.put(None, 10, b"xx");
        assert_eq!(pieces.get(9, 4).as_deref(), Some(&b"exxa"[..]));
        assert_eq!((pieces.get(9, 16), pieces.get(8, 1)), (None, None));
        assert!(pieces.touches(23, 24) && !pieces.touches(24, 30) && !pieces.touches(0, 9));
    }

    #[test]
    fn random_writes_are_like_those_to_an_array() {
        let most = PART_MAX as u64;
        let mut model = vec![None; 64];
        let (mut pieces, mut state) = (Pieces::default(), 7_u64);
        for value in 0..5000_u32 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let (at, length) = ((state >> 33) as usize % 56, (state >> 50) as usize % 8 + 1);
            let data = vec![value as u8; length];
            // A multiple of the longest write is in the middle.
            pieces.put(None, most - 32 + at as u64, &data);
            model[at..at + length].fill(Some(value as u8));
            let mut found = vec![None; 64];
            for (offset, data) in pieces.iter() {
                let at = (offset + 32 - most) as usize;
                for (byte, place) in data.as_ref().iter().zip(&mut found[at..]) {
                    assert!(place.replace(*byte).is_none(), "parts overlap");
                }
            }
            assert_eq!(found, model);
            assert_eq!(pieces.bytes, model.iter().flatten().count());
            if value % 64 == 0 {
                (pieces, model) = (Pieces::default(), vec![None; 64]);
            }
        }
    }
    #[test]
    fn long_parts_move_into_the_arena_while_it_has_blocks() {
        let arena = Arena::new(PART_MAX, 2).expect("there is memory");
        let mut model = vec![0; 4 * PART_MAX];
        let mut pieces = Pieces::default();
        let mut write = |pieces: &mut Pieces, at: usize, length: usize, byte: u8| {
            model[at..][..length].fill(byte);
            pieces.put(Some(&arena), at as u64, &vec![byte; length]);
        };
        // It grows, is joined with a part behind it, and is written over.
        write(&mut pieces, 0, 20_000, 1);
        write(&mut pieces, 40_000, 20_000, 2);
        assert_eq!(arena.free_blocks(), 2);
        write(&mut pieces, 20_000, 20_000, 3);
        write(&mut pieces, 10, 5, 4);
        assert_eq!(arena.free_blocks(), 1);
        // An earlier part becomes long, in the middle.
        write(&mut pieces, PART_MAX, IN_ARENA_MIN - 1, 5);
        write(&mut pieces, PART_MAX + 7, IN_ARENA_MIN - 7, 6);
        assert_eq!(arena.free_blocks(), 0);
        write(&mut pieces, 2 * PART_MAX, PART_MAX, 7);
        let expected = [
            (0, 60_000),
            (PART_MAX, IN_ARENA_MIN),
            (2 * PART_MAX, PART_MAX),
        ];
        let taken = pieces.take(usize::MAX);
        let found: Vec<(usize, usize)> = taken
            .iter()
            .map(|(at, it)| (at as usize, it.len()))
            .collect();
        assert_eq!(found, expected);
        for (at, data) in taken.iter() {
            assert!(data[..] == model[at as usize..][..data.len()], "{at}");
            assert_eq!(arena.offset_of(data).is_none(), at == 2 * PART_MAX as u64);
        }
        // A request keeps its block.
        let kept = taken.iter().next().map(|(_, data)| data.slice(1..9));
        drop(taken);
        assert_eq!(arena.free_blocks(), 1);
        drop(kept);
        assert_eq!(arena.free_blocks(), 2);
    }
}
