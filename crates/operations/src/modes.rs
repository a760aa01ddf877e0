//! Variants of operations.

use serde::{Deserialize, Serialize};

/// When a write returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Acknowledge {
    /// When it was sent.
    Sent = 0,
    /// When it is persistent at the primary.
    #[default]
    Primary = 1,
    /// When it is persistent at all members in sync.
    All = 2,
}

/// How rename treats an existing new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// It is replaced, atomically.
    Replace,
    /// It makes the rename fail.
    NoReplace,
    /// The two names change places.
    Exchange,
    /// It is replaced, and a character device with number 0 takes the old name: overlay file systems mark removed names so.
    Whiteout,
}

/// How setting an extended attribute treats an existing or a missing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// It is made or replaced.
    Set,
    /// It must not exist.
    Create,
    /// Replaces an attribute, which must exist.
    Replace,
}

/// How fallocate changes a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fallocate {
    /// Holes get blocks, which read as zeros, so that writing there cannot fail for want of space. Data stays.
    Allocate {
        /// The file does not grow. Blocks behind its end are kept for when it does.
        keep_size: bool,
    },
    /// Whole blocks become holes; the rest of the range at its ends becomes zeros.
    PunchHole,
    /// Everything becomes zeros, with blocks for all of it.
    ZeroRange {
        /// The file does not grow.
        keep_size: bool,
    },
    /// Whole blocks vanish, and the data behind them moves up. The range ends before the file does.
    CollapseRange,
    /// Whole blocks become a hole, and the data there moves back. The range begins before the file ends.
    InsertRange,
}

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteAt {
    /// To this offset, in bytes.
    Offset(u64),
    /// To the end of the file at the time of the write.
    End,
}

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Offset of the first byte.
    pub offset: u64,
    /// Bytes written: all, or fewer when the pool became full on the way.
    pub length: usize,
}
