//! The primary's table of leases for writing. One session at most has that of a file, and it may have answered writes that the
//! primary does not know yet. So this lease does not end by time: its session answers a recall, or ends. One that is overdue is not
//! heard any more, and ends as if it were silent: until then its client may rely on it.

use std::collections::{BTreeMap, BTreeSet};

use super::table::Recall;

/// Files that a session may own, at most. For one more, that one is recalled that it was granted or has written least recently.
pub const OWNED_MAX: usize = 4096;

/// A file has another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerChange {
    /// Inode of the file.
    pub inode: u64,
    /// The session that owns it from now on, if one does.
    pub session: Option<u64>,
}

/// The session that owns a file.
struct Owner {
    session: u64,
    /// Number of the newest grant.
    number: u64,
    until: u64,
    recall: Option<Sent>,
    /// The record that ends the session ends here.
    ended_at: Option<u64>,
}

/// A recall that was not answered yet.
#[derive(Clone, Copy)]
struct Sent {
    number: u64,
    at: u64,
    /// The session is overdue then.
    deadline: u64,
}

/// What a request has to wait for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Owned {
    pub recalls: Vec<Recall>,
    /// When the request is to be checked again.
    pub next: u64,
    /// Sessions that have not answered in time.
    pub overdue: Vec<u64>,
}

/// The files of a session.
#[derive(Default)]
struct OfSession {
    /// Number of the newest grant, and inode: the least recently granted file first.
    files: BTreeSet<(u64, u64)>,
    /// The file that was recalled to make room, and when.
    returns: Option<(u64, u64)>,
}

/// All owners, by inode.
#[derive(Default)]
pub(crate) struct Owners {
    by_inode: BTreeMap<u64, Owner>,
    by_session: BTreeMap<u64, OfSession>,
    /// Sessions that have not answered in time.
    overdue: BTreeSet<u64>,
    changes: Vec<OwnerChange>,
}

impl Owners {
    /// Returns the number of entries.
    pub fn kept(&self) -> usize {
        self.by_inode.len()
    }

    /// Whether a session other than this one owns files.
    pub fn has_others(&self, session: u64) -> bool {
        self.by_session.keys().any(|other| *other != session)
    }

    /// Whether a session other than this one owns the file.
    pub fn has_other(&self, session: u64, inode: u64) -> bool {
        let owner = self.by_inode.get(&inode);
        owner.is_some_and(|owner| owner.session != session)
    }

    /// Grants a file to a session, or extends its lease. It is refused while it is recalled, or if the session has too many.
    pub fn grant(&mut self, session: u64, inode: u64, (number, until): (u64, u64)) -> bool {
        let of_session = self.by_session.entry(session).or_default();
        if let Some(owner) = self.by_inode.get_mut(&inode) {
            let is_own = owner.session == session && owner.recall.is_none();
            let is_granted = is_own && owner.ended_at.is_none();
            if is_granted {
                of_session.files.remove(&(owner.number, inode));
                of_session.files.insert((number, inode));
                (owner.number, owner.until) = (number, owner.until.max(until));
            }
            self.remove_if_empty(session);
            return is_granted;
        }
        if of_session.files.len() >= OWNED_MAX {
            return false;
        }
        of_session.files.insert((number, inode));
        let owner = Owner {
            session,
            number,
            until,
            recall: None,
            ended_at: None,
        };
        self.by_inode.insert(inode, owner);
        self.note(inode, Some(session));
        true
    }

    /// The recall that makes room for one more file of a session that has too many, unless it was returned less than `lease_ns` ago.
    /// Nothing waits for it: a session that does not answer keeps the file.
    pub fn make_room(
        &mut self,
        (now, session): (u64, u64),
        lease_ns: u64,
        next_number: impl FnOnce() -> u64,
    ) -> Option<Recall> {
        let of_session = self.by_session.get_mut(&session)?;
        let (_, inode) = *of_session.files.first()?;
        let is_asked =
            |(asked, at): (u64, u64)| asked == inode && now < at.saturating_add(lease_ns);
        if of_session.files.len() < OWNED_MAX || of_session.returns.is_some_and(is_asked) {
            return None;
        }
        of_session.returns = Some((inode, now));
        Some(Recall {
            session,
            inode,
            number: next_number(),
        })
    }

    /// The owner writes to the file: while it sends what it has answered, it has more time.
    pub fn wrote(&mut self, session: u64, inode: u64, deadline: u64) {
        let owner = self.by_inode.get_mut(&inode);
        let owner = owner.filter(|owner| owner.session == session);
        if let Some(sent) = owner.and_then(|owner| owner.recall.as_mut()) {
            sent.deadline = sent.deadline.max(deadline);
            self.overdue.remove(&session);
        }
    }

    /// Whether a session has not answered in time.
    pub fn is_overdue(&self, session: u64) -> bool {
        self.overdue.contains(&session)
    }

    /// Owners have so much longer to answer recalls.
    pub fn discount(&mut self, pause: u64) {
        let sent = self.by_inode.values_mut();
        for sent in sent.filter_map(|owner| owner.recall.as_mut()) {
            sent.deadline = sent.deadline.saturating_add(pause);
        }
    }

    /// Recalls files that other sessions own. None if there are none. A recall is sent again after `resend_ns`, if given.
    pub fn recall(
        &mut self,
        (now, session): (u64, u64),
        inodes: &[u64],
        (lease_ns, resend_ns): (u64, Option<u64>),
        mut next_number: impl FnMut() -> u64,
    ) -> Option<Owned> {
        let mut owned = Owned {
            next: u64::MAX,
            ..Owned::default()
        };
        let mut waits = false;
        for inode in inodes {
            let Some(owner) = self.by_inode.get_mut(inode) else {
                continue;
            };
            if owner.session == session {
                continue;
            }
            waits = true;
            if owner.ended_at.is_some() {
                continue;
            }
            let is_due =
                |sent: &Sent| resend_ns.is_some_and(|pause| now >= sent.at.saturating_add(pause));
            let sent = match owner.recall {
                Some(sent) if !is_due(&sent) => sent,
                before => {
                    let sent = Sent {
                        number: before.map_or_else(&mut next_number, |sent| sent.number),
                        at: now,
                        deadline: before.map_or(owner.until.max(now + lease_ns), |it| it.deadline),
                    };
                    owned.recalls.push(Recall {
                        session: owner.session,
                        inode: *inode,
                        number: sent.number,
                    });
                    sent
                }
            };
            owner.recall = Some(sent);
            let again = resend_ns.map_or(u64::MAX, |pause| now.saturating_add(pause));
            if now >= sent.deadline {
                owned.overdue.push(owner.session);
            } else {
                owned.next = owned.next.min(sent.deadline).min(again);
            }
        }
        self.overdue.extend(&owned.overdue);
        waits.then_some(owned)
    }

    /// A session has sent all that it answered under a lease that was granted before this recall.
    pub fn answered(&mut self, session: u64, inode: u64, number: u64) {
        let owner = self.by_inode.get(&inode);
        if owner.is_some_and(|it| it.session == session && it.number < number) {
            self.remove(inode);
            self.overdue.remove(&session);
        }
    }

    /// A record that ends here ends a session. Its files are free when all members in sync have it: the next primary must not
    /// take what the session wrote.
    pub fn end(&mut self, session: u64, position: u64) {
        let of_session = self.by_inode.values_mut();
        for owner in of_session.filter(|owner| owner.session == session) {
            owner.ended_at = Some(position);
        }
    }

    /// All members in sync have the records below.
    pub fn confirmed(&mut self, position: u64) {
        self.remove_if(|owner| owner.ended_at.is_some_and(|at| at <= position));
    }

    /// Drops the leases of a session without waiting for anything.
    pub fn forget(&mut self, session: u64) {
        self.remove_if(|owner| owner.session == session);
    }

    fn remove_if(&mut self, is_gone: impl Fn(&Owner) -> bool) {
        let gone = self.by_inode.iter().filter(|(_, owner)| is_gone(owner));
        let gone: Vec<u64> = gone.map(|(inode, _)| *inode).collect();
        gone.into_iter().for_each(|inode| self.remove(inode));
    }

    /// Changes since the last time, in their order.
    pub fn take_changes(&mut self) -> Vec<OwnerChange> {
        std::mem::take(&mut self.changes)
    }

    fn note(&mut self, inode: u64, session: Option<u64>) {
        self.changes.push(OwnerChange { inode, session });
    }

    fn remove(&mut self, inode: u64) {
        let Some(owner) = self.by_inode.remove(&inode) else {
            return;
        };
        self.note(inode, None);
        if let Some(of_session) = self.by_session.get_mut(&owner.session) {
            of_session.files.remove(&(owner.number, inode));
        }
        if self.remove_if_empty(owner.session) {
            self.overdue.remove(&owner.session);
        }
    }

    /// Forgets a session without files. Returns whether it has none.
    fn remove_if_empty(&mut self, session: u64) -> bool {
        let of_session = self.by_session.get(&session);
        let is_empty = of_session.is_none_or(|it| it.files.is_empty());
        if is_empty {
            self.by_session.remove(&session);
        }
        is_empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: u64 = 100;

    fn recall(owners: &mut Owners, now: u64, session: u64) -> Option<Owned> {
        owners.recall((now, session), &[5], (LEASE, None), || 8)
    }

    #[test]
    fn a_file_has_one_owner_until_it_answers_or_is_ended() {
        let mut owners = Owners::default();
        assert!(owners.grant(1, 5, (7, 100)) && !owners.grant(2, 5, (8, 100)));
        assert!(owners.has_others(2) && !owners.has_others(1));
        assert_eq!(recall(&mut owners, 50, 1), None);
        let first = recall(&mut owners, 50, 2).expect("another session owns it");
        assert_eq!((first.recalls.len(), first.next), (1, 150));
        assert!(!owners.grant(1, 5, (9, 200)), "it is recalled");
        // Writes of the owner extend its time, and only the end of its session ends it.
        owners.wrote(1, 5, 170);
        let later = recall(&mut owners, 160, 2).expect("it is still owned");
        assert_eq!((later.recalls.len(), &later.overdue[..]), (0, &[][..]));
        let late = recall(&mut owners, 170, 2).expect("it is still owned");
        assert_eq!(late.overdue, [1]);
        owners.end(1, 900);
        owners.confirmed(899);
        assert!(recall(&mut owners, 180, 2).is_some());
        owners.confirmed(900);
        assert_eq!(recall(&mut owners, 180, 2), None);
        assert!(owners.grant(2, 5, (10, 300)));
        owners.answered(2, 5, 10);
        assert_eq!(owners.kept(), 1);
        owners.answered(2, 5, 11);
        assert_eq!((owners.kept(), owners.has_others(1)), (0, false));
    }

    #[test]
    fn a_session_owns_so_many_files_at_most() {
        let mut owners = Owners::default();
        let files = 0..2 * OWNED_MAX as u64;
        let granted = files.filter(|inode| owners.grant(1, *inode, (1 + inode, 9)));
        assert_eq!(granted.count(), OWNED_MAX);
        // A file that was granted again is not the oldest any more.
        assert!(owners.grant(1, 0, (10_000, 9)));
        let ask = |owners: &mut Owners, now| owners.make_room((now, 1), LEASE, || 20_000);
        let recall = Some(Recall {
            session: 1,
            inode: 1,
            number: 20_000,
        });
        assert_eq!(ask(&mut owners, 50), recall);
        assert_eq!(ask(&mut owners, 149), None);
        assert_eq!(ask(&mut owners, 150), recall);
        owners.answered(1, 1, 20_000);
        assert_eq!(ask(&mut owners, 151), None);
        assert!(owners.grant(1, 5000, (20_001, 300)) && !owners.grant(1, 5001, (20_002, 300)));
        assert!(matches!(
            ask(&mut owners, 151),
            Some(Recall { inode: 2, .. })
        ));
        owners.forget(1);
        assert_eq!((owners.kept(), owners.has_others(2)), (0, false));
    }
}
