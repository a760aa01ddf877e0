//! State of a primary, for tests and observers.

use super::{Member, Role};
use crate::leases::owners::OwnerChange;

/// Progress of a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Tail of the member's own ring.
    pub position: u64,
    /// All members that it counts have the records below.
    pub confirmed: u64,
    /// Requests, messages, files and grants of ended sessions that wait for something.
    pub waiting: usize,
}

/// What a primary permits to reads that are executed in its store without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadPermit {
    /// By its clock, no other member serves before; 0 if it does not serve.
    pub until: u64,
    /// All members that it counts have the records below.
    pub confirmed: u64,
}

impl Member {
    /// What it permits to reads of a session, until its next input. A member that it counts later gets no vote before
    /// messages of that step leave the process, so the end only moves on as long as it is primary.
    pub fn read_permit(&self, session: u64) -> ReadPermit {
        let Role::Serving(primary) = &self.role else {
            return ReadPermit::default();
        };
        let session = primary.sessions.by_number.get(&session);
        if primary.replaying.is_some() || session.is_none_or(|it| it.is_ending) {
            return ReadPermit::default();
        }
        ReadPermit {
            until: primary.valid_until(),
            confirmed: primary.confirmed,
        }
    }

    /// Files that have another owner since the last time. Local reads of other sessions show none of them.
    pub fn owner_changes(&mut self) -> Vec<OwnerChange> {
        self.primary()
            .map_or_else(Vec::new, |primary| primary.owners.take_changes())
    }

    /// Its progress, if it is primary by the newest map that it has received.
    pub fn view(&self) -> Option<View> {
        let Role::Serving(primary) = &self.role else {
            return None;
        };
        // Sessions stay, and so do their leases and keys: the next session replaces an unneeded one.
        let lasting = primary.sessions.by_number.len()
            + self.keys.len()
            + primary.leases.kept()
            + primary.owners.kept();
        Some(View {
            position: primary.position,
            confirmed: primary.confirmed,
            waiting: self.kept() - lasting,
        })
    }

    /// The sessions that it knows, if it is primary.
    pub fn sessions(&self) -> Vec<u64> {
        match &self.role {
            Role::Serving(primary) => primary.sessions.by_number.keys().copied().collect(),
            _ => Vec::new(),
        }
    }
}
