//! Starting processes and unmounting, each while no other test does the other.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use fuse::MountOptions;

/// A process that is being started has copies of this one's open files until it executes its own program. Unmounting
/// meanwhile finds the mount in use.
static APART: Mutex<()> = Mutex::new(());

/// Unmounts, or starts a process and waits until it is past its start, while no other test does the other.
pub fn apart<T>(work: impl FnOnce() -> T) -> T {
    let _guard = APART.lock().unwrap_or_else(PoisonError::into_inner);
    work()
}

/// Runs a process to its end.
pub fn run(command: &mut Command) -> Output {
    apart(|| command.output()).expect("a process")
}

/// These options and the transport of this run of the tests: `TAKO_TEST_TRANSPORT`, else io_uring where the kernel has it,
/// so that a mount that falls back to the device fails its test.
pub fn options(text: &str) -> MountOptions {
    let chosen = std::env::var("TAKO_TEST_TRANSPORT").ok();
    let has_queues = Path::new("/sys/module/fuse/parameters/enable_uring").exists();
    // The kernel gives its queues to root alone.
    let usual = match has_queues && rustix::process::geteuid().is_root() {
        true => "uring",
        false => "auto",
    };
    let transport = chosen.as_deref().unwrap_or(usual);
    format!("{text},transport={transport}")
        .parse()
        .expect("options")
}
