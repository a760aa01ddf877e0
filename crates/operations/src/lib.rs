//! The vocabulary of the file system: every operation on files, its outcome, and the plain types in them.
//!
//! One vocabulary serves embedded calls, the wire, the server and the lab's model. This crate does no I/O, and uses none of
//! the other crates. `store` exports the plain types again.
//!
//! - [`FileId`], [`Attributes`], [`NewInode`], [`Entry`] and the like (`file`, `modes`): what files are;
//! - [`Lock`]: byte-range and whole-file locks (`lock`);
//! - [`Operation`] and [`Outcome`]: a request and its answer;
//! - `properties`: what the protocol needs to know about an operation;
//! - [`ErrorCode`]: why an operation failed;
//! - `encoding`: operations and outcomes as bytes. Decoded values are validated: lengths, names, ranges.
#![forbid(unsafe_code)]

mod code;
mod encoding;
mod file;
mod lock;
mod modes;
mod operation;
mod outcome;
mod properties;

/// Bytes that several owners share: data is copied only where it must be.
pub use bytes::Bytes;
pub use code::ErrorCode;
pub use encoding::Malformed;
pub use file::{
    Attributes, Entry, FileExtent, FileFlags, FileId, FileKind, NewInode, OwnedNewInode,
    SetAttributes, Statistics,
};
pub use lock::{LOCK_END, Lock, LockKind, LockSpace};
pub use modes::{Acknowledge, Fallocate, RenameMode, WriteAt, Written, XattrMode};
pub use operation::{Held, Operation, WAIT_ENDED};
pub use outcome::{Details, ListedEntry, Outcome};
pub use properties::RECORD_DATA_MAX;

/// The root directory's inode number, in every unit.
pub const ROOT: u64 = 1;
/// Longest name in a directory, in bytes.
pub const NAME_LENGTH_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const TARGET_LENGTH_MAX: usize = 4095;
/// Longest name of an extended attribute, in bytes.
pub const XATTR_NAME_MAX: usize = 255;
/// Longest value of an extended attribute, in bytes.
pub const XATTR_VALUE_MAX: usize = 64 << 10;
/// Most data that one operation carries or returns, in bytes.
pub const DATA_MAX: usize = 1 << 20;
/// Most blocks that one grant operation asks for.
pub const GRANT_BLOCKS_MAX: u32 = 4096;
/// Most blocks that one commit moves into a file.
pub const COMMIT_BLOCKS_MAX: usize = 256;
/// Most files that one release names.
pub const RELEASES_MAX: usize = 1024;
