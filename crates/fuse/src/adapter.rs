//! Answers the kernel's requests out of a [`FileSystem`].
//!
//! Nothing is kept per open file: every request names its inode, the kernel checks access and says with each write
//! whether it appends, and an unlinked file lives as long as the kernel remembers its inode ([`FileSystem::hold`]).
//! So the kernel is told that opening, flushing and syncing need no requests at all.

mod answers;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use client::{
    Error, FileKind, FileSystem, NewInode, RenameMode, SetAttributes, WriteAt, XattrMode,
};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::MountOptions;
use crate::flags::FlagsCommand;
use crate::translate::{
    errno, fallocate_mode, file_attributes, file_kind, file_type, nanoseconds, nanoseconds_or_now,
};
use answers::{ACCESS_LIST, SET_GROUP, new_inode, nothing_there, owned, reply_empty, reply_xattr};

/// Longest write in one request, in bytes: what the store writes atomically.
const WRITE_LENGTH_MAX: u32 = 1 << 20;
/// Longest copy in one request, in bytes, so that a program can be interrupted between two of them.
const COPY_LENGTH_MAX: u64 = 16 << 20;
/// Read-ahead and asynchronous direct requests that the kernel may have under way.
const BACKGROUND_MAX: u16 = 64;
/// The answer where nothing is kept per open file.
const NO_HANDLE: FileHandle = FileHandle(0);

thread_local! {
    /// Where this thread collects the data of a read before the kernel copies it.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub(crate) struct Adapter {
    file_system: FileSystem,
    /// How long the kernel may keep names and attributes without asking.
    cache: Duration,
    /// Reading changes access times.
    access_times: bool,
    /// The kernel goes without requests for opening files, and for opening directories.
    open_unneeded: bool,
    open_directory_unneeded: bool,
    /// Where the result of closing the file system goes when the session ends.
    closed: Arc<OnceLock<Result<(), Error>>>,
}

impl Adapter {
    pub(crate) fn new(
        file_system: FileSystem,
        options: &MountOptions,
        closed: Arc<OnceLock<Result<(), Error>>>,
    ) -> Adapter {
        Adapter {
            file_system,
            cache: options.cache,
            access_times: options.access_times && !options.read_only,
            open_unneeded: false,
            open_directory_unneeded: false,
            closed,
        }
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ASYNC_DIO
            // The kernel checks permissions by the lists that it finds among the extended attributes. It leaves the umask
            // to us, since a directory's default list may stand in for it.
            | InitFlags::FUSE_POSIX_ACL
            | InitFlags::FUSE_DONT_MASK
            // Without it the kernel asks for the file's capabilities before each write.
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        let offered = config.capabilities();
        let refuse = |_| io::Error::from(io::ErrorKind::Unsupported);
        config.add_capabilities(wanted & offered).map_err(refuse)?;
        self.open_unneeded = offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.open_directory_unneeded = offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        let refuse = |_| io::Error::from(io::ErrorKind::InvalidInput);
        config.set_max_write(WRITE_LENGTH_MAX).map_err(refuse)?;
        let refuse = |_| io::Error::from(io::ErrorKind::InvalidInput);
        config.set_max_background(BACKGROUND_MAX).map_err(refuse)?;
        Ok(())
    }

    fn destroy(&mut self) {
        // The session ends once, so nobody has set this before.
        let _ = self.closed.set(self.file_system.close());
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.file_system.lookup(parent.0, name.as_bytes()) {
            Err(error) if error.errno() == libc::ENOENT => {
                reply.entry(&self.cache, &nothing_there(), Generation(0))
            }
            result => self.reply_entry(result, reply),
        }
    }

    fn forget(&self, _request: &Request, number: INodeNo, count: u64) {
        self.release(number.0, count);
    }

    fn getattr(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        self.reply_attributes(self.file_system.attributes(number.0), reply);
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _changed_macos: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = SetAttributes {
            permissions: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            accessed_ns: accessed.map(nanoseconds_or_now),
            modified_ns: modified.map(nanoseconds_or_now),
            changed_ns: changed.map(nanoseconds),
        };
        let changes_owner = uid.is_some() || gid.is_some();
        let set = || {
            if changes_owner || size.is_some() {
                let set_id = changes_owner || request.uid() != 0;
                self.file_system.drop_privileges(number.0, set_id)?;
            }
            self.file_system.set_attributes(number.0, &change)
        };
        self.reply_attributes(set(), reply);
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        match self.noted(number.0, 0, self.file_system.read_link(number.0)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        match file_kind(mode) {
            Some(kind) => {
                let inode = NewInode {
                    device,
                    ..new_inode(kind, mode, umask)
                };
                self.create_inode(request, parent, name, inode, reply);
            }
            None => reply.error(Errno::EINVAL),
        }
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.create_inode(
            request,
            parent,
            name,
            new_inode(FileKind::Directory, mode, umask),
            reply,
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let inode = NewInode {
            target: target.as_os_str().as_bytes(),
            ..new_inode(FileKind::Symlink, 0o777, 0)
        };
        self.create_inode(request, parent, name, inode, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.file_system.unlink(parent.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(
            self.file_system.remove_directory(parent.0, name.as_bytes()),
            reply,
        );
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            none if none.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            // That the new name is free, if it is to be, the kernel has seen.
            flags if flags - RenameFlags::RENAME_NOREPLACE == RenameFlags::RENAME_WHITEOUT => {
                RenameMode::Whiteout
            }
            _ => return reply.error(Errno::EINVAL),
        };
        let result = self.file_system.rename(
            parent.0,
            name.as_bytes(),
            new_parent.0,
            new_name.as_bytes(),
            mode,
        );
        reply_empty(result, reply);
    }

    fn link(
        &self,
        _request: &Request,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        self.reply_entry(
            self.file_system.link(number.0, parent.0, name.as_bytes()),
            reply,
        );
    }

    fn open(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.open_unneeded {
            reply.error(Errno::ENOSYS);
        } else {
            reply.opened(NO_HANDLE, FopenFlags::FOPEN_KEEP_CACHE);
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let inode = owned(request, new_inode(FileKind::Regular, mode, umask));
        let flags = client::OpenFlags::from_bits(flags);
        let created = self
            .file_system
            .create_open(parent.0, name.as_bytes(), &inode, flags)
            .and_then(|(attributes, _file)| self.held(Ok(attributes)));
        match created {
            Ok(attributes) => reply.created(
                &self.cache,
                &file_attributes(&attributes),
                Generation(attributes.generation.into()),
                NO_HANDLE,
                FopenFlags::FOPEN_KEEP_CACHE,
            ),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let read = self.file_system.read(number.0, offset, &mut buffer[..size]);
            match self.noted(number.0, flags.0, read) {
                Ok(count) => reply.data(&buffer[..count]),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // What comes from the page cache was stored through a mapping: it belongs where it was stored.
        let append =
            flags.0 & libc::O_APPEND != 0 && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let at = if append {
            WriteAt::End
        } else {
            WriteAt::Offset(offset)
        };
        let set_id = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let dropped = self.file_system.drop_privileges(number.0, set_id);
        match dropped.and_then(|()| self.file_system.write(number.0, at, data)) {
            Ok(written) => reply.written(written.length as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        // Everything was persistent when it was answered. The kernel takes this for success, for all time.
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.open_directory_unneeded {
            reply.error(Errno::ENOSYS);
        } else {
            reply.opened(
                NO_HANDLE,
                FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR,
            );
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let result = self
            .file_system
            .read_directory(number.0, offset, &mut |entry| {
                let name = OsStr::from_bytes(&entry.name);
                !reply.add(
                    INodeNo(entry.number),
                    entry.cookie,
                    file_type(entry.kind),
                    name,
                )
            });
        match self.noted(number.0, 0, result) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let filled = self.fill(number.0, offset, &mut reply);
        match self.noted(number.0, 0, filled) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        let statistics = self.file_system.statistics();
        reply.statfs(
            statistics.blocks,
            statistics.blocks_free,
            statistics.blocks_available,
            statistics.inodes,
            statistics.inodes_free,
            statistics.block_size,
            statistics.name_length_max,
            statistics.block_size,
        );
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags & (libc::XATTR_CREATE | libc::XATTR_REPLACE) {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        let name = name.as_bytes();
        let keeps_group = name != ACCESS_LIST || self.may_set_group(request, number.0);
        let set = || {
            if !keeps_group {
                let permissions = self.file_system.attributes(number.0)?.permissions & !SET_GROUP;
                let change = SetAttributes {
                    permissions: Some(permissions),
                    ..SetAttributes::default()
                };
                self.file_system.set_attributes(number.0, &change)?;
            }
            self.file_system.set_xattr(number.0, name, value, mode)
        };
        reply_empty(set(), reply);
    }

    fn getxattr(
        &self,
        _request: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        reply_xattr(
            self.file_system.xattr(number.0, name.as_bytes()),
            size,
            reply,
        );
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        // As in other file systems: who may not read these is not told that they are there.
        let is_shown = |name: &Vec<u8>| request.uid() == 0 || !name.starts_with(b"trusted.");
        let names = self.file_system.xattr_names(number.0).map(|names| {
            let names = names.into_iter().filter(is_shown);
            names.flat_map(|name| [name, vec![0]].concat()).collect()
        });
        reply_xattr(names, size, reply);
    }

    fn removexattr(&self, _request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.file_system.remove_xattr(number.0, name.as_bytes());
        reply_empty(removed, reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        match fallocate_mode(mode) {
            Some(mode) => {
                let dropped = self
                    .file_system
                    .drop_privileges(number.0, request.uid() != 0);
                let allocate = |()| self.file_system.fallocate(number.0, mode, offset, length);
                reply_empty(dropped.and_then(allocate), reply);
            }
            None => reply.error(Errno::EOPNOTSUPP),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        offset: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        to_offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((from.0, offset), (to.0, to_offset));
        let length = length.min(COPY_LENGTH_MAX);
        let copy = || {
            let set_id = request.uid() != 0;
            self.file_system.drop_privileges(to.0, set_id)?;
            let copied = self.file_system.copy_range(from, to, length);
            self.noted(from.0, 0, copied)
        };
        match copy() {
            Ok(count) => reply.written(count as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn ioctl(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        data: &[u8],
        _size: u32,
        reply: ReplyIoctl,
    ) {
        let answer = match FlagsCommand::of(command) {
            Some(FlagsCommand::Get(form)) => self
                .file_system
                .attributes(number.0)
                .map(|attributes| form.encode(attributes.flags)),
            Some(FlagsCommand::Set(form)) => match form.decode(data) {
                // That the caller may do this, the kernel has made sure.
                Some(flags) => {
                    let set = self.file_system.set_flags(number.0, flags);
                    set.map(|()| Vec::new())
                }
                None => return reply.error(Errno::EOPNOTSUPP),
            },
            None => return reply.error(Errno::ENOTTY),
        };
        match answer {
            Ok(data) => reply.ioctl(0, &data),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn lseek(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        let found = match whence {
            libc::SEEK_DATA => self.file_system.next_data(number.0, offset),
            libc::SEEK_HOLE => self.file_system.next_hole(number.0, offset),
            _ => return reply.error(Errno::EINVAL),
        };
        match found {
            Ok(Some(offset)) => reply.offset(offset as i64),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(error) => reply.error(errno(&error)),
        }
    }
}
