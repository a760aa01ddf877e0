//! The `tako` command: pools, mounts, and files in a pool without a mount.
//!
//! `arguments` says what can be asked for; each command has its module; `place` tells `POOL:/path` from a path on
//! this host, `pools` opens pools, `walk` goes through a tree,
//! `service` is what mount(8) and the service manager expect, and `failure` is how all of them fail.
#![forbid(unsafe_code)]

mod arguments;
mod benchmark;
mod change;
mod channel;
mod check;
mod copy;
mod failure;
mod figures;
mod grow;
mod info;
mod keys;
mod list;
mod log;
mod mkfs;
mod mount;
mod place;
mod pools;
mod service;
mod side;
mod space;
mod walk;

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use arguments::{Arguments, Command};
use clap::Parser;
use failure::Outcome;
use service::Asked;

fn main() -> ExitCode {
    let (command, mut out): (Command, Box<dyn Write>) =
        match service::asked_by_mount(std::env::args_os()) {
            Some(Asked::Mount(arguments)) => (Command::Mount(arguments), Box::new(std::io::sink())),
            Some(Asked::Nothing) => return ExitCode::SUCCESS,
            None => {
                let out = BufWriter::new(std::io::stdout().lock());
                (Arguments::parse().command, Box::new(out))
            }
        };
    let outcome = run(&command, &mut out);
    // What was printed before a failure still belongs to the user.
    let flushed = out.flush();
    match outcome.and(flushed.map_err(Into::into)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(command: &Command, out: &mut dyn Write) -> Outcome {
    match command {
        Command::Mkfs(arguments) => mkfs::run(arguments, out),
        Command::Mount(arguments) => mount::run(arguments, out),
        Command::Umount { directory } => mount::unmount(directory),
        Command::Check(arguments) => check::run(arguments, out),
        Command::Grow(arguments) => grow::run(arguments, out),
        Command::Info { pool, json } => info::run(pool, *json, out),
        Command::Keys { command } => keys::run(command, out),
        Command::Ls { long, places } => list::ls(places, *long, out),
        Command::Stat { places } => list::stat(places, out),
        Command::Cat { places } => copy::cat(places, out),
        Command::Cp { recursive, places } => copy::cp(places, *recursive),
        Command::Mv { places } => change::mv(places),
        Command::Rm { recursive, places } => change::rm(places, *recursive),
        Command::Mkdir { parents, places } => change::mkdir(places, *parents),
        Command::Du {
            bytes,
            summary,
            places,
        } => space::du(places, *bytes, *summary, out),
        Command::Df { bytes, places } => space::df(places, *bytes, out),
        Command::Tree { places } => list::tree(places, out),
        Command::Bench(arguments) => benchmark::run(arguments, out),
    }
}
