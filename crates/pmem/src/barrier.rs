//! Barriers in all threads of the process.
//!
//! Two threads that each store a word and then load the other's need a full barrier between both: then at least one of
//! them sees the other's store. If one of the two does so rarely, it executes the barrier in all threads
//! ([`everywhere`]), and the other one needs none ([`here`]): wherever in its instructions the barrier occurs, it is
//! after its store, or before its load, or both, since the compiler keeps them in this order.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

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

/// Whether the kernel has barriers that take microseconds.
pub(crate) fn are_quick() -> bool {
    static ARE_QUICK: OnceLock<bool> = OnceLock::new();
    *ARE_QUICK.get_or_init(|| {
        command() == MembarrierCommand::PrivateExpedited && membarrier(command()).is_ok()
    })
}

/// A full barrier in each thread that runs; one that does not run has had one when it was stopped.
pub(crate) fn everywhere() {
    let result = membarrier(command());
    assert!(
        result.is_ok(),
        "membarrier worked when it was tried and now says {result:?}"
    );
}

/// The counterpart of a full barrier, for a thread that pairs with [`everywhere`] in another thread.
#[inline(always)]
pub(crate) fn here() {
    compiler_fence(Ordering::SeqCst);
}
