//! `tako mkfs`.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;

use client::{Cause, FileSystem, Geometry};
use pmem::{Access, Kind, Region};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use store::{Store, has_superblock};

use crate::arguments::Mkfs;
use crate::failure::{Failure, Outcome};
use crate::info::Info;
use crate::pools::refuse_cluster;
use crate::progress::while_working;
use crate::signature;
use crate::sizes::show_size;

/// Inodes of a group come in multiples of this.
const INODES_STEP: u64 = 16;

pub fn run(arguments: &Mkfs, out: &mut dyn Write) -> Outcome {
    refuse_cluster(&arguments.pool, "make one with `tako up`")?;
    // Resolved once: what is examined is what is replaced, wherever a symbolic link leads later.
    let pool = &match fs::canonicalize(&arguments.pool) {
        Ok(resolved) => resolved,
        Err(error) if arguments.pool.is_symlink() => {
            let why = match error.kind() {
                ErrorKind::NotFound => "leads nowhere; remove it".to_owned(),
                _ => format!("cannot be followed: {error}; mend it"),
            };
            return Err(Failure::Failed(format!(
                "{} is a symbolic link that {why}, or choose another path",
                arguments.pool.display()
            )));
        }
        Err(_) => arguments.pool.clone(),
    };
    let there = match Region::open(pool, Access::ReadWrite) {
        Ok(region) => Some(region),
        Err(pmem::Error::NotFound { .. }) => {
            check_place(pool)?;
            None
        }
        // An empty file is no device.
        Err(pmem::Error::NotAPool { .. }) if pool.is_file() => {
            return Err(not_a_pool(pool));
        }
        Err(error) => return Err(error.into()),
    };
    let is_device = there
        .as_ref()
        .is_some_and(|region| region.kind() == Kind::DeviceDax);
    if let Some(region) = &there {
        check_overwriting(pool, region, is_device, arguments.force)?;
    }
    match there {
        Some(region) if is_device => {
            let geometry = geometry(arguments, region.length())?;
            let format = || Store::format(&region, &geometry);
            let made = while_working(format!("formatting {}", pool.display()), format);
            made.map_err(|error| Failure::Failed(format!("{}: {error}", pool.display())))?;
        }
        there => {
            let Some(size) = arguments.size else {
                let sentence = "a pool file needs a size; add one, such as --size 4G";
                return Err(Failure::Usage(sentence.into()));
            };
            let geometry = geometry(arguments, size)?;
            if let Some(old) = there {
                geometry
                    .check(size)
                    .map_err(|error| Failure::Failed(format!("{}: {error}", pool.display())))?;
                refuse_hard_links(pool)?;
                remove_old(pool, old, size)?;
            }
            let interrupted = remove_when_interrupted(pool)?;
            let format = || FileSystem::format_pool(pool, size, Some(geometry));
            let made = while_working(format!("making {}", pool.display()), format);
            interrupted.close();
            made.map_err(|error| not_made(pool, error))?;
        }
    }
    describe(pool, out)
}

/// Other hard links would keep the old pool.
fn refuse_hard_links(pool: &Path) -> Outcome {
    let metadata = fs::metadata(pool).map_err(|error| Failure::host("examine", pool, &error))?;
    let names = metadata.nlink();
    if names > 1 {
        return Err(Failure::Failed(format!(
            "{} has {names} names (hard links), and the others would keep the old pool; remove the other names first or choose another path",
            pool.display()
        )));
    }
    Ok(())
}

/// Removes a pool once it is certain that there is room for its successor: the old file has been given that size.
fn remove_old(pool: &Path, old: Region, size: u64) -> Outcome {
    let length = old.length();
    // Making it longer needs its lock.
    drop(old);
    let longer = Region::lengthen(pool, size)?;
    // The lock is held until the old pool is gone, so that no process opens it now.
    fs::remove_file(pool).map_err(|error| {
        // The first error is the one to report.
        let _ = longer.shrink(length);
        Failure::host("remove", pool, &error)
    })
}

/// The failure to make a pool file. `check_place` has found its directory.
fn not_made(pool: &Path, error: client::Error) -> Failure {
    match error.cause() {
        Cause::Region(pmem::Error::NotFound { .. }) => Failure::Failed(format!(
            "cannot make {}: its directory takes no new files; choose another path",
            pool.display()
        )),
        Cause::Region(_) => error.into(),
        _ => Failure::at(pool.display(), &error),
    }
}

/// Removes an incomplete pool if this process is asked to end before it is made.
fn remove_when_interrupted(pool: &Path) -> Result<Handle, Failure> {
    let signals = Signals::new([SIGINT, SIGTERM]);
    let mut signals =
        signals.map_err(|error| Failure::host("wait for signals at", pool, &error))?;
    let (handle, pool) = (signals.handle(), pool.to_owned());
    thread::spawn(move || {
        for signal in signals.forever() {
            // The process ends; no caller is left that could handle an error.
            let _ = fs::remove_file(&pool);
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
    Ok(handle)
}

/// Checks that there is a directory to make a pool file in.
fn check_place(pool: &Path) -> Outcome {
    let parent = pool.parent().unwrap_or(pool);
    if parent.as_os_str().is_empty() || parent.is_dir() {
        return Ok(());
    }
    let (pool, parent) = (pool.display(), parent.display());
    Err(Failure::Failed(format!(
        "cannot make {pool}: the directory {parent} does not exist; make it first or choose another path"
    )))
}

/// Pools, and devices that hold anything recognizable, are overwritten by force; files that are no pools never.
fn check_overwriting(path: &Path, region: &Region, is_device: bool, force: bool) -> Outcome {
    let shown = path.display();
    match (has_superblock(region), is_device) {
        (true, _) if force => Ok(()),
        (true, _) => Err(Failure::Failed(format!(
            "{shown} is a pool already; add --force to lose all its files"
        ))),
        (false, false) => Err(not_a_pool(path)),
        (false, true) if force => Ok(()),
        (false, true) => match signature::of_region(region) {
            Ok(None) => Ok(()),
            Ok(Some(found)) => Err(Failure::Failed(format!(
                "{shown} holds data ({found}); add --force to overwrite it"
            ))),
            Err(error) => Err(Failure::Failed(format!(
                "cannot run blkid to see what {shown} holds: {error}; install util-linux, or add --force to overwrite it"
            ))),
        },
    }
}

/// The failure for a file that is no pool, with its contents as far as they are recognized.
fn not_a_pool(path: &Path) -> Failure {
    let holds = match signature::of_file(path) {
        Ok(Some(found)) => format!(" but holds data ({found})"),
        _ => String::new(),
    };
    let path = path.display();
    Failure::Failed(format!(
        "{path} exists and is not a pool{holds}; remove it first or choose another path"
    ))
}

/// The division of the pool: suitable for its size, except requested values.
fn geometry(arguments: &Mkfs, length: u64) -> Result<Geometry, Failure> {
    let mut geometry = Geometry::for_length(length);
    geometry.data_checksums = !arguments.no_data_checksums;
    if let Some(count) = arguments.inodes {
        let group_length = u64::from(geometry.blocks_per_group) * store::BLOCK as u64;
        let groups = (length.saturating_sub(geometry.ring_length) / group_length).max(1);
        let per_group = count.div_ceil(groups).next_multiple_of(INODES_STEP);
        // One inode for each block is more than there can be files with contents.
        let most = u64::from(geometry.blocks_per_group);
        if per_group > most {
            let room = groups * most;
            let sentence = format!(
                "a pool of this size has room for {room} inodes; ask for fewer, or make it larger"
            );
            return Err(Failure::Failed(sentence));
        }
        geometry.inodes_per_group = per_group as u32;
    }
    Ok(geometry)
}

/// Prints the capacity of a pool, and what it survives.
pub fn describe(pool: &Path, out: &mut dyn Write) -> Outcome {
    let info = Info::of(pool)?;
    let (size, inodes) = (show_size(info.bytes_available), info.inodes_free);
    let (pool, survives) = (pool.display(), &info.memory.survives);
    writeln!(
        out,
        "{pool}: room for {size} in up to {inodes} files; contents survive {survives}"
    )?;
    Ok(())
}
