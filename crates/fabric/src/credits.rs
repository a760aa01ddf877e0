//! Number of messages one side may still send, since the other has buffers for them.
//!
//! Both sides count from the beginning, so that a lost or repeated count does no harm: the receiver reports the total
//! of returned buffers, with every message and, when it has none to send, by itself. A sender that has waited too long
//! asks; the answer is the same count again.

use std::time::{Duration, Instant};

/// How long a sender without credits waits before it asks.
pub const ASK_AFTER: Duration = Duration::from_millis(20);

/// The counts of one endpoint, in both directions. They wrap.
#[derive(Debug)]
pub struct Credits {
    /// Number of this side's messages that the peer can hold.
    window: u32,
    sent: u32,
    /// Number of them with buffers that the peer has returned, by its last report.
    returned_to_us: u32,
    /// Since when there is none left and something waits.
    starved_since: Option<Instant>,
    /// Number of the peer's messages that this side can hold.
    own_window: u32,
    given_back: u32,
    told: u32,
    /// Value of `sent` then.
    sent_when_told: u32,
}

impl Credits {
    /// `window`: how many messages the peer can hold; `own_window`: how many of the peer's this side can.
    pub fn new(window: u32, own_window: u32) -> Credits {
        Credits {
            window,
            sent: 0,
            returned_to_us: 0,
            starved_since: None,
            own_window,
            given_back: 0,
            told: 0,
            sent_when_told: 0,
        }
    }

    /// Number of this side's messages that the peer can hold.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Number of messages that may be sent.
    #[inline]
    pub fn left(&self) -> u32 {
        self.window - self.sent.wrapping_sub(self.returned_to_us)
    }

    /// Takes one for a message. If there is none left, the time begins after which to ask.
    #[inline]
    pub fn take(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.left() == 0 {
            self.starved_since.get_or_insert_with(now);
            return false;
        }
        self.sent = self.sent.wrapping_add(1);
        true
    }

    /// The peer reported the total of its returned buffers. An older count changes nothing.
    ///
    /// # Errors
    /// Nothing is returned for a count of messages that were never sent.
    #[inline]
    pub fn returned(&mut self, count: u32) -> Option<()> {
        let news = count.wrapping_sub(self.returned_to_us);
        if news > u32::MAX / 2 {
            return Some(());
        }
        if news > self.sent.wrapping_sub(self.returned_to_us) {
            return None;
        }
        self.returned_to_us = count;
        if news > 0 {
            self.starved_since = None;
        }
        Some(())
    }

    /// Whether it is time to ask the peer for its count; then not again for a while.
    pub fn asks(&mut self, now: Instant) -> bool {
        match self.starved_since {
            Some(since) if now.saturating_duration_since(since) >= ASK_AFTER => {
                self.starved_since = Some(now);
                true
            }
            _ => false,
        }
    }

    /// When [`Credits::asks`] must be checked.
    pub fn deadline(&self) -> Option<Instant> {
        self.starved_since.map(|since| since + ASK_AFTER)
    }

    /// So many buffers that held the peer's messages are free again.
    #[inline]
    pub fn give_back(&mut self, count: u32) {
        self.given_back = self.given_back.wrapping_add(count);
    }

    /// Total of returned buffers: to be reported to the peer now.
    #[inline]
    pub fn tell(&mut self) -> u32 {
        self.told = self.given_back;
        self.sent_when_told = self.sent;
        self.given_back
    }

    /// Last total that was reported to the peer.
    pub fn told(&self) -> u32 {
        self.told
    }

    /// Whether the peer should be notified by a separate message: it may have half of its credits left, or fewer. A
    /// peer that has been answered each time waits for answers, and has few messages in flight: a quarter is enough for
    /// it. `alone`: none of its messages is held.
    #[inline]
    pub fn owes(&self, alone: bool) -> bool {
        let news = self.given_back.wrapping_sub(self.told);
        let window = self.own_window.max(1);
        if news * 2 < window {
            return false;
        }
        let answers = self.sent.wrapping_sub(self.sent_when_told);
        let waits = alone && answers + 1 >= news;
        !waits || news * 4 >= window * 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_come_back_by_counts_and_survive_their_loss() {
        let start = Instant::now();
        let (mut near, mut far) = (Credits::new(4, 2), Credits::new(2, 4));
        for _ in 0..4 {
            assert!(near.take(|| start));
        }
        assert!(!near.take(|| start));
        far.give_back(1);
        assert!(!far.owes(false));
        far.give_back(1);
        assert!(far.owes(false));
        let lost = far.tell();
        assert!(!far.owes(false));
        assert!(!near.asks(start));
        assert!(near.asks(start + ASK_AFTER) && !near.asks(start + ASK_AFTER));
        assert_eq!(far.tell(), lost);
        near.returned(lost).unwrap();
        assert_eq!(near.left(), 2);
        near.returned(lost).unwrap();
        near.returned(lost - 1).unwrap();
        assert_eq!((near.left(), near.deadline()), (2, None));
        assert!(near.returned(5).is_none());
    }

    #[test]
    fn a_peer_that_waits_for_answers_gets_credits_later() {
        let told_at = |answers: bool, alone: bool| {
            let mut credits = Credits::new(100, 16);
            let told = (1..).find(|_| {
                assert!(!answers || credits.take(Instant::now));
                credits.give_back(1);
                credits.owes(alone)
            });
            credits.tell();
            assert!(!credits.owes(alone));
            told.unwrap()
        };
        assert_eq!((told_at(true, true), told_at(true, false)), (12, 8));
        assert_eq!((told_at(false, true), told_at(false, false)), (8, 8));
    }

    #[test]
    fn counts_wrap() {
        let mut credits = Credits::new(2, 2);
        for sent in 1..=10u32 {
            credits.sent = (u32::MAX - 5).wrapping_add(sent);
            credits.returned_to_us = credits.sent;
            assert!(credits.take(Instant::now) && credits.take(Instant::now));
            assert_eq!(credits.left(), 0);
            credits.returned(credits.sent).unwrap();
            assert_eq!(credits.left(), 2);
        }
    }
}
