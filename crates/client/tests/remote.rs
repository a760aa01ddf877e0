//! The tests of file systems, repeated on a cluster: operations are encoded, decoded and executed on a store.
#![forbid(unsafe_code)]
// The files of other tests run here again, over a remote file system; each loads the common modules.
#![expect(clippy::duplicate_mod)]

#[path = "acls.rs"]
mod acls;
mod common;
#[path = "copies.rs"]
mod copies;
#[path = "files.rs"]
mod files;
#[path = "flags.rs"]
mod flags;
#[path = "locks.rs"]
mod locks;
#[path = "maps.rs"]
mod maps;
#[path = "paths.rs"]
mod paths;
#[path = "ranges.rs"]
mod ranges;
#[path = "semantics.rs"]
mod semantics;
#[path = "unnamed.rs"]
mod unnamed;
#[path = "xattrs.rs"]
mod xattrs;

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use client::{
    FileSystem, Geometry, LOCK_END, Lock, LockKind, LockSpace, NotLocked, OpenFlags, PoolOptions,
    ROOT, Region,
};
use common::{loopback, make_file};
use store::Store;

/// Greatest time for what ends by itself.
const LONG: Duration = Duration::from_secs(120);

/// An empty pool of 16 MiB with a ring of 512 KiB.
fn store() -> Store {
    let region = Region::memory(16 << 20, false).unwrap();
    FileSystem::format_region(&region, &Geometry::for_length(16 << 20)).unwrap();
    Store::open(region, PoolOptions::default()).unwrap()
}

#[test]
fn a_session_knows_the_holds_that_it_would_resume_with() {
    let (fs, holds) = loopback::with_holds(store());
    make_file(&fs, "file", b"data");
    assert_eq!(holds(), []);
    let file = fs.open("file", OpenFlags::READ, 0).unwrap();
    fs.remove_file("file").unwrap();
    let held = holds();
    assert_eq!((held.len(), held[0].count), (1, 1));
    assert_eq!(file.read_at(&mut [0; 4], 0).unwrap(), 4);
    drop(file);
    assert_eq!(holds(), []);
}

fn lock(owner: u64) -> Lock {
    Lock {
        space: LockSpace::Ranges,
        kind: LockKind::Write,
        start: 0,
        end: LOCK_END,
        owner,
        handle: owner,
        process: owner as u32,
    }
}

/// While the cluster is asked for a lock that is waited for, the lock becomes free, the wait is cancelled, and the same owner
/// takes the lock by another call.
#[test]
fn a_cancelled_wait_takes_no_lock_from_its_owner() {
    let link = Arc::default();
    let user = loopback::behind(store(), &link).lock_user();
    assert!(user.take(ROOT, &lock(0)).unwrap());
    let (say, hear) = mpsc::channel();
    let wake = Box::new(move |ended: Result<bool, _>| say.send(ended.unwrap()).unwrap());
    let ticket = user.take_or_wait(ROOT, &lock(1), wake).unwrap().unwrap();
    link.cut_locks();
    thread::scope(|scope| {
        let freed = scope.spawn(|| user.give_back(ROOT, &lock(0)).unwrap());
        link.wait_for(1);
        user.cancel(ticket);
        assert_eq!(hear.recv(), Ok(false));
        let taken = scope.spawn(|| user.take(ROOT, &lock(1)).unwrap());
        link.cut(false);
        freed.join().unwrap();
        assert!(taken.join().unwrap());
    });
    let found = user.in_the_way(ROOT, &lock(2)).unwrap();
    assert_eq!(found.map(|it| it.owner), Some(1));
}

/// Owner 1 waits for a lock of owner 0. The wait ends while its repetition is on its way to the cluster: with the lock, or
/// cancelled.
#[test]
fn a_wait_that_ends_while_it_is_repeated_does_not_continue_in_the_cluster() {
    for is_cancelled in [true, false] {
        let link = Arc::default();
        let user = loopback::behind(store(), &link).lock_user();
        assert!(user.take(ROOT, &lock(0)).unwrap());
        let (say, hear) = mpsc::channel();
        let wake = Box::new(move |ended: Result<bool, _>| say.send(ended.unwrap()).unwrap());
        let ticket = user.take_or_wait(ROOT, &lock(1), wake).unwrap().unwrap();
        link.cut_waits();
        link.wait_for(1);
        match is_cancelled {
            true => user.cancel(ticket),
            false => user.give_back(ROOT, &lock(0)).unwrap(),
        }
        assert_eq!(hear.recv(), Ok(!is_cancelled));
        link.cut(false);
        assert_eq!(link.waits_left(), 0);
        let holder = user.in_the_way(ROOT, &lock(2)).unwrap();
        let is_held_by = if is_cancelled { 0 } else { 1 };
        assert_eq!(holder.map(|it| it.owner), Some(is_held_by));
    }
}

/// Two threads of owner 1 wait for one range; the first one takes it, which ends both waits in the cluster, and releases it.
#[test]
fn a_wait_that_another_thread_of_its_owner_has_ended_continues_in_the_cluster() {
    let link = Arc::default();
    let user = loopback::behind(store(), &link).lock_user();
    assert!(user.take(ROOT, &lock(0)).unwrap());
    let (say, hear) = mpsc::channel();
    let wake = Box::new(move |ended: Result<bool, _>| say.send(ended.unwrap()).unwrap());
    user.take_or_wait(ROOT, &lock(1), wake).unwrap().unwrap();
    link.end_waits();
    link.wait_for_kept(2);
    user.give_back(ROOT, &lock(0)).unwrap();
    assert_eq!(hear.recv_timeout(LONG), Ok(true));
    assert_eq!(link.waits_left(), 0);
}

/// Owner 0 waits for a lock of owner 1. Another primary, which does not know of it, lets owner 1 wait for owner 0.
#[test]
fn a_circle_of_waits_that_forms_after_a_takeover_is_reported() {
    let link = Arc::default();
    let user = loopback::behind(store(), &link).lock_user();
    let byte = |owner, at| Lock {
        start: at,
        end: at,
        ..lock(owner)
    };
    assert!(user.take(ROOT, &byte(0, 0)).unwrap() && user.take(ROOT, &byte(1, 1)).unwrap());
    let (say, hear) = mpsc::channel();
    let wait = |owner, at| {
        let say = say.clone();
        let wake = move |ended| say.send((owner, ended)).unwrap();
        let ticket = user.take_or_wait(ROOT, &byte(owner, at), Box::new(wake));
        ticket.unwrap().expect("another owner has the lock");
    };
    wait(0, 1);
    link.take_over();
    wait(1, 0);
    let (owner, ended) = hear.recv_timeout(LONG).expect("one of the waits ends");
    assert!(owner == 0 && matches!(ended, Err(NotLocked::Deadlock)));
    user.give_back(ROOT, &byte(0, 0)).unwrap();
    let (owner, ended) = hear
        .recv_timeout(LONG)
        .expect("the other one gets the lock");
    assert!(owner == 1 && matches!(ended, Ok(true)));
}

#[test]
fn writes_that_are_longer_than_one_change_come_in_parts() {
    let fs = loopback::file_system(store());
    let data: Vec<u8> = (0..3 << 20).map(|at: u32| (at >> 3) as u8).collect();
    make_file(&fs, "file", &data);
    assert_eq!(common::contents(&fs, "file"), data);
    // Not as blocks that both files have, since the ranges lie otherwise in their blocks.
    let create = OpenFlags {
        create: true,
        ..OpenFlags::WRITE
    };
    let copy = fs.open("copy", create, 0o644).unwrap();
    let file = fs.open("file", OpenFlags::READ, 0).unwrap();
    let mut done = 0;
    while done < 1 << 20 {
        let copied = file.copy_range(1 + done, &copy, done, (1 << 20) - done);
        let copied = copied.unwrap();
        assert!(copied > 0);
        done += copied;
    }
    assert!(common::contents(&fs, "copy") == data[1..][..1 << 20]);
}
