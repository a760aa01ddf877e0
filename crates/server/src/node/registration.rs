//! How a node enters the cluster map: it makes the first map, registers its pool, forms the unit, replaces itself.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use connections::control::Address;
use connections::keys::show_identity;
use protocol::cluster::{NodeEntry, UnitEntry, UnitFormat, Uuid};
use protocol::{ClusterMap, NodeId};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use store::{Clock, Geometry};

use super::config::parse_address;
use super::opening::format_of;
use super::{Log, NodeConfig, NodeError, UNIT};
use crate::membership::{Membership, MembershipError};

/// How long a node that starts waits for etcd: the machine may be starting both.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// How long another node of the same name may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Pause between two attempts to reach etcd.
const RETRY: Duration = Duration::from_millis(250);

/// Bytes of a pool with which every unit can be made.
const POOL_LENGTH_MIN: u64 = 4 << 20;
/// Shortest record ring of a unit's pools: it holds the window of records that members lack, and the largest write.
const RING_LENGTH_MIN: u64 = 2 << 20;

/// The cluster map; the first one is made from the configuration.
pub fn first_map(
    config: &NodeConfig,
    membership: &dyn Membership,
    cluster: Option<Uuid>,
    log: &Log,
) -> Result<ClusterMap, NodeError> {
    config.validate()?;
    let map = match read_when_it_answers(membership, log)? {
        Some(map) => map,
        None => membership.propose(&new_map(config, cluster)?)?,
    };
    if map.name != config.cluster {
        return Err(NodeError::Configuration(format!(
            "membership keeps cluster {}, not {}; change `cluster` or the membership directory",
            map.name, config.cluster
        )));
    }
    let has_none = |unit: &UnitEntry| unit.metadata_members == 0;
    if config.metadata_only && map.unit(UNIT).is_none_or(has_none) {
        return Err(NodeError::Configuration(format!(
            "node {} has `metadata_only`, and cluster {} was made without such members; leave it out, or set `metadata_members` for a new cluster",
            config.name, map.name
        )));
    }
    if let Some(sentence) = map.unit(UNIT).and_then(|unit| disagreement(config, unit)) {
        return Err(NodeError::Configuration(sentence));
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

/// What a node's configuration states of the unit otherwise than the cluster map.
fn disagreement(config: &NodeConfig, unit: &UnitEntry) -> Option<String> {
    let keys = [
        ("members", config.members.into(), unit.members.into()),
        (
            "metadata_members",
            config.metadata_members.into(),
            unit.metadata_members.into(),
        ),
        ("min_sync", config.min_sync.into(), unit.min_sync.into()),
        ("spare_after", config.spare_after, unit.spare_after),
    ];
    let (key, own, made): (_, u32, u32) = keys.into_iter().find(|(_, own, made)| own != made)?;
    let NodeConfig { cluster, name, .. } = config;
    Some(format!(
        "node {name} has `{key} = {own}`, and cluster {cluster} was made with {made}; set it to {made}"
    ))
}

fn read_when_it_answers(
    membership: &dyn Membership,
    log: &Log,
) -> Result<Option<ClusterMap>, MembershipError> {
    let start = Instant::now();
    let mut is_waiting = false;
    loop {
        match membership.read() {
            Err(error @ MembershipError::Etcd(_)) if start.elapsed() < ANSWER_WITHIN => {
                if !std::mem::replace(&mut is_waiting, true) {
                    log(format_args!("{error}; waiting for it"));
                }
                thread::park_timeout(RETRY);
            }
            ended => return ended,
        }
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
        ring_length: geometry.ring_length.max(RING_LENGTH_MIN),
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
            metadata_members: config.metadata_members,
            min_sync: config.min_sync,
            spare_after: config.spare_after,
            ..UnitEntry::default()
        }],
    };
    if format_of(&map, false).superblock().is_err() {
        return Err(NodeError::Configuration(format!(
            "`size` of a pool must be at least {} bytes, got {}",
            POOL_LENGTH_MIN, config.pool_length
        )));
    }
    match map.fault() {
        Some(fault) => Err(NodeError::Configuration(format!(
            "no cluster can be made of this: {fault}"
        ))),
        None => Ok(map),
    }
}

/// Changes the map until `change` has nothing to change.
pub fn update(
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
    let known = membership.read()?.unwrap_or_default();
    refuse_namesake(&known, &config.name, pool, &addresses)?;
    let is_own = |node: &&NodeEntry| node.pool == pool;
    let map = update(membership, |map| {
        let known = map.nodes.iter().find(is_own);
        let is_right = |node: &NodeEntry| node.name == config.name && node.addresses == addresses;
        match known {
            Some(node) if is_right(node) => None,
            _ => {
                let (name, metadata_only) = (&config.name, config.metadata_only);
                Some(
                    map.register_as(name, pool, metadata_only, addresses.clone())
                        .0,
                )
            }
        }
    })?;
    let id = map.nodes.iter().find(is_own).map_or(0, |node| node.id);
    let map = update(membership, |map| next_roles(map, id))?;
    refuse_if_all_lost(&map, id)?;
    Ok((map, id))
}

/// Refuses a second node of a name while the first one runs: it would count as the first one with a new pool.
fn refuse_namesake(
    map: &ClusterMap,
    name: &str,
    pool: Uuid,
    own: &[String],
) -> Result<(), NodeError> {
    let Some(namesake) = map.node_named(name).filter(|node| node.pool != pool) else {
        return Ok(());
    };
    let others = map.nodes.iter().filter(|node| node.name != name);
    let others: Vec<_> = others.flat_map(|node| &node.addresses).collect();
    let is_free = |address: &&String| !own.contains(address) && !others.contains(address);
    let mut addresses = namesake.addresses.iter().filter(is_free);
    match addresses.find(|address| answers(address)) {
        Some(address) => Err(NodeError::Configuration(format!(
            "another node {name} of cluster {} runs, at {address}; choose another `name`, or stop that node first",
            map.name
        ))),
        None => Ok(()),
    }
}

/// Whether a process listens at an address.
fn answers(address: &str) -> bool {
    match parse_address(address) {
        Ok(Address::Unix(path)) => listens(&path).is_ok(),
        Ok(Address::Tcp(address)) => TcpStream::connect_timeout(&address, CONNECT_WITHIN).is_ok(),
        Err(_) => false,
    }
}

/// Connects to a socket without waiting for room in its backlog: a full one is of a process that listens.
fn listens(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::AGAIN) => Ok(()),
        connected => connected,
    }
}

/// The map in which the unit is formed, or in which this node has the place of its lost pool; `None` if neither is possible
/// or necessary.
pub fn next_roles(map: &ClusterMap, id: NodeId) -> Option<ClusterMap> {
    let unit = map.unit(UNIT)?;
    if unit.map.version == 0 {
        return map.form(UNIT, founders(map, unit)?);
    }
    if unit.map.members.contains(&id) {
        return None;
    }
    let own = map.node(id)?;
    let is_lost = |node: &&NodeEntry| {
        let is_same = (&node.name, node.metadata_only) == (&own.name, own.metadata_only);
        is_same && unit.map.members.contains(&node.id)
    };
    let old = map.nodes.iter().find(is_lost)?;
    map.with_unit(UNIT, unit.map.replace(old.id, id)?)
}

/// The first nodes that make a unit: as many of either kind as it is to have. `None` while some are missing.
fn founders(map: &ClusterMap, unit: &UnitEntry) -> Option<Vec<NodeId>> {
    let newest = |metadata_only: bool| {
        let nodes = map.nodes.iter().filter(|node| is_newest(map, node));
        nodes
            .filter(move |node| node.metadata_only == metadata_only)
            .map(|node| node.id)
    };
    let with_metadata_only = usize::from(unit.metadata_members);
    let full = usize::from(unit.members).saturating_sub(with_metadata_only);
    let members = newest(true).take(with_metadata_only);
    let members: Vec<_> = members.chain(newest(false).take(full)).collect();
    (members.len() == usize::from(unit.members)).then_some(members)
}

/// Nodes without a role that can take the place of this member.
pub fn spares_for(map: &ClusterMap, member: NodeId) -> Vec<NodeId> {
    let (Some(unit), Some(member)) = (map.unit(UNIT), map.node(member)) else {
        return Vec::new();
    };
    let is_spare = |node: &&NodeEntry| {
        let is_same = node.metadata_only == member.metadata_only;
        is_same && is_newest(map, node) && !unit.map.members.contains(&node.id)
    };
    map.nodes.iter().filter(is_spare).map(|it| it.id).collect()
}

fn is_newest(map: &ClusterMap, node: &NodeEntry) -> bool {
    map.node_named(&node.name).map(|newest| newest.id) == Some(node.id)
}

/// If the pools of all full members in sync were lost, no node has the contents of the unit. This node has its pool.
fn refuse_if_all_lost(map: &ClusterMap, id: NodeId) -> Result<(), NodeError> {
    let Some(unit) = map.unit(UNIT).filter(|unit| unit.map.version > 0) else {
        return Ok(());
    };
    let in_sync = unit.map.full_in_sync();
    let nodes: Vec<_> = in_sync.iter().filter_map(|id| map.node(*id)).collect();
    if nodes
        .iter()
        .any(|node| node.id == id || is_newest(map, node))
    {
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
    use std::os::unix::net::UnixListener;

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
    fn a_unit_is_formed_of_nodes_of_both_kinds() {
        let mut two = with_nodes(map(3), &[("n1", 1), ("n2", 2), ("n3", 3)]);
        two.units[0].metadata_members = 1;
        assert_eq!(next_roles(&two, 3), None, "no node holds metadata only");
        let (all, _) = two.register_as("m1", [4; 16], true, Vec::new());
        let formed = next_roles(&all, 4).expect("it is formed");
        assert_eq!(formed.fault(), None);
        assert_eq!(formed.units[0].map.members, [1, 2, 4]);
        assert_eq!(formed.units[0].map.metadata_only, [4]);
        // A pool of the other kind does not take the place of a lost one.
        let mut lost = with_nodes(formed, &[("m1", 5)]);
        lost.units[0].map.in_sync = vec![1, 2];
        assert_eq!(next_roles(&lost, 5), None);
        let (lost, id) = lost.register_as("m1", [6; 16], true, Vec::new());
        let replaced = next_roles(&lost, id).expect("it is replaced");
        assert_eq!(replaced.units[0].map.metadata_only, [id]);
    }

    #[test]
    fn a_node_that_lost_its_pool_replaces_itself_when_it_is_out_of_sync() {
        let all = with_nodes(map(2), &[("n1", 1), ("n2", 2)]);
        let formed = next_roles(&all, 2).expect("it is formed");
        let mut lost = with_nodes(formed, &[("n2", 3)]);
        assert_eq!(next_roles(&lost, 3), None, "it is in sync");
        lost.units[0].map.in_sync = vec![1];
        let replaced = next_roles(&lost, 3).expect("it is replaced");
        assert_eq!(replaced.units[0].map.members, [1, 3]);
        assert_eq!(replaced.units[0].map.in_sync, [1]);
        assert!(refuse_if_all_lost(&replaced, 3).is_ok());
        let all_lost = with_nodes(replaced, &[("n1", 9)]);
        let refused = refuse_if_all_lost(&all_lost, 4).expect_err("n1 was the last");
        assert!(
            refuse_if_all_lost(&all_lost, 1).is_ok(),
            "it is found again"
        );
        assert!(refused.to_string().contains("(n1)"), "{refused}");
    }

    #[test]
    fn a_namesake_with_a_full_backlog_runs() {
        let name = format!("tako-namesake-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let answered: Vec<_> = (0..4).map(|_| listens(&path)).collect();
        std::fs::remove_file(&path).unwrap();
        // Connections that have ended stay in the backlog until the process accepts them.
        assert_eq!(answered, [Ok(()); 4]);
        assert!(listens(&path).is_err());
    }
}
