//! Files and directories by inode: the layer below the path API and open files.
//!
//! A backend is an enum, and so is the handle of an inode: a call costs one comparison more than the store's own.
//! [`Embedded`] works on a pool of this process, [`Remote`] on a cluster.

mod copy;
mod embedded;
mod remote;

use std::sync::Arc;

use connections::messenger::ReadTarget;
use store::{
    Attributes, Entry, Fallocate, FileExtent, FileFlags, FileKind, NewInode, RenameMode,
    SetAttributes, Statistics, WriteAt, Written, XattrMode,
};

use crate::Cause;
use crate::requests::LandingMemory;
pub(crate) use embedded::{Embedded, EmbeddedInode};
pub(crate) use remote::{Remote, RemoteInode, Waiting};

/// Result of a call by inode.
pub(crate) type Result<T> = std::result::Result<T, Cause>;

/// The storage that serves a file system.
#[derive(Clone)]
pub(crate) enum Backend {
    /// A pool of this process.
    Embedded(Embedded),
    /// Files of a cluster.
    Remote(Remote),
}

/// Handle of a file or directory that was found in a backend. It does not keep an inode without a name alive:
/// [`Backend::hold`] does.
#[derive(Clone)]
pub(crate) enum Inode {
    /// In a pool of this process: the live inode itself, so that no call looks it up.
    Embedded(EmbeddedInode),
    /// Inode of a cluster.
    Remote(Arc<RemoteInode>),
}

impl Inode {
    /// The inode number that users see.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        match self {
            Inode::Embedded(inode) => inode.number(),
            Inode::Remote(inode) => inode.number(),
        }
    }
}

/// Calls of the backend without an inode.
impl Backend {
    /// Returns the root directory of the file system.
    #[inline]
    pub(crate) fn root(&self) -> Inode {
        match self {
            Backend::Embedded(backend) => Inode::Embedded(backend.root()),
            Backend::Remote(backend) => Inode::Remote(backend.root()),
        }
    }

    /// The inode with this number.
    #[inline]
    pub(crate) fn inode(&self, number: u64) -> Result<Inode> {
        match self {
            Backend::Embedded(backend) => Ok(Inode::Embedded(backend.inode(number)?)),
            Backend::Remote(backend) => Ok(Inode::Remote(backend.inode(number))),
        }
    }

    /// The directory of this name in `directory`, if it was looked up recently and still has the name.
    #[inline]
    pub(crate) fn known_subdirectory(&self, directory: &Inode, name: &[u8]) -> Option<Inode> {
        match (self, directory) {
            (Backend::Embedded(backend), Inode::Embedded(directory)) => backend
                .known_subdirectory(directory, name)
                .map(Inode::Embedded),
            _ => None,
        }
    }

    /// Size and usage of the file system.
    pub(crate) fn statistics(&self) -> Result<Statistics> {
        match self {
            Backend::Embedded(backend) => Ok(backend.statistics()),
            Backend::Remote(backend) => backend.statistics(),
        }
    }

    /// Ends the use of the backend in good order.
    pub(crate) fn close(&self) -> Result<()> {
        match self {
            Backend::Embedded(backend) => backend.close(),
            Backend::Remote(backend) => backend.close(),
        }
    }
}

/// Mapped files of a cluster.
impl Backend {
    /// Memory of so many bytes that [`Backend::land`] reads into.
    pub(crate) fn read_target(&self, bytes: u64) -> Option<ReadTarget> {
        match self {
            Backend::Embedded(_) => None,
            Backend::Remote(backend) => backend.read_target(bytes),
        }
    }

    /// Reads `length` bytes at `offset` to the same offset of the memory. Returns how many are there, and whether this process has copied
    /// them; `None` if they have to be read otherwise. After an error they may land later if the memory [is unsettled](LandingMemory).
    pub(crate) fn land(
        &self,
        inode: &Inode,
        (offset, length): (u64, usize),
        memory: &LandingMemory,
    ) -> Result<Option<(usize, bool)>> {
        match (self, inode) {
            (Backend::Remote(backend), Inode::Remote(inode)) => {
                backend.land(inode, (offset, length), memory)
            }
            _ => Ok(None),
        }
    }
}

/// Forwards calls on one inode to the backend that it belongs to. Arguments after `private` are bytes that the call uses under locks:
/// if they are of a mapped file, its pages could need the same locks.
macro_rules! calls {
    ($($(#[$documentation:meta])*
        fn $name:ident($($argument:ident: $type:ty),*) $(private($($private:ident),*))? -> $result:ty;)*) => {
        impl Backend {
            $($(#[$documentation])*
            #[inline]
            pub(crate) fn $name(&self, inode: &Inode, $($argument: $type),*) -> Result<$result> {
                $($(let $private = &*pmem::private($private);)*)?
                match (self, inode) {
                    (Backend::Embedded(backend), Inode::Embedded(inode)) => {
                        backend.$name(inode, $($argument),*)
                    }
                    (Backend::Remote(backend), Inode::Remote(inode)) => {
                        backend.$name(inode, $($argument),*)
                    }
                    _ => Err(Cause::OtherFileSystem),
                }
            })*
        }
    };
}

calls! {
    /// Attributes of an inode.
    fn attributes() -> Attributes;
    /// Kind of a file that was just found by its name; stale if it has lost its last name since.
    fn kind() -> FileKind;
    /// Attributes of a file that was just found by its name; stale if it has lost its last name since.
    fn named_attributes() -> Attributes;
    /// Changes attributes, all at once, and returns the new ones.
    fn set_attributes(change: &SetAttributes) -> Attributes;
    /// Removes capabilities from a file that is changed, and, if `set_id`, its set-user and set-group bits.
    fn drop_privileges(set_id: bool) -> ();
    /// Sets the flags that keep a file or directory from being changed.
    fn set_flags(flags: FileFlags) -> ();
    /// Updates the access time after a read, as `relatime` does, or `always`.
    fn note_read(always: bool) -> ();
    /// Keeps the inode alive without a name until [`Backend::release`].
    fn hold() -> ();
    /// Ends `count` holds. The last one of an inode without a name frees it.
    fn release(count: u64) -> ();

    /// Attributes of the file called `name` in this directory.
    fn attributes_of(name: &[u8]) -> Attributes;
    /// The same, and holds the file.
    fn lookup_held(name: &[u8]) -> Attributes;
    /// Removes a name of anything but a directory.
    fn unlink(name: &[u8]) -> ();
    /// Removes an empty directory.
    fn remove_directory(name: &[u8]) -> ();
    /// Target of a symbolic link.
    fn read_link() -> Vec<u8>;
    /// Visits the entries of a directory, `.` and `..` among them, from `cookie` on until `visit` returns false.
    fn read_directory(cookie: u64, visit: &mut dyn FnMut(&Entry) -> bool) -> ();
    /// The same with attributes, which `.` and `..` have not. Other entries for which `visit` returns true are referred to
    /// until [`Backend::release`].
    fn read_directory_held(
        cookie: u64,
        visit: &mut dyn FnMut(&Entry, Option<&Attributes>) -> bool
    ) -> ();

    /// Value of an extended attribute.
    fn xattr(name: &[u8]) private(name) -> Vec<u8>;
    /// Names of all extended attributes.
    fn xattr_names() -> Vec<Vec<u8>>;
    /// Creates or replaces an extended attribute.
    fn set_xattr(name: &[u8], value: &[u8], mode: XattrMode) private(name, value) -> ();
    /// Removes an extended attribute.
    fn remove_xattr(name: &[u8]) private(name) -> ();

    /// Reads at `offset`; fewer bytes than asked for only at the end of the file.
    fn read(offset: u64, into: &mut [u8]) -> usize;
    /// The same, and updates the access time.
    fn read_noted(offset: u64, into: &mut [u8]) -> usize;
    /// Writes `data`; up to 1 MiB as a whole or not at all.
    fn write(at: WriteAt, data: &[u8]) private(data) -> Written;
    /// The same after [`Backend::drop_privileges`].
    fn write_dropping(set_id: bool, at: WriteAt, data: &[u8]) private(data) -> Written;
    /// Allocates, frees or moves the blocks of a range.
    fn fallocate(mode: Fallocate, offset: u64, length: u64) -> ();
    /// First offset from `offset` on that holds data.
    fn next_data(offset: u64) -> Option<u64>;
    /// First offset from `offset` on that lies in a hole; the end of the file is one. None behind it.
    fn next_hole(offset: u64) -> Option<u64>;
    /// The extent at `offset`, or the next one behind it.
    fn next_extent(offset: u64) -> Option<FileExtent>;
    /// Makes all changes of the file persistent at all members that are in sync.
    fn sync() -> ();
    /// Waits for writes that were acknowledged before they were executed.
    fn flush() -> ();
}

/// Calls with a handle in the result, or with two inodes.
impl Backend {
    /// The file called `name` in `directory`.
    #[inline]
    pub(crate) fn lookup(&self, directory: &Inode, name: &[u8]) -> Result<Inode> {
        match (self, directory) {
            (Backend::Embedded(backend), Inode::Embedded(directory)) => {
                backend.lookup(directory, name).map(Inode::Embedded)
            }
            (Backend::Remote(backend), Inode::Remote(directory)) => {
                backend.lookup(directory, name).map(Inode::Remote)
            }
            _ => Err(Cause::OtherFileSystem),
        }
    }

    /// Creates a file, directory, symbolic link or special file.
    #[inline]
    pub(crate) fn create(
        &self,
        directory: &Inode,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Attributes> {
        match (self, directory) {
            (Backend::Embedded(backend), Inode::Embedded(directory)) => {
                backend.create(directory, name, new)
            }
            (Backend::Remote(backend), Inode::Remote(directory)) => {
                backend.create(directory, name, new)
            }
            _ => Err(Cause::OtherFileSystem),
        }
    }

    /// The same, and holds the new inode.
    #[inline]
    pub(crate) fn create_held(
        &self,
        directory: &Inode,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<(Inode, Attributes)> {
        match (self, directory) {
            (Backend::Embedded(backend), Inode::Embedded(directory)) => {
                let (inode, attributes) = backend.create_held(directory, name, new)?;
                Ok((Inode::Embedded(inode), attributes))
            }
            (Backend::Remote(backend), Inode::Remote(directory)) => {
                let (inode, attributes) = backend.create_held(directory, name, new)?;
                Ok((Inode::Remote(inode), attributes))
            }
            _ => Err(Cause::OtherFileSystem),
        }
    }

    /// Creates a file without a name, held once.
    pub(crate) fn create_unnamed(
        &self,
        directory: &Inode,
        new: &NewInode<'_>,
        may_be_named: bool,
    ) -> Result<Inode> {
        match (self, directory) {
            (Backend::Embedded(backend), Inode::Embedded(directory)) => backend
                .create_unnamed(directory, new, may_be_named)
                .map(Inode::Embedded),
            (Backend::Remote(backend), Inode::Remote(directory)) => backend
                .create_unnamed(directory, new, may_be_named)
                .map(Inode::Remote),
            _ => Err(Cause::OtherFileSystem),
        }
    }

    /// Gives a file the further name `name` in `directory`.
    pub(crate) fn link(&self, inode: &Inode, directory: &Inode, name: &[u8]) -> Result<Attributes> {
        match (self, inode, directory) {
            (Backend::Embedded(backend), Inode::Embedded(inode), Inode::Embedded(directory)) => {
                backend.link(inode, directory, name)
            }
            (Backend::Remote(backend), Inode::Remote(inode), Inode::Remote(directory)) => {
                backend.link(inode, directory, name)
            }
            _ => Err(Cause::OtherFileSystem),
        }
    }

    /// Gives the file `name` in `from` the name `new_name` in `to`.
    #[inline]
    pub(crate) fn rename(
        &self,
        (from, name): (&Inode, &[u8]),
        (to, new_name): (&Inode, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        match (self, from, to) {
            (Backend::Embedded(backend), Inode::Embedded(from), Inode::Embedded(to)) => {
                backend.rename((from, name), (to, new_name), mode)
            }
            (Backend::Remote(backend), Inode::Remote(from), Inode::Remote(to)) => {
                backend.rename((from, name), (to, new_name), mode)
            }
            _ => Err(Cause::OtherFileSystem),
        }
    }

    /// Copies up to `length` bytes from one file, or range of it, to another. Returns how many were copied.
    pub(crate) fn copy_range(
        &self,
        (from, offset): (&Inode, u64),
        (to, to_offset): (&Inode, u64),
        length: u64,
    ) -> Result<u64> {
        match (self, from, to) {
            (Backend::Embedded(backend), Inode::Embedded(from), Inode::Embedded(to)) => {
                backend.copy_range((from, offset), (to, to_offset), length)
            }
            (Backend::Remote(backend), Inode::Remote(from), Inode::Remote(to)) => {
                backend.copy_range((from, offset), (to, to_offset), length)
            }
            _ => Err(Cause::OtherFileSystem),
        }
    }
}
