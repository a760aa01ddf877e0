//! A replicated cluster of this host, mounted by a process of its own and inside its primary's node, beside one pool mounted alone
//! and beside other distributed file systems.
//!
//! Peers are measured where `scripts/peers.sh up` has mounted them; it mounts a Tako cluster of two members over tcp there, too,
//! in the same network namespaces as the peers'.

mod library;

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::fs::{Advice, AtFlags, OFlags, StatxFlags, fadvise};

use crate::error::whole;
use crate::harness::{Random, Side, interleave};
use crate::mounted::{MEAN, MEDIAN, timed};
use crate::names::{CREATE, OWNER};
pub use crate::places::GROUP;
use crate::places::{Place, Places};
use crate::report::{Quantity, Row};
use crate::setup::{Aligned, Bench, Pages, bytes};
use crate::threads::{one_and_two, scaling};
use crate::{Error, Workload, fabric};

pub const WORKLOADS: [Workload; 14] = [
    Workload {
        name: "cluster: 2 KiB random write",
        measure: |bench, name| operations(bench, name, 2.0, |place| write(bench, place, false)),
    },
    Workload {
        name: "cluster: 2 KiB random write, answered early",
        measure: |bench, name| answered_early(bench, name),
    },
    Workload {
        name: "cluster: 2 KiB random write, fdatasync",
        measure: |bench, name| operations(bench, name, 2.0, |place| write(bench, place, true)),
    },
    Workload {
        name: "cluster: 4 KiB random read, direct",
        measure: |bench, name| {
            operations(bench, name, 2.0, |place| read(bench, place, OFlags::DIRECT))
        },
    },
    Workload {
        name: "cluster: 4 KiB read, from the page cache",
        measure: |bench, name| cached(bench, name, |place| read(bench, place, OFlags::empty())),
    },
    Workload {
        name: "cluster: stat, STATX_FORCE_SYNC",
        measure: |bench, name| operations(bench, name, 2.0, |place| stat(bench, place)),
    },
    Workload {
        name: "cluster: stat, cached",
        measure: |bench, name| cached(bench, name, |place| stat_cached(bench, place)),
    },
    Workload {
        name: "cluster: create and close",
        measure: |bench, name| operations(bench, name, 2.0, |place| Ok(create(place))),
    },
    Workload {
        name: "cluster: 1 MiB sequential write",
        measure: |bench, name| operations(bench, name, 2.0, |place| write_through(bench, place)),
    },
    Workload {
        name: "cluster: 1 MiB sequential read",
        measure: |bench, name| operations(bench, name, 2.0, |place| read_through(bench, place)),
    },
    Workload {
        name: "cluster: two threads read, direct",
        measure: |bench, _| reads_of_two(bench),
    },
    Workload {
        name: "cluster: one-sided",
        measure: |bench, _| one_sided(bench),
    },
    Workload {
        name: "cluster: library",
        measure: |bench, _| library::measure(bench),
    },
    Workload {
        name: "cluster: the transport's ping",
        measure: |bench, _| ping(bench),
    },
];

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// Files that come and go in each round.
const FILES: usize = 50;
/// The fastest peer of a cluster over tcp: what clusters on one host take twice of.
const BAR_TCP: f64 = 1.0;
/// The embedded mount, for what the kernel answers under a lease.
const BAR_CACHED: f64 = 0.95;

/// The time of one operation in every place, and its rows: Tako's clusters beside the embedded mount, and beside the
/// faster peer. `bar`: the required share of the faster peer's speed for a cluster over shm.
fn operations<'a>(
    bench: &'a Bench,
    name: &str,
    bar: f64,
    side: impl Fn(&'a Place) -> Result<Side<'a>, Error>,
) -> Result<Vec<Row>, Error> {
    let places = bench.clusters()?;
    let sides = places.all.iter().map(side).collect::<Result<Vec<_>, _>>()?;
    let measured = interleave(bench.scale.few_rounds(), sides)?;
    let name = name.trim_start_matches("cluster: ");
    let time = |side| Quantity::ns(measured.median(side, 0));
    let row = |cluster: usize, limit: usize, bar| {
        let title = format!("{name}, {}", places.all[cluster].label);
        let limit_name = places.all[limit].label;
        let ratio = measured.ratio((limit, 0), (cluster, 0));
        Row::new(&title, time(cluster)).beside(limit_name, time(limit), ratio, bar)
    };
    let peers = places.peers();
    let fastest = peers.min_by(|a, b| measured.median(*a, 0).total_cmp(&measured.median(*b, 0)));
    let mut rows = vec![
        row(Places::SHM, Places::EMBEDDED, None),
        row(Places::INSIDE, Places::SHM, None),
        row(Places::INSIDE, Places::EMBEDDED, None),
    ];
    rows.extend(fastest.map(|peer| row(Places::SHM, peer, Some(bar))));
    rows.extend(fastest.map(|peer| row(Places::INSIDE, peer, Some(bar))));
    if let Some(tcp) = places.tcp() {
        rows.extend(fastest.map(|peer| row(tcp, peer, Some(BAR_TCP))));
    }
    Ok(rows)
}

/// Writes that the mount answers before its cluster has them, as the mounts of both peers do, beside the faster peer.
fn answered_early(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let places = bench.clusters()?;
    let early = &places.writeback;
    let peers: Vec<&Place> = places.peers().map(|peer| &places.all[peer]).collect();
    let compared: Vec<&Place> = early.iter().chain(peers).collect();
    let sides = compared
        .iter()
        .map(|place| write_and_sync(bench, place))
        .collect::<Result<Vec<_>, _>>()?;
    let measured = interleave(bench.scale.few_rounds(), sides)?;
    let name = name.trim_start_matches("cluster: ");
    let time = |side| Quantity::ns(measured.median(side, 0));
    let fastest = (early.len()..compared.len())
        .min_by(|a, b| measured.median(*a, 0).total_cmp(&measured.median(*b, 0)));
    let bars = [2.0, BAR_TCP];
    let row = |(side, bar): (usize, f64)| {
        let row = Row::new(&format!("{name}, {}", compared[side].label), time(side));
        match fastest {
            Some(peer) => {
                let ratio = measured.ratio((peer, 0), (side, 0));
                row.beside(compared[peer].label, time(peer), ratio, Some(bar))
            }
            None => row,
        }
    };
    Ok((0..early.len()).zip(bars).map(row).collect())
}

/// The same of an operation that the kernel answers itself, beside the embedded mount.
fn cached<'a>(
    bench: &'a Bench,
    name: &str,
    side: impl Fn(&'a Place) -> Result<Side<'a>, Error>,
) -> Result<Vec<Row>, Error> {
    let places = &bench.clusters()?.all[..=Places::EMBEDDED];
    let sides = places.iter().map(side).collect::<Result<Vec<_>, _>>()?;
    let measured = interleave(bench.scale.few_rounds(), sides)?;
    let name = name.trim_start_matches("cluster: ");
    let time = |side| Quantity::ns(measured.median(side, 0));
    let embedded = Places::EMBEDDED;
    let row = |cluster: usize| {
        let title = format!("{name}, {}", places[cluster].label);
        let ratio = measured.ratio((embedded, 0), (cluster, 0));
        let row = Row::new(&title, time(cluster));
        row.beside(
            places[embedded].label,
            time(embedded),
            ratio,
            Some(BAR_CACHED),
        )
    };
    Ok(vec![row(Places::SHM), row(Places::INSIDE)])
}

/// A side that repeats an operation; its figure is the mean time of one, in ns. Peers take milliseconds for some, so rounds are long.
fn mean<'a>(bench: &Bench, operation: impl FnMut() -> Result<(), Error> + 'a) -> Side<'a> {
    let mut side = timed(5 * bench.scale.effort, 1, operation);
    Box::new(move || Ok(vec![side()?[MEAN]]))
}

fn write<'a>(bench: &Bench, place: &'a Place, syncs: bool) -> Result<Side<'a>, Error> {
    const SIZE: usize = 2048;
    let file = full_file(bench, place)?;
    let (data, length) = (bytes(SIZE), bench.scale.file_length);
    let mut random = Random::new(1);
    Ok(mean(bench, move || {
        let done = rustix::io::pwrite(&file, &data, random.offset(length, SIZE))?;
        whole(done, SIZE)?;
        if syncs {
            rustix::fs::fdatasync(&file)?;
        }
        Ok(())
    }))
}

/// The same, and syncs in each round, without being timed: what is answered early must not be sent in the turn of the next side.
fn write_and_sync<'a>(bench: &Bench, place: &'a Place) -> Result<Side<'a>, Error> {
    let mut write = write(bench, place, false)?;
    let file = place.open("data", OFlags::empty())?;
    Ok(Box::new(move || {
        let figures = write()?;
        rustix::fs::fdatasync(&file)?;
        Ok(figures)
    }))
}

fn read<'a>(bench: &Bench, place: &'a Place, flags: OFlags) -> Result<Side<'a>, Error> {
    let length = bench.scale.file_length;
    let (mut random, mut into) = (Random::new(2), Aligned([0; PAGE]));
    let written = full_file(bench, place)?;
    rustix::fs::fsync(&written)?;
    // The first read notes the access time: a mount of a cluster drops the pages of the version before when the file is opened.
    rustix::io::pread(&written, &mut into.0[..], 0)?;
    let file = place.open("data", flags)?;
    if !flags.contains(OFlags::DIRECT) {
        let mut piece = bytes(MIB);
        for offset in (0..length).step_by(MIB) {
            whole(rustix::io::pread(&file, &mut piece[..], offset)?, MIB)?;
        }
    }
    Ok(mean(bench, move || {
        let done = rustix::io::pread(&file, &mut into.0[..], random.offset(length, PAGE))?;
        black_box(&into);
        whole(done, PAGE)
    }))
}

/// Two threads that read a file past the page cache beside one, by each mount of Tako.
fn reads_of_two(bench: &Bench) -> Result<Vec<Row>, Error> {
    let places = &bench.clusters()?.all[..=Places::EMBEDDED];
    let mut rows = Vec::new();
    for kib in [4, 64] {
        let side = |place: &Place| {
            rustix::fs::fsync(full_file(bench, place)?)?;
            let file = place.open("data", OFlags::DIRECT)?;
            let size: usize = kib << 10;
            let last = bench.scale.file_length - size as u64;
            let buffers = [0, 1].map(|_| Mutex::new(Pages::new(size)));
            one_and_two(bench, move |thread, offset| {
                let mut buffer = buffers[thread].lock();
                let offset = offset.min(last);
                whole(rustix::io::pread(&file, buffer.bytes(), offset)?, size)
            })
        };
        let sides = places.iter().map(side).collect::<Result<Vec<_>, _>>()?;
        let measured = interleave(bench.scale.few_rounds(), sides)?;
        let name = |place: &Place| format!("{kib} KiB read by two threads, {}", place.label);
        let row = |(side, place)| scaling(&measured, side, &name(place), None);
        rows.extend(places.iter().enumerate().map(row));
    }
    Ok(rows)
}

fn stat<'a>(bench: &Bench, place: &'a Place) -> Result<Side<'a>, Error> {
    let file = place.open("examined", OFlags::empty())?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    Ok(mean(bench, move || {
        let basic = StatxFlags::BASIC_STATS;
        black_box(rustix::fs::statx(&file, "", flags, basic)?);
        Ok(())
    }))
}

/// Measures stat by name, where the kernel may keep the answer under a lease.
fn stat_cached<'a>(bench: &Bench, place: &'a Place) -> Result<Side<'a>, Error> {
    place.open("looked-at", OFlags::empty())?;
    Ok(mean(bench, move || {
        let found = rustix::fs::statat(&place.directory, "looked-at", AtFlags::empty())?;
        black_box(found);
        Ok(())
    }))
}

/// Reads and writes past the page cache at random offsets, by a mount that moves the data itself, beside one that does so in
/// messages.
fn one_sided(bench: &Bench) -> Result<Vec<Row>, Error> {
    let places = bench.clusters()?;
    let mut rows = Vec::new();
    for reads in [true, false] {
        for kib in [4, 16, 64, 256, 1024] {
            let side = |place: &Place| direct(bench, place, kib << 10, reads);
            let sides = places.by_side.iter().map(side);
            let sides = sides.collect::<Result<Vec<_>, Error>>()?;
            let measured = interleave(bench.scale.few_rounds(), sides)?;
            let what = if reads { "read" } else { "write" };
            let name = format!("{kib} KiB {what}, io=client");
            rows.push(measured.row(0, &name, "io=server", None));
        }
    }
    Ok(rows)
}

/// Each mount has a file of its own, so that no lease passes between them. The figure is the median time of one call, in ns.
fn direct(bench: &Bench, place: &Place, size: usize, reads: bool) -> Result<Side<'static>, Error> {
    let file = place.open(place.label, OFlags::empty())?;
    let length = bench.scale.file_length / 2;
    for offset in (0..length).step_by(MIB) {
        whole(rustix::io::pwrite(&file, &bytes(MIB), offset)?, MIB)?;
    }
    rustix::fs::fsync(&file)?;
    rustix::fs::fcntl_setfl(&file, OFlags::DIRECT)?;
    let (mut random, mut pages) = (Random::new(2), Pages::new(size));
    let operation = move || {
        let offset = random.offset(length, size);
        let done = match reads {
            true => rustix::io::pread(&file, pages.bytes(), offset)?,
            false => rustix::io::pwrite(&file, pages.bytes(), offset)?,
        };
        whole(done, size)
    };
    let mut side = timed(5 * bench.scale.effort, 1, operation);
    Ok(Box::new(move || Ok(vec![side()?[MEDIAN]])))
}

/// Least time of a request and its answer, by the transports of clusters.
fn ping(bench: &Bench) -> Result<Vec<Row>, Error> {
    let mut rows = fabric::ping::shm(bench, "shm ping")?;
    rows.extend(fabric::ping::tcp(bench, "tcp ping")?);
    Ok(rows)
}

/// Only the creating is timed.
fn create(place: &Place) -> Side<'_> {
    let names: Vec<String> = (0..FILES).map(|number| format!("new-{number}")).collect();
    Box::new(move || {
        let start = Instant::now();
        for name in &names {
            drop(rustix::fs::openat(&place.directory, name, CREATE, OWNER)?);
        }
        let took = start.elapsed();
        for name in &names {
            rustix::fs::unlinkat(&place.directory, name, AtFlags::empty())?;
        }
        Ok(vec![took.as_nanos() as f64 / FILES as f64])
    })
}

/// Overwrites the file from its beginning to its end, and syncs it.
fn write_through<'a>(bench: &Bench, place: &'a Place) -> Result<Side<'a>, Error> {
    let file = full_file(bench, place)?;
    let (piece, length) = (bytes(MIB), bench.scale.file_length);
    Ok(Box::new(move || {
        let start = Instant::now();
        for offset in (0..length).step_by(MIB) {
            whole(rustix::io::pwrite(&file, &piece, offset)?, MIB)?;
        }
        rustix::fs::fdatasync(&file)?;
        Ok(vec![
            start.elapsed().as_nanos() as f64 / (length / MIB as u64) as f64,
        ])
    }))
}

/// Reads the file from its beginning to its end, of which the page cache has nothing.
fn read_through<'a>(bench: &Bench, place: &'a Place) -> Result<Side<'a>, Error> {
    let file = full_file(bench, place)?;
    rustix::fs::fsync(&file)?;
    let (mut into, length) = (bytes(MIB), bench.scale.file_length);
    Ok(Box::new(move || {
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let start = Instant::now();
        for offset in (0..length).step_by(MIB) {
            whole(rustix::io::pread(&file, &mut into[..], offset)?, MIB)?;
        }
        Ok(vec![
            start.elapsed().as_nanos() as f64 / (length / MIB as u64) as f64,
        ])
    }))
}

fn full_file(bench: &Bench, place: &Place) -> Result<OwnedFd, Error> {
    let file = place.open("data", OFlags::empty())?;
    let piece = bytes(MIB);
    for offset in (0..bench.scale.file_length).step_by(MIB) {
        whole(rustix::io::pwrite(&file, &piece, offset)?, MIB)?;
    }
    Ok(file)
}
