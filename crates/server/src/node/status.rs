//! Report of a node about itself.

use connections::choice::Choice;
use connections::messenger::RequestWay;
use protocol::cluster::FIRST_CLIENT;
use protocol::{NodeId, UnitMap};
use serde::{Deserialize, Serialize};

use super::GroupStatus;

/// Role of a node in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The node orders the changes of its unit.
    Primary,
    /// It takes all records.
    Replica,
    /// It takes all records, without the data of files.
    Metadata,
    /// It does not have all records yet.
    Joining,
    /// The unit does not have it.
    Spare,
}

impl Role {
    /// That of a node by this map.
    pub fn of(map: &UnitMap, id: NodeId) -> Role {
        if map.primary == id {
            Role::Primary
        } else if map.is_in_sync(id) && map.is_metadata_only(id) {
            Role::Metadata
        } else if map.is_in_sync(id) {
            Role::Replica
        } else if map.members.contains(&id) {
            Role::Joining
        } else {
            Role::Spare
        }
    }

    /// Returns the name that is printed for it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Primary => "primary",
            Role::Replica => "replica",
            Role::Metadata => "metadata",
            Role::Joining => "joining",
            Role::Spare => "spare",
        }
    }
}

/// A link to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The peer's identity in the cluster.
    pub id: NodeId,
    /// Name of the peer, with its process or address.
    pub peer: String,
    /// Whether the peer is a node; else it is a client.
    pub is_node: bool,
    /// Name of the link's transport.
    pub transport: String,
    /// Faster transports, and why each was not taken.
    pub passed_over: Vec<String>,
    /// How short messages travel: announced, or in messages, with the reason if the other way was chosen. Older nodes do not report it.
    pub requests: Option<String>,
    /// From which length on the peer pulls data, in bytes, or why it pulls nothing. Older nodes do not report it.
    pub pull: Option<String>,
    /// How data of writes that a client has answered early comes from it: copied out of its memory, or in messages, with the reason.
    /// Nothing for nodes. Older nodes do not report it.
    pub write_cache: Option<String>,
}

impl LinkStatus {
    /// A link to a peer with this identity and name, over the transport that was chosen for it.
    pub fn new(id: NodeId, peer: String, choice: &Choice) -> LinkStatus {
        let passed_over = choice.passed_over.iter();
        LinkStatus {
            id,
            peer,
            is_node: id < FIRST_CLIENT,
            transport: choice.provider.to_string(),
            passed_over: passed_over
                .map(|(provider, reason)| format!("{provider}: {reason}"))
                .collect(),
            requests: None,
            pull: None,
            write_cache: None,
        }
    }

    /// The same, with the ways of short and long messages and of early answered writes, as the messenger states them.
    pub fn with_ways(
        mut self,
        (requests, reason): (RequestWay, Option<&str>),
        least_pulled: Result<usize, String>,
        lends: Result<(), &str>,
    ) -> LinkStatus {
        self.requests = Some(match (requests, reason) {
            (RequestWay::Announced, _) => "announced".into(),
            (RequestWay::Message, None) => "messages".into(),
            (RequestWay::Message, Some(reason)) => format!("messages: {reason}"),
        });
        self.write_cache = match lends {
            _ if self.is_node => None,
            Ok(()) => Some("copied from its memory".into()),
            Err(reason) => Some(format!("in messages: {reason}")),
        };
        self.pull = Some(match least_pulled {
            Ok(bytes) => format!("from {bytes} bytes on"),
            Err(reason) => format!("nothing: {reason}"),
        });
        self
    }
}

/// Work of a node since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Seconds since it started.
    pub seconds: u64,
    /// Requests of clients that change nothing, executed here.
    pub reads: u64,
    /// Requests of clients for changes, executed here.
    pub changes: u64,
    /// Bytes of files that clients have received in messages.
    pub read: u64,
    /// Bytes of files that clients have sent in messages.
    pub written: u64,
    /// Number of messages received.
    pub messages: u64,
}

/// Space for the data of files, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Space in all, in bytes.
    pub total: u64,
    /// Space in use, in bytes.
    pub used: u64,
    /// Bytes that files may take.
    pub available: u64,
}

/// State of a node, as it reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Name of the node.
    pub name: String,
    /// Number of the node's process.
    pub pid: u32,
    /// Role in its unit.
    pub role: Role,
    /// Whether it serves clients now.
    pub is_serving: bool,
    /// Whether it has every acknowledged change.
    pub is_in_sync: bool,
    /// Epoch of its tail.
    pub tail_epoch: u32,
    /// Position of its tail.
    pub tail: u64,
    /// Version of the cluster map that it has.
    pub map_version: u64,
    /// Sessions of clients, at the primary.
    pub sessions: usize,
    /// Links to nodes and clients.
    pub links: Vec<LinkStatus>,
    /// What it has done since it started.
    pub load: Load,
    /// Bytes of its pool.
    pub pool: u64,
    /// Space of the unit, as the primary counts it.
    pub space: Option<Space>,
    /// Clients that reach into its memory.
    pub exports: usize,
    /// Frames of clients' writes that were received in the pool itself.
    pub placed: u64,
    /// Frames of clients' reads that they received in their buffers themselves. Older nodes do not count them.
    pub fetched: Option<u64>,
    /// Fragments of messages that the node has read out of the memory of their senders. Older nodes do not count them.
    pub pulled: Option<u64>,
    /// Those of them with data of early answered writes, out of the memory of mounts. Older nodes do not count them.
    pub pulled_early: Option<u64>,
    /// Messages that peers have written into slots of the node. Older nodes do not count them.
    pub announced: Option<u64>,
    /// What it does with groups.
    pub group: GroupStatus,
    /// The memory of its pool.
    pub memory: String,
    /// Failures that the contents of the pool survive.
    pub survives: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_a_node_does_not_have_are_unknown() {
        let status = NodeStatus {
            name: "n1".into(),
            pid: 1,
            role: Role::Primary,
            is_serving: true,
            is_in_sync: true,
            tail_epoch: 1,
            tail: 2,
            map_version: 3,
            sessions: 0,
            links: Vec::new(),
            load: Load::default(),
            pool: 4096,
            space: None,
            exports: 0,
            placed: 0,
            fetched: None,
            pulled: None,
            pulled_early: None,
            announced: None,
            group: GroupStatus::default(),
            memory: "file".into(),
            survives: "a crash".into(),
        };
        let mut report = serde_json::to_value(&status).unwrap();
        for counter in ["fetched", "pulled", "pulled_early", "announced"] {
            report.as_object_mut().unwrap().remove(counter);
        }
        assert_eq!(
            serde_json::from_value::<NodeStatus>(report).unwrap(),
            status
        );
    }
}
