//! Messages that have come, and the buffers they are in.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pmem::LINE;

use super::endpoint::Endpoint;
use super::{Options, Queue};
use crate::transport::Arrival;
use crate::{Capabilities, EndpointId, Event, Failure, Origin, Piece, Registration, Supply};

/// A message. Its buffer is the queue's again, and its sender has a credit more, once it is dropped, in whichever thread.
pub struct Message {
    /// Who sent it.
    pub origin: Origin,
    /// The 32 bits beside it.
    pub immediate: Option<u32>,
    offset: u64,
    length: u32,
    ticket: u32,
    returns: Arc<Returns>,
}

impl Message {
    /// Its bytes.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Copies bytes out of it.
    ///
    /// # Panics
    /// If it has no such range.
    pub fn read(&self, offset: u32, into: &mut [u8]) {
        let inside = offset <= self.length() && into.len() <= (self.length() - offset) as usize;
        assert!(
            inside,
            "offset {offset} and {} bytes are outside of {self:?}",
            into.len()
        );
        let region = self.returns.memory.region();
        region.read(self.offset + u64::from(offset), into);
    }

    /// All of it, copied.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length() as usize];
        self.read(0, &mut bytes);
        bytes
    }

    /// It, to be named in a request; nothing if it has no data.
    pub fn piece(&self) -> Option<Piece<'_>> {
        (self.length > 0).then(|| self.returns.memory.piece(self.offset, self.length))
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (origin, immediate) = (self.origin, self.immediate);
        write!(
            f,
            "Message({origin:?}, {immediate:?}, {} bytes)",
            self.length()
        )
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // In this order for everybody: who sees the second, or one that another thread stored over it, sees the first.
        // (The processors that Tako runs on show a store to all others at once, so that the release is enough.)
        self.returns.dropped[self.ticket as usize].store(true, Ordering::Release);
        self.returns.some.store(true, Ordering::Release);
    }
}

/// What messages share: where they are, and how their readers say that they are done with them. A message is known by
/// its *ticket*. No lock is taken, and nothing is locked in the caches, for each of them.
pub struct Returns {
    memory: Registration,
    /// By ticket: its message was dropped.
    dropped: Box<[AtomicBool]>,
    /// Whether there may be one.
    some: AtomicBool,
}

/// The queue's side of it.
pub struct Tickets {
    returns: Arc<Returns>,
    free: Vec<u32>,
    /// Those that messages have.
    held: Vec<Held>,
}

#[derive(Clone, Copy)]
struct Held {
    ticket: u32,
    origin: Origin,
    buffer: Option<Supply>,
}

impl Tickets {
    /// For so many messages at once, in this memory.
    pub fn new(memory: Registration, count: u32) -> Tickets {
        Tickets {
            returns: Arc::new(Returns {
                memory,
                dropped: (0..count).map(|_| AtomicBool::new(false)).collect(),
                some: AtomicBool::new(false),
            }),
            free: (0..count).rev().collect(),
            held: Vec::new(),
        }
    }

    /// The memory for messages.
    pub fn memory(&self) -> &Registration {
        &self.returns.memory
    }

    /// One whose message was dropped.
    #[inline]
    fn dropped(&mut self, from: &mut usize) -> Option<Held> {
        while let Some(held) = self.held.get(*from).copied() {
            let dropped = &self.returns.dropped[held.ticket as usize];
            if dropped.load(Ordering::Acquire) {
                dropped.store(false, Ordering::Relaxed);
                self.held.swap_remove(*from);
                self.free.push(held.ticket);
                return Some(held);
            }
            *from += 1;
        }
        None
    }
}

/// Buffers that each endpoint has: those of its window, and those that counts of credits may be in.
pub fn endpoint_buffers(options: &Options, capabilities: &Capabilities) -> u32 {
    options.window + capabilities.credit_buffers
}

/// Bytes that a buffer takes in the memory for messages: whole lines.
pub fn buffer_bytes(options: &Options, capabilities: &Capabilities) -> u64 {
    let group = match capabilities.multicast {
        crate::Multicast::Lossy { bytes } => bytes,
        crate::Multicast::None => 0,
    };
    let longest = options.message_bytes.max(group) + capabilities.header_bytes;
    u64::from(longest).next_multiple_of(LINE as u64)
}

impl Queue {
    /// Gives the buffers that a new endpoint's messages will need to the transport.
    pub(super) fn supply_endpoint(&mut self, place: usize) {
        let endpoint = &mut self.endpoints[place];
        if std::mem::replace(&mut endpoint.supplied, true) {
            return;
        }
        let count = endpoint_buffers(&self.options, &self.capabilities);
        let first = place as u32 * count;
        for number in first..first + count {
            self.supply(Supply::Endpoint(number));
        }
    }

    #[inline]
    pub(super) fn supply(&mut self, buffer: Supply) {
        let size = self.buffer_bytes;
        let offset = size * self.index(buffer);
        let piece = self.tickets.memory().piece(offset, size as u32);
        self.transport.supply(buffer, piece);
    }

    #[inline]
    fn index(&self, buffer: Supply) -> u64 {
        match buffer {
            Supply::Group(number) => number.into(),
            Supply::Endpoint(number) => u64::from(self.options.group_buffers) + u64::from(number),
        }
    }

    #[inline]
    pub(super) fn receive(
        &mut self,
        origin: Origin,
        arrival: Option<Arrival>,
        immediate: Option<u32>,
        events: &mut Vec<Event>,
    ) {
        self.counters.received += 1;
        let buffer = arrival.map(|arrival| arrival.buffer);
        let is_wanted = match origin {
            Origin::Endpoint(id) => self.admit(id, events),
            Origin::Group(_) => true,
        };
        // There is a ticket for each message that all peers may send.
        let ticket = if is_wanted {
            self.tickets.free.pop()
        } else {
            None
        };
        let Some(ticket) = ticket else {
            return self.take_back(origin, buffer);
        };
        self.tickets.held.push(Held {
            ticket,
            origin,
            buffer,
        });
        let (offset, length) = arrival.map_or((0, 0), |arrival| {
            let start = self.buffer_bytes * self.index(arrival.buffer);
            (start + u64::from(arrival.start), arrival.length)
        });
        events.push(Event::Message(Message {
            origin,
            immediate,
            offset,
            length,
            ticket,
            returns: self.tickets.returns.clone(),
        }));
    }

    /// Counts a message of an endpoint; whether it is to be told.
    #[inline]
    fn admit(&mut self, id: EndpointId, events: &mut Vec<Event>) -> bool {
        let window = self.options.window;
        let Some(endpoint) = self.known(id) else {
            return false;
        };
        let had_credit = endpoint.hold(window);
        if !had_credit {
            self.lose(id, Failure::Violation, events);
        }
        had_credit && self.is_open(id)
    }

    /// The endpoint, open or closed, unless its place has another one by now.
    #[inline]
    fn known(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        let found = self.endpoints.get_mut(id.place());
        found.filter(|endpoint| endpoint.id(id.place()) == id)
    }

    /// A message is done with: its buffer is the transport's again.
    fn take_back(&mut self, origin: Origin, buffer: Option<Supply>) {
        if let Some(buffer) = buffer {
            self.supply(buffer);
        }
        if let Origin::Endpoint(id) = origin
            && let Some(endpoint) = self.known(id)
        {
            endpoint.release();
        }
    }

    /// Gives the buffers of messages that were dropped back to the transport, and their credits to the senders.
    #[inline]
    pub(super) fn take_returned(&mut self) {
        // Taken first, and then looked for: who drops one later sets it again.
        let some = &self.tickets.returns.some;
        if some.load(Ordering::Relaxed) && some.swap(false, Ordering::AcqRel) {
            self.take_dropped();
        }
    }

    fn take_dropped(&mut self) {
        let mut from = 0;
        while let Some(held) = self.tickets.dropped(&mut from) {
            self.take_back(held.origin, held.buffer);
            if let Origin::Endpoint(id) = held.origin {
                self.owing.push(id);
            }
        }
        let mut owing = std::mem::take(&mut self.owing);
        for id in owing.drain(..) {
            if self.is_open(id) && self.endpoints[id.place()].credits.owes() {
                let told = self.endpoints[id.place()].credits.tell();
                self.counters.credits_told += 1;
                self.transport.credit(id, told, false);
            }
        }
        self.owing = owing;
    }
}
