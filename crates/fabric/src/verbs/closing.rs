//! Closed links. No thread waits for them, but the adapter may still be at work.
//!
//! The peer is notified first. When it has that, or does not take it in time, the queue pair is made to fail, which
//! ends everything in flight; and when the completions of that have been taken, it is destroyed. Buffers that it was
//! filling are back by then.

use std::time::{Duration, Instant};

use super::link::{Link, State};
use crate::EndpointId;

/// A peer that does not take a goodbye for so long will find out by itself.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// How long completions may take after a queue pair has failed.
const DRAIN: Duration = Duration::from_millis(50);

#[derive(Default)]
pub struct Closing {
    links: Vec<(Link, Stage)>,
}

#[derive(Clone, Copy)]
enum Stage {
    /// The goodbye is on its way.
    Leaving { until: Instant },
    /// The queue pair has failed.
    Draining { until: Instant },
}

impl Closing {
    pub fn add(&mut self, mut link: Link) {
        let now = Instant::now();
        let says_so = link.state == State::Ready && link.send_goodbye();
        link.state = State::Over;
        let stage = match says_so {
            true => Stage::Leaving {
                until: now + LEAVE_WITHIN,
            },
            false => drain(&link, now),
        };
        self.links.push((link, stage));
    }

    /// An own request of a link has ended.
    pub fn own_ended(&mut self, id: EndpointId) {
        let found = self.links.iter_mut().find(|(link, _)| link.id == id);
        if let Some((link, stage)) = found
            && link.own_ended()
            && matches!(stage, Stage::Leaving { .. })
        {
            *stage = drain(link, Instant::now());
        }
    }

    /// Advances the closing of each endpoint as far as possible.
    /// `drained` states that there are no completions. Calls `gone` with each ended link.
    pub fn proceed(&mut self, now: Instant, drained: bool, mut gone: impl FnMut(Link)) {
        let mut at = 0;
        while at < self.links.len() {
            let (link, stage) = &mut self.links[at];
            match *stage {
                Stage::Leaving { until } if now >= until => *stage = drain(link, now),
                Stage::Draining { until } if drained && now >= until => {
                    gone(self.links.swap_remove(at).0);
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Returns when [`Closing::proceed`] has to be called next.
    pub fn deadline(&self) -> Option<Instant> {
        let untils = self.links.iter().map(|(_, stage)| match *stage {
            Stage::Leaving { until } | Stage::Draining { until } => until,
        });
        untils.min()
    }

    /// Whether no goodbye is on its way.
    pub fn has_left(&self) -> bool {
        let is_leaving = |(_, stage): &(Link, Stage)| matches!(stage, Stage::Leaving { .. });
        !self.links.iter().any(is_leaving)
    }
}

fn drain(link: &Link, now: Instant) -> Stage {
    // If this is refused, the pair ends with its link all the same.
    let _ = link.pair().fail();
    Stage::Draining { until: now + DRAIN }
}
