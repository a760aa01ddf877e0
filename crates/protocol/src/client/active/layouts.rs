//! Layouts that a client keeps: of each file as many parts as were read, so that random reads of a large file hit.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::wire::FileId;
use crate::wire::active::{BLOCK, LAYOUT_MAX, Layout};

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

/// When the primary last answered with a layout of a file, and the term of the lease under which it did.
#[derive(Default)]
struct Answered {
    at: u64,
    term: Option<u64>,
}

/// Layouts of parts of files, each `LAYOUT_MAX` bytes long.
#[derive(Default)]
pub(in crate::client) struct Layouts {
    parts: BTreeMap<(FileId, u64), Layout>,
    /// Of the files with parts.
    answered: BTreeMap<FileId, Answered>,
    noted: BTreeMap<FileId, Noted>,
}

/// The start of the part of a file that this offset is in.
fn part_of(offset: u64) -> u64 {
    offset / LAYOUT_MAX * LAYOUT_MAX
}

/// Whether extents that came from a peer are whole blocks of the part that begins there, in order, and none overlaps another.
pub(super) fn is_in_part(layout: &Layout, start: u64) -> bool {
    let mut free = start;
    layout.extents.iter().all(|extent| {
        let end = extent.offset.checked_add(extent.length());
        let is_in_order = extent.offset.is_multiple_of(BLOCK) && extent.offset >= free;
        free = end.unwrap_or(u64::MAX);
        let is_in_image = extent.image_offset.checked_add(extent.length()).is_some();
        is_in_order && is_in_image && end.is_some_and(|end| end <= start.saturating_add(LAYOUT_MAX))
    })
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
        let (first, next) = self.parts(file, &range)?;
        let mut layout = first.clone();
        layout
            .extents
            .extend(next.iter().flat_map(|next| next.extents.iter().cloned()));
        Ok(layout)
    }

    /// The part of the file in which such a range begins, and the one in which it ends if that is another one.
    ///
    /// # Errors
    /// The start of a part with an unknown layout.
    pub fn parts(
        &self,
        file: FileId,
        range: &Range<u64>,
    ) -> Result<(&Layout, Option<&Layout>), u64> {
        let (first, last) = (part_of(range.start), part_of(range.end.saturating_sub(1)));
        let layout = self.get(file, first).ok_or(first)?;
        let next = match last > first {
            true => Some(self.get(file, last).ok_or(last)?),
            false => None,
        };
        Ok((layout, next))
    }

    /// Inserts a layout into the cache, with the term of the lease under which it came.
    /// If there are too many, those of files with identities far from this one's are dropped first:
    /// half of them, so that it happens rarely.
    pub fn insert(
        &mut self,
        now: u64,
        (file, start): (FileId, u64),
        layout: Layout,
        term: Option<u64>,
    ) {
        // All parts of one file show one version: another one is of no use.
        let version = layout.version;
        let known = self.first(file).map(|first| first.version);
        if known.is_some_and(|known| known != version) {
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
        // All parts show this version, so the lease is good for all of them. If no part was left, the version of an earlier lease is
        // unknown.
        let answered = self.answered.entry(file).or_default();
        answered.at = now;
        answered.term = term.or(answered.term.filter(|_| known.is_some()));
        if self.answered.len() > self.parts.len() {
            let parts = &self.parts;
            let has_parts = |file: &FileId| parts.range((*file, 0)..=(*file, u64::MAX)).next();
            self.answered.retain(|file, _| has_parts(file).is_some());
        }
    }

    /// The term of the lease under which layouts of the file with this version came.
    pub fn term(&self, file: FileId, version: u64) -> Option<u64> {
        let first = self.first(file);
        let answered = self.answered.get(&file);
        answered
            .filter(|_| first.is_some_and(|it| it.version == version))?
            .term
    }

    /// Whether the primary has answered with no layout of the file since this time.
    pub fn is_older(&self, file: FileId, since: u64) -> bool {
        self.answered.get(&file).is_none_or(|it| it.at < since)
    }

    /// A change that concerns these files has ended: their layouts came under leases that do not tell of it.
    pub fn forget_leases(&mut self, concerns: impl Fn(&FileId) -> bool) {
        let concerned = self.answered.iter_mut().filter(|(file, _)| concerns(file));
        concerned.for_each(|(_, it)| it.term = None);
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
            self.answered.remove(&file);
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
            layouts.insert(0, (file(1), part * LAYOUT_MAX), layout(5), None);
        }
        assert!(
            layouts
                .get(file(1), part_of(2048 * LAYOUT_MAX - 1))
                .is_some()
        );
        layouts.insert(0, (file(1), 0), layout(6), None);
        assert!(layouts.get(file(1), LAYOUT_MAX).is_none(), "it is older");
        layouts.insert(0, (file(2), 0), layout(7), None);
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
        layouts.insert(0, (file(1), 0), part(0), None);
        assert_eq!(layouts.find(file(1), range.clone()), Err(LAYOUT_MAX));
        layouts.insert(0, (file(1), LAYOUT_MAX), part(LAYOUT_MAX), None);
        assert_eq!(layouts.find(file(1), range).unwrap().extents.len(), 2);
        let one = layouts.find(file(1), LAYOUT_MAX..2 * LAYOUT_MAX);
        assert_eq!(one, Ok(part(LAYOUT_MAX)));
    }

    #[test]
    fn a_layout_with_extents_that_overlap_or_reach_into_another_part_is_refused() {
        let block = LAYOUT_MAX / BLOCK;
        let with = |extents: &[(u64, u64)]| Layout {
            extents: extents
                .iter()
                .map(|(offset, blocks)| Extent {
                    offset: *offset,
                    blocks: *blocks as u32,
                    ..Extent::default()
                })
                .collect(),
            ..layout(5)
        };
        let is_good = |extents: &[(u64, u64)]| is_in_part(&with(extents), LAYOUT_MAX);
        assert!(is_good(&[]) && is_good(&[(LAYOUT_MAX, block)]));
        assert!(is_good(&[(LAYOUT_MAX, 1), (LAYOUT_MAX + BLOCK, block - 1)]));
        for bad in [
            &[(LAYOUT_MAX, block + 1)][..],
            &[(LAYOUT_MAX - BLOCK, 1)],
            &[(LAYOUT_MAX + 1, 1)],
            &[(LAYOUT_MAX, 2), (LAYOUT_MAX + BLOCK, 1)],
            &[(u64::MAX / BLOCK * BLOCK, 1)],
        ] {
            assert!(!is_good(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_read_is_noted_again_when_the_file_has_changed_or_after_a_while() {
        let mut layouts = Layouts::default();
        assert!(!layouts.is_noted(file(1), 5));
        layouts.note(file(1), 5);
        assert!(layouts.is_noted(file(1), 5));
        layouts.insert(0, (file(1), 0), layout(7), None);
        assert!(layouts.is_noted(file(1), 6) && !layouts.is_noted(file(1), 5 + NOTED_NS));
        layouts.forget(file(1));
        assert!(!layouts.is_noted(file(1), 6), "it may have changed");
        layouts.note(file(1), 7);
        layouts.insert(0, (file(1), 0), layout(8), None);
        assert!(layouts.is_noted(file(1), 8));
    }

    #[test]
    fn a_lease_is_not_good_for_a_layout_that_came_after_all_parts_were_dropped() {
        let mut layouts = Layouts::default();
        layouts.insert(0, (file(1), 0), layout(5), Some(9));
        layouts.insert(0, (file(1), LAYOUT_MAX), layout(5), None);
        assert_eq!(layouts.term(file(1), 5), Some(9));
        for part in 0.. {
            layouts.insert(0, (file(2), part * LAYOUT_MAX), layout(1), None);
            if layouts.first(file(1)).is_none() {
                break;
            }
        }
        layouts.insert(0, (file(1), 0), layout(4), None);
        assert_eq!(layouts.term(file(1), 4), None);
    }

    #[test]
    fn the_number_of_parts_is_bounded() {
        let mut layouts = Layouts::default();
        for number in 0..10 * PARTS_MAX as u64 {
            layouts.insert(0, (file(number % 3), number * LAYOUT_MAX), layout(1), None);
            assert!(layouts.parts.len() <= PARTS_MAX);
            assert!(layouts.get(file(number % 3), number * LAYOUT_MAX).is_some());
        }
    }
}
