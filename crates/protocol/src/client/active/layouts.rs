//! Layouts that a client keeps: of each file as many parts as were read, so that random reads of a large file hit.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::wire::FileId;
use crate::wire::active::{LAYOUT_MAX, Layout};

/// Parts that are kept, of all files: those of 4 GiB. With their checksums they take up to 6 MiB.
const PARTS_MAX: usize = 4096;

/// For so long a read of an unchanged file is not reported to the primary again: the primary records it once a day at
/// most.
const NOTED_NS: u64 = 3_600_000_000_000;

/// That the primary has noted a read of a file.
struct Noted {
    at: u64,
    /// The file's version after that, once a layout contains it.
    version: Option<u64>,
}

/// Layouts of parts of files, each `LAYOUT_MAX` bytes long.
#[derive(Default)]
pub(in crate::client) struct Layouts {
    parts: BTreeMap<(FileId, u64), Layout>,
    noted: BTreeMap<FileId, Noted>,
}

/// The start of the part of a file that this offset is in.
fn part_of(offset: u64) -> u64 {
    offset / LAYOUT_MAX * LAYOUT_MAX
}

impl Layouts {
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn get(&self, file: FileId, start: u64) -> Option<&Layout> {
        self.parts.get(&(file, start))
    }

    /// The layout of a range that is no longer than a part, and so in two of them at most.
    ///
    /// # Errors
    /// The start of a part with an unknown layout.
    pub fn find(&self, file: FileId, range: Range<u64>) -> Result<Layout, u64> {
        let (first, last) = (part_of(range.start), part_of(range.end.saturating_sub(1)));
        let mut layout = self.get(file, first).ok_or(first)?.clone();
        if last > first {
            let next = self.get(file, last).ok_or(last)?;
            layout.extents.extend(next.extents.iter().cloned());
        }
        Ok(layout)
    }

    /// Inserts a layout into the cache.
    /// If there are too many, those of files with identities far from this one's are dropped first:
    /// half of them, so that it happens rarely.
    pub fn insert(&mut self, file: FileId, start: u64, layout: Layout) {
        // All parts of one file show one version: another one is of no use.
        let version = layout.version;
        if self
            .first(file)
            .is_some_and(|first| first.version != version)
        {
            self.forget(file);
        }
        if self.parts.len() >= PARTS_MAX {
            let mut others = 0;
            self.parts.retain(|(of, _), _| {
                others += usize::from(*of != file);
                *of == file || others % 2 == 0
            });
        }
        if self.parts.len() >= PARTS_MAX {
            let mut count = 0;
            self.parts.retain(|_, _| {
                count += 1;
                count % 2 == 0
            });
        }
        if let Some(noted) = self.noted.get_mut(&file) {
            noted.version.get_or_insert(version);
        }
        self.parts.insert((file, start), layout);
    }

    /// The primary has answered a read that it was to note.
    pub fn note(&mut self, file: FileId, now: u64) {
        if self.noted.len() >= PARTS_MAX {
            self.noted.clear();
        }
        let version = self.first(file).map(|layout| layout.version);
        self.noted.insert(file, Noted { at: now, version });
    }

    /// Whether a read of the file need not be noted: it was, and the file has not changed since.
    pub fn is_noted(&self, file: FileId, now: u64) -> bool {
        let known = self.first(file).map(|layout| layout.version);
        self.noted.get(&file).is_some_and(|noted| {
            let is_same = noted.version.is_none() || noted.version == known;
            is_same && now < noted.at.saturating_add(NOTED_NS)
        })
    }

    fn first(&self, file: FileId) -> Option<&Layout> {
        let mut parts = self.parts.range((file, 0)..=(file, u64::MAX));
        parts.next().map(|(_, layout)| layout)
    }

    /// The file has changed.
    pub fn forget(&mut self, file: FileId) {
        if self.first(file).is_some() {
            self.parts.retain(|(of, _), _| *of != file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::active::Extent;

    fn file(inode: u64) -> FileId {
        FileId {
            inode,
            ..FileId::default()
        }
    }

    fn layout(version: u64) -> Layout {
        Layout {
            version,
            ..Layout::default()
        }
    }

    #[test]
    fn parts_of_a_file_are_kept_until_it_changes() {
        let mut layouts = Layouts::default();
        for part in 0..2048 {
            layouts.insert(file(1), part * LAYOUT_MAX, layout(5));
        }
        assert!(
            layouts
                .get(file(1), part_of(2048 * LAYOUT_MAX - 1))
                .is_some()
        );
        layouts.insert(file(1), 0, layout(6));
        assert!(layouts.get(file(1), LAYOUT_MAX).is_none(), "it is older");
        layouts.insert(file(2), 0, layout(7));
        layouts.forget(file(1));
        assert!(layouts.get(file(1), 0).is_none() && layouts.get(file(2), 0).is_some());
        layouts.forget(file(2));
        assert!(layouts.is_empty());
    }

    #[test]
    fn a_range_in_two_parts_has_the_extents_of_both() {
        let part = |start| Layout {
            extents: vec![Extent {
                offset: start,
                blocks: 1,
                ..Extent::default()
            }],
            ..layout(5)
        };
        let mut layouts = Layouts::default();
        let range = LAYOUT_MAX - 10..2 * LAYOUT_MAX - 10;
        assert_eq!(layouts.find(file(1), range.clone()), Err(0));
        layouts.insert(file(1), 0, part(0));
        assert_eq!(layouts.find(file(1), range.clone()), Err(LAYOUT_MAX));
        layouts.insert(file(1), LAYOUT_MAX, part(LAYOUT_MAX));
        assert_eq!(layouts.find(file(1), range).unwrap().extents.len(), 2);
        let one = layouts.find(file(1), LAYOUT_MAX..2 * LAYOUT_MAX);
        assert_eq!(one, Ok(part(LAYOUT_MAX)));
    }

    #[test]
    fn a_read_is_noted_again_when_the_file_has_changed_or_after_a_while() {
        let mut layouts = Layouts::default();
        assert!(!layouts.is_noted(file(1), 5));
        layouts.note(file(1), 5);
        assert!(layouts.is_noted(file(1), 5));
        layouts.insert(file(1), 0, layout(7));
        assert!(layouts.is_noted(file(1), 6) && !layouts.is_noted(file(1), 5 + NOTED_NS));
        layouts.forget(file(1));
        assert!(!layouts.is_noted(file(1), 6), "it may have changed");
        layouts.note(file(1), 7);
        layouts.insert(file(1), 0, layout(8));
        assert!(layouts.is_noted(file(1), 8));
    }

    #[test]
    fn the_number_of_parts_is_bounded() {
        let mut layouts = Layouts::default();
        for number in 0..10 * PARTS_MAX as u64 {
            layouts.insert(file(number % 3), number * LAYOUT_MAX, layout(1));
            assert!(layouts.parts.len() <= PARTS_MAX);
            assert!(layouts.get(file(number % 3), number * LAYOUT_MAX).is_some());
        }
    }
}
