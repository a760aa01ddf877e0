//! The suite that every transport passes. Tests run it over the transports of this machine; programs for the guests of
//! the lab run it over RDMA in software.

#![forbid(unsafe_code)]

#[expect(missing_docs, reason = "the name of a test states its property")]
pub mod suite;
