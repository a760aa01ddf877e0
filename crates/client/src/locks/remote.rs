//! Locks in a cluster. Its primary decides, and keeps waits in their order; the table of this process has what its users hold
//! and wait for.
//!
//! When a lock becomes free the primary gives a wait its turn. A thread, which runs while anything is waited for, takes the
//! lock then. It also repeats the waits now and then: a new primary knows none, and a turn may get lost. A repetition that is
//! refused ends its wait: the primary may find only then that the owners of locks wait for each other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use operations::{ErrorCode, LOCK_END, Lock, LockKind, LockSpace};

use parking_lot::{Condvar, Mutex};

use super::{HeldRange, LockTable, LockTicket, LockWake, NotLocked, State, Wait};
use crate::backend::{Remote, Waiting};
use crate::{Cause, RequestError};

/// How often waits are repeated: several times before the primary forgets them.
const REPEAT_EVERY: Duration = Duration::from_millis(500);
/// Spreads the owners of different users over all numbers. Those of the first user stay as they are.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// One user's locks in a cluster.
pub(super) struct Remotely {
    asking: Asking,
    user: u64,
}

/// Turns of waits, for the thread that takes their locks.
#[derive(Default)]
pub(super) struct Turns {
    /// Held while the thread starts or ends. It runs while anything is waited for.
    is_running: Mutex<bool>,
    waits: Mutex<VecDeque<u64>>,
    changed: Condvar,
}

/// Asks for locks of all users of a table.
#[derive(Clone)]
struct Asking {
    remote: Remote,
    table: Arc<LockTable>,
}

impl Remotely {
    pub(super) fn new(remote: Remote, table: Arc<LockTable>, user: u64) -> Remotely {
        let asking = Asking { remote, table };
        Remotely { asking, user }
    }

    fn held(&self, lock: &Lock) -> HeldRange {
        HeldRange {
            user: self.user,
            lock: *lock,
        }
    }

    pub(super) fn in_the_way(&self, number: u64, wanted: &Lock) -> Result<Option<Lock>, Cause> {
        self.asking.settle(number);
        let wanted = spread(&self.held(wanted));
        self.asking.remote.test_lock(number, wanted)
    }

    pub(super) fn take(&self, number: u64, wanted: &Lock) -> Result<bool, Cause> {
        self.asking.settle(number);
        let is_taken = self.asking.take(number, &self.held(wanted))?;
        // It may replace a stronger one.
        self.asking.hand_on();
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
        let table = &self.asking.table;
        let wanted = self.held(wanted);
        let ticket = table.state.lock().begin_wait(Wait {
            number,
            remote: 0,
            wanted,
            wake,
        });
        self.asking.start();
        match self.asking.wait_for(ticket, number, &wanted) {
            Ok(Some(remote)) => table.turns.add(remote),
            Ok(None) => {}
            // Unless it was cancelled meanwhile.
            Err(error) if table.state.lock().end_wait(ticket).is_some() => {
                return Err(not_locked(error));
            }
            Err(_) => {}
        }
        Ok(Some(ticket))
    }

    /// The wait with this number in the cluster was cancelled.
    pub(super) fn cancelled(&self, remote: u64) {
        // If it does not arrive, the primary forgets the wait in time.
        let _ = self.asking.remote.end_wait(remote);
    }

    pub(super) fn give_back(&self, number: u64, range: &Lock) -> Result<(), Cause> {
        self.asking.settle(number);
        let Asking { remote, table } = &self.asking;
        let range = self.held(range);
        remote.unlock(number, spread(&range))?;
        {
            let mut state = table.state.lock();
            if let Some(file) = state.files.get_mut(&number) {
                file.cut(&range);
            }
            state.forget_unused(number);
        }
        self.asking.hand_on();
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
        let own = self.held(&all);
        match self.asking.has(number, |held| held.is_of(&own)) {
            true => self.give_back(number, &all),
            false => Ok(()),
        }
    }

    pub(super) fn close(&self, number: u64, handle: u64) -> Result<(), Cause> {
        self.asking.settle(number);
        let Asking { remote, table } = &self.asking;
        let is_own = |held: &HeldRange| (held.user, held.lock.handle) == (self.user, handle);
        if !self.asking.has(number, is_own) {
            return Ok(());
        }
        remote.unlock_handle(number, handle ^ self.user.wrapping_mul(SPREAD))?;
        {
            let mut state = table.state.lock();
            if let Some(file) = state.files.get_mut(&number) {
                file.held.retain(|held| !is_own(held));
            }
            state.forget_unused(number);
        }
        self.asking.hand_on();
        Ok(())
    }

    /// Gives all locks back, and ends all waits without one.
    pub(super) fn end(&self) {
        let table = &self.asking.table;
        let is_own = |held: &HeldRange| held.user == self.user;
        let (mut taken, mut dropped) = (Vec::new(), Vec::new());
        {
            let mut state = table.state.lock();
            let tickets = state.waits.iter().filter(|(_, wait)| is_own(&wait.wanted));
            let tickets: Vec<LockTicket> = tickets.map(|(ticket, _)| *ticket).collect();
            for ticket in tickets {
                dropped.extend(state.end_wait(ticket));
            }
            for (number, file) in &state.files {
                let own = file.held.iter().filter(|held| is_own(held));
                taken.extend(own.map(|held| (*number, held.lock.handle)));
            }
        }
        for wait in dropped {
            (wait.wake)(Ok(false));
            self.cancelled(wait.remote);
        }
        for (number, handle) in taken {
            // Locks that cannot be released now end with the session.
            let _ = self.close(number, handle);
        }
    }
}

impl Turns {
    fn add(&self, wait: u64) {
        self.waits.lock().push_back(wait);
        self.changed.notify_one();
    }
}

impl Asking {
    /// Starts the thread that takes locks, unless it runs.
    fn start(&self) {
        let mut is_running = self.table.turns.is_running.lock();
        if *is_running {
            return;
        }
        let asking = self.clone();
        if pmem::start_thread("tako-locks", move || asking.ask()).is_ok() {
            let table = self.table.clone();
            let listener = move |wait| table.turns.add(wait);
            self.remote.await_turns(Some(Box::new(listener)));
            *is_running = true;
        }
    }

    /// Takes the locks that the answer to this thread grants: callers of one process need not wait for the
    /// other thread.
    fn hand_on(&self) {
        loop {
            let wait = self.table.turns.waits.lock().pop_front();
            match wait {
                Some(wait) => self.ask_for(wait),
                None => return,
            }
        }
    }

    fn has(&self, number: u64, wanted: impl Fn(&HeldRange) -> bool) -> bool {
        let state = self.table.state.lock();
        let file = state.files.get(&number);
        file.is_some_and(|file| file.held.iter().any(wanted))
    }

    fn take(&self, number: u64, held: &HeldRange) -> Result<bool, Cause> {
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

    /// Waits until the cluster has answered for a wait that was cancelled meanwhile, and has that lock back: the owner
    /// may continue to use the same bytes.
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

    /// Has the cluster keep a wait. Returns its number there if its lock is free now.
    fn wait_for(
        &self,
        ticket: LockTicket,
        number: u64,
        wanted: &HeldRange,
    ) -> Result<Option<u64>, Cause> {
        let number_of = |state: &State| state.waits.get(&ticket).map(|it| it.remote);
        let mut asks = number_of(&self.table.state.lock());
        while let Some(remote) = asks {
            let answer = self.remote.wait_lock(number, spread(wanted), remote);
            let is_asked = |(asked, _)| asked == ticket;
            if self.table.state.lock().asked.is_some_and(is_asked) {
                // Another thread may be about to end it with its lock.
                drop(self.table.asking.lock());
            }
            let mut state = self.table.state.lock();
            if number_of(&state) != Some(remote) {
                drop(state);
                // It has ended or got another number meanwhile, and then the cluster may have got it as a new one.
                let _ = self.remote.end_wait(remote);
                return answer.map(|_| None);
            }
            match answer? {
                Waiting::Kept => return Ok(None),
                Waiting::HasTurn => return Ok(Some(remote)),
                // Another thread of its owner had the lock, or has it: the cluster ended all waits for it.
                Waiting::Ended => asks = state.renumber_wait(ticket),
            }
        }
        Ok(None)
    }

    /// Waits again for all that is waited for.
    fn repeat(&self) {
        let waits: Vec<(LockTicket, u64, HeldRange)> = {
            let state = self.table.state.lock();
            let waits = state.waits.iter();
            waits
                .map(|(ticket, wait)| (*ticket, wait.number, wait.wanted))
                .collect()
        };
        for (ticket, number, wanted) in waits {
            match self.wait_for(ticket, number, &wanted) {
                Ok(Some(remote)) => self.ask_for(remote),
                Ok(None) => {}
                Err(error) => self.refused(ticket, error),
            }
        }
    }

    /// Ends a wait that the cluster refuses. One that was not answered continues.
    fn refused(&self, ticket: LockTicket, error: Cause) {
        if is_unanswered(&error) {
            return;
        }
        let ended = self.table.state.lock().end_wait(ticket);
        if let Some(wait) = ended {
            (wait.wake)(Err(not_locked(error)));
            // If it does not arrive, the primary forgets the wait in time.
            let _ = self.remote.end_wait(wait.remote);
        }
    }

    /// Takes the lock of the wait with this number in the cluster, if it is free and still waited for.
    fn ask_for(&self, remote: u64) {
        // One thread at a time, so that no lock is taken for a wait that another one has ended.
        let asking = self.table.asking.lock();
        let (ticket, number, wanted) = {
            let mut state = self.table.state.lock();
            let found = state.wait_in_cluster(remote);
            let Some((ticket, wait)) = found.and_then(|it| Some((it, state.waits.get(&it)?)))
            else {
                return;
            };
            let (number, wanted) = (wait.number, wait.wanted);
            state.asked = Some((ticket, number));
            (ticket, number, wanted)
        };
        let taken = self.take(number, &wanted);
        let ended = matches!(taken, Ok(true)).then(|| self.table.state.lock().end_wait(ticket));
        if let Some(None) = ended {
            // It was cancelled meanwhile. A lock that cannot be released now ends with the session.
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
            (wait.wake)(Ok(true));
        }
        if let Err(error) = taken {
            self.refused(ticket, error);
        }
    }

    /// The thread that takes locks, until nothing is waited for.
    fn ask(&self) {
        let turns = &self.table.turns;
        let mut repeat_at = Instant::now() + REPEAT_EVERY;
        loop {
            self.hand_on();
            if Instant::now() >= repeat_at {
                self.repeat();
                repeat_at = Instant::now() + REPEAT_EVERY;
            }
            if self.table.state.lock().waits.is_empty() {
                let mut is_running = turns.is_running.lock();
                if self.table.state.lock().waits.is_empty() {
                    self.remote.await_turns(None);
                    *is_running = false;
                    return;
                }
            }
            let mut waits = turns.waits.lock();
            if waits.is_empty() {
                turns.changed.wait_until(&mut waits, repeat_at);
            }
        }
    }
}

/// Whether a request may succeed when it is repeated: in another session, too.
fn is_unanswered(error: &Cause) -> bool {
    let is_of_session = error.code() == Some(ErrorCode::SessionEnded);
    let is_open = |error: &RequestError| {
        matches!(
            error,
            RequestError::Unreachable(_) | RequestError::Interrupted
        )
    };
    is_of_session || matches!(error, Cause::Request(error) if is_open(error))
}

fn not_locked(error: Cause) -> NotLocked {
    match error.code() {
        Some(ErrorCode::Deadlock) => NotLocked::Deadlock,
        _ => error.into(),
    }
}

/// The lock in the cluster's terms: there, owners and handles of all users of the session differ.
fn spread(held: &HeldRange) -> Lock {
    let spread = held.user.wrapping_mul(SPREAD);
    Lock {
        owner: held.lock.owner ^ spread,
        handle: held.lock.handle ^ spread,
        ..held.lock
    }
}
