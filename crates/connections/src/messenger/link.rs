//! One link: its session, its transfers and its stream of messages.

use std::collections::VecDeque;
use std::time::Duration;

use super::announced::Slots;
use super::block::Blocker;
use super::memory::Transfers;
use super::pull::{ARENA_NAME, StreamDefect};
use super::stream::Stream;
use crate::control::{Error, Note, PeerSession};
use fabric::{Device, Queue, Registration};

pub struct Link {
    pub session: PeerSession,
    /// Index of its transport's lane.
    pub lane: usize,
    /// Whether the peer has joined its side: nothing may be posted before.
    pub is_ready: bool,
    /// Whether the peer has ended its side in good order.
    pub is_closed_there: bool,
    /// Whether the control connection is waited for.
    is_watched: bool,
    pub transfers: Transfers,
    /// The arena, if it was exported to the peer. Declared, so dropped, before `stream`: see [`end_lent`].
    pub arena: Option<Registration>,
    pub stream: Stream,
    /// Why there is no pool from which the peer pulls, if one was tried to be made.
    pub no_pool: Option<String>,
}

/// Ends the key of an arena that was exported over a link, and then the link's stream.
///
/// Invariant: the stream shares blocks of the arena until no read of the peer can reach them. Over verbs the queue pair outlives its link,
/// and executes reads until the key has ended. Over shared memory the peer keeps the mapping: there the checksums of requests protect.
pub fn end_lent(device: Option<&dyn Device>, arena: Option<Registration>, stream: Stream) {
    let is_broken = stream.pulls.has(StreamDefect::FreeBeforeKeyEnds);
    if let (Some(device), Some(arena), false) = (device, &arena, is_broken) {
        device.revoke(arena);
    }
    drop(arena);
    drop(stream);
}

impl Link {
    pub fn new(session: PeerSession, lane: usize, pull_min: usize, slots: Slots) -> Link {
        Link {
            is_ready: session.is_ready(),
            stream: Stream::new(session.endpoint(), pull_min, slots),
            session,
            lane,
            is_closed_there: false,
            is_watched: false,
            transfers: Transfers::default(),
            arena: None,
            no_pool: None,
        }
    }

    /// The peer's next message over the control connection. If one side cannot map the arena of the other, the link goes on without it,
    /// and the reason is added to `refusals`.
    ///
    /// # Errors
    /// As [`PeerSession::receive`], and [`Error::Memory`] for other memory that cannot be mapped: the session has ended.
    pub fn receive(
        &mut self,
        queue: &mut Queue,
        refusals: &mut VecDeque<String>,
    ) -> Result<Option<Note>, Error> {
        let note = self.session.receive(queue, Duration::ZERO)?;
        match &note {
            Some(Note::NotImported {
                name: ARENA_NAME,
                error,
            }) => {
                self.session.release(queue, ARENA_NAME)?;
                if self.stream.pulls.arena_unmapped() {
                    refusals.push_back(format!("{}: {error}", self.session.identity()));
                }
            }
            Some(Note::NotImported { error, .. }) => {
                return Err(self.session.refuse(queue, error.clone()));
            }
            Some(Note::Released { name: ARENA_NAME }) if self.stream.pulls.arena_released() => {
                self.arena = None;
                let peer = self.session.identity();
                refusals.push_back(format!("{peer} cannot map it; see its log"));
            }
            _ => {}
        }
        Ok(note)
    }

    /// Least length of a message that the peer pulls, or why it pulls none.
    pub fn least_pulled(&self) -> Result<usize, String> {
        let state = self.stream.pulls.state();
        state.map_err(|reason| match &self.no_pool {
            Some(error) => format!("{reason}: {error}"),
            None => reason.into(),
        })
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
}
