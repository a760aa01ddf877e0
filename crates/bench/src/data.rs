//! Reading and writing.

use client::OpenFlags;
use pmem::Region;
use rustix::fs::OFlags;

use crate::error::whole;
use crate::harness::{Random, interleave, repeated};
use crate::report::Row;
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
        measure: |bench, name| overwrite(bench, name, 2048, Some(1.2)),
    },
    Workload {
        name: "64 B overwrite",
        measure: |bench, name| overwrite(bench, name, 64, Some(2.0)),
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

/// At random offsets, persistent.
fn overwrite(bench: &Bench, name: &str, size: usize, bar: Option<f64>) -> Result<Vec<Row>, Error> {
    let (tako, limit) = (bench.tako_file()?, bench.limit_file()?);
    let (effort, length) = (bench.scale.effort, bench.scale.file_length);
    let data = bytes(size);
    let (mut random, mut same_random) = (Random::new(1), Random::new(1));
    let sides = vec![
        repeated(effort, || {
            let offset = random.offset(length, size);
            whole(tako.write_at(&data, offset)?, size)
        })?,
        repeated(effort, || {
            let offset = same_random.offset(length, size);
            whole(rustix::io::pwrite(&limit, &data, offset)?, size)
        })?,
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    Ok(vec![measured.row(0, name, "tmpfs pwrite", bar)])
}

/// At random offsets.
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
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    Ok(vec![measured.row(0, name, "tmpfs write, fsync", Some(2.0))])
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

/// Over the whole file, again and again, beside copies over a range of memory as long.
fn sequential_write(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let (tako, memory) = (bench.tako_file()?, memory(bench)?);
    let (effort, length) = (bench.scale.effort, bench.scale.file_length);
    let data = bytes(MIB);
    let (mut offset, mut memory_offset) = (0, 0);
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
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    Ok(vec![measured.throughput_row(MIB, name, "memcpy", 0.7)])
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
