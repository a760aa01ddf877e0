//! `tako grow`.

use std::io::Write;
use std::path::Path;

use client::{FileSystem, Source};
use pmem::{Access, Kind, Region};
use store::read_superblock;

use crate::arguments::Grow;
use crate::channel::ask_to_grow;
use crate::cluster;
use crate::failure::{Failure, Outcome};
use crate::mkfs::describe;

pub fn run(arguments: &Grow, out: &mut dyn Write) -> Outcome {
    let pool = &arguments.pool;
    if let Some(source) = source_of(pool)? {
        return cluster::grow(&source, arguments.size.ok_or_else(no_size)?, out);
    }
    let explain = |error| Failure::Failed(format!("{}: {error}", pool.display()));
    let region = match Region::open(pool, Access::ReadWrite) {
        Err(busy @ pmem::Error::Busy { .. }) => return grow_mounted(arguments, busy, out),
        region => region?,
    };
    // Before the file gets longer: a file of something else must stay as it is.
    let superblock = read_superblock(&region).map_err(explain)?;
    superblock.check_alone().map_err(explain)?;
    let is_device = region.kind() == Kind::DeviceDax;
    let size = match arguments.size {
        _ if is_device => region.length(),
        Some(size) => size,
        None => return Err(no_size()),
    };
    drop(region);
    if !is_device && size > superblock.pool_length {
        // Farther than an open pool can grow.
        drop(Region::lengthen(pool, size)?);
    }
    let grown = FileSystem::open_pool(pool)?;
    grown
        .grow(size)
        .map_err(|error| Failure::at(pool.display(), &error))?;
    grown.close()?;
    drop(grown);
    describe(pool, out)
}

/// The cluster that the argument names, if it names none of a pool.
fn source_of(pool: &Path) -> Result<Option<Source>, Failure> {
    let text = pool.to_string_lossy();
    if !text.starts_with("tako://") {
        return Ok(None);
    }
    let source = text.parse::<Source>();
    source
        .map(Some)
        .map_err(|error| Failure::Usage(error.to_string()))
}

fn no_size() -> Failure {
    Failure::Usage("a pool file needs a size to grow to; add one, such as --size 8G".into())
}

/// Has the process that serves a mount of the pool do it.
fn grow_mounted(arguments: &Grow, busy: pmem::Error, out: &mut dyn Write) -> Outcome {
    let pool = &arguments.pool;
    let size = arguments.size.ok_or_else(no_size)?;
    match ask_to_grow(pool, size)? {
        Some(()) => {
            let pool = pool.display();
            writeln!(out, "{pool}: has {size} bytes now, and stays mounted")?;
            Ok(())
        }
        // A process has it open that does not serve a mount.
        None => Err(busy.into()),
    }
}
