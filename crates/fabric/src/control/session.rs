//! [`Session`]: what two processes tell each other once an endpoint joins them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::channel::{Channel, Trouble};
use super::dial::send;
use super::listener::{out_of_turn, refuse};
use super::message::{Malformed, Message};
use super::{Error, PeerIdentity, process};
use crate::choice::Choice;
use crate::{EndpointId, Export, Queue, RegionDescriptor, Registration, RemoteRegion};

/// Regions that a peer can export over one session: each is kept, and on one host mapped.
const EXPORTS_MAX: u32 = 1 << 12;

/// What the peer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// It has joined its side: requests may be posted. Only a listener is told; for a dialer it is so from the start.
    Ready,
    /// Memory of its, which may be reached from now on.
    Exported {
        /// What it calls it.
        name: u64,
        /// What it is called in requests.
        region: RemoteRegion,
    },
    /// Memory that may not be reached any more: its key is withdrawn. Say [`Session::release`] when nothing is outstanding.
    Revoked {
        /// What was exported.
        name: u64,
    },
    /// It does not use exported memory any more.
    Released {
        /// What was exported.
        name: u64,
    },
    /// It ends the session in good order.
    Goodbye,
}

/// An endpoint with a peer, and the control connection by which it came about. It does not end with the connection: the
/// peer may be well and only its network gone. The transport tells when an endpoint is lost.
#[derive(Debug)]
pub struct Session {
    channel: Channel,
    peer: PeerIdentity,
    who: String,
    choice: Choice,
    endpoint: EndpointId,
    timeout: Duration,
    /// Until when the peer must have joined its side, if it has not.
    ready_by: Option<Instant>,
    imported: u32,
}

impl Session {
    pub(super) fn new(
        channel: Channel,
        (peer, who): (PeerIdentity, String),
        (choice, endpoint): (Choice, EndpointId),
        timeout: Duration,
        ready_by: Option<Instant>,
    ) -> Session {
        Session {
            channel,
            peer,
            who,
            choice,
            endpoint,
            timeout,
            ready_by,
            imported: 0,
        }
    }

    /// Who the peer is.
    pub fn peer(&self) -> &PeerIdentity {
        &self.peer
    }

    /// The transport, and why no faster one.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// The endpoint, in the queue of that transport.
    pub fn endpoint(&self) -> EndpointId {
        self.endpoint
    }

    /// Lets the peer reach registered memory, under a name of the caller's choice. `queue` is the one of the endpoint.
    ///
    /// # Errors
    /// [`Error::Endpoint`], [`Error::Silent`], [`Error::Closed`], [`Error::System`].
    pub fn export(
        &mut self,
        queue: &mut Queue,
        name: u64,
        registration: &Registration,
    ) -> Result<(), Error> {
        let export = queue
            .export(self.endpoint, registration)
            .map_err(|source| self.failed(source))?;
        let descriptor = export.descriptor;
        let message = Message::Export { name, descriptor };
        self.send(&message, export.memory.into_iter().collect())
    }

    /// Says that the key of exported memory was withdrawn.
    ///
    /// # Errors
    /// [`Error::Silent`], [`Error::Closed`], [`Error::System`].
    pub fn revoke(&mut self, name: u64) -> Result<(), Error> {
        self.send(&Message::Revoked { name }, Vec::new())
    }

    /// Says that memory of the peer's is not used any more.
    ///
    /// # Errors
    /// As [`Session::revoke`].
    pub fn release(&mut self, name: u64) -> Result<(), Error> {
        self.send(&Message::Released { name }, Vec::new())
    }

    /// What the peer says next, if it does in this time. Whoever waits for the descriptor of the session to be readable
    /// first asks until there is nothing.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Refused`], [`Error::System`]: the connection is over. [`Error::Malformed`],
    /// [`Error::Endpoint`], [`Error::Silent`]: it is, and the endpoint is closed, since the peer broke the rules.
    pub fn receive(&mut self, queue: &mut Queue, timeout: Duration) -> Result<Option<Note>, Error> {
        let received = self.next(queue, timeout);
        if let Err(error) = &received
            && matches!(
                error,
                Error::Malformed { .. } | Error::Endpoint { .. } | Error::Silent { .. }
            )
        {
            queue.close(self.endpoint);
            refuse(&mut self.channel, error);
        }
        received
    }

    fn next(&mut self, queue: &mut Queue, timeout: Duration) -> Result<Option<Note>, Error> {
        let end = process::deadline(timeout);
        loop {
            self.channel.flush().map_err(|trouble| self.over(trouble))?;
            let next = self.channel.next().map_err(|trouble| self.over(trouble))?;
            if let Some((message, descriptors)) = next {
                return self.note(message, descriptors, queue).map(Some);
            }
            let now = Instant::now();
            if self.ready_by.is_some_and(|ready_by| now >= ready_by) {
                let (who, step) = (self.who.clone(), "join its side of an endpoint");
                return Err(Error::Silent { who, step });
            }
            if now >= end {
                return Ok(None);
            }
            let until = self.ready_by.map_or(end, |ready_by| ready_by.min(end));
            process::wait_for(&self.channel, self.channel.interest(), until - now)
                .map_err(|error| self.over(Trouble::System(error)))?;
        }
    }

    /// Ends both, in good order.
    pub fn close(mut self, queue: &mut Queue) {
        queue.close(self.endpoint);
        // The peer may be gone already, which is as good.
        let _ = self.channel.send(&Message::Goodbye, Vec::new());
        self.channel.end();
    }

    fn note(
        &mut self,
        message: Message,
        descriptors: Vec<OwnedFd>,
        queue: &mut Queue,
    ) -> Result<Note, Error> {
        Ok(match message {
            Message::Ready if self.ready_by.take().is_some() => Note::Ready,
            Message::Export { name, descriptor } if self.ready_by.is_none() => {
                let region = self.import(descriptor, descriptors, queue)?;
                Note::Exported { name, region }
            }
            Message::Revoked { name } => Note::Revoked { name },
            Message::Released { name } => Note::Released { name },
            Message::Goodbye => Note::Goodbye,
            Message::Refused(reason) => {
                let who = self.who.clone();
                return Err(Error::Refused { who, reason });
            }
            message => return Err(out_of_turn(&message, &self.who)),
        })
    }

    fn import(
        &mut self,
        descriptor: RegionDescriptor,
        descriptors: Vec<OwnedFd>,
        queue: &mut Queue,
    ) -> Result<RemoteRegion, Error> {
        if self.imported == EXPORTS_MAX {
            let what = "it exports more memory than a session takes";
            return Err(self.over(Malformed(what).into()));
        }
        self.imported += 1;
        let export = Export {
            descriptor,
            memory: descriptors.into_iter().next(),
        };
        let imported = queue.import(self.endpoint, export);
        imported.map_err(|source| self.failed(source))
    }

    fn send(&mut self, message: &Message, descriptors: Vec<OwnedFd>) -> Result<(), Error> {
        send(
            &mut self.channel,
            message,
            descriptors,
            &self.who,
            self.timeout,
        )
    }

    fn failed(&self, source: crate::Error) -> Error {
        let who = self.who.clone();
        Error::Endpoint { who, source }
    }

    fn over(&self, trouble: Trouble) -> Error {
        Error::of(trouble, &self.who, "say goodbye")
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
