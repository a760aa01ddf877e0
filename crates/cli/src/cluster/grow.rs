//! `tako grow` of a cluster.

use std::io::Write;

use client::Source;

use super::control;
use crate::failure::{Failure, Outcome};
use crate::state_directory::StateDirectory;

/// Makes the pools of a cluster at least so many bytes long.
pub fn run(source: &Source, length: u64, out: &mut dyn Write) -> Outcome {
    let name = &source.name;
    let state = StateDirectory::of(name)?;
    let mut nodes = state.nodes_with("status");
    // One that is stopped does not answer, and would be waited for.
    nodes.retain(|node| is_of(source, &state, node));
    if nodes.is_empty() && !source.hosts.is_empty() {
        return Err(Failure::Usage(format!(
            "no node of {source} runs on this host, and a cluster is made larger on the host of a node; run `tako grow tako:///{name} --size SIZE` there"
        )));
    }
    let mut answers = nodes
        .iter()
        .filter_map(|node| control::ask_to_grow(&state, node, length));
    match answers.next() {
        Some(answer) => answer?,
        None => {
            return Err(Failure::Failed(format!(
                "no node of cluster {name} runs on this host; start it with `tako up --name {name}`"
            )));
        }
    }
    writeln!(out, "the pools of {source} have {length} bytes now")?;
    Ok(())
}

/// Whether a node of this host answers, and is of the cluster that a source with hosts names.
fn is_of(source: &Source, state: &StateDirectory, node: &str) -> bool {
    control::ask(state, node).is_some_and(|report| {
        let mut addresses = report.map.nodes.iter().flat_map(|node| &node.addresses);
        source.hosts.is_empty() || addresses.any(|address| source.hosts.contains(address))
    })
}
