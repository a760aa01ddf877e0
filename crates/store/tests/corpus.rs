//! The fixed corpus of the fuzz targets: earlier findings, and seeds. `scripts/fuzz.sh` searches for more.

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

#[test]
fn pools() {
    run("pool", store::fuzzing::pool);
}

#[test]
fn records() {
    run("record", store::fuzzing::record);
}

#[test]
fn nodes_and_leaves() {
    run("node_and_leaf", store::fuzzing::node_and_leaf);
}
