//! Events in the network, by time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::NetworkOptions;
use super::links::Links;
use fabric::{
    Access, Arrival, EndpointId, Failure, GroupId, Key, Origin, Piece, RegionDescriptor,
    Registration, Report, Supply, Table,
};

/// One side of an endpoint, in the whole network.
pub type SideId = u64;

/// A request to the target; data is inline.
pub enum Asked {
    Read {
        length: u64,
    },
    Write {
        data: Vec<u8>,
        immediate: Option<u32>,
    },
    CompareAndSwap {
        expected: u64,
        new: u64,
    },
    FetchAndAdd {
        addend: u64,
    },
    Send {
        data: Vec<u8>,
        immediate: Option<u32>,
        returned: u32,
    },
    Credit {
        returned: u32,
        ask: bool,
    },
    Closed,
}

/// Something on its way from one side to its peer.
pub struct Flight {
    pub sequence: u64,
    pub signaled: bool,
    /// The peer's memory, for one-sided requests.
    pub memory: Option<(Key, u64)>,
    pub asked: Asked,
}

/// Answer that is on its way.
struct Answer {
    sequence: u64,
    signaled: bool,
    outcome: Result<(u64, Vec<u8>), Failure>,
}

enum Happening {
    Flight(SideId, Flight),
    Answer(SideId, Answer),
    ToGroup {
        queue: usize,
        group: GroupId,
        data: Vec<u8>,
        immediate: u32,
    },
    /// A cut that held up what goes to this side may be over.
    Healed(SideId),
}

impl Happening {
    /// Length of the data, in bytes.
    fn length(&self) -> usize {
        match self {
            Happening::Flight(_, flight) => match &flight.asked {
                Asked::Write { data, .. } | Asked::Send { data, .. } => data.len(),
                _ => 0,
            },
            Happening::Answer(_, answer) => {
                answer.outcome.as_ref().map_or(0, |(_, data)| data.len())
            }
            Happening::ToGroup { data, .. } => data.len(),
            Happening::Healed(_) => 0,
        }
    }
}

/// Memory that a read's answer is to be copied to.
pub type Target = Vec<(Registration, u64, u32)>;

pub struct Side {
    queue: usize,
    endpoint: EndpointId,
    peer: Option<SideId>,
    pub imports: Vec<RegionDescriptor>,
    /// Targets of reads without an answer.
    pub targets: VecDeque<(u64, Target)>,
    /// When the last thing that was sent arrives: nothing overtakes it.
    last_arrival: u64,
    /// Since when something is held up by a cut.
    held_since: Option<u64>,
    held: VecDeque<Happening>,
    /// Messages that no buffer was free for.
    waiting: VecDeque<(Vec<u8>, Option<u32>)>,
    ended: bool,
}

struct SimulatedNode {
    table: Arc<Table>,
    alive: bool,
}

#[derive(Default)]
struct QueueState {
    node: usize,
    reports: Vec<Report>,
    buffers: VecDeque<(Supply, Registration, u64)>,
    group_buffers: VecDeque<(Supply, Registration, u64)>,
    sides: Vec<SideId>,
    groups: BTreeMap<u32, GroupId>,
    /// Addresses of groups that the queue only sends to.
    sent_only: BTreeSet<u32>,
}

pub struct World {
    links: Links,
    dead_after_ns: u64,
    now: u64,
    order: u64,
    happenings: BTreeMap<(u64, u64), Happening>,
    nodes: Vec<SimulatedNode>,
    queues: Vec<QueueState>,
    sides: BTreeMap<SideId, Side>,
}

impl World {
    pub fn new(seed: u64, options: NetworkOptions) -> World {
        World {
            links: Links::new(seed, options.links),
            dead_after_ns: options.dead_after_ns,
            now: 0,
            order: 0,
            happenings: BTreeMap::new(),
            nodes: Vec::new(),
            queues: Vec::new(),
            sides: BTreeMap::new(),
        }
    }

    pub fn now_ns(&self) -> u64 {
        self.now
    }

    pub fn add_node(&mut self, table: Arc<Table>) -> usize {
        self.nodes.push(SimulatedNode { table, alive: true });
        self.nodes.len() - 1
    }

    pub fn add_queue(&mut self, node: usize) -> usize {
        self.queues.push(QueueState {
            node,
            ..QueueState::default()
        });
        self.queues.len() - 1
    }

    pub fn add_side(&mut self, queue: usize, endpoint: EndpointId) -> SideId {
        let id = self.order;
        self.order += 1;
        self.queues[queue].sides.push(id);
        let side = Side {
            queue,
            endpoint,
            peer: None,
            imports: Vec::new(),
            targets: VecDeque::new(),
            last_arrival: 0,
            held_since: None,
            held: VecDeque::new(),
            waiting: VecDeque::new(),
            ended: false,
        };
        self.sides.insert(id, side);
        id
    }

    /// Whether there is such a side, which could become a peer.
    pub fn join(&mut self, id: SideId, peer: SideId) -> bool {
        let known = self.sides.contains_key(&peer) && peer != id;
        if let Some(side) = self.sides.get_mut(&id).filter(|_| known) {
            side.peer = Some(peer);
        }
        known
    }

    pub fn side(&mut self, id: SideId) -> Option<&mut Side> {
        self.sides.get_mut(&id)
    }

    pub fn remove_side(&mut self, id: SideId) {
        let flight = Flight {
            sequence: 0,
            signaled: false,
            memory: None,
            asked: Asked::Closed,
        };
        self.send(id, flight);
        self.forget(id);
    }

    pub fn remove_queue(&mut self, queue: usize) {
        for id in self.queues[queue].sides.clone() {
            self.remove_side(id);
        }
        self.queues[queue].groups.clear();
    }

    fn forget(&mut self, id: SideId) {
        if let Some(side) = self.sides.remove(&id) {
            self.queues[side.queue].sides.retain(|&other| other != id);
        }
    }

    pub fn supply(&mut self, queue: usize, buffer: Supply, piece: Piece<'_>) {
        let entry = (buffer, piece.registration.clone(), piece.offset);
        match buffer {
            Supply::Group(_) => self.queues[queue].group_buffers.push_back(entry),
            Supply::Endpoint(_) => self.queues[queue].buffers.push_back(entry),
        }
        for id in self.queues[queue].sides.clone() {
            self.deliver_waiting(id);
        }
    }

    pub fn join_group(&mut self, queue: usize, group: GroupId, address: u32, listens: bool) {
        self.leave_group(queue, group);
        let queue = &mut self.queues[queue];
        queue.groups.insert(address, group);
        match listens {
            true => queue.sent_only.remove(&address),
            false => queue.sent_only.insert(address),
        };
    }

    pub fn leave_group(&mut self, queue: usize, group: GroupId) {
        let groups = &mut self.queues[queue].groups;
        groups.retain(|_, joined| *joined != group);
    }

    /// Sends to each member but this queue, with a separate fate for each.
    pub fn send_to_group(&mut self, from: usize, group: GroupId, data: &[u8], immediate: u32) {
        let joined = self.queues[from]
            .groups
            .iter()
            .find(|(_, id)| **id == group);
        let Some((&address, _)) = joined else { return };
        for queue in 0..self.queues.len() {
            let Some(&group) = self.queues[queue].groups.get(&address) else {
                continue;
            };
            if queue == from || self.queues[queue].sent_only.contains(&address) {
                continue;
            }
            let (near, far) = (self.queues[from].node, self.queues[queue].node);
            for delivery in self.links.send(self.now, near as u32, far as u32, data) {
                // An adapter's checksum rejects data damaged in transit.
                if delivery.bytes == data {
                    let happening = Happening::ToGroup {
                        queue,
                        group,
                        data: delivery.bytes,
                        immediate,
                    };
                    self.at(delivery.at, happening);
                }
            }
        }
    }

    /// Sends something to the peer of a side, behind all that it has sent before.
    pub fn send(&mut self, id: SideId, flight: Flight) {
        let Some(peer) = self.sides.get(&id).and_then(|side| side.peer) else {
            return;
        };
        self.along(id, Happening::Flight(peer, flight));
    }

    fn along(&mut self, from: SideId, happening: Happening) {
        let peer = self.sides.get(&from).and_then(|side| side.peer);
        let Some((near, far)) = peer.and_then(|peer| self.nodes_of(from, peer)) else {
            return;
        };
        let arrival = self.links.convey(self.now, near, far, happening.length());
        let Some(side) = self.sides.get_mut(&from) else {
            return;
        };
        side.last_arrival = side.last_arrival.max(arrival);
        let at = side.last_arrival;
        self.at(at, happening);
    }

    fn at(&mut self, time: u64, happening: Happening) {
        self.order += 1;
        self.happenings.insert((time, self.order), happening);
    }

    /// Makes links worse, or well again.
    pub fn change(&mut self, change: impl FnOnce(&mut Links, u64)) {
        change(&mut self.links, self.now);
        let ids: Vec<SideId> = self.sides.keys().copied().collect();
        for id in ids {
            self.release(id);
        }
    }

    /// Executes requests that a cut delayed, in their order, unless there still is a cut.
    fn release(&mut self, id: SideId) {
        let cut = self.cut_until(id);
        let Some(side) = self.sides.get_mut(&id).filter(|side| !side.held.is_empty()) else {
            return;
        };
        match cut {
            Some(until) => self.look_again(id, until),
            None => {
                side.held_since = None;
                for happening in std::mem::take(&mut side.held) {
                    self.happen(happening);
                }
            }
        }
    }

    /// Checks whether the cut has ended when it should; a cut without an end is ended by a change.
    fn look_again(&mut self, id: SideId, until: u64) {
        if until < u64::MAX {
            self.at(until, Happening::Healed(id));
        }
    }

    /// Until when what goes to this side from its peer is held up, if it is.
    fn cut_until(&self, id: SideId) -> Option<u64> {
        let peer = self.sides.get(&id)?.peer?;
        let (near, far) = self.nodes_of(peer, id)?;
        self.links.cut_until(self.now, near, far)
    }

    pub fn kill(&mut self, node: usize) {
        self.nodes[node].alive = false;
        let peers: Vec<SideId> = self
            .sides
            .values()
            .filter(|side| self.queues[side.queue].node == node)
            .filter_map(|side| side.peer)
            .collect();
        for peer in peers {
            self.lose(peer, Failure::PeerLost);
        }
    }

    /// Advances time to the next event, or by so much if that is earlier.
    pub fn advance(&mut self, most_ns: u64) {
        let until = self.now.saturating_add(most_ns);
        let next = self
            .happenings
            .first_key_value()
            .map(|(&(time, _), _)| time);
        let held = self.sides.values().filter_map(|side| side.held_since);
        let dead = held.map(|since| since + self.dead_after_ns).min();
        let first = next.unwrap_or(until).min(dead.unwrap_or(until)).min(until);
        self.now = self.now.max(first);
        self.settle();
    }

    /// Executes all events up to now.
    pub fn settle(&mut self) {
        while let Some(entry) = self.happenings.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let happening = entry.remove();
            self.happen(happening);
        }
        let dead_after = self.dead_after_ns;
        let late = |side: &Side| {
            side.held_since
                .is_some_and(|since| self.now >= since + dead_after)
        };
        let lost: Vec<SideId> = self
            .sides
            .iter()
            .filter(|(_, side)| late(side))
            .map(|(&id, _)| id)
            .collect();
        for id in lost {
            let peer = self.sides.get(&id).and_then(|side| side.peer);
            self.lose(id, Failure::PeerLost);
            if let Some(peer) = peer {
                self.lose(peer, Failure::PeerLost);
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        let to = match &happening {
            Happening::Flight(to, _) | Happening::Answer(to, _) => *to,
            Happening::ToGroup { .. } => return self.arrive_at_group(happening),
            Happening::Healed(id) => return self.release(*id),
        };
        let Some(peer) = self.sides.get(&to).and_then(|side| side.peer) else {
            return;
        };
        let cut = self.cut_until(to);
        let now = self.now;
        if let Some(side) = self.sides.get_mut(&to)
            && (cut.is_some() || !side.held.is_empty())
        {
            side.held_since.get_or_insert(now);
            side.held.push_back(happening);
            return match cut {
                Some(until) => self.look_again(to, until),
                // It waits behind delayed messages.
                None => self.release(to),
            };
        }
        match happening {
            Happening::Flight(to, flight) => self.arrive(to, peer, flight),
            Happening::Answer(to, answer) => self.answered(to, answer),
            Happening::ToGroup { .. } | Happening::Healed(_) => {}
        }
    }

    fn nodes_of(&self, one: SideId, other: SideId) -> Option<(u32, u32)> {
        let node = |id| {
            let side = self.sides.get(&id);
            side.map(|side: &Side| self.queues[side.queue].node as u32)
        };
        Some((node(one)?, node(other)?))
    }

    fn arrive(&mut self, to: SideId, from: SideId, flight: Flight) {
        let side = &self.sides[&to];
        let (queue, endpoint) = (side.queue, side.endpoint);
        if side.ended || !self.nodes[self.queues[queue].node].alive {
            return;
        }
        let report = match flight.asked {
            Asked::Closed => return self.lose(to, Failure::PeerLost),
            Asked::Credit { returned, ask } => Report::Credit {
                endpoint,
                returned,
                ask,
            },
            asked => return self.carry_out(to, from, Flight { asked, ..flight }),
        };
        self.queues[queue].reports.push(report);
    }

    fn carry_out(&mut self, to: SideId, from: SideId, flight: Flight) {
        let queue = self.sides[&to].queue;
        let table = self.nodes[self.queues[queue].node].table.clone();
        let (key, offset) = flight.memory.unwrap_or((Key(0), 0));
        let outcome = match flight.asked {
            Asked::Read { length } => {
                let mut data = vec![0; length as usize];
                let read = table.with(key, Access::READ, offset, length, |memory| {
                    memory.region().read(offset, &mut data);
                });
                read.map(|()| (0, data))
            }
            Asked::Write { data, immediate } => {
                let length = data.len() as u64;
                let written = table.with(key, Access::WRITE, offset, length, |memory| {
                    memory.region().write(offset, &data);
                });
                if let (Ok(()), Some(immediate)) = (written, immediate) {
                    self.receive(to, Vec::new(), Some(immediate));
                }
                written.map(|()| (0, Vec::new()))
            }
            Asked::CompareAndSwap { expected, new } => table
                .with(key, Access::ATOMIC, offset, 8, |memory| {
                    memory.region().compare_and_swap(offset, expected, new)
                })
                .map(|old| (old, Vec::new())),
            Asked::FetchAndAdd { addend } => table
                .with(key, Access::ATOMIC, offset, 8, |memory| {
                    memory.region().fetch_and_add(offset, addend)
                })
                .map(|old| (old, Vec::new())),
            Asked::Send {
                data,
                immediate,
                returned,
            } => {
                let endpoint = self.sides[&to].endpoint;
                self.queues[queue].reports.push(Report::Credit {
                    endpoint,
                    returned,
                    ask: false,
                });
                self.receive(to, data, immediate);
                Ok((0, Vec::new()))
            }
            Asked::Credit { .. } | Asked::Closed => return,
        };
        let refused = outcome.is_err();
        let answer = Answer {
            sequence: flight.sequence,
            signaled: flight.signaled,
            outcome,
        };
        self.along(to, Happening::Answer(from, answer));
        if refused {
            self.lose(to, Failure::Violation);
        }
    }

    fn receive(&mut self, to: SideId, data: Vec<u8>, immediate: Option<u32>) {
        if let Some(side) = self.sides.get_mut(&to) {
            side.waiting.push_back((data, immediate));
        }
        self.deliver_waiting(to);
    }

    fn deliver_waiting(&mut self, to: SideId) {
        let Some(side) = self.sides.get_mut(&to) else {
            return;
        };
        let queue = &mut self.queues[side.queue];
        while let Some((data, _)) = side.waiting.front() {
            let arrival = match data.is_empty() {
                true => None,
                false => match queue.buffers.pop_front() {
                    Some((buffer, memory, offset)) => {
                        memory.region().write(offset, data);
                        Some(arrival(buffer, data))
                    }
                    None => return,
                },
            };
            let immediate = side
                .waiting
                .pop_front()
                .and_then(|(_, immediate)| immediate);
            queue.reports.push(Report::Received {
                origin: Origin::Endpoint(side.endpoint),
                buffer: arrival,
                immediate,
            });
        }
    }

    fn arrive_at_group(&mut self, happening: Happening) {
        let Happening::ToGroup {
            queue,
            group,
            data,
            immediate,
        } = happening
        else {
            return;
        };
        let queue = &mut self.queues[queue];
        let Some((buffer, memory, offset)) = queue.group_buffers.pop_front() else {
            return;
        };
        memory.region().write(offset, &data);
        queue.reports.push(Report::Received {
            origin: Origin::Group(group),
            buffer: Some(arrival(buffer, &data)),
            immediate: Some(immediate),
        });
    }

    fn answered(&mut self, to: SideId, answer: Answer) {
        let Some(side) = self.sides.get_mut(&to).filter(|side| !side.ended) else {
            return;
        };
        let endpoint = side.endpoint;
        let sequence = answer.sequence;
        let target = match side.targets.front() {
            Some((of, _)) if *of == sequence => side.targets.pop_front(),
            _ => None,
        };
        let report = match answer.outcome {
            Ok((value, data)) => {
                let mut at = 0;
                for (memory, offset, length) in target.into_iter().flat_map(|(_, target)| target) {
                    memory
                        .region()
                        .write(offset, &data[at..at + length as usize]);
                    at += length as usize;
                }
                answer.signaled.then_some(Report::Done {
                    endpoint,
                    sequence,
                    value,
                })
            }
            Err(failure) => {
                side.ended = true;
                Some(Report::Failed {
                    endpoint,
                    sequence,
                    failure,
                })
            }
        };
        let queue = side.queue;
        self.queues[queue].reports.extend(report);
    }

    fn lose(&mut self, id: SideId, failure: Failure) {
        let Some(side) = self.sides.get_mut(&id).filter(|side| !side.ended) else {
            return;
        };
        side.ended = true;
        side.held_since = None;
        side.held.clear();
        let (queue, endpoint) = (side.queue, side.endpoint);
        self.queues[queue]
            .reports
            .push(Report::Lost { endpoint, failure });
    }

    pub fn take_reports(&mut self, queue: usize, into: &mut Vec<Report>) {
        into.append(&mut self.queues[queue].reports);
    }

    pub fn has_reports(&self, queue: usize) -> bool {
        !self.queues[queue].reports.is_empty()
    }
}

fn arrival(buffer: Supply, data: &[u8]) -> Arrival {
    Arrival {
        buffer,
        start: 0,
        length: data.len() as u32,
    }
}
