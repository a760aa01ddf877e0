//! A socket: frames come from its receive ring and leave by its transmit ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, xdp_mmap_offsets, xdp_statistics,
};
use rustix::net::xdp::{XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use crate::Descriptor;
use crate::ring::{Consumer, Producer};

/// Counts of frames of a socket that the kernel dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames without room in the receive ring, or too long for a chunk.
    pub dropped: u64,
    /// Frames without memory in the fill ring.
    pub without_memory: u64,
    /// Transmit descriptors that the kernel refused.
    pub refused: u64,
}

/// One receive ring and one transmit ring of a [`Port`](crate::Port).
pub struct Socket {
    // First, so that they are unmapped before the socket closes.
    receive: Consumer<Descriptor>,
    transmit: Producer<Descriptor>,
    descriptor: OwnedFd,
}

/// An AF_XDP socket that is not bound.
pub(crate) fn open() -> rustix::io::Result<OwnedFd> {
    socket_with(
        AddressFamily::XDP,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )
}

impl Socket {
    pub(crate) fn over(descriptor: OwnedFd, size: u32) -> rustix::io::Result<Socket> {
        set_xdp_rx_ring_size(&descriptor, size)?;
        set_xdp_tx_ring_size(&descriptor, size)?;
        let offsets = xdp_mmap_offsets(&descriptor)?;
        let fd = descriptor.as_fd();
        Ok(Socket {
            receive: Consumer::map(fd, XDP_PGOFF_RX_RING, &offsets.rx, size)?,
            transmit: Producer::map(fd, XDP_PGOFF_TX_RING, &offsets.tx, size)?,
            descriptor,
        })
    }

    #[cfg(feature = "fuzzing")]
    pub(crate) fn of(
        receive: Consumer<Descriptor>,
        transmit: Producer<Descriptor>,
        descriptor: OwnedFd,
    ) -> Socket {
        Socket {
            receive,
            transmit,
            descriptor,
        }
    }

    /// Whether a frame has come.
    #[inline]
    pub fn has_come(&self) -> bool {
        !self.receive.is_empty()
    }

    /// The next frame that has come.
    #[inline]
    pub fn receive(&mut self) -> Option<Descriptor> {
        self.receive.pop()
    }

    /// Returns the slots of received frames to the kernel, and lets it continue if it waits for memory.
    pub fn received(&mut self) {
        self.receive.release();
    }

    /// Calls the kernel, which a driver without memory for frames waits for.
    pub fn wake_receiver(&self) {
        let mut nothing = [0u8; 0];
        // Only the call counts, not what comes of it.
        let _ = recv(&self.descriptor, &mut nothing[..], RecvFlags::DONTWAIT);
    }

    /// Whether there is room for so many frames.
    pub fn has_room(&self, count: u32) -> bool {
        self.transmit.room() >= count
    }

    /// Adds a frame to be sent by [`Socket::flush`]; whether there was room.
    #[inline]
    pub fn transmit(&mut self, descriptor: Descriptor) -> bool {
        self.transmit.push(descriptor)
    }

    /// Sends the added frames, as many as the kernel takes now; returns whether it has taken all.
    pub fn flush(&mut self) -> bool {
        self.transmit.publish();
        // The kernel takes a bounded number of frames in a call.
        for _ in 0..64 {
            if self.transmit.pending() == 0 || !self.transmit.needs_wakeup() {
                return self.transmit.pending() == 0;
            }
            match send(&self.descriptor, &[], SendFlags::DONTWAIT) {
                Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
                // The device's queue, or the completion ring, is full, or the interface is down: later.
                Err(_) => return false,
            }
        }
        false
    }

    /// Waits until a frame comes, or one of the other descriptors is readable, so long at most.
    pub fn wait(&self, other: BorrowedFd<'_>, timeout: std::time::Duration) {
        let mut sockets = [
            PollFd::new(&self.descriptor, PollFlags::IN),
            PollFd::from_borrowed_fd(other, PollFlags::IN),
        ];
        let timeout = Timespec::try_from(timeout).ok();
        // An interrupted or failed wait is one that ended early.
        let _ = poll(&mut sockets, timeout.as_ref());
    }

    /// Counts of dropped frames.
    pub fn statistics(&self) -> Statistics {
        xdp_statistics(&self.descriptor).map_or(Statistics::default(), |found| Statistics {
            dropped: found.rx_dropped + found.rx_ring_full.unwrap_or(0),
            without_memory: found.rx_fill_ring_empty_descs.unwrap_or(0),
            refused: found.tx_invalid_descs,
        })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
