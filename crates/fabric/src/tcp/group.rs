//! Groups: datagrams over IP multicast, one for each message. Lost ones are not repeated.
//!
//! ```text
//! datagram:  0        4           8        12
//!            ┌────────┬───────────┬────────┬─────────
//!            │ magic  │ immediate │ sender │ data …
//!            └────────┴───────────┴────────┴─────────
//! ```

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};

use pmem::socket::{self, Source, Target};
use rustix::net::{self, sockopt};
use smallvec::SmallVec;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::input::Supplied;
use super::{Counts, count, sockets};
use crate::transport::Arrival;
use crate::{GroupAddress, GroupId, Origin, Report};

/// The longest message: with the heads of IP, UDP and groups it fills a packet of Ethernet's 1500 bytes.
pub const MESSAGE_BYTES: usize = 1500 - 20 - 8 - HEAD_BYTES;
/// Raised with the format.
const MAGIC: u32 = u32::from_le_bytes(*b"Tak2");
pub const HEAD_BYTES: usize = size_of::<Head>();
/// Datagrams that are taken before others have their turn.
const TURNS: usize = 32;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: U32,
    immediate: U32,
    /// Random number of the member that sends. Each member drops datagrams with its own number.
    sender: U32,
}

/// The immediate and the sender of a datagram. Nothing if it is none of ours.
pub fn parse(bytes: &[u8]) -> Option<(u32, u32)> {
    let (head, data) = Head::ref_from_prefix(bytes).ok()?;
    let fits = head.magic.get() == MAGIC && data.len() <= MESSAGE_BYTES;
    fits.then_some((head.immediate.get(), head.sender.get()))
}

/// Bytes of a receiver's socket, as far as the system allows.
const BUFFER_BYTES: usize = 4 << 20;
/// What the system counts for one datagram, at most.
const DATAGRAM_BYTES: usize = 4 << 10;

fn listen(group: SocketAddrV4, interface: Ipv4Addr) -> io::Result<OwnedFd> {
    let receiver = sockets::datagrams()?;
    sockopt::set_socket_reuseaddr(&receiver, true)?;
    net::bind(&receiver, &group)?;
    // Only a privileged process may have more than the system's usual limit.
    if sockopt::set_socket_recv_buffer_size_force(&receiver, BUFFER_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&receiver, BUFFER_BYTES)?;
    }
    sockopt::set_ip_add_membership(&receiver, group.ip(), &interface)?;
    Ok(receiver)
}

fn room(receiver: &OwnedFd) -> io::Result<u32> {
    Ok((sockopt::socket_recv_buffer_size(receiver)? / DATAGRAM_BYTES).max(1) as u32)
}

/// A group that was joined.
pub struct Group {
    pub id: GroupId,
    /// Bound to the group's address and port, so that nothing else is received. None if nothing is to be received.
    pub receiver: Option<OwnedFd>,
    /// Datagrams that the receiver's socket holds, at least.
    pub room: u32,
    sender: OwnedFd,
    own: u32,
}

impl Group {
    pub fn join(id: GroupId, address: GroupAddress) -> io::Result<Group> {
        let GroupAddress {
            address,
            port,
            interface,
            listens,
            is_unchecked,
        } = address;
        let group = SocketAddrV4::new(address, port);
        let receiver = match listens {
            true => Some(listen(group, interface)?),
            false => None,
        };
        let room = receiver.as_ref().map_or(Ok(0), room)?;
        let sender = sockets::datagrams()?;
        if is_unchecked {
            socket::send_unchecked(sender.as_fd())?;
        }
        sockopt::set_ip_multicast_if(&sender, &interface)?;
        // Other processes of this host may be members.
        sockopt::set_ip_multicast_loop(&sender, true)?;
        if interface != Ipv4Addr::UNSPECIFIED {
            net::bind(&sender, &SocketAddrV4::new(interface, 0))?;
        }
        net::connect(&sender, &group)?;
        Ok(Group {
            id,
            receiver,
            room,
            sender,
            own: crate::random() as u32,
        })
    }

    /// Sends a message, if the system takes it.
    pub fn send(&self, from: &crate::Source<'_>, immediate: u32) {
        let head = Head {
            magic: MAGIC.into(),
            immediate: immediate.into(),
            sender: self.own.into(),
        };
        let mut sources: SmallVec<[Source<'_>; 18]> = SmallVec::new();
        sources.push(Source::Bytes(head.as_bytes()));
        match from {
            crate::Source::Inline(bytes) => sources.push(Source::Bytes(bytes)),
            crate::Source::Pieces(pieces) => {
                sources.extend(pieces.iter().map(|piece| Source::Region {
                    region: piece.registration.region(),
                    offset: piece.offset,
                    length: piece.length as usize,
                }));
            }
        }
        // A datagram that the system has no room for is lost, as it may be on the way.
        let _ = socket::send(self.sender.as_fd(), &sources);
    }

    /// Takes the datagrams that have come.
    pub fn receive(&self, free: &mut Vec<Supplied>, counts: &Counts, reports: &mut Vec<Report>) {
        for turn in 0..TURNS {
            if turn > 0 && free.is_empty() {
                // The others wait until buffers are back.
                return;
            }
            let mut head = [0; HEAD_BYTES];
            let buffer = free.last();
            let Ok(taken) = self.datagram(&mut head, buffer) else {
                return;
            };
            let Some((immediate, sender)) = parse(&head[..HEAD_BYTES.min(taken)]) else {
                count(&counts.strange);
                continue;
            };
            let length = taken - HEAD_BYTES;
            if sender == self.own {
                continue;
            }
            let fits = |buffer: &Supplied| length <= MESSAGE_BYTES.min(buffer.length as usize);
            let arrival = match buffer {
                _ if length == 0 => None,
                Some(buffer) if fits(buffer) => Some(Arrival {
                    buffer: buffer.supply,
                    start: 0,
                    length: length as u32,
                }),
                Some(_) => {
                    count(&counts.strange);
                    continue;
                }
                None => {
                    count(&counts.unbuffered);
                    continue;
                }
            };
            if arrival.is_some() {
                free.pop();
            }
            reports.push(Report::Received {
                origin: Origin::Group(self.id),
                buffer: arrival,
                immediate: Some(immediate),
            });
        }
    }

    /// Takes one datagram, and returns how long it was, up to one byte more than there is room for. Without a buffer its
    /// data is cut off.
    fn datagram(
        &self,
        head: &mut [u8; HEAD_BYTES],
        buffer: Option<&Supplied>,
    ) -> io::Result<usize> {
        let mut beyond = [0; 1];
        let mut targets: SmallVec<[Target<'_>; 3]> = SmallVec::new();
        targets.push(Target::Bytes(head));
        if let Some(buffer) = buffer {
            targets.push(Target::Region {
                region: buffer.registration.region(),
                offset: buffer.offset,
                length: buffer.length as usize,
            });
        }
        targets.push(Target::Bytes(&mut beyond));
        let receiver = self.receiver.as_ref().ok_or(io::ErrorKind::WouldBlock)?;
        socket::receive(receiver.as_fd(), &mut targets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_that_are_none_of_ours_are_known() {
        let head = Head {
            magic: MAGIC.into(),
            immediate: 7.into(),
            sender: 9.into(),
        };
        assert_eq!(size_of::<Head>(), 12);
        assert_eq!(parse(head.as_bytes()), Some((7, 9)));
        assert_eq!(parse(&head.as_bytes()[1..]), None);
        let long = [head.as_bytes(), &[0; MESSAGE_BYTES + 1]].concat();
        assert_eq!(parse(&long), None);
        assert!(parse(&long[..long.len() - 1]).is_some());
    }
}
