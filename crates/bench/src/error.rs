//! Errors of a benchmark.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Why the benchmarks ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pool that is measured failed.
    #[error("the measured pool failed: {0}")]
    Tako(#[from] client::Error),
    /// The memory for a pool could not be had.
    #[error("cannot allocate memory for the measurement: {0}")]
    Memory(#[from] pmem::Error),
    /// A call that is the limit of a row failed.
    #[error("a call on tmpfs, to compare with, failed: {0}")]
    Limit(#[from] Errno),
    /// A file or directory could not be made or removed.
    #[error("{path}: {source}; choose a directory that can be written")]
    Directory {
        /// Name of the measurement.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The pool that is measured could not be opened.
    #[error("the measured pool failed: {0}")]
    Pool(#[from] store::Error),
    /// A read or write did less than it was asked to, with all the file there.
    #[error("{done} bytes were read or written instead of {wanted}; is the pool or /dev/shm full?")]
    Short {
        /// Bytes that it transferred.
        done: usize,
        /// Bytes it was asked for.
        wanted: usize,
    },
    /// The transport that is measured failed.
    #[error("the measured transport failed: {0}")]
    Fabric(String),
    /// A socket to compare with failed.
    #[error("a socket, to compare with, failed: {0}")]
    Socket(#[from] std::io::Error),
    /// The mount that is measured failed.
    #[error("the measured mount failed: {0}")]
    Mount(String),
    /// No measurement has this text in its name.
    #[error("no measurement has '{0}' in its name or its group's; without a name all of them run")]
    NoWorkload(String),
    /// No transport that can be tuned has this text in its name.
    #[error(
        "no transport that can be tuned has '{name}' in its name; choose one of {names}, or none for all of them"
    )]
    NotTuned {
        /// Text that was given to select transports.
        name: String,
        /// Names of the transports that can be tuned.
        names: String,
    },
}

impl From<fabric::Error> for Error {
    fn from(error: fabric::Error) -> Error {
        Error::Fabric(error.to_string())
    }
}

impl Error {
    pub(crate) fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        |source| Error::Directory {
            path: path.to_owned(),
            source,
        }
    }
}

/// Checks that a read or write did all of it.
#[inline]
pub(crate) fn whole(done: usize, wanted: usize) -> Result<(), Error> {
    if done == wanted {
        Ok(())
    } else {
        Err(Error::Short { done, wanted })
    }
}
