//! The processes of nodes that `tako up` started.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal, test_kill_process,
};

use crate::failure::{Failure, Outcome};
use crate::state_directory::{StateDirectory, failed};

/// How long a node may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Starts the node with this configuration, apart from this process. Its standard output is piped.
pub fn start(state: &StateDirectory, node: &str) -> Result<Child, Failure> {
    let path = state.file(node, "log");
    let log = File::create(&path).map_err(|error| failed("write", &path, error))?;
    let program = std::env::current_exe();
    let child = program.and_then(|program| {
        Command::new(program)
            .args(["serve", "--detached", "--config"])
            .arg(state.file(node, "toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
    });
    let child = child.map_err(|error| failed("start a process for", &path, error))?;
    let path = state.file(node, "pid");
    let written = std::fs::write(&path, child.id().to_string());
    written.map_err(|error| failed("write", &path, error))?;
    Ok(child)
}

/// The process of a node, if it runs.
pub fn running(state: &StateDirectory, node: &str) -> Option<Pid> {
    let text = std::fs::read_to_string(state.file(node, "pid")).ok()?;
    let number: i32 = text.trim().parse().ok()?;
    let pid = Pid::from_raw(number)?;
    // The number may be that of another process by now.
    let command = std::fs::read(format!("/proc/{number}/cmdline")).ok()?;
    let config = state.file(node, "toml");
    let is_node = command
        .split(|byte| *byte == 0)
        .any(|argument| argument == config.as_os_str().as_bytes());
    (is_node && test_kill_process(pid).is_ok()).then_some(pid)
}

/// Whether a process ends soon: it was killed a moment ago.
pub fn ends(pid: Pid) -> bool {
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => has_ended(&descriptor).unwrap_or(true),
        Err(_) => true,
    }
}

/// Ends processes, all at a time: by asking them, then by force.
pub fn stop(pids: &[Pid]) -> Outcome {
    let ask = |pid: Pid| {
        let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
        pidfd_send_signal(&descriptor, Signal::TERM)?;
        // A stopped process receives the signal once it continues.
        kill_process(pid, Signal::CONT)?;
        Ok(descriptor)
    };
    let asked: Vec<_> = pids.iter().map(|pid| (*pid, ask(*pid))).collect();
    for (pid, asked) in asked {
        let ended = asked.and_then(|descriptor| {
            if !has_ended(&descriptor)? {
                pidfd_send_signal(&descriptor, Signal::KILL)?;
                has_ended(&descriptor)?;
            }
            Ok(())
        });
        match ended {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => {
                return Err(Failure::Failed(format!(
                    "cannot stop process {}: {}; stop it as the user who started it",
                    pid.as_raw_nonzero(),
                    io::Error::from(errno)
                )));
            }
        }
    }
    Ok(())
}

fn has_ended(descriptor: &impl std::os::fd::AsFd) -> Result<bool, Errno> {
    let limit = Timespec::try_from(STOP_WITHIN).unwrap_or_default();
    let mut descriptors = [PollFd::new(descriptor, PollFlags::IN)];
    Ok(poll(&mut descriptors, Some(&limit))? > 0)
}

/// The last output of a process that did not start.
pub fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.map(|line| line.trim_start_matches("tako: ").to_owned())
        .unwrap_or_else(|| format!("it said nothing; see {}", log.display()))
}
