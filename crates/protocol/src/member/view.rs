//! What a primary knows, for tests and for those who watch it.

use super::{Member, Role};

/// How far a primary is.
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
    /// How far it is, if it is primary by the newest map that it knows.
    pub fn view(&self) -> Option<View> {
        let Role::Serving(primary) = &self.role else {
            return None;
        };
        // Sessions stay, and so do their leases and keys: one that nobody needs any more gives its place to the next.
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
