//! The interface that leads to a host.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

/// Discard: nothing is sent there, but a socket needs a port to be connected to.
const PORT: u16 = 9;

/// Name of the Ethernet interface by which the kernel sends to an IPv4 address, or that has this address. `None` if there is no
/// such interface, as for this host's loopback.
pub fn interface_towards(address: IpAddr) -> Option<String> {
    let IpAddr::V4(address) = address.to_canonical() else {
        return None;
    };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(SocketAddr::from((address, PORT))).ok()?;
    let own = socket.local_addr().ok()?.ip();
    let found = xdp::Interface::with_address(own).ok()?;
    Some(found.name)
}
