//! Why an operation failed.

use serde::{Deserialize, Serialize};

/// Reasons why an operation failed. Each error of the store has a separate code, so that an outcome loses nothing that
/// a caller can act on.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    thiserror::Error,
)]
#[repr(u8)]
pub enum ErrorCode {
    /// The directory has no entry with this name.
    #[error("there is no file or directory of this name")]
    NotFound = 1,
    /// The name is taken.
    #[error("a file or directory of this name exists already")]
    Exists = 2,
    /// A directory was needed.
    #[error("this is not a directory")]
    NotADirectory = 3,
    /// Anything but a directory was needed.
    #[error("this is a directory")]
    IsADirectory = 4,
    /// Directories have one name.
    #[error("a directory cannot have a second name; make a symbolic link to it instead")]
    LinkToDirectory = 5,
    /// Only empty directories can be removed or replaced.
    #[error("the directory is not empty")]
    NotEmpty = 6,
    /// Names have at most 255 bytes.
    #[error("the name is longer than 255 bytes")]
    NameTooLong = 7,
    /// No free block is left in the pool.
    #[error("the pool is full; remove files or use a larger pool")]
    NoSpace = 8,
    /// No free inode is left in the pool.
    #[error("the pool's inode table is full; remove files or make a pool with more inodes")]
    NoInodes = 9,
    /// An inode can have 65 000 links.
    #[error("the file has the largest number of links already")]
    TooManyLinks = 10,
    /// Files end at 2^62 bytes.
    #[error("the file would be larger than 2^62 bytes")]
    FileTooLarge = 11,
    /// The inode has no extended attribute of this name.
    #[error("there is no extended attribute of this name")]
    NoXattr = 12,
    /// The name of an extended attribute begins with its namespace.
    #[error(
        "extended attributes have names that begin with user., trusted. or security., or are access control lists, \
         which symbolic links do not have"
    )]
    NoNamespace = 13,
    /// Only directories pass access control lists on.
    #[error("only directories have default access control lists")]
    NoDefaultAcl = 14,
    /// Special files have no attributes of users.
    #[error("only files and directories have extended attributes of users")]
    NotForUsers = 15,
    /// A flag keeps it from being changed.
    #[error(
        "this is immutable or may only be appended to; clear the flag first, through a mount with `chattr -i -a`"
    )]
    Guarded = 16,
    /// The extents that move in one change must fit into one record.
    #[error("the file is in too many pieces to move them all in one change; copy the file first")]
    TooManyPieces = 17,
    /// An argument that no operation takes.
    #[error("an argument of the operation is invalid")]
    InvalidArgument = 18,
    /// The inode was removed.
    #[error("the file was removed")]
    Stale = 19,
    /// Bytes in the pool are invalid.
    #[error("a block of the pool is damaged; run `tako check` on it")]
    Corrupt = 20,
    /// No magic number in the superblock.
    #[error("this is not a Tako pool; make one with `tako mkfs`")]
    NotAPool = 21,
    /// Both copies of the superblock are damaged.
    #[error("both superblocks are damaged; restore the pool from a copy")]
    DamagedSuperblock = 22,
    /// Written by another version.
    #[error("the pool has another format version; use the program that made it")]
    WrongVersion = 23,
    /// A feature that this program must not ignore.
    #[error("the pool uses features that this program does not know; use a newer program")]
    UnknownFeature = 24,
    /// The pool file is shorter than the pool.
    #[error("the pool was truncated; restore its missing end")]
    Truncated = 25,
    /// The other pools of its unit hold the same image.
    #[error("the pool is one of a storage unit and is not changed by itself")]
    OfUnit = 26,
    /// Both copies of the ring's state are damaged.
    #[error("the state of the record ring is damaged in both copies; run `tako check`")]
    DamagedRing = 27,
    /// A record from another pool of the unit was refused.
    #[error("a record from another pool of the unit is refused")]
    BadRecord = 28,
    /// A geometry that cannot work.
    #[error("cannot make a pool with this geometry")]
    BadGeometry = 29,
    /// A lock of another owner is in the way.
    #[error("another owner holds a lock of these bytes")]
    Locked = 64,
    /// The session has ended, and its locks and holds are gone.
    #[error("the session has ended; open the file system again")]
    SessionEnded = 65,
    /// Data that a commit names is not where it should be.
    #[error("data did not arrive; send it again")]
    Again = 66,
    /// The operation names files of several units.
    #[error("the files are in different units; copy instead")]
    OtherUnit = 67,
    /// The receiver does not execute this operation.
    #[error("the server does not support this operation")]
    Unsupported = 68,
    /// The wait would never end.
    #[error(
        "the owner of a lock in the way waits for a lock of the same owner; release one of them"
    )]
    Deadlock = 69,
    /// The primary keeps no more locks and waits in its memory.
    #[error("too many locks are held or waited for; release some")]
    TooManyLocks = 70,
}

impl ErrorCode {
    /// All codes, in the order of their numbers.
    pub const ALL: [ErrorCode; 36] = {
        use ErrorCode::*;
        [
            NotFound,
            Exists,
            NotADirectory,
            IsADirectory,
            LinkToDirectory,
            NotEmpty,
            NameTooLong,
            NoSpace,
            NoInodes,
            TooManyLinks,
            FileTooLarge,
            NoXattr,
            NoNamespace,
            NoDefaultAcl,
            NotForUsers,
            Guarded,
            TooManyPieces,
            InvalidArgument,
            Stale,
            Corrupt,
            NotAPool,
            DamagedSuperblock,
            WrongVersion,
            UnknownFeature,
            Truncated,
            OfUnit,
            DamagedRing,
            BadRecord,
            BadGeometry,
            Locked,
            SessionEnded,
            Again,
            OtherUnit,
            Unsupported,
            Deadlock,
            TooManyLocks,
        ]
    };

    /// The code of this byte. 0 is no code: it means success where a byte gives the result of an operation.
    pub fn from_byte(byte: u8) -> Option<ErrorCode> {
        Self::ALL.into_iter().find(|code| *code as u8 == byte)
    }
}
