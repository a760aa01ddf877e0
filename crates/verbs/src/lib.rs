//! RDMA: a thin safe layer over libibverbs and librdmacm. Both libraries are opened at first use: where they are
//! missing, everything else works, and [`ports`] reports what to install.
//!
//! A [`Device`] is opened with a port and an address, chosen and explained. A [`Domain`] of it has [`Registration`]s of
//! memory, and [`QueuePair`]s: ends of reliable connections, or places for datagrams, which may share a
//! [`SharedReceiveQueue`]. Requests are posted in batches, or collected in a [`SendList`] or [`ReceiveList`] that is posted
//! by one call, and what became of them arrives in a [`CompletionQueue`]. A [`Group`] is a multicast group.
//!
//! Safety rests on these rules:
//! - Each object holds the objects it is made of, so that they are destroyed in the right order. The memory of a
//!   registration stays mapped until the device has released it, whatever is in flight.
//! - The device reaches only registered memory, which is memory of [`pmem::Region`]s: these expect to be changed by others
//!   at any time. Requests name it by [`Piece`]s with checked bounds. Inline bytes are copied when they are posted.
//! - A peer's description of itself ([`Peer`], [`Remote`]) is used by the device only, which refuses wrong values.

mod address;
mod choice;
mod completion;
mod device;
mod error;
mod ffi;
mod list;
mod memory;
mod multicast;
mod port;
mod queue_pair;
mod shared;
mod work;

pub use address::{Address, GRH};
pub use choice::Wanted;
pub use completion::{Completion, CompletionQueue, Kind, Status};
pub use device::{Device, Event, Limits, ports};
pub use error::Error;
pub use ffi::assertions;
pub use list::{ReceiveList, SendList};
pub use memory::{Domain, Piece, Registration, Remote, Rights};
pub use multicast::{Attached, GROUP_KEY, GROUP_QUEUE_PAIR, Group};
pub use port::{Gid, GidEntry, Port, PortState, Protocol};
pub use queue_pair::{Patience, Peer, QueuePair, Queues, State};
pub use shared::SharedReceiveQueue;
pub use work::{Data, PIECES_MAX, Receive, Request, Verb};
