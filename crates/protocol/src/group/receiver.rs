//! The receiver of a stream: frames in any order, messages out, and what is asked for again.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::frame::{self, Key, NoFrame, Stream};
use super::{MISSING_MAX, Report, WINDOW};
use crate::defects::{Defect, Defects};

/// Frames that were asked for and did not come are asked for again after this.
const RETRY_NS: u64 = 20_000_000;

/// Frames that the sender names may wait in the socket, behind its message: they count as lost when none came for so long.
const NAMED_NS: u64 = 200_000;

/// Frames that were refused, since the stream began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Cut, or damaged beyond repair.
    pub damaged: u64,
    /// Frames of another stream.
    pub foreign: u64,
    /// With a wrong MAC, or beyond the window.
    pub forged: u64,
    /// Frames that had arrived before.
    pub repeated: u64,
}

impl Refused {
    /// Returns the total number of refused frames.
    pub fn all(&self) -> u64 {
        self.damaged + self.foreign + self.forged + self.repeated
    }
}

/// A message of which frames came.
struct Assembly {
    parts: Vec<Option<Vec<u8>>>,
    missing: usize,
}

/// The receiver of a stream.
pub struct Receiver {
    stream: Stream,
    key: Key,
    room: u32,
    /// All frames below came; 0 before the sender has named the first one.
    below: u64,
    /// No frame from here on came, or was named and did not come.
    end: u64,
    /// The sender has sent the frames below, as it says.
    named: u64,
    /// When a frame came last, as far as is known since the sender named some.
    came_at: Option<u64>,
    /// By the number of their first frame.
    messages: BTreeMap<u64, Assembly>,
    /// Messages that are complete, as are all before them.
    ready: VecDeque<Vec<u8>>,
    /// Frames below were asked for if they are missing, the last time at `asked_at`.
    asked: u64,
    asked_at: u64,
    /// Frames since the last report, and whether one is due anyway.
    unreported: u32,
    is_due: bool,
    refused: Refused,
    /// Frames that were repaired by parity.
    repaired: u64,
    defects: Defects,
}

impl Receiver {
    /// A receiver with a socket that holds `room` frames.
    pub fn new(stream: Stream, key: Key, room: u32, defects: Defects) -> Receiver {
        Receiver {
            stream,
            key,
            room,
            below: 0,
            end: 0,
            named: 0,
            came_at: None,
            messages: BTreeMap::new(),
            ready: VecDeque::new(),
            asked: 0,
            asked_at: 0,
            unreported: 0,
            is_due: true,
            refused: Refused::default(),
            repaired: 0,
            defects,
        }
    }

    /// Returns the stream's identity.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Frames that were refused.
    pub fn refused(&self) -> Refused {
        self.refused
    }

    /// Frames that were repaired.
    pub fn repaired(&self) -> u64 {
        self.repaired
    }

    /// The sender has sent all frames below `range.end`, and does not wait for this member to have those below `range.start`:
    /// the first time that is where the stream begins for it, later it has got their records otherwise.
    pub fn handle_range(&mut self, range: Range<u64>) {
        if range.start > self.below {
            self.below = range.start;
            self.asked = self.asked.max(range.start);
            self.end = self.end.max(range.start);
            self.advance();
        }
        if range.end <= self.below + WINDOW {
            self.named = self.named.max(range.end);
            self.came_at = None;
        }
        self.is_due |= self.named <= self.end;
    }

    /// Handles a frame that arrived.
    /// [`Receiver::poll_message`] has the messages that it completes.
    pub fn handle_frame(&mut self, bytes: &[u8]) {
        let frame = match frame::decode(bytes, self.stream, &self.key, &self.defects) {
            Ok(frame) => frame,
            Err(error) => {
                *match error {
                    NoFrame::Damaged => &mut self.refused.damaged,
                    NoFrame::Foreign => &mut self.refused.foreign,
                    NoFrame::Forged => &mut self.refused.forged,
                } += 1;
                return;
            }
        };
        let number = frame.number;
        if self.below == 0 {
            // Its time has not come: the sender will name it.
            return;
        }
        if number < self.below && !self.defects.has(Defect::AcceptReplayedFrame) {
            self.refused.repeated += 1;
            return;
        }
        let first = number.checked_sub(frame.index.into());
        let is_possible = frame.index < frame.count && u64::from(frame.count) <= WINDOW;
        let Some(first) = first.filter(|_| is_possible && number < self.below + WINDOW) else {
            self.refused.forged += 1;
            return;
        };
        let count = frame.count as usize;
        let assembly = self.messages.entry(first).or_insert_with(|| Assembly {
            parts: vec![None; count],
            missing: count,
        });
        let Some(part) = assembly.parts.get_mut(frame.index as usize) else {
            self.refused.forged += 1;
            return;
        };
        if part.is_some() && !self.defects.has(Defect::AcceptReplayedFrame) {
            self.refused.repeated += 1;
            return;
        }
        self.repaired += u64::from(frame.is_repaired);
        self.unreported += 1;
        self.came_at = None;
        self.end = self.end.max(number + 1);
        assembly.missing -= usize::from(part.is_none());
        *part = Some(frame.payload.into_owned());
        self.advance();
    }

    /// The next message, in the order in which they were sent.
    pub fn poll_message(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }

    /// Moves `below` over all that came, and makes messages of it.
    fn advance(&mut self) {
        while let Some(mut entry) = self.messages.first_entry() {
            let (first, assembly) = (*entry.key(), entry.get_mut());
            let Some(from) = self.below.checked_sub(first) else {
                return;
            };
            let behind = assembly.parts.iter().skip(from as usize);
            self.below += behind.take_while(|part| part.is_some()).count() as u64;
            if self.below < first + assembly.parts.len() as u64 {
                return;
            }
            let assembly = entry.remove();
            if assembly.missing == 0 {
                let parts: Vec<Vec<u8>> = assembly.parts.into_iter().flatten().collect();
                self.ready.push_back(parts.concat());
            }
        }
    }

    /// What is missing of the frames from `from` on.
    fn missing(&self, from: u64) -> Vec<Range<u64>> {
        let mut missing: Vec<Range<u64>> = Vec::new();
        let mut number = self.below.max(from);
        while number < self.end && missing.len() < MISSING_MAX {
            let has = self.has(number);
            match missing.last_mut() {
                Some(range) if !has && range.end == number => range.end += 1,
                _ if !has => missing.push(number..number + 1),
                _ => {}
            }
            number += 1;
        }
        missing
    }

    fn has(&self, number: u64) -> bool {
        let found = self.messages.range(..=number).next_back();
        found.is_some_and(|(first, it)| {
            let part = it.parts.get((number - first) as usize);
            part.is_some_and(Option::is_some)
        })
    }

    /// The report that is due: at once for a gap that was not asked for, after a time for one that was, after a part of the
    /// room, and when the sender asked. Call it when all frames that have come were handled, so that what was only
    /// overtaken is not asked for.
    pub fn poll_report(&mut self, now: u64) -> Option<Report> {
        if self.named > self.end && now >= *self.came_at.get_or_insert(now) + NAMED_NS {
            self.end = self.named;
            self.is_due = true;
        }
        let retries = self.below < self.asked && now >= self.asked_at + RETRY_NS;
        let from = if retries || self.is_due {
            self.below
        } else {
            self.asked
        };
        let mut missing = match self.below < self.end && from < self.end {
            true => self.missing(from),
            false => Vec::new(),
        };
        if self.defects.has(Defect::ForgetMissingFrame) {
            missing.clear();
        }
        let is_full = self.unreported >= (self.room / 4).max(1);
        if missing.is_empty() && !is_full && !self.is_due {
            return None;
        }
        if let Some(last) = missing.last() {
            // Beyond a full report there may be more to ask for.
            self.asked = if missing.len() == MISSING_MAX {
                last.end
            } else {
                self.end
            };
            self.asked_at = now;
        }
        (self.unreported, self.is_due) = (0, false);
        Some(Report {
            below: self.below,
            room: self.room,
            missing,
        })
    }

    /// When [`Receiver::poll_report`] may have something though no frame came.
    pub fn poll_timeout(&self) -> Option<u64> {
        let asks = (self.below < self.asked).then_some(self.asked_at + RETRY_NS);
        let came_at = self.came_at.filter(|_| self.named > self.end);
        let named = came_at.map(|at| at + NAMED_NS);
        [asks, named].into_iter().flatten().min()
    }
}
