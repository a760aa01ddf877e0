//! Messages that have come, and the buffers they are in.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
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
    place: Option<Place>,
    returns: Arc<Returns>,
}

struct Place {
    memory: Registration,
    buffer: Supply,
    offset: u64,
    length: u32,
}

impl Message {
    /// Its bytes.
    pub fn length(&self) -> u32 {
        self.place.as_ref().map_or(0, |place| place.length)
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
        if let Some(place) = &self.place {
            place
                .memory
                .region()
                .read(place.offset + u64::from(offset), into);
        }
    }

    /// All of it, copied.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length() as usize];
        self.read(0, &mut bytes);
        bytes
    }

    /// It, to be named in a request; nothing if it has no data.
    pub fn piece(&self) -> Option<Piece<'_>> {
        let place = self.place.as_ref()?;
        Some(place.memory.piece(place.offset, place.length))
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
        let buffer = self.place.as_ref().map(|place| place.buffer);
        self.returns.messages.lock().push((self.origin, buffer));
    }
}

/// Messages whose readers are done with them.
#[derive(Default)]
pub struct Returns {
    messages: Mutex<Vec<(Origin, Option<Supply>)>>,
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

    pub(super) fn supply(&mut self, buffer: Supply) {
        let size = buffer_bytes(&self.options, &self.capabilities);
        let offset = size * self.index(buffer);
        let piece = self.receive.piece(offset, size as u32);
        self.transport.supply(buffer, piece);
    }

    fn index(&self, buffer: Supply) -> u64 {
        match buffer {
            Supply::Group(number) => number.into(),
            Supply::Endpoint(number) => u64::from(self.options.group_buffers) + u64::from(number),
        }
    }

    pub(super) fn receive(
        &mut self,
        origin: Origin,
        arrival: Option<Arrival>,
        immediate: Option<u32>,
        events: &mut Vec<Event>,
    ) {
        self.counters.received += 1;
        let size = buffer_bytes(&self.options, &self.capabilities);
        let place = arrival.map(|arrival| Place {
            memory: self.receive.clone(),
            buffer: arrival.buffer,
            offset: size * self.index(arrival.buffer) + u64::from(arrival.start),
            length: arrival.length,
        });
        // From here on its buffer comes back by itself, whatever becomes of the message.
        let message = Message {
            origin,
            immediate,
            place,
            returns: self.returns.clone(),
        };
        if let Origin::Endpoint(id) = origin {
            let window = self.options.window;
            let Some(endpoint) = self.known(id) else {
                return;
            };
            let had_credit = endpoint.hold(window);
            if !self.is_open(id) {
                return;
            }
            if !had_credit {
                return self.lose(id, Failure::Violation, events);
            }
        }
        events.push(Event::Message(message));
    }

    /// The endpoint, open or closed, unless its place has another one by now.
    fn known(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        let found = self.endpoints.get_mut(id.place());
        found.filter(|endpoint| endpoint.id(id.place()) == id)
    }

    /// Gives the buffers of messages that were dropped back to the transport, and their credits to the senders.
    pub(super) fn take_returned(&mut self) {
        let returned = {
            let mut messages = self.returns.messages.lock();
            if messages.is_empty() {
                return;
            }
            std::mem::take(&mut *messages)
        };
        for (origin, buffer) in &returned {
            if let Some(buffer) = *buffer {
                self.supply(buffer);
            }
            let Origin::Endpoint(id) = *origin else {
                continue;
            };
            if let Some(endpoint) = self.known(id) {
                endpoint.release();
            }
        }
        for (origin, _) in &returned {
            if let Origin::Endpoint(id) = *origin
                && self.is_open(id)
                && self.endpoints[id.place()].credits.owes()
            {
                let told = self.endpoints[id.place()].credits.tell();
                self.counters.credits_told += 1;
                self.transport.credit(id, told, false);
            }
        }
    }
}
