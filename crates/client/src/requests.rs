//! The way of operations to the cluster, as a remote file system needs it.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use connections::messenger::ReadTarget;
use operations::{Acknowledge, FileId, Held, Operation, Outcome};
use parking_lot::Mutex;
use pmem::Arena;
use protocol::client::{Ownership, Recalled};

use crate::leases::{RecallListener, Renewable};

/// Executes operations in a cluster, in one session.
///
/// A session resumes after the loss of its connection, and executes every change exactly once.
pub trait Requests: Send + Sync {
    /// Has an operation executed and returns its outcome, also that of an operation that failed. Waits while the cluster
    /// is unreachable, unless the session has a time limit, and ends early when [`Interrupt::current`] is interrupted.
    ///
    /// # Errors
    /// The outcome is unknown.
    fn call(&self, operation: Operation, acknowledge: Acknowledge)
    -> Result<Outcome, RequestError>;

    /// Requests an operation, and does not wait for its outcome.
    fn start(&self, operation: Operation, acknowledge: Acknowledge) -> Started {
        let outcome = self.call(operation, acknowledge);
        Started::new(|| outcome)
    }

    /// Memory of so many bytes that long reads land in without a copy by this process, if there is some.
    fn read_target(&self, _bytes: u64) -> Option<ReadTarget> {
        None
    }

    /// Memory for data of later writes, in blocks of this size, which members copy by themselves where they can. `None` if there is none.
    fn write_memory(&self, _block_bytes: usize, _blocks: u32) -> Option<Arena> {
        None
    }

    /// Executes a read with data that may land in such memory, from an offset on, up to a whole block. Returns the outcome, which has the
    /// data, and whether it has landed instead: [`Outcome::count`] bytes.
    ///
    /// # Errors
    /// As [`Requests::call`], with whether the data may land later.
    fn call_landing(
        &self,
        operation: Operation,
        _target: (ReadTarget, u64),
    ) -> Result<(Outcome, bool), LandingError> {
        let called = self.call(operation, Acknowledge::Primary);
        let outcome = called.map_err(|source| LandingError {
            source,
            may_land: false,
        })?;
        Ok((outcome, false))
    }

    /// Longest read for which reading ahead pays, in bytes; 0 if it does not.
    fn read_ahead_max(&self) -> usize {
        0
    }

    /// Reads from a file without a request: in the primary's store, if that is in this process, or out of the members' memory, if it is
    /// mapped here and there is nothing to ask. Returns the bytes read; `None` if the read needs a request. Then part of `into` may
    /// have been overwritten.
    fn read_locally(
        &self,
        _file: FileId,
        _offset: u64,
        _into: &mut [u8],
        _note_read: bool,
    ) -> Option<usize> {
        None
    }

    /// Executes a write, and asks for the lease for writing of its file. Returns it, if it was granted.
    fn call_owning(&self, operation: Operation, acknowledge: Acknowledge) -> Owning {
        self.call(operation, acknowledge)
            .map(|outcome| (outcome, None))
    }

    /// The same for several writes at a time, which count in this session only: in another one they fail with
    /// [`ErrorCode::SessionEnded`](operations::ErrorCode::SessionEnded). They are not interrupted.
    fn call_all_in(
        &self,
        _session: u64,
        operations: Vec<Operation>,
        acknowledge: Acknowledge,
    ) -> Vec<Owning> {
        let operations = operations.into_iter();
        operations
            .map(|operation| self.call_owning(operation, acknowledge))
            .collect()
    }

    /// The time by which leases for writing end, in nanoseconds.
    fn now_ns(&self) -> u64 {
        0
    }

    /// Returns the root directory of the cluster.
    fn root(&self) -> FileId {
        FileId::root(0)
    }

    /// Sets the source of the holds that the session has. The session sends them when it resumes, since a new primary has
    /// no memory of them.
    fn set_holds(&self, holds: HoldsSource);

    /// Sets what takes recalls, or nothing: from then on the session asks for leases, or does without. [`Requests::invalidated`]
    /// has to follow each recall.
    fn set_recalls(&self, _listener: Option<RecallListener>) {}

    /// Reports that the caches have dropped the recalled contents.
    fn invalidated(&self, _recalled: Recalled) {}

    /// Sets a cache of outcomes. While the session is granted leases, it renews those that the cache uses.
    fn set_cache(&self, _cache: Arc<dyn Renewable>) {}

    /// Sets what takes turns, or nothing: from then on the session listens for them, or not.
    fn await_turns(&self, _listener: Option<TurnListener>) {}

    /// Ends the session: calls that wait fail with [`RequestError::Ended`], and so does every later one.
    fn end(&self);
}

/// Memory that reads of one file land in.
pub(crate) struct LandingMemory {
    target: ReadTarget,
    is_unsettled: AtomicBool,
}

impl LandingMemory {
    pub(crate) fn new(target: ReadTarget) -> LandingMemory {
        LandingMemory {
            target,
            is_unsettled: AtomicBool::new(false),
        }
    }

    pub(crate) fn target(&self) -> &ReadTarget {
        &self.target
    }

    /// Whether data of a read that has failed may still land.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.is_unsettled.load(Ordering::Relaxed)
    }

    /// Marks the memory: the end of a read into it is not known.
    pub(crate) fn unsettle(&self) {
        self.is_unsettled.store(true, Ordering::Relaxed);
    }
}

/// An operation that was requested. If it is dropped, it is executed nevertheless.
pub struct Started(Box<dyn FnOnce() -> Result<Outcome, RequestError> + Send>);

impl Started {
    /// Of a function that waits for the outcome.
    pub fn new(finish: impl FnOnce() -> Result<Outcome, RequestError> + Send + 'static) -> Started {
        Started(Box::new(finish))
    }

    /// Waits for the outcome, as [`Requests::call`] does.
    ///
    /// # Errors
    /// The outcome is unknown.
    pub fn finish(self) -> Result<Outcome, RequestError> {
        (self.0)()
    }
}

/// Outcome of a write, and the lease for writing that came with it.
pub type Owning = Result<(Outcome, Option<Ownership>), RequestError>;

/// Takes the number of a wait for a lock that is free now. It must not wait for anything.
pub type TurnListener = Box<dyn Fn(u64) + Send>;

/// Lists the holds of a session.
pub type HoldsSource = Box<dyn Fn() -> Vec<Held> + Send + Sync>;

/// Why a request has no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The time limit of the session has passed without an answer.
    #[error("the cluster did not answer: {0}; it may have executed the request")]
    Unreachable(String),
    /// The caller was interrupted.
    #[error("the caller was interrupted while the cluster was unreachable")]
    Interrupted,
    /// The session has ended.
    #[error("the session with the cluster has ended: {0}; open the file system again")]
    Ended(String),
    /// The answer does not belong to the request.
    #[error("the cluster's answer is invalid: {0}; check that all nodes run the same version")]
    Invalid(&'static str),
}

/// Why a read into memory has no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{source}")]
pub struct LandingError {
    /// Cause of the failure.
    pub source: RequestError,
    /// Whether its data was requested and may land later.
    pub may_land: bool,
}

/// Ends a call early, from another thread.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<State>);

#[derive(Default)]
struct State {
    is_interrupted: AtomicBool,
    wake: Mutex<Option<Wake>>,
}

type Wake = Box<dyn Fn() + Send>;

thread_local! {
    static CURRENT: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
}

impl Interrupt {
    /// The interrupt of the call that this thread executes, if it has one.
    pub fn current() -> Option<Interrupt> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Executes `work` as a call that this interrupt ends.
    pub fn scope<T>(&self, work: impl FnOnce() -> T) -> T {
        let outer = CURRENT.replace(Some(self.clone()));
        let result = work();
        CURRENT.set(outer);
        result
    }

    /// Interrupts the call that waits with this handle.
    pub fn interrupt(&self) {
        self.0.is_interrupted.store(true, Ordering::SeqCst);
        if let Some(wake) = &*self.0.wake.lock() {
            wake();
        }
    }

    /// Whether the call was interrupted.
    pub fn is_interrupted(&self) -> bool {
        self.0.is_interrupted.load(Ordering::SeqCst)
    }

    /// Sets the function that wakes the call's thread up while it waits; `None` when it waits no longer. The caller
    /// checks [`Interrupt::is_interrupted`] afterwards, before it waits.
    pub fn set_wake(&self, wake: Option<Wake>) {
        *self.0.wake.lock() = wake;
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Interrupt({})", self.is_interrupted())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn an_interrupt_wakes_the_call_that_it_belongs_to() {
        assert!(Interrupt::current().is_none());
        let (say, hear) = mpsc::channel();
        let interrupt = Interrupt::default();
        interrupt.scope(|| {
            let current = Interrupt::current().expect("one is in scope");
            current.set_wake(Some(Box::new(move || say.send(()).expect("a receiver"))));
            assert!(!current.is_interrupted());
            interrupt.interrupt();
            assert_eq!(hear.recv(), Ok(()));
            assert!(current.is_interrupted());
        });
        assert!(Interrupt::current().is_none());
    }
}
