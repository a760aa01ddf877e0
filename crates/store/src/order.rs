//! Locks that know their rank in the lock order of `docs/ARCHITECTURE.md`.
//!
//! With debug assertions a thread that takes a lock out of order panics, whether or not another thread is in its way just
//! then: two threads that take two locks in different orders wait for each other some day. Without, nothing is left of it.

use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Position of a lock in the order. A thread that holds one may wait for later ones only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Lock of renames between directories.
    Renames,
    /// Lock of an inode, by number.
    Inode(u64),
    /// Lock of the owner counts.
    Owners,
    /// Lock of the file that receives a change's reply.
    ReplyFile,
    /// Lock of the block that receives the reply.
    Reply,
    /// Lock of the thread that reclaims a part of the ring.
    Reclaiming,
    /// Lock of one of the tables of nodes.
    Table,
    /// Lock of a group, by number.
    Group(u64),
}

/// A lock with its rank.
#[derive(Debug)]
pub struct Ordered<L> {
    lock: L,
    #[cfg(debug_assertions)]
    rank: Rank,
}

/// A held lock, which gives access to the protected value.
#[derive(Debug)]
pub struct Guard<G> {
    // Dropped first.
    guard: G,
    _turn: Turn,
}

/// An inode that is locked for reading.
pub type ReadGuard<'a, T> = Guard<RwLockReadGuard<'a, T>>;
/// A value that is locked for writing.
pub type WriteGuard<'a, T> = Guard<RwLockWriteGuard<'a, T>>;
/// A value that is locked exclusively.
pub type LockGuard<'a, T> = Guard<MutexGuard<'a, T>>;

impl<L> Ordered<L> {
    #[inline]
    fn wait(&self) -> Turn {
        #[cfg(debug_assertions)]
        return Turn::wait(self.rank);
        #[cfg(not(debug_assertions))]
        Turn {}
    }

    #[inline]
    fn take(&self) -> Turn {
        #[cfg(debug_assertions)]
        return Turn::take(self.rank);
        #[cfg(not(debug_assertions))]
        Turn {}
    }

    #[inline]
    fn with(lock: L, rank: Rank) -> Ordered<L> {
        let _ = rank;
        Ordered {
            lock,
            #[cfg(debug_assertions)]
            rank,
        }
    }
}

impl<T> Ordered<RwLock<T>> {
    /// A lock that several may have for reading.
    pub fn rw_lock(rank: Rank, value: T) -> Ordered<RwLock<T>> {
        Ordered::with(RwLock::new(value), rank)
    }

    /// Waits for it, for reading.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let turn = self.wait();
        Guard::new(self.lock.read(), turn)
    }

    /// Waits for it, for writing.
    #[inline]
    pub fn write(&self) -> WriteGuard<'_, T> {
        let turn = self.wait();
        Guard::new(self.lock.write(), turn)
    }

    /// Waits for it, for reading, after all others of its kind.
    #[inline]
    pub fn read_at(&self, rank: Rank) -> ReadGuard<'_, T> {
        let turn = Turn::wait(rank);
        Guard::new(self.lock.read(), turn)
    }

    /// Whether a thread has it for writing, or waits for its readers: then no further one gets it.
    #[cfg(test)]
    pub fn has_writer(&self) -> bool {
        self.lock.try_read().is_none()
    }

    /// Takes the lock for writing if that needs no waiting: allowed in any order.
    pub fn try_write(&self) -> Option<WriteGuard<'_, T>> {
        let guard = self.lock.try_write()?;
        Some(Guard::new(guard, self.take()))
    }
}

impl<T> Ordered<Mutex<T>> {
    /// A lock that one may have.
    pub fn mutex(rank: Rank, value: T) -> Ordered<Mutex<T>> {
        Ordered::with(Mutex::new(value), rank)
    }

    /// Locks the mutex and asserts the order of locks.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_, T> {
        let turn = self.wait();
        Guard::new(self.lock.lock(), turn)
    }

    /// Takes it if that needs no waiting: in any order.
    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        let guard = self.lock.try_lock()?;
        Some(Guard::new(guard, self.take()))
    }
}

impl<G> Guard<G> {
    #[inline]
    fn new(guard: G, turn: Turn) -> Guard<G> {
        Guard { guard, _turn: turn }
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// That a thread holds a lock.
#[derive(Debug)]
struct Turn {
    #[cfg(debug_assertions)]
    rank: Rank,
}

#[cfg(debug_assertions)]
thread_local! {
    /// The ranks of the locks that the thread holds.
    static HELD: std::cell::RefCell<Vec<Rank>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl Turn {
    /// Before a lock is waited for.
    #[inline]
    fn wait(rank: Rank) -> Turn {
        #[cfg(debug_assertions)]
        HELD.with_borrow(|held| {
            let later = held.iter().find(|other| **other >= rank);
            assert!(
                later.is_none(),
                "a thread that holds {later:?} waits for {rank:?}: see the lock order in docs/ARCHITECTURE.md"
            );
        });
        Turn::take(rank)
    }

    /// A lock is held.
    #[inline]
    fn take(rank: Rank) -> Turn {
        #[cfg(debug_assertions)]
        HELD.with_borrow_mut(|held| held.push(rank));
        let _ = rank;
        Turn {
            #[cfg(debug_assertions)]
            rank,
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Turn {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| {
            let at = held.iter().rposition(|rank| *rank == self.rank);
            held.remove(at.expect("what is held was taken"));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_order() {
        let inode = |number| Ordered::rw_lock(Rank::Inode(number), 0);
        let (first, second) = (inode(1), inode(2));
        let group = Ordered::mutex(Rank::Group(0), 0);
        *first.write() += 1;
        let held = (first.read(), second.write(), group.lock());
        drop(held);
        // Against the order without waiting.
        let held = second.write();
        let other = first.try_write().expect("it is free");
        assert_eq!(*other, 1);
        drop((held, other));
        let (_held, _other) = (first.read(), second.read());
    }

    #[cfg(debug_assertions)]
    #[test]
    fn locks_out_of_order_are_noticed() {
        let inode = |number| Ordered::rw_lock(Rank::Inode(number), 0);
        let (first, second) = (inode(1), inode(2));
        let noticed = |work: &dyn Fn()| {
            let work = std::panic::AssertUnwindSafe(work);
            std::panic::catch_unwind(work).is_err()
        };
        assert!(noticed(&|| {
            let _held = second.read();
            drop(first.write());
        }));
        // A reader that reads again waits for a writer between.
        assert!(noticed(&|| {
            let _held = first.read();
            drop(first.read());
        }));
        // A violation of the order still releases the lock.
        drop(first.write());
    }
}
