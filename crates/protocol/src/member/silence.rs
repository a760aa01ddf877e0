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
    /// The primary has sent its heartbeats on time since then: before, the silence may be its own.
    steady_since: u64,
    /// Most of the members in sync answer; the primary is one of them.
    hears_most: bool,
}

impl Silence {
    /// When a member is gone if it stays silent.
    fn end(&self, peer: &Peer) -> u64 {
        // If most members are silent, this one may be cut off: then they elect another primary first.
        let heard_at = match self.hears_most {
            true => peer.heard_at,
            false => peer.heard_at.max(peer.lease_until),
        };
        heard_at.max(self.steady_since) + self.lease_ns
    }

    /// Whether a member has made no progress for a while, although records wait for it.
    pub fn is_stuck(&self, peer: &Peer) -> bool {
        let progressed_at = peer.progressed_at.max(self.steady_since);
        peer.tail < self.position && self.now > progressed_at + 4 * self.lease_ns
    }

    /// Whether a member is lost, silent, or stuck.
    pub fn is_gone(&self, peer: &Peer) -> bool {
        peer.is_lost || self.now > self.end(peer) || self.is_stuck(peer)
    }

    /// When the next of these members is gone if all stay silent.
    pub fn next<'a>(&self, peers: impl Iterator<Item = &'a Peer>) -> Option<u64> {
        let ends = peers.filter(|peer| peer.is_counted);
        let ends = ends.map(|peer| self.end(peer) + 1);
        ends.filter(|end| *end > self.now).min()
    }
}

impl Peer {
    /// Whether it has answered one of the last two heartbeats.
    fn answers(&self, now: u64, options: &UnitOptions) -> bool {
        self.lease_until + 2 * options.heartbeat_ns > now + options.lease_ns
    }
}

impl Primary {
    /// Whether it sends its heartbeats so late that the silence of the others says nothing.
    pub fn is_late(&self, now: u64, heartbeat_ns: u64) -> bool {
        now > self.heartbeat_at + heartbeat_ns
    }

    /// Whether most of the members in sync answer; this one is one of them.
    fn hears_most(&self, now: u64, map: &UnitMap, options: &UnitOptions) -> bool {
        let answers = |node: &&u32| {
            let peer = self.peers.get(node);
            peer.is_none_or(|peer| peer.answers(now, options))
        };
        let answering = map.in_sync.iter().filter(answers).count();
        2 * answering > map.in_sync.len()
    }
}

impl Member {
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
            steady_since: primary.steady_since,
            hears_most: trusts || primary.hears_most(now, &self.map, &self.options),
        })
    }
}
