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

    /// Returns the number of lines.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the line with this index.
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
    #[inline]
    fn word(self, word: usize) -> &'a AtomicU64 {
        assert!(word < WORDS, "a line has no word {word}");
        // SAFETY: the range was checked: the line when it was asked for, its word just now. The pages stay mapped as long as the
        // lines, which this is borrowed from. A pool becomes shorter only where nothing is accessed (`Region::shrink`); an
        // access there would be a SIGBUS. As in `Mapping::word`, the reference lives for one operation and is to an atomic.
        unsafe { AtomicU64::from_ptr(self.start.wrapping_add(word * 8).cast()) }
    }

    /// A word; nothing after it is read earlier (acquire).
    #[inline]
    pub fn load(self, word: usize) -> u64 {
        self.word(word).load(Ordering::Acquire)
    }

    /// Stores a word; nothing before it is seen later (release).
    #[inline]
    pub fn store(self, word: usize, value: u64) {
        self.word(word).store(value, Ordering::Release);
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
        type Access = fn(&super::Lines);
        let outside: [Access; 4] = [
            |lines| lines.line(2).prefetch_to_store(),
            |lines| lines.store(2, 0, 1),
            |lines| {
                lines.load(0, 8);
            },
            |lines| {
                lines.load(usize::MAX, usize::MAX);
            },
        ];
        for access in outside {
            let act = std::panic::AssertUnwindSafe(|| access(&lines));
            assert!(std::panic::catch_unwind(act).is_err());
        }
        let beyond = std::panic::AssertUnwindSafe(|| region.lines(4096 - 64, 2));
        assert!(std::panic::catch_unwind(beyond).is_err());
        assert!(Simulation::new(4096).region().lines(0, 1).is_none());
        drop(region);
        assert_eq!(lines.load(1, 7), 9, "it stays mapped");
    }
}
