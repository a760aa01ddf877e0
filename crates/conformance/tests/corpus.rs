//! The fixed corpus of the fuzz targets: earlier findings, and seeds. `scripts/fuzz.sh` searches for more.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

/// Files of a target's corpus, so that it stays one to read through.
const FILES_MAX: usize = 40;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let entries = std::fs::read_dir(&directory).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!((1..=FILES_MAX).contains(&paths.len()), "{target}");
    let read = |path: PathBuf| std::fs::read(&path).map(|bytes| (path, bytes)).unwrap();
    paths.into_iter().map(read).collect()
}

/// Runs every file of a target, and some thousands like them in which a few bytes differ; what fails is printed last.
fn run(target: &str, entry_point: fn(&[u8])) {
    let mut state = 1_u64;
    let mut next = |end: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % end
    };
    for (path, mut bytes) in corpus(target) {
        println!("{}", path.display());
        entry_point(&bytes);
        for _ in 0..300 {
            let at = next(bytes.len());
            let before = bytes[at];
            bytes[at] = match next(3) {
                0 => 0,
                1 => 255,
                _ => next(256) as u8,
            };
            println!("{bytes:?}");
            entry_point(&bytes);
            // Now and then a change stays, for the next ones to add to.
            if next(4) > 0 {
                bytes[at] = before;
            }
        }
    }
}

#[test]
fn control_connections() {
    run("control", connections::fuzzing::control);
}

#[test]
fn connections_of_tcp() {
    run("tcp", fabric::fuzzing::tcp);
}

#[test]
fn frames_over_ethernet() {
    run("ethernet", fabric::fuzzing::ethernet);
}

#[test]
fn memory_that_is_shared_with_peers() {
    run("shm", fabric::fuzzing::shm);
}

#[test]
fn messages_over_verbs() {
    run("verbs", fabric::fuzzing::verbs);
}
