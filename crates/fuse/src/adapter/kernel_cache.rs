//! The kernel's caches of a file system that other processes change too: names and attributes, for as long as the
//! session has leases of them, and until they are recalled.
//!
//! ```text
//!   recall ──► count it ──► wait until answers that promise something are with the kernel ──► expire ──► answer the recall
//! ```
//! A recall that is counted before the answer to an earlier request is given makes that answer promise nothing. The
//! kernel may process an answer after the expiry that follows it. What makes that harmless is in `docs/PROTOCOL.md`,
//! "Answers in flight expire with the recall".
//!
//! To expire names the kernel locks their directory, and a change in it may hold that lock and wait for another mount:
//! names have a separate thread, and the cluster waits for it no longer than the lease lasts. Where that took long,
//! names are not cached for a while.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use client::Attributes;
use client::leases::{Recall, Validity};
use parking_lot::{Condvar, Mutex};

use super::Adapter;
use crate::Notifier;

/// Names that the kernel may keep, at most.
const NAMES_MAX: usize = 1 << 17;
/// The kernel processes an answer within this time, if it may accept it after an expiry.
const SETTLES_WITHIN: Duration = Duration::from_millis(5);
/// Lookups of names that the kernel has are answered without a promise for so long after a recall of their directory.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// Names are remembered for so much longer than they may be kept: the kernel begins to count when the caller runs.
const BEGINS_WITHIN: Duration = Duration::from_secs(1);
/// No lease is longer.
const LEASE_MAX: Duration = Duration::from_secs(1);
/// Polling interval of a thread that waits for answers in flight, if it misses one, or for an inode to be known.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// A directory with names that took longer to expire is in use by others, too: its names are not cached for
/// [`CONTENDED_FOR`].
const CONTENDED_AFTER: Duration = Duration::from_millis(20);
const CONTENDED_FOR: Duration = Duration::from_secs(10);

thread_local! {
    /// Recalls before the request that this thread serves.
    static BEGAN: Cell<u64> = const { Cell::new(0) };
    /// The counter that this thread has raised.
    static RAISED: Cell<Option<usize>> = const { Cell::new(None) };
    /// The answer promises a name that the kernel may have.
    static IS_AGAIN: Cell<bool> = const { Cell::new(false) };
}

/// Names of a directory that the kernel may keep.
#[derive(Default)]
struct Names {
    names: HashSet<Vec<u8>>,
    until: Option<Instant>,
}

#[derive(Default)]
struct Directories {
    names: HashMap<u64, Names>,
    count: usize,
    contended: HashMap<u64, Instant>,
    /// Names of a directory that are being expired.
    expiring: HashMap<u64, HashSet<Vec<u8>>>,
    /// Directories that were recalled, and until when they are considered shared.
    shared: HashMap<u64, Instant>,
}

pub(super) struct KernelCache {
    /// The kernel can be made to ask for a name again.
    expires_names: AtomicBool,
    /// Number of recalls so far.
    recalls: AtomicU64,
    /// Answers that promise something and are not with the kernel yet, after an even and an odd number of recalls.
    answering: [AtomicUsize; 2],
    /// When the last one was given to the kernel that it may accept after an expiry, in nanoseconds since the start.
    answered_at: AtomicU64,
    start: Instant,
    /// An answer was given to the kernel.
    answered: Condvar,
    waiting: Mutex<()>,
    directories: Mutex<Directories>,
}

impl KernelCache {
    pub(super) fn new() -> KernelCache {
        KernelCache {
            expires_names: AtomicBool::new(false),
            recalls: AtomicU64::new(0),
            answering: Default::default(),
            answered_at: AtomicU64::new(0),
            start: Instant::now(),
            answered: Condvar::new(),
            waiting: Mutex::default(),
            directories: Mutex::default(),
        }
    }

    /// Names may be kept from now on.
    pub(super) fn keep_names(&self) {
        self.expires_names.store(true, Ordering::Relaxed);
    }

    /// This thread begins to serve a request.
    pub(super) fn begin(&self) {
        BEGAN.set(self.recalls.load(Ordering::SeqCst));
        IS_AGAIN.set(false);
        Validity::reset();
    }

    /// Validity that an answer may promise, from the last call of this thread. Then [`KernelCache::sent`] has to be called.
    pub(super) fn validity(&self) -> Validity {
        if RAISED.get().is_none() {
            let began = BEGAN.get();
            let parity = (began % 2) as usize;
            self.answering[parity].fetch_add(1, Ordering::SeqCst);
            if self.recalls.load(Ordering::SeqCst) != began {
                self.answering[parity].fetch_sub(1, Ordering::SeqCst);
                return Validity::default();
            }
            RAISED.set(Some(parity));
        }
        Validity::of_last()
    }

    /// Whether [`KernelCache::sent`] has to be called.
    pub(super) fn is_awaited(&self) -> bool {
        RAISED.get().is_some()
    }

    /// The answer of this thread is with the kernel.
    pub(super) fn sent(&self) {
        if let Some(parity) = RAISED.take() {
            if IS_AGAIN.get() || !self.expires_names.load(Ordering::Relaxed) {
                let now = self.start.elapsed().as_nanos() as u64;
                self.answered_at.fetch_max(now, Ordering::SeqCst);
            }
            self.answering[parity].fetch_sub(1, Ordering::SeqCst);
            self.answered.notify_one();
        }
    }

    /// How long the kernel may cache a name, found or not, within the lease. It is remembered. `is_again` states that the
    /// kernel may have the name, and asks without the directory's lock.
    pub(super) fn name(
        &self,
        directory: u64,
        name: &[u8],
        left: Duration,
        is_again: bool,
    ) -> Duration {
        if left.is_zero() || !self.expires_names.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let mut directories = self.directories.lock();
        let directories = &mut *directories;
        let is_now = |until: Option<&Instant>| until.is_some_and(|until| now < *until);
        let is_refused = is_now(directories.contended.get(&directory))
            || is_again && is_now(directories.shared.get(&directory));
        if directories.count >= NAMES_MAX {
            directories.forget_ended(now);
        }
        if is_refused || directories.count >= NAMES_MAX {
            return Duration::ZERO;
        }
        IS_AGAIN.set(is_again);
        directories.remember(directory, name, now, left);
        left
    }

    /// The kernel is renaming: it keeps the new name for as long as the former one.
    pub(super) fn renames(&self, (from, name): (u64, &[u8]), (to, new): (u64, &[u8])) {
        let mut directories = self.directories.lock();
        let is_of = |names: &HashSet<Vec<u8>>| names.contains(name);
        let is_kept = directories
            .names
            .get(&from)
            .is_some_and(|it| is_of(&it.names));
        if is_kept || directories.expiring.get(&from).is_some_and(is_of) {
            directories.remember(to, new, Instant::now(), LEASE_MAX);
        }
    }

    /// From now on no answer to a request that began before promises anything. Waits until earlier promises have
    /// reached the kernel, or the mount has ended.
    fn count_recall(&self, has_ended: impl Fn() -> bool) {
        let before = self.recalls.fetch_add(1, Ordering::SeqCst);
        let answering = &self.answering[(before % 2) as usize];
        while answering.load(Ordering::SeqCst) > 0 && !has_ended() {
            self.wait_for_answer();
        }
    }

    fn wait_for_answer(&self) {
        let mut waiting = self.waiting.lock();
        self.answered.wait_for(&mut waiting, LOOK_EVERY);
    }

    /// Waits until the kernel has processed the answers that it may accept after an expiry.
    fn settle(&self) {
        let mut waiting = self.waiting.lock();
        let last = Duration::from_nanos(self.answered_at.load(Ordering::SeqCst));
        let settled = self.start + last + SETTLES_WITHIN;
        while !self.answered.wait_until(&mut waiting, settled).timed_out() {}
    }

    /// Names of a directory to be expired. Those that were taken before have been.
    fn take_names(&self, directory: u64) -> HashSet<Vec<u8>> {
        let now = Instant::now();
        let mut directories = self.directories.lock();
        directories.shared.retain(|_, until| now < *until);
        directories.shared.insert(directory, now + SHARED_FOR);
        let taken = directories.names.remove(&directory).unwrap_or_default();
        directories.count -= taken.names.len();
        match taken.names.is_empty() {
            true => directories.expiring.remove(&directory),
            false => directories.expiring.insert(directory, taken.names.clone()),
        };
        taken.names
    }

    fn note_contended(&self, directory: u64) {
        let now = Instant::now();
        let mut directories = self.directories.lock();
        directories.contended.retain(|_, until| now < *until);
        directories.contended.insert(directory, now + CONTENDED_FOR);
    }
}

impl Directories {
    fn remember(&mut self, directory: u64, name: &[u8], now: Instant, left: Duration) {
        let known = self.names.entry(directory).or_default();
        if known.until.is_some_and(|until| until < now) {
            self.count -= known.names.len();
            known.names.clear();
        }
        if known.names.insert(name.to_vec()) {
            self.count += 1;
        }
        // The kernel begins to count a little later.
        known.until = known.until.max(Some(now + left + BEGINS_WITHIN));
    }

    fn forget_ended(&mut self, now: Instant) {
        self.names
            .retain(|_, it| it.until.is_some_and(|until| now <= until));
        self.count = self.names.values().map(|it| it.names.len()).sum();
    }
}

impl Adapter {
    /// Starts the threads that make the kernel drop recalled contents. They end with [`Adapter::end_recalls`].
    pub(crate) fn start_recalls(
        adapter: &Arc<Adapter>,
        notifier: &Notifier,
    ) -> io::Result<Vec<JoinHandle<()>>> {
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.into()).spawn(work)
        };
        let mut threads = Vec::new();
        if let Some(shared) = &adapter.shared {
            let (drop_pages, listed) = mpsc::channel();
            shared.begin(notifier.clone(), drop_pages);
            let weak = Arc::downgrade(adapter);
            threads.push(start(
                "tako-pages",
                Box::new(move || drop_listed(&listed, &weak)),
            )?);
        }
        if !adapter.keeps {
            return Ok(threads);
        }
        let (take, recalls) = mpsc::channel::<Recall>();
        let (take_names, of_names) = mpsc::channel::<Recall>();
        let (weak, own) = (Arc::downgrade(adapter), notifier.clone());
        let names = start(
            "tako-names",
            Box::new(move || expire_names(&of_names, &weak, &own)),
        )?;
        let (weak, own) = (Arc::downgrade(adapter), notifier.clone());
        let inodes = start(
            "tako-recalls",
            Box::new(move || expire_inodes(&recalls, &take_names, &weak, &own)),
        )?;
        let listener = move |recall| {
            // The thread is there as long as the listener.
            let _ = take.send(recall);
        };
        adapter.file_system.on_recall(Some(Box::new(listener)));
        threads.extend([inodes, names]);
        Ok(threads)
    }

    /// The kernel keeps nothing any more: the mount has ended.
    pub(crate) fn end_recalls(&self) {
        if let Some(shared) = &self.shared {
            shared.end();
        }
        self.file_system.on_recall(None);
    }
}

fn expire_inodes(
    recalls: &Receiver<Recall>,
    of_names: &Sender<Recall>,
    adapter: &Weak<Adapter>,
    notifier: &Notifier,
) {
    for recall in recalls {
        let Some(adapter) = adapter.upgrade() else {
            return;
        };
        adapter.keeping.count_recall(|| adapter.has_ended());
        if let Some(shared) = &adapter.shared {
            shared.recalled(recall.number);
        }
        expire_attributes(&adapter, notifier, recall.number);
        if recall.has_entries {
            let _ = of_names.send(recall);
        } else {
            adapter.file_system.invalidated(&recall);
        }
    }
}

/// Makes the kernel ask for attributes again. It may be about to create the inode, by an answer that was given to it.
fn expire_attributes(adapter: &Adapter, notifier: &Notifier, number: u64) {
    if !adapter.keeping.expires_names.load(Ordering::Relaxed) {
        adapter.keeping.settle();
    }
    let until = Instant::now() + BEGINS_WITHIN;
    // The notification fails where the mount has ended.
    while let Ok(false) = notifier.attributes_expired(number) {
        // The lease ends by then.
        if !adapter.file_system.is_held(number) || Instant::now() >= until {
            return;
        }
        adapter.keeping.wait_for_answer();
    }
}

fn expire_names(recalls: &Receiver<Recall>, adapter: &Weak<Adapter>, notifier: &Notifier) {
    for recall in recalls {
        let Some(adapter) = adapter.upgrade() else {
            return;
        };
        adapter.keeping.settle();
        let start = Instant::now();
        loop {
            let names = adapter.keeping.take_names(recall.number);
            if names.is_empty() {
                break;
            }
            // A rename that ends before the expiry of a name gives it another one, which is then remembered.
            for name in names {
                let _ = notifier.name_expired(recall.number, &name);
            }
        }
        if start.elapsed() > CONTENDED_AFTER {
            adapter.keeping.note_contended(recall.number);
        }
        adapter.file_system.invalidated(&recall);
    }
}

/// Drops pages of files with attributes that were shown with another version.
fn drop_listed(listed: &Receiver<Attributes>, adapter: &Weak<Adapter>) {
    for attributes in listed {
        let Some(adapter) = adapter.upgrade() else {
            return;
        };
        if let Some(shared) = &adapter.shared {
            shared.drop_other_pages(&attributes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: Duration = Duration::from_secs(60);

    fn keeping() -> KernelCache {
        let keeping = KernelCache::new();
        keeping.keep_names();
        keeping
    }

    /// The kernel may process a repeated lookup of a name after its expiry.
    #[test]
    fn names_of_a_recalled_directory_are_not_kept_again() {
        let keeping = keeping();
        assert_eq!(keeping.name(1, b"a", LEFT, true), LEFT);
        assert_eq!(keeping.take_names(1).len(), 1);
        assert_eq!(keeping.name(1, b"a", LEFT, true), Duration::ZERO);
        assert_eq!(keeping.name(1, b"b", LEFT, false), LEFT);
        assert_eq!(keeping.name(2, b"a", LEFT, true), LEFT);
        assert_eq!(keeping.take_names(1).len(), 1);
    }

    #[test]
    fn names_are_remembered_before_they_are_renamed() {
        let keeping = keeping();
        assert_eq!(keeping.name(1, b"a", LEFT, false), LEFT);
        keeping.renames((1, b"other"), (2, b"other"));
        keeping.renames((1, b"a"), (2, b"b"));
        // While the former name is being expired, too.
        assert_eq!(keeping.take_names(1).len(), 1);
        keeping.renames((1, b"a"), (2, b"c"));
        assert_eq!(keeping.take_names(2).len(), 2);
        assert!(keeping.take_names(1).is_empty() && keeping.take_names(2).is_empty());
        keeping.renames((1, b"a"), (2, b"d"));
        assert!(keeping.take_names(2).is_empty());
    }

    /// An answer of a thread that fails never reaches the kernel.
    #[test]
    fn recalls_wait_for_no_answer_after_the_end() {
        let keeping = keeping();
        keeping.begin();
        keeping.validity();
        assert!(keeping.is_awaited());
        keeping.count_recall(|| true);
        keeping.sent();
    }

    /// Only they may be processed after an expiry.
    #[test]
    fn recalls_wait_for_repeated_lookups_to_settle() {
        for is_again in [false, true] {
            let keeping = keeping();
            keeping.begin();
            keeping.validity();
            keeping.name(1, b"a", LEFT, is_again);
            keeping.sent();
            assert_eq!(keeping.answered_at.load(Ordering::SeqCst) > 0, is_again);
            keeping.count_recall(|| false);
            keeping.settle();
            assert!(!is_again || keeping.start.elapsed() >= SETTLES_WITHIN);
        }
    }
}
