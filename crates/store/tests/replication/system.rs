//! The system directory, and riders to its files.

use crate::common::{copy_of, create, new_inode};
use pmem::Region;
use store::{
    BLOCK, CheckOptions, Error, FileKind, Geometry, Options, ROOT, RenameMode, Rider, SYSTEM,
    Store, WriteAt,
};

fn pool() -> (Region, Store) {
    let region = Region::memory(4 << 20, false).unwrap();
    Store::format(&region, &Geometry::small()).unwrap();
    let store = Store::open(region.clone(), Options::default()).unwrap();
    (region, store)
}

fn assert_clean(region: &Region) {
    let report = store::check(&copy_of(region), &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn no_path_leads_to_the_system_directory() {
    let (region, store) = pool();
    let (root, system) = (store.root(), store.system());
    assert_eq!((root.number(), system.number()), (ROOT, SYSTEM));
    let file = create(&store, &system, "sessions");
    store.write(&file, WriteAt::Offset(0), b"some").unwrap();
    let directory = store
        .create(&system, b"grants", &new_inode(FileKind::Directory))
        .unwrap();
    create(&store, &directory, "1");
    assert_eq!(
        store.lookup(&root, b"sessions").err(),
        Some(Error::NotFound)
    );
    assert_eq!(store.lookup(&system, b"..").unwrap().number(), SYSTEM);
    assert_eq!(store.lookup(&directory, b"..").unwrap().number(), SYSTEM);
    let below = store
        .create(&directory, b"below", &new_inode(FileKind::Directory))
        .unwrap();
    store
        .rename(&directory, b"below", &system, b"moved", RenameMode::Replace)
        .unwrap();
    assert_eq!(store.lookup(&below, b"..").unwrap().number(), SYSTEM);
    assert_clean(&region);
    drop(store);
    let store = Store::open(region.clone(), Options::default()).unwrap();
    let file = store.lookup(&store.system(), b"sessions").unwrap();
    let mut bytes = [0; 4];
    store.read(&file, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"some");
    assert_clean(&region);
}

/// The rider's bytes as they are after a crash now.
fn after_crash(region: &Region, offset: u64) -> [u8; 64] {
    assert_clean(region);
    let store = Store::open(copy_of(region), Options::default()).unwrap();
    let file = store.lookup(&store.system(), b"replies").unwrap();
    let mut bytes = [0; 64];
    store.read(&file, offset, &mut bytes).unwrap();
    // The whole block, so that its checksum is looked at.
    let mut block = [0; BLOCK];
    store
        .read(&file, offset / BLOCK as u64 * BLOCK as u64, &mut block)
        .unwrap();
    bytes
}

#[test]
fn the_next_change_carries_the_rider() {
    let (region, store) = pool();
    let (root, replies) = (store.root(), create(&store, &store.system(), "replies"));
    store
        .write(&replies, WriteAt::Offset(0), &[9; 2 * BLOCK])
        .unwrap();
    let rider = |offset, byte| Rider {
        node: &replies,
        offset,
        bytes: [byte; 64],
        inode_at: Some(8),
    };
    let before = store.tail();
    let (node, carried) = store.with_rider(rider(64, 1), || create(&store, &root, "a"));
    assert!(carried);
    let mut expected = [1; 64];
    expected[8..16].copy_from_slice(&node.number().to_le_bytes());
    let generation = store.attributes(&node).generation;
    expected[16..20].copy_from_slice(&generation.to_le_bytes());
    assert_eq!(after_crash(&region, 64), expected);
    assert_eq!(after_crash(&region, 128), [9; 64]);
    let mut record = Vec::new();
    let end = store.read_records(before.number, 0, &mut record);
    assert_eq!(end, Some(store.tail().number), "it is one record");
    // No inode is taken, and the write would else take the short way.
    store.write(&node, WriteAt::Offset(0), &[5; BLOCK]).unwrap();
    let write = |offset, byte: u8| store.write(&node, WriteAt::Offset(offset), &[byte; 10]);
    let (result, carried) = store.with_rider(rider(BLOCK as u64, 2), || write(0, 6));
    assert!(carried && result.is_ok());
    assert_eq!(after_crash(&region, BLOCK as u64), [2; 64]);
    let (_, carried) = store.with_rider(rider(0, 3), || {
        // The first change only.
        write(0, 7).unwrap();
        store.write(&replies, WriteAt::Offset(0), &[4; 64]).unwrap();
    });
    assert!(carried);
    assert_eq!(after_crash(&region, 0), [4; 64]);
}

#[test]
fn a_rider_without_a_change_or_a_place_is_not_carried() {
    let (region, store) = pool();
    let (root, replies) = (store.root(), create(&store, &store.system(), "replies"));
    store
        .write(&replies, WriteAt::Offset(0), &[9; BLOCK])
        .unwrap();
    let rider = |offset, inode_at| Rider {
        node: &replies,
        offset,
        bytes: [1; 64],
        inode_at,
    };
    create(&store, &root, "a");
    let again = || {
        store
            .create(&root, b"a", &new_inode(FileKind::Regular))
            .err()
    };
    let (error, carried) = store.with_rider(rider(0, None), again);
    assert_eq!((error, carried), (Some(Error::Exists), false));
    for (offset, inode_at) in [
        (BLOCK as u64 - 32, None),
        (BLOCK as u64, None),
        (0, Some(53)),
    ] {
        let name = format!("b{offset}");
        let make = || create(&store, &root, &name);
        assert!(!store.with_rider(rider(offset, inode_at), make).1);
    }
    // Nothing is left for the next change.
    create(&store, &root, "c");
    assert_eq!(after_crash(&region, 0), [9; 64]);
}

/// What a rider answers for happens whole, or the rider is not there.
#[test]
fn a_whole_write_leaves_nothing_in_a_full_pool() {
    let (region, store) = pool();
    let (root, replies) = (store.root(), create(&store, &store.system(), "replies"));
    store
        .write(&replies, WriteAt::Offset(0), &[9; BLOCK])
        .unwrap();
    let file = create(&store, &root, "a");
    let length = 4 * BLOCK;
    store.write_whole(&file, 0, &vec![1; length]).unwrap();
    let filler = create(&store, &root, "filler");
    let fill = |at| store.write(&filler, WriteAt::Offset(at), &[2; BLOCK]);
    let full = (0..).step_by(BLOCK).find_map(|at| fill(at).err());
    assert_eq!(full, Some(Error::NoSpace));
    let write = |data: &[u8]| {
        let rider = Rider {
            node: &replies,
            offset: 0,
            bytes: [1; 64],
            inode_at: None,
        };
        store.with_rider(rider, || store.write_whole(&file, 0, data).err())
    };
    assert_eq!(write(&vec![3; length]), (Some(Error::NoSpace), false));
    let (too_long, carried) = write(&vec![3; (1 << 20) + 1]);
    assert!(matches!(too_long, Some(Error::InvalidArgument(_))) && !carried);
    let mut bytes = vec![0; length];
    store.read(&file, 0, &mut bytes).unwrap();
    assert_eq!(bytes, vec![1; length]);
    assert_eq!(after_crash(&region, 0), [9; 64]);
    // What is short enough is changed in place.
    assert_eq!(write(&[3; BLOCK]), (None, true));
}

#[test]
fn threads_carry_riders_to_one_file() {
    let (region, store) = pool();
    let replies = create(&store, &store.system(), "replies");
    store
        .write(&replies, WriteAt::Offset(0), &[9; BLOCK])
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (store, replies) = (&store, &replies);
            scope.spawn(move || {
                let name = format!("t{thread}");
                let file = create(store, &store.root(), &name);
                for round in 0..100u8 {
                    let rider = Rider {
                        node: replies,
                        offset: u64::from(thread) * 64,
                        bytes: [round; 64],
                        inode_at: None,
                    };
                    let write = || {
                        store
                            .write(&file, WriteAt::Offset(0), &[round; 100])
                            .unwrap()
                    };
                    assert!(store.with_rider(rider, write).1);
                }
            });
        }
    });
    for thread in 0..4 {
        assert_eq!(after_crash(&region, thread * 64), [99; 64]);
    }
}
