//! [`Lines`]: words of a mapped region, with the checks done once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::LINE;
use crate::mapping::Mapping;
use crate::persist;

/// Words in a line.
const WORDS: usize = LINE / 8;

/// Whole lines of a region, for those who load and store single words so often that looking up where the region is
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

    /// How many there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// `count` words of a line from one on.
    #[inline]
    fn words<'a>(
        &'a self,
        line: usize,
        word: usize,
        count: usize,
    ) -> impl Fn(usize) -> &'a AtomicU64 {
        assert!(
            line < self.count && word <= WORDS && count <= WORDS - word,
            "words of a line that is not there"
        );
        let start = self.first.wrapping_add(line * LINE + word * 8);
        move |index| {
            debug_assert!(index < count);
            // SAFETY: the range was checked: when this was made, and just now. Mappings do not become shorter. As in
            // `Mapping::word`, the reference lives for one operation and is to an atomic.
            unsafe { AtomicU64::from_ptr(start.wrapping_add(index * 8).cast()) }
        }
    }

    /// A word; nothing after it is read earlier (acquire).
    #[inline]
    pub fn load(&self, line: usize, word: usize) -> u64 {
        self.words(line, word, 1)(0).load(Ordering::Acquire)
    }

    /// Stores a word; nothing before it is seen later (release).
    #[inline]
    pub fn store(&self, line: usize, word: usize, value: u64) {
        self.words(line, word, 1)(0).store(value, Ordering::Release);
    }

    /// Hints that a line will be stored to soon.
    #[inline]
    pub fn prefetch_to_store(&self, line: usize) {
        let words = self.words(line, 0, 1);
        persist::prefetch_to_store(words(0).as_ptr().cast());
    }

    /// Stores bytes from a word on, in whole words: the last one is filled up with zeros.
    #[inline]
    pub fn write(&self, line: usize, word: usize, bytes: &[u8]) {
        let words = self.words(line, word, bytes.len().div_ceil(8));
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

    /// Copies words of another line.
    #[inline]
    pub fn copy_from(
        &self,
        (line, word): (usize, usize),
        from: &Lines,
        (from_line, from_word): (usize, usize),
        count: usize,
    ) {
        let to = self.words(line, word, count);
        let from = from.words(from_line, from_word, count);
        for index in 0..count {
            to(index).store(from(index).load(Ordering::Relaxed), Ordering::Relaxed);
        }
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
        lines.prefetch_to_store(1);
        for length in 0..=48 {
            region.write(128, &[0xff; 64]);
            let bytes: Vec<u8> = (1..=length).collect();
            lines.write(0, 2, &bytes);
            let mut expected = [0xff; 64];
            expected[16..16 + bytes.len().next_multiple_of(8)].fill(0);
            expected[16..16 + bytes.len()].copy_from_slice(&bytes);
            let mut line = [0; 64];
            region.read(128, &mut line);
            assert_eq!(line, expected);
            lines.copy_from((1, 0), &lines, (0, 2), 6);
            region.read(192, &mut line[16..]);
            assert_eq!(line, expected);
        }
        type Operation = fn(&super::Lines);
        let outside: [Operation; 6] = [
            |lines| lines.prefetch_to_store(2),
            |lines| lines.store(2, 0, 1),
            |lines| {
                lines.load(0, 8);
            },
            |lines| {
                lines.load(usize::MAX, usize::MAX);
            },
            |lines| lines.write(1, 7, &[0; 9]),
            |lines| lines.copy_from((0, 0), lines, (1, 4), 5),
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
