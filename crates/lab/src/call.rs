//! A call of a file system by path, and its answer, for the model, an embedded file system and a mounted
//! directory.

use std::collections::BTreeMap;
use std::fmt;

use client::{Fallocate, FileFlags, FileKind, OpenFlags, RenameMode, XattrMode};

/// Slots for files that stay open over several operations.
pub const SLOTS: usize = 3;

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// To this offset, in bytes.
    Offset(u64),
    /// To the end of the file.
    End,
}

/// A call with its arguments. Paths are relative to the root of the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the fields say it")]
pub enum Call {
    /// Makes a file, directory or special file that must not be there (`mknod`, `mkdir`).
    Make {
        path: String,
        kind: FileKind,
        permissions: u32,
    },
    /// Makes a symbolic link.
    Symlink { target: String, path: String },
    /// Gives a file a further name.
    Link { from: String, to: String },
    /// Takes a name of anything but a directory away.
    Unlink { path: String },
    /// Removes an empty directory.
    RemoveDirectory { path: String },
    /// Renames a file or directory.
    Rename {
        from: String,
        to: String,
        mode: RenameMode,
    },
    /// Opens a file and closes it again: creates or truncates it if the flags require it.
    Open {
        path: String,
        flags: OpenFlags,
        permissions: u32,
    },
    /// Writes `length` bytes, which `fill` determines, into an existing file.
    Write {
        path: String,
        at: At,
        length: usize,
        fill: u64,
    },
    /// Copies a range of a file into another file, or another place of the same.
    CopyRange {
        path: String,
        offset: u64,
        to: String,
        to_offset: u64,
        length: usize,
    },
    /// Cuts or lengthens a file.
    Truncate { path: String, size: u64 },
    /// Allocates, frees or moves blocks of an existing file.
    Fallocate {
        path: String,
        mode: Fallocate,
        offset: u64,
        length: u64,
    },
    /// Changes permissions (07777), following symbolic links.
    SetPermissions { path: String, permissions: u32 },
    /// Changes owner and group, following symbolic links.
    SetOwner { path: String, uid: u32, gid: u32 },
    /// Changes the time of the last change of the data, following symbolic links.
    SetModified { path: String, modified_ns: i64 },
    /// Makes or replaces an extended attribute, following symbolic links. `fill` determines its value.
    SetXattr {
        path: String,
        name: String,
        length: usize,
        fill: u64,
        mode: XattrMode,
    },
    /// Gives a file an access control list, the one that counts for it or the one that a directory hands on, following
    /// symbolic links.
    SetAcl {
        path: String,
        is_default: bool,
        acl: Acl,
    },
    /// Sets what keeps a file or directory from being changed, following symbolic links.
    SetFlags { path: String, flags: FileFlags },
    /// Takes an extended attribute away, following symbolic links.
    RemoveXattr { path: String, name: String },
    /// Reads a part of a file.
    Read {
        path: String,
        offset: u64,
        length: usize,
    },
    /// Reads the target of a symbolic link.
    ReadLink { path: String },
    /// Asks for the attributes of a file, or of a symbolic link itself.
    Stat { path: String },
    /// Reads a directory.
    List { path: String },
    /// Opens a file for reading and writing and keeps it in a slot, in place of its former file.
    Hold { path: String, slot: usize },
    /// Opens a new file without a name, like those in a directory, for reading and writing, and keeps it in a slot.
    HoldUnnamed {
        path: String,
        slot: usize,
        exclusive: bool,
    },
    /// Gives the file in a slot a name.
    LinkHeld { slot: usize, to: String },
    /// Closes the file in a slot.
    Release { slot: usize },
    /// Writes into the file in a slot.
    WriteHeld {
        slot: usize,
        offset: u64,
        length: usize,
        fill: u64,
    },
    /// Reads from the file in a slot.
    ReadHeld {
        slot: usize,
        offset: u64,
        length: usize,
    },
}

/// An access control list. Permissions are 07.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    /// Owner, owning group and others, as in a mode.
    pub mode: u32,
    /// Users by number, with permissions.
    pub users: Vec<(u32, u32)>,
    /// Greatest permissions of named users and groups; needed if any are named.
    pub mask: Option<u32>,
}

impl Acl {
    /// The extended attribute of the list that counts, and of the one that a directory hands on.
    pub const NAMES: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

    /// Returns the attribute's value, in the form of Linux.
    pub fn value(&self) -> Vec<u8> {
        let basic = |tag: u16, shift: u32| (tag, self.mode >> shift & 7, u32::MAX);
        let users = self.users.iter();
        let mut entries = vec![basic(0x01, 6)];
        entries.extend(users.map(|(user, permissions)| (0x02, *permissions, *user)));
        entries.push(basic(0x04, 3));
        entries.extend(self.mask.map(|mask| (0x10, mask, u32::MAX)));
        entries.push(basic(0x20, 0));
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, number) in entries {
            value.extend(tag.to_le_bytes());
            value.extend((permissions as u16).to_le_bytes());
            value.extend(number.to_le_bytes());
        }
        value
    }
}

impl Call {
    /// Whether the operation may fail because the pool is full.
    pub fn may_lack_space(&self) -> bool {
        use Call::*;
        matches!(
            self,
            Make { .. }
                | Symlink { .. }
                | Link { .. }
                | Open { .. }
                | Write { .. }
                | WriteHeld { .. }
                | CopyRange { .. }
                | Fallocate { .. }
                | SetXattr { .. }
                | SetAcl { .. }
                | HoldUnnamed { .. }
                | LinkHeld { .. }
                | Rename {
                    mode: RenameMode::Whiteout,
                    ..
                }
        )
    }

    /// The effect of the operation when it ends because the pool is full, if that is observable.
    pub fn without_space(&self) -> Option<Call> {
        let mut zeros = self.clone();
        match &mut zeros {
            Call::Fallocate { mode, .. } if matches!(mode, Fallocate::ZeroRange { .. }) => {
                *mode = Fallocate::PunchHole;
                Some(zeros)
            }
            _ => None,
        }
    }

    /// A write of fewer bytes, as it happens when the pool becomes full on the way.
    pub fn shortened(&self, count: usize) -> Call {
        let mut shorter = self.clone();
        if let Call::Write { length, .. }
        | Call::WriteHeld { length, .. }
        | Call::CopyRange { length, .. } = &mut shorter
        {
            *length = count.min(*length);
        }
        shorter
    }
}

/// Error number of a failed call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl fmt::Debug for Errno {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(formatter)
    }
}

/// Attributes that all systems agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Kind of the file.
    pub kind: FileKind,
    /// Permissions, set-id and sticky bits: 07777.
    pub permissions: u32,
    /// Names that lead here; for a directory 2 plus its subdirectories.
    pub links: u32,
    /// User that owns the file.
    pub uid: u32,
    /// Number of the owning group.
    pub gid: u32,
    /// Bytes of a file or a symbolic link's target; else 0.
    pub size: u64,
    /// When the data changed last; `None` where the clock is not ours.
    pub modified_ns: Option<i64>,
    /// Flags that forbid changes.
    pub flags: FileFlags,
    /// Extended attributes with their values.
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// Result of a successful operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call succeeded and returned nothing.
    Done,
    /// Number of bytes written.
    Written(usize),
    /// Bytes read, or a symbolic link's target.
    Bytes(Vec<u8>),
    /// The names in a directory, sorted, without `.` and `..`.
    Names(Vec<(String, FileKind)>),
    /// Attributes, and a number that the same file has under all its names.
    Facts(u64, Facts),
}

/// Answer of an operation.
pub type Answer = Result<Outcome, Errno>;

/// Whether two systems' answers mean the same: inode numbers and unknown times aside.
pub fn agree(one: &Answer, other: &Answer) -> bool {
    match (one, other) {
        (Ok(Outcome::Facts(_, one)), Ok(Outcome::Facts(_, other))) => facts_agree(one, other),
        _ => one == other,
    }
}

/// Whether attributes are equal, as far as both systems know them.
pub fn facts_agree(one: &Facts, other: &Facts) -> bool {
    let modified_ns = one.modified_ns.and(other.modified_ns);
    let known = |facts: &Facts| Facts {
        modified_ns: modified_ns.and(facts.modified_ns),
        ..facts.clone()
    };
    known(one) == known(other)
}

/// A file system that operations can be tried on.
pub trait System {
    /// Executes one operation and returns its answer.
    fn apply(&mut self, operation: &Call) -> Answer;
}

/// The bytes of a write: any two positions, and any two fills, differ.
pub fn contents(fill: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut word = fill.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < length {
        word = word
            .wrapping_mul(0xd134_2543_de82_ef95)
            .wrapping_add(0x2545_f491_4f6c_dd1d);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
