//! Requests of the deferred mode: the primary serves them when it has nothing else to do.
//!
//! One at a time, each as small as a message, and the next only after a pause. So an ordinary request finds at most one
//! answer of this kind before its own. While ordinary requests keep coming, one is served each time patience ends: a
//! refill gets slow, but never stands still. When changes wait for a refill (`backpressure`), its requests wait for
//! nothing.

use std::collections::VecDeque;

use super::bounds::FETCHES_MAX;
use super::intent::Intent;
use super::serve::Primary;
use super::{Member, Role};
use crate::UnitOptions;
use crate::map::NodeId;

/// Requests of members that wait until the primary has nothing else to do.
#[derive(Default)]
pub(super) struct DeferredRequests {
    /// In the order in which they came; of each member a bounded number.
    queue: VecDeque<(NodeId, Intent)>,
    served_at: u64,
    /// When something came that does not wait.
    busy_at: u64,
}

impl DeferredRequests {
    /// Keeps a member's request, unless it waits already.
    pub fn add(&mut self, from: NodeId, request: Intent) {
        let own = self.queue.iter().filter(|(node, _)| *node == from);
        let is_known = own.clone().any(|(_, known)| *known == request);
        if !is_known && own.count() < FETCHES_MAX {
            self.queue.push_back((from, request));
        }
    }

    pub fn note_ordinary(&mut self, now: u64) {
        self.busy_at = now;
    }

    pub fn kept(&self) -> usize {
        self.queue.len()
    }
}

impl Primary {
    /// When the next one is to be served.
    pub fn next_deferred(&self, options: &UnitOptions) -> Option<u64> {
        let DeferredRequests {
            queue,
            served_at,
            busy_at,
        } = &self.deferred;
        queue.front()?;
        if self.has_backpressure() {
            return Some(*served_at);
        }
        let patient_until = served_at + options.deferred_patience_ns;
        let quiet_at = served_at.max(busy_at) + options.deferred_pause_ns;
        let is_busy = !self.parked.is_empty() || !self.executing.is_empty();
        Some(if is_busy {
            patient_until
        } else {
            quiet_at.min(patient_until)
        })
    }
}

impl Member {
    /// Serves one of the requests that wait, if it is time.
    pub(super) fn serve_deferred(&mut self, now: u64) {
        let Role::Serving(primary) = &mut self.role else {
            return;
        };
        if primary
            .next_deferred(&self.options)
            .is_some_and(|at| at <= now)
            && let Some((_, request)) = primary.deferred.queue.pop_front()
        {
            primary.deferred.served_at = now;
            self.out.intents.push_back(request);
        }
    }
}
