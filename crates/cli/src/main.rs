//! The `tako` command: pools, mounts, and files in a pool without a mount.
//!
//! `arguments` defines the command line; each command has its module; `location` distinguishes `POOL:/path` from a path on
//! this host, `pools` opens pools, `walk` goes through a tree, `service` has the helpers of mount(8) and fsck(8), `guard` a
//! process beside a mount, and `failure` is how all of them fail.
#![forbid(unsafe_code)]

mod arguments;
mod benchmark;
mod change;
mod channel;
mod check;
mod cluster;
mod completions;
mod copy;
mod failure;
mod grow;
mod guard;
mod info;
mod keys;
mod list;
mod location;
mod log;
mod ls;
mod metadata;
mod mkfs;
mod modes;
mod mount;
mod mounts;
mod pools;
mod progress;
mod ready;
mod remote;
mod service;
mod signature;
mod sizes;
mod state_directory;
mod tree;
mod usage;
mod users;
mod walk;

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use arguments::{Arguments, Command};
use clap::Parser;
use failure::Outcome;

/// Nodes and mounts take memory for each message: this one keeps it ready, where the C library gives large pieces back to the
/// kernel each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if let Some(code) = guard::run_as_guard(std::env::args_os()) {
        return code;
    }
    let as_helper = service::run_as_helper(std::env::args_os(), |arguments| {
        mount::run(arguments, &mut std::io::sink())
    });
    if let Some(code) = as_helper {
        return code;
    }
    let command = match Arguments::try_parse() {
        Ok(arguments) => arguments.command,
        Err(error) => {
            failure::report_command_line(&error);
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let mut out = BufWriter::new(std::io::stdout().lock());
    let outcome = run(&command, &mut out);
    // Output printed before a failure still belongs to the user.
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
        Command::Umount(arguments) => mount::unmount(arguments),
        Command::Mounts => mounts::run(out),
        Command::Check(arguments) => check::run(arguments, out),
        Command::Grow(arguments) => grow::run(arguments, out),
        Command::Info { pool, json } => info::run(pool, *json, out),
        Command::Serve(arguments) => cluster::serve(arguments, out),
        Command::Up(arguments) => cluster::up(arguments, out),
        Command::Down(arguments) => cluster::down(arguments, out),
        Command::Status(arguments) => cluster::status(arguments, out),
        Command::Keys { command } => keys::run(command, out),
        Command::Ls(arguments) => ls::run(arguments, out),
        Command::Stat { places } => list::stat(places, out),
        Command::Cat { places } => copy::cat(places, out),
        Command::Cp(arguments) => copy::cp(arguments, out),
        Command::Mv(arguments) => change::mv(arguments, out),
        Command::Rm(arguments) => change::rm(arguments, out),
        Command::Mkdir(arguments) => change::mkdir(arguments, out),
        Command::Ln(arguments) => metadata::ln(arguments, out),
        Command::Chmod(arguments) => metadata::chmod(arguments),
        Command::Chown(arguments) => metadata::chown(arguments),
        Command::Truncate(arguments) => metadata::truncate(arguments),
        Command::Du(arguments) => usage::du(arguments, out),
        Command::Df(arguments) => usage::df(arguments, out),
        Command::Tree { places } => list::tree(places, out),
        Command::Bench(arguments) => benchmark::run(arguments, out),
        Command::Completions { shell } => completions::completions(*shell, out),
        Command::Man { directory } => completions::manual(directory),
    }
}
