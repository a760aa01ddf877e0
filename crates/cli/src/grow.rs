//! `tako grow`.

use std::io::Write;

use client::FileSystem;
use pmem::{Access, Kind, Region};
use store::read_superblock;

use crate::arguments::Grow;
use crate::channel::ask_to_grow;
use crate::failure::{Failure, Outcome};
use crate::mkfs::describe;

pub fn run(arguments: &Grow, out: &mut dyn Write) -> Outcome {
    let pool = &arguments.pool;
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
