//! The primary's table of leases.

use std::collections::{BTreeMap, BTreeSet};

/// A session's lease of an inode.
struct Lease {
    until: u64,
    /// Number of the newest grant.
    number: u64,
    recall: Option<Sent>,
}

/// A recall that was not answered yet.
#[derive(Clone, Copy)]
struct Sent {
    number: u64,
    at: u64,
}

/// A recall to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recall {
    pub session: u64,
    pub inode: u64,
    pub number: u64,
}

/// All leases of a primary.
#[derive(Default)]
pub(crate) struct Table {
    /// Leases by inode and session.
    leases: BTreeMap<u64, BTreeMap<u64, Lease>>,
    /// Leases by session, the least recently granted first: end and inode.
    by_session: BTreeMap<u64, BTreeSet<(u64, u64)>>,
    /// Changes that wait for recalls will change these: no lease is granted.
    closing: BTreeSet<u64>,
    /// The last number of a grant or recall.
    number: u64,
    /// No lease that was ever granted ends later.
    latest: u64,
}

impl Table {
    /// That of the primary of an epoch, without leases. Its numbers are not those of another one.
    pub fn new(epoch: u32) -> Table {
        Table {
            number: u64::from(epoch) << 32,
            ..Table::default()
        }
    }

    /// Number of entries, with the closed inodes.
    pub fn kept(&self) -> usize {
        self.by_session.values().map(BTreeSet::len).sum::<usize>() + self.closing.len()
    }

    /// Whether a session other than this one has leases.
    pub fn has_others(&self, session: u64) -> bool {
        self.by_session.keys().any(|other| *other != session)
    }

    /// Whether a session other than this one has a lease of the inode.
    pub fn is_held_by_others(&self, now: u64, session: u64, inode: u64) -> bool {
        let holders = self.leases.get(&inode).into_iter().flatten();
        let mut others = holders.filter(|(holder, _)| **holder != session);
        others.any(|(_, lease)| lease.until > now)
    }

    /// When the last lease ends that was ever granted.
    pub fn latest(&self) -> u64 {
        self.latest
    }

    /// The number of the next grant.
    pub fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Grants a lease, or extends one. `Err` if the session has too many: then the least recently granted one ends first, and
    /// is recalled if it has not been.
    pub fn grant(
        &mut self,
        now: u64,
        (session, inode): (u64, u64),
        (number, until): (u64, u64),
        most: usize,
    ) -> Result<(), Option<Recall>> {
        self.expire(session, now);
        let of_session = self.by_session.entry(session).or_default();
        let of_inode = self.leases.entry(inode).or_default();
        match of_inode.get_mut(&session) {
            Some(lease) => {
                of_session.remove(&(lease.until, inode));
                let recall = None;
                let until = until.max(lease.until);
                *lease = Lease {
                    until,
                    number,
                    recall,
                };
                of_session.insert((until, inode));
            }
            None if of_session.len() >= most => {
                let oldest = of_session.first().map(|(_, oldest)| *oldest);
                if of_inode.is_empty() {
                    self.leases.remove(&inode);
                }
                return Err(oldest.and_then(|oldest| self.recall_one(now, session, oldest, None)));
            }
            None => {
                let recall = None;
                of_inode.insert(
                    session,
                    Lease {
                        until,
                        number,
                        recall,
                    },
                );
                of_session.insert((until, inode));
            }
        }
        self.latest = self.latest.max(until);
        Ok(())
    }

    /// Extends a session's lease, unless it has ended or is recalled. Returns whether it lasts until then.
    pub fn renew(&mut self, now: u64, (session, inode): (u64, u64), until: u64) -> bool {
        let of_inode = self.leases.get_mut(&inode);
        let lease = of_inode.and_then(|it| it.get_mut(&session));
        let Some(lease) = lease.filter(|it| it.until > now && it.recall.is_none()) else {
            return false;
        };
        let of_session = self.by_session.entry(session).or_default();
        of_session.remove(&(lease.until, inode));
        lease.until = lease.until.max(until);
        of_session.insert((lease.until, inode));
        self.latest = self.latest.max(until);
        true
    }

    /// Recalls a lease, unless it was recalled already; after `resend_ns`, if given, again.
    fn recall_one(
        &mut self,
        now: u64,
        session: u64,
        inode: u64,
        resend_ns: Option<u64>,
    ) -> Option<Recall> {
        let number = self.next_number();
        let lease = self.leases.get_mut(&inode)?.get_mut(&session)?;
        let number = match lease.recall {
            None => number,
            Some(sent) if resend_ns.is_some_and(|pause| now >= sent.at + pause) => sent.number,
            Some(_) => return None,
        };
        lease.recall = Some(Sent { number, at: now });
        Some(Recall {
            session,
            inode,
            number,
        })
    }

    /// Leases that a change by a session has to wait for: those of others on these inodes. Returns the recalls to send,
    /// and the time of the next check; `None` if there are none.
    pub fn recall(
        &mut self,
        now: u64,
        session: u64,
        inodes: &[u64],
        resend_ns: Option<u64>,
    ) -> Option<(Vec<Recall>, u64)> {
        let (mut recalls, mut next) = (Vec::new(), u64::MAX);
        for inode in inodes {
            let holders = self.leases.get(inode).into_iter().flatten();
            let others = holders.filter(|(holder, lease)| **holder != session && lease.until > now);
            let others: Vec<(u64, u64)> = others.map(|(it, lease)| (*it, lease.until)).collect();
            for (holder, until) in others {
                next = next.min(until);
                recalls.extend(self.recall_one(now, holder, *inode, resend_ns));
            }
        }
        (next < u64::MAX).then(|| {
            let again = resend_ns.map_or(u64::MAX, |pause| now + pause);
            (recalls, next.min(again))
        })
    }

    /// Begins to list the inodes for which nothing is granted.
    pub fn reopen(&mut self) {
        self.closing.clear();
    }

    /// Grants nothing for these, while a change waits for their recalls.
    pub fn close(&mut self, inodes: &[u64]) {
        self.closing.extend(inodes);
    }

    /// Whether nothing may be granted for an inode.
    pub fn is_closed(&self, inode: u64) -> bool {
        self.closing.contains(&inode)
    }

    /// A session keeps nothing of an inode any more that was granted before this recall.
    pub fn answered(&mut self, session: u64, inode: u64, number: u64) {
        let lease = self.leases.get(&inode).and_then(|it| it.get(&session));
        if lease.is_some_and(|lease| lease.number < number) {
            self.remove(session, inode);
        }
    }

    fn remove(&mut self, session: u64, inode: u64) {
        let Some(of_inode) = self.leases.get_mut(&inode) else {
            return;
        };
        let Some(lease) = of_inode.remove(&session) else {
            return;
        };
        if of_inode.is_empty() {
            self.leases.remove(&inode);
        }
        if let Some(own) = self.by_session.get_mut(&session) {
            own.remove(&(lease.until, inode));
            if own.is_empty() {
                self.by_session.remove(&session);
            }
        }
    }

    /// Drops the leases of a session that have ended.
    fn expire(&mut self, session: u64, now: u64) {
        while let Some((_, inode)) = self.oldest(session).filter(|(until, _)| *until <= now) {
            self.remove(session, inode);
        }
    }

    fn oldest(&self, session: u64) -> Option<(u64, u64)> {
        self.by_session.get(&session)?.first().copied()
    }

    /// Drops all leases that have ended.
    pub fn expire_all(&mut self, now: u64) {
        let sessions: Vec<u64> = self.by_session.keys().copied().collect();
        for session in sessions {
            self.expire(session, now);
        }
    }

    /// A session has ended: it keeps nothing.
    pub fn end(&mut self, session: u64) {
        self.expire(session, u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recall(session: u64, inode: u64, number: u64) -> Recall {
        Recall {
            session,
            inode,
            number,
        }
    }

    #[test]
    fn a_change_waits_for_the_leases_of_others_until_they_end_or_are_given_back() {
        let mut table = Table::default();
        for session in [1, 2] {
            let number = table.next_number();
            assert_eq!(table.grant(0, (session, 5), (number, 100), 9), Ok(()));
        }
        assert_eq!(table.recall(10, 1, &[6], None), None);
        let waits = table.recall(10, 1, &[5], None);
        assert_eq!(waits, Some((vec![recall(2, 5, 3)], 100)));
        // It is sent once, or again after a while.
        assert_eq!(table.recall(20, 1, &[5], None), Some((vec![], 100)));
        let again = table.recall(20, 1, &[5], Some(10));
        assert_eq!(again, Some((vec![recall(2, 5, 3)], 30)));
        table.answered(2, 5, 3);
        assert_eq!(table.recall(20, 1, &[5], None), None);
        assert!(table.recall(99, 2, &[5], None).is_some());
        assert_eq!(table.recall(100, 2, &[5], None), None);
        table.expire_all(100);
        assert_eq!(table.kept(), 0);
    }

    #[test]
    fn an_answer_ends_only_leases_that_were_granted_before_its_recall() {
        let mut table = Table::default();
        table.grant(0, (1, 5), (1, 100), 9).expect("there is room");
        table.number = 1;
        table.recall(10, 2, &[5], None).expect("it has a lease");
        table.grant(20, (1, 5), (3, 120), 9).expect("there is room");
        table.answered(1, 5, 2);
        assert!(table.recall(110, 2, &[5], None).is_some());
    }

    #[test]
    fn a_renewal_extends_only_a_lease_that_lasts_and_is_not_recalled() {
        let mut table = Table::default();
        assert!(!table.renew(0, (1, 5), 100));
        table.grant(0, (1, 5), (1, 100), 9).expect("there is room");
        assert!(table.renew(90, (1, 5), 190) && !table.renew(190, (1, 5), 290));
        table
            .grant(200, (1, 5), (2, 300), 9)
            .expect("there is room");
        let waits = table.recall(210, 2, &[5], None);
        assert_eq!(waits.map(|(_, next)| next), Some(300));
        assert!(!table.renew(220, (1, 5), 320));
        assert_eq!(table.recall(300, 2, &[5], None), None);
        table.expire_all(300);
        assert_eq!((table.kept(), table.latest()), (0, 300));
    }

    #[test]
    fn of_too_many_leases_the_least_recently_granted_is_recalled() {
        let mut table = Table::default();
        for (inode, until) in [(5, 100), (6, 101), (5, 102)] {
            let number = table.next_number();
            let granted = table.grant(0, (1, inode), (number, until), 2);
            assert_eq!(granted, Ok(()));
        }
        let refused = table.grant(0, (1, 7), (4, 103), 2);
        assert_eq!(refused, Err(Some(recall(1, 6, 4))));
        assert_eq!(table.grant(0, (1, 7), (5, 103), 2), Err(None));
        table.answered(1, 6, 4);
        assert_eq!(table.grant(0, (1, 7), (6, 103), 2), Ok(()));
        table.end(1);
        assert_eq!((table.kept(), table.latest()), (0, 103));
    }
}
