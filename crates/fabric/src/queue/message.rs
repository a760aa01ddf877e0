//! Messages that have come, and the buffers they are in.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pmem::LINE;

use super::endpoint::Endpoint;
use super::{Queue, QueueOptions};
use crate::transport::Arrival;
use crate::{Capabilities, EndpointId, Event, Failure, Origin, Piece, Registration, Supply};

/// A received message.
/// Its buffer is the queue's again, and its sender has a credit more, once it is dropped, in whichever thread.
pub struct Message {
    /// Sender of the message.
    pub origin: Origin,
    /// The 32 bits beside it.
    pub immediate: Option<u32>,
    offset: u64,
    length: u32,
    ticket: u32,
    shared: Arc<Shared>,
}

/// What messages share with their queue, which may end before them.
struct Shared {
    memory: Registration,
    /// Whether there is a message, by ticket. Only the queue sets it, only dropping the message clears it.
    is_held: Box<[AtomicBool]>,
}

impl Drop for Message {
    fn drop(&mut self) {
        // Release: the message has been read before its buffer is used again.
        self.shared.is_held[self.ticket as usize].store(false, Ordering::Release);
    }
}

impl Message {
    /// Returns the length of the message in bytes.
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
        let region = self.shared.memory.region();
        region.read(self.offset + u64::from(offset), into);
    }

    /// Appends all of it to `into`.
    pub fn append_to(&self, into: &mut Vec<u8>) {
        let region = self.shared.memory.region();
        region.append_to(self.offset, self.length as usize, into);
    }

    /// All of it, copied.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    /// It, to be named in a request; nothing if it has no data.
    pub fn piece(&self) -> Option<Piece<'_>> {
        (self.length > 0).then(|| self.shared.memory.piece(self.offset, self.length))
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

/// Number of held messages that are examined in a poll. With many held messages, taking one back needs a few polls.
const LOOKS: usize = 16;

/// The messages that can exist at once. Each is known by its *ticket*: the index of its buffer in the memory, and
/// beyond these a separate number if it has none.
pub struct Tickets {
    shared: Arc<Shared>,
    /// Number of buffers, including those for groups.
    buffers: u32,
    group_buffers: u32,
    /// Tickets for messages without a buffer.
    bare: Vec<u32>,
    /// Number of these that groups may have. The others are for endpoints, which lose nothing.
    bare_for_groups: u32,
    /// Those that messages have.
    held: Vec<HeldMessage>,
    /// Index of the next check among them.
    next: usize,
}

#[derive(Clone, Copy)]
struct HeldMessage {
    ticket: u32,
    origin: Origin,
}

impl Tickets {
    /// For as many messages at once as there are buffers, and as many without.
    pub fn new(memory: Registration, buffers: u32, group_buffers: u32) -> Tickets {
        let is_held = (0..buffers * 2).map(|_| AtomicBool::new(false)).collect();
        Tickets {
            shared: Arc::new(Shared { memory, is_held }),
            buffers,
            group_buffers,
            bare: (buffers..buffers * 2).rev().collect(),
            bare_for_groups: group_buffers,
            held: Vec::with_capacity(buffers as usize),
            next: 0,
        }
    }

    #[inline]
    fn ticket(&self, buffer: Supply) -> u32 {
        match buffer {
            Supply::Group(number) => number,
            Supply::Endpoint(number) => self.group_buffers + number,
        }
    }

    #[inline]
    fn buffer(&self, ticket: u32) -> Option<Supply> {
        if ticket >= self.buffers {
            None
        } else if ticket < self.group_buffers {
            Some(Supply::Group(ticket))
        } else {
            Some(Supply::Endpoint(ticket - self.group_buffers))
        }
    }

    /// Where a buffer is, if each has so many bytes.
    #[inline]
    fn piece(&self, buffer: Supply, bytes: u64) -> Piece<'_> {
        let offset = bytes * u64::from(self.ticket(buffer));
        self.shared.memory.piece(offset, bytes as u32)
    }

    /// Number to examine to find all dropped ones.
    #[inline]
    fn all(&self) -> usize {
        self.held.len()
    }

    /// A dropped message. `looks` is the number of held ones that may be examined.
    #[inline]
    fn dropped(&mut self, looks: &mut usize) -> Option<HeldMessage> {
        while *looks > 0 {
            let Some(&held) = self.held.get(self.next) else {
                if self.held.is_empty() {
                    return None;
                }
                self.next = 0;
                continue;
            };
            if !self.shared.is_held[held.ticket as usize].load(Ordering::Acquire) {
                self.held.swap_remove(self.next);
                if held.ticket >= self.buffers {
                    self.give_back(held.ticket, held.origin);
                }
                return Some(held);
            }
            self.next += 1;
            *looks -= 1;
        }
        None
    }

    /// A ticket for a message without a buffer.
    fn take_bare(&mut self, origin: Origin) -> Option<u32> {
        if let Origin::Group(_) = origin {
            self.bare_for_groups = self.bare_for_groups.checked_sub(1)?;
        }
        self.bare.pop()
    }

    fn give_back(&mut self, bare: u32, origin: Origin) {
        self.bare_for_groups += u32::from(matches!(origin, Origin::Group(_)));
        self.bare.push(bare);
    }
}

/// Buffers that each endpoint has: those of its window, and those that counts of credits may be in.
pub fn endpoint_buffers(options: &QueueOptions, capabilities: &Capabilities) -> u32 {
    options.window + capabilities.credit_buffers
}

/// Bytes that a buffer takes in the memory for messages: whole lines.
pub fn buffer_bytes(options: &QueueOptions, capabilities: &Capabilities) -> u64 {
    let group = match capabilities.multicast {
        crate::Multicast::Lossy { bytes, .. } => bytes,
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
        let piece = self.tickets.piece(buffer, self.buffer_bytes);
        self.transport.supply(buffer, piece);
    }

    #[inline]
    pub(super) fn receive(
        &mut self,
        origin: Origin,
        arrival: Option<&Arrival>,
        immediate: Option<u32>,
        events: &mut Vec<Event>,
    ) {
        self.counters.received += 1;
        let is_wanted = match origin {
            Origin::Endpoint(id) => self.admit(id, events),
            Origin::Group(_) => true,
        };
        let ticket = match arrival {
            Some(arrival) => Some(self.tickets.ticket(arrival.buffer)),
            // There is one for each message that all peers may send.
            None => self.tickets.take_bare(origin),
        };
        let Some(ticket) = ticket.filter(|_| is_wanted) else {
            if let Some(bare) = ticket.filter(|_| arrival.is_none()) {
                self.tickets.give_back(bare, origin);
            }
            return self.take_back(origin, arrival.map(|arrival| arrival.buffer));
        };
        self.tickets.held.push(HeldMessage { ticket, origin });
        let shared = self.tickets.shared.clone();
        shared.is_held[ticket as usize].store(true, Ordering::Relaxed);
        let (offset, length) = match arrival {
            Some(arrival) => {
                let start = self.buffer_bytes * u64::from(ticket);
                (start + u64::from(arrival.start), arrival.length)
            }
            None => (0, 0),
        };
        events.push(Event::Message(Message {
            origin,
            immediate,
            offset,
            length,
            ticket,
            shared,
        }));
    }

    /// Counts a message of an endpoint; returns whether it is to be reported.
    #[inline]
    fn admit(&mut self, id: EndpointId, events: &mut Vec<Event>) -> bool {
        let window = self.options.window;
        let Some(endpoint) = self.known(id) else {
            return false;
        };
        if !endpoint.hold(window) {
            self.lose(id, Failure::Violation, events);
            return false;
        }
        endpoint.is_open(id)
    }

    /// The endpoint, open or closed, unless its place has another one by now.
    #[inline]
    fn known(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        let found = self.endpoints.get_mut(id.place());
        found.filter(|endpoint| endpoint.id(id.place()) == id)
    }

    /// So many messages of an endpoint were dropped.
    #[inline]
    fn release(&mut self, run: Option<(EndpointId, u32)>) {
        let Some((id, count)) = run else { return };
        if let Some(endpoint) = self.known(id) {
            endpoint.release(count);
            if endpoint.owes() {
                self.owing.push(id);
            }
        }
    }

    /// A message is done with: its buffer is the transport's again.
    #[inline]
    fn take_back(&mut self, origin: Origin, buffer: Option<Supply>) {
        if let Some(buffer) = buffer {
            self.supply(buffer);
        }
        if let Origin::Endpoint(id) = origin
            && let Some(endpoint) = self.known(id)
        {
            endpoint.release(1);
        }
    }

    /// Gives the buffers of messages that were dropped back to the transport, and their credits to the senders: of some
    /// of them, if there are many.
    #[inline]
    pub(super) fn take_returned(&mut self) {
        let looks = self.tickets.all().min(LOOKS);
        if looks > 0 {
            self.take_dropped(looks);
        }
    }

    /// The same of all of them.
    pub(super) fn take_all_returned(&mut self) {
        self.take_dropped(self.tickets.all());
    }

    fn take_dropped(&mut self, mut looks: usize) {
        // Mostly one comes after the other from the same endpoint.
        let mut run: Option<(EndpointId, u32)> = None;
        while let Some(held) = self.tickets.dropped(&mut looks) {
            match self.tickets.buffer(held.ticket) {
                Some(Supply::Endpoint(number)) => self.emptied.push(number),
                Some(buffer) => self.supply(buffer),
                None => {}
            }
            match (held.origin, &mut run) {
                (Origin::Endpoint(id), Some((of, count))) if *of == id => *count += 1,
                (Origin::Endpoint(id), _) => {
                    let before = run.replace((id, 1));
                    self.release(before);
                }
                (Origin::Group(_), _) => {}
            }
        }
        self.release(run);
        if !self.emptied.is_empty() {
            let (tickets, size) = (&self.tickets, self.buffer_bytes);
            let piece = |number| tickets.piece(Supply::Endpoint(number), size);
            self.transport.supply_again(&self.emptied, &piece);
            self.emptied.clear();
        }
        if !self.owing.is_empty() {
            self.tell_owing();
        }
    }

    /// Those that may have too few credits left.
    fn tell_owing(&mut self) {
        let mut owing = std::mem::take(&mut self.owing);
        for id in owing.drain(..) {
            if self.is_open(id) && self.endpoints[id.place()].owes() {
                let told = self.endpoints[id.place()].credits.tell();
                self.counters.credits_told += 1;
                self.transport.credit(id, told, false);
            }
        }
        self.owing = owing;
    }
}
