//! Everything is noted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::pass_on;
use fabric::{EndpointId, Report, Request, Transport};

/// Number of kept lines.
const LINES: usize = 1024;

/// The record: the last lines, and their total number.
#[derive(Debug, Default)]
pub struct Traced {
    /// The last ones, oldest first.
    pub lines: VecDeque<String>,
    /// Total number of lines.
    pub total: u64,
}

/// Notes requests and reports.
pub struct Trace {
    inner: Box<dyn Transport>,
    traced: Arc<Mutex<Traced>>,
}

impl Trace {
    /// Wraps a transport; the second result reads the record.
    pub fn new(inner: Box<dyn Transport>) -> (Trace, Arc<Mutex<Traced>>) {
        let traced = Arc::new(Mutex::new(Traced::default()));
        let trace = Trace {
            inner,
            traced: traced.clone(),
        };
        (trace, traced)
    }

    fn note(&self, line: String) {
        let mut traced = self.traced.lock();
        traced.total += 1;
        if traced.lines.len() == LINES {
            traced.lines.pop_front();
        }
        traced.lines.push_back(line);
    }
}

impl Transport for Trace {
    pass_on!();

    fn suspect(&mut self, endpoint: EndpointId) {
        self.inner.suspect(endpoint);
    }

    fn close(&mut self, endpoint: EndpointId) {
        self.note(format!("close {endpoint:?}"));
        self.inner.close(endpoint);
    }

    fn post(&mut self, endpoint: EndpointId, request: Request<'_>) {
        self.note(format!("post {endpoint:?} {request:?}"));
        self.inner.post(endpoint, request);
    }

    fn credit(&mut self, endpoint: EndpointId, returned: u32, ask: bool) {
        self.note(format!("credit {endpoint:?} {returned} {ask}"));
        self.inner.credit(endpoint, returned, ask);
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        let before = reports.len();
        self.inner.poll(reports);
        for report in &reports[before..] {
            self.note(format!("{report:?}"));
        }
    }

    fn sleep(&mut self, timeout: Duration) {
        self.inner.sleep(timeout);
    }

    fn arm(&mut self, timeout: Duration) -> Duration {
        self.inner.arm(timeout)
    }
}
