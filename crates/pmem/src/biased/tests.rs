//! When a writer takes a lock that another one uses.

use std::cell::Cell;

use super::*;

/// How often a writer polls a free lock that another one has written to before each of the first `busy` polls, and
/// whether it takes it.
fn looks(busy: usize) -> (usize, bool) {
    let (lock, looks) = (BiasedLock::new(0), Cell::new(0));
    let taken = lock.let_write(|_| {
        if looks.get() < busy {
            drop(lock.write());
        }
        looks.set(looks.get() + 1);
    });
    (looks.get(), taken.is_some())
}

#[test]
fn one_that_writes_again_and_again_is_let_do_so() {
    assert_eq!(looks(0), (1, true));
    assert_eq!(looks(1), (2, true));
    assert_eq!(looks(3), (4, true));
    assert_eq!(looks(RESTS.len()), (RESTS.len(), false));
}

#[test]
fn one_that_stays_is_waited_for() {
    let lock = BiasedLock::new(0);
    let held = lock.write();
    assert!(lock.let_write(|_| {}).is_none());
    assert!(lock.look_often().is_none());
    drop(held);
    let taken = lock.let_write(|_| {});
    assert!(taken.is_some() && lock.look_often().is_none());
    drop(taken);
    assert!(lock.look_often().is_some());
}
