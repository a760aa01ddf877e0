//! Transfers bytes between regions and sockets, copied by the kernel alone, and identifies the peer of a Unix socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags};
use smallvec::SmallVec;

use crate::Region;

/// Where bytes come from.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// Memory of this process.
    Bytes(&'a [u8]),
    /// `length` bytes of a region from `offset` on.
    Region {
        /// Region that holds the bytes.
        region: &'a Region,
        /// Offset in the region, in bytes.
        offset: u64,
        /// Length in bytes.
        length: usize,
    },
}

/// Where bytes go to.
pub enum Target<'a> {
    /// Memory of this process.
    Bytes(&'a mut [u8]),
    /// `length` bytes of a region from `offset` on.
    Region {
        /// Region that holds the bytes.
        region: &'a Region,
        /// Offset in the region, in bytes.
        offset: u64,
        /// Length in bytes.
        length: usize,
    },
}

type Vectors = SmallVec<[libc::iovec; 16]>;

/// Sends as much as a connected socket accepts without waiting, and returns that number of bytes.
///
/// # Errors
/// Those of sendmsg(2), `WouldBlock` among them; `Unsupported` for a simulated region.
pub fn send(socket: BorrowedFd<'_>, sources: &[Source<'_>]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if let [Source::Bytes(bytes)] = sources {
        return Ok(rustix::net::send(socket, bytes, flags)?);
    }
    let mut short = [0; SHORT_BYTES];
    if let Some(length) = gather(sources, &mut short) {
        return Ok(rustix::net::send(socket, &short[..length], flags)?);
    }
    let mut vectors = Vectors::new();
    for source in sources {
        vectors.push(match *source {
            Source::Bytes(bytes) => vector(bytes.as_ptr().cast_mut(), bytes.len()),
            Source::Region {
                region,
                offset,
                length,
            } => of_region(region, offset, length)?,
        });
    }
    let message = header(&mut vectors);
    // SAFETY: the vectors point to what `sources` borrows, ranges of regions checked by `address`; the kernel only reads
    // there. Others may change a region's bytes meanwhile: then a mixture is sent, as with any copy out of a region.
    let sent = unsafe {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        libc::sendmsg(socket.as_raw_fd(), &message, flags)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives the available bytes of a connected socket, without waiting, and returns their number: 0 at the end of the
/// stream.
///
/// # Errors
/// Those of recvmsg(2), `WouldBlock` among them; `Unsupported` for a simulated region.
pub fn receive(socket: BorrowedFd<'_>, targets: &mut [Target<'_>]) -> io::Result<usize> {
    if let [Target::Bytes(bytes)] = targets {
        let (received, _) = rustix::net::recv(socket, &mut **bytes, RecvFlags::DONTWAIT)?;
        return Ok(received);
    }
    let mut vectors = Vectors::new();
    for target in targets {
        vectors.push(match target {
            Target::Bytes(bytes) => vector(bytes.as_mut_ptr(), bytes.len()),
            Target::Region {
                region,
                offset,
                length,
            } => of_region(region, *offset, *length)?,
        });
    }
    let mut message = header(&mut vectors);
    // SAFETY: the vectors point to memory that `targets` borrows for writing, or into regions, with checked ranges and
    // without references to their bytes. The kernel writes only there.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

/// Process that connected a Unix socket, or listened at it, as the kernel recorded it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its process; 0 if it is not visible from here.
    pub process: i32,
    /// Effective user of the process.
    pub user: u32,
}

/// Returns the peer of a connected Unix socket.
///
/// # Errors
/// Those of getsockopt(2) for `SO_PEERCRED`.
pub fn credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut found = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    option(socket, libc::SO_PEERCRED, &mut found)?;
    Ok(Credentials {
        process: found.pid,
        user: found.uid,
    })
}

/// A descriptor of the process at the other end of a connected Unix socket.
///
/// # Errors
/// Those of getsockopt(2) for `SO_PEERPIDFD`: `ENOPROTOOPT` before Linux 6.5.
pub fn process(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut descriptor: libc::c_int = -1;
    option(socket, libc::SO_PEERPIDFD, &mut descriptor)?;
    // SAFETY: the kernel made a descriptor for this call, which no other code knows.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Lets a UDP socket of IPv4 send datagrams without a checksum, so that one that is damaged on the way arrives.
///
/// # Errors
/// Those of setsockopt(2).
pub fn send_unchecked(socket: BorrowedFd<'_>) -> io::Result<()> {
    let value: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let from = std::ptr::from_ref(&value).cast();
    // SAFETY: the kernel reads `length` bytes from `value`, which lives until the call has returned.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NO_CHECK,
            from,
            length,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads an option of a socket with a value of plain data.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to where `value` borrows as many, integers both times.
    let done = unsafe {
        let target = std::ptr::from_mut(value).cast();
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            target,
            &mut length,
        )
    };
    match done {
        0 if length as usize == size_of::<T>() => Ok(()),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Up to so many bytes of this process go by a copy: less work for the kernel than a list of where they are.
const SHORT_BYTES: usize = 256;

/// Copies sources together, if they are short; how many bytes that were.
fn gather(sources: &[Source<'_>], short: &mut [u8; SHORT_BYTES]) -> Option<usize> {
    let mut length = 0;
    for source in sources {
        let Source::Bytes(bytes) = source else {
            return None;
        };
        short
            .get_mut(length..length + bytes.len())?
            .copy_from_slice(bytes);
        length += bytes.len();
    }
    Some(length)
}

fn of_region(region: &Region, offset: u64, length: usize) -> io::Result<libc::iovec> {
    match region.address(offset, length) {
        Some(address) => Ok(vector(address, length)),
        None => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "simulated memory has no address that the kernel knows; use a file or memory",
        )),
    }
}

fn vector(address: *mut u8, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: address.cast(),
        iov_len: length,
    }
}

fn header(vectors: &mut Vectors) -> libc::msghdr {
    // SAFETY: `msghdr` is plain data, for which zeros are valid: no name, no control data, no flags.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len();
    message
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_go_from_region_to_region() {
        let (near, far) = UnixStream::pair().unwrap();
        let region = Region::memory(8192, false).unwrap();
        region.write(100, b"persistent");
        let parts = [
            Source::Bytes(b"head"),
            Source::Region {
                region: &region,
                offset: 100,
                length: 10,
            },
        ];
        assert_eq!(send(near.as_fd(), &parts).unwrap(), 14);
        let mut head = [0; 4];
        let mut targets = [
            Target::Bytes(&mut head),
            Target::Region {
                region: &region,
                offset: 4000,
                length: 96,
            },
        ];
        assert_eq!(receive(far.as_fd(), &mut targets).unwrap(), 14);
        let mut copy = [0; 10];
        region.read(4000, &mut copy);
        assert_eq!((&head, &copy), (b"head", b"persistent"));
        let nothing = receive(far.as_fd(), &mut [Target::Bytes(&mut head)]);
        assert_eq!(nothing.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(near);
        let end = receive(far.as_fd(), &mut [Target::Bytes(&mut head)]);
        assert_eq!(end.unwrap(), 0);
    }

    #[test]
    fn the_other_end_is_known() {
        let (near, _far) = UnixStream::pair().unwrap();
        let found = credentials(near.as_fd()).unwrap();
        assert_eq!(found.process as u32, std::process::id());
        assert_eq!(found.user, rustix::process::geteuid().as_raw());
        match process(near.as_fd()) {
            Ok(descriptor) => {
                let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
                let shown = std::fs::read_to_string(path).unwrap();
                assert!(shown.contains(&format!("Pid:\t{}\n", std::process::id())));
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT)),
        }
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(process(other.as_fd()).is_err());
    }
}
