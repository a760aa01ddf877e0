//! `tako up`: a cluster on this host, without a configuration.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use protocol::ClusterMap;
use rustix::fs::{FlockOperation, flock};
use rustix::process::Pid;
use server::membership::{DirectoryMembership, Membership};

use super::config::{MembershipSection, NodeFile, PoolSection, UnitSection, spare_after};
use super::inside::{MountReport, Stage};
use super::{control, down, process};
use crate::arguments::cluster::Up;
use crate::failure::{Failure, Outcome};
use crate::state_directory::{StateDirectory, failed};

/// Nodes of a new cluster.
const NODES: u8 = 3;
/// Most nodes of a new cluster.
const MEMBERS_MAX: u8 = 7;
/// Begins the names of nodes with metadata only; those of the others begin with an n.
const METADATA_NODE: char = 'm';
/// Bytes of a node's pool in a new cluster.
const SIZE: u64 = 1 << 30;
/// How long a cluster may take to serve.
const SERVE_WITHIN: Duration = Duration::from_secs(60);

pub fn run(arguments: &Up, out: &mut dyn Write) -> Outcome {
    let state = StateDirectory::of(&arguments.name)?;
    let directory = arguments.mount.as_ref().map(|it| fuse::mount_point(it));
    let directory = directory.transpose()?;
    let inside = directory.as_ref().filter(|_| arguments.inside);
    state.make()?;
    let _lock = lock(&state)?;
    let known = state.nodes_with("toml");
    let is_new = known.is_empty();
    let nodes = match is_new {
        true => create(&state, arguments)?,
        false => existing(&state, arguments, known)?,
    };
    let mut started = Vec::new();
    let chosen = inside.map(|directory| choose_inside(&state, &nodes, directory));
    let (chosen, files_before) = chosen.transpose()?.unzip();
    let (members, spares) = nodes.split_at(nodes.len() - count_spares(&state, &nodes));
    // The first node of a new cluster becomes its primary.
    let served = start(&state, chosen.as_slice(), &mut started)
        .and_then(|()| start(&state, members, &mut started))
        .and_then(|()| start(&state, spares, &mut started))
        .and_then(|()| wait(&state, &nodes));
    if let Err(failure) = served {
        // Nothing half-started is left; a failure to clean up would hide why it did not start.
        end(started);
        // A node that did not end by itself leaves its mount.
        inside.iter().for_each(|it| unmount(&state, it));
        for file in files_before.iter().flatten() {
            let _ = file.write(&state.file(&file.name, "toml"));
        }
        if is_new {
            let _ = down::remove(&state, &nodes);
        }
        return Err(failure);
    }
    let (name, source) = (&state.name, state.source());
    let count = members.len();
    match count {
        1 => write!(out, "cluster {name}: 1 node serves {source}")?,
        count => write!(out, "cluster {name}: {count} nodes serve {source}")?,
    }
    match spares.len() {
        0 => writeln!(out)?,
        1 => writeln!(out, ", and 1 stands by")?,
        count => writeln!(out, ", and {count} stand by")?,
    }
    match (&directory, &chosen) {
        (Some(_), Some(node)) => wait_for_mount(&state, node, out),
        (Some(directory), None) => mount(&state, directory, out),
        (None, _) => match state.mounted()?.first() {
            Some(directory) => Ok(writeln!(
                out,
                "{source} is mounted on {}",
                directory.display()
            )?),
            None => Ok(writeln!(out, "mount it: tako mount {source} DIR")?),
        },
    }
}

/// Ends nodes that were started: a node that is asked to end unmounts first.
fn end(mut started: Vec<Child>) {
    let running = started.iter_mut().filter_map(|child| {
        let is_running = matches!(child.try_wait(), Ok(None));
        is_running.then(|| Pid::from_child(child))
    });
    let pids: Vec<Pid> = running.collect();
    let _ = process::stop(&pids);
    for mut child in started {
        let _ = child.wait();
    }
}

/// Unmounts the cluster from a directory, if it is mounted there.
fn unmount(state: &StateDirectory, directory: &Path) {
    let source = PathBuf::from(state.source());
    let mut mounts = fuse::mounts().unwrap_or_default().into_iter();
    if mounts.any(|mount| mount.source == source && mount.directory == directory) {
        let _ = fuse::unmount_lazily(directory);
    }
}

/// One `tako up` at a time works on a cluster.
fn lock(state: &StateDirectory) -> Result<File, Failure> {
    let path = state.directory.join("up.lock");
    let file = File::create(&path).map_err(|error| failed("write", &path, error))?;
    flock(&file, FlockOperation::LockExclusive).map_err(|errno| failed("lock", &path, errno))?;
    Ok(file)
}

/// The nodes of a cluster that was made before.
fn existing(
    state: &StateDirectory,
    arguments: &Up,
    known: Vec<String>,
) -> Result<Vec<String>, Failure> {
    let name = &state.name;
    let unit = NodeFile::read(&state.file(&known[0], "toml"))?.unit;
    let spares = known.len().saturating_sub(unit.members.into());
    let data_nodes = unit.members.saturating_sub(unit.metadata_members);
    let differs = |wanted: Option<u8>, count: u8| wanted.is_some_and(|it| it != count);
    if differs(arguments.nodes, unit.members)
        || differs(arguments.data_nodes, data_nodes)
        || differs(arguments.metadata_nodes, unit.metadata_members)
        || differs(arguments.spares, spares as u8)
    {
        return Err(Failure::Failed(format!(
            "cluster {name} has {} nodes, {} of them with metadata only, and {spares} spares; leave these options out, or remove it first with `tako down --name {name} --remove`",
            unit.members, unit.metadata_members
        )));
    }
    let given = [
        ("--size", arguments.size.is_some()),
        ("--directory", arguments.directory.is_some()),
        ("--min-sync", arguments.min_sync.is_some()),
        ("--spare-after", arguments.spare_after.is_some()),
        ("--group", arguments.group.is_some()),
    ];
    if let Some((option, _)) = given.iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::Failed(format!(
            "cluster {name} exists already; leave out {option}, which is for a new cluster, or choose another --name"
        )));
    }
    Ok(known)
}

fn is_metadata_node(name: &str) -> bool {
    name.starts_with(METADATA_NODE)
}

/// Writes the configurations of a new cluster's nodes.
fn create(state: &StateDirectory, arguments: &Up) -> Result<Vec<String>, Failure> {
    let user = rustix::process::geteuid().as_raw();
    let pools = match &arguments.directory {
        Some(directory) => directory.clone(),
        None => PathBuf::from(format!("/dev/shm/tako-{user}/{}", state.name)),
    };
    let made = fs::create_dir_all(&pools);
    made.map_err(|error| failed("make", &pools, error))?;
    let pools = pools
        .canonicalize()
        .map_err(|error| failed("find", &pools, error))?;
    let data_nodes = arguments.data_nodes.or(arguments.nodes).unwrap_or(NODES);
    let metadata_nodes = arguments.metadata_nodes.unwrap_or(0);
    let members = data_nodes + metadata_nodes;
    if members > MEMBERS_MAX {
        return Err(Failure::Usage(format!(
            "a unit has at most {MEMBERS_MAX} nodes, got {data_nodes} and {metadata_nodes}"
        )));
    }
    let named = |first: char, count| (1..=count).map(move |number| format!("{first}{number}"));
    let spares = arguments.spares.unwrap_or(0);
    // Spares start last: the unit is formed of those that start first.
    let nodes: Vec<_> = named(METADATA_NODE, metadata_nodes)
        .chain(named('n', data_nodes + spares))
        .collect();
    let pool = |node: &String| pools.join(format!("{}-{node}.pool", state.name));
    // Existing files belong to another user, and are not removed if this cluster does not start.
    if let Some(there) = nodes.iter().map(pool).find(|pool| pool.exists()) {
        return Err(Failure::Failed(format!(
            "{} exists and is of no cluster of this host; remove it, or choose another --name or --directory",
            there.display()
        )));
    }
    for node in &nodes {
        let file = NodeFile {
            cluster: state.name.clone(),
            name: node.clone(),
            listen: vec![state.file(node, "sock").display().to_string()],
            keys: None,
            transport: None,
            interface: None,
            mount: None,
            mount_options: None,
            ether_types: None,
            data_queue: None,
            requests: None,
            pull: None,
            group: arguments.group.clone(),
            group_parity: false,
            pool: PoolSection {
                path: pool(node),
                size: arguments.size.unwrap_or(SIZE).to_string(),
                metadata_only: is_metadata_node(node),
            },
            membership: MembershipSection {
                directory: Some(state.membership()),
                etcd: None,
            },
            unit: UnitSection {
                members,
                metadata_members: metadata_nodes,
                min_sync: arguments.min_sync.unwrap_or(0),
                spare_after: arguments.spare_after.unwrap_or_else(spare_after),
            },
            peers: Vec::new(),
        };
        let path = state.file(node, "toml");
        file.write(&path)?;
    }
    Ok(nodes)
}

/// Number of a cluster's nodes beyond the members of its unit.
fn count_spares(state: &StateDirectory, nodes: &[String]) -> usize {
    let first = nodes
        .first()
        .map(|node| NodeFile::read(&state.file(node, "toml")));
    match first {
        Some(Ok(file)) => nodes.len().saturating_sub(file.unit.members.into()),
        _ => 0,
    }
}

/// Starts the nodes that do not run, all at a time.
fn start(state: &StateDirectory, nodes: &[String], started: &mut Vec<Child>) -> Outcome {
    let missing: Vec<_> = nodes
        .iter()
        .filter(|node| match process::running(state, node) {
            // One that does not answer may be ending.
            Some(pid) => control::ask(state, node).is_none() && process::ends(pid),
            None => true,
        })
        .collect();
    let first = started.len();
    for node in &missing {
        // A process that was killed a moment ago has its pool until the kernel has taken it apart.
        if let Ok(file) = NodeFile::read(&state.file(node, "toml")) {
            fuse::wait_for_close(&file.pool.path);
        }
        started.push(process::start(state, node)?);
    }
    for (child, node) in started[first..].iter_mut().zip(missing) {
        let mut line = String::new();
        if let Some(mut output) = child.stdout.take() {
            // It closes its end when it is ready, or ends.
            let _ = output.read_to_string(&mut line);
        }
        if !line.ends_with('\n') {
            let _ = child.wait();
            let reason = process::last_line(&state.file(node, "log"));
            return Err(Failure::Failed(format!(
                "node {node} did not start: {reason}"
            )));
        }
    }
    Ok(())
}

/// Waits until the unit serves and its members are in sync. Members that still copy when the time has expired are not an
/// error.
fn wait(state: &StateDirectory, nodes: &[String]) -> Outcome {
    let start = Instant::now();
    let mut serves = false;
    let membership = DirectoryMembership::open(&state.membership());
    let membership = membership.map_err(|error| Failure::Failed(error.to_string()))?;
    while start.elapsed() < SERVE_WITHIN {
        let mut version = 0;
        for node in nodes {
            let Some(report) = control::ask(state, node) else {
                continue;
            };
            if report.status.is_serving {
                serves = true;
                if are_in_sync(&report.map) {
                    return Ok(());
                }
            }
            version = version.max(report.map.version);
        }
        // The primary may also just wait for its leases.
        let waited = membership.wait(version, Duration::from_millis(20));
        waited.map_err(|error| Failure::Failed(error.to_string()))?;
    }
    if serves {
        return Ok(());
    }
    let log = state.file(&nodes[0], "log");
    Err(Failure::Failed(format!(
        "cluster {} does not serve after {} s; see {} and the logs beside it",
        state.name,
        SERVE_WITHIN.as_secs(),
        log.display()
    )))
}

fn are_in_sync(map: &ClusterMap) -> bool {
    let mut units = map.units.iter().map(|unit| &unit.map);
    units.all(|unit| unit.in_sync.len() == unit.members.len())
}

/// Has one node mount the cluster in its process, and no other: the one that did before, or the one that leads. Returns its
/// name, and the configurations that were changed, as they were before.
fn choose_inside(
    state: &StateDirectory,
    nodes: &[String],
    directory: &Path,
) -> Result<(String, Vec<NodeFile>), Failure> {
    let mut files = Vec::new();
    for node in nodes {
        files.push(NodeFile::read(&state.file(node, "toml"))?);
    }
    let has_mount = |file: &&NodeFile| file.mount.as_deref() == Some(directory);
    let before = files.iter().find(has_mount).map(|file| file.name.clone());
    let leads = || last_primary(state).filter(|name| nodes.contains(name));
    let first = || nodes.iter().find(|node| !is_metadata_node(node)).cloned();
    let name = &state.name;
    let Some(chosen) = before.or_else(leads).or_else(first) else {
        return Err(Failure::Failed(format!("cluster {name} has no node")));
    };
    let wanted = |node: &str| (node == chosen).then(|| directory.to_owned());
    files.retain(|file| file.mount != wanted(&file.name));
    let runs = |file: &&NodeFile| process::running(state, &file.name).is_some();
    if let Some(file) = files.iter().find(runs) {
        let node = &file.name;
        return Err(Failure::Failed(format!(
            "node {node} runs already, and a node mounts when it starts; stop the cluster first with `tako down --name {name}`"
        )));
    }
    for file in &mut files {
        let before = std::mem::replace(&mut file.mount, wanted(&file.name));
        file.write(&state.file(&file.name, "toml"))?;
        file.mount = before;
    }
    Ok((chosen, files))
}

/// The node that led last.
fn last_primary(state: &StateDirectory) -> Option<String> {
    let membership = DirectoryMembership::open(&state.membership()).ok()?;
    let map = membership.read().ok()??;
    let primary = map.units.first()?.map.primary;
    Some(map.node(primary)?.name.clone())
}

/// Waits until a node has mounted the cluster in its process.
fn wait_for_mount(state: &StateDirectory, node: &str, out: &mut dyn Write) -> Outcome {
    let start = Instant::now();
    while start.elapsed() < SERVE_WITHIN {
        let report = control::ask(state, node).and_then(|report| report.mount);
        let Some(MountReport {
            directory,
            stage,
            detail,
            ..
        }) = report
        else {
            break;
        };
        let directory = directory.display();
        match stage {
            // The node answers when that has changed, or after a moment.
            Stage::Starting => {}
            Stage::Mounted => {
                let source = state.source();
                return Ok(writeln!(
                    out,
                    "{source} is mounted on {directory}, inside {node}; {detail}"
                )?);
            }
            Stage::Ended => {
                let name = &state.name;
                return Err(Failure::Failed(format!(
                    "node {node} does not mount {directory}: {detail}; a node mounts when it starts: stop the cluster with `tako down --name {name}`, then run `tako up` again"
                )));
            }
        }
    }
    let log = state.file(node, "log");
    Err(Failure::Failed(format!(
        "node {node} has not mounted the cluster after {} s; see {}",
        SERVE_WITHIN.as_secs(),
        log.display()
    )))
}

fn mount(state: &StateDirectory, directory: &Path, out: &mut dyn Write) -> Outcome {
    let source = state.source();
    if let Err(fuse::Error::Taken { directory, .. }) = fuse::make_free(directory)
        && state.mounted()?.contains(&directory)
    {
        let directory = directory.display();
        return Ok(writeln!(out, "{source} is mounted on {directory} already")?);
    }
    out.flush()?;
    let program = std::env::current_exe();
    let status = program.and_then(|program| {
        Command::new(program)
            .args(["mount", &source])
            .arg(directory)
            .status()
    });
    match status.map_err(|error| failed("mount", directory, error))? {
        status if status.success() => Ok(()),
        // It has printed the reason.
        _ => Err(Failure::Silent),
    }
}
