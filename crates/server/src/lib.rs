//! Joins protocol and store: carries out on a pool what a member of a unit decides.
//!
//! [`Core`] is a member at work: the state machine and its pool, driven by a node or by the simulation.
//! [`UnitPool`] is the pool of one member, open for following or for changes. Sessions, the answers of their requests
//! and their locks are files in the image ([`table`]), so that every member has them.
#![forbid(unsafe_code)]

mod core;
mod execute;
mod grants;
pub mod membership;
mod pool;
pub mod table;

pub use core::{Core, Failed, Host, Output};
pub use pool::UnitPool;
