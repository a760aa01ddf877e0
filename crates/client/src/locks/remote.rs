//! Locks in a cluster. Its primary decides; the table of this process has what its users hold and wait for.
//!
//! A thread that gives back a lock asks at once for those that others of this process wait for. Until the cluster reports
//! that a lock became free elsewhere, a thread of its own asks for them again and again.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use operations::{ErrorCode, LOCK_END, Lock, LockKind, LockSpace};
use parking_lot::{Condvar, Mutex};

use super::{Held, LockTable, LockTicket, LockWake, NotLocked, Wait};
use crate::Cause;
use crate::backend::Remote;

/// How long the thread waits before it asks again: at first, and at most.
const PAUSE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];
/// Spreads the owners of different users over all numbers. Those of the first user stay as they are.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// One user's locks in a cluster.
pub(super) struct Remotely(Arc<Asking>);

struct Asking {
    remote: Remote,
    table: Arc<LockTable>,
    user: u64,
    /// Whether a thread asks for locks that are waited for.
    has_thread: Mutex<bool>,
    /// A lock of this process became free, or the user has ended.
    freed: Condvar,
}

impl Remotely {
    pub(super) fn new(remote: Remote, table: Arc<LockTable>, user: u64) -> Remotely {
        Remotely(Arc::new(Asking {
            remote,
            table,
            user,
            has_thread: Mutex::new(false),
            freed: Condvar::new(),
        }))
    }

    pub(super) fn in_the_way(&self, number: u64, wanted: &Lock) -> Result<Option<Lock>, Cause> {
        self.0.settle(number);
        let Asking { remote, .. } = &*self.0;
        remote.test_lock(number, spread(&self.0.held(wanted)))
    }

    pub(super) fn take(&self, number: u64, wanted: &Lock) -> Result<bool, Cause> {
        self.0.settle(number);
        let is_taken = self.0.take(number, &self.0.held(wanted))?;
        if wanted.space == LockSpace::Whole || wanted.kind == LockKind::Read {
            // It may replace a stronger one.
            self.0.hand_on(number);
        }
        Ok(is_taken)
    }

    pub(super) fn take_or_wait(
        &self,
        number: u64,
        wanted: &Lock,
        wake: LockWake,
    ) -> Result<Option<LockTicket>, NotLocked> {
        if self.take(number, wanted)? {
            return Ok(None);
        }
        let wanted = self.0.held(wanted);
        let ticket = {
            let mut state = self.0.table.state.lock();
            if state.would_wait_for_itself(number, &wanted) {
                return Err(NotLocked::Deadlock);
            }
            state.begin_wait(Wait {
                number,
                wanted,
                wake,
            })
        };
        let mut has_thread = self.0.has_thread.lock();
        if !*has_thread {
            let asking = Arc::downgrade(&self.0);
            let thread = thread::Builder::new().name("tako-locks".into());
            *has_thread = thread.spawn(move || ask(&asking)).is_ok();
        }
        self.0.freed.notify_one();
        Ok(Some(ticket))
    }

    pub(super) fn give_back(&self, number: u64, range: &Lock) -> Result<(), Cause> {
        self.0.settle(number);
        let Asking { remote, table, .. } = &*self.0;
        remote.unlock(number, spread(&self.0.held(range)))?;
        {
            let mut state = table.state.lock();
            if let Some(file) = state.files.get_mut(&number) {
                file.cut(&self.0.held(range));
            }
            state.forget_unused(number);
        }
        self.0.hand_on(number);
        Ok(())
    }

    /// Where the owner holds nothing, no message is sent: this is called when any file is closed.
    pub(super) fn give_back_ranges(&self, number: u64, owner: u64) -> Result<(), Cause> {
        let all = Lock {
            space: LockSpace::Ranges,
            kind: LockKind::Read,
            start: 0,
            end: LOCK_END,
            owner,
            handle: 0,
            process: 0,
        };
        let own = self.0.held(&all);
        match self.0.has(number, |held| held.is_of(&own)) {
            true => self.give_back(number, &all),
            false => Ok(()),
        }
    }

    pub(super) fn close(&self, number: u64, handle: u64) -> Result<(), Cause> {
        self.0.settle(number);
        self.0.close(number, handle)
    }

    /// Gives all locks back, and ends all waits without one.
    pub(super) fn end(&self) {
        let Asking { table, user, .. } = &*self.0;
        let is_own = |held: &Held| held.user == *user;
        let (mut taken, mut dropped) = (Vec::new(), Vec::new());
        {
            let mut state = table.state.lock();
            let tickets = state.waits.iter().filter(|(_, wait)| is_own(&wait.wanted));
            let tickets: Vec<LockTicket> = tickets.map(|(ticket, _)| *ticket).collect();
            dropped.extend(tickets.into_iter().filter_map(|it| state.end_wait(it)));
            for (number, file) in &state.files {
                let own = file.held.iter().filter(|held| is_own(held));
                taken.extend(own.map(|held| (*number, held.lock.handle)));
            }
        }
        dropped.into_iter().for_each(|wait| (wait.wake)(false));
        for (number, handle) in taken {
            // What cannot be given back now ends with the session.
            let _ = self.0.close(number, handle);
        }
        self.0.freed.notify_one();
    }
}

impl Asking {
    fn held(&self, lock: &Lock) -> Held {
        Held {
            user: self.user,
            lock: *lock,
        }
    }

    fn has(&self, number: u64, wanted: impl Fn(&Held) -> bool) -> bool {
        let state = self.table.state.lock();
        let file = state.files.get(&number);
        file.is_some_and(|file| file.held.iter().any(wanted))
    }

    fn take(&self, number: u64, held: &Held) -> Result<bool, Cause> {
        let taken = self.remote.set_lock(number, spread(held));
        let is_taken = match taken {
            Ok(()) => true,
            Err(error) if error.code() == Some(ErrorCode::Locked) => false,
            Err(error) => return Err(error),
        };
        let mut state = self.table.state.lock();
        let file = state.files.entry(number).or_default();
        if held.lock.space == LockSpace::Whole {
            // An owner that asks for the other kind first loses the lock that it has.
            file.cut(held);
        }
        if is_taken {
            file.enter(held);
        }
        state.forget_unused(number);
        Ok(is_taken)
    }

    fn close(&self, number: u64, handle: u64) -> Result<(), Cause> {
        let is_own = |held: &Held| (held.user, held.lock.handle) == (self.user, handle);
        if !self.has(number, is_own) {
            return Ok(());
        }
        self.remote
            .unlock_handle(number, handle ^ self.user.wrapping_mul(SPREAD))?;
        {
            let mut state = self.table.state.lock();
            if let Some(file) = state.files.get_mut(&number) {
                file.held.retain(|held| !is_own(held));
            }
            state.forget_unused(number);
        }
        self.hand_on(number);
        Ok(())
    }

    /// Asks for the locks of a file that others wait for.
    fn hand_on(&self, number: u64) {
        let state = self.table.state.lock();
        if state.files.get(&number).is_some_and(|file| file.waits > 0) {
            drop(state);
            self.ask_for_all();
        }
    }

    /// Waits until the cluster has answered for a wait that was cancelled meanwhile, and has that lock back: the owner may go
    /// on to use the same bytes.
    fn settle(&self, number: u64) {
        let is_open = {
            let state = self.table.state.lock();
            let asked = state.asked.filter(|(_, of)| *of == number);
            asked.is_some_and(|(ticket, _)| !state.waits.contains_key(&ticket))
        };
        if is_open {
            drop(self.table.asking.lock());
        }
    }

    /// Asks once for each lock that is waited for, in the order in which they came. Whether any waits on.
    fn ask_for_all(&self) -> bool {
        let tickets: Vec<LockTicket> = self.table.state.lock().waits.keys().copied().collect();
        let mut waits_on = false;
        for ticket in tickets {
            waits_on |= !self.ask_for(ticket);
        }
        waits_on
    }

    /// Asks for the lock of a wait. Whether the wait has ended.
    fn ask_for(&self, ticket: LockTicket) -> bool {
        // One thread at a time, so that no lock is taken for a wait that another one has ended.
        let asking = self.table.asking.lock();
        let (number, wanted) = {
            let mut state = self.table.state.lock();
            let Some(wait) = state.waits.get(&ticket) else {
                return true;
            };
            let found = (wait.number, wait.wanted);
            state.asked = Some((ticket, found.0));
            found
        };
        let is_taken = matches!(self.take(number, &wanted), Ok(true));
        let ended = is_taken.then(|| self.table.state.lock().end_wait(ticket));
        if let Some(None) = ended {
            // It was cancelled meanwhile. What cannot be given back now ends with the session.
            let _ = self.remote.unlock(number, spread(&wanted));
            let mut state = self.table.state.lock();
            if let Some(file) = state.files.get_mut(&number) {
                file.cut(&wanted);
            }
            state.forget_unused(number);
        }
        self.table.state.lock().asked = None;
        drop(asking);
        if let Some(Some(wait)) = ended {
            (wait.wake)(true);
        }
        is_taken
    }
}

/// The lock as the cluster knows it: there, owners and handles of all users of the session differ.
fn spread(held: &Held) -> Lock {
    let spread = held.user.wrapping_mul(SPREAD);
    Lock {
        owner: held.lock.owner ^ spread,
        handle: held.lock.handle ^ spread,
        ..held.lock
    }
}

/// The thread that asks for locks, until nothing is waited for.
fn ask(asking: &Weak<Asking>) {
    let mut pause = PAUSE[0];
    while let Some(asking) = asking.upgrade() {
        if !asking.ask_for_all() {
            let mut has_thread = asking.has_thread.lock();
            if asking.table.state.lock().waits.is_empty() {
                *has_thread = false;
                return;
            }
        }
        let mut has_thread = asking.has_thread.lock();
        let is_freed = !asking.freed.wait_for(&mut has_thread, pause).timed_out();
        pause = match is_freed {
            true => PAUSE[0],
            false => (pause * 2).min(PAUSE[1]),
        };
    }
}
