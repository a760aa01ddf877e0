//! One link: its session, the messages that wait for the peer, and the one that comes.

use std::collections::VecDeque;

use bytes::Bytes;

use super::block::Blocker;
use super::fragment::{Incoming, head};
use super::memory::Transfers;
use crate::control::PeerSession;
use fabric::{Pool, Queue, Refusal, Source, Work, WorkRequest};

pub struct Link {
    pub session: PeerSession,
    /// Index of its transport's lane.
    pub lane: usize,
    /// Whether the peer has joined its side: nothing may be posted before.
    pub is_ready: bool,
    /// Whether the control connection is waited for.
    is_watched: bool,
    pub incoming: Incoming,
    backlog: VecDeque<Waiting>,
    backlog_bytes: usize,
    /// Requests, of messages and transfers.
    pub posted: u64,
    pub transfers: Transfers,
}

struct Waiting {
    bytes: Bytes,
    /// Bytes of it that were posted.
    at: usize,
}

/// Posted part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    All,
    /// Not all: the peer, or the transport, takes no more now.
    Part,
}

impl Link {
    pub fn new(session: PeerSession, lane: usize) -> Link {
        Link {
            is_ready: session.is_ready(),
            session,
            lane,
            is_watched: false,
            incoming: Incoming::default(),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            posted: 0,
            transfers: Transfers::default(),
        }
    }

    /// From now on the thread is woken up when the control connection is readable.
    pub fn watch(&mut self, blocker: &Blocker, slot: usize) {
        self.is_watched = blocker.add(&self.session, slot);
    }

    pub fn unwatch(&mut self, blocker: &Blocker) {
        if std::mem::take(&mut self.is_watched) {
            blocker.remove(&self.session);
        }
    }

    pub fn backlog_bytes(&self) -> usize {
        self.backlog_bytes
    }

    /// Keeps a message, of which `at` bytes were posted.
    pub fn keep(&mut self, bytes: Bytes, at: usize) {
        // An empty message counts, too.
        self.backlog_bytes += bytes.len().max(1);
        self.backlog.push_back(Waiting { bytes, at });
    }

    /// Posts what waits; whether that was all.
    pub fn catch_up(&mut self, queue: &mut Queue, pool: Option<&Pool>) -> bool {
        if !self.is_ready {
            return false;
        }
        while let Some(mut waiting) = self.backlog.pop_front() {
            let posted = self.post(queue, pool, &waiting.bytes, &mut waiting.at);
            if posted == Post::Part {
                self.backlog.push_front(waiting);
                return false;
            }
            self.backlog_bytes -= waiting.bytes.len().max(1);
        }
        true
    }

    /// Posts a message from `at` on, and moves `at`.
    pub fn post(
        &mut self,
        queue: &mut Queue,
        pool: Option<&Pool>,
        bytes: &[u8],
        at: &mut usize,
    ) -> Post {
        let endpoint = self.session.endpoint();
        let Some((longest, inline)) = queue.message_bytes(endpoint) else {
            // It is lost, which the next poll reports.
            return Post::Part;
        };
        loop {
            let length = (bytes.len() - *at).min(longest as usize);
            let piece = &bytes[*at..*at + length];
            let head = head(*at, length, bytes.len());
            let posted = match (length <= inline as usize, pool) {
                (true, _) => self.post_piece(queue, Source::Inline(piece), head, None),
                (false, Some(pool)) => {
                    let Some(buffer) = pool.allocate(length as u32) else {
                        return Post::Part;
                    };
                    buffer.write(0, piece);
                    let pieces = [buffer.piece(0, length as u32)];
                    self.post_piece(queue, Source::Pieces(&pieces), head, Some(&buffer))
                }
                (false, None) => Err(Refusal::Invalid("no buffer is so large")),
            };
            if posted.is_err() {
                return Post::Part;
            }
            *at += length;
            if *at == bytes.len() {
                return Post::All;
            }
        }
    }

    fn post_piece(
        &mut self,
        queue: &mut Queue,
        from: Source<'_>,
        head: u32,
        keep: Option<&fabric::Buffer>,
    ) -> Result<(), Refusal> {
        let immediate = Some(head);
        self.posted += 1;
        let request = WorkRequest::new(self.posted, Work::Send { from, immediate });
        match keep {
            // Its end is to be known soon: then the buffer is free again.
            Some(buffer) => queue.post(self.session.endpoint(), &request.keeping(buffer)),
            None => queue.post(self.session.endpoint(), &request.quiet()),
        }
    }
}
