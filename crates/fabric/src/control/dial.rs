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
use super::{Address, Error, Local, PeerIdentity, Session, queue_of};
use crate::choice::{Choice, Reach, Side, choose, obstacle};
use crate::time::deadline;
use crate::{EndpointId, Parameters, Peer, Provider, Queue, Role};

/// Connects to the process that listens at an address, to `node` if one is named, and joins both by the fastest transport
/// that they have in common. If that is the same host, and the process has a Unix socket, that is used in place of a
/// network. Waits for the peer, for each of its steps as long as the options say.
///
/// # Errors
/// [`Error`]; no endpoint is left then.
pub fn dial(
    address: &Address,
    node: Option<&str>,
    local: &Local,
    queues: &mut [&mut Queue],
) -> Result<Session, Error> {
    let mut dialed = Dialed::reach(address, node, local)?;
    let reach = dialed.come_nearer(local);
    let own = Message::Hello(local.hello(Vec::new()));
    dialed.send(&own, Vec::new())?;
    let agreed = dialed.agree(&reach, local, queues);
    match agreed {
        Ok((choice, endpoint)) => Ok(Session::new(
            dialed.channel,
            (dialed.peer, dialed.who),
            (choice, endpoint),
            dialed.step_timeout,
            None,
        )),
        Err(error) => {
            refuse(&mut dialed.channel, &error);
            Err(error)
        }
    }
}

/// A listener that has proved who it is and said Hello.
struct Dialed {
    channel: Channel,
    who: String,
    peer: PeerIdentity,
    process: Option<OwnedFd>,
    hello: Hello,
    step_timeout: Duration,
}

impl Dialed {
    fn reach(address: &Address, node: Option<&str>, local: &Local) -> Result<Dialed, Error> {
        let who = address.to_string();
        let step_timeout = local.options.step_timeout;
        let (mut channel, mut process) = connect(address, local)?;
        let proved = match process {
            Some(_) => None,
            None => {
                authenticate(&mut channel, &who, step_timeout)?;
                Some(local.node_in(&who, &channel)?)
            }
        };
        let step = "say hello";
        let hello = match wait(&mut channel, &who, step_timeout, step)? {
            (Message::Hello(hello), _) => hello,
            (message, _) => return Err(out_of_turn(&message, &who)),
        };
        let judged = local.judge(&who, &hello, proved.as_deref());
        if let Err(error) = judged {
            // The other side finds out what is wrong by itself.
            let own = Message::Hello(local.hello(Vec::new()));
            let _ = channel.send(&own, Vec::new());
            channel.end();
            return Err(error);
        }
        if let Some(expected) = node.filter(|expected| *expected != hello.node) {
            return Err(Error::Node {
                who,
                expected: expected.into(),
                found: hello.node,
            });
        }
        let peer = PeerIdentity {
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
        let process = confirmed.transpose().map_err(|_| unknown_process(&who))?;
        Ok(Dialed {
            who: peer.to_string(),
            channel,
            peer,
            process,
            hello,
            step_timeout,
        })
    }

    /// Connects by a Unix socket instead, if that reaches the same process and is of use.
    fn come_nearer(&mut self, local: &Local) -> Reach {
        if self.peer.process.is_some() {
            return Reach::Memory;
        }
        let node = &self.hello.node;
        let own = process::boot();
        if own == [0; 16] || own != self.hello.boot {
            return Reach::Network(format!("{node} is on another host"));
        }
        if self.hello.socket.is_empty() {
            let sentence = "is on this host and has no Unix socket; let it listen at one, too";
            return Reach::Network(format!("{node} {sentence}"));
        }
        let [one, other] = [
            (&local.identity.node, &local.offers),
            (node, &self.hello.offers),
        ]
        .map(|(node, offers)| Side { node, offers });
        if let Some(reason) = obstacle(Provider::Shm, &Reach::Memory, one, other) {
            return Reach::Network(reason);
        }
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(&self.hello.socket));
        let reason = match Dialed::reach(&Address::Unix(path.clone()), Some(node), local) {
            Ok(nearer) if nearer.hello.instance == self.hello.instance => {
                // The listener need not learn why the first connection ends.
                let _ = self.channel.send(&Message::Goodbye, Vec::new());
                self.channel.end();
                *self = nearer;
                return Reach::Memory;
            }
            Ok(_) => format!("another process listens at {}", path.display()),
            Err(error) => error.to_string(),
        };
        Reach::Network(format!("{node} is on this host, but {reason}"))
    }

    fn agree(
        &mut self,
        reach: &Reach,
        local: &Local,
        queues: &mut [&mut Queue],
    ) -> Result<(Choice, EndpointId), Error> {
        let own = Side {
            node: &local.identity.node,
            offers: &local.offers,
        };
        let theirs = Side {
            node: &self.hello.node,
            offers: &self.hello.offers,
        };
        let choice = choose(reach, own, theirs).map_err(|reason| Error::Choice { reason })?;
        let queue = queue_of(queues, choice.provider, own.node)?;
        let failed = |source| Error::Endpoint {
            who: self.who.clone(),
            source,
        };
        let (endpoint, parameters) = queue.offer().map_err(failed)?;
        let joined = self.join(&choice, endpoint, parameters, queue);
        if joined.is_err() {
            queue.close(endpoint);
        }
        joined.map(|()| (choice, endpoint))
    }

    fn join(
        &mut self,
        choice: &Choice,
        endpoint: EndpointId,
        own: Parameters,
        queue: &mut Queue,
    ) -> Result<(), Error> {
        self.send(&Message::Choice(choice.clone()), Vec::new())?;
        self.send(&Message::Offer(Hidden(own.bytes)), own.descriptors)?;
        let parameters = match self.wait("make its side of an endpoint")? {
            (Message::Offer(Hidden(bytes)), descriptors) => Parameters { bytes, descriptors },
            (message, _) => return Err(out_of_turn(&message, &self.who)),
        };
        match self.wait("join its side of an endpoint")? {
            (Message::Ready, _) => {}
            (message, _) => return Err(out_of_turn(&message, &self.who)),
        }
        let peer = Peer {
            parameters,
            address: self.peer.address.map(|address| address.ip()),
            process: self.process.take(),
        };
        let accepted = queue.accept(endpoint, Role::Dialer, peer);
        accepted.map_err(|source| Error::Endpoint {
            who: self.who.clone(),
            source,
        })?;
        self.send(&Message::Ready, Vec::new())
    }

    fn send(&mut self, message: &Message, descriptors: Vec<OwnedFd>) -> Result<(), Error> {
        send(
            &mut self.channel,
            message,
            descriptors,
            &self.who,
            self.step_timeout,
        )
    }

    fn wait(&mut self, step: &'static str) -> Result<(Message, Vec<OwnedFd>), Error> {
        wait(&mut self.channel, &self.who, self.step_timeout, step)
    }
}

fn connect(address: &Address, local: &Local) -> Result<(Channel, Option<Process>), Error> {
    let who = address.to_string();
    let timeout = local.options.step_timeout;
    let unreachable = |source| Error::Unreachable {
        who: who.clone(),
        source,
    };
    match address {
        Address::Unix(path) => {
            let socket = connect_unix(path, timeout).map_err(unreachable)?;
            let process = Process::of(socket.as_fd()).map_err(unreachable)?;
            if !process.may_connect() {
                let user = process.user;
                return Err(Error::Stranger {
                    who,
                    reason: format!("it is run by user {user}; run both as one user"),
                });
            }
            Ok((Channel::unix(socket).map_err(unreachable)?, Some(process)))
        }
        Address::Tcp(address) => {
            let Some(tls) = local.identity.tls() else {
                return Err(Error::NoKeys { address: who });
            };
            let socket = TcpStream::connect_timeout(address, timeout).map_err(unreachable)?;
            let channel = Channel::dialing(socket, &tls.client, tls.name.clone());
            let step = "prove who it is";
            let channel = channel.map_err(|trouble| Error::of(trouble, &who, step))?;
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

fn authenticate(channel: &mut Channel, who: &str, timeout: Duration) -> Result<(), Error> {
    let step = "prove who it is";
    let of = |trouble| Error::of(trouble, who, step);
    let deadline = deadline(timeout);
    loop {
        channel.flush().map_err(of)?;
        if channel.authenticate().map_err(of)? {
            return Ok(());
        }
        until(channel, deadline, who, step)?;
    }
}

/// The next message, if it comes in time.
fn wait(
    channel: &mut Channel,
    who: &str,
    timeout: Duration,
    step: &'static str,
) -> Result<(Message, Vec<OwnedFd>), Error> {
    let of = |trouble| Error::of(trouble, who, step);
    let deadline = deadline(timeout);
    loop {
        channel.flush().map_err(of)?;
        match channel.next().map_err(of)? {
            Some((Message::Refused(reason), _)) => {
                let who = who.into();
                return Err(Error::Refused { who, reason });
            }
            Some((Message::Goodbye, _)) => return Err(of(Trouble::Closed)),
            Some(found) => return Ok(found),
            None => until(channel, deadline, who, step)?,
        }
    }
}

/// Sends all of a message, if the peer takes it in time.
fn send(
    channel: &mut Channel,
    message: &Message,
    descriptors: Vec<OwnedFd>,
    who: &str,
    timeout: Duration,
) -> Result<(), Error> {
    let step = "take a message";
    let of = |trouble| Error::of(trouble, who, step);
    let deadline = deadline(timeout);
    channel.send(message, descriptors).map_err(of)?;
    while !channel.flush().map_err(of)? {
        let left = left(deadline, who, step)?;
        process::wait_for(channel, rustix::event::PollFlags::OUT, left)
            .map_err(|error| of(Trouble::System(error)))?;
    }
    Ok(())
}

/// Waits until the channel can go on.
fn until(channel: &Channel, deadline: Instant, who: &str, step: &'static str) -> Result<(), Error> {
    let left = left(deadline, who, step)?;
    process::wait_for(channel, channel.interest(), left)
        .map_err(|error| Error::of(Trouble::System(error), who, step))
}

pub(super) fn left(deadline: Instant, who: &str, step: &'static str) -> Result<Duration, Error> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        let who = who.into();
        return Err(Error::Silent { who, step });
    }
    Ok(left)
}
