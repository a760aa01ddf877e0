//! What clients ask for, and what comes out.

use super::active::{BLOCK, COMMIT_MAX, GRANT_MAX};
use super::bytes::{Reader, Writer};
use super::{Malformed, read_sequence, write_sequence};
use crate::map::Sequence;

/// Longest name.
pub const NAME_MAX: usize = 255;
/// Most data in one message.
pub const DATA_MAX: usize = 1 << 20;
/// Most data in a record; of more it has the place and the checksum.
pub const RECORD_DATA_MAX: u64 = 8192;
/// Most requests that one session replays.
pub const REPLAYS_MAX: usize = 4096;

/// Names a file for as long as it exists: inode numbers are used again, with another generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Inode number.
    pub inode: u64,
    /// Its generation.
    pub generation: u32,
}

/// When a write returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acknowledge {
    /// When it was sent.
    Sent = 0,
    /// When it is persistent at the primary.
    #[default]
    Primary = 1,
    /// When it is persistent at all members in sync.
    All = 2,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Which file has this name?
    Lookup {
        /// The directory.
        directory: FileId,
        /// The name in it.
        name: Vec<u8>,
    },
    /// Makes a regular file; the name must be free.
    Create {
        /// The directory.
        directory: FileId,
        /// The name in it.
        name: Vec<u8>,
    },
    /// Removes a name of a file.
    Unlink {
        /// The directory.
        directory: FileId,
        /// The name in it.
        name: Vec<u8>,
    },
    /// Moves a name, in place of what has the new one.
    Rename {
        /// The old directory.
        directory: FileId,
        /// The old name.
        name: Vec<u8>,
        /// The new directory.
        new_directory: FileId,
        /// The new name.
        new_name: Vec<u8>,
    },
    /// Puts data into a file.
    Write {
        /// The file.
        file: FileId,
        /// Where.
        offset: u64,
        /// What.
        data: Vec<u8>,
    },
    /// Takes data from a file.
    Read {
        /// The file.
        file: FileId,
        /// Where from.
        offset: u64,
        /// How much.
        length: u32,
    },
    /// Sets a file's size.
    Truncate {
        /// The file.
        file: FileId,
        /// Its new size.
        size: u64,
    },
    /// Returns when everything written to the file is at all members in sync.
    Sync {
        /// The file.
        file: FileId,
    },
    /// Locks a file for this session.
    Lock {
        /// The file.
        file: FileId,
    },
    /// Unlocks it.
    Unlock {
        /// The file.
        file: FileId,
    },
    /// Adds fresh blocks to the session's grant. Its outcome lists all of the grant.
    Grant {
        /// How many.
        blocks: u32,
    },
    /// Makes blocks of the session's grant, which hold the data already, a part of a file.
    Commit {
        /// The file.
        file: FileId,
        /// Where, at a whole block.
        offset: u64,
        /// The first block in the grant.
        grant_block: u64,
        /// The transfers that brought the data: numbers of the session, the first and the last.
        wr_ids: [u64; 2],
        /// What each block holds.
        checksums: Vec<u32>,
        /// The least size of the file afterwards.
        size: u64,
    },
    /// Where is a part of a file?
    Layout {
        /// The file.
        file: FileId,
        /// Where it begins.
        offset: u64,
        /// Its length.
        length: u32,
    },
}

impl Operation {
    /// Whether it changes anything, so that it must be carried out once.
    pub fn is_change(&self) -> bool {
        !matches!(
            self,
            Operation::Lookup { .. }
                | Operation::Read { .. }
                | Operation::Sync { .. }
                | Operation::Layout { .. }
        )
    }

    /// Whether it may be answered before all members in sync have it.
    pub fn is_write(&self) -> bool {
        matches!(self, Operation::Write { .. } | Operation::Commit { .. })
    }

    /// Bytes of data that it carries.
    pub(crate) fn data_length(&self) -> usize {
        match self {
            Operation::Write { data, .. } => data.len(),
            // It is replayed as a write.
            Operation::Commit { checksums, .. } => checksums.len() * BLOCK as usize,
            _ => 0,
        }
    }

    /// Whether its record only names its data.
    pub fn names_data(&self) -> bool {
        matches!(self, Operation::Commit { .. }) || self.data_length() as u64 > RECORD_DATA_MAX
    }

    /// What its record takes, at most, in bytes.
    pub(crate) fn record_max(&self) -> u64 {
        /// All but data: header, names, edits, the answer.
        const REST: u64 = 2048;
        REST + (self.data_length() as u64).min(RECORD_DATA_MAX)
    }

    /// The file that it is about, if it is not about names.
    pub fn file(&self) -> Option<FileId> {
        match self {
            Operation::Write { file, .. }
            | Operation::Read { file, .. }
            | Operation::Truncate { file, .. }
            | Operation::Sync { file }
            | Operation::Lock { file }
            | Operation::Unlock { file }
            | Operation::Commit { file, .. }
            | Operation::Layout { file, .. } => Some(*file),
            _ => None,
        }
    }

    /// The file whose data it changes.
    pub fn changes(&self) -> Option<FileId> {
        match self {
            Operation::Write { file, .. }
            | Operation::Truncate { file, .. }
            | Operation::Commit { file, .. } => Some(*file),
            _ => None,
        }
    }

    pub(super) fn write(&self, to: &mut Writer) {
        match self {
            Operation::Lookup { directory, name } => named(to, 1, directory, name),
            Operation::Create { directory, name } => named(to, 2, directory, name),
            Operation::Unlink { directory, name } => named(to, 3, directory, name),
            Operation::Rename {
                directory,
                name,
                new_directory,
                new_name,
            } => {
                named(to, 4, directory, name);
                new_directory.write(to);
                to.counted(new_name);
            }
            Operation::Write { file, offset, data } => {
                of_file(to, 5, file);
                to.u64(*offset);
                to.counted(data);
            }
            Operation::Read {
                file,
                offset,
                length,
            } => {
                of_file(to, 6, file);
                to.u64(*offset);
                to.u32(*length);
            }
            Operation::Truncate { file, size } => {
                of_file(to, 7, file);
                to.u64(*size);
            }
            Operation::Sync { file } => of_file(to, 8, file),
            Operation::Lock { file } => of_file(to, 9, file),
            Operation::Unlock { file } => of_file(to, 10, file),
            _ => self.write_of_active(to),
        }
    }

    fn write_of_active(&self, to: &mut Writer) {
        match self {
            Operation::Grant { blocks } => {
                of_file(to, 11, &FileId::default());
                to.u32(*blocks);
            }
            Operation::Commit {
                file,
                offset,
                grant_block,
                wr_ids,
                checksums,
                size,
            } => {
                of_file(to, 12, file);
                to.u64(*offset);
                to.u64(*grant_block);
                wr_ids.iter().for_each(|it| to.u64(*it));
                to.u64(*size);
                to.u32(checksums.len() as u32);
                checksums.iter().for_each(|crc| to.u32(*crc));
            }
            Operation::Layout {
                file,
                offset,
                length,
            } => {
                of_file(to, 13, file);
                to.u64(*offset);
                to.u32(*length);
            }
            _ => {}
        }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Operation, Malformed> {
        let kind = from.u8()?;
        let file = FileId::read(from)?;
        Ok(match kind {
            1 => Operation::Lookup {
                directory: file,
                name: read_name(from)?,
            },
            2 => Operation::Create {
                directory: file,
                name: read_name(from)?,
            },
            3 => Operation::Unlink {
                directory: file,
                name: read_name(from)?,
            },
            4 => Operation::Rename {
                directory: file,
                name: read_name(from)?,
                new_directory: FileId::read(from)?,
                new_name: read_name(from)?,
            },
            5 => Operation::Write {
                file,
                offset: from.u64()?,
                data: from.counted(DATA_MAX)?.to_vec(),
            },
            6 => Operation::Read {
                file,
                offset: from.u64()?,
                length: read_length(from)?,
            },
            7 => Operation::Truncate {
                file,
                size: from.u64()?,
            },
            8 => Operation::Sync { file },
            9 => Operation::Lock { file },
            10 => Operation::Unlock { file },
            11 => Operation::Grant {
                blocks: read_count(from, GRANT_MAX)?,
            },
            12 => {
                let (offset, grant_block) = (from.u64()?, from.u64()?);
                let wr_ids = [from.u64()?, from.u64()?];
                if wr_ids[0] > wr_ids[1] {
                    return Err(Malformed("its transfers end before they begin"));
                }
                let size = from.u64()?;
                let blocks = read_count(from, COMMIT_MAX as u32)?;
                let checksums: Result<_, _> = (0..blocks).map(|_| from.u32()).collect();
                Operation::Commit {
                    file,
                    offset,
                    grant_block,
                    wr_ids,
                    checksums: checksums?,
                    size,
                }
            }
            13 => Operation::Layout {
                file,
                offset: from.u64()?,
                length: read_length(from)?,
            },
            _ => return Err(Malformed("its operation is unknown")),
        })
    }
}

impl FileId {
    fn write(&self, to: &mut Writer) {
        to.u64(self.inode);
        to.u32(self.generation);
    }

    fn read(from: &mut Reader<'_>) -> Result<FileId, Malformed> {
        Ok(FileId {
            inode: from.u64()?,
            generation: from.u32()?,
        })
    }
}

fn of_file(to: &mut Writer, kind: u8, file: &FileId) {
    to.u8(kind);
    file.write(to);
}

fn named(to: &mut Writer, kind: u8, directory: &FileId, name: &[u8]) {
    of_file(to, kind, directory);
    to.counted(name);
}

fn read_name(from: &mut Reader<'_>) -> Result<Vec<u8>, Malformed> {
    let name = from.counted(NAME_MAX)?;
    let is_name = !name.is_empty() && !name.contains(&b'/') && !name.contains(&0);
    if is_name {
        Ok(name.to_vec())
    } else {
        Err(Malformed("a name is empty or has a slash or a zero in it"))
    }
}

fn read_length(from: &mut Reader<'_>) -> Result<u32, Malformed> {
    match from.u32()? {
        length if length as usize <= DATA_MAX => Ok(length),
        _ => Err(Malformed("it asks for more than a message holds")),
    }
}

fn read_count(from: &mut Reader<'_>, max: u32) -> Result<u32, Malformed> {
    match from.u32()? {
        count if (1..=max).contains(&count) => Ok(count),
        _ => Err(Malformed("it asks for no block, or for too many")),
    }
}

impl Acknowledge {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Acknowledge, Malformed> {
        Ok(match from.u8()? {
            0 => Acknowledge::Sent,
            1 => Acknowledge::Primary,
            2 => Acknowledge::All,
            _ => return Err(Malformed("it asks for no known acknowledgement")),
        })
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// As asked.
    #[default]
    Done = 0,
    /// There is no such name.
    NotFound = 1,
    /// The name is taken.
    Exists = 2,
    /// The file is gone.
    Stale = 3,
    /// Another session has the lock.
    Locked = 4,
    /// No space, or no inode, is left.
    NoSpace = 5,
    /// Anything else that the store refuses.
    Refused = 6,
    /// The session is over; what it held is too.
    SessionOver = 7,
    /// The data is not where it should be: it has to be sent again.
    Again = 8,
}

impl Status {
    /// The status that this byte stands for.
    pub fn from_byte(byte: u8) -> Option<Status> {
        use Status::*;
        let all = [
            Done,
            NotFound,
            Exists,
            Stale,
            Locked,
            NoSpace,
            Refused,
            SessionOver,
            Again,
        ];
        all.into_iter().find(|status| *status as u8 == byte)
    }

    fn read(from: &mut Reader<'_>) -> Result<Status, Malformed> {
        Status::from_byte(from.u8()?).ok_or(Malformed("its outcome is unknown"))
    }
}

/// What came out of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub status: Status,
    /// The file that was found or made.
    pub file: FileId,
    /// What was read.
    pub data: Vec<u8>,
}

impl Outcome {
    /// Nothing but how it ended.
    pub fn of(status: Status) -> Outcome {
        Outcome {
            status,
            ..Outcome::default()
        }
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.u8(self.status as u8);
        self.file.write(to);
        to.counted(&self.data);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Outcome, Malformed> {
        Ok(Outcome {
            status: Status::read(from)?,
            file: FileId::read(from)?,
            data: from.counted(DATA_MAX)?.to_vec(),
        })
    }
}

/// A request that was answered when only the primary had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Where its record ended: the order in which requests were carried out.
    pub sequence: Sequence,
    /// The slot.
    pub slot: u16,
    /// Number of the request in its slot.
    pub request: u64,
    /// What to do.
    pub operation: Operation,
}

/// A write whose user believes that it is done, and that cannot be carried out any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The file.
    pub file: FileId,
    /// Why.
    pub status: Status,
}

impl Refusal {
    pub(super) fn write(&self, to: &mut Writer) {
        self.file.write(to);
        to.u8(self.status as u8);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Refusal, Malformed> {
        Ok(Refusal {
            file: FileId::read(from)?,
            status: Status::read(from)?,
        })
    }
}

impl Replay {
    pub(super) fn write(&self, to: &mut Writer) {
        write_sequence(to, self.sequence);
        to.u16(self.slot);
        to.u64(self.request);
        self.operation.write(to);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Replay, Malformed> {
        Ok(Replay {
            sequence: read_sequence(from)?,
            slot: from.u16()?,
            request: from.u64()?,
            operation: Operation::read(from)?,
        })
    }
}
