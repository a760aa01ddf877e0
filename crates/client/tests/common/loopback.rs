//! A cluster of one unit in this process: operations and outcomes are encoded, decoded and executed on a store.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

use client::{
    FileSystem, Geometry, HoldsSource, Interrupt, LockUser, Options, Region, RequestError, Requests,
};
use operations::{Acknowledge, Details, ErrorCode, FileId, Held, Operation, Outcome};
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
    /// Only requests for locks wait.
    is_for_locks: bool,
    is_ended: bool,
    waiting: usize,
}

impl Link {
    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().expect("no test panics here")
    }

    /// Makes calls wait, or lets them go on.
    pub fn cut(&self, is_cut: bool) {
        self.state().is_cut = is_cut;
        self.changed.notify_all();
    }

    /// Makes requests for locks wait, and nothing else, or lets them go on.
    pub fn cut_locks(&self, is_cut: bool) {
        self.state().is_for_locks = is_cut;
        self.cut(is_cut);
    }

    /// Waits until so many calls wait.
    pub fn wait_for(&self, waiting: usize) {
        let mut state = self.state();
        while state.waiting < waiting {
            state = self.changed.wait(state).expect("no test panics here");
        }
    }

    /// Waits until calls can go on, or the caller is interrupted.
    fn pass(self: &Arc<Link>, operation: &Operation) -> Result<(), RequestError> {
        if self.state().is_for_locks && !matches!(operation, Operation::SetLock { .. }) {
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

/// Lists the holds that a session says it has.
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
    let locks = FileSystem::open_region(locks, Options::default()).expect("a file system");
    let holds: Arc<OnceLock<HoldsSource>> = Arc::default();
    let loopback = Loopback {
        executor: Executor::new(store, UNIT),
        requests: AtomicU64::new(1),
        holds: holds.clone(),
        locks: locks.lock_user(),
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

    /// Operations on locks.
    fn lock(&self, operation: &Operation) -> Option<Outcome> {
        let locks = &self.locks;
        let done = |()| Outcome::done();
        let result = match operation {
            Operation::SetLock { file, lock } => {
                locks.take(file.inode, lock).map(|is_taken| match is_taken {
                    true => Outcome::done(),
                    false => Outcome::failed(ErrorCode::Locked),
                })
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
        let received = Operation::decode(&sent).inspect_err(|_| {
            // The store refuses the same with an error of its own.
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
        let decoded = Outcome::decode(&answer);
        Ok(decoded.unwrap_or_else(|malformed| panic!("{outcome:?}: {malformed}")))
    }

    fn root(&self) -> FileId {
        FileId::root(UNIT)
    }

    fn set_holds(&self, holds: HoldsSource) {
        assert!(self.holds.set(holds).is_ok(), "holds are set once");
    }

    fn end(&self) {
        self.link.state().is_ended = true;
        self.link.changed.notify_all();
    }
}
