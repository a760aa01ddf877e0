//! How long to look for news before going to sleep.

use std::time::{Duration, Instant};

/// A time that grows while looking helps and shrinks while it does not.
///
/// A wake-up costs 20 to 40 µs on a machine whose processors halt when idle: to look for about as long never costs
/// more than twice of what knowing the future would. On a machine with few processors looking takes the processor from
/// the one who is waited for, so a time that did not help is halved, down to nothing.
#[derive(Debug)]
pub struct Spin {
    most: Duration,
    now: Duration,
    start: Option<Instant>,
}

impl Spin {
    /// Looks for so long at most.
    pub fn new(most: Duration) -> Spin {
        Spin {
            most,
            now: most,
            start: None,
        }
    }

    /// Whether looking has helped lately.
    pub fn looks(&self) -> bool {
        !self.now.is_zero()
    }

    /// Whether it looks for as long as it may: what comes while it looks changes nothing then.
    pub fn is_longest(&self) -> bool {
        self.now == self.most
    }

    /// Begins to wait; whether to look at all.
    pub fn begin(&mut self, now: Instant) -> bool {
        self.start = Some(now);
        self.looks()
    }

    /// Whether to go on looking.
    pub fn goes_on(&self, now: Instant) -> bool {
        self.start.is_some_and(|start| now - start < self.now)
    }

    /// The wait is over: something came, or only its time did.
    pub fn end(&mut self, now: Instant, came: bool) {
        let Some(start) = self.start.take() else {
            return;
        };
        let took = now - start;
        if came && took <= self.most {
            // It would have been seen by looking for so long.
            self.now = (took * 2).max(self.now).min(self.most);
        } else {
            self.now /= 2;
            if self.now < Duration::from_nanos(500) {
                self.now = Duration::ZERO;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_micros(40);

    fn waits(spin: &mut Spin, took: Duration, came: bool) {
        let start = Instant::now();
        spin.begin(start);
        spin.end(start + took, came);
    }

    #[test]
    fn looking_that_does_not_help_ends_and_comes_back_when_it_would() {
        let mut spin = Spin::new(MOST);
        let start = Instant::now();
        assert!(spin.begin(start) && spin.goes_on(start));
        assert!(!spin.goes_on(start + MOST));
        for _ in 0..8 {
            waits(&mut spin, Duration::from_millis(1), true);
        }
        assert!(!spin.begin(start));
        waits(&mut spin, Duration::from_micros(5), true);
        assert!(spin.begin(start) && spin.goes_on(start + Duration::from_micros(9)));
        waits(&mut spin, Duration::from_micros(30), true);
        assert!(spin.begin(start) && !spin.goes_on(start + MOST));
    }
}
