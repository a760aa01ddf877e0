//! Connections between the processes of a cluster, over the transports of [`fabric`].
//!
//! ```text
//!   messenger      messages of any length over many connections, and one thread's waiting
//!     │
//!   control        connections that authenticate peers and exchange keys of memory
//!     │
//!   transports     the transports of this process;  choice: the fastest that reaches a peer
//!     │
//!   keys           certificates of nodes and of the cluster's authority
//! ```

#![forbid(unsafe_code)]

pub mod choice;
pub mod control;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod keys;
pub mod messenger;
pub mod transports;
