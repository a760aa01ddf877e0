//! Holds that sessions have of files, in memory only. A file that loses its last name stays for as long as it is held.
//!
//! Requests that take or release holds have no slot, so that a retry may execute them again. The numbers of the last ones
//! are kept, so that each counts once.

use std::collections::{BTreeMap, HashMap, VecDeque};

use operations::{FileId, Held};
use parking_lot::Mutex;
use protocol::member::RequestId;
use store::Error;

/// Requests that are remembered for a session: more than it may have in flight.
const RECENT_MAX: usize = 4096;

/// Holds of all sessions.
#[derive(Default)]
pub(crate) struct Holds {
    sessions: Mutex<HashMap<u64, OfSession>>,
}

#[derive(Default)]
struct OfSession {
    counts: BTreeMap<FileId, u64>,
    /// The last requests that took or released holds, with the file that was held.
    recent: HashMap<RequestId, Option<FileId>>,
    /// The same requests, the oldest first.
    order: VecDeque<RequestId>,
}

impl OfSession {
    fn note(&mut self, request: RequestId, file: Option<FileId>) {
        if self.recent.insert(request, file).is_none() {
            self.order.push_back(request);
        }
        if self.order.len() > RECENT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.recent.remove(&oldest);
        }
    }
}

impl Holds {
    /// The file that a request has held, if it was executed before.
    pub fn found_by(&self, request: RequestId) -> Option<FileId> {
        let sessions = self.sessions.lock();
        *sessions.get(&request.session)?.recent.get(&request)?
    }

    /// Counts a session's hold of an inode. Returns whether it is the session's first one of the file, for which the store
    /// counts one.
    pub fn take(&self, request: RequestId, file: FileId) -> bool {
        let mut sessions = self.sessions.lock();
        let own = sessions.entry(request.session).or_default();
        own.note(request, Some(file));
        let count = own.counts.entry(file).or_default();
        *count += 1;
        *count == 1
    }

    /// Gives holds back, unless the request was executed before. `release` releases those of the store.
    pub fn release(
        &self,
        request: RequestId,
        released: impl Iterator<Item = (FileId, u64)>,
        release: impl Fn(u64, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut unused = Vec::new();
        {
            let mut sessions = self.sessions.lock();
            let own = sessions.entry(request.session).or_default();
            if own.recent.contains_key(&request) {
                return Ok(());
            }
            own.note(request, None);
            for (file, count) in released {
                let Some(held) = own.counts.get_mut(&file) else {
                    continue;
                };
                *held = held.saturating_sub(count);
                if *held == 0 {
                    own.counts.remove(&file);
                    unused.push(file);
                }
            }
        }
        unused.iter().try_for_each(|file| release(file.inode, 1))
    }

    /// Sets the holds of a file that a session had under the primary before.
    pub fn restore(&self, session: u64, held: &Held) {
        let mut sessions = self.sessions.lock();
        let own = sessions.entry(session).or_default();
        own.counts.insert(held.file, held.count);
    }

    /// Drops all holds of a session. Returns the files that it held.
    pub fn end(&self, session: u64) -> Vec<FileId> {
        let own = self.sessions.lock().remove(&session);
        own.map_or(Vec::new(), |own| own.counts.into_keys().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId {
        unit: 0,
        inode: 5,
        generation: 1,
    };

    fn request(session: u64, number: u64) -> RequestId {
        RequestId {
            session,
            slot: 0,
            number,
        }
    }

    #[test]
    fn a_request_that_is_executed_twice_counts_once() {
        let holds = Holds::default();
        assert!(holds.take(request(1, 10), FILE));
        assert_eq!(holds.found_by(request(1, 10)), Some(FILE));
        assert!(!holds.take(request(1, 11), FILE));
        let released = Mutex::new(Vec::new());
        let release = |inode, count| {
            released.lock().push((inode, count));
            Ok(())
        };
        for (number, expected) in [(12, 0), (12, 0), (13, 1), (13, 1)] {
            let all = [(FILE, 1)].into_iter();
            holds
                .release(request(1, number), all, release)
                .expect("it works");
            assert_eq!(released.lock().len(), expected, "{number}");
        }
        assert!(holds.take(request(1, 14), FILE));
        assert!(holds.take(request(2, 14), FILE));
        assert_eq!(holds.end(1), [FILE]);
        assert_eq!(holds.end(1), []);
    }
}
