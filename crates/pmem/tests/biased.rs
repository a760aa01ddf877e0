//! The lock with readers that share no line and a single writer that owns it, by threads.
#![forbid(unsafe_code)]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use pmem::BiasedLock;

/// More reads than it takes for readers to note themselves, however many threads ever were.
const MANY: usize = 10_000;
/// In which a writer would write if it did not wait.
const MOMENT: Duration = Duration::from_millis(20);

fn biased<T>(value: T) -> BiasedLock<T> {
    let lock = BiasedLock::new(value);
    for _ in 0..MANY {
        drop(lock.read());
    }
    lock
}

/// As above, for writes: more than are needed for their thread to own the lock.
fn write_often(lock: &BiasedLock<u64>) {
    for _ in 0..MANY {
        *lock.write() += 1;
    }
}

#[test]
fn no_thread_is_beside_the_owner() {
    let lock = BiasedLock::new(0);
    write_often(&lock);
    let mut held = lock.write();
    assert!(lock.try_write().is_none());
    thread::scope(|scope| {
        let (send, receive) = channel();
        for reads in [false, true] {
            let (lock, send) = (&lock, send.clone());
            scope.spawn(move || {
                if reads {
                    assert!(*lock.read() > MANY as u64);
                } else {
                    *lock.write() += 1;
                }
                send.send(()).expect("somebody waits");
            });
        }
        let tried = scope.spawn(|| lock.try_write().is_none());
        assert!(tried.join().expect("it ends"));
        assert!(receive.recv_timeout(MOMENT).is_err());
        *held += 1;
        drop(held);
        for _ in 0..2 {
            receive.recv().expect("they have it now");
        }
    });
    assert_eq!(*lock.read(), MANY as u64 + 2);
}

#[test]
fn an_owner_reads_and_others_come_who_do_not_wait() {
    let lock = BiasedLock::new(0);
    write_often(&lock);
    let read = lock.read();
    thread::scope(|scope| {
        let tried = scope.spawn(|| lock.try_write().is_none());
        assert!(tried.join().expect("it ends"));
    });
    assert_eq!(*read, MANY as u64);
    drop(read);
    thread::scope(|scope| {
        scope.spawn(|| *lock.try_write().expect("it is free") += 1);
    });
    write_often(&lock);
    assert_eq!(*lock.read(), 2 * MANY as u64 + 1);
}

#[test]
fn an_owner_of_more_locks_than_it_can_note() {
    let locks: Vec<_> = (0..12).map(|_| BiasedLock::new(0)).collect();
    locks.iter().for_each(write_often);
    for _ in 0..3 {
        let mut guards: Vec<_> = locks.iter().map(BiasedLock::write).collect();
        guards.iter_mut().for_each(|value| **value += 1);
        thread::scope(|scope| {
            let taken = || locks.iter().filter(|lock| lock.try_write().is_none());
            let other = scope.spawn(move || taken().count());
            assert_eq!(other.join().expect("it ends"), locks.len());
        });
    }
    assert!(locks.iter().all(|lock| *lock.read() == MANY as u64 + 3));
}

#[test]
fn owners_come_and_go() {
    let lock = BiasedLock::new([0_u64; 32]);
    let (rounds, often) = (40, 3_000);
    let write = || {
        let mut value = lock.write();
        let next = value[0] + 1;
        assert_eq!([value[0]; 32], *value);
        value.iter_mut().for_each(|word| *word = next);
    };
    thread::scope(|scope| {
        scope.spawn(|| (0..rounds * often).for_each(|_| write()));
        scope.spawn(|| {
            for _ in 0..rounds {
                thread::yield_now();
                (0..10).for_each(|_| write());
                let value = lock.read();
                assert_eq!([value[0]; 32], *value);
            }
        });
    });
    assert_eq!(lock.read()[0], rounds * (often + 10));
}

#[test]
fn a_writer_waits_for_one_that_stays() {
    let lock = BiasedLock::new(0);
    let mut held = lock.write();
    thread::scope(|scope| {
        let (send, receive) = channel();
        let lock = &lock;
        scope.spawn(move || {
            *lock.write() += 1;
            send.send(()).expect("somebody waits");
        });
        assert!(receive.recv_timeout(MOMENT).is_err());
        *held += 1;
        drop(held);
        receive.recv().expect("the writer writes");
    });
    assert_eq!(*lock.read(), 2);
}

#[test]
fn writers_are_alone_and_readers_see_what_they_left() {
    let lock = BiasedLock::new([0_u64; 32]);
    let written = AtomicUsize::new(0);
    let (writers, readers, rounds) = (2, 3, 5_000);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writing = (0..writers).map(|_| {
            scope.spawn(|| {
                for round in 0..rounds {
                    let mut value = lock.write();
                    let next = value[0] + 1;
                    value.iter_mut().for_each(|word| *word = next);
                    drop(value);
                    written.fetch_add(1, Ordering::Release);
                    // Now and then long enough for the readers to note themselves.
                    if round % 64 == 0 {
                        thread::yield_now();
                    }
                }
            })
        });
        let writing: Vec<_> = writing.collect();
        let reading = (0..readers).map(|_| {
            scope.spawn(|| {
                let mut last = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let at_least = written.load(Ordering::Acquire) as u64;
                    let value = lock.read();
                    assert!(value[0] >= last.max(at_least));
                    assert_eq!([value[0]; 32], *value);
                    last = value[0];
                }
            })
        });
        let reading: Vec<_> = reading.collect();
        for thread in writing {
            thread.join().expect("a writer");
        }
        is_over.store(true, Ordering::Relaxed);
        for thread in reading {
            thread.join().expect("a reader");
        }
    });
    assert_eq!(lock.read()[0], writers * rounds);
}

#[test]
fn a_writer_waits_for_each_reader() {
    let lock = biased(0);
    let (first, second) = (lock.read(), lock.read());
    let (reading, leave) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let _other = lock.read();
            reading.wait();
            leave.wait();
        });
        reading.wait();
        let (send, receive) = channel();
        let lock = &lock;
        scope.spawn(move || {
            *lock.write() += 1;
            send.send(()).expect("somebody waits");
        });
        let waits = || receive.recv_timeout(MOMENT).is_err();
        let for_two = waits() && *first == 0;
        drop(first);
        let for_one = waits() && *second == 0;
        drop(second);
        let for_the_other = waits();
        leave.wait();
        assert!(for_two && for_one && for_the_other);
        receive.recv().expect("the writer writes");
    });
    assert_eq!(*lock.read(), 1);
}

#[test]
fn a_writer_that_does_not_wait_leaves_readers_alone() {
    let lock = biased(0);
    let reader = lock.read();
    for _ in 0..2 {
        assert!(lock.try_write().is_none());
    }
    thread::scope(|scope| {
        let (send, receive) = channel();
        let lock = &lock;
        scope.spawn(move || {
            let mut value = lock.write();
            *value += 1;
            send.send(()).expect("somebody waits");
        });
        // The writer that gave up has not made another one forget to wait.
        assert!(receive.recv_timeout(MOMENT).is_err());
        assert_eq!(*reader, 0);
        drop(reader);
        receive.recv().expect("the writer writes");
    });
    *lock.try_write().expect("it is free") += 1;
    let mut held = lock.write();
    assert!(lock.try_write().is_none());
    *held += 1;
    drop(held);
    assert_eq!(*lock.read(), 3);
}

#[test]
fn a_thread_reads_more_locks_than_it_can_note() {
    let locks: Vec<_> = (0..20).map(biased).collect();
    let mut guards: Vec<_> = locks.iter().map(BiasedLock::read).collect();
    let nobody_writes = || {
        thread::scope(|scope| {
            let taken = || locks.iter().filter(|lock| lock.try_write().is_none());
            let other = scope.spawn(move || taken().count());
            other.join().expect("the thread ends")
        })
    };
    assert_eq!(nobody_writes(), 20);
    // In another order than they came.
    drop(guards.drain(3..11));
    assert_eq!(nobody_writes(), 12);
    assert!(guards.iter().all(|value| **value < 3 || **value >= 11));
    drop(guards);
    assert_eq!(nobody_writes(), 0);
}

#[test]
fn more_threads_than_lines() {
    let lock = biased(0);
    let threads = 300;
    let (reading, leave) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let reader = lock.read();
                reading.wait();
                assert_eq!(*reader, 0);
                leave.wait();
            });
        }
        reading.wait();
        assert!(lock.try_write().is_none());
        leave.wait();
        *lock.write() += 1;
    });
    assert_eq!(*lock.read(), 1);
    // Their lines are used again.
    let lock = biased(7);
    let other = thread::scope(|scope| {
        let reads = || (0..MANY).map(|_| *lock.read()).max();
        scope.spawn(reads).join().expect("the thread ends")
    });
    assert_eq!(other, Some(7));
}
