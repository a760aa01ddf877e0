//! The parts of a seeded simulation of a cluster: one thread, virtual time, the same run for the same seed.
//!
//! - [`time`]: virtual time, the queue of events, and clocks that drift;
//! - [`fabric`]: a network that delays, loses, doubles, damages, reorders and cuts;
//! - [`membership`]: the service that keeps the cluster map.

pub mod fabric;
pub mod membership;
pub mod time;
