//! Which link leads to which node or client, and which nodes are to be dialed.

use std::collections::BTreeMap;

use connections::control::Address;
use connections::messenger::{DialId, LinkId, Messenger};
use protocol::cluster::FIRST_CLIENT;
use protocol::{ClusterMap, NodeId};

use super::{UNIT, parse_address};

/// Pause between two attempts to reach a node.
const REDIAL_NS: u64 = 100_000_000;

/// Attempts to reach a node.
#[derive(Default)]
struct Attempts {
    /// Not before then is there another one.
    next_at: u64,
    /// Number of attempts: each takes the next address.
    count: usize,
    is_dialing: bool,
}

/// The peers of a node.
#[derive(Default)]
pub struct Peers {
    by_link: BTreeMap<LinkId, NodeId>,
    by_node: BTreeMap<NodeId, LinkId>,
    dials: BTreeMap<DialId, NodeId>,
    attempts: BTreeMap<NodeId, Attempts>,
}

impl Peers {
    /// The link to a node or client.
    pub fn link(&self, node: NodeId) -> Option<LinkId> {
        self.by_node.get(&node).copied()
    }

    /// The node or client at the other end of a link, once it has sent Hello.
    pub fn at(&self, link: LinkId) -> Option<NodeId> {
        self.by_link.get(&link).copied()
    }

    /// Returns the links to clients.
    pub fn clients(&self) -> Vec<LinkId> {
        let clients = self.by_node.range(FIRST_CLIENT..);
        clients.map(|(_, link)| *link).collect()
    }

    /// A link leads to this node or client from now on.
    pub fn add(&mut self, link: LinkId, node: NodeId) {
        self.by_link.insert(link, node);
        self.by_node.insert(node, link);
    }

    /// A link has ended.
    pub fn remove(&mut self, link: LinkId) -> Option<NodeId> {
        let node = self.by_link.remove(&link)?;
        if self.by_node.get(&node) == Some(&link) {
            self.by_node.remove(&node);
        }
        Some(node)
    }

    /// An attempt to reach a node has ended.
    pub fn dialed(&mut self, now: u64, dial: DialId) -> Option<NodeId> {
        let node = self.dials.remove(&dial)?;
        let attempts = self.attempts.entry(node).or_default();
        attempts.is_dialing = false;
        attempts.next_at = now + REDIAL_NS;
        Some(node)
    }

    /// Members of the unit that this node dials and has no link to. Of two members the one with the higher identity
    /// dials. A spare dials all, so that the primary knows of it.
    fn wanted(&self, map: &ClusterMap, own: NodeId) -> Vec<NodeId> {
        let members = map.unit(UNIT).map(|unit| unit.map.members.as_slice());
        let members = members.unwrap_or_default();
        let is_spare = !members.contains(&own);
        let to_dial = members.iter().copied();
        let to_dial = to_dial.filter(|node| is_spare || *node < own);
        to_dial.filter(|node| self.link(*node).is_none()).collect()
    }

    /// Dials the members that are to be dialed now.
    pub fn dial(&mut self, now: u64, map: &ClusterMap, own: NodeId, messenger: &mut Messenger) {
        for node in self.wanted(map, own) {
            let Some(entry) = map.node(node) else {
                continue;
            };
            let attempts = self.attempts.entry(node).or_default();
            let addresses: Vec<Address> = entry
                .addresses
                .iter()
                .filter_map(|text| parse_address(text).ok())
                .collect();
            if attempts.is_dialing || now < attempts.next_at || addresses.is_empty() {
                continue;
            }
            let address = &addresses[attempts.count % addresses.len()];
            attempts.count += 1;
            attempts.is_dialing = true;
            let dial = messenger.dial(address, Some(&entry.name));
            self.dials.insert(dial, node);
        }
    }

    /// When [`Peers::dial`] is due.
    pub fn next_dial(&self, map: &ClusterMap, own: NodeId) -> Option<u64> {
        let wanted = self.wanted(map, own).into_iter();
        let waiting = wanted.filter_map(|node| match self.attempts.get(&node) {
            Some(attempts) if attempts.is_dialing => None,
            Some(attempts) => Some(attempts.next_at),
            None => Some(0),
        });
        waiting.min()
    }
}
