//! Leases of a client.

use std::collections::BTreeMap;

use super::{Covers, Grant, Shown};

/// Recalls that are remembered, at most.
const RECALLS_MAX: usize = 1 << 16;
/// Leases after which those that have ended are dropped for the first time.
const HELD_LEAST: usize = 1024;

struct HeldLease {
    until: u64,
    /// Number of the time without a gap for which it has been held.
    term: u64,
    /// Names in the directory may be kept.
    has_entries: bool,
}

/// A lease for writing.
struct Owned {
    /// Epoch of the primary, and number of the grant.
    number: (u32, u64),
    until: u64,
}

struct Recalled {
    /// Epoch of the primary, and its number.
    number: (u32, u64),
    at: u64,
    /// The caches are dropping their contents, names among them or not. It is answered then.
    dropping: Option<bool>,
}

/// A client's reaction to a recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It answers: it keeps nothing.
    Answer,
    /// Its caches must drop their contents of the inode first.
    Invalidate { has_entries: bool },
    /// That is being done.
    Wait,
}

/// The leases of a session, by inode.
#[derive(Default)]
pub(crate) struct Holder {
    held: BTreeMap<u64, HeldLease>,
    /// Files that the session owns, by the grants: until it has sent all that it answered, also if the time has expired.
    owned: BTreeMap<u64, Owned>,
    /// A grant that was made before the newest recall of its inode and arrives after it is void.
    recalled: BTreeMap<u64, Recalled>,
    /// Epoch of the primary: each numbers its grants and recalls from the start.
    epoch: u32,
    /// All its grants up to this number are void.
    void_to: u64,
    /// Number of leases and recalls at which ended ones are dropped.
    sweep_at: [usize; 2],
    /// When the last lease ends.
    until: u64,
    last_term: u64,
}

impl Holder {
    /// When the last lease ends that was granted.
    pub fn until(&self) -> u64 {
        self.until
    }

    fn is_void(&self, inode: u64, number: u64) -> bool {
        let recalled = self.recalled.get(&inode);
        number <= self.void_to || recalled.is_some_and(|it| (self.epoch, number) < it.number)
    }

    /// Epoch of the primary that numbers grants and recalls now.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Takes a grant until a time; returns the rest of it.
    pub fn take(
        &mut self,
        now: u64,
        shown: &Shown,
        grant: Grant,
        until: u64,
        believes: bool,
    ) -> Covers {
        let is_good = |inode: &u64| believes || !self.is_void(*inode, grant.number);
        if until <= now {
            return Covers::default();
        }
        let Covers {
            subject,
            found,
            listed,
            ..
        } = grant.covers;
        let covers = Covers {
            subject: subject && shown.subject.as_ref().is_some_and(is_good),
            found: found && shown.found.as_ref().is_some_and(is_good),
            listed: listed && shown.listed.iter().all(is_good),
            owned: false,
        };
        let subject = shown.subject.filter(|_| covers.subject);
        let found = shown.found.filter(|_| covers.found);
        let listed = shown.listed.iter().copied().filter(|_| covers.listed);
        let plain = found.into_iter().chain(listed).map(|inode| (inode, false));
        for (inode, has_entries) in subject
            .map(|it| (it, shown.has_entries))
            .into_iter()
            .chain(plain)
        {
            self.last_term += 1;
            let term = self.last_term;
            let held = self.held.entry(inode).or_insert(HeldLease {
                until,
                term,
                has_entries: false,
            });
            if held.until <= now {
                held.term = term;
            }
            held.until = held.until.max(until);
            held.has_entries |= has_entries;
            self.until = self.until.max(until);
        }
        self.sweep(now);
        covers
    }

    /// Of these inodes, those with a lease.
    pub fn held<'a>(&self, now: u64, inodes: &'a [u64]) -> impl Iterator<Item = u64> + use<'a, '_> {
        let is_held = move |inode: &u64| self.held.get(inode).is_some_and(|it| it.until > now);
        inodes.iter().copied().filter(is_held)
    }

    /// Number of the time for which the lease of an inode has been held without a gap, if it is held now.
    pub fn term(&self, now: u64, inode: u64) -> Option<u64> {
        let held = self.held.get(&inode).filter(|held| held.until > now);
        held.map(|held| held.term)
    }

    /// The primary has extended leases until a time. Returns those that count: a lease that has ended or was recalled is not
    /// begun again. `revives`: it is.
    pub fn renew(&mut self, now: u64, mut inodes: Vec<u64>, until: u64, revives: bool) -> Vec<u64> {
        if until <= now {
            return Vec::new();
        }
        inodes.retain(|inode| match self.held.get_mut(inode) {
            Some(held) if held.until > now => {
                held.until = held.until.max(until);
                self.until = self.until.max(until);
                true
            }
            _ => revives,
        });
        inodes
    }

    /// Takes the lease for writing of a file, unless it was recalled meanwhile.
    pub fn take_owned(&mut self, inode: u64, number: u64, until: u64) -> bool {
        let is_void = self.is_void(inode, number);
        if !is_void {
            let number = (self.epoch, number);
            self.owned.insert(inode, Owned { number, until });
        }
        !is_void
    }

    /// Number and end of the lease for writing of a file.
    pub fn ownership(&self, inode: u64) -> Option<((u32, u64), u64)> {
        let owned = self.owned.get(&inode);
        owned.map(|it| (it.number, it.until))
    }

    /// Whether the session owns a file.
    pub fn owns(&self, inode: u64) -> bool {
        self.owned.contains_key(&inode)
    }

    /// Whether the session owns files.
    pub fn owns_any(&self) -> bool {
        !self.owned.is_empty()
    }

    /// Files that the session owns.
    pub fn owned(&self) -> Vec<u64> {
        self.owned.keys().copied().collect()
    }

    /// Drops leases that have ended, once there are twice as many as were left the last time.
    fn sweep(&mut self, now: u64) {
        if self.held.len() > self.sweep_at[0].max(HELD_LEAST) {
            self.held.retain(|_, held| held.until > now);
            self.sweep_at[0] = 2 * self.held.len();
        }
    }

    /// Drops recalls before which all grants have ended.
    fn forget_recalls(&mut self, now: u64, lease_ns: u64) {
        if self.recalled.len() > self.sweep_at[1].max(HELD_LEAST) {
            self.recalled
                .retain(|_, it| it.at + lease_ns > now || it.dropping.is_some());
            self.sweep_at[1] = 2 * self.recalled.len();
        }
        if self.recalled.len() >= RECALLS_MAX {
            let recalls = self.recalled.values().map(|it| it.number);
            let own = recalls.filter(|(epoch, _)| *epoch == self.epoch);
            let newest = own.map(|(_, number)| number).max();
            self.void_to = self.void_to.max(newest.unwrap_or(0));
            self.forget_answered();
        }
    }

    /// Drops recalls except those that the caches have not followed yet: until then, later ones of their inodes wait.
    fn forget_answered(&mut self) {
        self.recalled.retain(|_, it| it.dropping.is_some());
    }

    /// A lease is recalled. Recalls older than `lease_ns` are forgotten: grants before them have ended. `forgets`: the caches
    /// are believed to have dropped what an earlier recall was about.
    pub fn recall(
        &mut self,
        now: u64,
        (inode, number): (u64, u64),
        lease_ns: u64,
        forgets: bool,
    ) -> Step {
        let number = (self.epoch, number);
        let known = self.recalled.get(&inode);
        if let Some(known) = known.filter(|it| it.number >= number) {
            // The answer to a newer one counts for an older one, too.
            return match known.dropping.is_some() {
                true => Step::Wait,
                false => Step::Answer,
            };
        }
        let before = known.and_then(|it| it.dropping).filter(|_| !forgets);
        self.forget_recalls(now, lease_ns);
        let held = self.held.remove(&inode).filter(|held| held.until > now);
        let held = held.map(|held| held.has_entries);
        let owned = self.owned.get(&inode).map(|_| false);
        let dropping = held
            .into_iter()
            .chain(before)
            .chain(owned)
            .reduce(|one, other| one | other);
        let recalled = Recalled {
            number,
            at: now,
            dropping,
        };
        self.recalled.insert(inode, recalled);
        match dropping {
            Some(has_entries) => Step::Invalidate { has_entries },
            None => Step::Answer,
        }
    }

    /// The caches keep nothing of an inode any more, by a recall of the primary of this epoch. Whether it is still to be answered.
    pub fn invalidated(&mut self, inode: u64, (epoch, number): (u32, u64)) -> bool {
        let recalled = self.recalled.get_mut(&inode);
        if self
            .owned
            .get(&inode)
            .is_some_and(|it| it.number < (epoch, number))
        {
            self.owned.remove(&inode);
        }
        let is_dropped = recalled
            .filter(|it| it.number == (epoch, number))
            .is_some_and(|it| it.dropping.take().is_some());
        is_dropped && epoch == self.epoch
    }

    /// Another primary: it numbers its grants and recalls from the start. Existing leases stay until they expire.
    pub fn epoch_changed(&mut self, epoch: u32) {
        self.epoch = epoch;
        self.void_to = 0;
        self.forget_answered();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: u64 = 1000;

    fn name_in(directory: u64, found: u64) -> Shown {
        Shown {
            subject: Some(directory),
            has_entries: true,
            found: Some(found),
            listed: Vec::new(),
        }
    }

    fn grant(number: u64) -> Grant {
        Grant {
            number,
            lasts_ns: LEASE,
            covers: Covers {
                subject: true,
                found: true,
                listed: false,
                owned: false,
            },
        }
    }

    #[test]
    fn a_recall_that_overtakes_the_grant_makes_it_void() {
        let mut holder = Holder::default();
        assert_eq!(holder.recall(5, (1, 8), LEASE, false), Step::Answer);
        let covers = holder.take(6, &name_in(1, 2), grant(7), 100, false);
        assert_eq!((covers.subject, covers.found), (false, true));
        let covers = holder.take(7, &name_in(1, 2), grant(9), 100, false);
        assert!(covers.subject && covers.found);
    }

    #[test]
    fn a_recall_is_answered_after_the_caches_dropped_what_they_keep() {
        let mut holder = Holder::default();
        holder.take(6, &name_in(1, 2), grant(1), 100, false);
        let has_entries = true;
        assert_eq!(
            holder.recall(7, (1, 2), LEASE, false),
            Step::Invalidate { has_entries }
        );
        assert_eq!(holder.recall(8, (1, 2), LEASE, false), Step::Wait);
        assert!(holder.invalidated(1, (0, 2)) && !holder.invalidated(1, (0, 2)));
        assert_eq!(holder.recall(9, (1, 2), LEASE, false), Step::Answer);
        let has_entries = false;
        assert_eq!(
            holder.recall(9, (2, 3), LEASE, false),
            Step::Invalidate { has_entries }
        );
        // One that has ended needs no invalidation.
        holder.take(10, &name_in(1, 2), grant(4), 100, false);
        assert_eq!(holder.recall(100, (1, 5), LEASE, false), Step::Answer);
    }

    #[test]
    fn a_recall_waits_for_the_caches_that_drop_contents_for_an_earlier_one() {
        let mut holder = Holder::default();
        holder.take(6, &name_in(1, 2), grant(1), 100, false);
        let has_entries = true;
        let invalidates = Step::Invalidate { has_entries };
        assert_eq!(holder.recall(7, (1, 2), LEASE, false), invalidates);
        // It overtakes the reply with a newer grant, of which nothing is kept.
        assert_eq!(holder.recall(8, (1, 4), LEASE, false), invalidates);
        // The first is sent again: its answer would count for what is not dropped yet.
        assert_eq!(holder.recall(8, (1, 2), LEASE, false), Step::Wait);
        assert!(!holder.invalidated(1, (0, 2)) && holder.invalidated(1, (0, 4)));
        assert_eq!(holder.recall(9, (1, 5), LEASE, false), Step::Answer);
    }

    #[test]
    fn recalls_that_the_caches_follow_are_not_forgotten_with_many_others() {
        let mut holder = Holder::default();
        holder.take(6, &name_in(1, 2), grant(1), 100, false);
        let has_entries = true;
        let invalidates = Step::Invalidate { has_entries };
        assert_eq!(holder.recall(7, (1, 2), LEASE, false), invalidates);
        for other in 0..2 * RECALLS_MAX as u64 {
            holder.recall(7, (10 + other, 3 + other), LEASE, false);
        }
        assert!(holder.recalled.len() <= RECALLS_MAX);
        assert_eq!(holder.recall(8, (1, 2), LEASE, false), Step::Wait);
        assert!(holder.invalidated(1, (0, 2)));
    }

    #[test]
    fn a_recall_of_a_former_primary_answers_none_of_the_next() {
        let mut holder = Holder::default();
        let invalidates = |has_entries| Step::Invalidate { has_entries };
        holder.take(6, &name_in(1, 2), grant(1), 100, false);
        assert_eq!(holder.recall(7, (1, 2), LEASE, false), invalidates(true));
        assert_eq!(holder.recall(7, (2, 2), LEASE, false), invalidates(false));
        holder.epoch_changed(5);
        // It numbers from the start, and its grants are good.
        let covers = holder.take(8, &name_in(1, 3), grant(1), 100, false);
        assert!(covers.subject);
        assert_eq!(holder.recall(9, (1, 2), LEASE, false), invalidates(true));
        assert!(!holder.invalidated(1, (0, 2)) && !holder.invalidated(2, (0, 2)));
        assert_eq!(holder.recall(9, (1, 2), LEASE, false), Step::Wait);
        assert!(holder.invalidated(1, (5, 2)));
        assert_eq!(holder.recall(9, (2, 3), LEASE, false), Step::Answer);
    }

    #[test]
    fn a_renewal_begins_no_lease_that_has_ended_or_was_recalled() {
        let mut holder = Holder::default();
        holder.take(6, &name_in(1, 2), grant(1), 100, false);
        holder.recall(7, (2, 2), LEASE, false);
        assert_eq!(holder.held(8, &[1, 2, 3]).collect::<Vec<_>>(), [1]);
        assert_eq!(holder.renew(9, vec![1, 2, 3], 150, false), [1]);
        assert_eq!((holder.until(), holder.held(149, &[1]).count()), (150, 1));
        assert!(holder.renew(150, vec![1], 200, false).is_empty());
        assert!(holder.renew(120, vec![1], 120, false).is_empty());
    }

    #[test]
    fn an_expired_grant_gives_nothing() {
        let mut holder = Holder::default();
        let covers = holder.take(100, &name_in(1, 2), grant(1), 100, false);
        assert!(covers.is_empty());
        assert_eq!(holder.until(), 0);
    }
}
