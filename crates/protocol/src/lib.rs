//! The rules by which the members of a unit and their clients agree, as state machines without I/O and without a clock.
//!
//! Inputs go in (a map, a message, a completion, the time), and out come messages to send, intents for the host to
//! execute on the store or at the membership service, and the time of the next time-out. The same machines run under
//! the seeded simulation and on real fabrics. `docs/PROTOCOL.md` has each rule, its reason, and the schedule that
//! breaks without it.
//!
//! Reading order: [`map`] (the map of a unit), [`cluster`] (that of all units and nodes), [`wire`] (messages),
//! [`member`] (following, standing for primary, serving), [`client`], [`leases`] (caching in clients), [`answered`] (writes that
//! clients have answered).
#![forbid(unsafe_code)]

pub mod ahead;
pub mod answered;
pub mod client;
pub mod cluster;
pub mod defects;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod group;
pub mod leases;
mod malformed;
pub mod map;
pub mod member;
pub mod parity;
pub mod wire;

pub use answered::Answered;
pub use client::{Client, Mode, Transfer, TransferKind, TransferOutcome};
pub use cluster::ClusterMap;
pub use defects::{Defect, Defects};
pub use map::{EpochStart, NO_NODE, NodeId, Sequence, UnitMap};
pub use member::Member;

use wire::Message;
use wire::active::GRANT_MAX;
use wire::{Bytes, DATA_MAX};

/// A message of a state machine, and where it goes. A receiver in the same process takes it as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// One node, or several with one multicast send.
    pub to: Vec<NodeId>,
    /// Message to send.
    pub message: Message,
    /// Whether its bytes have parity.
    pub(crate) with_parity: bool,
}

impl Outgoing {
    /// The message as three pieces: see [`Message::encode_in_pieces`].
    pub fn encode_in_pieces(&self) -> [Bytes; 3] {
        self.message.encode_in_pieces(self.with_parity)
    }

    /// The message as bytes.
    pub fn encode(self) -> Transmit {
        Transmit {
            bytes: self.message.encode(self.with_parity).into(),
            to: self.to,
        }
    }
}

/// A message to send, and its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// One node, or several with one multicast send.
    pub to: Vec<NodeId>,
    /// Message to send.
    pub bytes: Bytes,
}

/// Requests that a session may have in flight, at most: its answers are in one block of the image.
pub const SLOTS_MAX: usize = 63;

/// Slot of requests that change nothing: they may be executed more than once and need none.
pub(crate) const NO_SLOT: u16 = u16::MAX;

/// Most sessions of a unit.
pub const SESSIONS_MAX: u32 = 1 << 20;

/// Reason why options are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid unit options: {0}")]
pub struct BadOptions(pub &'static str);

/// Times and bounds that all nodes of a unit share.
#[derive(Clone, Debug)]
pub struct UnitOptions {
    /// The cluster; messages of others are dropped.
    pub cluster: u64,
    /// The unit; messages about others are dropped.
    pub unit: u16,
    /// A lease that a member grants ends this long after the primary asked for it, in nanoseconds of the primary's clock.
    pub lease_ns: u64,
    /// How much longer a member keeps its promise by its own clock, in thousandths: more than the drift of two clocks.
    pub drift_permille: u64,
    /// The primary asks for leases this often.
    pub heartbeat_ns: u64,
    /// A message without an answer is sent again after this long.
    pub retry_ns: u64,
    /// The transport loses a client's messages only with its link: requests are sent again then, never by time.
    pub reliable: bool,
    /// A session that is silent for this long expires.
    pub session_ns: u64,
    /// Records that members in sync do not have yet, at most, in bytes. Beyond it changes wait.
    pub window: u64,
    /// Bytes of the ring of the member's own pool, set by its host; 0 if it does not say.
    pub ring: u64,
    /// Bytes of the image of the member's own pool, set by its host.
    pub image: u64,
    /// Least number of members in sync with which the primary accepts changes. Below it changes wait, and reads
    /// continue.
    pub min_sync: usize,
    /// Data that records name and that a member in sync was sent with them and does not have yet, in bytes: beyond it,
    /// records that name more wait. 0: members fetch all data.
    pub push: u64,
    /// Records in one message, in bytes: as many as fit, one at least.
    pub batch: usize,
    /// Image bytes in one message.
    pub refill: u32,
    /// Image bytes that a member may have asked for and not got yet.
    pub fetch_window: u32,
    /// The pause after a request, before one of the deferred mode is served, and between two of these.
    pub deferred_pause_ns: u64,
    /// One of the deferred mode is served after this long even if there is no pause.
    pub deferred_patience_ns: u64,
    /// Payloads are sent with parity, half as many bytes again: for a fabric with a capability that says that they may
    /// be damaged.
    pub parity: bool,
    /// Requests that a session may have in flight.
    pub slots: u16,
    /// Sessions that a unit may have.
    pub sessions: u32,
    /// Leases of inodes that a session may have.
    pub leases: u32,
    /// Blocks that a session's grant may have.
    pub grant_blocks: u32,
    /// A client returns its grant when it has not used it for this long.
    pub grant_unused_ns: u64,
    /// One-sided reads of one client from one member are executed in the order in which they were sent.
    pub ordered_reads: bool,
}

impl UnitOptions {
    /// Whether a unit can work with these.
    ///
    /// # Errors
    /// The first one that is out of its bounds.
    pub fn validate(&self) -> Result<(), BadOptions> {
        let bounds = [
            (
                (1..=SLOTS_MAX).contains(&usize::from(self.slots)),
                "a session has 1 to 63 slots",
            ),
            (
                (1..=SESSIONS_MAX).contains(&self.sessions),
                "a unit has 1 to 1048576 sessions",
            ),
            (
                (1..=GRANT_MAX).contains(&self.grant_blocks),
                "a grant has 1 to 4096 blocks",
            ),
            (
                (1..=DATA_MAX as u32).contains(&self.refill),
                "a message holds 1 byte to 1 MiB of the image",
            ),
            (
                (1..=DATA_MAX).contains(&self.batch),
                "a message holds 1 byte to 1 MiB of records",
            ),
            (
                self.heartbeat_ns <= self.lease_ns / 2,
                "a lease lasts two heartbeat intervals at least",
            ),
        ];
        let broken = bounds.into_iter().find(|(is_kept, _)| !is_kept);
        broken.map_or(Ok(()), |(_, what)| Err(BadOptions(what)))
    }
}

impl UnitOptions {
    /// When a request of a client is sent again that was sent at this time, if ever.
    fn resend_at(&self, sent_at: u64) -> Option<u64> {
        (!self.reliable).then(|| sent_at + self.retry_ns)
    }

    /// How long after its last attempt a client asks again for a session or to resume it: a primary that does not know
    /// its own epoch yet drops such messages.
    fn handshake_retry_ns(&self) -> u64 {
        match self.reliable {
            true => self.heartbeat_ns,
            false => self.retry_ns,
        }
    }
}

impl Default for UnitOptions {
    fn default() -> UnitOptions {
        const MILLISECOND: u64 = 1_000_000;
        UnitOptions {
            cluster: 1,
            unit: 0,
            lease_ns: 1000 * MILLISECOND,
            drift_permille: 50,
            heartbeat_ns: 250 * MILLISECOND,
            retry_ns: 20 * MILLISECOND,
            reliable: false,
            session_ns: 3000 * MILLISECOND,
            window: 64 << 10,
            ring: 0,
            image: 0,
            min_sync: 1,
            push: 0,
            batch: 16 << 10,
            refill: 64 << 10,
            fetch_window: 1 << 20,
            deferred_pause_ns: MILLISECOND / 10,
            deferred_patience_ns: MILLISECOND,
            parity: false,
            slots: SLOTS_MAX as u16,
            sessions: 4096,
            leases: 1 << 16,
            grant_blocks: 1024,
            grant_unused_ns: 1000 * MILLISECOND,
            ordered_reads: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_their_bounds_are_refused() {
        let usual = UnitOptions::default();
        assert_eq!(usual.validate(), Ok(()));
        let changes: [fn(&mut UnitOptions); 10] = [
            |options| options.slots = 0,
            |options| options.slots = SLOTS_MAX as u16 + 1,
            |options| options.sessions = 0,
            |options| options.grant_blocks = 0,
            |options| options.grant_blocks = GRANT_MAX + 1,
            |options| options.refill = 0,
            |options| options.refill = u32::MAX,
            |options| options.batch = 0,
            |options| options.heartbeat_ns = options.lease_ns / 2 + 1,
            // Twice as much is 0 in 64 bits.
            |options| options.heartbeat_ns = u64::MAX / 2 + 1,
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut options = usual.clone();
            change(&mut options);
            assert!(options.validate().is_err(), "change {index}");
        }
    }
}
