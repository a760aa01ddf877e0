//! Crashes of a pool that follows another one, and of one that rejoins.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use client::{FileSystem, Geometry};
use lab::embedded::Embedded;
use lab::explorer::{Prepared, Recorder};
use lab::operation::System;
use lab::random::{Generator, Mix};
use lab::reachable::difference;
use lab::workloads::{POOL_LENGTH, preparation};
use pmem::{Moment, Region, Simulation};
use store::{CheckOptions, Defects, Options, Replica, Sequence, Store};

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

fn options(defects: Defects) -> Options {
    Options {
        clock: store::Clock::Manual(Arc::default()),
        hold_freed: true,
        defects,
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
    /// It takes each record by itself, as soon as it is there.
    shadow: Replica,
    images: HashMap<u64, Region>,
}

impl Primary {
    /// Opens the pool; `shadow` is one with the same image.
    fn new(region: Region, shadow: Replica, epoch: u32) -> Result<Primary> {
        let store = Store::open_in_epoch(region, epoch, options(Defects::default()));
        let mut primary = Primary {
            system: Embedded::new(FileSystem::of_store(store.map_err(text)?)),
            shadow,
            images: HashMap::new(),
        };
        primary.look()?;
        Ok(primary)
    }

    fn store(&self) -> &Store {
        self.system.file_system().store()
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
        while self.shadow.tail().number < self.store().tail().number {
            let record = self.records(self.shadow.tail().number, 0)?;
            let result = self.shadow.ingest(&record).map_err(text)?;
            fetch(
                self.system.file_system().store(),
                &self.shadow,
                &result.missing,
            )?;
            self.images.insert(result.tail.number, keep(&self.shadow)?);
        }
        match difference(self.store().region(), self.shadow.region()) {
            None => Ok(()),
            Some(difference) => Err(format!("what follows closely differs: {difference}")),
        }
    }

    fn records(&self, from: u64, limit: usize) -> Result<Vec<u8>> {
        let mut records = Vec::new();
        self.store()
            .read_records(from, limit, &mut records)
            .ok_or("the primary does not hold the records")?;
        Ok(records)
    }
}

/// Copies ranges of the image.
fn fetch(primary: &Store, replica: &Replica, ranges: &[std::ops::Range<u64>]) -> Result<()> {
    for range in ranges {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        primary.read_image(range.start, &mut bytes).map_err(text)?;
        replica.write_image(range.start, &bytes).map_err(text)?;
    }
    Ok(())
}

/// Puts data where another party would: into the memory, and not flushed.
fn deliver(primary: &Store, replica: &Replica, ranges: &[std::ops::Range<u64>]) {
    let bases = [primary.superblock(), replica.superblock()].map(|it| it.image_offset);
    for range in ranges {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        primary.region().read(bases[0] + range.start, &mut bytes);
        replica.region().write(bases[1] + range.start, &bytes);
    }
}

/// Brings a replica in sync to the primary's tail.
fn follow(primary: &Primary, replica: &mut Replica) -> Result<()> {
    for _ in 0..1000 {
        let from = replica.tail().number;
        if from == primary.store().tail().number {
            return Ok(());
        }
        let records = primary.records(from, usize::MAX)?;
        let result = replica.ingest(&records).map_err(text)?;
        deliver(primary.store(), replica, &result.missing);
    }
    Err("the replica does not get on".into())
}

/// Recovers images of a moment. `expected` says what must be in a region with this tail.
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

fn check(region: &Region) -> Result<()> {
    let copy = memory(&bytes_of(region))?;
    let report = store::check(&copy, &CheckOptions::default()).map_err(text)?;
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
fn crash_followers(prepared: &Prepared, seed: u64, mix: &Mix, defects: Defects) -> Result<usize> {
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
        follow(&primary, &mut replica)?;
        let mut moments = recorder.take();
        let settled = simulation.moment();
        primary.store().release_freed(replica.tail().number);
        let expected = |least: u64| {
            let images = &primary.images;
            move |replica: Replica| {
                let tail = replica.tail().number;
                let image = images.get(&tail).filter(|_| tail >= least);
                let image = image.ok_or_else(|| format!("the tail is {tail} of {least}"))?;
                match difference(image, replica.region()) {
                    None => check(replica.region()),
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
    for (what, mix) in [
        ("small", Mix::small()),
        ("names", Mix::names()),
        ("pieces", Mix::small_pieces()),
    ] {
        let mut images = 0;
        for seed in 0..4 * factor() as u64 {
            let result = crash_followers(&prepared, seed, &mix, Defects::default());
            images += result.unwrap_or_else(|error| panic!("{what}, seed {seed}: {error}"));
        }
        let seconds = start.elapsed().as_secs_f32();
        println!("{what}: {images} images; {seconds:.1} s");
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
        let find = |seed| crash_followers(&prepared, seed, &Mix::small(), defects);
        let found = (0..6).find_map(|seed| find(seed).err());
        assert!(found.is_some(), "{defects:?} goes unnoticed");
    }
}

/// Brings back a pool that has records behind `common` which the primary has not, from any point of an earlier attempt.
fn rejoin(replica: &mut Replica, primary: &Primary, common: Sequence) -> Result<()> {
    let whole = 0..replica.image_length();
    match replica.touched_since(common.number) {
        Some(ranges) => fetch(primary.store(), replica, &ranges)?,
        None => fetch(primary.store(), replica, std::slice::from_ref(&whole))?,
    }
    replica.rewind(common).map_err(text)?;
    let mut fetched = Vec::new();
    while replica.tail().number < primary.store().tail().number {
        let records = primary.records(replica.tail().number, usize::MAX)?;
        let result = replica.ingest_fetched(&records, &fetched).map_err(text)?;
        fetch(primary.store(), replica, &result.missing)?;
        fetched.extend(result.missing);
    }
    Ok(())
}

fn crash_rejoiner(prepared: &Prepared, seed: u64, mix: &Mix) -> Result<usize> {
    let (mut old, bytes) = start(prepared)?;
    let mut generator = Generator::on(prepared.model(&Arc::default()), seed, mix);
    let mut follower = Replica::open(memory(&bytes)?, options(Defects::default())).map_err(text)?;
    old.work(&mut generator, 10 + seed as usize % 7)?;
    follow(&old, &mut follower)?;
    let common = follower.tail();
    // What only the old primary has.
    old.work(&mut generator, 1 + seed as usize % 5)?;
    let crashed = bytes_of(old.store().region());
    let region = memory(&bytes_of(follower.region()))?;
    let mut primary = Primary::new(region, follower, common.epoch + 1 + seed as u32 % 2)?;
    primary.work(&mut generator, 1 + seed as usize % 9)?;
    let is_back = |replica: &Replica| {
        if replica.tail().number != primary.store().tail().number {
            return Err(format!("the tail is {:?}", replica.tail()));
        }
        match difference(primary.store().region(), replica.region()) {
            None => check(replica.region()),
            Some(difference) => Err(difference),
        }
    };
    let simulation = Simulation::from_image(crashed);
    let recorder = Recorder::new(&simulation);
    let mut replica =
        Replica::open(simulation.region(), options(Defects::default())).map_err(text)?;
    recorder.start(1);
    rejoin(&mut replica, &primary, common)?;
    is_back(&replica)?;
    let mut count = 0;
    for (index, moment) in recorder.take().into_iter().enumerate() {
        let again = |mut replica: Replica| {
            rejoin(&mut replica, &primary, common)?;
            is_back(&replica)
        };
        let result = inspect(&moment, seed, Defects::default(), &again);
        count += result.map_err(|error| format!("after a crash at fence {index}: {error}"))?;
    }
    let settled = simulation.moment();
    count += inspect(&settled, seed, Defects::default(), &|replica| {
        is_back(&replica)
    })?;
    // As an embedded pool, it can be used.
    let region = memory(&bytes_of(replica.region()))?;
    Store::open(region, options(Defects::default())).map_err(text)?;
    Ok(count)
}

#[test]
fn crashes_of_a_rejoiner() {
    let (start, prepared) = (Instant::now(), prepared());
    let mut images = 0;
    for (what, mix) in [("small", Mix::small()), ("names", Mix::names())] {
        for seed in 0..16 * factor() as u64 {
            let result = crash_rejoiner(&prepared, seed, &mix);
            images += result.unwrap_or_else(|error| panic!("{what}, seed {seed}: {error}"));
        }
    }
    let seconds = start.elapsed().as_secs_f32();
    println!("rejoiners: {images} images; {seconds:.1} s");
}
