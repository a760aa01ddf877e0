//! Pools for tests: the same bytes in every run.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use client::{Clock, FileSystem, Geometry, PoolOptions};
use pmem::Region;
use store::format::inode::Inode;
use store::format::placement::ImageLayout;
use store::format::superblock::{SUPERBLOCKS, Superblock};
use store::{CheckOptions, Defects, ROOT, Replica, SYSTEM};
use zerocopy::{FromZeros, IntoBytes};

use crate::call::{Answer, Call, System};
use crate::embedded::Embedded;
use crate::runner::Subject;

/// Makes an empty pool with an identity, hash key and times that are the same in every run.
pub fn format(region: &Region, geometry: &Geometry) -> Result<(), String> {
    FileSystem::format_region(region, geometry).map_err(|error| error.to_string())?;
    change_superblocks(region, |superblock| {
        superblock.pool = [1; 16];
        superblock.unit = [2; 16];
        superblock.hash_key = *b"the key of tests";
        superblock.created_ns = 0;
    });
    forget_times(region)
}

/// Sets the times of the root and the system directory to 0.
fn forget_times(region: &Region) -> Result<(), String> {
    let superblock = store::read_superblock(region).map_err(|error| error.to_string())?;
    let layout = ImageLayout::of(&superblock).ok_or("the pool has no layout")?;
    for number in [ROOT, SYSTEM] {
        let offset = superblock.image_offset + layout.inode(number);
        let mut inode = Inode::new_zeroed();
        region.read(offset, inode.as_mut_bytes());
        inode.modified_ns = 0;
        inode.changed_ns = 0;
        inode.accessed_ns = 0;
        inode.created_ns = 0;
        inode.seal();
        region.write_flushed(offset, inode.as_bytes());
    }
    region.fence();
    Ok(())
}

/// Makes a pool that can follow in the unit of another one, and has no contents. Its identity is no random number.
pub fn format_for_unit(region: &Region, other: &Region) -> Result<(), String> {
    let mut unit = Superblock::new_zeroed();
    other.read(SUPERBLOCKS[0], unit.as_mut_bytes());
    Replica::format(region, &unit, unit.ring_length).map_err(|error| error.to_string())?;
    change_superblocks(region, |superblock| superblock.pool = [3; 16]);
    Ok(())
}

fn change_superblocks(region: &Region, change: impl Fn(&mut Superblock)) {
    for offset in SUPERBLOCKS {
        let mut superblock = Superblock::new_zeroed();
        region.read(offset, superblock.as_mut_bytes());
        change(&mut superblock);
        superblock.crc = superblock.checksum();
        region.write_flushed(offset, superblock.as_bytes());
        region.fence();
    }
}

/// Options with a clock that only the test moves.
pub fn options(clock: &Arc<AtomicI64>, defects: Defects) -> PoolOptions {
    PoolOptions {
        clock: Clock::Manual(clock.clone()),
        defects,
        ..PoolOptions::default()
    }
}

/// Another region with the same bytes.
pub fn copy(region: &Region) -> Result<Region, String> {
    let length = region.length();
    let copy = Region::memory(length, false).map_err(|error| error.to_string())?;
    let mut memory = vec![0; length as usize];
    region.read(0, &mut memory);
    copy.write(0, &memory);
    Ok(copy)
}

/// A pool in memory that can be closed, killed and opened again.
pub struct Pool {
    region: Region,
    clock: Arc<AtomicI64>,
    open: Open,
    system: Option<Embedded>,
}

/// Makes a file system of the pool in a region.
pub type Open = fn(Region, PoolOptions) -> Result<FileSystem, client::Error>;

impl Pool {
    /// A new pool of `length` bytes.
    pub fn new(length: u64, geometry: &Geometry, clock: &Arc<AtomicI64>) -> Result<Pool, String> {
        Pool::opened_by(FileSystem::open_region, length, geometry, clock)
    }

    /// The same, opened in another way.
    pub fn opened_by(
        open: Open,
        length: u64,
        geometry: &Geometry,
        clock: &Arc<AtomicI64>,
    ) -> Result<Pool, String> {
        let region = Region::memory(length, false).map_err(|error| error.to_string())?;
        format(&region, geometry)?;
        let mut pool = Pool {
            region,
            clock: clock.clone(),
            open,
            system: None,
        };
        pool.open()?;
        Ok(pool)
    }

    /// The file system, while it is open.
    pub fn file_system(&self) -> Option<&FileSystem> {
        self.system.as_ref().map(Embedded::file_system)
    }

    fn open(&mut self) -> Result<(), String> {
        let options = options(&self.clock, Defects::default());
        let opened = (self.open)(self.region.clone(), options);
        let opened = opened.map_err(|error| format!("the pool does not open: {error}"))?;
        self.system = Some(Embedded::new(opened));
        Ok(())
    }
}

impl System for Pool {
    fn apply(&mut self, operation: &Call) -> Answer {
        match &mut self.system {
            Some(system) => system.apply(operation),
            None => Err(crate::call::Errno(libc::EIO)),
        }
    }
}

impl Subject for Pool {
    fn restart(&mut self, orderly: bool) -> Result<(), String> {
        let system = self.system.take();
        if !orderly {
            // A killed process does not even close its files.
            let mut memory = vec![0; self.region.length() as usize];
            self.region.read(0, &mut memory);
            drop(system);
            self.region.write(0, &memory);
        } else if let Some(system) = system {
            let file_system = system.file_system().clone();
            drop(system);
            file_system.close().map_err(|error| error.to_string())?;
        }
        self.open()
    }

    fn restarts(&self) -> bool {
        true
    }

    fn examine(&mut self) -> Result<(), String> {
        // On a copy: the check replays the ring, which must not change the pool itself.
        let copy = copy(&self.region)?;
        let report =
            store::check(&copy, &CheckOptions::default()).map_err(|error| error.to_string())?;
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        if findings.is_empty() {
            Ok(())
        } else {
            Err(format!("the check finds {findings:#?}"))
        }
    }
}
