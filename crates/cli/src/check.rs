//! `tako check`, with and without `--repair`.

use std::io::{self, Write};
use std::path::Path;

use pmem::{Access, Region};
use serde::Serialize;
use store::CheckOptions;

use crate::arguments::Check;
use crate::failure::{Failure, Outcome};
use crate::info::write_json;
use crate::pools::{mounted_at, refuse_cluster};
use crate::progress::while_working;
use crate::sizes::show_size;

/// Findings of a check, named as in JSON.
#[derive(Serialize)]
struct Report {
    pool: String,
    clean: bool,
    /// Findings that `--repair` repaired.
    #[serde(skip_serializing_if = "Option::is_none")]
    repaired: Option<Vec<Finding>>,
    findings: Vec<Finding>,
    inodes: u64,
    directories: u64,
    blocks_used: u64,
    orphans: u64,
    records_replayed: u64,
}

#[derive(Serialize)]
struct Finding {
    what: String,
    inode: Option<u64>,
    block: Option<u64>,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Findings that were repaired.
    pub repaired: usize,
    /// Number of findings that were not repaired.
    pub remaining: usize,
}

pub fn run(arguments: &Check, out: &mut dyn Write) -> Outcome {
    match examine(arguments, out)?.remaining {
        0 => Ok(()),
        _ if arguments.json => Err(Failure::Silent),
        count => Err(findings_remain(arguments, count)),
    }
}

/// The failure of a check with findings that remain.
pub fn findings_remain(arguments: &Check, count: usize) -> Failure {
    let pool = arguments.pool.display();
    let what = match count {
        1 => "1 inconsistency remains",
        count => &format!("{count} inconsistencies remain"),
    };
    let advice = match arguments.repair {
        true => "restore the lost files from a copy",
        false => "run `tako check --repair`, or copy what can be read to a new pool",
    };
    Failure::Failed(format!("{pool}: {what}; {advice}"))
}

/// Checks or repairs a pool and writes the report.
pub fn examine(arguments: &Check, out: &mut dyn Write) -> Result<Verdict, Failure> {
    refuse_cluster(
        &arguments.pool,
        "stop its nodes, and check the pool of each",
    )?;
    let pool = arguments.pool.display();
    let explain = |error| Failure::Failed(format!("{pool}: {error}"));
    // A mount that umount(8) ended may still be closing the pool.
    fuse::wait_for_close(&arguments.pool);
    let (done, report) = match arguments.repair {
        true => {
            let repair = repair(arguments)?;
            (Some(repair.done), repair.left)
        }
        false => {
            let region = open_private(&arguments.pool)?;
            (None, check(arguments, &region).map_err(explain)?)
        }
    };
    let verdict = Verdict {
        repaired: done.as_ref().map_or(0, Vec::len),
        remaining: report.findings.len(),
    };
    match arguments.json {
        true => write_json(&for_json(pool.to_string(), done, &report), out)?,
        false => write_text(done.as_deref(), &report, out)?,
    }
    Ok(verdict)
}

/// The memory of a pool, so that stores to it do not reach the medium.
fn open_private(pool: &Path) -> Result<Region, Failure> {
    let opened = match Region::open(pool, Access::Private) {
        Err(pmem::Error::SharedOnly { .. }) => return copy_device(pool),
        opened => opened,
    };
    opened.map_err(|error| refused(pool, error))
}

/// A copy of a DAX device in memory: the kernel does not map such devices copy-on-write.
fn copy_device(pool: &Path) -> Result<Region, Failure> {
    let device = Region::open(pool, Access::ReadWrite);
    let device = device.map_err(|error| refused(pool, error))?;
    let length = device.length();
    let available = available_memory();
    if available.is_some_and(|available| available < length) {
        let (length, available) = (show_size(length), show_size(available.unwrap_or(0)));
        return Err(Failure::Failed(format!(
            "cannot check {}: a DAX device is checked in a copy, and {available} of memory are available for its {length}; \
             free memory, or copy the device to a file and check that",
            pool.display()
        )));
    }
    let copy = Region::memory(length, false)?;
    copy.copy_from(0, &device, 0, length as usize);
    Ok(copy)
}

/// Bytes of memory that are available without swapping, if the kernel tells.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find(|line| line.starts_with("MemAvailable:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Why a pool cannot be opened: a mounted one is not checked through its mount.
fn refused(pool: &Path, error: pmem::Error) -> Failure {
    match (&error, mounted_at(pool)) {
        (pmem::Error::Busy { .. }, Some(directory)) => {
            let (pool, directory) = (pool.display(), directory.display());
            Failure::Failed(format!(
                "cannot check {pool}: it is mounted on {directory} and in use, so that its bytes change while they are read; unmount it first with `tako umount {directory}`"
            ))
        }
        _ => error.into(),
    }
}

fn check(arguments: &Check, region: &Region) -> Result<store::Report, store::Error> {
    let check = || store::check(region, &CheckOptions::default());
    while_working(format!("checking {}", arguments.pool.display()), check)
}

/// Repairs a pool; one in which a check finds nothing is not written to.
fn repair(arguments: &Check) -> Result<store::Repair, Failure> {
    let explain = |error| Failure::Failed(format!("{}: {error}", arguments.pool.display()));
    match Region::open(&arguments.pool, Access::Private) {
        Ok(region) => match check(arguments, &region) {
            Ok(report) if report.is_clean() => {
                return Ok(store::Repair {
                    done: Vec::new(),
                    left: report,
                });
            }
            // Repair states of an error whether it has to stay.
            _ => {}
        },
        // A DAX device has no private mapping.
        Err(pmem::Error::SharedOnly { .. }) => {}
        Err(error) => return Err(refused(&arguments.pool, error)),
    }
    let region = Region::open(&arguments.pool, Access::ReadWrite);
    let region = region.map_err(|error| refused(&arguments.pool, error))?;
    let repair = || store::repair(&region);
    while_working(format!("repairing {}", arguments.pool.display()), repair).map_err(explain)
}

fn write_text(
    done: Option<&[store::Finding]>,
    report: &store::Report,
    out: &mut dyn Write,
) -> io::Result<()> {
    if let Some(done) = done {
        for what in done {
            writeln!(out, "repaired: {what}")?;
        }
        let left = match report.is_clean() {
            true => "nothing is left",
            false => "what is left:",
        };
        writeln!(out, "{} repairs; {left}", done.len())?;
    }
    for finding in &report.findings {
        writeln!(out, "{finding}")?;
    }
    let store::Report {
        inodes,
        directories,
        blocks_used,
        records_replayed,
        ..
    } = report;
    write!(
        out,
        "inodes in use: {inodes}, of them directories: {directories}; blocks in use: {blocks_used}; "
    )?;
    writeln!(out, "records to replay: {records_replayed}")
}

fn for_json(pool: String, done: Option<Vec<store::Finding>>, report: &store::Report) -> Report {
    let finding = |finding: &store::Finding| Finding {
        what: finding.what.clone(),
        inode: finding.inode,
        block: finding.block,
    };
    Report {
        pool,
        clean: report.is_clean(),
        repaired: done.map(|done| done.iter().map(finding).collect()),
        findings: report.findings.iter().map(finding).collect(),
        inodes: report.inodes,
        directories: report.directories,
        blocks_used: report.blocks_used,
        orphans: report.orphans,
        records_replayed: report.records_replayed,
    }
}
