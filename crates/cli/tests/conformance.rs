//! POSIX as others test it: `fsx` and `pjdfstest` through the mount of a pool.

mod backing;
mod common;
mod mounted;
mod nodes;
mod suite;
mod transport;

use backing::Backing;
use suite::tools;

#[test]
fn fsx_finds_nothing_wrong() {
    let mut runs = vec![
        (256 << 10, 64 << 10, 1, 20_000, 1),
        (256 << 10, 64 << 10, 1, 20_000, 2),
        (256 << 10, 64 << 10, 1, 20_000, 3),
        (40_000, 5_000, 1, 20_000, 4),
        (1 << 20, 128 << 10, 4096, 5_000, 5),
        (16 << 20, 3 << 20, 1, 1_000, 6),
    ];
    if std::env::var_os("TAKO_SOAK").is_some() {
        runs.extend((11..21).map(|seed| (256 << 10, 64 << 10, 1, 100_000, seed)));
    }
    tools::fsx(&Backing::embedded("128M"), &runs);
}

#[test]
fn pjdfstest_finds_nothing_wrong() {
    tools::pjdfstest(&Backing::embedded("64M"));
}
