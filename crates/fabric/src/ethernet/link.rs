//! One endpoint: its requests, its answers, and the packets of both directions.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use xdp::{Missing, Shape};

use super::fetch::Serving;
use super::local::{Head, Local, Supplied, Target};
use super::payload::Payload;
use super::placement::Aimed;
use super::protection::Protection;
use super::window::{Incoming, Outgoing};
use super::wire::{self, Kind};
use super::{count, frames, input, output, unreachable};
use crate::{EndpointId, Failure, RegionDescriptor, Report};

/// Frames that are kept for packets that are not repeated.
pub const RESERVED: usize = 32;
/// A frame of a run of which all were sent is missing when no other one has come for so long.
const MISSED_AFTER: Duration = Duration::from_micros(100);
/// After how long the same missing frame is asked for again.
pub const RESEND_AFTER: Duration = Duration::from_millis(1);
/// On one queue a run that makes no progress for so long is withdrawn, since other frames wait for it.
const STALLED_AFTER: Duration = Duration::from_millis(20);
/// The same for a run that is not whole after so long, however many frames have come. Then it is not aimed at for as long, in which
/// others have their time slices.
pub const SLICE: Duration = Duration::from_millis(50);
/// The part of the usual time after which a suspected side is lost.
const SUSPECTED: u32 = 10;
/// How often a frame is asked for before the link counts as one that cannot bring it.
const STUCK_AFTER: u32 = 100;
/// How often the same frame is asked for within [`RESEND_AFTER`] because later ones came: their numbers may be forged.
const ASKED_MAX: u32 = 4;
/// Packets after which an acknowledgement does not wait for something that could take it along: half of the least window.
const UNACKNOWLEDGED_MAX: u32 = 4;
/// How long it waits otherwise, while the thread polls.
const ACKNOWLEDGED_AFTER: Duration = Duration::from_micros(20);

/// Where an endpoint stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The other side is not known.
    Prepared,
    /// Requests go back and forth.
    Ready,
    /// It has ended here. Until then the other side is notified, and gets its remaining answers.
    Leaving { until: Instant },
}

/// The other side of an endpoint: its address, keys and limits.
pub struct Other {
    pub target: Target,
    /// Protection of packets to it, and from it.
    pub to: Protection,
    pub from: Protection,
    /// Bytes of the longest body.
    pub body_bytes: usize,
    /// Both sides place data, in this way.
    pub places: Option<Shape>,
}

/// A request of this side.
pub struct Pending {
    pub sequence: u64,
    pub signaled: bool,
    pub asked: Asked,
    /// The packet that it ends with, once that was sent.
    pub last: Option<u64>,
    /// The answer has come, if it needs one.
    pub answered: bool,
    /// The other side does not place its data.
    pub unplaced: bool,
    pub value: u64,
}

/// Kind of a request.
pub enum Asked {
    Send {
        data: Payload,
        at: u32,
        immediate: Option<u32>,
        returned: u32,
    },
    Write {
        data: Payload,
        at: u32,
        key: u64,
        offset: u64,
        immediate: Option<u32>,
    },
    Read {
        into: Payload,
        at: u32,
        key: u64,
        offset: u64,
    },
    Atomic {
        kind: Kind,
        key: u64,
        offset: u64,
        operand: u64,
        new: u64,
    },
}

impl Asked {
    fn needs_answer(&self) -> bool {
        matches!(self, Asked::Read { .. } | Asked::Atomic { .. })
    }
}

/// An answer that this side owes the other.
pub enum Answer {
    Read {
        request: u64,
        key: u64,
        offset: u64,
        total: u32,
        at: u32,
    },
    Value {
        request: u64,
        value: u64,
    },
    /// All frames of [`Serving`] were sent.
    Fetched {
        request: u64,
    },
    Refused {
        request: u64,
        failure: Failure,
    },
    /// Frames are expected; or nothing is aimed.
    Aimed {
        request: u64,
        aimed: Option<Aimed>,
    },
}

/// Blocks of a write that the other side places.
pub struct Run {
    pub request: u64,
    /// Where in the write's data they begin.
    pub at: u32,
    pub blocks: u32,
    /// Frames of all blocks.
    pub frames: u32,
    /// Number of the first frame, once the other side has aimed.
    pub first: Option<u32>,
    /// Frames without content to send before.
    pub empty: u32,
    /// The frame to send next.
    pub next: u32,
    /// The packet that ends it.
    pub sealed: Option<u64>,
    /// How often the same frame was asked for, which, and when that was counted last.
    pub asked: Option<(u32, u32, Instant)>,
}

/// Blocks that are placed here.
pub struct Landing {
    pub request: u64,
    pub bytes: u32,
    pub first: u32,
    /// Frames without content that were announced with it.
    pub front: u32,
    /// A missing frame is asked for after so long.
    missed_after: Duration,
    /// All frames were sent, as far as the other side reports.
    is_sent: bool,
    /// The frame that was asked for last, and when.
    asked: Option<(u32, Instant)>,
    /// The frame that was expected last, and since when.
    waits: (u32, Instant),
    /// Most frames that had landed, and since when: a run that is aimed at again makes no progress before it has more.
    progress: (u32, Instant),
    /// The frame that was asked for because later ones came.
    missed: Option<Missing>,
    /// How often that was done since then.
    misses: (u32, Instant),
    aimed_at: Instant,
    /// Nothing is aimed at until then.
    paused: Option<Instant>,
}

impl Landing {
    /// `is_alone`: nothing else arrives while frames are missing, so that they are asked for before all were sent.
    pub fn new(request: u64, bytes: u32, aimed: Aimed, is_alone: bool) -> Landing {
        Landing {
            request,
            bytes,
            first: aimed.first,
            front: aimed.front,
            missed_after: match is_alone {
                true => RESEND_AFTER,
                false => MISSED_AFTER,
            },
            is_sent: is_alone,
            asked: None,
            waits: (0, Instant::now()),
            progress: (0, Instant::now()),
            missed: None,
            misses: (0, Instant::now()),
            aimed_at: Instant::now(),
            paused: None,
        }
    }

    /// All frames were sent, and this one is expected next.
    pub fn expects(&mut self, frame: u32, now: Instant) {
        let is_first = !std::mem::replace(&mut self.is_sent, true);
        if is_first || frame != self.waits.0 {
            self.waits = (frame, now);
        }
        if is_first || frame > self.progress.0 {
            self.progress = (frame, now);
        }
    }

    /// The expected frame is asked for.
    pub fn ask(&mut self, now: Instant) {
        self.asked = Some((self.waits.0, now));
    }

    /// The frame of the run that later ones have overtaken, if it is to be asked for: once for each time that it was lost, and not
    /// too often.
    pub fn misses(&mut self, missing: Missing, frames: u32, now: Instant) -> Option<u32> {
        let frame = missing.frame.wrapping_sub(self.first);
        if frame >= frames || self.missed == Some(missing) {
            return None;
        }
        let (times, since) = self.misses;
        let is_same = self.missed.is_some_and(|it| it.frame == missing.frame);
        self.missed = Some(missing);
        self.misses = match is_same && now.saturating_duration_since(since) < RESEND_AFTER {
            true => (times + 1, since),
            false => (1, now),
        };
        if self.misses.0 > ASKED_MAX {
            return None;
        }
        self.asked = Some((frame, now));
        Some(frame)
    }

    /// When the expected frame is to be asked for. Nothing before all were sent.
    pub fn due(&self) -> Option<Instant> {
        if self.paused.is_some() {
            return self.paused;
        }
        let (expected, since) = self.waits;
        let due = match self.asked {
            Some((frame, at)) if frame == expected => at + RESEND_AFTER,
            _ => since + self.missed_after,
        };
        self.is_sent.then_some(due)
    }

    /// Whether the expected frame is to be asked for now.
    pub fn is_late(&self, now: Instant) -> bool {
        self.due().is_some_and(|due| now >= due)
    }

    /// It is aimed at again, from this frame on.
    pub fn aimed(&mut self, aimed: Aimed, from: u32, now: Instant) {
        self.first = aimed.first;
        self.aimed_at = now;
        self.paused = None;
        self.expects(from, now);
    }

    /// Nothing is aimed at for so long.
    pub fn pause(&mut self, now: Instant, time: Duration) {
        self.paused = Some(now + time);
    }

    /// It cannot be aimed at yet. The time until the next attempt is no time without progress if another run is aimed at.
    pub fn wait(&mut self, now: Instant, is_in_use: bool) {
        let until = now + RESEND_AFTER;
        let since = self.paused.replace(until).unwrap_or(now);
        if is_in_use {
            self.progress.1 += until.saturating_duration_since(since);
        }
    }

    /// Whether nothing is to be aimed at yet.
    pub fn is_paused(&self, now: Instant) -> bool {
        self.paused.is_some_and(|until| now < until)
    }

    /// Whether nothing has come for so long that other frames should no longer wait, or not all within a longer time.
    pub fn is_stalled(&self, now: Instant) -> bool {
        let since = self.waits.1.max(self.aimed_at);
        now.saturating_duration_since(since) >= STALLED_AFTER
            || now.saturating_duration_since(self.aimed_at) >= SLICE
    }

    /// Whether it has made no progress for so long.
    pub fn is_lost(&self, now: Instant, limit: Duration) -> bool {
        now.saturating_duration_since(self.progress.1) >= limit
    }

    /// Whether the same frame has been expected for so long.
    pub fn has_waited(&self, now: Instant, limit: Duration) -> bool {
        now.saturating_duration_since(self.waits.1) >= limit
    }
}

/// A message that is coming.
pub struct Coming {
    pub buffer: Option<Supplied>,
    pub total: u32,
    pub at: u32,
}

/// Acknowledgements owed to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owed {
    Nothing,
    /// With the next packet, or a little after the first poll: for so many packets, and since then.
    Soon(u32, Option<Instant>),
    Now,
}

impl Run {
    /// Whether a frame was asked for so often that the link cannot bring it.
    pub fn is_stuck(&self) -> bool {
        self.asked.is_some_and(|(times, ..)| times >= STUCK_AFTER)
    }

    /// The other side misses a frame. It may ask at once each time that later ones came; that is counted as often as it asks without them.
    pub fn is_asked_for(&mut self, frame: u32, now: Instant) {
        self.asked = match self.asked {
            Some((times, same, at)) if same == frame => {
                let is_again = now.saturating_duration_since(at) >= RESEND_AFTER / 2;
                Some(if is_again {
                    (times + 1, frame, now)
                } else {
                    (times, frame, at)
                })
            }
            _ => Some((1, frame, now)),
        };
    }

    /// Whether frames are to be sent.
    pub fn has_frames(&self) -> bool {
        self.first.is_some() && self.next < self.frames
    }
}

/// State of one endpoint: its windows, requests and timers.
pub struct Link {
    pub id: EndpointId,
    pub state: State,
    pub secret: [u8; 32],
    pub other: Option<Other>,
    pub outgoing: Outgoing,
    pub incoming: Incoming,
    pub requests: VecDeque<Pending>,
    /// The first request that was not sent whole.
    pub cursor: usize,
    pub answers: VecDeque<Answer>,
    /// Answers come before requests now.
    pub answers_first: bool,
    pub imports: Vec<RegionDescriptor>,
    pub coming: Option<Coming>,
    pub run: Option<Run>,
    pub landing: Option<Landing>,
    /// Reads of this side that are placed, in the order of their frames.
    pub fetches: VecDeque<Landing>,
    /// Reads that are asked for again, in packets.
    pub again: VecDeque<u64>,
    /// Reads of the other side that it places.
    pub served: VecDeque<Serving>,
    pub owed: Owed,
    /// Number of the last packet that is not repeated.
    unsequenced: u64,
    /// Where the other side is.
    pub host: Option<IpAddr>,
    /// Something right has come from there.
    pub is_heard: bool,
    /// When something right has come, and when it was last asked for.
    pub heard: Instant,
    pub probed: Instant,
    /// The other side's process may have ended.
    suspected: bool,
    /// This side has refused a request: nothing more is executed.
    pub refused: bool,
    /// The end was reported.
    pub ended: bool,
    /// The other side has ended it, too.
    pub closed_there: bool,
    /// A message waits for a buffer.
    pub stalled: bool,
    pub listed: bool,
}

impl Link {
    pub fn new(id: EndpointId, secret: [u8; 32]) -> Link {
        let now = Instant::now();
        Link {
            id,
            state: State::Prepared,
            secret,
            other: None,
            outgoing: Outgoing::new(),
            incoming: Incoming::new(),
            requests: VecDeque::new(),
            cursor: 0,
            answers: VecDeque::new(),
            answers_first: true,
            imports: Vec::new(),
            coming: None,
            run: None,
            landing: None,
            fetches: VecDeque::new(),
            again: VecDeque::new(),
            served: VecDeque::new(),
            owed: Owed::Nothing,
            unsequenced: 0,
            host: None,
            is_heard: false,
            heard: now,
            probed: now,
            suspected: false,
            refused: false,
            ended: false,
            closed_there: false,
            stalled: false,
            listed: false,
        }
    }

    /// Another transport is used for the host for a while.
    pub fn avoid(&self) {
        if let Some(host) = self.host {
            unreachable::add(host);
        }
    }

    /// The link makes no progress: the endpoint is lost, and another transport is used for the host.
    pub fn give_up(&mut self, local: &mut Local) {
        self.avoid();
        self.lose(Failure::PeerLost, local);
    }

    /// The other side's process may have ended: from now on a shorter silence is its end.
    pub fn suspect(&mut self, local: &mut Local) {
        if self.state == State::Ready && !self.ended && !self.suspected {
            self.suspected = true;
            self.heard = Instant::now();
            self.probed = self.heard;
            self.tell(local, Kind::Probe, 0, &[]);
        }
    }

    /// How long the other side may be silent.
    fn patience(&self, lost_after: Duration) -> Duration {
        match self.suspected {
            true => lost_after / SUSPECTED,
            false => lost_after,
        }
    }

    /// Reports the end, once.
    pub fn lose(&mut self, failure: Failure, local: &mut Local) {
        if !std::mem::replace(&mut self.ended, true) {
            self.release(local);
            local.news.push(Report::Lost {
                endpoint: self.id,
                failure,
            });
        }
    }

    /// Forgets requests, and gives buffers and frames back that only they need.
    pub fn release(&mut self, local: &mut Local) {
        self.requests.clear();
        self.cursor = 0;
        self.run = None;
        self.again.clear();
        self.landing = None;
        self.fetches.clear();
        if let Some((placement, shape)) = &local.shared.placement {
            let owner = (local.member.slot, self.id);
            placement.lock().finish_all(&local.shared, *shape, owner);
        }
        self.take_buffer(local);
        if self.answers.is_empty() && !self.refused {
            for frame in self.outgoing.take_frames() {
                local.frames.release(frame);
            }
        }
    }

    fn take_buffer(&mut self, local: &mut Local) {
        let coming = self.coming.take();
        local.free.extend(coming.and_then(|coming| coming.buffer));
    }

    /// Whether it has nothing more to send.
    pub fn is_quiet(&self) -> bool {
        self.answers.is_empty() && self.outgoing.is_empty()
    }

    /// Whether frames of a run are to be sent.
    pub fn is_placing(&self) -> bool {
        let serves = self.served.iter().any(Serving::has_frames);
        serves || self.run.as_ref().is_some_and(Run::has_frames)
    }

    /// Reports requests that have ended well, in their order.
    pub fn complete(&mut self, local: &mut Local) {
        let outgoing = &self.outgoing;
        let is_over = |run: &mut Run| {
            run.sealed
                .is_some_and(|last| outgoing.is_acknowledged(last))
        };
        self.run.take_if(is_over);
        while let Some(front) = self.served.front()
            && front
                .sealed
                .is_some_and(|last| self.outgoing.is_acknowledged(last))
        {
            self.served.pop_front();
        }
        while let Some(front) = self.requests.front() {
            let is_sent = front
                .last
                .is_some_and(|last| self.outgoing.is_acknowledged(last));
            if !is_sent || (front.asked.needs_answer() && !front.answered) {
                return;
            }
            if front.signaled {
                local.news.push(Report::Done {
                    endpoint: self.id,
                    sequence: front.sequence,
                    value: front.value,
                });
            }
            self.requests.pop_front();
            self.cursor -= 1;
        }
    }

    /// Sends what may be sent.
    pub fn transmit(&mut self, local: &mut Local, now: Instant) {
        if self.other.is_none() {
            return;
        }
        self.repeat(local, now);
        frames::send_placed(self, local);
        while self.outgoing.has_room() && local.frames.available() > RESERVED {
            let Some(made) = output::next_packet(self, local) else {
                break;
            };
            let sequence = self.outgoing.next();
            let Some((frame, length)) =
                self.emit(local, made.kind, made.flags, made.immediate, sequence)
            else {
                break;
            };
            self.outgoing.add(frame, length, now);
            output::advance(self, &made, sequence);
            frames::send_placed(self, local);
        }
    }

    fn repeat(&mut self, local: &mut Local, now: Instant) {
        let shared = local.shared.clone();
        let (is_back, again) = (|frame| shared.is_back(frame), &shared.counts.repeated);
        self.outgoing.lost(now, is_back, |frame, length| {
            count(again);
            local.repeat(frame, length);
        });
    }

    /// Makes a packet of the thread's body.
    fn emit(
        &mut self,
        local: &mut Local,
        kind: Kind,
        flags: u8,
        immediate: u32,
        sequence: u64,
    ) -> Option<(u32, u32)> {
        let other = self.other.as_ref()?;
        let head = Head {
            kind,
            flags,
            immediate,
            sequence,
            expected: self.incoming.expected,
            selective: self.incoming.selective(),
        };
        let emitted = local.emit(other.target, &other.to, head);
        if emitted.is_some() {
            self.owed = Owed::Nothing;
        }
        emitted
    }

    /// Sends a packet that is not repeated.
    pub fn tell(&mut self, local: &mut Local, kind: Kind, flags: u8, body: &[u8]) {
        self.tell_with(local, kind, (flags, 0), body);
    }

    /// The same, with 32 bits more.
    pub fn tell_with(
        &mut self,
        local: &mut Local,
        kind: Kind,
        (flags, immediate): (u8, u32),
        body: &[u8],
    ) {
        self.unsequenced += 1;
        local.body.clear();
        local.body.extend_from_slice(body);
        let sequence = wire::UNSEQUENCED | self.unsequenced;
        if let Some((frame, _)) = self.emit(local, kind, flags, immediate, sequence) {
            local.frames.release(frame);
        }
    }

    /// A packet has arrived that must be acknowledged.
    pub fn owe(&mut self) {
        self.owed = match self.owed {
            Owed::Nothing => Owed::Soon(1, None),
            Owed::Soon(count, since) if count + 1 < UNACKNOWLEDGED_MAX => {
                Owed::Soon(count + 1, since)
            }
            _ => Owed::Now,
        };
    }

    /// Sends an acknowledgement that nothing has taken along, if it must not wait, or has waited.
    pub fn acknowledge(&mut self, local: &mut Local, now: Instant, all: bool) {
        match self.owed {
            Owed::Nothing => {}
            Owed::Soon(count, None) if !all => self.owed = Owed::Soon(count, Some(now)),
            Owed::Soon(_, Some(since))
                if !all && now.saturating_duration_since(since) < ACKNOWLEDGED_AFTER => {}
            _ => self.tell(local, Kind::Acknowledge, 0, &[]),
        }
    }

    /// Handles late packets without an acknowledgement, and a late other side. Returns whether the link has ended.
    pub fn check(&mut self, local: &mut Local, now: Instant) -> bool {
        let lost_after = self.patience(local.shared.options.lost_after);
        if let State::Leaving { until } = self.state {
            self.transmit(local, now);
            return now >= until;
        }
        if self.state == State::Prepared || self.ended {
            return false;
        }
        let silent = now.saturating_duration_since(self.heard);
        if silent >= lost_after {
            if !self.is_heard && !self.suspected {
                self.avoid();
            }
            self.lose(Failure::PeerLost, local);
        } else {
            if silent >= lost_after / 4
                && now.saturating_duration_since(self.probed) >= lost_after / 8
            {
                self.probed = now;
                self.tell(local, Kind::Probe, 0, &[]);
            }
            input::prompt(self, local, now);
        }
        self.transmit(local, now);
        false
    }

    /// When [`Link::check`] has something to do, at the latest.
    pub fn deadline(&self, lost_after: Duration) -> Option<Instant> {
        let lost_after = self.patience(lost_after);
        let repeat = self.outgoing.deadline();
        let other = match self.state {
            State::Prepared => None,
            State::Ready if self.ended => None,
            State::Ready => {
                let probe = self.heard + lost_after / 4;
                Some(probe.max(self.probed + lost_after / 8))
            }
            State::Leaving { until } => Some(until),
        };
        let landing = self.landing.iter().chain(self.fetches.front());
        let again = landing.filter_map(Landing::due).min();
        repeat.into_iter().chain(other).chain(again).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_frame_is_asked_for_soon_and_the_same_one_not_too_often() {
        let start = Instant::now();
        let aimed = Aimed { first: 0, front: 0 };
        let mut landing = Landing::new(0, 4096, aimed, false);
        assert_eq!(landing.due(), None, "the sender is not done");
        landing.expects(5, start);
        assert_eq!(landing.due(), Some(start + MISSED_AFTER));
        // Others come, before it is late.
        let mut now = start + MISSED_AFTER / 2;
        landing.expects(7, now);
        assert!(!landing.is_late(start + MISSED_AFTER));
        now += MISSED_AFTER;
        assert!(landing.is_late(now));
        landing.ask(now);
        landing.expects(7, now);
        assert_eq!(landing.due(), Some(now + RESEND_AFTER));
        // It has come, and a later one is missing.
        landing.expects(20, now);
        assert_eq!(landing.due(), Some(now + MISSED_AFTER));
        assert!(landing.has_waited(now + RESEND_AFTER, RESEND_AFTER));
    }

    #[test]
    fn frames_that_are_asked_for_at_once_do_not_make_a_run_stuck() {
        let mut run = Run {
            request: 0,
            at: 0,
            blocks: 1,
            frames: 3,
            first: Some(0),
            empty: 0,
            next: 0,
            sealed: None,
            asked: None,
        };
        let mut now = Instant::now();
        for _ in 0..4 * STUCK_AFTER {
            run.is_asked_for(1, now);
            now += RESEND_AFTER / 10;
        }
        assert!(!run.is_stuck());
        for _ in 0..STUCK_AFTER {
            run.is_asked_for(1, now);
            now += RESEND_AFTER;
        }
        assert!(run.is_stuck());
        run.is_asked_for(2, now);
        assert!(!run.is_stuck(), "the frame has come");
    }

    #[test]
    fn a_run_stalls_without_frames_and_with_few() {
        let aimed = Aimed { first: 0, front: 0 };
        let mut landing = Landing::new(0, 1 << 20, aimed, true);
        let start = Instant::now();
        landing.aimed(aimed, 0, start);
        assert!(!landing.is_stalled(start + STALLED_AFTER / 2));
        assert!(landing.is_stalled(start + STALLED_AFTER));
        // A frame comes each time before it stalls.
        let mut now = start;
        for frame in 1.. {
            now += STALLED_AFTER / 4;
            landing.expects(frame, now);
            if landing.is_stalled(now) {
                break;
            }
        }
        assert_eq!(now, start + SLICE);
        landing.pause(now, SLICE);
        assert_eq!(landing.due(), Some(now + SLICE));
        assert!(landing.is_paused(now) && !landing.is_paused(now + SLICE));
        landing.aimed(aimed, 3, now + SLICE);
        assert!(!landing.is_paused(now) && !landing.is_stalled(now + SLICE));
    }
}
