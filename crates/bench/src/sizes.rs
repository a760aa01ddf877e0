//! Cost of the length of a file, and of the number of files.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use client::{File, OpenFlags, ROOT};
use pmem::Region;

use crate::error::whole;
use crate::harness::{Random, Side, interleave, repeated};
use crate::report::{Quantity, Row};
use crate::setup::{
    Bench, NEW_DIRECTORY, NEW_FILE, bytes, empty_file, format_and_open, full_file, nameless_pool,
};
use crate::{Error, Workload};

pub const LENGTHS: [Workload; 2] = [
    Workload {
        name: "4 KiB overwrite by length of the file",
        measure: |bench, _| {
            let in_memory = |memory: &Region, page: &mut [u8], offset| {
                memory.write_flushed(offset, page);
                memory.fence();
            };
            let overwrite = |file: &File, page: &mut [u8], offset| file.write_at(page, offset);
            by_length(bench, "overwrite", overwrite, in_memory)
        },
    },
    Workload {
        name: "4 KiB read by length of the file",
        measure: |bench, _| {
            let in_memory = |memory: &Region, page: &mut [u8], offset| memory.read(offset, page);
            let read = |file: &File, page: &mut [u8], offset| file.read_at(page, offset);
            by_length(bench, "read", read, in_memory)
        },
    },
];

pub const MEMORY: [Workload; 1] = [Workload {
    name: "volatile memory",
    measure: memory,
}];

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;
/// Length of the file with holes.
const SPARSE: u64 = 16 << 30;
/// A quarter more time is the most that a long file may take.
const FLAT: f64 = 0.8;

/// Random pages of a file of 1 MiB, beside those of longer ones: one as long as half the pool, and one with holes and
/// separate pages, so that each is an extent. And the same in as much memory, which shows the effect of the processor's
/// caches.
fn by_length(
    bench: &Bench,
    verb: &str,
    operation: impl Fn(&File, &mut [u8], u64) -> Result<usize, client::Error>,
    in_memory: impl Fn(&Region, &mut [u8], u64),
) -> Result<Vec<Row>, Error> {
    let (effort, long) = (bench.scale.effort, bench.scale.pool_length / 2);
    let pages = bench.scale.file_length / PAGE as u64;
    let files = [
        (full_file(&bench.file_system, MIB)?, MIB, PAGE as u64),
        (
            full_file(&bench.file_system, bench.scale.file_length)?,
            bench.scale.file_length,
            PAGE as u64,
        ),
        (full_file(&bench.file_system, long)?, long, PAGE as u64),
        (sparse_file(bench, SPARSE / pages)?, SPARSE, SPARSE / pages),
    ];
    let sides = files.iter().map(|(file, length, step)| {
        let (mut random, mut page, operation) = (Random::new(11), bytes(PAGE), &operation);
        repeated(effort, move || {
            let offset = random.offset(*length, *step as usize);
            whole(operation(file, &mut page, offset)?, PAGE)
        })
    });
    let lengths = [MIB, bench.scale.file_length, long];
    let limits = lengths.map(|length| memory_side(effort, length, &in_memory));
    let measured = interleave(
        bench.scale.rounds,
        sides.chain(limits).collect::<Result<_, _>>()?,
    )?;
    let row = |side, name: String, limit, limit_name: &str, bar| {
        let time = |side| Quantity::ns(measured.median(side, 0));
        let ratio = measured.ratio((limit, 0), (side, 0));
        Row::new(&name, time(side)).beside(limit_name, time(limit), ratio, bar)
    };
    let (short, long) = (bench.scale.file_length / MIB, long / MIB);
    let in_memory = |side, name: &str| row(side, name.to_owned(), 4, "memory of 1 MiB", None);
    Ok(vec![
        row(
            2,
            format!("4 KiB {verb} in a file of {long} MiB"),
            0,
            "file of 1 MiB",
            Some(FLAT),
        ),
        in_memory(6, "  the same in memory"),
        row(
            3,
            format!("4 KiB {verb} in 16 GiB with holes"),
            0,
            "file of 1 MiB",
            Some(FLAT),
        ),
        row(
            3,
            "  the same, beside as many pages".to_owned(),
            1,
            &format!("file of {short} MiB"),
            None,
        ),
        in_memory(5, "  as many pages in memory"),
    ])
}

/// Returns the side that copies the same bytes in memory.
fn memory_side<'a>(
    effort: Duration,
    length: u64,
    operation: &'a impl Fn(&Region, &mut [u8], u64),
) -> Result<Side<'a>, Error> {
    let memory = Region::memory(length, false)?;
    memory.populate();
    let (mut random, mut page) = (Random::new(11), bytes(PAGE));
    repeated(effort, move || {
        operation(&memory, &mut page, random.offset(length, PAGE));
        black_box(&mut page);
        Ok(())
    })
}

/// A file of [`SPARSE`] bytes with a page of data every `step` bytes.
fn sparse_file(bench: &Bench, step: u64) -> Result<File, Error> {
    let file = empty_file(&bench.file_system, OpenFlags::READ_WRITE)?;
    let page = bytes(PAGE);
    for offset in (0..SPARSE).step_by(step as usize) {
        whole(file.write_at(&page, offset)?, PAGE)?;
    }
    Ok(file)
}

/// Memory of the process for files, beside the allowed amount: all of its private memory, before and after. Memory that
/// was freed before would be reused without being seen, so this is measured first.
fn memory(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let region = nameless_pool(&bench.directory, bench.scale.pool_length)?;
    // The buffer exists at each count, so that no difference contains it.
    let mut piece = bytes(MIB as usize);
    let closed = own_memory()?;
    let file_system = format_and_open(&region)?;
    let opened = own_memory()?;
    let parent = file_system
        .create(ROOT, b"directory", &NEW_DIRECTORY)?
        .number;
    let create = |number: u64| {
        let name = format!("file-{number:08}");
        file_system.create_open(parent, name.as_bytes(), &NEW_FILE, OpenFlags::READ_WRITE)
    };
    // Both together are no more than the inodes of the pool.
    let (open, cold) = (bench.scale.names / 10, bench.scale.mount_files[1]);
    let mut held = Vec::with_capacity(open as usize);
    let start = own_memory()?;
    for number in 0..open {
        held.push(create(number)?);
    }
    let with_open = own_memory()?;
    for number in 0..cold {
        drop(create(open + number)?);
    }
    let with_cold = own_memory()?;
    let length = bench.scale.pool_length / 2;
    let pieces = (0..length).step_by(piece.len());
    let file = empty_file(&file_system, OpenFlags::READ_WRITE)?;
    for offset in pieces.clone() {
        whole(file.write_at(&piece, offset)?, piece.len())?;
    }
    for offset in pieces {
        whole(file.read_at(&mut piece, offset)?, piece.len())?;
    }
    let with_data = own_memory()?;
    let row = |what, before: u64, after: u64, count: f64, allowed: f64| {
        // Amounts below a page may be seen or not.
        let each = (after.saturating_sub(before) + PAGE as u64) as f64 / count;
        let allowed = Quantity::new(allowed, "bytes");
        let row = Row::new(&format!("{name}, {what}"), Quantity::new(each, "bytes"));
        row.beside("allowed", allowed, allowed.value / each, Some(1.0))
    };
    let gibibytes = length as f64 / (1 << 30) as f64;
    Ok(vec![
        row("a closed file", with_open, with_cold, cold as f64, 200.0),
        row("an open file", start, with_open, open as f64, 1024.0),
        // Initial memory of a pool is included.
        row(
            "a GiB of data",
            with_cold,
            with_data + opened.saturating_sub(closed),
            gibibytes,
            MIB as f64,
        ),
    ])
}

/// Bytes of memory that are this process's own, and not a file's.
fn own_memory() -> Result<u64, Error> {
    let path = Path::new("/proc/self/smaps_rollup");
    let text = fs::read_to_string(path).map_err(Error::at(path))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kibibytes.unwrap_or(0) << 10)
}
