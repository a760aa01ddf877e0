//! [`Lines`]: words of a mapped region, with the checks done once.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::LINE;
use crate::mapping::Mapping;
use crate::persist;

/// Words in a line.
const WORDS: usize = LINE / 8;

/// Whole lines of a region, for callers that load and store single words so often that finding the region each time
/// would cost more. Every operation panics if the line or its words are not among them.
#[derive(Clone)]
pub struct Lines {
    first: *mut u8,
    count: usize,
    /// Keeps the pages mapped.
    _mapping: Arc<Mapping>,
}

// SAFETY: `first` points into pages that belong to the process, not to a thread, and stay mapped with `_mapping`.
unsafe impl Send for Lines {}
// SAFETY: as above; all access is by atomic words.
unsafe impl Sync for Lines {}

impl Lines {
    /// The range is checked here.
    pub(crate) fn new(mapping: &Arc<Mapping>, offset: u64, count: usize) -> Lines {
        assert!(
            offset.is_multiple_of(LINE as u64),
            "{offset} is not the offset of a line"
        );
        let bytes = count.saturating_mul(LINE);
        Lines {
            first: mapping.at(offset, bytes),
            count,
            _mapping: mapping.clone(),
        }
    }

    /// Number of lines.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// One of them.
    #[inline]
    pub fn line(&self, line: usize) -> Line<'_> {
        assert!(line < self.count, "a line that is not there");
        Line {
            start: self.first.wrapping_add(line * LINE),
            _lines: PhantomData,
        }
    }

    /// A word; nothing after it is read earlier (acquire).
    #[inline]
    pub fn load(&self, line: usize, word: usize) -> u64 {
        self.line(line).load(word)
    }

    /// Stores a word; nothing before it is seen later (release).
    #[inline]
    pub fn store(&self, line: usize, word: usize, value: u64) {
        self.line(line).store(word, value);
    }
}

/// One line of [`Lines`]: where it is has been checked, and words that are known when the program is made cost no check.
#[derive(Clone, Copy)]
pub struct Line<'a> {
    start: *mut u8,
    _lines: PhantomData<&'a Lines>,
}

impl<'a> Line<'a> {
    /// `count` words from one on.
    #[inline]
    fn words(self, word: usize, count: usize) -> impl Fn(usize) -> &'a AtomicU64 {
        assert!(
            word <= WORDS && count <= WORDS - word,
            "words of a line that are not there"
        );
        let start = self.start.wrapping_add(word * 8);
        move |index| {
            debug_assert!(index < count);
            // SAFETY: the range was checked: the line when it was asked for, its words just now. Mappings do not become
            // shorter, and the lines, which this is borrowed from, keep theirs. As in `Mapping::word`, the reference
            // lives for one operation and is to an atomic.
            unsafe { AtomicU64::from_ptr(start.wrapping_add(index * 8).cast()) }
        }
    }

    /// A word; nothing after it is read earlier (acquire).
    #[inline]
    pub fn load(self, word: usize) -> u64 {
        self.words(word, 1)(0).load(Ordering::Acquire)
    }

    /// Stores a word; nothing before it is seen later (release).
    #[inline]
    pub fn store(self, word: usize, value: u64) {
        self.words(word, 1)(0).store(value, Ordering::Release);
    }

    /// Hints that it will be stored to soon.
    #[inline]
    pub fn prefetch_to_store(self) {
        persist::prefetch_to_store(self.start);
    }

    /// Hints that it will be loaded from soon.
    #[inline]
    pub fn prefetch(self) {
        persist::prefetch(self.start);
    }

    /// Stores bytes from a word on, in whole words: the last one is filled up with zeros.
    #[inline]
    pub fn write(self, word: usize, bytes: &[u8]) {
        let words = self.words(word, bytes.len().div_ceil(8));
        let (whole, rest) = bytes.as_chunks::<8>();
        for (index, bytes) in whole.iter().enumerate() {
            words(index).store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            for (to, from) in last.iter_mut().zip(rest) {
                *to = *from;
            }
            words(whole.len()).store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
    }

    /// Copies another line, from its second word on, to the beginning of this one, in the widest pieces that every
    /// processor has: a reader that soon loads such pieces does not wait for narrower stores. The last word is
    /// unchanged.
    #[inline]
    pub fn copy_all_but_first(self, from: Line<'_>) {
        assert!(self.start != from.start, "a line is copied to itself");
        // SAFETY: both are whole lines that stay mapped, as in `words`, and not the same one, so that they do not meet. Others
        // may store to either meanwhile: of plain words every mixture is valid, as in `Mapping::read`.
        unsafe { persist::copy(self.start, from.start.add(8).cast_const(), LINE - 16) };
        self.store(WORDS - 2, from.load(WORDS - 1));
    }
}

#[cfg(test)]
mod tests {
    use crate::{Region, Simulation};

    #[test]
    fn words_go_where_they_should_and_no_further() {
        let region = Region::memory(4096, false).unwrap();
        let lines = region.lines(128, 2).unwrap();
        lines.store(1, 7, 9);
        assert_eq!((lines.load(1, 7), region.load(128 + 120)), (9, 9));
        lines.line(1).prefetch_to_store();
        lines.line(1).prefetch();
        for length in 0..=48 {
            region.write(128, &[0xff; 64]);
            let bytes: Vec<u8> = (1..=length).collect();
            lines.line(0).write(2, &bytes);
            let mut expected = [0xff; 64];
            expected[16..16 + bytes.len().next_multiple_of(8)].fill(0);
            expected[16..16 + bytes.len()].copy_from_slice(&bytes);
            let mut line = [0; 64];
            region.read(128, &mut line);
            assert_eq!(line, expected);
            lines.store(1, 7, 9);
            lines.line(1).copy_all_but_first(lines.line(0));
            let mut copy = [0; 64];
            region.read(192, &mut copy);
            assert_eq!((&copy[..56], lines.load(1, 7)), (&expected[8..], 9));
        }
        for word in 0..7 {
            lines.store(1, word + 1, word as u64 * 0x0101_0101_0101_0101);
        }
        lines.line(0).copy_all_but_first(lines.line(1));
        for word in 0..7 {
            assert_eq!(lines.load(0, word), word as u64 * 0x0101_0101_0101_0101);
            assert_eq!(lines.load(1, word + 1), word as u64 * 0x0101_0101_0101_0101);
        }
        lines.store(1, 7, 9);
        type Operation = fn(&super::Lines);
        let outside: [Operation; 6] = [
            |lines| lines.line(2).prefetch_to_store(),
            |lines| lines.store(2, 0, 1),
            |lines| {
                lines.load(0, 8);
            },
            |lines| {
                lines.load(usize::MAX, usize::MAX);
            },
            |lines| lines.line(1).write(7, &[0; 9]),
            |lines| lines.line(0).copy_all_but_first(lines.line(0)),
        ];
        for operation in outside {
            let act = std::panic::AssertUnwindSafe(|| operation(&lines));
            assert!(std::panic::catch_unwind(act).is_err());
        }
        let beyond = std::panic::AssertUnwindSafe(|| region.lines(4096 - 64, 2));
        assert!(std::panic::catch_unwind(beyond).is_err());
        assert!(Simulation::new(4096).region().lines(0, 1).is_none());
        drop(region);
        assert_eq!(lines.load(1, 7), 9, "it stays mapped");
    }
}
