//! The kernel's FUSE device, as far as using it takes `unsafe`: further descriptors for threads that read it
//! ([`clone_descriptor`]), and queues over io_uring, by which the kernel hands each request to a thread of the
//! processor that made it ([`Queue`]); and which threads run first ([`set_background`]).
//!
//! The crate `fuse` interprets requests and answers. Nothing that comes from the kernel is trusted here except the
//! number of bytes it reports to have written, which is bounded.

mod memory;
mod priority;
mod queue;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub use priority::set_background;
pub use queue::{Exchange, Later, NUDGE_NAME, Queue, RequestSlot, Scheduling, Stop};

/// Bytes that hold the head of a request and later that of its answer (`in_out` of `struct fuse_uring_req_header`).
pub const HEADER: usize = 128;
/// Bytes that hold the fixed part of a request (`op_in` of the same).
pub const ARGUMENT: usize = 128;

/// `FUSE_DEV_IOC_CLONE` of `linux/fuse.h`: attaches an open of the device to another one's session.
const CLONE: libc::c_ulong = 0x8004_e500;

/// A further descriptor of the session of `device`, with separate requests in flight: an answer goes to the descriptor
/// that its request was read from.
pub fn clone_descriptor(device: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: the path is a string that ends in a zero byte.
    let clone = unsafe { libc::open(c"/dev/fuse".as_ptr(), flags) };
    if clone < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above has made this descriptor, and no other code knows it.
    let clone = unsafe { OwnedFd::from_raw_fd(clone) };
    let session = device.as_raw_fd() as u32;
    // SAFETY: the request reads 4 bytes, which live until it returns.
    match unsafe { libc::ioctl(clone.as_raw_fd(), CLONE, &raw const session) } {
        0 => Ok(clone),
        _ => Err(io::Error::last_os_error()),
    }
}
