//! Times that callers choose, however long they are.

use std::time::{Duration, Instant};

/// Longer than any wait.
pub const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// When so much time will be over, however much it is.
pub fn deadline(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(FOREVER)
}
