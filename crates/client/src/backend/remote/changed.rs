//! Directories that this session has changed: their attributes and names, as the answers to its own changes show them, under the
//! leases that come with the answers.
//!
//! The kernel drops what it knows of a directory whenever it changes a name in it, and asks for attributes and for the next name
//! again. Here both are known. Only what other sessions cannot have changed is kept: until the lease ends, or is recalled.

use std::collections::HashMap;
use std::time::Instant;

use operations::Attributes;
use parking_lot::Mutex;
use protocol::leases::Covers;

use crate::leases::Kept;

/// Names that are kept of a directory, at most.
const NAMES_MAX: usize = 4096;
/// Directories, at most.
const DIRECTORIES_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct Changed(Mutex<State>);

#[derive(Default)]
struct State {
    directories: HashMap<u64, Directory>,
    /// Recalls so far.
    recalls: u64,
}

#[derive(Default)]
struct Directory {
    /// Changes by this session that have begun and not ended.
    in_flight: u32,
    /// Something else happened meanwhile: their answers may be older.
    is_disturbed: bool,
    known: Option<Known>,
}

/// What is known of a directory.
struct Known {
    attributes: Attributes,
    until: Instant,
    /// Whether names are there.
    names: HashMap<Vec<u8>, bool>,
    /// Names that are not in `names` are missing.
    is_complete: bool,
}

/// A change of a name in a directory, which has begun.
pub(super) struct Begun {
    directory: u64,
    recalls: u64,
}

/// The result of a change, as its answer shows it.
pub(super) struct Shown<'a> {
    pub attributes: Attributes,
    pub until: Instant,
    /// The changed name, and whether it is there now.
    pub name: (&'a [u8], bool),
}

impl State {
    /// The part of a directory that is known now.
    fn known(&self, number: u64) -> Option<&Known> {
        let directory = self.directories.get(&number)?;
        let known = directory.known.as_ref()?;
        (directory.in_flight == 0 && Instant::now() < known.until).then_some(known)
    }

    /// Makes room for one more directory; whether there is some.
    fn make_room(&mut self) -> bool {
        if self.directories.len() < DIRECTORIES_MAX {
            return true;
        }
        let now = Instant::now();
        let is_used = |it: &Directory| {
            it.in_flight > 0 || it.known.as_ref().is_some_and(|known| now < known.until)
        };
        self.directories.retain(|_, it| is_used(it));
        self.directories.len() < DIRECTORIES_MAX
    }
}

impl Directory {
    fn forget(&mut self) {
        self.known = None;
        self.is_disturbed = self.in_flight > 0;
    }
}

impl Known {
    fn new(attributes: Attributes, until: Instant, is_complete: bool) -> Known {
        Known {
            attributes,
            until,
            names: HashMap::new(),
            is_complete,
        }
    }

    fn kept(&self) -> Kept {
        let covers = Covers {
            subject: true,
            ..Covers::default()
        };
        Kept {
            until: self.until,
            covers,
        }
    }

    fn note(&mut self, name: &[u8], is_there: bool) {
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
            self.is_complete = false;
        }
        self.names.insert(name.to_vec(), is_there);
    }
}

impl Changed {
    /// This session asks for a change of a name in a directory. [`Changed::end`] has to follow.
    pub(super) fn begin(&self, number: u64) -> Begun {
        let mut state = self.0.lock();
        let recalls = state.recalls;
        let directory = state.directories.entry(number).or_default();
        directory.is_disturbed |= directory.in_flight > 0;
        directory.in_flight += 1;
        Begun {
            directory: number,
            recalls,
        }
    }

    /// The change has ended. If its answer does not show the result, nothing is known of the directory any more.
    pub(super) fn end(&self, begun: &Begun, shown: Option<Shown<'_>>) {
        let mut state = self.0.lock();
        let has_room = state.make_room();
        let Some(directory) = state.directories.get_mut(&begun.directory) else {
            return;
        };
        directory.in_flight = directory.in_flight.saturating_sub(1);
        let now = Instant::now();
        // Between two leases others may have changed names.
        let known = directory.known.take().filter(|it| now < it.until);
        let counts = !directory.is_disturbed && has_room;
        directory.is_disturbed &= directory.in_flight > 0;
        if let Some(shown) = shown.filter(|it| counts && now < it.until) {
            let new = || Known::new(shown.attributes, shown.until, false);
            let mut known = known.unwrap_or_else(new);
            (known.attributes, known.until) = (shown.attributes, shown.until.max(known.until));
            known.note(shown.name.0, shown.name.1);
            directory.known = Some(known);
        } else if directory.in_flight == 0 {
            state.directories.remove(&begun.directory);
        }
    }

    /// The change has made a directory, which is empty.
    pub(super) fn made(&self, begun: &Begun, attributes: Attributes, until: Instant) {
        let mut state = self.0.lock();
        if begun.recalls == state.recalls && state.make_room() {
            let directory = Directory {
                known: Some(Known::new(attributes, until, true)),
                ..Directory::default()
            };
            state.directories.insert(attributes.number, directory);
        }
    }

    /// Attributes of a directory, if they are known, with the lease.
    pub(super) fn attributes(&self, number: u64) -> Option<(Attributes, Kept)> {
        let state = self.0.lock();
        let known = state.known(number)?;
        Some((known.attributes, known.kept()))
    }

    /// The lease under which a name is known to be missing.
    pub(super) fn is_missing(&self, number: u64, name: &[u8]) -> Option<Kept> {
        let state = self.0.lock();
        let known = state.known(number)?;
        let is_there = known.names.get(name).copied();
        (!is_there.unwrap_or(!known.is_complete)).then(|| known.kept())
    }

    /// The lease of an inode is recalled.
    pub(super) fn recalled(&self, number: u64) {
        self.0.lock().recalls += 1;
        self.forget(number);
    }

    /// This session is changing, or has changed, something of an inode apart from names in it.
    pub(super) fn forget(&self, number: u64) {
        if let Some(directory) = self.0.lock().directories.get_mut(&number) {
            directory.forget();
        }
    }

    /// This session is removing or moving, or has moved, a directory of an unknown number.
    pub(super) fn forget_all(&self) {
        for directory in self.0.lock().directories.values_mut() {
            directory.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use operations::{FileFlags, FileKind};

    use super::*;

    fn attributes(number: u64, version: u64) -> Attributes {
        Attributes {
            number,
            generation: 1,
            kind: FileKind::Directory,
            permissions: 0o755,
            links: 2,
            uid: 0,
            gid: 0,
            size: 0,
            blocks_512: 0,
            accessed_ns: 0,
            modified_ns: 0,
            changed_ns: 0,
            created_ns: 0,
            device: 0,
            flags: FileFlags::default(),
            version,
        }
    }

    fn shown(name: &[u8], is_there: bool, version: u64) -> Option<Shown<'_>> {
        Some(Shown {
            attributes: attributes(5, version),
            until: Instant::now() + Duration::from_secs(120),
            name: (name, is_there),
        })
    }

    fn version(changed: &Changed) -> Option<u64> {
        changed
            .attributes(5)
            .map(|(attributes, _)| attributes.version)
    }

    #[test]
    fn answers_to_changes_show_attributes_and_names() {
        let changed = Changed::default();
        let begun = changed.begin(5);
        assert_eq!(version(&changed), None);
        changed.end(&begun, shown(b"a", false, 7));
        assert_eq!(version(&changed), Some(7));
        assert!(changed.is_missing(5, b"a").is_some());
        assert!(changed.is_missing(5, b"b").is_none(), "nothing shows it");
        let begun = changed.begin(5);
        assert_eq!(version(&changed), None, "it is being changed");
        changed.end(&begun, shown(b"a", true, 8));
        assert!(changed.is_missing(5, b"a").is_none());
        assert_eq!(version(&changed), Some(8));
        changed.end(&changed.begin(5), None);
        assert_eq!(version(&changed), None);
    }

    #[test]
    fn a_new_directory_is_known_to_be_empty() {
        let changed = Changed::default();
        let begun = changed.begin(1);
        let until = Instant::now() + Duration::from_secs(120);
        changed.made(&begun, attributes(5, 3), until);
        assert!(changed.is_missing(5, b"a").is_some());
        changed.end(&changed.begin(5), shown(b"a", true, 4));
        assert!(changed.is_missing(5, b"a").is_none() && changed.is_missing(5, b"b").is_some());
        for name in 0..NAMES_MAX as u64 {
            let name = name.to_le_bytes();
            changed.end(&changed.begin(5), shown(&name, true, 4));
        }
        assert!(changed.is_missing(5, b"b").is_none(), "too many are there");
        // Others may have found it, and made a name.
        changed.recalled(5);
        changed.made(&begun, attributes(5, 3), until);
        assert!(changed.is_missing(5, b"b").is_none());
    }

    #[test]
    fn nothing_is_known_after_a_recall() {
        let changed = Changed::default();
        changed.end(&changed.begin(5), shown(b"a", false, 7));
        changed.recalled(5);
        assert_eq!(version(&changed), None);
        assert!(changed.is_missing(5, b"a").is_none());
        // The answer is older than the recall that overtakes it.
        let begun = changed.begin(5);
        changed.recalled(5);
        changed.end(&begun, shown(b"a", false, 8));
        assert_eq!(version(&changed), None);
        changed.end(&changed.begin(5), shown(b"a", false, 9));
        assert_eq!(version(&changed), Some(9));
        changed.forget_all();
        assert_eq!(version(&changed), None);
    }

    #[test]
    fn answers_to_changes_at_the_same_time_show_nothing() {
        let changed = Changed::default();
        let (one, other) = (changed.begin(5), changed.begin(5));
        changed.end(&other, shown(b"a", true, 9));
        changed.end(&one, shown(b"a", false, 8));
        assert_eq!(version(&changed), None);
        changed.end(&changed.begin(5), shown(b"a", true, 10));
        assert_eq!(version(&changed), Some(10));
    }

    #[test]
    fn knowledge_ends_with_the_lease() {
        let changed = Changed::default();
        let ends = shown(b"a", false, 7).map(|it| Shown {
            until: Instant::now(),
            ..it
        });
        changed.end(&changed.begin(5), ends);
        assert_eq!(version(&changed), None);
        assert!(changed.is_missing(5, b"a").is_none());
    }
}
