//! Reading and writing.

use std::hint::black_box;
use std::os::fd::OwnedFd;

use rustix::fs::{Advice, OFlags, fadvise};

use super::{
    COUNT, MEAN, MEDIAN, Mount, bar_of, beside, beside_null, beside_tmpfs, full_file, in_turns,
    named, null_alone, open, timed, with_limits,
};
use crate::Error;
use crate::error::whole;
use crate::harness::{Random, Side, interleave};
use crate::report::{Quantity, Row};
use crate::setup::{Aligned, Bench, Pages, bytes};
use crate::threads::{one_and_two, scaling};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// Operations between two reads of the clock where each takes about as long as that.
const BATCH: u32 = 16;

/// The figure behind those of [`timed`].
const SLEEPS: usize = 3;

/// At random offsets, persistent, of a file that is in the page cache.
pub fn write(bench: &Bench, name: &str, size: usize) -> Result<Vec<Row>, Error> {
    let mounts = bench.mounts()?;
    let sides = with_limits(mounts, |mount| writing(bench, mount, size))?;
    let measured = interleave(bench.scale.rounds, sides)?;
    let count = mounts.tako.len();
    let mut rows = Vec::new();
    for (side, mount) in mounts.tako.iter().enumerate() {
        let name = named(name, mount);
        if mounts.null.is_none() {
            rows.push(Row::new(&name, Quantity::ns(measured.median(side, MEDIAN))));
            continue;
        }
        let names = (&*format!("{name}, p50"), "null, one processor, p50");
        rows.push(beside(
            &measured,
            MEDIAN,
            (side, count + 1),
            names,
            bar_of(side, 1.0 / 1.5),
        ));
        let names = (&*format!("{name}, mean"), "null, mean");
        rows.push(beside(
            &measured,
            MEAN,
            (side, count),
            names,
            bar_of(side, 4.0),
        ));
    }
    rows.extend(null_alone(&measured, mounts, MEAN));
    rows.push(beside_tmpfs(&measured, mounts, MEAN, name));
    if size == PAGE {
        for (side, mount) in mounts.tako.iter().enumerate() {
            let sleeps = Quantity::new(measured.median(side, SLEEPS), "times");
            rows.push(Row::new(
                &named("  context switches of the server, per write", mount),
                sleeps,
            ));
        }
    }
    Ok(rows)
}

/// Its fourth figure is the number of times a thread of the server blocks, per write.
fn writing<'a>(bench: &Bench, mount: &'a Mount, size: usize) -> Result<Side<'a>, Error> {
    let file = match mount.is_null() {
        true => open(mount, "data", OFlags::empty())?,
        false => full_file(bench, mount, "data")?,
    };
    let (data, length) = (bytes(size), bench.scale.file_length);
    let mut random = Random::new(1);
    let operation = move || {
        whole(
            rustix::io::pwrite(&file, &data, random.offset(length, size))?,
            size,
        )
    };
    let mut side = timed(bench.scale.effort, 1, operation);
    Ok(Box::new(move || {
        let before = mount.sleeps();
        let mut figures = side()?;
        figures.push((mount.sleeps() - before) as f64 / figures[COUNT]);
        Ok(figures)
    }))
}

/// At random offsets: around the page cache, and from it.
pub fn read(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let mounts = bench.mounts()?;
    let sides = with_limits(mounts, |mount| {
        if !mount.is_null() {
            full_file(bench, mount, "data")?;
        }
        // tmpfs has nothing that could be left out, and before Linux 6.6 it refuses the flag.
        let flags = match mount.label {
            "tmpfs" => OFlags::empty(),
            _ => OFlags::DIRECT,
        };
        let file = open(mount, "data", flags)?;
        Ok(timed(bench.scale.effort, 1, reading(bench, file)))
    })?;
    let measured = interleave(bench.scale.rounds, sides)?;
    let direct = format!("{name}, O_DIRECT");
    let mut rows = beside_null(&measured, mounts, MEAN, &direct, 4.0);
    let tako = reading(bench, full_file(bench, &mounts.tako[0], "data")?);
    let tmpfs = reading(bench, full_file(bench, &mounts.tmpfs, "data")?);
    let both = in_turns(bench.scale.effort, BATCH, [tako, tmpfs]);
    let measured = interleave(bench.scale.rounds, vec![both])?;
    let name = format!("{name}, from the page cache");
    rows.push(measured.row_of_figures((0, 1), &name, "tmpfs", Some(0.9)));
    Ok(rows)
}

fn reading(bench: &Bench, file: OwnedFd) -> impl FnMut() -> Result<(), Error> + use<> {
    let length = bench.scale.file_length;
    let mut random = Random::new(2);
    let mut into = Aligned([0; PAGE]);
    move || {
        let done = rustix::io::pread(&file, &mut into.0[..], random.offset(length, PAGE))?;
        black_box(&into);
        whole(done, PAGE)
    }
}

/// Two threads that write pages of a file each beside one.
pub fn two_threads(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let mounts = bench.mounts()?;
    let data = bytes(PAGE);
    let mut sides = Vec::new();
    let compared = || mounts.tako.iter().chain([&mounts.tmpfs]);
    for mount in compared() {
        let files = [
            full_file(bench, mount, "data")?,
            full_file(bench, mount, "more")?,
        ];
        let data = &data;
        sides.push(one_and_two(bench, move |thread, offset| {
            whole(rustix::io::pwrite(&files[thread], data, offset)?, PAGE)
        })?);
    }
    let measured = interleave(bench.scale.rounds, sides)?;
    let name = format!("{name}, 4 KiB write");
    let row = |(side, mount)| scaling(&measured, side, &named(&name, mount), bar_of(side, 1.8));
    Ok(compared().enumerate().map(row).collect())
}

/// Through a file from its beginning to its end: overwriting it, and reading it when the page cache has none of it.
pub fn sequential(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let mounts = bench.mounts()?;
    let compared = || mounts.tako.iter().chain([&mounts.tmpfs]);
    let mut rows = Vec::new();
    for (what, side_of) in [
        (
            "write",
            write_through as fn(&Bench, &Mount) -> Result<Side<'static>, Error>,
        ),
        ("read, not cached", read_through),
        ("read, O_DIRECT", read_direct),
    ] {
        let sides: Result<Vec<_>, Error> = compared().map(|mount| side_of(bench, mount)).collect();
        let measured = interleave(bench.scale.few_rounds(), sides?)?;
        let limit = mounts.tako.len();
        for (side, mount) in mounts.tako.iter().enumerate() {
            let speed =
                |side| Quantity::new(MIB as f64 * 1e9 / measured.median(side, 0), "bytes/s");
            let ratio = measured.ratio((limit, 0), (side, 0));
            let row = Row::new(&named(&format!("{name} {what}"), mount), speed(side));
            let bar = bar_of(side, 0.5).filter(|_| what != "read, O_DIRECT");
            rows.push(row.beside("tmpfs", speed(limit), ratio, bar));
        }
    }
    Ok(rows)
}

fn write_through(bench: &Bench, mount: &Mount) -> Result<Side<'static>, Error> {
    let file = full_file(bench, mount, "data")?;
    let piece = bytes(MIB);
    Ok(through(
        bench,
        move |offset| whole(rustix::io::pwrite(&file, &piece, offset)?, MIB),
        || Ok(()),
    ))
}

fn read_through(bench: &Bench, mount: &Mount) -> Result<Side<'static>, Error> {
    let file = full_file(bench, mount, "data")?;
    let same = open(mount, "data", OFlags::empty())?;
    let mut into = bytes(MIB);
    let read = move |offset| whole(rustix::io::pread(&file, &mut into[..], offset)?, MIB);
    // Tmpfs keeps its contents.
    Ok(through(bench, read, move || {
        Ok(fadvise(&same, 0, None, Advice::DontNeed)?)
    }))
}

fn read_direct(bench: &Bench, mount: &Mount) -> Result<Side<'static>, Error> {
    full_file(bench, mount, "data")?;
    let file = open(mount, "data", OFlags::DIRECT)?;
    let mut into = Pages::new(MIB);
    let read = move |offset| whole(rustix::io::pread(&file, into.bytes(), offset)?, MIB);
    Ok(through(bench, read, || Ok(())))
}

/// A side that goes through a file by mebibytes once; its figure is the real time of each, in ns.
fn through(
    bench: &Bench,
    mut operation: impl FnMut(u64) -> Result<(), Error> + 'static,
    mut before: impl FnMut() -> Result<(), Error> + 'static,
) -> Side<'static> {
    let length = bench.scale.file_length;
    Box::new(move || {
        before()?;
        let start = std::time::Instant::now();
        for offset in (0..length).step_by(MIB) {
            operation(offset)?;
        }
        let count = length / MIB as u64;
        Ok(vec![start.elapsed().as_nanos() as f64 / count as f64])
    })
}
