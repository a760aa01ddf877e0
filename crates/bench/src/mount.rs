//! Opening a pool after a crash.

use std::sync::Arc;
use std::time::Instant;

use client::{FileSystem, OpenFlags, ROOT};
use pmem::Region;
use store::{Geometry, PoolOptions, Store};

use crate::error::whole;
use crate::harness::{Random, Side, interleave};
use crate::report::{Quantity, Row};
use crate::setup::{Bench, NEW_DIRECTORY, NEW_FILE, bytes};
use crate::{Error, Workload};

pub const WORKLOADS: [Workload; 1] = [Workload {
    name: "mount after a crash",
    measure,
}];

/// The longest that a mount may take.
const TIME_MAX_NS: f64 = 0.3e9;
/// Files in one directory.
const DIRECTORY_FILES: u64 = 1000;
const PAGE: usize = 4096;

/// Two pools, one with few files and one with many, that crash with the same amount in the ring.
fn measure(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let [few, many] = bench.scale.mount_files;
    let mut pools = [
        CrashedPool::new(bench, few)?,
        CrashedPool::new(bench, many)?,
    ];
    let sides = pools.iter_mut().map(|pool| -> Side<'_> {
        let round = || {
            let replayed = pool.ring_used;
            Ok(vec![pool.open_and_crash()?, replayed as f64])
        };
        Box::new(round)
    });
    let measured = interleave(bench.scale.rounds, sides.collect())?;
    let row =
        |name: &str, figure, unit| Row::new(name, Quantity::new(measured.median(1, figure), unit));
    let compared = |row: Row, figure, bar| {
        let limit = Quantity::new(measured.median(0, figure), row.tako.unit);
        row.beside(
            &format!("{few} files"),
            limit,
            measured.ratio((0, figure), (1, figure)),
            bar,
        )
    };
    let allowed = Quantity::ns(TIME_MAX_NS);
    Ok(vec![
        row(&format!("{name}, {many} files"), 0, "ns").beside(
            "allowed",
            allowed,
            allowed.value / measured.median(1, 0),
            Some(1.0),
        ),
        compared(row("  the same, beside fewer files", 0, "ns"), 0, Some(0.5)),
        compared(row("  ring replayed", 1, "bytes"), 1, None),
    ])
}

/// Opens the store in a region, which reports how full its ring is, and the file system in it.
fn open_pool(region: &Region) -> Result<(Arc<Store>, FileSystem), Error> {
    let store = Arc::new(Store::open(region.clone(), PoolOptions::default())?);
    Ok((store.clone(), FileSystem::of_store(store)))
}

/// A pool that a process left without closing it.
struct CrashedPool {
    region: Region,
    /// Number and length of the file that is overwritten to fill the ring.
    filler: u64,
    filler_length: u64,
    /// Bytes that are to be replayed.
    ring_used: u64,
}

impl CrashedPool {
    fn new(bench: &Bench, files: u64) -> Result<CrashedPool, Error> {
        let region = Region::memory(bench.scale.pool_length, false)?;
        let geometry = Geometry::for_length(region.length());
        FileSystem::format_region(&region, &geometry)?;
        let (store, file_system) = open_pool(&region)?;
        for first in (0..files).step_by(DIRECTORY_FILES as usize) {
            let name = format!("directory-{first}");
            let directory = file_system.create(ROOT, name.as_bytes(), &NEW_DIRECTORY)?;
            for number in first..files.min(first + DIRECTORY_FILES) {
                let name = format!("file-{number}");
                file_system.create(directory.number, name.as_bytes(), &NEW_FILE)?;
            }
        }
        let filler = file_system.create(ROOT, b"filler", &NEW_FILE)?.number;
        let filler_length = bench.scale.file_length / 8;
        let mut pool = CrashedPool {
            region,
            filler,
            filler_length,
            ring_used: 0,
        };
        pool.fill_ring(&store, &file_system)?;
        Ok(pool)
    }

    /// Time of opening, in ns. Then the ring is filled as before, and the pool crashes again: dropping a file system
    /// does not close it.
    fn open_and_crash(&mut self) -> Result<f64, Error> {
        let start = Instant::now();
        let (store, file_system) = open_pool(&self.region)?;
        let took = start.elapsed();
        self.fill_ring(&store, &file_system)?;
        Ok(took.as_nanos() as f64)
    }

    /// Overwrites until the ring holds nothing else, and then until it is about as full as it gets.
    fn fill_ring(&mut self, store: &Store, file_system: &FileSystem) -> Result<(), Error> {
        let ring_length = store.volume().superblock().ring_length;
        let file = file_system.open_number(self.filler, OpenFlags::READ_WRITE)?;
        // One page would not go into the ring.
        let pages = bytes(2 * PAGE);
        let mut random = Random::new(6);
        let (mut written, mut most) = (0, 0);
        while written < ring_length || store.volume().ring_used() < most / 16 * 15 {
            let offset = random.offset(self.filler_length, pages.len());
            whole(file.write_at(&pages, offset)?, pages.len())?;
            written += pages.len() as u64;
            most = most.max(store.volume().ring_used());
        }
        self.ring_used = store.volume().ring_used();
        Ok(())
    }
}
