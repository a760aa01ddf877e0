//! Groups: one send reaches all members. What is lost is lost, and the sender of a datagram is unknown.

use std::net::{IpAddr, SocketAddr};

use super::{LinkId, Messenger};
use crate::control;
use fabric::{Error, GroupAddress, GroupId, Multicast, Provider, Source};

impl Messenger {
    /// Groups of a transport, if this process has that transport.
    pub fn multicast(&mut self, provider: Provider) -> Multicast {
        let queue = self.transports.queue(provider);
        queue.map_or(Multicast::None, |queue| queue.capabilities().multicast)
    }

    /// Joins a group of a transport: [`Event::Group`](super::Event::Group) has what comes. Returns how many datagrams may wait
    /// for the next poll.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::System`].
    pub fn join_group(
        &mut self,
        provider: Provider,
        group: GroupId,
        address: GroupAddress,
    ) -> Result<u32, Error> {
        let what = "way to a group";
        let queue = self.transports.queue(provider);
        let queue = queue.ok_or(Error::Unsupported { provider, what })?;
        queue.join(group, address)
    }

    /// Leaves a multicast group.
    pub fn leave_group(&mut self, provider: Provider, group: GroupId) {
        if let Some(queue) = self.transports.queue(provider) {
            queue.leave(group);
        }
    }

    /// Sends a datagram to a group that was joined. Whether it arrives is not known.
    pub fn send_to_group(&mut self, provider: Provider, group: GroupId, bytes: &[u8]) {
        let Some(queue) = self.transports.queue(provider) else {
            return;
        };
        // What is refused is lost, as it may be on its way.
        let _ = queue.send_to_group(group, Source::Inline(bytes), 0);
    }

    /// Tells the peer something secret over the control connection, which is authenticated, and encrypted between hosts. The
    /// peer reports [`Event::Told`](super::Event::Told).
    ///
    /// # Errors
    /// [`control::Error`]: the peer was not told.
    pub fn tell(&mut self, link: LinkId, bytes: &[u8]) -> Result<(), control::Error> {
        if self.find(link).is_none() {
            return Ok(());
        }
        let found = self.links[link.slot()].link.as_deref_mut();
        let Some(link) = found else {
            return Ok(());
        };
        let provider = self.lanes[link.lane].provider;
        let Some(queue) = self.transports.queue(provider) else {
            return Ok(());
        };
        link.session.tell(queue, bytes)
    }

    /// The address of this host by which a link leads to its peer, unless the peer is on this host by a Unix socket.
    pub fn local_address(&self, link: LinkId) -> Option<IpAddr> {
        let session = &self.find(link)?.session;
        let address = rustix::net::getsockname(session).ok()?;
        Some(SocketAddr::try_from(address).ok()?.ip().to_canonical())
    }
}
