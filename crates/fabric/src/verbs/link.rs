//! One endpoint: a queue pair, and the requests in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::verbs::{Data, Piece as Part, QueuePair, Request as Entry, SendList, Verb};
use pmem::Region;
use smallvec::SmallVec;

use super::wire::{HEADER_BYTES, Kind, header};
use super::{Common, INLINE_BYTES, Memory, PATIENCE, wire};
use crate::credits::ASK_AFTER;
use crate::{Buffer, EndpointId, Error, Piece, Request, Source, Work};

/// Requests of the transport's own that are outstanding at an endpoint, at most: counts of credits, probes, the goodbye.
/// So many buffers of the peer they can take before it polls.
pub const OWN_MAX: u32 = 4;

/// Requests that are handed to the adapter by one call, at most.
pub const BATCH: usize = 16;

/// Bytes of a place in the link's own memory: a header, or what an atomic found.
const PLACE: u64 = 8;

/// Subject of a completion. The number of the endpoint, which is not reused soon, is in the upper half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// A request of the queue's.
    Request,
    /// One of the transport's own.
    Own,
    /// A datagram to a group.
    Group,
    /// Receive buffer of a message.
    Buffer,
}

const TAGS: [Tag; 4] = [Tag::Request, Tag::Own, Tag::Group, Tag::Buffer];
const NUMBER_BITS: u32 = 30;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

/// The identity of a request to the adapter; of the number its last 30 bits.
pub fn identity(endpoint: EndpointId, tag: Tag, number: u64) -> u64 {
    u64::from(endpoint.0) << 32 | (tag as u64) << NUMBER_BITS | number & NUMBER_MASK
}

/// Decodes a request's identity, as [`identity`] encodes it.
pub fn parse_identity(identity: u64) -> (EndpointId, Tag, u32) {
    let endpoint = EndpointId((identity >> 32) as u32);
    let tag = TAGS[(identity >> NUMBER_BITS & 3) as usize];
    (endpoint, tag, (identity & NUMBER_MASK) as u32)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It waits for its peer's parameters.
    Made,
    /// It is joined to its peer's.
    Ready,
    /// It has ended; the queue knows.
    Over,
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Import {
    pub key: u32,
    pub base: u64,
}

/// Requests to be handed to the adapter.
struct Outbox {
    list: SendList,
    /// The adapter has not taken all.
    refused: bool,
}

impl Outbox {
    fn push(&mut self, request: &Entry<'_>) {
        if self.list.is_full() {
            self.hand_over();
        }
        if !self.refused {
            self.list.push(request);
        }
    }

    /// Room is kept for everything that may be outstanding: an adapter that does not take a request has failed. Later
    /// ones are not handed over: nothing in the middle may be missing.
    fn hand_over(&mut self) -> bool {
        self.refused = self.refused || self.list.post(|_| ()).is_err();
        !self.refused
    }
}

pub struct Link {
    pub id: EndpointId,
    pub state: State,
    outbox: Outbox,
    pub imports: Vec<Import>,
    /// Slots for the headers of messages, then for results of atomics, by the sequence of the request; then for headers
    /// of own messages. Requests complete in order, so a slot is free when it is needed again.
    places: Arc<::verbs::Registration>,
    outstanding: u64,
    /// The sequence of the request that was posted last.
    newest: u64,
    own_posted: u64,
    own_outstanding: u32,
    /// The count of credits that waits for room.
    pending: Option<(u32, Kind)>,
    /// When the peer may be asked again.
    ask_at: Option<Instant>,
    ask_after: Duration,
    /// Something has succeeded since the last check.
    pub heard: bool,
    /// Buffers of requests that had not ended when the link was closed: the adapter accesses them until its queue pair is gone, so
    /// they are dropped last.
    pub kept: Vec<Buffer>,
}

impl Link {
    /// A link of so many requests outstanding.
    pub fn new(
        common: &Common,
        id: EndpointId,
        pair: &Arc<QueuePair>,
        outstanding: u32,
    ) -> Result<Link, Error> {
        let outstanding = u64::from(outstanding.max(1));
        let bytes = (2 * outstanding + u64::from(OWN_MAX)) * PLACE;
        let region = Region::memory(bytes, false)?;
        let rights = ::verbs::Rights::LOCAL;
        let places =
            ::verbs::Registration::new(&common.domain, &region, 0, region.length(), rights)?;
        Ok(Link {
            id,
            state: State::Made,
            outbox: Outbox {
                list: SendList::new(pair, BATCH),
                refused: false,
            },
            imports: Vec::new(),
            places,
            outstanding,
            newest: 0,
            own_posted: 0,
            own_outstanding: 0,
            pending: None,
            ask_at: None,
            ask_after: ASK_AFTER,
            heard: true,
            kept: Vec::new(),
        })
    }

    /// Requests that the queue pair of a link must hold.
    pub fn depth_of(outstanding: u32) -> u32 {
        outstanding.max(1) + OWN_MAX
    }

    /// Those of this one.
    pub fn depth(&self) -> u32 {
        self.outstanding as u32 + OWN_MAX
    }

    pub fn pair(&self) -> &QueuePair {
        self.outbox.list.pair()
    }

    pub fn connect(&mut self, peer: &::verbs::Peer) -> Result<(), Error> {
        self.pair().connect(peer, &PATIENCE)?;
        self.state = State::Ready;
        Ok(())
    }

    /// Whether nothing is to be handed over.
    pub fn is_idle(&self) -> bool {
        self.outbox.list.is_empty()
    }

    /// Hands all to the adapter, by one call; whether it has taken everything so far.
    pub fn hand_over(&mut self) -> bool {
        self.outbox.hand_over()
    }

    /// Takes a request, to be handed over; not one with memory that is not registered here.
    pub fn post(&mut self, request: &Request<'_>) -> bool {
        self.newest = request.sequence;
        match *request.operation {
            Work::Send { from, immediate } => self.post_message(request, from, immediate),
            _ => self.post_one_sided(request),
        }
    }

    fn post_message(
        &mut self,
        request: &Request<'_>,
        from: Source<'_>,
        immediate: Option<u32>,
    ) -> bool {
        let header = header(Kind::Message, request.returned);
        let mut bytes = [0; (HEADER_BYTES + INLINE_BYTES) as usize];
        let mut parts: Parts<'_> = SmallVec::new();
        let data = match from {
            Source::Inline(data) if self.pair().inline_max() >= HEADER_BYTES => {
                let end = header.len() + data.len();
                bytes[..header.len()].copy_from_slice(&header);
                bytes[header.len()..end].copy_from_slice(data);
                Data::Inline(&bytes[..end])
            }
            _ => {
                let at = request.sequence % self.outstanding * PLACE;
                self.places.region().write(at, &header);
                parts.push(self.places.piece(at, HEADER_BYTES));
                match from {
                    Source::Pieces(pieces) if !add_parts(&mut parts, pieces) => return false,
                    // Inline data is empty where none is possible.
                    _ => Data::Pieces(&parts),
                }
            }
        };
        let work = Verb::Send { data, immediate };
        self.outbox.push(&entry_of(self.id, request, work));
        true
    }

    fn post_one_sided(&mut self, request: &Request<'_>) -> bool {
        let Some((number, offset, ..)) = request.remote() else {
            return false;
        };
        // The queue knows the import.
        let Import { key, base } = self.imports[number as usize];
        let remote = ::verbs::Remote { address: base, key }.plus(offset);
        let found = || {
            let place = self.outstanding + request.sequence % self.outstanding;
            self.places.piece(place * PLACE, PLACE as u32)
        };
        let mut parts: Parts<'_> = SmallVec::new();
        let work = match *request.operation {
            Work::Read { into, .. } if add_parts(&mut parts, into) => Verb::Read {
                into: &parts,
                remote,
            },
            Work::Write {
                from, immediate, ..
            } => {
                let data = match from {
                    Source::Inline([]) => Data::Pieces(&[]),
                    Source::Inline(bytes) => Data::Inline(bytes),
                    Source::Pieces(pieces) if add_parts(&mut parts, pieces) => Data::Pieces(&parts),
                    Source::Pieces(_) => return false,
                };
                Verb::Write {
                    data,
                    remote,
                    immediate,
                }
            }
            Work::CompareAndSwap { expected, new, .. } => Verb::CompareAndSwap {
                into: found(),
                remote,
                expected,
                new,
            },
            Work::FetchAndAdd { addend, .. } => Verb::FetchAndAdd {
                into: found(),
                remote,
                add: addend,
            },
            Work::Read { .. } | Work::Send { .. } => return false,
        };
        self.outbox.push(&entry_of(self.id, request, work));
        true
    }

    /// The whole sequence of a request of which the last bits are known: it is among those posted last.
    pub fn sequence(&self, number: u32) -> u64 {
        self.newest - (self.newest.wrapping_sub(number.into()) & NUMBER_MASK).min(self.newest)
    }

    /// An atomic's former value.
    pub fn found(&self, sequence: u64) -> u64 {
        let place = self.outstanding + sequence % self.outstanding;
        self.places.region().load(place * PLACE)
    }

    /// Sends the peer a count of credits, as soon as there is room: a later count includes an earlier one. Nothing gets
    /// lost on the way, so a peer that does not answer is asked less and less often: each question takes a buffer of
    /// the peer until it polls.
    pub fn credit(&mut self, returned: u32, ask: bool) {
        let mut kind = if ask { Kind::Ask } else { Kind::Credit };
        if ask {
            let now = Instant::now();
            if self.ask_at.is_some_and(|at| now < at) {
                return;
            }
            self.ask_at = Some(now + self.ask_after);
            self.ask_after *= 2;
        }
        if matches!(self.pending, Some((_, Kind::Ask))) {
            kind = Kind::Ask;
        }
        self.pending = Some((returned, kind));
        self.send_pending();
    }

    /// Something has come from the peer.
    pub fn answered(&mut self) {
        self.ask_at = None;
        self.ask_after = ASK_AFTER;
    }

    /// One is kept for the goodbye, and one for probes.
    fn send_pending(&mut self) {
        if self.own_outstanding + 2 < OWN_MAX
            && let Some((returned, kind)) = self.pending.take()
        {
            self.send_own(kind, returned);
        }
    }

    /// Reports that this side is closed, after everything that was posted.
    pub fn send_goodbye(&mut self) -> bool {
        self.pending = None;
        self.send_own(Kind::Goodbye, 0);
        self.hand_over()
    }

    /// Probes the peer, unless an answer is expected, or has arrived.
    pub fn probe(&mut self) {
        if !std::mem::take(&mut self.heard) && self.own_outstanding == 0 {
            // With no bytes, no key is checked.
            let operation = Verb::Write {
                data: Data::Pieces(&[]),
                remote: NOWHERE,
                immediate: None,
            };
            self.post_own(operation);
        }
    }

    fn send_own(&mut self, kind: Kind, returned: u32) {
        let header = header(kind, returned);
        let places = self.places.clone();
        let piece;
        let data = if self.pair().inline_max() >= HEADER_BYTES {
            Data::Inline(&header)
        } else {
            let number = 2 * self.outstanding + self.own_posted % u64::from(OWN_MAX);
            places.region().write(number * PLACE, &header);
            piece = [places.piece(number * PLACE, HEADER_BYTES)];
            Data::Pieces(&piece)
        };
        self.post_own(Verb::Send {
            data,
            immediate: None,
        });
    }

    fn post_own(&mut self, operation: Verb<'_>) {
        self.outbox.push(&Entry {
            id: identity(self.id, Tag::Own, self.own_posted),
            signaled: true,
            fenced: false,
            operation,
        });
        self.own_outstanding += 1;
        self.own_posted += 1;
    }

    /// An own request has ended; whether none is left.
    pub fn own_ended(&mut self) -> bool {
        self.own_outstanding = self.own_outstanding.saturating_sub(1);
        if self.state == State::Ready {
            self.send_pending();
        }
        self.own_outstanding == 0
    }

    /// Data that the peer needs.
    pub fn parameters(&self) -> Vec<u8> {
        wire::parameters(&self.pair().peer())
    }
}

fn entry_of<'a>(id: EndpointId, request: &Request<'_>, operation: Verb<'a>) -> Entry<'a> {
    Entry {
        id: identity(id, Tag::Request, request.sequence),
        signaled: request.signaled,
        // No later request depends on the result of an atomic or a read.
        fenced: false,
        operation,
    }
}

const NOWHERE: ::verbs::Remote = ::verbs::Remote { address: 0, key: 0 };

type Parts<'a> = SmallVec<[Part<'a>; ::verbs::PIECES_MAX]>;

/// Adds pieces of memory, but for empty ones, which adapters take for very long ones. Whether all are registered here.
pub fn add_parts<'a>(parts: &mut Parts<'a>, pieces: &[Piece<'a>]) -> bool {
    for piece in pieces.iter().filter(|piece| piece.length > 0) {
        let end = piece.offset.saturating_add(piece.length.into());
        let held = piece.registration.held::<Memory>();
        let Some(memory) = held.filter(|memory| end <= memory.length) else {
            return false;
        };
        parts.push(memory.local.piece(piece.offset, piece.length));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_say_what_they_were_made_of() {
        let endpoint = EndpointId(0xffff_0003);
        for tag in TAGS {
            for number in [0, 1, NUMBER_MASK] {
                let said = parse_identity(identity(endpoint, tag, number));
                assert_eq!(said, (endpoint, tag, number as u32));
            }
        }
        let (.., number) = parse_identity(identity(endpoint, Tag::Own, 1 << 40 | 7));
        assert_eq!(number, 7);
    }
}
