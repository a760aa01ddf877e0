//! The file system as a directory: a mount through the kernel's FUSE.
//!
//! [`mount`] makes a directory show a [`client::FileSystem`] and returns when it does; the returned [`Mount`] is waited
//! for or unmounted. Below that, `kernel` makes and ends mounts; `session` negotiates with the kernel and has the
//! threads that take its requests, from the device or from a queue of each processor; `request` and `wire` decode them,
//! `adapter` executes them, and `answer` encodes the answers. `translate` and `flags` convert the kernel's types into
//! Tako's.
//!
//! The mount is the only user of its pool, so the kernel caches names, attributes and contents without limit; a program
//! that changes its mounted file system itself reports it by a [`Notifier`]. Writes are not delayed: each has reached
//! the pool when `write(2)` returns.

#![forbid(unsafe_code)]

mod access_times;
mod adapter;
mod answer;
mod enable_uring;
mod error;
mod flags;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod kernel;
mod mount;
mod mountinfo;
mod notify;
mod options;
mod remount;
mod request;
mod session;
mod translate;
mod wire;

pub use access_times::{AccessTime, AccessTimes};
pub use error::Error;
pub use kernel::{make_free, mount_point, unmount, unmount_lazily, wait_for_close};
pub use mount::{Mount, mount};
pub use mountinfo::{Mounted, mounts};
pub use notify::Notifier;
pub use options::{Cache, Choice, Locks, MountOptions};
pub use remount::{Remount, remount};
pub use session::Transport;
