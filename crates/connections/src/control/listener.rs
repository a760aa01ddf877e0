//! [`Listener`]: all callers at once, until they are authenticated and have sent their requests.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::channel::{Channel, Trouble};
use super::dial::connect_unix;
use super::message::{Hello, Hidden, Malformed, Message};
use super::process::{self, Process};
use super::{Address, Error, Local, PeerIdentity, PeerSession, queue_of};
use crate::choice::{Choice, Connectivity, Side, obstacle};
use fabric::out_of_descriptors;
use fabric::time::deadline;
use fabric::{Parameters, Peer, Queue, Role};

/// Callers that are admitted before the present ones are polled again.
const ARRIVALS_MAX: usize = 64;

/// Counts of events of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that were accepted, whatever became of them.
    pub connected: u64,
    /// Callers that were given out.
    pub admitted: u64,
    /// Callers that failed authentication.
    pub strangers: u64,
    /// Callers that took too long.
    pub silent: u64,
    /// Callers that sent an invalid or misplaced message.
    pub malformed: u64,
    /// Callers with nothing in common: version, cluster, transport.
    pub unfit: u64,
    /// Callers that ended the connection themselves.
    pub gone: u64,
    /// Callers that were dropped because more came.
    pub crowded_out: u64,
}

/// Where peers connect to this process.
#[derive(Debug)]
pub struct Listener {
    sockets: Vec<Socket>,
    local: Local,
    pending: VecDeque<Pending>,
    counters: Counters,
}

#[derive(Debug)]
enum Socket {
    Unix {
        socket: UnixListener,
        path: PathBuf,
        /// Which file it is: only that one is removed in the end.
        file: (u64, u64),
    },
    Tcp(TcpListener),
}

/// A caller that has not sent everything yet.
#[derive(Debug)]
struct Pending {
    channel: Channel,
    peer: String,
    identity: PeerIdentity,
    process: Option<Process>,
    descriptor: Option<OwnedFd>,
    deadline: Instant,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Authenticate,
    Hello,
    Choice(Hello),
    Offer(Choice),
    /// The peer has sent everything.
    Ready(Choice, Parameters),
}

impl Step {
    /// Action expected of the peer.
    fn verb(&self) -> &'static str {
        match self {
            Step::Authenticate => "prove its identity",
            Step::Hello => "say hello",
            Step::Choice(_) => "choose a transport",
            Step::Offer(_) | Step::Ready(..) => "make its side of an endpoint",
        }
    }
}

/// An authenticated peer that waits to be joined to a queue.
#[derive(Debug)]
pub struct Caller {
    channel: Channel,
    peer: String,
    identity: PeerIdentity,
    process: Option<OwnedFd>,
    choice: Choice,
    parameters: Parameters,
    step_timeout: Duration,
}

impl Listener {
    /// Listens at these addresses.
    ///
    /// # Errors
    /// [`Error::Listen`], [`Error::NoKeys`].
    pub fn bind(addresses: &[Address], local: Local) -> Result<Listener, Error> {
        let mut listener = Listener {
            sockets: Vec::new(),
            local,
            pending: VecDeque::new(),
            counters: Counters::default(),
        };
        for address in addresses {
            let bound = match address {
                Address::Tcp(_) if !listener.local.identity.has_keys() => {
                    let address = address.to_string();
                    return Err(Error::NoKeys { address });
                }
                Address::Tcp(address) => TcpListener::bind(address).and_then(|socket| {
                    socket.set_nonblocking(true)?;
                    Ok(Socket::Tcp(socket))
                }),
                Address::Unix(path) => bind_unix(path),
            };
            let socket = bound.map_err(|source| Error::Listen {
                address: address.to_string(),
                source,
            })?;
            listener.sockets.push(socket);
        }
        Ok(listener)
    }

    /// Where it listens, with the ports that the system chose.
    pub fn addresses(&self) -> Vec<Address> {
        let address = |socket: &Socket| match socket {
            Socket::Unix { path, .. } => Some(Address::Unix(path.clone())),
            Socket::Tcp(socket) => socket.local_addr().ok().map(Address::Tcp),
        };
        self.sockets.iter().filter_map(address).collect()
    }

    /// Returns the counts of events since the listener began.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Number of callers in progress.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The next peer that has sent everything, if there is one within this time.
    ///
    /// # Errors
    /// [`Error::System`]: this process cannot take connections. What callers do wrong is only counted.
    pub fn accept(&mut self, timeout: Duration) -> Result<Option<Caller>, Error> {
        let end = deadline(timeout);
        loop {
            self.let_in()?;
            if let Some(caller) = self.advance() {
                self.counters.admitted += 1;
                return Ok(Some(caller));
            }
            let now = Instant::now();
            if now >= end {
                return Ok(None);
            }
            let deadlines = self.pending.iter().map(|pending| pending.deadline);
            let first = deadlines.min().map_or(end, |first| first.min(end));
            self.wait(first.saturating_duration_since(now))?;
        }
    }

    fn wait(&self, timeout: Duration) -> Result<(), Error> {
        let sockets = self
            .sockets
            .iter()
            .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
        let pending = self.pending.iter().map(|pending| {
            let channel = &pending.channel;
            PollFd::from_borrowed_fd(channel.as_fd(), channel.interest())
        });
        let mut fds: Vec<PollFd<'_>> = sockets.chain(pending).collect();
        process::wait(&mut fds, timeout).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> Error {
        let peer = "callers".into();
        Error::System { peer, source }
    }

    /// Takes connections that have come.
    fn let_in(&mut self) -> Result<(), Error> {
        for index in 0..self.sockets.len() {
            for _ in 0..ARRIVALS_MAX {
                match self.sockets[index].accept(&self.local) {
                    Ok(Some(pending)) => {
                        self.counters.connected += 1;
                        self.admit(pending);
                    }
                    Ok(None) => break,
                    Err(Trouble::System(error)) if out_of_descriptors(&error) => {
                        // The oldest caller makes room.
                        if self.pending.pop_front().is_none() {
                            return Err(self.failed(error));
                        }
                        self.counters.crowded_out += 1;
                    }
                    // The one that came is gone again.
                    Err(_) => self.counters.gone += 1,
                }
            }
        }
        Ok(())
    }

    fn admit(&mut self, pending: Pending) {
        if pending
            .process
            .as_ref()
            .is_some_and(|process| !process.may_connect())
        {
            self.counters.strangers += 1;
            return;
        }
        if self.pending.len() >= self.local.options.callers.max(1) {
            self.pending.pop_front();
            self.counters.crowded_out += 1;
        }
        self.pending.push_back(pending);
    }

    /// Advances all callers that can proceed, up to one that has sent everything.
    fn advance(&mut self) -> Option<Caller> {
        let socket = self.sockets.iter().find_map(|socket| match socket {
            Socket::Unix { path, .. } => std::path::absolute(path).ok(),
            Socket::Tcp(_) => None,
        });
        let socket = socket.map_or(Vec::new(), |path| path.as_os_str().as_bytes().into());
        let mut index = 0;
        while let Some(pending) = self.pending.get_mut(index) {
            let advanced = pending.advance(&self.local, &socket);
            let late = Instant::now() >= pending.deadline;
            match advanced {
                Ok(true) => {
                    let pending = self.pending.remove(index)?;
                    return pending.into_caller(self.local.options.step_timeout);
                }
                Ok(false) if !late => {
                    index += 1;
                    continue;
                }
                Ok(false) => {
                    let (peer, step) = (pending.peer.clone(), pending.step.verb());
                    self.drop_pending(index, &Error::Silent { peer, step });
                }
                Err(error) => self.drop_pending(index, &error),
            }
        }
        None
    }

    fn drop_pending(&mut self, index: usize, error: &Error) {
        let counters = &mut self.counters;
        let count = match error {
            Error::Stranger { .. } => &mut counters.strangers,
            Error::Silent { .. } => &mut counters.silent,
            Error::Malformed { .. } => &mut counters.malformed,
            Error::Closed { .. } | Error::System { .. } => &mut counters.gone,
            // It does not trust this node.
            Error::Refused { .. } => &mut counters.gone,
            _ => &mut counters.unfit,
        };
        *count += 1;
        if let Some(mut pending) = self.pending.remove(index)
            && !matches!(pending.step, Step::Authenticate)
        {
            refuse(&mut pending.channel, error);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for socket in &self.sockets {
            if let Socket::Unix { path, file, .. } = socket
                && file_of(path).is_ok_and(|found| found == *file)
            {
                // If it fails, the next process that listens there does it.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Sends a peer the reason, if possible, and ends.
pub(super) fn refuse(channel: &mut Channel, error: &Error) {
    if let Some(told) = error.told() {
        let _ = channel.send(&Message::Refused(told), Vec::new());
    }
    channel.end();
}

fn bind_unix(path: &Path) -> io::Result<Socket> {
    let socket = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_over(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    // A caller that passes this is authenticated all the same.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    socket.set_nonblocking(true)?;
    Ok(Socket::Unix {
        socket,
        path: path.into(),
        file: file_of(path)?,
    })
}

/// Whether no process listens any more at an existing socket.
fn is_left_over(path: &Path) -> bool {
    // Connecting to a file of any other kind is refused, too.
    if !std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        return false;
    }
    // A process without time for callers still listens.
    let refused = connect_unix(path, Duration::from_millis(10)).err();
    refused.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn file_of(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

impl Socket {
    /// A connection that has come.
    fn accept(&self, local: &Local) -> Result<Option<Pending>, Trouble> {
        let nothing = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error.into()),
        };
        let deadline = deadline(local.options.step_timeout);
        let node = String::new();
        Ok(Some(match self {
            Socket::Unix { socket, .. } => {
                let stream = match socket.accept() {
                    Ok((stream, _)) => stream,
                    Err(error) => return nothing(error),
                };
                let process = Process::of(stream.as_fd())?;
                Pending {
                    channel: Channel::unix(stream)?,
                    peer: format!("process {}", process.number),
                    identity: PeerIdentity {
                        node,
                        process: Some(process.number),
                        address: None,
                    },
                    process: Some(process),
                    descriptor: None,
                    deadline,
                    step: Step::Authenticate,
                }
            }
            Socket::Tcp(socket) => {
                let (stream, address) = match socket.accept() {
                    Ok(accepted) => accepted,
                    Err(error) => return nothing(error),
                };
                let tls = local.identity.tls().expect("checked by bind");
                Pending {
                    channel: Channel::listening(stream, &tls.server)?,
                    peer: address.to_string(),
                    identity: PeerIdentity {
                        node,
                        process: None,
                        address: Some(address),
                    },
                    process: None,
                    descriptor: None,
                    deadline,
                    step: Step::Authenticate,
                }
            }
        }))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix { socket, .. } => socket.as_fd(),
            Socket::Tcp(socket) => socket.as_fd(),
        }
    }
}

impl Pending {
    /// Takes the peer's messages; returns whether they are complete.
    fn advance(&mut self, local: &Local, socket: &[u8]) -> Result<bool, Error> {
        let (peer, verb) = (self.peer.clone(), self.step.verb());
        let of = |trouble| Error::of(trouble, &peer, verb);
        if matches!(self.step, Step::Authenticate) {
            if !self.channel.authenticate().map_err(of)? {
                return Ok(false);
            }
            if self.process.is_none() {
                self.identity.node = local.node_in(&peer, &self.channel)?;
            }
            let hello = Message::Hello(local.hello(socket.into()));
            self.channel.send(&hello, Vec::new()).map_err(of)?;
            self.begin(Step::Hello, local);
        }
        self.channel.flush().map_err(of)?;
        while let Some((message, descriptors)) = self.channel.next().map_err(of)? {
            self.take(message, descriptors, local)?;
            if matches!(self.step, Step::Ready(..)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn begin(&mut self, step: Step, local: &Local) {
        self.step = step;
        self.deadline = deadline(local.options.step_timeout);
    }

    fn take(
        &mut self,
        message: Message,
        descriptors: Vec<OwnedFd>,
        local: &Local,
    ) -> Result<(), Error> {
        let step = std::mem::replace(&mut self.step, Step::Hello);
        let next = match (step, message) {
            (_, Message::Refused(reason)) => {
                let peer = self.peer.clone();
                return Err(Error::Refused { peer, reason });
            }
            (step, Message::Goodbye) => {
                return Err(Error::of(Trouble::Closed, &self.peer, step.verb()));
            }
            (Step::Hello, Message::Hello(hello)) => {
                self.greet(&hello, local)?;
                Step::Choice(hello)
            }
            (Step::Choice(hello), Message::Choice(choice)) => {
                self.check(&hello, &choice, local)?;
                Step::Offer(choice)
            }
            (Step::Offer(choice), Message::Offer(Hidden(bytes))) => {
                Step::Ready(choice, Parameters { bytes, descriptors })
            }
            (step, message) => {
                self.step = step;
                return Err(out_of_turn(&message, &self.peer));
            }
        };
        self.begin(next, local);
        Ok(())
    }

    fn greet(&mut self, hello: &Hello, local: &Local) -> Result<(), Error> {
        let proved = self
            .process
            .is_none()
            .then_some(self.identity.node.as_str());
        local.judge(&self.peer, hello, proved)?;
        self.identity.node.clone_from(&hello.node);
        if let Some(process) = &mut self.process {
            let confirmed = process.confirm(hello.started);
            self.descriptor = Some(confirmed.map_err(|_| unknown_process(&self.peer))?);
        }
        self.peer = self.identity.to_string();
        Ok(())
    }

    /// Whether the dialer may choose this: it knows both offers.
    fn check(&self, hello: &Hello, choice: &Choice, local: &Local) -> Result<(), Error> {
        let connectivity = match self.process {
            Some(_) => Connectivity::UnixSocket,
            None => Connectivity::Network("it is connected over a network".into()),
        };
        let own = Side {
            node: &local.identity.node,
            offers: &local.offers,
        };
        let theirs = Side {
            node: &hello.node,
            offers: &hello.offers,
        };
        match obstacle(choice.provider, &connectivity, own, theirs) {
            None => Ok(()),
            Some(reason) => Err(Error::Choice {
                reason: format!("{} chose {}, but {reason}", self.peer, choice.provider),
            }),
        }
    }

    fn into_caller(self, step_timeout: Duration) -> Option<Caller> {
        let Step::Ready(choice, parameters) = self.step else {
            return None;
        };
        Some(Caller {
            channel: self.channel,
            peer: self.peer,
            identity: self.identity,
            process: self.descriptor,
            choice,
            parameters,
            step_timeout,
        })
    }
}

/// A message that may not come now.
pub(super) fn out_of_turn(message: &Message, peer: &str) -> Error {
    let what = match message {
        Message::Hello(_) => "Hello came out of turn",
        Message::Choice(_) => "Choice came out of turn",
        Message::Offer(_) => "Offer came out of turn",
        Message::Ready => "Ready came out of turn",
        _ => "a message came out of turn",
    };
    Error::of(Malformed(what).into(), peer, "")
}

/// The process of a Unix socket's other end is not to be found.
pub(super) fn unknown_process(peer: &str) -> Error {
    Error::Stranger {
        peer: peer.into(),
        reason: "its process is not the one that connected; let it connect again".into(),
    }
}

impl Caller {
    /// Returns the authenticated identity of the peer.
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    /// The transport that it chose, and why no faster one.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Joins it to the queue of that transport. Does not wait for the peer: post nothing before [`super::Note::Ready`]
    /// has come.
    ///
    /// # Errors
    /// [`Error::Endpoint`], [`Error::Choice`] if no queue is of that transport; the peer is notified, and no endpoint
    /// is left.
    pub fn establish(mut self, queues: &mut [&mut Queue]) -> Result<PeerSession, Error> {
        let joined = self.join(queues);
        if let Err(error) = &joined {
            refuse(&mut self.channel, error);
        }
        let endpoint = joined?;
        let ready_by = deadline(self.step_timeout);
        Ok(PeerSession::new(
            self.channel,
            (self.identity, self.peer),
            (self.choice, endpoint),
            self.step_timeout,
            Some(ready_by),
        ))
    }

    fn join(&mut self, queues: &mut [&mut Queue]) -> Result<fabric::EndpointId, Error> {
        let queue = queue_of(queues, self.choice.provider, "this node")?;
        let failed = |source| Error::Endpoint {
            peer: self.peer.clone(),
            source,
        };
        let (endpoint, own) = queue.offer().map_err(failed)?;
        let peer = Peer {
            parameters: std::mem::take(&mut self.parameters),
            address: self.identity.address.map(|address| address.ip()),
            process: self.process.take(),
        };
        queue
            .accept(endpoint, Role::Listener, peer)
            .map_err(failed)?;
        let offer = Message::Offer(Hidden(own.bytes));
        let sent = self.channel.send(&offer, own.descriptors);
        let sent = sent.and_then(|()| self.channel.send(&Message::Ready, Vec::new()));
        sent.map_err(|trouble| {
            queue.close(endpoint);
            Error::of(trouble, &self.peer, "make its side of an endpoint")
        })?;
        Ok(endpoint)
    }

    /// Dismisses it with a reason: one sentence.
    pub fn refuse(mut self, reason: &str) {
        let _ = self
            .channel
            .send(&Message::Refused(reason.into()), Vec::new());
        self.channel.end();
    }
}
