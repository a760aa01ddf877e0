//! Requests to a peer, and their results.

use crate::{Buffer, Failure, Message, Piece, Remote};

/// The caller's number of a request: unique among those that are outstanding at one endpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WrId(pub u64);

/// One peer, as one queue knows it. Numbers are not reused for as long as a queue lives, except after 65 536 others at
/// the same index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EndpointId(pub u32);

impl EndpointId {
    pub(crate) fn new(place: usize, generation: u16) -> EndpointId {
        EndpointId(u32::from(generation) << 16 | place as u32)
    }

    /// Its place among the endpoints of its queue: less than 65 536, used again when it is closed.
    #[inline]
    pub fn place(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// A group that this queue has joined.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupId(pub u32);

/// The data of a request.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Inline: it may be changed as soon as the request is posted. At most `inline_bytes`.
    Inline(&'a [u8]),
    /// Registered memory, one piece after the other; it must stay as it is until the request is done.
    Pieces(&'a [Piece<'a>]),
}

impl Source<'_> {
    /// Returns the total length in bytes.
    #[inline]
    pub fn length(&self) -> u64 {
        match self {
            Source::Inline(bytes) => bytes.len() as u64,
            Source::Pieces(pieces) => total(pieces),
        }
    }
}

/// Bytes in all pieces.
pub(crate) fn total(pieces: &[Piece<'_>]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.length)).sum()
}

/// Action of a work request, with its arguments.
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
    /// Copies a peer's memory into pieces of one's own.
    Read {
        /// Destination of the data.
        into: &'a [Piece<'a>],
        /// Remote memory to read.
        from: Remote,
    },
    /// Copies into a peer's memory.
    Write {
        /// Source of the data.
        from: Source<'a>,
        /// Destination of the data.
        to: Remote,
        /// With it the peer gets a message without data, these 32 bits, after the data (O3: they name node and slot).
        immediate: Option<u32>,
    },
    /// Replaces a word of 8 bytes if it is `expected`; the completion has the former value.
    CompareAndSwap {
        /// A multiple of 8.
        at: Remote,
        /// Value to compare the memory with.
        expected: u64,
        /// Value to store if the comparison succeeds.
        new: u64,
    },
    /// Adds to a word of 8 bytes, wrapping; the completion has the former value.
    FetchAndAdd {
        /// A multiple of 8.
        at: Remote,
        /// Number that is added to the word, modulo 2^64.
        addend: u64,
    },
    /// Message to the peer.
    Send {
        /// Its data: at most `message_bytes`.
        from: Source<'a>,
        /// 32 bits beside it.
        immediate: Option<u32>,
    },
}

impl Work<'_> {
    /// Whether it takes a buffer of the receiver, and so a credit.
    #[inline]
    pub fn is_message(&self) -> bool {
        match self {
            Work::Send { .. } => true,
            Work::Write { immediate, .. } => immediate.is_some(),
            _ => false,
        }
    }

    /// Location in the peer's memory, the access, and the number of bytes.
    #[inline]
    pub(crate) fn remote(&self) -> Option<(Remote, crate::Access, u64)> {
        use crate::Access;
        match *self {
            Work::Read { into, from } => Some((from, Access::READ, total(into))),
            Work::Write { from, to, .. } => Some((to, Access::WRITE, from.length())),
            Work::CompareAndSwap { at, .. } | Work::FetchAndAdd { at, .. } => {
                Some((at, Access::ATOMIC, 8))
            }
            Work::Send { .. } => None,
        }
    }
}

/// A request to an endpoint: its number, and the work to do.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest<'a> {
    /// Number that the caller gives to the request; its completion carries it.
    pub id: WrId,
    /// Whether the caller wants a report when it is done. Failures are always reported.
    pub notify: bool,
    /// Operation to execute.
    pub operation: Work<'a>,
    /// A buffer that belongs to the request until it is done.
    pub keep: Option<&'a Buffer>,
}

impl<'a> WorkRequest<'a> {
    /// A request with a reported completion.
    #[inline]
    pub fn new(id: u64, operation: Work<'a>) -> WorkRequest<'a> {
        WorkRequest {
            id: WrId(id),
            notify: true,
            operation,
            keep: None,
        }
    }

    /// The same, but only a failure is reported.
    #[inline]
    pub fn quiet(mut self) -> WorkRequest<'a> {
        self.notify = false;
        self
    }

    /// The same, with a buffer that belongs to it until it is done.
    #[inline]
    pub fn keeping(mut self, buffer: &'a Buffer) -> WorkRequest<'a> {
        self.keep = Some(buffer);
        self
    }
}

/// Why a request was not taken. Nothing of it has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// As many requests as allowed are outstanding, or the receiver has no buffer free: poll, and post it again.
    #[error("too many requests are in flight; poll the queue and post the request again")]
    Held,
    /// The endpoint was closed or lost.
    #[error("the endpoint was closed or lost; set up a new one")]
    NoEndpoint,
    /// It can never be executed: longer than the capabilities allow, outside of the region, or not allowed there.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Endpoint of the request.
    pub endpoint: EndpointId,
    /// Number of the request.
    pub id: WrId,
    /// Former value of an atomic's word; 0 for all others.
    pub outcome: Result<u64, Failure>,
}

/// An event that a queue reports.
#[derive(Debug)]
pub enum Event {
    /// A request has ended.
    Done(Completion),
    /// A message has come.
    Message(Message),
    /// The endpoint has ended. All its requests have been reported.
    Lost(EndpointId, Failure),
}
