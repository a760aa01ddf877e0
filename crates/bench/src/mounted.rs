//! Speed of programs through the mount, with answers of the kernel and with requests to a separate process.
//!
//! The clients here run on any processor, unless a row says otherwise. `null` is a libfuse file system that does nothing
//! ([`null.c`](null.c)): on any processor too, or kept on the one that its client is kept on.

mod data;
mod fresh;
mod names;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::whole;
use crate::harness::{Measured, Side, percentile};
use crate::mounts::{Mount, Mounts};
use crate::report::{Quantity, Row};
use crate::setup::{Bench, bytes};
use crate::{Error, Workload};

pub const GROUP: &str = "through the mount";

pub const WORKLOADS: [Workload; 10] = [
    Workload {
        name: "64 B write",
        measure: |bench, name| data::write(bench, name, 64),
    },
    Workload {
        name: "2 KiB write",
        measure: |bench, name| data::write(bench, name, 2048),
    },
    Workload {
        name: "4 KiB write",
        measure: |bench, name| data::write(bench, name, 4096),
    },
    Workload {
        name: "4 KiB read",
        measure: data::read,
    },
    Workload {
        name: "stat",
        measure: names::stat,
    },
    Workload {
        name: "create and unlink",
        measure: names::create,
    },
    Workload {
        name: "two threads, a file each",
        measure: data::two_threads,
    },
    Workload {
        name: "1 MiB sequential",
        measure: data::sequential,
    },
    Workload {
        name: "1 MiB write, a created file",
        measure: fresh::created,
    },
    Workload {
        name: "write into holes and allocated blocks",
        measure: fresh::unwritten,
    },
];

/// Figures of a [`timed`] side.
pub const MEDIAN: usize = 0;
pub const MEAN: usize = 1;
const COUNT: usize = 2;

/// A side that repeats an operation for `effort` in each round; its figures are the median and the mean of the real
/// time of one, in ns, and the number of operations. The median is over `batch` operations at a time, as many as hide
/// the cost of reading the clock.
pub fn timed<'a>(
    effort: Duration,
    batch: u32,
    mut operation: impl FnMut() -> Result<(), Error> + 'a,
) -> Side<'a> {
    Box::new(move || {
        let mut times_ns = Vec::with_capacity(1 << 14);
        let start = Instant::now();
        let mut last = start;
        while last - start < effort {
            for _ in 0..batch {
                operation()?;
            }
            let now = Instant::now();
            times_ns.push((now - last).as_nanos() as u64);
            last = now;
        }
        let count = times_ns.len() as f64 * f64::from(batch);
        times_ns.sort_unstable();
        let middle = percentile(&times_ns, 0.5) as f64 / f64::from(batch);
        let mean = (last - start).as_nanos() as f64 / count;
        Ok(vec![middle, mean, count])
    })
}

/// A side in which two of the same kind alternate, `batch` operations each; its figures are the medians of both. The
/// processor's caches are then shared alike: with separate rounds, the faster one reads more, and so has more of its
/// data cached.
fn in_turns<'a>(
    effort: Duration,
    batch: u32,
    mut operations: [impl FnMut() -> Result<(), Error> + 'a; 2],
) -> Side<'a> {
    Box::new(move || {
        let mut times_ns = [const { Vec::new() }; 2];
        let start = Instant::now();
        let mut last = start;
        while last - start < 2 * effort {
            for (operation, times_ns) in operations.iter_mut().zip(&mut times_ns) {
                for _ in 0..batch {
                    operation()?;
                }
                let now = Instant::now();
                times_ns.push((now - last).as_nanos() as u64);
                last = now;
            }
        }
        let medians = times_ns.map(|mut times_ns: Vec<u64>| {
            times_ns.sort_unstable();
            percentile(&times_ns, 0.5) as f64 / f64::from(batch)
        });
        Ok(medians.to_vec())
    })
}

/// The same side with this thread kept on processor 0 meanwhile, as the file system is.
fn pinned<'a>(mut side: Side<'a>) -> Side<'a> {
    Box::new(move || {
        let everywhere = sched_getaffinity(None)?;
        let mut first = CpuSet::new();
        first.set(0);
        sched_setaffinity(None, &first)?;
        let figures = side();
        sched_setaffinity(None, &everywhere)?;
        figures
    })
}

/// A side for each of Tako's mounts and, where they are to be had, for the nulls: the one on any processor, and the one
/// on the processor of its client. The last side is tmpfs.
fn with_limits<'a>(
    mounts: &'a Mounts,
    mut side: impl FnMut(&'a Mount) -> Result<Side<'a>, Error>,
) -> Result<Vec<Side<'a>>, Error> {
    let of_tmpfs = side(&mounts.tmpfs)?;
    let measured = mounts.tako.iter().chain(mounts.null.iter().flatten());
    let mut sides = measured.map(side).collect::<Result<Vec<_>, Error>>()?;
    if mounts.null.is_some()
        && let Some(side) = sides.pop()
    {
        sides.push(pinned(side));
    }
    sides.push(of_tmpfs);
    Ok(sides)
}

/// The row of Tako's better transport beside tmpfs, the last of such sides.
fn beside_tmpfs(measured: &Measured, mounts: &Mounts, figure: usize, name: &str) -> Row {
    let tmpfs = mounts.tako.len() + mounts.null.as_ref().map_or(0, |null| null.len());
    let names = (&*named(name, &mounts.tako[0]), "tmpfs, mean");
    beside(measured, figure, (0, tmpfs), names, None)
}

/// The rows of a figure of such sides: Tako's beside the null, the null's on one processor, and Tako's beside tmpfs. Without
/// nulls, Tako's alone.
fn beside_null(
    measured: &Measured,
    mounts: &Mounts,
    figure: usize,
    name: &str,
    bar: f64,
) -> Vec<Row> {
    let null = mounts.tako.len();
    let row = |(side, mount)| {
        let name = named(name, mount);
        match mounts.null.is_some() {
            true => beside(
                measured,
                figure,
                (side, null),
                (&name, "null, mean"),
                bar_of(side, bar),
            ),
            false => Row::new(&name, Quantity::ns(measured.median(side, figure))),
        }
    };
    let rows = mounts.tako.iter().enumerate().map(row);
    rows.chain(null_alone(measured, mounts, figure))
        .chain([beside_tmpfs(measured, mounts, figure, name)])
        .collect()
}

/// A request that does nothing, where no thread on another processor is woken up, beside one where a thread may be: the
/// null's gain over itself.
fn null_alone(measured: &Measured, mounts: &Mounts, figure: usize) -> Option<Row> {
    let null = mounts.tako.len();
    let names = ("  null, one processor, mean", "null, mean");
    let row = || beside(measured, figure, (null + 1, null), names, None);
    mounts.null.is_some().then(row)
}

/// A row of a figure, in ns, of one side beside the same of another; the ratio is that of the speeds.
fn beside(
    measured: &Measured,
    figure: usize,
    (side, limit): (usize, usize),
    (name, limit_name): (&str, &str),
    bar: Option<f64>,
) -> Row {
    let time = |side| Quantity::ns(measured.median(side, figure));
    let ratio = measured.ratio((limit, figure), (side, figure));
    Row::new(name, time(side)).beside(limit_name, time(limit), ratio, bar)
}

/// The bar of the transport with this number: only the better one, which a mount takes by itself, has one.
fn bar_of(transport: usize, bar: f64) -> Option<f64> {
    (transport == 0).then_some(bar)
}

/// Name of a row with its transport.
fn named(name: &str, mount: &Mount) -> String {
    format!("{name}, {}", mount.label)
}

/// Opens or makes a file in a mount.
fn open(mount: &Mount, name: &str, flags: OFlags) -> Result<OwnedFd, Error> {
    let flags = flags | OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    Ok(rustix::fs::openat(&mount.directory, name, flags, mode)?)
}

/// A full file in a mount, and in the page cache.
fn full_file(bench: &Bench, mount: &Mount, name: &str) -> Result<OwnedFd, Error> {
    let file = open(mount, name, OFlags::empty())?;
    let piece = bytes(1 << 20);
    for offset in (0..bench.scale.file_length).step_by(piece.len()) {
        whole(rustix::io::pwrite(&file, &piece, offset)?, piece.len())?;
    }
    Ok(file)
}
