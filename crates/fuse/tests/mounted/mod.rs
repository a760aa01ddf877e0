//! A mounted pool in memory, for each test its own.
#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "../../../client/tests/common/loopback.rs"]
pub mod loopback;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use client::{FileSystem, Geometry, PoolOptions, Region};
use fuse::Mount;
use store::Store;

use crate::common::{apart, options};

const POOL_LENGTH: u64 = 256 << 20;

/// A mounted pool. Dropping it unmounts, also while a test fails.
pub struct Mounted {
    // Dropped in this order: the mount before the directory.
    pub mount: Option<Mount>,
    pub directory: Directory,
}

/// A separate directory, removed in the end.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Directory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tako-mount-{}-{number}", std::process::id()));
        fs::create_dir(&path).expect("a directory to mount on");
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

impl Mounted {
    /// Mounts with these options; see [`options`].
    pub fn new(text: &str) -> Mounted {
        Mounted::of(file_system(), text)
    }

    /// Mounts this file system.
    pub fn of(file_system: FileSystem, text: &str) -> Mounted {
        let directory = Directory::new();
        let mount = fuse::mount(file_system, &directory.0, &options(text)).expect("a mount");
        Mounted {
            mount: Some(mount),
            directory,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.0.join(name)
    }

    /// Unmounts and waits, as a program in the foreground does.
    pub fn end(mut self) {
        let mount = self.mount.take().expect("mounted until now");
        apart(|| mount.unmount()).expect("the mount is unused");
        mount.wait().expect("a clean end");
    }
}

/// Whether the tests of this program work on a cluster, which is what `remote.rs` repeats them for.
const IS_REMOTE: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"remote");

pub fn file_system() -> FileSystem {
    match IS_REMOTE {
        true => loopback::file_system(store()),
        false => FileSystem::of_store(store().into()),
    }
}

pub fn store() -> Store {
    let region = Region::memory(POOL_LENGTH, false).expect("memory");
    FileSystem::format_region(&region, &Geometry::for_length(POOL_LENGTH)).expect("a pool");
    Store::open(region, PoolOptions::default()).expect("a store")
}

/// The errno of a call that must fail.
#[track_caller]
pub fn errno<T>(result: io::Result<T>) -> i32 {
    result
        .err()
        .expect("an error")
        .raw_os_error()
        .expect("an errno")
}
