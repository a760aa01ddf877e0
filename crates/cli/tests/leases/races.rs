//! Races of mounts for one name or one end of a file: each has one winner.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{Mount, cluster};

/// How many of the mounts have succeeded in what all of them try at the same time.
fn winners(mounts: &[Mount; 3], attempt: impl Fn(usize, &Mount) -> io::Result<()> + Sync) -> usize {
    let barrier = Barrier::new(mounts.len());
    thread::scope(|scope| {
        let attempts = (0..mounts.len()).map(|at| {
            let (barrier, attempt) = (&barrier, &attempt);
            scope.spawn(move || {
                barrier.wait();
                attempt(at, &mounts[at]).is_ok()
            })
        });
        let attempts: Vec<_> = attempts.collect();
        let won = attempts.into_iter().map(|it| it.join().expect("it ends"));
        won.filter(|won| *won).count()
    })
}

#[test]
fn races_of_mounts_have_one_winner() {
    const ROUNDS: usize = 20;
    let cluster = cluster();
    let mounts = ["a", "b", "c"].map(|name| Mount::new(&cluster, name));
    for round in 0..ROUNDS {
        let name = format!("file{round}");
        let create = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
        let made = winners(&mounts, |_, mount| create(&mount.path(&name)).map(drop));
        assert_eq!(made, 1, "round {round}");
        let linked = format!("link{round}");
        let link = |_, mount: &Mount| fs::hard_link(mount.path(&name), mount.path(&linked));
        assert_eq!(winners(&mounts, link), 1, "round {round}");
        let rename = |at, mount: &Mount| {
            let new = format!("new{round}-{at}");
            fs::rename(mount.path(&linked), mount.path(&new))
        };
        assert_eq!(winners(&mounts, rename), 1, "round {round}");
        let unlink = |_, mount: &Mount| fs::remove_file(mount.path(&name));
        assert_eq!(winners(&mounts, unlink), 1, "round {round}");
    }
}

#[test]
fn appends_of_mounts_lose_nothing() {
    const ROUNDS: u64 = 50;
    let cluster = cluster();
    let mounts = ["a", "b", "c"].map(|name| Mount::new(&cluster, name));
    fs::write(mounts[0].path("log"), "").expect("a new file");
    let append = |at: usize, mount: &Mount| {
        let mut file = OpenOptions::new().append(true).open(mount.path("log"))?;
        (0..ROUNDS).try_for_each(|round| {
            let record = (at as u64) << 32 | round;
            file.write_all(&record.to_le_bytes())
        })
    };
    assert_eq!(winners(&mounts, append), mounts.len());
    let all: Vec<u64> = (0..3)
        .flat_map(|at| (0..ROUNDS).map(move |it| at << 32 | it))
        .collect();
    for mount in &mounts {
        let bytes = fs::read(mount.path("log")).expect("a read");
        let word = |word: &[u8]| u64::from_le_bytes(word.try_into().expect("8 bytes"));
        let mut records: Vec<u64> = bytes.chunks(8).map(word).collect();
        records.sort_unstable();
        assert!(records == all, "{} bytes", bytes.len());
    }
}

/// With NOREPLACE one rename succeeds. Without it a later one replaces the file of an earlier one.
#[test]
fn mounts_rename_to_one_name() {
    const ROUNDS: usize = 20;
    let cluster = cluster();
    let mounts = ["a", "b", "c"].map(|name| Mount::new(&cluster, name));
    for (round, flags) in (0..ROUNDS).flat_map(|round| {
        let flags = [RenameFlags::NOREPLACE, RenameFlags::empty()];
        flags.map(|flags| (round, flags))
    }) {
        let source = |at: usize| format!("source{round}-{at}");
        for (at, mount) in mounts.iter().enumerate() {
            fs::write(mount.path(&source(at)), at.to_string()).expect("written");
        }
        let rename = |at: usize, mount: &Mount| {
            let (from, to) = (mount.path(&source(at)), mount.path("target"));
            Ok(renameat_with(CWD, from, CWD, to, flags)?)
        };
        let won = winners(&mounts, rename);
        let found = fs::read_to_string(mounts[0].path("target")).expect("it is there");
        let winner: usize = found.parse().expect("a number");
        let left = (0..mounts.len()).filter(|at| mounts[*at].path(&source(*at)).exists());
        let left: Vec<_> = left.collect();
        assert!(!left.contains(&winner), "round {round}: {left:?}");
        assert_eq!(left.len(), mounts.len() - won, "round {round}");
        if flags == RenameFlags::NOREPLACE {
            assert_eq!(won, 1, "round {round}");
        } else {
            assert_eq!(won, mounts.len(), "round {round}");
        }
        for path in left.iter().map(|at| source(*at)).chain(["target".into()]) {
            fs::remove_file(mounts[0].path(&path)).expect("it is there");
        }
    }
}
