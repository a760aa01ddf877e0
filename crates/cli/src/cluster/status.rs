//! `tako status`: state and roles of a cluster. Nodes of this host report more than the map of a cluster elsewhere
//! contains.

use std::collections::BTreeSet;
use std::io::Write;

use pmem::Survival;
use protocol::{ClusterMap, NO_NODE, NodeId};
use serde::Serialize;
use server::node::{GroupStatus, LinkStatus, Load, NodeStatus, Role, Space};

use super::control;
use super::control::Report;
use super::inside::{MountReport, Stage};
use crate::arguments::cluster::Status;
use crate::failure::{Failure, Outcome};
use crate::remote;
use crate::sizes::show_short_size;
use crate::state_directory::{StateDirectory, does_not_run};

#[derive(Serialize)]
struct Cluster {
    name: String,
    identity: String,
    /// Mounts the cluster on this host.
    source: String,
    map_version: u64,
    /// `None` if the primary is on another host, which shows a link to it and no more.
    serving: Option<bool>,
    unit: Unit,
    nodes: Vec<NodeReport>,
}

#[derive(Serialize)]
struct Unit {
    number: u16,
    epoch: u32,
    primary: Option<String>,
    members: usize,
    in_sync: usize,
    min_sync: usize,
    /// Clients with a session: mounts, and programs at work. `None` if the primary is on another host.
    sessions: Option<usize>,
    /// `None` if the primary is on another host.
    space: Option<Space>,
    survives: Survives,
}

/// Failures that the contents of the unit survive; `None` if only a pool of another host could, which is not known here.
#[derive(Serialize)]
struct Survives {
    process_crash: Option<bool>,
    /// The host of a node, with all its processes.
    machine_crash: Option<bool>,
    power_loss: Option<bool>,
}

#[derive(Serialize)]
struct NodeReport {
    name: String,
    id: NodeId,
    pid: Option<u32>,
    role: &'static str,
    in_sync: bool,
    address: Option<String>,
    addresses: Vec<String>,
    tail: Option<u64>,
    load: Option<Load>,
    /// Bytes of its pool.
    pool: Option<u64>,
    exports: Option<usize>,
    placed: Option<u64>,
    fetched: Option<u64>,
    pulled: Option<u64>,
    pulled_early: Option<u64>,
    announced: Option<u64>,
    group: Option<GroupStatus>,
    memory: Option<String>,
    survives: Option<String>,
    /// Mount that the node's process serves.
    mount: Option<MountReport>,
    /// Its mounts of other clusters.
    peers: Vec<MountReport>,
    links: Vec<LinkStatus>,
}

pub fn run(arguments: &Status, out: &mut dyn Write) -> Outcome {
    let cluster = match &arguments.source {
        Some(source) => {
            let (network, serving) = remote::survey(source)?;
            let source = source.display().to_string();
            let mut cluster = describe(&network.map(), None, source, Some(serving));
            for (id, choice) in network.choices() {
                let node = cluster.nodes.iter_mut().find(|node| node.id == id);
                let link = LinkStatus::new(NO_NODE, "this program".into(), &choice);
                node.into_iter()
                    .for_each(|node| node.links.push(link.clone()));
            }
            cluster
        }
        None => collect(&StateDirectory::of(&arguments.name)?)?,
    };
    if arguments.json {
        let text = serde_json::to_string_pretty(&cluster).map_err(std::io::Error::from)?;
        return Ok(writeln!(out, "{text}")?);
    }
    print(&cluster, out)
}

fn collect(state: &StateDirectory) -> Result<Cluster, Failure> {
    let asked = state.nodes_with("status");
    let reports: Vec<_> = asked
        .iter()
        .filter_map(|node| control::ask(state, node))
        .collect();
    let newest = reports.iter().map(|report| &report.map);
    let Some(map) = newest.max_by_key(|map| map.version) else {
        return Err(does_not_run(&state.name));
    };
    let primary = map.units.first().map_or(0, |unit| unit.map.primary);
    let name = map.node(primary).map(|node| &node.name);
    let report = reports.iter().find(|it| Some(&it.status.name) == name);
    let serving = match report {
        Some(report) => Some(report.status.is_serving),
        // It is on another host: links to it show that it lives, but not that it serves.
        None => (!is_linked(&reports, primary)).then_some(false),
    };
    Ok(describe(map, Some(&reports), source(state, map), serving))
}

/// Whether a node of this host has a link to this node, which may be on another host.
fn is_linked(reports: &[Report], node: NodeId) -> bool {
    let mut links = reports.iter().flat_map(|report| &report.status.links);
    links.any(|link| link.id == node)
}

/// Describes a cluster by its map and, on its own host, what its nodes report.
fn describe(
    map: &ClusterMap,
    reported: Option<&[Report]>,
    source: String,
    serving: Option<bool>,
) -> Cluster {
    let reports = reported.unwrap_or_default();
    let statuses: Vec<_> = reports.iter().map(|report| &report.status).collect();
    let entry = map.units.first().cloned().unwrap_or_default();
    let unit = &entry.map;
    let newest = |id: &NodeId| {
        let node = map.node(*id)?;
        (map.node_named(&node.name)?.id == *id).then_some(node)
    };
    let ids = map.nodes.iter().map(|node| node.id);
    let nodes: Vec<_> = ids.filter(|id| newest(id).is_some()).collect();
    let nodes = nodes.iter().filter_map(|id| {
        let node = map.node(*id)?;
        let report = reports.iter().find(|it| it.status.name == node.name);
        let status = report.map(|report| &report.status);
        let role = match status {
            None if reported.is_some() && unit.members.contains(id) && !is_linked(reports, *id) => {
                "down"
            }
            _ => Role::of(unit, *id).name(),
        };
        Some(NodeReport {
            name: node.name.clone(),
            id: node.id,
            pid: status.map(|status| status.pid),
            role,
            in_sync: unit.is_in_sync(*id),
            address: node.addresses.first().cloned(),
            addresses: node.addresses.clone(),
            tail: status.map(|status| status.tail),
            load: status.map(|status| status.load),
            pool: status.map(|status| status.pool),
            exports: status.map(|status| status.exports),
            placed: status.map(|status| status.placed),
            fetched: status.and_then(|status| status.fetched),
            pulled: status.and_then(|status| status.pulled),
            pulled_early: status.and_then(|status| status.pulled_early),
            announced: status.and_then(|status| status.announced),
            group: status.map(|status| status.group.clone()),
            memory: status.map(|status| status.memory.clone()),
            survives: status.map(|status| status.survives.clone()),
            mount: report.and_then(|report| report.mount.clone()),
            peers: report.map_or_else(Vec::new, |report| report.peers.clone()),
            links: status.map_or_else(Vec::new, |status| status.links.clone()),
        })
    });
    let nodes: Vec<_> = nodes.collect();
    let primary = statuses.iter().find(|status| status.is_serving);
    Cluster {
        name: map.name.clone(),
        identity: connections::keys::show_identity(&map.cluster),
        source,
        map_version: map.version,
        serving,
        unit: Unit {
            number: entry.unit,
            epoch: unit.epoch,
            primary: map.node(unit.primary).map(|node| node.name.clone()),
            members: unit.members.len(),
            in_sync: unit.in_sync.len(),
            min_sync: entry.least_in_sync(),
            sessions: primary.map(|status| status.sessions),
            space: primary.and_then(|status| status.space),
            survives: survives(map, &statuses),
        },
        nodes,
    }
}

/// Failures that the unit's contents survive: with one pool that does, or because another host has them.
fn survives(map: &ClusterMap, statuses: &[&NodeStatus]) -> Survives {
    let in_sync = map.units.first().map(|unit| unit.map.full_in_sync());
    let in_sync = in_sync.unwrap_or_default();
    let is_full = |status: &&&NodeStatus| status.is_in_sync && status.role != Role::Metadata;
    let pools: Vec<_> = statuses.iter().filter(is_full).collect();
    let is_known = pools.len() >= in_sync.len();
    let survives = |by_others: bool, least: &[Survival]| {
        let mut own = pools.iter().map(|status| &status.survives);
        let survives = by_others || own.any(|own| least.iter().any(|it| it.to_string() == *own));
        (survives || is_known).then_some(survives)
    };
    let host = |id: &NodeId| {
        let mut addresses = map.node(*id)?.addresses.iter();
        let host = |address: &String| Some(address.rsplit_once(':')?.0.to_owned());
        addresses.find_map(host)
    };
    let hosts: BTreeSet<_> = in_sync.iter().filter_map(host).collect();
    use Survival::{NodeCrash, PowerLoss, ProcessCrash};
    Survives {
        process_crash: survives(in_sync.len() > 1, &[ProcessCrash, NodeCrash, PowerLoss]),
        machine_crash: survives(hosts.len() > 1, &[NodeCrash, PowerLoss]),
        power_loss: survives(false, &[PowerLoss]),
    }
}

fn source(state: &StateDirectory, map: &ClusterMap) -> String {
    let all = map.nodes.iter().flat_map(|node| &node.addresses);
    let tcp: Vec<_> = all.filter(|it| !it.starts_with('/')).cloned().collect();
    match tcp.is_empty() {
        true => state.source(),
        false => format!("tako://{}/{}", tcp.join(","), map.name),
    }
}

fn print_unit(cluster: &Cluster, out: &mut dyn Write) -> Outcome {
    let Cluster {
        name, source, unit, ..
    } = cluster;
    let state = match (&unit.primary, cluster.serving) {
        (Some(primary), Some(true)) => format!("served by {primary}"),
        (Some(primary), None) => {
            format!("led by {primary} on another host, which is linked but was not asked")
        }
        _ => "not served at the moment".into(),
    };
    writeln!(
        out,
        "cluster {name}  {state}; mount it with `tako mount {source} DIR`"
    )?;
    let sessions = unit.sessions.map(|count| format!(", {count} sessions"));
    let sessions = sessions.unwrap_or_default();
    writeln!(
        out,
        "unit {}     {} of {} members in sync, at least {} for changes; epoch {}{sessions}",
        unit.number, unit.in_sync, unit.members, unit.min_sync, unit.epoch
    )?;
    if let Some(space) = &unit.space {
        let [total, used, available] =
            [space.total, space.used, space.available].map(show_short_size);
        writeln!(
            out,
            "space      {total}, of it {used} used, {available} available"
        )?;
    }
    let word = |survives: Option<bool>| match survives {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    };
    writeln!(
        out,
        "survives   process crash: {}, machine crash: {}, power loss: {}",
        word(unit.survives.process_crash),
        word(unit.survives.machine_crash),
        word(unit.survives.power_loss)
    )?;
    Ok(())
}

fn print(cluster: &Cluster, out: &mut dyn Write) -> Outcome {
    print_unit(cluster, out)?;
    for node in &cluster.nodes {
        // A node of another host has only what the map has.
        let own = match (node.pid, node.tail) {
            (Some(pid), Some(tail)) => format!("process {pid:<8} tail {tail:<12} "),
            _ => String::new(),
        };
        let address = node.address.as_deref().unwrap_or("-");
        let sync = if node.in_sync {
            "in sync"
        } else {
            "not in sync"
        };
        writeln!(
            out,
            "{:10} {:8} {sync:12} {own}{address}",
            node.name, node.role
        )?;
        if let Some(load) = &node.load {
            writeln!(out, "             {}", describe_load(load))?;
        }
        for mount in node.mount.iter().chain(&node.peers) {
            print_mount(mount, out)?;
        }
        if let Some(group) = node.group.as_ref().filter(|_| node.role == "primary") {
            writeln!(out, "             {}", describe_group(group))?;
        }
        for link in &node.links {
            let kind = if link.is_node { "node" } else { "client" };
            let mut line = format!("             {kind} {}: {}", link.peer, link.transport);
            for reason in &link.passed_over {
                line += &format!("; not {reason}");
            }
            // Plain messages are the usual way.
            let requests = link.requests.as_deref();
            if let Some(requests) = requests.filter(|it| *it != "messages") {
                line += &format!("; requests {requests}");
            }
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

fn describe_load(load: &Load) -> String {
    let Load {
        seconds,
        reads,
        changes,
        messages,
        ..
    } = load;
    let [read, written] = [load.read, load.written].map(show_short_size);
    format!(
        "in {seconds} s: {reads} reads, {changes} changes, {read} read, {written} written, {messages} messages"
    )
}

fn print_mount(mount: &MountReport, out: &mut dyn Write) -> Outcome {
    let stage = match mount.stage {
        Stage::Starting => "will be mounted, inside this node",
        Stage::Mounted => "mounted, inside this node",
        Stage::Ended => "not mounted any more",
    };
    let MountReport {
        directory,
        source,
        detail,
        ..
    } = mount;
    let directory = directory.display();
    let separator = if detail.is_empty() { "" } else { "; " };
    Ok(writeln!(
        out,
        "             {source} on {directory}: {stage}{separator}{detail}"
    )?)
}

fn describe_group(group: &GroupStatus) -> String {
    let GroupStatus {
        reason,
        members,
        sent,
        sent_again,
        ..
    } = group;
    match group.used {
        true => {
            format!("group: {reason}, {members} members, {sent} frames, {sent_again} sent again")
        }
        false => format!("no group: {reason}"),
    }
}
