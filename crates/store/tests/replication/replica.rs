//! A pool that follows another one.

use std::sync::Arc;

use crate::common::{Unit, create, new_inode, read_all};
use pmem::{Region, Simulation};
use store::{
    BLOCK, CheckOptions, Clock, Error, FileKind, Geometry, LiveInode, PoolOptions, RenameMode,
    Replica, Sequence, Store, Transaction, WriteAt,
};

const POOL: u64 = 8 << 20;

fn at(offset: u64) -> WriteAt {
    WriteAt::Offset(offset)
}

fn write(store: &Store, node: &LiveInode, offset: u64, data: &[u8]) {
    let mut transaction = Transaction::embedded();
    store
        .files()
        .write(&mut transaction, node, at(offset), data)
        .unwrap();
}

fn unlink(store: &Store, directory: &Arc<LiveInode>, name: &str) {
    let mut transaction = Transaction::embedded();
    store
        .names()
        .unlink(&mut transaction, directory, name.as_bytes())
        .unwrap();
}

/// Work of every sort.
fn work(store: &Store, round: u64) {
    let root = store.root();
    let file = create(store, &root, &format!("f{round}"));
    let byte = round as u8 + 1;
    write(store, &file, 0, &vec![byte; 300_000]);
    write(store, &file, 5000, &[byte; 100]);
    write(store, &file, 8192, &[byte; BLOCK]);
    write(store, &file, 70_000, &vec![!byte; 20_000]);
    let copy = create(store, &root, &format!("c{round}"));
    for (from, to) in [(&file, &copy), (&copy, &file)] {
        let shared = store
            .files()
            .share(&mut Transaction::embedded(), (from, 0), (to, 0), 100_000)
            .unwrap();
        assert_eq!(shared, 100_000);
        write(store, to, 12_000, &[byte ^ 7; 5000]);
        write(store, from, 40_960, &[byte ^ 9; BLOCK]);
    }
    if let Some(before) = round.checked_sub(3) {
        let name = format!("c{before}");
        unlink(store, &root, &name);
    }
    let directory = store
        .names()
        .create(
            &mut Transaction::embedded(),
            &root,
            format!("d{round}").as_bytes(),
            &new_inode(FileKind::Directory),
        )
        .unwrap();
    for index in 0..40 {
        create(store, &directory, &format!("n{index}"));
    }
    for index in 0..35 {
        unlink(store, &directory, &format!("n{index}"));
    }
    if let Some(before) = round.checked_sub(2) {
        unlink(store, &root, &format!("f{before}"));
    }
    if let Some(before) = round.checked_sub(1) {
        let (from, to) = (format!("f{before}"), format!("d{before}"));
        let directory = store.names().lookup(&root, to.as_bytes()).unwrap();
        store
            .names()
            .rename(
                &mut Transaction::embedded(),
                &root,
                from.as_bytes(),
                &directory,
                b"moved",
                RenameMode::Replace,
            )
            .unwrap();
        store
            .names()
            .rename(
                &mut Transaction::embedded(),
                &directory,
                b"moved",
                &root,
                from.as_bytes(),
                RenameMode::Replace,
            )
            .unwrap();
    }
}

fn assert_same_files(primary: &Store, region: &Region, epoch: u32) {
    let copy = crate::common::copy_of(region);
    let report = store::check(&copy, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    let store = Store::open_in_epoch(copy, epoch, PoolOptions::default()).unwrap();
    assert!(read_all(primary) == read_all(&store));
}

#[test]
fn a_replica_follows() {
    let mut unit = Unit::new(POOL, &Geometry::for_length(POOL));
    for round in 0..20 {
        work(&unit.primary, round);
        unit.follow();
    }
    assert_eq!(unit.replica.tail(), unit.primary.volume().tail());
    assert_same_files(&unit.primary, unit.replica.region(), 100);
    // After a crash it is where it was.
    let copy = crate::common::copy_of(unit.replica.region());
    let again = Replica::open(copy, PoolOptions::default()).unwrap();
    assert_eq!(again.tail(), unit.replica.tail());
}

#[test]
fn a_replica_with_a_shorter_ring_is_filled_and_follows() {
    let mut unit = Unit::new(POOL, &Geometry::for_length(POOL));
    work(&unit.primary, 0);
    let region = Region::memory(POOL, false).unwrap();
    Replica::format(&region, &unit.primary.volume().superblock(), 128 << 10).unwrap();
    let mut replica = Replica::open(region, PoolOptions::default()).unwrap();
    let mut bytes = vec![0; unit.primary.volume().image_length() as usize];
    unit.primary.volume().read_image(0, &mut bytes).unwrap();
    replica.write_image(0, &bytes).unwrap();
    replica.rewind(unit.primary.volume().tail()).unwrap();
    assert_eq!(replica.tail(), unit.primary.volume().tail());
    unit.replica = replica;
    for round in 1..10 {
        work(&unit.primary, round);
        unit.follow();
    }
    assert_same_files(&unit.primary, unit.replica.region(), 100);
    let small = Region::memory(1 << 20, false).unwrap();
    let refused = Replica::format(&small, &unit.primary.volume().superblock(), 64 << 10);
    assert!(matches!(refused, Err(Error::BadGeometry(_))));
}

#[test]
fn a_replica_takes_over_and_the_old_primary_rejoins() {
    let mut unit = Unit::new(POOL, &Geometry::for_length(POOL));
    work(&unit.primary, 0);
    unit.follow();
    let common = unit.replica.tail();
    // Records that only the old primary has.
    work(&unit.primary, 1);
    let mut old = Replica::from_store(unit.primary);
    assert!(old.tail() > common);
    let touched = old.touched_since(common.number).unwrap();
    assert!(!touched.is_empty());
    let epoch = common.epoch;
    let refused = unit.replica.into_store(epoch, PoolOptions::default());
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    let store = Store::open_in_epoch(unit.region, epoch + 3, PoolOptions::default()).unwrap();
    assert_eq!(store.volume().tail().epoch, epoch + 3);
    work(&store, 1);
    // It serves the earlier contents, too.
    let mut bytes = Vec::new();
    assert!(
        store
            .volume()
            .read_records(common.number, 1000, &mut bytes)
            .is_some()
    );
    for range in touched {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        store.volume().read_image(range.start, &mut bytes).unwrap();
        old.write_image(range.start, &bytes).unwrap();
    }
    old.rewind(common).unwrap();
    assert_eq!(old.tail(), common);
    let reopened =
        Replica::open(crate::common::copy_of(old.region()), PoolOptions::default()).unwrap();
    assert_eq!(reopened.tail(), common);
    let region = old.region().clone();
    let mut unit = Unit {
        primary: store,
        replica: old,
        region,
    };
    unit.follow_unverified();
    work(&unit.primary, 2);
    unit.follow();
    assert_eq!(unit.replica.tail(), unit.primary.volume().tail());
    assert_same_files(&unit.primary, unit.replica.region(), 100);
}

/// Lines that a primary has left in the caches, it flushes as a replica, before it reuses ring space.
#[test]
fn cached_lines_of_a_primary_are_flushed_when_it_follows() {
    let simulation = Simulation::new(1 << 20);
    Store::format(&simulation.region(), &Geometry::small()).unwrap();
    let region = crate::common::copy_of(&simulation.region());
    let options = PoolOptions {
        between_system_calls: true,
        ..PoolOptions::default()
    };
    let mut unit = Unit {
        replica: Replica::open(region.clone(), PoolOptions::default()).unwrap(),
        primary: Store::open(simulation.region(), options).unwrap(),
        region,
    };
    let file = create(&unit.primary, &unit.primary.root(), "file");
    let mut expected = vec![1; BLOCK];
    let write = |store: &Store, node, offset: usize, data: &[u8]| {
        let at = WriteAt::Offset(offset as u64);
        store
            .files()
            .write(&mut Transaction::embedded(), node, at, data)
            .unwrap();
    };
    write(&unit.primary, &file, 0, &expected);
    expected[1024..][..2048].fill(2);
    write(&unit.primary, &file, 1024, &expected[1024..][..2048]);
    unit.follow();
    let (number, epoch) = (file.number(), unit.replica.tail().epoch + 1);
    let mut unit = Unit {
        replica: Replica::from_store(unit.primary),
        primary: unit
            .replica
            .into_store(epoch, PoolOptions::default())
            .unwrap(),
        region: simulation.region(),
    };
    let other = create(&unit.primary, &unit.primary.root(), "other");
    for round in 0..2000_u64 {
        write(&unit.primary, &other, 0, &round.to_le_bytes());
        if round % 100 == 99 {
            unit.follow();
        }
    }
    for image in simulation.moment().images(20, 1) {
        let region = Simulation::from_image(image).region();
        let store = Store::open_in_epoch(region, epoch + 1, PoolOptions::default()).unwrap();
        let mut found = vec![0; BLOCK];
        let file = store.inodes().node(number).unwrap();
        store.files().read(&file, 0, &mut found).unwrap();
        assert!(found == expected);
    }
}

#[test]
fn invalid_records_are_refused() {
    let mut unit = Unit::new(POOL, &Geometry::for_length(POOL));
    unit.follow();
    let tail = unit.replica.tail();
    work(&unit.primary, 0);
    let mut records = Vec::new();
    let end = unit
        .primary
        .volume()
        .read_records(tail.number, usize::MAX, &mut records);
    assert_eq!(end, Some(unit.primary.volume().tail().number));
    let mut first = Vec::new();
    unit.primary
        .volume()
        .read_records(tail.number, 0, &mut first)
        .unwrap();
    assert!(first.len() < records.len() && records.starts_with(&first));
    let mut later = Vec::new();
    unit.primary
        .volume()
        .read_records(tail.number + first.len() as u64, 0, &mut later)
        .unwrap();
    let refused = |replica: &mut Replica, records: &[u8]| {
        let error = replica.ingest(records).unwrap_err();
        assert!(matches!(error, Error::BadRecord { .. }), "{error}");
        assert_eq!(replica.tail(), tail);
    };
    refused(&mut unit.replica, &later);
    refused(&mut unit.replica, &first[..first.len() - 1]);
    refused(&mut unit.replica, b"nothing");
    for at in 0..first.len() {
        let mut bad = first.clone();
        bad[at] ^= 1;
        let result = unit.replica.ingest(&bad);
        // The rest of the header is under no checksum where it has no meaning.
        if (24..32).contains(&at) || result.is_err() {
            continue;
        }
        panic!("a wrong byte at {at} is taken");
    }
    assert_eq!(unit.replica.tail(), tail);
    // Those before the bad one are taken.
    let mut both = [first.clone(), later].concat();
    let last = both.len() - 1;
    both[first.len() + 40] ^= 1;
    both.truncate(last + 1);
    assert!(unit.replica.ingest(&both).is_err());
    assert_eq!(unit.replica.tail().number, tail.number + first.len() as u64);
    unit.follow();
    assert_same_files(&unit.primary, unit.replica.region(), 100);
}

/// Records with right checksums and wrong contents: taken or refused, but nothing breaks.
#[test]
fn any_bytes_are_survived() {
    let unit = Unit::new(1 << 20, &Geometry::small());
    let before = crate::common::copy_of(unit.replica.region());
    let tail = unit.replica.tail().number;
    let file = create(&unit.primary, &unit.primary.root(), "a");
    unit.primary
        .files()
        .write(&mut Transaction::embedded(), &file, at(0), &[1; 9000])
        .unwrap();
    unit.primary
        .files()
        .write(&mut Transaction::embedded(), &file, at(0), &[2; 9 * BLOCK])
        .unwrap();
    unit.primary
        .files()
        .write(&mut Transaction::embedded(), &file, at(100), &[3; 100])
        .unwrap();
    unit.primary
        .files()
        .write(
            &mut Transaction::embedded(),
            &file,
            at(BLOCK as u64),
            &[4; BLOCK],
        )
        .unwrap();
    let mut records = Vec::new();
    unit.primary
        .volume()
        .read_records(tail, usize::MAX, &mut records)
        .unwrap();
    let mut state = 1u64;
    let mut random = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % bound
    };
    for round in 0..600 {
        let mut bad = records.clone();
        for _ in 0..=random(3) {
            let (position, value) = (random(bad.len()), random(256));
            bad[position] = value as u8;
        }
        seal(&mut bad);
        let copy = crate::common::copy_of(&before);
        let mut replica = Replica::open(copy.clone(), PoolOptions::default()).unwrap();
        let result = match round % 2 {
            0 => replica.ingest(&bad),
            _ => replica.ingest_unverified(&bad),
        };
        assert_eq!(result.map_or(replica.tail(), |it| it.tail), replica.tail());
        let _ = replica.touched_since(tail);
        let taken = replica.tail();
        drop(replica);
        let replica = Replica::open(copy, PoolOptions::default()).unwrap();
        assert_eq!(replica.tail(), taken);
    }
}

/// Makes the checksums of the headers right.
fn seal(mut records: &mut [u8]) {
    use store::format::record::{HEADER, RecordHeader, record_checksum};
    use zerocopy::FromBytes;
    while let Ok((header, _)) = RecordHeader::read_from_prefix(records) {
        let length = header.length as usize;
        if !(HEADER..=records.len()).contains(&length) {
            return;
        }
        let (record, behind) = records.split_at_mut(length);
        if let Some(crc) = record_checksum(&header, record) {
            record[4..8].copy_from_slice(&crc.to_le_bytes());
        }
        records = behind;
    }
}

#[test]
fn data_that_is_missing_is_named() {
    let mut unit = Unit::new(POOL, &Geometry::for_length(POOL));
    let file = create(&unit.primary, &unit.primary.root(), "a");
    unit.follow();
    let before = unit.replica.tail();
    unit.primary
        .files()
        .write(&mut Transaction::embedded(), &file, at(0), &[7; 5 * BLOCK])
        .unwrap();
    let mut records = Vec::new();
    unit.primary
        .volume()
        .read_records(before.number, usize::MAX, &mut records)
        .unwrap();
    let result = unit.replica.ingest(&records).unwrap();
    assert_eq!(result.tail, before);
    let missing: u64 = result
        .missing
        .iter()
        .map(|range| range.end - range.start)
        .sum();
    assert_eq!(missing, 5 * BLOCK as u64);
    // The primary overwrites a part in place; data fetched now is newer than the record that names it.
    unit.primary
        .files()
        .write(&mut Transaction::embedded(), &file, at(100), &[8; 50])
        .unwrap();
    crate::common::fetch(&unit.primary, &unit.replica, &result.missing);
    let result = unit.replica.ingest(&records).unwrap();
    assert_eq!(result.tail, before);
    assert_eq!(result.missing.len(), 1);
    assert_eq!(
        result.missing[0].end - result.missing[0].start,
        BLOCK as u64
    );
    records.clear();
    unit.primary
        .volume()
        .read_records(before.number, usize::MAX, &mut records)
        .unwrap();
    let result = unit.replica.ingest(&records).unwrap();
    assert_eq!(
        (result.tail, result.missing.len()),
        (unit.primary.volume().tail(), 0)
    );
    assert_same_files(&unit.primary, unit.replica.region(), 100);
}

#[test]
fn short_writes_into_shared_blocks_carry_their_data() {
    let mut unit = Unit::new(POOL, &Geometry::for_length(POOL));
    let (root, store) = (unit.primary.root(), &unit.primary);
    let (from, to) = (create(store, &root, "a"), create(store, &root, "b"));
    write(store, &from, 0, &[7; 3 * BLOCK]);
    let mut transaction = Transaction::embedded();
    let shared = store
        .files()
        .share(&mut transaction, (&from, 0), (&to, 0), 3 * BLOCK as u64);
    assert_eq!(shared.unwrap(), 3 * BLOCK as u64);
    unit.follow();
    let before = unit.replica.tail().number;
    // Parts of three shared blocks, 8 KiB together; then in place, before the replica has the first record.
    write(&unit.primary, &to, 100, &[8; 2 * BLOCK]);
    write(&unit.primary, &to, 200, &[9; 50]);
    let mut records = Vec::new();
    unit.primary
        .volume()
        .read_records(before, usize::MAX, &mut records)
        .unwrap();
    assert_eq!(unit.replica.ingest(&records).unwrap().missing, []);
    assert_same_files(&unit.primary, unit.replica.region(), 100);
}

#[test]
fn records_are_held_until_they_are_overwritten() {
    let mut unit = Unit::new(4 << 20, &Geometry::small());
    unit.follow();
    let file = create(&unit.primary, &unit.primary.root(), "a");
    let start = unit.primary.volume().tail().number;
    unit.primary
        .files()
        .write(&mut Transaction::embedded(), &file, at(0), b"some")
        .unwrap();
    unit.follow();
    let mut bytes = Vec::new();
    while unit.primary.volume().tail().number - start < 60 << 10 {
        unit.primary
            .files()
            .write(&mut Transaction::embedded(), &file, at(0), b"more")
            .unwrap();
        unit.follow();
        bytes.clear();
        assert!(
            unit.primary
                .volume()
                .read_records(start, 0, &mut bytes)
                .is_some()
        );
        assert!(unit.replica.read_records(start, 0, &mut bytes).is_some());
        assert!(unit.replica.touched_since(start).is_some());
    }
    // Not within a record, and not behind the end.
    assert_eq!(
        unit.primary
            .volume()
            .read_records(start + 64, 0, &mut bytes),
        None
    );
    assert_eq!(unit.replica.touched_since(start + 64), None);
    assert_eq!(unit.replica.touched_since(start + (1 << 20)), None);
    while unit.primary.volume().tail().number - start < 70 << 10 {
        unit.primary
            .files()
            .write(&mut Transaction::embedded(), &file, at(0), b"more")
            .unwrap();
        unit.follow();
    }
    assert_eq!(
        unit.primary.volume().read_records(start, 0, &mut bytes),
        None
    );
    assert_eq!(unit.replica.touched_since(start), None);
    let tail = unit.primary.volume().tail().number;
    assert_eq!(
        unit.primary.volume().read_records(tail, 0, &mut bytes),
        Some(tail)
    );
    assert_eq!(unit.replica.touched_since(tail), Some(Vec::new()));
}

#[test]
fn bounds_are_errors() {
    let mut unit = Unit::new(4 << 20, &Geometry::small());
    let length = unit.replica.image_length();
    for (offset, size) in [(length, 1), (u64::MAX, 1), (length - 1, 2), (0, length + 1)] {
        let mut bytes = vec![0; size as usize];
        assert!(unit.replica.write_image(offset, &bytes).is_err());
        assert!(unit.replica.read_image(offset, &mut bytes).is_err());
        assert!(
            unit.primary
                .volume()
                .read_image(offset, &mut bytes)
                .is_err()
        );
    }
    for (epoch, number) in [(0, 64), (1, 0), (1, 65), (1, 1 << 62), (1, u64::MAX - 63)] {
        let error = unit.replica.rewind(Sequence { epoch, number });
        assert!(matches!(error, Err(Error::InvalidArgument(_))));
    }
}

#[test]
fn freed_space_waits() {
    let region = Region::memory(4 << 20, false).unwrap();
    Store::format(&region, &Geometry::small()).unwrap();
    let options = PoolOptions {
        hold_freed: true,
        ..PoolOptions::default()
    };
    let store = Store::open(region, options).unwrap();
    let root = store.root();
    create(&store, &root, "keeps the leaf");
    let before = store.volume().statistics();
    let file = create(&store, &root, "a");
    store
        .files()
        .write(&mut Transaction::embedded(), &file, at(0), &[1; 16 * BLOCK])
        .unwrap();
    let with_file = store.volume().statistics();
    let freed_at = store.volume().tail().number;
    store
        .names()
        .unlink(&mut Transaction::embedded(), &root, b"a")
        .unwrap();
    assert_eq!(store.volume().statistics(), with_file);
    store.volume().release_freed(freed_at);
    assert_eq!(store.volume().statistics(), with_file);
    store.volume().release_freed(store.volume().tail().number);
    assert_eq!(store.volume().statistics(), before);
}

/// A clock an hour behind the one of the stored time stamps: by a record in the ring, or only in the image.
#[test]
fn time_stamps_do_not_go_back_when_a_replica_takes_over() {
    const HOUR_NS: i64 = 3_600_000_000_000;
    let behind = || Clock::Manual(Arc::new((Clock::System.now_ns() - HOUR_NS).into()));
    let options = || PoolOptions {
        clock: behind(),
        ..PoolOptions::default()
    };
    for has_records in [true, false] {
        let mut unit = Unit::new(POOL, &Geometry::small());
        let file = create(&unit.primary, &unit.primary.root(), "before");
        if has_records {
            write(&unit.primary, &file, 0, b"data");
        }
        let newest = unit.primary.inodes().attributes(&file).changed_ns;
        unit.follow();
        let tail = unit.replica.tail();
        let mut replica = unit.replica;
        if !has_records {
            let store = replica.into_store(tail.epoch + 1, options()).unwrap();
            store.close().unwrap();
            drop(store);
            replica = Replica::open(unit.region.clone(), PoolOptions::default()).unwrap();
        }
        let store = replica.into_store(tail.epoch + 2, options()).unwrap();
        let file = create(&store, &store.root(), "after");
        let stamped = store.inodes().attributes(&file);
        let all = [stamped.created_ns, stamped.modified_ns, stamped.changed_ns];
        assert!(all.iter().all(|time| *time >= newest), "{has_records}");
        // The clock continues from there.
        assert!(stamped.changed_ns < newest + HOUR_NS);
    }
}
