//! Creating, finding, renaming and removing.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use client::{OpenFlags, ROOT, RenameMode};
use pmem::{LINE, Region};
use rustix::fs::{AtFlags, Mode, OFlags};
use store::Geometry;

use crate::harness::{Measured, Random, Side, interleave, repeated, thread_time};
use crate::report::{Quantity, Row};
use crate::setup::{Bench, NEW_DIRECTORY, NEW_FILE, format_as};
use crate::{Error, Workload};

pub const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "create and unlink",
        measure: create_and_unlink,
    },
    Workload {
        name: "stat by path",
        measure: stat,
    },
    Workload {
        name: "rename",
        measure: rename,
    },
    Workload {
        name: "many files",
        measure: flat,
    },
];

/// The directory that all names are in.
const DIRECTORY: &str = "directory";

/// In a directory that grows from nothing and shrinks to nothing in each round.
fn create_and_unlink(bench: &Bench, _: &str) -> Result<Vec<Row>, Error> {
    let names = names(bench, "file");
    let count = names.len() as f64;
    let file_system = &bench.file_system;
    let directory = file_system
        .create(ROOT, DIRECTORY.as_bytes(), &NEW_DIRECTORY)?
        .number;
    let (_scratch, limit) = bench.limit_directory()?;
    let tako_side: Side<'_> = Box::new(|| {
        let start = thread_time();
        for name in &names {
            let flags = OpenFlags {
                exclusive: true,
                ..OpenFlags::READ_WRITE
            };
            file_system.create_open(directory, name.as_bytes(), &NEW_FILE, flags)?;
        }
        let middle = thread_time();
        for name in &names {
            file_system.unlink(directory, name.as_bytes())?;
        }
        Ok(ns_each(start, middle, count))
    });
    let limit_side: Side<'_> = Box::new(|| {
        let start = thread_time();
        for name in &names {
            drop(rustix::fs::openat(&limit, name, CREATE, OWNER)?);
        }
        let middle = thread_time();
        for name in &names {
            rustix::fs::unlinkat(&limit, name, AtFlags::empty())?;
        }
        Ok(ns_each(start, middle, count))
    });
    let measured = interleave(bench.scale.few_rounds(), vec![tako_side, limit_side])?;
    file_system.remove_directory(ROOT, DIRECTORY.as_bytes())?;
    Ok(vec![
        measured.row(0, "create", "tmpfs open, close", Some(1.5)),
        measured.row(1, "unlink", "tmpfs unlink", Some(1.5)),
    ])
}

/// Flags for creating a file on tmpfs.
pub const CREATE: OFlags = OFlags::CREATE
    .union(OFlags::EXCL)
    .union(OFlags::RDWR)
    .union(OFlags::CLOEXEC);
/// The permissions that it gets.
pub const OWNER: Mode = Mode::RUSR.union(Mode::WUSR);

/// The times of two loops, for each of their `count` steps.
pub fn ns_each(start: Duration, middle: Duration, count: f64) -> Vec<f64> {
    let spans = [middle - start, thread_time() - middle];
    spans.map(|span| span.as_nanos() as f64 / count).to_vec()
}

fn stat(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let paths = names(bench, &format!("{DIRECTORY}/file"));
    let measured = with_files(bench, &paths, |limit| {
        let (mut random, mut same_random) = (Random::new(3), Random::new(3));
        let tako_side = repeated(bench.scale.effort, || {
            let path = &paths[random.below(paths.len() as u64) as usize];
            std::hint::black_box(bench.file_system.stat(text(path))?);
            Ok(())
        })?;
        let limit_side = repeated(bench.scale.effort, || {
            let path = &paths[same_random.below(paths.len() as u64) as usize];
            std::hint::black_box(rustix::fs::statat(limit, path, AtFlags::empty())?);
            Ok(())
        })?;
        interleave(bench.scale.rounds, vec![tako_side, limit_side])
    })?;
    Ok(vec![measured.row(0, name, "tmpfs stat", Some(1.5))])
}

/// Within the directory: one file after the other gets its other name, and then its first again.
fn rename(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let paths = names(bench, &format!("{DIRECTORY}/file"));
    let others = names(bench, &format!("{DIRECTORY}/other"));
    let pair = |count: usize| {
        let (path, other) = (&paths[count % paths.len()], &others[count % paths.len()]);
        match (count / paths.len()).is_multiple_of(2) {
            true => (path, other),
            false => (other, path),
        }
    };
    let measured = with_files(bench, &paths, |limit| {
        let (mut count, mut limit_count) = (0, 0);
        let tako_side = repeated(bench.scale.effort, || {
            let (from, to) = pair(count);
            count += 1;
            let (from, to) = (text(from), text(to));
            Ok(bench
                .file_system
                .rename_path(from, to, RenameMode::Replace)?)
        })?;
        let limit_side = repeated(bench.scale.effort, || {
            let (from, to) = pair(limit_count);
            limit_count += 1;
            Ok(rustix::fs::renameat(limit, from, limit, to)?)
        })?;
        interleave(bench.scale.rounds, vec![tako_side, limit_side])
    })?;
    Ok(vec![measured.row(0, name, "tmpfs rename", Some(1.5))])
}

/// Names that come and go at once in [`flat`].
const BATCH: u64 = 100;
/// Batches in a round.
const BATCHES: u64 = 20;

/// In a directory with many files, beside one with few: new names are created and removed, and existing ones are looked
/// up. And accesses to as much plain memory, which show the effect of the processor's caches.
fn flat(bench: &Bench, _: &str) -> Result<Vec<Row>, Error> {
    let [few, many] = bench.scale.flat_files;
    let sides = [few, many].map(|files| flat_sides(bench.scale.pool_length, files));
    let [few_sides, many_sides] = sides;
    let ((few_side, few_memory), (many_side, many_memory)) = (few_sides?, many_sides?);
    let sides = vec![few_side, many_side, few_memory, many_memory];
    let measured = interleave(bench.scale.rounds, sides)?;
    let row = |name: &str, sides: [usize; 2], figure, bar| {
        let [limit, tako] = sides.map(|side| Quantity::ns(measured.median(side, figure)));
        let ratio = measured.ratio((sides[0], figure), (sides[1], figure));
        Row::new(name, tako).beside(&format!("{few} files"), limit, ratio, bar)
    };
    let ours = |figure, verb: &str| {
        let name = format!("{verb} beside {many} files");
        row(&name, [0, 1], figure, Some(FLAT_MIN))
    };
    let in_memory = |figure| row("  as many lines of memory", [2, 3], figure, None);
    Ok(vec![
        ours(0, "create"),
        in_memory(0),
        ours(1, "unlink"),
        ours(2, "stat"),
        in_memory(1),
    ])
}

/// The least speed with many files, of that with few: an operation takes 25 % longer.
const FLAT_MIN: f64 = 0.8;

/// A directory with so many files, and as much memory as its names and inodes take.
fn flat_sides(pool_length: u64, files: u64) -> Result<(Side<'static>, Side<'static>), Error> {
    let region = Region::memory(pool_length, false)?;
    let geometry = Geometry {
        blocks_per_group: 8192,
        inodes_per_group: 32768,
        ..Geometry::for_length(pool_length)
    };
    let file_system = format_as(&region, &geometry)?;
    let directory = file_system
        .create(ROOT, DIRECTORY.as_bytes(), &NEW_DIRECTORY)?
        .number;
    for number in 0..files {
        file_system.create(directory, format!("file-{number:08}").as_bytes(), &NEW_FILE)?;
    }
    let memory = memory_side(file_system.attributes(directory)?.size, files)?;
    let (mut random, mut fresh) = (Random::new(4), 0);
    let side: Side<'_> = Box::new(move || {
        let mut spans = [Duration::ZERO; 3];
        for _ in 0..BATCHES {
            fresh += BATCH;
            let new = (fresh..fresh + BATCH).map(|number| format!("new-{number:08}"));
            let new: Vec<_> = new.collect();
            let old = (0..BATCH).map(|_| format!("{DIRECTORY}/file-{:08}", random.below(files)));
            let old: Vec<_> = old.collect();
            let start = thread_time();
            for name in &new {
                file_system.create(directory, name.as_bytes(), &NEW_FILE)?;
            }
            let created = thread_time();
            for name in &new {
                file_system.unlink(directory, name.as_bytes())?;
            }
            let removed = thread_time();
            for path in &old {
                std::hint::black_box(file_system.stat(path)?);
            }
            let ends = [created - start, removed - created, thread_time() - removed];
            for (span, more) in spans.iter_mut().zip(ends) {
                *span += more;
            }
        }
        let each = |span: Duration| span.as_nanos() as f64 / (BATCH * BATCHES) as f64;
        Ok(spans.map(each).to_vec())
    });
    Ok((side, memory))
}

/// The lines that a create and a stat need at least, in plain memory: random ones, of as many bytes as leaves and
/// inodes take. A create reads a line of a leaf, and a second line that the first one points to; flushes six lines
/// after the last ones; and stores to the former and to an inode after the last one. A stat reads a word in as many as
/// there are files, and then the lines that it refers to: two of a leaf and two of an inode.
fn memory_side(leaves_length: u64, files: u64) -> Result<Side<'static>, Error> {
    const LEAF: u64 = 4096;
    const LINES: u64 = LEAF / LINE as u64;
    const INODE: u64 = 256;
    const RING: u64 = 16 << 20;
    let inodes = leaves_length;
    let hints = inodes + (files + BATCH) * INODE;
    let memory = Region::memory(hints + files * 8, false)?;
    let ring = Region::memory(RING, false)?;
    memory.populate();
    ring.populate();
    let (mut random, mut end, record) = (Random::new(4), 0, [1; 6 * LINE]);
    Ok(Box::new(move || {
        // All words are zero: each is added to the addresses that are known only when it is there.
        let mut last = 0;
        let mut below = |bound| random.below(bound);
        let start = thread_time();
        for number in 0..BATCH * BATCHES {
            let leaf = below(leaves_length / LEAF) * LEAF + last;
            let entry = leaf + below(LINES) * LINE as u64 + memory.load(leaf);
            last = memory.load(entry);
            ring.write_flushed(end, &record);
            ring.fence();
            end = (end + record.len() as u64) % (RING - record.len() as u64);
            memory.store(leaf, last);
            memory.store(entry, last);
            let fresh = inodes + (files + number % BATCH) * INODE;
            memory.write(fresh, &[0; INODE as usize / 2]);
        }
        let created = thread_time();
        for _ in 0..BATCH * BATCHES {
            let hint = memory.load(hints + below(files) * 8 + last);
            let leaf = below(leaves_length / LEAF) * LEAF + hint;
            let entry = leaf + below(LINES) * LINE as u64;
            let inode = inodes + below(files) * INODE + hint;
            let lines = [leaf, entry, inode, inode + LINE as u64];
            last = lines.iter().fold(0, |all, at| all | memory.load(*at));
        }
        Ok(ns_each(start, created, (BATCH * BATCHES) as f64))
    }))
}

/// Measures with all the files there, on both sides; `measure` gets the directory on tmpfs.
fn with_files(
    bench: &Bench,
    paths: &[CString],
    measure: impl FnOnce(&OwnedFd) -> Result<Measured, Error>,
) -> Result<Measured, Error> {
    let file_system = &bench.file_system;
    let (_scratch, limit) = bench.limit_directory()?;
    file_system.make_directory(DIRECTORY, 0o700)?;
    rustix::fs::mkdirat(&limit, DIRECTORY, Mode::RWXU)?;
    let flags = OpenFlags {
        create: true,
        exclusive: true,
        ..OpenFlags::READ_WRITE
    };
    for path in paths {
        file_system.open(text(path), flags, 0o600)?;
        rustix::fs::openat(&limit, path, CREATE, OWNER)?;
    }
    let measured = measure(&limit)?;
    for entry in file_system.list(DIRECTORY)? {
        let name = String::from_utf8_lossy(&entry.name);
        file_system.remove_file(format!("{DIRECTORY}/{name}"))?;
    }
    file_system.remove_directory_at(DIRECTORY)?;
    Ok(measured)
}

fn names(bench: &Bench, start: &str) -> Vec<CString> {
    let name = |number| format!("{start}-{number:08}");
    let names = (0..bench.scale.names).map(|number| CString::new(name(number)));
    names.map(|name| name.expect("no NUL in it")).collect()
}

fn text(path: &CString) -> &str {
    path.to_str().expect("names are ASCII")
}
