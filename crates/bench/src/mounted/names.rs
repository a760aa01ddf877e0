//! Attributes and names.

use std::hint::black_box;
use std::time::Instant;

use rustix::fs::{AtFlags, OFlags, StatxFlags};

use super::{MEAN, MEDIAN, Mount, bar_of, beside, named, open, timed};
use crate::Error;
use crate::harness::{Side, interleave};
use crate::names::{CREATE, OWNER};
use crate::report::{Quantity, Row};
use crate::setup::Bench;

/// Looks at the attributes between two at the clock.
const BATCH: u32 = 16;

/// By path, where the kernel knows name and attributes; and of an open file, asking whoever serves it.
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

    let mut sides = Vec::new();
    for mount in mounts
        .tako
        .iter()
        .chain(mounts.null.iter().flatten().take(1))
    {
        let file = open(mount, "looked-at", OFlags::empty())?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        sides.push(timed(effort, 1, move || {
            black_box(rustix::fs::statx(
                &file,
                "",
                flags,
                StatxFlags::BASIC_STATS,
            )?);
            Ok(())
        }));
    }
    let measured = interleave(bench.scale.rounds, sides)?;
    let limit = mounts.tako.len();
    for (side, mount) in mounts.tako.iter().enumerate() {
        let title = named(&format!("{name}, asked"), mount);
        rows.push(match mounts.null.is_some() {
            true => beside(
                &measured,
                MEAN,
                (side, limit),
                (&title, "null, mean"),
                bar_of(side, 4.0),
            ),
            false => Row::new(&title, Quantity::ns(measured.median(side, MEAN))),
        });
    }
    Ok(rows)
}

/// Files that come and go in each round.
const FILES: usize = 200;

/// New files are opened and closed, and then removed.
pub fn create(bench: &Bench, _: &str) -> Result<Vec<Row>, Error> {
    let mounts = bench.mounts()?;
    let null = mounts.null.iter().flatten().take(1);
    let sides = mounts.tako.iter().chain(null).chain([&mounts.tmpfs]);
    let measured = interleave(bench.scale.rounds, sides.map(creating).collect())?;
    let count = mounts.tako.len();
    let mut rows = Vec::new();
    for (figure, title) in ["create and close", "unlink"].into_iter().enumerate() {
        for (side, mount) in mounts.tako.iter().enumerate() {
            let title = named(title, mount);
            rows.push(match mounts.null.is_some() {
                true => beside(
                    &measured,
                    figure,
                    (side, count),
                    (&title, "null, mean"),
                    bar_of(side, 3.0),
                ),
                false => beside(&measured, figure, (side, count), (&title, "tmpfs"), None),
            });
        }
    }
    Ok(rows)
}

/// In the file system that does nothing no name that begins with `new` exists, and all others do.
fn creating(mount: &Mount) -> Side<'_> {
    let removed = match mount.label {
        "null" => "old",
        _ => "new",
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
