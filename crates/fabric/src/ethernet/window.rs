//! Packets of an endpoint in flight: time of retransmission, order, and number.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Packets that can be on their way at once in one direction of an endpoint.
pub const WINDOW: u64 = 256;
/// The fewest after losses.
const WINDOW_MIN: f32 = 8.0;
const WINDOW_FIRST: f32 = 64.0;
/// So many packets behind one that has not come make it lost; half of the window, if that is less.
const REORDERED: u64 = 8;
/// Bounds of the time after which a packet is repeated.
const REPEAT_MIN: Duration = Duration::from_millis(3);
const REPEAT_MAX: Duration = Duration::from_millis(200);
/// Least time after which a packet counts as lost if one that was sent later has come. If no acknowledgement comes for so long, the last
/// packet is sent again: the acknowledgement of it reports which are missing.
const OVERTAKEN_MIN: Duration = Duration::from_micros(250);

/// A packet that is not acknowledged.
struct Sent {
    frame: u32,
    length: u32,
    /// When it was sent last.
    at: Instant,
    /// Of the oldest packet: since when an acknowledgement is awaited. It does not change when it is sent again before it is late.
    waits_since: Instant,
    tries: u32,
    /// The receiver has it, but not all before it.
    has_come: bool,
}

/// The sender's side of a window of packets.
pub struct Outgoing {
    /// Sequence of the oldest packet that is not acknowledged.
    first: u64,
    sent: VecDeque<Sent>,
    /// Packets that may be on their way: fewer after losses (congestion).
    window: f32,
    /// The receiver has memory for so many of them.
    allowed: usize,
    round_trip: Option<(Duration, Duration)>,
    /// Losses before this packet are one event.
    recovered_at: u64,
    /// How often the oldest packet was late since the round trip was measured: a packet that was sent twice does not measure it.
    backoff: u32,
    /// Packets have come behind one that is missing: when this is to be looked at.
    holes_at: Option<Instant>,
    /// The last packet was sent again since an acknowledgement has come.
    is_probed: bool,
    /// How often that was done since the round trip was measured.
    probes: u32,
}

impl Outgoing {
    pub fn new() -> Outgoing {
        Outgoing {
            first: 0,
            sent: VecDeque::new(),
            window: WINDOW_FIRST,
            allowed: WINDOW as usize,
            round_trip: None,
            recovered_at: 0,
            backoff: 0,
            holes_at: None,
            is_probed: false,
            probes: 0,
        }
    }

    pub fn has_room(&self) -> bool {
        self.sent.len() < self.most()
    }

    /// Packets that may be on their way.
    fn most(&self) -> usize {
        self.allowed.min(self.window as usize)
    }

    /// The receiver allows so many packets on their way; 0: all that have numbers.
    pub fn allow(&mut self, packets: u8) {
        self.allowed = match packets {
            0 => WINDOW as usize,
            packets => packets.into(),
        };
    }

    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// The sequence of the next packet.
    pub fn next(&self) -> u64 {
        self.first + self.sent.len() as u64
    }

    /// Whether all packets through this one are acknowledged.
    pub fn is_acknowledged(&self, sequence: u64) -> bool {
        sequence < self.first
    }

    /// Adds the packet [`Outgoing::next`].
    pub fn add(&mut self, frame: u32, length: u32, now: Instant) {
        self.sent.push_back(Sent {
            frame,
            length,
            at: now,
            waits_since: now,
            tries: 1,
            has_come: false,
        });
    }

    /// The receiver expects this packet next, and has those of the mask after it. Calls a function with each frame that
    /// is not needed any more. Returns nothing if the values are invalid.
    pub fn acknowledge(
        &mut self,
        expected: u64,
        selective: u64,
        now: Instant,
        mut release: impl FnMut(u32),
    ) -> Option<()> {
        if expected > self.next() {
            return None;
        }
        let mut measured = None;
        let has_advanced = self.first < expected;
        while self.first < expected {
            let sent = self.sent.pop_front()?;
            release(sent.frame);
            self.first += 1;
            self.is_probed = false;
            if sent.tries == 1 && !sent.has_come {
                measured = Some(now.saturating_duration_since(sent.at));
            }
            if self.window < WINDOW as f32 {
                self.window += 1.0 / self.window.max(1.0) * 4.0;
            }
        }
        if let Some(measured) = measured {
            self.measure(measured);
        }
        if has_advanced && let Some(front) = self.sent.front_mut() {
            front.waits_since = front.at;
        }
        let mut bits = selective;
        while bits != 0 {
            let sequence = expected + 1 + u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            if let Some(sent) = self.at(sequence) {
                sent.has_come = true;
                self.holes_at = Some(now);
            }
        }
        Some(())
    }

    fn at(&mut self, sequence: u64) -> Option<&mut Sent> {
        let index = sequence.checked_sub(self.first)?;
        self.sent.get_mut(usize::try_from(index).ok()?)
    }

    fn measure(&mut self, sample: Duration) {
        self.backoff = 0;
        self.probes = 0;
        self.round_trip = Some(match self.round_trip {
            None => (sample, sample / 2),
            Some((mean, deviation)) => {
                let difference = mean.abs_diff(sample);
                ((mean * 7 + sample) / 8, (deviation * 3 + difference) / 4)
            }
        });
    }

    /// After how long a packet is repeated.
    fn repeat_after(&self) -> Duration {
        let (mean, deviation) = self.round_trip.unwrap_or((REPEAT_MIN, REPEAT_MIN));
        let usual = (mean + deviation * 4).clamp(REPEAT_MIN, REPEAT_MAX);
        (usual * (1 << self.backoff.min(6))).min(REPEAT_MAX)
    }

    /// After how long a packet that was overtaken is lost, however few have overtaken it.
    fn overtaken_after(&self) -> Duration {
        let (mean, deviation) = self.round_trip.unwrap_or((REPEAT_MIN, Duration::ZERO));
        (mean * 2 + deviation * 4).clamp(OVERTAKEN_MIN, REPEAT_MAX)
    }

    /// When the last packet is to be sent again.
    fn probe_at(&self) -> Option<Instant> {
        let last = self
            .sent
            .back()
            .filter(|sent| !self.is_probed && !sent.has_come);
        last.map(|sent| sent.at + doubled(self.overtaken_after(), self.probes))
    }

    /// When [`Outgoing::lost`] may find something, for a thread that polls.
    pub fn check_at(&self) -> Option<Instant> {
        let all = [self.deadline(), self.probe_at(), self.holes_at];
        all.into_iter().flatten().min()
    }

    /// When the oldest packet is to be repeated.
    pub fn deadline(&self) -> Option<Instant> {
        let front = self.sent.front();
        front.map(|sent| sent.waits_since + self.repeat_after())
    }

    /// Frames and lengths of packets that are to be retransmitted now. `is_back` returns whether the kernel has sent
    /// the frame.
    pub fn lost(
        &mut self,
        now: Instant,
        is_back: impl Fn(u32) -> bool,
        mut repeat: impl FnMut(u32, u32),
    ) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        let is_late = is_due(self.deadline());
        if !is_late
            && is_due(self.probe_at())
            && let Some(last) = self.sent.back_mut().filter(|it| is_back(it.frame))
        {
            self.is_probed = true;
            self.probes += 1;
            last.at = now;
            last.tries += 1;
            repeat(last.frame, last.length);
        }
        if !is_late && !is_due(self.holes_at) {
            return;
        }
        let lost = self.repeat_lost(now, is_late, is_back, repeat);
        if is_late {
            self.backoff += 1;
            // The kernel may still have the frame: not at once again.
            if let Some(front) = self.sent.front_mut() {
                front.waits_since = now;
            }
        }
        if lost.is_some_and(|first| first >= self.recovered_at) {
            self.recovered_at = self.next();
            self.window = (self.window / 2.0).max(WINDOW_MIN);
        }
    }

    /// Repeats the oldest packet, if it is late, and those that were overtaken. Returns the first of them.
    fn repeat_lost(
        &mut self,
        now: Instant,
        is_late: bool,
        is_back: impl Fn(u32) -> bool,
        mut repeat: impl FnMut(u32, u32),
    ) -> Option<u64> {
        self.holes_at = None;
        let overtaken_after = self.overtaken_after();
        let last = self.sent.iter().rposition(|sent| sent.has_come);
        let reordered = REORDERED.min(self.most() as u64 / 2).max(1);
        let (mut lost, mut holes_at) = (None, None);
        // Without holes, only the oldest.
        let count = last.unwrap_or(1).min(self.sent.len());
        for (index, sent) in self.sent.iter_mut().enumerate().take(count) {
            if sent.has_come {
                continue;
            }
            let is_oldest = index == 0 && is_late;
            let is_behind = |by| last.is_some_and(|last| last as u64 >= index as u64 + by);
            // Each time twice as long: the receiver may have ended, or have no buffer for it.
            let patience = doubled(overtaken_after, sent.tries - 1);
            let is_overtaken = (is_behind(reordered) && sent.tries == 1)
                || (is_behind(1) && now.saturating_duration_since(sent.at) >= patience);
            let mut look_at = sent.at + patience;
            if is_oldest || is_overtaken {
                look_at = now + overtaken_after;
                if is_back(sent.frame) {
                    sent.at = now;
                    sent.tries += 1;
                    look_at = now + doubled(overtaken_after, sent.tries - 1);
                    repeat(sent.frame, sent.length);
                    lost = lost.or(Some(self.first + index as u64));
                }
            }
            if is_behind(1) {
                holes_at = Some(holes_at.map_or(look_at, |at: Instant| at.min(look_at)));
            }
        }
        self.holes_at = holes_at;
        lost
    }

    /// All frames, which are not needed any more.
    pub fn take_frames(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.first = self.next();
        self.sent.drain(..).map(|sent| sent.frame)
    }
}

/// So many times twice the time, up to a limit.
fn doubled(time: Duration, times: u32) -> Duration {
    (time * (1 << times.min(10))).min(REPEAT_MAX)
}

/// The receiver's side of a window of packets.
pub struct Incoming {
    /// Sequence of the next packet to be executed.
    pub expected: u64,
    /// Packets that came before those in front of them.
    stash: BTreeMap<u64, Vec<u8>>,
    /// The last number of a packet that is not repeated.
    unsequenced: u64,
}

/// Handling of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketOrder {
    /// It is next in order.
    Next,
    /// It is kept until then.
    Later,
    /// It has been there before, or is too far ahead.
    Drop,
}

impl Incoming {
    pub fn new() -> Incoming {
        Incoming {
            expected: 0,
            stash: BTreeMap::new(),
            unsequenced: 0,
        }
    }

    /// Where a packet belongs.
    pub fn place(&self, sequence: u64) -> PacketOrder {
        if sequence == self.expected && !self.stash.contains_key(&sequence) {
            PacketOrder::Next
        } else if sequence < self.expected
            || sequence >= self.expected + WINDOW
            || self.stash.contains_key(&sequence)
        {
            PacketOrder::Drop
        } else {
            PacketOrder::Later
        }
    }

    pub fn keep(&mut self, sequence: u64, frame: &[u8]) {
        self.stash.insert(sequence, frame.to_vec());
    }

    /// The next packet, if it was kept.
    pub fn take_next(&mut self) -> Option<Vec<u8>> {
        self.stash.remove(&self.expected)
    }

    /// Whether a packet that is not repeated is newer than all before it.
    pub fn is_news(&mut self, number: u64) -> bool {
        let is_news = number > self.unsequenced;
        self.unsequenced = self.unsequenced.max(number);
        is_news
    }

    /// Which of the packets behind the next one have come.
    pub fn selective(&self) -> u64 {
        let ahead = self.stash.range(self.expected + 1..self.expected + 65);
        ahead.fold(0, |bits, (sequence, _)| {
            bits | 1 << (sequence - self.expected - 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_repeated_before_their_time_and_once() {
        let start = Instant::now();
        let mut outgoing = Outgoing::new();
        for frame in 0..20 {
            assert!(outgoing.has_room());
            outgoing.add(frame, 100, start);
        }
        let mut released = Vec::new();
        // 0 to 2 have come, and 4 to 14.
        let selective = 0b111_1111_1111;
        let known = outgoing.acknowledge(3, selective, start, |frame| released.push(frame));
        assert_eq!((known, &released[..]), (Some(()), &[0, 1, 2][..]));
        let mut repeated = Vec::new();
        let now = start + Duration::from_micros(10);
        outgoing.lost(now, |_| true, |frame, _| repeated.push(frame));
        outgoing.acknowledge(3, selective, now, |_| ());
        outgoing.lost(now, |_| true, |frame, _| repeated.push(frame));
        assert_eq!(repeated, [3]);
        let now = now + REPEAT_MAX;
        outgoing.acknowledge(15, 0, now, |_| ());
        outgoing.lost(now, |_| true, |frame, _| repeated.push(frame));
        assert_eq!(repeated, [3, 15], "the oldest is late");
        assert!(outgoing.is_acknowledged(14) && !outgoing.is_acknowledged(15));
        assert_eq!(outgoing.acknowledge(21, 0, now, |_| ()), None);
    }

    #[test]
    fn the_last_packets_do_not_wait_for_their_time_nor_do_those_that_are_lost_again() {
        let start = Instant::now();
        let mut outgoing = Outgoing::new();
        for frame in 0..10 {
            outgoing.add(frame, 100, start);
        }
        let mut repeated = Vec::new();
        let mut now = start + Duration::from_micros(20);
        // 7, 8 and 9 are missing, and no packet tells of it.
        outgoing.acknowledge(7, 0, now, |_| ());
        outgoing.lost(now, |_| true, |frame, _| repeated.push(frame));
        assert_eq!(repeated, []);
        now = outgoing.check_at().unwrap();
        assert!(now < start + REPEAT_MIN / 2);
        for _ in 0..2 {
            outgoing.lost(now, |_| true, |frame, _| repeated.push(frame));
            assert_eq!(repeated, [9], "once");
        }
        outgoing.acknowledge(7, 0b10, now, |_| ());
        outgoing.lost(now, |_| true, |frame, _| repeated.push(frame));
        assert_eq!(repeated, [9, 7, 8]);
        outgoing.acknowledge(7, 0b10, now, |_| ());
        outgoing.lost(now, |_| true, |frame, _| repeated.push(frame));
        assert_eq!(repeated, [9, 7, 8], "not at once again");
        let before = now;
        now = outgoing.check_at().unwrap();
        assert!(now > before && now < before + REPEAT_MIN / 2);
        outgoing.lost(now, |_| true, |frame, _| repeated.push(frame));
        assert_eq!(repeated, [9, 7, 8, 7, 8]);
    }

    /// How often packets are sent within 5 s that are never acknowledged, if the thread looks whenever it should.
    fn repeated_until_the_end(outgoing: &mut Outgoing, start: Instant) -> u32 {
        let (mut now, mut repeated, mut in_vain) = (start, 0, 0);
        while now < start + Duration::from_secs(5) {
            let before = repeated;
            outgoing.lost(now, |_| true, |_, _| repeated += 1);
            in_vain += u32::from(repeated == before);
            let next = outgoing.check_at().expect("packets wait");
            assert!(next > now || repeated > before, "it looks in vain");
            now = next.max(now);
        }
        assert!(in_vain <= 20, "{in_vain} times for nothing");
        repeated
    }

    #[test]
    fn packets_that_were_overtaken_are_sent_more_and_more_rarely() {
        let start = Instant::now();
        let mut outgoing = Outgoing::new();
        while outgoing.has_room() {
            outgoing.add(0, 100, start);
        }
        let mut now = start + Duration::from_micros(20);
        // The round trip is known; every second packet is missing; and the peer's process ends.
        outgoing.acknowledge(2, 0, now, |_| ());
        outgoing.acknowledge(2, 0x5555_5555_5555_5555 << 1, now, |_| ());
        let holes = outgoing.sent.iter().filter(|sent| !sent.has_come).count() as u32;
        assert!(holes >= 30, "{holes}");
        now += Duration::from_micros(1);
        let repeated = repeated_until_the_end(&mut outgoing, now);
        // Ten times in 200 ms, and after that each 200 ms.
        assert!((holes..holes * 40).contains(&repeated), "{repeated}");
        assert!(outgoing.backoff >= 6, "the oldest was never late");
    }

    /// How often packets are sent again in each of 100 rounds; the path's round trip grows in round 50.
    fn repeated_on_a_path_that_becomes_longer(longer_us: u64) -> Vec<u32> {
        let mut now = Instant::now();
        let mut outgoing = Outgoing::new();
        let mut repeated = Vec::new();
        for round in 0..100 {
            let trip = Duration::from_micros(if round < 50 { 30 } else { longer_us });
            outgoing.add(0, 100, now);
            let (come, mut sent) = (now + trip, 0);
            while outgoing.check_at().is_some_and(|at| at < come) {
                now = outgoing.check_at().unwrap();
                outgoing.lost(now, |_| true, |_, _| sent += 1);
            }
            now = come;
            outgoing.acknowledge(outgoing.next(), 0, now, |_| ());
            repeated.push(sent);
        }
        assert!(repeated[50] >= 1, "the test does not lengthen the path");
        assert!(repeated[..50].iter().all(|it| *it == 0), "{repeated:?}");
        repeated
    }

    #[test]
    fn a_path_that_becomes_longer_is_measured() {
        let repeated = repeated_on_a_path_that_becomes_longer(500);
        assert_eq!(repeated[50], 1);
        assert!(repeated[60..].iter().all(|it| *it == 0), "{repeated:?}");
    }

    /// Longer than the time after which the oldest packet is sent again: none would measure the round trip.
    #[test]
    fn a_path_that_becomes_longer_than_the_timer_of_the_oldest_packet_is_measured() {
        for longer_us in [3500, 10_000, 50_000, 150_000] {
            let repeated = repeated_on_a_path_that_becomes_longer(longer_us);
            let later = &repeated[75..];
            assert!(
                later.iter().all(|it| *it == 0),
                "{longer_us} µs: {repeated:?}"
            );
        }
    }

    #[test]
    fn a_probe_that_the_kernel_does_not_take_is_sent_later() {
        let start = Instant::now();
        let mut outgoing = Outgoing::new();
        outgoing.add(0, 100, start);
        outgoing.add(1, 100, start);
        outgoing.acknowledge(1, 0, start, |_| ());
        let now = outgoing.check_at().unwrap();
        let mut repeated = 0;
        outgoing.lost(now, |_| false, |_, _| repeated += 1);
        assert_eq!(repeated, 0);
        outgoing.lost(now, |_| true, |_, _| repeated += 1);
        assert_eq!(repeated, 1);
    }

    /// Frames that are sent again until a time, and when, if the thread looks whenever it should.
    fn repeated_until(outgoing: &mut Outgoing, end: Instant) -> Vec<(Instant, u32)> {
        let mut repeated = Vec::new();
        while let Some(now) = outgoing.check_at().filter(|at| *at < end) {
            outgoing.lost(now, |_| true, |frame, _| repeated.push((now, frame)));
        }
        repeated
    }

    #[test]
    fn the_last_packet_is_probed_once_until_an_acknowledgement_and_soon_after_a_measurement() {
        let start = Instant::now();
        let trip = Duration::from_micros(30);
        let mut outgoing = Outgoing::new();
        outgoing.add(0, 100, start);
        outgoing.acknowledge(1, 0, start + trip, |_| ());
        let mut now = start + trip;
        for round in 0..10 {
            // It is late several times, is acknowledged at last, and the next one measures the round trip.
            outgoing.add(1, 100, now);
            let late = repeated_until(&mut outgoing, now + REPEAT_MIN);
            assert_eq!(late.len(), 1, "round {round}: {late:?}");
            let (at, _) = late[0];
            assert!(at < now + REPEAT_MIN / 2, "round {round}");
            now += Duration::from_millis(100);
            let late = repeated_until(&mut outgoing, now).len();
            assert!((3..8).contains(&late), "round {round}: {late}");
            outgoing.acknowledge(outgoing.next(), 0, now, |_| ());
            outgoing.add(2, 100, now);
            now += trip;
            outgoing.acknowledge(outgoing.next(), 0, now, |_| ());
        }
    }

    #[test]
    fn a_last_packet_that_has_come_is_not_probed() {
        let start = Instant::now();
        let mut outgoing = Outgoing::new();
        for frame in 0..3 {
            outgoing.add(frame, 100, start);
        }
        outgoing.acknowledge(1, 0b1, start, |_| ());
        let end = start + Duration::from_secs(1);
        let repeated = repeated_until(&mut outgoing, end);
        assert!(
            repeated.iter().all(|(_, frame)| *frame == 1),
            "{repeated:?}"
        );
        assert!(repeated.len() > 3);
    }

    #[test]
    fn a_late_packet_that_the_kernel_has_is_not_sent_again() {
        let start = Instant::now();
        let mut outgoing = Outgoing::new();
        outgoing.add(0, 100, start);
        let mut repeated = 0;
        let late = outgoing.deadline().unwrap();
        outgoing.lost(late, |_| false, |_, _| repeated += 1);
        assert_eq!(repeated, 0);
    }

    #[test]
    fn the_next_oldest_packet_is_late_when_its_last_transmission_is() {
        let start = Instant::now();
        let mut outgoing = Outgoing::new();
        for frame in 0..3 {
            outgoing.add(frame, 100, start);
        }
        // The first two were overtaken, and are sent again.
        let again = start + REPEAT_MIN / 2;
        outgoing.acknowledge(0, 0b10, again, |_| ());
        let mut repeated = 0;
        let late = again + outgoing.overtaken_after();
        outgoing.lost(late, |_| true, |_, _| repeated += 1);
        assert_eq!(repeated, 2);
        outgoing.acknowledge(1, 0b1, late, |_| ());
        let due = late + outgoing.repeat_after();
        assert_eq!(outgoing.deadline(), Some(due));
    }

    #[test]
    fn a_lost_packet_of_the_least_window_does_not_wait_for_its_time() {
        let start = Instant::now();
        let mut outgoing = Outgoing::new();
        outgoing.allow(8);
        while outgoing.has_room() {
            outgoing.add(outgoing.next() as u32, 100, start);
        }
        // The first is missing.
        outgoing.acknowledge(0, 0x7f, start, |_| ());
        let mut repeated = Vec::new();
        outgoing.lost(start, |_| true, |frame, _| repeated.push(frame));
        assert_eq!(repeated, [0]);
    }

    #[test]
    fn a_group_of_losses_halves_the_window_once_and_acknowledgements_widen_it() {
        let mut now = Instant::now();
        let mut outgoing = Outgoing::new();
        let fill = |outgoing: &mut Outgoing, now| {
            while outgoing.has_room() {
                outgoing.add(0, 100, now);
            }
        };
        // Packets of a full window, of which the first five are missing.
        let mut lose = |outgoing: &mut Outgoing| {
            fill(outgoing, now);
            let (first, full) = (outgoing.first, outgoing.next());
            for selective in [0xff << 5, 0xffff << 5] {
                outgoing.acknowledge(first, selective, now, |_| ());
                outgoing.lost(now, |_| true, |_, _| ());
            }
            now += REPEAT_MAX;
            outgoing.acknowledge(full, 0, now, |_| ());
            full - first
        };
        let windows: Vec<u64> = (0..6).map(|_| lose(&mut outgoing)).collect();
        assert_eq!(windows[0], WINDOW_FIRST as u64);
        // A half, and a few for the packets that were acknowledged since.
        assert!((32..40).contains(&windows[1]), "{windows:?}");
        assert!(windows.is_sorted_by(|one, next| one > next || *next <= 16));
        assert!(windows.iter().all(|it| *it >= WINDOW_MIN as u64));
        for _ in 0..1000 {
            let full = outgoing.next();
            outgoing.acknowledge(full, 0, now, |_| ());
            fill(&mut outgoing, now);
        }
        assert_eq!(outgoing.next() - outgoing.first, WINDOW);
    }

    #[test]
    fn packets_are_executed_once_and_in_order() {
        let mut incoming = Incoming::new();
        assert_eq!(incoming.place(0), PacketOrder::Next);
        incoming.expected = 1;
        assert_eq!(incoming.place(0), PacketOrder::Drop);
        assert_eq!(incoming.place(3), PacketOrder::Later);
        incoming.keep(3, b"three");
        incoming.keep(2, b"two");
        assert_eq!(incoming.place(3), PacketOrder::Drop);
        assert_eq!(incoming.place(1 + WINDOW), PacketOrder::Drop);
        assert_eq!(incoming.selective(), 0b11);
        assert_eq!(incoming.take_next(), None);
        incoming.expected = 2;
        assert_eq!(incoming.take_next().as_deref(), Some(&b"two"[..]));
        assert!(incoming.is_news(5) && !incoming.is_news(5) && !incoming.is_news(4));
    }
}
