//! A list that gets longer while others read it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Items that stay where they are. The items of a newly opened pool are found at once; those added by growing, part by
/// part.
pub struct Growing<T> {
    first: Part<T>,
    length: AtomicUsize,
}

struct Part<T> {
    items: Box<[T]>,
    next: OnceLock<Box<Part<T>>>,
}

impl<T> Part<T> {
    fn new(items: Vec<T>) -> Part<T> {
        Part {
            items: items.into(),
            next: OnceLock::new(),
        }
    }
}

impl<T> Growing<T> {
    pub fn new(items: Vec<T>) -> Growing<T> {
        Growing {
            length: AtomicUsize::new(items.len()),
            first: Part::new(items),
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    /// The item at `index`, which must be there.
    #[inline]
    pub fn at(&self, index: usize) -> &T {
        match self.first.items.get(index) {
            Some(item) => item,
            None => self.at_later(index),
        }
    }

    #[inline(never)]
    fn at_later(&self, mut index: usize) -> &T {
        let mut part = &self.first;
        while index >= part.items.len() {
            index -= part.items.len();
            part = part.next.get().expect("the index is in the list");
        }
        &part.items[index]
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len()).map(|index| self.at(index))
    }

    /// Appends items to the list.
    /// One thread does that at a time.
    pub fn extend(&self, items: Vec<T>) {
        let (count, mut part) = (items.len(), &self.first);
        while let Some(next) = part.next.get() {
            part = next;
        }
        let is_new = part.next.set(Box::new(Part::new(items))).is_ok();
        assert!(is_new, "one thread appends");
        self.length.fetch_add(count, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_stay_where_they_are() {
        let list = Growing::new(vec![0, 1, 2]);
        let first: *const i32 = list.at(1);
        for more in [vec![3], vec![], vec![4, 5, 6]] {
            list.extend(more);
        }
        assert!(list.iter().copied().eq(0..7));
        assert!(std::ptr::eq(first, list.at(1)));
        assert_eq!((list.len(), *list.at(6)), (7, 6));
    }
}
