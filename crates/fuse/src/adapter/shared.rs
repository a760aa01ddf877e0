//! A file system that other processes change too: what the kernel keeps of it, and its open files.
//!
//! Until the cluster gives leases, names and attributes are asked for each time. The kernel drops the contents of a file
//! whose size or time of change differs from what it knows, and here at each opening that finds another version.

use std::collections::HashMap;

use client::{Error, FileSystem};
use parking_lot::Mutex;

use crate::wire::opened;

/// Files whose versions are remembered.
const VERSIONS_MAX: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Shared {
    /// Versions of files at their last opening, by inode number.
    versions: Mutex<HashMap<u64, (u32, u64)>>,
}

impl Shared {
    /// Opens a file: it stays when its last name is removed. Returns what the kernel is told about its contents.
    pub(super) fn open(&self, file_system: &FileSystem, number: u64) -> Result<u32, Error> {
        file_system.hold(number)?;
        let attributes = file_system.attributes(number).inspect_err(|_| {
            // The error is the one of the attributes.
            let _ = file_system.release(number, 1);
        })?;
        let version = (attributes.generation, attributes.version);
        let mut versions = self.versions.lock();
        if versions.len() == VERSIONS_MAX {
            // Files that are opened again lose the pages that the kernel has, once.
            versions.clear();
        }
        let is_same = versions.insert(number, version) == Some(version);
        Ok(if is_same { opened::KEEP_CACHE } else { 0 })
    }

    /// Closes a file that was opened.
    pub(super) fn close(&self, file_system: &FileSystem, number: u64) {
        // What cannot be given back now is given back when the session ends.
        let _ = file_system.release(number, 1);
    }
}
