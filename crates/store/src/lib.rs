//! The meaning of the bytes in a pool.
//!
//! A pool holds a superblock, a **record ring** and an **image**. Every change of the image is one record: it is
//! written into the ring, flushed and fenced (then it is committed), and only then applied to the image. Recovery
//! replays the ring. See `docs/LAYOUT.md` for the bytes and `docs/ARCHITECTURE.md` for the picture.
//!
//! A [`Store`] is an open pool. Each layer of it is a type, which uses only those below it:
//!
//! | type | folder | content |
//! |---|---|---|
//! | [`Names`] | `names` | directories and links |
//! | [`Files`] | `data` | the data of files: reading, writing, sharing, grants |
//! | [`Inodes`] | `inode` | inodes in use, attributes, extended attributes, extent trees |
//! | [`Volume`] | `image` | blocks, their allocation, `change` (one atomic change) with [`Transaction`] (its context) |
//! | | `ring` | the order of changes |
//! | | [`mod@format`] | the bytes |
//!
//! Beside them are `replica` (a pool that follows another pool's records), [`check()`] and [`repair()`].
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!(
    "the pool format is little-endian and is read in place: big-endian machines are not supported"
);

mod check;
mod clock;
mod data;
mod defects;
mod error;
pub mod format;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod image;
mod inode;
mod names;
mod order;
mod repair;
mod replica;
mod ring;
mod sequence;
mod store;

pub use check::{CheckOptions, Finding, Report, check};
pub use clock::Clock;
pub use data::Files;
pub use data::bad_blocks::LostData;
pub use data::grant::{Adoption, FileLayout, Mapped};
pub use defects::Defects;
pub use error::Error;
pub use format::superblock::Superblock;
pub use image::create::{Geometry, identity};
pub use image::recovery::{has_superblock, read_superblock, recovery_start};
pub use image::transaction::{REPLY, Reply, Transaction};
pub use image::volume::Sharing;
pub use image::volume::{PoolOptions, Volume};
pub use inode::Inodes;
pub use inode::live::LiveInode;
pub use names::Names;
pub use operations::{
    Attributes, Entry, ErrorCode, Fallocate, FileExtent, FileFlags, FileKind, NewInode, RenameMode,
    SetAttributes, Statistics, WriteAt, Written, XattrMode,
};
pub use repair::{Repair, repair};
pub use replica::{Ingested, MemberFormat, Replica, named_data, read_metadata};
pub use sequence::Sequence;
pub use store::Store;

/// Bytes in a block, the unit of allocation and of data checksums.
pub const BLOCK: usize = 4096;
pub use operations::ROOT;
/// The inode number of the system directory: a separate root for data of a server. No path reaches it.
pub const SYSTEM: u64 = 2;
pub use operations::NAME_LENGTH_MAX;
/// Longest write that is atomic across a crash, in bytes.
pub const ATOMIC_WRITE_MAX: usize = 1 << 20;

/// Whether this is a directory that no name leads to, its own parent.
pub(crate) const fn is_root(number: u64) -> bool {
    matches!(number, ROOT | SYSTEM)
}
