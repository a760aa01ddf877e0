//! Image bytes that a member fetches: in parts, several of them at a time.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Missing ranges, and those requested.
#[derive(Default)]
pub(super) struct Fetching {
    /// Not asked for yet.
    wanted: VecDeque<Range<u64>>,
    /// Asked for: start and end.
    under_way: BTreeMap<u64, u64>,
}

impl Fetching {
    pub fn of(ranges: Vec<Range<u64>>) -> Fetching {
        Fetching {
            wanted: ranges.into_iter().filter(|it| !it.is_empty()).collect(),
            under_way: BTreeMap::new(),
        }
    }

    /// Whether nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.wanted.is_empty() && self.under_way.is_empty()
    }

    pub fn kept(&self) -> usize {
        self.wanted.len() + self.under_way.len()
    }

    /// The next requests, in parts of at most `part` bytes, so that at most `most` parts are in flight.
    pub fn next(&mut self, part: u32, most: usize) -> Vec<(u64, u32)> {
        let mut parts = Vec::new();
        while self.under_way.len() < most
            && let Some(range) = self.wanted.front_mut()
        {
            let length = (range.end - range.start).min(part.into());
            self.under_way.insert(range.start, range.start + length);
            parts.push((range.start, length as u32));
            range.start += length;
            if range.is_empty() {
                self.wanted.pop_front();
            }
        }
        parts
    }

    /// Nothing arrived for long: requests in flight are to be repeated.
    pub fn give_up(&mut self) {
        while let Some((start, end)) = self.under_way.pop_last() {
            self.wanted.push_front(start..end);
        }
    }

    /// Notes a range of bytes that arrived.
    /// Returns whether they had been requested; of a partly answered part the rest is still missing.
    pub fn arrived(&mut self, range: &Range<u64>) -> bool {
        let asked = self.under_way.get(&range.start).copied();
        let Some(end) = asked.filter(|end| !range.is_empty() && range.end <= *end) else {
            return false;
        };
        self.under_way.remove(&range.start);
        if range.end < end {
            self.wanted.push_front(range.end..end);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_asked_for_until_all_came() {
        let mut fetching = Fetching::of(vec![0..100, 200..230]);
        assert_eq!(fetching.next(40, 3), [(0, 40), (40, 40), (80, 20)]);
        assert_eq!(fetching.next(40, 3), []);
        assert!(fetching.arrived(&(40..80)));
        assert!(!fetching.arrived(&(40..80)), "it came already");
        assert!(!fetching.arrived(&(0..50)), "less was requested");
        assert!(!fetching.arrived(&(80..80)), "nothing came");
        assert!(fetching.arrived(&(0..10)), "a part of it came");
        assert_eq!(fetching.next(40, 3), [(10, 30), (200, 30)]);
        fetching.give_up();
        assert_eq!(fetching.next(40, 9), [(10, 30), (80, 20), (200, 30)]);
        for range in [10..40, 80..100, 200..230] {
            assert!(!fetching.is_complete());
            assert!(fetching.arrived(&range));
        }
        assert!(fetching.is_complete());
    }
}
