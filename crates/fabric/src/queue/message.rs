//! Messages that have come, and the buffers they are in.

use std::fmt;

use pmem::{LINE, Lender, Loan};
use smallvec::SmallVec;

use super::endpoint::Endpoint;
use super::{Options, Queue};
use crate::transport::Arrival;
use crate::{
    Capabilities, EndpointId, Event, Failure, Origin, Piece, Registration, Report, Supply,
};

/// A message. Its buffer is the queue's again, and its sender has a credit more, once it is dropped, in whichever thread.
pub struct Message {
    /// Who sent it.
    pub origin: Origin,
    /// The 32 bits beside it.
    pub immediate: Option<u32>,
    offset: u64,
    length: u32,
    /// The memory for messages, under the message's *ticket*: who drops it says so by a store.
    memory: Loan<Registration>,
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
        let region = self.memory.region();
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
        (self.length > 0).then(|| self.memory.piece(self.offset, self.length))
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

/// How many messages that are still held are looked at in a poll. Who holds many waits a few polls for one to be taken back.
const LOOKS: usize = 16;

/// The messages that there can be at once. Each is known by its *ticket*: the place of its buffer in the memory, and beyond
/// these a number of its own if it has none.
pub struct Tickets {
    memory: Lender<Registration>,
    /// How many buffers there are, of which these are for groups.
    buffers: u32,
    group_buffers: u32,
    /// Tickets for messages without a buffer.
    bare: Vec<u32>,
    /// Those that messages have.
    held: Vec<Held>,
    /// Where to look next among them.
    next: usize,
}

#[derive(Clone, Copy)]
struct Held {
    ticket: u32,
    origin: Origin,
}

impl Tickets {
    /// For as many messages at once as there are buffers, and as many without.
    pub fn new(memory: Registration, buffers: u32, group_buffers: u32) -> Tickets {
        Tickets {
            memory: Lender::new(memory, buffers * 2),
            buffers,
            group_buffers,
            bare: (buffers..buffers * 2).rev().collect(),
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

    /// Where a buffer is, if each has so many bytes.
    #[inline]
    fn piece(&self, buffer: Supply, bytes: u64) -> Piece<'_> {
        let offset = bytes * u64::from(self.ticket(buffer));
        self.memory.piece(offset, bytes as u32)
    }

    /// How many have to be looked at to find all that were dropped.
    #[inline]
    fn all(&self) -> usize {
        self.held.len()
    }

    /// Goes through those that are held, but not through more than `looks` whose messages are still there, and gives those
    /// whose messages were dropped to `returned`.
    #[inline]
    fn take_dropped(&mut self, mut looks: usize, mut returned: impl FnMut(Held)) {
        if self.next >= self.held.len() {
            self.next = 0;
        }
        // Those before `kept` are held, those from there to `at` are not.
        let (mut kept, mut at) = (self.next, self.next);
        while looks > 0
            && let Some(&held) = self.held.get(at)
        {
            if self.memory.is_lent(held.ticket) {
                self.held[kept] = held;
                kept += 1;
                looks -= 1;
            } else {
                if held.ticket >= self.buffers {
                    self.bare.push(held.ticket);
                }
                returned(held);
            }
            at += 1;
        }
        // The places of those that are not held any more go to the last ones.
        let last = self.held.len() - (at - kept).min(self.held.len() - at);
        self.held.copy_within(last.., kept);
        self.held.truncate(self.held.len() - (at - kept));
        self.next = kept;
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
        let piece = self.tickets.piece(buffer, self.buffer_bytes);
        self.transport.supply(buffer, piece);
    }

    /// Takes messages from the beginning of `reports`, as far as they are one endpoint's, have data, and are to be told; and
    /// says how many.
    #[inline(never)]
    pub(super) fn receive_run(&mut self, reports: &[Report], events: &mut Vec<Event>) -> usize {
        let Some(&Report::Received { origin, .. }) = reports.first() else {
            return 0;
        };
        let Origin::Endpoint(id) = origin else {
            return 0;
        };
        let found = self.endpoints.get_mut(id.place());
        let Some(endpoint) = found.filter(|endpoint| endpoint.is_open(id)) else {
            return 0;
        };
        let room = endpoint.room_to_hold(self.options.window);
        let (tickets, size) = (&mut self.tickets, self.buffer_bytes);
        let mut run = 0;
        for report in reports.iter().take(room as usize) {
            let Report::Received {
                origin: Origin::Endpoint(of),
                buffer: Some(arrival),
                immediate,
            } = report
            else {
                break;
            };
            if *of != id {
                break;
            }
            let ticket = tickets.ticket(arrival.buffer);
            tickets.held.push(Held { ticket, origin });
            events.push(Event::Message(Message {
                origin,
                immediate: *immediate,
                offset: size * u64::from(ticket) + u64::from(arrival.start),
                length: arrival.length,
                memory: tickets.memory.lend(ticket),
            }));
            run += 1;
        }
        endpoint.hold(run);
        self.counters.received += u64::from(run);
        run as usize
    }

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
            None => self.tickets.bare.pop(),
        };
        let Some(ticket) = ticket.filter(|_| is_wanted) else {
            self.tickets
                .bare
                .extend(ticket.filter(|_| arrival.is_none()));
            return self.take_back(origin, arrival.map(|arrival| arrival.buffer));
        };
        self.tickets.held.push(Held { ticket, origin });
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
            memory: self.tickets.memory.lend(ticket),
        }));
    }

    /// Counts a message of an endpoint; whether it is to be told.
    #[inline]
    fn admit(&mut self, id: EndpointId, events: &mut Vec<Event>) -> bool {
        let window = self.options.window;
        let Some(endpoint) = known(&mut self.endpoints, id) else {
            return false;
        };
        let has_room = endpoint.room_to_hold(window) > 0;
        endpoint.hold(1);
        if !has_room {
            self.lose(id, Failure::Violation, events);
            return false;
        }
        endpoint.is_open(id)
    }

    /// A message is done with: its buffer is the transport's again.
    #[inline]
    fn take_back(&mut self, origin: Origin, buffer: Option<Supply>) {
        if let Some(buffer) = buffer {
            self.supply(buffer);
        }
        if let Origin::Endpoint(id) = origin
            && let Some(endpoint) = known(&mut self.endpoints, id)
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
        self.tickets.next = 0;
        self.take_dropped(self.tickets.all());
    }

    fn take_dropped(&mut self, looks: usize) {
        // Mostly one comes after the other from the same endpoint.
        let mut run: Option<(EndpointId, u32)> = None;
        let mut of_groups = SmallVec::<[u32; 4]>::new();
        let (group_buffers, buffers) = (self.tickets.group_buffers, self.tickets.buffers);
        let (emptied, endpoints) = (&mut self.emptied, &mut self.endpoints);
        let owing = &mut self.owing;
        self.tickets.take_dropped(looks, |held| {
            if held.ticket < group_buffers {
                of_groups.push(held.ticket);
            } else if held.ticket < buffers {
                emptied.push(held.ticket - group_buffers);
            }
            match (held.origin, &mut run) {
                (Origin::Endpoint(id), Some((of, count))) if *of == id => *count += 1,
                (Origin::Endpoint(id), _) => {
                    let before = run.replace((id, 1));
                    release(endpoints, owing, before);
                }
                (Origin::Group(_), _) => {}
            }
        });
        release(endpoints, owing, run);
        for number in of_groups {
            self.supply(Supply::Group(number));
        }
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

/// The endpoint, open or closed, unless its place has another one by now.
#[inline]
fn known(endpoints: &mut [Endpoint], id: EndpointId) -> Option<&mut Endpoint> {
    let found = endpoints.get_mut(id.place());
    found.filter(|endpoint| endpoint.id(id.place()) == id)
}

/// So many messages of an endpoint were dropped.
#[inline]
fn release(
    endpoints: &mut [Endpoint],
    owing: &mut Vec<EndpointId>,
    run: Option<(EndpointId, u32)>,
) {
    let Some((id, count)) = run else { return };
    if let Some(endpoint) = known(endpoints, id) {
        endpoint.release(count);
        if endpoint.owes() {
            owing.push(id);
        }
    }
}
