//! The fixed corpus of the fuzz targets: earlier findings, and seeds. `scripts/fuzz.sh` searches for more.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

/// Files of a target's corpus, so that it stays one to read through.
const FILES_MAX: usize = 40;
/// Longest input, in bytes.
const LENGTH_MAX: usize = 64 << 10;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let entries = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{} cannot be listed: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| std::fs::read(&path).map(|bytes| (path, bytes)).unwrap();
    paths.into_iter().map(read).collect()
}

/// Runs every file of a target; the name of one that fails is the last one printed.
fn run(target: &str, entry_point: fn(&[u8])) {
    let files = corpus(target);
    assert!((1..=FILES_MAX).contains(&files.len()), "{target}");
    for (path, bytes) in files {
        println!("{}", path.display());
        assert!(bytes.len() <= LENGTH_MAX);
        entry_point(&bytes);
    }
}

/// Scripts of a simple generator, so that the tests search a little beyond the corpus.
fn random_scripts(entry_point: fn(&[u8])) {
    let mut state = 1_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize
    };
    for _ in 0..3000 {
        let script: Vec<u8> = (0..next() % 600)
            .map(|_| match next() % 4 {
                0 => 0,
                1 => next() as u8 % 8,
                2 => next() as u8 % 48,
                _ => next() as u8,
            })
            .collect();
        entry_point(&script);
    }
}

#[test]
fn messages() {
    run("message", protocol::fuzzing::message);
    random_scripts(protocol::fuzzing::message);
}

#[test]
fn members() {
    run("member", protocol::fuzzing::member);
    random_scripts(protocol::fuzzing::member);
}
