//! Why two processes do not come together.

use std::io;

use super::channel::Trouble;
use super::message::Versions;
use crate::keys;

/// Reasons why a control connection failed. Each contains the peer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No process listens there.
    #[error(
        "cannot connect to {peer}: {source}; check that Tako runs there and that the address is right"
    )]
    Unreachable {
        /// Address that was dialed: host and port, or the path of a socket.
        peer: String,
        /// Error of the system.
        source: io::Error,
    },
    /// No process can connect there.
    #[error(
        "cannot listen at {address}: {source}; check the address and that no other process listens there"
    )]
    Listen {
        /// Address of this node: host and port, or the path of a socket.
        address: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The own keys are unusable.
    #[error(transparent)]
    Keys(#[from] keys::Error),
    /// There are no keys.
    #[error(
        "this node has no keys, without which it cannot use {address}; make some with `tako keys`"
    )]
    NoKeys {
        /// Address that needs keys: host and port.
        address: String,
    },
    /// The peer could not prove that it may connect, or reports the same of this node.
    #[error("{peer} is not trusted: {reason}")]
    Stranger {
        /// Address, process or identity of the peer, as far as it is known.
        peer: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The peer did not do its next step in time.
    #[error("{peer} did not {step} in time; check its log and the network")]
    Silent {
        /// Peer of the connection.
        peer: String,
        /// Step that it should have taken.
        step: &'static str,
    },
    /// The peer ended the connection.
    #[error("{peer} ended the connection before it could {step}; its log may say why")]
    Closed {
        /// Peer of the connection.
        peer: String,
        /// Step that should have been next.
        step: &'static str,
    },
    /// The peer sent an invalid or misplaced message.
    #[error("{peer} broke the rules of control connections: {what}; check that Tako runs there")]
    Malformed {
        /// Peer of the connection.
        peer: String,
        /// Invalid part of it.
        what: &'static str,
    },
    /// No version is common to both.
    #[error(
        "{peer} speaks version {theirs} of control connections and this node {own}; update the older one"
    )]
    Version {
        /// Peer of the connection.
        peer: String,
        /// Versions of this program.
        own: String,
        /// Versions of the other one.
        theirs: String,
    },
    /// Their messages have different versions.
    #[error(
        "{peer} speaks version {theirs} of messages and this node {own}; use one version of tako on all nodes and clients"
    )]
    Messages {
        /// Peer of the connection.
        peer: String,
        /// Version that this program uses.
        own: u16,
        /// Version that the peer uses.
        theirs: u16,
    },
    /// The peer belongs elsewhere.
    #[error("{peer} belongs to cluster {theirs} and this node to {own}; check the address")]
    Cluster {
        /// Peer of the connection.
        peer: String,
        /// Cluster of this node.
        own: String,
        /// Cluster of the peer.
        theirs: String,
    },
    /// Another node than the expected one answered.
    #[error("{peer} is node {found}, not {expected}; check the address")]
    Node {
        /// Peer of the connection.
        peer: String,
        /// Name of the expected node.
        expected: String,
        /// Name of the node that answered.
        found: String,
    },
    /// There is no transport to use.
    #[error("{reason}; compare the transports of both sides and their configurations")]
    Choice {
        /// Reason why there is none.
        reason: String,
    },
    /// The peer refused, with a reason.
    #[error("{peer} refuses: {reason}")]
    Refused {
        /// Peer of the connection.
        peer: String,
        /// Reason that it sent.
        reason: String,
    },
    /// The transport could not do its part.
    #[error("cannot make an endpoint with {peer}: {source}")]
    Endpoint {
        /// Peer of the connection.
        peer: String,
        /// Error of the transport.
        source: fabric::Error,
    },
    /// Memory that the peer has exported cannot be used.
    #[error(
        "cannot use memory of {peer}: {reason}; check the limits of address space and mappings"
    )]
    Memory {
        /// Peer of the connection.
        peer: String,
        /// Reason of the transport.
        reason: String,
    },
    /// A system call on the connection failed.
    #[error("the connection with {peer} failed: {source}; check the system's limits")]
    System {
        /// Peer of the connection.
        peer: String,
        /// Error of the system.
        source: io::Error,
    },
}

impl Error {
    /// Error of a channel during this step of the peer.
    pub(super) fn of(trouble: Trouble, peer: &str, step: &'static str) -> Error {
        let peer = peer.to_string();
        match trouble {
            Trouble::Closed => Error::Closed { peer, step },
            Trouble::Malformed(malformed) => Error::Malformed {
                peer,
                what: malformed.0,
            },
            Trouble::Tls(error) => tls(error, peer),
            Trouble::System(source) => Error::System { peer, source },
        }
    }

    pub(super) fn versions(peer: &str, own: Versions, theirs: Versions) -> Error {
        Error::Version {
            peer: peer.into(),
            own: own.to_string(),
            theirs: theirs.to_string(),
        }
    }

    /// Text for the peer: nothing of this node's knowledge about it.
    pub(super) fn told(&self) -> Option<String> {
        match self {
            Error::Stranger { .. }
            | Error::Closed { .. }
            | Error::Refused { .. }
            | Error::System { .. } => None,
            Error::Endpoint { source, .. } => Some(source.to_string()),
            Error::Memory { reason, .. } => Some(reason.clone()),
            error => Some(error.to_string()),
        }
    }
}

fn tls(error: rustls::Error, peer: String) -> Error {
    use rustls::CertificateError as Wrong;
    use rustls::Error as Tls;
    let reason = match error {
        Tls::InvalidCertificate(Wrong::Expired | Wrong::ExpiredContext { .. }) => {
            "its certificate has expired; issue another with `tako keys issue`".into()
        }
        Tls::InvalidCertificate(Wrong::NotValidYet | Wrong::NotValidYetContext { .. }) => {
            "its certificate is not valid yet; check the clocks of both hosts".into()
        }
        Tls::InvalidCertificate(Wrong::Revoked) => {
            "its certificate was revoked; issue another with `tako keys issue` if it is to come back".into()
        }
        Tls::InvalidCertificate(_) => {
            "this cluster's authority did not issue its certificate; check the address and its keys"
                .into()
        }
        Tls::NoCertificatesPresented => {
            "it has no certificate; give it keys of this cluster's authority".into()
        }
        Tls::AlertReceived(alert) => {
            return Error::Refused {
                peer,
                reason: format!(
                    "it does not take this node's certificate ({alert:?}); check that both have keys of one \
                     authority, which have not expired and were not revoked"
                ),
            };
        }
        Tls::InvalidMessage(_) | Tls::InappropriateMessage { .. } => {
            return Error::Malformed {
                peer,
                what: "it does not speak TLS 1.3",
            };
        }
        error => format!("{error}; check that Tako runs there"),
    };
    Error::Stranger { peer, reason }
}
