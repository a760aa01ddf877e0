//! Primitives of the rows above.

use std::hint::black_box;
use std::time::Instant;

use client::Clock;
use pmem::Region;
use pmem::checksum::crc32c;

use crate::harness::{Random, Side, interleave, repeated};
use crate::report::{Quantity, Row};
use crate::setup::{Bench, bytes};
use crate::{Error, Workload};

pub const WORKLOADS: [Workload; 1] = [Workload {
    name: "primitives",
    measure,
}];

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// At random positions of a range as long as the files above, except where stated.
fn measure(bench: &Bench, _: &str) -> Result<Vec<Row>, Error> {
    let length = bench.scale.file_length;
    let region = &Region::memory(length, false)?;
    region.populate();
    let (data, page, mut into) = (bytes(MIB), bytes(PAGE), bytes(PAGE));
    let mut heap = bytes(length as usize);
    let mut random = Random::new(7);
    let persist = |size: usize| {
        let (data, mut random) = (&data[..size], Random::new(8));
        time(bench, move || {
            region.write_flushed(random.offset(length, size), data);
            region.fence();
        })
    };
    let copy = |size: usize| {
        let (data, mut random) = (&data[..size], Random::new(9));
        time(bench, move || {
            region.write(random.offset(length, size), data)
        })
    };
    let rows = [
        ("64 B written flushed, fence", persist(64)?),
        ("256 B written flushed, fence", persist(256)?),
        ("256 B after the 256 B before, fence", {
            let (data, mut at) = (&data[..256], 0);
            time(bench, move || {
                region.write_flushed(at, data);
                region.fence();
                at = (at + 256) % length;
            })?
        }),
        ("4 KiB written flushed, fence", persist(PAGE)?),
        ("1 MiB written flushed, fence", persist(MIB)?),
        ("4 KiB written to the caches", copy(PAGE)?),
        ("1 MiB written to the caches", copy(MIB)?),
        ("1 MiB copied within the heap", {
            let (data, mut random) = (&data, Random::new(9));
            time(bench, move || {
                let at = random.offset(length, MIB) as usize;
                heap[at..at + MIB].copy_from_slice(data);
                black_box(&mut heap);
            })?
        }),
        ("4 KiB read", {
            time(bench, move || {
                region.read(random.offset(length, PAGE), &mut into)
            })?
        }),
        ("checksum of 4 KiB", {
            time(bench, || _ = black_box(crc32c(black_box(&page))))?
        }),
        (
            "fence of all threads, when there is one",
            time(bench, || region.fence_everywhere())?,
        ),
        (
            "time stamp",
            time(bench, || _ = black_box(Clock::System.now_ns()))?,
        ),
        ("reading the clock of this table", {
            time(bench, || _ = black_box(Instant::now()))?
        }),
    ];
    let (names, sides): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    let measured = interleave(bench.scale.rounds, sides)?;
    let row = |(side, name): (usize, &&str)| Row::new(name, Quantity::ns(measured.median(side, 0)));
    Ok(names.iter().enumerate().map(row).collect())
}

fn time<'a>(bench: &Bench, mut operation: impl FnMut() + 'a) -> Result<Side<'a>, Error> {
    repeated(bench.scale.effort, move || {
        operation();
        Ok(())
    })
}
