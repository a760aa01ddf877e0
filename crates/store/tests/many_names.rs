//! A directory that grows to many leaves and shrinks again: the cached leaves and names are always right.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pmem::Region;
use store::{
    CheckOptions, Error, FileKind, Geometry, LiveInode, NewInode, PoolOptions, RenameMode, Store,
    Transaction, check,
};

/// The context of a change without a reply.
fn embedded() -> Transaction<'static> {
    Transaction::embedded()
}

const POOL: u64 = 64 << 20;
/// Names there are at most beside those: hundreds of leaves.
const NAMES: u64 = 4000;
/// Names that always exist, which threads look up meanwhile.
const STAYING: u64 = 20;

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn name(number: u64) -> Vec<u8> {
    // Names of all lengths, so that leaves become full at different counts.
    let length = (number * 7 % 240) as usize;
    format!("{number}-{}", "x".repeat(length)).into_bytes()
}

/// Grows and shrinks the directory alternately, and compares it with a map.
fn change(store: &Store, directory: &Arc<LiveInode>, seed: u64) {
    let new = NewInode::new(FileKind::Regular, 0o600);
    let (mut random, mut model) = (Random(seed), BTreeMap::new());
    for step in 0..30_000u64 {
        let grows = (step / 6000).is_multiple_of(2);
        let number = STAYING + random.below(NAMES);
        match random.below(10) {
            kind if kind < 6 && grows || kind < 1 => {
                match store
                    .names()
                    .create(&mut embedded(), directory, &name(number), &new)
                {
                    Ok(node) => assert_eq!(model.insert(number, node.number()), None),
                    Err(error) => assert!(error == Error::Exists && model.contains_key(&number)),
                }
            }
            kind if kind < 6 => {
                let found = model.range(number..).next().map(|(number, _)| *number);
                let number = found.unwrap_or(number);
                let removed = store
                    .names()
                    .unlink(&mut embedded(), directory, &name(number));
                assert_eq!(removed.is_ok(), model.remove(&number).is_some());
            }
            6 => {
                let to = STAYING + random.below(NAMES);
                let (old, new) = (name(number), name(to));
                let renamed = store.names().rename(
                    &mut embedded(),
                    directory,
                    &old,
                    directory,
                    &new,
                    RenameMode::NoReplace,
                );
                let expected = model.contains_key(&number) && !model.contains_key(&to);
                assert_eq!(renamed.is_ok(), expected, "{number} to {to}: {renamed:?}");
                if expected {
                    let node = model.remove(&number).expect("it is there");
                    model.insert(to, node);
                }
            }
            _ => {
                let found = store.names().attributes_of(directory, &name(number));
                let found = found.ok().map(|attributes| attributes.number);
                assert_eq!(found, model.get(&number).copied(), "step {step}");
            }
        }
    }
    for number in STAYING..STAYING + NAMES {
        let found = store.names().lookup(directory, &name(number));
        let found = found.ok().map(|node| node.number());
        assert_eq!(found, model.get(&number).copied());
        if found.is_some() {
            store
                .names()
                .unlink(&mut embedded(), directory, &name(number))
                .expect("unlink");
        }
    }
}

#[test]
fn a_directory_that_grows_and_shrinks() {
    let region = Region::memory(POOL, false).expect("memory");
    Store::format(&region, &Geometry::for_length(POOL)).expect("format");
    let store = Store::open(region.clone(), PoolOptions::default()).expect("the pool opens");
    let new = NewInode::new(FileKind::Directory, 0o700);
    let directory = store
        .names()
        .create(&mut embedded(), &store.root(), b"directory", &new)
        .expect("create");
    let new = NewInode::new(FileKind::Regular, 0o600);
    let create = |number| {
        store
            .names()
            .create(&mut embedded(), &directory, &name(number), &new)
    };
    let staying: Vec<_> = (0..STAYING)
        .map(|number| create(number).expect("create").number())
        .collect();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut random = Random(5);
            while !is_done.load(Ordering::Relaxed) {
                let number = random.below(STAYING);
                let found = store.names().attributes_of(&directory, &name(number));
                let found = found.expect("the name stays");
                assert_eq!(found.number, staying[number as usize]);
            }
        });
        for seed in [11, 12] {
            change(&store, &directory, seed);
        }
        is_done.store(true, Ordering::Relaxed);
        reader.join().expect("the names are found");
    });
    for number in 0..STAYING {
        store
            .names()
            .unlink(&mut embedded(), &directory, &name(number))
            .expect("unlink");
    }
    drop(directory);
    let removed = store
        .names()
        .remove_directory(&mut embedded(), &store.root(), b"directory");
    removed.expect("it is empty");
    store.close().expect("close");
    let report = check(&region, &CheckOptions::default()).expect("check");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Directories that grow and shrink alternately, so that leaves of one come to be leaves of another, with the same
/// hashes, while the first may still remember them.
#[test]
fn directories_that_take_each_others_leaves() {
    const DIRECTORIES: u64 = 6;
    const NAMES: u64 = 600;
    let region = Region::memory(POOL, false).expect("memory");
    Store::format(&region, &Geometry::for_length(POOL)).expect("format");
    let store = Store::open(region.clone(), PoolOptions::default()).expect("the pool opens");
    let new = NewInode::new(FileKind::Directory, 0o700);
    let make = |number| {
        store
            .names()
            .create(&mut embedded(), &store.root(), &name(number), &new)
    };
    let directories: Vec<_> = (0..DIRECTORIES)
        .map(|number| make(number).expect("create"))
        .collect();
    let new = NewInode::new(FileKind::Symlink, 0o777);
    let new = NewInode {
        target: b"t",
        ..new
    };
    let mut models = vec![BTreeMap::new(); DIRECTORIES as usize];
    let mut random = Random(77);
    for step in 0..60_000u64 {
        let which = random.below(DIRECTORIES) as usize;
        let (directory, model) = (&directories[which], &mut models[which]);
        // One after the other shrinks while the others grow.
        let shrinks = step / 3000 % DIRECTORIES == which as u64;
        let number = random.below(NAMES);
        let found = model.get(&number).copied();
        match random.below(8) {
            0 => {
                let looked_up = store.names().attributes_of(directory, &name(number)).ok();
                assert_eq!(looked_up.map(|attributes| attributes.number), found);
            }
            _ if shrinks => {
                for number in number..number + 4 {
                    let removed = store
                        .names()
                        .unlink(&mut embedded(), directory, &name(number));
                    assert_eq!(removed.is_ok(), model.remove(&number).is_some());
                }
            }
            _ => match store
                .names()
                .create(&mut embedded(), directory, &name(number), &new)
            {
                Ok(node) => assert_eq!(model.insert(number, node.number()), None),
                Err(error) => assert!(error == Error::Exists && found.is_some()),
            },
        }
    }
    store.close().expect("close");
    let report = check(&region, &CheckOptions::default()).expect("check");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}
