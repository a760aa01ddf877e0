//! A pool opened as a file system, and the calls by inode number.

use std::path::Path;
use std::sync::Arc;

use operations::{Acknowledge, ErrorCode};
use pmem::{Access, Region};
use store::{
    Attributes, Entry, Fallocate, FileFlags, FileKind, Geometry, LostData, NewInode, PoolOptions,
    RenameMode, SetAttributes, Statistics, Store, WriteAt, Written, XattrMode,
};

use crate::backend::{Backend, Embedded, Inode, Remote};
use crate::leases::Recall;
use crate::locks::LockTable;
use crate::{Cause, Error, File, LockUser, OpenFlags, Requests};

/// The root directory's inode number.
pub const ROOT: u64 = store::ROOT;

/// An open file system. Clones share it.
///
/// Calls by path are for programs; calls by inode number are for front ends that keep names themselves:
/// ```
/// # use client::{FileKind, FileSystem, Geometry, NewInode, PoolOptions, ROOT, Region, WriteAt};
/// # let region = Region::memory(16 << 20, false)?;
/// # FileSystem::format_region(&region, &Geometry::for_length(16 << 20))?;
/// # let files = FileSystem::open_region(region, PoolOptions::default())?;
/// let new = NewInode::new(FileKind::Regular, 0o644);
/// let number = files.create(ROOT, b"notes", &new)?.number;
/// files.write(number, WriteAt::End, b"by number")?;
/// assert_eq!(files.lookup(ROOT, b"notes")?.size, 9);
/// assert_eq!(files.stat("notes")?.number, number);
/// # Ok::<(), client::Error>(())
/// ```
#[derive(Clone)]
pub struct FileSystem {
    backend: Backend,
    locks: Arc<LockTable>,
}

/// Pools: making, opening, closing.
impl FileSystem {
    /// Makes a pool of `length` bytes at `path`, with an empty file system in it. Without `geometry`, one that suits
    /// the length is taken. On failure nothing is left at `path`.
    pub fn format_pool(path: &Path, length: u64, geometry: Option<Geometry>) -> Result<(), Error> {
        let region = Region::create(path, length)?;
        let geometry = geometry.unwrap_or_else(|| Geometry::for_length(region.length()));
        Store::format(&region, &geometry).map_err(|error| {
            // The first error is the one to report.
            let _ = std::fs::remove_file(path);
            Error::at(path, error)
        })
    }

    /// Makes a pool with an empty file system in `region`.
    pub fn format_region(region: &Region, geometry: &Geometry) -> Result<(), Error> {
        Ok(Store::format(region, geometry)?)
    }

    /// Opens the pool at `path` for this process alone.
    pub fn open_pool(path: &Path) -> Result<FileSystem, Error> {
        FileSystem::open_path(path, Access::ReadWrite, PoolOptions::default())
    }

    /// The same for a server of kernel requests, each between two system calls.
    pub fn open_pool_for_requests(path: &Path) -> Result<FileSystem, Error> {
        let options = PoolOptions {
            between_system_calls: true,
            ..PoolOptions::default()
        };
        FileSystem::open_path(path, Access::ReadWrite, options)
    }

    /// Opens the pool at `path` without ever writing to it: changes stay in this process.
    pub fn open_pool_private(path: &Path) -> Result<FileSystem, Error> {
        FileSystem::open_path(path, Access::Private, PoolOptions::default())
    }

    /// Opens the pool in `region`: for labs and benchmarks.
    pub fn open_region(region: Region, options: PoolOptions) -> Result<FileSystem, Error> {
        Ok(FileSystem::of_store(Arc::new(Store::open(
            region, options,
        )?)))
    }

    /// The file system in an open store. The caller may keep the store for what files do not show, such as its records.
    pub fn of_store(store: Arc<Store>) -> FileSystem {
        FileSystem::over(Backend::Embedded(Embedded::new(store)))
    }

    /// The file system of a cluster. Its changes are acknowledged by the rule of `acknowledge`.
    pub fn remote(requests: Arc<dyn Requests>, acknowledge: Acknowledge) -> FileSystem {
        FileSystem::over(Backend::Remote(Remote::new(requests, acknowledge)))
    }

    /// Answers short writes of a cluster before it has them, from now on, under leases for writing. `report` receives one
    /// sentence when such writes are lost; fsync or close of the file fails then. A pool of this process answers none early.
    pub fn answer_early(
        &self,
        report: impl Fn(&str) + Send + Sync + 'static,
    ) -> std::io::Result<()> {
        match &self.backend {
            Backend::Remote(remote) => remote.answer_early(Box::new(report)),
            Backend::Embedded(_) => Ok(()),
        }
    }

    /// Whether other processes may change files, too.
    pub fn is_remote(&self) -> bool {
        matches!(self.backend, Backend::Remote(_))
    }

    /// Sets the receiver of lease recalls, or removes it. While there is a listener, outcomes may be cached for as long
    /// as [`Validity`](crate::leases::Validity) states. A pool of this process recalls nothing.
    pub fn on_recall(&self, listener: Option<Box<dyn Fn(Recall) + Send>>) {
        if let Backend::Remote(remote) = &self.backend {
            remote.on_recall(listener);
        }
    }

    /// Reports that the caches have dropped the recalled contents.
    pub fn invalidated(&self, recall: &Recall) {
        if let Backend::Remote(remote) = &self.backend {
            remote.invalidated(recall);
        }
    }

    /// Ends the session with a cluster: calls that wait fail, and so does every later one. A pool of this process does
    /// not wait, and continues.
    pub fn abandon(&self) {
        if let Backend::Remote(remote) = &self.backend {
            remote.end();
        }
    }

    fn over(backend: Backend) -> FileSystem {
        FileSystem {
            backend,
            locks: Arc::default(),
        }
    }

    fn open_path(path: &Path, access: Access, options: PoolOptions) -> Result<FileSystem, Error> {
        let region = Region::open(path, access)?;
        let store = Store::open(region, options).map_err(|error| Error::at(path, error))?;
        Ok(FileSystem::of_store(Arc::new(store)))
    }

    /// Leaves the pool so that the next opening has nothing to replay. Without it nothing is lost.
    pub fn close(&self) -> Result<(), Error> {
        Ok(self.backend.close()?)
    }

    /// Makes the pool `length` bytes long, while others continue to use it. After a crash it has the old length or the
    /// new one.
    ///
    /// # Errors
    /// It is longer already ([`Cause::Shrinks`]), it is in a cluster ([`Cause::NotEmbedded`]), its medium has no room, or it is one of a unit.
    pub fn grow(&self, length: u64) -> Result<(), Error> {
        let Backend::Embedded(embedded) = &self.backend else {
            return Err(Cause::NotEmbedded.into());
        };
        let store = embedded.store();
        let now = store.volume().superblock().pool_length;
        if length < now {
            return Err(Cause::Shrinks { now }.into());
        }
        store.volume().region().grow(length)?;
        store.volume().grow()?;
        Ok(())
    }

    /// Has `listener` called when a read meets a block that does not match its checksum: once for each of the first
    /// thousand blocks, on the thread that reads, which then gets its error. Only the first listener counts. Nodes of a
    /// cluster report such blocks themselves.
    pub fn on_lost_data(&self, listener: impl Fn(&LostData) + Send + Sync + 'static) {
        if let Backend::Embedded(embedded) = &self.backend {
            embedded.store().files().on_lost_data(listener);
        }
    }

    /// Returns the size of the file system and its free space.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        Ok(self.backend.statistics()?)
    }

    /// Registers a user that locks files, beside all others.
    pub fn lock_user(&self) -> LockUser {
        let remote = match &self.backend {
            Backend::Remote(remote) => Some(remote),
            Backend::Embedded(_) => None,
        };
        self.locks.user(remote)
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.backend
    }
}

/// By inode number, starting at [`ROOT`]: for front ends that keep names themselves, such as the mount.
impl FileSystem {
    /// The file called `name` in `directory`.
    pub fn lookup(&self, directory: u64, name: &[u8]) -> Result<Attributes, Error> {
        let directory = self.node(directory)?;
        Ok(settle(|| self.backend.attributes_of(&directory, name))?)
    }

    /// The same, and keeps it when it loses its last name, as [`FileSystem::hold`].
    pub fn lookup_held(&self, directory: u64, name: &[u8]) -> Result<Attributes, Error> {
        let directory = self.node(directory)?;
        Ok(settle(|| self.backend.lookup_held(&directory, name))?)
    }

    /// The attributes of a file.
    pub fn attributes(&self, number: u64) -> Result<Attributes, Error> {
        Ok(self.backend.attributes(&self.node(number)?)?)
    }

    /// Changes attributes, the size among them.
    pub fn set_attributes(&self, number: u64, change: &SetAttributes) -> Result<Attributes, Error> {
        Ok(self.backend.set_attributes(&self.node(number)?, change)?)
    }

    /// Sets what keeps a file or directory from being changed. Through a mount, that takes root.
    pub fn set_flags(&self, number: u64, flags: FileFlags) -> Result<(), Error> {
        Ok(self.backend.set_flags(&self.node(number)?, flags)?)
    }

    /// Creates a file, directory, symbolic link or special file. In a directory with the set-group bit it gets the
    /// directory's group, and a directory the bit too.
    pub fn create(&self, directory: u64, name: &[u8], new: &NewInode) -> Result<Attributes, Error> {
        Ok(self.backend.create(&self.node(directory)?, name, new)?)
    }

    /// The same, and keeps it when it loses its last name, as [`FileSystem::hold`].
    pub fn create_held(
        &self,
        directory: u64,
        name: &[u8],
        new: &NewInode,
    ) -> Result<Attributes, Error> {
        let created = self
            .backend
            .create_held(&self.node(directory)?, name, new)?;
        Ok(created.1)
    }

    /// Gives a file one more name.
    pub fn link(&self, number: u64, directory: u64, name: &[u8]) -> Result<Attributes, Error> {
        let (inode, directory) = (self.node(number)?, self.node(directory)?);
        Ok(self.backend.link(&inode, &directory, name)?)
    }

    /// Takes away a name of anything but a directory.
    pub fn unlink(&self, directory: u64, name: &[u8]) -> Result<(), Error> {
        Ok(self.backend.unlink(&self.node(directory)?, name)?)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, directory: u64, name: &[u8]) -> Result<(), Error> {
        Ok(self
            .backend
            .remove_directory(&self.node(directory)?, name)?)
    }

    /// Gives the file `name` in `from` the name `new_name` in `to`.
    pub fn rename(
        &self,
        from: u64,
        name: &[u8],
        to: u64,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), Error> {
        let (from, to) = (self.node(from)?, self.node(to)?);
        Ok(self.backend.rename((&from, name), (&to, new_name), mode)?)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, number: u64) -> Result<Vec<u8>, Error> {
        Ok(self.backend.read_link(&self.node(number)?)?)
    }

    /// Visits the entries of a directory, `.` and `..` among them, from `cookie` on (0: the start) until `visit`
    /// returns false: that entry was not taken.
    pub fn read_directory(
        &self,
        number: u64,
        cookie: u64,
        visit: &mut dyn FnMut(&Entry) -> bool,
    ) -> Result<(), Error> {
        Ok(self
            .backend
            .read_directory(&self.node(number)?, cookie, visit)?)
    }

    /// The same with attributes, which `.` and `..` have not. Any other entry that was taken is kept as by
    /// [`FileSystem::hold`].
    pub fn read_directory_held(
        &self,
        number: u64,
        cookie: u64,
        visit: &mut dyn FnMut(&Entry, Option<&Attributes>) -> bool,
    ) -> Result<(), Error> {
        Ok(self
            .backend
            .read_directory_held(&self.node(number)?, cookie, visit)?)
    }

    /// Removes the privileges of a file that is changed: its capabilities, and, if `set_id`, its set-user and set-group
    /// bits.
    pub fn drop_privileges(&self, number: u64, set_id: bool) -> Result<(), Error> {
        Ok(self.backend.drop_privileges(&self.node(number)?, set_id)?)
    }

    /// The value of an extended attribute.
    pub fn xattr(&self, number: u64, name: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.backend.xattr(&self.node(number)?, name)?)
    }

    /// The names of all extended attributes.
    pub fn xattr_names(&self, number: u64) -> Result<Vec<Vec<u8>>, Error> {
        Ok(self.backend.xattr_names(&self.node(number)?)?)
    }

    /// Makes or replaces an extended attribute.
    pub fn set_xattr(
        &self,
        number: u64,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Error> {
        Ok(self
            .backend
            .set_xattr(&self.node(number)?, name, value, mode)?)
    }

    /// Takes an extended attribute away.
    pub fn remove_xattr(&self, number: u64, name: &[u8]) -> Result<(), Error> {
        Ok(self.backend.remove_xattr(&self.node(number)?, name)?)
    }

    /// Reads at `offset`; fewer bytes than asked for only at the end of the file. Leaves the access time as it is.
    pub fn read(&self, number: u64, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        Ok(self.backend.read(&self.node(number)?, offset, into)?)
    }

    /// The same, and notes it as [`FileSystem::note_read`] does, but not always.
    pub fn read_noted(&self, number: u64, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        Ok(self.backend.read_noted(&self.node(number)?, offset, into)?)
    }

    /// Records a read of a file or directory: its access time changes `always`, or if it changed since, or after a day.
    pub fn note_read(&self, number: u64, always: bool) -> Result<(), Error> {
        Ok(self.backend.note_read(&self.node(number)?, always)?)
    }

    /// Writes `data`, persistently; up to 1 MiB whole or not at all.
    pub fn write(&self, number: u64, at: WriteAt, data: &[u8]) -> Result<Written, Error> {
        Ok(self.backend.write(&self.node(number)?, at, data)?)
    }

    /// The same, after [`FileSystem::drop_privileges`].
    pub fn write_dropping(
        &self,
        number: u64,
        set_id: bool,
        at: WriteAt,
        data: &[u8],
    ) -> Result<Written, Error> {
        Ok(self
            .backend
            .write_dropping(&self.node(number)?, set_id, at, data)?)
    }

    /// Copies up to `length` bytes from one file, or one place in it, to another. Returns how many: fewer when the source
    /// ends, the pool becomes full, or up to 1 MiB are too many for one change.
    pub fn copy_range(
        &self,
        (from, offset): (u64, u64),
        (to, to_offset): (u64, u64),
        length: u64,
    ) -> Result<u64, Error> {
        let (from, to) = (self.node(from)?, self.node(to)?);
        Ok(self
            .backend
            .copy_range((&from, offset), (&to, to_offset), length)?)
    }

    /// Makes data and attributes of a file persistent wherever the file system keeps copies. In a pool of this process every
    /// call has done so when it returned.
    pub fn sync(&self, number: u64) -> Result<(), Error> {
        Ok(self.backend.sync(&self.node(number)?)?)
    }

    /// Whether only this session has changed a directory of a cluster from an earlier version of it to these attributes, which
    /// it still has. False if that is not known.
    pub fn is_own_change(&self, attributes: &Attributes, since: u64) -> bool {
        match &self.backend {
            Backend::Remote(remote) => remote.is_own_change(attributes, since),
            Backend::Embedded(_) => false,
        }
    }

    /// Whether [`FileSystem::flush`] may wait for something.
    pub fn flush_waits(&self) -> bool {
        match &self.backend {
            Backend::Remote(remote) => remote.flush_waits(),
            Backend::Embedded(_) => false,
        }
    }

    /// Waits for the outcome of all writes of a file that were acknowledged before they were executed.
    pub fn flush(&self, number: u64) -> Result<(), Error> {
        Ok(self.backend.flush(&self.node(number)?)?)
    }

    /// The same, but reports nothing about writes that were lost.
    ///
    /// # Errors
    /// The mount has ended, or the caller was interrupted.
    pub fn settle(&self, number: u64) -> Result<(), Error> {
        match &self.backend {
            Backend::Remote(remote) => Ok(remote.settle(number)?),
            Backend::Embedded(_) => Ok(()),
        }
    }

    /// Allocates, frees or moves the blocks of a range, in bytes, without writing data.
    pub fn fallocate(
        &self,
        number: u64,
        mode: Fallocate,
        offset: u64,
        length: u64,
    ) -> Result<(), Error> {
        Ok(self
            .backend
            .fallocate(&self.node(number)?, mode, offset, length)?)
    }

    /// The first offset from `offset` on that holds data, if any.
    pub fn next_data(&self, number: u64, offset: u64) -> Result<Option<u64>, Error> {
        Ok(self.backend.next_data(&self.node(number)?, offset)?)
    }

    /// The first offset from `offset` on that lies in a hole; the end of the file counts as one. None behind it.
    pub fn next_hole(&self, number: u64, offset: u64) -> Result<Option<u64>, Error> {
        Ok(self.backend.next_hole(&self.node(number)?, offset)?)
    }

    /// Opens the file with this inode number. Of the flags, `create`, `exclusive` and `no_follow` mean nothing here.
    pub fn open_number(&self, number: u64, flags: OpenFlags) -> Result<File, Error> {
        Ok(self.open_node(self.node(number)?, flags)?)
    }

    /// Opens a new file without a name, which is freed when it is closed. Unless the flags are exclusive,
    /// [`FileSystem::link`] can give it a name before that. Otherwise it is like a file created in `directory`.
    pub fn create_unnamed(
        &self,
        directory: u64,
        new: &NewInode,
        flags: OpenFlags,
    ) -> Result<File, Error> {
        Ok(self.open_unnamed_in(&self.node(directory)?, new, flags)?)
    }

    /// Opens the file called `name`; if there is none, creates it first.
    pub fn create_open(
        &self,
        directory: u64,
        name: &[u8],
        new: &NewInode,
        flags: OpenFlags,
    ) -> Result<(Attributes, File), Error> {
        let directory = self.node(directory)?;
        settle(|| match self.create_file(&directory, name, new, flags) {
            Ok((file, attributes)) => Ok((attributes, file)),
            Err(error) if error.code() == Some(ErrorCode::Exists) && !flags.exclusive => {
                // If it is gone by now, the next attempt creates it.
                let found = self.backend.lookup(&directory, name);
                let gone = |error: Cause| match error.code() {
                    Some(ErrorCode::NotFound) => ErrorCode::Stale.into(),
                    _ => error,
                };
                let file = self.open_node(found.map_err(gone)?, flags)?;
                Ok((self.backend.attributes(file.inode())?, file))
            }
            Err(error) => Err(error),
        })
        .map_err(Error::from)
    }

    /// Keeps a file that loses its last name until [`FileSystem::release`].
    pub fn hold(&self, number: u64) -> Result<(), Error> {
        Ok(self.backend.hold(&self.node(number)?)?)
    }

    /// Releases `count` holds of an inode.
    pub fn release(&self, number: u64, count: u64) -> Result<(), Error> {
        Ok(self.backend.release(&self.node(number)?, count)?)
    }

    /// Releases holds of several files, by number and count. Those that cannot be released now are released when the session ends.
    pub fn release_all(&self, list: &[(u64, u64)]) -> Result<(), Error> {
        match &self.backend {
            Backend::Remote(remote) => Ok(remote.release_all(list)?),
            Backend::Embedded(_) => {
                let released = list.iter().map(|it| self.release(it.0, it.1));
                released.fold(Ok(()), Result::and)
            }
        }
    }

    /// Whether this session of a cluster holds the file, or has it open. A pool of this process keeps its own count: false.
    pub fn is_held(&self, number: u64) -> bool {
        self.references(number) > 0
    }

    /// How often this session of a cluster holds the file, or has it open. A pool of this process keeps its own count: 0.
    pub fn references(&self, number: u64) -> u64 {
        match &self.backend {
            Backend::Remote(remote) => remote.references(number),
            Backend::Embedded(_) => 0,
        }
    }
}

impl FileSystem {
    #[inline]
    fn node(&self, number: u64) -> Result<Inode, Cause> {
        self.backend.inode(number)
    }

    /// Creates a file and opens it, whatever its permissions are.
    pub(crate) fn create_file(
        &self,
        directory: &Inode,
        name: &[u8],
        new: &NewInode,
        flags: OpenFlags,
    ) -> Result<(File, Attributes), Cause> {
        let (node, attributes) = self.backend.create_held(directory, name, new)?;
        Ok((File::held(self.backend.clone(), node, flags), attributes))
    }

    pub(crate) fn open_unnamed_in(
        &self,
        directory: &Inode,
        new: &NewInode,
        flags: OpenFlags,
    ) -> Result<File, Cause> {
        if !flags.write {
            let sentence = "a file without a name is open for writing";
            return Err(store::Error::InvalidArgument(sentence).into());
        }
        let node = self
            .backend
            .create_unnamed(directory, new, !flags.exclusive)?;
        Ok(File::held(self.backend.clone(), node, flags))
    }

    /// Opens a file that was there before.
    pub(crate) fn open_node(&self, node: Inode, flags: OpenFlags) -> Result<File, Cause> {
        let attributes = self.backend.attributes(&node)?;
        match attributes.kind {
            FileKind::Directory if flags.write || flags.create || flags.truncate => {
                return Err(ErrorCode::IsADirectory.into());
            }
            FileKind::Directory => {}
            _ if flags.directory => return Err(ErrorCode::NotADirectory.into()),
            FileKind::Symlink => return Err(Cause::SymbolicLink),
            FileKind::Regular => {}
            FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharacterDevice
            | FileKind::BlockDevice => {
                return Err(Cause::SpecialFile);
            }
        }
        check_flags(attributes.flags, flags)?;
        let file = File::open(self.backend.clone(), node, flags)?;
        if flags.truncate {
            file.cut(0)?;
        }
        Ok(file)
    }
}

/// Whether a file with flags may be opened in this way. The store checks each change; this reports it early, as Linux
/// does.
fn check_flags(own: FileFlags, flags: OpenFlags) -> Result<(), ErrorCode> {
    let grows = flags.append && !flags.truncate;
    let changes = flags.write || flags.truncate;
    if changes && (own.immutable || own.append_only && !grows) {
        return Err(ErrorCode::Guarded);
    }
    Ok(())
}

/// How often an operation restarts because other threads removed what it had found.
const ATTEMPTS_MAX: u32 = 1000;

/// Repeats `work` as long as the file found by name has been removed when `work` reaches it: then the name is gone too,
/// or has another target. Damage that looks the same ends the attempts.
pub(crate) fn settle<T>(work: impl Fn() -> Result<T, Cause>) -> Result<T, Cause> {
    let mut attempts = 1;
    loop {
        match work() {
            Err(error) if error.code() == Some(ErrorCode::Stale) && attempts < ATTEMPTS_MAX => {
                attempts += 1;
            }
            result => return result,
        }
    }
}
