//! Which device, port and GID are taken.

#[cfg(test)]
mod tests;

use std::fmt::Write;

use crate::Error;
use crate::port::{GidEntry, Port, PortState, Protocol};

/// Requirements on the device that is opened.
/// Open fields are chosen.
#[derive(Clone, Default, Debug)]
pub struct Wanted {
    /// The device's name, as `rdma link` shows it.
    pub device: Option<String>,
    /// The port's number, from 1.
    pub port: Option<u8>,
    /// The GID's place in the port's table.
    pub gid_index: Option<u8>,
}

#[derive(Debug)]
pub(crate) struct Choice {
    pub port: Port,
    pub gid: GidEntry,
    pub explanation: String,
}

pub(crate) fn choose(ports: &[Port], wanted: &Wanted) -> Result<Choice, Error> {
    let fits = |port: &&Port| {
        wanted
            .device
            .as_ref()
            .is_none_or(|name| *name == port.device)
            && wanted.port.is_none_or(|number| number == port.number)
    };
    let fitting: Vec<&Port> = ports.iter().filter(fits).collect();
    if fitting.is_empty() {
        return Err(Error::NotFound {
            wanted: describe(wanted),
            present: names(&ports.iter().collect::<Vec<_>>()),
        });
    }
    let active = |port: &&&Port| port.state == PortState::Active;
    let active: Vec<&Port> = fitting.iter().filter(active).copied().collect();
    if active.is_empty() {
        let ports = names(&fitting);
        return Err(Error::NotActive { ports });
    }
    let mut best: Option<(Rank, &Port, &GidEntry)> = None;
    for port in &active {
        let gids = port.gids.iter();
        for gid in gids.filter(|gid| wanted.gid_index.is_none_or(|index| index == gid.index)) {
            // Of equals the first one is taken.
            if best.is_none_or(|(rank, ..)| Rank::of(gid) > rank) {
                best = Some((Rank::of(gid), port, gid));
            }
        }
    }
    let Some((_, port, gid)) = best else {
        return Err(match wanted.gid_index {
            Some(_) => Error::NotFound {
                wanted: describe(wanted),
                present: indices(&active),
            },
            None => Error::NoAddress {
                ports: names(&active),
            },
        });
    };
    Ok(Choice {
        port: port.clone(),
        gid: gid.clone(),
        explanation: explain(ports, port, gid, wanted),
    })
}

/// Rank of a GID, better ones being greater. Packets of RoCE v2 are routed, and most networks have IPv4.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    RoceV1,
    RoceV2LinkLocal,
    RoceV2Ipv6,
    InfiniBand,
    RoceV2Ipv4,
}

impl Rank {
    fn of(entry: &GidEntry) -> Rank {
        match entry.protocol {
            Protocol::InfiniBand => Rank::InfiniBand,
            Protocol::RoceV1 => Rank::RoceV1,
            Protocol::RoceV2 if entry.gid.ipv4().is_some() => Rank::RoceV2Ipv4,
            Protocol::RoceV2 if entry.gid.0.starts_with(&[0xfe, 0x80]) => Rank::RoceV2LinkLocal,
            Protocol::RoceV2 => Rank::RoceV2Ipv6,
        }
    }
}

fn describe(wanted: &Wanted) -> String {
    let mut text = match &wanted.device {
        Some(name) => format!("RDMA device {name}"),
        None => "RDMA device".to_owned(),
    };
    if let Some(port) = wanted.port {
        let _ = write!(text, " with port {port}");
    }
    if let Some(index) = wanted.gid_index {
        let _ = write!(text, " with GID {index}");
    }
    text
}

fn names(ports: &[&Port]) -> String {
    let name = |port: &&Port| format!("{} port {} is {}", port.device, port.number, port.state);
    ports.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn indices(ports: &[&Port]) -> String {
    let name = |port: &&Port| {
        let indices: Vec<String> = port.gids.iter().map(|gid| gid.index.to_string()).collect();
        format!(
            "{} port {} with GID {}",
            port.device,
            port.number,
            indices.join(" ")
        )
    };
    ports.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn explain(ports: &[Port], port: &Port, gid: &GidEntry, wanted: &Wanted) -> String {
    let mut text = format!(
        "{} port {}, GID {} ({}, {})",
        port.device, port.number, gid.index, gid.gid, gid.protocol
    );
    let asked = [
        wanted.device.is_some().then_some("device"),
        wanted.port.is_some().then_some("port"),
        wanted.gid_index.is_some().then_some("GID"),
    ];
    let asked: Vec<&str> = asked.into_iter().flatten().collect();
    let _ = match (asked.is_empty(), Rank::of(gid)) {
        (false, _) => write!(text, ": the {} that was asked for", asked.join(" and ")),
        (true, Rank::RoceV2Ipv4) => write!(text, ": the first active one with RoCE v2 over IPv4"),
        (true, _) => write!(
            text,
            ": the best active one, for none has RoCE v2 over IPv4"
        ),
    };
    let idle = |other: &&Port| other.state != PortState::Active;
    for other in ports.iter().filter(idle) {
        let _ = write!(
            text,
            "; {} port {} is {}",
            other.device, other.number, other.state
        );
    }
    text
}
