//! What outcomes say, whatever the key.

use protocol::wire::{ErrorCode, Operation, Outcome};

use super::{SHORT, TORN};

/// The value that a block begins with, if it is made as all are: the last write of its first [`SHORT`] bytes, and behind
/// it one of the whole block.
pub(super) fn value(data: &[u8]) -> u64 {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let (first, rest) = data.split_at(data.len().min(SHORT));
    let is_one = |part: &[u8]| part.chunks(8).all(|it| word(it) == word(&part[..it.len()]));
    if is_one(first) && is_one(rest) {
        word(&first[..first.len().min(8)])
    } else {
        TORN
    }
}

/// Whether an operation on names certainly changed nothing, for reasons that its keys do not show.
pub(super) fn is_refused(operation: &Operation, outcome: &Outcome) -> bool {
    let is_other_kind = matches!(
        outcome.error,
        Some(ErrorCode::NotADirectory | ErrorCode::IsADirectory)
    );
    let is_link = matches!(operation, Operation::Link { .. });
    is_other_kind || is_link && !matches!(outcome.error, None | Some(ErrorCode::SessionEnded))
}
