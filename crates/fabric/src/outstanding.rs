//! The requests of one endpoint that have not ended (M6's list of work requests): add, find, complete, bounded.

use std::collections::VecDeque;

use crate::{Buffer, WrId};

/// One of them.
#[derive(Debug)]
pub struct Entry {
    /// The caller's number.
    pub id: WrId,
    /// Whether the caller is told of success.
    pub notify: bool,
    /// Given back when the entry goes.
    pub _keep: Option<Buffer>,
}

/// Requests end in the order in which they were posted, so each is known by how many were posted before it: its
/// *sequence*, which the transport carries.
#[derive(Debug)]
pub struct Outstanding {
    entries: VecDeque<Entry>,
    /// The sequence of the first entry.
    first: u64,
    bound: usize,
}

impl Outstanding {
    /// A list of `bound` requests at most.
    pub fn new(bound: usize) -> Outstanding {
        Outstanding {
            entries: VecDeque::with_capacity(bound),
            first: 0,
            bound,
        }
    }

    /// How many there are.
    #[inline]
    pub fn length(&self) -> usize {
        self.entries.len()
    }

    /// Whether another one has to wait (M5).
    #[inline]
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.bound
    }

    /// The sequence that the next one gets.
    #[inline]
    pub fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Adds one and returns its sequence.
    ///
    /// # Panics
    /// If the list is full.
    #[inline]
    pub fn add(&mut self, entry: Entry) -> u64 {
        assert!(!self.is_full(), "{} requests are outstanding", self.bound);
        self.entries.push_back(entry);
        self.next() - 1
    }

    /// The one with the caller's number.
    pub fn find(&self, id: WrId) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.id == id)
    }

    /// Takes the first one out if its sequence is not beyond `sequence`: call it until it gives nothing.
    #[inline]
    pub fn complete(&mut self, sequence: u64) -> Option<(u64, Entry)> {
        if self.first > sequence {
            return None;
        }
        let entry = self.entries.pop_front()?;
        self.first += 1;
        Some((self.first - 1, entry))
    }

    /// Whether a transport may speak of this one: it is outstanding.
    #[inline]
    pub fn has(&self, sequence: u64) -> bool {
        (self.first..self.next()).contains(&sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64) -> Entry {
        Entry {
            id: WrId(id),
            notify: true,
            _keep: None,
        }
    }

    #[test]
    fn requests_end_in_order_and_never_exceed_the_bound() {
        let mut list = Outstanding::new(3);
        for (sequence, id) in [70, 50, 60].into_iter().enumerate() {
            assert!(!list.is_full());
            assert_eq!(list.add(entry(id)), sequence as u64);
        }
        assert!(list.is_full());
        assert!(list.find(WrId(60)).is_some() && list.find(WrId(61)).is_none());
        assert_eq!(
            list.complete(1).map(|(at, entry)| (at, entry.id)),
            Some((0, WrId(70)))
        );
        assert_eq!(
            list.complete(1).map(|(at, entry)| (at, entry.id)),
            Some((1, WrId(50)))
        );
        assert!(list.complete(1).is_none());
        assert!(!list.has(1) && list.has(2) && !list.has(3));
        assert_eq!(list.add(entry(80)), 3);
        assert_eq!(list.length(), 2);
    }
}
