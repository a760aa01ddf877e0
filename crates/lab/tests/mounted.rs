//! Seeded random operations through a mount, by each transport, compared with the model. Needs root and /dev/fuse.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::thread;

use client::{FileSystem, Geometry, PoolOptions, Region};
use fuse::{Mount, Transport};
use lab::mounted::MountedSystem;
use lab::random::Mix;
use lab::runner::run_seed;

const POOL_LENGTH: u64 = 256 << 20;
const THREADS: u64 = 32;

/// Operations of a seed, and seeds; TAKO_SOAK lifts the bounds.
fn bounds() -> (usize, u64) {
    match std::env::var_os("TAKO_SOAK") {
        Some(_) => (2000, 200),
        None => (500, 6),
    }
}

/// A mount of a separate pool, which ends with it.
struct Mounted {
    mount: Option<Mount>,
    directory: PathBuf,
}

impl Mounted {
    fn new(transport: &str) -> Mounted {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tako-lab-mount-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).expect("a directory");
        let region = Region::memory(POOL_LENGTH, false).expect("memory");
        FileSystem::format_region(&region, &Geometry::for_length(POOL_LENGTH)).expect("a pool");
        let file_system = FileSystem::open_region(region, PoolOptions::default()).expect("a pool");
        let options = format!("transport={transport}").parse().expect("options");
        let mount = fuse::mount(file_system, &directory, &options).expect("a mount");
        Mounted {
            mount: Some(mount),
            directory,
        }
    }

    fn end(mut self) {
        let mount = self.mount.take().expect("mounted until now");
        mount.unmount().expect("it is unused");
        mount.wait().expect("a clean end");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.mount.take());
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// The transports that this machine has.
fn transports() -> Vec<&'static str> {
    let mounted = Mounted::new("auto");
    let transport = mounted.mount.as_ref().unwrap().transport().clone();
    mounted.end();
    match transport {
        Transport::Uring { .. } => vec!["uring", "classic"],
        Transport::Classic(why) => {
            println!("no queues here: {why}");
            vec!["classic"]
        }
    }
}

fn run(seed: u64, directory: &std::path::Path, operations: usize) -> Result<(), String> {
    let make = |_: &Arc<AtomicI64>| {
        MountedSystem::empty(directory.into()).map_err(|error| error.to_string())
    };
    run_seed(seed, &Mix::mounted(), operations, make)
}

#[test]
fn a_mount_is_like_the_model() {
    let (operations, seeds) = bounds();
    for transport in transports() {
        let mounted = Mounted::new(transport);
        for seed in 0..seeds {
            if let Err(failure) = run(seed, &mounted.directory, operations) {
                panic!("by {transport}: {failure}");
            }
        }
        mounted.end();
    }
}

/// Each thread compares a separate directory with a separate model, while all others do.
#[test]
fn many_threads_are_like_their_models() {
    let (operations, seeds) = bounds();
    for transport in transports() {
        let mounted = Mounted::new(transport);
        thread::scope(|scope| {
            for number in 0..THREADS {
                let directory = mounted.directory.join(number.to_string());
                scope.spawn(move || {
                    std::fs::create_dir(&directory).expect("a directory");
                    for seed in 0..seeds / 3 {
                        let seed = seed * THREADS + number;
                        if let Err(failure) = run(seed, &directory, operations) {
                            panic!("by {transport}: {failure}");
                        }
                    }
                });
            }
        });
        mounted.end();
    }
}
