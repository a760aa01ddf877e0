//! `tako serve`: one node.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};
use server::node::{Node, NodeError};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::config::NodeFile;
use super::control;
use super::inside::Plans;
use crate::arguments::cluster::Serve;
use crate::failure::{Failure, Outcome};
use crate::log::Log;
use crate::ready::say_ready;
use crate::state_directory::{StateDirectory, failed};

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Failure {
        Failure::Failed(error.to_string())
    }
}

pub fn run(arguments: &Serve, out: &mut dyn Write) -> Outcome {
    if arguments.detached {
        let alone = rustix::process::setsid();
        match alone {
            // It starts over.
            Err(Errno::PERM) => {}
            left => {
                left.map_err(|errno| failed("leave the session of", &arguments.config, errno))?;
            }
        }
    }
    raise_descriptors();
    let mut file = NodeFile::read(&arguments.config)?;
    file.transport = arguments.transport.clone().or(file.transport);
    let membership = file.membership()?;
    let plans = Plans::of(&file)?;
    let config = file.config(&arguments.config)?;
    let log = Arc::new(|line: std::fmt::Arguments<'_>| Log::Terminal.write(line));
    // Signals that come while the node starts are kept.
    let signals = Signals::new([SIGINT, SIGTERM]);
    let mut signals =
        signals.map_err(|error| failed("wait for signals at", &arguments.config, error))?;
    let node = Node::start(&config, &membership, log)?;
    let state = StateDirectory::of(&config.cluster)?;
    state.make()?;
    let path = state.file(&config.name, "status");
    let mounts = plans.start(&node, Log::Terminal)?;
    let served = control::serve(&path, node.asker(), membership, mounts.clone());
    served.map_err(|error| failed("listen at", &path, error))?;
    let (asker, ended_first) = (node.asker(), mounts.clone());
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            ended_first.end();
            asker.stop();
        }
    });
    let addresses: Vec<_> = node.addresses().iter().map(ToString::to_string).collect();
    let (name, cluster) = (&config.name, &config.cluster);
    let addresses = addresses.join(" and ");
    writeln!(
        out,
        "node {name} of cluster {cluster} listens at {addresses}"
    )?;
    out.flush()?;
    say_ready().map_err(|error| failed("tell the service manager of", &arguments.config, error))?;
    if arguments.detached {
        leave_output().map_err(|error| failed("close the output of", &arguments.config, error))?;
    }
    let ended = node.wait();
    mounts.end();
    let _ = std::fs::remove_file(&path);
    match ended {
        Err(error @ NodeError::LeftUnit { .. }) => {
            Log::Terminal.write(format_args!("{error}"));
            Err(start_over(&arguments.config))
        }
        ended => Ok(ended?),
    }
}

/// Allows as many descriptors as the process may have: each client takes some.
fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // A node with fewer descriptors serves fewer clients.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Becomes a new process of the same number, with nothing of the old one in its memory. Returns why not.
fn start_over(config: &Path) -> Failure {
    let error = match std::env::current_exe() {
        Ok(program) => Command::new(program)
            .args(std::env::args_os().skip(1))
            .exec(),
        Err(error) => error,
    };
    failed("start again with", config, error)
}

/// Closes the pipe to the process that waits for this one. The log stays.
fn leave_output() -> std::io::Result<()> {
    let nowhere = OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    rustix::process::chdir("/")?;
    Ok(())
}
