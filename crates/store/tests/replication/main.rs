//! The parts of a store for a unit of several pools.
#![forbid(unsafe_code)]

mod common;
mod grants;
mod replica;
mod system;
