//! Which nodes are linked, and when the others are dialed again.

use std::collections::BTreeMap;
use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

use connections::control::{self, Address};
use connections::messenger::{DialId, LinkId, Messenger};
use fabric::Provider;
use protocol::{ClusterMap, NodeId};

/// Pause after an attempt that failed, and the longest: it doubles in between.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Target of a dial: a node of the map, or while none is linked an address of the caller.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Node(NodeId),
    Address(usize),
}

/// Attempts to reach a target.
struct Attempts {
    next: Instant,
    pause: Duration,
    /// Number of attempts, which selects the next address.
    count: usize,
    dial: Option<DialId>,
    failure: Option<String>,
    /// Whether that will not change: the keys of both sides do not match.
    is_refused: bool,
}

struct Link {
    /// Its node, once the map names it.
    node: Option<NodeId>,
    target: Target,
}

/// Result of an attempt.
pub enum Dialed {
    Linked(LinkId),
    /// There is another link to the node.
    Second(LinkId),
    Failed,
}

pub struct Links {
    addresses: Vec<Address>,
    start: Instant,
    links: BTreeMap<LinkId, Link>,
    attempts: BTreeMap<Target, Attempts>,
}

impl Links {
    pub fn new(addresses: Vec<Address>, start: Instant) -> Links {
        Links {
            addresses,
            start,
            links: BTreeMap::new(),
            attempts: BTreeMap::new(),
        }
    }

    /// The link of a node.
    pub fn of(&self, node: NodeId) -> Option<LinkId> {
        let mut links = self.links.iter();
        let found = links.find(|(_, link)| link.node == Some(node));
        found.map(|(id, _)| *id)
    }

    /// The node that a link is to, once the map names it.
    pub fn node(&self, link: LinkId) -> Option<NodeId> {
        self.links.get(&link).and_then(|link| link.node)
    }

    /// Nodes on this host.
    pub fn near(&self, messenger: &Messenger) -> Vec<NodeId> {
        let is_near = |link: &LinkId| messenger.provider(*link) == Some(Provider::Shm);
        let near = self.links.iter().filter(|(id, _)| is_near(id));
        near.filter_map(|(_, link)| link.node).collect()
    }

    pub fn all(&self) -> Vec<LinkId> {
        self.links.keys().copied().collect()
    }

    /// Whether the map has the node of this link under this identity.
    pub fn is_from(&self, link: LinkId, from: NodeId) -> bool {
        let found = self.links.get(&link);
        found.is_some_and(|link| link.node == Some(from))
    }

    /// Targets that should be linked and are not.
    fn targets(&self, map: &ClusterMap) -> Vec<Target> {
        let members = map.units.iter().flat_map(|unit| &unit.map.members);
        let unlinked = members.filter(|node| self.of(**node).is_none());
        let addresses = match self.links.is_empty() {
            true => 0..self.addresses.len(),
            false => 0..0,
        };
        let nodes = unlinked.map(|node| Target::Node(*node));
        nodes.chain(addresses.map(Target::Address)).collect()
    }

    /// Dials the targets that are due.
    pub fn dial(&mut self, now: Instant, map: &ClusterMap, messenger: &mut Messenger) {
        for target in self.targets(map) {
            let attempts = self.attempts.entry(target.clone()).or_insert(Attempts {
                next: now,
                pause: PAUSE,
                count: 0,
                dial: None,
                failure: None,
                is_refused: false,
            });
            if attempts.dial.is_some() || now < attempts.next {
                continue;
            }
            let (address, name) = match target {
                Target::Address(index) => (self.addresses.get(index).cloned(), None),
                Target::Node(id) => {
                    let node = map.node(id);
                    let count = attempts.count;
                    let address = node.and_then(|node| {
                        let text = node.addresses.get(count % node.addresses.len().max(1))?;
                        address(text)
                    });
                    (address, node.map(|node| node.name.clone()))
                }
            };
            attempts.count += 1;
            attempts.next = now + attempts.pause;
            attempts.pause = (attempts.pause * 2).min(PAUSE_MAX);
            if let Some(address) = address {
                attempts.dial = Some(messenger.dial(&address, name.as_deref()));
            }
        }
    }

    /// When the next dial is due.
    pub fn due(&self, map: &ClusterMap) -> Option<Instant> {
        let targets = self.targets(map).into_iter();
        let due = targets.filter_map(|target| match self.attempts.get(&target) {
            None => Some(self.start),
            Some(attempts) if attempts.dial.is_none() => Some(attempts.next),
            Some(_) => None,
        });
        due.min()
    }

    /// An attempt has ended.
    pub fn dialed(
        &mut self,
        dial: DialId,
        outcome: Result<LinkId, control::Error>,
        map: &ClusterMap,
        messenger: &Messenger,
    ) -> Dialed {
        let mut attempts = self.attempts.iter_mut();
        let found = attempts.find(|(_, it)| it.dial == Some(dial));
        let Some((target, attempts)) = found else {
            return Dialed::Failed;
        };
        attempts.dial = None;
        match outcome {
            Ok(link) => {
                attempts.pause = PAUSE;
                attempts.failure = None;
                attempts.is_refused = false;
                let target = target.clone();
                let node = node_of(link, map, messenger);
                if node.is_some_and(|node| self.of(node).is_some()) {
                    return Dialed::Second(link);
                }
                self.links.insert(link, Link { node, target });
                Dialed::Linked(link)
            }
            Err(error) => {
                attempts.failure = Some(error.to_string());
                attempts.is_refused = is_final(&error);
                Dialed::Failed
            }
        }
    }

    /// A link has ended. Its node is dialed soon.
    pub fn lost(&mut self, link: LinkId, now: Instant) {
        if let Some(link) = self.links.remove(&link)
            && let Some(attempts) = self.attempts.get_mut(&link.target)
        {
            attempts.next = attempts.next.max(now);
        }
    }

    /// There is another map. Returns links that are of no use: of nodes that are not in it, or second ones of a node.
    pub fn identify(&mut self, map: &ClusterMap, messenger: &Messenger) -> Vec<LinkId> {
        let mut seen = Vec::new();
        let mut useless = Vec::new();
        for (id, link) in &mut self.links {
            link.node = node_of(*id, map, messenger);
            match link.node {
                Some(node) if !seen.contains(&node) => seen.push(node),
                _ => useless.push(*id),
            }
        }
        for id in &useless {
            self.links.remove(id);
        }
        useless
    }

    /// Whether every address that was given refuses this process for good.
    pub fn is_refused(&self) -> bool {
        let mut attempts = self.attempts.values();
        !self.attempts.is_empty() && attempts.all(|it| it.is_refused)
    }

    /// Why nothing is linked.
    pub fn failures(&self) -> String {
        let failures = self.attempts.values().filter_map(|it| it.failure.clone());
        let failures: Vec<String> = failures.collect();
        match failures.is_empty() {
            true => "no node has answered in time; check the addresses".to_owned(),
            false => failures.join("; "),
        }
    }
}

/// The node that a link is to: the control connection has proved its name.
fn node_of(link: LinkId, map: &ClusterMap, messenger: &Messenger) -> Option<NodeId> {
    let peer = messenger.peer(link)?;
    map.node_named(&peer.node).map(|node| node.id)
}

/// Whether all attempts end as this one: nothing that may change meanwhile is wrong.
fn is_final(error: &control::Error) -> bool {
    use control::Error::{Messages, Stranger, Version};
    matches!(error, Stranger { .. } | Messages { .. } | Version { .. })
}

/// An address as maps have it.
fn address(text: &str) -> Option<Address> {
    if text.starts_with('/') {
        return Some(Address::Unix(text.into()));
    }
    text.to_socket_addrs().ok()?.next().map(Address::Tcp)
}
