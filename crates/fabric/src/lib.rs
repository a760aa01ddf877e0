//! Transports: one-sided access to the registered memory of peers, and messages.
//!
//! ```text
//!   Queue          one thread's endpoints: what is outstanding, credits, signaling, waiting
//!     │
//!   Transport      shm, tcp, verbs, ethernet; others implement the same, such as a simulation
//!     │
//!   pmem::Region   memory, registered with a Device, reached by Key
//! ```
//!
//! A [`Device`] is a transport as a process has it; each of its threads has a [`Queue`]. Two sides become an endpoint
//! over a control connection: each [`Queue::offer`]s, sends the result to the other, and [`Queue::accept`]s.
//! [`Capabilities`] state what a transport can do, its costs and its guarantees.
//!
//! Rules for all of them:
//! - Requests of one endpoint complete in the order in which they were posted. Successes are reported only on demand,
//!   failures always.
//! - A failure ends its endpoint. Requests posted after the failed one are [`Failure::Flushed`]; whether they were
//!   executed is unknown.
//! - Nothing overflows: a request is held back, at its sender, while too much is outstanding, or while the receiver has no
//!   buffer for it.

#![forbid(unsafe_code)]

pub mod buffers;
mod capabilities;
mod credits;
mod error;
pub mod ethernet;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod outstanding;
mod queue;
mod registration;
pub mod shm;
pub mod tcp;
pub mod time;
pub mod transport;
pub mod verbs;
mod work;

pub use buffers::{Buffer, Pool};
pub use capabilities::{Capabilities, Copies, Multicast, Order, Placement, Proves, Provider};
pub use error::{Error, Failure, out_of_descriptors};
pub use queue::{Counters, Message, Queue, QueueOptions, Spin};
pub use registration::{
    Access, Details, Key, Piece, Proof, RegionDescriptor, Registration, Remote, RemoteRegion,
    Table, TableGuard,
};
pub use transport::{
    Arrival, Device, Export, GroupAddress, Limits, Origin, Parameters, Peer, ReadMemory, Report,
    Request, Role, Supply, Transport,
};
pub use work::{Completion, EndpointId, Event, GroupId, Refusal, Source, Work, WorkRequest, WrId};

/// Returns 64 bits that no other process can predict.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(8), "the kernel gives no random numbers");
    u64::from_ne_bytes(bytes)
}

/// A key that is unpredictable.
pub fn random_key() -> [u8; 32] {
    tcp::random_key()
}
