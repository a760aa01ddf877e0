//! Transports for tests: a simulated network, and wrappers around other transports.

#![forbid(unsafe_code)]

pub mod simulated;
pub mod wrappers;
