//! Shipping: which records are sent to which members, one by one or by the unit's group, and with which data.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};

use super::Member;
use super::intent::Intent;
use super::serve::{Peer, Primary};
use crate::defects::Defect;
use crate::map::NodeId;
use crate::wire::{Body, Bytes, Data, Operation};

/// A member that was sent records by the group is asked for none for so many times the retry time: the group asks itself.
const GROUP_RETRIES: u64 = 10;
/// A gap that a member reports for so many times the retry time is filled by its link: the group has given it what it had.
const GAP_RETRIES: u64 = 2;

/// Records that are to be read together: from where, up to where, and how they go.
type Batch = (u64, u64, Way);

/// How records go to members.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// By links. The members fetch the data that they name.
    Records,
    /// By links, with the data that they name.
    WithData,
    /// By the unit's group, with the data.
    Group,
}

impl Peer {
    /// Whether what it lacks may be on its way by the group.
    pub fn is_served_by_group(&self, now: u64, retry: u64) -> bool {
        let sent = self.grouped_at.map(|at| at.max(self.progressed_at));
        sent.is_some_and(|at| now < at + GROUP_RETRIES * retry)
    }

    /// Whether records up to this position may be read for it, and it has not been sent more than the window already.
    fn may_get(&self, position: u64, window: u64) -> bool {
        let sent = self.sent.unwrap_or(position);
        sent < position && sent <= self.tail.max(1) + window && !self.is_reading
    }

    /// A member that joins the group may lack what it was sent before, by a link that has ended: it gets that again.
    fn join_group(&mut self, now: u64) {
        self.grouped_at = Some(now);
        if self.tail > 0 {
            self.sent = self.sent.map(|sent| sent.min(self.tail));
        }
    }

    /// Takes a member's word that it lacks the records from here on. They may be on their way by the group at first.
    pub fn note_gap(&mut self, now: u64, position: u64, retry: u64) {
        if position < self.tail {
            return;
        }
        let known = self.gap.filter(|(from, _)| *from == position);
        let (_, since) = *self.gap.insert(known.unwrap_or((position, now)));
        if !self.is_served_by_group(now, retry) || now >= since + GAP_RETRIES * retry {
            self.sent = Some(position);
            self.gap = None;
        }
    }
}

impl Primary {
    /// Notes that the record that ends here names data of a file.
    pub fn note_named(&mut self, operation: &Operation, end: u64) {
        if let Some(file) = operation.changes() {
            self.held_files.insert(file, end);
        }
        // What a client has written at all members itself, they have.
        if let Operation::Write { data, .. } = operation {
            self.named_here.insert(end, data.len() as u64);
        }
    }

    /// Members that get data with their records, and how many bytes of it each was sent with records that it does not report
    /// yet. One that takes data slowly holds back the sender.
    fn pushed(&self, metadata_only: &[NodeId]) -> BTreeMap<NodeId, u64> {
        let peers = self.peers.iter();
        let full = peers.filter(|(node, peer)| peer.is_counted && !metadata_only.contains(node));
        let pushed = full.map(|(node, peer)| {
            let sent = peer.sent.unwrap_or_default().max(peer.tail);
            let ends = self.named_here.range((Excluded(peer.tail), Included(sent)));
            (*node, ends.map(|(_, bytes)| bytes).sum())
        });
        pushed.collect()
    }
}

impl Member {
    /// These members, and no others, get records by the unit's group from now on, in so many shipments. One that is not
    /// counted is left out: it may fetch for long, and the others would wait for it.
    pub fn set_group(&mut self, now: u64, members: &[NodeId], room: u32) {
        let Some(primary) = self.primary() else {
            return;
        };
        primary.group_room = room;
        for (node, peer) in &mut primary.peers {
            match (members.contains(node) && peer.is_counted, peer.grouped_at) {
                (true, None) => peer.join_group(now),
                (true, Some(_)) => {}
                (false, _) => peer.grouped_at = None,
            }
        }
        self.ship(now);
    }

    /// The tail that a member has reported to this primary.
    pub fn tail_of(&self, node: NodeId) -> Option<u64> {
        let super::Role::Serving(primary) = &self.role else {
            return None;
        };
        primary.peers.get(&node).map(|peer| peer.tail)
    }

    /// Has records read for all members that lack some: for those of the group together, and of the others for those at one
    /// position.
    pub(super) fn ship(&mut self, now: u64) {
        let retry = self.options.retry_ns;
        let (window, push) = (self.options.window, self.options.push);
        let unbounded = self.defects.has(Defect::PushUnbounded);
        let metadata_only = self.map.metadata_only.clone();
        let Some(primary) = self.primary() else {
            return;
        };
        let position = primary.position;
        if primary.least_tail() < position {
            primary.next_tick = primary.next_tick.min(now + retry);
        }
        let may_get = |peer: &Peer| peer.may_get(position, window);
        if !primary.peers.values().any(may_get) {
            return;
        }
        let grouped = primary
            .peers
            .values()
            .filter(|peer| peer.grouped_at.is_some());
        let sent = grouped.clone().filter_map(|peer| peer.sent);
        let (least, most) = (sent.clone().min(), sent.max());
        let pushed = primary.pushed(&metadata_only);
        let by_link = |node| match push > 0 && pushed.contains_key(node) {
            true => Way::WithData,
            false => Way::Records,
        };
        // One that is behind the others of the group gets what they have, and then all go on together.
        let is_together = least == most;
        let all_may = primary.group_room > 0
            && grouped
                .clone()
                .filter(|peer| peer.sent.is_some())
                .all(may_get);
        let mut wanted: BTreeMap<Batch, Vec<NodeId>> = BTreeMap::new();
        for (node, peer) in &mut primary.peers {
            let batch = match (peer.sent, peer.grouped_at) {
                (None, _) => continue,
                (Some(sent), None) => (sent, u64::MAX, by_link(node)),
                (Some(sent), Some(_)) if is_together => (sent, u64::MAX, Way::Group),
                (Some(sent), Some(_)) if Some(sent) < most => {
                    (sent, most.unwrap_or(position), by_link(node))
                }
                _ => continue,
            };
            let has_room = match batch.2 {
                Way::Records => true,
                Way::WithData => pushed.get(node).is_none_or(|pushed| *pushed < push) || unbounded,
                Way::Group => all_may,
            };
            if may_get(peer) && has_room {
                peer.is_reading = true;
                if batch.2 == Way::Group {
                    peer.grouped_at = Some(now);
                }
                wanted.entry(batch).or_default().push(*node);
            }
        }
        for ((from, below, way), to) in wanted {
            let data_of = match way {
                Way::Records => Vec::new(),
                Way::WithData | Way::Group => self.ends_with_data(from),
            };
            self.out.intents.push_back(Intent::ReadRecords {
                from,
                below,
                to,
                data_of,
                is_for_group: way == Way::Group,
            });
        }
    }

    /// Ends of records behind this position with data that goes with them.
    fn ends_with_data(&mut self, from: u64) -> Vec<u64> {
        let primary = self.primary();
        primary.map_or(Vec::new(), |it| {
            it.named_here.range(from..).map(|(end, _)| *end).collect()
        })
    }

    pub(super) fn records_read(
        &mut self,
        now: u64,
        (from, to): (u64, Vec<NodeId>),
        records: Option<Bytes>,
        (data, is_for_group): (Vec<Data>, bool),
    ) {
        let mut goes_to = Vec::new();
        for node in to {
            let Some(peer) = self.peer(node) else {
                continue;
            };
            peer.is_reading = false;
            let joins = peer.joins_from.take_if(|position| *position == from);
            match &records {
                Some(_) if joins.is_some() => self.welcome(now, node, from),
                Some(records) if peer.sent == Some(from) => {
                    peer.sent = Some(from + records.len() as u64);
                    goes_to.push(node);
                }
                Some(_) => {}
                None => {
                    peer.sent = None;
                    peer.is_lost = true;
                    peer.refill = None;
                    let position = self.primary().map_or(0, |primary| primary.position);
                    if !self.map.is_in_sync(node) {
                        self.welcome(now, node, position);
                    }
                }
            }
        }
        let Some(records) = records.filter(|records| !records.is_empty()) else {
            return;
        };
        let body = match is_for_group {
            true => {
                if let Some(primary) = self.primary().filter(|_| !goes_to.is_empty()) {
                    primary.group_room = primary.group_room.saturating_sub(1);
                }
                Body::Shipment {
                    from,
                    records,
                    data,
                }
            }
            false => Body::Records {
                from,
                records,
                data,
            },
        };
        self.send_all(goes_to, body);
    }
}
