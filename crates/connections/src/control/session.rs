//! [`PeerSession`]: exchange between two processes once an endpoint joins them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::channel::{Channel, Trouble};
use super::dial::left;
use super::listener::{out_of_turn, refuse};
use super::message::{Hidden, Malformed, Message};
use super::{Error, PeerIdentity, process};
use rustix::event::PollFlags;

use crate::choice::Choice;
use fabric::time::deadline;
use fabric::{EndpointId, Export, Queue, RegionDescriptor, Registration, RemoteRegion};

/// Regions of a peer that a session takes, less those that were released: each is kept, and on one host mapped.
const EXPORTS_MAX: u32 = 1 << 12;
/// Greatest amount of a peer's messages kept while this side sends: all its exports, and as much again.
const AHEAD_MAX: usize = 2 * EXPORTS_MAX as usize;

/// A message of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// It has joined its side: requests may be posted. Only a listener receives this; for a dialer it holds from the
    /// start.
    Ready,
    /// Memory of its, which may be reached from now on.
    Exported {
        /// The peer's name of it.
        name: u64,
        /// Its name in requests.
        region: RemoteRegion,
    },
    /// Memory of the peer that this side cannot map. Call [`PeerSession::release`] to go on without it, or [`PeerSession::refuse`].
    NotImported {
        /// The peer's name of it.
        name: u64,
        /// Reason of the transport.
        error: String,
    },
    /// Memory that must not be accessed any more: its key is withdrawn. Call [`PeerSession::release`] when nothing is
    /// outstanding.
    Revoked {
        /// Name of the export.
        name: u64,
    },
    /// It does not use exported memory any more.
    Released {
        /// Name of the export.
        name: u64,
    },
    /// Bytes for the layers above.
    Told(Vec<u8>),
    /// It ends the session in good order.
    Goodbye,
}

/// An endpoint with a peer, and the control connection by which it was made. It does not end with the connection: the
/// peer may be alive and only its network broken. The transport reports when an endpoint is lost.
#[derive(Debug)]
pub struct PeerSession {
    channel: Channel,
    identity: PeerIdentity,
    peer: String,
    choice: Choice,
    endpoint: EndpointId,
    timeout: Duration,
    /// Until when the peer must have joined its side, if it has not.
    ready_by: Option<Instant>,
    imported: u32,
    /// Messages that the peer sent while this side was sending.
    ahead: VecDeque<Note>,
}

impl PeerSession {
    pub(super) fn new(
        channel: Channel,
        (identity, peer): (PeerIdentity, String),
        (choice, endpoint): (Choice, EndpointId),
        timeout: Duration,
        ready_by: Option<Instant>,
    ) -> PeerSession {
        PeerSession {
            channel,
            identity,
            peer,
            choice,
            endpoint,
            timeout,
            ready_by,
            imported: 0,
            ahead: VecDeque::new(),
        }
    }

    /// Identity of the peer.
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    /// The transport, and why no faster one.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Whether the peer has joined its side, as far as it was received: then requests may be posted.
    pub fn is_ready(&self) -> bool {
        self.ready_by.is_none()
    }

    /// The endpoint, in the queue of that transport.
    pub fn endpoint(&self) -> EndpointId {
        self.endpoint
    }

    /// Lets the peer reach registered memory, under a name of the caller's choice. `queue` is the one of the endpoint.
    ///
    /// # Errors
    /// [`Error::Endpoint`]: nothing was sent. [`Error::Silent`]: the peer takes nothing; the message is kept, and sent
    /// with the next call, so do not send it again. Also those of [`PeerSession::receive`], since this side reads meanwhile
    /// from a peer that is itself sending.
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
        self.send(queue, &message, export.memory.into_iter().collect())
    }

    /// Reports that the key of exported memory was withdrawn.
    ///
    /// # Errors
    /// As [`PeerSession::export`].
    pub fn revoke(&mut self, queue: &mut Queue, name: u64) -> Result<(), Error> {
        self.send(queue, &Message::Revoked { name }, Vec::new())
    }

    /// Says something secret of the layers above, of at most [`TOLD_MAX`](super::TOLD_MAX) bytes: the control connection is
    /// authenticated, and encrypted between hosts.
    ///
    /// # Errors
    /// As [`PeerSession::export`].
    pub fn tell(&mut self, queue: &mut Queue, bytes: &[u8]) -> Result<(), Error> {
        self.send(queue, &Message::Told(Hidden(bytes.to_vec())), Vec::new())
    }

    /// Reports that memory of the peer is not used any more: the peer may export other memory in its place.
    ///
    /// # Errors
    /// As [`PeerSession::export`].
    pub fn release(&mut self, queue: &mut Queue, name: u64) -> Result<(), Error> {
        self.imported = self.imported.saturating_sub(1);
        self.send(queue, &Message::Released { name }, Vec::new())
    }

    /// Ends the session since exported memory of the peer cannot be used, and sends the peer the reason. Returns the error of the link.
    pub fn refuse(&mut self, queue: &mut Queue, reason: String) -> Error {
        let peer = self.peer.clone();
        let error = Error::Memory { peer, reason };
        self.end(queue, &error);
        error
    }

    /// The peer's next message, if there is one within this time. A caller that waits for the descriptor of the session
    /// to be readable first calls this until it returns nothing, again after each message that it sent.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Refused`], [`Error::System`]: the connection has ended. [`Error::Malformed`],
    /// [`Error::Endpoint`], [`Error::Silent`]: it has, and the endpoint is closed, since the peer broke the rules.
    pub fn receive(&mut self, queue: &mut Queue, timeout: Duration) -> Result<Option<Note>, Error> {
        if let Some(note) = self.ahead.pop_front() {
            return Ok(Some(note));
        }
        let received = self.next(queue, timeout);
        self.judge(queue, received)
    }

    /// Ends the endpoint if what came breaks the rules.
    fn judge<T>(&mut self, queue: &mut Queue, received: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &received
            && matches!(
                error,
                Error::Malformed { .. } | Error::Endpoint { .. } | Error::Silent { .. }
            )
        {
            self.end(queue, error);
        }
        received
    }

    fn end(&mut self, queue: &mut Queue, error: &Error) {
        queue.close(self.endpoint);
        refuse(&mut self.channel, error);
    }

    fn next(&mut self, queue: &mut Queue, timeout: Duration) -> Result<Option<Note>, Error> {
        let end = deadline(timeout);
        loop {
            self.channel.flush().map_err(|trouble| self.over(trouble))?;
            let next = self.channel.next().map_err(|trouble| self.over(trouble))?;
            if let Some((message, descriptors)) = next {
                return self.note(message, descriptors, queue).map(Some);
            }
            let now = Instant::now();
            if self.ready_by.is_some_and(|ready_by| now >= ready_by) {
                let (peer, step) = (self.peer.clone(), "join its side of an endpoint");
                return Err(Error::Silent { peer, step });
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
                self.import(name, descriptor, descriptors, queue)?
            }
            Message::Revoked { name } => Note::Revoked { name },
            Message::Released { name } => Note::Released { name },
            Message::Told(Hidden(bytes)) if self.ready_by.is_none() => Note::Told(bytes),
            Message::Goodbye => Note::Goodbye,
            Message::Refused(reason) => {
                let peer = self.peer.clone();
                return Err(Error::Refused { peer, reason });
            }
            message => return Err(out_of_turn(&message, &self.peer)),
        })
    }

    fn import(
        &mut self,
        name: u64,
        descriptor: RegionDescriptor,
        descriptors: Vec<OwnedFd>,
        queue: &mut Queue,
    ) -> Result<Note, Error> {
        if self.imported == EXPORTS_MAX {
            let what = "it exports more memory than a session takes";
            return Err(self.over(Malformed(what).into()));
        }
        self.imported += 1;
        let export = Export {
            descriptor,
            memory: descriptors.into_iter().next(),
        };
        match queue.import(self.endpoint, export) {
            Ok(region) => Ok(Note::Exported { name, region }),
            // Other errors show that the peer has broken a rule; this one that the process or the system is short of something.
            Err(fabric::Error::Region(error @ pmem::Error::Io { .. })) => Ok(Note::NotImported {
                name,
                error: error.to_string(),
            }),
            Err(source) => Err(self.failed(source)),
        }
    }

    /// Sends a message. While the peer takes nothing this side reads: the peer may be sending as much itself, and would
    /// wait for this side as this side does for it.
    fn send(
        &mut self,
        queue: &mut Queue,
        message: &Message,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Error> {
        let end = deadline(self.timeout);
        let sent = self.channel.send(message, descriptors);
        sent.map_err(|trouble| self.over(trouble))?;
        while !self.channel.flush().map_err(|trouble| self.over(trouble))? {
            let flags = match self.ahead.len() < AHEAD_MAX {
                true => PollFlags::IN | PollFlags::OUT,
                false => PollFlags::OUT,
            };
            let left = left(end, &self.peer, "take a message")?;
            process::wait_for(&self.channel, flags, left)
                .map_err(|error| self.over(Trouble::System(error)))?;
            let heard = self.hear_ahead(queue);
            self.judge(queue, heard)?;
        }
        Ok(())
    }

    fn hear_ahead(&mut self, queue: &mut Queue) -> Result<(), Error> {
        while self.ahead.len() < AHEAD_MAX {
            let next = self.channel.next().map_err(|trouble| self.over(trouble))?;
            let Some((message, descriptors)) = next else {
                break;
            };
            let note = self.note(message, descriptors, queue)?;
            self.ahead.push_back(note);
        }
        Ok(())
    }

    fn failed(&self, source: fabric::Error) -> Error {
        let peer = self.peer.clone();
        Error::Endpoint { peer, source }
    }

    fn over(&self, trouble: Trouble) -> Error {
        Error::of(trouble, &self.peer, "say goodbye")
    }
}

impl AsFd for PeerSession {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
