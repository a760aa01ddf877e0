//! The rules by which the members of a unit and their clients agree, as state machines without I/O and without a clock.
//!
//! Inputs go in (a map, a message, a completion, the time), and out come messages to send, intents for the host to carry
//! out on the store or at the membership service, and the time of the next time-out. The same machines run under the
//! seeded simulation and on real fabrics. `docs/PROTOCOL.md` has each rule, why it is there, and the schedule that breaks
//! without it.
//!
//! Reading order: [`map`] (who is who), [`wire`] (messages), [`member`] (what a member does: following, standing for
//! primary, serving), [`client`].
#![forbid(unsafe_code)]

pub mod client;
pub mod defects;
#[doc(hidden)]
pub mod fuzzing;
pub mod halves;
pub mod map;
pub mod member;
pub mod wire;

pub use client::{Client, Mode, Transfer, TransferKind, TransferOutcome};
pub use defects::{Defect, Defects};
pub use map::{EpochStart, NodeId, Sequence, UnitMap};
pub use member::Member;

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::Digest;

/// CRC32C of a block of data, as layouts and commits have it.
pub fn block_checksum(block: &[u8]) -> u32 {
    checksum(&[block])
}

/// CRC32C of these bytes, one after the other.
fn checksum(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

/// Where messages go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// One node, or several with one multicast send.
    pub to: Vec<NodeId>,
    /// The message.
    pub bytes: Vec<u8>,
}

/// Times and bounds that all nodes of a unit share.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster; messages of others are dropped.
    pub cluster: u64,
    /// A lease that a member grants ends this long after the primary asked for it, in nanoseconds of the primary's clock.
    pub lease_ns: u64,
    /// How much longer a member keeps its promise by its own clock, in thousandths: more than two clocks may drift apart.
    pub drift_permille: u64,
    /// The primary asks for leases this often.
    pub heartbeat_ns: u64,
    /// What was not answered is sent again after this long.
    pub retry_ns: u64,
    /// A session that is not heard of for this long is over.
    pub session_ns: u64,
    /// Records that members in sync do not have yet, at most, in bytes. Beyond it changes wait.
    pub window: u64,
    /// Records in one message, in bytes: as many as fit, one at least.
    pub batch: usize,
    /// Image bytes in one message.
    pub refill: u32,
    /// Requests that a session may have under way.
    pub slots: u16,
    /// Sessions that a unit may have.
    pub sessions: u32,
    /// One-sided reads of one client from one member are carried out in the order in which they were sent.
    pub ordered_reads: bool,
}

impl Default for Options {
    fn default() -> Options {
        const MILLISECOND: u64 = 1_000_000;
        Options {
            cluster: 1,
            lease_ns: 1000 * MILLISECOND,
            drift_permille: 50,
            heartbeat_ns: 250 * MILLISECOND,
            retry_ns: 20 * MILLISECOND,
            session_ns: 3000 * MILLISECOND,
            window: 64 << 10,
            batch: 16 << 10,
            refill: 64 << 10,
            slots: 8,
            sessions: 32,
            ordered_reads: false,
        }
    }
}
