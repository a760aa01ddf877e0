//! Where the store gets the time from.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// Source of time stamps.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The system's real-time clock, as coarse as the kernel's own file time stamps.
    #[default]
    System,
    /// Nanoseconds since 1970, set from outside: for tests and simulation.
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// Returns the wall clock's time in nanoseconds since 1970.
    #[inline]
    pub fn now_ns(&self) -> i64 {
        match self {
            Clock::System => {
                let time = clock_gettime(ClockId::RealtimeCoarse);
                time.tv_sec * 1_000_000_000 + time.tv_nsec
            }
            Clock::Manual(now) => now.load(Ordering::Relaxed),
        }
    }
}
