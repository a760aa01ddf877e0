//! A seeded simulation of a cluster: one thread, virtual time, the same run for the same seed. Messages go through
//! [`fabric_simulation::simulated::Links`], which delay, lose, duplicate, damage, reorder and cut.
//!
//! - [`time`]: virtual time, the queue of events, and clocks that drift;
//! - [`membership`]: the service that keeps the cluster map;
//! - [`plan`]: which faults happen, and when; shrinking a plan;
//! - [`history`]: what clients did and saw, and whether one order of operations explains it;
//! - [`node`] and [`workload`]: machines of members, on simulated memory, and of clients that work;
//! - [`world`]: a whole unit, from start to healing;
//! - [`costs`]: what operations cost, in round trips, messages and bytes.

pub mod costs;
pub mod history;
mod kernel_cache;
mod linear;
pub mod membership;
pub mod node;
pub mod plan;
mod state;
mod template;
pub mod time;
mod waits;
pub mod workload;
pub mod world;
