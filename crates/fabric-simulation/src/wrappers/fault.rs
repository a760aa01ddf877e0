//! Things go wrong on purpose.

use std::time::Duration;

use super::pass_on;
use fabric::{EndpointId, Failure, Report, Request, Transport};

/// Faults that the wrapper injects; none by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// One of so many counts of credits arrives; 0: all do.
    pub credits_one_in: u32,
    /// One of so many counts of credits is lost; 0: none is.
    pub credits_but_one_in: u32,
    /// After so many requests the endpoint of the next one is lost; 0: never.
    pub lose_after: u64,
    /// Each message without data comes twice, as from a peer that sends more than it may.
    pub messages_twice: bool,
}

/// Loses counts of credits, and endpoints.
pub struct Fault {
    inner: Box<dyn Transport>,
    faults: Faults,
    credits: u32,
    posted: u64,
    lost: Vec<Report>,
}

impl Fault {
    /// Wraps a transport in faults.
    pub fn new(inner: Box<dyn Transport>, faults: Faults) -> Fault {
        Fault {
            inner,
            faults,
            credits: 0,
            posted: 0,
            lost: Vec::new(),
        }
    }
}

impl Transport for Fault {
    pass_on!();

    fn suspect(&mut self, endpoint: EndpointId) {
        self.inner.suspect(endpoint);
    }

    fn close(&mut self, endpoint: EndpointId) {
        self.inner.close(endpoint);
    }

    fn post(&mut self, endpoint: EndpointId, request: Request<'_>) {
        self.posted += 1;
        if self.posted == self.faults.lose_after {
            self.inner.close(endpoint);
            self.lost.push(Report::Lost {
                endpoint,
                failure: Failure::PeerLost,
            });
        } else {
            self.inner.post(endpoint, request);
        }
    }

    fn credit(&mut self, endpoint: EndpointId, returned: u32, ask: bool) {
        self.credits += 1;
        let Faults {
            credits_one_in: kept,
            credits_but_one_in: lost,
            ..
        } = self.faults;
        let is_lost = lost != 0 && self.credits.is_multiple_of(lost);
        if !is_lost && (kept == 0 || self.credits.is_multiple_of(kept)) {
            self.inner.credit(endpoint, returned, ask);
        }
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        let before = reports.len();
        self.inner.poll(reports);
        if self.faults.messages_twice {
            let is_bare =
                |report: &&Report| matches!(report, Report::Received { buffer: None, .. });
            let again: Vec<Report> = reports[before..].iter().filter(is_bare).copied().collect();
            reports.extend(again);
        }
        reports.append(&mut self.lost);
    }

    fn sleep(&mut self, timeout: Duration) {
        if self.lost.is_empty() {
            self.inner.sleep(timeout);
        }
    }

    fn arm(&mut self, timeout: Duration) -> Duration {
        match self.lost.is_empty() {
            true => self.inner.arm(timeout),
            false => Duration::ZERO,
        }
    }
}
