//! userfaultfd(2): faults of a range of addresses as messages, and their resolution.

use std::ffi::c_ulong;
use std::fs::File;
use std::io::{self, Read};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::mapping::PAGE;

const API: u64 = 0xAA;
const FEATURES: u64 = MISSING_SHMEM | MINOR_SHMEM | POISON;
const MISSING_SHMEM: u64 = 1 << 5;
const MINOR_SHMEM: u64 = 1 << 10;
const POISON: u64 = 1 << 14;
/// Faults of pages that the file does not have, and of pages that are only not in the page table.
const MODE_MISSING: u64 = 1;
const MODE_MINOR: u64 = 4;
/// Kind of the message of a fault, its length, and the position of the address in it.
const EVENT_PAGEFAULT: u8 = 0x12;
const MESSAGE_BYTES: usize = 32;
const ADDRESS_AT: usize = 16;

const IOCTL_API: c_ulong = read_write(0x3F, size_of::<Api>());
const IOCTL_REGISTER: c_ulong = read_write(0x00, size_of::<Request>());
const IOCTL_WAKE: c_ulong = 2 << 30 | 16 << 16 | 0xAA << 8 | 0x02;
const IOCTL_CONTINUE: c_ulong = read_write(0x07, size_of::<Request>());
const IOCTL_POISON: c_ulong = read_write(0x08, size_of::<Request>());
/// Of `/dev/userfaultfd`: a new descriptor.
const IOCTL_NEW: c_ulong = 0xAA00;

const fn read_write(number: c_ulong, bytes: usize) -> c_ulong {
    3 << 30 | (bytes as c_ulong) << 16 | 0xAA << 8 | number
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`, `uffdio_continue` and `uffdio_poison`; it begins with `struct uffdio_range`.
#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    mode: u64,
    /// Result: bytes that were resolved, or a negative errno.
    result: i64,
}

/// A descriptor of faults.
pub(super) struct Userfaultfd(File);

impl Userfaultfd {
    /// One without a range. Faults of system calls are reported too where this process may do that, by CAP_SYS_PTRACE or access to
    /// `/dev/userfaultfd`.
    pub fn open() -> io::Result<Userfaultfd> {
        const USER_MODE_ONLY: i32 = 1;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let descriptor = system_call(flags)
            .or_else(|_| from_device(flags))
            .or_else(|_| system_call(flags | USER_MODE_ONLY))?;
        let faults = Userfaultfd(File::from(descriptor));
        let mut api = Api {
            api: API,
            features: FEATURES,
            ioctls: 0,
        };
        // SAFETY: the structure is that of the request, and the kernel writes only there.
        check(unsafe { libc::ioctl(faults.0.as_raw_fd(), IOCTL_API, &raw mut api) })?;
        Ok(faults)
    }

    /// Reports faults of a range of whole pages, a shared mapping of memory of this process.
    pub fn register(&self, start: usize, length: usize) -> io::Result<()> {
        let mode = MODE_MISSING | MODE_MINOR;
        self.request(IOCTL_REGISTER, start, length, mode).1
    }

    /// Enters the pages of a range, which the file has, into the page table, and ends their faults.
    pub fn map(&self, start: usize, length: usize) -> io::Result<()> {
        self.resolve(IOCTL_CONTINUE, start, length)
    }

    /// Makes accesses of a range fail with SIGBUS, and ends their faults.
    pub fn poison(&self, start: usize, length: usize) -> io::Result<()> {
        self.resolve(IOCTL_POISON, start, length)
    }

    /// Repeats the accesses of a range that wait for their faults.
    pub fn wake(&self, start: usize, length: usize) -> io::Result<()> {
        self.request(IOCTL_WAKE, start, length, 0).1
    }

    fn resolve(&self, kind: c_ulong, mut start: usize, length: usize) -> io::Result<()> {
        let end = start + length;
        while start < end {
            let (done, result) = self.request(kind, start, end - start, 0);
            match result {
                Ok(()) => return Ok(()),
                Err(_) if done > 0 => start += done,
                // Another fault of this page was resolved before.
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => start += PAGE,
                // The mapping is being changed by another thread.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn request(
        &self,
        kind: c_ulong,
        start: usize,
        length: usize,
        mode: u64,
    ) -> (usize, io::Result<()>) {
        let mut request = Request {
            start: start as u64,
            length: length as u64,
            mode,
            result: 0,
        };
        // SAFETY: the structure is that of these requests. They change page tables of a registered range only: the kernel refuses
        // any other range, and no byte of the file changes.
        let result = check(unsafe { libc::ioctl(self.0.as_raw_fd(), kind, &raw mut request) });
        (usize::try_from(request.result).unwrap_or(0), result)
    }

    /// Addresses of faults to resolve. None if there are none now.
    pub fn read(&self) -> io::Result<Vec<usize>> {
        let mut messages = [0; 16 * MESSAGE_BYTES];
        let length = match (&self.0).read(&mut messages) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        let messages = messages[..length].chunks_exact(MESSAGE_BYTES);
        let address = |message: &[u8]| {
            let bytes = message[ADDRESS_AT..].first_chunk();
            bytes.map_or(0, |bytes| usize::from_ne_bytes(*bytes))
        };
        let faults = messages.filter(|message| message[0] == EVENT_PAGEFAULT);
        Ok(faults.map(address).collect())
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn system_call(flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes flags only, and returns a new descriptor or an error.
    owned(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) as i32 })
}

fn from_device(flags: i32) -> io::Result<OwnedFd> {
    let device = File::open("/dev/userfaultfd")?;
    // SAFETY: the request takes flags only, and returns a new descriptor or an error.
    owned(unsafe { libc::ioctl(device.as_raw_fd(), IOCTL_NEW, flags) })
}

fn owned(result: i32) -> io::Result<OwnedFd> {
    check(result)?;
    // SAFETY: the kernel has just made it for the caller, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

fn check(result: i32) -> io::Result<()> {
    match result {
        ..0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
