//! Waits for states of the adapter that no interrupt signals: the end of a reset, of transfers in flight, and the link.

use std::thread;
use std::time::{Duration, Instant};

/// Time limit for the adapter.
const WITHIN: Duration = Duration::from_secs(5);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until a condition holds. Returns whether it does.
pub fn wait_for(mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + WITHIN;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(PAUSE);
    }
}
