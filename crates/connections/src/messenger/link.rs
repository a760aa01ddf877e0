//! One link: its session, its transfers and its stream of messages.

use super::announced::Slots;
use super::block::Blocker;
use super::memory::Transfers;
use super::stream::Stream;
use crate::control::PeerSession;
use fabric::Registration;

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
    /// The arena, if it was exported to the peer. Dropped first: over RDMA its key ends before `stream` lets go of data there.
    pub arena: Option<Registration>,
    pub stream: Stream,
    /// Why there is no pool from which the peer pulls, if one was tried to be made.
    pub no_pool: Option<String>,
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
