//! Benchmarks, each beside the limit of the same machine.
//!
//! A figure alone says little, and machines are noisy: every row alternates short rounds of Tako with rounds of its
//! limit (tmpfs, a copy in memory, one thread instead of two), and compares round by round.
//!
//! - [`run`] and its [`Options`]; [`workloads`] names what can be run alone;
//! - [`Report`]: rows and notes, as a table or as JSON (`report`);
//! - `harness`: rounds and medians; `setup`: the pool and the files that are measured, `mounts` and `places`: the mounts;
//! - one module for each family of workloads: `cluster`, `data`, `sizes`, `names`, `unit`, `threads`, `mount`, `primitives`, and `mounted`
//!   for what goes through the kernel.
#![forbid(unsafe_code)]

mod cluster;
mod data;
mod error;
mod fabric;
mod harness;
mod mount;
mod mounted;
mod mounts;
mod names;
mod pauses;
mod places;
mod primitives;
mod report;
mod scratch;
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

/// Selects the rows and the place.
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

/// A group of rows.
struct Group {
    name: &'static str,
    /// Operations of the two sides.
    sides: &'static str,
    workloads: &'static [Workload],
}

/// Both sides run on this thread, timed by its own clock (`CLOCK_THREAD_CPUTIME_ID`).
const IN_PROCESS: &str =
    "Tako and memcpy are calls in this process; tmpfs is system calls; processor time";

const GROUPS: [Group; 13] = [
    Group {
        name: "memory",
        sides: "bytes, not times; the limit is what is allowed",
        workloads: &sizes::MEMORY,
    },
    Group {
        name: "data",
        sides: IN_PROCESS,
        workloads: &data::WORKLOADS,
    },
    Group {
        name: "length of a file",
        sides: "both are calls in this process, on files of different lengths",
        workloads: &sizes::LENGTHS,
    },
    Group {
        name: "names",
        sides: IN_PROCESS,
        workloads: &names::WORKLOADS,
    },
    Group {
        name: "as a unit's primary",
        sides: "both are calls in this process: on a unit's primary, and on an embedded pool",
        workloads: &unit::WORKLOADS,
    },
    Group {
        name: "two threads, beside one",
        sides: "the same calls by two threads and by one; rows named tmpfs are system calls; real time",
        workloads: &threads::THROUGHPUT,
    },
    Group {
        name: mounted::GROUP,
        sides: "all are system calls; null is a FUSE file system that does nothing; no server spins; real time",
        workloads: &mounted::WORKLOADS,
    },
    Group {
        name: cluster::GROUP,
        sides: "all are system calls on mounts, pings calls in this process; three members over shm, two over tcp; peers as scripts/peers.sh mounts them; real time",
        workloads: &cluster::WORKLOADS,
    },
    Group {
        name: "mount after a crash",
        sides: "opening a pool in this process; real time",
        workloads: &mount::WORKLOADS,
    },
    Group {
        name: "waiting in the ring",
        sides: "both are calls in this process; real time",
        workloads: &threads::LATENCY,
    },
    Group {
        name: "others while a huge file is deleted",
        sides: "both are calls in this process; real time",
        workloads: &pauses::WORKLOADS,
    },
    Group {
        name: fabric::GROUP,
        sides: "two threads of this process; in each row both sides wait in the same way; docs/ETHERNET.md explains packets, overlay, strip and jumbo",
        workloads: &fabric::WORKLOADS,
    },
    Group {
        name: "primitives",
        sides: "instructions in this process",
        workloads: &primitives::WORKLOADS,
    },
];

/// The names of all workloads, for [`Options::only`].
pub fn workloads() -> Vec<&'static str> {
    let all = GROUPS.iter().flat_map(|group| group.workloads);
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
    let wanted = |group: &Group, workload: &Workload| {
        let only = options.only.as_deref();
        only.is_none_or(|part| workload.name.contains(part) || group.name.contains(part))
    };
    if options.tune {
        return tune(options, scale);
    }
    let chosen = GROUPS.map(|group| {
        let all = group.workloads.iter();
        let workloads: Vec<_> = all.filter(|workload| wanted(&group, workload)).collect();
        (group, workloads)
    });
    if chosen.iter().all(|(_, workloads)| workloads.is_empty()) {
        return Err(Error::NoWorkload(options.only.clone().unwrap_or_default()));
    }
    let uses_pool =
        |(group, workloads): &(Group, Vec<_>)| !workloads.is_empty() && group.name != fabric::GROUP;
    let scale = match chosen.iter().any(uses_pool) {
        true => scale,
        false => scale.with_small_pool(),
    };
    let bench = Bench::new(options, scale)?;
    let mut notes = bench.notes();
    let mut rows = Vec::new();
    for (group, workloads) in chosen {
        if workloads.is_empty() {
            continue;
        }
        let mounts_notes = match group.name {
            mounted::GROUP => bench.mounts().map(|mounts| mounts.notes.clone()),
            cluster::GROUP => bench.clusters().map(|places| places.notes.clone()),
            _ => Ok(Vec::new()),
        };
        match mounts_notes {
            Ok(of_mounts) => notes.extend(of_mounts),
            Err(Error::Mount(text)) => {
                let name = group.name;
                notes.push(Note { name, text });
                continue;
            }
            Err(error) => return Err(error),
        }
        for workload in workloads {
            let measured = (workload.measure)(&bench, workload.name)?;
            rows.extend(measured.into_iter().map(|row| Row {
                group: group.name,
                sides: group.sides,
                ..row
            }));
        }
    }
    notes.extend(fabric::missing());
    Ok(Report { rows, notes })
}

fn tune(options: &Options, scale: Scale) -> Result<Report, Error> {
    let providers = fabric::tuned(options.only.as_deref())?;
    let bench = Bench::new(options, scale.with_small_pool())?;
    let rows = fabric::tune(&bench, providers)?.into_iter();
    Ok(Report {
        rows: rows
            .map(|row| Row {
                group: fabric::GROUP,
                ..row
            })
            .collect(),
        notes: bench.notes().into_iter().chain(fabric::missing()).collect(),
    })
}
