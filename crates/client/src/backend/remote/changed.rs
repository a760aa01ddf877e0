//! Inodes that this session has made or changed, as the answers to its own changes show them, under the leases that come with the
//! answers.
//!
//! The kernel drops what it knows of a directory whenever it changes a name in it, and asks for attributes and for the next name
//! again. Of a new file it asks for capabilities before the first write. Here all of that is known. Only what other sessions cannot
//! have changed is kept: until the lease ends, or is recalled.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use operations::{Attributes, FileKind, ROOT};
use parking_lot::Mutex;
use protocol::leases::Covers;

use crate::leases::Kept;

/// Names that are kept of a directory, at most.
const NAMES_MAX: usize = 4096;
/// Inodes that are remembered, at most.
const INODES_MAX: usize = 1 << 14;
/// Pause between two searches for leases that have ended.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// The set-user and set-group bits of a mode.
const SET_ID: u32 = 0o6000;

#[derive(Default)]
pub(super) struct Changed(Mutex<State>);

#[derive(Default)]
struct State {
    inodes: HashMap<u64, ChangedInode>,
    /// Number of recalls so far.
    recalls: u64,
    swept_at: Option<Instant>,
}

#[derive(Default)]
struct ChangedInode {
    /// Changes by this session that have begun and not ended.
    in_flight: u32,
    /// Something else happened meanwhile: their answers may be older.
    is_disturbed: bool,
    known: Option<Known>,
}

/// What is known of an inode.
struct Known {
    /// Those of a file are from its last change by other means than writing.
    attributes: Attributes,
    /// Version since when only this session has changed it.
    since: u64,
    until: Instant,
    /// Whether names are in a directory.
    names: HashMap<Vec<u8>, bool>,
    /// This session has made the inode: names that are not in `names` are missing, and so are capabilities.
    is_made_here: bool,
    /// Too many names were noted: some are missing in `names`.
    is_incomplete: bool,
}

/// A change of an inode, which has begun.
pub(super) struct Begun {
    number: u64,
    recalls: u64,
}

/// The result of a change, as its answer shows it.
pub(super) struct Shown<'a> {
    pub attributes: Attributes,
    pub until: Instant,
    /// The changed name in a directory, and whether it is there now.
    pub name: Option<(&'a [u8], bool)>,
}

impl State {
    /// What is known of an inode now.
    fn known(&self, number: u64) -> Option<&Known> {
        let inode = self.inodes.get(&number)?;
        let known = inode.known.as_ref()?;
        (inode.in_flight == 0 && Instant::now() < known.until).then_some(known)
    }

    /// Makes room for one more inode; whether there is some.
    fn make_room(&mut self, now: Instant) -> bool {
        let may_sweep = self.swept_at.is_none_or(|at| now >= at + SWEEP_EVERY);
        if self.inodes.len() >= INODES_MAX && may_sweep {
            self.swept_at = Some(now);
            let is_valid = |it: &Known| now < it.until;
            self.inodes
                .retain(|_, it| it.in_flight > 0 || it.known.as_ref().is_some_and(is_valid));
        }
        self.inodes.len() < INODES_MAX
    }
}

impl ChangedInode {
    fn forget(&mut self) {
        self.known = None;
        self.is_disturbed = self.in_flight > 0;
    }
}

impl Known {
    fn new(attributes: Attributes, until: Instant, is_made_here: bool) -> Known {
        Known {
            since: attributes.version,
            attributes,
            until,
            names: HashMap::new(),
            is_made_here,
            is_incomplete: false,
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
            self.is_incomplete = true;
        }
        self.names.insert(name.to_vec(), is_there);
    }

    /// Another session may have the number in use again. The root directory has it for ever.
    fn of_generation(&self, generation: u32) -> Option<&Known> {
        let own = &self.attributes;
        (own.number == ROOT || own.generation == generation).then_some(self)
    }

    fn is_missing(&self, name: &[u8]) -> bool {
        match self.names.get(name) {
            Some(is_there) => !is_there,
            None => self.is_made_here && !self.is_incomplete,
        }
    }
}

impl Changed {
    /// This session asks for a change of an inode, or of a name in a directory. [`Changed::end`] has to follow.
    pub(super) fn begin(&self, number: u64) -> Begun {
        let mut state = self.0.lock();
        let recalls = state.recalls;
        let inode = state.inodes.entry(number).or_default();
        inode.is_disturbed |= inode.in_flight > 0;
        inode.in_flight += 1;
        Begun { number, recalls }
    }

    /// The change has ended. If its answer does not show the result, nothing is known of the inode any more.
    pub(super) fn end(&self, begun: &Begun, shown: Option<Shown<'_>>) {
        let mut state = self.0.lock();
        let now = Instant::now();
        let has_room = state.make_room(now);
        let Some(inode) = state.inodes.get_mut(&begun.number) else {
            return;
        };
        inode.in_flight = inode.in_flight.saturating_sub(1);
        // Between two leases others may have changed it.
        let known = inode.known.take().filter(|it| now < it.until);
        let counts = !inode.is_disturbed && (has_room || known.is_some());
        inode.is_disturbed &= inode.in_flight > 0;
        if let Some(shown) = shown.filter(|it| counts && now < it.until) {
            let new = || Known::new(shown.attributes, shown.until, false);
            let mut known = known.unwrap_or_else(new);
            (known.attributes, known.until) = (shown.attributes, shown.until.max(known.until));
            if let Some((name, is_there)) = shown.name {
                known.note(name, is_there);
            }
            inode.known = Some(known);
        } else if inode.in_flight == 0 {
            state.inodes.remove(&begun.number);
        }
    }

    /// The change has made an inode: an empty directory, or a file without capabilities.
    pub(super) fn made(&self, begun: &Begun, attributes: Attributes, until: Instant) {
        let mut state = self.0.lock();
        if begun.recalls != state.recalls || !state.make_room(Instant::now()) {
            return;
        }
        let inode = state.inodes.entry(attributes.number).or_default();
        if inode.in_flight == 0 {
            inode.known = Some(Known::new(attributes, until, true));
        }
    }

    /// Attributes of a directory, if they are known, with the lease.
    pub(super) fn attributes(&self, number: u64, generation: u32) -> Option<(Attributes, Kept)> {
        let state = self.0.lock();
        let known = state.known(number)?.of_generation(generation)?;
        let is_directory = known.attributes.kind == FileKind::Directory;
        is_directory.then(|| (known.attributes, known.kept()))
    }

    /// Whether this session alone has changed a directory, from one version to another, which it still has.
    pub(super) fn is_own(&self, number: u64, generation: u32, (from, to): (u64, u64)) -> bool {
        let state = self.0.lock();
        let known = state.known(number);
        let known = known.and_then(|it| it.of_generation(generation));
        known.is_some_and(|it| it.since <= from && it.attributes.version == to)
    }

    /// The lease under which a name is known to be missing.
    pub(super) fn is_missing(&self, number: u64, generation: u32, name: &[u8]) -> Option<Kept> {
        let state = self.0.lock();
        let known = state.known(number)?.of_generation(generation)?;
        known.is_missing(name).then(|| known.kept())
    }

    /// Whether an inode is known to have no capabilities.
    pub(super) fn has_no_capabilities(&self, number: u64, generation: u32) -> bool {
        self.is_made(number, generation, |_| true)
    }

    /// Whether an inode is known to have no capabilities and no set-user or set-group bit.
    pub(super) fn has_no_privileges(&self, number: u64, generation: u32) -> bool {
        self.is_made(number, generation, |it| it.permissions & SET_ID == 0)
    }

    /// Whether this session has made an inode, with these attributes.
    fn is_made(&self, number: u64, generation: u32, is_so: fn(&Attributes) -> bool) -> bool {
        let state = self.0.lock();
        let known = state
            .known(number)
            .and_then(|it| it.of_generation(generation));
        known.is_some_and(|it| it.is_made_here && is_so(&it.attributes))
    }

    /// The lease of an inode is recalled.
    pub(super) fn recalled(&self, number: u64) {
        let mut state = self.0.lock();
        state.recalls += 1;
        if let Some(inode) = state.inodes.get_mut(&number) {
            inode.forget();
        }
    }

    /// This session is removing or moving, or has moved, a directory of an unknown number.
    pub(super) fn forget_directories(&self) {
        let mut state = self.0.lock();
        for inode in state.inodes.values_mut() {
            let known = inode.known.as_ref().map(|it| it.attributes.kind);
            if known.is_none_or(|kind| kind == FileKind::Directory) {
                inode.forget();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::remote::attributes_of;

    fn attributes(number: u64, version: u64) -> Attributes {
        Attributes {
            version,
            ..attributes_of(number, 1, FileKind::Directory)
        }
    }

    fn shown(name: &[u8], is_there: bool, version: u64) -> Option<Shown<'_>> {
        Some(Shown {
            attributes: attributes(5, version),
            until: Instant::now() + Duration::from_secs(120),
            name: Some((name, is_there)),
        })
    }

    fn version(changed: &Changed) -> Option<u64> {
        changed
            .attributes(5, 1)
            .map(|(attributes, _)| attributes.version)
    }

    #[test]
    fn answers_to_changes_show_attributes_and_names() {
        let changed = Changed::default();
        let begun = changed.begin(5);
        assert_eq!(version(&changed), None);
        changed.end(&begun, shown(b"a", false, 7));
        assert_eq!(version(&changed), Some(7));
        assert!(changed.is_missing(5, 1, b"a").is_some());
        assert!(changed.is_missing(5, 1, b"b").is_none(), "nothing shows it");
        let begun = changed.begin(5);
        assert_eq!(version(&changed), None, "it is being changed");
        changed.end(&begun, shown(b"a", true, 8));
        assert!(changed.is_missing(5, 1, b"a").is_none());
        assert_eq!(version(&changed), Some(8));
        changed.end(&changed.begin(5), None);
        assert_eq!(version(&changed), None);
    }

    #[test]
    fn changes_are_own_while_no_other_session_may_have_made_some() {
        let changed = Changed::default();
        let make = |version| changed.end(&changed.begin(5), shown(b"a", true, version));
        make(7);
        assert!(changed.is_own(5, 1, (7, 7)) && !changed.is_own(5, 1, (6, 7)));
        make(8);
        make(9);
        assert!(changed.is_own(5, 1, (7, 9)) && changed.is_own(5, 1, (8, 9)));
        assert!(!changed.is_own(5, 1, (7, 8)), "it has another version");
        assert!(!changed.is_own(5, 2, (7, 9)), "it is another directory");
        changed.recalled(5);
        assert!(!changed.is_own(5, 1, (7, 9)));
        make(11);
        assert!(!changed.is_own(5, 1, (9, 11)) && changed.is_own(5, 1, (11, 11)));
        let begun = changed.begin(5);
        assert!(!changed.is_own(5, 1, (11, 11)), "it is being changed");
        changed.recalled(5);
        changed.end(&begun, shown(b"a", true, 13));
        make(14);
        assert!(!changed.is_own(5, 1, (11, 14)));
    }

    #[test]
    fn a_new_directory_is_known_to_be_empty() {
        let changed = Changed::default();
        let begun = changed.begin(1);
        let until = Instant::now() + Duration::from_secs(120);
        changed.made(&begun, attributes(5, 3), until);
        assert!(changed.is_missing(5, 1, b"a").is_some());
        changed.end(&changed.begin(5), shown(b"a", true, 4));
        assert!(
            changed.is_missing(5, 1, b"a").is_none() && changed.is_missing(5, 1, b"b").is_some()
        );
        for name in 0..NAMES_MAX as u64 {
            let name = name.to_le_bytes();
            changed.end(&changed.begin(5), shown(&name, true, 4));
        }
        assert!(
            changed.is_missing(5, 1, b"b").is_none(),
            "too many are there"
        );
        // Others may have found it, and made a name.
        changed.recalled(5);
        changed.made(&begun, attributes(5, 3), until);
        assert!(changed.is_missing(5, 1, b"b").is_none());
    }

    #[test]
    fn a_new_file_has_no_capabilities() {
        let changed = Changed::default();
        let (begun, until) = (changed.begin(1), Instant::now() + Duration::from_secs(120));
        let file = Attributes {
            kind: FileKind::Regular,
            ..attributes(5, 3)
        };
        changed.made(&begun, file, until);
        assert!(changed.has_no_capabilities(5, 1) && changed.has_no_privileges(5, 1));
        assert!(!changed.has_no_capabilities(5, 2), "it is another file");
        assert_eq!(version(&changed), None, "they change by writing");
        let shown = |permissions| Shown {
            attributes: Attributes {
                permissions,
                ..file
            },
            until,
            name: None,
        };
        changed.end(&changed.begin(5), Some(shown(0o4755)));
        assert!(changed.has_no_capabilities(5, 1) && !changed.has_no_privileges(5, 1));
        // A change that may have given it some.
        changed.end(&changed.begin(5), None);
        assert!(!changed.has_no_capabilities(5, 1));
        // It is not known what it had before.
        changed.end(&changed.begin(5), Some(shown(0o755)));
        assert!(!changed.has_no_capabilities(5, 1));
    }

    #[test]
    fn nothing_is_known_after_a_recall() {
        let changed = Changed::default();
        changed.end(&changed.begin(5), shown(b"a", false, 7));
        changed.recalled(5);
        assert_eq!(version(&changed), None);
        assert!(changed.is_missing(5, 1, b"a").is_none());
        // The answer is older than the recall that overtakes it.
        let begun = changed.begin(5);
        changed.recalled(5);
        changed.end(&begun, shown(b"a", false, 8));
        assert_eq!(version(&changed), None);
        changed.end(&changed.begin(5), shown(b"a", false, 9));
        assert_eq!(version(&changed), Some(9));
        changed.forget_directories();
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
        assert!(changed.is_missing(5, 1, b"a").is_none());
    }
}
