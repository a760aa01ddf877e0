//! Reading and writing.

use client::OpenFlags;
use pmem::{LINE, Region};
use rustix::fs::OFlags;

use crate::error::whole;
use crate::harness::{Measured, Random, Side, interleave, repeated};
use crate::report::{Quantity, Row};
use crate::setup::{Bench, bytes, empty_file, nameless_pool};
use crate::{Error, Workload};

const MIB: usize = 1 << 20;

pub const WORKLOADS: [Workload; 9] = [
    Workload {
        name: "4 KiB overwrite",
        measure: |bench, name| overwrite(bench, name, 4096, Some(1.0)),
    },
    Workload {
        name: "2 KiB overwrite",
        measure: |bench, name| overwrite(bench, name, 2048, None),
    },
    Workload {
        name: "64 B overwrite",
        measure: small_overwrite,
    },
    Workload {
        name: "100 B append and fsync",
        measure: append,
    },
    Workload {
        name: "4 KiB read",
        measure: |bench, name| read(bench, name, 4096, Some(1.0)),
    },
    Workload {
        name: "64 B read",
        measure: |bench, name| read(bench, name, 64, None),
    },
    Workload {
        name: "fstat",
        measure: attributes,
    },
    Workload {
        name: "1 MiB sequential write",
        measure: sequential_write,
    },
    Workload {
        name: "1 MiB sequential read",
        measure: sequential_read,
    },
];

/// Measures persistent overwrites at random offsets.
fn overwrite(bench: &Bench, name: &str, size: usize, bar: Option<f64>) -> Result<Vec<Row>, Error> {
    let measured = interleave(bench.scale.rounds, overwrite_sides(bench, size)?)?;
    Ok(vec![measured.row(0, name, "tmpfs pwrite", bar)])
}

fn overwrite_sides(bench: &Bench, size: usize) -> Result<Vec<Side<'_>>, Error> {
    let (tako, limit) = (bench.tako_file()?, bench.limit_file()?);
    let (effort, length) = (bench.scale.effort, bench.scale.file_length);
    let data = bytes(size);
    let same_data = data.clone();
    let (mut random, mut same_random) = (Random::new(1), Random::new(1));
    Ok(vec![
        repeated(effort, move || {
            let offset = random.offset(length, size);
            whole(tako.write_at(&data, offset)?, size)
        })?,
        repeated(effort, move || {
            let offset = same_random.offset(length, size);
            whole(rustix::io::pwrite(&limit, &same_data, offset)?, size)
        })?,
    ])
}

/// Its record is two lines: their cost alone is the machine's limit.
fn small_overwrite(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let mut sides = overwrite_sides(bench, 64)?;
    sides.push(flushed_lines(bench, 2)?);
    let measured = interleave(bench.scale.rounds, sides)?;
    Ok(vec![
        measured.row(0, name, "tmpfs pwrite", Some(1.3)),
        alone(&measured, 2, "tmpfs pwrite"),
    ])
}

/// So many lines written behind the last ones, as records are, flushed and fenced, and nothing else.
fn flushed_lines<'a>(bench: &Bench, lines: usize) -> Result<Side<'a>, Error> {
    let length = 16 << 20;
    let region = nameless_pool(&bench.directory, length)?;
    region.populate();
    let (data, mut at) = (bytes(lines * LINE), 0);
    repeated(bench.scale.effort, move || {
        region.write_flushed(at, &data);
        region.fence();
        at += data.len() as u64;
        if at + data.len() as u64 > length {
            at = 0;
        }
        Ok(())
    })
}

/// The row of [`flushed_lines`], the third side.
fn alone(measured: &Measured, lines: usize, limit_name: &str) -> Row {
    let [limit, took] = [1, 2].map(|side| Quantity::ns(measured.median(side, 0)));
    let name = format!("  {lines} lines flushed and fenced, no more");
    Row::new(&name, took).beside(limit_name, limit, measured.ratio((1, 0), (2, 0)), None)
}

/// Measures reads at random offsets.
fn read(bench: &Bench, name: &str, size: usize, bar: Option<f64>) -> Result<Vec<Row>, Error> {
    let (tako, limit) = (bench.tako_file()?, bench.limit_file()?);
    let (effort, length) = (bench.scale.effort, bench.scale.file_length);
    let (mut into, mut limit_into) = (vec![0; size], vec![0; size]);
    let (mut random, mut same_random) = (Random::new(2), Random::new(2));
    let sides = vec![
        repeated(effort, || {
            let offset = random.offset(length, size);
            whole(tako.read_at(&mut into, offset)?, size)
        })?,
        repeated(effort, || {
            let offset = same_random.offset(length, size);
            whole(
                rustix::io::pread(&limit, &mut limit_into[..], offset)?,
                size,
            )
        })?,
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    Ok(vec![measured.row(0, name, "tmpfs pread", bar)])
}

/// To a log, which starts again when it has a quarter of a file's length.
fn append(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let flags = OpenFlags {
        append: true,
        ..OpenFlags::READ_WRITE
    };
    let tako = empty_file(&bench.file_system, flags)?;
    let limit = bench.empty_limit_file(OFlags::RDWR | OFlags::APPEND)?;
    let data = bytes(100);
    let most = bench.scale.file_length / 4 / data.len() as u64;
    let (mut count, mut limit_count) = (0, 0);
    let sides = vec![
        repeated(bench.scale.effort, || {
            whole(tako.write(&data)?, data.len())?;
            tako.sync()?;
            count += 1;
            if count % most == 0 {
                tako.truncate(0)?;
            }
            Ok(())
        })?,
        repeated(bench.scale.effort, || {
            whole(rustix::io::write(&limit, &data)?, data.len())?;
            rustix::fs::fsync(&limit)?;
            limit_count += 1;
            if limit_count % most == 0 {
                rustix::fs::ftruncate(&limit, 0)?;
            }
            Ok(())
        })?,
        flushed_lines(bench, 4)?,
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    Ok(vec![
        measured.row(0, name, "tmpfs write, fsync", Some(2.0)),
        alone(&measured, 4, "tmpfs write, fsync"),
    ])
}

fn attributes(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let tako = empty_file(&bench.file_system, OpenFlags::READ)?;
    let limit = bench.empty_limit_file(OFlags::RDONLY)?;
    let sides = vec![
        repeated(bench.scale.effort, || {
            std::hint::black_box(tako.attributes()?);
            Ok(())
        })?,
        repeated(bench.scale.effort, || {
            std::hint::black_box(rustix::fs::fstat(&limit)?);
            Ok(())
        })?,
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    Ok(vec![measured.row(0, name, "tmpfs fstat", Some(0.9))])
}

/// Over the whole file, again and again, beside copies over a range of memory as long: the faster of copies through the
/// caches and around them.
fn sequential_write(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let (tako, memory) = (bench.tako_file()?, memory(bench)?);
    let (effort, length) = (bench.scale.effort, bench.scale.file_length);
    let data = bytes(MIB);
    let (mut offset, mut memory_offset, mut flushed_offset) = (0, 0, 0);
    let sides = vec![
        repeated(effort, || {
            whole(tako.write_at(&data, offset)?, MIB)?;
            offset = (offset + MIB as u64) % length;
            Ok(())
        })?,
        repeated(effort, || {
            memory.write(memory_offset, &data);
            memory_offset = (memory_offset + MIB as u64) % length;
            Ok(())
        })?,
        repeated(effort, || {
            // Around the caches, where the processor has stores for that.
            memory.write_flushed(flushed_offset, &data);
            memory.fence();
            flushed_offset = (flushed_offset + MIB as u64) % length;
            Ok(())
        })?,
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    let (limit, limit_name) = match measured.median(1, 0) <= measured.median(2, 0) {
        true => (1, "memcpy, cached"),
        false => (2, "memcpy, non-temporal"),
    };
    Ok(vec![
        measured.throughput_beside(limit, MIB, name, limit_name, 0.7),
    ])
}

/// Like [`sequential_write`], the other way.
fn sequential_read(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let (tako, memory) = (bench.tako_file()?, memory(bench)?);
    let (effort, length) = (bench.scale.effort, bench.scale.file_length);
    let (mut into, mut memory_into) = (vec![0; MIB], vec![0; MIB]);
    let (mut offset, mut memory_offset) = (0, 0);
    let sides = vec![
        repeated(effort, || {
            whole(tako.read_at(&mut into, offset)?, MIB)?;
            offset = (offset + MIB as u64) % length;
            Ok(())
        })?,
        repeated(effort, || {
            memory.read(memory_offset, &mut memory_into);
            memory_offset = (memory_offset + MIB as u64) % length;
            Ok(())
        })?,
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    Ok(vec![measured.throughput_row(MIB, name, "memcpy", 0.9)])
}

/// Memory as long as a file, in pages like the pool's.
fn memory(bench: &Bench) -> Result<Region, Error> {
    let region = nameless_pool(&bench.directory, bench.scale.file_length)?;
    region.populate();
    Ok(region)
}
