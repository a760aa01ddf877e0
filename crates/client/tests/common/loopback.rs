//! A cluster of one unit in this process: operations and outcomes are encoded, decoded and executed on a store.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use client::{
    FileSystem, Geometry, HoldsSource, Interrupt, Lock, LockTicket, LockUser, LockWake, NotLocked,
    PoolOptions, Region, RequestError, Requests, TurnListener,
};
use operations::{Acknowledge, Details, ErrorCode, FileId, Held, Operation, Outcome, WAIT_ENDED};
use protocol::member::RequestId;
use server::{Executor, Request};
use store::{Store, Transaction};

/// The unit of the store. It is not 0, so that a forgotten unit is noticed.
const UNIT: u16 = 3;

pub struct Loopback {
    executor: Executor,
    requests: AtomicU64,
    holds: Arc<OnceLock<HoldsSource>>,
    /// Locks of the session.
    locks: LockUser,
    /// Waits by their numbers.
    waits: Arc<Mutex<HashMap<u64, Wait>>>,
    /// Numbers of waits that the cluster has ended because another thread had taken their lock.
    ended: Mutex<HashSet<u64>>,
    turns: Arc<Mutex<Option<TurnListener>>>,
    link: Arc<Link>,
}

/// The way to the cluster, which a test can cut.
#[derive(Default)]
pub struct Link {
    state: Mutex<LinkState>,
    changed: Condvar,
}

#[derive(Default)]
struct LinkState {
    is_cut: bool,
    /// Selects the operations that wait; None: all.
    selects: Option<fn(&Operation) -> bool>,
    /// Number of waits that the cluster kept when the session stopped to listen for turns.
    waits_left: Option<usize>,
    is_ended: bool,
    /// The cluster forgets its waits before it gets the next one.
    is_taken_over: bool,
    /// The cluster ends its waits before it gets the next one.
    ends_waits: bool,
    /// Number of waits that the cluster has kept as new ones.
    kept: usize,
    waiting: usize,
}

/// A wait for a lock. At its turn the session has the lock, and its owner takes it once more.
struct Wait {
    ticket: Option<LockTicket>,
    file: FileId,
    lock: Lock,
    has_turn: bool,
    /// Its owner has a lock of these bytes without it.
    is_held: bool,
}

impl Link {
    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().expect("no test panics here")
    }

    /// Makes calls wait, or lets them continue.
    pub fn cut(&self, is_cut: bool) {
        self.state().is_cut = is_cut;
        self.changed.notify_all();
    }

    /// Makes requests for locks wait, and nothing else.
    pub fn cut_locks(&self) {
        self.state().selects = Some(|it| matches!(it, Operation::SetLock { .. }));
        self.cut(true);
    }

    /// Makes requests to wait for locks wait, and nothing else.
    pub fn cut_waits(&self) {
        self.state().selects = Some(|it| matches!(it, Operation::WaitLock { .. }));
        self.cut(true);
    }

    /// Has another primary, which knows of no waits, get the next one.
    pub fn take_over(&self) {
        self.state().is_taken_over = true;
    }

    /// Has the cluster end all waits at the next repetition of one, as if another thread had taken their lock and released it.
    pub fn end_waits(&self) {
        self.state().ends_waits = true;
    }

    /// Waits until the cluster has kept so many waits as new ones.
    pub fn wait_for_kept(&self, kept: usize) {
        let until = Instant::now() + Duration::from_secs(60);
        let mut state = self.state();
        while state.kept < kept {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the cluster has kept {}", state.kept);
            let waited = self.changed.wait_timeout(state, left);
            (state, _) = waited.expect("no test panics here");
        }
    }

    /// Waits until the session does not listen for turns; returns the number of waits that the cluster kept then.
    pub fn waits_left(&self) -> usize {
        let mut state = self.state();
        loop {
            if let Some(left) = state.waits_left {
                return left;
            }
            state = self.changed.wait(state).expect("no test panics here");
        }
    }

    /// Waits until so many calls wait.
    pub fn wait_for(&self, waiting: usize) {
        let mut state = self.state();
        while state.waiting < waiting {
            state = self.changed.wait(state).expect("no test panics here");
        }
    }

    /// Waits until calls can continue, or the caller is interrupted.
    fn pass(self: &Arc<Link>, operation: &Operation) -> Result<(), RequestError> {
        let selects = self.state().selects;
        if selects.is_some_and(|selects| !selects(operation)) {
            return Ok(());
        }
        let interrupt = Interrupt::current().unwrap_or_default();
        let link = self.clone();
        interrupt.set_wake(Some(Box::new(move || {
            let _state = link.state();
            link.changed.notify_all();
        })));
        let mut state = self.state();
        state.waiting += 1;
        self.changed.notify_all();
        while state.is_cut && !state.is_ended && !interrupt.is_interrupted() {
            state = self.changed.wait(state).expect("no test panics here");
        }
        state.waiting -= 1;
        let result = match *state {
            LinkState { is_ended: true, .. } => Err(RequestError::Ended("by the test".into())),
            LinkState { is_cut: true, .. } => Err(RequestError::Interrupted),
            _ => Ok(()),
        };
        drop(state);
        interrupt.set_wake(None);
        result
    }
}

/// Lists the holds that a session reports.
pub type Holds = Box<dyn Fn() -> Vec<Held>>;

/// The file system of a cluster that keeps its files in this store.
pub fn file_system(store: Store) -> FileSystem {
    connected(store, Arc::default()).0
}

/// The same, behind this link.
pub fn behind(store: Store, link: &Arc<Link>) -> FileSystem {
    connected(store, link.clone()).0
}

/// The same, with the holds that the session would send when it resumes.
pub fn with_holds(store: Store) -> (FileSystem, Holds) {
    connected(store, Arc::default())
}

fn connected(store: Store, link: Arc<Link>) -> (FileSystem, Holds) {
    let locks = Region::memory(2 << 20, false).expect("memory");
    FileSystem::format_region(&locks, &Geometry::small()).expect("a pool");
    let locks = FileSystem::open_region(locks, PoolOptions::default()).expect("a file system");
    let holds: Arc<OnceLock<HoldsSource>> = Arc::default();
    let loopback = Loopback {
        executor: Executor::new(store, UNIT),
        requests: AtomicU64::new(1),
        holds: holds.clone(),
        locks: locks.lock_user(),
        waits: Arc::default(),
        ended: Mutex::default(),
        turns: Arc::default(),
        link,
    };
    let file_system = FileSystem::remote(Arc::new(loopback), Acknowledge::Primary);
    let listed = move || holds.get().expect("holds are set first")();
    (file_system, Box::new(listed))
}

impl Loopback {
    fn execute(&self, operation: &Operation) -> Result<Outcome, store::Error> {
        let id = RequestId {
            session: 1,
            slot: 0,
            number: self.requests.fetch_add(1, Ordering::Relaxed),
        };
        let run = |operation: &Operation| {
            let request = Request { id, operation };
            let executed = self.executor.run(&mut Transaction::embedded(), &request);
            Ok(executed?.outcome)
        };
        match operation {
            Operation::CloseSession => {
                self.executor.store().close()?;
                return Ok(Outcome::done());
            }
            Operation::Write {
                file,
                drop_privileges: Some(set_id),
                ..
            } => {
                let (file, set_id) = (*file, *set_id);
                run(&Operation::DropPrivileges { file, set_id })?;
            }
            _ => {}
        }
        match self.lock(operation) {
            Some(outcome) => Ok(outcome),
            None => run(operation),
        }
    }

    fn waits(&self) -> MutexGuard<'_, HashMap<u64, Wait>> {
        self.waits.lock().expect("no test panics here")
    }

    /// Forgets all waits. Returns their numbers.
    fn forget_waits(&self) -> Vec<u64> {
        let forgotten = mem::take(&mut *self.waits());
        let numbers = forgotten.keys().copied().collect();
        let tickets = forgotten.into_values().filter_map(|it| it.ticket);
        tickets.for_each(|ticket| self.locks.cancel(ticket));
        numbers
    }

    /// Keeps a wait for a lock until it is granted or cancelled.
    fn wait(&self, file: FileId, lock: &Lock, number: u64) -> Outcome {
        let mut ended = self.ended.lock().expect("no test panics here");
        if mem::take(&mut self.link.state().ends_waits) {
            ended.extend(self.forget_waits());
        }
        if ended.contains(&number) {
            return Outcome {
                count: WAIT_ENDED,
                ..Outcome::done()
            };
        }
        drop(ended);
        let known = self.waits().get(&number).map(|it| it.has_turn);
        if let Some(has_turn) = known {
            return counted(has_turn);
        }
        if mem::take(&mut self.link.state().is_taken_over) {
            self.forget_waits();
        }
        let by_another = Lock {
            owner: u64::MAX,
            ..*lock
        };
        let held = self.locks.in_the_way(file.inode, &by_another);
        let held = held.expect("a pool of this process refuses no lock");
        let wait = Wait {
            ticket: None,
            file,
            lock: *lock,
            has_turn: false,
            is_held: held.is_some_and(|held| held.owner == lock.owner),
        };
        self.waits().insert(number, wait);
        let (waits, turns) = (self.waits.clone(), self.turns.clone());
        let wake: LockWake = Box::new(move |ended| {
            let is_held = ended.expect("a pool of this process refuses no lock");
            if let Some(wait) = waits.lock().expect("no test panics here").get_mut(&number) {
                wait.has_turn = is_held;
            }
            let turns = turns.lock().expect("no test panics here");
            if let Some(turns) = turns.as_ref().filter(|_| is_held) {
                turns(number);
            }
        });
        match self.locks.take_or_wait(file.inode, lock, wake) {
            Ok(ticket) => {
                if let Some(wait) = self.waits().get_mut(&number) {
                    wait.has_turn |= ticket.is_none();
                    wait.ticket = ticket;
                }
                self.link.state().kept += 1;
                self.link.changed.notify_all();
                counted(ticket.is_none())
            }
            Err(NotLocked::Deadlock) => {
                self.waits().remove(&number);
                Outcome::failed(ErrorCode::Deadlock)
            }
            Err(NotLocked::Failed(error)) => panic!("{error}"),
        }
    }

    /// Executes an operation on locks; `None` if it is none.
    fn lock(&self, operation: &Operation) -> Option<Outcome> {
        let locks = &self.locks;
        let done = |()| Outcome::done();
        let result = match operation {
            Operation::SetLock { file, lock } => {
                locks.take(file.inode, lock).map(|is_taken| match is_taken {
                    true => {
                        self.waits()
                            .retain(|_, it| !it.has_turn || it.lock != *lock);
                        Outcome::done()
                    }
                    false => Outcome::failed(ErrorCode::Locked),
                })
            }
            Operation::WaitLock { file, lock, wait } => return Some(self.wait(*file, lock, *wait)),
            Operation::EndWait { wait } => {
                let ended = self.waits().remove(wait);
                match ended {
                    Some(wait) if wait.has_turn && wait.is_held => {}
                    Some(wait) if wait.has_turn => {
                        let given = locks.give_back(wait.file.inode, &wait.lock);
                        given.expect("a pool of this process refuses no lock");
                    }
                    Some(wait) => wait.ticket.into_iter().for_each(|it| locks.cancel(it)),
                    None => {}
                }
                return Some(Outcome::done());
            }
            Operation::TestLock { file, lock } => {
                let found = locks.in_the_way(file.inode, lock);
                found.map(|found| Outcome::with(Details::Lock(found)))
            }
            Operation::Unlock { file, range } => locks.give_back(file.inode, range).map(done),
            Operation::UnlockHandle { file, handle } => locks.close(file.inode, *handle).map(done),
            _ => return None,
        };
        Some(result.expect("a pool of this process refuses no lock"))
    }
}

impl Requests for Loopback {
    fn call(&self, operation: Operation, _: Acknowledge) -> Result<Outcome, RequestError> {
        self.link.pass(&operation)?;
        let sent = operation.encode(Vec::new());
        let received = Operation::decode(&sent.into()).inspect_err(|_| {
            // The store refuses the same with its own error.
            assert!(operation.validate().is_err(), "{operation:?}");
        });
        let outcome = match received {
            Ok(received) => {
                assert_eq!(received, operation);
                self.execute(&received)
                    .unwrap_or_else(|error| Outcome::failed(error.code()))
            }
            Err(_) => Outcome::failed(ErrorCode::InvalidArgument),
        };
        let answer = outcome.encode(Vec::new());
        let decoded = Outcome::decode(&answer.into());
        Ok(decoded.unwrap_or_else(|malformed| panic!("{outcome:?}: {malformed}")))
    }

    fn root(&self) -> FileId {
        FileId::root(UNIT)
    }

    fn set_holds(&self, holds: HoldsSource) {
        assert!(self.holds.set(holds).is_ok(), "holds are set once");
    }

    fn await_turns(&self, listener: Option<TurnListener>) {
        let left = listener.is_none().then(|| self.waits().len());
        self.link.state().waits_left = left;
        self.link.changed.notify_all();
        *self.turns.lock().expect("no test panics here") = listener;
    }

    fn end(&self) {
        self.link.state().is_ended = true;
        self.link.changed.notify_all();
    }
}

fn counted(has_turn: bool) -> Outcome {
    Outcome {
        count: has_turn.into(),
        ..Outcome::done()
    }
}
