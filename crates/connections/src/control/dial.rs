//! [`dial`]: from an address to a session.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::channel::{Channel, Trouble};
use super::listener::{out_of_turn, refuse, unknown_process};
use super::message::{Hello, Hidden, Message};
use super::process::{self, Process};
use super::{Address, Error, Local, PeerIdentity, PeerSession, queue_of};
use crate::choice::{Choice, Connectivity, Side, choose, obstacle};
use fabric::time::deadline;
use fabric::{EndpointId, Parameters, Peer, Provider, Queue, Role};

/// Connects to the process that listens at an address, to `node` if one is named, and joins both by the fastest common
/// transport. If that is the same host, and the process has a Unix socket, that is used in place of a network. Waits
/// for the peer, for each of its steps as long as the options allow.
///
/// # Errors
/// [`Error`]; no endpoint is left then.
pub fn dial(
    address: &Address,
    node: Option<&str>,
    local: &Local,
    queues: &mut [&mut Queue],
) -> Result<PeerSession, Error> {
    let offered = Reached::new(address, node, local)?.offer(queues)?;
    let provider = offered.choice.provider;
    match offered.exchange() {
        Ok(answered) => answered.accept(queues),
        Err(Unanswered { endpoint, error }) => {
            queue_of(queues, provider, &local.identity.node)?.close(endpoint);
            Err(error)
        }
    }
}

/// A listener that was reached, and the transport that both use: the first of the steps of [`dial`] for a thread that may
/// not wait. [`Reached::new`] and [`Offered::exchange`] wait for the peer; [`Reached::offer`] and [`Answered::accept`] do not,
/// and need the queues.
#[derive(Debug)]
pub struct Reached {
    dialed: Dialed,
    choice: Choice,
}

/// This side of an endpoint, which the peer does not know yet.
#[derive(Debug)]
pub struct Offered {
    dialed: Dialed,
    choice: Choice,
    endpoint: EndpointId,
    own: Parameters,
}

/// The peer has joined its side.
#[derive(Debug)]
pub struct Answered {
    dialed: Dialed,
    choice: Choice,
    endpoint: EndpointId,
    theirs: Parameters,
}

/// Why the peer did not join its side.
#[derive(Debug)]
pub struct Unanswered {
    /// This side of the endpoint, to be closed in its queue.
    pub endpoint: EndpointId,
    /// Reason of the failure.
    pub error: Error,
}

impl Reached {
    /// Connects, authenticates and chooses a transport. Waits.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(address: &Address, node: Option<&str>, local: &Local) -> Result<Reached, Error> {
        let mut dialed = Dialed::reach(address, node, local)?;
        let connectivity = dialed.come_nearer(local);
        let own = Message::Hello(local.hello(Vec::new()));
        dialed.send(&own, Vec::new())?;
        let offers = local
            .offers
            .towards(dialed.identity.address.map(|address| address.ip()));
        let own = Side {
            node: &local.identity.node,
            offers: &offers,
        };
        let theirs = Side {
            node: &dialed.hello.node,
            offers: &dialed.hello.offers,
        };
        match choose(&connectivity, own, theirs).map_err(|reason| Error::Choice { reason }) {
            Ok(choice) => Ok(Reached { dialed, choice }),
            Err(error) => Err(dialed.refuse(error)),
        }
    }

    /// Makes this side of an endpoint, in the queue of the chosen transport.
    ///
    /// # Errors
    /// [`Error::Choice`], [`Error::Endpoint`]; the peer is notified.
    pub fn offer(mut self, queues: &mut [&mut Queue]) -> Result<Offered, Error> {
        let queue = queue_of(queues, self.choice.provider, "this node");
        let offered = queue.and_then(|queue| {
            queue.offer().map_err(|source| Error::Endpoint {
                peer: self.dialed.peer.clone(),
                source,
            })
        });
        match offered {
            Ok((endpoint, own)) => Ok(Offered {
                dialed: self.dialed,
                choice: self.choice,
                endpoint,
                own,
            }),
            Err(error) => Err(self.dialed.refuse(error)),
        }
    }
}

impl Offered {
    /// The transport of the endpoint.
    pub fn provider(&self) -> Provider {
        self.choice.provider
    }

    /// This side of the endpoint.
    pub fn endpoint(&self) -> EndpointId {
        self.endpoint
    }

    /// Notifies the peer, and waits until it has joined its side.
    ///
    /// # Errors
    /// [`Unanswered`]: close the endpoint.
    pub fn exchange(mut self) -> Result<Answered, Unanswered> {
        let own = std::mem::take(&mut self.own);
        match self.dialed.exchange(&self.choice, own) {
            Ok(theirs) => Ok(Answered {
                dialed: self.dialed,
                choice: self.choice,
                endpoint: self.endpoint,
                theirs,
            }),
            Err(error) => Err(Unanswered {
                endpoint: self.endpoint,
                error: self.dialed.refuse(error),
            }),
        }
    }
}

impl Answered {
    /// Joins this side to the peer's.
    ///
    /// # Errors
    /// [`Error`]; the endpoint is closed then.
    pub fn accept(mut self, queues: &mut [&mut Queue]) -> Result<PeerSession, Error> {
        let queue = queue_of(queues, self.choice.provider, "this node")?;
        let peer = Peer {
            parameters: self.theirs,
            address: self.dialed.identity.address.map(|address| address.ip()),
            process: self.dialed.process.take(),
        };
        let accepted = queue.accept(self.endpoint, Role::Dialer, peer);
        let peer = self.dialed.peer.clone();
        let accepted = accepted.map_err(|source| Error::Endpoint { peer, source });
        let ready = accepted.and_then(|()| self.dialed.send(&Message::Ready, Vec::new()));
        if let Err(error) = ready {
            queue.close(self.endpoint);
            return Err(self.dialed.refuse(error));
        }
        Ok(PeerSession::new(
            self.dialed.channel,
            (self.dialed.identity, self.dialed.peer),
            (self.choice, self.endpoint),
            self.dialed.step_timeout,
            None,
        ))
    }
}

/// An authenticated listener that has sent Hello.
#[derive(Debug)]
struct Dialed {
    channel: Channel,
    peer: String,
    identity: PeerIdentity,
    process: Option<OwnedFd>,
    hello: Hello,
    step_timeout: Duration,
}

impl Dialed {
    fn reach(address: &Address, node: Option<&str>, local: &Local) -> Result<Dialed, Error> {
        let peer = address.to_string();
        let step_timeout = local.options.step_timeout;
        let (mut channel, mut process) = connect(address, local)?;
        let proved = match process {
            Some(_) => None,
            None => {
                authenticate(&mut channel, &peer, step_timeout)?;
                Some(local.node_in(&peer, &channel)?)
            }
        };
        let step = "say hello";
        let hello = match wait(&mut channel, &peer, step_timeout, step)? {
            (Message::Hello(hello), _) => hello,
            (message, _) => return Err(out_of_turn(&message, &peer)),
        };
        let judged = local.judge(&peer, &hello, proved.as_deref());
        if let Err(error) = judged {
            // The other side detects the error by itself.
            let own = Message::Hello(local.hello(Vec::new()));
            let _ = channel.send(&own, Vec::new());
            channel.end();
            return Err(error);
        }
        if let Some(expected) = node.filter(|expected| *expected != hello.node) {
            return Err(Error::Node {
                peer,
                expected: expected.into(),
                found: hello.node,
            });
        }
        let identity = PeerIdentity {
            node: hello.node.clone(),
            process: process.as_ref().map(|process| process.number),
            address: match address {
                Address::Tcp(address) => Some(*address),
                Address::Unix(_) => None,
            },
        };
        let confirmed = process
            .as_mut()
            .map(|process| process.confirm(hello.started));
        let process = confirmed.transpose().map_err(|_| unknown_process(&peer))?;
        Ok(Dialed {
            peer: identity.to_string(),
            channel,
            identity,
            process,
            hello,
            step_timeout,
        })
    }

    /// Connects by a Unix socket instead, if that reaches the same process and is of use.
    fn come_nearer(&mut self, local: &Local) -> Connectivity {
        if self.identity.process.is_some() {
            return Connectivity::UnixSocket;
        }
        let node = &self.hello.node;
        let own = process::boot();
        if own == [0; 16] || own != self.hello.boot {
            return Connectivity::Network(format!("{node} is on another host"));
        }
        if self.hello.socket.is_empty() {
            let sentence = "is on this host and has no Unix socket; let it listen at one, too";
            return Connectivity::Network(format!("{node} {sentence}"));
        }
        let [one, other] = [
            (&local.identity.node, &local.offers),
            (node, &self.hello.offers),
        ]
        .map(|(node, offers)| Side { node, offers });
        if let Some(reason) = obstacle(Provider::Shm, &Connectivity::UnixSocket, one, other) {
            return Connectivity::Network(reason);
        }
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(&self.hello.socket));
        let reason = match Dialed::reach(&Address::Unix(path.clone()), Some(node), local) {
            Ok(nearer) if nearer.hello.instance == self.hello.instance => {
                // The listener need not learn why the first connection ends.
                let _ = self.channel.send(&Message::Goodbye, Vec::new());
                self.channel.end();
                *self = nearer;
                return Connectivity::UnixSocket;
            }
            Ok(_) => format!("another process listens at {}", path.display()),
            Err(error) => error.to_string(),
        };
        Connectivity::Network(format!("{node} is on this host, but {reason}"))
    }

    fn exchange(&mut self, choice: &Choice, own: Parameters) -> Result<Parameters, Error> {
        self.send(&Message::Choice(choice.clone()), Vec::new())?;
        self.send(&Message::Offer(Hidden(own.bytes)), own.descriptors)?;
        let parameters = match self.wait("make its side of an endpoint")? {
            (Message::Offer(Hidden(bytes)), descriptors) => Parameters { bytes, descriptors },
            (message, _) => return Err(out_of_turn(&message, &self.peer)),
        };
        match self.wait("join its side of an endpoint")? {
            (Message::Ready, _) => Ok(parameters),
            (message, _) => Err(out_of_turn(&message, &self.peer)),
        }
    }

    /// Ends the connection, and sends the peer the reason.
    fn refuse(&mut self, error: Error) -> Error {
        refuse(&mut self.channel, &error);
        error
    }

    fn send(&mut self, message: &Message, descriptors: Vec<OwnedFd>) -> Result<(), Error> {
        send(
            &mut self.channel,
            message,
            descriptors,
            &self.peer,
            self.step_timeout,
        )
    }

    fn wait(&mut self, step: &'static str) -> Result<(Message, Vec<OwnedFd>), Error> {
        wait(&mut self.channel, &self.peer, self.step_timeout, step)
    }
}

fn connect(address: &Address, local: &Local) -> Result<(Channel, Option<Process>), Error> {
    let peer = address.to_string();
    let timeout = local.options.step_timeout;
    let unreachable = |source| Error::Unreachable {
        peer: peer.clone(),
        source,
    };
    match address {
        Address::Unix(path) => {
            let socket = connect_unix(path, timeout).map_err(unreachable)?;
            let process = Process::of(socket.as_fd()).map_err(unreachable)?;
            if !process.may_connect() {
                let user = process.user;
                return Err(Error::Stranger {
                    peer,
                    reason: format!("it is run by user {user}; run both as one user"),
                });
            }
            Ok((Channel::unix(socket).map_err(unreachable)?, Some(process)))
        }
        Address::Tcp(address) => {
            let Some(tls) = local.identity.tls() else {
                return Err(Error::NoKeys { address: peer });
            };
            let socket = TcpStream::connect_timeout(address, timeout).map_err(unreachable)?;
            let channel = Channel::dialing(socket, &tls.client, tls.name.clone());
            let step = "prove its identity";
            let channel = channel.map_err(|trouble| Error::of(trouble, &peer, step))?;
            Ok((channel, None))
        }
    }
}

/// Connects, or waits for room with the listener, so long at most.
pub(super) fn connect_unix(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

fn authenticate(channel: &mut Channel, peer: &str, timeout: Duration) -> Result<(), Error> {
    let step = "prove its identity";
    let of = |trouble| Error::of(trouble, peer, step);
    let deadline = deadline(timeout);
    loop {
        channel.flush().map_err(of)?;
        if channel.authenticate().map_err(of)? {
            return Ok(());
        }
        until(channel, deadline, peer, step)?;
    }
}

/// The next message, if it comes in time.
fn wait(
    channel: &mut Channel,
    peer: &str,
    timeout: Duration,
    step: &'static str,
) -> Result<(Message, Vec<OwnedFd>), Error> {
    let of = |trouble| Error::of(trouble, peer, step);
    let deadline = deadline(timeout);
    loop {
        channel.flush().map_err(of)?;
        match channel.next().map_err(of)? {
            Some((Message::Refused(reason), _)) => {
                let peer = peer.into();
                return Err(Error::Refused { peer, reason });
            }
            Some((Message::Goodbye, _)) => return Err(of(Trouble::Closed)),
            Some(found) => return Ok(found),
            None => until(channel, deadline, peer, step)?,
        }
    }
}

/// Sends all of a message, if the peer takes it in time.
fn send(
    channel: &mut Channel,
    message: &Message,
    descriptors: Vec<OwnedFd>,
    peer: &str,
    timeout: Duration,
) -> Result<(), Error> {
    let step = "take a message";
    let of = |trouble| Error::of(trouble, peer, step);
    let deadline = deadline(timeout);
    channel.send(message, descriptors).map_err(of)?;
    while !channel.flush().map_err(of)? {
        let left = left(deadline, peer, step)?;
        process::wait_for(channel, rustix::event::PollFlags::OUT, left)
            .map_err(|error| of(Trouble::System(error)))?;
    }
    Ok(())
}

/// Waits until the channel can continue.
fn until(
    channel: &Channel,
    deadline: Instant,
    peer: &str,
    step: &'static str,
) -> Result<(), Error> {
    let left = left(deadline, peer, step)?;
    process::wait_for(channel, channel.interest(), left)
        .map_err(|error| Error::of(Trouble::System(error), peer, step))
}

pub(super) fn left(deadline: Instant, peer: &str, step: &'static str) -> Result<Duration, Error> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        let peer = peer.into();
        return Err(Error::Silent { peer, step });
    }
    Ok(left)
}
