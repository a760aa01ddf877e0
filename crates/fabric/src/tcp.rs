//! The transport over TCP: one connection for each endpoint, and groups over UDP multicast.
//!
//! A thread that polls a queue, or sleeps in it, does all work for its connections: it sends, receives, and executes
//! requests of peers in registered memory. There are no other threads, so no thread is woken up for this, and nothing
//! happens to the memory of a process that does not poll.
//!
//! A cut connection is re-established, by the side that asked for the endpoint. Frames are numbered, and kept until the
//! other side has executed them, which reports the one it expects: nothing is lost and nothing happens twice. A
//! refusal, the last frame, is kept, too, though the endpoint has ended with it: a side that did not read it asks for
//! the endpoint again, and receives the reason for its end.

mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod group;
mod input;
mod join;
mod link;
mod links;
mod output;
mod proof;
mod requests;
mod sockets;
mod transport;

pub(crate) use proof::random as random_key;

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pmem::Region;

use self::transport::TcpTransport;
use crate::time::FOREVER;
use crate::{
    Access, Capabilities, Copies, Device, Error, Multicast, Order, Placement, Proof, Proves,
    Provider, Registration, Table, Transport,
};

/// How endpoints over TCP are made and kept.
#[derive(Clone, Copy, Debug)]
pub struct TcpOptions {
    /// Where to listen, at a port that the system chooses; the unspecified address for everywhere.
    pub address: IpAddr,
    /// An endpoint is lost when it has had no connection for so long. A connection is cut when its other side takes
    /// nothing for so long.
    pub lost_after: Duration,
    /// A connection that has not proved its purpose for so long is dropped.
    pub prove_within: Duration,
    /// So many connections may be unproved at once; then the oldest is dropped.
    pub unproved: usize,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            lost_after: Duration::from_secs(5),
            prove_within: Duration::from_secs(2),
            unproved: 32,
        }
    }
}

/// Counts of events of a process's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpCounters {
    /// Connections that became an endpoint's, again or for the first time.
    pub joined: u64,
    /// Connections of endpoints that were cut.
    pub cut: u64,
    /// Connections that were dropped before they had proved their purpose.
    pub unproved: u64,
    /// Endpoints with an other side that broke the rules, or requested something forbidden.
    pub refused: u64,
    /// Messages to groups that were dropped for want of a buffer.
    pub unbuffered: u64,
    /// Datagrams to groups that were none of ours.
    pub strange: u64,
}

#[derive(Default)]
struct Counts {
    joined: AtomicU64,
    cut: AtomicU64,
    unproved: AtomicU64,
    refused: AtomicU64,
    unbuffered: AtomicU64,
    strange: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// State that the threads of a process share.
struct Common {
    options: TcpOptions,
    table: Table,
    counts: Counts,
}

/// TCP as a process has it.
pub struct Tcp {
    common: Arc<Common>,
}

impl Tcp {
    /// One with no memory registered yet.
    pub fn new(options: TcpOptions) -> Tcp {
        Tcp {
            common: Arc::new(Common {
                options: TcpOptions {
                    lost_after: options.lost_after.min(FOREVER),
                    prove_within: options.prove_within.min(FOREVER),
                    ..options
                },
                table: Table::default(),
                counts: Counts::default(),
            }),
        }
    }

    /// Returns the counts of events since the device was opened.
    pub fn counters(&self) -> TcpCounters {
        let counts = &self.common.counts;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TcpCounters {
            joined: read(&counts.joined),
            cut: read(&counts.cut),
            unproved: read(&counts.unproved),
            refused: read(&counts.refused),
            unbuffered: read(&counts.unbuffered),
            strange: read(&counts.strange),
        }
    }
}

fn capabilities() -> Capabilities {
    Capabilities {
        provider: Provider::Tcp,
        message_bytes: frame::MESSAGE_MAX,
        inline_bytes: 256,
        transfer_bytes: frame::TRANSFER_MAX,
        pieces: 16,
        atomics: true,
        // All frames of a direction are executed in the order of their numbers; a read takes its data later still.
        order: Order {
            reads: true,
            writes_before_messages: true,
            reads_after_writes: true,
        },
        multicast: Multicast::Lossy {
            bytes: group::MESSAGE_BYTES as u32,
            may_be_unchecked: true,
        },
        header_bytes: 0,
        credit_buffers: 0,
        pins_memory: false,
        revocation: Proves::Key,
        // The kernel copies twice: from the sender's memory, and to the receiver's. Messages come into the stage first,
        // with others, and go from there to their buffers; of long transfers only what came with the heads does.
        copies: Copies {
            message: 3,
            write: 2,
            read: 2,
        },
        completed_write: Placement::Visible,
        passive_target: false,
        immediate_reads: false,
        // Within 3 % of a push at all sizes up to this, the largest that was compared.
        in_message_bytes: 64 << 10,
    }
}

impl Device for Tcp {
    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn register_part(
        &self,
        region: &Region,
        part: Range<u64>,
        access: Access,
    ) -> Result<Registration, Error> {
        let table = &self.common.table;
        table.register(Provider::Tcp, region, part, access)
    }

    fn revoke(&self, registration: &Registration) -> Option<Proof> {
        Some(self.common.table.remove(registration.key()))
    }

    fn open(&self) -> Result<Box<dyn Transport>, Error> {
        Ok(Box::new(TcpTransport::open(self.common.clone())?))
    }
}
