//! Seeded random operations on the file system of a cluster and on the model: operations are encoded, decoded and executed on
//! a store.
#![forbid(unsafe_code)]

#[path = "../../client/tests/common/loopback.rs"]
mod loopback;

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use client::{FileSystem, Geometry, PoolOptions, Region};
use lab::pool::Pool;
use lab::random::Mix;
use lab::runner::run_seed;
use store::Store;

const OPERATIONS: usize = 1000;

/// TAKO_SOAK lifts the bounds.
fn seeds() -> u64 {
    if std::env::var_os("TAKO_SOAK").is_some() {
        400
    } else {
        15
    }
}

fn open(region: Region, options: PoolOptions) -> Result<FileSystem, client::Error> {
    Ok(loopback::file_system(Store::open(region, options)?))
}

fn compare(mix: &Mix, length: u64) {
    let geometry = Geometry {
        inodes_per_group: 256,
        ..Geometry::small()
    };
    let make = |clock: &Arc<AtomicI64>| Pool::opened_by(open, length, &geometry, clock);
    for seed in 0..seeds() {
        if let Err(failure) = run_seed(seed, mix, OPERATIONS, make) {
            panic!("{failure}");
        }
    }
}

#[test]
fn usual_operations_on_a_cluster() {
    compare(&Mix::usual(), 8 << 20);
}

#[test]
fn files_of_many_pieces_on_a_cluster() {
    compare(&Mix::pieces(), 8 << 20);
}

#[test]
fn directories_of_many_leaves_on_a_cluster() {
    compare(&Mix::names(), 8 << 20);
}
