//! State that the leader holds: the protocol's state machine, the messenger, and the calls in progress.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use connections::choice::Choice;
use connections::messenger::{self, Event, Handle, LinkId, Messenger, ReadTarget};
use fabric::Provider;
use operations::{Acknowledge, Bytes, FileId, Held, Operation};
use parking_lot::Mutex;
use pmem::Arena;
use protocol::client::{AtOnce, Event as ClientEvent, Keep, Mode, Recalled};
use protocol::cluster::FIRST_CLIENT;
use protocol::map::NO_NODE;
use protocol::wire::{Body, Envelope, Message};
use protocol::{Client, ClusterMap, Defects, NodeId};

use super::call::{Call, Terms};
use super::inside::Entry;
use super::links::{Dialed, Links};
use super::member_memory::MemberMemories;
use super::{Error, Options};
use crate::leases::{Kept, Listener, Renewable};
use crate::{HoldsSource, TurnListener};

/// Members are asked for the map so often while the primary is not linked.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// A primary that has sent nothing for so long, though something is asked of it, may have been replaced.
const QUIET: Duration = Duration::from_millis(250);
/// Links are polled at least so often while no call waits for them.
const POLL_EVERY: Duration = Duration::from_millis(5);
/// The same while reads are executed at once: recalls wait for so long.
const POLL_BETWEEN_READS: Duration = Duration::from_millis(1);
/// Leases that are used are renewed so often.
const RENEW_EVERY: Duration = Duration::from_millis(200);
/// It is reported as unreachable after this long.
const LOST_AFTER: Duration = Duration::from_secs(2);

pub struct Connection {
    options: Options,
    start: Instant,
    node: NodeId,
    defects: Defects,
    messenger: Messenger,
    client: Client,
    map: ClusterMap,
    links: Links,
    memories: MemberMemories,
    calls: HashMap<u64, Arc<Call>>,
    /// When the primary has sent something, or nothing was asked of it.
    heard_at: Instant,
    asked_at: Instant,
    is_lost: bool,
    holds: Option<HoldsSource>,
    /// The session that has its holds.
    held_by: Option<u64>,
    /// Receiver of recalls: leases are requested while there is one.
    listener: Listener,
    /// A cache under leases, and when they are renewed next.
    cache: Option<Arc<dyn Renewable>>,
    renew_at: Instant,
    /// The way to a node in this process.
    entry: Option<Entry>,
    /// When the links were polled.
    polled_at: Instant,
    /// What takes turns of waits for locks.
    turns: Arc<Mutex<Option<TurnListener>>>,
    /// The session that may read in a node of this process without a message; 0 for none.
    reader: Arc<AtomicU64>,
    /// Longest read for which reading ahead pays.
    read_ahead_max: Arc<AtomicUsize>,
    reads_at_once: Arc<AtomicBool>,
    /// The read that is executed at once.
    at_once: AtOnce,
    /// Ends of reads with transfers in flight to their memory.
    landing: Vec<ClientEvent>,
    events: Vec<Event>,
}

impl Connection {
    /// A connection that knows no node yet.
    pub fn open(options: Options) -> Result<Connection, Error> {
        let mut layout = messenger::Options::default();
        layout.control.messages = protocol::wire::VERSION.into();
        layout.wanted.only = options.only;
        layout.wanted.ethernet.interface = options.interface.clone();
        if let Some(types) = options.ether_types {
            layout.wanted.ethernet.types = types;
        }
        if let Some(queue) = options.data_queue {
            let map_bytes = options.map_bytes;
            let placed = layout.wanted.ethernet.place(None, queue, map_bytes);
            placed.map_err(fabric::Error::Region)?;
        }
        (layout.requests, layout.pull_min) = (options.requests, options.pull.least());
        layout.wanted.queues.endpoints = 16;
        // More than the requests of all slots.
        layout.backlog_bytes = 128 << 20;
        let messenger = Messenger::open(options.identity.clone(), layout)?;
        let map = ClusterMap {
            cluster: options.identity.cluster(),
            ..ClusterMap::default()
        };
        let now = Instant::now();
        let node = FIRST_CLIENT | random();
        let defects = Defects::default();
        let inside = options.inside.clone();
        Ok(Connection {
            start: now,
            entry: inside.map(|inside| Entry::new(inside, node, messenger.handle())),
            node,
            messenger,
            client: Client::new(node, map.options(), defects.clone(), 0),
            defects,
            links: Links::new(options.addresses.clone(), now),
            memories: MemberMemories::new(options.io, !options.is_read_only),
            map,
            calls: HashMap::new(),
            heard_at: now,
            asked_at: now,
            polled_at: now,
            is_lost: false,
            holds: None,
            held_by: None,
            listener: Listener::default(),
            cache: None,
            renew_at: now,
            turns: Arc::default(),
            reader: Arc::default(),
            read_ahead_max: Arc::default(),
            reads_at_once: Arc::default(),
            at_once: AtOnce::default(),
            landing: Vec::new(),
            events: Vec::new(),
            options,
        })
    }

    /// When its clock began.
    pub fn start(&self) -> Instant {
        self.start
    }

    pub fn handle(&self) -> Handle {
        self.messenger.handle()
    }

    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    pub fn choices(&self) -> Vec<(NodeId, Choice)> {
        let links = self.links.all().into_iter();
        let known = links.filter_map(|link| {
            let choice = self.messenger.choice(link)?;
            Some((self.links.node(link)?, choice.clone()))
        });
        known.collect()
    }

    /// Whether the cluster has not answered for a while, though it was asked.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The receiver of recalls, to be set.
    pub fn listener(&self) -> Listener {
        self.listener.clone()
    }

    /// What takes turns, to be set.
    pub fn turns(&self) -> Arc<Mutex<Option<TurnListener>>> {
        self.turns.clone()
    }

    /// The session that may read locally, as of the last outcome that was delivered.
    pub fn reader(&self) -> Arc<AtomicU64> {
        self.reader.clone()
    }

    /// Memory of so many bytes that long reads land in without a copy.
    pub fn read_target(&mut self, bytes: u64) -> Option<ReadTarget> {
        self.messenger.read_target(bytes)
    }

    /// Memory for data of writes, lent to the members from now on.
    pub fn write_memory(&mut self, block_bytes: usize, blocks: u32) -> Option<Arena> {
        match Arena::new(block_bytes, blocks) {
            Ok(arena) => {
                self.messenger.lend(arena.clone());
                Some(arena)
            }
            Err(error) => {
                self.report_refusal(&error.to_string());
                None
            }
        }
    }

    fn report_refusal(&self, reason: &str) {
        (self.options.report)(&format!(
            "answered writes are sent in messages, not copied out of the memory of this mount: {reason}"
        ));
    }

    /// Longest read for which reading ahead pays, with the transport to the primary.
    pub fn read_ahead_max(&self) -> Arc<AtomicUsize> {
        self.read_ahead_max.clone()
    }

    /// Whether reads at once may succeed: one-sided reads are chosen, and a member's memory is mapped.
    pub fn reads_at_once(&self) -> Arc<AtomicBool> {
        self.reads_at_once.clone()
    }

    /// When the last lease ends: recalls come until then. Files that the session owns may be recalled at any time.
    pub fn leases_until(&self) -> Instant {
        if self.client.owns_files() {
            return Instant::now() + super::KEEPER_EVERY;
        }
        self.start + Duration::from_nanos(self.client.leases_until())
    }

    /// The caches have dropped these.
    pub fn answer_recalls(&mut self, invalidated: &mut Vec<Recalled>) {
        for recalled in invalidated.drain(..) {
            self.client.invalidated(recalled);
        }
    }

    pub fn set_cache(&mut self, cache: Arc<dyn Renewable>) {
        self.cache = Some(cache);
    }

    /// Whether leases may have to be renewed.
    fn renews(&self) -> bool {
        self.cache.is_some() && self.client.leases_until() > self.now()
    }

    /// Asks for more time for leases that are used.
    fn renew(&mut self, now: Instant) {
        if now >= self.renew_at && self.renews() {
            self.renew_at = now + RENEW_EVERY;
            let inodes = self.cache.as_ref().map(|cache| cache.to_renew(now));
            let at = self.now();
            self.client.renew(at, &inodes.unwrap_or_default());
        }
    }

    pub fn set_holds(&mut self, holds: HoldsSource) {
        self.holds = Some(holds);
    }

    /// Takes holds again when there is another session: one for each file, which the last release returns. To another
    /// primary the state machine reports those of the session.
    fn hold_again(&mut self) {
        let session = self.client.session();
        if session.is_none() || session == self.held_by {
            return;
        }
        self.held_by = session;
        let held = self.holds.as_ref().map_or(Vec::new(), |holds| holds());
        for Held { file, .. } in held {
            let now = self.now();
            self.client
                .submit(now, Operation::Hold { file }, Acknowledge::Primary);
        }
    }

    /// Waits until a node has given the cluster map.
    /// Returns the number of the unit with the root directory.
    pub fn reach(&mut self) -> Result<u16, Error> {
        let until = Instant::now() + self.options.connect_timeout;
        while self.map.version == 0 {
            let now = Instant::now();
            if now >= until || self.links.is_refused() {
                return Err(Error::Unreachable(self.links.failures()));
            }
            self.step(until - now);
        }
        let found = &self.map.name;
        if let Some(wanted) = self.options.cluster.as_ref().filter(|it| *it != found) {
            return Err(Error::OtherCluster {
                found: found.clone(),
                wanted: wanted.clone(),
            });
        }
        self.map
            .units
            .first()
            .map(|unit| unit.unit)
            .ok_or(Error::NoUnit)
    }

    /// Gives the calls that threads have submitted to the state machine.
    pub fn begin(&mut self, submitted: &mut Vec<Arc<Call>>) {
        for call in submitted.drain(..) {
            let Some((operation, acknowledge)) = call.take_request() else {
                continue;
            };
            if self.calls.is_empty() {
                self.heard_at = Instant::now();
            }
            // After the call came: leases may have ended since any time before.
            let now = self.now();
            let client = &mut self.client;
            let ticket = match call.terms {
                Terms::Plain if call.has_target() => {
                    client.submit_landing(now, operation, acknowledge)
                }
                Terms::Plain => client.submit(now, operation, acknowledge),
                Terms::Owning => client.submit_owning(now, operation, acknowledge),
                Terms::In(session) => client.submit_in(now, session, operation, acknowledge),
            };
            self.calls.insert(ticket, call);
        }
    }

    /// Reads one-sided by copies of this thread, without a call, where the members' memory is mapped and nothing has to be asked.
    /// Returns the bytes read. If it returns `None`, part of `into` may have been overwritten.
    pub fn read_at_once(
        &mut self,
        at: (FileId, u64),
        into: &mut [u8],
        note_read: bool,
    ) -> Option<usize> {
        let plan = &mut self.at_once;
        if !self.client.plan_at_once(at, into.len(), note_read, plan) {
            return None;
        }
        let links = self.memories.mapped(&self.messenger, plan)?;
        let messenger = &mut self.messenger;
        let Some(version) = self.memories.read_at_once(messenger, links, plan, into) else {
            self.client.discard_at_once(plan);
            return None;
        };
        // After the copies.
        let now = Instant::now();
        let local = now.saturating_duration_since(self.start).as_nanos() as u64;
        if !self.client.counts_at_once(local, plan, version) {
            return None;
        }
        let count = plan.count;
        if now > self.polled_at + POLL_BETWEEN_READS {
            self.step(Duration::ZERO);
        }
        Some(count)
    }

    /// Writes and reads that were done one-sided.
    pub fn one_sided(&self) -> (u64, u64) {
        self.client.one_sided()
    }

    /// Sends the messages of the state machine, and delivers its outcomes.
    pub fn pump(&mut self) {
        self.hold_again();
        self.let_go();
        let has_listener = self.listener.lock().is_some();
        self.client.ask_for_leases(has_listener);
        self.transmit();
        while self.exchange() || self.take_transferred() {
            self.transmit();
        }
        self.deliver();
    }

    /// Takes the results of transfers that have ended already, as those over shared memory do when they are begun; whether
    /// there were some. So a read is answered without a wait.
    fn take_transferred(&mut self) -> bool {
        let before = self.memories.transfers();
        if before > 0 {
            let mut events = std::mem::take(&mut self.events);
            self.messenger.poll(&mut events);
            self.handle_events(events);
        }
        self.memories.transfers() < before
    }

    /// Gives a node in this process what there is for it; whether it had messages.
    fn exchange(&mut self) -> bool {
        let replies = self.entry.as_mut().map(Entry::exchange);
        self.take_replies(replies.unwrap_or_default())
    }

    /// Works for the primary while calls wait for it, if it is in this process; whether it had messages.
    fn drive(&mut self) -> bool {
        let primary = self.primary();
        // Transfers end at this client's own links.
        let waits = !self.calls.is_empty() && self.memories.transfers() == 0;
        let entry = self.entry.as_mut();
        let entry = entry.filter(|entry| waits && entry.node() == primary);
        let replies = entry.map(Entry::drive);
        self.take_replies(replies.unwrap_or_default())
    }

    fn take_replies(&mut self, replies: Vec<Message>) -> bool {
        let has_some = !replies.is_empty();
        for message in replies {
            self.handle_reply(message);
        }
        has_some
    }

    fn transmit(&mut self) {
        while let Some(transfer) = self.client.poll_transfer() {
            let now = self.now();
            let call = transfer
                .lands
                .and_then(|(ticket, _)| self.calls.get(&ticket));
            let target = call.and_then(|call| call.begin_landing());
            let (messenger, client) = (&mut self.messenger, &mut self.client);
            self.memories
                .start(now, (transfer, target), messenger, client);
        }
        while let Some(outgoing) = self.client.poll_outgoing() {
            // Without a link it is lost; with the next one the state machine sends it again.
            let to = outgoing.to.first().copied().unwrap_or(NO_NODE);
            match &mut self.entry {
                Some(entry) if entry.node() == to => entry.put(outgoing.message),
                _ => {
                    if let Some(link) = self.links.of(to) {
                        self.send(link, outgoing.encode_in_pieces());
                    }
                }
            }
        }
    }

    fn deliver(&mut self) {
        // Before a write is delivered that is still in flight: no read may overtake it.
        let reader = self.client.may_read_locally();
        self.reader.store(reader.unwrap_or(0), Ordering::Release);
        let landing = std::mem::take(&mut self.landing);
        let mut before = landing.into_iter();
        while let Some(event) = before.next().or_else(|| self.client.poll_event()) {
            match event {
                // Its user may use the memory as soon as the call has ended.
                ClientEvent::Done { ticket, .. } if self.memories.are_landing(ticket) => {
                    self.landing.push(event);
                }
                ClientEvent::Done {
                    ticket,
                    outcome,
                    keep,
                } => {
                    let has_landed = self.client.has_landed(ticket);
                    let Some(call) = self.calls.remove(&ticket) else {
                        continue;
                    };
                    let owned = keep.covers.owned.then(|| self.client.ownership(call.inode));
                    call.note_ownership(owned.flatten());
                    if has_landed {
                        call.note_landed();
                    }
                    if !call.deliver(outcome, self.kept(keep))
                        && let Some(cache) = &self.cache
                    {
                        cache.settled();
                    }
                }
                ClientEvent::Recalled(recalled) => self.recalled(recalled),
                ClientEvent::Renewed { inodes, until } => {
                    let until = self.start + Duration::from_nanos(until);
                    if let Some(cache) = &self.cache {
                        cache.renewed(&inodes, until);
                    }
                }
                ClientEvent::LockTurn { wait } => {
                    if let Some(listener) = &*self.turns.lock() {
                        listener(wait);
                    }
                }
                ClientEvent::SessionOver => {}
            }
        }
    }

    fn recalled(&mut self, recalled: Recalled) {
        if let Some(cache) = &self.cache {
            cache.recalled(recalled.inode);
        }
        match &*self.listener.lock() {
            Some(listener) => listener(recalled),
            None => self.client.invalidated(recalled),
        }
    }

    fn kept(&self, keep: Keep) -> Option<Kept> {
        let Keep { until, covers } = keep;
        (!covers.is_empty()).then(|| Kept {
            until: self.start + Duration::from_nanos(until),
            covers,
        })
    }

    fn send(&mut self, link: LinkId, pieces: [Bytes; 3]) {
        if self.messenger.send_pieces(link, pieces).is_err() {
            // A peer that takes nothing is no better than one that is gone.
            self.close(link);
        }
        if let Some(reason) = self.messenger.take_refusal() {
            self.report_refusal(&reason);
        }
    }

    fn close(&mut self, link: LinkId) {
        self.messenger.close(link);
        self.lost(link);
    }

    fn lost(&mut self, link: LinkId) {
        self.links.lost(link, Instant::now());
        let now = self.now();
        self.memories.lost(now, link, &mut self.client);
    }

    /// Releases memory that must not be accessed any more, and adapts to the transport to the primary.
    fn let_go(&mut self) {
        let members = self.map.units.first().map(|unit| &unit.map.members);
        let members = members.map_or(&[][..], |members| members);
        for link in self.memories.useless(&self.client, members) {
            self.close(link);
        }
    }

    fn choose_mode(&mut self) {
        let primary = self.primary();
        let link = self.links.of(primary);
        let provider = link.and_then(|link| self.messenger.provider(link));
        let near = self.links.near(&self.messenger);
        // A primary in this process is called: nothing is faster.
        let is_inside = self.entry.as_ref().is_some_and(|it| it.node() == primary);
        let provider = provider.filter(|_| !is_inside);
        let is_near = !is_inside && !near.is_empty();
        let full = self.map.units.first().map(|it| it.map.full_in_sync());
        let full = full.unwrap_or_default();
        let all_near = full.iter().all(|node| near.contains(node));
        let copies = if all_near { full.len() } else { 0 };
        let mode = self.memories.mode(provider, is_near, copies);
        let is_one_sided = matches!(mode, Mode::ClientActive { .. });
        self.reads_at_once
            .store(is_one_sided && is_near, Ordering::Relaxed);
        self.client.set_mode(mode);
        self.client.set_near(near);
        self.read_ahead_max
            .store(read_ahead_max(provider, is_near), Ordering::Relaxed);
    }

    /// Asks a member to export its memory.
    fn ask_to_export(&mut self, link: LinkId, body: Body) {
        let envelope = Envelope {
            session: self.client.session().unwrap_or_default(),
            ..self.envelope()
        };
        let bytes = Message { envelope, body }.encode(false);
        self.send(link, [bytes.into(), Bytes::new(), Bytes::new()]);
        self.messenger.expect_export();
    }

    fn envelope(&self) -> Envelope {
        Envelope {
            cluster: self.map.number(),
            epoch: self.map.units.first().map_or(0, |unit| unit.map.epoch),
            from: self.node,
            ..Envelope::default()
        }
    }

    /// Executes due actions, and waits for an event, at most so long.
    pub fn step(&mut self, most: Duration) {
        let now = Instant::now();
        if self
            .client
            .poll_timeout()
            .is_some_and(|at| at <= self.now())
        {
            self.client.handle_timeout(self.now());
        }
        self.links.dial(now, &self.map, &mut self.messenger);
        self.ask_for_map(now);
        self.report(now);
        self.renew(now);
        self.pump();
        if !most.is_zero() && self.drive() {
            return self.pump();
        }
        let most = most.min(self.due().saturating_duration_since(Instant::now()));
        let mut events = std::mem::take(&mut self.events);
        self.messenger.wait(&mut events, most);
        self.polled_at = now;
        self.handle_events(events);
        self.pump();
    }

    fn handle_events(&mut self, mut events: Vec<Event>) {
        for event in events.drain(..) {
            self.handle_event(event);
        }
        self.events = events;
    }

    /// Polls the links and executes due actions if calls that need neither have kept it from that for long: those of a node in
    /// this process, and reads over shared memory.
    pub fn catch_up(&mut self) {
        if self.polled_at.elapsed() > POLL_EVERY {
            self.step(Duration::ZERO);
        }
    }

    /// When something is due.
    pub fn due(&self) -> Instant {
        let client = self.client.poll_timeout();
        let client = client.map(|at| self.start + Duration::from_nanos(at));
        let dial = self.links.due(&self.map);
        let ask = self.lacks_primary().then_some(self.asked_at + ASK_EVERY);
        let quiet = (!self.calls.is_empty()).then(|| {
            let quiet = self.heard_at + QUIET;
            quiet.max(self.asked_at + QUIET)
        });
        let renew = self.renews().then_some(self.renew_at);
        let late = Instant::now() + super::KEEPER_EVERY;
        [client, dial, ask, quiet, renew]
            .into_iter()
            .flatten()
            .fold(late, Instant::min)
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn primary(&self) -> NodeId {
        self.map
            .units
            .first()
            .map_or(NO_NODE, |unit| unit.map.primary)
    }

    fn lacks_primary(&self) -> bool {
        self.links.of(self.primary()).is_none()
    }

    /// Asks all linked nodes for their cluster map, if the primary may be another one by now.
    fn ask_for_map(&mut self, now: Instant) {
        let is_quiet = !self.calls.is_empty() && now >= self.heard_at + QUIET;
        let pause = match self.lacks_primary() {
            true => ASK_EVERY,
            false if is_quiet => QUIET,
            false => return,
        };
        if now < self.asked_at + pause {
            return;
        }
        self.asked_at = now;
        for link in self.links.all() {
            self.greet(link);
        }
    }

    fn greet(&mut self, link: LinkId) {
        let map_version = self.map.version;
        let envelope = self.envelope();
        let body = Body::Hello { map_version };
        let bytes = Message { envelope, body }.encode(false);
        self.send(link, [bytes.into(), Bytes::new(), Bytes::new()]);
    }

    /// Reports a cluster that does not answer.
    fn report(&mut self, now: Instant) {
        if !self.is_lost && !self.calls.is_empty() && now >= self.heard_at + LOST_AFTER {
            self.is_lost = true;
            (self.options.report)("the cluster does not answer; calls wait for it");
        }
    }

    /// The primary has sent something.
    fn heard(&mut self) {
        self.heard_at = Instant::now();
        if std::mem::take(&mut self.is_lost) {
            (self.options.report)("the cluster answers again");
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Message { link, bytes } => self.handle_message(link, &bytes),
            Event::Dialed { dial, outcome } => {
                let dialed = self.links.dialed(dial, outcome, &self.map, &self.messenger);
                match dialed {
                    Dialed::Linked(link) => {
                        self.greet(link);
                        self.linked(link);
                    }
                    Dialed::Second(link) => self.messenger.close(link),
                    Dialed::Failed => {}
                }
            }
            Event::Lost { link, .. } => self.lost(link),
            Event::Exported { link, name } => self.memories.exported(link, name, &mut self.client),
            Event::Transferred { id, outcome, .. } => {
                let now = self.now();
                self.memories.ended(now, id, outcome, &mut self.client);
            }
            // A client does not listen, and is in no group.
            Event::Accepted(_) | Event::Told { .. } | Event::Group { .. } => {}
        }
    }

    /// There is a new link. If it is the primary's, messages sent over the one before may be lost.
    fn linked(&mut self, link: LinkId) {
        self.choose_mode();
        if let Some(node) = self.links.node(link)
            && let Some(body) = self
                .memories
                .linked(node, (link, self.messenger.provider(link)))
        {
            self.ask_to_export(link, body);
        }
        if self.links.of(self.primary()) == Some(link) {
            self.client.handle_link(self.now());
        }
    }

    fn handle_message(&mut self, link: LinkId, bytes: &Bytes) {
        let Ok(message) = Message::decode(bytes, &self.defects) else {
            return;
        };
        if let Body::Map { map } = message.body {
            return self.handle_map(*map);
        }
        if !self.links.is_from(link, message.envelope.from) {
            return;
        }
        self.handle_reply(message);
    }

    /// Takes a message of a member: its envelope says so truly.
    fn handle_reply(&mut self, message: Message) {
        if self.primary() == message.envelope.from {
            self.heard();
        }
        if let Body::Key { member, key } = message.body {
            if self.client.session() == Some(message.envelope.session)
                && let Some(link) = self.links.of(member)
                && let (key, over) = ((member, key), (link, self.messenger.provider(link)))
                && let Some(body) = self.memories.take_key(key, over, &mut self.client)
            {
                self.ask_to_export(link, body);
            }
            return;
        }
        self.client.handle_decoded(self.now(), message);
    }

    fn handle_map(&mut self, map: ClusterMap) {
        if map.cluster != self.map.cluster || map.version <= self.map.version {
            return;
        }
        let epoch = |map: &ClusterMap| map.units.first().map_or(0, |unit| unit.map.epoch);
        let before = (epoch(&self.map), self.links.of(self.primary()));
        self.map = map;
        for link in self.links.identify(&self.map, &self.messenger) {
            self.messenger.close(link);
        }
        if let Some(unit) = self.map.units.first() {
            self.client.handle_map(self.now(), unit.map.clone());
        }
        self.choose_mode();
        let link = self.links.of(self.primary());
        // With a new epoch everything is sent anyway.
        if epoch(&self.map) == before.0
            && let Some(link) = link.filter(|link| before.1 != Some(*link))
        {
            self.linked(link);
        }
    }
}

/// Longest read for which reading ahead pays: where a read waits for the primary's processor, and also where it does not, if most of
/// its time is not the copy.
fn read_ahead_max(provider: Option<Provider>, is_near: bool) -> usize {
    match provider {
        None => 0,
        Some(Provider::Shm | Provider::Verbs) => 4 << 10,
        Some(_) if is_near => 4 << 10,
        Some(_) => 64 << 10,
    }
}

/// 31 random bits: clients choose their identities.
fn random() -> NodeId {
    let mut bytes = [0; 4];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(4), "the kernel gives no random numbers");
    NodeId::from_ne_bytes(bytes) & (FIRST_CLIENT - 1)
}
