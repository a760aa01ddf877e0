//! `tako down`: unmounts and stops a cluster of this host.

use std::fs;
use std::io::Write;

use super::config::NodeFile;
use super::{control, process};
use crate::arguments::cluster::Down;
use crate::failure::{Failure, Outcome};
use crate::state_directory::{StateDirectory, failed};

pub fn run(arguments: &Down, out: &mut dyn Write) -> Outcome {
    let state = StateDirectory::of(&arguments.name)?;
    let nodes = state.nodes_with("toml");
    if nodes.is_empty() {
        let (name, directory) = (&state.name, state.directory.display());
        return Err(Failure::Failed(format!(
            "there is no cluster {name} in {directory}; start one with `tako up --name {name}`"
        )));
    }
    unmount(&state)?;
    let stopped = stop(&state, &nodes)?;
    for node in &nodes {
        for ending in ["pid", "status", "sock"] {
            // It may be gone already.
            let _ = fs::remove_file(state.file(node, ending));
        }
        forget_mount(&state, node)?;
    }
    let name = &state.name;
    if arguments.remove {
        remove(&state, &nodes)?;
        writeln!(
            out,
            "cluster {name}: stopped {stopped} nodes, removed its pools"
        )?;
    } else {
        writeln!(
            out,
            "cluster {name}: stopped {stopped} nodes; its files are kept, `tako up --name {name}` serves them again"
        )?;
    }
    Ok(())
}

/// Stops the nodes that run, the primary last: while it runs, no other node takes over. Returns how many ran.
fn stop(state: &StateDirectory, nodes: &[String]) -> Result<usize, Failure> {
    let reports = nodes.iter().filter_map(|node| control::ask(state, node));
    let map = reports
        .map(|report| report.map)
        .max_by_key(|map| map.version);
    let primary = map.and_then(|map| {
        let unit = &map.units.first()?.map;
        Some(map.node(unit.primary)?.name.clone())
    });
    let running = |is_primary: bool| {
        let nodes = nodes.iter();
        let chosen = nodes.filter(|node| (Some(*node) == primary.as_ref()) == is_primary);
        let pids = chosen.filter_map(|node| process::running(state, node));
        pids.collect::<Vec<_>>()
    };
    let (others, last) = (running(false), running(true));
    process::stop(&others)?;
    process::stop(&last)?;
    Ok(others.len() + last.len())
}

/// Removes the mount from a node's configuration: the next `tako up` names its own.
fn forget_mount(state: &StateDirectory, node: &str) -> Outcome {
    let path = state.file(node, "toml");
    // One that is half made has none.
    match NodeFile::read(&path) {
        Ok(file) if file.mount.is_some() => NodeFile {
            mount: None,
            ..file
        }
        .write(&path),
        _ => Ok(()),
    }
}

/// Unmounts what shows the cluster.
fn unmount(state: &StateDirectory) -> Outcome {
    for directory in state.mounted()? {
        fuse::unmount(&directory)?;
    }
    // Nothing was ever mounted, perhaps.
    let _ = fs::remove_file(state.mounts());
    Ok(())
}

/// Removes the pools and the directory of a cluster that is stopped.
pub fn remove(state: &StateDirectory, nodes: &[String]) -> Outcome {
    for node in nodes {
        let path = state.file(node, "toml");
        // A configuration that is half made names no pool that was made.
        let Ok(file) = NodeFile::read(&path) else {
            continue;
        };
        let pool = file.pool.path;
        match fs::remove_file(&pool) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed("remove", &pool, error));
            }
            _ => {}
        }
        if let Some(directory) = pool.parent() {
            // Only if nothing else is in it.
            let _ = fs::remove_dir(directory);
        }
    }
    let removed = fs::remove_dir_all(&state.directory);
    removed.map_err(|error| failed("remove", &state.directory, error))
}
