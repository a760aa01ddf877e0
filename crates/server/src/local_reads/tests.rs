use std::sync::atomic::AtomicBool;
use std::thread;

use operations::{FileKind, WriteAt};
use protocol::member::Intent;
use store::{NewInode, Replica, Transaction};

use super::*;
use crate::UnitPool;
use crate::pool::tests::member_store;

const SESSION: u64 = 7;
const PERMIT: ReadPermit = ReadPermit {
    until: 1000,
    confirmed: u64::MAX,
};
const NOW: u64 = 999;
const FILE_LENGTH: usize = 64 << 10;

/// A pool of a unit that follows, and a file in it full of ones.
fn pool() -> (UnitPool, FileId) {
    let (region, store) = member_store(8 << 20);
    let mut transaction = Transaction::embedded();
    let new = NewInode::new(FileKind::Regular, 0o600);
    let node = store
        .names()
        .create(&mut transaction, &store.root(), b"file", &new);
    let node = node.expect("created");
    let data = [1; FILE_LENGTH];
    let written = store
        .files()
        .write(&mut transaction, &node, WriteAt::Offset(0), &data);
    written.expect("written");
    let file = store.inodes().attributes(&node).file(0);
    drop(Replica::from_store(store));
    let unit = protocol::UnitOptions::default();
    let pool =
        UnitPool::open(region, store::PoolOptions::default(), &unit).expect("opened for following");
    (pool, file)
}

fn open(pool: &mut UnitPool, epoch: u32) {
    let opened = pool.carry_out(Intent::OpenForWriting { epoch });
    opened.expect("opened for changes");
    pool.local_reads().set_session(SESSION);
    pool.local_reads().publish(PERMIT);
}

fn follow(pool: &mut UnitPool) {
    pool.carry_out(Intent::Follow).expect("it follows");
}

#[test]
fn a_read_needs_a_permit_for_its_session_and_for_its_time() {
    let (mut pool, file) = pool();
    let reads = pool.local_reads().clone();
    let mut into = [0; 100];
    assert!(reads.read(file, 0, &mut into, false).is_none());
    open(&mut pool, 3);
    let read = reads.read(file, FILE_LENGTH as u64 - 60, &mut into, false);
    let read = read.expect("it serves");
    assert_eq!(
        (read.count, &into[..61]),
        (60, &[[1; 60].as_slice(), &[0]].concat()[..])
    );
    assert!(reads.may_answer(&read, SESSION, NOW));
    assert!(!reads.may_answer(&read, SESSION + 1, NOW));
    assert!(!reads.may_answer(&read, SESSION, PERMIT.until));
    let confirmed = read.needs - 1;
    reads.publish(ReadPermit {
        confirmed,
        ..PERMIT
    });
    assert!(!reads.may_answer(&read, SESSION, NOW));
    reads.publish(PERMIT);
    assert!(reads.may_answer(&read, SESSION, NOW));
    follow(&mut pool);
    assert!(!reads.may_answer(&read, SESSION, NOW));
    open(&mut pool, 4);
    assert!(
        !reads.may_answer(&read, SESSION, NOW),
        "it is of an earlier term"
    );
    drop(pool);
    assert!(reads.read(file, 0, &mut into, false).is_none());
}

#[test]
fn a_file_that_another_session_owns_is_not_read() {
    let (mut pool, file) = pool();
    let reads = pool.local_reads().clone();
    open(&mut pool, 3);
    let owned_by = |session| {
        let inode = file.inode;
        reads.note_owners(&[OwnerChange { inode, session }]);
    };
    let mut into = [0; 100];
    let mut read = || reads.read(file, 0, &mut into, false);
    let before = read().expect("it has no owner");
    owned_by(Some(SESSION + 1));
    assert!(
        !reads.may_answer(&before, SESSION, NOW),
        "the owner may have answered writes since it began"
    );
    assert!(read().is_none());
    owned_by(None);
    assert!(reads.may_answer(&read().expect("it has no owner"), SESSION, NOW));
    owned_by(Some(SESSION));
    assert!(reads.may_answer(&read().expect("it is its own"), SESSION, NOW));
    owned_by(Some(SESSION + 1));
    follow(&mut pool);
    open(&mut pool, 4);
    assert!(read().is_some(), "owners name themselves to a new primary");
}

/// Two threads read while the pool changes its role: they get all of the data or nothing, and no change of role fails because
/// the store is in use.
#[test]
fn a_change_of_role_waits_for_reads() {
    let (mut pool, file) = pool();
    let reads = pool.local_reads().clone();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let read = || {
            let (mut into, mut count) = (vec![0; FILE_LENGTH], 0);
            while !is_over.load(Ordering::Acquire) {
                into.fill(0);
                if let Some(read) = reads.read(file, 0, &mut into, false) {
                    assert_eq!(read.count, FILE_LENGTH);
                    assert!(into.iter().all(|byte| *byte == 1));
                    count += 1;
                }
                thread::yield_now();
            }
            count
        };
        let readers = [scope.spawn(read), scope.spawn(read)];
        for epoch in 3..40 {
            open(&mut pool, epoch);
            thread::yield_now();
            follow(&mut pool);
        }
        // Also on a machine where the readers did not run meanwhile.
        open(&mut pool, 40);
        while reads.read(file, 0, &mut [0; 1], false).is_none() {}
        is_over.store(true, Ordering::Release);
        for reader in readers {
            reader.join().expect("no reader panics");
        }
    });
}
