//! The store's operations, one after the other, and again after a crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use pmem::Region;
use store::{
    Attributes, Clock, Error, FileKind, Geometry, NewInode, PoolOptions, RenameMode, SetAttributes,
    Store, Transaction, WriteAt,
};

/// The context of a change without a reply.
fn embedded() -> Transaction<'static> {
    Transaction::embedded()
}

const POOL: u64 = 64 << 20;

fn new_inode(kind: FileKind) -> NewInode<'static> {
    NewInode::new(kind, 0o755)
}

fn open(region: &Region) -> Store {
    Store::open(region.clone(), PoolOptions::default()).expect("the pool opens")
}

fn pool() -> (Region, Store) {
    let region = Region::memory(POOL, false).expect("memory");
    Store::format(&region, &Geometry::for_length(POOL)).expect("format");
    let store = open(&region);
    (region, store)
}

fn read_all(store: &Store, path: &[&str]) -> Vec<u8> {
    let mut node = store.root();
    for name in path {
        node = store.names().lookup(&node, name.as_bytes()).unwrap();
    }
    let mut data = vec![0; store.inodes().attributes(&node).size as usize];
    assert_eq!(store.files().read(&node, 0, &mut data).unwrap(), data.len());
    data
}

/// Names of a directory, read seven at a time.
fn names(store: &Store, number: u64) -> Vec<String> {
    let node = store.inodes().node(number).unwrap();
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let mut part = Vec::new();
        store
            .names()
            .read_directory(&node, cookie, &mut |entry| {
                let wanted = part.len() < 7;
                if wanted {
                    part.push(String::from_utf8(entry.name.clone()).unwrap());
                    cookie = entry.cookie;
                }
                wanted
            })
            .unwrap();
        if part.is_empty() {
            return names;
        }
        names.append(&mut part);
    }
}

#[test]
fn files_survive_a_crash() {
    let (region, store) = pool();
    let root = store.root();
    let a = store
        .names()
        .create(&mut embedded(), &root, b"a", &new_inode(FileKind::Regular))
        .unwrap();
    let big: Vec<u8> = (0..3_000_001u32).map(|i| (i * 7 % 253) as u8).collect();
    assert_eq!(
        store
            .files()
            .write(&mut embedded(), &a, WriteAt::Offset(5), &big)
            .unwrap()
            .length,
        big.len()
    );
    store
        .files()
        .write(&mut embedded(), &a, WriteAt::Offset(100), b"hello")
        .unwrap();
    store
        .files()
        .write(&mut embedded(), &a, WriteAt::End, b"end")
        .unwrap();
    let d = store
        .names()
        .create(
            &mut embedded(),
            &root,
            b"d",
            &new_inode(FileKind::Directory),
        )
        .unwrap();
    store
        .names()
        .rename(&mut embedded(), &root, b"a", &d, b"b", RenameMode::Replace)
        .unwrap();
    assert_eq!(
        store.names().lookup(&root, b"a").err(),
        Some(Error::NotFound)
    );
    let mut expected = vec![0; 5];
    expected.extend_from_slice(&big);
    expected[100..105].copy_from_slice(b"hello");
    expected.extend_from_slice(b"end");
    assert!(read_all(&store, &["d", "b"]) == expected);
    drop(store);
    let store = open(&region);
    assert!(read_all(&store, &["d", "b"]) == expected);
    let b = store
        .names()
        .lookup(&store.names().lookup(&store.root(), b"d").unwrap(), b"b")
        .unwrap();
    for size in [101, 4096] {
        let change = SetAttributes {
            size: Some(size),
            ..Default::default()
        };
        let inodes = store.inodes();
        inodes.set_attributes(&mut embedded(), &b, &change).unwrap();
    }
    expected.truncate(101);
    expected.resize(4096, 0);
    assert!(read_all(&store, &["d", "b"]) == expected);
}

#[test]
fn many_names_come_and_go() {
    let (region, store) = pool();
    let root = store.root();
    let free = store.volume().statistics();
    let d = store
        .names()
        .create(
            &mut embedded(),
            &root,
            b"d",
            &new_inode(FileKind::Directory),
        )
        .unwrap();
    for i in 0..3000 {
        store
            .names()
            .create(
                &mut embedded(),
                &d,
                format!("file number {i}").as_bytes(),
                &new_inode(FileKind::Regular),
            )
            .unwrap();
    }
    drop(store);
    let store = open(&region);
    let root = store.root();
    let d = store.names().lookup(&root, b"d").unwrap();
    for i in 0..3000 {
        store
            .names()
            .lookup(&d, format!("file number {i}").as_bytes())
            .unwrap();
    }
    let mut found = 0;
    store
        .names()
        .read_directory(&d, 0, &mut |_| {
            found += 1;
            true
        })
        .unwrap();
    assert_eq!(found, 3002);
    assert_eq!(
        store
            .names()
            .remove_directory(&mut embedded(), &root, b"d")
            .err(),
        Some(Error::NotEmpty)
    );
    for i in 0..3000 {
        store
            .names()
            .unlink(&mut embedded(), &d, format!("file number {i}").as_bytes())
            .unwrap();
    }
    store
        .names()
        .remove_directory(&mut embedded(), &root, b"d")
        .unwrap();
    let after = store.volume().statistics();
    assert_eq!(after.inodes_free, free.inodes_free);
    // The root keeps its first leaf only while it has names.
    assert_eq!(after.blocks_free, free.blocks_free);
}

#[test]
fn reading_a_directory_goes_on_where_it_stopped() {
    let (_region, store) = pool();
    let root = store.root();
    for i in 0..300 {
        store
            .names()
            .create(
                &mut embedded(),
                &root,
                format!("n{i}").as_bytes(),
                &new_inode(FileKind::Regular),
            )
            .unwrap();
    }
    let mut names = names(&store, 1);
    assert_eq!(names.len(), 302);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 302);
}

#[test]
fn full_pools_refuse_and_recover() {
    let (_region, store) = pool();
    let root = store.root();
    let free = store.volume().statistics().blocks_free;
    let mut count = 0;
    let chunk = vec![1u8; 1 << 20];
    'fill: loop {
        let file = match store.names().create(
            &mut embedded(),
            &root,
            format!("f{count}").as_bytes(),
            &new_inode(FileKind::Regular),
        ) {
            Ok(file) => file,
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        };
        count += 1;
        for i in 0..5 {
            match store
                .files()
                .write(&mut embedded(), &file, WriteAt::Offset(i << 20), &chunk)
            {
                Ok(written) if written.length == chunk.len() => {}
                Ok(_) | Err(Error::NoSpace) => break 'fill,
                Err(error) => panic!("{error}"),
            }
        }
    }
    store
        .names()
        .rename(
            &mut embedded(),
            &root,
            b"f0",
            &root,
            b"renamed when full",
            RenameMode::Replace,
        )
        .unwrap();
    store
        .names()
        .unlink(&mut embedded(), &root, b"renamed when full")
        .unwrap();
    for i in 1..count {
        store
            .names()
            .unlink(&mut embedded(), &root, format!("f{i}").as_bytes())
            .unwrap();
    }
    assert_eq!(store.volume().statistics().blocks_free, free);
}

#[test]
fn threads_work_side_by_side() {
    let (region, store) = pool();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                let root = store.root();
                let name = format!("t{thread}");
                let file = store
                    .names()
                    .create(
                        &mut embedded(),
                        &root,
                        name.as_bytes(),
                        &new_inode(FileKind::Regular),
                    )
                    .unwrap();
                for i in 0..2000u64 {
                    let data = vec![(i % 251) as u8; 1 + (i * 37 % 9000) as usize];
                    store
                        .files()
                        .write(
                            &mut embedded(),
                            &file,
                            WriteAt::Offset(i * 131 % 100_000),
                            &data,
                        )
                        .unwrap();
                    let other = format!("t{thread}-{}", i % 50);
                    match store.names().create(
                        &mut embedded(),
                        &root,
                        other.as_bytes(),
                        &new_inode(FileKind::Regular),
                    ) {
                        Ok(_) => {}
                        Err(Error::Exists) => store
                            .names()
                            .unlink(&mut embedded(), &root, other.as_bytes())
                            .unwrap(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let before: Vec<Vec<u8>> = (0..4)
        .map(|t| read_all(&store, &[&format!("t{t}")]))
        .collect();
    drop(store);
    let store = open(&region);
    let after: Vec<Vec<u8>> = (0..4)
        .map(|t| read_all(&store, &[&format!("t{t}")]))
        .collect();
    assert!(before == after);
}

#[test]
fn a_noted_read_changes_nothing_but_the_access_time() {
    let region = Region::memory(POOL, false).expect("memory");
    Store::format(&region, &Geometry::for_length(POOL)).expect("format");
    let now = Arc::new(AtomicI64::new(100));
    let options = PoolOptions {
        clock: Clock::Manual(now.clone()),
        ..PoolOptions::default()
    };
    let store = Store::open(region.clone(), options).expect("the pool opens");
    let kinds = [FileKind::Regular, FileKind::Directory];
    let nodes = [("a", kinds[0]), ("d", kinds[1])].map(|(name, kind)| {
        let made = new_inode(kind);
        let node = store
            .names()
            .create(&mut embedded(), &store.root(), name.as_bytes(), &made);
        node.unwrap()
    });
    let before = nodes.each_ref().map(|node| store.inodes().attributes(node));
    // The first read after a change, another one a tick later, and one with `strictatime`.
    for (tick, always, accessed_ns) in [(200, false, 200), (300, false, 200), (400, true, 400)] {
        now.store(tick, Ordering::Relaxed);
        for (node, before) in nodes.iter().zip(before) {
            store.inodes().note_read(node, always).unwrap();
            let expected = Attributes {
                accessed_ns,
                ..before
            };
            assert_eq!(store.inodes().attributes(node), expected, "at {tick}");
            assert!(store.inodes().noted(node.number()) > before.version);
        }
    }
    drop((nodes, store));
    let store = open(&region);
    for (name, before) in ["a", "d"].into_iter().zip(before) {
        let node = store.names().lookup(&store.root(), name.as_bytes());
        let expected = Attributes {
            accessed_ns: 400,
            ..before
        };
        assert_eq!(
            store.inodes().attributes(&node.unwrap()),
            expected,
            "{name}"
        );
    }
}

#[test]
fn a_directory_gets_a_new_version_when_its_names_change() {
    let region = Region::memory(POOL, false).expect("memory");
    Store::format(&region, &Geometry::for_length(POOL)).expect("format");
    // Within one tick of the clock, so that no time stamp changes.
    let options = PoolOptions {
        clock: Clock::Manual(Default::default()),
        ..PoolOptions::default()
    };
    let store = Store::open(region, options).expect("the pool opens");
    let root = store.root();
    let (file, directory) = (new_inode(FileKind::Regular), new_inode(FileKind::Directory));
    let mut last = store.inodes().attributes(&root).version;
    let mut check = |what: &str| {
        let version = store.inodes().attributes(&root).version;
        assert!(version > last, "{what} leaves the version at {last}");
        last = version;
    };
    let node = store
        .names()
        .create(&mut embedded(), &root, b"a", &file)
        .unwrap();
    check("create");
    store
        .names()
        .rename(
            &mut embedded(),
            &root,
            b"a",
            &root,
            b"b",
            RenameMode::Replace,
        )
        .unwrap();
    check("rename");
    store
        .names()
        .link(&mut embedded(), &node, &root, b"a")
        .unwrap();
    check("link");
    store
        .names()
        .create(&mut embedded(), &root, b"d", &directory)
        .unwrap();
    check("mkdir");
    store
        .names()
        .rename(
            &mut embedded(),
            &root,
            b"a",
            &root,
            b"d",
            RenameMode::Exchange,
        )
        .unwrap();
    check("exchange");
    store.names().unlink(&mut embedded(), &root, b"b").unwrap();
    check("unlink");
    store
        .names()
        .remove_directory(&mut embedded(), &root, b"a")
        .unwrap();
    check("rmdir");
}

/// Whether the last name or the last hold goes first, by a hair's breadth: nothing is lost, and nothing is freed twice.
#[test]
fn a_name_and_a_hold_that_go_at_once_leave_nothing() {
    const FILES: usize = 2000;
    let (region, store) = pool();
    let root = store.root();
    // The directory's own blocks stay.
    let keeper = new_inode(FileKind::Regular);
    store
        .names()
        .create(&mut embedded(), &root, b"keeper", &keeper)
        .unwrap();
    let before = store.volume().statistics();
    let make = |number: usize| {
        let kind = match number % 4 {
            0 => FileKind::Directory,
            _ => FileKind::Regular,
        };
        let name = format!("file {number}");
        let node = store
            .names()
            .create(&mut embedded(), &root, name.as_bytes(), &new_inode(kind));
        let node = node.unwrap();
        if kind == FileKind::Regular {
            // Empty, of one block, and of several.
            let data = vec![1; number % 3 * 5000];
            store
                .files()
                .write(&mut embedded(), &node, WriteAt::Offset(0), &data)
                .unwrap();
        }
        store.inodes().hold(&node).unwrap();
        (name, kind, node)
    };
    for first in (0..FILES).step_by(50) {
        let files: Vec<_> = (first..first + 50).map(make).collect();
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (name, kind, _) in &files {
                    barrier.wait();
                    let name = name.as_bytes();
                    match kind {
                        FileKind::Directory => store
                            .names()
                            .remove_directory(&mut embedded(), &root, name)
                            .unwrap(),
                        _ => store.names().unlink(&mut embedded(), &root, name).unwrap(),
                    }
                }
            });
            for (_, _, node) in &files {
                barrier.wait();
                store.inodes().release(node, 1).unwrap();
            }
        });
        for (name, _, node) in &files {
            let found = store.names().lookup(&root, name.as_bytes());
            assert_eq!(found.err(), Some(Error::NotFound));
            assert_eq!(store.inodes().node(node.number()).err(), Some(Error::Stale));
        }
    }
    let counts = |store: &Store| {
        let found = store.volume().statistics();
        (found.blocks_free, found.inodes_free)
    };
    let expected = (before.blocks_free, before.inodes_free);
    assert_eq!(counts(&store), expected);
    drop(store);
    assert_eq!(counts(&open(&region)), expected);
}
