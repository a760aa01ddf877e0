//! Groups of an interface.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{Error, Hardware, Interface};

/// The interface takes frames for a group's address, until this is dropped.
#[derive(Debug)]
pub struct Membership {
    _socket: OwnedFd,
}

impl Membership {
    /// Joins the group with a hardware address.
    ///
    /// # Errors
    /// [`Error::Permission`], [`Error::System`].
    pub fn join(interface: &Interface, group: Hardware) -> Result<Membership, Error> {
        let failed = || {
            let error = io::Error::last_os_error();
            Error::system("join a group at", &interface.name, error)
        };
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is passed. Protocol 0: nothing is received by this socket.
        let number = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if number < 0 {
            return Err(failed());
        }
        // SAFETY: the kernel has just made it for this process.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        let mut address = [0; 8];
        address[..6].copy_from_slice(&group.0);
        let request = libc::packet_mreq {
            mr_ifindex: interface.index as i32,
            mr_type: libc::PACKET_MR_MULTICAST as u16,
            mr_alen: 6,
            mr_address: address,
        };
        // SAFETY: the request outlives the call and has the given length.
        let joined = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const request).cast(),
                size_of_val(&request) as libc::socklen_t,
            )
        };
        match joined {
            0 => Ok(Membership { _socket: socket }),
            _ => Err(failed()),
        }
    }
}
