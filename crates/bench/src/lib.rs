//! Benchmarks, each beside the limit of the same machine.
//!
//! A figure alone says little, and machines are noisy: every row alternates short rounds of Tako with rounds of what
//! bounds it (tmpfs, a copy in memory, one thread instead of two), and compares round by round.
//!
//! - [`run`] and its [`Options`]; [`workloads`] names what can be run alone;
//! - [`Report`]: rows and notes, as a table or as JSON (`report`);
//! - `harness`: rounds and medians; `setup`: the pool and the files that are measured;
//! - one module for each family of workloads: `data`, `sizes`, `names`, `unit`, `threads`, `mount`, `primitives`, and `mounted`
//!   for what goes through the kernel.
#![forbid(unsafe_code)]

mod data;
mod error;
mod fabric;
mod harness;
mod mount;
mod mounted;
mod names;
mod pauses;
mod primitives;
mod report;
mod setup;
mod sizes;
#[cfg(test)]
mod tests;
mod threads;
mod unit;

use std::path::PathBuf;

pub use error::Error;
pub use report::{Note, Quantity, Report, Row};

use setup::{Bench, Scale};

/// What to run, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// Fewer and shorter rounds.
    pub quick: bool,
    /// Where the pool is made. (The limits are measured on `/dev/shm`, wherever the pool is.)
    pub directory: PathBuf,
    /// Only the workloads with this in their names or in their group's name.
    pub only: Option<String>,
    /// Instead: up to which size a payload should travel in its message, for each transport. These are selected by
    /// `only`, too.
    pub tune: bool,
    /// The tako program, to measure its mounts; without it they are left out.
    pub program: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            quick: false,
            directory: PathBuf::from(setup::LIMIT_DIRECTORY),
            only: None,
            tune: false,
            program: None,
        }
    }
}

/// Something to measure, which gives one row or several.
struct Workload {
    name: &'static str,
    measure: fn(&Bench, &str) -> Result<Vec<Row>, Error>,
}

/// What each group of rows is called, and its workloads.
const GROUPS: [(&str, &[Workload]); 12] = [
    ("memory", &sizes::MEMORY),
    ("data", &data::WORKLOADS),
    ("length of a file", &sizes::LENGTHS),
    ("names", &names::WORKLOADS),
    ("as a unit's primary", &unit::WORKLOADS),
    ("two threads, beside one", &threads::THROUGHPUT),
    (mounted::GROUP, &mounted::WORKLOADS),
    ("mount after a crash", &mount::WORKLOADS),
    ("waiting in the ring", &threads::LATENCY),
    ("others while a huge file is deleted", &pauses::WORKLOADS),
    (fabric::GROUP, &fabric::WORKLOADS),
    ("primitives", &primitives::WORKLOADS),
];

/// The names of all workloads, for [`Options::only`].
pub fn workloads() -> Vec<&'static str> {
    let all = GROUPS.iter().flat_map(|(_, workloads)| *workloads);
    all.map(|workload| workload.name).collect()
}

/// Runs the benchmarks. Nothing is left behind, in particular no pool.
///
/// # Errors
/// Every operation that fails ends the run.
pub fn run(options: &Options) -> Result<Report, Error> {
    let scale = if options.quick {
        Scale::QUICK
    } else {
        Scale::FULL
    };
    run_at(options, scale)
}

fn run_at(options: &Options, scale: Scale) -> Result<Report, Error> {
    let wanted = |group: &str, workload: &Workload| {
        let only = options.only.as_deref();
        only.is_none_or(|part| workload.name.contains(part) || group.contains(part))
    };
    if options.tune {
        return tune(options, scale);
    }
    let chosen = GROUPS.map(|(group, workloads)| {
        let workloads = workloads.iter().filter(|workload| wanted(group, workload));
        (group, workloads.collect::<Vec<_>>())
    });
    if chosen.iter().all(|(_, workloads)| workloads.is_empty()) {
        return Err(Error::NoWorkload(options.only.clone().unwrap_or_default()));
    }
    let bench = Bench::new(options, scale)?;
    let mut notes = bench.notes();
    let mut rows = Vec::new();
    for (group, workloads) in chosen {
        if group == mounted::GROUP && !workloads.is_empty() {
            match bench.mounts() {
                Ok(mounts) => notes.extend(mounts.notes.iter().cloned()),
                Err(Error::Mount(text)) => {
                    let name = mounted::GROUP;
                    notes.push(Note { name, text });
                    continue;
                }
                Err(error) => return Err(error),
            }
        }
        for workload in workloads {
            let measured = (workload.measure)(&bench, workload.name)?;
            rows.extend(measured.into_iter().map(|row| Row { group, ..row }));
        }
    }
    Ok(Report { rows, notes })
}

fn tune(options: &Options, scale: Scale) -> Result<Report, Error> {
    let providers = fabric::tuned(options.only.as_deref())?;
    let bench = Bench::new(options, scale)?;
    let rows = fabric::tune(&bench, providers)?.into_iter();
    Ok(Report {
        rows: rows
            .map(|row| Row {
                group: fabric::GROUP,
                ..row
            })
            .collect(),
        notes: bench.notes(),
    })
}
