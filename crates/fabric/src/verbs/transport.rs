//! The queue's side: completions, and what follows from them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::verbs::{Completion, CompletionQueue, GRH, Kind as Done, QueuePair, Queues, Status};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::closing::Closing;
use super::group::{self, Groups};
use super::link::{self, Import, Link, State, Tag, parse_identity};
use super::receive_buffers::ReceiveBuffers;
use super::wire::{HEADER_BYTES, Kind, parse_header, parse_parameters};
use super::{Common, INLINE_BYTES, Memory, PROBE_EVERY, count};
use crate::{
    Arrival, Buffer, Capabilities, EndpointId, Error, Export, Failure, GroupAddress, GroupId,
    Limits, Origin, Parameters, Peer, Piece, Registration, Report, Request, Role, Source, Supply,
    Transport, Work,
};

/// Completions that the queue of the adapter has room for, at most.
const COMPLETIONS_MAX: u32 = 1 << 16;
/// Buffers that the adapter holds, at most.
const BUFFERS_MAX: u32 = 1 << 13;
const GROUP_BUFFERS_MAX: u32 = 1 << 10;
/// Completions that are taken at once, and how often before others have their turn.
const BATCH: usize = 32;
const BATCHES: usize = 8;
/// The clock, and failures, are checked every so many polls: a poll that finds nothing must cost next to nothing, since
/// the polling thread may hold the processor that a software adapter needs.
const LOOK_EVERY: u32 = 64;
/// Greatest number of a peer's regions that an endpoint may know.
const IMPORTS_MAX: usize = 1 << 16;
/// How long goodbyes are awaited when the whole transport ends.
const LEAVE_WITHIN: Duration = Duration::from_millis(100);

pub struct VerbsTransport {
    common: Arc<Common>,
    completions: Arc<CompletionQueue>,
    buffers: ReceiveBuffers,
    group_buffers: ReceiveBuffers,
    /// By the indexes of endpoints.
    links: Vec<Option<Link>>,
    /// Which endpoint each queue pair is, by the numbers of these.
    numbers: Vec<(u32, EndpointId)>,
    closing: Closing,
    groups: Groups,
    /// Links with something to be handed to the adapter.
    waiting: Vec<EndpointId>,
    /// There may be some, or buffers of groups, or groups to be restored.
    is_unsent: bool,
    /// Completions that there is room for, beside those that may come.
    room: u32,
    news: Vec<Report>,
    batch: Vec<Completion>,
    polls: u32,
    /// Time of the next check of links.
    look_at: Instant,
    failures: u64,
}

impl VerbsTransport {
    pub(super) fn open(common: Arc<Common>) -> Result<VerbsTransport, Error> {
        let adapter = common.adapter();
        let depth = adapter.limits().completions.min(COMPLETIONS_MAX);
        let completions = CompletionQueue::new(adapter, depth)?;
        let buffers = ReceiveBuffers::new(&common, false, BUFFERS_MAX)?;
        let group_buffers = ReceiveBuffers::new(&common, true, GROUP_BUFFERS_MAX)?;
        let others = BUFFERS_MAX + GROUP_BUFFERS_MAX + group::SENDS;
        Ok(VerbsTransport {
            completions,
            buffers,
            group_buffers,
            links: Vec::new(),
            numbers: Vec::new(),
            closing: Closing::default(),
            groups: Groups::default(),
            waiting: Vec::new(),
            is_unsent: false,
            room: depth.saturating_sub(others),
            news: Vec::new(),
            batch: vec![Completion::default(); BATCH],
            polls: 0,
            look_at: Instant::now() + PROBE_EVERY,
            failures: common.trouble.count(),
            common,
        })
    }

    fn queues(&self, buffers: &ReceiveBuffers, depth: u32) -> Queues {
        Queues {
            send: self.completions.clone(),
            receive: self.completions.clone(),
            shared: Some(buffers.queue().clone()),
            depth,
            inline: INLINE_BYTES + HEADER_BYTES,
        }
    }

    /// A deep queue may have less inline room than was promised.
    fn check_inline(&self, pair: &QueuePair) -> Result<(), Error> {
        let room = pair.inline_max().saturating_sub(HEADER_BYTES);
        if room >= self.common.capabilities.inline_bytes {
            return Ok(());
        }
        Err(Error::System {
            what: format!("make a queue pair of {}", self.common.adapter().name()),
            source: rustix::io::Errno::INVAL.into(),
            remedy: "fewer requests outstanding leave room for more by value",
        })
    }

    fn link(&mut self, id: EndpointId) -> Option<&mut Link> {
        let link = self.links.get_mut(id.place())?.as_mut();
        link.filter(|link| link.id == id)
    }

    /// The link, if it is joined to its peer and has not failed.
    fn ready(&mut self, id: EndpointId) -> Option<&mut Link> {
        self.link(id).filter(|link| link.state == State::Ready)
    }

    fn lose(&mut self, endpoint: EndpointId, failure: Failure) {
        if let Some(link) = self.ready(endpoint) {
            link.state = State::Over;
            if failure == Failure::Violation {
                // It may do nothing more. If the pair has failed already, this does nothing.
                let _ = link.pair().fail();
                count(&self.common.counts.refused);
            }
            self.news.push(Report::Lost { endpoint, failure });
        }
    }

    /// All work of this thread fails.
    fn lose_all(&mut self, failure: Failure) {
        let links = self.links.iter().flatten();
        for id in links.map(|link| link.id).collect::<Vec<_>>() {
            self.lose(id, failure);
        }
    }

    /// Hands over what waits at a link.
    fn hand_over(&mut self, id: EndpointId) {
        if let Some(link) = self.ready(id)
            && !link.hand_over()
        {
            self.give_up(id, Failure::PeerLost);
        }
    }

    /// A request cannot be handed over. The results of those before it come from the adapter, or are unknown.
    #[cold]
    fn give_up(&mut self, id: EndpointId, failure: Failure) {
        self.reap_all();
        self.lose(id, failure);
    }

    /// Hands to the adapter what cannot wait.
    #[inline]
    fn hand_over_all(&mut self) {
        if self.is_unsent {
            self.hand_over_unsent();
        }
    }

    #[inline(never)]
    fn hand_over_unsent(&mut self) {
        self.is_unsent = false;
        self.group_buffers.hand_over();
        if self.groups.have_failed() {
            self.restore_groups();
        }
        while let Some(id) = self.waiting.pop() {
            self.hand_over(id);
        }
    }

    /// Later reports about a group concern nothing that was posted before.
    #[cold]
    fn restore_groups(&mut self) {
        self.groups.stop();
        self.reap_all();
        let restarted = self.groups.restart();
        self.reap_all();
        self.groups.go_on(&self.common, &restarted);
        // Refused ones are retried later.
        self.is_unsent = false;
    }

    /// Takes the adapter's completions; returns whether that was all.
    #[inline]
    fn reap(&mut self) -> bool {
        match self.completions.poll(&mut self.batch).map(<[_]>::len) {
            Ok(0) => true,
            first => self.reap_from(first.ok()),
        }
    }

    /// The same, once it is known how many come first, or that the queue has failed, and all pairs with it.
    #[inline(never)]
    fn reap_from(&mut self, mut taken: Option<usize>) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        let mut drained = false;
        for turn in 1..=BATCHES {
            let Some(count) = taken else {
                self.lose_all(Failure::AdapterFailed);
                break;
            };
            for completion in &batch[..count] {
                self.complete(completion);
            }
            drained = count < BATCH;
            if drained || turn == BATCHES {
                break;
            }
            taken = self.completions.poll(&mut batch).map(<[_]>::len).ok();
        }
        self.batch = batch;
        self.buffers.hand_over_many();
        self.group_buffers.hand_over();
        drained
    }

    /// Takes all that was completed before this, however much it is.
    fn reap_all(&mut self) {
        let turns = COMPLETIONS_MAX as usize / (BATCH * BATCHES);
        let _ = (0..turns).find(|_| self.reap());
    }

    fn complete(&mut self, completion: &Completion) {
        let (endpoint, tag, number) = parse_identity(completion.id());
        match tag {
            Tag::Request => self.ended(endpoint, number, completion),
            Tag::Own => self.own_ended(endpoint, completion.status()),
            Tag::Group => {
                let status = completion.status();
                self.groups.sent(&self.common, endpoint, number, status);
                self.is_unsent |= status != Status::Success;
            }
            Tag::Buffer if endpoint == EndpointId(0) => self.received(number, completion),
            Tag::Buffer => self.received_of_group(number, completion),
        }
    }

    fn ended(&mut self, endpoint: EndpointId, number: u32, completion: &Completion) {
        let Some(link) = self.ready(endpoint) else {
            return;
        };
        let sequence = link.sequence(number);
        match completion.status() {
            Status::Success => {
                link.heard = true;
                let value = match completion.kind() {
                    Done::Atomic => link.found(sequence),
                    _ => 0,
                };
                self.news.push(Report::Done {
                    endpoint,
                    sequence,
                    value,
                });
            }
            // No request of ours has failed: the adapter has refused one of the peer's.
            Status::Flushed => self.lose(endpoint, Failure::Violation),
            status => {
                link.state = State::Over;
                self.news.push(Report::Failed {
                    endpoint,
                    sequence,
                    failure: failure(status),
                });
            }
        }
    }

    fn own_ended(&mut self, endpoint: EndpointId, status: Status) {
        let Some(link) = self.link(endpoint) else {
            return self.closing.own_ended(endpoint);
        };
        match status {
            Status::Success => {
                link.heard = true;
                link.own_ended();
                self.hand_over(endpoint);
            }
            Status::Flushed => self.lose(endpoint, Failure::Violation),
            status => self.lose(endpoint, failure(status)),
        }
    }

    fn received(&mut self, number: u32, completion: &Completion) {
        self.buffers.taken();
        let pair = completion.queue_pair();
        let found = self.numbers.binary_search_by_key(&pair, |(pair, _)| *pair);
        let endpoint = found.map(|at| self.numbers[at].1).ok();
        let Some(endpoint) = endpoint.filter(|id| self.ready(*id).is_some()) else {
            return self.buffers.post(number);
        };
        if completion.status() != Status::Success {
            self.buffers.post(number);
            return self.lose(endpoint, Failure::Violation);
        }
        let immediate = completion.immediate();
        let mut buffer = None;
        if completion.kind() != Done::Written {
            let length = completion.length();
            let mut header = [0; HEADER_BYTES as usize];
            self.buffers.read(number, 0, &mut header);
            match parse_header(header, length) {
                Some((Kind::Message, returned)) => {
                    self.news.push(Report::Credit {
                        endpoint,
                        returned,
                        ask: false,
                    });
                    buffer = (length > HEADER_BYTES).then(|| Arrival {
                        buffer: self.buffers.name(number),
                        start: HEADER_BYTES,
                        length: length - HEADER_BYTES,
                    });
                }
                other => {
                    self.buffers.post(number);
                    // These peers send without credits.
                    self.buffers.hand_over();
                    return self.told(endpoint, other);
                }
            }
        }
        if buffer.is_none() {
            self.buffers.post(number);
        }
        if let Some(link) = self.link(endpoint) {
            link.answered();
        }
        self.news.push(Report::Received {
            origin: Origin::Endpoint(endpoint),
            buffer,
            immediate,
        });
    }

    /// The peer's transport has sent something by itself.
    fn told(&mut self, endpoint: EndpointId, what: Option<(Kind, u32)>) {
        match what {
            Some((kind @ (Kind::Credit | Kind::Ask), returned)) => {
                if let Some(link) = self.link(endpoint) {
                    link.answered();
                }
                self.news.push(Report::Credit {
                    endpoint,
                    returned,
                    ask: kind == Kind::Ask,
                });
            }
            Some((Kind::Goodbye, _)) => self.lose(endpoint, Failure::PeerLost),
            Some((Kind::Message, _)) | None => self.lose(endpoint, Failure::Violation),
        }
    }

    fn received_of_group(&mut self, number: u32, completion: &Completion) {
        self.group_buffers.taken();
        let mut header = [0; GRH as usize];
        self.group_buffers.read(number, 0, &mut header);
        let received = match completion.status() {
            Status::Success => self.groups.receive(&self.common, completion, &header),
            _ => None,
        };
        let buffer = received.and_then(|(_, length, _)| {
            (length > 0).then(|| Arrival {
                buffer: self.group_buffers.name(number),
                start: GRH,
                length,
            })
        });
        if buffer.is_none() {
            self.group_buffers.post(number);
        }
        if let Some((group, _, immediate)) = received {
            self.news.push(Report::Received {
                origin: Origin::Group(group),
                buffer,
                immediate: Some(immediate),
            });
        }
    }

    /// Handles silent links, closed ones, and failed ones.
    #[inline(never)]
    fn look_after_all(&mut self, now: Instant, drained: bool) {
        if now >= self.look_at {
            self.look_at = now + PROBE_EVERY;
            self.common.read_events();
            // If the adapter has refused to restore them.
            self.is_unsent |= self.groups.have_failed();
            for place in 0..self.links.len() {
                if let Some(link) = &mut self.links[place]
                    && link.state == State::Ready
                {
                    link.probe();
                    let id = link.id;
                    self.hand_over(id);
                }
            }
        }
        let (room, trouble) = (&mut self.room, &self.common.trouble);
        self.closing.proceed(now, drained, |link| {
            *room += link.depth();
            let number = link.pair().number();
            // Unread events of the pair are discarded with it.
            drop(link);
            trouble.forget(number);
        });
        self.take_failures();
        self.buffers.hand_over();
    }

    /// Adapters report failed queue pairs, if at all, to the whole process.
    fn take_failures(&mut self) {
        let failures = self.common.trouble.count();
        if std::mem::replace(&mut self.failures, failures) == failures {
            return;
        }
        // A completion may have the reason; and earlier ones are reported.
        self.reap_all();
        let numbers = &self.numbers;
        let own = self.common.trouble.take(|number| {
            let found = numbers.binary_search_by_key(&number, |(pair, _)| *pair);
            found.map(|at| numbers[at].1).ok()
        });
        for id in own {
            self.lose(id, Failure::Violation);
        }
        if self.common.trouble.is_adapter() {
            self.lose_all(Failure::AdapterFailed);
        }
    }

    /// Waits until the adapter has an event.
    fn wait(&self, timeout: Duration) {
        let timeout = Timespec {
            tv_sec: timeout.as_secs().min(1 << 20) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        if self.common.trouble.is_adapter() {
            // It reports nothing more; both descriptors of a removed one are ready forever.
            let _ = rustix::event::poll(&mut [], Some(&timeout));
            return;
        }
        let (channel, events) = (self.completions.channel(), self.common.adapter().events());
        let mut ready = [
            PollFd::new(&channel, PollFlags::IN),
            PollFd::new(&events, PollFlags::IN),
        ];
        if rustix::event::poll(&mut ready, Some(&timeout)).is_ok_and(|count| count > 0) {
            if !ready[0].revents().is_empty() {
                // If the queue has failed, the next poll finds out.
                let _ = self.completions.take_event();
            }
            if !ready[1].revents().is_empty() {
                self.common.read_events();
            }
        }
    }
}

fn failure(status: Status) -> Failure {
    match status {
        Status::RemoteAccess | Status::RemoteInvalid | Status::RemoteOperation => Failure::Access,
        _ => Failure::PeerLost,
    }
}

impl Transport for VerbsTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.common.capabilities
    }

    fn prepare(&mut self, endpoint: EndpointId, limits: Limits) -> Result<Parameters, Error> {
        self.common.check_adapter()?;
        let depth = Link::depth_of(limits.outstanding);
        let Some(room) = self.room.checked_sub(depth) else {
            let endpoints = self.numbers.len();
            return Err(Error::Full { endpoints });
        };
        let queues = self.queues(&self.buffers, depth);
        let pair = QueuePair::reliable(&self.common.domain, &queues)?;
        self.check_inline(&pair)?;
        let link = Link::new(&self.common, endpoint, &pair, limits.outstanding)?;
        let bytes = link.parameters();
        let number = pair.number();
        self.common.trouble.forget(number);
        let at = self.numbers.partition_point(|(pair, _)| *pair < number);
        self.numbers.insert(at, (number, endpoint));
        let place = endpoint.place();
        if self.links.len() <= place {
            self.links.resize_with(place + 1, || None);
        }
        self.links[place] = Some(link);
        self.room = room;
        Ok(Parameters {
            bytes,
            descriptors: Vec::new(),
        })
    }

    /// May wait while the kernel resolves the peer's address: some seconds without an answer.
    fn establish(&mut self, endpoint: EndpointId, _role: Role, peer: Peer) -> Result<(), Error> {
        self.common.check_adapter()?;
        let wrong = Error::Peer { what: "queue pair" };
        let peer = parse_parameters(&peer.parameters.bytes).ok_or(wrong)?;
        self.buffers.hand_over();
        let link = self.link(endpoint).ok_or(Error::NoEndpoint)?;
        link.connect(&peer)
    }

    fn keep(&mut self, endpoint: EndpointId, buffers: Vec<Buffer>) {
        if let Some(link) = self.link(endpoint) {
            link.kept = buffers;
        }
    }

    fn close(&mut self, endpoint: EndpointId) {
        if self.link(endpoint).is_none() {
            return;
        }
        self.numbers.retain(|(_, id)| *id != endpoint);
        if let Some(link) = self.links[endpoint.place()].take() {
            self.closing.add(link);
        }
    }

    fn export(&mut self, _: EndpointId, registration: &Registration) -> Result<Export, Error> {
        let refused = |reason| Error::Memory {
            provider: crate::Provider::Verbs,
            memory: format!("{:?}", registration.region()),
            reason,
        };
        let Some(memory) = registration.held::<Memory>() else {
            return Err(refused("it is registered with another device"));
        };
        if memory.is_withdrawn() {
            return Err(refused("its key was withdrawn; register it again"));
        }
        Ok(Export {
            descriptor: registration.descriptor(),
            memory: None,
        })
    }

    fn import(&mut self, endpoint: EndpointId, export: Export) -> Result<u32, Error> {
        let link = self.link(endpoint).ok_or(Error::NoEndpoint)?;
        let descriptor = export.descriptor;
        let end = descriptor.base.checked_add(descriptor.length);
        match u32::try_from(descriptor.key.0) {
            Ok(key) if end.is_some() && link.imports.len() < IMPORTS_MAX => {
                let base = descriptor.base;
                link.imports.push(Import { key, base });
                Ok(link.imports.len() as u32 - 1)
            }
            _ => Err(Error::Peer { what: "memory" }),
        }
    }

    fn supply(&mut self, buffer: Supply, piece: Piece<'_>) {
        match buffer {
            Supply::Endpoint(number) => self.buffers.supply(number, piece),
            Supply::Group(number) => {
                self.group_buffers.supply(number, piece);
                self.is_unsent = true;
            }
        }
    }

    fn supply_again<'a>(&mut self, numbers: &[u32], _piece: &'a dyn Fn(u32) -> Piece<'a>) {
        for &number in numbers {
            self.buffers.post(number);
        }
        self.buffers.hand_over_many();
    }

    fn post(&mut self, endpoint: EndpointId, request: Request<'_>) {
        if let Work::Send { .. } = request.operation {
            // It contains credits.
            self.buffers.hand_over();
        }
        let Some(link) = self.ready(endpoint) else {
            return;
        };
        let is_first = link.is_idle();
        if !link.post(&request) {
            // Memory that is not registered here. Those before it go first.
            link.hand_over();
            self.give_up(endpoint, Failure::Access);
        } else if is_first {
            self.waiting.push(endpoint);
            self.is_unsent = true;
        }
    }

    /// At once, with everything that waits: a side without credits cannot continue.
    fn credit(&mut self, endpoint: EndpointId, returned: u32, ask: bool) {
        // The peer may send as soon as it knows.
        self.buffers.hand_over();
        if let Some(link) = self.ready(endpoint) {
            link.credit(returned, ask);
            self.hand_over(endpoint);
        }
    }

    fn submit(&mut self) {
        self.hand_over_all();
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        self.hand_over_all();
        let drained = self.reap();
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(LOOK_EVERY) {
            self.look_after_all(Instant::now(), drained);
        }
        if !self.news.is_empty() {
            reports.append(&mut self.news);
        }
    }

    fn sleep(&mut self, timeout: Duration) {
        let most = self.arm(timeout);
        if !most.is_zero() {
            self.wait(most);
        }
    }

    fn arm(&mut self, timeout: Duration) -> Duration {
        self.hand_over_all();
        // Completions from here on wake the thread up; earlier ones are found.
        if self.completions.arm().is_err() {
            return Duration::ZERO;
        }
        let drained = self.reap();
        let now = Instant::now();
        self.look_after_all(now, drained);
        if !self.news.is_empty() || !drained || self.is_unsent {
            return Duration::ZERO;
        }
        let until = self
            .closing
            .deadline()
            .map_or(self.look_at, |at| at.min(self.look_at));
        timeout.min(until.saturating_duration_since(now))
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self.common.trouble.is_adapter() {
            // They would be readable for ever.
            true => Vec::new(),
            false => vec![self.completions.channel(), self.common.adapter().events()],
        }
    }

    fn disarm(&mut self, ready: bool) {
        if ready {
            self.wait(Duration::ZERO);
        }
    }

    fn join(&mut self, group: GroupId, address: GroupAddress) -> Result<u32, Error> {
        self.leave(group);
        let queues = self.queues(&self.group_buffers, group::SENDS);
        self.groups.join(&self.common, &queues, group, address)?;
        Ok(u32::MAX)
    }

    fn leave(&mut self, group: GroupId) {
        self.groups.detach(group);
        self.reap_all();
        self.groups.leave(group);
    }

    fn send_to_group(&mut self, group: GroupId, from: Source<'_>, immediate: u32) {
        if !self.groups.has_room() {
            self.reap();
        }
        self.groups.send(&self.common, group, from, immediate);
    }
}

/// Peers are notified, if that is quickly done. They detect it in any case.
impl Drop for VerbsTransport {
    fn drop(&mut self) {
        for link in self.links.iter_mut().filter_map(Option::take) {
            self.closing.add(link);
        }
        let start = Instant::now();
        while !self.closing.has_left() && start.elapsed() < LEAVE_WITHIN {
            self.reap();
            std::thread::yield_now();
        }
    }
}

const _: () = assert!(link::OWN_MAX >= 3);
