//! `tako mounts`.

use std::io::Write;

use crate::failure::Outcome;
use crate::sizes::show_name;

/// Lists the mounted pools, a line each: pool, directory, options.
pub fn run(out: &mut dyn Write) -> Outcome {
    for mount in fuse::mounts()? {
        let show = |path: &std::path::Path| show_name(path.as_os_str().as_encoded_bytes());
        let (pool, directory) = (show(&mount.source), show(&mount.directory));
        writeln!(out, "{pool} on {directory} ({})", mount.options)?;
    }
    Ok(())
}
