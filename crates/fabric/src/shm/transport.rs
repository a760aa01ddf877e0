//! The endpoints of one thread.

use std::hint::spin_loop;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use pmem::Region;

use super::doorbell::Doorbell;
use super::endpoint::{self, Endpoint, Returned};
use super::ring::{Arrived, Incoming, RingLayout};
use super::watch::Process;
use super::{Holder, Inner, Shm, refusal};
use crate::queue::KEPT;
use crate::{
    Access, Arrival, Capabilities, EndpointId, Error, Export, Failure, Key, Limits, Origin,
    Parameters, Peer, Piece, Registration, Remote, Report, Request, Role, Supply, Transport, Work,
};

/// Messages of one endpoint that are taken before those of the next.
const TURN: usize = 16;
/// Every so many polls everything is checked, whether a peer reported a change or not: a malicious one could undo
/// another's report.
const LOOK_EVERY: u32 = 256;
/// Endpoints with lines that are fetched ahead. With more, it takes so long until one's next turn that they may have
/// been evicted, or fetched before their senders stored to them, which would have to get them back.
const PREFETCHED: usize = 8;
const NOWHERE: u32 = u32::MAX;

/// The endpoints of one thread. Its lines are its own, as a [`Queue`](crate::Queue)'s are.
#[repr(align(128))]
pub struct Thread {
    device: Arc<Inner>,
    capabilities: Capabilities,
    bell: Doorbell,
    /// Its count of changes at the last check.
    changes: u64,
    /// Polls since everything was checked.
    polls: u32,
    /// Offered, and not yet joined.
    prepared: Vec<(EndpointId, Incoming)>,
    /// Those that are polled, one after the other in memory.
    endpoints: Vec<Endpoint>,
    /// Index in `endpoints`, or [`NOWHERE`], by an endpoint's index.
    places: Vec<u32>,
    /// Indexes of those with peers that have new data and may sleep.
    touched: Vec<usize>,
    /// Completions, to be reported by the next poll.
    ended: Vec<Report>,
    supplies: Supplies,
}

impl Thread {
    pub(super) fn new(device: Arc<Inner>) -> Result<Thread, Error> {
        Ok(Thread {
            device,
            capabilities: Shm::description(),
            bell: Doorbell::new()?,
            changes: 0,
            polls: 0,
            prepared: Vec::new(),
            endpoints: Vec::new(),
            places: Vec::new(),
            touched: Vec::with_capacity(KEPT),
            ended: Vec::with_capacity(KEPT),
            supplies: Supplies::default(),
        })
    }

    #[inline]
    fn get(&mut self, endpoint: EndpointId) -> Option<&mut Endpoint> {
        let index = *self.places.get(endpoint.place())?;
        let peer = self.endpoints.get_mut(index as usize)?;
        (peer.id == endpoint).then_some(peer)
    }

    fn get_or_error(&mut self, endpoint: EndpointId) -> Result<&mut Endpoint, Error> {
        self.get(endpoint).ok_or(Error::NoEndpoint)
    }

    /// Checks everything beside the messages.
    #[cold]
    fn inspect(&mut self, reports: &mut Vec<Report>) {
        self.polls = 0;
        let news = self.endpoints.iter_mut().filter_map(Endpoint::inspect);
        reports.extend(news);
    }

    /// Requests end when they are posted; one report serves for all up to an atomic that found something.
    fn end(&mut self, endpoint: EndpointId, sequence: u64, value: u64) {
        if let Some(Report::Done {
            endpoint: last,
            sequence: through,
            value: found @ 0,
        }) = self.ended.last_mut()
            && *last == endpoint
        {
            (*through, *found) = (sequence, value);
            return;
        }
        self.ended.push(Report::Done {
            endpoint,
            sequence,
            value,
        });
    }
}

impl Transport for Thread {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prepare(&mut self, endpoint: EndpointId, limits: Limits) -> Result<Parameters, Error> {
        let layout = RingLayout::new(limits.window, limits.message_bytes).ok_or(Error::Peer {
            what: "size of buffers",
        })?;
        let incoming = Incoming::new(layout)?;
        let parameters = endpoint::describe(&incoming, &self.bell)?;
        self.prepared.push((endpoint, incoming));
        Ok(parameters)
    }

    fn establish(&mut self, endpoint: EndpointId, _role: Role, peer: Peer) -> Result<(), Error> {
        let prepared = self.prepared.iter().position(|(id, _)| *id == endpoint);
        let prepared = prepared.ok_or(Error::NoEndpoint)?;
        let (outgoing, bell) = endpoint::attach(peer.parameters)?;
        let process = match peer.process.and_then(Process::other) {
            Some(process) => {
                let watch = self.device.watcher.watch(&process, &self.bell)?;
                Some((process, watch))
            }
            None => None,
        };
        let (_, incoming) = self.prepared.swap_remove(prepared);
        if self.places.len() <= endpoint.place() {
            self.places.resize(endpoint.place() + 1, NOWHERE);
        }
        self.places[endpoint.place()] = self.endpoints.len() as u32;
        self.endpoints.push(Endpoint {
            id: endpoint,
            incoming,
            may_import: outgoing.join(),
            outgoing,
            bell,
            credits: Returned::default(),
            is_touched: false,
            end: None,
            is_over: false,
            imports: Vec::new(),
            process,
        });
        Ok(())
    }

    fn close(&mut self, endpoint: EndpointId) {
        self.prepared.retain(|(id, incoming)| {
            let stays = *id != endpoint;
            if !stays {
                incoming.close();
            }
            stays
        });
        if self.get(endpoint).is_none() {
            return;
        }
        let index = std::mem::replace(&mut self.places[endpoint.place()], NOWHERE) as usize;
        self.endpoints.swap_remove(index).close();
        if let Some(moved) = self.endpoints.get(index) {
            self.places[moved.id.place()] = index as u32;
        }
        self.ended.retain(|report| {
            !matches!(report, Report::Done { endpoint: of, .. } | Report::Failed { endpoint: of, .. } if *of == endpoint)
        });
    }

    fn export(
        &mut self,
        endpoint: EndpointId,
        registration: &Registration,
    ) -> Result<Export, Error> {
        let device = self.device.clone();
        let peer = self.get_or_error(endpoint)?;
        let descriptor = registration.descriptor();
        if descriptor.access == Access::LOCAL {
            let memory = None;
            return Ok(Export { descriptor, memory });
        }
        let holder = match &peer.process {
            Some((process, _)) => Holder::Process(process.clone()),
            None => Holder::Endpoint(peer.incoming.head()),
        };
        let (region, writable) = (registration.region(), descriptor.access != Access::READ);
        let shared = match registration.mark() {
            Some(mark) => region.share_marked(writable, mark),
            None => region.share(writable),
        };
        let memory = match shared {
            Ok(memory) => Some(memory),
            Err(pmem::Error::NotShared) => {
                let reason = "other processes cannot see it; use a file or memory";
                return Err(refusal(registration.region(), reason));
            }
            Err(error) => return Err(Error::Region(error)),
        };
        // Recorded before it is passed on, and under a lock with withdrawal: every holder is known there.
        device.note_export(registration, holder)?;
        Ok(Export { descriptor, memory })
    }

    fn import(&mut self, endpoint: EndpointId, export: Export) -> Result<u32, Error> {
        self.get_or_error(endpoint)?.import(export)
    }

    fn supply(&mut self, buffer: Supply, piece: Piece<'_>) {
        // There are no groups, so their buffers are not wanted.
        if let Supply::Endpoint(number) = buffer {
            self.supplies.add(number, piece);
        }
    }

    fn supply_again<'a>(&mut self, numbers: &[u32], _piece: &'a dyn Fn(u32) -> Piece<'a>) {
        self.supplies.free.extend_from_slice(numbers);
    }

    fn post(&mut self, endpoint: EndpointId, request: Request<'_>) {
        // No request after a failed one is executed.
        let Some(peer) = self.get(endpoint).filter(|peer| !peer.is_over) else {
            return;
        };
        let outcome = match *request.operation {
            Work::Send {
                ref from,
                immediate,
            } => peer.send(from, immediate, request.returned).map(|()| 0),
            _ => peer.carry_out(&request),
        };
        peer.is_over = outcome.is_err();
        if request.operation.is_message() {
            let news = peer.news_of_credits();
            if !std::mem::replace(&mut peer.is_touched, true) {
                self.touched.push(endpoint.place());
            }
            if let Some(news) = news {
                self.ended.push(news);
            }
        }
        let sequence = request.sequence;
        match outcome {
            Ok(value) if request.signaled => self.end(endpoint, sequence, value),
            Ok(_) => {}
            Err(failure) => self.ended.push(Report::Failed {
                endpoint,
                sequence,
                failure,
            }),
        }
    }

    fn load(
        &mut self,
        endpoint: EndpointId,
        from: Remote,
        take: &mut dyn FnMut(&Region, u64),
    ) -> bool {
        let Some(peer) = self.get(endpoint).filter(|peer| !peer.is_over) else {
            return false;
        };
        let is_there = peer.load(from, take);
        if !is_there {
            peer.is_over = true;
            self.ended.push(Report::Lost {
                endpoint,
                failure: Failure::MemoryGone,
            });
        }
        is_there
    }

    fn credit(&mut self, endpoint: EndpointId, returned: u32, ask: bool) {
        if let Some(peer) = self.get(endpoint) {
            peer.credit(returned, ask);
        }
    }

    fn submit(&mut self) {
        if self.touched.is_empty() {
            return;
        }
        // Between the headers and the checks of the bells.
        fence(Ordering::SeqCst);
        for place in self.touched.drain(..) {
            let index = self.places[place];
            if let Some(peer) = self.endpoints.get_mut(index as usize) {
                peer.is_touched = false;
                peer.bell.wake();
            }
        }
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        reports.append(&mut self.ended);
        let changes = self.bell.changes();
        self.polls += 1;
        if changes != self.changes || self.polls >= LOOK_EVERY {
            self.changes = changes;
            self.inspect(reports);
        }
        let prefetches = self.endpoints.len() <= PREFETCHED;
        for peer in &mut self.endpoints {
            if peer.incoming.has_come() || peer.end.is_some() {
                receive(peer, &mut self.supplies, reports, prefetches);
            }
        }
    }

    fn look(&mut self, times: u32) -> bool {
        for _ in 0..times {
            let has_come = |peer: &Endpoint| peer.incoming.has_come();
            if self.endpoints.iter().any(has_come)
                || !self.ended.is_empty()
                || self.bell.changes() != self.changes
            {
                return true;
            }
            spin_loop();
        }
        false
    }

    fn sleep(&mut self, timeout: Duration) {
        let Thread {
            endpoints, ended, ..
        } = self;
        let timeout = timeout.min(self.device.nap);
        self.bell.sleep(timeout, || {
            !ended.is_empty() || endpoints.iter().any(Endpoint::has_news)
        });
        // Whatever it was that has come.
        self.polls = LOOK_EVERY;
    }

    fn arm(&mut self, timeout: Duration) -> Duration {
        self.bell.block();
        match !self.ended.is_empty() || self.endpoints.iter().any(Endpoint::has_news) {
            true => Duration::ZERO,
            false => timeout.min(self.device.nap),
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.bell.event()]
    }

    fn disarm(&mut self, ready: bool) {
        self.bell.awake();
        if ready {
            self.bell.drain();
        }
        self.polls = LOOK_EVERY;
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        for (_, incoming) in &self.prepared {
            incoming.close();
        }
        for peer in self.endpoints.drain(..) {
            peer.close();
        }
    }
}

/// Takes messages out of a ring, and reports its end after the last one.
fn receive(
    peer: &mut Endpoint,
    supplies: &mut Supplies,
    reports: &mut Vec<Report>,
    prefetches: bool,
) {
    if peer.is_over {
        return;
    }
    let mut taken = 0;
    while taken < TURN {
        match receive_one(peer, supplies, reports) {
            Ok(true) => taken += 1,
            Ok(false) => {
                // Not with the messages: what they describe in the peer's memory can be read until the end is reported.
                if taken == 0
                    && let Some(failure) = peer.end
                    && !peer.incoming.has_come()
                {
                    lose(peer, failure, reports);
                }
                break;
            }
            Err(failure) => return lose(peer, failure, reports),
        }
    }
    if taken == TURN && prefetches {
        // There are probably more: their lines arrive while these are processed.
        peer.incoming.prefetch(TURN as u32);
    }
    if let Some(news) = peer.news_of_credits() {
        reports.push(news);
    }
}

fn lose(peer: &mut Endpoint, failure: Failure, reports: &mut Vec<Report>) {
    peer.is_over = true;
    reports.push(Report::Lost {
        endpoint: peer.id,
        failure,
    });
}

/// Whether there was one, and a buffer for it.
#[inline]
fn receive_one(
    peer: &mut Endpoint,
    supplies: &mut Supplies,
    reports: &mut Vec<Report>,
) -> Result<bool, Failure> {
    let Some(arrived) = peer.incoming.peek()? else {
        return Ok(false);
    };
    let header = arrived.header;
    let buffer = if header.length == 0 {
        None
    } else {
        let Some(buffer) = supplies.take(&arrived, peer) else {
            return Ok(false);
        };
        Some(Arrival {
            buffer,
            start: 0,
            length: header.length,
        })
    };
    peer.incoming.advance();
    reports.push(Report::Received {
        origin: Origin::Endpoint(peer.id),
        buffer,
        immediate: arrived.immediate,
    });
    Ok(true)
}

/// Buffers that wait for messages.
#[derive(Default)]
struct Supplies {
    /// Their numbers. The last one given is the first one used, since it is in the caches.
    free: Vec<u32>,
    /// Locations of buffers by number.
    places: Vec<BufferLocation>,
    /// The memory that they are in: not many, and mostly one.
    memory: Vec<(Key, Region)>,
}

/// Where a buffer is.
#[derive(Clone, Copy, Default)]
struct BufferLocation {
    memory: u32,
    length: u32,
    offset: u64,
}

impl Supplies {
    #[inline]
    fn add(&mut self, number: u32, piece: Piece<'_>) {
        let key = piece.registration.key();
        let known = self.memory.iter().position(|(of, _)| *of == key);
        let memory = known.unwrap_or_else(|| self.add_memory(piece.registration));
        if self.places.len() <= number as usize {
            self.places
                .resize(number as usize + 1, BufferLocation::default());
        }
        self.places[number as usize] = BufferLocation {
            memory: memory as u32,
            length: piece.length,
            offset: piece.offset,
        };
        self.free.push(number);
    }

    #[cold]
    fn add_memory(&mut self, registration: &Registration) -> usize {
        let region = registration.region().clone();
        self.memory.push((registration.key(), region));
        self.memory.len() - 1
    }

    /// Copies a message into a buffer. There is one for each message that a peer may send; if there is none, the message
    /// stays where it is.
    #[inline]
    fn take(&mut self, arrived: &Arrived, peer: &Endpoint) -> Option<Supply> {
        let number = *self.free.last()?;
        let place = &self.places[number as usize];
        if place.length < arrived.header.length {
            return None;
        }
        self.free.pop();
        let (_, into) = &self.memory[place.memory as usize];
        peer.incoming.copy_out(arrived, into, place.offset);
        Some(Supply::Endpoint(number))
    }
}
