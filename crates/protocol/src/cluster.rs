//! The cluster map: all nodes and units of a cluster, as the membership service keeps it and messages carry it.
//!
//! On the wire it is encoded by `postcard`, in files as JSON. Both are validated after decoding.

mod epochs;
mod growth;
mod hexadecimal;

pub use epochs::{EpochRule, Judgement};
pub use growth::Growth;

use serde::{Deserialize, Serialize};

use crate::defects::Defects;
use crate::malformed::Malformed;
use crate::map::{EpochStart, NO_NODE, NodeId, UnitMap};
use crate::{UnitOptions, map};

/// Nodes of a cluster, at most.
pub const NODES_MAX: usize = 256;
/// Units of a cluster, at most.
pub const UNITS_MAX: usize = 64;
/// Longest name of a cluster or node, in bytes.
pub const NAME_LENGTH_MAX: usize = 64;
/// Addresses of a node, at most.
pub const ADDRESSES_MAX: usize = 8;
/// Longest address, in bytes.
pub const ADDRESS_LENGTH_MAX: usize = 256;
/// Lowest identity of a client. Nodes have lower ones.
pub const FIRST_CLIENT: NodeId = 1 << 31;
/// Epoch in which the pools of a new unit are formatted. Epoch 1 is that of a pool without contents.
pub const FIRST_EPOCH: u32 = 2;

/// 16 bytes that identify a cluster, unit or pool.
pub type Uuid = [u8; 16];

/// All nodes and units of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// Identity of the cluster: that of its keys, if it has any.
    #[serde(with = "hexadecimal")]
    pub cluster: Uuid,
    /// Name of the cluster, as sources have it: `tako:///NAME`.
    pub name: String,
    /// Grows by one with each change of anything in the map.
    pub version: u64,
    /// Nodes in the order of their identities.
    pub nodes: Vec<NodeEntry>,
    /// Units in the order of their numbers.
    pub units: Vec<UnitEntry>,
}

/// A node in the cluster map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Its identity, never given to another node or pool.
    pub id: NodeId,
    /// Its name. A node with a lost pool gets a new entry with the same name.
    pub name: String,
    /// Identity of its pool.
    #[serde(with = "hexadecimal")]
    pub pool: Uuid,
    /// Whether its pool holds metadata only.
    pub metadata_only: bool,
    /// Addresses that it listens at: the path of a Unix socket, which begins with `/`, or `host:port`.
    pub addresses: Vec<String>,
}

/// A unit in the cluster map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitEntry {
    /// Its number, the `unit` of the files in it.
    pub unit: u16,
    /// Format of its pools.
    pub format: UnitFormat,
    /// Members that it is to have. It is formed when so many nodes have registered.
    pub members: u8,
    /// Number of metadata-only members.
    pub metadata_members: u8,
    /// Least number of members in sync with which it takes changes; 0 for the default.
    pub min_sync: u8,
    /// Seconds that a member may be away before a spare takes its place; 0 for ever.
    pub spare_after: u32,
    /// Its members and their roles; version 0 while it is not formed.
    pub map: UnitMap,
    /// The request to make its pools longer.
    #[serde(default)]
    pub growth: Growth,
}

/// Properties that the pools of a unit have in common. Pools formatted by the same `UnitFormat` hold the same image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitFormat {
    /// Identity of the unit.
    #[serde(with = "hexadecimal")]
    pub unit: Uuid,
    /// Key of the hash of names.
    #[serde(with = "hexadecimal")]
    pub hash_key: Uuid,
    /// When the unit was made, nanoseconds since 1970.
    pub created_ns: i64,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Bytes of a member's pool, at least.
    pub pool_length: u64,
    /// Bytes of the record ring.
    pub ring_length: u64,
    /// Blocks of a group.
    pub blocks_per_group: u32,
    /// Inodes of a group.
    pub inodes_per_group: u32,
    /// Whether data blocks carry checksums.
    pub data_checksums: bool,
}

impl ClusterMap {
    /// The map as a message carries it.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a map consists of numbers, strings and lists")
    }

    /// The map that these bytes are, validated.
    pub fn decode(bytes: &[u8]) -> Result<ClusterMap, Malformed> {
        let decoded = postcard::take_from_bytes::<ClusterMap>(bytes);
        let (map, rest) = decoded.map_err(|_| Malformed("it is no cluster map"))?;
        if !rest.is_empty() {
            return Err(Malformed("bytes follow the cluster map"));
        }
        map.fault().map_or(Ok(map), |fault| Err(Malformed(fault)))
    }

    /// Why this map is invalid, if it is.
    pub fn fault(&self) -> Option<&'static str> {
        let has_order = |mut ids: Box<dyn Iterator<Item = u64> + '_>| {
            let mut last = None;
            ids.all(|id| last.replace(id).is_none_or(|before| before < id))
        };
        let nodes = self.nodes.iter();
        if self.nodes.len() > NODES_MAX || self.units.len() > UNITS_MAX {
            return Some("it has too many nodes or units");
        }
        if !has_order(Box::new(nodes.clone().map(|node| u64::from(node.id))))
            || !has_order(Box::new(self.units.iter().map(|unit| u64::from(unit.unit))))
        {
            return Some("a node or unit is listed twice or out of order");
        }
        if self.name.len() > NAME_LENGTH_MAX || nodes.clone().any(|node| !node.is_valid()) {
            return Some("a name or address is too long, or a node's identity is a client's");
        }
        let is_known = |id: &NodeId| self.node(*id).is_some();
        let is_metadata_only = |id: &NodeId| self.node(*id).is_some_and(|node| node.metadata_only);
        let unit = |unit: &UnitEntry| match unit.map.version {
            0 if unit.map == UnitMap::default() => None,
            0 => Some("a unit that is not formed has members"),
            _ if !unit.map.members.iter().all(is_known) => Some("a member is no node"),
            _ if !unit.has_metadata_only(is_metadata_only) => {
                Some("a member holds metadata only by the map, or by its pool, and not by both")
            }
            _ => unit
                .map
                .fault(&Defects::default())
                .or_else(|| unit.growth.fault()),
        };
        self.units.iter().find_map(unit)
    }

    /// The number of the cluster in the envelopes of its messages.
    pub fn number(&self) -> u64 {
        u64::from_le_bytes(self.cluster[..8].try_into().expect("8 bytes"))
    }

    /// The options that all nodes and clients of the cluster share.
    pub fn options(&self) -> UnitOptions {
        UnitOptions {
            cluster: self.number(),
            slots: 32,
            window: 1 << 20,
            min_sync: self.units.first().map_or(1, UnitEntry::least_in_sync),
            batch: 64 << 10,
            push: 4 << 20,
            reliable: true,
            ..UnitOptions::default()
        }
    }

    /// The node with this identity.
    pub fn node(&self, id: NodeId) -> Option<&NodeEntry> {
        let index = self.nodes.binary_search_by_key(&id, |node| node.id).ok()?;
        self.nodes.get(index)
    }

    /// The newest entry of the node with this name.
    pub fn node_named(&self, name: &str) -> Option<&NodeEntry> {
        self.nodes.iter().rev().find(|node| node.name == name)
    }

    /// The unit with this number.
    pub fn unit(&self, number: u16) -> Option<&UnitEntry> {
        self.units.iter().find(|unit| unit.unit == number)
    }

    /// The epoch of the unit with this number, 0 while it is not formed.
    pub fn epoch(&self, unit: u16) -> u32 {
        self.unit(unit).map_or(0, |unit| unit.map.epoch)
    }

    /// The map with the next version.
    pub fn next(&self) -> ClusterMap {
        ClusterMap {
            version: self.version + 1,
            ..self.clone()
        }
    }

    /// The map after a node has registered: under the identity that its pool has, or under a new one.
    pub fn register(&self, name: &str, pool: Uuid, addresses: Vec<String>) -> (ClusterMap, NodeId) {
        self.register_as(name, pool, false, addresses)
    }

    /// The map after the registration of a node with a full or a metadata-only pool.
    pub fn register_as(
        &self,
        name: &str,
        pool: Uuid,
        metadata_only: bool,
        addresses: Vec<String>,
    ) -> (ClusterMap, NodeId) {
        let mut next = self.next();
        let known = next.nodes.iter_mut().find(|node| node.pool == pool);
        if let Some(node) = known {
            node.name = name.into();
            node.addresses = addresses;
            let id = node.id;
            return (next, id);
        }
        let id = next.nodes.last().map_or(1, |node| node.id + 1);
        next.nodes.push(NodeEntry {
            id,
            name: name.into(),
            pool,
            metadata_only,
            addresses,
        });
        (next, id)
    }

    /// The map in which a unit has these members, all in sync: their pools were just formatted for it.
    pub fn form(&self, unit: u16, mut members: Vec<NodeId>) -> Option<ClusterMap> {
        let mut next = self.next();
        let entry = next.units.iter_mut().find(|entry| entry.unit == unit)?;
        if entry.map.version > 0 {
            return None;
        }
        members.sort_unstable();
        let nodes = members.iter().filter_map(|id| self.node(*id));
        let metadata_only = nodes.filter(|node| node.metadata_only);
        let metadata_only = metadata_only.map(|node| node.id).collect();
        entry.map = UnitMap {
            version: 1,
            epoch: FIRST_EPOCH,
            primary: NO_NODE,
            in_sync: members.clone(),
            members,
            metadata_only,
            lineage: vec![EpochStart {
                epoch: FIRST_EPOCH,
                start: FIRST_POSITION,
            }],
            image: 0,
        };
        Some(next)
    }

    /// The map in which a unit has this map, if that is the one after the current.
    pub fn with_unit(&self, unit: u16, map: UnitMap) -> Option<ClusterMap> {
        let mut next = self.next();
        let entry = next.units.iter_mut().find(|entry| entry.unit == unit)?;
        if entry.map.version == 0 || map.version != entry.map.version + 1 {
            return None;
        }
        entry.map = map;
        Some(next)
    }
}

/// Position of the first record of a unit.
pub const FIRST_POSITION: u64 = 64;

impl NodeEntry {
    fn is_valid(&self) -> bool {
        (1..FIRST_CLIENT).contains(&self.id)
            && self.name.len() <= NAME_LENGTH_MAX
            && self.addresses.len() <= ADDRESSES_MAX
            && self
                .addresses
                .iter()
                .all(|it| it.len() <= ADDRESS_LENGTH_MAX)
    }
}

impl UnitEntry {
    /// Whether exactly the members for which this holds are metadata-only.
    fn has_metadata_only(&self, is_metadata_only: impl Fn(&NodeId) -> bool) -> bool {
        let members = self.map.members.iter();
        let listed = members.filter(|id| is_metadata_only(id));
        listed.eq(&self.map.metadata_only)
    }

    /// Least number of members in sync with which the unit takes changes: 2 of 3 or more members, unless set.
    pub fn least_in_sync(&self) -> usize {
        let members = self.map.members.len().max(usize::from(self.members));
        match (self.min_sync, members) {
            (0, 0..=2) => 1,
            (0, _) => 2,
            (least, _) => usize::from(least),
        }
    }
}

const _: () = assert!(map::MEMBERS_MAX <= NODES_MAX);

#[cfg(test)]
mod tests;
