//! The requests of one side that have not ended, and what ends them.

use std::collections::VecDeque;

use super::output::Parts;
use crate::{EndpointId, Report};

/// When a request has ended.
#[derive(Debug)]
pub enum Wait {
    /// When its frame is acknowledged.
    Acknowledgement,
    /// When the data has come.
    Read {
        into: Parts,
        bytes: u32,
    },
    /// When the answer has come.
    Atomic,
    Answered(u64),
}

/// A request that has not ended.
#[derive(Debug)]
struct Pending {
    sequence: u64,
    signaled: bool,
    /// Number of the request's frame.
    number: u64,
    wait: Wait,
}

/// Requests in the order in which they were posted, which is that of their ends and of their answers.
#[derive(Debug, Default)]
pub struct Requests {
    pending: VecDeque<Pending>,
}

impl Requests {
    /// Adds the request in frame `number`.
    pub fn push(&mut self, sequence: u64, signaled: bool, number: u64, wait: Wait) {
        self.pending.push_back(Pending {
            sequence,
            signaled,
            number,
            wait,
        });
    }

    /// Reports completed requests, if so many frames are acknowledged.
    pub fn settle(&mut self, endpoint: EndpointId, acknowledged: u64, reports: &mut Vec<Report>) {
        while let Some(pending) = self.pending.front() {
            let value = match pending.wait {
                Wait::Acknowledgement if pending.number < acknowledged => 0,
                Wait::Answered(value) => value,
                _ => break,
            };
            if pending.signaled {
                reports.push(Report::Done {
                    endpoint,
                    sequence: pending.sequence,
                    value,
                });
            }
            self.pending.pop_front();
        }
    }

    /// The read that the next answer must be for, if it is one: where its data goes, and how much it is.
    pub fn awaited_read(&self) -> Option<(&Parts, u32)> {
        match &self.pending.get(self.awaited()?)?.wait {
            Wait::Read { into, bytes } => Some((into, *bytes)),
            _ => None,
        }
    }

    fn awaited(&self) -> Option<usize> {
        self.pending
            .iter()
            .position(|pending| matches!(pending.wait, Wait::Read { .. } | Wait::Atomic))
    }

    /// The next answer has come as a whole. Nothing if none of the kind was asked for.
    pub fn answered(&mut self, atomic: bool, value: u64, acknowledged: u64) -> Option<()> {
        let awaited = self.awaited()?;
        let pending = &mut self.pending[awaited];
        // An answer acknowledges its request, too.
        let fits = matches!(pending.wait, Wait::Atomic) == atomic && pending.number < acknowledged;
        fits.then(|| pending.wait = Wait::Answered(value))
    }

    /// The sequence of the first one, if it is in frame `number`.
    pub fn first(&self, number: u64) -> Option<u64> {
        let first = self.pending.front()?;
        (first.number == number).then_some(first.sequence)
    }

    /// The frame of the first one.
    pub fn first_number(&self) -> Option<u64> {
        self.pending.front().map(|first| first.number)
    }
}
