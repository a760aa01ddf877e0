//! What a history notes of operations.

use operations::{Lock, WriteAt};
use protocol::wire::{ErrorCode, FileId, Operation};

use super::locks::parts;
use super::{Answered, Asked, BLOCK, BLOCKS, History, Id, Key, NOTHING, Time, XATTR_BLOCK};

/// The part of a history that an operation is.
pub(super) fn keys(operation: &Operation) -> Vec<(Key, Asked)> {
    let entry = |name: &[u8]| Key::Entry {
        directory: store::ROOT,
        name: u64::from(*name.last().unwrap_or(&0)),
    };
    let xattr = |file: &FileId| Key::Block {
        file: file.inode,
        block: XATTR_BLOCK,
    };
    match operation {
        Operation::Write {
            file,
            at: WriteAt::Offset(offset),
            data,
            ..
        } => {
            let parts = data.chunks(BLOCK as usize);
            let key = |(index, part): (u64, &[u8])| {
                let block = offset / BLOCK + index;
                let value = u64::from_le_bytes(part[..8].try_into().expect("eight bytes"));
                let file = file.inode;
                (Key::Block { file, block }, Asked::Write(value))
            };
            (0..).zip(parts).map(key).collect()
        }
        Operation::Read { file, offset, .. } => {
            let (file, block) = (file.inode, offset / BLOCK);
            vec![(Key::Block { file, block }, Asked::Read)]
        }
        Operation::SetAttributes { file, change } => {
            let (file, size) = (file.inode, change.size.unwrap_or(u64::MAX));
            let key = |block| (Key::Block { file, block }, Asked::Write(NOTHING));
            (size / BLOCK..BLOCKS).map(key).collect()
        }
        Operation::Create { name, .. } => vec![(entry(name), Asked::Create)],
        Operation::Unlink { name, .. } | Operation::RemoveDirectory { name, .. } => {
            vec![(entry(name), Asked::Remove)]
        }
        Operation::Link { name, .. } => vec![(entry(name), Asked::Place)],
        Operation::SetXattr { file, value, .. } => {
            let value = value.first_chunk().copied().map_or(0, u64::from_le_bytes);
            vec![(xattr(file), Asked::Write(value))]
        }
        Operation::Xattr { file, .. } => vec![(xattr(file), Asked::Read)],
        Operation::Rename { name, new_name, .. } => {
            vec![
                (entry(name), Asked::Remove),
                (entry(new_name), Asked::Place),
            ]
        }
        Operation::Lookup { name, .. } => vec![(entry(name), Asked::Lookup)],
        Operation::SetLock { file, lock } => locks(file, lock, Asked::Acquire),
        Operation::Unlock { file, range } => locks(file, range, Asked::Release),
        _ => Vec::new(),
    }
}

/// A rename is answered: its consequences for the names from and to.
pub(super) fn renamed(
    now: Time,
    error: Option<ErrorCode>,
    (from, to): (Id, Id),
    history: &mut History,
) {
    match error {
        None => {
            history.complete(from, Answered::Removed, now);
            history.complete(to, Answered::Placed, now);
        }
        Some(ErrorCode::NotFound) => {
            history.complete(from, Answered::Missing, now);
            history.withdraw(to);
        }
        // It may have happened, or not.
        _ => {}
    }
}

fn locks(file: &FileId, lock: &Lock, asked: Asked) -> Vec<(Key, Asked)> {
    let file = file.inode;
    let parts = parts(lock).into_iter();
    parts
        .map(|part| (Key::Lock { file, part }, asked))
        .collect()
}
