//! Configuration of a node.

use std::net::ToSocketAddrs;
use std::path::PathBuf;

use connections::control::Address;
use connections::messenger::{Pull, RequestWay};
use fabric::Provider;

use super::{GroupMode, NodeError};

/// Configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Name of the cluster that the node belongs to.
    pub cluster: String,
    /// Name of the node, unique in its cluster.
    pub name: String,
    /// Where it listens: paths of Unix sockets, which begin with `/`, or `host:port`.
    pub listen: Vec<String>,
    /// Directory with its keys, which `tako keys` made. Nodes without keys serve this host only.
    pub keys: Option<PathBuf>,
    /// The one transport to use.
    pub transport: Option<Provider>,
    /// Interface of the transport over Ethernet. `None`: the one with the address that the node listens at.
    pub interface: Option<String>,
    /// EtherTypes of its frames, of data and of commands. `None`: 0x8000 and 0x8001.
    pub ether_types: Option<[u16; 2]>,
    /// Its queue by which long writes come, to be received in the pool itself. With 0 they share the queue of all other frames.
    pub data_queue: Option<u32>,
    /// How short messages of links that the node dials travel.
    pub requests: RequestWay,
    /// Which data the node leaves in its memory, to be pulled by the receiver.
    pub pull: Pull,
    /// When records and their data are sent once to all replicas.
    pub group: GroupMode,
    /// Whether frames of the group have parity, where damaged ones can arrive.
    pub group_parity: bool,
    /// The pool file or DAX device.
    pub pool: PathBuf,
    /// Bytes of the pool, if it is made.
    pub pool_length: u64,
    /// Whether the node holds metadata only.
    pub metadata_only: bool,
    /// Members of the unit, when the cluster is made.
    pub members: u8,
    /// Number of metadata-only members, when the cluster is made.
    pub metadata_members: u8,
    /// Least number of members in sync with which changes are taken, when the cluster is made; 0 for the default.
    pub min_sync: u8,
    /// Seconds that a member may be away before a spare takes its place, when the cluster is made; 0 for ever.
    pub spare_after: u32,
    /// Source of time stamps: the system, but in tests. Leases have a clock that does not jump.
    pub clock: store::Clock,
}

impl NodeConfig {
    /// Returns the addresses at which the node listens.
    ///
    /// # Errors
    /// [`NodeError::Configuration`]
    pub fn addresses(&self) -> Result<Vec<Address>, NodeError> {
        self.listen.iter().map(|text| parse_address(text)).collect()
    }

    /// Checks what does not depend on anything else.
    ///
    /// # Errors
    /// [`NodeError::Configuration`]
    pub fn validate(&self) -> Result<(), NodeError> {
        let wrong = |sentence: String| Err(NodeError::Configuration(sentence));
        if self.listen.is_empty() {
            return wrong("`listen` is empty; add the path of a Unix socket, or host:port".into());
        }
        for (what, name) in [("cluster", &self.cluster), ("name", &self.name)] {
            if !connections::keys::is_node_name(name) {
                return wrong(format!(
                    "`{what}` must be 1–63 of a–z, 0–9, and '-' inside, got '{name}'"
                ));
            }
        }
        let most = protocol::map::MEMBERS_MAX;
        if !(1..=most).contains(&usize::from(self.members)) {
            return wrong(format!("`members` must be 1–{most}, got {}", self.members));
        }
        if self.metadata_members >= self.members {
            return wrong(format!(
                "`metadata_members` must be less than `members`, {}, since the others hold the data; got {}",
                self.members, self.metadata_members
            ));
        }
        if self.min_sync > self.members {
            return wrong(format!(
                "`min_sync` must be at most the number of members, {}, got {}",
                self.members, self.min_sync
            ));
        }
        self.addresses().map(|_| ())
    }
}

/// The address that this text names: the path of a Unix socket, which begins with `/`, or `host:port`.
///
/// # Errors
/// [`NodeError::Configuration`]
pub fn parse_address(text: &str) -> Result<Address, NodeError> {
    if text.starts_with('/') {
        return Ok(Address::Unix(text.into()));
    }
    let resolved = text.to_socket_addrs();
    let first = resolved.map(|mut addresses| addresses.next());
    match first {
        Ok(Some(address)) => Ok(Address::Tcp(address)),
        Ok(None) => Err(NodeError::Configuration(format!(
            "{text} has no address; use host:port"
        ))),
        Err(error) => Err(NodeError::Configuration(format!(
            "{text} is no address: {error}; use host:port, or the path of a Unix socket"
        ))),
    }
}
