//! [`Lender`]: a value that is lent out under numbers, without a reference count.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Lends a value to as many users as it has numbers. A loan can move to other threads, and outlives the lender. Lending
/// and returning execute no locked instruction, as a reference count would: a store each.
///
/// The value is dropped with the lender, or, if loans exist then, when another lender is made or dropped after all
/// loans were returned.
pub struct Lender<T: Send + Sync + 'static> {
    shared: NonNull<Shared<T>>,
}

/// Value that was lent under one number. Dropping it returns the loan.
pub struct Loan<T: Send + Sync + 'static> {
    shared: NonNull<Shared<T>>,
    number: u32,
}

struct Shared<T> {
    value: T,
    /// Flags by number. Only the lender sets them, only the loan clears them.
    lent: Box<[AtomicBool]>,
}

// SAFETY: it is the only lender of the value, which may go to other threads and be shared by them.
unsafe impl<T: Send + Sync> Send for Lender<T> {}
// SAFETY: what takes no `&mut` only loads.
unsafe impl<T: Send + Sync> Sync for Lender<T> {}
// SAFETY: the value is shared by all loans; the flag is cleared by the holder of this one.
unsafe impl<T: Send + Sync> Send for Loan<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Loan<T> {}

impl<T: Send + Sync> Lender<T> {
    /// Creates a lender for numbers below `count`.
    pub fn new(value: T, count: u32) -> Lender<T> {
        free_orphans();
        let shared = Box::new(Shared {
            value,
            lent: (0..count).map(|_| AtomicBool::new(false)).collect(),
        });
        Lender {
            shared: NonNull::from(Box::leak(shared)),
        }
    }

    #[inline]
    fn shared(&self) -> &Shared<T> {
        // SAFETY: it is freed when the lender is dropped or later, and no `&mut` of it is made before.
        unsafe { self.shared.as_ref() }
    }

    /// Whether a loan under this number was not returned yet. If it was, all accesses through it happened before.
    ///
    /// # Panics
    /// If the number is out of range.
    #[inline]
    pub fn is_lent(&self, number: u32) -> bool {
        self.shared().lent[number as usize].load(Ordering::Acquire)
    }

    /// Lends it.
    ///
    /// # Panics
    /// If the number is out of range or in use.
    #[inline]
    pub fn lend(&mut self, number: u32) -> Loan<T> {
        let lent = &self.shared().lent[number as usize];
        assert!(
            !lent.load(Ordering::Relaxed),
            "number {number} is lent already"
        );
        lent.store(true, Ordering::Relaxed);
        Loan {
            shared: self.shared,
            number,
        }
    }
}

impl<T: Send + Sync> Deref for Lender<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.shared().value
    }
}

impl<T: Send + Sync> Drop for Lender<T> {
    fn drop(&mut self) {
        let orphan = Orphan {
            shared: self.shared.cast(),
            is_returned: is_returned::<T>,
            free: free::<T>,
        };
        ORPHANS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(orphan);
        free_orphans();
    }
}

impl<T: Send + Sync> Loan<T> {
    /// Its number.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl<T: Send + Sync> Deref for Loan<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: it is not freed while the flag of this number is set, which only the drop of this clears.
        unsafe { &self.shared.as_ref().value }
    }
}

impl<T: Send + Sync> Drop for Loan<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in `deref`. With the store it may be freed at once, and nothing of it is touched after that.
        unsafe {
            let lent: *const AtomicBool =
                &raw const self.shared.as_ref().lent[self.number as usize];
            (*lent).store(false, Ordering::Release);
        }
    }
}

/// A value without its lender.
struct Orphan {
    shared: NonNull<()>,
    is_returned: unsafe fn(NonNull<()>) -> bool,
    free: unsafe fn(NonNull<()>),
}

// SAFETY: it is of a `T` that is `Send` and `Sync`.
unsafe impl Send for Orphan {}

static ORPHANS: Mutex<Vec<Orphan>> = Mutex::new(Vec::new());

/// # Safety
/// It must be the `Shared<T>` of a lender, not yet freed.
unsafe fn is_returned<T>(shared: NonNull<()>) -> bool {
    // SAFETY: the caller's promise.
    let shared = unsafe { shared.cast::<Shared<T>>().as_ref() };
    // Acquire: all that was done with the loans happened before it is freed.
    shared.lent.iter().all(|lent| !lent.load(Ordering::Acquire))
}

/// # Safety
/// Requirements as for [`is_returned`], which was true; and the lender is gone, so it stays true. The value is not used
/// after this.
unsafe fn free<T>(shared: NonNull<()>) {
    // SAFETY: it was made by `Box::leak`, and of those that pointed to it none is left.
    drop(unsafe { Box::from_raw(shared.cast::<Shared<T>>().as_ptr()) });
}

/// Frees values returned since. One thread removes each from the list first.
fn free_orphans() {
    let returned: Vec<Orphan> = ORPHANS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        // SAFETY: values in the list are not freed.
        .extract_if(.., |orphan| unsafe { (orphan.is_returned)(orphan.shared) })
        .collect();
    // Not under the lock: the value may be anything, also another lender.
    for orphan in returned {
        // SAFETY: it is not lent any more, all loans have been returned, and it is not in the list.
        unsafe { (orphan.free)(orphan.shared) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_lent_value_stays_until_it_is_returned() {
        let value = Arc::new("lent");
        let mut lender = Lender::new(value.clone(), 2);
        let loans = [lender.lend(1), lender.lend(0)];
        assert!(lender.is_lent(0) && lender.is_lent(1));
        let again = std::panic::AssertUnwindSafe(|| lender.is_lent(2));
        assert!(std::panic::catch_unwind(again).is_err());
        let [one, zero] = loans;
        assert_eq!((one.number(), **one, **lender), (1, "lent", "lent"));
        drop(one);
        assert!(lender.is_lent(0) && !lender.is_lent(1));
        let one = lender.lend(1);
        drop(lender);
        drop(one);
        drop(Lender::new((), 0));
        assert_eq!(Arc::strong_count(&value), 2, "it is lent once more");
        assert_eq!(**zero, "lent");
        std::thread::spawn(move || drop(zero)).join().unwrap();
        drop(Lender::new((), 0));
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn nothing_is_lent_twice_under_one_number() {
        let mut lender = Lender::new((), 1);
        let _loan = lender.lend(0);
        let again = std::panic::AssertUnwindSafe(|| drop(lender.lend(0)));
        assert!(std::panic::catch_unwind(again).is_err());
    }

    #[test]
    fn loans_go_to_other_threads_and_come_back() {
        let value = Arc::new(());
        let mut lender = Lender::new(value.clone(), 16);
        let (give, take) = std::sync::mpsc::channel::<Loan<Arc<()>>>();
        let thread = std::thread::spawn(move || take.iter().fold(0, |count, _loan| count + 1));
        for turn in 0..10_000u32 {
            let number = turn % 16;
            while lender.is_lent(number) {
                std::thread::yield_now();
            }
            give.send(lender.lend(number)).unwrap();
        }
        drop(lender);
        drop(give);
        assert_eq!(thread.join().unwrap(), 10_000);
        drop(Lender::new((), 0));
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
