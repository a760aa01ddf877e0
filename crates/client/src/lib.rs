//! The file system as a library: the one interface that every front end uses.
//!
//! ```
//! use client::{FileSystem, Geometry, OpenFlags, PoolOptions, Region};
//!
//! # fn main() -> Result<(), client::Error> {
//! let region = Region::memory(16 << 20, false)?;
//! FileSystem::format_region(&region, &Geometry::for_length(16 << 20))?;
//! let files = FileSystem::open_region(region, PoolOptions::default())?;
//!
//! files.make_directory("notes", 0o755)?;
//! let flags = OpenFlags { create: true, ..OpenFlags::READ_WRITE };
//! let file = files.open("notes/first", flags, 0o644)?;
//! file.write_at(b"persistent when it returns", 0)?;
//!
//! let mut start = [0; 10];
//! file.read_at(&mut start, 0)?;
//! assert_eq!(&start, b"persistent");
//! assert_eq!(files.list("notes")?[0].name, b"first");
//! files.close()
//! # }
//! ```
//!
//! The path API (path walk, open flags, positions, locks) uses calls by inode, which a backend executes. The embedded
//! backend is a pool in this process: the calling thread does the work in the store, hands nothing over to another
//! thread, and reading and writing take only the store's locks.
//!
//! - [`FileSystem`]: calls by inode number (`file_system`), for front ends that keep names themselves, and by path
//!   (`path`, over the walk in `path::walk`);
//! - `backend`: the calls by inode, and their execution;
//! - [`File`]: an open file with its shared position;
//! - [`Map`]: a file mapped for reading;
//! - [`OpenFlags`]: how to open it;
//! - [`Lock`]: advisory locks of files (`locks`);
//! - [`Requests`]: transport of operations to a cluster (`requests`);
//! - [`leases`]: caching of outcomes, and its limits;
//! - [`network`]: a session with a cluster, and [`Source`]: how users name one;
//! - [`state_directory`]: where the clusters of this host are (`local_clusters`);
//! - [`Error`]: the failure, its location, and its errno.

#![forbid(unsafe_code)]

mod backend;
mod error;
mod file;
mod file_system;
pub mod leases;
mod local_clusters;
mod locks;
mod map;
pub mod network;
mod open_flags;
mod path;
mod requests;
mod source;

pub use error::{Cause, Error};
pub use file::File;
pub use file_system::{FileSystem, ROOT};
pub use local_clusters::{cluster_map_file, state_directory};
pub use locks::{LockTicket, LockUser, LockWake, NotLocked};
pub use map::Map;
pub use open_flags::OpenFlags;
pub use operations::{Acknowledge, LOCK_END, Lock, LockKind, LockSpace};
pub use pmem::Region;
pub use requests::{
    HoldsSource, Interrupt, LandingError, Owning, RequestError, Requests, Started, TurnListener,
};
pub use source::{Source, SourceError};
pub use store::{
    Attributes, Clock, Entry, Fallocate, FileExtent, FileFlags, FileKind, Geometry, LostData,
    NewInode, PoolOptions, RenameMode, SetAttributes, Statistics, WriteAt, Written, XattrMode,
};
