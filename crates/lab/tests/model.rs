//! Seeded random operations on pools and on the model.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;

use client::Geometry;
use lab::mounted::MountedSystem;
use lab::pool::Pool;
use lab::random::Mix;
use lab::runner::run_seed;

const OPERATIONS: usize = 2000;
const WORKERS: usize = 2;

/// TAKO_SOAK lifts the bounds.
fn seeds() -> u64 {
    if std::env::var_os("TAKO_SOAK").is_some() {
        800
    } else {
        40
    }
}

fn compare(mix: &Mix, length: u64, geometry: Geometry) {
    let next = AtomicU64::new(0);
    let make = |clock: &Arc<AtomicI64>| Pool::new(length, &geometry, clock);
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds() {
                        return;
                    }
                    if let Err(failure) = run_seed(seed, mix, OPERATIONS, make) {
                        next.store(u64::MAX / 2, Ordering::Relaxed);
                        panic!("{failure}");
                    }
                }
            });
        }
    });
}

fn geometry() -> Geometry {
    Geometry {
        inodes_per_group: 256,
        ..Geometry::small()
    }
}

#[test]
fn usual_operations() {
    compare(&Mix::usual(), 8 << 20, geometry());
}

#[test]
fn without_data_checksums() {
    let data_checksums = false;
    let geometry = Geometry {
        data_checksums,
        ..geometry()
    };
    compare(&Mix::usual(), 8 << 20, geometry);
}

#[test]
fn files_of_many_pieces() {
    compare(&Mix::pieces(), 8 << 20, geometry());
}

#[test]
fn directories_of_many_leaves() {
    compare(&Mix::names(), 8 << 20, geometry());
}

#[test]
fn full_pools() {
    compare(&Mix::large(), 1 << 20, Geometry::small());
}

#[test]
fn large_rings() {
    let geometry = Geometry {
        ring_length: 2 << 20,
        ..geometry()
    };
    compare(&Mix::large(), 8 << 20, geometry);
}

/// Removed in the end, also when a test fails.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // An immutable file stays so otherwise.
        let _ = MountedSystem::empty(self.0.clone());
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The model is right if it equals the kernel's own file system in memory.
#[test]
fn the_model_is_like_tmpfs() {
    if !rustix::process::geteuid().is_root() {
        println!("only root can change owners: not compared");
        return;
    }
    let root = Directory(PathBuf::from(format!(
        "/dev/shm/tako-lab-{}",
        std::process::id()
    )));
    std::fs::create_dir_all(&root.0).expect("a directory is made");
    let make = |_: &Arc<AtomicI64>| {
        MountedSystem::empty(root.0.clone()).map_err(|error| error.to_string())
    };
    for seed in 0..seeds() / 4 {
        if let Err(failure) = run_seed(seed, &Mix::tmpfs(), OPERATIONS, make) {
            panic!("{failure}");
        }
    }
}
