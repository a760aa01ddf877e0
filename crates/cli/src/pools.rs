//! Opening pools.

use std::path::Path;

use client::{Cause, Error, FileSystem};

use crate::failure::{Failure, Outcome};

/// Opens a pool without ever writing to it. A DAX device cannot be mapped in such a way and is opened as a mount
/// would open it.
pub fn open_to_read(pool: &Path) -> Result<FileSystem, Failure> {
    let opened = match FileSystem::open_pool_private(pool) {
        Err(error) if matches!(error.cause(), Cause::Region(pmem::Error::SharedOnly { .. })) => {
            FileSystem::open_pool(pool)
        }
        result => result,
    };
    Ok(opened?)
}

/// Opens a pool for changes; [`close`] it afterwards.
pub fn open_to_change(pool: &Path) -> Result<FileSystem, Failure> {
    Ok(FileSystem::open_pool(pool)?)
}

/// Opens a pool for `work`, and closes it also when the work fails.
pub fn change(pool: &Path, work: impl FnOnce(&FileSystem) -> Outcome) -> Outcome {
    let file_system = open_to_change(pool)?;
    let outcome = work(&file_system);
    outcome.and(close(&file_system, pool))
}

/// Closes a pool that was opened for changes.
pub fn close(file_system: &FileSystem, pool: &Path) -> Outcome {
    let explain = |error: Error| Failure::at(pool.display(), &error);
    file_system.close().map_err(explain)
}

/// Whether two paths lead to one pool.
pub fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}
