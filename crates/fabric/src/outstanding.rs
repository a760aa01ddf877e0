//! The requests of one endpoint that have not ended (M6's list of work requests): add, find, complete, bounded.

use std::collections::VecDeque;

use crate::{Buffer, WrId};

/// Requests end in the order in which they were posted, so each is known by how many were posted before it: its
/// *sequence*, which the transport carries.
///
/// Of a request without a report, only its number is kept: it is added by a store, and any number of them end at once.
#[derive(Debug)]
pub struct Outstanding {
    /// The callers' numbers, by sequence: a power of two of places.
    ids: Box<[WrId]>,
    /// Requests with more state, oldest first.
    marked: VecDeque<Marked>,
    /// The sequence of the oldest one, and of the next one.
    first: u64,
    next: u64,
    bound: u64,
}

/// A request with a completion that must be handled.
#[derive(Debug)]
struct Marked {
    sequence: u64,
    /// Whether the caller receives a report of success.
    notify: bool,
    /// Released when this is dropped.
    keep: Option<Buffer>,
}

impl Outstanding {
    /// A list of `bound` requests at most.
    pub fn new(bound: usize) -> Outstanding {
        Outstanding {
            ids: vec![WrId(0); bound.next_power_of_two()].into_boxed_slice(),
            marked: VecDeque::new(),
            first: 0,
            next: 0,
            bound: bound as u64,
        }
    }

    /// Returns the number of outstanding requests.
    #[inline]
    pub fn length(&self) -> usize {
        (self.next - self.first) as usize
    }

    /// Whether another one has to wait (M5).
    #[inline]
    pub fn is_full(&self) -> bool {
        self.next - self.first >= self.bound
    }

    #[inline]
    fn place(&self, sequence: u64) -> usize {
        sequence as usize & (self.ids.len() - 1)
    }

    /// Adds one and returns its sequence.
    ///
    /// # Panics
    /// If the list is full.
    #[inline]
    pub fn add(&mut self, id: WrId, notify: bool, keep: Option<&Buffer>) -> u64 {
        assert!(!self.is_full(), "{} requests are outstanding", self.bound);
        let sequence = self.next;
        let place = self.place(sequence);
        self.ids[place] = id;
        self.next += 1;
        if notify || keep.is_some() {
            self.marked.push_back(Marked {
                sequence,
                notify,
                keep: keep.cloned(),
            });
        }
        sequence
    }

    /// Whether there is one with the caller's number.
    pub fn contains(&self, id: WrId) -> bool {
        let mut all = self.first..self.next;
        all.any(|sequence| self.ids[self.place(sequence)] == id)
    }

    /// All through this sequence have succeeded: returns the next one with a caller to be notified. Call it until it
    /// returns nothing; then all of them are removed.
    #[inline]
    pub fn complete(&mut self, through: u64) -> Option<(u64, WrId)> {
        while let Some(marked) = self
            .marked
            .pop_front_if(|marked| marked.sequence <= through)
        {
            if marked.notify {
                return Some((marked.sequence, self.ids[self.place(marked.sequence)]));
            }
        }
        self.first = self.first.max(self.next.min(through + 1));
        None
    }

    /// Takes the first one out, which has failed. Its buffer stays: see [`Outstanding::take_kept`].
    pub fn fail(&mut self) -> Option<WrId> {
        if self.first == self.next {
            return None;
        }
        let first = self.first;
        self.first += 1;
        Some(self.ids[self.place(first)])
    }

    /// The buffers of requests that have not succeeded, in the end: the transport may still access them.
    pub fn take_kept(&mut self) -> Vec<Buffer> {
        let marked = self.marked.drain(..);
        marked.filter_map(|marked| marked.keep).collect()
    }

    /// Whether a transport may speak of this one: it is outstanding.
    #[inline]
    pub fn has(&self, sequence: u64) -> bool {
        (self.first..self.next).contains(&sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_end_in_order_and_never_exceed_the_bound() {
        let mut list = Outstanding::new(3);
        for (sequence, id) in [70, 50, 60].into_iter().enumerate() {
            assert!(!list.is_full());
            assert_eq!(list.add(WrId(id), true, None), sequence as u64);
        }
        assert!(list.is_full());
        assert!(list.contains(WrId(60)) && !list.contains(WrId(61)));
        assert_eq!(list.complete(1), Some((0, WrId(70))));
        assert_eq!(list.complete(1), Some((1, WrId(50))));
        assert!(list.complete(1).is_none());
        assert!(!list.has(1) && list.has(2) && !list.has(3));
        assert!(!list.contains(WrId(70)));
        assert_eq!(list.add(WrId(80), true, None), 3);
        assert_eq!(list.length(), 2);
    }

    #[test]
    fn of_quiet_ones_only_failures_are_told() {
        let mut list = Outstanding::new(5);
        for round in 0..4 {
            let first = round * 5;
            for sequence in first..first + 5 {
                let loud = sequence % 5 == 2;
                assert_eq!(list.add(WrId(100 + sequence), loud, None), sequence);
            }
            assert!(list.is_full());
            assert_eq!(
                list.complete(first + 3),
                Some((first + 2, WrId(102 + first)))
            );
            assert_eq!((list.complete(first + 3), list.length()), (None, 1));
            // Again, and for requests that were never posted.
            assert_eq!((list.complete(first + 1), list.length()), (None, 1));
            assert_eq!((list.complete(u64::MAX - 1), list.length()), (None, 0));
        }
        for (id, loud) in [(7, false), (8, true), (9, false)] {
            list.add(WrId(id), loud, None);
        }
        let failed: Vec<WrId> = std::iter::from_fn(|| list.fail()).collect();
        assert_eq!(failed, [WrId(7), WrId(8), WrId(9)]);
        assert_eq!(list.length(), 0);
    }
}
