//! Crashes of a pool that follows another one, and of one that rejoins.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use client::{FileSystem, Geometry};
use lab::call::System;
use lab::embedded::Embedded;
use lab::explorer::{Prepared, Recorder};
use lab::random::{Generator, Mix};
use lab::reachable::{Part, difference};
use lab::workloads::{POOL_LENGTH, preparation};
use pmem::{Moment, Region, Simulation};
use store::{CheckOptions, Defects, PoolOptions, Replica, Sequence, Store};

type Result<T> = std::result::Result<T, String>;

/// TAKO_SOAK multiplies the bounds by this.
fn factor() -> usize {
    if std::env::var_os("TAKO_SOAK").is_some() {
        20
    } else {
        1
    }
}

/// Images of one moment.
const IMAGES: usize = 5;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn options(defects: Defects) -> PoolOptions {
    PoolOptions {
        clock: store::Clock::Manual(Arc::default()),
        hold_freed: true,
        defects,
        ..PoolOptions::default()
    }
}

fn memory(bytes: &[u8]) -> Result<Region> {
    let region = Region::memory(bytes.len() as u64, false).map_err(text)?;
    region.write(0, bytes);
    Ok(region)
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.length() as usize];
    region.read(0, &mut bytes);
    bytes
}

/// A primary that works, and its image after each record.
struct Primary {
    system: Embedded,
    /// The store of the same system.
    store: Arc<Store>,
    /// It takes each record by itself, as soon as it is there.
    shadow: Replica,
    images: HashMap<u64, Region>,
}

impl Primary {
    /// Opens the pool; `shadow` is one with the same image.
    fn new(region: Region, shadow: Replica, epoch: u32) -> Result<Primary> {
        let store = Store::open_in_epoch(region, epoch, options(Defects::default()));
        let store = Arc::new(store.map_err(text)?);
        let mut primary = Primary {
            system: Embedded::new(FileSystem::of_store(store.clone())),
            store,
            shadow,
            images: HashMap::new(),
        };
        primary.look()?;
        Ok(primary)
    }

    fn store(&self) -> &Store {
        &self.store
    }

    /// Does some work. What fails, for want of space or of a name, has changed nothing.
    fn work(&mut self, generator: &mut Generator, count: usize) -> Result<()> {
        for _ in 0..count {
            let _ = self.system.apply(&generator.operation());
            self.look()?;
        }
        Ok(())
    }

    /// Keeps the images after the records that are new.
    fn look(&mut self) -> Result<()> {
        let keep = |shadow: &Replica| memory(&bytes_of(shadow.region()));
        self.images
            .insert(self.shadow.tail().number, keep(&self.shadow)?);
        while self.shadow.tail().number < self.store().volume().tail().number {
            let record = self.records(self.shadow.tail().number, 0)?;
            let result = self.shadow.ingest(&record).map_err(text)?;
            fetch(&self.store, &self.shadow, &result.missing, Part::Whole)?;
            self.images.insert(result.tail.number, keep(&self.shadow)?);
        }
        match difference(
            self.store().volume().region(),
            self.shadow.region(),
            Part::Whole,
        ) {
            None => Ok(()),
            Some(difference) => Err(format!("what follows closely differs: {difference}")),
        }
    }

    fn records(&self, from: u64, limit: usize) -> Result<Vec<u8>> {
        let mut records = Vec::new();
        self.store()
            .volume()
            .read_records(from, limit, &mut records)
            .ok_or("the primary does not hold the records")?;
        Ok(records)
    }
}

/// Copies ranges of the image, or their metadata.
fn fetch(
    primary: &Store,
    replica: &Replica,
    ranges: &[std::ops::Range<u64>],
    part: Part,
) -> Result<()> {
    for range in ranges {
        let mut start = range.start;
        while start < range.end {
            let (skipped, bytes) = match part {
                Part::Whole => {
                    let mut bytes = vec![0; (range.end - start) as usize];
                    primary
                        .volume()
                        .read_image(start, &mut bytes)
                        .map_err(text)?;
                    (0, bytes)
                }
                Part::Metadata => {
                    let read = store::read_metadata(primary.volume(), start..range.end, 64 << 10);
                    read.map_err(text)?
                }
            };
            replica.write_image(start + skipped, &bytes).map_err(text)?;
            start += skipped + bytes.len() as u64;
        }
    }
    Ok(())
}

/// Puts data where another party would: into the memory, and not flushed.
fn deliver(primary: &Store, replica: &Replica, ranges: &[std::ops::Range<u64>]) {
    let bases = [primary.volume().superblock(), *replica.superblock()].map(|it| it.image_offset);
    for range in ranges {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        primary
            .volume()
            .region()
            .read(bases[0] + range.start, &mut bytes);
        replica.region().write(bases[1] + range.start, &bytes);
    }
}

/// Brings a replica in sync to the primary's tail.
fn follow(primary: &Primary, replica: &mut Replica, part: Part) -> Result<()> {
    for _ in 0..1000 {
        let from = replica.tail().number;
        if from == primary.store().volume().tail().number {
            return Ok(());
        }
        let records = primary.records(from, usize::MAX)?;
        let result = match part {
            Part::Whole => replica.ingest(&records),
            Part::Metadata => replica.ingest_metadata(&records),
        };
        let result = result.map_err(text)?;
        deliver(primary.store(), replica, &result.missing);
    }
    Err("the replica does not get on".into())
}

/// Recovers images of a moment. `expected` returns the contents of a region with this tail.
fn inspect(
    moment: &Moment,
    seed: u64,
    defects: Defects,
    expected: &dyn Fn(Replica) -> Result<()>,
) -> Result<usize> {
    let mut count = 0;
    for image in moment.images(IMAGES, seed) {
        count += 1;
        let region = memory(&image)?;
        let replica = Replica::open(region, options(defects)).map_err(text)?;
        expected(replica)?;
    }
    Ok(count)
}

fn check(region: &Region, part: Part) -> Result<()> {
    let copy = memory(&bytes_of(region))?;
    let data = part == Part::Whole;
    let report = store::check(&copy, &CheckOptions { data }).map_err(text)?;
    if report.is_clean() {
        return Ok(());
    }
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    Err(format!("the check finds {findings:#?}"))
}

fn start(prepared: &Prepared) -> Result<(Primary, Vec<u8>)> {
    let bytes = prepared.image().to_vec();
    let shadow = Replica::open(memory(&bytes)?, options(Defects::default())).map_err(text)?;
    let epoch = shadow.tail().epoch + 1;
    Ok((Primary::new(memory(&bytes)?, shadow, epoch)?, bytes))
}

fn prepared() -> Prepared {
    Prepared::new(POOL_LENGTH, &Geometry::small(), &preparation()).expect("the pool is prepared")
}

/// A replica is crashed at each fence: it has a prefix of the records, and the image after the last of them.
fn crash_followers(
    prepared: &Prepared,
    seed: u64,
    mix: &Mix,
    part: Part,
    defects: Defects,
) -> Result<usize> {
    let (mut primary, bytes) = start(prepared)?;
    let mut generator = Generator::on(prepared.model(&Arc::default()), seed, mix);
    let simulation = Simulation::from_image(bytes);
    let recorder = Recorder::new(&simulation);
    let mut replica = Replica::open(simulation.region(), options(defects)).map_err(text)?;
    let mut count = 0;
    for round in 0..24 {
        primary.work(&mut generator, 1 + round % 7)?;
        let before = replica.tail().number;
        recorder.start(1);
        follow(&primary, &mut replica, part)?;
        let mut moments = recorder.take();
        let settled = simulation.moment();
        primary
            .store()
            .volume()
            .release_freed(replica.tail().number);
        let expected = |least: u64| {
            let images = &primary.images;
            move |replica: Replica| {
                let tail = replica.tail().number;
                let image = images.get(&tail).filter(|_| tail >= least);
                let image = image.ok_or_else(|| format!("the tail is {tail} of {least}"))?;
                match difference(image, replica.region(), part) {
                    None => check(replica.region(), part),
                    Some(difference) => Err(format!("with the tail {tail}, {difference}")),
                }
            }
        };
        for moment in moments.drain(..) {
            count += inspect(&moment, seed + round as u64, defects, &expected(before))?;
        }
        count += inspect(&settled, seed, defects, &expected(replica.tail().number))?;
        let last = primary.images.remove(&replica.tail().number);
        primary.images.clear();
        primary
            .images
            .extend(last.map(|image| (replica.tail().number, image)));
    }
    Ok(count)
}

#[test]
fn crashes_of_a_replica() {
    let (start, prepared) = (Instant::now(), prepared());
    for (what, mix, part) in [
        ("small", Mix::small(), Part::Whole),
        ("names", Mix::names(), Part::Whole),
        ("pieces", Mix::small_pieces(), Part::Whole),
        ("small", Mix::small(), Part::Metadata),
        ("names", Mix::names(), Part::Metadata),
    ] {
        let mut images = 0;
        for seed in 0..4 * factor() as u64 {
            let result = crash_followers(&prepared, seed, &mix, part, Defects::default());
            images += result.unwrap_or_else(|error| panic!("{what} {part:?} {seed}: {error}"));
        }
        let seconds = start.elapsed().as_secs_f32();
        println!("{what}, {part:?}: {images} images; {seconds:.1} s");
    }
}

#[test]
fn defects_of_a_replica_are_found() {
    let prepared = prepared();
    let none = Defects::default();
    for defects in [
        Defects {
            skip_record_flush: true,
            ..none
        },
        Defects {
            skip_record_fence: true,
            ..none
        },
        Defects {
            skip_data_fence: true,
            ..none
        },
        Defects {
            reclaim_without_flush: true,
            ..none
        },
    ] {
        let find = |seed| crash_followers(&prepared, seed, &Mix::small(), Part::Whole, defects);
        let found = (0..6).find_map(|seed| find(seed).err());
        assert!(found.is_some(), "{defects:?} goes unnoticed");
    }
}

/// Brings back a pool that has records behind `common` which the primary has not, from any point of an earlier attempt.
fn rejoin(back: &Back, replica: &mut Replica, primary: &Primary, common: Sequence) -> Result<()> {
    let whole = std::iter::once(0..replica.image_length()).collect();
    let touched = replica.touched_since(common.number);
    let ranges = touched.filter(|_| !back.as_a_whole).unwrap_or(whole);
    fetch(primary.store(), replica, &ranges, back.part)?;
    replica.rewind(common).map_err(text)?;
    while replica.tail().number < primary.store().volume().tail().number {
        let records = primary.records(replica.tail().number, usize::MAX)?;
        let result = match back.part {
            Part::Whole => replica.ingest_unverified(&records),
            Part::Metadata => replica.ingest_metadata(&records),
        };
        let missing = result.map_err(text)?.missing;
        fetch(primary.store(), replica, &missing, Part::Whole)?;
    }
    Ok(())
}

/// Manner in which a pool rejoins.
struct Back {
    part: Part,
    /// It fetches everything, not only what its records changed.
    as_a_whole: bool,
}

fn crash_rejoiner(prepared: &Prepared, seed: u64, mix: &Mix, back: &Back) -> Result<usize> {
    let (mut old, bytes) = start(prepared)?;
    let mut generator = Generator::on(prepared.model(&Arc::default()), seed, mix);
    let mut follower = Replica::open(memory(&bytes)?, options(Defects::default())).map_err(text)?;
    old.work(&mut generator, 10 + seed as usize % 7)?;
    follow(&old, &mut follower, Part::Whole)?;
    let common = follower.tail();
    // Changes that only the old primary has.
    old.work(&mut generator, 1 + seed as usize % 5)?;
    let crashed = match back.part {
        Part::Whole => bytes_of(old.store().volume().region()),
        Part::Metadata => {
            let start = memory(&bytes)?;
            let mut replica = Replica::open(start, options(Defects::default())).map_err(text)?;
            follow(&old, &mut replica, Part::Metadata)?;
            bytes_of(replica.region())
        }
    };
    let region = memory(&bytes_of(follower.region()))?;
    let mut primary = Primary::new(region, follower, common.epoch + 1 + seed as u32 % 2)?;
    primary.work(&mut generator, 1 + seed as usize % 9)?;
    let is_back = |replica: &Replica| {
        if replica.tail().number != primary.store().volume().tail().number {
            return Err(format!("the tail is {:?}", replica.tail()));
        }
        match difference(
            primary.store().volume().region(),
            replica.region(),
            back.part,
        ) {
            None => check(replica.region(), back.part),
            Some(difference) => Err(difference),
        }
    };
    let simulation = Simulation::from_image(crashed);
    let recorder = Recorder::new(&simulation);
    let mut replica =
        Replica::open(simulation.region(), options(Defects::default())).map_err(text)?;
    recorder.start(1);
    rejoin(back, &mut replica, &primary, common)?;
    is_back(&replica)?;
    let mut count = 0;
    for (index, moment) in recorder.take().into_iter().enumerate() {
        let again = |mut replica: Replica| {
            rejoin(back, &mut replica, &primary, common)?;
            is_back(&replica)
        };
        let result = inspect(&moment, seed, Defects::default(), &again);
        count += result.map_err(|error| format!("after a crash at fence {index}: {error}"))?;
    }
    let settled = simulation.moment();
    count += inspect(&settled, seed, Defects::default(), &|replica| {
        is_back(&replica)
    })?;
    // As an embedded pool, it is usable.
    let region = memory(&bytes_of(replica.region()))?;
    Store::open(region, options(Defects::default())).map_err(text)?;
    Ok(count)
}

#[test]
fn crashes_of_a_rejoiner() {
    let (start, prepared) = (Instant::now(), prepared());
    for (part, as_a_whole) in [
        (Part::Whole, false),
        (Part::Metadata, false),
        (Part::Metadata, true),
    ] {
        let (mut images, back) = (0, Back { part, as_a_whole });
        for (what, mix) in [("small", Mix::small()), ("names", Mix::names())] {
            for seed in 0..16 * factor() as u64 {
                let result = crash_rejoiner(&prepared, seed, &mix, &back);
                images += result.unwrap_or_else(|error| panic!("{what}, seed {seed}: {error}"));
            }
        }
        let seconds = start.elapsed().as_secs_f32();
        println!("rejoiners, {part:?}: {images} images; {seconds:.1} s");
    }
}
