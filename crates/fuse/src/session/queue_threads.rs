//! The threads of a queue with requests that may wait for a cluster.
//!
//! A thread has a ring with one slot, so the kernel hands it a request only while it waits for one. The thread that takes
//! the last free slot starts a further thread before it executes the request. So some thread of the queue is free, or is
//! about to be: a request that waits delays no other one. Waiting requests may thus need later ones, of any queue: pages that
//! another request must unlock, a lock that its holder must release, a recall that the kernel must process.
//!
//! ```text
//!   kernel's queue ─► free thread ─► was it the last? ─► execute, answer ─► free thread
//!                                           └─► start a thread ─► register its slot ─► free thread, a new one
//! ```
//! Requests that arrive while a thread starts wait in the kernel, which moves them only into slots that are returned. So a
//! request may wait beside free slots, if none of these was returned before: if all free threads are new. When that becomes so,
//! a thread sends a nudge (`fuse_device::NUDGE_NAME`), a request that is answered without waiting: it arrives in the slot of a
//! new thread, and when it returns that slot, the kernel moves a waiting request into it.
//!
//! Threads stay until the session ends. If no further one can be started, requests wait for those that there are. A request
//! for a lock is then refused, since its holder's request might wait behind it, and so it is when waits for locks have half of
//! the threads that there may be (`limits`).

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use fuse_device::{Exchange, Queue, Scheduling, set_background};
use parking_lot::{Condvar, Mutex};
use rustix::thread::gettid;
use zerocopy::IntoBytes;

use super::background::Answering;
use super::limits::Limits;
use super::processors;
use super::queues::{Begin, answer_one, header_of};
use crate::adapter::{Adapter, Later, LaterAnswer};
use crate::wire;

/// Threads of a queue that register their slots when the session begins.
pub(super) const FIRST: usize = 2;
/// Slots of a thread.
const DEPTH: usize = 1;

/// A queue, and the processor that its threads run on.
pub(super) struct QueueThreads {
    device: Arc<OwnedFd>,
    number: u16,
    processor: u16,
    payload_length: usize,
    limits: Arc<Limits>,
    state: Mutex<State>,
    /// A further thread has started, or failed to.
    started: Condvar,
}

struct State {
    /// Threads that execute no request, of which the kernel moves waiting requests to the first kind only.
    free: usize,
    free_new: usize,
    /// A further thread is starting.
    is_starting: bool,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// One thread of a queue.
struct QueueThread<'a> {
    threads: &'a Arc<QueueThreads>,
    begin: &'a Arc<Begin>,
    /// It has received no request yet, and has joined a session.
    is_new: Cell<bool>,
    /// None for a further thread, which is never in the background.
    answering: Option<Answering<'a>>,
}

impl QueueThreads {
    pub(super) fn new(
        device: &Arc<OwnedFd>,
        (number, processor): (u16, u16),
        payload_length: usize,
        limits: &Arc<Limits>,
    ) -> Arc<QueueThreads> {
        Arc::new(QueueThreads {
            device: device.clone(),
            number,
            processor,
            payload_length,
            limits: limits.clone(),
            state: Mutex::new(State {
                free: FIRST,
                free_new: 0,
                is_starting: false,
                threads: Vec::new(),
            }),
            started: Condvar::new(),
        })
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// A ring of this thread with one slot of the queue.
    pub(super) fn queue(&self) -> io::Result<Queue> {
        processors::stay_on(self.processor)?;
        Queue::new(
            self.device.clone(),
            &[self.number],
            DEPTH,
            self.payload_length,
        )
    }

    /// Answers as one of the first threads, until the session has ended, and all further threads have, too.
    pub(super) fn lead(
        self: &Arc<QueueThreads>,
        queue: Queue,
        begin: &Arc<Begin>,
        answering: Answering<'_>,
    ) -> io::Result<()> {
        let mut result = self.serve(queue, begin, Some(answering));
        loop {
            let further = self.state.lock().threads.pop();
            let Some(further) = further else {
                return result;
            };
            result = result.and(super::join(further));
        }
    }

    fn serve(
        self: &Arc<QueueThreads>,
        mut queue: Queue,
        begin: &Arc<Begin>,
        answering: Option<Answering<'_>>,
    ) -> io::Result<()> {
        let is_new = answering.is_none();
        let member = QueueThread {
            threads: self,
            begin,
            is_new: Cell::new(is_new),
            answering,
        };
        let answer = |exchange: Exchange<'_>| {
            let start = Instant::now();
            let length = self.answer(&begin.adapter, exchange);
            self.state.lock().free += 1;
            if let Some(answering) = &member.answering {
                answering.answered_within(start.elapsed());
            }
            Some(length)
        };
        let nudges = is_new && self.state.lock().is_nudge_due();
        queue.serve(answer, &member, &begin.directory, nudges)
    }

    /// Starts a further thread, unless there are too many.
    fn start_further(self: &Arc<QueueThreads>, state: &mut State, begin: &Arc<Begin>) {
        if self.limits.add_further() {
            let (threads, begin) = (self.clone(), begin.clone());
            let thread = thread::Builder::new().name(format!("tako-queue-{}", self.number));
            if let Ok(thread) = thread.spawn(move || threads.join_in(&begin)) {
                state.threads.push(thread);
                state.is_starting = true;
                return;
            }
            self.limits.remove_further();
        }
    }

    /// The life of a further thread. It is never in the background, as the thread that started it may be.
    fn join_in(self: &Arc<QueueThreads>, begin: &Arc<Begin>) -> io::Result<()> {
        // Threads that may not leave the background never enter it.
        let _ = set_background(gettid(), false);
        let registered = self.queue().and_then(|mut queue| {
            begin.shutdown.add(queue.stop());
            queue.register().map(|()| queue)
        });
        {
            let mut state = self.state.lock();
            state.is_starting = false;
            state.free_new += usize::from(registered.is_ok());
        }
        self.started.notify_all();
        match registered {
            Ok(queue) => begin.shutdown.guard(|| self.serve(queue, begin, None)),
            // There are too few descriptors or threads, or the session has ended.
            Err(_) => {
                self.limits.remove_further();
                Ok(())
            }
        }
    }

    /// Whether another thread is free to answer requests, once those that start have started.
    fn has_free(&self) -> bool {
        let mut state = self.state.lock();
        while !state.has_free() && state.is_starting {
            self.started.wait(&mut state);
        }
        state.has_free()
    }

    /// Answers a request in place, and returns the bytes of the answer's payload. If another thread answers, waits for it.
    fn answer(&self, adapter: &Adapter, exchange: Exchange<'_>) -> usize {
        let Exchange {
            header: head,
            argument,
            payload,
            length,
            ..
        } = exchange;
        let is_for_lock = header_of(head).opcode == wire::opcode::SETLKW;
        let waits = Cell::new(None);
        let later = || -> Option<Later> {
            let counted = match is_for_lock {
                true => Some(self.limits.wait_for_lock()?),
                false => None,
            };
            let (wait, later) = self.has_free().then(LaterAnswer::new)?;
            waits.set(Some((wait, counted)));
            Some(later)
        };
        let request = (&mut *head, argument, &mut *payload, length);
        if let Some(length) = answer_one(adapter, request, &later) {
            return length;
        }
        let answered = waits
            .take()
            .and_then(|(wait, _counted)| adapter.wait_for(&header_of(head), wait));
        // Without an answer the mount has ended, and the kernel ignores this one.
        let Some((answer, body)) = answered else {
            return 0;
        };
        head[..size_of::<wire::OutHeader>()].copy_from_slice(answer.as_bytes());
        payload[..body.len()].copy_from_slice(&body);
        body.len()
    }
}

impl State {
    fn has_free(&self) -> bool {
        self.free + self.free_new > 0
    }

    fn is_nudge_due(&self) -> bool {
        self.free == 0 && self.free_new > 0
    }
}

impl Scheduling for QueueThread<'_> {
    fn yields(&self) -> bool {
        self.answering.as_ref().is_some_and(Answering::yields)
    }

    fn blocks(&self) {
        if let Some(answering) = &self.answering {
            answering.blocks();
        }
    }

    fn takes(&self) -> bool {
        let mut state = self.threads.state.lock();
        match self.is_new.replace(false) {
            true => state.free_new -= 1,
            false => state.free -= 1,
        }
        if !state.has_free() && !state.is_starting {
            self.threads.start_further(&mut state, self.begin);
        }
        state.is_nudge_due()
    }

    fn sends_first(&self) -> bool {
        self.yields() || self.begin.adapter.is_awaited()
    }

    fn sent(&self) {
        self.begin.adapter.sent();
    }
}

/// The thread ends, perhaps before its last answer is with the kernel: then the session has ended, and recalls do not wait
/// for the answer.
impl Drop for QueueThread<'_> {
    fn drop(&mut self) {
        self.begin.adapter.sent();
    }
}
