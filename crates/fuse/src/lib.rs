//! The file system as a directory: a mount through the kernel's FUSE.
//!
//! [`mount`] makes a directory show a [`client::FileSystem`] and returns when it does; the [`Mount`] that it
//! returns is waited for or unmounted. Below that, `kernel` makes and ends mounts; `session` agrees with the kernel and
//! has the threads that take its requests, from the device or from a queue of each processor; `request` and `wire` decode
//! them, `adapter` does what they ask for, and `answer` writes what is said back. `translate` and `flags` turn the
//! kernel's words into ours.
//!
//! The mount is the only one who uses its pool, so the kernel caches names, attributes and contents for as long as
//! it likes; a program that changes its mounted file system itself says so by a [`Notifier`]. Writes are not among that: each has reached the pool when `write(2)` returns.

#![forbid(unsafe_code)]

mod adapter;
mod answer;
mod error;
mod flags;
pub mod fuzzing;
mod kernel;
mod mount;
mod mountinfo;
mod notify;
mod options;
mod remount;
mod request;
mod session;
mod switch;
mod translate;
mod wire;

pub use error::Error;
pub use kernel::{make_free, mount_point, unmount, unmount_lazily, wait_for_close};
pub use mount::{Mount, mount};
pub use mountinfo::{Mounted, mounts};
pub use notify::Notifier;
pub use options::{AccessTimes, Cache, Choice, Locks, MountOptions};
pub use remount::{Remount, remount};
pub use session::Transport;
