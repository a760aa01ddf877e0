//! What the protocol needs to know about an operation to order, acknowledge and replay it.

use crate::{FileId, Operation};

/// Most data in a record; of more data the record holds position and checksum.
pub const RECORD_DATA_MAX: u64 = 8192;

/// Bytes of a block of data.
const BLOCK: usize = 4096;

impl Operation {
    /// Whether it must be executed exactly once, so that it takes a slot and its record carries its reply.
    ///
    /// Holds change only the primary's memory. An access time that is noted twice is as good as one noted once.
    pub fn is_change(&self) -> bool {
        !self.is_query() && !matches!(self, Operation::Hold { .. } | Operation::Release { .. })
    }

    /// Whether it may be executed any number of times.
    fn is_query(&self) -> bool {
        matches!(
            self,
            Operation::Lookup { .. }
                | Operation::Attributes { .. }
                | Operation::ReadLink { .. }
                | Operation::ReadDirectory { .. }
                | Operation::Xattr { .. }
                | Operation::XattrNames { .. }
                | Operation::NoteRead { .. }
                | Operation::Read { .. }
                | Operation::NextData { .. }
                | Operation::NextHole { .. }
                | Operation::NextExtent { .. }
                | Operation::TestLock { .. }
                | Operation::WaitLock { .. }
                | Operation::EndWait { .. }
                | Operation::Sync { .. }
                | Operation::SyncAll
                | Operation::Statistics
                | Operation::Layout { .. }
                | Operation::CloseSession
        )
    }

    /// Whether it begins or ends a wait for a lock, which the primary keeps.
    pub fn is_wait(&self) -> bool {
        matches!(self, Operation::WaitLock { .. } | Operation::EndWait { .. })
    }

    /// Whether it may make a record.
    pub fn makes_record(&self) -> bool {
        self.is_change() || self.notes_read() || matches!(self, Operation::Release { .. })
    }

    /// Whether it notes the time of a read, by a record without a reply.
    pub fn notes_read(&self) -> bool {
        matches!(
            self,
            Operation::NoteRead { .. }
                | Operation::Read {
                    note_read: true,
                    ..
                }
        )
    }

    /// Whether it may be answered before all members in sync have its record: its client replays it.
    pub fn is_write(&self) -> bool {
        matches!(self, Operation::Write { .. } | Operation::Commit { .. })
    }

    /// Whether it takes a hold of the file that it finds or makes.
    pub fn takes_hold(&self) -> bool {
        match self {
            Operation::Lookup { hold, .. } | Operation::Create { hold, .. } => *hold,
            Operation::CreateUnnamed { .. } | Operation::Hold { .. } => true,
            _ => false,
        }
    }

    /// Whether its outcome has the attributes of a file.
    pub fn returns_attributes(&self) -> bool {
        matches!(
            self,
            Operation::Lookup { .. }
                | Operation::Attributes { .. }
                | Operation::SetAttributes { .. }
                | Operation::Create { .. }
                | Operation::CreateUnnamed { .. }
                | Operation::Link { .. }
                | Operation::Hold { .. }
        )
    }

    /// Bytes of data that it carries, or carries when it is replayed.
    pub fn data_length(&self) -> usize {
        match self {
            Operation::Write { data, .. } => data.len(),
            Operation::SetXattr { value, .. } => value.len(),
            // It is replayed as a write.
            Operation::Commit { checksums, .. } => checksums.len() * BLOCK,
            _ => 0,
        }
    }

    /// Whether its record may only name its data.
    pub fn names_data(&self) -> bool {
        match self {
            Operation::Commit { .. } => true,
            Operation::Write { data, .. } => data.len() as u64 > RECORD_DATA_MAX,
            Operation::CopyRange { length, .. } => *length > RECORD_DATA_MAX,
            _ => false,
        }
    }

    /// Upper bound of its record, in bytes.
    pub fn record_max(&self) -> u64 {
        /// All but data: header, names, edits, the reply.
        const REST: u64 = 2048;
        /// A record that moves many extents, or a block of attributes.
        const LARGE: u64 = 16 << 10;
        /// Of the two blocks at the ends of a write, which are whole in the record if a copy shares them.
        const ENDS: u64 = 2 * BLOCK as u64;
        match self {
            Operation::Fallocate { .. } | Operation::CopyRange { .. } | Operation::Return => LARGE,
            Operation::SetXattr { .. } | Operation::RemoveXattr { .. } => REST + BLOCK as u64,
            Operation::Write { data, .. } => REST + ENDS + (data.len() as u64).min(RECORD_DATA_MAX),
            _ => REST + (self.data_length() as u64).min(RECORD_DATA_MAX),
        }
    }

    /// The file that it is about, if it is not about names; of a copy the source.
    pub fn file(&self) -> Option<FileId> {
        match self {
            Operation::Attributes { file }
            | Operation::SetAttributes { file, .. }
            | Operation::SetFlags { file, .. }
            | Operation::ReadLink { file }
            | Operation::Xattr { file, .. }
            | Operation::XattrNames { file }
            | Operation::SetXattr { file, .. }
            | Operation::RemoveXattr { file, .. }
            | Operation::DropPrivileges { file, .. }
            | Operation::NoteRead { file, .. }
            | Operation::Read { file, .. }
            | Operation::Write { file, .. }
            | Operation::Fallocate { file, .. }
            | Operation::NextData { file, .. }
            | Operation::NextHole { file, .. }
            | Operation::NextExtent { file, .. }
            | Operation::CopyRange { file, .. }
            | Operation::Hold { file }
            | Operation::SetLock { file, .. }
            | Operation::TestLock { file, .. }
            | Operation::WaitLock { file, .. }
            | Operation::Unlock { file, .. }
            | Operation::UnlockHandle { file, .. }
            | Operation::Sync { file }
            | Operation::Commit { file, .. }
            | Operation::Layout { file, .. }
            | Operation::Link { file, .. } => Some(*file),
            _ => None,
        }
    }

    /// The file with the data that it changes.
    pub fn changes(&self) -> Option<FileId> {
        match self {
            Operation::Write { file, .. }
            | Operation::Fallocate { file, .. }
            | Operation::Commit { file, .. }
            | Operation::CopyRange { to: file, .. } => Some(*file),
            Operation::SetAttributes { file, change } => change.size.map(|_| *file),
            _ => None,
        }
    }

    /// Whether it must not overtake a write to this file that its user considers complete.
    pub fn depends_on(&self, file: FileId) -> bool {
        match self {
            Operation::SyncAll | Operation::CloseSession => true,
            _ => self.file() == Some(file) || self.changes() == Some(file),
        }
    }

    /// All files and directories that it names.
    pub fn files(&self) -> impl Iterator<Item = FileId> {
        let directories = match self {
            Operation::Lookup { directory, .. }
            | Operation::Create { directory, .. }
            | Operation::CreateUnnamed { directory, .. }
            | Operation::Link { directory, .. }
            | Operation::Unlink { directory, .. }
            | Operation::RemoveDirectory { directory, .. }
            | Operation::ReadDirectory { directory, .. } => [Some(*directory), None],
            Operation::Rename {
                directory,
                new_directory,
                ..
            } => [Some(*directory), Some(*new_directory)],
            Operation::CopyRange { to, .. } => [Some(*to), None],
            _ => [None, None],
        };
        self.file()
            .into_iter()
            .chain(directories.into_iter().flatten())
    }
}
