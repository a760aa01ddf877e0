//! The file system as a library: the one interface that every front end uses.
//!
//! The path API (path walk, open flags, positions, locks) stands on calls by inode, which a backend executes. The embedded
//! backend is a pool in this process: the calling thread does the work in the store, nothing is handed over to another
//! thread, and reading and writing take no locks but the store's own.
//!
//! - [`FileSystem`]: calls by inode number (`file_system`), for front ends that keep names themselves, and by path
//!   (`path`, over the walk in `path::walk`);
//! - `backend`: the calls by inode, and what executes them;
//! - [`File`]: an open file with its shared position;
//! - [`OpenFlags`]: how to open it;
//! - [`Lock`]: what users of a file ask each other to respect (`locks`);
//! - [`Requests`]: the way of operations to a cluster (`requests`);
//! - [`leases`]: what may be kept of outcomes, and until when;
//! - [`network`]: a session with a cluster, and [`Source`]: how users name one;
//! - [`state_directory`]: where the clusters of this host are (`state`);
//! - [`Error`]: what went wrong and where, and its errno.

#![forbid(unsafe_code)]

mod backend;
mod error;
mod file;
mod file_system;
pub mod leases;
mod locks;
pub mod network;
mod open_flags;
mod path;
mod requests;
mod source;
mod state;

pub use error::{Cause, Error};
pub use file::File;
pub use file_system::{FileSystem, ROOT};
pub use locks::{LockTicket, LockUser, LockWake, NotLocked};
pub use open_flags::OpenFlags;
pub use operations::{Acknowledge, LOCK_END, Lock, LockKind, LockSpace};
pub use pmem::Region;
pub use requests::{HoldsSource, Interrupt, RequestError, Requests, TurnListener};
pub use source::{Source, SourceError};
pub use state::{cluster_map_file, state_directory};
pub use store::{
    Attributes, Clock, Entry, Fallocate, FileExtent, FileFlags, FileKind, Geometry, LostData,
    NewInode, Options, RenameMode, SetAttributes, Statistics, WriteAt, Written, XattrMode,
};
