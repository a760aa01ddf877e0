//! Beginning of links, and later reports of control connections.

use super::announced::SLOTS_NAME;
use super::{DialId, Event, LinkId, Messenger, PEER_MESSAGE_MIN, Reason, RequestWay, pull};
use crate::control::{
    self, Address, Answered, Caller, Note, PeerSession, Reached, Unanswered, dial,
};
use fabric::Provider;

/// Input from another thread to a messenger.
#[derive(Debug)]
pub enum Arrived {
    /// A peer that has called.
    Caller(Caller),
    /// A peer that was reached.
    Reached(DialId, Result<Reached, control::Error>),
    /// It has joined its side, or not.
    Answered(DialId, Provider, Result<Answered, Unanswered>),
}

impl Messenger {
    /// Connects to the process that listens at an address, to `node` if one is named. Does not wait: [`Event::Dialed`]
    /// reports the outcome.
    pub fn dial(&mut self, address: &Address, node: Option<&str>) -> DialId {
        self.dials += 1;
        let id = DialId(self.dials);
        let (address, node) = (address.clone(), node.map(str::to_owned));
        let local = self.local.clone();
        self.in_background(
            move || Arrived::Reached(id, Reached::new(&address, node.as_deref(), &local)),
            |error| Arrived::Reached(id, Err(error)),
        );
        id
    }

    /// The same, but waits for the peer, for each of its steps as long as the options allow. Other links wait
    /// meanwhile.
    ///
    /// # Errors
    /// [`control::Error`].
    pub fn dial_now(
        &mut self,
        address: &Address,
        node: Option<&str>,
    ) -> Result<LinkId, control::Error> {
        let session = dial(address, node, &self.local, &mut self.transports.queues())?;
        self.begin(session, self.options.requests)
    }

    /// Joins a peer that has called. Does not wait.
    ///
    /// # Errors
    /// [`control::Error`].
    pub fn accept(&mut self, caller: Caller) -> Result<LinkId, control::Error> {
        let session = caller.establish(&mut self.transports.queues())?;
        // The peer chooses how requests travel.
        self.begin(session, RequestWay::Message)
    }

    /// Makes a link, unless the peer takes messages that are too short for anything.
    fn begin(
        &mut self,
        session: PeerSession,
        requests: RequestWay,
    ) -> Result<LinkId, control::Error> {
        let provider = session.choice().provider;
        let queue = self.transports.queue(provider);
        let longest = queue.and_then(|queue| queue.message_bytes(session.endpoint()));
        if longest.is_some_and(|(longest, _)| longest >= PEER_MESSAGE_MIN) {
            return Ok(self.adopt(session, requests));
        }
        let peer = session.identity().to_string();
        if let Some(queue) = self.transports.queue(provider) {
            session.close(queue);
        }
        let what = "size of buffers";
        let source = fabric::Error::Peer { what };
        Err(control::Error::Endpoint { peer, source })
    }

    /// Works in a separate thread; if it cannot be started, `failed` converts the error into the work's result.
    fn in_background(
        &self,
        work: impl FnOnce() -> Arrived + Send + 'static,
        failed: impl FnOnce(control::Error) -> Arrived,
    ) {
        let waker = self.waker.clone();
        if let Err(source) = pmem::start_thread("tako-dial", move || waker.pass(work())) {
            let peer = "a thread that dials".to_owned();
            self.waker
                .pass(failed(control::Error::System { peer, source }));
        }
    }

    /// Continues with a reached peer.
    fn offer(&mut self, dial: DialId, reached: Reached) -> Result<(), control::Error> {
        let offered = reached.offer(&mut self.transports.queues())?;
        let (provider, endpoint) = (offered.provider(), offered.endpoint());
        self.in_background(
            move || Arrived::Answered(dial, provider, offered.exchange()),
            |error| Arrived::Answered(dial, provider, Err(Unanswered { endpoint, error })),
        );
        Ok(())
    }

    /// Takes what other threads have passed.
    pub(super) fn join_arrived(&mut self, events: &mut Vec<Event>) {
        let mut arrived = std::mem::take(&mut self.arrived);
        for arrived in arrived.drain(..) {
            match arrived {
                Arrived::Caller(caller) => {
                    let accepted = self.accept(caller);
                    events.push(Event::Accepted(accepted));
                }
                Arrived::Reached(dial, reached) => {
                    let offered = reached.and_then(|reached| self.offer(dial, reached));
                    if let Err(error) = offered {
                        let outcome = Err(error);
                        events.push(Event::Dialed { dial, outcome });
                    }
                }
                Arrived::Answered(dial, provider, answered) => {
                    let outcome = self.complete(provider, answered);
                    events.push(Event::Dialed { dial, outcome });
                }
            }
        }
        self.arrived = arrived;
    }

    fn complete(
        &mut self,
        provider: Provider,
        answered: Result<Answered, Unanswered>,
    ) -> Result<LinkId, control::Error> {
        match answered {
            Ok(answered) => {
                let session = answered.accept(&mut self.transports.queues())?;
                self.begin(session, self.options.requests)
            }
            Err(Unanswered { endpoint, error }) => {
                if let Some(queue) = self.transports.queue(provider) {
                    queue.close(endpoint);
                }
                Err(error)
            }
        }
    }

    /// Checks whether peers have joined their sides, or are late.
    pub(super) fn look_at_unready(&mut self, events: &mut Vec<Event>) {
        let slots = self.unready.clone();
        for slot in slots {
            self.hear(slot, events);
        }
    }

    /// Takes a peer's message over the control connection.
    pub(super) fn hear(&mut self, slot: usize, events: &mut Vec<Event>) {
        loop {
            let Some(link) = self.links[slot].link.as_deref_mut() else {
                return;
            };
            let provider = self.lanes[link.lane].provider;
            let Some(queue) = self.transports.queue(provider) else {
                return;
            };
            match link.receive(queue, &mut self.refusals) {
                Ok(None) => return,
                Ok(Some(Note::Ready)) => {
                    link.is_ready = true;
                    self.unready.retain(|&other| other != slot);
                }
                // Messages that the peer sent before may be in the transport still, which reports the end behind them.
                Ok(Some(Note::Goodbye)) if link.is_ready => {
                    link.is_closed_there = true;
                    queue.suspect(link.session.endpoint());
                    return link.unwatch(&self.blocker);
                }
                Ok(Some(Note::Goodbye)) => return self.end(slot, Reason::Closed, events),
                Ok(Some(Note::Exported { name, region }))
                    if let Some(memory) = pull::Memory::named(name) =>
                {
                    let reads_at_once = queue.capabilities().immediate_reads;
                    let lane = &mut self.lanes[link.lane];
                    // Without buffers to read into, this side never says that it can pull.
                    if reads_at_once || lane.transfers(&self.transports).is_some() {
                        link.stream.pulls.imported(memory, region);
                        self.fall_behind(slot);
                    }
                }
                Ok(Some(Note::Exported { name, region })) if name == SLOTS_NAME => {
                    let window = queue.peer_window(link.session.endpoint());
                    let imported =
                        window.map_or(Ok(()), |window| link.stream.slots.imported(region, window));
                    if let Err(what) = imported {
                        return self.end(slot, Reason::Fragment(what), events);
                    }
                }
                Ok(Some(Note::Exported { name, region })) => {
                    link.exported(name, region);
                    let link = LinkId::new(slot, self.links[slot].generation);
                    events.push(Event::Exported { link, name });
                    self.expects_until = None;
                }
                Ok(Some(Note::Told(bytes))) => {
                    let link = LinkId::new(slot, self.links[slot].generation);
                    events.push(Event::Told { link, bytes });
                }
                Ok(Some(Note::Revoked { name })) => link.revoked(name),
                // Memory is exported until its link or its key ends. The link goes on without an arena.
                Ok(Some(Note::Released { .. } | Note::NotImported { .. })) => {}
                Err(
                    control::Error::Closed { .. }
                    | control::Error::Refused { .. }
                    | control::Error::System { .. },
                ) if link.is_ready => {
                    // Only the connection has ended. The transport reports when the endpoint has.
                    queue.suspect(link.session.endpoint());
                    return link.unwatch(&self.blocker);
                }
                Err(error) => return self.end(slot, error.into(), events),
            }
        }
    }
}
