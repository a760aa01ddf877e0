//! `tako du` and `df`.

use std::collections::HashSet;
use std::io::Write;

use client::{Attributes, FileKind};

use crate::failure::{Failure, Outcome};
use crate::figures::show_size;
use crate::place::PoolPlace;
use crate::pools::open_to_read;
use crate::walk::{Visit, walk};

pub fn du(places: &[PoolPlace], bytes: bool, summary: bool, out: &mut dyn Write) -> Outcome {
    for place in places {
        let file_system = open_to_read(&place.pool)?;
        let own = file_system.symlink_stat(&place.path);
        let own = own.map_err(|error| Failure::at(place, &error))?;
        // A file with several names takes its space once.
        let mut counted = HashSet::new();
        let mut sums = vec![allocated(&own)];
        if own.kind == FileKind::Directory {
            walk(&file_system, place, own, &mut |step| {
                match step.visit {
                    Visit::Enter => sums.push(allocated(step.attributes)),
                    Visit::Leave => {
                        let sum = sums.pop().unwrap_or(0);
                        add(&mut sums, sum);
                        if !summary {
                            writeln!(out, "{:>10}  {}", show(sum, bytes), place.below(step.path))?;
                        }
                    }
                    Visit::Leaf => {
                        let attributes = step.attributes;
                        if attributes.links == 1 || counted.insert(attributes.number) {
                            add(&mut sums, allocated(attributes));
                        }
                    }
                }
                Ok(())
            })?;
        }
        writeln!(out, "{:>10}  {place}", show(sums[0], bytes))?;
    }
    Ok(())
}

fn allocated(attributes: &Attributes) -> u64 {
    attributes.blocks_512 * 512
}

/// Adds to the sum of the innermost directory.
fn add(sums: &mut [u64], size: u64) {
    if let Some(sum) = sums.last_mut() {
        *sum += size;
    }
}

fn show(size: u64, bytes: bool) -> String {
    if bytes {
        size.to_string()
    } else {
        show_size(size)
    }
}

pub fn df(places: &[PoolPlace], bytes: bool, out: &mut dyn Write) -> Outcome {
    let head = ["size", "used", "available", "full", "inodes", "used"];
    let mut rows = vec![(head.map(String::from), "pool".into())];
    for place in places {
        let file_system = open_to_read(&place.pool)?;
        file_system
            .stat(&place.path)
            .map_err(|error| Failure::at(place, &error))?;
        let statistics = file_system
            .statistics()
            .map_err(|error| Failure::at(place, &error))?;
        let size = |blocks: u64| show(blocks * u64::from(statistics.block_size), bytes);
        let used = statistics.blocks - statistics.blocks_free;
        let room = used + statistics.blocks_available;
        let row = [
            size(statistics.blocks),
            size(used),
            size(statistics.blocks_available),
            format!("{}%", (used * 100).div_ceil(room.max(1))),
            statistics.inodes.to_string(),
            (statistics.inodes - statistics.inodes_free).to_string(),
        ];
        rows.push((row, place.pool.display().to_string()));
    }
    for (cells, pool) in &rows {
        for (column, cell) in cells.iter().enumerate() {
            let width = rows
                .iter()
                .map(|(cells, _)| cells[column].len())
                .max()
                .unwrap_or(0);
            write!(out, "{cell:>width$}  ")?;
        }
        writeln!(out, "{pool}")?;
    }
    Ok(())
}
