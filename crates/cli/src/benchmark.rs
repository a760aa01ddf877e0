//! `tako bench`.

use std::io::Write;

use bench::Options;

use crate::arguments::Bench;
use crate::failure::{Failure, Outcome};

pub fn run(arguments: &Bench, out: &mut dyn Write) -> Outcome {
    let options = Options {
        quick: arguments.quick,
        directory: arguments.directory.clone(),
        only: arguments.name.clone(),
        tune: arguments.tune,
        program: std::env::current_exe().ok(),
    };
    let report = bench::run(&options).map_err(|error| Failure::Failed(error.to_string()))?;
    let text = if arguments.json {
        report.to_json()
    } else {
        report.to_table(arguments.bars)
    };
    writeln!(out, "{}", text.trim_end())?;
    Ok(())
}
