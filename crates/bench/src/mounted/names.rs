//! Attributes and names.

use std::hint::black_box;
use std::time::Instant;

use rustix::fs::{AtFlags, OFlags, StatxFlags};

use super::{MEAN, MEDIAN, Mount, beside, beside_null, open, timed, with_limits};
use crate::Error;
use crate::harness::{Side, interleave};
use crate::names::{CREATE, OWNER};
use crate::report::Row;
use crate::setup::Bench;

/// Reads of attributes between two reads of the clock.
const BATCH: u32 = 16;

/// By path, where the kernel knows name and attributes; and of an open file, with a request to the process that serves
/// it.
pub fn stat(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let mounts = bench.mounts()?;
    let effort = bench.scale.effort;
    let mut sides = Vec::new();
    for mount in [&mounts.tako[0], &mounts.tmpfs] {
        open(mount, "looked-at", OFlags::empty())?;
        sides.push(timed(effort, BATCH, move || {
            black_box(rustix::fs::statat(
                &mount.directory,
                "looked-at",
                AtFlags::empty(),
            )?);
            Ok(())
        }));
    }
    let measured = interleave(bench.scale.rounds, sides)?;
    let title = format!("{name}, cached");
    let mut rows = vec![beside(
        &measured,
        MEDIAN,
        (0, 1),
        (&title, "tmpfs"),
        Some(0.8),
    )];

    let sides = with_limits(mounts, |mount| {
        let file = open(mount, "looked-at", OFlags::empty())?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        Ok(timed(effort, 1, move || {
            black_box(rustix::fs::statx(
                &file,
                "",
                flags,
                StatxFlags::BASIC_STATS,
            )?);
            Ok(())
        }))
    })?;
    let measured = interleave(bench.scale.rounds, sides)?;
    let title = format!("{name}, STATX_FORCE_SYNC");
    rows.extend(beside_null(&measured, mounts, MEAN, &title, 4.0));
    Ok(rows)
}

/// Files that come and go in each round.
const FILES: usize = 200;

/// New files are opened and closed, and then removed.
pub fn create(bench: &Bench, _: &str) -> Result<Vec<Row>, Error> {
    let mounts = bench.mounts()?;
    let sides = with_limits(mounts, |mount| Ok(creating(mount)))?;
    let measured = interleave(bench.scale.rounds, sides)?;
    let titles = ["create and close", "unlink"].into_iter().enumerate();
    let rows = titles.map(|(figure, title)| beside_null(&measured, mounts, figure, title, 3.0));
    Ok(rows.flatten().collect())
}

/// In the file system that does nothing no name that begins with `new` exists, and all others do.
fn creating(mount: &Mount) -> Side<'_> {
    let removed = match mount.is_null() {
        true => "old",
        false => "new",
    };
    let names = |start: &str| -> Vec<String> {
        (0..FILES)
            .map(|number| format!("{start}-{number:08}"))
            .collect()
    };
    let (new, old) = (names("new"), names(removed));
    Box::new(move || {
        let start = Instant::now();
        for name in &new {
            drop(rustix::fs::openat(&mount.directory, name, CREATE, OWNER)?);
        }
        let middle = Instant::now();
        for name in &old {
            rustix::fs::unlinkat(&mount.directory, name, AtFlags::empty())?;
        }
        let spans = [middle - start, middle.elapsed()];
        Ok(spans
            .map(|span| span.as_nanos() as f64 / FILES as f64)
            .to_vec())
    })
}
