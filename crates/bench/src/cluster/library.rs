//! Calls of a session without a mount, beside memory or the transport alone: what the library adds.

use std::hint::black_box;

use client::network::{Io, RequestWay};
use client::{FileKind, FileSystem, NewInode, OpenFlags, ROOT, WriteAt};
use fabric::Provider;
use pmem::checksum;

use super::{MIB, PAGE, Places};
use crate::Error;
use crate::error::whole;
use crate::fabric::ping;
use crate::harness::{Random, Side, interleave};
use crate::mounted::{MEAN, timed};
use crate::report::{Quantity, Row};
use crate::setup::{Bench, bytes};

/// What a one-sided read of a page may take beyond the copy, in ns.
const READ_MORE_NS: f64 = 600.0;
/// The same for a request and its answer beyond a ping, over shared memory and over TCP.
const CALL_MORE_NS: [(Provider, f64); 2] = [(Provider::Shm, 1_500.0), (Provider::Tcp, 6_000.0)];
/// Bytes of a long read.
const LONG: usize = 8 * MIB;
/// Share of the speed of memory, read twice for checksums besides, that a long read should reach.
const LONG_SHARE: f64 = 0.9;

pub fn measure(bench: &Bench) -> Result<Vec<Row>, Error> {
    let places = bench.clusters()?;
    let mut rows = vec![page(bench, places)?];
    for (provider, more_ns) in CALL_MORE_NS {
        rows.push(call(bench, places, provider, more_ns)?);
    }
    rows.push(announced(bench, places)?);
    for (io, name) in [(Io::Server, "io=server"), (Io::Client, "io=client")] {
        rows.extend(long(bench, places, (io, name))?);
        rows.push(mapped(bench, places, (io, name))?);
    }
    Ok(rows)
}

/// A side that repeats an operation; its figure is the mean time, and what is allowed beyond it, in ns.
fn mean<'a>(
    bench: &Bench,
    more_ns: f64,
    operation: impl FnMut() -> Result<(), Error> + 'a,
) -> Side<'a> {
    let mut side = timed(bench.scale.effort, 1, operation);
    Box::new(move || Ok(vec![side()?[MEAN] + more_ns]))
}

/// A copy from memory of this process.
fn copy(bench: &Bench, size: usize, more_ns: f64) -> Side<'static> {
    let length = bench.scale.file_length;
    let (from, mut into) = (bytes(length as usize), bytes(size));
    let mut random = Random::new(4);
    mean(bench, more_ns, move || {
        let offset = random.offset(length, size) as usize;
        into.copy_from_slice(&from[offset..][..size]);
        black_box(&into);
        Ok(())
    })
}

/// The same, and the two passes over the data that checksums take: by the side that sends it and by the one that receives it.
fn checked_copy(bench: &Bench, size: usize) -> Side<'static> {
    let length = bench.scale.file_length;
    let (from, mut into) = (bytes(length as usize), bytes(size));
    let mut random = Random::new(4);
    mean(bench, 0.0, move || {
        let sent = &from[random.offset(length, size) as usize..][..size];
        black_box(checksum::crc32c(sent));
        into.copy_from_slice(sent);
        black_box(checksum::crc32c(&into));
        Ok(())
    })
}

/// A file with data of the usual length, by its number.
fn file(bench: &Bench, file_system: &FileSystem, name: &str) -> Result<u64, Error> {
    let new = NewInode::new(FileKind::Regular, 0o600);
    // Held: only then its generation is known, by which layouts are kept.
    let created = file_system.create_held(ROOT, name.as_bytes(), &new)?;
    let file = created.number;
    for offset in (0..bench.scale.file_length).step_by(MIB) {
        file_system.write(file, WriteAt::Offset(offset), &bytes(MIB))?;
    }
    file_system.sync(file)?;
    Ok(file)
}

fn reads(
    bench: &Bench,
    file_system: FileSystem,
    name: &str,
    size: usize,
) -> Result<Side<'static>, Error> {
    let file = file(bench, &file_system, name)?;
    let (mut random, mut into) = (Random::new(4), bytes(size));
    let length = bench.scale.file_length;
    Ok(mean(bench, 0.0, move || {
        let done = file_system.read(file, random.offset(length, size), &mut into)?;
        whole(done, size)
    }))
}

fn page(bench: &Bench, places: &Places) -> Result<Row, Error> {
    let session = places.session(Io::Client, None)?;
    let sides = vec![
        reads(bench, session, "library-page", PAGE)?,
        copy(bench, PAGE, READ_MORE_NS),
    ];
    let measured = interleave(bench.scale.few_rounds(), sides)?;
    let name = "4 KiB one-sided read, library";
    Ok(measured.row(0, name, "memcpy + 600 ns", Some(1.0)))
}

fn call(bench: &Bench, places: &Places, provider: Provider, more_ns: f64) -> Result<Row, Error> {
    let session = places.session(Io::Server, Some(provider))?;
    let mut ping = ping::raw(bench, provider)?;
    let sides: Vec<Side<'_>> = vec![
        mean(bench, 0.0, || {
            black_box(session.attributes(ROOT)?);
            Ok(())
        }),
        Box::new(move || Ok(ping()?.iter().map(|took| took + more_ns).collect())),
    ];
    let measured = interleave(bench.scale.few_rounds(), sides)?;
    let name = format!("attributes by message, library, {}", provider.name());
    let limit = format!("a bare ping + {:.1} µs", more_ns / 1e3);
    Ok(measured.row(0, &name, &limit, Some(1.0)))
}

/// The same request and its answer, as writes that announce themselves, beside messages (O3).
fn announced(bench: &Bench, places: &Places) -> Result<Row, Error> {
    let sessions = [RequestWay::Announced, RequestWay::Message]
        .map(|requests| places.session_with(requests, Io::Server, Some(Provider::Shm)));
    let mut sides = Vec::new();
    for session in sessions {
        let session = session?;
        sides.push(mean(bench, 0.0, move || {
            black_box(session.attributes(ROOT)?);
            Ok(())
        }));
    }
    let measured = interleave(bench.scale.few_rounds(), sides)?;
    let name = "attributes announced by writes, library, shm";
    Ok(measured.row(0, name, "by messages", None))
}

fn long(bench: &Bench, places: &Places, (io, name): (Io, &str)) -> Result<Vec<Row>, Error> {
    let session = places.session(io, None)?;
    let sides = vec![
        reads(bench, session, &format!("library-{name}"), LONG)?,
        checked_copy(bench, LONG),
        copy(bench, LONG, 0.0),
    ];
    let measured = interleave(bench.scale.few_rounds(), sides)?;
    let time = |side| Quantity::ns(measured.median(side, 0));
    let row = |limit: usize, what, bar| {
        let row = Row::new(&format!("8 MiB read, library, {name}"), time(0));
        row.beside(what, time(limit), measured.ratio((limit, 0), (0, 0)), bar)
    };
    Ok(vec![
        row(1, "memcpy, CRC32C twice", Some(LONG_SHARE)),
        row(2, "memcpy", None),
    ])
}

/// A new map of the whole file each time, with one access to each page in order, beside a read of as much into memory.
fn mapped(bench: &Bench, places: &Places, (io, name): (Io, &str)) -> Result<Row, Error> {
    let session = places.session(io, None)?;
    let path = format!("library-map-{name}");
    let length = bench.scale.file_length as usize;
    let read = reads(bench, session.clone(), &path, length)?;
    let file = session.open(&path, OpenFlags::READ, 0)?;
    let map = mean(bench, 0.0, move || {
        let map = file.map()?;
        black_box(map.iter().step_by(PAGE).fold(0, |sum, it| sum ^ *it));
        Ok(())
    });
    let measured = interleave(bench.scale.few_rounds(), vec![map, read])?;
    let time = |side| Quantity::ns(measured.median(side, 0));
    let name = format!("{} MiB mapped, library, {name}", length / MIB);
    let ratio = measured.ratio((1, 0), (0, 0));
    Ok(Row::new(&name, time(0)).beside("read into memory", time(1), ratio, None))
}
