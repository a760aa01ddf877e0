//! Everything that can go wrong in the store.

use operations::ErrorCode;

/// Reasons why an operation of the store failed. Each message says what failed and, where it helps, what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The directory has no entry with this name.
    #[error("there is no file or directory of this name")]
    NotFound,
    /// The name is taken.
    #[error("a file or directory of this name exists already")]
    Exists,
    /// A directory was needed.
    #[error("this is not a directory")]
    NotADirectory,
    /// Anything but a directory was needed.
    #[error("this is a directory")]
    IsADirectory,
    /// Directories have one name.
    #[error("a directory cannot have a second name; make a symbolic link to it instead")]
    LinkToDirectory,
    /// Only empty directories can be removed or replaced.
    #[error("the directory is not empty")]
    NotEmpty,
    /// Names have at most 255 bytes.
    #[error("the name is longer than 255 bytes")]
    NameTooLong,
    /// The pool has no free block for it.
    #[error("the pool is full; remove files or use a larger pool")]
    NoSpace,
    /// The pool's inode table has no free entry.
    #[error("the pool's inode table is full; remove files or make a pool with more inodes")]
    NoInodes,
    /// An inode can have 65 000 links.
    #[error("the file has the largest number of links already")]
    TooManyLinks,
    /// Files end at 2^62 bytes.
    #[error("the file would be larger than 2^62 bytes")]
    FileTooLarge,
    /// The inode has no extended attribute of this name.
    #[error("there is no extended attribute of this name")]
    NoXattr,
    /// The name of an extended attribute begins with its namespace.
    #[error(
        "extended attributes have names that begin with user., trusted. or security., or are access control lists, \
         which symbolic links do not have"
    )]
    NoNamespace,
    /// Only directories have default lists.
    #[error("only directories have default access control lists")]
    NoDefaultAcl,
    /// Only files and directories have attributes of users.
    #[error("only files and directories have extended attributes of users")]
    NotForUsers,
    /// A flag keeps it from being changed.
    #[error(
        "this is immutable or may only be appended to; clear the flag first, through a mount with `chattr -i -a`"
    )]
    Guarded,
    /// A move within a file in one change must fit into one record.
    #[error("the file is in too many pieces to move them all in one change; copy the file first")]
    TooManyPieces,
    /// An argument that no operation takes.
    #[error("invalid argument: {0}")]
    InvalidArgument(&'static str),
    /// The inode was removed.
    #[error("the file was removed")]
    Stale,
    /// Bytes in the pool are invalid.
    #[error("{what} in block {block} of the image is damaged; run `tako check`")]
    Corrupt {
        /// Kind of the damaged structure.
        what: &'static str,
        /// Number of the 4 KiB block of the image.
        block: u64,
    },
    /// Neither copy of the superblock has the magic number.
    #[error("this is not a Tako pool; make one with `tako mkfs`")]
    NotAPool,
    /// Both copies of the superblock are damaged.
    #[error("both superblocks are damaged: {0}; restore the pool from a copy")]
    DamagedSuperblock(&'static str),
    /// Written by another version.
    #[error(
        "the pool has format version {found}, this program reads version {known}; use the program that made it"
    )]
    WrongVersion {
        /// Version in the pool.
        found: u32,
        /// Version that this program supports.
        known: u32,
    },
    /// A feature that this program must not ignore.
    #[error("the pool uses features {0:#x} that this program does not know; use a newer program")]
    UnknownFeature(u64),
    /// The pool file is shorter than the pool.
    #[error(
        "the pool should have {expected} bytes but has {found}: it was truncated; restore its missing end"
    )]
    Truncated {
        /// Size according to the superblock, in bytes.
        expected: u64,
        /// Size of the file or device, in bytes.
        found: u64,
    },
    /// The other pools of its unit hold the same image.
    #[error(
        "the pool belongs to a storage unit; start `tako serve`, and it resynchronizes from the other members"
    )]
    OfUnit,
    /// Both copies of the ring's state are damaged.
    #[error("the state of the record ring is damaged in both copies; run `tako check`")]
    DamagedRing,
    /// A record from another pool of the unit that this pool does not take.
    #[error("the record at position {number} is refused: {what}")]
    BadRecord {
        /// Where the record was to go.
        number: u64,
        /// Description of the problem.
        what: &'static str,
    },
    /// mkfs was asked for something that cannot work.
    #[error("cannot make a pool: {0}")]
    BadGeometry(&'static str),
}

/// Shorthand for results of the store.
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The code of this error in an outcome.
    pub fn code(&self) -> ErrorCode {
        match self {
            Error::NotFound => ErrorCode::NotFound,
            Error::Exists => ErrorCode::Exists,
            Error::NotADirectory => ErrorCode::NotADirectory,
            Error::IsADirectory => ErrorCode::IsADirectory,
            Error::LinkToDirectory => ErrorCode::LinkToDirectory,
            Error::NotEmpty => ErrorCode::NotEmpty,
            Error::NameTooLong => ErrorCode::NameTooLong,
            Error::NoSpace => ErrorCode::NoSpace,
            Error::NoInodes => ErrorCode::NoInodes,
            Error::TooManyLinks => ErrorCode::TooManyLinks,
            Error::FileTooLarge => ErrorCode::FileTooLarge,
            Error::NoXattr => ErrorCode::NoXattr,
            Error::NoNamespace => ErrorCode::NoNamespace,
            Error::NoDefaultAcl => ErrorCode::NoDefaultAcl,
            Error::NotForUsers => ErrorCode::NotForUsers,
            Error::Guarded => ErrorCode::Guarded,
            Error::TooManyPieces => ErrorCode::TooManyPieces,
            Error::InvalidArgument(_) => ErrorCode::InvalidArgument,
            Error::Stale => ErrorCode::Stale,
            Error::Corrupt { .. } => ErrorCode::Corrupt,
            Error::NotAPool => ErrorCode::NotAPool,
            Error::DamagedSuperblock(_) => ErrorCode::DamagedSuperblock,
            Error::WrongVersion { .. } => ErrorCode::WrongVersion,
            Error::UnknownFeature(_) => ErrorCode::UnknownFeature,
            Error::Truncated { .. } => ErrorCode::Truncated,
            Error::OfUnit => ErrorCode::OfUnit,
            Error::DamagedRing => ErrorCode::DamagedRing,
            Error::BadRecord { .. } => ErrorCode::BadRecord,
            Error::BadGeometry(_) => ErrorCode::BadGeometry,
        }
    }

    /// The error of the store that has this code, `None` for codes of the protocol. Numbers and details in an error do not
    /// travel: they are 0 or general.
    pub fn of_code(code: ErrorCode) -> Option<Error> {
        const DETAILS: &str = "the server reported no details";
        Some(match code {
            ErrorCode::NotFound => Error::NotFound,
            ErrorCode::Exists => Error::Exists,
            ErrorCode::NotADirectory => Error::NotADirectory,
            ErrorCode::IsADirectory => Error::IsADirectory,
            ErrorCode::LinkToDirectory => Error::LinkToDirectory,
            ErrorCode::NotEmpty => Error::NotEmpty,
            ErrorCode::NameTooLong => Error::NameTooLong,
            ErrorCode::NoSpace => Error::NoSpace,
            ErrorCode::NoInodes => Error::NoInodes,
            ErrorCode::TooManyLinks => Error::TooManyLinks,
            ErrorCode::FileTooLarge => Error::FileTooLarge,
            ErrorCode::NoXattr => Error::NoXattr,
            ErrorCode::NoNamespace => Error::NoNamespace,
            ErrorCode::NoDefaultAcl => Error::NoDefaultAcl,
            ErrorCode::NotForUsers => Error::NotForUsers,
            ErrorCode::Guarded => Error::Guarded,
            ErrorCode::TooManyPieces => Error::TooManyPieces,
            ErrorCode::InvalidArgument => Error::InvalidArgument(DETAILS),
            ErrorCode::Stale => Error::Stale,
            ErrorCode::Corrupt => Error::Corrupt {
                what: "a structure",
                block: 0,
            },
            ErrorCode::NotAPool => Error::NotAPool,
            ErrorCode::DamagedSuperblock => Error::DamagedSuperblock(DETAILS),
            ErrorCode::WrongVersion => Error::WrongVersion { found: 0, known: 0 },
            ErrorCode::UnknownFeature => Error::UnknownFeature(0),
            ErrorCode::Truncated => Error::Truncated {
                expected: 0,
                found: 0,
            },
            ErrorCode::OfUnit => Error::OfUnit,
            ErrorCode::DamagedRing => Error::DamagedRing,
            ErrorCode::BadRecord => Error::BadRecord {
                number: 0,
                what: DETAILS,
            },
            ErrorCode::BadGeometry => Error::BadGeometry(DETAILS),
            ErrorCode::Locked
            | ErrorCode::SessionEnded
            | ErrorCode::Again
            | ErrorCode::OtherUnit
            | ErrorCode::Unsupported
            | ErrorCode::Deadlock
            | ErrorCode::TooManyLocks => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_store_leads_to_an_error_and_back() {
        let codes = ErrorCode::ALL.into_iter();
        let own = codes.filter_map(|code| Error::of_code(code).map(|error| (code, error)));
        let own: Vec<_> = own.collect();
        assert!(own.iter().all(|(code, error)| error.code() == *code));
        assert_eq!(own.len(), ErrorCode::BadGeometry as usize);
    }
}
