//! `tako check`.

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
    if arguments.repair {
        let sentence = "repairing comes with a later version; check without --repair and restore what is damaged";
        return Err(Failure::Usage(sentence.into()));
    }
    let pool = arguments.pool.display();
    let region = Region::open(&arguments.pool, Access::Private)?;
    let report = store::check(&region, &CheckOptions::default());
    let report = report.map_err(|error| Failure::Failed(format!("{pool}: {error}")))?;
    match arguments.json {
        true => write_json(&for_json(pool.to_string(), &report), out)?,
        false => write_text(&report, out)?,
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
            let sentence =
                format!("{pool}: {what} not as they must be; copy what can be read to a new pool");
            Err(Failure::Failed(sentence))
        }
    }
}

fn write_text(report: &store::Report, out: &mut dyn Write) -> io::Result<()> {
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

fn for_json(pool: String, report: &store::Report) -> Report {
    let finding = |finding: &store::Finding| Finding {
        what: finding.what.clone(),
        inode: finding.inode,
        block: finding.block,
    };
    Report {
        pool,
        clean: report.is_clean(),
        findings: report.findings.iter().map(finding).collect(),
        inodes: report.inodes,
        directories: report.directories,
        blocks_used: report.blocks_used,
        orphans: report.orphans,
        records_replayed: report.records_replayed,
    }
}
