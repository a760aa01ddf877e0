//! Mutual effects of two threads.

use std::hint::black_box;
use std::panic::resume_unwind;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use client::{File, OpenFlags, ROOT};
use pmem::Region;
use rustix::fs::AtFlags;

use crate::error::whole;
use crate::harness::{Measured, Random, Side, interleave, percentile};
use crate::names::{CREATE, OWNER};
use crate::report::{Quantity, Row};
use crate::setup::{Bench, NEW_DIRECTORY, NEW_FILE, bytes, format_and_open, full_file};
use crate::{Error, Workload};

pub const THROUGHPUT: [Workload; 4] = [
    Workload {
        name: "two threads, a file each, 4 KiB",
        measure: throughput,
    },
    Workload {
        name: "two threads read a file, 4 KiB",
        measure: reads,
    },
    Workload {
        name: "two threads create in a directory",
        measure: |bench, name| creates(bench, name, [0, 0], Some(1.3)),
    },
    Workload {
        name: "two threads create in a directory each",
        measure: |bench, name| creates(bench, name, [0, 1], None),
    },
];

pub const LATENCY: [Workload; 1] = [Workload {
    name: "64 B write while a thread writes 4 KiB",
    measure: latency,
}];

const PAGE: usize = 4096;

/// Two threads on a file each beside one; the same for what bounds them: tmpfs, memory, and the processors.
fn throughput(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let files = [bench.tako_file()?, bench.tako_file()?];
    let limits = [bench.limit_file()?, bench.limit_file()?];
    let length = bench.scale.file_length;
    let memory = Region::memory(2 * length, false)?;
    memory.populate();
    let data = bytes(PAGE);
    let sides = vec![
        one_and_two(bench, |thread, offset| {
            whole(files[thread].write_at(&data, offset)?, PAGE)
        })?,
        one_and_two(bench, |thread, offset| {
            whole(rustix::io::pwrite(&limits[thread], &data, offset)?, PAGE)
        })?,
        one_and_two(bench, |thread, offset| {
            memory.write_flushed(thread as u64 * length + offset, &data);
            memory.fence();
            Ok(())
        })?,
        one_and_two(bench, |thread, offset| {
            let mut random = Random::new(thread as u64);
            let numbers = (0..200).map(|_| random.below(offset + 1));
            black_box(numbers.sum::<u64>());
            Ok(())
        })?,
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    Ok(vec![
        scaling(&measured, 0, name, Some(1.9)),
        scaling(&measured, 1, "  the same on tmpfs", None),
        scaling(&measured, 2, "  the same in flushed memory", None),
        scaling(&measured, 3, "  arithmetic: what this machine can", None),
    ])
}

/// The row of a side that measured the speed of one thread and of two.
pub fn scaling(measured: &Measured, side: usize, name: &str, bar: Option<f64>) -> Row {
    let speed = |figure| Quantity::new(measured.median(side, figure), "/s");
    let ratio = measured.ratio((side, 1), (side, 0));
    Row::new(name, speed(1)).beside("one thread", speed(0), ratio, bar)
}

/// Two threads that read one file beside one.
fn reads(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let (file, limit) = (bench.tako_file()?, bench.limit_file()?);
    let memory = Region::memory(bench.scale.file_length, false)?;
    memory.populate();
    let sides = vec![
        one_and_two(bench, |_, offset| {
            let mut into = [0; PAGE];
            whole(file.read_at(&mut into, offset)?, PAGE)
        })?,
        one_and_two(bench, |_, offset| {
            let mut into = [0; PAGE];
            whole(rustix::io::pread(&limit, &mut into[..], offset)?, PAGE)
        })?,
        one_and_two(bench, |_, offset| {
            let mut into = [0; PAGE];
            memory.read(offset, &mut into);
            black_box(into);
            Ok(())
        })?,
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    Ok(vec![
        scaling(&measured, 0, name, Some(1.9)),
        scaling(&measured, 1, "  the same on tmpfs", None),
        scaling(&measured, 2, "  the same in memory", None),
    ])
}

/// Two threads that create files, each in one of two directories, beside one. Removing them again is not measured.
fn creates(
    bench: &Bench,
    name: &str,
    directories: [usize; 2],
    bar: Option<f64>,
) -> Result<Vec<Row>, Error> {
    const DIRECTORIES: [&str; 2] = ["first", "second"];
    let names = |thread: usize| {
        let names = (0..bench.scale.names / 2).map(|number| format!("file-{thread}-{number:08}"));
        names.collect::<Vec<String>>()
    };
    let names = [names(0), names(1)];
    let file_system = &bench.file_system;
    let make = |name: &str| file_system.create(ROOT, name.as_bytes(), &NEW_DIRECTORY);
    let parents = [make(DIRECTORIES[0])?.number, make(DIRECTORIES[1])?.number];
    let parents = directories.map(|index| parents[index]);
    let limits = [bench.limit_directory()?, bench.limit_directory()?];
    let limits = directories.map(|index| &limits[index].1);
    let flags = OpenFlags {
        exclusive: true,
        ..OpenFlags::READ_WRITE
    };
    let sides = vec![
        creating(
            &names,
            |thread, name| {
                file_system.create_open(parents[thread], name.as_bytes(), &NEW_FILE, flags)?;
                Ok(())
            },
            |thread, name| Ok(file_system.unlink(parents[thread], name.as_bytes())?),
        ),
        creating(
            &names,
            |thread, name| {
                drop(rustix::fs::openat(limits[thread], name, CREATE, OWNER)?);
                Ok(())
            },
            |thread, name| {
                let flags = AtFlags::empty();
                Ok(rustix::fs::unlinkat(limits[thread], name, flags)?)
            },
        ),
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    for name in DIRECTORIES {
        file_system.remove_directory(ROOT, name.as_bytes())?;
    }
    Ok(vec![
        scaling(&measured, 0, name, bar),
        scaling(&measured, 1, "  the same on tmpfs", None),
    ])
}

/// A side like those of [`one_and_two`]: each thread creates files with separate names; then they are removed.
fn creating<'a>(
    names: &'a [Vec<String>; 2],
    create: impl Fn(usize, &str) -> Result<(), Error> + Sync + 'a,
    remove: impl Fn(usize, &str) -> Result<(), Error> + 'a,
) -> Side<'a> {
    let speed = move |threads: usize| {
        let spans = at_once(threads, |thread| {
            let start = Instant::now();
            let mut names = names[thread].iter();
            names.try_for_each(|name| create(thread, name))?;
            Ok((start, Instant::now()))
        })?;
        for (thread, names) in names[..threads].iter().enumerate() {
            names.iter().try_for_each(|name| remove(thread, name))?;
        }
        let count = names[..threads].iter().flatten().count();
        Ok::<_, Error>(count as f64 / longest(&spans).as_secs_f64())
    };
    Box::new(move || Ok(vec![speed(1)?, speed(2)?]))
}

/// A side with two figures: operations per second of one thread, and of two together. An operation gets its thread's
/// number and a random offset of a page in a file.
pub fn one_and_two<'a>(
    bench: &Bench,
    operation: impl Fn(usize, u64) -> Result<(), Error> + Sync + 'a,
) -> Result<Side<'a>, Error> {
    let (effort, length) = (bench.scale.effort, bench.scale.file_length);
    let run = move |threads: usize, count: u64| {
        let spans = at_once(threads, |thread| {
            let mut random = Random::new(thread as u64);
            let start = Instant::now();
            for _ in 0..count {
                operation(thread, random.offset(length, PAGE))?;
            }
            Ok((start, Instant::now()))
        })?;
        Ok::<_, Error>(longest(&spans))
    };
    let mut count = 1;
    while run(1, count)? < effort {
        count *= 2;
    }
    Ok(Box::new(move || {
        let speed = |threads: usize| {
            let took = run(threads, count)?;
            Ok::<_, Error>((threads as u64 * count) as f64 / took.as_secs_f64())
        };
        Ok(vec![speed(1)?, speed(2)?])
    }))
}

/// From the first start to the last end.
fn longest(spans: &[(Instant, Instant)]) -> Duration {
    let start = spans.iter().map(|span| span.0).min();
    let end = spans.iter().map(|span| span.1).max();
    let took = end.zip(start).map(|(end, start)| end - start);
    took.unwrap_or_default()
}

/// Starts threads, which get numbers from 0, at the same moment, and waits for them.
pub fn at_once<T: Send>(
    threads: usize,
    work: impl Fn(usize) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        let spawn = |number| {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(number)
            })
        };
        let handles: Vec<_> = (0..threads).map(spawn).collect();
        let results = handles.into_iter().map(|handle| handle.join());
        results
            .map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

/// Time of a thread's small writes: alone; while another thread writes pages to the same pool, hence to the same ring;
/// and while it writes them to another pool, which shows the cost of sharing the machine.
fn latency(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let (file, same_pool) = (bench.tako_file()?, bench.tako_file()?);
    let region = Region::memory(4 * bench.scale.file_length, false)?;
    region.populate();
    let other_pool = full_file(&format_and_open(&region)?, bench.scale.file_length)?;
    let sides: Vec<Side<'_>> = vec![
        Box::new(|| latencies(bench, &file, None)),
        Box::new(|| latencies(bench, &file, Some(&same_pool))),
        Box::new(|| latencies(bench, &file, Some(&other_pool))),
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    let row = |name: String, side, figure| {
        let time = |side| Quantity::ns(measured.median(side, figure));
        let ratio = measured.ratio((0, figure), (side, figure));
        Row::new(&name, time(side)).beside("alone", time(0), ratio, None)
    };
    let shares = SHARES.iter().enumerate();
    let rows = shares.flat_map(|(figure, (share, _))| {
        [
            row(format!("{name}, {share}"), 1, figure),
            row(format!("  the same, of another pool, {share}"), 2, figure),
        ]
    });
    Ok(rows.collect())
}

/// Longer waits are those of the machine: alone, the 99.9th percentile varies by a factor of twenty.
const SHARES: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];

/// Percentiles of the times, in ns, that writes of 64 bytes take, with another thread that writes pages or without.
fn latencies(bench: &Bench, file: &File, beside: Option<&File>) -> Result<Vec<f64>, Error> {
    let (effort, length) = (bench.scale.effort, bench.scale.file_length);
    let (small, page) = (bytes(64), bytes(PAGE));
    let is_done = AtomicBool::new(false);
    let write_small = || {
        let mut random = Random::new(4);
        let mut times_ns = Vec::with_capacity(1 << 17);
        let start = Instant::now();
        let mut last = start;
        while last - start < effort {
            let offset = random.offset(length, small.len());
            whole(file.write_at(&small, offset)?, small.len())?;
            let now = Instant::now();
            times_ns.push((now - last).as_nanos() as u64);
            last = now;
        }
        times_ns.sort_unstable();
        Ok(SHARES
            .map(|(_, share)| percentile(&times_ns, share) as f64)
            .to_vec())
    };
    let write_pages = |file: &File| {
        let mut random = Random::new(5);
        while !is_done.load(Ordering::Relaxed) {
            whole(file.write_at(&page, random.offset(length, PAGE))?, PAGE)?;
        }
        Ok(Vec::new())
    };
    let figures = at_once(1 + usize::from(beside.is_some()), |thread| match beside {
        Some(file) if thread > 0 => write_pages(file),
        _ => {
            let figures = write_small();
            is_done.store(true, Ordering::Relaxed);
            figures
        }
    })?;
    Ok(figures.into_iter().next().unwrap_or_default())
}
