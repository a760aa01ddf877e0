//! What a history notes of operations.

use operations::{Fallocate, Lock, RenameMode, WriteAt};
use protocol::wire::{ErrorCode, FileId, Operation};

use super::locks::{all_parts, parts};
use super::rare::Rare;
use super::{
    BLOCK, BLOCKS, History, Id, Invocation, Key, NAMES, NOTHING, OWNER_BLOCK, Response, Time,
    XATTR_BLOCK, name,
};

/// The part of a history that an operation is.
pub(super) fn keys(operation: &Operation, wide: &Rare) -> Vec<(Key, Invocation)> {
    if let Some(list) = wide.list.filter(|_| wide.is_list(operation)) {
        let key = Key::List { file: list.inode };
        return list_keys(operation)
            .map(|asked| (key, asked))
            .into_iter()
            .collect();
    }
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
                (Key::Block { file, block }, Invocation::Write(value))
            };
            (0..).zip(parts).map(key).collect()
        }
        Operation::Read { file, offset, .. } => {
            let (file, block) = (file.inode, offset / BLOCK);
            vec![(Key::Block { file, block }, Invocation::Read)]
        }
        Operation::SetAttributes { file, change } if change.uid.is_some() => {
            let value = owner_value(change.uid, change.gid);
            vec![(owner(file), Invocation::Write(value))]
        }
        Operation::SetAttributes { file, change } => {
            let (file, size) = (file.inode, change.size.unwrap_or(u64::MAX));
            let key = |block| (Key::Block { file, block }, Invocation::Write(NOTHING));
            (size / BLOCK..BLOCKS).map(key).collect()
        }
        Operation::Create { name, .. } => vec![(entry(name), Invocation::Create)],
        Operation::Unlink { name, .. } | Operation::RemoveDirectory { name, .. } => {
            vec![(entry(name), Invocation::Remove)]
        }
        Operation::Link { name, .. } => vec![(entry(name), Invocation::Place)],
        Operation::SetXattr { file, value, .. } => {
            let value = value.first_chunk().copied().map_or(0, u64::from_le_bytes);
            vec![(xattr(file), Invocation::Write(value))]
        }
        Operation::Xattr { file, .. } => vec![(xattr(file), Invocation::Read)],
        Operation::Rename {
            name,
            new_name,
            mode,
            ..
        } => {
            let gone = match mode {
                RenameMode::Exchange => Invocation::Place,
                _ => Invocation::Remove,
            };
            vec![(entry(name), gone), (entry(new_name), Invocation::Place)]
        }
        Operation::Lookup { name, .. } => vec![(entry(name), Invocation::Lookup)],
        Operation::SetLock { file, lock } => locks(file, lock, Invocation::Acquire),
        Operation::Unlock { file, range } => locks(file, range, Invocation::Release),
        _ => wide_keys(operation, wide),
    }
}

/// The same, of operations that only wide work has.
fn wide_keys(operation: &Operation, wide: &Rare) -> Vec<(Key, Invocation)> {
    match operation {
        Operation::UnlockHandle { file, .. } => locks(file, &all_parts(), Invocation::Release),
        Operation::TestLock { file, lock } => locks(file, lock, Invocation::Test),
        Operation::Fallocate {
            file,
            mode: Fallocate::PunchHole | Fallocate::ZeroRange { .. },
            offset,
            ..
        } => {
            let (file, block) = (file.inode, offset / BLOCK);
            vec![(Key::Block { file, block }, Invocation::Write(NOTHING))]
        }
        Operation::CopyRange { to, to_offset, .. } => {
            let (file, block) = (to.inode, to_offset / BLOCK);
            vec![(Key::Block { file, block }, Invocation::Write(wide.copied))]
        }
        Operation::NextData { file, offset }
        | Operation::NextHole { file, offset }
        | Operation::NextExtent { file, offset } => {
            let (file, block) = (file.inode, offset / BLOCK);
            vec![(Key::Block { file, block }, Invocation::Read)]
        }
        Operation::Attributes { file } if wide.has_owners() => {
            vec![(owner(file), Invocation::Read)]
        }
        Operation::XattrNames { file } => vec![(xattr(file), Invocation::Read)],
        Operation::RemoveXattr { file, .. } => vec![(xattr(file), Invocation::Write(NOTHING))],
        Operation::ReadDirectory { .. } => {
            let names = names();
            names
                .map(|name| (entry(&name), Invocation::Lookup))
                .collect()
        }
        _ => Vec::new(),
    }
}

fn entry(name: &[u8]) -> Key {
    Key::Entry {
        directory: store::ROOT,
        name: u64::from(*name.last().unwrap_or(&0)),
    }
}

fn xattr(file: &FileId) -> Key {
    Key::Block {
        file: file.inode,
        block: XATTR_BLOCK,
    }
}

fn owner(file: &FileId) -> Key {
    Key::Block {
        file: file.inode,
        block: OWNER_BLOCK,
    }
}

/// User and group of a file as one value.
pub(super) fn owner_value(uid: Option<u32>, gid: Option<u32>) -> u64 {
    u64::from(uid.unwrap_or(0)) << 32 | u64::from(gid.unwrap_or(0))
}

/// All names that are used.
pub(super) fn names() -> impl Iterator<Item = Vec<u8>> {
    (0..NAMES + 2).map(name)
}

fn list_keys(operation: &Operation) -> Option<Invocation> {
    Some(match operation {
        Operation::Write { data, .. } => {
            Invocation::Append(data.first_chunk().copied().map_or(0, u64::from_le_bytes))
        }
        Operation::Fallocate { mode, offset, .. } => match mode {
            Fallocate::InsertRange => Invocation::Insert(offset / BLOCK),
            Fallocate::CollapseRange => Invocation::Collapse(offset / BLOCK),
            _ => return None,
        },
        Operation::SetAttributes { .. } => Invocation::Clear,
        Operation::Read { offset, .. } => Invocation::ReadAt(offset / BLOCK),
        _ => return None,
    })
}

/// A rename is answered: its consequences for the names from and to.
pub(super) fn renamed(
    now: Time,
    (mode, error): (RenameMode, Option<ErrorCode>),
    (from, to): (Id, Id),
    history: &mut History,
) {
    match (error, mode) {
        (None, RenameMode::Exchange) => {
            history.complete(from, Response::Placed, now);
            history.complete(to, Response::Placed, now);
        }
        (None, _) => {
            history.complete(from, Response::Removed, now);
            history.complete(to, Response::Placed, now);
        }
        (Some(ErrorCode::NotFound), RenameMode::Replace) => {
            history.complete(from, Response::Missing, now);
            history.withdraw(to);
        }
        // Which name it was is not known.
        (Some(ErrorCode::NotFound | ErrorCode::Exists), _) => {
            history.withdraw(from);
            history.withdraw(to);
        }
        // It may have happened, or not.
        _ => {}
    }
}

fn locks(file: &FileId, lock: &Lock, asked: Invocation) -> Vec<(Key, Invocation)> {
    let file = file.inode;
    let parts = parts(lock).into_iter();
    parts
        .map(|part| (Key::Lock { file, part }, asked))
        .collect()
}
