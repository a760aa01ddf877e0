//! What outcomes say.

use operations::LOCK_END;
use protocol::wire::{Details, ErrorCode, Operation, Outcome};

use super::keys::owner_value;
use super::locks::parts;
use super::rare::Rare;
use super::{BLOCK, NOTHING, Response, SHORT, TORN, XATTR};

/// The value that a block begins with, if it is made as all are: the last write of its first [`SHORT`] bytes, and behind
/// it one of the whole block.
fn value(data: &[u8]) -> u64 {
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
    // Which part is locked is not known, or whether it is reserved for a wait.
    let is_shared = matches!(operation, Operation::SetLock { lock, .. } if lock.end < LOCK_END)
        && outcome.error == Some(ErrorCode::Locked);
    is_shared
        || is_other_kind
        || is_link && !matches!(outcome.error, None | Some(ErrorCode::SessionEnded))
}

/// Whether a query shows that a block or an attribute has no value. None of these shows a value.
fn shows_nothing(operation: &Operation, outcome: &Outcome) -> bool {
    match (operation, &outcome.details) {
        (Operation::NextData { offset, .. }, Details::Position(data)) => {
            data.is_none_or(|data| data > *offset)
        }
        (Operation::NextHole { offset, .. }, Details::Position(hole)) => {
            hole.is_none_or(|hole| hole == *offset)
        }
        (Operation::NextExtent { offset, .. }, Details::Extent(extent)) => {
            extent.is_none_or(|it| it.is_unwritten || it.offset > *offset)
        }
        (Operation::XattrNames { .. }, Details::Names(names)) => {
            names.iter().all(|name| **name != XATTR)
        }
        _ => false,
    }
}

/// What an outcome says about a key; nothing, if it says nothing for certain.
pub(super) fn answer(operation: &Operation, outcome: &Outcome, wide: &Rare) -> Option<Response> {
    if outcome.is_done() && wide.is_list(operation) {
        match operation {
            Operation::Write { .. } => return Some(Response::At(outcome.offset / BLOCK)),
            Operation::Read { .. } if outcome.data().is_empty() => return Some(Response::Missing),
            _ => {}
        }
    }
    let inode = u64::from(outcome.file.generation) << 32 | outcome.file.inode;
    Some(match (operation, outcome.error) {
        (
            Operation::Write { .. } | Operation::SetAttributes { .. } | Operation::SetXattr { .. },
            None,
        ) => Response::Written,
        (Operation::Attributes { .. }, None) => {
            let shown = outcome.attributes.as_ref()?;
            Response::Value(owner_value(Some(shown.uid), Some(shown.gid)))
        }
        (Operation::Xattr { .. }, None) => Response::Value(value(outcome.data())),
        (Operation::Xattr { .. }, Some(ErrorCode::NoXattr)) => Response::Value(NOTHING),
        (Operation::Link { .. }, None) => Response::Placed,
        (Operation::Fallocate { .. }, None) => Response::Written,
        (Operation::Fallocate { .. }, Some(ErrorCode::InvalidArgument)) => Response::Refused,
        (Operation::CopyRange { length, .. }, None) if outcome.count == *length => {
            Response::Written
        }
        (Operation::RemoveXattr { .. }, None | Some(ErrorCode::NoXattr)) => Response::Written,
        (Operation::UnlockHandle { .. }, None) => Response::Gone,
        (Operation::TestLock { .. }, None) => match outcome.details {
            Details::Lock(Some(_)) => Response::Refused,
            _ => Response::NotHeld,
        },
        (Operation::Read { .. }, None) => Response::Value(value(outcome.data())),
        _ if shows_nothing(operation, outcome) => Response::Value(NOTHING),
        (Operation::Create { .. }, None) => Response::Made(inode),
        (Operation::Create { .. }, Some(ErrorCode::Exists)) => Response::Exists,
        (Operation::Unlink { .. } | Operation::RemoveDirectory { .. }, None) => Response::Removed,
        (
            Operation::Unlink { .. } | Operation::RemoveDirectory { .. } | Operation::Lookup { .. },
            Some(ErrorCode::NotFound),
        ) => Response::Missing,
        (Operation::Lookup { .. }, None) => Response::Found(inode),
        (Operation::SetLock { .. }, None) => Response::Granted,
        (Operation::SetLock { .. }, Some(ErrorCode::Locked)) => Response::Refused,
        (Operation::Unlock { range, .. }, None) if parts(range).len() > 1 => Response::Gone,
        (Operation::Unlock { .. }, None) if outcome.count > 0 => Response::Released,
        (Operation::Unlock { .. }, None) => Response::NotHeld,
        _ => return None,
    })
}
