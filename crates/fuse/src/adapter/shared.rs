//! Open files, and the pages that the kernel keeps, of a file system that other processes change too.
//!
//! Before the kernel reads from its pages it asks for attributes, unless it may keep them under a lease. A recall makes it
//! ask again. It drops no pages: that waits for requests of the file, which may wait for the recall.
//!
//! The kernel drops the pages itself where size or time of modification differ from those that it knows. It may know those of
//! any answer so far, since it ignores an answer that it processes after a later one: the time differs for certain only if it
//! is later than all of them. If the version differs, but neither the size nor a later time shows it, pages are dropped here:
//! before the answer if the kernel asks in order to read, or else by a thread, and the kernel may not keep the attributes
//! until then. It ignores the attributes of an answer during which pages are dropped, so this is not done before the other
//! answers: a read would use the old size.
//!
//! Listings of directories are pages too. The kernel compares only the time before it uses one, and requests its attributes in
//! no other way than for a program. So pages of a directory are always dropped before the answer: their locks wait for no request.
//! After a change of names that it has asked for, the kernel does not use an earlier listing: those changes drop nothing here.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use client::{Attributes, Error, FileKind, FileSystem};
use parking_lot::Mutex;

use crate::Notifier;
use crate::wire::opened;

/// What the kernel keeps of a file.
#[derive(Clone, Copy)]
struct Known {
    /// Generation and version of the file: no page is older.
    version: (u32, u64),
    size: u64,
    /// Latest time of modification of all answers.
    latest_modified_ns: i64,
    /// End of the lease.
    until: Option<Instant>,
}

/// What has to be done about the pages of a file.
enum Pages {
    /// Nothing: they are of this version, or the kernel drops them.
    Good,
    Drop,
}

pub(super) struct Shared {
    /// The kernel keeps pages, and believes the sizes and times that it is told.
    keeps_pages: bool,
    /// The files that the kernel knows.
    files: Mutex<HashMap<u64, Known>>,
    notifier: OnceLock<Notifier>,
    /// Receives files with pages to be dropped.
    dropping: Mutex<Option<Sender<Attributes>>>,
}

impl Shared {
    pub(super) fn new(keeps_pages: bool) -> Shared {
        Shared {
            keeps_pages,
            files: Mutex::default(),
            notifier: OnceLock::new(),
            dropping: Mutex::new(None),
        }
    }

    /// The session begins. [`Shared::drop_other_pages`] has to be called with what `dropping` sends.
    pub(super) fn begin(&self, notifier: Notifier, dropping: Sender<Attributes>) {
        // It is set once.
        let _ = self.notifier.set(notifier);
        *self.dropping.lock() = Some(dropping);
    }

    /// The session has ended.
    pub(super) fn end(&self) {
        *self.dropping.lock() = None;
    }

    /// Opens a file: it stays when its last name is removed. Returns what the kernel is told about its pages. Under a lease
    /// the cluster is not asked.
    pub(super) fn open(&self, file_system: &FileSystem, number: u64) -> Result<u32, Error> {
        file_system.hold(number)?;
        if self.has_lease(number) {
            return Ok(opened::KEEP_CACHE);
        }
        let attributes = file_system.attributes(number).inspect_err(|_| {
            // The error is the one of the attributes.
            let _ = file_system.release(number, 1);
        })?;
        Ok(self.opens(&attributes))
    }

    /// Opens a file that the same request has made, or found: the cluster is not asked again.
    pub(super) fn open_made(
        &self,
        file_system: &FileSystem,
        attributes: &Attributes,
    ) -> Result<u32, Error> {
        file_system.hold(attributes.number)?;
        if self.files.lock().contains_key(&attributes.number) {
            return Ok(self.opens(attributes));
        }
        // The kernel does not know it, and has no pages.
        self.note(attributes, Duration::ZERO);
        Ok(opened::KEEP_CACHE)
    }

    fn opens(&self, attributes: &Attributes) -> u32 {
        if self.keeps_pages {
            self.drop_other_pages(attributes);
            return opened::KEEP_CACHE;
        }
        match self.note(attributes, Duration::ZERO) {
            true => opened::KEEP_CACHE,
            false => 0,
        }
    }

    /// Closes a file that was opened.
    pub(super) fn close(&self, file_system: &FileSystem, number: u64) {
        // Holds that cannot be released now are released when the session ends.
        let _ = file_system.release(number, 1);
        self.forget(file_system, number);
    }

    /// Removes a file after a hold of it was released, if that was the last one: the kernel does not know it any more.
    pub(super) fn forget(&self, file_system: &FileSystem, number: u64) {
        let mut files = self.files.lock();
        // Under the lock: a file that the kernel looks up again is held before it is noted.
        if !file_system.is_held(number) {
            files.remove(&number);
        }
    }

    /// The kernel is about to be shown attributes, in order to read or not. Returns whether it may keep them. This may wait for
    /// requests of the file, so nothing may be promised yet that a recall waits for. `is_own` states whether this mount alone
    /// has changed a directory since a version.
    pub(super) fn shows(
        &self,
        attributes: &Attributes,
        for_read: bool,
        is_own: &dyn Fn(u64) -> bool,
    ) -> bool {
        if !self.has_pages(attributes) {
            return true;
        }
        match self.pages(attributes, is_own) {
            Pages::Good => {
                self.note(attributes, Duration::ZERO);
                true
            }
            Pages::Drop if for_read || attributes.kind == FileKind::Directory => {
                self.drop_pages(attributes);
                false
            }
            Pages::Drop => {
                if let Some(dropping) = &*self.dropping.lock() {
                    // The thread ends with the mount.
                    let _ = dropping.send(*attributes);
                }
                false
            }
        }
    }

    /// The kernel may keep attributes that [`Shared::shows`] has allowed.
    pub(super) fn keeps(&self, attributes: &Attributes, left: Duration) {
        if self.has_pages(attributes) {
            self.note(attributes, left);
        }
    }

    /// The kernel is told attributes after a change by itself, and may not keep them.
    pub(super) fn changed(&self, attributes: &Attributes) {
        let mut files = self.files.lock();
        if let Some(known) = files.get_mut(&attributes.number) {
            // Its pages may be older.
            known.size = attributes.size;
            known.latest_modified_ns = known.latest_modified_ns.max(attributes.modified_ns);
        } else if self.has_pages(attributes) {
            drop(files);
            self.note(attributes, Duration::ZERO);
        }
    }

    /// The kernel believes that a file is this long at least: it has written or allocated up to there.
    pub(super) fn reaches(&self, number: u64, end: u64) {
        if let Some(known) = self.files.lock().get_mut(&number) {
            known.size = known.size.max(end);
        }
    }

    /// The lease of a file is recalled.
    pub(super) fn recalled(&self, number: u64) {
        if let Some(known) = self.files.lock().get_mut(&number) {
            known.until = None;
        }
    }

    /// Drops the pages of a file unless they are of this version.
    pub(super) fn drop_other_pages(&self, attributes: &Attributes) {
        if !self.is_current(attributes) {
            self.drop_pages(attributes);
        }
    }

    fn has_pages(&self, attributes: &Attributes) -> bool {
        match attributes.kind {
            FileKind::Regular => self.keeps_pages,
            kind => kind == FileKind::Directory,
        }
    }

    fn pages(&self, attributes: &Attributes, is_own: &dyn Fn(u64) -> bool) -> Pages {
        let files = self.files.lock();
        let Some(known) = files.get(&attributes.number) else {
            return Pages::Good;
        };
        let (generation, since) = known.version;
        let is_dropped = match attributes.kind {
            FileKind::Directory => generation == attributes.generation && is_own(since),
            _ => known.size != attributes.size,
        };
        let differs = is_dropped || known.latest_modified_ns < attributes.modified_ns;
        match known.version == version(attributes) || differs {
            true => Pages::Good,
            false => Pages::Drop,
        }
    }

    fn is_current(&self, attributes: &Attributes) -> bool {
        let files = self.files.lock();
        let known = files.get(&attributes.number);
        known.is_some_and(|it| it.version == version(attributes))
    }

    fn drop_pages(&self, attributes: &Attributes) {
        if let Some(notifier) = self.notifier.get() {
            // It fails where the mount has ended.
            let _ = notifier.contents_changed(attributes.number, 0..u64::MAX);
        }
        // Not before: others that find this version wait until the pages are gone, too.
        if let Some(known) = self.files.lock().get_mut(&attributes.number) {
            known.version = version(attributes);
        }
    }

    /// Notes what the kernel is told; whether the version is the one that was noted before.
    fn note(&self, attributes: &Attributes, left: Duration) -> bool {
        let version = version(attributes);
        let mut files = self.files.lock();
        let before = files.get(&attributes.number).copied();
        let latest = before.map(|it| it.latest_modified_ns);
        let known = Known {
            version,
            size: attributes.size,
            latest_modified_ns: attributes.modified_ns.max(latest.unwrap_or(i64::MIN)),
            until: (!left.is_zero()).then(|| Instant::now() + left),
        };
        files.insert(attributes.number, known);
        before.is_some_and(|it| it.version == version)
    }

    fn has_lease(&self, number: u64) -> bool {
        let files = self.files.lock();
        let until = files.get(&number).and_then(|it| it.until);
        until.is_some_and(|until| Instant::now() < until)
    }
}

fn version(attributes: &Attributes) -> (u32, u64) {
    (attributes.generation, attributes.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(number: u64, version: u64, size: u64, modified_ns: i64) -> Attributes {
        Attributes {
            number,
            generation: 1,
            kind: FileKind::Regular,
            permissions: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            size,
            blocks_512: 0,
            accessed_ns: 0,
            modified_ns,
            changed_ns: 0,
            created_ns: 0,
            device: 0,
            flags: client::FileFlags::default(),
            version,
        }
    }

    #[test]
    fn any_number_of_files_is_cached() {
        let (shared, other) = (Shared::new(true), |_| false);
        for number in 0..(1 << 18) + 2 {
            assert!(shared.shows(&attributes(number, 1, 4, 1), false, &other));
        }
        let last = attributes(1 << 18, 2, 4, 2);
        assert!(shared.shows(&last, true, &other));
        shared.keeps(&last, Duration::from_secs(60));
        assert!(shared.has_lease(last.number));
    }

    /// The kernel may not have processed the answer with the second version, and then ignores it.
    #[test]
    fn pages_are_dropped_if_an_earlier_time_is_restored() {
        let (shared, other) = (Shared::new(true), |_| false);
        assert!(shared.shows(&attributes(9, 1, 4, 100), true, &other));
        assert!(shared.shows(&attributes(9, 2, 4, 200), true, &other));
        assert!(!shared.shows(&attributes(9, 3, 4, 100), true, &other));
        // They were dropped before that answer.
        assert!(shared.shows(&attributes(9, 3, 4, 100), true, &other));
        assert!(!shared.shows(&attributes(9, 4, 4, 200), true, &other));
        assert!(shared.shows(&attributes(9, 5, 4, 201), true, &other));
        assert!(shared.shows(&attributes(9, 6, 5, 100), true, &other));
    }

    #[test]
    fn own_changes_of_names_drop_no_listings() {
        let shared = Shared::new(true);
        let directory = |version| Attributes {
            kind: FileKind::Directory,
            ..attributes(9, version, 0, 100)
        };
        let is_own = |since| since >= 2;
        assert!(shared.shows(&directory(1), false, &is_own));
        assert!(!shared.shows(&directory(2), false, &is_own));
        assert!(shared.shows(&directory(3), false, &is_own));
        assert!(shared.shows(&directory(4), false, &is_own));
        assert!(!shared.shows(&directory(5), false, &|_| false));
    }
}
