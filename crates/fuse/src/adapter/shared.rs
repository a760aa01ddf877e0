//! Open files, and the pages that the kernel keeps, of a file system that other processes change too.
//!
//! Before the kernel reads from its pages it asks for attributes, unless it may keep them under a lease. A recall makes it
//! ask again. It drops no pages: that waits for requests of the file, which may wait for the recall.
//!
//! The kernel drops the pages itself where size or time of modification differ from those that it knows. If only the version
//! differs, they are dropped here: before the answer if the kernel asks in order to read, or else by a thread, and the
//! kernel may not keep the attributes until then. It ignores the attributes of an answer during which pages are dropped, so
//! this is not done before the other answers.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use client::{Attributes, Error, FileKind, FileSystem};
use parking_lot::Mutex;

use crate::Notifier;
use crate::wire::opened;

/// Files that are remembered.
const FILES_MAX: usize = 1 << 18;

/// What the kernel keeps of a file.
#[derive(Clone, Copy)]
struct Known {
    /// Generation and version of the file: no page is older.
    version: (u32, u64),
    size: u64,
    modified_ns: i64,
    /// End of the lease.
    until: Option<Instant>,
}

/// What has to be done about the pages of a file.
enum Pages {
    /// Nothing: they are of this version, or the kernel drops them.
    Good,
    Drop,
}

#[derive(Default)]
struct Files {
    known: HashMap<u64, Known>,
    /// Some were forgotten that the kernel may know.
    is_partial: bool,
}

pub(super) struct Shared {
    /// The kernel keeps pages, and believes the sizes and times that it is told.
    keeps_pages: bool,
    files: Mutex<Files>,
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
        if !self.keeps_pages {
            return Ok(match self.note(&attributes, Duration::ZERO) {
                true => opened::KEEP_CACHE,
                false => 0,
            });
        }
        self.drop_other_pages(&attributes);
        Ok(opened::KEEP_CACHE)
    }

    /// Closes a file that was opened.
    pub(super) fn close(&self, file_system: &FileSystem, number: u64) {
        // Holds that cannot be released now are released when the session ends.
        let _ = file_system.release(number, 1);
    }

    /// The kernel is about to be shown attributes, in order to read or not. Returns whether it may keep them. This may wait for
    /// requests of the file, so nothing may be promised yet that a recall waits for.
    pub(super) fn shows(&self, attributes: &Attributes, for_read: bool) -> bool {
        if !self.has_pages(attributes) {
            return true;
        }
        match self.pages(attributes) {
            Pages::Good => {
                self.note(attributes, Duration::ZERO);
                true
            }
            Pages::Drop if for_read => {
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
        let Attributes {
            number,
            size,
            modified_ns,
            ..
        } = *attributes;
        let mut files = self.files.lock();
        if let Some(known) = files.known.get_mut(&number) {
            // Its pages may be older.
            (known.size, known.modified_ns) = (size, modified_ns);
        } else if self.has_pages(attributes) && !files.is_partial {
            drop(files);
            self.note(attributes, Duration::ZERO);
        }
    }

    /// The kernel believes that a file is this long at least: it has written or allocated up to there.
    pub(super) fn reaches(&self, number: u64, end: u64) {
        if let Some(known) = self.files.lock().known.get_mut(&number) {
            known.size = known.size.max(end);
        }
    }

    /// The lease of a file is recalled.
    pub(super) fn recalled(&self, number: u64) {
        if let Some(known) = self.files.lock().known.get_mut(&number) {
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
        self.keeps_pages && attributes.kind == FileKind::Regular
    }

    fn pages(&self, attributes: &Attributes) -> Pages {
        let files = self.files.lock();
        let Some(known) = files.known.get(&attributes.number) else {
            return match files.is_partial {
                true => Pages::Drop,
                false => Pages::Good,
            };
        };
        let is_same = (known.size, known.modified_ns) == (attributes.size, attributes.modified_ns);
        match known.version == version(attributes) || !is_same {
            true => Pages::Good,
            false => Pages::Drop,
        }
    }

    fn is_current(&self, attributes: &Attributes) -> bool {
        let files = self.files.lock();
        let known = files.known.get(&attributes.number);
        known.is_some_and(|it| it.version == version(attributes))
    }

    fn drop_pages(&self, attributes: &Attributes) {
        if let Some(notifier) = self.notifier.get() {
            // It fails where the mount has ended.
            let _ = notifier.contents_changed(attributes.number, 0..u64::MAX);
        }
        // Not before: others that find this version wait until the pages are gone, too.
        let mut files = self.files.lock();
        if let Some(known) = files.known.get_mut(&attributes.number) {
            known.version = version(attributes);
        } else if !files.is_partial {
            drop(files);
            self.note(attributes, Duration::ZERO);
        }
    }

    /// Notes what the kernel is told; whether the version is the one that was noted before.
    fn note(&self, attributes: &Attributes, left: Duration) -> bool {
        let version = version(attributes);
        let mut files = self.files.lock();
        if files.known.len() >= FILES_MAX {
            files.known.clear();
            files.is_partial = true;
        }
        let known = Known {
            version,
            size: attributes.size,
            modified_ns: attributes.modified_ns,
            until: (!left.is_zero()).then(|| Instant::now() + left),
        };
        let before = files.known.insert(attributes.number, known);
        before.is_some_and(|it| it.version == version)
    }

    fn has_lease(&self, number: u64) -> bool {
        let files = self.files.lock();
        let until = files.known.get(&number).and_then(|it| it.until);
        until.is_some_and(|until| Instant::now() < until)
    }
}

fn version(attributes: &Attributes) -> (u32, u64) {
    (attributes.generation, attributes.version)
}
