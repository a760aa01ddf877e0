//! The parts of a seeded simulation of a cluster: one thread, virtual time, the same run for the same seed.
//!
//! - [`time`]: virtual time, the queue of events, and clocks that drift;
//! - [`fabric`]: a network that delays, loses, doubles, damages, reorders and cuts;
//! - [`membership`]: the service that keeps the cluster map;
//! - [`history`]: what clients did and saw, and whether one order of operations explains it;
//! - [`plan`]: which faults happen when, and the fewest that still make a run fail.

pub mod fabric;
pub mod history;
mod linear;
pub mod membership;
pub mod plan;
mod state;
pub mod time;
