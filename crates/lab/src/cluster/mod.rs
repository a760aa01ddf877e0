//! The parts of a seeded simulation of a cluster: one thread, virtual time, the same run for the same seed.
//!
//! - [`time`]: virtual time, the queue of events, and clocks that drift;
//! - [`fabric`]: a network that delays, loses, doubles, damages, reorders and cuts;
//! - [`membership`]: the service that keeps the cluster map;
//! - [`history`]: what clients did and saw, and whether one order of operations explains it.

pub mod fabric;
pub mod history;
mod linear;
pub mod membership;
pub mod node;
pub mod plan_tmp;
mod state;
mod template;
pub mod time;
pub mod workload;
pub mod world;
