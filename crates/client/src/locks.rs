//! Advisory locks of files: of ranges of bytes, as in fcntl(2), and of whole files, as in flock(2). The two kinds are
//! independent, and neither prevents reading or writing.
//!
//! A file system has one table. A program that locks enters it as a user ([`LockUser`]): a mount, or a program beside
//! it. A wait blocks no thread: its result is passed to a function, by the thread that ends it.
//!
//! A cluster has a separate table, which decides (`remote`). The table of this process then has the locks of its users
//! there, to detect deadlocks among them.

mod remote;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use operations::{Lock, LockKind, LockSpace};
use parking_lot::Mutex;

use crate::backend::Remote;
use crate::{Cause, Error};
use remote::{Remotely, Turns};

/// Why a lock is neither held nor waited for.
#[derive(Debug)]
pub enum NotLocked {
    /// The wait would never end: the holder of the conflicting lock waits for its owner.
    Deadlock,
    /// The cluster refused it, or gave no answer.
    Failed(Error),
}

impl<C: Into<Cause>> From<C> for NotLocked {
    fn from(cause: C) -> NotLocked {
        NotLocked::Failed(cause.into().into())
    }
}

/// Identity of a wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockTicket(u64);

/// Is called when a wait ends: with whether the lock is held now, or why the cluster ended the wait.
pub type LockWake = Box<dyn FnOnce(Result<bool, NotLocked>) + Send>;

/// The locks of a file system.
#[derive(Default)]
pub(crate) struct LockTable {
    state: Mutex<State>,
    users: AtomicU64,
    /// HeldRange while a cluster is asked for a lock that is waited for.
    asking: Mutex<()>,
    /// For the thread that takes locks of a cluster.
    turns: Turns,
}

#[derive(Default)]
struct State {
    /// By number of the inode; files without locks and waits have none.
    files: HashMap<u64, FileLocks>,
    /// In the order in which they came.
    waits: BTreeMap<LockTicket, Wait>,
    /// The wait for which a cluster is being asked, and its file. It may have been cancelled since.
    asked: Option<(LockTicket, u64)>,
    tickets: u64,
}

#[derive(Default)]
struct FileLocks {
    /// Those of one owner and space are apart, or differ in kind.
    held: Vec<HeldRange>,
    waits: usize,
}

#[derive(Clone, Copy)]
struct HeldRange {
    user: u64,
    lock: Lock,
}

struct Wait {
    number: u64,
    /// Its number in the cluster, if there is one.
    remote: u64,
    wanted: HeldRange,
    wake: LockWake,
}

/// A user of locks.
/// ```
/// # use client::{FileSystem, Geometry, LOCK_END, Lock, LockKind, LockSpace, OpenFlags, PoolOptions, Region};
/// # let region = Region::memory(16 << 20, false)?;
/// # FileSystem::format_region(&region, &Geometry::for_length(16 << 20))?;
/// # let files = FileSystem::open_region(region, PoolOptions::default())?;
/// # let flags = OpenFlags { create: true, ..OpenFlags::READ_WRITE };
/// # let number = files.open("shared", flags, 0o644)?.number();
/// let lock = Lock { kind: LockKind::Write, space: LockSpace::Ranges, start: 0, end: LOCK_END, owner: 1, handle: 1, process: 1 };
/// let (one, other) = (files.lock_user(), files.lock_user());
/// assert!(one.take(number, &lock)?);
/// assert!(!other.take(number, &lock)?);
/// one.give_back(number, &lock)?;
/// assert!(other.take(number, &lock)?);
/// # Ok::<(), client::Error>(())
/// ```
/// When it is dropped, its locks are released, and its waits end without one.
pub struct LockUser {
    table: Arc<LockTable>,
    user: u64,
    /// None where the table of this process decides.
    remotely: Option<Remotely>,
}

impl HeldRange {
    /// Whether both are the same owner's, and of the same space.
    fn is_of(&self, other: &HeldRange) -> bool {
        (self.user, self.lock.owner) == (other.user, other.lock.owner)
            && self.lock.space == other.lock.space
    }

    fn conflicts(&self, other: &HeldRange) -> bool {
        self.lock.space == other.lock.space
            && !self.is_of(other)
            && (self.lock.kind == LockKind::Write || other.lock.kind == LockKind::Write)
            && self.lock.overlaps(&other.lock)
    }

    /// Whether one continues the other.
    fn joins(&self, other: &HeldRange) -> bool {
        let follows = |end: u64, start: u64| end.checked_add(1) == Some(start);
        self.is_of(other)
            && self.lock.kind == other.lock.kind
            && (follows(self.lock.end, other.lock.start)
                || follows(other.lock.end, self.lock.start))
    }
}

impl FileLocks {
    /// The first that is in the way, by its first byte.
    fn in_the_way(&self, wanted: &HeldRange) -> Option<&HeldRange> {
        let conflicts = self.held.iter().filter(|held| held.conflicts(wanted));
        conflicts.min_by_key(|held| held.lock.start)
    }

    /// Takes the bytes of `range` from what its owner has.
    fn cut(&mut self, range: &HeldRange) {
        let mut rests = Vec::new();
        self.held.retain(|held| {
            if !held.is_of(range) || !held.lock.overlaps(&range.lock) {
                return true;
            }
            if held.lock.start < range.lock.start {
                let mut before = *held;
                before.lock.end = range.lock.start - 1;
                rests.push(before);
            }
            if held.lock.end > range.lock.end {
                let mut after = *held;
                after.lock.start = range.lock.end + 1;
                rests.push(after);
            }
            false
        });
        self.held.append(&mut rests);
    }

    /// Enters a lock without a conflict.
    fn enter(&mut self, wanted: &HeldRange) {
        self.cut(wanted);
        let mut whole = *wanted;
        self.held.retain(|held| {
            let joins = held.joins(wanted);
            if joins {
                whole.lock.start = whole.lock.start.min(held.lock.start);
                whole.lock.end = whole.lock.end.max(held.lock.end);
            }
            !joins
        });
        self.held.push(whole);
    }
}

impl State {
    /// Takes a lock if there is no conflict.
    fn take(&mut self, number: u64, wanted: &HeldRange) -> bool {
        let file = self.files.entry(number).or_default();
        if wanted.lock.space == LockSpace::Whole {
            let same = |held: &HeldRange| held.is_of(wanted) && held.lock.kind == wanted.lock.kind;
            if file.held.iter().any(same) {
                return true;
            }
            file.cut(wanted);
        }
        let is_free = file.in_the_way(wanted).is_none();
        if is_free {
            file.enter(wanted);
        }
        is_free
    }

    /// Whether a holder that conflicts with `wanted` waits for its owner, directly or through others.
    fn would_wait_for_itself(&self, number: u64, wanted: &HeldRange) -> bool {
        if wanted.lock.space == LockSpace::Whole {
            return false;
        }
        let mut seen = HashSet::new();
        let mut to_visit = vec![(number, *wanted)];
        while let Some((number, wanted_next)) = to_visit.pop() {
            let Some(file) = self.files.get(&number) else {
                continue;
            };
            for held in file.held.iter().filter(|held| held.conflicts(&wanted_next)) {
                if held.is_of(wanted) {
                    return true;
                }
                if seen.insert((held.user, held.lock.owner)) {
                    let waits = self.waits.values().filter(|wait| wait.wanted.is_of(held));
                    to_visit.extend(waits.map(|wait| (wait.number, wait.wanted)));
                }
            }
        }
        false
    }

    /// Grants a file's locks to waiting users, in the order of their requests, as far as they are free.
    fn grant(&mut self, number: u64, ended: &mut Vec<LockWake>) {
        let Some(file) = self.files.get_mut(&number) else {
            return;
        };
        // A lock that replaces a stronger one admits others, which may have come before.
        let mut has_changed = file.waits > 0;
        while mem::take(&mut has_changed) {
            let is_free = |wait: &Wait| {
                let free = wait.number == number && file.in_the_way(&wait.wanted).is_none();
                if free {
                    file.enter(&wait.wanted);
                    file.waits -= 1;
                }
                free
            };
            for (_, wait) in extract(&mut self.waits, is_free) {
                has_changed = file.waits > 0;
                ended.push(wait.wake);
            }
        }
        if file.held.is_empty() && file.waits == 0 {
            self.files.remove(&number);
        }
    }

    /// Removes the locks of a file selected by `goes`, and grants them to others.
    fn remove(
        &mut self,
        number: u64,
        goes: impl Fn(&HeldRange) -> bool,
        ended: &mut Vec<LockWake>,
    ) {
        let Some(file) = self.files.get_mut(&number) else {
            return;
        };
        let before = file.held.len();
        file.held.retain(|held| !goes(held));
        if file.held.len() < before {
            self.grant(number, ended);
        }
    }

    /// Forgets a file without locks and waits.
    fn forget_unused(&mut self, number: u64) {
        let file = self.files.get(&number);
        if file.is_some_and(|file| file.held.is_empty() && file.waits == 0) {
            self.files.remove(&number);
        }
    }

    fn begin_wait(&mut self, mut wait: Wait) -> LockTicket {
        self.tickets += 1;
        let ticket = LockTicket(self.tickets);
        wait.remote = ticket.0;
        self.files.entry(wait.number).or_default().waits += 1;
        self.waits.insert(ticket, wait);
        ticket
    }

    /// Gives a wait another number in the cluster; returns it, or `None` if the wait has ended.
    fn renumber_wait(&mut self, ticket: LockTicket) -> Option<u64> {
        let wait = self.waits.get_mut(&ticket)?;
        self.tickets += 1;
        wait.remote = self.tickets;
        Some(wait.remote)
    }

    /// The wait with this number in the cluster.
    fn wait_in_cluster(&self, remote: u64) -> Option<LockTicket> {
        let mut waits = self.waits.iter();
        let found = waits.find(|(_, wait)| wait.remote == remote);
        found.map(|(ticket, _)| *ticket)
    }

    fn end_wait(&mut self, ticket: LockTicket) -> Option<Wait> {
        let wait = self.waits.remove(&ticket)?;
        if let Some(file) = self.files.get_mut(&wait.number) {
            file.waits -= 1;
            if file.held.is_empty() && file.waits == 0 {
                self.files.remove(&wait.number);
            }
        }
        Some(wait)
    }
}

/// Takes the waits for which `wanted` holds out of the list, in their order.
fn extract(
    waits: &mut BTreeMap<LockTicket, Wait>,
    mut wanted: impl FnMut(&Wait) -> bool,
) -> Vec<(LockTicket, Wait)> {
    waits.extract_if(.., |_, wait| wanted(wait)).collect()
}

impl LockTable {
    /// Enters a user, of the locks in a cluster if there is one.
    pub(crate) fn user(self: &Arc<LockTable>, remote: Option<&Remote>) -> LockUser {
        let user = self.users.fetch_add(1, Ordering::Relaxed);
        LockUser {
            remotely: remote.map(|remote| Remotely::new(remote.clone(), self.clone(), user)),
            table: self.clone(),
            user,
        }
    }
}

impl LockUser {
    fn held(&self, lock: &Lock) -> HeldRange {
        HeldRange {
            user: self.user,
            lock: *lock,
        }
    }

    /// Changes the table, and then notifies the users of ended waits, when the table is unlocked.
    fn change<T>(&self, work: impl FnOnce(&mut State, &mut Vec<LockWake>) -> T) -> T {
        let mut ended = Vec::new();
        let result = work(&mut self.table.state.lock(), &mut ended);
        ended.into_iter().for_each(|wake| wake(Ok(true)));
        result
    }

    /// The first lock that is in the way of this one, by its first byte.
    ///
    /// # Errors
    /// Those of a cluster, as of all calls here.
    pub fn in_the_way(&self, number: u64, wanted: &Lock) -> Result<Option<Lock>, Error> {
        if let Some(remotely) = &self.remotely {
            return Ok(remotely.in_the_way(number, wanted)?);
        }
        let state = self.table.state.lock();
        let file = state.files.get(&number);
        let found = file.and_then(|file| file.in_the_way(&self.held(wanted)));
        Ok(found.map(|held| held.lock))
    }

    /// Takes a lock of file `number`; false if there is a conflict.
    pub fn take(&self, number: u64, wanted: &Lock) -> Result<bool, Error> {
        if let Some(remotely) = &self.remotely {
            return Ok(remotely.take(number, wanted)?);
        }
        Ok(self.change(|state, ended| {
            let is_taken = state.take(number, &self.held(wanted));
            state.grant(number, ended);
            is_taken
        }))
    }

    /// Takes a lock, or waits for it: then `wake` is called once, by the thread that ends the wait, maybe before this
    /// returns.
    ///
    /// # Errors
    /// [`NotLocked::Deadlock`]: the conflicting holder waits for the same owner's locks.
    pub fn take_or_wait(
        &self,
        number: u64,
        wanted: &Lock,
        wake: LockWake,
    ) -> Result<Option<LockTicket>, NotLocked> {
        if let Some(remotely) = &self.remotely {
            return remotely.take_or_wait(number, wanted, wake);
        }
        let wanted = self.held(wanted);
        self.change(|state, ended| {
            let is_taken = state.take(number, &wanted);
            // A whole file's other kind is lost by now.
            state.grant(number, ended);
            if is_taken {
                return Ok(None);
            }
            if state.would_wait_for_itself(number, &wanted) {
                return Err(NotLocked::Deadlock);
            }
            let wait = Wait {
                number,
                remote: 0,
                wanted,
                wake,
            };
            Ok(Some(state.begin_wait(wait)))
        })
    }

    /// Ends a wait without the lock; not if it has ended already.
    pub fn cancel(&self, ticket: LockTicket) {
        let wait = self.table.state.lock().end_wait(ticket);
        if let Some(wait) = wait {
            (wait.wake)(Ok(false));
            if let Some(remotely) = &self.remotely {
                remotely.cancelled(wait.remote);
            }
        }
    }

    /// Releases the bytes of `range` that its owner holds; its kind has no meaning.
    pub fn give_back(&self, number: u64, range: &Lock) -> Result<(), Error> {
        if let Some(remotely) = &self.remotely {
            return Ok(remotely.give_back(number, range)?);
        }
        self.change(|state, ended| {
            if let Some(file) = state.files.get_mut(&number) {
                file.cut(&self.held(range));
                state.grant(number, ended);
            }
        });
        Ok(())
    }

    /// Releases all ranges of a file that an owner holds: it has closed the file.
    pub fn give_back_ranges(&self, number: u64, owner: u64) -> Result<(), Error> {
        if let Some(remotely) = &self.remotely {
            return Ok(remotely.give_back_ranges(number, owner)?);
        }
        let goes = |held: &HeldRange| {
            (held.user, held.lock.owner) == (self.user, owner)
                && held.lock.space == LockSpace::Ranges
        };
        self.change(|state, ended| state.remove(number, goes, ended));
        Ok(())
    }

    /// Releases all locks that were taken by an open file: it is closed everywhere.
    pub fn close(&self, number: u64, handle: u64) -> Result<(), Error> {
        if let Some(remotely) = &self.remotely {
            return Ok(remotely.close(number, handle)?);
        }
        let goes = |held: &HeldRange| (held.user, held.lock.handle) == (self.user, handle);
        self.change(|state, ended| state.remove(number, goes, ended));
        Ok(())
    }

    /// Number of waits for locks, of all users.
    pub fn waits(&self) -> usize {
        self.table.state.lock().waits.len()
    }
}

impl Drop for LockUser {
    fn drop(&mut self) {
        if let Some(remotely) = &self.remotely {
            remotely.end();
            return;
        }
        let mut dropped = Vec::new();
        self.change(|state, ended| {
            let own = |wait: &Wait| wait.wanted.user == self.user;
            for (_, wait) in extract(&mut state.waits, own) {
                if let Some(file) = state.files.get_mut(&wait.number) {
                    file.waits -= 1;
                }
                dropped.push(wait.wake);
            }
            let numbers: Vec<u64> = state.files.keys().copied().collect();
            for number in numbers {
                let goes = |held: &HeldRange| held.user == self.user;
                state.remove(number, goes, ended);
                state.grant(number, ended);
            }
        });
        dropped.into_iter().for_each(|wake| wake(Ok(false)));
    }
}
