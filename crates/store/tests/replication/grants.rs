//! Blocks that a client fills, and their way into a file.

use std::sync::Arc;

use crate::common::{Unit, copy_of, create, read_all};
use pmem::Region;
use store::{
    Adoption, BLOCK, CheckOptions, Error, Geometry, LiveInode, Mapped, PoolOptions, Store,
    Transaction, WriteAt,
};

const B: u64 = BLOCK as u64;

fn embedded() -> Transaction<'static> {
    Transaction::embedded()
}

/// CRC32C, bit by bit: as a client computes it.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}

fn assert_clean(region: &Region) {
    let report = store::check(&copy_of(region), &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// A client's part: data directly into the pools.
fn fill(unit: &Unit, granted: &[Mapped], at: u64, data: &[u8]) {
    for (index, part) in data.chunks(BLOCK).enumerate() {
        let at = at + index as u64 * B;
        let run = granted
            .iter()
            .find(|run| (run.file_offset..run.file_offset + run.length).contains(&at))
            .unwrap();
        let offset = run.image_offset + (at - run.file_offset);
        let base = unit.primary.volume().superblock().image_offset;
        unit.primary.volume().region().write(base + offset, part);
        unit.replica.write_image(offset, part).unwrap();
    }
}

fn data(seed: u8, blocks: usize) -> (Vec<u8>, Vec<u32>) {
    let bytes = (0..blocks * BLOCK).map(|at| seed ^ (at / 300) as u8);
    let bytes: Vec<u8> = bytes.collect();
    let crcs = bytes.chunks(BLOCK).map(crc32c).collect();
    (bytes, crcs)
}

fn read(store: &Store, node: &LiveInode) -> Vec<u8> {
    let mut bytes = vec![0; store.inodes().attributes(node).size as usize];
    store.files().read(node, 0, &mut bytes).unwrap();
    bytes
}

fn grant(unit: &Unit, blocks: u32) -> (Arc<LiveInode>, Vec<Mapped>) {
    let grant = create(&unit.primary, &unit.primary.system(), "grant");
    let granted = unit
        .primary
        .files()
        .reserve_extents(&mut embedded(), &grant, blocks)
        .unwrap();
    assert_eq!(
        granted.iter().map(|run| run.length).sum::<u64>(),
        u64::from(blocks) * B
    );
    (grant, granted)
}

#[test]
fn granted_blocks_become_a_part_of_a_file() {
    let mut unit = Unit::new(8 << 20, &Geometry::small());
    let file = create(&unit.primary, &unit.primary.root(), "a");
    unit.primary
        .files()
        .write(&mut embedded(), &file, WriteAt::Offset(0), &[1; 3 * BLOCK])
        .unwrap();
    let (grant, mut granted) = grant(&unit, 20);
    granted.extend(
        unit.primary
            .files()
            .reserve_extents(&mut embedded(), &grant, 4)
            .unwrap(),
    );
    unit.follow();
    let (bytes, crcs) = data(7, 6);
    fill(&unit, &granted, 18 * B, &bytes);
    let free = unit.primary.volume().statistics().blocks_free;
    let adoption = Adoption {
        offset: B,
        grant_offset: 18 * B,
        crcs: &crcs,
        size: 7 * B,
    };
    let number = unit
        .primary
        .files()
        .adopt(&mut embedded(), &file, &grant, &adoption)
        .unwrap();
    assert_eq!(unit.primary.inodes().attributes(&file).version, number);
    // Two blocks of the file were replaced.
    assert_eq!(unit.primary.volume().statistics().blocks_free, free + 2);
    let expected = [&[1; BLOCK][..], &bytes].concat();
    assert!(read(&unit.primary, &file) == expected);
    assert_clean(unit.primary.volume().region());
    // The replica has the data, and takes the record without asking for more.
    let mut records = Vec::new();
    let from = unit.replica.tail().number;
    unit.primary
        .volume()
        .read_records(from, usize::MAX, &mut records)
        .unwrap();
    let result = unit.replica.ingest(&records).unwrap();
    assert_eq!(
        (result.tail, result.missing),
        (unit.primary.volume().tail(), vec![])
    );
    assert_clean(unit.replica.region());
    let crashed = Store::open(
        copy_of(unit.primary.volume().region()),
        PoolOptions::default(),
    )
    .unwrap();
    assert!(read_all(&crashed) == read_all(&unit.primary));
    // The grant has them no more.
    let error = unit
        .primary
        .files()
        .adopt(&mut embedded(), &file, &grant, &adoption);
    assert!(matches!(error, Err(Error::InvalidArgument(_))));
    unit.primary
        .names()
        .unlink(&mut embedded(), &unit.primary.system(), b"grant")
        .unwrap();
    assert_eq!(
        unit.primary.volume().statistics().blocks_free,
        free + 2 + 18 + 1
    );
    unit.follow();
    assert_clean(unit.replica.region());
}

#[test]
fn invalid_adoptions_are_refused() {
    let unit = Unit::new(8 << 20, &Geometry::small());
    let store = &unit.primary;
    let file = create(store, &store.root(), "a");
    let (grant, granted) = grant(&unit, 8);
    let (bytes, crcs) = data(3, 2);
    fill(&unit, &granted, 0, &bytes);
    let right = Adoption {
        offset: 0,
        grant_offset: 0,
        crcs: &crcs,
        size: 2 * B,
    };
    let from = |grant_offset| Adoption {
        grant_offset,
        ..right
    };
    let to = |offset, size| Adoption {
        offset,
        size,
        ..right
    };
    let with = |crcs| Adoption { crcs, ..right };
    for adoption in [
        to(1, 2 * B),
        from(100),
        from(7 * B),
        to(1 << 62, 1 << 62),
        to(u64::MAX - B + 1, 2 * B),
        to(0, B),
        to(0, u64::MAX),
        with(&[]),
        with(&crcs[1..]),
        to(0, 2 * B - 1),
    ] {
        store
            .files()
            .adopt(&mut embedded(), &file, &grant, &adoption)
            .unwrap_err();
    }
    for target in [&file, &grant] {
        let adopted = store.files().adopt(&mut embedded(), &grant, target, &right);
        adopted.unwrap_err();
    }
    store
        .files()
        .reserve_extents(&mut embedded(), &grant, 0)
        .unwrap_err();
    assert_eq!(
        store
            .files()
            .reserve_extents(&mut embedded(), &grant, 1 << 30),
        Err(Error::NoSpace)
    );
    store
        .files()
        .adopt(&mut embedded(), &file, &grant, &right)
        .unwrap();
    store
        .files()
        .reserve_extents(&mut embedded(), &file, 1)
        .unwrap_err();
    assert_clean(store.volume().region());
}

#[test]
fn a_file_that_ends_within_the_last_block_is_zero_behind_its_end() {
    let unit = Unit::new(8 << 20, &Geometry::small());
    let store = &unit.primary;
    let file = create(store, &store.root(), "a");
    store
        .files()
        .write(&mut embedded(), &file, WriteAt::Offset(0), &[1; 2 * BLOCK])
        .unwrap();
    let (grant, granted) = grant(&unit, 8);
    let (mut bytes, _) = data(3, 2);
    bytes[2 * BLOCK - 10..].fill(0);
    fill(&unit, &granted, 2 * B, &bytes);
    let crcs: Vec<u32> = bytes.chunks(BLOCK).map(crc32c).collect();
    let adoption = Adoption {
        offset: 2 * B,
        grant_offset: 2 * B,
        crcs: &crcs,
        size: 4 * B - 10,
    };
    store
        .files()
        .adopt(&mut embedded(), &file, &grant, &adoption)
        .unwrap();
    assert_eq!(store.inodes().attributes(&file).size, 4 * B - 10);
    assert_clean(store.volume().region());
}

#[test]
fn holes_are_punched() {
    let unit = Unit::new(8 << 20, &Geometry::small());
    let store = &unit.primary;
    let file = create(store, &store.root(), "a");
    let free = store.volume().statistics().blocks_free;
    store
        .files()
        .write(&mut embedded(), &file, WriteAt::Offset(0), &[1; 10 * BLOCK])
        .unwrap();
    store.files().punch(&mut embedded(), &file, 2..5).unwrap();
    store
        .files()
        .punch(&mut embedded(), &file, 9..u64::MAX)
        .unwrap();
    assert_eq!(store.volume().statistics().blocks_free, free - 6);
    let mut expected = [1; 10 * BLOCK];
    expected[2 * BLOCK..5 * BLOCK].fill(0);
    expected[9 * BLOCK..].fill(0);
    assert!(read(store, &file) == expected);
    assert!(store.files().punch(&mut embedded(), &file, 3..3).is_err());
    assert_clean(store.volume().region());
    let (grant, _) = grant(&unit, 300);
    store
        .files()
        .punch(&mut embedded(), &grant, 0..299)
        .unwrap();
    assert_clean(store.volume().region());
}

#[test]
fn layouts_say_where_data_is() {
    let unit = Unit::new(8 << 20, &Geometry::small());
    let store = &unit.primary;
    let file = create(store, &store.root(), "a");
    store
        .files()
        .write(&mut embedded(), &file, WriteAt::Offset(0), &[1; 4 * BLOCK])
        .unwrap();
    store
        .files()
        .write(&mut embedded(), &file, WriteAt::Offset(6 * B), &[2; 5000])
        .unwrap();
    let layout = store.files().layout(&file, 100, u64::MAX).unwrap();
    let attributes = store.inodes().attributes(&file);
    assert_eq!(
        (layout.version, layout.size),
        (attributes.version, 6 * B + 5000)
    );
    let mut word = [0; 8];
    store
        .volume()
        .read_image(layout.version_offset, &mut word)
        .unwrap();
    assert_eq!(u64::from_le_bytes(word), layout.version);
    let ranges: Vec<_> = layout
        .mapped
        .iter()
        .map(|it| (it.file_offset, it.length))
        .collect();
    assert_eq!(ranges, [(100, 4 * B - 100), (6 * B, 5000)]);
    for (mapped, byte) in layout.mapped.iter().zip([1, 2]) {
        let mut bytes = vec![0; mapped.length as usize];
        store
            .volume()
            .read_image(mapped.image_offset, &mut bytes)
            .unwrap();
        assert!(bytes.iter().all(|found| *found == byte));
    }
    let [one, two, three, four, five, six] = layout.checksums[..] else {
        panic!("there are six blocks: {:?}", layout.checksums);
    };
    assert_eq!([one; 3], [two, three, four]);
    assert!(one != five && five != six);
    assert_eq!(
        store.files().layout(&file, 4 * B, 2 * B).unwrap().mapped,
        []
    );
    assert_eq!(
        store
            .files()
            .layout(&file, u64::MAX, u64::MAX)
            .unwrap()
            .mapped,
        []
    );
    assert!(store.files().layout(&store.root(), 0, 1).is_err());
}
