//! Errors of mounting and unmounting.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Why a directory could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing to mount on.
    #[error("the mount point {} does not exist; create the directory first", .0.display())]
    NoDirectory(PathBuf),
    /// Only directories are mounted on.
    #[error("the mount point {} is not a directory; choose one that is", .0.display())]
    NotADirectory(PathBuf),
    /// The mount point is one already.
    #[error("{} shows {from} already; unmount it first, or choose another directory", directory.display())]
    Taken {
        /// Directory that was to be mounted on.
        directory: PathBuf,
        /// What is mounted there.
        from: String,
    },
    /// The mount is in use.
    #[error("{} is in use; close its files and leave the directory (`fuser -vm` lists the processes), then unmount again", .0.display())]
    Busy(PathBuf),
    /// Nothing of ours to unmount.
    #[error("no Tako file system is mounted at {}; `tako mounts` lists those that are", .0.display())]
    NotMounted(PathBuf),
    /// Unmounted, but the serving process continues.
    #[error("{} is unmounted, but {} stays in use; a container may still show the mount", directory.display(), pool.display())]
    PoolHeld {
        /// Directory that was to be mounted on.
        directory: PathBuf,
        /// Pool that was mounted there.
        pool: PathBuf,
    },
    /// The kernel has no FUSE, or this process may not use it.
    #[error(
        "cannot open /dev/fuse: {0}; load the kernel's module (`modprobe fuse`) or ask for access to the device"
    )]
    NoDevice(io::Error),
    /// The program that mounts for users other than root.
    #[error(
        "cannot run fusermount3, which users other than root need: {0}; install fuse3, or mount as root"
    )]
    NoHelper(io::Error),
    /// fusermount3 refused to mount or unmount.
    #[error(
        "{}: {message}; do it as root, or as the user whose directory and mount it is",
        directory.display()
    )]
    Helper {
        /// Directory that was to be mounted on or unmounted.
        directory: PathBuf,
        /// Message of the program.
        message: String,
    },
    /// An unknown mount option.
    #[error("mount option '{0}' is unknown or lacks a value; known are {known}", known = crate::options::KNOWN)]
    Option(String),
    /// A mount option with a value that it does not take.
    #[error("invalid mount option '{option}'; give {allowed}")]
    OptionValue {
        /// The option and its value.
        option: String,
        /// Values that are allowed.
        allowed: &'static str,
    },
    /// Two mount options that exclude each other.
    #[error("mount options '{option}' and '{other}' exclude each other; give one of them")]
    OptionsConflict {
        /// The first of the two options.
        option: String,
        /// The second of the two options.
        other: &'static str,
    },
    /// A mount option that fusermount3 does not set.
    #[error("mount option '{0}' needs root; mount as root, or leave it out")]
    TakesRoot(&'static str),
    /// A mount option that cannot be changed while mounted.
    #[error(
        "mount option '{0}' cannot be changed by remount; unmount and mount again, or change {known}",
        known = crate::remount::CHANGEABLE.join(", ")
    )]
    NotChangeable(String),
    /// Only root changes mounts.
    #[error("cannot remount {}: only root can do it; unmount it and mount it again with the new options", .0.display())]
    RemountTakesRoot(PathBuf),
    /// The conversation with the kernel could not be started, or broke off.
    #[error("the kernel's FUSE session at {} failed: {source}; see the kernel's log", directory.display())]
    Session {
        /// Directory that the mount showed.
        directory: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// Any other refusal by the system.
    #[error("cannot {what} {}: {source}; check the directory, and the kernel's log", directory.display())]
    System {
        /// The attempted action, as a verb.
        what: &'static str,
        /// Directory that was to be mounted on or unmounted.
        directory: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file system could not be closed after the mount ended.
    #[error("the pool was not closed cleanly: {0}; nothing is lost, its next opening takes longer")]
    Close(client::Error),
    /// Writes that were answered early never reached the cluster.
    #[error(transparent)]
    Lost(client::Error),
}

impl Error {
    /// Returns the error of a mount that failed to close its file system.
    pub(crate) fn closing(error: client::Error) -> Error {
        match error.cause() {
            client::Cause::Lost { .. } => Error::Lost(error),
            _ => Error::Close(error),
        }
    }

    /// The meaning of a system call's failure on `directory` while trying to do `what`.
    pub(crate) fn system(what: &'static str, directory: &Path, errno: Errno) -> Error {
        Error::System {
            what,
            directory: directory.into(),
            source: errno.into(),
        }
    }
}
