//! The unit's group: the primary sends records and their data once, to all members that joined.
//!
//! ```text
//!   primary                                            member
//!     Offer: address, key ── control connection ─────►   joins the group
//!     admits it            ◄── Report ── link ────────┘
//!     Frames: the first one ── link ─────────────────►   takes frames from there on
//!     shipments ── frames ── group ──────────────────►   Receiver ── messages ──► Member
//!     frames again ── link ──────────────────────────►
//! ```
//! The key is random and new for each epoch and process. What a member lacks it asks for; one that does not answer gets its
//! records by its link, and is offered the group again.

mod receiving;
mod sending;

use std::borrow::Cow;
use std::fmt;

use connections::messenger::Messenger;
use fabric::{GroupAddress, GroupId, Provider};
use protocol::cluster::FIRST_CLIENT;
use protocol::wire::{Body, Bytes, Envelope, Message};
use protocol::{ClusterMap, Defects, Member, NodeId};
use serde::{Deserialize, Serialize};

use super::peers::Peers;
use super::{UNIT, clock};
use receiving::Receiving;
use sending::Sending;

/// When the primary uses a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupMode {
    /// Wherever there is one.
    On,
    /// Groups are never used.
    Off,
    /// Where it measured faster than links: nowhere so far.
    #[default]
    Auto,
}

impl GroupMode {
    /// The mode of this name: `on`, `off` or `auto`.
    pub fn named(name: &str) -> Option<GroupMode> {
        match name {
            "on" => Some(GroupMode::On),
            "off" => Some(GroupMode::Off),
            "auto" => Some(GroupMode::Auto),
            _ => None,
        }
    }
}

/// What a node does with groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Whether this node, as primary, ships by a group.
    pub used: bool,
    /// Where, or why not.
    pub reason: Cow<'static, str>,
    /// Members that it ships to by the group.
    pub members: usize,
    /// Frames that it has sent to groups since it started.
    pub sent: u64,
    /// Frames that it has sent again, to one member each.
    pub sent_again: u64,
    /// Messages that came by groups, also those of which frames came again, by links.
    pub received: u64,
    /// Frames that came damaged, and were repaired by their parity.
    pub repaired: u64,
    /// Frames that were refused: cut, or damaged beyond repair.
    pub refused_damaged: u64,
    /// Frames that were refused: without the right key, or out of all bounds.
    pub refused_forged: u64,
    /// Frames that were refused: of another unit, sender or epoch, or none at all.
    pub refused_foreign: u64,
    /// Frames that were refused: they had come before.
    pub refused_repeated: u64,
}

/// What surrounds the groups of a node: parts of its service.
pub struct Around<'a> {
    pub messenger: &'a mut Messenger,
    pub peers: &'a Peers,
    pub map: &'a ClusterMap,
    pub member: &'a Member,
}

impl Around<'_> {
    /// A message of this node about its unit, in its epoch.
    fn message(&self, from: NodeId, body: Body) -> Vec<u8> {
        let envelope = Envelope {
            cluster: self.map.number(),
            epoch: self.member.map().epoch,
            unit: UNIT,
            from,
            ..Envelope::default()
        };
        Message { envelope, body }.encode(false)
    }

    fn send(&mut self, from: NodeId, to: NodeId, body: Body) {
        let bytes = self.message(from, body);
        if let Some(link) = self.peers.link(to) {
            // A link that has ended is reported by the messenger.
            let _ = self.messenger.send(link, &bytes.into());
        }
    }
}

/// The groups of a node: the one that it sends to as primary, and the one that it receives from.
pub struct Groups {
    id: NodeId,
    mode: GroupMode,
    /// Whether frames are to have parity.
    wants_parity: bool,
    sending: Option<Sending>,
    receiving: Option<Receiving>,
    /// Of groups that have ended.
    counts: GroupStatus,
    /// When a group that could not be joined to send to is tried again.
    retry: Retry,
    /// Why an offer could not be taken, the last time.
    refused: String,
}

/// When an attempt that failed is repeated. To join a group may block the service thread for half a second, so the pause doubles.
#[derive(Clone, Copy, Debug)]
struct Retry {
    at: u64,
    /// The next pause.
    pause_ns: u64,
}

impl Retry {
    const PAUSE_NS_MIN: u64 = 1_000_000_000;
    const PAUSE_NS_MAX: u64 = 60_000_000_000;

    fn is_due(&self, now: u64) -> bool {
        now >= self.at
    }

    fn put_off(&mut self, now: u64) {
        self.at = now + self.pause_ns;
        self.pause_ns = (2 * self.pause_ns).min(Retry::PAUSE_NS_MAX);
    }
}

/// It is due at once.
impl Default for Retry {
    fn default() -> Retry {
        Retry {
            at: 0,
            pause_ns: Retry::PAUSE_NS_MIN,
        }
    }
}

/// The group that this node sends to, by its own numbers.
const OUT: GroupId = GroupId(0);
/// The group that it receives from.
const IN: GroupId = GroupId(1);

impl Groups {
    pub fn new(id: NodeId, mode: GroupMode, wants_parity: bool) -> Groups {
        Groups {
            id,
            mode,
            wants_parity,
            sending: None,
            receiving: None,
            counts: GroupStatus {
                reason: match mode {
                    GroupMode::On => "only the primary ships".into(),
                    GroupMode::Off => "`group = off`".into(),
                    // A group sends less and takes longer, wherever both were measured (docs/performance/groups.md).
                    GroupMode::Auto => {
                        "`auto` uses links, which measured faster; see `group = on`".into()
                    }
                },
                ..GroupStatus::default()
            },
            retry: Retry::default(),
            refused: String::new(),
        }
    }

    pub fn status(&self) -> GroupStatus {
        let mut status = self.counts.clone();
        if let Some(sending) = &self.sending {
            sending.count(&mut status);
        }
        if let Some(receiving) = &self.receiving {
            receiving.count(&mut status);
        }
        status
    }

    /// Takes a message about frames.
    pub fn take_message(&mut self, now: u64, around: &mut Around<'_>, message: Message) {
        let Message { envelope, body } = message;
        let unit = around.member.map();
        if envelope.epoch != unit.epoch || envelope.from >= FIRST_CLIENT {
            return;
        }
        let is_primary = envelope.from == unit.primary;
        match (body, &mut self.sending, &mut self.receiving) {
            (Body::Report { report }, Some(sending), _) => {
                sending.take_report(now, around, envelope.from, &report);
            }
            (Body::Frames { first, end, again }, _, Some(receiving)) if is_primary => {
                receiving.take_frames(first..end, &again);
            }
            _ => {}
        }
    }

    /// Takes an offer, which came over the control connection with this node. Returns why it cannot, if the reason is new.
    pub fn take_offer(
        &mut self,
        around: &mut Around<'_>,
        from: NodeId,
        bytes: &[u8],
    ) -> Option<String> {
        if self.mode != GroupMode::On {
            return None;
        }
        let message = Message::decode(&Bytes::copy_from_slice(bytes), &Defects::default()).ok()?;
        let unit = around.member.map();
        let is_current = message.envelope.epoch == unit.epoch && unit.primary == from;
        let Body::Offer { offer } = message.body else {
            return None;
        };
        if !is_current || offer.sender != from || from == self.id {
            return None;
        }
        self.leave(around.messenger);
        let refused = match Receiving::join(around, unit.epoch, &offer) {
            Ok(receiving) => {
                self.receiving = receiving;
                String::new()
            }
            Err(error) => error.to_string(),
        };
        let is_new = !refused.is_empty() && refused != self.refused;
        self.refused = refused;
        is_new.then(|| self.refused.clone())
    }

    fn leave(&mut self, messenger: &mut Messenger) {
        if let Some(receiving) = self.receiving.take() {
            receiving.count(&mut self.counts);
            messenger.leave_group(receiving.provider(), IN);
        }
    }

    fn end(&mut self, messenger: &mut Messenger) {
        if let Some(sending) = self.sending.take() {
            sending.count(&mut self.counts);
            messenger.leave_group(sending.provider(), OUT);
        }
        (self.counts.used, self.counts.members) = (false, 0);
    }

    /// Takes a datagram of the group that this node receives from.
    pub fn take_datagram(&mut self, group: GroupId, bytes: &[u8]) {
        if let Some(receiving) = self.receiving.as_mut().filter(|_| group == IN) {
            receiving.take_datagram(bytes);
        }
    }

    /// The next message that came by the group, in order.
    pub fn poll_message(&mut self) -> Option<Vec<u8>> {
        self.receiving.as_mut()?.poll_message()
    }

    /// Gives a shipment to the group; false if the group does not reach all these members.
    pub fn ship(&mut self, to: &[NodeId], bytes: &[u8], end: u64) -> bool {
        let sending = self.sending.as_mut();
        sending.is_some_and(|sending| sending.ship(to, bytes, end))
    }

    /// Does what is due: offers, frames, reports. Returns the members to which records go by the group, and how many
    /// shipments it takes, if the member is to know.
    pub fn work(&mut self, now: u64, around: &mut Around<'_>) -> Option<(Vec<NodeId>, u32)> {
        if self.mode != GroupMode::On {
            return None;
        }
        let epoch = around.member.map().epoch;
        if self
            .receiving
            .as_ref()
            .is_some_and(|it| it.epoch() != epoch)
        {
            self.leave(around.messenger);
        }
        if let Some(receiving) = &mut self.receiving {
            receiving.report(now, self.id, around);
        }
        if around.member.view().is_none() {
            self.end(around.messenger);
            self.counts.reason = "only the primary ships".into();
            self.retry = Retry::default();
            return None;
        }
        if self.sending.as_ref().is_some_and(|it| it.epoch() != epoch) {
            self.end(around.messenger);
        }
        if self.sending.is_none() && self.retry.is_due(now) {
            match Sending::start(self.id, self.wants_parity, around) {
                Ok(sending) => {
                    self.sending = Some(sending);
                    self.retry = Retry::default();
                }
                Err(NoGroup {
                    reason,
                    has_blocked,
                }) => {
                    self.counts.reason = reason.into();
                    if !has_blocked {
                        self.retry = Retry::default();
                    }
                    // Not from `now` on: the attempt may have taken half of the pause.
                    self.retry.put_off(clock::now());
                }
            }
        }
        self.sending.as_mut()?.work(now, around)
    }

    /// When there is something to do though nothing comes.
    pub fn timeout(&self) -> Option<u64> {
        let sending = self.sending.as_ref().and_then(Sending::timeout);
        let receiving = self.receiving.as_ref().and_then(Receiving::timeout);
        [sending, receiving].into_iter().flatten().min()
    }
}

/// Why there is no group.
struct NoGroup {
    /// For the status.
    reason: String,
    /// Whether the thread may have waited for the network, in vain.
    has_blocked: bool,
}

impl<T: fmt::Display> From<T> for NoGroup {
    fn from(reason: T) -> NoGroup {
        NoGroup {
            reason: reason.to_string(),
            has_blocked: false,
        }
    }
}

/// Where a group meets by the address of an interface.
fn address_at(
    around: &Around<'_>,
    node: NodeId,
    listens: bool,
) -> Option<(Provider, GroupAddress)> {
    let link = around.peers.link(node)?;
    let provider = around.messenger.choice(link)?.provider;
    let std::net::IpAddr::V4(interface) = around.messenger.local_address(link)? else {
        return None;
    };
    // Clusters on one network mostly meet at other places. Where they do not, the keys tell them apart.
    let [a, b, c, ..] = around.map.number().to_le_bytes();
    let address = GroupAddress {
        address: std::net::Ipv4Addr::new(239, 77, a, b),
        port: 20_000 + u16::from(c),
        interface,
        listens,
        is_unchecked: false,
    };
    Some((provider, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_attempts_double_up_to_a_minute() {
        let mut retry = Retry::default();
        assert!(retry.is_due(0));
        let mut now = 7;
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            retry.put_off(now);
            let end = now + seconds * 1_000_000_000;
            assert!(!retry.is_due(end - 1) && retry.is_due(end), "{seconds}");
            now = end;
        }
    }
}
