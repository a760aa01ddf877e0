//! `tako check`, with and without `--repair`.

use std::io::{self, Write};

use pmem::{Access, Region};
use serde::Serialize;
use store::CheckOptions;

use crate::arguments::Check;
use crate::failure::{Failure, Outcome};
use crate::info::write_json;

/// What a check found, as JSON names it.
#[derive(Serialize)]
struct Report {
    pool: String,
    clean: bool,
    /// With `--repair`.
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

pub fn run(arguments: &Check, out: &mut dyn Write) -> Outcome {
    let pool = arguments.pool.display();
    let explain = |error| Failure::Failed(format!("{pool}: {error}"));
    let report = match arguments.repair {
        true => None,
        false => Some(store::check(
            &Region::open(&arguments.pool, Access::Private)?,
            &CheckOptions::default(),
        )),
    };
    let (done, report) = match report {
        Some(report) => (None, report.map_err(explain)?),
        None => {
            let repair = repair(arguments)?;
            (Some(repair.done), repair.left)
        }
    };
    match arguments.json {
        true => write_json(&for_json(pool.to_string(), done, &report), out)?,
        false => write_text(done.as_deref(), &report, out)?,
    }
    match report.findings.len() {
        0 => Ok(()),
        _ if arguments.json => Err(Failure::Silent),
        count => {
            let what = if count == 1 {
                "1 thing is"
            } else {
                &format!("{count} things are")
            };
            let advice = match arguments.repair {
                true => "restore from elsewhere what is lost, or write it anew",
                false => "run `tako check --repair`, or copy what can be read to a new pool",
            };
            let sentence = format!("{pool}: {what} not as they must be; {advice}");
            Err(Failure::Failed(sentence))
        }
    }
}

/// Repairs a pool; one in which a check finds nothing is not written to.
fn repair(arguments: &Check) -> Result<store::Repair, Failure> {
    let explain = |error| Failure::Failed(format!("{}: {error}", arguments.pool.display()));
    match Region::open(&arguments.pool, Access::Private) {
        Ok(region) => match store::check(&region, &CheckOptions::default()) {
            Ok(report) if report.is_clean() => {
                return Ok(store::Repair {
                    done: Vec::new(),
                    left: report,
                });
            }
            // Repair says of an error whether it has to stay.
            _ => {}
        },
        // Of a DAX device there is no private mapping.
        Err(pmem::Error::SharedOnly { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let region = Region::open(&arguments.pool, Access::ReadWrite)?;
    store::repair(&region).map_err(explain)
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
        "{inodes} inodes in use, {directories} of them directories, {blocks_used} blocks; "
    )?;
    writeln!(out, "{records_replayed} records to replay")
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
