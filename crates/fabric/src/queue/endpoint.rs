//! A queue's state of one endpoint.

use std::time::Instant;

use super::QueueOptions;
use crate::credits::Credits;
use crate::outstanding::Outstanding;
use crate::{
    Capabilities, EndpointId, Error, Limits, Parameters, Refusal, Remote, Request, Source, Work,
    WorkRequest,
};

/// One endpoint, or a place for one. Its lines are its own, as its queue's are.
#[repr(align(128))]
pub struct Endpoint {
    generation: u16,
    state: State,
    /// Its buffers for messages are with the transport. They stay with the place.
    pub supplied: bool,
    /// The longest message that the peer can hold, in bytes.
    message_bytes: u32,
    /// The longest inline message, too.
    inline_bytes: usize,
    pub outstanding: Outstanding,
    pub credits: Credits,
    /// Requests since the last signaled one.
    unsignaled: u32,
    /// Messages of the peer that have not been dropped.
    held: u32,
}

#[derive(PartialEq, Eq)]
enum State {
    Free,
    Offered,
    Ready,
}

impl Endpoint {
    /// A place without an endpoint.
    pub fn free() -> Endpoint {
        Endpoint {
            generation: 0,
            state: State::Free,
            supplied: false,
            message_bytes: 0,
            inline_bytes: 0,
            outstanding: Outstanding::new(0),
            credits: Credits::new(0, 0),
            unsignaled: 0,
            held: 0,
        }
    }

    /// Whether it can become another endpoint: buffers that are held would be missing there.
    pub fn is_free(&self) -> bool {
        self.state == State::Free && self.held == 0
    }

    #[inline]
    pub fn is_open(&self, id: EndpointId) -> bool {
        self.state != State::Free && id == self.id(id.place())
    }

    #[inline]
    pub fn is_ready(&self, id: EndpointId) -> bool {
        self.state == State::Ready && id == self.id(id.place())
    }

    #[inline]
    pub fn id(&self, place: usize) -> EndpointId {
        EndpointId::new(place, self.generation)
    }

    /// A new endpoint in this place.
    pub fn begin(&mut self, place: usize) -> EndpointId {
        self.state = State::Offered;
        self.generation = self.generation.wrapping_add(1);
        self.id(place)
    }

    /// The peer can hold so much.
    pub fn establish(&mut self, peer: Limits, options: &QueueOptions, capabilities: &Capabilities) {
        let (own_window, outstanding) = (options.window, options.outstanding);
        self.state = State::Ready;
        self.message_bytes = peer.message_bytes;
        self.inline_bytes = peer.message_bytes.min(capabilities.inline_bytes) as usize;
        self.outstanding = Outstanding::new(outstanding as usize);
        self.credits = Credits::new(peer.window, own_window);
        self.unsignaled = 0;
    }

    /// Bytes of the longest message that the peer takes, and of the longest inline one.
    pub fn message_bytes(&self) -> (u32, u32) {
        (self.message_bytes, self.inline_bytes as u32)
    }

    /// The place is free again, once the messages that are held have been dropped.
    pub fn end(&mut self) {
        self.state = State::Free;
        self.outstanding = Outstanding::new(0);
        self.credits = Credits::new(0, 0);
    }

    /// A message has come; whether the peer had a credit for it.
    #[inline]
    pub fn hold(&mut self, window: u32) -> bool {
        self.held += 1;
        self.held <= window
    }

    /// So many messages were dropped.
    #[inline]
    pub fn release(&mut self, count: u32) {
        self.held = self.held.saturating_sub(count);
        self.credits.give_back(count);
    }

    /// Whether the peer should receive its credits by a separate message.
    #[inline]
    pub fn owes(&self) -> bool {
        self.credits.owes(self.held == 0)
    }

    /// Whether it can be executed at all.
    #[inline]
    pub fn validate(
        &self,
        id: EndpointId,
        capabilities: &Capabilities,
        operation: &Work<'_>,
    ) -> Result<(), Refusal> {
        match operation {
            Work::Send {
                from: Source::Inline(bytes),
                ..
            } if bytes.len() <= self.inline_bytes => Ok(()),
            _ => self.validate_any(id, capabilities, operation),
        }
    }

    #[inline(never)]
    fn validate_any(
        &self,
        id: EndpointId,
        capabilities: &Capabilities,
        operation: &Work<'_>,
    ) -> Result<(), Refusal> {
        let source = match operation {
            Work::Write { from, .. } | Work::Send { from, .. } => Some(from),
            _ => None,
        };
        let pieces = match (source, operation) {
            (Some(Source::Pieces(pieces)), _) => pieces.len(),
            (_, Work::Read { into, .. }) => into.len(),
            _ => 0,
        };
        if pieces > capabilities.pieces as usize {
            return Err(Refusal::Invalid("it has too many pieces"));
        }
        if let Some(Source::Inline(bytes)) = source
            && bytes.len() > capabilities.inline_bytes as usize
        {
            return Err(Refusal::Invalid("it is too long to be given by value"));
        }
        if let Work::Send { from, .. } = operation
            && from.length() > self.message_bytes.into()
        {
            return Err(Refusal::Invalid("it is longer than the peer's buffers"));
        }
        validate_remote(id, capabilities, operation)
    }

    /// Whether the request can be outstanding now, and if it is a message, received. Nothing is taken if not.
    #[inline]
    pub fn has_room(&mut self, operation: &Work<'_>) -> bool {
        !self.outstanding.is_full() && (!operation.is_message() || self.credits.take(Instant::now))
    }

    /// Adds a request that there is room for.
    #[inline]
    pub fn take<'a>(&mut self, request: &'a WorkRequest<'a>, signal_every: u32) -> Request<'a> {
        let operation = &request.operation;
        let returned = match operation {
            Work::Send { .. } => self.credits.tell(),
            // Not every transport can send it with a write: the earlier report does no harm.
            _ => self.credits.told(),
        };
        let (id, notify) = (request.id, request.notify);
        let sequence = self.outstanding.add(id, notify, request.keep);
        self.unsignaled += 1;
        // A full list must shrink by itself; and only a signaled atomic returns its former value.
        let signaled = request.notify
            || self.unsignaled >= signal_every
            || self.outstanding.is_full()
            || matches!(
                operation,
                Work::CompareAndSwap { .. } | Work::FetchAndAdd { .. }
            );
        if signaled {
            self.unsignaled = 0;
        }
        Request {
            sequence,
            signaled,
            operation,
            returned,
        }
    }
}

fn validate_remote(
    id: EndpointId,
    capabilities: &Capabilities,
    operation: &Work<'_>,
) -> Result<(), Refusal> {
    match operation.remote() {
        Some(range) => validate_range(id, capabilities, range),
        None => Ok(()),
    }
}

/// Whether a range of a peer's memory can be accessed so.
pub fn validate_range(
    id: EndpointId,
    capabilities: &Capabilities,
    (remote, access, length): (Remote, crate::Access, u64),
) -> Result<(), Refusal> {
    let end = remote.offset.checked_add(length);
    let atomic = access.allows(crate::Access::ATOMIC);
    if remote.region.endpoint != id {
        Err(Refusal::Invalid("the memory is another endpoint's"))
    } else if !remote.region.access.allows(access) {
        Err(Refusal::Invalid("the peer does not allow it"))
    } else if end.is_none_or(|end| end - remote.region.start > remote.region.length) {
        Err(Refusal::Invalid("it is outside of the peer's memory"))
    } else if length > capabilities.transfer_bytes.into() {
        Err(Refusal::Invalid("it is too long"))
    } else if atomic && !capabilities.atomics {
        Err(Refusal::Invalid("there are no atomics"))
    } else if atomic && !remote.offset.is_multiple_of(8) {
        Err(Refusal::Invalid(
            "an atomic's offset must be a multiple of 8",
        ))
    } else {
        Ok(())
    }
}

/// A queue's additions to a transport's parameters: window and longest message, 4 bytes each, least significant first.
const LIMITS_BYTES: usize = 8;
/// The largest window and the longest message that make sense.
pub const WINDOW_MAX: u32 = 1 << 16;
const MESSAGE_MAX: u32 = 1 << 24;

/// Adds the limits of this side's buffers for the peer.
pub fn add_limits(parameters: &mut Parameters, limits: Limits) {
    parameters.bytes.extend(limits.window.to_le_bytes());
    parameters.bytes.extend(limits.message_bytes.to_le_bytes());
}

/// Takes it off again, and validates it.
pub fn take_limits(parameters: &mut Parameters) -> Result<Limits, Error> {
    let wrong = Error::Peer {
        what: "size of buffers",
    };
    let Some(start) = parameters.bytes.len().checked_sub(LIMITS_BYTES) else {
        return Err(wrong);
    };
    let limits = parameters.bytes.split_off(start);
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| limits[at + index]));
    let (window, message_bytes) = (word(0), word(4));
    if !(1..=WINDOW_MAX).contains(&window) || message_bytes > MESSAGE_MAX {
        return Err(wrong);
    }
    Ok(Limits {
        outstanding: 0,
        window,
        message_bytes,
    })
}
