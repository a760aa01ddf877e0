//! Requests.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Fallocate, FileFlags, FileId, Lock, OwnedNewInode, RenameMode, SetAttributes, WriteAt,
    XattrMode,
};

/// `count` of the outcome of [`Operation::WaitLock`] for a wait that has ended: if it continues, it needs another number.
pub const WAIT_ENDED: u64 = 2;

/// Holds of one file: each keeps the file when it loses its last name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// File that is held.
    pub file: FileId,
    /// Number of times that the session holds the file.
    pub count: u64,
}

/// An operation on files. Each states the contents of its [`Outcome`](crate::Outcome); without a statement it has only
/// the error code.
///
/// `hold` takes one hold of the file found or made, for the session: [`Operation::Hold`] in the same step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Finds a name, also `.` and `..`. Outcome: file, attributes.
    Lookup {
        /// Directory that the operation applies to.
        directory: FileId,
        /// The name in it.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Whether the session takes a hold of the file.
        hold: bool,
    },
    /// Reads the attributes of a file. Outcome: file, attributes.
    Attributes {
        /// File that the operation applies to.
        file: FileId,
    },
    /// Changes attributes, the size among them. Outcome: file, attributes.
    SetAttributes {
        /// File that the operation applies to.
        file: FileId,
        /// Attributes to change, with their new values.
        change: SetAttributes,
    },
    /// Sets the flags that keep a file from being changed.
    SetFlags {
        /// The file or directory.
        file: FileId,
        /// All flags that the file has afterwards.
        flags: FileFlags,
    },
    /// Makes a file, directory, symbolic link or special file; the name must be free. Outcome: file, attributes.
    Create {
        /// Directory that the operation applies to.
        directory: FileId,
        /// The name in it.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// The inode to create.
        new: OwnedNewInode,
        /// Whether the session takes a hold of the file.
        hold: bool,
    },
    /// Makes a file without a name, with one hold. Outcome: file, attributes.
    CreateUnnamed {
        /// In all else it is like a file made in this directory.
        directory: FileId,
        /// The inode to create.
        new: OwnedNewInode,
        /// [`Operation::Link`] may give it a name.
        may_be_named: bool,
    },
    /// Gives a file one more name. Outcome: file, attributes.
    Link {
        /// File that the operation applies to.
        file: FileId,
        /// The directory of the new name.
        directory: FileId,
        /// The new name, of 1 to 255 bytes.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Removes a name of anything but a directory.
    Unlink {
        /// Directory that the operation applies to.
        directory: FileId,
        /// The name in it.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Removes an empty directory.
    RemoveDirectory {
        /// The directory that has the name.
        directory: FileId,
        /// The name in it.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Gives a file a new name in place of an old one, in one change.
    Rename {
        /// Directory that has the old name.
        directory: FileId,
        /// The old name, of 1 to 255 bytes.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Directory that gets the new name.
        new_directory: FileId,
        /// The new name, of 1 to 255 bytes.
        #[serde(with = "serde_bytes")]
        new_name: Vec<u8>,
        /// How to treat an existing new name.
        mode: RenameMode,
    },
    /// Outcome: the link's target as data.
    ReadLink {
        /// The symbolic link.
        file: FileId,
    },
    /// Reads a page of a directory. Outcome: entries. Only the last page has room for one more entry of any name.
    ReadDirectory {
        /// Directory that the operation applies to.
        directory: FileId,
        /// Cookie of the entry before the page, 0 for the start.
        cookie: u64,
        /// Bytes of the page, by [`ListedEntry::page_bytes`](crate::ListedEntry::page_bytes). One entry is always taken.
        length: u32,
        /// Entries come with attributes, except `.`, `..` and those just removed.
        with_attributes: bool,
    },
    /// Outcome: the value as data.
    Xattr {
        /// File that the operation applies to.
        file: FileId,
        /// Name of the attribute.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Outcome: all names of extended attributes.
    XattrNames {
        /// File that the operation applies to.
        file: FileId,
    },
    /// Makes or replaces an extended attribute; access control lists are among them.
    SetXattr {
        /// File that the operation applies to.
        file: FileId,
        /// Name of the attribute.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// New value of the attribute.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
        /// How to treat an existing or a missing attribute.
        mode: XattrMode,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// File that the operation applies to.
        file: FileId,
        /// Name of the attribute.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Removes capabilities, as before a change by another user.
    DropPrivileges {
        /// File that the operation applies to.
        file: FileId,
        /// Also removes the set-user and set-group bits.
        set_id: bool,
    },
    /// Updates the access time if the file changed since, or after a day.
    NoteRead {
        /// The file or directory.
        file: FileId,
        /// Updates it in any case.
        always: bool,
    },
    /// Outcome: data, shorter than asked for only at the end of the file.
    Read {
        /// File that the operation applies to.
        file: FileId,
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        length: u32,
        /// Then [`Operation::NoteRead`], without `always`.
        note_read: bool,
    },
    /// Writes all of the data or nothing. Outcome: `offset` of the first byte, `count` of bytes.
    Write {
        /// File that the operation applies to.
        file: FileId,
        /// Position of the data in the file.
        at: WriteAt,
        /// Bytes to write to the file.
        #[serde(deserialize_with = "crate::encoding::shared")]
        data: Bytes,
        /// First [`Operation::DropPrivileges`], with this `set_id`.
        drop_privileges: Option<bool>,
    },
    /// Allocates, frees or moves the blocks of a range, in bytes.
    Fallocate {
        /// File that the operation applies to.
        file: FileId,
        /// Mode of the change to the range.
        mode: Fallocate,
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Outcome: the first offset from here on that holds data, as position.
    NextData {
        /// File that the operation applies to.
        file: FileId,
        /// Offset, in bytes.
        offset: u64,
    },
    /// Outcome: the first offset from here on in a hole, as position; the end of the file counts as one.
    NextHole {
        /// File that the operation applies to.
        file: FileId,
        /// Offset, in bytes.
        offset: u64,
    },
    /// Outcome: the extent of this offset or the next one behind it.
    NextExtent {
        /// File that the operation applies to.
        file: FileId,
        /// Offset, in bytes.
        offset: u64,
    },
    /// Copies bytes between files, or within one. Outcome: `count` of bytes, which may be fewer.
    CopyRange {
        /// File to copy from.
        file: FileId,
        /// Offset in the source.
        offset: u64,
        /// File to copy to.
        to: FileId,
        /// Offset in the target.
        to_offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Keeps a file that loses its last name until the hold is released or the session ends. Outcome: file, attributes.
    Hold {
        /// File that the operation applies to.
        file: FileId,
    },
    /// Releases holds of the session.
    Release {
        /// The files, with the number of holds.
        holds: Vec<Held>,
    },
    /// Takes a lock, or fails with [`ErrorCode::Locked`](crate::ErrorCode::Locked).
    SetLock {
        /// File that the operation applies to.
        file: FileId,
        /// Kind, range and owner of the lock.
        lock: Lock,
    },
    /// Outcome: the first lock that excludes this one, if any.
    TestLock {
        /// File that the operation applies to.
        file: FileId,
        /// Kind, range and owner of the lock.
        lock: Lock,
    },
    /// Waits for a lock, or continues to wait. Outcome: `count` is 1 if the lock is free now and reserved for its owner, to be
    /// taken by [`Operation::SetLock`]; 0 if it is not free: the owner is notified when it is; and [`WAIT_ENDED`] if the wait of
    /// this number has ended. Fails with [`ErrorCode::Deadlock`](crate::ErrorCode::Deadlock) if the wait would never end.
    WaitLock {
        /// File that the operation applies to.
        file: FileId,
        /// Kind, range and owner of the lock.
        lock: Lock,
        /// Number of the wait in its session, of the client's choice.
        wait: u64,
    },
    /// Ends a wait of the session.
    EndWait {
        /// Number of the wait.
        wait: u64,
    },
    /// Releases the owner's locks of these bytes; the kind has no meaning. Outcome: `count` of locks.
    Unlock {
        /// File that the operation applies to.
        file: FileId,
        /// Range and owner of the lock to release.
        range: Lock,
    },
    /// Releases all locks of the session that were taken by an open file, of both spaces. Outcome: `count` of locks.
    UnlockHandle {
        /// File that the operation applies to.
        file: FileId,
        /// Number of the open file, as in the owner of its locks.
        handle: u64,
    },
    /// Returns when all changes of the file are persistent at all members in sync.
    Sync {
        /// The file or directory.
        file: FileId,
    },
    /// Returns when all changes of the unit are persistent at all members in sync.
    SyncAll,
    /// Outcome: statistics of the unit.
    Statistics,
    /// Adds fresh blocks to the session's grant. Outcome: the whole grant, as data.
    Grant {
        /// Number of blocks.
        blocks: u32,
    },
    /// Frees all blocks of the session's grant.
    Return,
    /// Moves blocks of the session's grant, which hold the data already, into a file.
    Commit {
        /// File that the operation applies to.
        file: FileId,
        /// Offset in the file, a multiple of the block size.
        offset: u64,
        /// The first block in the grant.
        grant_block: u64,
        /// The transfers that brought the data: numbers of the session, the first and the last.
        wr_ids: [u64; 2],
        /// CRC32C of each block.
        checksums: Vec<u32>,
        /// The least size of the file afterwards.
        size: u64,
        /// Whether to drop privileges, as for a write.
        drop_privileges: Option<bool>,
    },
    /// Outcome: the layout of a part of a file, as data.
    Layout {
        /// File that the operation applies to.
        file: FileId,
        /// Offset of the part.
        offset: u64,
        /// Its length, in bytes.
        length: u32,
    },
    /// Ends the session with its locks, holds and grant.
    CloseSession,
}

/// Defines the names of operations; the match is exhaustive, so that a new operation must be listed.
macro_rules! names {
    ($($name:ident)*) => {
        impl Operation {
            /// Names of all operations.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// Returns the operation's name, one of [`Operation::NAMES`].
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Operation::$name { .. } => stringify!($name)),*
                }
            }
        }
    };
}

names! {
    Lookup
    Attributes
    SetAttributes
    SetFlags
    Create
    CreateUnnamed
    Link
    Unlink
    RemoveDirectory
    Rename
    ReadLink
    ReadDirectory
    Xattr
    XattrNames
    SetXattr
    RemoveXattr
    DropPrivileges
    NoteRead
    Read
    Write
    Fallocate
    NextData
    NextHole
    NextExtent
    CopyRange
    Hold
    Release
    SetLock
    TestLock
    WaitLock
    EndWait
    Unlock
    UnlockHandle
    Sync
    SyncAll
    Statistics
    Grant
    Return
    Commit
    Layout
    CloseSession
}
