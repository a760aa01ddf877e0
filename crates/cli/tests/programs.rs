//! Programs at work when the process is killed that has mounted a pool.

mod backing;
mod common;
mod mounted;
mod nodes;
mod suite;
mod transport;

use backing::Backing;
use suite::programs::{self, Journal};

const SIZE: &str = "256M";

#[test]
fn sqlite_keeps_its_transactions() {
    programs::sqlite(&Backing::embedded(SIZE), (25, 300), Journal::Wal);
}

#[test]
fn git_keeps_its_commits() {
    programs::git_commits(&Backing::embedded(SIZE), (12, 20));
}

#[test]
fn redis_keeps_its_keys() {
    programs::redis(&Backing::embedded(SIZE), (25, 900));
}
