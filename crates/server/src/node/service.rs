//! The service thread: everything that the node receives goes through here, one input after the other. A client in the same
//! process takes its place for moments ([`inside`](super::inside)).

use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use connections::messenger::{Armed, Event, Handle, LinkId, Messenger, SendError};
use parking_lot::MutexGuard;
use protocol::cluster::{EpochRule, FIRST_CLIENT, Judgement};
use protocol::member::Completion;
use protocol::wire::{Body, Bytes, Envelope, Message, is_of_cluster, is_of_group, shipment_end};
use protocol::{ClusterMap, Defects, Member, NodeId, Transmit};

use super::exports::{ExportError, Exports, Port};
use super::group::{Around, Groups};
use super::growth::Growing;
use super::inside::{Outbox, Shared};
use super::membership_threads::Task;
use super::peers::Peers;
use super::spares::AbsentMembers;
use super::status::{LinkStatus, Load, NodeStatus, Role, Space};
use super::{Input, Log, NodeConfig, NodeError, UNIT, clock, registration};
use crate::core::Core;

/// The thread wakes up at least this often.
const IDLE: Duration = Duration::from_secs(10);
/// A time-out that is due at once is handled after this, so that messages come in between.
const LEAST_PAUSE_NS: u64 = 1000;
/// Membership is asked at most this often.
const REFRESH_NS: u64 = 20_000_000;

/// The state of the service thread.
pub struct Service {
    id: NodeId,
    name: String,
    pool: String,
    map: ClusterMap,
    core: Core,
    messenger: Messenger,
    peers: Peers,
    absence: AbsentMembers,
    exports: Exports,
    groups: Groups,
    epochs: EpochRule,
    tasks: Sender<Task>,
    growing: Growing,
    log: Log,
    timer: Option<u64>,
    refreshed_at: u64,
    started_at: u64,
    load: Load,
    inputs: Receiver<Input>,
    /// Kept from one poll to the next.
    events: Vec<Event>,
    /// How the service ends, once it does.
    ended: Option<Result<(), NodeError>>,
    handle: Handle,
    /// Of the client inside, if there is one.
    pub outbox: Option<Outbox>,
    /// When the service thread wakes up by itself, while it blocks.
    blocked_until: u64,
}

impl Service {
    pub fn new(
        config: &NodeConfig,
        (id, map): (NodeId, ClusterMap),
        core: Core,
        messenger: Messenger,
        (inputs, tasks, growing): (Receiver<Input>, Sender<Task>, Growing),
        log: Log,
    ) -> Service {
        Service {
            id,
            name: config.name.clone(),
            pool: config.pool.display().to_string(),
            // The watcher delivers it again: then it is new to the member, too.
            map: ClusterMap { version: 0, ..map },
            exports: Exports::new(core.pool().region().clone()),
            groups: Groups::new(id, config.group, config.group_parity),
            core,
            handle: messenger.handle(),
            messenger,
            peers: Peers::default(),
            absence: AbsentMembers::default(),
            epochs: EpochRule::default(),
            tasks,
            growing,
            log,
            timer: None,
            refreshed_at: 0,
            started_at: clock::now(),
            load: Load::default(),
            inputs,
            events: Vec::new(),
            ended: None,
            outbox: None,
            blocked_until: 0,
        }
    }

    /// Serves until it is told to stop. The service is gone then.
    pub fn run(shared: &Shared) -> Result<(), NodeError> {
        let mut guard = shared.lock();
        let Some(service) = guard.as_mut() else {
            return Ok(());
        };
        let started = service.step(clock::now(), |_, _| ());
        service.note_end(started);
        loop {
            let Some(service) = guard.as_mut() else {
                return Ok(());
            };
            if let Some(ended) = service.ended.take() {
                *guard = None;
                return ended;
            }
            let now = clock::now();
            let timeout = service.timeout(now);
            if service.outbox.is_none() {
                service.messenger.wait(&mut service.events, timeout);
                service.take_all();
                continue;
            }
            let armed = service.arm(now, timeout);
            let ready = MutexGuard::unlocked(&mut guard, || armed.block());
            if let Some(service) = guard.as_mut() {
                service.messenger.disarm(Some(&ready), &mut service.events);
                service.poll();
            }
        }
    }

    /// Prepares to block for so long from `now` on. A later reading of the clock would show a time behind the next time-out, and
    /// each call of the client inside would wake up the thread for that.
    fn arm(&mut self, now: u64, timeout: Duration) -> Armed {
        let armed = self.messenger.arm(timeout);
        self.blocked_until = now + armed.timeout().as_nanos() as u64;
        armed
    }

    /// Takes the place of the service thread, which blocks.
    pub fn begin_to_poll(&mut self) {
        self.messenger.disarm(None, &mut self.events);
        self.poll();
    }

    /// Lets other threads run, and looks whether there may be something to poll.
    pub fn look(&mut self) {
        self.messenger.look();
    }

    /// Takes what has come, and does what is due.
    pub fn poll(&mut self) {
        self.messenger.poll(&mut self.events);
        self.take_all();
    }

    /// Gives its place back to the service thread.
    pub fn end_polling(&mut self) {
        let now = clock::now();
        let timeout = self.timeout(now);
        // Peers do not ring for what has come meanwhile: then this is zero.
        let timeout = self.messenger.arm(timeout).timeout();
        self.call_by(now + timeout.as_nanos() as u64);
    }

    /// Whether there is a message for the client inside.
    pub fn has_reply(&self) -> bool {
        let outbox = self.outbox.as_ref();
        outbox.is_some_and(|outbox| !outbox.is_empty())
    }

    /// Calls the service thread if it would wake up too late.
    fn call_by(&mut self, due: u64) {
        if self.ended.is_some() || due < self.blocked_until {
            self.blocked_until = due;
            self.handle.wake();
        }
    }

    /// Takes a message of the client inside.
    pub fn take_inside(&mut self, message: Message) {
        self.load.messages += 1;
        let envelope = message.envelope;
        if envelope.session != 0 {
            self.core.pool().local_reads().set_session(envelope.session);
        }
        let link = self.peers.link(envelope.from);
        let taken = self.take_of_unit(clock::now(), link, &envelope, |member, now| {
            member.handle_decoded(now, message);
        });
        self.note_end(taken);
    }

    /// Ends the taking of messages.
    pub fn end_taking(&mut self) {
        let now = clock::now();
        let worked = self.work_for_group(now);
        self.note_end(worked);
        self.messenger.submit();
        self.call_by(now + self.timeout(now).as_nanos() as u64);
    }

    fn note_end(&mut self, done: Result<(), NodeError>) {
        if let Err(error) = done {
            self.ended = Some(Err(error));
        }
    }

    fn take_all(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        let taken = self
            .take_inputs()
            .and_then(|()| self.take_events(&mut events));
        events.clear();
        self.events = events;
        self.note_end(taken);
    }

    fn take_inputs(&mut self) -> Result<(), NodeError> {
        while let Ok(input) = self.inputs.try_recv() {
            // Read after the input came: the thread may be paused at any moment.
            let now = clock::now();
            match input {
                Input::Stop => self.ended = Some(Ok(())),
                Input::Map(map) => self.take_map(now, map)?,
                Input::Proposed(map) => self.proposed(now, map)?,
                Input::Status(answer) => drop(answer.send(self.status(now))),
                Input::Attach(outbox) => self.outbox = Some(outbox),
            }
        }
        Ok(())
    }

    fn take_events(&mut self, events: &mut Vec<Event>) -> Result<(), NodeError> {
        for event in events.drain(..) {
            self.take_event(event)?;
        }
        if let Some(reason) = self.messenger.take_refusal() {
            (self.log)(format_args!(
                "{}: does not copy answered writes out of the memory of a mount, which sends them: {reason}",
                self.name
            ));
        }
        let now = clock::now();
        if self.timer.is_some_and(|at| now >= at) {
            self.step(now, Member::handle_timeout)?;
        }
        self.work_for_group(now)?;
        // To join a group may take half a second.
        let now = clock::now();
        self.replace_absent(now);
        self.peers
            .dial(now, &self.map, self.id, &mut self.messenger);
        self.messenger.submit();
        Ok(())
    }

    fn timeout(&self, now: u64) -> Duration {
        let dial = self.peers.next_dial(&self.map, self.id);
        let absent = self.absence.next(now, &self.map);
        let next = [self.timer, dial, absent, self.groups.timeout()]
            .into_iter()
            .flatten()
            .min();
        next.map_or(IDLE, |at| {
            Duration::from_nanos(at.saturating_sub(now)).min(IDLE)
        })
    }

    /// As the primary, proposes spares for members that have been away for too long.
    fn replace_absent(&mut self, now: u64) {
        if !self.core.member().is_serving(now) {
            return;
        }
        let peers = &self.peers;
        let is_linked = |node| peers.link(node).is_some();
        if let Some((old, new)) = self.absence.replacement(now, &self.map, is_linked) {
            let name = |id| self.map.node(id).map_or("?", |node| node.name.as_str());
            (self.log)(format_args!(
                "{}: {} has been away for too long; {} takes its place",
                self.name,
                name(old),
                name(new)
            ));
            let _ = self.tasks.send(Task::Replace(old, new));
        }
    }

    fn step(&mut self, now: u64, input: impl FnOnce(&mut Member, u64)) -> Result<(), NodeError> {
        let mut port = Port {
            exports: &mut self.exports,
            load: &mut self.load,
            messenger: &mut self.messenger,
            peers: &mut self.peers,
            outbox: self.outbox.as_mut(),
            reads: false,
        };
        let stepped = self.core.step(now, &mut port, input);
        let output = stepped.map_err(|source| self.growing.end_of_node(&self.pool, source))?;
        let Some(output) = output else {
            return Ok(());
        };
        for map in output.proposals {
            // The proposer thread ends only with this one.
            let _ = self.tasks.send(Task::Propose(map));
        }
        for Transmit { to, bytes } in output.transmits {
            let is_shipped =
                shipment_end(&bytes).is_some_and(|end| self.groups.ship(&to, &bytes, end));
            if !is_shipped {
                to.into_iter().for_each(|to| self.send(to, &bytes));
            }
        }
        self.timer = output.timeout.map(|at| at.max(now + LEAST_PAUSE_NS));
        Ok(())
    }

    /// Takes what came by the group, and does what is due for it.
    fn work_for_group(&mut self, now: u64) -> Result<(), NodeError> {
        while let Some(bytes) = self.groups.poll_message() {
            let bytes = Bytes::from(bytes);
            // Read after the message came: the thread may be paused at any moment.
            let now = clock::now();
            self.load.messages += 1;
            let own = self.core.member().map().epoch;
            if Envelope::peek(&bytes).is_ok_and(|envelope| envelope.epoch == own) {
                self.step(now, |member, now| member.handle_message(now, &bytes))?;
            }
        }
        // What the member ships when the group has room again goes at once.
        while let Some((members, room)) = self.with_groups(|it, around| it.work(now, around)) {
            self.step(clock::now(), |member, now| {
                member.set_group(now, &members, room);
            })?;
        }
        Ok(())
    }

    fn with_groups<T>(&mut self, work: impl FnOnce(&mut Groups, &mut Around<'_>) -> T) -> T {
        let mut around = Around {
            messenger: &mut self.messenger,
            peers: &self.peers,
            map: &self.map,
            member: self.core.member(),
        };
        work(&mut self.groups, &mut around)
    }

    fn take_told(&mut self, link: LinkId, bytes: &[u8]) {
        let Some(from) = self.peers.at(link) else {
            // It is told again.
            return;
        };
        let failed = self.with_groups(|it, around| it.take_offer(around, from, bytes));
        if let Some(error) = failed {
            (self.log)(format_args!(
                "{}: takes no part in the group: {error}",
                self.name
            ));
        }
    }

    /// Sends a message to a node or client, if there is a link. The protocol repeats what gets lost.
    fn send(&mut self, to: NodeId, bytes: &Bytes) {
        let Some(link) = self.peers.link(to) else {
            return;
        };
        match self.messenger.send(link, bytes) {
            // A client that takes no answers has to connect again; a member may only be stopped for a while.
            Err(error @ SendError::Backlog(_)) if to >= FIRST_CLIENT => {
                self.drop_link(link, format_args!("{error}"));
            }
            _ => {}
        }
    }

    fn send_own(&mut self, link: LinkId, body: Body) {
        let envelope = Envelope {
            cluster: self.map.number(),
            epoch: self.core.member().map().epoch,
            from: self.id,
            ..Envelope::default()
        };
        let bytes = Message { envelope, body }.encode(false);
        // A link that has ended is reported by the messenger.
        let _ = self.messenger.send(link, &bytes.into());
    }

    fn send_map(&mut self, link: LinkId) {
        let map = Box::new(self.map.clone());
        self.send_own(link, Body::Map { map });
    }

    fn drop_link(&mut self, link: LinkId, why: std::fmt::Arguments<'_>) {
        let peer = self.messenger.peer(link).map(ToString::to_string);
        let peer = peer.unwrap_or_default();
        (self.log)(format_args!(
            "{}: closed the link to {peer}: {why}",
            self.name
        ));
        self.messenger.close(link);
        self.peers.remove(link);
        self.exports.lost(link, &self.messenger);
    }

    fn take_event(&mut self, event: Event) -> Result<(), NodeError> {
        let now = clock::now();
        match event {
            Event::Message { link, bytes } => {
                self.load.messages += 1;
                return self.take_message(now, link, &bytes);
            }
            Event::Dialed { dial, outcome } => {
                let node = self.peers.dialed(now, dial);
                match (node, outcome) {
                    (Some(node), Ok(link)) => {
                        self.peers.add(link, node);
                        let map_version = self.map.version;
                        self.send_own(link, Body::Hello { map_version });
                    }
                    (None, Ok(link)) => self.messenger.close(link),
                    // It is dialed again.
                    (_, Err(_)) => {}
                }
            }
            Event::Accepted(Err(error)) => (self.log)(format_args!("{}: {error}", self.name)),
            Event::Told { link, bytes } => self.take_told(link, &bytes),
            Event::Group { group, bytes } => self.groups.take_datagram(group, &bytes),
            // A node reaches into no memory.
            Event::Accepted(Ok(_)) | Event::Exported { .. } | Event::Transferred { .. } => {}
            Event::Lost { link, reason } => {
                self.exports.lost(link, &self.messenger);
                if let Some(node) = self.peers.remove(link).filter(|node| *node < FIRST_CLIENT) {
                    let name = self.map.node(node).map_or("?", |node| node.name.as_str());
                    (self.log)(format_args!("{}: lost {name}: {reason}", self.name));
                }
            }
        }
        Ok(())
    }

    fn take_message(&mut self, now: u64, link: LinkId, bytes: &Bytes) -> Result<(), NodeError> {
        let envelope = match Envelope::peek(bytes) {
            Ok(envelope) if envelope.cluster == self.map.number() => envelope,
            Ok(_) => {
                self.drop_link(link, format_args!("its message is of another cluster"));
                return Ok(());
            }
            Err(error) => {
                self.drop_link(link, format_args!("{error}"));
                return Ok(());
            }
        };
        if is_of_cluster(bytes) {
            self.take_cluster_message(now, link, bytes);
            return Ok(());
        }
        if self.peers.at(link) != Some(envelope.from) {
            self.drop_link(link, format_args!("it sent a message as {}", envelope.from));
            return Ok(());
        }
        if is_of_group(bytes) {
            match Message::decode(bytes, &Defects::default()) {
                Ok(message) => {
                    self.with_groups(|it, around| it.take_message(now, around, message));
                }
                Err(error) => self.drop_link(link, format_args!("{error}")),
            }
            return Ok(());
        }
        self.take_of_unit(now, Some(link), &envelope, |member, now| {
            member.handle_message(now, bytes);
        })
    }

    /// Takes a message of a member or client of the unit, and the link to it if there is one.
    fn take_of_unit(
        &mut self,
        now: u64,
        link: Option<LinkId>,
        envelope: &Envelope,
        handle: impl FnOnce(&mut Member, u64),
    ) -> Result<(), NodeError> {
        self.absence.hear(now, envelope.from);
        let own = self.core.member().map().epoch;
        match self.epochs.judge(now, envelope.from, envelope.epoch, own) {
            Judgement::Current => {
                return self.step(now, handle);
            }
            Judgement::SendMap => {
                if let Some(link) = link {
                    self.send_map(link);
                }
            }
            Judgement::AskMembership => self.refresh(now),
            Judgement::Drop => {}
        }
        Ok(())
    }

    fn take_cluster_message(&mut self, now: u64, link: LinkId, bytes: &Bytes) {
        let message = match Message::decode(bytes, &Defects::default()) {
            Ok(message) => message,
            Err(error) => return self.drop_link(link, format_args!("{error}")),
        };
        let from = message.envelope.from;
        let version = match message.body {
            Body::Hello { map_version } => {
                if !self.is_credible(link, from) {
                    self.refresh(now);
                    return match self.map.node(from) {
                        None if from < FIRST_CLIENT => {
                            let why = "the map did not have it yet; it dials again";
                            self.drop_link(link, format_args!("{why}"))
                        }
                        _ => self.drop_link(link, format_args!("it is not node {from}")),
                    };
                }
                self.peers.add(link, from);
                self.send_map(link);
                map_version
            }
            Body::Map { map } => map.version,
            Body::Export { key, writes } => {
                let session = message.envelope.session;
                return self.export(link, from, (session, key, writes));
            }
            _ => 0,
        };
        if version > self.map.version {
            self.refresh(now);
        }
    }

    /// Exports the image to a client that has the session's key.
    fn export(&mut self, link: LinkId, from: NodeId, what: (u64, u64, bool)) {
        let exported = match self.peers.at(link) == Some(from) {
            true => {
                let image = self.core.pool().image();
                let parts = (&mut self.messenger, &mut self.peers);
                self.exports.export(parts, link, image, what)
            }
            false => Err(ExportError::Key),
        };
        match exported {
            Ok(()) => {}
            // The client's data goes in messages.
            Err(ExportError::Transport(error)) => {
                (self.log)(format_args!("{}: {error}", self.name))
            }
            Err(error) => self.drop_link(link, format_args!("{error}")),
        }
    }

    /// Whether the peer of a link may be this node, or client.
    fn is_credible(&self, link: LinkId, id: NodeId) -> bool {
        if id >= FIRST_CLIENT {
            return self.peers.at(link).is_none_or(|known| known == id);
        }
        let (peer, node) = (self.messenger.peer(link), self.map.node(id));
        matches!((peer, node), (Some(peer), Some(node)) if peer.node == node.name)
    }

    fn refresh(&mut self, now: u64) {
        if now >= self.refreshed_at + REFRESH_NS {
            self.refreshed_at = now;
            let _ = self.tasks.send(Task::Refresh);
        }
    }

    fn take_map(&mut self, now: u64, map: ClusterMap) -> Result<(), NodeError> {
        let start = self.core.pool().image().start;
        if map.version <= self.map.version {
            // The node may have reserved room for an earlier request meanwhile.
            self.growing.take_map(&self.map, start);
            return Ok(());
        }
        if self.growing.reserves_first(&map, &self.core.pool().image()) {
            return Ok(());
        }
        let is_member = |map: &ClusterMap| {
            let unit = map.unit(UNIT);
            unit.is_some_and(|unit| unit.map.members.contains(&self.id))
        };
        if is_member(&self.map) && !is_member(&map) {
            let name = self.name.clone();
            return Err(NodeError::LeftUnit { name });
        }
        self.map = map;
        if registration::next_roles(&self.map, self.id).is_some() {
            let _ = self.tasks.send(Task::TakeRole);
        }
        let unit = self.map.unit(UNIT).map(|unit| unit.map.clone());
        let unit = unit.unwrap_or_default();
        if unit.epoch != self.core.member().map().epoch {
            let name = self.map.node(unit.primary).map(|node| node.name.as_str());
            let name = name.unwrap_or("none yet");
            (self.log)(format_args!(
                "{}: epoch {}, primary {name}",
                self.name, unit.epoch
            ));
        }
        if !unit.members.contains(&self.id) {
            self.exports.close_all(&mut self.messenger, &mut self.peers);
        }
        let image = self.core.pool().image();
        self.growing.take_map(&self.map, image.start);
        self.step(now, |member, now| member.handle_map(now, unit))?;
        if self.core.pool().image() != image {
            self.exports.end_all(&mut self.messenger, &mut self.peers);
        }
        // Clients have no membership: they learn it from here.
        for link in self.peers.clients() {
            self.send_map(link);
        }
        Ok(())
    }

    fn proposed(&mut self, now: u64, map: ClusterMap) -> Result<(), NodeError> {
        let unit = map.unit(UNIT).map(|unit| unit.map.clone());
        self.take_map(now, map)?;
        let map = unit.unwrap_or_default();
        self.step(now, |member, now| {
            member.handle_completion(now, Completion::Proposed { map });
        })
    }

    fn status(&self, now: u64) -> NodeStatus {
        let member = self.core.member();
        let (map, tail) = (member.map(), member.tail());
        let region = self.core.pool().region();
        let [placed, fetched] = self.messenger.placed_frames();
        NodeStatus {
            name: self.name.clone(),
            pid: std::process::id(),
            role: Role::of(map, self.id),
            is_serving: member.is_serving(now),
            is_in_sync: map.is_in_sync(self.id),
            tail_epoch: tail.epoch,
            tail: tail.number,
            map_version: self.map.version,
            sessions: member.sessions().len(),
            links: self.links(),
            load: Load {
                seconds: (now - self.started_at) / 1_000_000_000,
                reads: self.load.reads + self.core.pool().local_reads().answered(),
                ..self.load
            },
            pool: self.core.pool().length(),
            space: self.core.pool().statistics().map(|it| space(&it)),
            group: self.groups.status(),
            exports: self.exports.count(),
            placed,
            fetched: Some(fetched),
            pulled: Some(self.messenger.pulled_fragments()),
            pulled_early: Some(self.messenger.pulled_from_arenas()),
            announced: Some(self.messenger.announced_messages()),
            memory: region.kind().to_string(),
            survives: region.survives().to_string(),
        }
    }

    fn links(&self) -> Vec<LinkStatus> {
        let known = self.messenger.links().filter_map(|link| {
            let (peer, choice) = (self.messenger.peer(link)?, self.messenger.choice(link)?);
            let node = self.peers.at(link)?;
            let status = LinkStatus::new(node, peer.to_string(), choice);
            let requests = self.messenger.requests(link)?;
            let pulls = self.messenger.least_pulled(link)?;
            Some(status.with_ways(requests, pulls, self.messenger.lends(link)?))
        });
        known.collect()
    }
}

fn space(statistics: &store::Statistics) -> Space {
    let bytes = |blocks: u64| blocks * u64::from(statistics.block_size);
    Space {
        total: bytes(statistics.blocks),
        used: bytes(statistics.blocks - statistics.blocks_free),
        available: bytes(statistics.blocks_available),
    }
}
