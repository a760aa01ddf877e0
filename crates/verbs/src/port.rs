//! Ports of devices, and their addresses.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The address of a port on the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IPv4 address that it encodes, if it encodes one.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ipv4() {
            Some(address) => address.fmt(f),
            None => Ipv6Addr::from(self.0).fmt(f),
        }
    }
}

/// Format of a GID's packets on the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// InfiniBand, by local identifiers.
    InfiniBand,
    /// Ethernet packets without IP.
    RoceV1,
    /// UDP packets (RoCE version 2).
    RoceV2,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::InfiniBand => "InfiniBand",
            Protocol::RoceV1 => "RoCE v1",
            Protocol::RoceV2 => "RoCE v2",
        })
    }
}

/// A GID of a port.
#[derive(Clone, Debug)]
pub struct GidEntry {
    /// Its place in the port's table.
    pub index: u8,
    /// Global identifier (GID), the port's address.
    pub gid: Gid,
    /// Format of its packets.
    pub protocol: Protocol,
}

/// A port of a device.
#[derive(Clone, Debug)]
pub struct Port {
    /// Name of the device, as `rdma link` shows it.
    pub device: String,
    /// Its number, from 1.
    pub number: u8,
    /// State of its link.
    pub state: PortState,
    /// Bytes of a packet's payload, from 256 to 4096.
    pub mtu: u32,
    /// Bytes of the longest transfer or message.
    pub message_max: u32,
    /// Its local identifier, which only InfiniBand has.
    pub lid: u16,
    /// Addresses of the port.
    pub gids: Vec<GidEntry>,
}

/// State of a port's link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// The port has no link.
    Down,
    /// It is being set up.
    Initializing,
    /// It can be used.
    Active,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortState::Down => "down",
            PortState::Initializing => "initializing",
            PortState::Active => "active",
        })
    }
}
