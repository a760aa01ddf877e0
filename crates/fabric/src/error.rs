//! Errors: of set-up ([`Error`]), and of a request ([`Failure`]).

use std::io;

use rustix::io::Errno;

use crate::Provider;

/// Why something could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This transport cannot use the memory.
    #[error("{memory} cannot be registered with {provider}: {reason}")]
    Memory {
        /// Transport that cannot use the memory.
        provider: Provider,
        /// Kind of the memory.
        memory: String,
        /// Why not, and what to do.
        reason: &'static str,
    },
    /// The peer's data during set-up of the endpoint was invalid.
    #[error("invalid {what} of the peer; check that both sides run the same version of Tako")]
    Peer {
        /// Invalid part of it.
        what: &'static str,
    },
    /// Invalid options of a queue.
    #[error("queue option `{option}` must be {least}–{most}, got {value}")]
    QueueOptions {
        /// Name of the option.
        option: &'static str,
        /// Value that was given.
        value: u64,
        /// The least that it can be.
        least: u64,
        /// The most that it can be.
        most: u64,
    },
    /// There are no buffers left for another endpoint.
    #[error("the queue has {endpoints} endpoints and no buffers for another; open it with more")]
    Full {
        /// Number of its endpoints.
        endpoints: usize,
    },
    /// The transport cannot do this at all.
    #[error("{provider} has no {what}; check its capabilities first")]
    Unsupported {
        /// Transport that lacks the feature.
        provider: Provider,
        /// Feature that was requested.
        what: &'static str,
    },
    /// The transport that must be used is not there.
    #[error("{provider} was asked for and cannot be used: {source}")]
    Forced {
        /// Transport that cannot be used.
        provider: Provider,
        /// Why not, and what to do.
        source: Box<Error>,
    },
    /// No interface was chosen for the transport over Ethernet.
    #[error("no interface was chosen for it; name one, such as eth0")]
    NoInterface,
    /// An Ethernet interface, or the kernel, refused.
    #[error(transparent)]
    Ethernet(#[from] xdp::Error),
    /// The endpoint is not, or no longer.
    #[error("there is no such endpoint; it was closed or lost")]
    NoEndpoint,
    /// A system call failed.
    #[error("cannot {what}: {source}; {remedy}")]
    System {
        /// The attempted action, with its object: "listen at 10.0.0.1:7000".
        what: String,
        /// Error of the system.
        source: io::Error,
        /// Advice for the user.
        remedy: &'static str,
    },
    /// An RDMA adapter, or its library, refused.
    #[error(transparent)]
    Verbs(#[from] ::verbs::Error),
    /// Memory could not be had.
    #[error(transparent)]
    Region(#[from] pmem::Error),
}

/// Whether the process or the system has no descriptor left.
pub fn out_of_descriptors(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE))
}

/// Reason why a request failed. Every failure ends its endpoint, whatever the transport: requests posted after it are
/// [`Failure::Flushed`], and a new endpoint has to be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The target refuses: its key is unknown, withdrawn or too weak, or the range is not in its region.
    #[error("the target refuses access to that memory")]
    Access,
    /// The peer does not answer any more, or its process is gone.
    #[error("the peer is lost")]
    PeerLost,
    /// The adapter of this node has failed.
    #[error(
        "the adapter of this node has failed; connect through another transport, or again after the adapter is repaired"
    )]
    AdapterFailed,
    /// The peer's memory is mapped here, and is not there any more: the data read or written is invalid.
    #[error(
        "the peer's memory is gone: its file was shortened, or its device failed; export other memory at the peer"
    )]
    MemoryGone,
    /// The peer sent something forbidden.
    #[error("the peer broke the rules of the transport")]
    Violation,
    /// An earlier request of this endpoint failed, or the endpoint was closed. Whether the target has executed this one
    /// is unknown; at most once.
    #[error("an earlier request failed, or the endpoint was closed")]
    Flushed,
}
