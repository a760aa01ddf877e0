//! How long to poll before blocking.

use std::time::{Duration, Instant};

/// A time that grows while polling helps and shrinks while it does not.
///
/// A wake-up costs 20 to 40 µs on a machine with processors that halt when idle: polling for about as long never costs
/// more than twice the optimum. On a machine with few processors polling takes the processor from the awaited peer, so
/// a time that did not help is halved, down to nothing.
#[derive(Debug)]
pub struct Spin {
    most: Duration,
    now: Duration,
    start: Option<Instant>,
}

impl Spin {
    /// Polls for at most so long.
    pub fn new(most: Duration) -> Spin {
        Spin {
            most,
            now: most,
            start: None,
        }
    }

    /// Whether polling has helped recently.
    pub fn looks(&self) -> bool {
        !self.now.is_zero()
    }

    /// Whether it polls for the greatest time: an event during polling changes nothing then.
    pub fn is_longest(&self) -> bool {
        self.now == self.most
    }

    /// Begins to wait; returns whether to poll at all.
    pub fn begin(&mut self, now: Instant) -> bool {
        self.start = Some(now);
        self.looks()
    }

    /// Whether to continue polling.
    pub fn goes_on(&self, now: Instant) -> bool {
        self.start.is_some_and(|start| now - start < self.now)
    }

    /// The wait has ended: by an event, or by its time.
    pub fn end(&mut self, now: Instant, came: bool) {
        let Some(start) = self.start.take() else {
            return;
        };
        let took = now - start;
        if came && took <= self.most {
            // Polling for so long would have seen it.
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
