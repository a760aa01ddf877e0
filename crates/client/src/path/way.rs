//! The directories that a walk went through. Each thread keeps its last one: consecutive paths mostly lead through the
//! same directories, and then nothing is looked up, counted or locked on the way.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use smallvec::{SmallVec, smallvec};
use store::DirectoryNames;

use crate::backend::{Backend, Inode};

/// Longest beginning of a path that is kept, in bytes.
const KEPT_MAX: usize = 256;

/// Directories entered, the root first, so that `..` leads back the way that was really taken.
pub(crate) struct Way {
    entered: SmallVec<[Inode; 8]>,
    /// Version of the names of directories before the first lookup.
    names: Option<DirectoryNames>,
    /// Directories were entered by their own names only.
    is_plain: bool,
    /// The beginning of a path that leads this way.
    path: SmallVec<[u8; 64]>,
    /// It does, and the way is to be used again.
    is_kept: bool,
}

impl Way {
    fn at_root(backend: &Backend) -> Way {
        Way {
            names: backend.directory_names(),
            entered: smallvec![backend.root()],
            is_plain: true,
            path: SmallVec::new(),
            is_kept: false,
        }
    }

    /// Makes it the way of nothing, at the root of `backend`.
    fn begin(&mut self, backend: &Backend) {
        self.names = backend.directory_names();
        self.entered.clear();
        self.entered.push(backend.root());
        (self.is_plain, self.is_kept) = (true, false);
    }

    /// The directory where it ends.
    pub(crate) fn directory(&self) -> &Inode {
        self.entered.last().expect("the root is never left")
    }

    /// Continues with a directory of this name.
    pub(crate) fn enter(&mut self, directory: Inode) {
        self.is_kept = false;
        self.entered.push(directory);
    }

    /// Goes back a step.
    pub(crate) fn leave(&mut self) {
        let depth = self.entered.len().saturating_sub(1).max(1);
        self.entered.truncate(depth);
        self.turn();
    }

    /// Goes back to the root.
    pub(crate) fn restart(&mut self) {
        self.entered.truncate(1);
        self.is_kept = false;
    }

    /// A step was made that is no directory's own name.
    pub(crate) fn turn(&mut self) {
        (self.is_plain, self.is_kept) = (false, false);
    }

    /// Whether the whole of this beginning of a path, up to a slash, leads this way in `backend` now. Names of directories
    /// come and do no harm; one that goes or changes makes all ways be walked again.
    fn is_of(&self, backend: &Backend, path: &[u8]) -> bool {
        self.is_kept && self.path[..] == *path && self.names == backend.directory_names()
    }

    /// Keeps the way, if it can be, as that of a beginning of a path.
    pub(crate) fn keep(&mut self, path: &[u8]) {
        self.is_kept = self.is_plain && path.len() <= KEPT_MAX && self.names.is_some();
        if self.is_kept {
            self.path.clear();
            self.path.extend_from_slice(path);
        }
    }
}

thread_local! {
    static LAST: Cell<Option<Box<Way>>> = const { Cell::new(None) };
}

/// A thread's way, lent to a walk.
pub(crate) struct Lent(Option<Box<Way>>);

impl Lent {
    /// The thread's last way if it starts with this part of a path, which it returns; else one at the root.
    pub(crate) fn for_path(backend: &Backend, path: Option<&[u8]>) -> (Lent, bool) {
        // A thread that is ending has none.
        let Some(mut last) = LAST.try_with(Cell::take).ok().flatten() else {
            return (Lent(Some(Box::new(Way::at_root(backend)))), false);
        };
        let is_of = path.is_some_and(|path| last.is_of(backend, path));
        if !is_of {
            last.begin(backend);
        }
        (Lent(Some(last)), is_of)
    }
}

impl Deref for Lent {
    type Target = Way;

    #[inline]
    fn deref(&self) -> &Way {
        self.0.as_deref().expect("the way is there until the drop")
    }
}

impl DerefMut for Lent {
    #[inline]
    fn deref_mut(&mut self) -> &mut Way {
        self.0
            .as_deref_mut()
            .expect("the way is there until the drop")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let way = self.0.take();
        // A thread that is ending keeps nothing.
        let _ = LAST.try_with(|last| last.set(way));
    }
}
