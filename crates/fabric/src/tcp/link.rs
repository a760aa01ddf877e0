//! One side of an endpoint, whether it has a connection at the moment or not.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use super::frame::{Frame, Kind};
use super::input::Input;
use super::output::{self, Data, Output};
use super::proof::Secret;
use super::requests::{Requests, Wait};
use crate::work::total;
use crate::{EndpointId, Failure, Limits, RegionDescriptor, Report, Request, Role, Source, Work};

/// State of the other side.
#[derive(Clone)]
pub struct Other {
    pub role: Role,
    pub address: SocketAddr,
    pub endpoint: u32,
    pub secret: Secret,
    /// Requests that it may have outstanding.
    pub outstanding: u32,
}

/// ```text
///  Prepared ──establish──▶ Waiting ──proved──▶ Joined ──it lies──▶ Refusing ──too long──▶ Ended
///                             ▲ └──too long, or the other side has none─│─────────────────▶ │
///                             └────cut────────────┴─────────────────────┘
/// ```
/// A side that has refused notifies the queue as soon as that is sent, and continues until the other side knows: when
/// that has closed the connection, or it was cut, the side that makes connections asks for the endpoint again. If it
/// still exists, it is notified again; mostly it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The other side is not known yet.
    Prepared,
    /// There is no connection: until then, and retried at `next`.
    Waiting {
        until: Instant,
        next: Instant,
        tries: u32,
    },
    Joined,
    /// The other side broke the rules, or requested something forbidden; it is notified, until then.
    Refusing {
        until: Instant,
    },
    /// The queue was notified.
    Ended,
}

/// Its lines are its own, as a [`Queue`](crate::Queue)'s are.
#[repr(align(128))]
pub struct Link {
    pub id: EndpointId,
    pub limits: Limits,
    pub secret: Secret,
    pub other: Option<Other>,
    pub state: State,
    pub connection: Option<OwnedFd>,
    /// The set-up in progress for it: its index among the visitors.
    pub attempt: Option<usize>,
    /// Attempts to connect that were begun; at the listener, the one that has the connection.
    pub attempts: u32,
    /// It waits for the connection to take more.
    pub full: bool,
    /// It is in the list of those that have to send.
    pub listed: bool,
    /// The queue was notified of its end; the other side may not know yet.
    pub is_told: bool,
    pub output: Output,
    pub input: Input,
    pub imports: Vec<RegionDescriptor>,
    pub requests: Requests,
}

impl Link {
    pub fn new(id: EndpointId, limits: Limits, secret: Secret) -> Link {
        Link {
            id,
            limits,
            secret,
            other: None,
            state: State::Prepared,
            connection: None,
            attempt: None,
            attempts: 0,
            full: false,
            listed: false,
            is_told: false,
            output: Output::new(),
            input: Input::new(),
            imports: Vec::new(),
            requests: Requests::default(),
        }
    }

    /// Adds a request to the outgoing data.
    pub fn post(&mut self, request: Request<'_>) {
        if self.state == State::Ended {
            return;
        }
        let remote = request.remote();
        let place = remote.and_then(|(number, offset, ..)| {
            let import = self.imports.get(number as usize)?;
            Some((import.key.0, offset))
        });
        let (key, offset) = place.unwrap_or((0, 0));
        let frame = |kind| Frame {
            signaled: request.signaled,
            key,
            offset,
            ..Frame::new(kind)
        };
        let (frame, data, wait) = match *request.operation {
            Work::Read { into, .. } => {
                let bytes = total(into) as u32;
                let mut frame = frame(Kind::Read);
                frame.first = bytes.into();
                let into = output::parts(into);
                (frame, Data::None, Wait::Read { into, bytes })
            }
            Work::Write {
                from, immediate, ..
            } => {
                let mut frame = frame(Kind::Write);
                (frame.length, frame.immediate) = (from.length() as u32, immediate);
                (frame, self.data(from), Wait::Acknowledgement)
            }
            Work::Send { from, immediate } => {
                self.input.told = request.returned;
                let mut frame = frame(Kind::Send);
                (frame.length, frame.immediate) = (from.length() as u32, immediate);
                frame.returned = request.returned;
                (frame, self.data(from), Wait::Acknowledgement)
            }
            Work::CompareAndSwap { expected, new, .. } => {
                let mut frame = frame(Kind::CompareAndSwap);
                (frame.first, frame.second) = (expected, new);
                (frame, Data::None, Wait::Atomic)
            }
            Work::FetchAndAdd { addend, .. } => {
                let mut frame = frame(Kind::FetchAndAdd);
                frame.first = addend;
                (frame, Data::None, Wait::Atomic)
            }
        };
        let number = self.output.push(frame, data);
        self.requests
            .push(request.sequence, request.signaled, number, wait);
    }

    fn data(&mut self, from: Source<'_>) -> Data {
        match from {
            Source::Inline(bytes) => self.output.value(bytes),
            Source::Pieces(pieces) => Data::Parts(output::parts(pieces)),
        }
    }

    /// Reports requests that have completed, in their order.
    pub fn settle(&mut self, reports: &mut Vec<Report>) {
        self.requests.settle(self.id, self.output.first(), reports);
    }

    /// The other side refuses the request in this frame, or everything.
    pub fn refused(&mut self, number: u64, failure: Failure, reports: &mut Vec<Report>) {
        let endpoint = self.id;
        let sequence = self.requests.first(number);
        let report = match sequence.filter(|_| failure == Failure::Access) {
            Some(sequence) => Report::Failed {
                endpoint,
                sequence,
                failure,
            },
            None => Report::Lost {
                endpoint,
                failure: Failure::Violation,
            },
        };
        reports.push(report);
        self.state = State::Ended;
    }

    /// The endpoint has ended for the queue; the other side has been sent the reason, and may ask for it again.
    pub fn tell_refused(&mut self, reports: &mut Vec<Report>) {
        if !std::mem::replace(&mut self.is_told, true) {
            reports.push(Report::Lost {
                endpoint: self.id,
                failure: Failure::Violation,
            });
        }
    }

    /// The endpoint is of no use any more.
    pub fn lose(&mut self, failure: Failure, reports: &mut Vec<Report>) {
        if self.state != State::Ended && !self.is_told {
            // Whatever it is that ends it now.
            let failure = match self.output.is_closing() {
                true => Failure::Violation,
                false => failure,
            };
            reports.push(Report::Lost {
                endpoint: self.id,
                failure,
            });
        }
        self.state = State::Ended;
        self.connection = None;
    }
}
