//! The operations that only some runs have: appends, copies, all changes of ranges, and what few programs ask for.

use operations::{Fallocate, FileFlags, RenameMode, SetAttributes};
use protocol::wire::Details;

use super::{
    Acknowledge, BLOCK, BLOCKS, Client, FileId, FileKind, History, Id, NAMES, Operation, Outcome,
    ROOT, Response, SHORT, Time, Worker, WriteAt, XATTR, keys, locks, name, truncate,
};

/// Blocks of the file that grows and shrinks in which it is changed and read.
const LIST: usize = 6;

/// The files of this work, and its state.
#[derive(Default)]
pub(super) struct Rare {
    /// It grows and shrinks by blocks.
    pub(super) list: Option<FileId>,
    /// Each process has a block in it that no other writes.
    sources: Option<FileId>,
    source: Source,
    /// The value that is being copied.
    pub(super) copied: u64,
    /// The file that was found last. It may have been removed since.
    found: Option<FileId>,
}

/// The block of a process from which it copies.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Source {
    #[default]
    Free,
    Used,
    /// The file holds this value.
    Ready(u64),
}

impl Rare {
    pub(super) fn new(list: FileId, sources: FileId) -> Rare {
        Rare {
            list: Some(list),
            sources: Some(sources),
            ..Rare::default()
        }
    }

    pub(super) fn is_list(&self, operation: &Operation) -> bool {
        self.list.is_some() && operation.file() == self.list
    }

    /// Forgets operations in flight, since the session has ended.
    pub(super) fn end(&mut self) {
        self.source = Source::Free;
    }

    /// Whether the history notes the owners of files.
    pub(super) fn has_owners(&self) -> bool {
        self.list.is_some()
    }

    /// An operation was answered.
    pub(super) fn answered(&mut self, operation: &Operation, outcome: &Outcome) {
        let finds = matches!(
            operation,
            Operation::Lookup { .. } | Operation::Create { .. }
        );
        if finds && outcome.is_done() {
            self.found = Some(outcome.file);
        }
        if operation.file() != self.sources || self.sources.is_none() {
            return;
        }
        self.source = match operation {
            Operation::Write { data, .. } if outcome.is_done() => {
                Source::Ready(data.first_chunk().copied().map_or(0, u64::from_le_bytes))
            }
            _ => Source::Free,
        };
    }
}

impl Worker {
    pub(super) fn choose_wide(&mut self, file: FileId) -> Option<(Operation, Acknowledge)> {
        let list = self.wide.list?;
        let block = self.random.below(BLOCKS as usize) as u64 * BLOCK;
        let at = self.random.below(LIST) as u64 * BLOCK;
        let keep_size = self.random.one_in(2);
        let change = |file, mode, offset| Operation::Fallocate {
            file,
            mode,
            offset,
            length: BLOCK,
        };
        let operation = match self.random.below(24) {
            0..2 => self.append(list),
            2 => change(list, Fallocate::InsertRange, at),
            3 => change(list, Fallocate::CollapseRange, at),
            4..7 => Operation::Read {
                file: list,
                offset: at,
                length: BLOCK as u32,
                note_read: false,
            },
            7 if keep_size => truncate(list, 0),
            7 => change(list, Fallocate::CollapseRange, at),
            8 => change(file, Fallocate::PunchHole, block),
            9 => change(file, Fallocate::ZeroRange { keep_size }, block),
            10 => change(file, Fallocate::Allocate { keep_size }, block),
            11..15 => return self.copy(file, block),
            15 => Operation::ReadDirectory {
                directory: ROOT,
                cookie: 0,
                length: 1 << 16,
                with_attributes: true,
            },
            16 => Operation::RemoveXattr {
                file,
                name: XATTR.to_vec(),
            },
            17 => Operation::TestLock {
                file,
                lock: locks::any_part(&mut self.random),
            },
            18 => Operation::SyncAll,
            19 => self.rename(),
            20..23 => self.seldom(file, block),
            _ if self.held.is_none() && !self.is_opening() => Operation::CreateUnnamed {
                directory: ROOT,
                new: (&operations::NewInode::new(FileKind::Regular, 0o600)).into(),
                may_be_named: true,
            },
            _ => Operation::Statistics,
        };
        // Nothing of these vanishes with its client.
        Some((operation, Acknowledge::All))
    }

    /// Queries, and changes that no result shows.
    fn seldom(&mut self, file: FileId, offset: u64) -> Operation {
        match self.random.below(14) {
            0 => Operation::NextData { file, offset },
            1 => Operation::NextHole { file, offset },
            2 => Operation::NextExtent { file, offset },
            3 => Operation::XattrNames { file },
            4 => Operation::ReadLink { file },
            5 => Operation::NoteRead {
                file,
                always: self.random.one_in(2),
            },
            6 => Operation::DropPrivileges { file, set_id: true },
            7 => Operation::SetFlags {
                file,
                flags: FileFlags::default(),
            },
            8 => Operation::Read {
                file,
                offset,
                length: 8,
                note_read: true,
            },
            9 | 10 => set_owner(file, self.value()),
            11 if self.may_close() => Operation::CloseSession,
            12 if self.held.is_none() && !self.is_opening() => match self.wide.found {
                Some(file) => Operation::Hold { file },
                None => Operation::Attributes { file },
            },
            _ => Operation::Attributes { file },
        }
    }

    /// Whether nothing is in flight or waited for that the end of the session would interrupt.
    fn may_close(&self) -> bool {
        let session = self.client.as_ref().and_then(Client::session);
        session.is_some() && self.pending.is_empty() && self.answering.waiting() == 0
    }

    fn append(&mut self, file: FileId) -> Operation {
        Operation::Write {
            file,
            at: WriteAt::End,
            data: self.value().repeat(BLOCK as usize / 8).into(),
            drop_privileges: None,
        }
    }

    /// Writes the block of this process, or copies its first bytes, or all of it, so that both files share it.
    fn copy(&mut self, to: FileId, to_offset: u64) -> Option<(Operation, Acknowledge)> {
        let file = self.wide.sources?;
        let clients = super::CLIENTS_MAX;
        let own = u64::from(self.node - super::FIRST_CLIENT) + clients * (self.incarnation - 1);
        let offset = own * BLOCK;
        let before = std::mem::replace(&mut self.wide.source, Source::Used);
        let operation = match before {
            Source::Used => return None,
            Source::Ready(value) => {
                self.wide.copied = value;
                Operation::CopyRange {
                    file,
                    offset,
                    to,
                    to_offset,
                    length: if value % 2 == 0 { SHORT as u64 } else { BLOCK },
                }
            }
            Source::Free => Operation::Write {
                file,
                at: WriteAt::Offset(offset),
                data: self.value().repeat(BLOCK as usize / 8).into(),
                drop_privileges: None,
            },
        };
        Some((operation, Acknowledge::All))
    }

    fn rename(&mut self) -> Operation {
        let number = self.random.below(NAMES);
        let other = (number + 1 + self.random.below(NAMES - 1)) % NAMES;
        Operation::Rename {
            directory: ROOT,
            name: name(number),
            new_directory: ROOT,
            new_name: name(other),
            mode: *self
                .random
                .pick(&[RenameMode::NoReplace, RenameMode::Exchange]),
        }
    }
}

/// Sets user and group of a file, which no other operation does: together they are a value.
fn set_owner(file: FileId, value: [u8; 8]) -> Operation {
    let value = u64::from_le_bytes(value);
    let change = SetAttributes {
        uid: Some((value >> 32) as u32),
        gid: Some(value as u32),
        ..SetAttributes::default()
    };
    Operation::SetAttributes { file, change }
}

/// A directory was read: what that says of each name.
pub(super) fn listed(now: Time, ids: &[Id], outcome: &Outcome, history: &mut History) {
    let Details::Entries(entries) = &outcome.details else {
        return;
    };
    for (id, name) in ids.iter().zip(keys::names()) {
        let entry = entries.iter().find(|listed| listed.entry.name == name);
        let answered = match entry.map(|listed| (listed.entry.number, listed.attributes)) {
            None => Response::Missing,
            Some((number, Some(attributes))) => {
                Response::Found(u64::from(attributes.generation) << 32 | number)
            }
            // It was just removed.
            Some((_, None)) => continue,
        };
        history.complete(*id, answered, now);
    }
}
