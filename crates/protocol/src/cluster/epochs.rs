//! Handling of messages from another epoch than the node's own.

use std::collections::BTreeMap;

use crate::map::NodeId;

/// A sender of an old epoch gets the map again after this long, at the earliest.
const PAUSE_NS: u64 = 20_000_000;
/// Senders that are remembered, at most.
const SENDERS_MAX: usize = 1024;

/// Handling of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Accept the message: its epoch is current.
    Current,
    /// Drop it, and send the current map.
    SendMap,
    /// Drop it: the sender has just been sent the current map.
    Drop,
    /// Drop it, and ask membership for a newer map.
    AskMembership,
}

/// Compares the epochs of messages with this node's, and bounds how often it sends the map.
#[derive(Debug, Default)]
pub struct EpochRule {
    sent_at: BTreeMap<NodeId, u64>,
}

impl EpochRule {
    /// Decides about a message of this sender and epoch.
    pub fn judge(&mut self, now: u64, from: NodeId, epoch: u32, own: u32) -> Judgement {
        if epoch == own {
            return Judgement::Current;
        }
        if epoch > own {
            return Judgement::AskMembership;
        }
        let sent_at = self.sent_at.get(&from);
        if sent_at.is_some_and(|at| now < at + PAUSE_NS) {
            return Judgement::Drop;
        }
        if self.sent_at.len() >= SENDERS_MAX {
            self.sent_at.retain(|_, at| now < *at + PAUSE_NS);
        }
        self.sent_at.insert(from, now);
        Judgement::SendMap
    }
}
