//! Directories of a run, and what is cleaned up when it ends in any way.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;

/// Script that removes its first argument.
const REMOVE: &str = r#"exec rm -rf --one-file-system -- "$1""#;

/// A shell that runs a script when this is dropped, or when this process is killed.
pub struct Keeper(Child);

impl Keeper {
    /// Starts the shell, which waits.
    pub fn start(script: &str, arguments: &[&Path]) -> Result<Keeper, Error> {
        Command::new("sh")
            .args(["-c", &format!("read -r _\n{script}"), "keeper"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Readers of standard error wait for it.
            .stderr(Stdio::inherit())
            // Ctrl-C is not for it.
            .process_group(0)
            .spawn()
            .map(Keeper)
            .map_err(|error| Error::Mount(format!("sh cannot be run: {error}")))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // It waits for the end of its input. No caller is left to report a failure to.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A directory that is removed, with all that is in it, when this is dropped, or when this process is killed.
pub struct Scratch {
    path: PathBuf,
    /// None where there is no shell: then only a killed process leaves the directory behind.
    _keeper: Option<Keeper>,
}

impl Scratch {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn new(parent: &Path) -> Result<Scratch, Error> {
        // No name twice: a keeper may still be at removing what had it.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("tako-bench-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                result => {
                    result.map_err(Error::at(&path))?;
                    let _keeper = Keeper::start(REMOVE, &[&path]).ok();
                    return Ok(Scratch { path, _keeper });
                }
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // No caller is left to report it to.
        let _ = fs::remove_dir_all(&self.path);
    }
}
