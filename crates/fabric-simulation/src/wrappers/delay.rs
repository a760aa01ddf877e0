//! Delays all reports.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::pass_on;
use fabric::{EndpointId, Report, Request, Transport};

/// Delivers reports only after a time, in their order.
pub struct Delay {
    inner: Box<dyn Transport>,
    delay: Duration,
    held: VecDeque<(Instant, Report)>,
    fresh: Vec<Report>,
}

impl Delay {
    /// Around a transport, so long for each report.
    pub fn new(inner: Box<dyn Transport>, delay: Duration) -> Delay {
        Delay {
            inner,
            delay,
            held: VecDeque::new(),
            fresh: Vec::new(),
        }
    }

    /// Until the first report is due.
    fn at_most(&self, timeout: Duration) -> Duration {
        let due = self.held.front();
        let due = due.map(|(due, _)| due.saturating_duration_since(Instant::now()));
        due.map_or(timeout, |due| due.min(timeout))
    }
}

impl Transport for Delay {
    pass_on!();

    fn suspect(&mut self, endpoint: EndpointId) {
        self.inner.suspect(endpoint);
    }

    fn close(&mut self, endpoint: EndpointId) {
        self.inner.close(endpoint);
    }

    fn post(&mut self, endpoint: EndpointId, request: Request<'_>) {
        self.inner.post(endpoint, request);
    }

    fn credit(&mut self, endpoint: EndpointId, returned: u32, ask: bool) {
        self.inner.credit(endpoint, returned, ask);
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        self.inner.poll(&mut self.fresh);
        let now = Instant::now();
        let due = now + self.delay;
        self.held
            .extend(self.fresh.drain(..).map(|report| (due, report)));
        while let Some((due, report)) = self.held.front()
            && *due <= now
        {
            reports.push(*report);
            self.held.pop_front();
        }
    }

    fn sleep(&mut self, timeout: Duration) {
        let timeout = self.at_most(timeout);
        self.inner.sleep(timeout);
    }

    fn arm(&mut self, timeout: Duration) -> Duration {
        let timeout = self.at_most(timeout);
        self.inner.arm(timeout)
    }
}
