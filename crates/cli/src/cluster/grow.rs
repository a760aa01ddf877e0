//! `tako grow` of a cluster.

use std::io::Write;

use client::Source;

use super::{State, control};
use crate::failure::{Failure, Outcome};

/// Makes the pools of a cluster at least so many bytes long.
pub fn run(source: &Source, length: u64, out: &mut dyn Write) -> Outcome {
    let name = &source.name;
    if !source.hosts.is_empty() {
        return Err(Failure::Usage(format!(
            "a cluster is made larger on the host of one of its nodes; run `tako grow tako:///{name} --size SIZE` there"
        )));
    }
    let state = State::of(name)?;
    let nodes = state.nodes_with("status");
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
    writeln!(
        out,
        "the pools of {} have {length} bytes now",
        state.source()
    )?;
    Ok(())
}
