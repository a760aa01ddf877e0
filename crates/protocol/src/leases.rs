//! Read leases: which files a client may keep in its caches without asking, and until when.
//!
//! One lease of a session covers one inode: the entries of a directory, and the attributes and data of any file. The
//! primary grants leases with the replies to reads, recalls them before a conflicting change is executed, and never grants
//! one that outlasts the leases by which it serves. `docs/PROTOCOL.md` has the rules.
//!
//! [`table`] is the primary's side, [`holder`] the client's. A lease for writing ([`owners`]) lets one session answer writes
//! before the primary knows them.

pub(crate) mod holder;
pub(crate) mod owners;
pub(crate) mod table;

use operations::{Details, ErrorCode, FileId, Operation, Outcome};

/// A lease in a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Grants and recalls of a primary are numbered in one order. 0: nothing is granted.
    pub number: u64,
    /// It ends this long after the request was sent, by any clock.
    pub lasts_ns: u64,
    /// Which of the inodes of the reply it covers.
    pub covers: Covers,
}

/// Inodes that a reply shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Covers {
    /// The file or directory that was asked about.
    pub subject: bool,
    /// The file that a name was found to lead to.
    pub found: bool,
    /// All files that a directory page lists with attributes.
    pub listed: bool,
    /// The file that was written, for writing: no other session reads or changes it before a recall is answered.
    pub owned: bool,
}

impl Covers {
    /// Whether it covers nothing.
    pub fn is_empty(self) -> bool {
        self == Covers::default()
    }

    /// Bits as in messages.
    pub(crate) fn bits(self) -> u8 {
        u8::from(self.subject)
            | u8::from(self.found) << 1
            | u8::from(self.listed) << 2
            | u8::from(self.owned) << 3
    }

    pub(crate) fn from_bits(bits: u8) -> Option<Covers> {
        (bits < 16).then_some(Covers {
            subject: bits & 1 != 0,
            found: bits & 2 != 0,
            listed: bits & 4 != 0,
            owned: bits & 8 != 0,
        })
    }
}

/// The inodes that an outcome shows, by their roles.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    pub subject: Option<u64>,
    /// The subject is a directory, and the outcome shows its entries.
    pub has_entries: bool,
    pub found: Option<u64>,
    pub listed: Vec<u64>,
}

/// The part of an outcome that a client may cache under leases: what a read shows, and the state right after a change, of names
/// or attributes, by its first answer. Other outcomes show nothing.
pub(crate) fn shown(operation: &Operation, outcome: &Outcome) -> Shown {
    let is_done = outcome.is_done();
    match operation {
        Operation::Lookup { directory, .. }
            if is_done || outcome.error == Some(ErrorCode::NotFound) =>
        {
            Shown {
                subject: Some(directory.inode),
                has_entries: true,
                found: is_done.then_some(outcome.file.inode),
                listed: Vec::new(),
            }
        }
        Operation::Create { directory, .. } | Operation::Link { directory, .. }
            if is_done && outcome.attributes.is_some() =>
        {
            Shown {
                subject: Some(directory.inode),
                has_entries: true,
                found: Some(outcome.file.inode),
                listed: Vec::new(),
            }
        }
        Operation::Unlink { directory, .. } | Operation::RemoveDirectory { directory, .. }
            if is_done =>
        {
            Shown {
                subject: Some(directory.inode),
                has_entries: true,
                ..Shown::default()
            }
        }
        Operation::Attributes { file }
        | Operation::Read { file, .. }
        | Operation::Layout { file, .. }
        | Operation::SetAttributes { file, .. }
            if is_done =>
        {
            Shown {
                subject: Some(file.inode),
                ..Shown::default()
            }
        }
        Operation::ReadDirectory { directory, .. } if is_done => Shown {
            subject: Some(directory.inode),
            has_entries: true,
            found: None,
            listed: match &outcome.details {
                Details::Entries(entries) => {
                    let listed = entries.iter().filter(|listed| listed.attributes.is_some());
                    listed.map(|listed| listed.entry.number).collect()
                }
                _ => Vec::new(),
            },
        },
        _ => Shown::default(),
    }
}

/// The inodes that a change names: no other session may cache their contents while it is executed. Access times are not
/// cached.
pub fn changed(operation: &Operation) -> Vec<u64> {
    match operation {
        Operation::SetAttributes { file, .. }
        | Operation::SetFlags { file, .. }
        | Operation::SetXattr { file, .. }
        | Operation::RemoveXattr { file, .. }
        | Operation::DropPrivileges { file, .. }
        | Operation::Write { file, .. }
        | Operation::Fallocate { file, .. }
        | Operation::Commit { file, .. } => vec![file.inode],
        Operation::CopyRange { to, .. } => vec![to.inode],
        Operation::Create { directory, .. }
        | Operation::Unlink { directory, .. }
        | Operation::RemoveDirectory { directory, .. } => vec![directory.inode],
        Operation::Link {
            file, directory, ..
        } => vec![file.inode, directory.inode],
        Operation::Rename {
            directory,
            new_directory,
            ..
        } => vec![directory.inode, new_directory.inode],
        _ => Vec::new(),
    }
}

/// Names of files that a change also changes.
pub fn changed_names(operation: &Operation) -> Vec<(FileId, Vec<u8>)> {
    match operation {
        Operation::Unlink { directory, name } | Operation::RemoveDirectory { directory, name } => {
            vec![(*directory, name.clone())]
        }
        Operation::Rename {
            directory,
            name,
            new_directory,
            new_name,
            ..
        } => vec![
            (*directory, name.clone()),
            (*new_directory, new_name.clone()),
        ],
        _ => Vec::new(),
    }
}
