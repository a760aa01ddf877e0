//! Length and space of a pool's file.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FallocateFlags, Stat};
use rustix::io::Errno;

use crate::Error;

/// The largest pool: half of a process's address space.
pub(crate) const LENGTH_MAX: u64 = 1 << 46;

pub(crate) fn examine(path: &Path, file: &OwnedFd) -> Result<Stat, Error> {
    rustix::fs::fstat(file).map_err(|errno| Error::from_system(path, "examine", errno))
}

/// Gives a file `length` bytes at least, and returns how many it has.
pub(crate) fn reserve(path: &Path, file: &OwnedFd, length: u64) -> Result<u64, Error> {
    let no_space = || Error::NoSpace {
        path: path.to_owned(),
        length,
    };
    // Some file systems keep what they have allocated before they run out of space.
    if length > examine(path, file)?.st_size as u64 + available(path, file)? {
        return Err(no_space());
    }
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length).map_err(
        |errno| match errno {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::NOMEM => no_space(),
            _ => Error::from_system(path, "reserve space for", errno),
        },
    )?;
    // On hugetlbfs the file has become longer, in whole pages.
    Ok(examine(path, file)?.st_size as u64)
}

/// Bytes that are available in the file system. One that tells no size has no limit of its own.
fn available(path: &Path, file: &OwnedFd) -> Result<u64, Error> {
    let space = rustix::fs::fstatvfs(file)
        .map_err(|errno| Error::from_system(path, "examine the file system of", errno))?;
    match space.f_blocks {
        0 => Ok(u64::MAX / 2),
        _ => Ok(space.f_bavail.saturating_mul(space.f_frsize)),
    }
}
