//! [`Messenger`]: one thread's links to peers, over all transports.
//!
//! ```text
//!   Messenger      links: messages of any length up to MESSAGE_MAX, one wait, a Handle for other threads
//!     │  └─ PeerSession    the control connection of each link
//!   Transports     a Queue for each transport: shm, verbs, tcp
//! ```
//! A message that is longer than the transport's longest one travels in fragments (`fragment`). Each link delivers its
//! messages whole, once and in order until it ends; the end is reported with its reason, and nothing else ever discards
//! a message. A link to a peer that takes no messages keeps them in a bounded backlog; beyond it [`Messenger::send`]
//! fails.
//!
//! Two choices ([`Options`]) compare ways of the data: long messages may be pulled by their receiver (`pull`), and short ones written
//! into slots of their receiver (`announced`).
//!
//! Dialing waits for the peer on a separate thread, so that a thread that serves others never does.

mod announced;
mod block;
mod establish;
mod fragment;
mod group;
mod link;
mod memory;
mod pull;
#[cfg(feature = "defects")]
pub mod simulation;
mod stream;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pmem::Arena;

pub use self::announced::RequestWay;
use self::announced::Slots;
pub use self::block::{Armed, Handle, Ready};
use self::block::{Blocker, Descriptors, Waker, duplicate};
use self::establish::Arrived;
pub use self::fragment::MESSAGE_MAX;
use self::fragment::Outgoing;
use self::link::{Link, end_lent};
pub use self::memory::{Direction, ReadTarget, TRANSFER_MAX, Transfer};
pub use self::pull::Pull;
use self::stream::Post;
use crate::choice::Choice;
use crate::control::{self, Identity, Local, PeerIdentity, PeerSession};
use crate::transports::{Transports, Wanted};
use fabric::Spin;
use fabric::buffers::Class;
use fabric::{Access, Error, Failure, GroupId, Message, Origin, Pool, Provider, Registration};

/// Options of a messenger.
#[derive(Clone, Debug)]
pub struct Options {
    /// The transports, and how their queues are laid out.
    pub wanted: Wanted,
    /// Time-outs of control connections.
    pub control: control::Options,
    /// Bytes of messages that wait until the peer of a link takes them.
    pub backlog_bytes: usize,
    /// How long [`Messenger::wait`] polls before it blocks, at most.
    pub spin_max: Duration,
    /// From this length on, in bytes, the rest of a message is pulled, where the transport has one-sided reads of its own; with
    /// [`usize::MAX`] nothing is, neither way ([`Pull::least`]).
    pub pull_min: usize,
    /// How short messages of links that this side dials travel.
    pub requests: RequestWay,
}

impl Default for Options {
    fn default() -> Options {
        let queues = fabric::QueueOptions {
            message_bytes: 16 << 10,
            group_buffers: 0,
            ..fabric::QueueOptions::default()
        };
        Options {
            wanted: Wanted {
                queues,
                ..Wanted::default()
            },
            control: control::Options::default(),
            backlog_bytes: 4 * MESSAGE_MAX,
            spin_max: Duration::from_micros(50),
            pull_min: Pull::default().least(),
            requests: RequestWay::default(),
        }
    }
}

/// A link of a messenger. Never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(u64);

impl LinkId {
    fn new(slot: usize, generation: u32) -> LinkId {
        LinkId(u64::from(generation) << 32 | slot as u64)
    }

    fn slot(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }
}

/// An attempt to reach a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DialId(u64);

/// An event that a messenger reports.
#[derive(Debug)]
pub enum Event {
    /// A whole message has arrived.
    Message {
        /// The link that it came over.
        link: LinkId,
        /// Bytes of the message.
        bytes: Bytes,
    },
    /// [`Messenger::dial`] has ended.
    Dialed {
        /// Attempt that has ended.
        dial: DialId,
        /// The link, or why there is none.
        outcome: Result<LinkId, control::Error>,
    },
    /// A caller that was given to [`Handle::pass`] has been joined, or not.
    Accepted(Result<LinkId, control::Error>),
    /// The peer lets this side reach memory of its.
    Exported {
        /// Link that the event concerns.
        link: LinkId,
        /// The peer's name of the memory.
        name: u64,
    },
    /// The peer has called [`Messenger::tell`].
    Told {
        /// Link that the event concerns.
        link: LinkId,
        /// Bytes that the peer sent beside messages.
        bytes: Vec<u8>,
    },
    /// A datagram of a group, from anybody.
    Group {
        /// Group that received the message.
        group: GroupId,
        /// Bytes of the message.
        bytes: Vec<u8>,
    },
    /// [`Messenger::transfer`] has ended.
    Transferred {
        /// Link that the event concerns.
        link: LinkId,
        /// Number that the caller gave to the transfer.
        id: u64,
        /// The data read; nothing for a write. `None`: nothing was done, since the memory or the range does not exist.
        outcome: Option<Bytes>,
    },
    /// The link has ended. Undelivered messages are lost, and whether unfinished transfers were executed, or will be,
    /// is unknown.
    Lost {
        /// Link that the event concerns.
        link: LinkId,
        /// Reason of the end.
        reason: Reason,
    },
}

/// Why a link has ended.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// The transport lost the peer.
    #[error(transparent)]
    Transport(#[from] Failure),
    /// The control connection ended because the peer broke its rules, or did not join its side.
    #[error(transparent)]
    Control(#[from] control::Error),
    /// The peer ended the link in good order.
    #[error("the peer closed the link")]
    Closed,
    /// The peer sent fragments that make no message.
    #[error("the peer broke the rules of messages: {0}")]
    Fragment(&'static str),
}

impl From<&'static str> for Reason {
    fn from(what: &'static str) -> Reason {
        Reason::Fragment(what)
    }
}

/// Why a message was not taken. Nothing of it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The link has ended.
    #[error("the link has ended; dial the peer again")]
    Ended,
    /// The message is too long.
    #[error("a message must have at most {MESSAGE_MAX} bytes, got {0}; send it in parts")]
    TooLong(usize),
    /// The peer takes no messages.
    #[error(
        "{0} bytes of messages wait for the peer, which receives none; close the link, or send later"
    )]
    Backlog(usize),
}

/// One thread's links to peers.
pub struct Messenger {
    local: Local,
    options: Options,
    transports: Transports,
    lanes: Vec<Lane>,
    links: Vec<Slot>,
    /// Slots of links to peers that have not joined their sides yet.
    unready: Vec<usize>,
    /// Slots of links with a backlog.
    behind: VecDeque<usize>,
    blocker: Blocker,
    waker: Arc<Waker>,
    /// A poll has taken a call of another thread, which no wait has returned for yet.
    is_woken: bool,
    spin: Spin,
    dials: u64,
    /// Transfers that have ended, to be reported by the next poll.
    ended: Vec<(LinkId, u64, Option<Bytes>)>,
    /// Links to be ended by the next poll.
    failed: Vec<(LinkId, control::Error)>,
    /// Links with transfers that the transport did not take.
    held: Vec<LinkId>,
    /// Kept from one poll to the next.
    reports: Vec<fabric::Event>,
    arrived: Vec<Arrived>,
    readable: Vec<usize>,
    polls: u32,
    /// Until then each poll reads control connections, since something is expected there.
    expects_until: Option<Instant>,
    /// Fragments that were pulled out of pools and arenas over links that have ended.
    pulled: [u64; 2],
    /// Messages that came by slots of links that have ended.
    announced: u64,
    /// Memory of data that peers copy by themselves.
    arena: Option<Arena>,
    /// Why data there, or in the arena of a peer, travels in messages.
    refusals: VecDeque<String>,
}

/// The links of one transport.
struct Lane {
    provider: Provider,
    /// What its queue blocks at.
    descriptors: Descriptors,
    /// Buffers for messages that cannot be inline.
    pool: Option<Pool>,
    /// Buffers for the data of transfers, once there was one.
    transfers: Option<Pool>,
    /// Memory that the transport receives reads in, once a part of it was wanted.
    targets: Option<Registration>,
    /// Slot of the link, by the index of its endpoint.
    slots: Vec<Option<usize>>,
    links: usize,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    link: Option<Box<Link>>,
}

/// Polls of a queue that do not read the clock.
const LOOKS: u32 = 16;
/// A thread that never blocks reads control connections every so many polls.
const HEAR_EVERY: u32 = 4096;
/// Polling interval for a peer that has not joined its side.
const UNREADY_EVERY: Duration = Duration::from_millis(100);
/// Buffers for messages that cannot be inline.
const BUFFERS: u32 = 128;
/// A peer must take messages of at least so many bytes.
const PEER_MESSAGE_MIN: u32 = 256;

impl Messenger {
    /// A messenger without links, with the transports of this process.
    ///
    /// # Errors
    /// [`Error::Forced`], [`Error::System`], [`Error::Region`], [`Error::Memory`].
    pub fn open(identity: Identity, options: Options) -> Result<Messenger, Error> {
        let mut transports = Transports::open(&options.wanted)?;
        let mut lanes = Vec::new();
        for provider in transports.providers() {
            let queue = transports.queue(provider);
            let inline = queue.map_or(0, |queue| queue.capabilities().inline_bytes);
            let longest = options.wanted.queues.message_bytes;
            let device = transports.device(provider);
            let pool = match device {
                Some(device) if inline < longest => {
                    let class = Class {
                        bytes: longest,
                        count: BUFFERS,
                    };
                    Some(Pool::new(device, &[class], Access::LOCAL)?)
                }
                _ => None,
            };
            lanes.push(Lane {
                provider,
                descriptors: duplicate(&transports.descriptors(provider))?,
                pool,
                transfers: None,
                targets: None,
                slots: Vec::new(),
                links: 0,
            });
        }
        let blocker = Blocker::new()?;
        Ok(Messenger {
            local: Local {
                identity,
                offers: transports.offers().clone(),
                options: options.control,
            },
            waker: blocker.waker(),
            is_woken: false,
            spin: Spin::new(options.spin_max),
            options,
            transports,
            lanes,
            links: Vec::new(),
            unready: Vec::new(),
            behind: VecDeque::new(),
            blocker,
            dials: 0,
            ended: Vec::new(),
            failed: Vec::new(),
            held: Vec::new(),
            reports: Vec::new(),
            arrived: Vec::new(),
            readable: Vec::new(),
            polls: 0,
            expects_until: None,
            pulled: [0; 2],
            announced: 0,
            arena: None,
            refusals: VecDeque::new(),
        })
    }

    /// This process, as peers see it: a [`control::Listener`] needs it, too.
    pub fn local(&self) -> &Local {
        &self.local
    }

    /// For other threads: wakes this one up, and passes callers to it.
    pub fn handle(&self) -> Handle {
        Handle::new(self.waker.clone())
    }

    /// The links that there are.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        let slots = self.links.iter().enumerate();
        slots.filter_map(|(slot, it)| it.link.as_ref().map(|_| LinkId::new(slot, it.generation)))
    }

    /// The peer of a link, as the control connection has authenticated it.
    pub fn peer(&self, link: LinkId) -> Option<&PeerIdentity> {
        self.find(link).map(|link| link.session.identity())
    }

    /// The transport of a link, and why no faster one.
    pub fn choice(&self, link: LinkId) -> Option<&Choice> {
        self.find(link).map(|link| link.session.choice())
    }

    /// Bytes of messages that wait until the peer takes them.
    pub fn backlog(&self, link: LinkId) -> usize {
        self.find(link)
            .map_or(0, |link| link.stream.backlog_bytes())
    }

    /// Fragments of messages that this side has read out of the memory of their senders, over all links so far.
    pub fn pulled_fragments(&self) -> u64 {
        let memories = pull::Memory::ALL.into_iter();
        memories.map(|memory| self.pulled_from(memory)).sum()
    }

    /// Those of them that this side has read out of the arenas of clients ([`Messenger::lend`]).
    pub fn pulled_from_arenas(&self) -> u64 {
        self.pulled_from(pull::Memory::Arena)
    }

    fn pulled_from(&self, memory: pull::Memory) -> u64 {
        let index = memory as usize;
        let links = self.links.iter().filter_map(|slot| slot.link.as_deref());
        let pulled = links.map(|link| link.stream.pulls.copied_in_all[index]);
        self.pulled[index] + pulled.sum::<u64>()
    }

    /// Messages that peers have written into slots of this side, over all links so far.
    pub fn announced_messages(&self) -> u64 {
        let links = self.links.iter().filter_map(|slot| slot.link.as_deref());
        let received = links.map(|link| link.stream.slots.received);
        self.announced + received.sum::<u64>()
    }

    /// How short messages to the peer of a link travel, and why they are not announced, if the side that dialed chose that.
    pub fn requests(&self, link: LinkId) -> Option<(RequestWay, Option<&'static str>)> {
        let (requests, reason) = self.find(link)?.stream.slots.state();
        let device = self.transports.device(self.provider(link)?)?;
        let window = self.options.wanted.queues.window;
        let obstacle = announced::obstacle(&device.capabilities(), window);
        Some((requests, reason.map(|reason| obstacle.unwrap_or(reason))))
    }

    /// Least length of a message that the peer of a link pulls, while a buffer is free, or why it pulls none.
    pub fn least_pulled(&self, id: LinkId) -> Option<Result<usize, String>> {
        let device = self.transports.device(self.provider(id)?)?;
        let link = self.find(id)?;
        Some(match pull::is_possible(&device.capabilities()) {
            false => Err("the target's processor would execute the reads".into()),
            true => link.least_pulled(),
        })
    }

    fn find(&self, id: LinkId) -> Option<&Link> {
        let slot = self.links.get(id.slot())?;
        let link = slot.link.as_deref()?;
        (LinkId::new(id.slot(), slot.generation) == id).then_some(link)
    }

    /// The lane of a transport that a session was joined with: there is one for each queue.
    fn lane_of(&self, provider: Provider) -> usize {
        let found = self.lanes.iter().position(|it| it.provider == provider);
        found.expect("a session's endpoint is in one of the queues")
    }

    /// Makes a link of a session that was joined with these transports' queues.
    fn adopt(&mut self, session: PeerSession, requests: RequestWay) -> LinkId {
        let provider = session.choice().provider;
        let endpoint = session.endpoint();
        let free = self.links.iter().position(|slot| slot.link.is_none());
        let slot = free.unwrap_or_else(|| {
            self.links.push(Slot::default());
            self.links.len() - 1
        });
        let index = self.lane_of(provider);
        let lane = &mut self.lanes[index];
        if lane.slots.len() <= endpoint.place() {
            lane.slots.resize(endpoint.place() + 1, None);
        }
        lane.slots[endpoint.place()] = Some(slot);
        lane.links += 1;
        // An empty message has nothing to be pulled.
        let pull_min = self.options.pull_min.max(1);
        let slots = Slots::new(slot as u16, requests);
        let mut link = Box::new(Link::new(session, index, pull_min, slots));
        if !link.is_ready {
            self.unready.push(slot);
        }
        link.watch(&self.blocker, slot);
        self.links[slot].generation += 1;
        self.links[slot].link = Some(link);
        LinkId::new(slot, self.links[slot].generation)
    }

    /// Sends a message, or keeps it, shared, until the peer takes the rest. All that it takes is sent with the next poll at the
    /// latest.
    ///
    /// # Errors
    /// [`SendError`]; nothing of the message is sent then.
    pub fn send(&mut self, id: LinkId, bytes: &Bytes) -> Result<(), SendError> {
        self.send_outgoing(id, bytes.clone().into())
    }

    /// The same with a message in pieces. Those in memory of [`Messenger::lend`] are copied by the peer.
    ///
    /// # Errors
    /// As [`Messenger::send`].
    pub fn send_pieces(&mut self, id: LinkId, pieces: [Bytes; 3]) -> Result<(), SendError> {
        self.send_outgoing(id, pieces.into())
    }

    fn send_outgoing(&mut self, id: LinkId, message: Outgoing) -> Result<(), SendError> {
        let length = message.length();
        if length > MESSAGE_MAX {
            return Err(SendError::TooLong(length));
        }
        let most = self.options.backlog_bytes;
        self.find(id).ok_or(SendError::Ended)?;
        let slot = id.slot();
        let link = self.links[slot].link.as_deref_mut();
        let link = link.ok_or(SendError::Ended)?;
        let waiting = link.stream.backlog_bytes();
        if waiting > 0 {
            return match waiting + length <= most {
                true => {
                    link.stream.keep(message, 0);
                    Ok(())
                }
                false => Err(SendError::Backlog(waiting)),
            };
        }
        if link.is_ready {
            self.offer_memory(id, &message)?;
        }
        let link = self.links[slot].link.as_deref_mut();
        let link = link.ok_or(SendError::Ended)?;
        let lane = &self.lanes[link.lane];
        let queue = self.transports.queue(lane.provider);
        let queue = queue.ok_or(SendError::Ended)?;
        let (pool, mut at) = (lane.pool.as_ref(), 0);
        if link.is_ready && link.stream.post(queue, pool, &message, &mut at) == Post::All {
            return Ok(());
        }
        link.stream.keep(message, at);
        self.fall_behind(slot);
        Ok(())
    }

    /// From now on each poll sends what waits for the peer of this link.
    fn fall_behind(&mut self, slot: usize) {
        if !self.behind.contains(&slot) {
            self.behind.push_back(slot);
        }
    }

    /// Begins to send the messages given to [`Messenger::send`] since the last poll.
    pub fn submit(&mut self) {
        for lane in &self.lanes {
            if let Some(queue) = self.transports.queue(lane.provider) {
                queue.submit();
            }
        }
    }

    /// Appends the new events to `events`, and returns their number. Never waits.
    pub fn poll(&mut self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        if self.waker.take(&mut self.arrived) {
            self.is_woken = true;
            self.join_arrived(events);
        }
        for index in 0..self.lanes.len() {
            self.poll_lane(index, events);
        }
        for (link, error) in std::mem::take(&mut self.failed) {
            if self.find(link).is_some() {
                self.end(link.slot(), error.into(), events);
            }
        }
        self.polls = self.polls.wrapping_add(1);
        let expects = self.expects_until.is_some();
        if expects || self.polls.is_multiple_of(HEAR_EVERY) {
            self.hear_sessions(events);
        }
        if expects
            && self
                .expects_until
                .is_some_and(|until| Instant::now() >= until)
        {
            self.expects_until = None;
        }
        if !self.unready.is_empty() {
            self.look_at_unready(events);
        }
        if !self.behind.is_empty() {
            self.read_waiting(events);
            self.catch_up();
        }
        if !self.held.is_empty() || !self.ended.is_empty() {
            self.post_held(events);
        }
        events.len() - before
    }

    /// Like [`Messenger::poll`], but waits until something has happened or [`Handle::wake`] was called, so long at most: it
    /// polls for a while, shorter the less often that helps, and then blocks.
    pub fn wait(&mut self, events: &mut Vec<Event>, timeout: Duration) -> usize {
        let before = events.len();
        let is_due =
            timeout.is_zero() || self.is_woken || !self.ended.is_empty() || !self.failed.is_empty();
        if is_due || self.spin.looks() {
            let count = self.poll(events);
            let is_woken = std::mem::take(&mut self.is_woken);
            if count > 0 || is_woken || timeout.is_zero() {
                return count;
            }
        } else {
            self.catch_up();
        }
        let start = Instant::now();
        let mut spins = self.spin.begin(start);
        let mut now = start;
        loop {
            spins = spins && self.spin.goes_on(now);
            match spins {
                true => self.look(),
                false => self.block(timeout.saturating_sub(now - start), events),
            }
            self.poll(events);
            let count = events.len() - before;
            now = Instant::now();
            // Whichever poll took the call: it must end the wait.
            let is_woken = std::mem::take(&mut self.is_woken);
            if count > 0 || is_woken || now - start >= timeout {
                self.spin.end(now, count > 0);
                return count;
            }
        }
    }

    /// Lets others run, and polls for a moment. A thread that only polled would keep a processor from the peer that it waits for.
    pub fn look(&mut self) {
        rustix::thread::sched_yield();
        for lane in self.lanes.iter().filter(|lane| lane.links > 0) {
            let queue = self.transports.queue(lane.provider);
            if queue.is_some_and(|queue| queue.look(LOOKS)) {
                break;
            }
        }
    }

    fn poll_lane(&mut self, index: usize, events: &mut Vec<Event>) {
        let provider = self.lanes[index].provider;
        let Some(queue) = self.transports.queue(provider) else {
            return;
        };
        let mut reports = std::mem::take(&mut self.reports);
        queue.poll(&mut reports);
        for report in reports.drain(..) {
            match report {
                fabric::Event::Message(message) => self.receive(index, message, events),
                fabric::Event::Lost(endpoint, failure) => {
                    if let Some(slot) = self.slot_of(index, endpoint) {
                        let link = self.links[slot].link.as_deref();
                        let reason = match link.is_some_and(|link| link.is_closed_there) {
                            true => Reason::Closed,
                            false => failure.into(),
                        };
                        self.end(slot, reason, events);
                    }
                }
                // For messages, buffers return to their pool; a failure ends the endpoint, too.
                fabric::Event::Done(completion) => self.transferred(index, &completion, events),
            }
        }
        self.reports = reports;
    }

    fn slot_of(&self, lane: usize, endpoint: fabric::EndpointId) -> Option<usize> {
        let slot = self.lanes[lane].slots.get(endpoint.place()).copied()??;
        let link = self.links[slot].link.as_deref()?;
        (link.lane == lane && link.session.endpoint() == endpoint).then_some(slot)
    }

    fn receive(&mut self, lane: usize, message: Message, events: &mut Vec<Event>) {
        let endpoint = match message.origin {
            Origin::Endpoint(endpoint) => endpoint,
            Origin::Group(group) => {
                let bytes = message.to_vec();
                return events.push(Event::Group { group, bytes });
            }
        };
        let Some(slot) = self.slot_of(lane, endpoint) else {
            return;
        };
        let generation = self.links[slot].generation;
        let Some(link) = self.links[slot].link.as_deref_mut() else {
            return;
        };
        let provider = self.lanes[lane].provider;
        let Some(queue) = self.transports.queue(provider) else {
            return;
        };
        match link.stream.take(queue, message) {
            Ok(None) => {}
            Ok(Some(bytes)) => events.push(Event::Message {
                link: LinkId::new(slot, generation),
                bytes: bytes.into(),
            }),
            Err(reason) => return self.end(slot, reason, events),
        }
        let is_announced = std::mem::take(&mut link.stream.pulls.is_announced);
        // This poll reads what has come.
        if link.stream.pulls.is_due() || link.stream.has_unread() {
            self.fall_behind(slot);
        }
        if is_announced {
            self.hear(slot, events);
        }
    }

    /// Begins to read fragments, one of each link in turn: links share the buffers, and none gets them all.
    fn read_waiting(&mut self, events: &mut Vec<Event>) {
        turns::take_turns(
            self,
            |it| &mut it.behind,
            |it, slot| it.post_read(slot, events),
        );
    }

    /// Sends what waits for peers, as far as they take it.
    fn catch_up(&mut self) {
        let Messenger {
            links,
            lanes,
            transports,
            behind,
            ..
        } = self;
        behind.retain(|&slot| {
            let Some(link) = links[slot].link.as_deref_mut() else {
                return false;
            };
            let lane = &lanes[link.lane];
            let queue = transports.queue(lane.provider);
            queue.is_some_and(|queue| {
                !link.is_ready || !link.stream.catch_up(queue, lane.pool.as_ref())
            })
        });
        self.submit();
    }

    /// Ends a link in good order. Messages in its backlog are lost; nothing more is reported of it.
    pub fn close(&mut self, id: LinkId) {
        if self.find(id).is_some() {
            self.remove(id.slot());
        }
    }

    fn end(&mut self, slot: usize, reason: Reason, events: &mut Vec<Event>) {
        let link = LinkId::new(slot, self.links[slot].generation);
        self.remove(slot);
        events.push(Event::Lost { link, reason });
    }

    fn remove(&mut self, slot: usize) {
        let Some(mut link) = self.links[slot].link.take() else {
            return;
        };
        link.unwatch(&self.blocker);
        for (all, of_link) in self.pulled.iter_mut().zip(link.stream.pulls.copied_in_all) {
            *all += of_link;
        }
        self.announced += link.stream.slots.received;
        self.unready.retain(|&other| other != slot);
        self.behind.retain(|&other| other != slot);
        let lane = &mut self.lanes[link.lane];
        lane.links -= 1;
        lane.slots[link.session.endpoint().place()] = None;
        if let Some(queue) = self.transports.queue(lane.provider) {
            link.session.close(queue);
        }
        let device = self.transports.device(lane.provider);
        end_lent(device, link.arena, link.stream);
    }
}
