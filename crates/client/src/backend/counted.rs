//! A backend that many files refer to, without all of them counting on one line.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Backend;

/// Number of lines for counting.
const COUNTS: usize = 16;

/// A backend, with a reference count on a separate cache line (two: processors fetch them in pairs).
#[repr(align(128))]
pub(crate) struct Counted(Backend);

impl Deref for Counted {
    type Target = Backend;

    #[inline]
    fn deref(&self) -> &Backend {
        &self.0
    }
}

/// References to a backend. Each thread always uses the same one: its opens and closes are counted where few other
/// threads count.
#[derive(Clone)]
pub(crate) struct Counts(Arc<[Arc<Counted>]>);

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OWN: usize = THREADS.fetch_add(1, Ordering::Relaxed) % COUNTS;
}

impl Counts {
    pub(crate) fn new(backend: &Backend) -> Counts {
        let counted = |_| Arc::new(Counted(backend.clone()));
        Counts((0..COUNTS).map(counted).collect())
    }

    /// One more reference.
    #[inline]
    pub(crate) fn count(&self) -> Arc<Counted> {
        // A thread that is ending has lost its number.
        let own = OWN.try_with(|own| *own).unwrap_or(0);
        self.0[own].clone()
    }
}

#[cfg(test)]
mod tests {
    use pmem::Region;
    use store::{Geometry, Options, Store};

    use super::super::Embedded;
    use super::*;

    #[test]
    fn threads_count_apart() {
        let region = Region::memory(2 << 20, false).expect("memory");
        Store::format(&region, &Geometry::small()).expect("a pool");
        let store = Store::open(region, Options::default()).expect("a store");
        let counts = Counts::new(&Backend::Embedded(Embedded::new(Arc::new(store))));
        let own = counts.count();
        assert!(Arc::ptr_eq(&own, &counts.count()));
        let others =
            (0..8).map(|_| std::thread::scope(|scope| scope.spawn(|| counts.count()).join()));
        let others: Vec<_> = others
            .map(|other| other.expect("the thread ends"))
            .collect();
        let store = |counted: &Counted| {
            let Backend::Embedded(embedded) = &**counted else {
                panic!("the backend is embedded");
            };
            std::ptr::from_ref(embedded.store())
        };
        assert!(others.iter().all(|other| store(other) == store(&own)));
        let line = |counted: &Arc<Counted>| Arc::as_ptr(counted).addr() / 128;
        // Others may have come between, so that one or another has the same line.
        assert!(others.iter().any(|other| line(other) != line(&own)));
    }
}
