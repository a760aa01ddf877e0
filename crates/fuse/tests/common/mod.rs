//! Starting processes and unmounting, each while no other test does the other.

use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use fuse::MountOptions;

/// A process that is being started has copies of this one's open files until it runs its own program. Whoever
/// unmounts meanwhile finds the mount in use.
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

/// These options and the transport that this run of the tests is about: `make test` runs them by queues and by the device.
pub fn options(text: &str) -> MountOptions {
    let transport = std::env::var("TAKO_TEST_TRANSPORT");
    let transport = transport.as_deref().unwrap_or("auto");
    format!("{text},transport={transport}")
        .parse()
        .expect("options")
}
