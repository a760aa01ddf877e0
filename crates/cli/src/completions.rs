//! `tako completions` and `tako man`: made from the same definitions as the command line.

use std::fs;
use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};

/// Prints completions for a shell.
pub fn completions(shell: Shell, out: &mut dyn Write) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "tako", &mut text);
    Ok(out.write_all(&text)?)
}

/// Writes a manual page for the program and for each command.
pub fn manual(directory: &Path) -> Outcome {
    let failed = |error| Failure::host("write manual pages to", directory, &error);
    fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(Arguments::command(), directory).map_err(failed)
}
