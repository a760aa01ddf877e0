//! Joins protocol and store: executes the decisions of a member of a unit on a pool.
//!
//! [`Core`] is a member at work: the state machine and its pool, driven by a node or by the simulation.
//! [`node::Node`] is a process of a cluster, and [`membership`] keeps the cluster map for all of them.
//! [`UnitPool`] is the pool of one member, open for following or for changes. Sessions, the answers of their requests
//! and their locks are files in the image ([`table`]), so that every member has them.
#![forbid(unsafe_code)]

mod core;
mod execute;
mod executor;
mod grants;
mod holds;
mod local_reads;
pub mod membership;
pub mod node;
mod pool;
pub mod table;

pub use crate::core::{Core, Failed, Host, Output};
pub use executor::{Executed, Executor, Request};
pub use local_reads::{LocalRead, LocalReads};
pub use pool::UnitPool;
