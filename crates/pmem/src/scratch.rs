//! A directory for one test.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

/// Removed with all that is in it when dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch::within(&env::temp_dir())
    }

    pub(crate) fn within(parent: &Path) -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("tako-pmem-{}-{number}", process::id()));
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Remaining files do no harm, and a failed test needs them for inspection.
        let _ = fs::remove_dir_all(&self.0);
    }
}
