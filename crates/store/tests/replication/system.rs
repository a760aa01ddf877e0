//! The system directory, and replies in its files.

use std::sync::Arc;

use crate::common::{copy_of, create, new_inode};
use pmem::Region;
use store::{
    BLOCK, CheckOptions, Error, Fallocate, FileKind, Geometry, LiveInode, PoolOptions, ROOT,
    RenameMode, Reply, SYSTEM, Store, Transaction, WriteAt,
};

fn pool() -> (Region, Store) {
    let region = Region::memory(4 << 20, false).unwrap();
    Store::format(&region, &Geometry::small()).unwrap();
    let store = Store::open(region.clone(), PoolOptions::default()).unwrap();
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
    store
        .files()
        .write(
            &mut Transaction::embedded(),
            &file,
            WriteAt::Offset(0),
            b"some",
        )
        .unwrap();
    let directory = store
        .names()
        .create(
            &mut Transaction::embedded(),
            &system,
            b"grants",
            &new_inode(FileKind::Directory),
        )
        .unwrap();
    create(&store, &directory, "1");
    assert_eq!(
        store.names().lookup(&root, b"sessions").err(),
        Some(Error::NotFound)
    );
    assert_eq!(
        store.names().lookup(&system, b"..").unwrap().number(),
        SYSTEM
    );
    assert_eq!(
        store.names().lookup(&directory, b"..").unwrap().number(),
        SYSTEM
    );
    let below = store
        .names()
        .create(
            &mut Transaction::embedded(),
            &directory,
            b"below",
            &new_inode(FileKind::Directory),
        )
        .unwrap();
    store
        .names()
        .rename(
            &mut Transaction::embedded(),
            &directory,
            b"below",
            &system,
            b"moved",
            RenameMode::Replace,
        )
        .unwrap();
    assert_eq!(
        store.names().lookup(&below, b"..").unwrap().number(),
        SYSTEM
    );
    assert_clean(&region);
    drop(store);
    let store = Store::open(region.clone(), PoolOptions::default()).unwrap();
    let file = store.names().lookup(&store.system(), b"sessions").unwrap();
    let mut bytes = [0; 4];
    store.files().read(&file, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"some");
    assert_clean(&region);
}

/// The reply's bytes as they are after a crash now.
fn after_crash(region: &Region, offset: u64) -> [u8; 64] {
    assert_clean(region);
    let store = Store::open(copy_of(region), PoolOptions::default()).unwrap();
    let file = store.names().lookup(&store.system(), b"replies").unwrap();
    let mut bytes = [0; 64];
    store.files().read(&file, offset, &mut bytes).unwrap();
    // The whole block, so that its checksum is verified.
    let mut block = [0; BLOCK];
    store
        .files()
        .read(&file, offset / BLOCK as u64 * BLOCK as u64, &mut block)
        .unwrap();
    bytes
}

/// A reply at `offset` of the file, with all bytes equal to `byte`.
fn reply(file: &Arc<LiveInode>, offset: u64, byte: u8) -> Reply<'_> {
    Reply {
        file,
        offset,
        bytes: [byte; 64],
        inode_at: None,
        end_at: None,
    }
}

/// A file with room for replies.
fn replies(store: &Store, blocks: usize) -> Arc<LiveInode> {
    let file = create(store, &store.system(), "replies");
    let data = vec![9; blocks * BLOCK];
    store
        .files()
        .write(
            &mut Transaction::embedded(),
            &file,
            WriteAt::Offset(0),
            &data,
        )
        .unwrap();
    file
}

/// Records between two positions.
fn count_records(store: &Store, from: u64, to: u64) -> usize {
    let (mut at, mut count) = (from, 0);
    while at < to {
        at = store.volume().read_records(at, 0, &mut Vec::new()).unwrap();
        count += 1;
    }
    count
}

#[test]
fn the_record_of_a_change_carries_its_reply() {
    let (region, store) = pool();
    let (root, replies) = (store.root(), replies(&store, 2));
    let to_create = Reply {
        inode_at: Some(8),
        ..reply(&replies, 64, 1)
    };
    let before = store.volume().tail().number;
    let mut transaction = Transaction::with_reply(&to_create);
    let node = store
        .names()
        .create(&mut transaction, &root, b"a", &new_inode(FileKind::Regular))
        .unwrap();
    assert!(transaction.has_carried_reply());
    assert_eq!(transaction.position(), Some(store.volume().tail().number));
    let mut expected = [1; 64];
    expected[8..16].copy_from_slice(&node.number().to_le_bytes());
    let generation = store.inodes().attributes(&node).generation;
    expected[16..20].copy_from_slice(&generation.to_le_bytes());
    assert_eq!(after_crash(&region, 64), expected);
    assert_eq!(after_crash(&region, 128), [9; 64]);
    assert_eq!(
        count_records(&store, before, store.volume().tail().number),
        1
    );
    let to_write = Reply {
        end_at: Some(56),
        ..reply(&replies, BLOCK as u64, 2)
    };
    for length in [10, BLOCK, 3 * BLOCK + 5] {
        let mut transaction = Transaction::with_reply(&to_write);
        let data = vec![6; length];
        let written = store
            .files()
            .write(&mut transaction, &node, WriteAt::Offset(0), &data)
            .unwrap();
        assert!(transaction.has_carried_reply() && written.length == length);
        let mut expected = [2; 64];
        expected[56..].copy_from_slice(&(length as u64).to_le_bytes());
        assert_eq!(after_crash(&region, BLOCK as u64), expected);
    }
    let to_remove = reply(&replies, 192, 3);
    let mut transaction = Transaction::with_reply(&to_remove);
    store.names().unlink(&mut transaction, &root, b"a").unwrap();
    assert!(transaction.has_carried_reply());
    assert_eq!(after_crash(&region, 192), [3; 64]);
}

/// The last record of several carries the reply: without it the operation is repeated, which makes no difference.
#[test]
fn the_last_of_several_records_carries_the_reply() {
    let (region, store) = pool();
    let (root, replies) = (store.root(), replies(&store, 1));
    let (file, other) = (create(&store, &root, "a"), create(&store, &root, "b"));
    // Blocks of two files alternately, so that each is an extent.
    for block in 0..300u64 {
        for node in [&file, &other] {
            let at = WriteAt::Offset(block * BLOCK as u64);
            store
                .files()
                .write(&mut Transaction::embedded(), node, at, &[7; BLOCK])
                .unwrap();
        }
    }
    let punch = reply(&replies, 0, 4);
    let mut transaction = Transaction::with_reply(&punch);
    let before = store.volume().tail().number;
    store
        .files()
        .fallocate(
            &mut transaction,
            &file,
            Fallocate::PunchHole,
            0,
            300 * BLOCK as u64,
        )
        .unwrap();
    let after = store.volume().tail().number;
    assert!(count_records(&store, before, after) > 1);
    assert_eq!(transaction.position(), Some(after));
    assert!(transaction.has_carried_reply());
    assert_eq!(after_crash(&region, 0), [4; 64]);
    let mut last = before;
    while let Some(next) = store.volume().read_records(last, 0, &mut Vec::new()) {
        if next == after {
            break;
        }
        last = next;
    }
    let mut record = Vec::new();
    store.volume().read_records(last, 0, &mut record).unwrap();
    assert!(record.windows(64).any(|bytes| bytes == [4; 64]));
}

#[test]
fn a_reply_without_a_change_or_a_place_is_not_carried() {
    let (region, store) = pool();
    let (root, replies) = (store.root(), replies(&store, 1));
    create(&store, &root, "a");
    let new = new_inode(FileKind::Regular);
    let again = reply(&replies, 0, 1);
    let mut transaction = Transaction::with_reply(&again);
    let error = store
        .names()
        .create(&mut transaction, &root, b"a", &new)
        .err();
    assert_eq!(error, Some(Error::Exists));
    assert!(!transaction.has_carried_reply() && transaction.position().is_none());
    for (offset, inode_at, end_at) in [
        (BLOCK as u64 - 32, None, None),
        (BLOCK as u64, None, None),
        (0, Some(53), None),
        (0, None, Some(57)),
    ] {
        let name = format!("b{offset}{inode_at:?}{end_at:?}");
        let misplaced = Reply {
            inode_at,
            end_at,
            ..reply(&replies, offset, 1)
        };
        let mut transaction = Transaction::with_reply(&misplaced);
        store
            .names()
            .create(&mut transaction, &root, name.as_bytes(), &new)
            .unwrap();
        assert!(!transaction.has_carried_reply() && transaction.position().is_some());
    }
    assert_eq!(after_crash(&region, 0), [9; 64]);
}

/// A change with a reply that states its execution happens as a whole, or the reply is not there.
#[test]
fn a_whole_write_leaves_nothing_in_a_full_pool() {
    let (region, store) = pool();
    let (root, replies) = (store.root(), replies(&store, 1));
    let file = create(&store, &root, "a");
    let length = 4 * BLOCK;
    store
        .files()
        .write_whole(&mut Transaction::embedded(), &file, 0, &vec![1; length])
        .unwrap();
    let filler = create(&store, &root, "filler");
    let fill = |at| {
        let at = WriteAt::Offset(at);
        store
            .files()
            .write(&mut Transaction::embedded(), &filler, at, &[2; BLOCK])
    };
    let full = (0..).step_by(BLOCK).find_map(|at| fill(at).err());
    assert_eq!(full, Some(Error::NoSpace));
    let write = |data: &[u8]| {
        let reply = reply(&replies, 0, 1);
        let mut transaction = Transaction::with_reply(&reply);
        let result = store
            .files()
            .write(&mut transaction, &file, WriteAt::Offset(0), data);
        (result.err(), transaction.has_carried_reply())
    };
    assert_eq!(write(&vec![3; length]), (Some(Error::NoSpace), false));
    let (too_long, carried) = write(&vec![3; (1 << 20) + 1]);
    assert!(matches!(too_long, Some(Error::InvalidArgument(_))) && !carried);
    let mut bytes = vec![0; length];
    store.files().read(&file, 0, &mut bytes).unwrap();
    assert_eq!(bytes, vec![1; length]);
    assert_eq!(after_crash(&region, 0), [9; 64]);
    // Short data is changed in place.
    assert_eq!(write(&[3; BLOCK]), (None, true));
}

#[test]
fn threads_put_replies_into_one_file() {
    let (region, store) = pool();
    let replies = replies(&store, 2);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (store, replies) = (&store, &replies);
            scope.spawn(move || {
                let name = format!("t{thread}");
                let file = create(store, &store.system(), &name);
                for round in 0..100u8 {
                    // Two of the threads in each block.
                    let offset = u64::from(thread) * (BLOCK as u64 / 2);
                    let reply = reply(replies, offset, round);
                    let mut transaction = Transaction::with_reply(&reply);
                    let data = [round; 100];
                    store
                        .files()
                        .write(&mut transaction, &file, WriteAt::Offset(0), &data)
                        .unwrap();
                    assert!(transaction.has_carried_reply());
                    let end = transaction.position().unwrap();
                    assert!(end <= store.volume().tail().number);
                }
            });
        }
    });
    for thread in 0..4 {
        assert_eq!(after_crash(&region, thread * (BLOCK as u64 / 2)), [99; 64]);
    }
}
