//! The trees of files that commands work on, behind the same calls: this host, a mounted pool through its directory, or a
//! pool that this process has open.

mod host;
mod pool;
mod streams;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use client::{Attributes, FileKind, SetAttributes, Statistics};
use rustix::io::Errno;

pub use host::Host;
pub use pool::Pool;
pub use streams::{Reader, Writer};

use crate::failure::{Failure, Outcome};

/// A file that was found: a pool names it by inode number, the host by path.
#[derive(Clone, Debug)]
pub enum FileHandle {
    /// Inode number in a pool.
    Number(u64),
    /// Path on this host.
    Path(PathBuf),
}

/// A file that a path leads to.
pub struct Found {
    /// Names the file in further calls.
    pub handle: FileHandle,
    /// Attributes at the time of the lookup.
    pub attributes: Attributes,
    /// Device and inode number: equal for two names of one file.
    pub identity: (u64, u64),
}

/// An entry of a directory, without `.` and `..`.
pub struct Child {
    /// Name in the directory.
    pub name: Vec<u8>,
    /// Names the file in further calls.
    pub handle: FileHandle,
}

/// Why a call on a [`FileHandle`] failed; [`TreeError::at`] adds the place as the user wrote it.
#[derive(Debug)]
pub enum TreeError {
    /// The pool refused the call.
    Pool(client::Error),
    /// The host refused the call: the action, as a verb, and the reason.
    Host(&'static str, io::Error),
}

impl TreeError {
    /// The failure of a command, met at `place`.
    pub fn at(&self, place: impl std::fmt::Display) -> Failure {
        match self {
            TreeError::Pool(error) => Failure::at(place, error),
            TreeError::Host(what, error) => Failure::host_place(what, place, error),
        }
    }

    /// Whether the file system lacks the requested feature, such as extended attributes.
    pub fn is_unsupported(&self) -> bool {
        self.errno() == Some(Errno::OPNOTSUPP)
    }

    /// Whether this user may not do it.
    pub fn is_refused(&self) -> bool {
        self.errno() == Some(Errno::PERM)
    }

    fn errno(&self) -> Option<Errno> {
        match self {
            TreeError::Pool(error) => Some(Errno::from_raw_os_error(error.errno())),
            TreeError::Host(_, error) => Errno::from_io_error(error),
        }
    }
}

/// A name and its value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// Lookup of paths. Calls by path report the location in their failure, calls by [`FileHandle`] leave that to the caller.
pub trait Tree {
    /// Returns a path as the user would write it.
    fn show(&self, path: &Path) -> String;

    /// Returns the file at a path, or `None` if there is no file.
    fn look(&self, path: &Path, follow: bool) -> Result<Option<Found>, Failure>;

    /// Returns the file at a path.
    fn find(&self, path: &Path, follow: bool) -> Result<Found, Failure>;

    /// Returns the path on this host, if it has paths there.
    fn real(&self, path: &Path) -> Option<PathBuf>;

    /// Returns the attributes of a file, of a symbolic link its own.
    fn attributes(&self, handle: &FileHandle) -> Result<Attributes, TreeError>;

    /// Returns the entries of a directory in the order of their names.
    fn entries(&self, handle: &FileHandle) -> Result<Vec<Child>, TreeError>;

    /// Returns the target of a symbolic link.
    fn read_link(&self, handle: &FileHandle) -> Result<Vec<u8>, TreeError>;

    /// Changes attributes, of a symbolic link its own.
    fn change(&self, handle: &FileHandle, change: &SetAttributes) -> Result<(), TreeError>;

    /// Returns the extended attributes of a file, access control lists among them.
    fn xattrs(&self, handle: &FileHandle) -> Result<Vec<Xattr>, TreeError>;

    /// Makes or replaces an extended attribute.
    fn set_xattr(&self, handle: &FileHandle, name: &[u8], value: &[u8]) -> Result<(), TreeError>;

    /// Removes a name from a directory.
    fn remove(
        &self,
        directory: &FileHandle,
        name: &[u8],
        is_directory: bool,
    ) -> Result<(), TreeError>;

    /// Removes the name at a path.
    fn remove_path(&self, path: &Path, is_directory: bool) -> Outcome;

    /// Makes a directory with these permissions; its parent must exist.
    fn make_directory(&self, path: &Path, permissions: u32) -> Outcome;

    /// Makes a symbolic link.
    fn make_symlink(&self, target: &Path, path: &Path) -> Outcome;

    /// Makes a pipe, a socket or a device.
    fn make_special(&self, path: &Path, attributes: &Attributes, permissions: u32) -> Outcome;

    /// Gives a file a further name.
    fn link(&self, from: &Path, to: &Path) -> Outcome;

    /// Renames a file and replaces the one with the new name.
    fn rename(&self, from: &Path, to: &Path) -> Outcome;

    /// Opens a file to read it.
    fn open(&self, path: &Path) -> Result<Reader, Failure>;

    /// Opens an empty file to write it.
    fn create(&self, path: &Path, permissions: u32) -> Result<Writer, Failure>;

    /// Returns size and free space of the file system.
    fn statistics(&self) -> Result<Statistics, Failure>;

    /// Ends the use of this tree after changes.
    fn close(&self) -> Outcome;
}

/// Whether a file is a directory.
pub fn is_directory(found: &Found) -> bool {
    found.attributes.kind == FileKind::Directory
}

/// The names in a directory, as parts of a path.
pub fn names(tree: &dyn Tree, found: &Found, shown: &str) -> Result<Vec<OsString>, Failure> {
    use std::os::unix::ffi::OsStringExt;
    let children = tree
        .entries(&found.handle)
        .map_err(|error| error.at(shown))?;
    let name = |child: Child| OsString::from_vec(child.name);
    Ok(children.into_iter().map(name).collect())
}
