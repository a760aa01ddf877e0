//! The file system as a directory: a mount through the kernel's FUSE.
//!
//! [`mount`] makes a directory show a [`client::FileSystem`] and returns when it does; the [`Mount`] that it
//! returns is waited for or unmounted. Below that, `kernel` makes and ends mounts, `adapter` answers the kernel's
//! requests through the `fuser` crate, and `translate` and `flags` turn its words into ours and back.
//!
//! The mount is the only one who uses its pool, so the kernel caches names, attributes and contents for as long as
//! it likes. Writes are not among that: each has reached the pool when `write(2)` returns.

#![forbid(unsafe_code)]

mod adapter;
mod error;
mod flags;
mod kernel;
mod mount;
mod mountinfo;
mod options;
mod translate;

pub use error::Error;
pub use kernel::unmount;
pub use mount::{Mount, mount};
pub use options::MountOptions;
