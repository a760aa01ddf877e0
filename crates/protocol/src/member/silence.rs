//! Members that the primary leaves out: they are lost, silent for too long, or make no progress.

use super::serve::{Peer, Primary};
use super::{Member, Role};
use crate::UnitOptions;
use crate::defects::Defect;
use crate::map::UnitMap;

/// How long members may be silent, as a primary sees it at one time.
pub(super) struct Silence {
    now: u64,
    lease_ns: u64,
    position: u64,
    /// Most of the members in sync answer; the primary is one of them.
    is_answered_by_most: bool,
}

impl Silence {
    /// When a member is gone if it stays silent.
    fn end(&self, peer: &Peer) -> u64 {
        // If most members are silent, this one may be cut off: then they elect another primary first.
        let heard_at = match self.is_answered_by_most {
            true => peer.heard_at,
            false => peer.heard_at.max(peer.lease_until),
        };
        heard_at + self.lease_ns
    }

    /// Whether a member is lost, silent, or stuck.
    pub fn is_gone(&self, peer: &Peer) -> bool {
        let is_stuck = peer.is_stuck(self.now, self.lease_ns, self.position);
        peer.is_lost || self.now > self.end(peer) || is_stuck
    }

    /// When the next of these members is gone if all stay silent.
    pub fn next<'a>(&self, peers: impl Iterator<Item = &'a Peer>) -> Option<u64> {
        let ends = peers.filter(|peer| peer.is_counted);
        let ends = ends.map(|peer| self.end(peer) + 1);
        ends.filter(|end| *end > self.now).min()
    }
}

impl Peer {
    /// Whether it has made no progress for a while, although records wait for it.
    pub fn is_stuck(&self, now: u64, lease_ns: u64, position: u64) -> bool {
        self.tail < position && now > self.progressed_at + 4 * lease_ns
    }

    /// Whether it has answered a heartbeat that was sent less than two intervals ago.
    fn answers(&self, now: u64, options: &UnitOptions) -> bool {
        self.lease_until + 2 * options.heartbeat_ns > now + options.lease_ns
    }
}

impl Primary {
    /// Whether its heartbeat is so late that the next one is due too: it was paused or busy, and
    /// the members may have had no heartbeat to answer.
    pub fn is_late(&self, now: u64, heartbeat_ns: u64) -> bool {
        now > self.heartbeat_at + heartbeat_ns
    }

    /// Ends the pause if this primary was paused; returns its duration. A pause that is not longer than `least` goes on.
    fn end_pause(&mut self, now: u64, (heartbeat_ns, least): (u64, u64)) -> Option<u64> {
        let since = self.heartbeat_at.max(self.discounted_until);
        if !self.is_late(now, heartbeat_ns) || now <= since.saturating_add(least) {
            return None;
        }
        self.discounted_until = now;
        Some(now.saturating_sub(since))
    }

    /// Members were not silent or stuck for this time.
    fn discount_for_members(&mut self, now: u64, pause: u64) {
        for peer in self.peers.values_mut() {
            peer.heard_at = now.min(peer.heard_at.saturating_add(pause));
            peer.progressed_at = now.min(peer.progressed_at.saturating_add(pause));
        }
    }

    /// Sessions were not silent for this time, and had no time to answer recalls, to repeat waits for locks, to take locks in
    /// their turns, or to resume.
    fn discount_for_sessions(&mut self, now: u64, pause: u64) {
        for session in self.sessions.by_number.values_mut() {
            session.heard_at = now.min(session.heard_at.saturating_add(pause));
        }
        self.owners.discount(pause);
        self.waits.discount(pause);
        if let Some(replaying) = &mut self.replaying {
            replaying.discount(pause);
        }
    }

    /// Whether most of the members in sync answer; this one is one of them.
    fn is_answered_by_most(&self, now: u64, map: &UnitMap, options: &UnitOptions) -> bool {
        let answers = |node: &&u32| {
            let peer = self.peers.get(node);
            peer.is_none_or(|peer| peer.answers(now, options))
        };
        let answering = map.in_sync.iter().filter(answers).count();
        2 * answering > map.in_sync.len()
    }
}

impl Member {
    /// Gives others so much more time as this primary was paused, if that was longer than `least`.
    pub(super) fn discount_pause(&mut self, now: u64, least: u64) {
        let heartbeat_ns = self.options.heartbeat_ns;
        let counts = [Defect::CountPauses, Defect::ExpirePaused];
        let [counts_members, counts_sessions] = counts.map(|it| self.defects.has(it));
        let forgives = self.defects.has(Defect::ForgiveSilence);
        let Some(primary) = self.primary() else {
            return;
        };
        let Some(pause) = primary.end_pause(now, (heartbeat_ns, least)) else {
            return;
        };
        if !counts_members {
            primary.discount_for_members(now, if forgives { now } else { pause });
        }
        if !counts_sessions {
            primary.discount_for_sessions(now, pause);
        }
    }

    /// How long members may be silent now, for a primary.
    pub(super) fn silence(&self, now: u64) -> Option<Silence> {
        let Role::Serving(primary) = &self.role else {
            return None;
        };
        let trusts = self.defects.has(Defect::RemoveUnheard);
        Some(Silence {
            now,
            lease_ns: self.options.lease_ns,
            position: primary.position,
            is_answered_by_most: trusts
                || primary.is_answered_by_most(now, &self.map, &self.options),
        })
    }
}
