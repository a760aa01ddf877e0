//! Parts of a file that were written.

use std::collections::BTreeMap;

use operations::Bytes;

/// Longest part, in bytes. Every pool takes so much as one change.
pub(super) const PART_MAX: usize = 64 << 10;

/// Memory of a part besides its data, in bytes.
const PART_OVERHEAD: usize = 128;
/// Parts that are taken at a time, at most.
const TAKEN_MAX: usize = 256;

/// Written parts by offset. They do not overlap, and none crosses a multiple of [`PART_MAX`]: each is one write. Parts that are
/// being sent are [`Bytes`], which their requests share.
#[derive(Debug, Default)]
pub(super) struct Pieces<D = Vec<u8>> {
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
            self.bytes -= data.len();
            taken.bytes += data.len();
            taken.by_offset.insert(offset, data.into());
        }
        taken
    }

    /// Writes data over what is there.
    pub fn put(&mut self, mut offset: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let room = PART_MAX as u64 - offset % PART_MAX as u64;
            let (part, rest) = data.split_at(data.len().min(room as usize));
            self.put_part(offset, part);
            (offset, data) = (offset + part.len() as u64, rest);
        }
    }

    /// The same, within a multiple of [`PART_MAX`]. The part joins the ones that it touches.
    fn put_part(&mut self, offset: u64, data: &[u8]) {
        let group = offset - offset % PART_MAX as u64;
        let before = self.by_offset.range(group..=offset).next_back();
        let before = before.filter(|(start, it)| *start + it.len() as u64 >= offset);
        let start = before.map_or(offset, |(start, _)| *start);
        let mut joined = self.by_offset.remove(&start).unwrap_or_default();
        self.bytes -= joined.len();
        let at = (offset - start) as usize;
        if joined.len() < at + data.len() {
            joined.resize(at + data.len(), 0);
        }
        joined[at..][..data.len()].copy_from_slice(data);
        while let Some((next, end)) = self.next_touched(group, start, joined.len()) {
            let behind = self.by_offset.remove(&next).unwrap_or_default();
            self.bytes -= behind.len();
            joined.extend(behind.get((end - next) as usize..).unwrap_or_default());
        }
        self.bytes += joined.len();
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
        let found = data.get(at..at.checked_add(length)?)?;
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
            pieces.put(offset, data.as_bytes());
        }
        let parts: Vec<(u64, &[u8])> = pieces.iter().map(|(at, it)| (at, &it[..])).collect();
        assert_eq!(parts, [(9, &b"eaaaccccccccbbb"[..]), (30, &b"d"[..])]);
        assert_eq!((pieces.bytes, pieces.end()), (16, 31));
        pieces.put(10, b"xx");
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
            pieces.put(most - 32 + at as u64, &data);
            model[at..at + length].fill(Some(value as u8));
            let mut found = vec![None; 64];
            for (offset, data) in pieces.iter() {
                let at = (offset + 32 - most) as usize;
                for (byte, place) in data.iter().zip(&mut found[at..]) {
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
}
