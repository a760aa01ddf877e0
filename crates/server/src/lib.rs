//! Joins protocol and store: carries out on a pool what a member of a unit decides.
//!
//! [`UnitPool`] is the pool of one member, open for following or for changes. Sessions, the answers of their requests
//! and their locks are files in the image ([`table`]), so that every member has them.
#![forbid(unsafe_code)]

mod execute;
mod grants;
mod pool;
pub mod table;

pub use pool::UnitPool;
