//! Advisory locks: of ranges of bytes, as fcntl(2) has them, and of whole files, as flock(2) has them.

use serde::{Deserialize, Serialize};

/// The last byte that a lock may hold.
pub const LOCK_END: u64 = i64::MAX as u64;

/// Extent of a lock. The two kinds do not conflict with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LockSpace {
    /// Bytes. An owner's lock replaces its own locks of the same bytes, all at once.
    Ranges,
    /// The whole file. An owner that asks for the other kind first loses the lock that it has.
    Whole,
}

/// Which other locks a lock excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LockKind {
    /// Locks of kind [`LockKind::Write`].
    Read,
    /// All other locks.
    Write,
}

/// A lock of a file, held or wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lock {
    /// Space in which locks conflict.
    pub space: LockSpace,
    /// Which other locks it excludes.
    pub kind: LockKind,
    /// First byte of the range.
    pub start: u64,
    /// Its last byte, at most [`LOCK_END`].
    pub end: u64,
    /// Owner: a process or an open file, by a number of the user's choice.
    pub owner: u64,
    /// The open file by which it was taken, by a number of the user's choice.
    pub handle: u64,
    /// The process that took it, for those that test for a lock.
    pub process: u32,
}

impl Lock {
    /// Whether both have a byte in common.
    pub fn overlaps(&self, other: &Lock) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}
