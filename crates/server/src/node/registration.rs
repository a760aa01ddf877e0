//! How a node gets into the cluster map: it makes the first map, registers its pool, forms the unit, replaces itself.

use std::collections::BTreeSet;

use fabric::control::Address;
use fabric::keys::show_identity;
use protocol::cluster::{NodeEntry, UnitEntry, UnitFormat, Uuid};
use protocol::{ClusterMap, NodeId};
use store::{Clock, Geometry};

use super::{NodeConfig, NodeError, UNIT};
use crate::membership::{Membership, MembershipError};

/// The cluster map; the first one is made from the configuration.
pub fn first_map(
    config: &NodeConfig,
    membership: &dyn Membership,
    cluster: Option<Uuid>,
) -> Result<ClusterMap, NodeError> {
    config.validate()?;
    let map = match membership.read()? {
        Some(map) => map,
        None => membership.propose(&new_map(config, cluster)?)?,
    };
    if map.name != config.cluster {
        return Err(NodeError::Configuration(format!(
            "membership keeps cluster {}, not {}; change `cluster` or the membership directory",
            map.name, config.cluster
        )));
    }
    match cluster {
        Some(cluster) if cluster != map.cluster => Err(NodeError::Configuration(format!(
            "the keys are of cluster {}, and cluster {} has identity {}; use the keys that it was made with",
            show_identity(&cluster),
            map.name,
            show_identity(&map.cluster)
        ))),
        _ => Ok(map),
    }
}

fn new_map(config: &NodeConfig, cluster: Option<Uuid>) -> Result<ClusterMap, NodeError> {
    let geometry = Geometry::for_length(config.pool_length);
    let format = UnitFormat {
        unit: store::identity(),
        hash_key: store::identity(),
        created_ns: Clock::System.now_ns(),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        pool_length: config.pool_length,
        ring_length: geometry.ring_length,
        blocks_per_group: geometry.blocks_per_group,
        inodes_per_group: geometry.inodes_per_group,
        data_checksums: geometry.data_checksums,
    };
    let map = ClusterMap {
        cluster: cluster.unwrap_or_else(store::identity),
        name: config.cluster.clone(),
        version: 1,
        nodes: Vec::new(),
        units: vec![UnitEntry {
            unit: UNIT,
            format,
            members: config.members,
            min_sync: config.min_sync,
            ..UnitEntry::default()
        }],
    };
    match map.fault() {
        Some(fault) => Err(NodeError::Configuration(format!(
            "no cluster can be made of this: {fault}"
        ))),
        None => Ok(map),
    }
}

/// Changes the map until `change` has nothing to change.
fn update(
    membership: &dyn Membership,
    change: impl Fn(&ClusterMap) -> Option<ClusterMap>,
) -> Result<ClusterMap, MembershipError> {
    let mut map = membership.read()?.unwrap_or_default();
    while let Some(next) = change(&map) {
        map = membership.propose(&next)?;
    }
    Ok(map)
}

/// Registers the node's pool and addresses. Returns the map, and the node's identity in it.
pub fn register(
    config: &NodeConfig,
    membership: &dyn Membership,
    pool: Uuid,
    addresses: &[Address],
) -> Result<(ClusterMap, NodeId), NodeError> {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let is_own = |node: &&NodeEntry| node.pool == pool;
    let map = update(membership, |map| {
        let known = map.nodes.iter().find(is_own);
        let is_right = |node: &NodeEntry| node.name == config.name && node.addresses == addresses;
        match known {
            Some(node) if is_right(node) => None,
            _ => Some(map.register(&config.name, pool, addresses.clone()).0),
        }
    })?;
    let id = map.nodes.iter().find(is_own).map_or(0, |node| node.id);
    let map = update(membership, |map| next_roles(map, id))?;
    refuse_if_all_lost(&map)?;
    Ok((map, id))
}

/// The map in which the unit is formed, or in which this node has the place of its lost pool; `None` if neither is possible
/// or necessary.
pub fn next_roles(map: &ClusterMap, id: NodeId) -> Option<ClusterMap> {
    let unit = map.unit(UNIT)?;
    if unit.map.version == 0 {
        let newest = map.nodes.iter().filter(|node| is_newest(map, node));
        let members: Vec<_> = newest.map(|node| node.id).collect();
        let wanted = usize::from(unit.members);
        return (members.len() >= wanted)
            .then(|| map.form(UNIT, members[..wanted].to_vec()))
            .flatten();
    }
    if unit.map.members.contains(&id) {
        return None;
    }
    let own = map.node(id)?;
    let old = map
        .nodes
        .iter()
        .find(|node| node.name == own.name && unit.map.members.contains(&node.id));
    let next = match old {
        Some(old) => unit.map.replace(old.id, id)?,
        None if unit.map.members.len() < usize::from(unit.members) => {
            let mut next = unit.map.next();
            next.members.push(id);
            next.members.sort_unstable();
            next
        }
        None => return None,
    };
    map.with_unit(UNIT, next)
}

fn is_newest(map: &ClusterMap, node: &NodeEntry) -> bool {
    map.node_named(&node.name).map(|newest| newest.id) == Some(node.id)
}

/// If the pools of all full members in sync were lost, no node has the contents of the unit.
fn refuse_if_all_lost(map: &ClusterMap) -> Result<(), NodeError> {
    let Some(unit) = map.unit(UNIT).filter(|unit| unit.map.version > 0) else {
        return Ok(());
    };
    let in_sync = unit.map.full_in_sync();
    let nodes: Vec<_> = in_sync.iter().filter_map(|id| map.node(*id)).collect();
    if nodes.iter().any(|node| is_newest(map, node)) {
        return Ok(());
    }
    let names: BTreeSet<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    Err(NodeError::AllLost {
        unit: UNIT,
        members: names.into_iter().collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(members: u8) -> ClusterMap {
        ClusterMap {
            version: 1,
            units: vec![UnitEntry {
                members,
                ..UnitEntry::default()
            }],
            ..ClusterMap::default()
        }
    }

    fn with_nodes(mut map: ClusterMap, nodes: &[(&str, u8)]) -> ClusterMap {
        for (name, pool) in nodes {
            map = map.register(name, [*pool; 16], Vec::new()).0;
        }
        map
    }

    #[test]
    fn a_unit_is_formed_when_all_its_members_have_registered() {
        let two = with_nodes(map(3), &[("n1", 1), ("n2", 2), ("n2", 3)]);
        assert_eq!(next_roles(&two, 3), None, "n2 has lost its first pool");
        let three = with_nodes(two, &[("n3", 4)]);
        let formed = next_roles(&three, 4).expect("it is formed");
        assert_eq!(formed.units[0].map.members, [1, 3, 4]);
        assert_eq!(formed.units[0].map.in_sync, [1, 3, 4]);
        assert_eq!(next_roles(&formed, 4), None);
    }

    #[test]
    fn a_node_whose_pool_was_lost_replaces_itself_when_it_is_out_of_sync() {
        let all = with_nodes(map(2), &[("n1", 1), ("n2", 2)]);
        let formed = next_roles(&all, 2).expect("it is formed");
        let mut lost = with_nodes(formed, &[("n2", 3)]);
        assert_eq!(next_roles(&lost, 3), None, "it is in sync");
        lost.units[0].map.in_sync = vec![1];
        let replaced = next_roles(&lost, 3).expect("it is replaced");
        assert_eq!(replaced.units[0].map.members, [1, 3]);
        assert_eq!(replaced.units[0].map.in_sync, [1]);
        assert!(refuse_if_all_lost(&replaced).is_ok());
        let all_lost = with_nodes(replaced, &[("n1", 9)]);
        let refused = refuse_if_all_lost(&all_lost).expect_err("n1 was the last");
        assert!(refused.to_string().contains("(n1)"), "{refused}");
    }
}
