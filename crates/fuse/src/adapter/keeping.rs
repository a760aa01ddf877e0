//! The kernel's caches of a file system that other processes change too: names and attributes, for as long as the
//! session has leases of them, and until they are recalled.
//!
//! ```text
//!   recall ──► count it ──► wait until answers that promise something are with the kernel ──► expire ──► answer the recall
//! ```
//! An answer to a request that began before a recall promises nothing. To expire names the kernel locks their
//! directory, and a change in it may hold that lock and wait for another mount: names have a separate thread, and the
//! cluster waits for it no longer than the lease lasts. Where that took long, names are not cached for a while.

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
/// The kernel processes an answer within this time, and may still accept it after an earlier expiry.
const SETTLES_WITHIN: Duration = Duration::from_millis(5);
/// Names are remembered for so much longer than they may be kept: the kernel begins to count when the caller runs.
const BEGINS_WITHIN: Duration = Duration::from_secs(1);
/// Polling interval of a thread that waits for answers in flight, if it misses one.
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
}

pub(super) struct Keeping {
    /// The kernel can be made to ask for a name again.
    expires_names: AtomicBool,
    /// Recalls so far.
    recalls: AtomicU64,
    /// Answers that promise something and are not with the kernel yet, after an even and an odd number of recalls.
    answering: [AtomicUsize; 2],
    /// When the last of them was given to the kernel, in nanoseconds since the start.
    answered_at: AtomicU64,
    start: Instant,
    /// An answer was given to the kernel.
    answered: Condvar,
    waiting: Mutex<()>,
    directories: Mutex<Directories>,
}

impl Keeping {
    pub(super) fn new() -> Keeping {
        Keeping {
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
        Validity::reset();
    }

    /// Validity that an answer may promise, from the last call of this thread. Then [`Keeping::sent`] has to be called.
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

    /// The answer of this thread is with the kernel.
    pub(super) fn sent(&self) {
        if let Some(parity) = RAISED.take() {
            let now = self.start.elapsed().as_nanos() as u64;
            self.answered_at.fetch_max(now, Ordering::SeqCst);
            self.answering[parity].fetch_sub(1, Ordering::SeqCst);
            self.answered.notify_one();
        }
    }

    /// How long the kernel may cache a name, found or not, within the lease. It is remembered.
    pub(super) fn name(&self, directory: u64, name: &[u8], left: Duration) -> Duration {
        if left.is_zero() || !self.expires_names.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let mut directories = self.directories.lock();
        let directories = &mut *directories;
        let contended = directories.contended.get(&directory).copied();
        if directories.count >= NAMES_MAX {
            directories.forget_ended(now);
        }
        if contended.is_some_and(|until| now < until) || directories.count >= NAMES_MAX {
            return Duration::ZERO;
        }
        let known = directories.names.entry(directory).or_default();
        if known.until.is_some_and(|until| until < now) {
            directories.count -= known.names.len();
            known.names.clear();
        }
        if known.names.insert(name.to_vec()) {
            directories.count += 1;
        }
        // The kernel begins to count a little later.
        known.until = known.until.max(Some(now + left + BEGINS_WITHIN));
        left
    }

    /// From now on no answer to a request that began before promises anything. Waits until earlier promises have
    /// reached the kernel, and it has processed them.
    fn count_recall(&self) {
        let before = self.recalls.fetch_add(1, Ordering::SeqCst);
        let answering = &self.answering[(before % 2) as usize];
        let mut waiting = self.waiting.lock();
        while answering.load(Ordering::SeqCst) > 0 {
            self.answered.wait_for(&mut waiting, LOOK_EVERY);
        }
        let last = Duration::from_nanos(self.answered_at.load(Ordering::SeqCst));
        let settled = self.start + last + SETTLES_WITHIN;
        while !self.answered.wait_until(&mut waiting, settled).timed_out() {}
    }

    fn take_names(&self, directory: u64) -> HashSet<Vec<u8>> {
        let mut directories = self.directories.lock();
        let taken = directories.names.remove(&directory).unwrap_or_default();
        directories.count -= taken.names.len();
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
        if let Some(shared) = &adapter.shared {
            shared.recalled(recall.number);
        }
        adapter.keeping.count_recall();
        // It fails where the mount has ended.
        let _ = notifier.attributes_changed(recall.number);
        if recall.has_entries {
            let _ = of_names.send(recall);
        } else {
            adapter.file_system.invalidated(&recall);
        }
    }
}

fn expire_names(recalls: &Receiver<Recall>, adapter: &Weak<Adapter>, notifier: &Notifier) {
    for recall in recalls {
        let Some(adapter) = adapter.upgrade() else {
            return;
        };
        let start = Instant::now();
        for name in adapter.keeping.take_names(recall.number) {
            let _ = notifier.name_expired(recall.number, &name);
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
