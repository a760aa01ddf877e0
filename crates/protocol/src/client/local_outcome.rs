//! Outcomes that are known before the primary answers.

use operations::WriteAt;

use crate::wire::{Acknowledge, Operation, Outcome};

/// The outcome of a write that is acknowledged when it is sent. Where an appending write lands is not known then.
pub(super) fn local_outcome(operation: &Operation, acknowledge: Acknowledge) -> Option<Outcome> {
    match operation {
        Operation::Write {
            at: WriteAt::Offset(offset),
            data,
            ..
        } if acknowledge == Acknowledge::Sent => Some(Outcome {
            offset: *offset,
            count: data.len() as u64,
            ..Outcome::default()
        }),
        _ => None,
    }
}
