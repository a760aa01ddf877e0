//! Writes where a file has no data yet: to its end, into holes, and into allocated ranges.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::{AtFlags, FallocateFlags, OFlags, fallocate, ftruncate, openat, unlinkat};

use super::{Mount, bar_of, beside, full_file, named, open};
use crate::Error;
use crate::error::whole;
use crate::harness::{Side, interleave};
use crate::names::OWNER;
use crate::report::{Quantity, Row};
use crate::setup::{Bench, Pages};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// A file is created to be written, as by `cp` and `dd`, beside the same with O_DIRECT.
pub fn created(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let mounts = bench.mounts()?;
    let mut sides = vec![creating(bench, &mounts.tmpfs, OFlags::empty())];
    for mount in &mounts.tako {
        sides.push(creating(bench, mount, OFlags::empty()));
        sides.push(creating(bench, mount, OFlags::DIRECT));
    }
    let measured = interleave(bench.scale.few_rounds(), sides)?;
    let speed = |side| Quantity::new(MIB as f64 * 1e9 / measured.median(side, 0), "bytes/s");
    let row = |name: &str, (side, limit), limit_name, bar| {
        let ratio = measured.ratio((limit, 0), (side, 0));
        Row::new(name, speed(side)).beside(limit_name, speed(limit), ratio, bar)
    };
    let mut rows = Vec::new();
    for (number, mount) in mounts.tako.iter().enumerate() {
        let (name, own) = (named(name, mount), 1 + 2 * number);
        let bar = bar_of(number, 0.6);
        rows.push(row(&name, (own, own + 1), "the same, O_DIRECT", bar));
        rows.push(row(&name, (own, 0), "tmpfs", None));
    }
    Ok(rows)
}

/// A side that creates a file, fills it and removes it; its figure is the real time of a mebibyte, in ns.
fn creating<'a>(bench: &Bench, mount: &'a Mount, direct: OFlags) -> Side<'a> {
    let (length, mut piece) = (bench.scale.file_length, Pages::new(MIB));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | direct;
    Box::new(move || {
        let file = openat(&mount.directory, "created", flags, OWNER)?;
        let start = Instant::now();
        for offset in (0..length).step_by(MIB) {
            whole(rustix::io::pwrite(&file, piece.bytes(), offset)?, MIB)?;
        }
        let took = start.elapsed();
        unlinkat(&mount.directory, "created", AtFlags::empty())?;
        Ok(vec![took.as_nanos() as f64 / (length / MIB as u64) as f64])
    })
}

/// What a range of a file has before it is written.
#[derive(Clone, Copy)]
enum Before {
    Data,
    Hole,
    Blocks,
}

/// Each block of a file is written once, in mixed order, past the page cache: into holes and into allocated blocks without
/// data, beside overwriting.
pub fn unwritten(bench: &Bench, _: &str) -> Result<Vec<Row>, Error> {
    let mounts = bench.mounts()?;
    let mut rows = Vec::new();
    for (size, title) in [(PAGE, "4 KiB"), (MIB, "1 MiB")] {
        for (number, mount) in mounts.tako.iter().enumerate() {
            let sides = [Before::Hole, Before::Blocks, Before::Data];
            let sides = sides.map(|before| filling(bench, mount, size, before));
            let sides = sides.into_iter().collect::<Result<Vec<_>, Error>>()?;
            let measured = interleave(bench.scale.few_rounds(), sides)?;
            for (side, what) in [(0, "a hole"), (1, "allocated blocks")] {
                let name = named(&format!("{title} write into {what}, O_DIRECT"), mount);
                let bar = bar_of(number, 0.5);
                rows.push(beside(&measured, 0, (side, 2), (&name, "over data"), bar));
            }
        }
    }
    Ok(rows)
}

/// A side that prepares a file and then writes all of it; its figure is the real time of one write, in ns.
fn filling<'a>(
    bench: &Bench,
    mount: &Mount,
    size: usize,
    before: Before,
) -> Result<Side<'a>, Error> {
    let length = bench.scale.file_length;
    let file = match before {
        Before::Data => full_file(bench, mount, "over-data")?,
        Before::Hole => open(mount, "a-hole", OFlags::empty())?,
        Before::Blocks => open(mount, "blocks", OFlags::empty())?,
    };
    rustix::fs::fcntl_setfl(&file, OFlags::DIRECT)?;
    let (mut data, count) = (Pages::new(size), length / size as u64);
    Ok(Box::new(move || {
        prepare(&file, length, before)?;
        let start = Instant::now();
        for number in 0..count {
            // An odd factor visits each block once, since their number is a power of two.
            let offset = (number * 40_503 % count) * size as u64;
            whole(rustix::io::pwrite(&file, data.bytes(), offset)?, size)?;
        }
        Ok(vec![start.elapsed().as_nanos() as f64 / count as f64])
    }))
}

fn prepare(file: &OwnedFd, length: u64, before: Before) -> Result<(), Error> {
    match before {
        Before::Data => {}
        Before::Hole => {
            ftruncate(file, 0)?;
            ftruncate(file, length)?;
        }
        Before::Blocks => {
            ftruncate(file, 0)?;
            fallocate(file, FallocateFlags::empty(), 0, length)?;
        }
    }
    Ok(())
}
