//! The clock of leases.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine started, the time that it was suspended included: leases expire meanwhile.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
