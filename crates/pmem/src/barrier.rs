//! Barriers in all threads of the process.

use std::sync::OnceLock;

use rustix::thread::{MembarrierCommand, membarrier};

/// The command that runs a barrier in every thread of this process, registered once per process
/// (and inherited by `fork`).
pub(crate) fn command() -> MembarrierCommand {
    static BARRIER: OnceLock<MembarrierCommand> = OnceLock::new();
    *BARRIER.get_or_init(
        || match membarrier(MembarrierCommand::RegisterPrivateExpedited) {
            Ok(()) => MembarrierCommand::PrivateExpedited,
            // Kernels before 4.14 have only the one that waits, for milliseconds, until every
            // processor has switched.
            Err(_) => MembarrierCommand::Global,
        },
    )
}

/// A full barrier in each thread that runs; one that does not run has had one when it was stopped.
pub(crate) fn everywhere() {
    let result = membarrier(command());
    assert!(
        result.is_ok(),
        "membarrier worked when it was tried and now says {result:?}"
    );
}
