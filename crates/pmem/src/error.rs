//! Errors of making a region. Once it exists, no operation on it fails.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Why a region could not be created or opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process, or another region of this process, holds the pool.
    #[error(
        "pool {} is in use; unmount it, or stop the process that holds it (`fuser` names it), and try again",
        path.display()
    )]
    Busy {
        /// Path of the pool.
        path: PathBuf,
    },
    /// The path leads to something that cannot hold a pool.
    #[error(
        "{} is {kind}, not a pool; give a pool file or a DAX device",
        path.display()
    )]
    NotAPool {
        /// Path that was given.
        path: PathBuf,
        /// What was found instead, with its article.
        kind: &'static str,
    },
    /// The pool to create is already there.
    #[error(
        "{} already exists; remove it first or choose another path",
        path.display()
    )]
    Exists {
        /// Path that was given.
        path: PathBuf,
    },
    /// The file system or the memory is too full.
    #[error(
        "there is no room for {length} bytes at {}; free some space or make the pool smaller",
        path.display()
    )]
    NoSpace {
        /// Path of the pool.
        path: PathBuf,
        /// Requested length, in bytes.
        length: u64,
    },
    /// This user may not use the pool.
    #[error(
        "permission to use {} is denied; check its owner and mode, and those of the directories above it",
        path.display()
    )]
    Permission {
        /// Path of the pool.
        path: PathBuf,
    },
    /// The pool lies on a file system that is mounted read-only.
    #[error(
        "{} is on a read-only file system; mount the pool with -o ro, or remount that file system read-write",
        path.display()
    )]
    ReadOnly {
        /// Path of the pool.
        path: PathBuf,
    },
    /// There is nothing at the path, or no directory to create it in.
    #[error(
        "{} does not exist; check the path, or create the pool first",
        path.display()
    )]
    NotFound {
        /// Path that was given.
        path: PathBuf,
    },
    /// The kernel has too few free huge pages.
    #[error(
        "there are not enough free huge pages; raise /proc/sys/vm/nr_hugepages or do without them"
    )]
    NoHugePages,
    /// The length is zero or more than can be addressed.
    #[error(
        "{}: a pool must have 1–2^46 bytes, got {length}",
        path.display()
    )]
    Length {
        /// Path of the pool.
        path: PathBuf,
        /// Requested length, in bytes.
        length: u64,
    },
    /// It cannot grow so far while it is open.
    #[error(
        "pool {} cannot grow to {length} bytes while it is open, but to {most} at most; close or unmount it first",
        path.display()
    )]
    NoReach {
        /// Path of the pool.
        path: PathBuf,
        /// Requested length, in bytes.
        length: u64,
        /// Bytes that it has addresses for.
        most: u64,
    },
    /// A DAX device has no copy-on-write mapping.
    #[error(
        "DAX device {} cannot be mapped copy-on-write; copy it to a file and open that",
        path.display()
    )]
    SharedOnly {
        /// Path of the device.
        path: PathBuf,
    },
    /// Memory of another process that it could shorten while it is mapped here.
    #[error(
        "shared memory can shrink while it is used: it is not sealed; its owner must seal it (F_SEAL_SHRINK)"
    )]
    Unsealed,
    /// Simulated memory, and the stores to a copy-on-write mapping, are this process's own. What another process has shared is
    /// that one's to share.
    #[error(
        "simulated memory, copy-on-write mappings and memory of other processes cannot be shared with another process; use a \
         file or memory of this one"
    )]
    NotShared,
    /// The kernel does not report page faults to this process.
    #[error(
        "memory cannot be filled on demand: userfaultfd(2) failed: {source}; use Linux 6.6 or later where it is not disabled, or \
         read instead of mapping"
    )]
    NoDemandPaging {
        /// Error of the system.
        source: std::io::Error,
    },
    /// Any other failure of the system.
    #[error(
        "cannot {what} {}: {source}; check the file system and the kernel's log",
        path.display()
    )]
    Io {
        /// Path of the pool.
        path: PathBuf,
        /// The attempted action, as a verb: "map".
        what: &'static str,
        /// Error of the system.
        source: std::io::Error,
    },
}

impl Error {
    /// The meaning of a system call's failure on `path` while trying to do `what`.
    pub(crate) fn from_system(path: &Path, what: &'static str, errno: Errno) -> Error {
        let path = path.to_owned();
        match errno {
            Errno::NOENT | Errno::NOTDIR => Error::NotFound { path },
            Errno::EXIST => Error::Exists { path },
            Errno::ACCESS | Errno::PERM => Error::Permission { path },
            Errno::ROFS => Error::ReadOnly { path },
            Errno::ISDIR => Error::NotAPool {
                path,
                kind: "a directory",
            },
            Errno::NXIO => Error::NotAPool {
                path,
                kind: "a socket or a device without a driver",
            },
            _ => Error::Io {
                path,
                what,
                source: errno.into(),
            },
        }
    }
}
