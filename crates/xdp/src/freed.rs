//! Waits until the kernel has freed a queue that an ended process has used.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{Errno, Result};
use rustix::net::xdp::SocketAddrXdp;

/// Time limit for the kernel.
pub const WITHIN: Duration = Duration::from_secs(5);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// Binds a socket to a queue of an interface that this process has attached its program to. If another process used the queue, its
/// program would be attached, so a busy queue is one that is not freed yet.
pub fn bind(socket: &OwnedFd, address: &SocketAddrXdp, until: Instant) -> Result<()> {
    loop {
        match rustix::net::bind(socket, address) {
            Err(Errno::BUSY) if Instant::now() < until => thread::sleep(PAUSE),
            bound => return bound,
        }
    }
}
