//! The sender of a stream: the send list, what each member has of it, and what is sent again.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::frame::{self, Key, Stream};
use super::{AGAIN_BYTES, Report, WINDOW};
use crate::defects::{Defect, Defects};
use crate::map::NodeId;

/// A member that has not reported frames for so long is asked, first after this and then after twice as long each time.
const ASK_NS: u64 = 2_000_000;
/// Longest pause between two questions.
const ASK_MAX_NS: u64 = 32_000_000;
/// A member that lacks frames and reports none for so long is left to the links.
const GIVE_UP_NS: u64 = 400_000_000;

/// Messages of a MiB in the list, about.
const LIST_MESSAGES: usize = 4;

/// What a member has of the stream.
struct Progress {
    /// The member has all frames below this number.
    below: u64,
    /// Frames that may be in flight to it.
    room: u64,
    /// When it last advanced, or was sent something when it lacked nothing.
    advanced_at: u64,
    ask_at: u64,
    ask_after: u64,
}

/// One message of the stream.
struct Kept {
    /// Number behind its last frame.
    end: u64,
    /// A member with records that reach this far has the message.
    position: u64,
}

/// The sender of a stream.
pub struct Sender {
    stream: Stream,
    key: Key,
    payload: usize,
    with_parity: bool,
    members: BTreeMap<NodeId, Progress>,
    /// Frames that a member may lack, or that were not sent yet.
    list: VecDeque<Vec<u8>>,
    /// Number of the first.
    first: u64,
    /// Frames below were sent.
    sent: u64,
    messages: VecDeque<Kept>,
    /// Frames that were sent again.
    again: u64,
    defects: Defects,
}

impl Sender {
    /// Whether a message of `message` bytes fits into a window of frames of at most `longest` bytes.
    pub fn can_carry(message: usize, longest: usize, with_parity: bool) -> bool {
        let payload = frame::payload_bytes(longest, with_parity);
        payload > 0 && message.div_ceil(payload) as u64 <= WINDOW
    }

    /// A stream without members, of frames of at most `longest` bytes.
    pub fn new(
        stream: Stream,
        key: Key,
        longest: usize,
        with_parity: bool,
        defects: Defects,
    ) -> Sender {
        Sender {
            stream,
            key,
            payload: frame::payload_bytes(longest, with_parity),
            with_parity,
            members: BTreeMap::new(),
            list: VecDeque::new(),
            first: 1,
            sent: 1,
            messages: VecDeque::new(),
            again: 0,
            defects,
        }
    }

    /// Returns the stream's identity.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Returns the members that receive the stream.
    pub fn members(&self) -> impl Iterator<Item = NodeId> {
        self.members.keys().copied()
    }

    /// Whether a member gets the stream.
    pub fn has(&self, node: NodeId) -> bool {
        self.members.contains_key(&node)
    }

    /// Frames that were sent, and that were sent again.
    pub fn counts(&self) -> (u64, u64) {
        (self.sent - 1, self.again)
    }

    /// Messages of a MiB that may be pushed: the list is bounded, and what waits in it is late.
    pub fn room(&self) -> u32 {
        let frames = (1 << 20) / self.payload + 1;
        (LIST_MESSAGES * frames)
            .saturating_sub(self.list.len())
            .div_ceil(frames) as u32
    }

    /// Number of the next frame that is made.
    pub fn next(&self) -> u64 {
        self.first + self.list.len() as u64
    }

    /// Takes a member in, which gets all frames that are made from now on. Returns the number of the first.
    pub fn admit(&mut self, now: u64, node: NodeId, room: u32) -> u64 {
        let below = self.next();
        let progress = Progress {
            below,
            room: u64::from(room).clamp(1, WINDOW / 2),
            advanced_at: now,
            ask_at: u64::MAX,
            ask_after: ASK_NS,
        };
        self.members.insert(node, progress);
        below
    }

    /// Leaves a member out.
    pub fn dismiss(&mut self, node: NodeId) {
        self.members.remove(&node);
        self.trim();
    }

    /// Makes the frames of a message. A member with records that reach `position` has it.
    pub fn push(&mut self, message: &[u8], position: u64) {
        let count = message.len().div_ceil(self.payload).max(1) as u16;
        for index in 0..count {
            let start = index as usize * self.payload;
            let part = &message[start..message.len().min(start + self.payload)];
            let place = (self.next(), index, count);
            let frame = frame::encode(self.stream, &self.key, place, part, self.with_parity);
            self.list.push_back(frame);
        }
        self.messages.push_back(Kept {
            end: self.next(),
            position,
        });
    }

    /// The next frame to send to the group; none while a member has no room for it.
    pub fn poll_frame(&mut self, now: u64) -> Option<&[u8]> {
        let sent = self.sent;
        let has_room = |member: &Progress| sent < member.below + member.room;
        if self.members.is_empty() || sent >= self.next() || !self.members.values().all(has_room) {
            return None;
        }
        self.sent += 1;
        for member in self
            .members
            .values_mut()
            .filter(|member| member.below >= sent)
        {
            member.advanced_at = now;
        }
        for member in self.members.values_mut() {
            member.ask_after = ASK_NS;
            member.ask_at = now + ASK_NS;
        }
        self.list
            .get((sent - self.first) as usize)
            .map(Vec::as_slice)
    }

    /// Takes what a member has. Returns frames that it asks for, as parts of at most [`AGAIN_BYTES`], and what it is to be told
    /// if it waits for frames of messages that it has by its link.
    pub fn handle_report(
        &mut self,
        now: u64,
        from: NodeId,
        report: &Report,
    ) -> (Vec<Vec<u8>>, Option<Range<u64>>) {
        let sent = self.sent;
        let member = self.members.get_mut(&from);
        let Some(member) = member.filter(|_| report.below <= sent) else {
            return (Vec::new(), None);
        };
        member.room = u64::from(report.room).clamp(1, WINDOW / 2);
        member.advance(now, report.below);
        // What is missing was lost: no question about it is needed, only about what comes behind.
        if !report.missing.is_empty() {
            member.ask_at = now + member.ask_after;
        }
        let below = member.below;
        self.trim();
        let skips = (report.below < below).then_some(below..sent);
        (self.frames_again(&report.missing), skips)
    }

    /// A member's records reach this far: it has the messages up to there.
    pub fn handle_tail(&mut self, now: u64, from: NodeId, tail: u64) {
        let sent = self.sent;
        let had = self
            .messages
            .iter()
            .take_while(|it| it.position <= tail && it.end <= sent);
        let (Some(below), Some(member)) =
            (had.last().map(|it| it.end), self.members.get_mut(&from))
        else {
            return;
        };
        member.advance(now, below);
        self.trim();
    }

    fn frames_again(&mut self, missing: &[Range<u64>]) -> Vec<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let numbers = missing.iter().flat_map(Range::clone);
        for number in numbers.take(WINDOW as usize) {
            let index = number
                .checked_sub(self.first)
                .filter(|_| number < self.sent);
            let Some(frame) = index.and_then(|index| self.list.get(index as usize)) else {
                continue;
            };
            let has_room = |part: &&mut Vec<u8>| part.len() + frame.len() + 2 <= AGAIN_BYTES;
            if parts.last_mut().filter(has_room).is_none() {
                parts.push(Vec::new());
            }
            if let Some(part) = parts.last_mut() {
                part.extend((frame.len() as u16).to_le_bytes());
                part.extend(frame);
            }
            self.again += 1;
        }
        parts
    }

    /// Drops the frames that all members have.
    fn trim(&mut self) {
        let least = self.members.values().map(|member| member.below);
        let most = self.members.values().map(|member| member.below).max();
        let below = match self.defects.has(Defect::TrimEarly) {
            true => most,
            false => least.min(),
        };
        // Without members no member will ask.
        let below = below.unwrap_or(self.next());
        self.list
            .drain(..(below.saturating_sub(self.first) as usize).min(self.list.len()));
        self.first = self.first.max(below);
        self.sent = self.sent.max(self.first);
        while self
            .messages
            .front()
            .is_some_and(|message| message.end <= self.first)
        {
            self.messages.pop_front();
        }
    }

    /// When [`Sender::handle_timeout`] is due: never while each member has all that was sent.
    pub fn poll_timeout(&self) -> Option<u64> {
        let lacking = self
            .members
            .values()
            .filter(|member| member.below < self.sent);
        lacking.map(|member| member.ask_at).min()
    }

    /// Members that are to be told what they may lack, up to the last frame sent, and those that were given up.
    pub fn handle_timeout(&mut self, now: u64) -> (Vec<(NodeId, Range<u64>)>, Vec<NodeId>) {
        let sent = self.sent;
        let (mut asked, mut gone) = (Vec::new(), Vec::new());
        for (node, member) in &mut self.members {
            if member.below >= sent {
                continue;
            }
            if now >= member.advanced_at + GIVE_UP_NS {
                gone.push(*node);
            } else if now >= member.ask_at {
                member.ask_after = (2 * member.ask_after).min(ASK_MAX_NS);
                member.ask_at = now + member.ask_after;
                if !self.defects.has(Defect::ForgetTailOfStream) {
                    asked.push((*node, member.below..sent));
                }
            }
        }
        for node in &gone {
            self.dismiss(*node);
        }
        (asked, gone)
    }
}

impl Progress {
    fn advance(&mut self, now: u64, below: u64) {
        if below > self.below {
            self.below = below;
            self.advanced_at = now;
            self.ask_after = ASK_NS;
            self.ask_at = now + ASK_NS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_too_short_for_a_message_are_refused() {
        let payload = frame::payload_bytes(1400, true);
        let most = WINDOW as usize * payload;
        assert!(Sender::can_carry(most, 1400, true));
        assert!(!Sender::can_carry(most + 1, 1400, true));
        // Datagrams over RDMA with the least MTUs, which have no parity.
        for (longest, can_carry) in [(0, false), (256, false), (512, false), (1024, true)] {
            let got = Sender::can_carry(4 << 20, longest, false);
            assert_eq!(got, can_carry, "{longest}");
        }
    }
}
