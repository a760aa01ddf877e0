//! Greatest wait of a thread while another one makes huge files and deletes them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use client::{Fallocate, ROOT};

use crate::error::whole;
use crate::harness::{Random, Side, interleave, percentile};
use crate::report::{Quantity, Row};
use crate::setup::{Bench, NEW_FILE, bytes};
use crate::threads::at_once;
use crate::{Error, Workload};

pub const WORKLOADS: [Workload; 2] = [
    Workload {
        name: "64 B write while huge files are deleted",
        measure: writes,
    },
    Workload {
        name: "create and unlink in the same directory",
        measure: creates,
    },
];

const HUGE: &[u8] = b"huge";
const BLOCK: u64 = store::BLOCK as u64;

/// The longest waits matter here.
const SHARES: [(&str, f64); 2] = [("p50", 0.5), ("p99.9", 0.999)];

/// Makes a huge file of the name [`HUGE`] in the root.
type Make = fn(&Bench) -> Result<(), Error>;

/// Something small, given how many there were before.
type Work<'a> = &'a (dyn Fn(u64) -> Result<(), Error> + Sync);

fn writes(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let (file, data) = (bench.tako_file()?, bytes(64));
    rows(bench, name, &|number| {
        let offset = Random::new(number).offset(bench.scale.file_length, data.len());
        whole(file.write_at(&data, offset)?, data.len())
    })
}

fn creates(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let file_system = &bench.file_system;
    rows(bench, name, &|number| {
        let name = format!("beside-{number}");
        file_system.create(ROOT, name.as_bytes(), &NEW_FILE)?;
        Ok(file_system.unlink(ROOT, name.as_bytes())?)
    })
}

/// Times of an operation alone, and while another thread makes and deletes files of either kind.
fn rows(bench: &Bench, name: &str, operation: Work<'_>) -> Result<Vec<Row>, Error> {
    let side = |make| -> Side<'_> { Box::new(move || times(bench, operation, make)) };
    let sides = vec![side(None), side(Some(dense)), side(Some(in_pieces))];
    let measured = interleave(bench.scale.rounds, sides)?;
    let mebibytes = bench.scale.pool_length >> 21;
    let kinds = [
        (1, format!("{mebibytes} MiB in one piece")),
        (2, format!("{} pieces", pieces(bench))),
    ];
    let mut rows = Vec::new();
    for (side, kind) in kinds {
        for (figure, (share, _)) in SHARES.iter().enumerate() {
            let time = |side| Quantity::ns(measured.median(side, figure));
            let ratio = measured.ratio((0, figure), (side, figure));
            let name = format!("{name}, files of {kind}, {share}");
            rows.push(Row::new(&name, time(side)).beside("alone", time(0), ratio, None));
        }
    }
    Ok(rows)
}

/// Percentiles of the times, in ns, that an operation takes, with another thread that deletes huge files or without.
fn times(bench: &Bench, operation: Work<'_>, make: Option<Make>) -> Result<Vec<f64>, Error> {
    let is_done = AtomicBool::new(false);
    let time = || {
        let mut times_ns = Vec::with_capacity(1 << 17);
        let start = Instant::now();
        let mut last = start;
        while last - start < bench.scale.effort {
            operation(times_ns.len() as u64)?;
            let now = Instant::now();
            times_ns.push((now - last).as_nanos() as u64);
            last = now;
        }
        times_ns.sort_unstable();
        let share = |(_, share): (&str, f64)| percentile(&times_ns, share) as f64;
        Ok(SHARES.map(share).to_vec())
    };
    let delete = |make: Make| {
        while !is_done.load(Ordering::Relaxed) {
            make(bench)?;
            bench.file_system.unlink(ROOT, HUGE)?;
        }
        Ok(Vec::new())
    };
    let figures = at_once(1 + usize::from(make.is_some()), |thread| match make {
        Some(make) if thread > 0 => delete(make),
        _ => {
            let figures = time();
            is_done.store(true, Ordering::Relaxed);
            figures
        }
    })?;
    Ok(figures.into_iter().next().unwrap_or_default())
}

/// A file of half the pool.
fn dense(bench: &Bench) -> Result<(), Error> {
    allocated(bench, bench.scale.pool_length / 2).map(drop)
}

/// A file of which every second block is a hole.
fn in_pieces(bench: &Bench) -> Result<(), Error> {
    let file = allocated(bench, 2 * pieces(bench) * BLOCK)?;
    let system = &bench.file_system;
    let punch = |piece| system.fallocate(file, Fallocate::PunchHole, 2 * piece * BLOCK, BLOCK);
    Ok((0..pieces(bench)).try_for_each(punch)?)
}

fn pieces(bench: &Bench) -> u64 {
    bench.scale.names / 5
}

fn allocated(bench: &Bench, length: u64) -> Result<u64, Error> {
    let system = &bench.file_system;
    let file = system.create(ROOT, HUGE, &NEW_FILE)?.number;
    system.fallocate(file, Fallocate::Allocate { keep_size: false }, 0, length)?;
    Ok(file)
}
