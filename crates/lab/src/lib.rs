//! Proofs of the file system: a reference model, and an explorer of crashes.
//!
//! - [`operation`]: one operation by path and its answer, and [`System`](operation::System), what carries it out;
//! - [`model`]: the file system as plain as can be; [`embedded`] and [`mounted`]: the real ones;
//! - [`tree`]: a whole file system at one moment, compared with another;
//! - [`random`] and [`runner`]: seeded operations on a system and the model, shrunk when they part;
//! - [`pool`]: pools with the same bytes in every run;
//! - [`explorer`]: crashes of the simulated memory, of the workloads in [`workloads`];
//! - [`reachable`]: two pools compared, as those of a unit;
//! - [`damage`]: pools in which bytes went bad; [`pieces`]: what can be read of one;
//! - [`cluster`]: a seeded simulation of a whole cluster.
#![forbid(unsafe_code)]

pub mod call;
pub mod cluster;
pub mod damage;
pub mod embedded;
pub mod explorer;
pub mod model;
pub mod mounted;
pub mod pool;
pub mod random;
pub mod reachable;
pub mod runner;
pub mod salvage;
pub mod tree;
pub mod workloads;
