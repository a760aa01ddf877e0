//! Limits that the threads of all queues of a mount share.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Further threads of a mount, if there are descriptors enough.
const FURTHER_MAX: usize = 1024;
/// Descriptors of a further thread, as its part of those that are left: as many again are for others.
const SHARE: usize = 4;

pub(super) struct Limits {
    further_max: usize,
    further: AtomicUsize,
    waits_for_locks: AtomicUsize,
}

/// A wait for a lock, until it is dropped.
pub(super) struct LockWait<'a>(&'a Limits);

impl Limits {
    /// Raises the process's limit of descriptors as far as it may, and measures what is left.
    pub(super) fn of_process() -> io::Result<Limits> {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        // Then there are fewer threads.
        let _ = setrlimit(Resource::Nofile, raised);
        let allowed = getrlimit(Resource::Nofile).current;
        let allowed = allowed.map_or(usize::MAX, |it| it as usize);
        let open = fs::read_dir("/proc/self/fd")?.count();
        Ok(Limits::new(allowed.saturating_sub(open)))
    }

    fn new(descriptors: usize) -> Limits {
        Limits {
            further_max: FURTHER_MAX.min(descriptors / SHARE),
            further: AtomicUsize::new(0),
            waits_for_locks: AtomicUsize::new(0),
        }
    }

    /// Counts a further thread; false if there are too many.
    pub(super) fn add_further(&self) -> bool {
        raise(&self.further, self.further_max)
    }

    pub(super) fn remove_further(&self) {
        self.further.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a wait for a lock, which takes a thread; none if other requests would have too few left.
    pub(super) fn wait_for_lock(&self) -> Option<LockWait<'_>> {
        raise(&self.waits_for_locks, self.further_max / 2).then(|| LockWait(self))
    }
}

impl Drop for LockWait<'_> {
    fn drop(&mut self) {
        self.0.waits_for_locks.fetch_sub(1, Ordering::Relaxed);
    }
}

fn raise(count: &AtomicUsize, max: usize) -> bool {
    let next = |count| (count < max).then_some(count + 1);
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_locks_leave_threads_to_others() {
        let limits = Limits::new(8 * SHARE);
        let waits: Vec<LockWait<'_>> = std::iter::from_fn(|| limits.wait_for_lock()).collect();
        assert_eq!(waits.len(), 4);
        drop(waits);
        assert!(limits.wait_for_lock().is_some());
        let further = std::iter::from_fn(|| limits.add_further().then_some(()));
        assert_eq!(further.count(), 8);
        limits.remove_further();
        assert!(limits.add_further() && !limits.add_further());
        assert_eq!(Limits::new(usize::MAX).further_max, FURTHER_MAX);
    }
}
