//! Errors, and the one place where an error becomes an errno.

use std::fmt;
use std::path::Path;

use operations::ErrorCode;

use crate::RequestError;

/// A call that failed: the cause, and the path that it was asked for, if by path.
#[derive(Debug)]
pub struct Error {
    cause: Cause,
    path: Option<Box<Path>>,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The store refused or found damage.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The operation failed in a cluster.
    #[error(transparent)]
    Refused(#[from] ErrorCode),
    /// The cluster gave no answer.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The session has ended before the cluster had all writes that were answered early.
    #[error(
        "writes to {files} file(s) that were answered early are lost: the cluster did not take them in time; write these files again"
    )]
    Lost {
        /// Number of files of which writes are lost that neither fsync nor close has reported.
        files: usize,
    },
    /// Two files of one call belong to different file systems.
    #[error("the files are in different file systems; copy instead")]
    OtherFileSystem,
    /// Only a pool of this process can be changed so.
    #[error("a cluster grows by its nodes; run `tako grow` on them")]
    NotEmbedded,
    /// The memory behind the pool could not be used.
    #[error(transparent)]
    Region(#[from] pmem::Error),
    /// Pools do not get smaller.
    #[error("the pool has {now} bytes already, and pools do not shrink; name a larger size")]
    Shrinks {
        /// Bytes that it has.
        now: u64,
    },
    /// More symbolic links than a path may lead through.
    #[error(
        "this leads through more than {} symbolic links; look for a loop among them",
        crate::path::walk::LINKS_MAX
    )]
    TooManySymbolicLinks,
    /// The path is a symbolic link, which was not to be followed.
    #[error("this is a symbolic link, and it was to be opened without following links")]
    SymbolicLink,
    /// The path is longer than any path may be.
    #[error(
        "the path is longer than {} bytes; use a path relative to a nearer directory",
        crate::path::walk::PATH_LENGTH_MAX
    )]
    PathTooLong,
    /// Reading a file that is not open for reading.
    #[error("the file is not open for reading; open it with read access")]
    NotOpenForReading,
    /// Writing a file that is not open for writing.
    #[error("the file is not open for writing; open it with write access")]
    NotOpenForWriting,
    /// The root, `.` or `..` where a name was needed that can be given or taken away.
    #[error(
        "the root directory, '.' and '..' can be neither renamed nor removed; name the entry itself"
    )]
    FixedName,
    /// A pipe, a socket or a device, which the file system does not serve.
    #[error("a pipe, socket or device can only be opened through a mount")]
    SpecialFile,
}

impl Cause {
    /// Why the file system refused the operation, if that is the cause.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Cause::Store(error) => Some(error.code()),
            Cause::Refused(code) => Some(*code),
            _ => None,
        }
    }
}

impl Error {
    /// The error `cause`, met at `path`.
    pub(crate) fn at(path: &Path, cause: impl Into<Cause>) -> Error {
        Error {
            cause: cause.into(),
            path: Some(path.into()),
        }
    }

    /// Why the call failed.
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// Returns the errno for this error: the only mapping there is.
    pub fn errno(&self) -> i32 {
        match &self.cause {
            Cause::Store(error) => code_errno(error.code()),
            Cause::Refused(code) => code_errno(*code),
            Cause::Request(RequestError::Interrupted) => libc::EINTR,
            Cause::Request(_) | Cause::Lost { .. } => libc::EIO,
            Cause::OtherFileSystem => libc::EXDEV,
            Cause::NotEmbedded => libc::EOPNOTSUPP,
            Cause::Region(error) => region_errno(error),
            Cause::TooManySymbolicLinks | Cause::SymbolicLink => libc::ELOOP,
            Cause::PathTooLong => libc::ENAMETOOLONG,
            Cause::NotOpenForReading | Cause::NotOpenForWriting => libc::EBADF,
            Cause::FixedName => libc::EBUSY,
            Cause::SpecialFile => libc::ENXIO,
            Cause::Shrinks { .. } => libc::EINVAL,
        }
    }
}

fn code_errno(code: ErrorCode) -> i32 {
    use ErrorCode::*;
    match code {
        NotFound => libc::ENOENT,
        Exists => libc::EEXIST,
        NotADirectory => libc::ENOTDIR,
        IsADirectory => libc::EISDIR,
        LinkToDirectory | NotForUsers | Guarded => libc::EPERM,
        NotEmpty => libc::ENOTEMPTY,
        NameTooLong => libc::ENAMETOOLONG,
        NoSpace | NoInodes => libc::ENOSPC,
        TooManyLinks => libc::EMLINK,
        FileTooLarge | TooManyPieces => libc::EFBIG,
        InvalidArgument | BadGeometry | BadRecord => libc::EINVAL,
        Stale => libc::ESTALE,
        NoXattr => libc::ENODATA,
        NoNamespace | Unsupported => libc::EOPNOTSUPP,
        NoDefaultAcl => libc::EACCES,
        Corrupt | DamagedSuperblock | Truncated | DamagedRing | SessionEnded => libc::EIO,
        NotAPool => libc::EMEDIUMTYPE,
        OfUnit => libc::EPERM,
        WrongVersion | UnknownFeature => libc::EPROTONOSUPPORT,
        Locked | Again => libc::EAGAIN,
        OtherUnit => libc::EXDEV,
        Deadlock => libc::EDEADLK,
        TooManyLocks => libc::ENOLCK,
    }
}

fn region_errno(error: &pmem::Error) -> i32 {
    use pmem::Error::*;
    match error {
        Busy { .. } => libc::EBUSY,
        NotAPool { .. } => libc::EMEDIUMTYPE,
        Exists { .. } => libc::EEXIST,
        NoSpace { .. } => libc::ENOSPC,
        Permission { .. } => libc::EACCES,
        ReadOnly { .. } => libc::EROFS,
        NotFound { .. } => libc::ENOENT,
        NoHugePages => libc::ENOMEM,
        Length { .. } => libc::EINVAL,
        SharedOnly { .. } | NotShared | Unsealed | NoDemandPaging { .. } => libc::EOPNOTSUPP,
        NoReach { .. } => libc::EFBIG,
        Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
    }
}

impl<C: Into<Cause>> From<C> for Error {
    fn from(cause: C) -> Error {
        Error {
            cause: cause.into(),
            path: None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(formatter, "{}: {}", path.display(), self.cause),
            None => self.cause.fmt(formatter),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.cause)
    }
}
