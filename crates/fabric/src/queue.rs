//! [`Queue`]: the endpoints of one thread, whatever transport they have.

mod endpoint;
mod message;
mod spin;

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use pmem::{LINE, Region};

use self::endpoint::{Endpoint, WINDOW_MAX};
pub use self::message::Message;
use self::message::Tickets;
pub use self::spin::Spin;
use crate::{
    Access, Capabilities, Completion, Device, EndpointId, Error, Event, Export, Failure,
    GroupAddress, GroupId, Limits, Parameters, Peer, Provider, Refusal, RegionDescriptor,
    Registration, Remote, RemoteRegion, Report, Role, Source, Supply, Transport, WorkRequest, WrId,
};

/// Options of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// Endpoints at once: 1 to 65 536.
    pub endpoints: u32,
    /// Messages of each peer that can be held at once: 1 to 65 536.
    pub window: u32,
    /// Bytes of the longest message.
    pub message_bytes: u32,
    /// Requests of each endpoint that can be outstanding: 1 to 65 536.
    pub outstanding: u32,
    /// One of so many requests is signaled (M4), and each with a caller that wants a report.
    pub signal_every: u32,
    /// Messages of groups that can be held at once; what comes beyond is lost.
    pub group_buffers: u32,
    /// How long [`Queue::wait`] polls before it blocks, at most.
    pub spin_max: Duration,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions {
            endpoints: 64,
            window: 32,
            message_bytes: 4096,
            outstanding: 64,
            signal_every: 16,
            group_buffers: 64,
            spin_max: Duration::from_micros(50),
        }
    }
}

impl QueueOptions {
    /// Whether a queue can be like this.
    fn validate(&self) -> Result<(), Error> {
        in_range("endpoints", self.endpoints, 1, ENDPOINTS_MAX)?;
        in_range("messages in the window", self.window, 1, WINDOW_MAX)?;
        in_range("outstanding requests", self.outstanding, 1, OUTSTANDING_MAX)
    }
}

/// Number of buffers that a queue has for messages: `each` of every endpoint, and those of groups.
fn buffers_in_all(endpoints: u32, each: u32, of_groups: u32) -> Result<u32, Error> {
    let count = u64::from(endpoints) * u64::from(each) + u64::from(of_groups);
    in_range("buffers for messages", count, 0, BUFFERS_MAX)?;
    Ok(count as u32)
}

fn in_range(
    option: &'static str,
    value: impl Into<u64>,
    least: u32,
    most: u32,
) -> Result<(), Error> {
    let (value, least, most) = (value.into(), least.into(), most.into());
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(Error::QueueOptions {
            option,
            value,
            least,
            most,
        }),
    }
}

/// Endpoints are distinguished by 16 bits of their numbers.
const ENDPOINTS_MAX: u32 = 1 << 16;
/// Greatest number of outstanding requests that a peer accepts.
const OUTSTANDING_MAX: u32 = 1 << 16;
/// Buffers for messages of a queue, at most: each has a number in 32 bits, and one more without a buffer.
const BUFFERS_MAX: u32 = 1 << 24;
/// Places of the small lists that are kept from one poll to the next: so long that the first ones, which are used all the
/// time, are not in one line with those of another thread's list.
pub(crate) const KEPT: usize = 64;
/// Number of polls of a waiting thread between two reads of the clock.
const LOOKS: u32 = 16;

/// Counts of events of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that were posted.
    pub posted: u64,
    /// Number of signaled ones among them.
    pub signaled: u64,
    /// Requests not taken because too much was outstanding.
    pub held: u64,
    /// Reports of credits by a separate message.
    pub credits_told: u64,
    /// Times that a peer was asked for its count.
    pub credits_asked: u64,
    /// Messages that were received.
    pub received: u64,
    /// Endpoints that were lost.
    pub lost: u64,
    /// Number of those caused by violations of the peer.
    pub violations: u64,
    /// Times the thread slept.
    pub slept: u64,
}

/// The endpoints of one thread and what comes of their requests.
///
/// Set-up: [`Queue::offer`], send its result to the peer, [`Queue::accept`] with the peer's. Use: [`Queue::post`], then
/// [`Queue::submit`] once for the batch, then [`Queue::poll`] or [`Queue::wait`].
///
/// Data that a thread stores to with each message has separate lines, two by two as processors fetch them: queues that
/// were made one after the other are adjacent in memory, and each store to a line that another thread has takes longer
/// than all other work for a message.
#[repr(align(128))]
pub struct Queue {
    transport: Box<dyn Transport>,
    options: QueueOptions,
    capabilities: Capabilities,
    endpoints: Vec<Endpoint>,
    tickets: Tickets,
    /// Bytes of a buffer for messages.
    buffer_bytes: u64,
    /// Kept from one poll to the next, like `reports`: peers that may need a report of credits.
    owing: Vec<EndpointId>,
    reports: Vec<Report>,
    /// The same: buffers of dropped messages.
    emptied: Vec<u32>,
    spin: Spin,
    counters: Counters,
    posted: bool,
    starved: bool,
}

impl Queue {
    /// A queue with no endpoints yet.
    ///
    /// # Errors
    /// [`Error::QueueOptions`], [`Error::Region`], [`Error::Memory`], [`Error::System`].
    pub fn open(device: &dyn Device, options: QueueOptions) -> Result<Queue, Error> {
        let transport = device.open()?;
        Queue::over(device, transport, options)
    }

    /// The same over an open transport, such as one in wrappers.
    ///
    /// # Errors
    /// As [`Queue::open`].
    pub fn over(
        device: &dyn Device,
        transport: Box<dyn Transport>,
        options: QueueOptions,
    ) -> Result<Queue, Error> {
        options.validate()?;
        let capabilities = transport.capabilities().clone();
        let options = QueueOptions {
            message_bytes: options.message_bytes.min(capabilities.message_bytes),
            signal_every: options
                .signal_every
                .clamp(1, options.outstanding.div_ceil(2)),
            ..options
        };
        let each = message::endpoint_buffers(&options, &capabilities);
        let count = buffers_in_all(options.endpoints, each, options.group_buffers)?;
        let buffer_bytes = message::buffer_bytes(&options, &capabilities);
        let bytes = (u64::from(count) * buffer_bytes).max(LINE as u64);
        let region = Region::memory(bytes, false)?;
        let receive = device.register(&region, Access::LOCAL)?;
        let mut queue = Queue {
            transport,
            endpoints: Vec::new(),
            tickets: Tickets::new(receive, count, options.group_buffers),
            buffer_bytes,
            owing: Vec::with_capacity(KEPT),
            reports: Vec::with_capacity(KEPT),
            emptied: Vec::with_capacity(KEPT),
            spin: Spin::new(options.spin_max),
            counters: Counters::default(),
            posted: false,
            starved: false,
            options,
            capabilities,
        };
        for number in 0..options.group_buffers {
            queue.supply(Supply::Group(number));
        }
        Ok(queue)
    }

    /// Capabilities of its transport.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Returns the counts of events since the queue was made.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Makes this side of an endpoint. The peer needs the result.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::System`].
    pub fn offer(&mut self) -> Result<(EndpointId, Parameters), Error> {
        // Messages that are held keep their endpoint's place.
        self.take_all_returned();
        let place = match self.endpoints.iter().position(Endpoint::is_free) {
            Some(place) => place,
            None if self.endpoints.len() < self.options.endpoints as usize => {
                self.endpoints.push(Endpoint::free());
                self.endpoints.len() - 1
            }
            None => {
                let endpoints = self.endpoints.len();
                return Err(Error::Full { endpoints });
            }
        };
        let id = self.endpoints[place].begin(place);
        let limits = Limits {
            outstanding: self.options.outstanding,
            window: self.options.window,
            message_bytes: self.options.message_bytes,
        };
        match self.transport.prepare(id, limits) {
            Ok(mut parameters) => {
                endpoint::add_limits(&mut parameters, limits);
                self.supply_endpoint(place);
                Ok((id, parameters))
            }
            Err(error) => {
                self.endpoints[place].end();
                Err(error)
            }
        }
    }

    /// Joins this side to the peer's: requests may be posted from now on.
    ///
    /// # Errors
    /// [`Error::Peer`], [`Error::System`], [`Error::NoEndpoint`]; the endpoint is closed then.
    pub fn accept(&mut self, id: EndpointId, role: Role, mut peer: Peer) -> Result<(), Error> {
        let accepted = endpoint::take_limits(&mut peer.parameters).and_then(|limits| {
            if !self.is_open(id) {
                return Err(Error::NoEndpoint);
            }
            self.transport.establish(id, role, peer)?;
            self.endpoints[id.place()].establish(limits, &self.options, &self.capabilities);
            Ok(())
        });
        if accepted.is_err() {
            self.close(id);
        }
        accepted
    }

    /// Notes that the peer's process may have ended, so that its loss is reported sooner.
    pub fn suspect(&mut self, id: EndpointId) {
        if self.is_open(id) {
            self.transport.suspect(id);
        }
    }

    /// Ends an endpoint and its outstanding requests.
    /// Nothing more is reported about it, nor about its outstanding requests.
    pub fn close(&mut self, id: EndpointId) {
        if self.is_open(id) {
            let kept = self.endpoints[id.place()].outstanding.take_kept();
            self.transport.keep(id, kept);
            self.transport.close(id);
            self.endpoints[id.place()].end();
        }
    }

    /// Data that a peer needs to access memory of this side.
    ///
    /// # Errors
    /// [`Error::NoEndpoint`], [`Error::Memory`], [`Error::System`].
    pub fn export(&mut self, id: EndpointId, registration: &Registration) -> Result<Export, Error> {
        if !self.is_open(id) {
            return Err(Error::NoEndpoint);
        }
        self.transport.export(id, registration)
    }

    /// Accepts an export of the peer.
    ///
    /// # Errors
    /// [`Error::NoEndpoint`], [`Error::Peer`], [`Error::System`].
    pub fn import(&mut self, id: EndpointId, export: Export) -> Result<RemoteRegion, Error> {
        if !self.is_open(id) {
            return Err(Error::NoEndpoint);
        }
        let RegionDescriptor {
            base,
            length,
            access,
            ..
        } = export.descriptor;
        if base.checked_add(length).is_none() {
            return Err(Error::Peer { what: "memory" });
        }
        let number = self.transport.import(id, export)?;
        // An adapter names memory by its addresses.
        let start = match self.capabilities.provider {
            Provider::Verbs => 0,
            _ => base,
        };
        Ok(RemoteRegion {
            endpoint: id,
            number,
            start,
            length,
            access,
        })
    }

    /// Bytes of the longest message that the peer of an endpoint takes, and of the longest inline one.
    pub fn message_bytes(&self, id: EndpointId) -> Option<(u32, u32)> {
        let found = self.endpoints.get(id.place());
        let endpoint = found.filter(|found| found.is_ready(id))?;
        Some(endpoint.message_bytes())
    }

    /// Number of this side's messages that the peer of an endpoint can hold.
    pub fn peer_window(&self, id: EndpointId) -> Option<u32> {
        let found = self.endpoints.get(id.place());
        let endpoint = found.filter(|found| found.is_ready(id))?;
        Some(endpoint.credits.window())
    }

    /// Number of requests of an endpoint that have not completed.
    pub fn outstanding(&self, id: EndpointId) -> usize {
        let found = self
            .endpoints
            .get(id.place())
            .filter(|found| found.is_ready(id));
        found.map_or(0, |endpoint| endpoint.outstanding.length())
    }

    /// Whether this request of an endpoint has not ended, as far as is known: quiet ones end when a later one does.
    pub fn is_outstanding(&self, id: EndpointId, request: WrId) -> bool {
        let found = self
            .endpoints
            .get(id.place())
            .filter(|found| found.is_ready(id));
        found.is_some_and(|endpoint| endpoint.outstanding.contains(request))
    }

    /// Takes a request, which may begin only with [`Queue::submit`], or when the queue is polled.
    ///
    /// # Errors
    /// [`Refusal`]; then nothing of it has happened.
    pub fn post(&mut self, id: EndpointId, request: &WorkRequest<'_>) -> Result<(), Refusal> {
        let Some(endpoint) = self
            .endpoints
            .get_mut(id.place())
            .filter(|found| found.is_ready(id))
        else {
            return Err(Refusal::NoEndpoint);
        };
        endpoint.validate(id, &self.capabilities, &request.operation)?;
        if !endpoint.has_room(&request.operation) {
            self.counters.held += 1;
            self.starved |= endpoint.credits.deadline().is_some();
            return Err(Refusal::Held);
        }
        let request = endpoint.take(request, self.options.signal_every);
        self.counters.posted += 1;
        self.counters.signaled += u64::from(request.signaled);
        self.transport.post(id, request);
        self.posted = true;
        Ok(())
    }

    /// Appends a range of a peer's memory to `into`, without a registered buffer in between. It is there when this returns.
    ///
    /// # Errors
    /// [`Refusal::Invalid`], also where reads are not immediate ([`Capabilities::immediate_reads`]);
    /// [`Refusal::NoEndpoint`], also if the memory is gone, which the next poll reports.
    pub fn load(
        &mut self,
        id: EndpointId,
        (from, length): (Remote, u32),
        into: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        self.load_by(id, (from, length), &mut |memory, offset| {
            memory.append_to(offset, length as usize, into);
        })
    }

    /// Lets `take` read a range of a peer's memory: it receives the mapped region, and where the range begins there. What it has
    /// read counts if this returns no error.
    ///
    /// # Errors
    /// As [`Queue::load`].
    pub fn load_by(
        &mut self,
        id: EndpointId,
        (from, length): (Remote, u32),
        take: &mut dyn FnMut(&Region, u64),
    ) -> Result<(), Refusal> {
        let found = self.endpoints.get(id.place());
        if !found.is_some_and(|found| found.is_ready(id)) {
            return Err(Refusal::NoEndpoint);
        }
        if !self.capabilities.immediate_reads {
            return Err(Refusal::Invalid("reads are not immediate"));
        }
        let range = (from, Access::READ, length.into());
        endpoint::validate_range(id, &self.capabilities, range)?;
        match self.transport.load(id, from, take) {
            true => Ok(()),
            false => Err(Refusal::NoEndpoint),
        }
    }

    /// Begins all that was posted.
    pub fn submit(&mut self) {
        if std::mem::take(&mut self.posted) {
            self.transport.submit();
        }
    }

    /// Appends the new events to `events` and returns their number. Never waits.
    pub fn poll(&mut self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        self.take_returned();
        self.submit();
        self.transport.poll(&mut self.reports);
        if !self.reports.is_empty() {
            self.handle_all(events);
        }
        if self.starved {
            self.ask_for_credits();
        }
        events.len() - before
    }

    fn handle_all(&mut self, events: &mut Vec<Event>) {
        let mut reports = std::mem::take(&mut self.reports);
        for report in &reports {
            match *report {
                // Apart from the others, since it is by far the commonest.
                Report::Received {
                    origin,
                    ref buffer,
                    immediate,
                } => self.receive(origin, buffer.as_ref(), immediate, events),
                _ => self.handle(report, events),
            }
        }
        reports.clear();
        self.reports = reports;
    }

    /// Like [`Queue::poll`], but waits for an event, at most so long: it polls for a while, shorter the less often that
    /// helps, and then blocks.
    pub fn wait(&mut self, events: &mut Vec<Event>, timeout: Duration) -> usize {
        if timeout.is_zero() || self.spin.looks() {
            let count = self.poll(events);
            if count > 0 || timeout.is_zero() {
                return count;
            }
        } else {
            // A blocking thread is notified at once if there is something: a check before costs a system call with some
            // transports.
            self.take_all_returned();
            self.submit();
        }
        let start = Instant::now();
        let mut looking = self.spin.begin(start);
        let mut now = start;
        loop {
            looking = looking && self.spin.goes_on(now);
            if looking {
                self.transport.look(LOOKS);
            } else {
                self.take_all_returned();
                self.counters.slept += 1;
                let most = self.sleep_at_most(now, timeout - (now - start));
                self.transport.sleep(most);
            }
            let count = self.poll(events);
            if count > 0 && looking && self.spin.is_longest() {
                // There is nothing to learn from how long it took.
                return count;
            }
            now = Instant::now();
            if count > 0 || now - start >= timeout {
                self.spin.end(now, count > 0);
                return count;
            }
        }
    }

    /// Polls, at most so many times, whether there may be an event.
    pub fn look(&mut self, times: u32) -> bool {
        self.transport.look(times)
    }

    /// Prepares to block in a caller's own wait over several queues, as [`Transport::arm`] describes: the caller blocks
    /// at [`Queue::descriptors`] for no longer than the returned time, calls [`Queue::disarm`], and polls.
    pub fn arm(&mut self, timeout: Duration) -> Duration {
        self.take_all_returned();
        self.submit();
        self.counters.slept += 1;
        let most = self.sleep_at_most(Instant::now(), timeout);
        self.transport.arm(most)
    }

    /// Descriptors to block at after [`Queue::arm`].
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.transport.descriptors()
    }

    /// Ends what [`Queue::arm`] began. `ready`: whether one of the descriptors was readable.
    pub fn disarm(&mut self, ready: bool) {
        self.transport.disarm(ready);
    }

    /// Joins a multicast group. Its messages then arrive in this queue.
    /// Returns how many messages may wait for the next poll, at least.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::System`].
    pub fn join(&mut self, group: GroupId, address: GroupAddress) -> Result<u32, Error> {
        let room = self.transport.join(group, address)?;
        Ok(match room {
            u32::MAX => self.options.group_buffers,
            room => room,
        })
    }

    /// Leaves a multicast group.
    pub fn leave(&mut self, group: GroupId) {
        self.transport.leave(group);
    }

    /// Sends one message to all members of a group but this one. Its arrival is not reported.
    ///
    /// # Errors
    /// [`Refusal::Invalid`].
    pub fn send_to_group(
        &mut self,
        group: GroupId,
        from: Source<'_>,
        immediate: u32,
    ) -> Result<(), Refusal> {
        match self.capabilities.multicast {
            crate::Multicast::Lossy { bytes, .. } if from.length() <= bytes.into() => {
                self.transport.send_to_group(group, from, immediate);
                Ok(())
            }
            crate::Multicast::Lossy { .. } => {
                Err(Refusal::Invalid("it is longer than a group takes"))
            }
            crate::Multicast::None => Err(Refusal::Invalid("there are no groups")),
        }
    }

    #[inline]
    fn is_open(&self, id: EndpointId) -> bool {
        let found = self.endpoints.get(id.place());
        found.is_some_and(|endpoint| endpoint.is_open(id))
    }

    /// A sleep must not last longer than a request for credits can wait.
    fn sleep_at_most(&self, now: Instant, timeout: Duration) -> Duration {
        if !self.starved {
            return timeout;
        }
        let deadlines = self
            .endpoints
            .iter()
            .filter_map(|endpoint| endpoint.credits.deadline());
        let first = deadlines.min();
        first.map_or(timeout, |first| {
            timeout.min(first.saturating_duration_since(now))
        })
    }

    #[inline(never)]
    fn handle(&mut self, report: &Report, events: &mut Vec<Event>) {
        match *report {
            Report::Done {
                endpoint,
                sequence,
                value,
            } if self.has(endpoint, sequence) => {
                self.complete(endpoint, sequence, value, events);
            }
            Report::Failed {
                endpoint,
                sequence,
                failure,
            } if self.has(endpoint, sequence) => {
                self.fail(endpoint, sequence, failure, events);
            }
            // The transport cannot speak of others: a peer made it.
            Report::Done { endpoint, .. } | Report::Failed { endpoint, .. } => {
                self.lose(endpoint, Failure::Violation, events);
            }
            Report::Received {
                origin,
                ref buffer,
                immediate,
            } => self.receive(origin, buffer.as_ref(), immediate, events),
            Report::Credit {
                endpoint,
                returned,
                ask,
            } => self.credit(endpoint, returned, ask, events),
            Report::Lost { endpoint, failure } => self.lose(endpoint, failure, events),
        }
    }

    #[inline]
    fn has(&self, id: EndpointId, sequence: u64) -> bool {
        self.is_open(id) && self.endpoints[id.place()].outstanding.has(sequence)
    }

    /// All requests through this one have ended well.
    #[inline]
    fn complete(&mut self, id: EndpointId, through: u64, value: u64, events: &mut Vec<Event>) {
        let outstanding = &mut self.endpoints[id.place()].outstanding;
        while let Some((at, request)) = outstanding.complete(through) {
            let value = if at == through { value } else { 0 };
            events.push(ended(id, request, Ok(value)));
        }
    }

    /// One has failed, after those before it ended well.
    fn fail(&mut self, id: EndpointId, sequence: u64, failure: Failure, events: &mut Vec<Event>) {
        if let Some(before) = sequence.checked_sub(1) {
            self.complete(id, before, 0, events);
        }
        let failed = self.endpoints[id.place()].outstanding.fail();
        events.extend(failed.map(|request| ended(id, request, Err(failure))));
        self.lose(id, failure, events);
    }

    /// Reports the end of all outstanding requests, and of the endpoint.
    fn lose(&mut self, id: EndpointId, failure: Failure, events: &mut Vec<Event>) {
        if !self.is_open(id) {
            return;
        }
        let outstanding = &mut self.endpoints[id.place()].outstanding;
        while let Some(request) = outstanding.fail() {
            events.push(ended(id, request, Err(Failure::Flushed)));
        }
        self.counters.lost += 1;
        self.counters.violations += u64::from(failure == Failure::Violation);
        self.close(id);
        events.push(Event::Lost(id, failure));
    }

    #[inline]
    fn credit(&mut self, id: EndpointId, returned: u32, ask: bool, events: &mut Vec<Event>) {
        if !self.is_open(id) {
            return;
        }
        let credits = &mut self.endpoints[id.place()].credits;
        if credits.returned(returned).is_none() {
            self.lose(id, Failure::Violation, events);
        } else if ask {
            let told = credits.tell();
            self.counters.credits_told += 1;
            self.transport.credit(id, told, false);
        }
    }

    fn ask_for_credits(&mut self) {
        let now = Instant::now();
        self.starved = false;
        for (place, endpoint) in self.endpoints.iter_mut().enumerate() {
            if endpoint.credits.deadline().is_none() {
                continue;
            }
            self.starved = true;
            if endpoint.credits.asks(now) {
                self.counters.credits_asked += 1;
                let told = endpoint.credits.tell();
                self.transport.credit(endpoint.id(place), told, true);
            }
        }
    }
}

fn ended(endpoint: EndpointId, id: WrId, outcome: Result<u64, Failure>) -> Event {
    Event::Done(Completion {
        endpoint,
        id,
        outcome,
    })
}
