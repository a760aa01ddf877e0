//! [`Network`]: a session with a cluster, over whatever transports reach its nodes.
//!
//! ```text
//!   call ──► Call ──► leader ──► Connection ──► protocol::Client, Messenger
//!                       ▲  hands over
//!   keeper ─────────────┘  when no call is in progress
//! ```
//! **The calling thread does the work.** One call at a time leads: it holds the connection, sends what all calls ask for, and
//! polls until its own outcome has arrived. The others wait until the leader delivers their outcomes, or hands over to one
//! of them. A thread of its own, the keeper, leads for a moment when something is due and no call is in progress: it sends
//! keep-alives and connects again. While there are leases, or waits for locks, it leads whenever no call does, so that recalls
//! and turns are seen at once.
//! An idle network costs a wake-up per keep-alive.
//!
//! **A lost primary is not an error.** Links are dialed again, each member is asked for its cluster map, the session
//! resumes with the new primary, and calls wait meanwhile: without a bound, or until [`Options::timeout`].

mod call;
mod connection;
mod error;
mod inside;
mod links;
mod member_memory;

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use connections::choice::Choice;
use connections::control::{Address, Identity};
use connections::messenger::{Handle, ReadTarget};
pub use connections::messenger::{Pull, RequestWay};
use fabric::Provider;
use operations::{Acknowledge, FileId, Operation, Outcome};
use parking_lot::{Condvar, Mutex, MutexGuard};
use pmem::Arena;
use protocol::client::Recalled;
use protocol::{ClusterMap, NodeId};

use self::call::{Call, Terms, Waited};
use self::connection::Connection;
pub use self::error::Error;
pub use self::inside::Inside;
use crate::leases::{self, Listener, RecallListener, Renewable};
use crate::{
    HoldsSource, Interrupt, LandingError, Owning, RequestError, Requests, Started, TurnListener,
};

/// Access to a network, and time limits of calls.
#[derive(Clone)]
pub struct Options {
    /// Identity of this process: the cluster, and keys if nodes are reached over a network.
    pub identity: Identity,
    /// Where nodes of the cluster may listen. One that answers is enough.
    pub addresses: Vec<Address>,
    /// Name of the cluster, if it is to be checked.
    pub cluster: Option<String>,
    /// The only transport to use.
    pub only: Option<Provider>,
    /// Interface of the transport over Ethernet; without one that transport is not used.
    pub interface: Option<String>,
    /// EtherTypes of its frames, of data and of commands; 0x8000 and 0x8001 unless chosen.
    pub ether_types: Option<[u16; 2]>,
    /// Its queue by which long writes go straight into the pools of members. With 0 they share the queue of all other frames.
    pub data_queue: Option<u32>,
    /// Memory behind that queue for mapped files, in bytes; taken when the session begins.
    pub map_bytes: u64,
    /// How short messages travel, both ways.
    pub requests: RequestWay,
    /// Which data of messages this side leaves in its memory, to be pulled by the receiver.
    pub pull: Pull,
    /// The side that moves the data of writes and reads.
    pub io: Io,
    /// A node in this process: while it is the primary, requests are calls.
    pub inside: Option<Arc<dyn Inside>>,
    /// Nothing is written: then members export their memory for reading only.
    pub is_read_only: bool,
    /// How long [`Network::connect`] waits for a node that answers.
    pub connect_timeout: Duration,
    /// How long a call waits for its outcome: forever if `None`.
    pub timeout: Option<Duration>,
    /// Receives one sentence when the cluster has become unreachable, and one when it answers again.
    pub report: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Memory for mapped files, unless chosen.
const MAP_BYTES: u64 = 64 << 20;

/// The side that moves the data of writes and reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// The servers: it comes and goes in messages.
    #[default]
    Server,
    /// The client, one-sided, wherever it can.
    Client,
    /// The client, where that is faster.
    Auto,
}

impl Options {
    /// A network that waits for ever, of any transport.
    pub fn new(identity: Identity, addresses: Vec<Address>) -> Options {
        Options {
            identity,
            addresses,
            cluster: None,
            only: None,
            interface: None,
            ether_types: None,
            data_queue: None,
            map_bytes: MAP_BYTES,
            requests: RequestWay::default(),
            pull: Pull::default(),
            io: Io::default(),
            inside: None,
            is_read_only: false,
            connect_timeout: Duration::from_secs(10),
            timeout: None,
            report: Arc::new(|_| {}),
        }
    }
}

/// A session with a cluster. Any number of threads may call at once.
pub struct Network {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

struct Shared {
    connection: Mutex<Connection>,
    handle: Handle,
    /// Calls that no leader has taken yet.
    submitted: Mutex<Vec<Arc<Call>>>,
    /// Calls that wait for their outcome, or to lead.
    waiting: Mutex<Vec<Arc<Call>>>,
    timeout: Option<Duration>,
    /// The unit with the root directory.
    unit: u16,
    start: Instant,
    /// When the keeper wakes up by itself, in nanoseconds since the start; [`AWAKE`] while it works.
    keeper_until: AtomicU64,
    keeping: Mutex<Keeping>,
    keeper: Condvar,
    /// A node in this process, and the session that may read there without a message; 0 for none.
    inside: Option<Arc<dyn Inside>>,
    reader: Arc<AtomicU64>,
    read_ahead_max: Arc<AtomicUsize>,
    /// Whether reads at once may succeed with the present links.
    reads_at_once: Arc<AtomicBool>,
    /// A call leads: the keeper need not look until it ends.
    is_led: AtomicBool,
    /// Called with each recall of a lease.
    listener: Listener,
    /// What takes turns of waits for locks.
    turns: Arc<Mutex<Option<TurnListener>>>,
    /// Recalls that are to be answered.
    invalidated: Mutex<Vec<Recalled>>,
    /// When the last lease ends, in nanoseconds since the start: recalls come until then.
    leases_until: AtomicU64,
    /// The cluster has not answered for a while, though it was asked.
    is_lost: AtomicBool,
    /// Cache of the front end's outcomes, if it has one.
    cache: OnceLock<Arc<dyn Renewable>>,
    /// Whether every call fails from now on.
    is_ended: AtomicBool,
}

/// What the keeper is told by other threads.
#[derive(Default)]
struct Keeping {
    is_closed: bool,
    /// When it has to work, if that is earlier than it knows.
    wake_at: Option<Instant>,
}

/// The keeper works, and then sleeps until it is told.
const AWAKE: u64 = u64::MAX;

impl Limit {
    /// When the call checks its limits again, at the latest.
    fn next(&self, now: Instant) -> Instant {
        let is_interrupted = self
            .interrupt
            .as_ref()
            .is_some_and(Interrupt::is_interrupted);
        let pause = match is_interrupted {
            true => INTERRUPTED_EVERY,
            false => KEEPER_EVERY,
        };
        let next = now + pause;
        self.until.map_or(next, |until| until.clamp(now, next))
    }
}

/// Interval at which an interrupted call checks whether the cluster is unreachable.
const INTERRUPTED_EVERY: Duration = Duration::from_millis(250);
/// How long a session that ends waits for the cluster.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Greatest interval of the keeper's work on the connection.
const KEEPER_EVERY: Duration = Duration::from_secs(5);
/// When the keeper looks again after a thread used the connection. A call tells the keeper what is due when it ends; a read at once
/// does not, and a session ends if no keep-alive is sent.
const USED_AGAIN: Duration = Duration::from_millis(50);
/// Shortest read that may be executed at once: whole blocks are copied.
const AT_ONCE_LEAST: usize = 4096;
/// Bytes of a page of the caller's memory.
const PAGE: usize = 4096;
/// While there are leases, the keeper listens for recalls when no call has led for so long.
const LISTEN_AFTER: Duration = Duration::from_millis(2);

impl Network {
    /// Connects to a node that answers, and gets the cluster map.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Transport`], [`Error::NoUnit`].
    pub fn connect(options: Options) -> Result<Network, Error> {
        let (timeout, inside) = (options.timeout, options.inside.clone());
        let mut connection = Connection::open(options)?;
        let unit = connection.reach()?;
        let shared = Arc::new(Shared {
            inside,
            reader: connection.reader(),
            read_ahead_max: connection.read_ahead_max(),
            reads_at_once: connection.reads_at_once(),
            is_led: AtomicBool::new(false),
            listener: connection.listener(),
            turns: connection.turns(),
            invalidated: Mutex::default(),
            leases_until: AtomicU64::new(0),
            handle: connection.handle(),
            start: connection.start(),
            connection: Mutex::new(connection),
            submitted: Mutex::default(),
            waiting: Mutex::default(),
            timeout,
            unit,
            keeper_until: AtomicU64::new(AWAKE),
            keeping: Mutex::default(),
            keeper: Condvar::new(),
            is_lost: AtomicBool::new(false),
            cache: OnceLock::new(),
            is_ended: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new().name("tako-keeper".to_owned());
        let keeper = thread.spawn({
            let shared = shared.clone();
            move || shared.keep()
        });
        Ok(Network {
            shared,
            keeper: Some(keeper.map_err(Error::Thread)?),
        })
    }

    /// Number of one-sided writes and reads.
    pub fn one_sided(&self) -> (u64, u64) {
        self.shared
            .with_connection(|connection| connection.one_sided())
    }

    /// The newest cluster map that this client has received.
    pub fn map(&self) -> ClusterMap {
        self.shared
            .with_connection(|connection| connection.map().clone())
    }

    /// The transports by which this client is linked to nodes, and why each was chosen.
    pub fn choices(&self) -> Vec<(NodeId, Choice)> {
        self.shared
            .with_connection(|connection| connection.choices())
    }
}

impl Requests for Network {
    fn call(
        &self,
        operation: Operation,
        acknowledge: Acknowledge,
    ) -> Result<Outcome, RequestError> {
        self.shared
            .call(operation, acknowledge, self.shared.timeout)
    }

    fn start(&self, operation: Operation, acknowledge: Acknowledge) -> Started {
        let call = Arc::new(Call::new(operation, acknowledge, Terms::Plain));
        let shared = self.shared.clone();
        shared.submitted.lock().push(call.clone());
        shared.submit();
        Started::new(move || shared.wait_for(&call, shared.timeout))
    }

    fn read_target(&self, bytes: u64) -> Option<ReadTarget> {
        self.shared
            .with_connection(|connection| connection.read_target(bytes))
    }

    fn write_memory(&self, block_bytes: usize, blocks: u32) -> Option<Arena> {
        self.shared
            .with_connection(|connection| connection.write_memory(block_bytes, blocks))
    }

    fn call_landing(
        &self,
        operation: Operation,
        target: (ReadTarget, u64),
    ) -> Result<(Outcome, bool), LandingError> {
        let call = Arc::new(Call::landing(operation, target));
        self.shared.submitted.lock().push(call.clone());
        let waited = self.shared.wait_for(&call, self.shared.timeout);
        let outcome = waited.map_err(|source| LandingError {
            source,
            may_land: call.may_land(),
        })?;
        Ok((outcome, call.has_landed()))
    }

    fn read_ahead_max(&self) -> usize {
        self.shared.read_ahead_max.load(Ordering::Relaxed)
    }

    fn read_locally(
        &self,
        file: FileId,
        offset: u64,
        into: &mut [u8],
        note_read: bool,
    ) -> Option<usize> {
        let session = self.shared.reader.load(Ordering::Acquire);
        let inside = self.shared.inside.as_ref().filter(|_| session != 0);
        if self.shared.is_ended.load(Ordering::Acquire) {
            return None;
        }
        // It is granted no lease.
        leases::note(None);
        match inside {
            Some(inside) => inside.read(session, (file, offset), into, note_read),
            None => self.shared.read_at_once((file, offset), into, note_read),
        }
    }

    fn call_owning(&self, operation: Operation, acknowledge: Acknowledge) -> Owning {
        let call = Arc::new(Call::new(operation, acknowledge, Terms::Owning));
        self.shared.submitted.lock().push(call.clone());
        let outcome = self.shared.wait_for(&call, self.shared.timeout)?;
        Ok((outcome, call.ownership()))
    }

    fn call_all_in(
        &self,
        session: u64,
        operations: Vec<Operation>,
        acknowledge: Acknowledge,
    ) -> Vec<Owning> {
        let terms = Terms::In(session);
        let calls = operations.into_iter();
        let calls: Vec<Arc<Call>> = calls
            .map(|operation| Arc::new(Call::new(operation, acknowledge, terms)))
            .collect();
        self.shared.wait_for_all(&calls)
    }

    fn now_ns(&self) -> u64 {
        self.shared.since_start(Instant::now())
    }

    fn root(&self) -> FileId {
        FileId::root(self.shared.unit)
    }

    fn set_holds(&self, holds: HoldsSource) {
        self.shared
            .with_connection(|connection| connection.set_holds(holds));
    }

    fn set_recalls(&self, listener: Option<RecallListener>) {
        *self.shared.listener.lock() = listener;
    }

    fn invalidated(&self, recalled: Recalled) {
        self.shared.invalidated.lock().push(recalled);
        match self.shared.connection.try_lock() {
            Some(mut connection) => {
                connection.answer_recalls(&mut self.shared.invalidated.lock());
                connection.pump();
                connection.step(Duration::ZERO);
                drop(connection);
                self.shared.hand_over();
            }
            // The leader sends it, or the keeper after it.
            None => self.shared.handle.wake(),
        }
    }

    fn set_cache(&self, cache: Arc<dyn Renewable>) {
        let _ = self.shared.cache.set(cache.clone());
        self.shared
            .with_connection(|connection| connection.set_cache(cache));
    }

    fn await_turns(&self, listener: Option<TurnListener>) {
        *self.shared.turns.lock() = listener;
        self.shared.wake_keeper_before(Instant::now());
    }

    fn end(&self) {
        self.shared.end();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.shared.keeping.lock().is_closed = true;
        self.shared.keeper.notify_all();
        self.shared.handle.wake();
        if let Some(keeper) = self.keeper.take() {
            // It ends with the flag; a panic of it has been reported already.
            let _ = keeper.join();
        }
        // A session that is not closed ends by itself, later.
        let within = Some(CLOSE_WITHIN);
        let _ = self
            .shared
            .call(Operation::CloseSession, Acknowledge::Primary, within);
    }
}

/// Lets the kernel supply the pages of this memory: page faults under the lock of the connection would delay all other calls.
fn touch(memory: &mut [u8]) {
    for page in memory.chunks_mut(PAGE) {
        page[0] = black_box(page[0]);
    }
    if let Some(last) = memory.last_mut() {
        *last = black_box(*last);
    }
}

/// Limits of a call, apart from its outcome.
struct Limit {
    until: Option<Instant>,
    timeout: Duration,
    interrupt: Option<Interrupt>,
}

impl Shared {
    fn call(
        &self,
        operation: Operation,
        acknowledge: Acknowledge,
        timeout: Option<Duration>,
    ) -> Result<Outcome, RequestError> {
        let call = Arc::new(Call::new(operation, acknowledge, Terms::Plain));
        self.submitted.lock().push(call.clone());
        self.wait_for(&call, timeout)
    }

    /// Reads at once, unless another thread uses the connection or there is other work on it.
    fn read_at_once(&self, at: (FileId, u64), into: &mut [u8], note_read: bool) -> Option<usize> {
        if into.len() < AT_ONCE_LEAST || !self.reads_at_once.load(Ordering::Relaxed) {
            return None;
        }
        touch(into);
        let mut connection = self.connection.try_lock()?;
        let is_idle = !self.has_unsent() && self.waiting.lock().is_empty();
        let read = is_idle
            .then(|| connection.read_at_once(at, into, note_read))
            .flatten();
        drop(connection);
        self.hand_over();
        read
    }

    /// Whether calls that wait for nothing else, or answers to recalls, are to be sent.
    fn has_unsent(&self) -> bool {
        !self.submitted.lock().is_empty() || !self.invalidated.lock().is_empty()
    }

    /// Begins the calls that were submitted, answers recalls, and sends what is to be sent.
    fn begin_work(&self, connection: &mut Connection) {
        connection.begin(&mut self.submitted.lock());
        connection.answer_recalls(&mut self.invalidated.lock());
        connection.pump();
    }

    /// Sends what was submitted, or lets the leader do it.
    fn submit(&self) {
        match self.connection.try_lock() {
            Some(mut connection) => {
                self.begin_work(&mut connection);
                let due = self.due(&connection);
                drop(connection);
                self.wake_keeper_before(due);
                self.hand_over();
            }
            None => self.handle.wake(),
        }
    }

    /// Submits calls, and waits for all of them.
    fn wait_for_all(&self, calls: &[Arc<Call>]) -> Vec<Owning> {
        let limit = Limit {
            until: None,
            timeout: Duration::ZERO,
            interrupt: None,
        };
        self.submitted.lock().extend(calls.iter().cloned());
        let wait = |call: &Arc<Call>| {
            let outcome = match call.take() {
                Some(outcome) => outcome,
                None => self.follow_or_lead(call, &limit)?,
            };
            Ok((outcome, call.ownership()))
        };
        calls.iter().map(wait).collect()
    }

    /// Waits for a submitted call.
    fn wait_for(
        &self,
        call: &Arc<Call>,
        timeout: Option<Duration>,
    ) -> Result<Outcome, RequestError> {
        let limit = Limit {
            until: timeout.map(|timeout| Instant::now() + timeout),
            timeout: timeout.unwrap_or_default(),
            interrupt: Interrupt::current(),
        };
        if let Some(interrupt) = &limit.interrupt {
            let (call, handle) = (call.clone(), self.handle.clone());
            interrupt.set_wake(Some(Box::new(move || {
                call.wake();
                handle.wake();
            })));
        }
        let outcome = match call.take() {
            Some(outcome) => Ok(outcome),
            None => self.follow_or_lead(call, &limit),
        };
        if let Some(interrupt) = &limit.interrupt {
            interrupt.set_wake(None);
        }
        outcome
    }

    fn follow_or_lead(&self, call: &Arc<Call>, limit: &Limit) -> Result<Outcome, RequestError> {
        loop {
            if let Some(connection) = self.try_lead(call) {
                return self.lead(connection, call, limit);
            }
            self.handle.wake();
            let until = limit.next(Instant::now());
            match call.wait(until, || self.ends_early(limit).is_some()) {
                Waited::Outcome(outcome) => {
                    self.leave(call);
                    return Ok(outcome);
                }
                Waited::Leads => {}
                Waited::Woken => {
                    if let Some(error) = self.ends_early(limit) {
                        self.abandon(call);
                        self.leave(call);
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Ends a call without its outcome.
    fn abandon(&self, call: &Call) {
        let cache = self.cache.get();
        // First, so that the outcome cannot come in between.
        if let Some(cache) = cache {
            cache.abandoned();
        }
        if !call.end()
            && let Some(cache) = cache
        {
            cache.settled();
        }
    }

    /// Why a call ends without its outcome, if it does.
    fn ends_early(&self, limit: &Limit) -> Option<RequestError> {
        if self.is_ended.load(Ordering::Acquire) {
            return Some(RequestError::Ended("it was closed".to_owned()));
        }
        if limit.until.is_some_and(|until| Instant::now() >= until) {
            let sentence = format!("it had {} ms", limit.timeout.as_millis());
            return Some(RequestError::Unreachable(sentence));
        }
        // A cluster that answers ends the call soon: most signals must not fail it.
        let is_lost = self.is_lost.load(Ordering::Acquire);
        let interrupt = limit.interrupt.as_ref().filter(|_| is_lost);
        let is_interrupted = interrupt.is_some_and(Interrupt::is_interrupted);
        is_interrupted.then_some(RequestError::Interrupted)
    }

    /// Takes the connection, or lists the call with those that wait for it: then a leader sees it when it leaves.
    fn try_lead(&self, call: &Arc<Call>) -> Option<MutexGuard<'_, Connection>> {
        if let Some(connection) = self.connection.try_lock() {
            return Some(connection);
        }
        self.waiting.lock().push(call.clone());
        let connection = self.connection.try_lock()?;
        self.unlist(call);
        Some(connection)
    }

    fn lead(
        &self,
        mut connection: MutexGuard<'_, Connection>,
        call: &Arc<Call>,
        limit: &Limit,
    ) -> Result<Outcome, RequestError> {
        self.is_led.store(true, Ordering::Relaxed);
        connection.catch_up();
        let outcome = loop {
            self.begin_work(&mut connection);
            if let Some(outcome) = call.take() {
                break Ok(outcome);
            }
            if let Some(error) = self.ends_early(limit) {
                self.abandon(call);
                break Err(error);
            }
            let now = Instant::now();
            connection.step(limit.next(now) - now);
            self.is_lost.store(connection.is_lost(), Ordering::Release);
        };
        let due = self.due(&connection);
        self.is_led.store(false, Ordering::Relaxed);
        drop(connection);
        self.wake_keeper_before(due);
        // It may still be listed, since it was woken up before it led.
        call.end();
        self.hand_over();
        outcome
    }

    /// Uses the connection for a moment.
    fn with_connection<T>(&self, work: impl FnOnce(&mut Connection) -> T) -> T {
        let result = work(&mut self.connection.lock());
        // A call that came meanwhile waits for this thread to hand over.
        self.hand_over();
        result
    }

    /// When the keeper has to work on the connection.
    fn due(&self, connection: &Connection) -> Instant {
        let leases_until = connection.leases_until();
        self.leases_until
            .store(self.since_start(leases_until), Ordering::Relaxed);
        match self.listens() {
            true => connection.due().min(Instant::now() + LISTEN_AFTER),
            false => connection.due(),
        }
    }

    fn has_leases(&self) -> bool {
        self.since_start(Instant::now()) < self.leases_until.load(Ordering::Relaxed)
    }

    /// Whether messages may come that no call waits for.
    fn listens(&self) -> bool {
        self.has_leases() || self.turns.lock().is_some()
    }

    /// The connection is free: one of the calls that wait leads. Without one, what was submitted while the connection was in use is
    /// sent by this thread.
    fn hand_over(&self) {
        let is_led = std::iter::from_fn(|| self.waiting.lock().pop()).any(|call| call.promote());
        if !is_led && self.has_unsent() {
            self.submit();
        }
    }

    /// A call that waited has ended. It may have been promoted meanwhile.
    fn leave(&self, call: &Arc<Call>) {
        self.unlist(call);
        if call.is_leader() {
            self.hand_over();
        }
    }

    fn unlist(&self, call: &Arc<Call>) {
        self.waiting
            .lock()
            .retain(|other| !Arc::ptr_eq(other, call));
    }

    /// Ends all calls, and every later one.
    fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        self.handle.wake();
        for call in self.waiting.lock().iter() {
            call.wake();
        }
    }

    fn since_start(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_nanos() as u64
    }

    fn wake_keeper_before(&self, due: Instant) {
        if self.since_start(due) < self.keeper_until.load(Ordering::Relaxed) {
            let mut keeping = self.keeping.lock();
            keeping.wake_at = Some(keeping.wake_at.map_or(due, |at| at.min(due)));
            self.keeper.notify_all();
        }
    }

    /// Leads for a moment whenever something is due and no call leads, and for as long as recalls or turns may come.
    fn keep(&self) {
        let mut keeping = self.keeping.lock();
        while !keeping.is_closed {
            self.keeper_until.store(AWAKE, Ordering::Relaxed);
            let until = MutexGuard::unlocked(&mut keeping, || match self.connection.try_lock() {
                Some(connection) => self.look_after(connection),
                // That thread executes due actions until it ends.
                None if self.listens() => Instant::now() + LISTEN_AFTER,
                None if self.is_led.load(Ordering::Relaxed) => Instant::now() + KEEPER_EVERY,
                None => Instant::now() + USED_AGAIN,
            });
            // A thread that ended its work meanwhile knew of no later time.
            let until = keeping.wake_at.take().map_or(until, |at| at.min(until));
            let wakes = self.since_start(until);
            self.keeper_until.store(wakes, Ordering::Relaxed);
            if !keeping.is_closed {
                self.keeper.wait_until(&mut keeping, until);
                keeping.wake_at = None;
            }
        }
    }

    /// Executes due actions, and polls for recalls while there are leases and no call wants to lead. Returns when to
    /// work again.
    fn look_after(&self, mut connection: MutexGuard<'_, Connection>) -> Instant {
        loop {
            self.begin_work(&mut connection);
            let listens = self.listens() && self.waiting.lock().is_empty();
            let until = match self.turns.lock().is_some() {
                true => Instant::now() + KEEPER_EVERY,
                false => connection.leases_until(),
            };
            let most = match listens {
                true => until
                    .saturating_duration_since(Instant::now())
                    .min(KEEPER_EVERY),
                false => Duration::ZERO,
            };
            connection.step(most);
            let due = self.due(&connection);
            if !listens || self.keeping.lock().is_closed {
                drop(connection);
                self.hand_over();
                return due.min(Instant::now() + KEEPER_EVERY);
            }
        }
    }
}
