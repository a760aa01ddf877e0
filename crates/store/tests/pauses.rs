//! How long an operation on a huge file can delay others: by counts, since times say little on a busy machine.

use std::sync::Arc;
use std::thread;

use pmem::Region;
use store::format::record::{HEADER, RecordHeader};
use store::{
    Fallocate, FileKind, Geometry, LiveInode, NewInode, PoolOptions, RenameMode, SetAttributes,
    Store, Transaction,
};
use zerocopy::FromBytes;

/// The context of a change without a reply.
fn embedded() -> Transaction<'static> {
    Transaction::embedded()
}

const BLOCK: u64 = store::BLOCK as u64;
/// A later operation waits for a record of so many bytes at most.
const RECORD_MAX: u64 = 64 << 10;
const FILE: NewInode<'static> = NewInode::new(FileKind::Regular, 0o600);
const KEEP: Fallocate = Fallocate::Allocate { keep_size: false };

/// A pool in memory, of which only written parts are accessed, with a ring that holds all records of a test.
fn open(length: u64) -> Store {
    let region = Region::memory(length, false).unwrap();
    let geometry = Geometry {
        ring_length: 64 << 20,
        ..Geometry::for_length(length)
    };
    Store::format(&region, &geometry).unwrap();
    Store::open(region, PoolOptions::default()).unwrap()
}

/// The lengths of the records that `work` makes, in bytes.
fn records(store: &Store, work: impl FnOnce()) -> Vec<u64> {
    let mut at = store.volume().tail().number;
    work();
    let mut lengths = Vec::new();
    while at < store.volume().tail().number {
        let mut bytes = Vec::new();
        let end = store.volume().read_records(at, HEADER, &mut bytes).unwrap();
        let header = RecordHeader::read_from_prefix(&bytes).unwrap().0;
        assert_eq!(u64::from(header.length), end - at);
        lengths.push(end - at);
        at = end;
    }
    lengths
}

/// A file with holes at every second block, so that each block is an extent.
fn sieve(store: &Store, name: &[u8], extents: u64) -> Arc<LiveInode> {
    let file = store
        .names()
        .create(&mut embedded(), &store.root(), name, &FILE)
        .unwrap();
    store
        .files()
        .fallocate(&mut embedded(), &file, KEEP, 0, 2 * extents * BLOCK)
        .unwrap();
    for index in 0..extents {
        let at = 2 * index * BLOCK;
        store
            .files()
            .fallocate(&mut embedded(), &file, Fallocate::PunchHole, at, BLOCK)
            .unwrap();
    }
    file
}

/// An operation on a huge file; another file exists to replace it.
type Deed = (&'static str, fn(&Store, &Arc<LiveInode>));

const DEEDS: [Deed; 5] = [
    ("unlink", |store, _| {
        store
            .names()
            .unlink(&mut embedded(), &store.root(), b"huge")
            .unwrap()
    }),
    ("replace", |store, _| {
        let root = store.root();
        let mode = RenameMode::Replace;
        store
            .names()
            .rename(&mut embedded(), &root, b"other", &root, b"huge", mode)
            .unwrap();
    }),
    ("truncate", |store, file| {
        let size = Some(5000);
        let change = SetAttributes {
            size,
            ..SetAttributes::default()
        };
        store
            .inodes()
            .set_attributes(&mut embedded(), file, &change)
            .unwrap();
    }),
    ("punch", |store, file| {
        let size = store.inodes().attributes(file).size;
        store
            .files()
            .fallocate(&mut embedded(), file, Fallocate::PunchHole, 0, size)
            .unwrap();
    }),
    ("zero", |store, file| {
        let (size, mode) = (
            store.inodes().attributes(file).size,
            Fallocate::ZeroRange { keep_size: true },
        );
        store
            .files()
            .fallocate(&mut embedded(), file, mode, 0, size)
            .unwrap();
    }),
];

#[test]
fn operations_on_a_huge_file_use_short_records() {
    let dense = 8 << 30;
    for (what, deed) in DEEDS {
        let store = open(9 << 30);
        let free = store.volume().statistics().blocks_free;
        store
            .names()
            .create(&mut embedded(), &store.root(), b"other", &FILE)
            .unwrap();
        let file = store
            .names()
            .create(&mut embedded(), &store.root(), b"huge", &FILE)
            .unwrap();
        let made = records(&store, || {
            store
                .files()
                .fallocate(&mut embedded(), &file, KEEP, 0, dense)
                .unwrap()
        });
        let done = records(&store, || deed(&store, &file));
        for (what, lengths) in [("allocate", made), (what, done)] {
            let longest = lengths.iter().max().unwrap();
            assert!(*longest <= RECORD_MAX, "{what}: {longest} bytes");
            assert!(lengths.len() >= 64, "{what}: {} records", lengths.len());
        }
        if what != "zero" {
            assert!(
                free - store.volume().statistics().blocks_free <= 4,
                "{what}"
            );
        }
    }
    for (what, deed) in DEEDS {
        let store = open(1 << 30);
        store
            .names()
            .create(&mut embedded(), &store.root(), b"other", &FILE)
            .unwrap();
        let file = sieve(&store, b"huge", 20_000);
        let longest = records(&store, || deed(&store, &file)).into_iter().max();
        assert!(longest.unwrap() <= RECORD_MAX, "{what}: {longest:?} bytes");
    }
}

/// Nor does it depend on how many extents it has.
#[test]
fn a_file_of_a_million_extents_is_removed_in_short_records() {
    let store = open(9 << 30);
    let free = store.volume().statistics().blocks_free;
    sieve(&store, b"huge", 1_000_000);
    let lengths = records(&store, || {
        store
            .names()
            .unlink(&mut embedded(), &store.root(), b"huge")
            .unwrap()
    });
    let longest = lengths.iter().max().unwrap();
    assert!(*longest <= RECORD_MAX, "{longest} bytes");
    assert!(free - store.volume().statistics().blocks_free <= 4);
}

/// In a huge directory each name comes and goes by one record, whatever becomes of leaves and nodes.
#[test]
fn names_in_a_huge_directory_come_and_go_by_one_short_record_each() {
    const NAMES: usize = 60_000;
    let store = open(1 << 30);
    let new = NewInode::new(FileKind::Directory, 0o700);
    let directory = store
        .names()
        .create(&mut embedded(), &store.root(), b"huge", &new)
        .unwrap();
    let name = |number: usize| format!("a-name-of-some-length-{number:08}").into_bytes();
    let added = records(&store, || {
        (0..NAMES).for_each(|number| {
            store
                .names()
                .create(&mut embedded(), &directory, &name(number), &FILE)
                .unwrap();
        });
    });
    let removed = records(&store, || {
        (0..NAMES).for_each(|number| {
            store
                .names()
                .unlink(&mut embedded(), &directory, &name(number))
                .unwrap()
        });
    });
    for (what, lengths) in [("create", added), ("unlink", removed)] {
        let longest = lengths.iter().max().unwrap();
        assert_eq!(lengths.len(), NAMES, "{what}");
        assert!(*longest <= RECORD_MAX / 4, "{what}: {longest} bytes");
    }
    let emptied = records(&store, || {
        store
            .names()
            .remove_directory(&mut embedded(), &store.root(), b"huge")
            .unwrap();
    });
    assert!(emptied.iter().max().unwrap() <= &RECORD_MAX);
}

/// Others do not wait for the whole of a file to be freed, not even in the same directory.
#[test]
fn a_directory_is_not_locked_while_a_huge_file_in_it_is_freed() {
    let store = open(1 << 30);
    for (what, deed) in &DEEDS[..2] {
        let was_between = (0..50).any(|attempt| {
            let _ = store
                .names()
                .create(&mut embedded(), &store.root(), b"other", &FILE);
            sieve(&store, b"huge", 20_000);
            let before = store.volume().tail().number;
            let name = format!("{what}-{attempt}");
            thread::scope(|scope| {
                let removing = scope.spawn(|| deed(&store, &store.root()));
                // The name goes first.
                while store.volume().tail().number == before {
                    std::hint::spin_loop();
                }
                store
                    .names()
                    .create(&mut embedded(), &store.root(), name.as_bytes(), &FILE)
                    .unwrap();
                let free = store.volume().statistics().blocks_free;
                removing.join().unwrap();
                // The rest of 20 000 blocks beyond a record's were still to be freed.
                let was_between = store.volume().statistics().blocks_free > free + 1000;
                let _ = store
                    .names()
                    .unlink(&mut embedded(), &store.root(), b"huge");
                was_between
            })
        });
        assert!(was_between, "{what}");
    }
}
