//! Caching of outcomes of calls in a front end, and its recall.
//!
//! The thread that made a call finds here how long it may cache the outcome. Only a front end that has set a listener
//! for recalls ([`crate::FileSystem::on_recall`]) is granted anything.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use protocol::client::Recalled;
use protocol::leases::Covers;

/// Clocks of caches begin to count later than this process, by less than this: the time until the thread runs that
/// waits for the answer.
const MARGIN: Duration = Duration::from_millis(200);

thread_local! {
    static LAST: Cell<Option<Kept>> = const { Cell::new(None) };
}

/// Until when something may be kept, and of which inodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) until: Instant,
    pub(crate) covers: Covers,
}

/// A cache of outcomes under leases, which are renewed while it is used.
pub trait Renewable: Send + Sync {
    /// Inodes with leases that are to last longer.
    fn to_renew(&self, now: Instant) -> Vec<u64>;

    /// The leases of these inodes last until then. Contents that have ended stay so.
    fn renewed(&self, inodes: &[u64], until: Instant);

    /// The lease of an inode is recalled: its contents are not used any more.
    fn recalled(&self, inode: u64);

    /// A call ends without its outcome, and may be executed at any time. Nothing is kept until [`Renewable::settled`]: the
    /// primary does not recall leases of the session that asked for the change.
    fn abandoned(&self);

    /// The outcome of such a call has arrived, or its request was never sent.
    fn settled(&self);
}

/// How long parts of an outcome may be cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validity {
    /// Attributes of the file that was asked about, or the entries of the directory.
    pub subject: Duration,
    /// Attributes of the file that was found.
    pub found: Duration,
    /// Attributes of the files that were listed.
    pub listed: Duration,
}

/// Records what this thread may cache of its outcome.
pub(crate) fn note(kept: Option<Kept>) {
    LAST.set(kept);
}

/// Until when this thread may cache its last call's outcome, and which parts.
pub(crate) fn last() -> Option<Kept> {
    LAST.get()
}

impl Validity {
    /// Forgets what calls before have left.
    pub fn reset() {
        note(None);
    }

    /// Returns the validity of this thread's last call.
    pub fn of_last() -> Validity {
        let Some(Kept { until, covers }) = LAST.get() else {
            return Validity::default();
        };
        let left = until.saturating_duration_since(Instant::now() + MARGIN);
        let part = |is_covered| if is_covered { left } else { Duration::ZERO };
        Validity {
            subject: part(covers.subject),
            found: part(covers.found),
            listed: part(covers.listed),
        }
    }
}

/// A lease that has to end: caches drop their contents of this inode, and then the recall is answered with
/// [`crate::FileSystem::invalidated`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    /// The inode number that users see.
    pub number: u64,
    /// Names in this directory may be kept, besides its attributes.
    pub has_entries: bool,
    pub(crate) recalled: Recalled,
}

/// Receiver of the recalls of a session's leases. It must not wait for anything.
pub type RecallListener = Box<dyn Fn(Recalled) + Send>;

/// The listener, if there is one.
pub(crate) type Listener = Arc<Mutex<Option<RecallListener>>>;

impl Recall {
    pub(crate) fn new(recalled: Recalled, number: u64) -> Recall {
        Recall {
            number,
            has_entries: recalled.has_entries,
            recalled,
        }
    }
}
