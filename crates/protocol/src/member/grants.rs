//! Keys to the members' memories, and the fate of granted blocks when their session has ended.
//!
//! A client writes into granted blocks with a key that each member has opened for its session. A transfer with a key
//! may arrive until the key is closed, long after the client is gone: so the remaining blocks of an ended session's
//! grant stay where they are, in the image and thus on all members, until every member has reported that the session's
//! keys are closed. A member with a new process has none. Only then are they freed.

use std::collections::{BTreeMap, BTreeSet};

use super::intent::{Completion, Intent};
use super::requests::Executing;
use super::sessions::Session;
use super::{Member, Role};
use crate::defects::Defect;
use crate::map::NodeId;
use crate::wire::Body;

/// A grant of an ended session.
struct Quarantine {
    /// Place of the session in the table.
    index: u32,
    /// Members that have reported that the session's keys are closed.
    closed: BTreeSet<NodeId>,
    /// The blocks are being freed.
    is_freeing: bool,
}

/// The grants of ended sessions.
#[derive(Default)]
pub(super) struct Quarantines {
    by_session: BTreeMap<u64, Quarantine>,
    asked_at: u64,
}

impl Quarantines {
    /// Whether blocks of an ended session are left at this place of the table.
    pub fn has_index(&self, index: u32) -> bool {
        self.by_session.values().any(|it| it.index == index)
    }

    pub fn len(&self) -> usize {
        self.by_session.len()
    }
}

impl Member {
    /// A client asks for the keys to all members.
    pub(super) fn open_keys(&mut self, session: u64) {
        let known = self
            .primary()
            .and_then(|it| it.sessions.by_number.get(&session));
        let Some(index) = known.map(|it| it.index) else {
            return;
        };
        self.open_key(index, session);
        self.send_all(self.full_others(), Body::OpenKey { index, session });
    }

    /// The other members that have data: no client accesses the memory of a metadata-only one.
    fn full_others(&self) -> Vec<NodeId> {
        let others = self.others().into_iter();
        let is_full = |node: &NodeId| !self.map.is_metadata_only(*node);
        others.filter(is_full).collect()
    }

    /// The primary wants a key opened or closed.
    pub(super) fn handle_key(&mut self, body: &Body) {
        match *body {
            Body::OpenKey { index, session } => self.open_key(index, session),
            Body::CloseKey { session } => self.close_key(session),
            _ => {}
        }
    }

    /// Opens a session's key. There is one for each index in the table of sessions, so that keys do not accumulate at
    /// members that missed the end of sessions. An index is reused when all members know that.
    fn open_key(&mut self, index: u32, session: u64) {
        let newest = self.keys.get(&index).copied().unwrap_or_default();
        if index >= self.options.sessions || session < newest {
            return;
        }
        if (1..session).contains(&newest) {
            self.out
                .intents
                .push_back(Intent::CloseKey { session: newest });
        }
        self.keys.insert(index, session);
        self.out.intents.push_back(Intent::OpenKey { session });
    }

    fn close_key(&mut self, session: u64) {
        self.keys.retain(|_, it| *it != session);
        self.out.intents.push_back(Intent::CloseKey { session });
    }

    /// The host has opened or closed a key: the primary gets the report.
    pub(super) fn key_completed(&mut self, now: u64, completion: &Completion) {
        let (own, primary) = (self.node, self.map.primary);
        let is_primary = matches!(self.role, Role::Serving(_));
        match *completion {
            Completion::KeyOpened { session, key } if is_primary => {
                self.key_opened(own, session, key);
            }
            Completion::KeyClosed { session } if is_primary => self.key_closed(now, own, session),
            Completion::KeyOpened { session, key } => {
                self.send(primary, Body::KeyOpened { session, key });
            }
            Completion::KeyClosed { session } => self.send(primary, Body::KeyClosed { session }),
            _ => {}
        }
    }

    /// A member has opened a key. It is valid only as long as the session is: a request that was delayed may have
    /// opened one after the session's end, and no client may get that.
    pub(super) fn key_opened(&mut self, member: NodeId, session: u64, key: u64) {
        let Some(primary) = self.primary() else {
            return;
        };
        let known = primary.sessions.by_number.get(&session);
        if let Some(client) = known.filter(|it| !it.is_ending).map(|it| it.client) {
            self.tell_client(client, session, 0, Body::Key { member, key });
        }
    }

    /// A member has closed a session's keys.
    pub(super) fn key_closed(&mut self, now: u64, member: NodeId, session: u64) {
        if let Some(primary) = self.primary()
            && let Some(quarantine) = primary.quarantines.by_session.get_mut(&session)
        {
            quarantine.closed.insert(member);
        }
        self.free_grants(now);
    }

    /// A session has ended: by a record that was made before this.
    pub(super) fn session_ended(&mut self, session: u64, ended: &Session) {
        if ended.has_grant {
            return self.begin_quarantine(session, ended.index, BTreeSet::new());
        }
        // Nothing can land where it matters: this is only to tidy up.
        self.close_key(session);
        self.send_all(self.full_others(), Body::CloseKey { session });
    }

    /// Quarantine left by the primary before: the members that it had asked are unknown here.
    pub(super) fn restore_quarantines(&mut self, grants: &[(u64, u32)]) {
        let closed = if self.defects.has(Defect::ForgetQuarantineAtTakeover) {
            self.map.members.iter().copied().collect()
        } else {
            BTreeSet::new()
        };
        for (session, index) in grants {
            self.begin_quarantine(*session, *index, closed.clone());
        }
    }

    /// Leaves an ended session's blocks where they are until its keys are closed.
    fn begin_quarantine(&mut self, session: u64, index: u32, closed: BTreeSet<NodeId>) {
        let Some(primary) = self.primary() else {
            return;
        };
        let quarantine = Quarantine {
            index,
            closed,
            is_freeing: false,
        };
        primary.quarantines.by_session.insert(session, quarantine);
        primary.quarantines.asked_at = 0;
    }

    /// Asks members without a report to close the keys of ended sessions; frees the released grants.
    pub(super) fn free_grants(&mut self, now: u64) {
        let pause = self.options.heartbeat_ns;
        let others = self.full_others();
        let own = self.node;
        let forgets = self.defects.has(Defect::ForgetQuarantine);
        let Some(primary) = self.primary() else {
            return;
        };
        let quarantines = &mut primary.quarantines;
        let asks = quarantines.len() > 0 && now >= quarantines.asked_at + pause;
        if asks {
            quarantines.asked_at = now;
        }
        let (mut questions, mut free) = (Vec::new(), Vec::new());
        for (session, quarantine) in &mut quarantines.by_session {
            let is_open = |node: &NodeId| !quarantine.closed.contains(node);
            let open: Vec<_> = others.iter().copied().filter(is_open).collect();
            let is_own_open = is_open(&own);
            if (open.is_empty() && !is_own_open || forgets) && !quarantine.is_freeing {
                quarantine.is_freeing = true;
                free.push((*session, quarantine.index));
            } else if asks {
                questions.push((*session, open, is_own_open));
            }
        }
        let mut intents = Vec::new();
        for (session, index) in free {
            let ticket = primary.ticket();
            let executing = Executing::FreeGrant { session };
            primary.executing.insert(ticket, executing);
            intents.push(Intent::FreeGrant { ticket, index });
        }
        self.out.intents.extend(intents);
        for (session, open, is_own_open) in questions {
            if is_own_open {
                self.close_key(session);
            }
            self.send_all(open, Body::CloseKey { session });
        }
    }

    /// The blocks of an ended session are free, or it has to be tried again.
    pub(super) fn grant_freed(&mut self, session: u64, is_done: bool) {
        let Some(primary) = self.primary() else {
            return;
        };
        let quarantines = &mut primary.quarantines.by_session;
        if is_done {
            quarantines.remove(&session);
        } else if let Some(quarantine) = quarantines.get_mut(&session) {
            quarantine.is_freeing = false;
        }
    }
}
