//! Waits for states of the adapter that no interrupt signals: the end of a reset, of transfers in flight, and the link.

use std::thread;
use std::time::{Duration, Instant};

/// Time limit for the adapter.
const WITHIN: Duration = Duration::from_secs(5);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(1);
/// How long transfers go on after they were forbidden, as Linux' driver has it.
const IN_FLIGHT: Duration = Duration::from_millis(10);

/// Waits until transfers in flight have ended, and until two reads of what they change are equal, a pause apart. Returns whether
/// they are.
pub fn wait_until_still(mut read: impl FnMut() -> u32) -> bool {
    thread::sleep(IN_FLIGHT);
    let mut last = None;
    wait_for(|| {
        let now = read();
        last.replace(now) == Some(now)
    })
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changing_value_is_awaited() {
        let begun = Instant::now();
        let mut reads = [3, 4, 5, 5, 6].into_iter();
        assert!(wait_until_still(|| reads.next().unwrap()));
        assert_eq!(reads.len(), 1);
        assert!(begun.elapsed() >= IN_FLIGHT + 3 * PAUSE);
    }
}
