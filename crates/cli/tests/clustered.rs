//! The tests of mounted pools, on mounts of clusters.

mod backing;
mod common;
mod mounted;
mod nodes;
mod suite;
mod transport;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use backing::Backing;
use lab::mounted::MountedSystem;
use lab::random::Mix;
use lab::runner::run_seed;
use suite::programs::{self, Journal};
use suite::tools::{self, FsxRun};

/// Longest file, longest operation, alignment, operations, seed.
const FSX: [FsxRun; 2] = [
    (256 << 10, 64 << 10, 1, 2_000, 1),
    (16 << 20, 3 << 20, 1, 200, 6),
];

fn is_soak() -> bool {
    std::env::var_os("TAKO_SOAK").is_some()
}

/// Rounds of `make test`, or of `make soak`.
fn rounds(usual: u64) -> u64 {
    if is_soak() { usual * 10 } else { usual }
}

/// Three members over shared memory.
fn usual() -> Backing {
    Backing::cluster("3", "64M", "ack=primary")
}

#[test]
fn fsx_finds_nothing_wrong_on_a_cluster() {
    let mut runs = FSX.to_vec();
    if is_soak() {
        runs.extend((11..21).map(|seed| (256 << 10, 64 << 10, 1, 20_000, seed)));
    }
    tools::fsx(&usual(), &runs);
}

#[test]
fn pjdfstest_finds_nothing_wrong_on_a_cluster() {
    tools::pjdfstest(&usual());
}

fn is_like_the_model(backing: &Backing, seeds: u64) {
    let mounted = backing.mount();
    let directory = PathBuf::from(&mounted.directory);
    let make = |_: &Arc<AtomicI64>| {
        MountedSystem::empty(directory.clone()).map_err(|error| error.to_string())
    };
    for seed in 0..seeds {
        if let Err(failure) = run_seed(seed, &Mix::mounted(), 300, make) {
            panic!("{failure}");
        }
    }
    mounted.unmount();
    backing.examine();
}

#[test]
fn a_mount_of_a_cluster_is_like_the_model() {
    is_like_the_model(&usual(), rounds(2));
}

#[test]
fn sqlite_keeps_its_transactions_on_a_cluster() {
    programs::sqlite(&usual(), (rounds(2), 100), Journal::Wal);
    programs::sqlite(&usual(), (rounds(1), 50), Journal::Rollback);
}

#[test]
fn git_keeps_its_commits_on_a_cluster() {
    programs::git_commits(&usual(), (rounds(2), 5));
}

#[test]
fn redis_keeps_its_keys_on_a_cluster() {
    programs::redis(&usual(), (rounds(2), 300));
}

/// Other transports, members and acknowledgements, by a few tests each; `make soak` runs all.
#[test]
fn other_clusters_are_like_the_usual_one() {
    let others = [
        ("3", "transport=tcp"),
        ("3", "transport=tcp,io=client"),
        ("1", "ack=primary"),
        ("2", "ack=all"),
        ("3", "ack=sent"),
        ("2+1", "ack=primary"),
    ];
    for (nodes, options) in others {
        let backing = || Backing::cluster(nodes, "64M", options);
        if is_soak() {
            tools::fsx(&backing(), &FSX);
            tools::pjdfstest(&backing());
            programs::sqlite(&backing(), (4, 100), Journal::Wal);
            programs::sqlite(&backing(), (4, 50), Journal::Rollback);
            programs::redis(&backing(), (4, 300));
            is_like_the_model(&backing(), 10);
        } else {
            tools::fsx(&backing(), &[(256 << 10, 64 << 10, 1, 300, 1)]);
        }
        programs::git_commits(&backing(), (rounds(1), 2));
    }
}
