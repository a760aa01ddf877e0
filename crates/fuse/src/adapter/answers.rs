//! What the answers to several requests have in common.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

use client::{Attributes, Entry, Error, FileKind, NewInode};
use fuser::{
    Errno, FileAttr, FileType, Generation, INodeNo, ReplyAttr, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyXattr, Request,
};

use super::Adapter;
use crate::translate::{errno, file_attributes, further_groups};

/// The extended attribute with a file's access control list.
pub(super) const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The set-group bit of a mode.
pub(super) const SET_GROUP: u32 = 0o2000;
/// Entries of a directory that are looked up at a time.
const ENTRIES_BATCH: usize = 64;

impl Adapter {
    /// Answers with a file that the kernel will remember until it says forget.
    pub(super) fn reply_entry(&self, result: Result<Attributes, Error>, reply: ReplyEntry) {
        match self.held(result) {
            Ok(attributes) => {
                reply.entry(
                    &self.cache,
                    &file_attributes(&attributes),
                    Generation(attributes.generation.into()),
                );
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    pub(super) fn reply_attributes(&self, result: Result<Attributes, Error>, reply: ReplyAttr) {
        match result {
            Ok(attributes) => reply.attr(&self.cache, &file_attributes(&attributes)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Whether the set-group bit of a file stays when the caller changes its mode by a list, as with chmod: root's does,
    /// and that of who is in the file's group.
    pub(super) fn may_set_group(&self, request: &Request, number: u64) -> bool {
        let Ok(attributes) = self.file_system.attributes(number) else {
            return false;
        };
        attributes.permissions & SET_GROUP == 0
            || request.uid() == 0
            || request.gid() == attributes.gid
            || further_groups(request.pid()).contains(&attributes.gid)
    }

    pub(super) fn held(&self, result: Result<Attributes, Error>) -> Result<Attributes, Error> {
        let attributes = result?;
        self.file_system.hold(attributes.number)?;
        Ok(attributes)
    }

    /// Notes a read that succeeded, unless access times are not wanted.
    pub(super) fn noted<T>(
        &self,
        number: u64,
        flags: i32,
        result: Result<T, Error>,
    ) -> Result<T, Error> {
        let value = result?;
        if self.access_times && flags & libc::O_NOATIME == 0 {
            self.file_system.note_read(number)?;
        }
        Ok(value)
    }

    /// An inode that the kernel forgets cannot fail to be given back in any way that it could act on.
    pub(super) fn release(&self, number: u64, count: u64) {
        let _ = self.file_system.release(number, count);
    }

    pub(super) fn create_inode(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        inode: NewInode,
        reply: ReplyEntry,
    ) {
        let inode = owned(request, inode);
        self.reply_entry(
            self.file_system.create(parent.0, name.as_bytes(), &inode),
            reply,
        );
    }

    /// Adds entries with their attributes from `cookie` on, until the answer is full or the directory ends.
    pub(super) fn fill(
        &self,
        directory: u64,
        mut cookie: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<(), Error> {
        loop {
            // The directory is not asked about its files while it is being read: it is locked then.
            let mut batch: Vec<Entry> = Vec::with_capacity(ENTRIES_BATCH);
            self.file_system
                .read_directory(directory, cookie, &mut |entry| {
                    let room = batch.len() < ENTRIES_BATCH;
                    if room {
                        batch.push(entry.clone());
                    }
                    room
                })?;
            for entry in &batch {
                if self.add_plus(entry, reply) {
                    return Ok(());
                }
                cookie = entry.cookie;
            }
            if batch.len() < ENTRIES_BATCH {
                return Ok(());
            }
        }
    }

    /// Adds one entry with its attributes; true if there was no room for it. The kernel remembers what it gets here,
    /// apart from `.` and `..`.
    pub(super) fn add_plus(&self, entry: &Entry, reply: &mut ReplyDirectoryPlus) -> bool {
        let remembered = entry.name != b"." && entry.name != b"..";
        let attributes = self.file_system.attributes(entry.number);
        let Ok(attributes) = (if remembered {
            self.held(attributes)
        } else {
            attributes
        }) else {
            // Removed since the directory was read.
            return false;
        };
        let full = reply.add(
            INodeNo(entry.number),
            entry.cookie,
            OsStr::from_bytes(&entry.name),
            &self.cache,
            &file_attributes(&attributes),
            Generation(attributes.generation.into()),
        );
        if full && remembered {
            self.release(entry.number, 1);
        }
        full
    }
}

pub(super) fn reply_empty(result: Result<(), Error>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

/// Answers with bytes, or, where none are wanted yet, with how many there are.
pub(super) fn reply_xattr(result: Result<Vec<u8>, Error>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() <= size as usize => reply.data(&bytes),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(error) => reply.error(errno(&error)),
    }
}

/// What to create, but for its owner, which the request says.
pub(super) fn new_inode(kind: FileKind, mode: u32, umask: u32) -> NewInode<'static> {
    NewInode {
        umask,
        ..NewInode::new(kind, mode & 0o7777)
    }
}

/// The same with the owner.
pub(super) fn owned<'a>(request: &Request, inode: NewInode<'a>) -> NewInode<'a> {
    NewInode {
        uid: request.uid(),
        gid: request.gid(),
        ..inode
    }
}

/// The answer to a lookup that found nothing, which the kernel then remembers.
pub(super) fn nothing_there() -> FileAttr {
    let never = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: never,
        mtime: never,
        ctime: never,
        crtime: never,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}
