//! Data of files: reading, writing, sharing, allocating, and the blocks that clients fill.

pub(crate) mod bad_blocks;
pub(crate) mod fallocate;
pub(crate) mod file;
pub(crate) mod grant;
pub(crate) mod share;
