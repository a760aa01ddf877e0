//! The group that the primary sends to.

use std::collections::BTreeMap;

use connections::messenger::LinkId;
use fabric::{GroupAddress, Multicast, Provider};
use protocol::group::{Key, Offer, Report, Sender, Stream};
use protocol::wire::{self, Body};
use protocol::{Defects, NodeId};

use super::{Around, GroupStatus, NoGroup, OUT, Retry, address_at};
use crate::node::UNIT;

pub struct Sending {
    id: NodeId,
    provider: Provider,
    address: GroupAddress,
    key: Key,
    sender: Sender,
    /// Reason in the status.
    reason: String,
    /// When the group is offered again to members that have not joined or were given up, and over which link it was offered.
    offered: BTreeMap<NodeId, (Retry, LinkId)>,
    /// What the member was told last.
    told: (Vec<NodeId>, u32),
}

/// Members in sync that are to hold data, but this one. Another one may fetch for long, and gets its records by its link.
fn replicas(id: NodeId, around: &Around<'_>) -> Vec<NodeId> {
    let unit = around.member.map();
    let all = unit.members.iter().copied();
    all.filter(|node| *node != id && unit.is_in_sync(*node) && !unit.is_metadata_only(*node))
        .collect()
}

impl Sending {
    /// Joins a group, if all replicas that are there are reached by one transport that has groups. Frames have parity if it is
    /// wanted, and if the transport can deliver damaged ones.
    pub fn start(
        id: NodeId,
        wants_parity: bool,
        around: &mut Around<'_>,
    ) -> Result<Sending, NoGroup> {
        let mut found: Option<(Provider, GroupAddress)> = None;
        for node in replicas(id, around)
            .into_iter()
            .filter(|node| around.peers.link(*node).is_some())
        {
            let name = around.map.node(node).map_or("?", |node| node.name.as_str());
            let Some((provider, address)) = address_at(around, node, false) else {
                return Err(format!("{name} is on this host, or reached by IPv6").into());
            };
            match found {
                Some((other, _)) if other != provider => {
                    return Err(format!("replicas are reached by {other} and {provider}").into());
                }
                _ => found = Some((provider, address)),
            }
        }
        let (provider, mut address) = found.ok_or("no replica is there")?;
        let Multicast::Lossy {
            bytes,
            may_be_unchecked,
        } = around.messenger.multicast(provider)
        else {
            return Err(format!("{provider} has no groups").into());
        };
        let with_parity = wants_parity && may_be_unchecked;
        let message = wire::HEADER + wire::BODY_MAX;
        if !Sender::can_carry(message, bytes as usize, with_parity) {
            return Err(format!(
                "{provider} has frames of {bytes} bytes, too short for the longest message"
            )
            .into());
        }
        address.is_unchecked = with_parity;
        let joined = around.messenger.join_group(provider, OUT, address);
        joined.map_err(|error| NoGroup {
            reason: error.to_string(),
            has_blocked: true,
        })?;
        let key = Key(fabric::random_key());
        let stream = Stream {
            sender: id,
            epoch: around.member.map().epoch,
            unit: UNIT,
        };
        let defects = Defects::default();
        let sender = Sender::new(stream, key.clone(), bytes as usize, with_parity, defects);
        Ok(Sending {
            id,
            provider,
            address,
            key,
            sender,
            reason: reason(provider, address, wants_parity),
            offered: BTreeMap::new(),
            told: (Vec::new(), 0),
        })
    }

    pub fn provider(&self) -> Provider {
        self.provider
    }

    pub fn epoch(&self) -> u32 {
        self.sender.stream().epoch
    }

    /// Makes frames of a shipment, if it goes to all members of the group and to no others.
    pub fn ship(&mut self, to: &[NodeId], bytes: &[u8], end: u64) -> bool {
        // The member has counted it, wherever it goes.
        self.told.1 = self.told.1.saturating_sub(1);
        let goes = !to.is_empty() && self.sender.members().eq(to.iter().copied());
        if goes {
            self.sender.push(bytes, end);
        }
        goes
    }

    /// A member has joined, or says what it has.
    pub fn take_report(
        &mut self,
        now: u64,
        around: &mut Around<'_>,
        from: NodeId,
        report: &Report,
    ) {
        if !self.sender.has(from) {
            let Some((retry, link)) = self.offered.get_mut(&from) else {
                return;
            };
            if Some(*link) == around.peers.link(from) && report.below == 0 {
                // It can join: if it is given up later, pauses are short again.
                *retry = Retry::default();
                retry.put_off(now);
                let first = self.sender.admit(now, from, report.room);
                around.send(self.id, from, frames(first, first));
            }
            return;
        }
        let (parts, skips) = self.sender.handle_report(now, from, report);
        if let Some(range) = skips {
            around.send(self.id, from, frames(range.start, range.end));
        }
        for again in parts {
            let body = Body::Frames {
                first: 0,
                end: 0,
                again,
            };
            around.send(self.id, from, body);
        }
    }

    /// Offers the group to replicas that are not in it, sends frames, and asks members that are silent.
    pub fn work(&mut self, now: u64, around: &mut Around<'_>) -> Option<(Vec<NodeId>, u32)> {
        let replicas = replicas(self.id, around);
        for node in self.sender.members().collect::<Vec<_>>() {
            let link = self.offered.get(&node).map(|(_, link)| *link);
            match around.member.tail_of(node) {
                Some(tail) if link == around.peers.link(node) && replicas.contains(&node) => {
                    self.sender.handle_tail(now, node, tail);
                }
                // Its link has ended, or it is no replica any more.
                _ => self.sender.dismiss(node),
            }
        }
        for node in replicas {
            self.offer(now, around, node);
        }
        let (asked, _) = self.sender.handle_timeout(now);
        for (node, range) in asked {
            around.send(self.id, node, frames(range.start, range.end));
        }
        while let Some(frame) = self.sender.poll_frame(now) {
            around.messenger.send_to_group(self.provider, OUT, frame);
        }
        let members: Vec<_> = self.sender.members().collect();
        let room = self.sender.room();
        let has_little = self.told.1 < 2 && room > self.told.1;
        (has_little || members != self.told.0).then(|| {
            self.told = (members, room);
            self.told.clone()
        })
    }

    fn offer(&mut self, now: u64, around: &mut Around<'_>, node: NodeId) {
        let Some(link) = around.peers.link(node).filter(|_| !self.sender.has(node)) else {
            return;
        };
        let offered = self.offered.get(&node).filter(|(_, over)| *over == link);
        let mut retry = offered.map(|(retry, _)| *retry).unwrap_or_default();
        let reaches = || address_at(around, node, false).is_some_and(|(by, _)| by == self.provider);
        if !retry.is_due(now) || !reaches() {
            return;
        }
        retry.put_off(now);
        self.offered.insert(node, (retry, link));
        let offer = Offer {
            address: self.address.address.octets(),
            port: self.address.port,
            sender: self.id,
            key: self.key.clone(),
        };
        let offer = Box::new(offer);
        let bytes = around.message(self.id, Body::Offer { offer });
        // A link that has ended is reported by the messenger.
        let _ = around.messenger.tell(link, &bytes);
    }

    pub fn timeout(&self) -> Option<u64> {
        self.sender.poll_timeout()
    }

    pub fn count(&self, status: &mut GroupStatus) {
        let (sent, again) = self.sender.counts();
        status.used = true;
        status.members = self.sender.members().count();
        status.reason = self.reason.clone().into();
        status.sent += sent;
        status.sent_again += again;
    }
}

/// How the group is reached, and why its frames have no parity if it is wanted.
fn reason(provider: Provider, group: GroupAddress, wants_parity: bool) -> String {
    let GroupAddress { address, port, .. } = group;
    let (with, without) = match (wants_parity, group.is_unchecked) {
        (_, true) => (" with parity", String::new()),
        (true, false) => ("", format!("; no parity: {provider} has checksums")),
        (false, false) => ("", String::new()),
    };
    format!("multicast over {provider}{with} at {address}:{port}{without}")
}

/// What a member is told of the stream.
fn frames(first: u64, end: u64) -> Body {
    Body::Frames {
        first,
        end,
        again: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_reports_why_frames_have_no_parity() {
        let group = |is_unchecked| GroupAddress {
            address: [239, 0, 0, 1].into(),
            port: 7,
            interface: [10, 0, 0, 1].into(),
            listens: false,
            is_unchecked,
        };
        let cases = [
            (
                Provider::Tcp,
                true,
                true,
                "multicast over tcp with parity at 239.0.0.1:7",
            ),
            (
                Provider::Tcp,
                false,
                false,
                "multicast over tcp at 239.0.0.1:7",
            ),
            (
                Provider::Verbs,
                false,
                true,
                "multicast over verbs at 239.0.0.1:7; no parity: verbs has checksums",
            ),
        ];
        for (provider, is_unchecked, wants_parity, expected) in cases {
            assert_eq!(
                reason(provider, group(is_unchecked), wants_parity),
                expected
            );
        }
    }
}
