//! Marks of shared memory: a mark lasts exactly as long as any process can reach the memory through the shared
//! descriptor.
//!
//! A mark is a lock of the open file ([`F_OFD_SETLK`](https://man7.org/linux/man-pages/man2/fcntl_locking.2.html)) on one
//! byte far behind every pool. Descriptors that are passed on or duplicated, and mappings, all hold the open file: the
//! kernel removes the lock with the last of them, however their processes end. So a process that opens the pool later sees
//! the marks of its predecessor's peers.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

/// Where the bytes of marks begin: no pool is so long.
const START: u64 = 1 << 62;
/// Number of distinct marks. Two on the same byte last as long as the longer one, which does no harm.
const COUNT: u64 = 1 << 61;

fn request(mark: u64, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: (START + mark % COUNT) as i64,
        l_len: 1,
        l_pid: 0,
    }
}

fn control(file: &OwnedFd, command: libc::c_int, request: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: the command takes a pointer to such a structure, which lives as long as the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(request)) } {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}

/// Marks an open file. Any number of open files can have the same mark.
pub fn set(file: &OwnedFd, mark: u64) -> Result<(), Errno> {
    control(file, libc::F_OFD_SETLK, &mut request(mark, libc::F_RDLCK))
}

/// Whether another open file of the same pool has the mark.
pub fn is_set(file: &OwnedFd, mark: u64) -> Result<bool, Errno> {
    let mut found = request(mark, libc::F_WRLCK);
    control(file, libc::F_OFD_GETLK, &mut found)?;
    Ok(found.l_type != libc::F_UNLCK as libc::c_short)
}
