//! A small file system in memory, for each test its own.
#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "loopback.rs"]
pub mod loopback;

use client::{Error, FileSystem, Geometry, OpenFlags, PoolOptions, Region};
use store::Store;

/// Whether the tests of this program work on a cluster, which is what `remote.rs` repeats them for.
pub const IS_REMOTE: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"remote");

/// A new, empty file system.
pub fn file_system() -> FileSystem {
    file_system_of(16 << 20, &Geometry::for_length(16 << 20))
}

/// A new, empty file system of `length` bytes.
pub fn file_system_of(length: u64, geometry: &Geometry) -> FileSystem {
    pool(length, geometry).1
}

/// The memory of a new pool, and the file system in it.
pub fn pool(length: u64, geometry: &Geometry) -> (Region, FileSystem) {
    let region = Region::memory(length, false).expect("memory");
    FileSystem::format_region(&region, geometry).expect("a pool");
    let file_system = open(region.clone(), PoolOptions::default());
    (region, file_system)
}

/// Opens the pool in a region.
pub fn open(region: Region, options: PoolOptions) -> FileSystem {
    let store = Store::open(region, options).expect("a store");
    match IS_REMOTE {
        true => loopback::file_system(store),
        false => FileSystem::of_store(store.into()),
    }
}

/// Makes a file with `contents`.
pub fn make_file(file_system: &FileSystem, path: &str, contents: &[u8]) {
    let flags = OpenFlags {
        create: true,
        exclusive: true,
        ..OpenFlags::WRITE
    };
    let file = file_system.open(path, flags, 0o644).expect(path);
    assert_eq!(file.write(contents).expect(path), contents.len());
}

/// Contents of a file.
pub fn contents(file_system: &FileSystem, path: &str) -> Vec<u8> {
    let file = file_system.open(path, OpenFlags::READ, 0).expect(path);
    let mut bytes = vec![0; file.attributes().expect(path).size as usize];
    assert_eq!(file.read(&mut bytes).expect(path), bytes.len());
    bytes
}

/// The errno of a call that must fail.
#[track_caller]
pub fn errno<T>(result: Result<T, Error>) -> i32 {
    result.err().expect("an error").errno()
}
