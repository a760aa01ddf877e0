//! Changes as the primary of a unit makes them: the record contains a reply, and freed space is retained. Beside the
//! same changes in an embedded pool.

use std::cell::Cell;
use std::sync::Arc;

use store::{
    FileKind, Geometry, LiveInode, NewInode, PoolOptions, RenameMode, Reply, Store, Transaction,
    WriteAt,
};

use crate::harness::{Random, Side, interleave, repeated, thread_time};
use crate::names::ns_each;
use crate::report::Row;
use crate::setup::{Bench, bytes, nameless_pool};
use crate::{Error, Workload};

pub const WORKLOADS: [Workload; 3] = [
    Workload {
        name: "overwrite as a unit's primary",
        measure: overwrites,
    },
    Workload {
        name: "create and unlink as a unit's primary",
        measure: create_and_unlink,
    },
    Workload {
        name: "rename as a unit's primary",
        measure: rename,
    },
];

/// A primary takes at most a quarter longer.
const BAR: Option<f64> = Some(0.8);
/// Name of the other side of the primary's figures.
const LIMIT: &str = "embedded";
/// Slots of a session, each with its reply.
const SLOTS: u64 = 63;
/// Changes after which the members have confirmed the records, so that freed space is reused.
const CONFIRMED_AFTER: u64 = 64;
/// Most bytes of the file that is overwritten.
const FILE_MAX: u64 = 16 << 20;

/// A pool, and how it is changed.
struct Pool {
    store: Store,
    /// The file of replies, in a unit.
    replies: Option<Arc<LiveInode>>,
    changes: Cell<u64>,
}

impl Pool {
    fn new(bench: &Bench, is_of_unit: bool) -> Result<Pool, Error> {
        let length = bench.scale.pool_length / 4;
        let region = nameless_pool(&bench.directory, length)?;
        region.populate();
        Store::format(&region, &Geometry::for_length(length))?;
        let options = PoolOptions {
            hold_freed: is_of_unit,
            ..PoolOptions::default()
        };
        let mut pool = Pool {
            store: Store::open(region, options)?,
            replies: None,
            changes: Cell::new(0),
        };
        if is_of_unit {
            let replies = pool.create(&pool.store.system(), b"replies")?;
            pool.write(&replies, 0, &[0; store::BLOCK])?;
            pool.replies = Some(replies);
        }
        Ok(pool)
    }

    /// Makes a change, with its reply in a unit.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Transaction<'_>) -> Result<T, store::Error>,
    ) -> Result<T, Error> {
        let count = self.changes.get();
        self.changes.set(count + 1);
        let Some(file) = &self.replies else {
            return Ok(change(&mut Transaction::embedded())?);
        };
        let reply = Reply {
            file,
            offset: (1 + count % SLOTS) * store::REPLY as u64,
            bytes: [count as u8; store::REPLY],
            inode_at: Some(8),
            end_at: Some(24),
        };
        let mut transaction = Transaction::with_reply(&reply);
        let result = change(&mut transaction)?;
        assert!(transaction.has_carried_reply(), "the reply has its block");
        if count.is_multiple_of(CONFIRMED_AFTER) {
            self.store
                .volume()
                .release_freed(self.store.volume().tail().number);
        }
        Ok(result)
    }

    fn create(&self, directory: &Arc<LiveInode>, name: &[u8]) -> Result<Arc<LiveInode>, Error> {
        let new = NewInode::new(FileKind::Regular, 0o644);
        self.change(|transaction| {
            self.store
                .names()
                .create(transaction, directory, name, &new)
        })
    }

    fn write(&self, node: &LiveInode, offset: u64, data: &[u8]) -> Result<(), Error> {
        let at = WriteAt::Offset(offset);
        self.change(|transaction| {
            self.store
                .files()
                .write(transaction, node, at, data)
                .map(drop)
        })
    }
}

/// A pool of a unit, and an embedded one.
fn pools(bench: &Bench) -> Result<[Pool; 2], Error> {
    Ok([Pool::new(bench, true)?, Pool::new(bench, false)?])
}

fn overwrites(bench: &Bench, _: &str) -> Result<Vec<Row>, Error> {
    let pools = pools(bench)?;
    // A pool has room for two such files, and for the retained space of a unit.
    let file_length = FILE_MAX.min(bench.scale.pool_length / 32);
    let mut rows = Vec::new();
    for (size, name) in [(64, "64 B overwrite"), (4096, "4 KiB overwrite")] {
        let data = bytes(size);
        let mut sides = Vec::new();
        for pool in &pools {
            let file = pool.create(&pool.store.root(), name.as_bytes())?;
            for offset in (0..file_length).step_by(1 << 16) {
                pool.write(&file, offset, &bytes(1 << 16))?;
            }
            let (data, mut random) = (&data, Random::new(1));
            sides.push(repeated(bench.scale.effort, move || {
                pool.write(&file, random.offset(file_length, size), data)
            })?);
        }
        let measured = interleave(bench.scale.rounds, sides)?;
        rows.push(measured.row(0, name, LIMIT, BAR));
    }
    Ok(rows)
}

/// Names that a round creates.
fn names(bench: &Bench) -> Vec<String> {
    let count = bench.scale.names / 10;
    (0..count).map(|number| format!("file{number}")).collect()
}

fn create_and_unlink(bench: &Bench, _: &str) -> Result<Vec<Row>, Error> {
    let (pools, names) = (pools(bench)?, names(bench));
    let side = |pool| -> Side<'_> {
        let (pool, names): (&Pool, _) = (pool, &names);
        Box::new(move || {
            let root = pool.store.root();
            let start = thread_time();
            for name in names {
                pool.create(&root, name.as_bytes())?;
            }
            let middle = thread_time();
            for name in names {
                pool.change(|transaction| {
                    pool.store
                        .names()
                        .unlink(transaction, &root, name.as_bytes())
                })?;
            }
            Ok(ns_each(start, middle, names.len() as f64))
        })
    };
    let measured = interleave(bench.scale.few_rounds(), pools.iter().map(side).collect())?;
    Ok(vec![
        measured.row(0, "create", LIMIT, BAR),
        measured.row(1, "unlink", LIMIT, BAR),
    ])
}

/// Within the directory: one file after the other gets its other name, and then its first again.
fn rename(bench: &Bench, _: &str) -> Result<Vec<Row>, Error> {
    let (pools, names) = (pools(bench)?, names(bench));
    let others: Vec<_> = names.iter().map(|name| format!("other {name}")).collect();
    let mut sides = Vec::new();
    for pool in &pools {
        let root = pool.store.root();
        for name in &names {
            pool.create(&root, name.as_bytes())?;
        }
        let (names, others, mut count) = (&names, &others, 0);
        sides.push(repeated(bench.scale.effort, move || {
            let index = count % names.len();
            let (mut from, mut to) = (names[index].as_bytes(), others[index].as_bytes());
            if !(count / names.len()).is_multiple_of(2) {
                (from, to) = (to, from);
            }
            count += 1;
            pool.change(|transaction| {
                let mode = RenameMode::Replace;
                pool.store
                    .names()
                    .rename(transaction, &root, from, &root, to, mode)
            })
        })?);
    }
    let measured = interleave(bench.scale.rounds, sides)?;
    Ok(vec![measured.row(0, "rename", LIMIT, BAR)])
}
