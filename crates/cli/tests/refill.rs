//! A node that comes back is in sync after a while although programs write without pause.
#![forbid(unsafe_code)]

mod common;
mod nodes;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rustix::process::Signal;

use nodes::{Cluster, examine, is_whole, kill, mounted};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 4096;
const WRITERS: u64 = 4;

/// The records of a few seconds fill the ring many times, so the node is refilled as a whole.
#[test]
fn a_refill_ends_although_programs_write_without_pause() {
    let cluster = Cluster::serving("3", "128M");
    let directory = mounted(&cluster);
    let (end, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let write = |writer: u64| {
        let path = directory.join(format!("{writer}"));
        let file = File::create(path).expect("it can be made");
        for number in 0.. {
            if end.load(Ordering::Relaxed) {
                return;
            }
            let at = number * 7919 % BLOCKS * BLOCK as u64;
            let block = [number as u8; BLOCK];
            file.write_all_at(&block, at).expect("it has room");
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    let made = || count.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let write = &write;
        for writer in 0..WRITERS {
            scope.spawn(move || write(writer));
        }
        // Whatever happens, the writers end.
        let work = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let status = cluster.status();
            let nodes = status["nodes"].as_array().expect("nodes");
            let away = nodes.iter().find(|node| node["role"] == "replica");
            kill(away.expect("a replica"), Signal::KILL);
            // The ring has 4 MiB.
            let before = made();
            cluster.wait("records are gone", |_| made() > before + 4096);
            cluster.up_again();
            cluster.wait("it is in sync", is_whole);
        }));
        end.store(true, Ordering::Relaxed);
        work.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    examine(&cluster);
}
