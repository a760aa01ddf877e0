//! State of a primary, for tests and observers.

use super::{Member, Role};

/// Progress of a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Its own tail.
    pub position: u64,
    /// All members that it counts have the records below.
    pub confirmed: u64,
    /// Requests, messages, files and grants of ended sessions that wait for something.
    pub waiting: usize,
}

impl Member {
    /// Its progress, if it is primary by the newest map that it has received.
    pub fn view(&self) -> Option<View> {
        let Role::Serving(primary) = &self.role else {
            return None;
        };
        // Sessions stay, and so do their leases and keys: the next session replaces an unneeded one.
        let lasting = primary.sessions.by_number.len() + self.keys.len() + primary.leases.kept();
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
