//! Files: identity, kind, attributes, entries of directories.

use serde::{Deserialize, Serialize};

const KIND_MASK: u32 = 0o170_000;

/// Names a file for as long as it exists: inode numbers are used again, with another generation.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct FileId {
    /// Unit that holds the inode.
    pub unit: u16,
    /// Inode number in the unit.
    pub inode: u64,
    /// Generation of the inode number; 0 for any, if a caller knows only the number.
    pub generation: u32,
}

impl FileId {
    /// Matches any generation of the inode: for numbers from a listing without attributes. No inode has it.
    pub const ANY_GENERATION: u32 = 0;

    /// The root directory of a unit. Its generation is never checked.
    pub const fn root(unit: u16) -> FileId {
        FileId {
            unit,
            inode: crate::ROOT,
            generation: 0,
        }
    }
}

/// Kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileKind {
    /// A file with data.
    Regular,
    /// Directory of other files.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// Socket of the address family `AF_UNIX`.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// The kind's bits in `st_mode`.
    pub fn bits(self) -> u32 {
        match self {
            FileKind::Regular => 0o100_000,
            FileKind::Directory => 0o040_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Fifo => 0o010_000,
            FileKind::Socket => 0o140_000,
            FileKind::CharacterDevice => 0o020_000,
            FileKind::BlockDevice => 0o060_000,
        }
    }

    /// The kind in `st_mode`.
    pub fn from_bits(mode: u32) -> Option<FileKind> {
        Some(match mode & KIND_MASK {
            0o100_000 => FileKind::Regular,
            0o040_000 => FileKind::Directory,
            0o120_000 => FileKind::Symlink,
            0o010_000 => FileKind::Fifo,
            0o140_000 => FileKind::Socket,
            0o020_000 => FileKind::CharacterDevice,
            0o060_000 => FileKind::BlockDevice,
            _ => return None,
        })
    }
}

/// Flags that keep a file or directory from being changed. Reading is not concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFlags {
    /// Neither data, nor attributes, nor names in a directory change; the file can be neither renamed, linked nor removed.
    pub immutable: bool,
    /// The same, except that data may be written to the end, and names may be added.
    pub append_only: bool,
}

/// Attributes of an inode, as `stat` returns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Number of the inode.
    pub number: u64,
    /// Distinguishes files that had this number one after the other.
    pub generation: u32,
    /// Kind of the inode.
    pub kind: FileKind,
    /// Permissions, set-id and sticky bits: 07777.
    pub permissions: u32,
    /// Names that lead here.
    pub links: u32,
    /// User that owns the file.
    pub uid: u32,
    /// Number of the owning group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Units of 512 bytes held.
    pub blocks_512: u64,
    /// Last read as recorded, nanoseconds since 1970.
    pub accessed_ns: i64,
    /// Last change of the data, nanoseconds since 1970.
    pub modified_ns: i64,
    /// Last change of data or attributes, nanoseconds since 1970.
    pub changed_ns: i64,
    /// Time of creation, nanoseconds since 1970.
    pub created_ns: i64,
    /// Device number of a device node.
    pub device: u32,
    /// Flags that keep it from being changed.
    pub flags: FileFlags,
    /// Number of the last record that changed it, apart from the access time.
    pub version: u64,
}

impl Attributes {
    /// The identity of the file with these attributes.
    pub const fn file(&self, unit: u16) -> FileId {
        FileId {
            unit,
            inode: self.number,
            generation: self.generation,
        }
    }
}

/// Attributes to change; `None` leaves one as it is. `changed_ns` defaults to now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttributes {
    /// Permissions, set-id and sticky bits: 07777.
    pub permissions: Option<u32>,
    /// User that owns the file; `None` leaves it unchanged.
    pub uid: Option<u32>,
    /// Number of the owning group.
    pub gid: Option<u32>,
    /// Bytes: the file is cut, or grows by a hole.
    pub size: Option<u64>,
    /// Nanoseconds since 1970.
    pub accessed_ns: Option<i64>,
    /// Nanoseconds since 1970.
    pub modified_ns: Option<i64>,
    /// Nanoseconds since 1970.
    pub changed_ns: Option<i64>,
}

/// Attributes of a file that is to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode<'a> {
    /// Kind of the new inode.
    pub kind: FileKind,
    /// Permissions, set-id and sticky bits: 07777.
    pub permissions: u32,
    /// User that owns the new inode.
    pub uid: u32,
    /// Number of the owning group.
    pub gid: u32,
    /// Device number of a device node, else 0.
    pub device: u32,
    /// Target of a symbolic link, else empty.
    pub target: &'a [u8],
    /// Permissions that are taken away, unless the directory has a default access control list, which decides then.
    pub umask: u32,
}

impl NewInode<'_> {
    /// A file or directory that belongs to root, with these permissions.
    pub const fn new(kind: FileKind, permissions: u32) -> NewInode<'static> {
        NewInode {
            kind,
            permissions,
            uid: 0,
            gid: 0,
            device: 0,
            target: &[],
            umask: 0,
        }
    }
}

/// A [`NewInode`] that owns its target: the form inside an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnedNewInode {
    /// Kind of the new inode.
    pub kind: FileKind,
    /// Permissions, set-id and sticky bits: 07777.
    pub permissions: u32,
    /// User that owns the new inode.
    pub uid: u32,
    /// Number of the owning group.
    pub gid: u32,
    /// Device number of a device node, else 0.
    pub device: u32,
    /// Target of a symbolic link, else empty.
    #[serde(with = "serde_bytes")]
    pub target: Vec<u8>,
    /// Permissions that are taken away, unless the directory has a default access control list, which decides then.
    pub umask: u32,
}

impl OwnedNewInode {
    /// The same attributes, with a borrowed target.
    pub fn as_new(&self) -> NewInode<'_> {
        NewInode {
            kind: self.kind,
            permissions: self.permissions,
            uid: self.uid,
            gid: self.gid,
            device: self.device,
            target: &self.target,
            umask: self.umask,
        }
    }
}

impl From<&NewInode<'_>> for OwnedNewInode {
    fn from(new: &NewInode<'_>) -> OwnedNewInode {
        OwnedNewInode {
            kind: new.kind,
            permissions: new.permissions,
            uid: new.uid,
            gid: new.gid,
            device: new.device,
            target: new.target.to_vec(),
            umask: new.umask,
        }
    }
}

/// One name as it is read from a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the entry.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Number of the inode.
    pub number: u64,
    /// Kind of the inode.
    pub kind: FileKind,
    /// Position behind this entry, for reading on. Positions stay valid when other names are added or removed.
    pub cookie: u64,
}

/// A part of a file that lies in one piece in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileExtent {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Bytes: whole blocks, so that the last one may reach behind the file's end.
    pub length: u64,
    /// Offset in the pool, in bytes from the pool's start.
    pub pool_offset: u64,
    /// The blocks were allocated and not written: they read as zeros.
    pub is_unwritten: bool,
}

/// Figures of a whole pool or unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks for data and what describes it.
    pub blocks: u64,
    /// Blocks not in use.
    pub blocks_free: u64,
    /// Blocks that files can still take; the rest of the free ones is kept so that removing always works.
    pub blocks_available: u64,
    /// Inodes for files, the root directory included.
    pub inodes: u64,
    /// Inodes not in use.
    pub inodes_free: u64,
    /// Longest name, in bytes.
    pub name_length_max: u32,
    /// Longest write that is one change, in bytes.
    pub write_max: u32,
}
