//! One send to all replicas (MTFS, seed rows M3, M9, M10): messages of a primary, cut into frames that a lossy group carries.
//!
//! ```text
//!   Sender                              group (UDP or UD multicast)            Receiver, at each member
//!    message ─► frames, numbered ─────────────────────────────────────────► checks, any order ─► message
//!    list of frames that a member lacks ◄── report: below, missing (link) ──┘
//!      └── frames again, to that member (link) ───────────────────────────►
//! ```
//! The number of a frame is its WR_ID. Numbers of one [`Stream`] are consecutive, so a number that is missing is a frame that
//! is missing: the receiver asks for it at once. What was sent last has nothing behind it: after [`Sender::poll_timeout`] the
//! sender names the next number over the link. Nothing here decides what is durable: a member's tail does, as without groups.

pub mod frame;
pub mod receiver;
pub mod sender;

pub use frame::{Key, Stream};
pub use receiver::{Receiver, Refused};
pub use sender::Sender;

use std::ops::Range;

use crate::map::NodeId;

/// Frames that a receiver holds or lacks beyond the first that it lacks, at most. Those further on are refused.
pub const WINDOW: u64 = 1 << 13;
/// Ranges of missing frames in one report, at most. The others are asked for by the next one.
pub const MISSING_MAX: usize = 64;
/// Frames that are sent again in one message over a link, in bytes.
pub const AGAIN_BYTES: usize = 60 << 10;

/// What a receiver has of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// It has all frames below.
    pub below: u64,
    /// Frames that its socket holds, at least: more may not be in flight.
    pub room: u32,
    /// Frames that it lacks, though later ones came or were named.
    pub missing: Vec<Range<u64>>,
}

/// What members need to follow a stream. It goes over the authenticated and encrypted control connection only.
#[derive(Clone, PartialEq, Eq)]
pub struct Offer {
    /// IPv4 address of the group.
    pub address: [u8; 4],
    /// UDP port of the group.
    pub port: u16,
    /// The member that sends.
    pub sender: NodeId,
    /// The key of the sender's epoch.
    pub key: Key,
}

impl std::fmt::Debug for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "offer of {} at {:?}:{}",
            self.sender, self.address, self.port
        )
    }
}
