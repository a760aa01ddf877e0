//! Control connections, over which two processes become endpoints of a transport, and exchange descriptions of memory.
//!
//! ```text
//!   dialer                       listener
//!     │ ◄── authentication ────► │     Unix socket: by the kernel. TCP: TLS 1.3, a certificate on both sides.
//!     │ ◄──────────────── Hello  │     versions, cluster, node, what there is of each transport
//!     │ Hello, Choice, Offer ──► │     the fastest in common, why no faster one; its transport's parameters
//!     │ ◄────────── Offer, Ready │     the listener's, which has joined its side
//!     │ Ready ─────────────────► │
//!     │ ◄─ Export, Revoked, Released, Goodbye ─►
//! ```
//! Nothing is sent before the other side is authenticated. The bytes are in `message`.
//!
//! A process listens with [`Listener`], which waits for all callers at once: one that sends nothing, little, or
//! nonsense delays no other. [`Caller::establish`] then joins one to a [`Queue`], without waiting. [`dial`] does the
//! same from the other side, and waits. Both return a [`PeerSession`].

pub(crate) mod channel;
mod dial;
mod error;
mod identity;
mod listener;
pub(crate) mod message;
mod process;
mod session;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use self::dial::{Answered, Offered, Reached, Unanswered, dial};
pub use self::error::Error;
pub use self::identity::Identity;
pub use self::listener::{Caller, Counters, Listener};
pub use self::message::TOLD_MAX;
use self::message::{Hello, VERSIONS};
pub use self::session::{Note, PeerSession};
use crate::choice::Offers;
use fabric::{Provider, Queue};

/// Where a process listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix socket, for processes of the same host.
    Unix(PathBuf),
    /// An address of a network, for nodes with keys.
    Tcp(SocketAddr),
}

impl Address {
    /// Name of the Ethernet interface that leads to it, or that has it. `None`: there is none, or it is a Unix socket.
    pub fn interface(&self) -> Option<String> {
        match self {
            Address::Unix(_) => None,
            Address::Tcp(address) => fabric::ethernet::interface_towards(address.ip()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => path.display().fmt(f),
            Address::Tcp(address) => address.fmt(f),
        }
    }
}

/// This process, as its peers see it.
#[derive(Clone, Debug)]
pub struct Local {
    /// Identity of the process.
    pub identity: Identity,
    /// Transports that the node offers.
    pub offers: Offers,
    /// Time limits of its connections.
    pub options: Options,
}

/// What a process expects of its peers.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a peer may take for each step.
    pub step_timeout: Duration,
    /// Greatest number of callers in progress; for each one more, the oldest is dropped.
    pub callers: usize,
    /// Version of the messages that the layers above exchange. A peer with another one is refused.
    pub messages: u16,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            step_timeout: Duration::from_secs(5),
            callers: 256,
            messages: 0,
        }
    }
}

/// Authenticated identity of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Name of the node.
    pub node: String,
    /// Its process, if it is on this host and connected by a Unix socket: its number, as this process sees it.
    pub process: Option<u32>,
    /// Where it is, if it connected over a network.
    pub address: Option<SocketAddr>,
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.node)?;
        match (self.process, self.address) {
            (Some(process), _) => write!(f, " (process {process})"),
            (None, Some(address)) => write!(f, " ({address})"),
            (None, None) => Ok(()),
        }
    }
}

impl Local {
    fn hello(&self, socket: Vec<u8>) -> Hello {
        Hello {
            versions: VERSIONS,
            cluster: self.identity.cluster,
            node: self.identity.node.clone(),
            boot: process::boot(),
            instance: self.identity.instance,
            started: process::started(),
            socket,
            offers: self.offers.clone(),
            messages: self.options.messages,
        }
    }

    /// Whether this node continues with a peer that sends this, and with a certificate that names `node`.
    fn judge(&self, peer: &str, hello: &Hello, node: Option<&str>) -> Result<(), Error> {
        let peer = peer.to_string();
        if VERSIONS.common(hello.versions).is_none() {
            return Err(Error::versions(&peer, VERSIONS, hello.versions));
        }
        if hello.messages != self.options.messages {
            return Err(Error::Messages {
                peer,
                own: self.options.messages,
                theirs: hello.messages,
            });
        }
        if hello.cluster != self.identity.cluster {
            return Err(Error::Cluster {
                peer,
                own: crate::keys::show_identity(&self.identity.cluster),
                theirs: crate::keys::show_identity(&hello.cluster),
            });
        }
        match node {
            Some(node) if node != hello.node => Err(Error::Stranger {
                peer,
                reason: format!(
                    "it says that it is {}, and its certificate {node}",
                    hello.node
                ),
            }),
            _ => Ok(()),
        }
    }

    /// The node that a certificate is of; its authority was checked before.
    fn node_in(&self, peer: &str, channel: &channel::Channel) -> Result<String, Error> {
        let names = channel.certificate().and_then(crate::keys::names_in);
        match names {
            Some((cluster, Some(node))) if cluster == self.identity.cluster => Ok(node),
            _ => Err(Error::Stranger {
                peer: peer.into(),
                reason: "its certificate is not a node's of this cluster; issue another with `tako keys issue`".into(),
            }),
        }
    }
}

/// The queue of a transport.
fn queue_of<'q>(
    queues: &'q mut [&mut Queue],
    provider: Provider,
    node: &str,
) -> Result<&'q mut Queue, Error> {
    let found = queues
        .iter_mut()
        .find(|queue| queue.capabilities().provider == provider);
    match found {
        Some(queue) => Ok(queue),
        None => Err(Error::Choice {
            reason: format!("{node} offered {provider} and has no queue for it here"),
        }),
    }
}
