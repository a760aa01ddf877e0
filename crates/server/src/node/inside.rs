//! A client in the node's own process, which enters the node by calls.
//!
//! ```text
//!   client's thread ── Inside::send ──► Service, under its lock: one step of the member, replies
//!                   ── Inside::drive ─► the same thread polls for the node until a reply has come
//!   service thread  ── blocks without the lock; takes what comes while no thread drives, and wakes the client
//! ```
//! Reads of files do not even need the lock ([`LocalReads`]). Messages are passed as they are, not encoded. A call holds the lock for one step, or while it drives. The service thread blocks without the lock, and peers ring for it only
//! while no other thread polls. The client has an ordinary link to the node besides, for cluster maps and exports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use connections::messenger::Handle;
use operations::FileId;
use parking_lot::Mutex;
use protocol::NodeId;
use protocol::wire::Message;

use super::service::Service;
use super::{Inbox, Input, clock};
use crate::local_reads::LocalReads;

/// The service of a node, until it has ended.
pub type Shared = Arc<Mutex<Option<Service>>>;

/// What a node has for its client inside.
pub struct Outbox {
    /// Identity of the client inside.
    pub client: NodeId,
    messages: Vec<Message>,
    has_messages: Arc<AtomicBool>,
    wake: Handle,
    /// The client's thread has the lock, and takes the messages before it leaves.
    is_entered: bool,
}

impl Outbox {
    /// Keeps a message for the client, and wakes it.
    pub fn put(&mut self, message: Message) {
        self.messages.push(message);
        self.has_messages.store(true, Ordering::Release);
        if !self.is_entered {
            self.wake.wake();
        }
    }

    /// Whether there is no message.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

/// The way into a node for one client in its process.
pub struct Inside {
    node: NodeId,
    service: Shared,
    inbox: Inbox,
    local_reads: Arc<LocalReads>,
    has_messages: Arc<AtomicBool>,
}

impl Inside {
    pub(super) fn new(
        node: NodeId,
        service: Shared,
        inbox: Inbox,
        local_reads: Arc<LocalReads>,
    ) -> Inside {
        Inside {
            node,
            service,
            inbox,
            local_reads,
            has_messages: Arc::default(),
        }
    }

    /// Returns the identity of the node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// From now on the node keeps messages for the client with this number, and calls `wake` when there are some.
    pub fn attach(&self, client: NodeId, wake: Handle) {
        let outbox = Outbox {
            client,
            messages: Vec::new(),
            has_messages: self.has_messages.clone(),
            wake,
            is_entered: false,
        };
        self.inbox.send(Input::Attach(outbox));
    }

    /// Whether there are messages for the client.
    pub fn has_messages(&self) -> bool {
        self.has_messages.load(Ordering::Acquire)
    }

    /// Reads from a file on this thread, beside others, if the node is the primary and needs no message for it. Returns the
    /// bytes read.
    pub fn read(
        &self,
        session: u64,
        (file, offset): (FileId, u64),
        into: &mut [u8],
        note_read: bool,
    ) -> Option<usize> {
        let read = self.local_reads.read(file, offset, into, note_read)?;
        let is_answer = self.local_reads.may_answer(&read, session, clock::now());
        is_answer.then_some(read.count)
    }

    /// Gives the node messages of the client, and takes those for it. Returns whether the node is there.
    pub fn send(&self, messages: &mut Vec<Message>, replies: &mut Vec<Message>) -> bool {
        self.enter(replies, |service| {
            for message in messages.drain(..) {
                service.take_inside(message);
            }
            service.end_taking();
        })
    }

    /// Does the node's work on this thread until there is a message for the client or `is_over`, so long at most. Returns
    /// whether the node is there.
    pub fn drive(
        &self,
        most: Duration,
        is_over: impl Fn() -> bool,
        replies: &mut Vec<Message>,
    ) -> bool {
        self.enter(replies, |service| {
            let until = clock::now() + most.as_nanos() as u64;
            service.begin_to_poll();
            while !service.has_reply() && clock::now() < until && !is_over() {
                service.look();
                service.poll();
            }
            service.end_polling();
        })
    }

    fn enter(&self, replies: &mut Vec<Message>, work: impl FnOnce(&mut Service)) -> bool {
        let mut guard = self.service.lock();
        let Some(service) = guard.as_mut() else {
            return false;
        };
        if let Some(outbox) = &mut service.outbox {
            outbox.is_entered = true;
        }
        work(service);
        if let Some(outbox) = &mut service.outbox {
            outbox.is_entered = false;
            replies.append(&mut outbox.messages);
            self.has_messages.store(false, Ordering::Release);
        }
        true
    }
}
