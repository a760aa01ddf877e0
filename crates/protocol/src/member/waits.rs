//! Waits for locks, in the order in which they came.
//!
//! When the lock of a wait becomes free, it is reserved for the wait's owner, which takes it by a separate request. A client
//! repeats its waits periodically. So the primary removes waits that are not repeated, and a new primary, which has none,
//! receives them again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use operations::{Lock, LockSpace, WAIT_ENDED};

use super::Member;
use super::locks::{LockTable, excludes};
use super::requests::Parked;
use crate::defects::{Defect, Defects};
use crate::wire::{Body, ErrorCode, FileId, Operation, Outcome};

/// Waits of one session, at most.
pub(super) const WAITS_MAX: usize = 4096;
/// Waits of all sessions, at most.
const ALL_WAITS_MAX: usize = 4 * WAITS_MAX;
/// Ended waits of one session that are remembered, at most.
const ENDED_MAX: usize = 1024;

struct Wait {
    session: u64,
    number: u64,
    file: FileId,
    lock: Lock,
    /// Time at which it is removed unless it is repeated.
    until: u64,
    /// End of the reservation, if the lock is reserved for it.
    turn_until: Option<u64>,
}

impl Wait {
    fn is_of(&self, session: u64, lock: &Lock) -> bool {
        let own = (self.session, self.lock.owner, self.lock.space);
        own == (session, lock.owner, lock.space)
    }

    /// Time at which it is removed, or its reservation ends.
    fn ends_at(&self) -> u64 {
        self.turn_until.unwrap_or(u64::MAX).min(self.until)
    }
}

/// Waits for locks of all files.
#[derive(Default)]
pub(super) struct Waits {
    /// Those of each file, in their order.
    by_file: BTreeMap<FileId, Vec<Wait>>,
    /// File of each wait, by session and number.
    files: BTreeMap<(u64, u64), FileId>,
    /// Files with changed locks or waits: turns may be due.
    changed: BTreeSet<FileId>,
    /// Numbers of the last waits of each session that have ended: a request for one of them may come late.
    ended: BTreeMap<u64, VecDeque<u64>>,
    /// Earliest time at which a wait or a turn may end.
    ends_at: u64,
}

impl Waits {
    pub fn len(&self) -> usize {
        self.files.len()
    }

    fn of_file(&self, file: FileId) -> impl Iterator<Item = &Wait> {
        self.by_file.get(&file).into_iter().flatten()
    }

    fn find(&mut self, session: u64, number: u64) -> Option<&mut Wait> {
        let file = self.files.get(&(session, number))?;
        let mut waits = self.by_file.get_mut(file)?.iter_mut();
        waits.find(|it| (it.session, it.number) == (session, number))
    }

    /// Whether a lock is reserved for another owner.
    pub fn is_reserved(&self, session: u64, file: FileId, lock: &Lock) -> bool {
        let mut turns = self.of_file(file).filter(|it| it.turn_until.is_some());
        turns.any(|it| excludes(&(it.session, it.lock), &(session, *lock)))
    }

    /// Locks of these files were taken, released or given up.
    pub fn locks_changed(&mut self, files: impl IntoIterator<Item = FileId>) {
        let awaited = |file: &FileId| self.by_file.contains_key(file);
        self.changed.extend(files.into_iter().filter(awaited));
    }

    /// An owner has taken a lock: its wait for it has ended, with or without a turn.
    pub fn taken(&mut self, session: u64, file: FileId, lock: &Lock) {
        let is_its = |it: &Wait| (it.session, it.lock) == (session, *lock);
        let ended = self.of_file(file).filter(|it| is_its(it));
        let ended: Vec<u64> = ended.map(|it| it.number).collect();
        for number in ended {
            self.note_end(session, number);
        }
        self.remove(file, is_its);
    }

    fn note_end(&mut self, session: u64, number: u64) {
        let ended = self.ended.entry(session).or_default();
        if ended.len() == ENDED_MAX {
            ended.pop_front();
        }
        ended.push_back(number);
    }

    fn has_ended(&self, session: u64, number: u64) -> bool {
        let ended = self.ended.get(&session);
        ended.is_some_and(|it| it.contains(&number)) && !self.files.contains_key(&(session, number))
    }

    fn end_one(&mut self, session: u64, number: u64) {
        self.note_end(session, number);
        if let Some(file) = self.files.get(&(session, number)).copied() {
            self.remove(file, |it| (it.session, it.number) == (session, number));
        }
    }

    /// A session has ended.
    pub fn end(&mut self, session: u64) {
        self.ended.remove(&session);
        let own = self.files.range((session, 0)..=(session, u64::MAX));
        let files: BTreeSet<FileId> = own.map(|(_, file)| *file).collect();
        for file in files {
            self.remove(file, |it| it.session == session);
        }
    }

    /// Removes waits for locks of a file.
    fn remove(&mut self, file: FileId, goes: impl Fn(&Wait) -> bool) {
        let Some(waits) = self.by_file.get_mut(&file) else {
            return;
        };
        for gone in waits.extract_if(.., |it| goes(it)) {
            self.files.remove(&(gone.session, gone.number));
            self.changed.insert(file);
        }
        if waits.is_empty() {
            self.by_file.remove(&file);
        }
    }

    /// Keeps a wait, or notes that it goes on.
    fn keep(&mut self, wait: Wait, locks: &LockTable, defects: &Defects) -> Result<(), ErrorCode> {
        let (session, file) = (wait.session, wait.file);
        if let Some(known) = self.find(session, wait.number) {
            known.until = wait.until;
            return Ok(());
        }
        let checks = !defects.has(Defect::ForgetCircles);
        if checks && self.would_wait_for_itself(&wait, locks) {
            return Err(ErrorCode::Deadlock);
        }
        let own = self.files.range((session, 0)..=(session, u64::MAX));
        if self.len() >= ALL_WAITS_MAX || own.count() >= WAITS_MAX {
            return Err(ErrorCode::TooManyLocks);
        }
        self.files.insert((session, wait.number), file);
        self.ends_at = self.ends_at.min(wait.until);
        let waits = self.by_file.entry(file).or_default();
        match defects.has(Defect::PutWaitsFirst) {
            true => waits.insert(0, wait),
            false => waits.push(wait),
        }
        self.changed.insert(file);
        Ok(())
    }

    /// Whether the owner of a lock in the way waits for a lock of the owner of this wait, directly or through others.
    fn would_wait_for_itself(&self, wait: &Wait, locks: &LockTable) -> bool {
        if wait.lock.space == LockSpace::Whole {
            return false;
        }
        let mut seen = BTreeSet::new();
        let mut to_visit = vec![wait];
        while let Some(Wait {
            session,
            file,
            lock,
            ..
        }) = to_visit.pop()
        {
            for (holder, held) in locks.conflicts(*session, *file, lock) {
                if wait.is_of(holder, &held) {
                    return true;
                }
                if seen.insert((holder, held.owner)) {
                    let waits = self.by_file.values().flatten();
                    to_visit.extend(waits.filter(|it| it.is_of(holder, &held)));
                }
            }
        }
        false
    }

    /// Gives waits their turns, in their order, as far as locks are free. Returns their sessions and numbers.
    fn give_turns(&mut self, now: u64, turn_ns: u64, locks: &LockTable) -> Vec<(u64, u64)> {
        let mut given = Vec::new();
        while let Some(file) = self.changed.pop_first() {
            for at in 0..self.by_file.get(&file).map_or(0, Vec::len) {
                let wait = &self.by_file[&file][at];
                let (session, number) = (wait.session, wait.number);
                let is_free = wait.turn_until.is_none()
                    && locks.conflict(session, file, &wait.lock).is_none()
                    && !self.is_reserved(session, file, &wait.lock);
                if is_free && let Some(waits) = self.by_file.get_mut(&file) {
                    waits[at].turn_until = Some(now + turn_ns);
                    self.ends_at = self.ends_at.min(now + turn_ns);
                    given.push((session, number));
                }
            }
        }
        given
    }

    /// Drops waits that were not repeated, and those that have not used their turn.
    fn expire(&mut self, now: u64) {
        if now < self.ends_at {
            return;
        }
        let waits = self.by_file.values().flatten();
        let ended = waits.filter(|it| it.ends_at() <= now);
        let files: BTreeSet<FileId> = ended.map(|it| it.file).collect();
        for file in files {
            self.remove(file, |it| it.ends_at() <= now);
        }
        let ends = self.by_file.values().flatten().map(Wait::ends_at);
        self.ends_at = ends.min().unwrap_or(u64::MAX);
    }

    /// Waits and turns last so much longer.
    pub fn discount(&mut self, pause: u64) {
        for wait in self.by_file.values_mut().flatten() {
            wait.until = wait.until.saturating_add(pause);
            wait.turn_until = wait.turn_until.map(|until| until.saturating_add(pause));
        }
        self.ends_at = self.ends_at.saturating_add(pause);
    }

    /// Whether waits or turns end, or turns may be given.
    fn is_due(&self, now: u64) -> bool {
        !self.changed.is_empty() || self.ends_at <= now
    }
}

impl Member {
    /// Keeps a wait for a lock, or ends one.
    pub(super) fn handle_wait(&mut self, now: u64, parked: &Parked) {
        let silent_ns = self.options.session_ns;
        let defects = self.defects.clone();
        let Some(primary) = self.primary() else {
            return;
        };
        let session = parked.session;
        let is_open = primary.sessions.by_number.get(&session);
        if is_open.is_none_or(|it| it.is_ending) {
            return;
        }
        let outcome = match &*parked.operation {
            Operation::WaitLock { file, lock, wait } => {
                let (number, file, lock) = (*wait, *file, *lock);
                let wait = Wait {
                    session,
                    number,
                    file,
                    lock,
                    until: now + silent_ns,
                    turn_until: None,
                };
                let is_late = primary.waits.has_ended(session, number)
                    && !defects.has(Defect::KeepEndedWaits);
                let locks = &primary.sessions.locks;
                let kept = match is_late {
                    true => Ok(()),
                    false => primary.waits.keep(wait, locks, &defects),
                };
                match kept {
                    Ok(()) => {
                        self.give_turns(now);
                        let has_turn = self.has_turn(session, number);
                        Outcome {
                            // If its thread waits after all, because another one of the owner has taken the lock, the client gives
                            // the wait another number.
                            count: if is_late { WAIT_ENDED } else { has_turn.into() },
                            ..Outcome::done()
                        }
                    }
                    Err(error) => Outcome::failed(error),
                }
            }
            Operation::EndWait { wait } => {
                primary.waits.end_one(session, *wait);
                Outcome::done()
            }
            _ => return,
        };
        self.answer_at_once(parked, outcome, false);
    }

    fn has_turn(&mut self, session: u64, number: u64) -> bool {
        let primary = self.primary();
        let wait = primary.and_then(|it| it.waits.find(session, number));
        wait.is_some_and(|it| it.turn_until.is_some())
    }

    /// Notifies the owners of waits for locks that are free.
    pub(super) fn give_turns(&mut self, now: u64) {
        let turn_ns = self.options.lease_ns;
        let Some(primary) = self.primary() else {
            return;
        };
        if !primary.waits.is_due(now) || !primary.may_serve(now) {
            return;
        }
        primary.waits.expire(now);
        let turns = primary
            .waits
            .give_turns(now, turn_ns, &primary.sessions.locks);
        primary.next_tick = primary.next_tick.min(primary.waits.ends_at);
        for (session, wait) in turns {
            let sessions = self.primary().map(|it| &it.sessions.by_number);
            let client = sessions.and_then(|it| it.get(&session)).map(|it| it.client);
            if let Some(client) = client {
                self.tell_client(client, session, 0, Body::LockTurn { wait });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use operations::LockKind;

    const TURN: u64 = 10;
    const SILENT: u64 = 100;

    fn file(inode: u64) -> FileId {
        FileId {
            unit: 0,
            inode,
            generation: 1,
        }
    }

    fn lock(owner: u64, kind: LockKind) -> Lock {
        Lock {
            space: LockSpace::Ranges,
            kind,
            start: 0,
            end: 9,
            owner,
            handle: owner,
            process: 1,
        }
    }

    /// A wait of an owner for a file, with the owner as its number and session.
    fn wait(inode: u64, owner: u64, kind: LockKind) -> Wait {
        Wait {
            session: owner,
            number: owner,
            file: file(inode),
            lock: lock(owner, kind),
            until: SILENT,
            turn_until: None,
        }
    }

    fn take(locks: &mut LockTable, inode: u64, owner: u64) {
        let taken = locks.set(owner, file(inode), &lock(owner, LockKind::Write));
        taken.expect("it is free");
    }

    #[test]
    fn turns_are_given_in_order_and_keep_the_lock_for_their_owners() {
        let (mut waits, mut locks) = (Waits::default(), LockTable::default());
        take(&mut locks, 5, 1);
        for owner in [2, 3] {
            let kept = waits.keep(wait(5, owner, LockKind::Write), &locks, &Defects::default());
            assert_eq!(kept, Ok(()));
        }
        assert_eq!(waits.give_turns(0, TURN, &locks), []);
        waits.locks_changed(locks.end(1));
        assert_eq!(waits.give_turns(0, TURN, &locks), [(2, 2)]);
        assert_eq!(waits.give_turns(0, TURN, &locks), []);
        let write = |owner| lock(owner, LockKind::Write);
        assert!(waits.is_reserved(4, file(5), &write(4)));
        assert!(!waits.is_reserved(2, file(5), &write(2)));
        waits.taken(2, file(5), &write(2));
        take(&mut locks, 5, 2);
        assert_eq!(waits.give_turns(0, TURN, &locks), []);
        waits.locks_changed(locks.end(2));
        assert_eq!(waits.give_turns(0, TURN, &locks), [(3, 3)]);
    }

    #[test]
    fn readers_get_their_turns_together() {
        let (mut waits, mut locks) = (Waits::default(), LockTable::default());
        take(&mut locks, 5, 1);
        for (owner, kind) in [
            (2, LockKind::Read),
            (3, LockKind::Write),
            (4, LockKind::Read),
        ] {
            waits
                .keep(wait(5, owner, kind), &locks, &Defects::default())
                .expect("there is room");
        }
        waits.locks_changed(locks.end(1));
        assert_eq!(waits.give_turns(0, TURN, &locks), [(2, 2), (4, 4)]);
    }

    #[test]
    fn unused_turns_and_waits_that_are_not_repeated_are_dropped() {
        let (mut waits, mut locks) = (Waits::default(), LockTable::default());
        for owner in [1, 2] {
            let kept = waits.keep(wait(5, owner, LockKind::Write), &locks, &Defects::default());
            assert_eq!(kept, Ok(()));
        }
        assert_eq!(waits.give_turns(0, TURN, &locks), [(1, 1)]);
        waits.expire(TURN - 1);
        assert_eq!((waits.len(), waits.ends_at), (2, TURN));
        waits.expire(TURN);
        assert_eq!(waits.give_turns(TURN, TURN, &locks), [(2, 2)]);
        waits.end_one(2, 2);
        take(&mut locks, 5, 3);
        waits
            .keep(wait(5, 4, LockKind::Write), &locks, &Defects::default())
            .expect("there is room");
        waits.expire(SILENT);
        assert_eq!(waits.len(), 0);
        assert!(waits.by_file.is_empty());
    }

    #[test]
    fn waits_and_turns_last_longer_by_a_pause() {
        let (mut waits, locks) = (Waits::default(), LockTable::default());
        for owner in [1, 2] {
            let kept = waits.keep(wait(5, owner, LockKind::Write), &locks, &Defects::default());
            assert_eq!(kept, Ok(()));
        }
        assert_eq!(waits.give_turns(0, TURN, &locks), [(1, 1)]);
        let pause = 2 * SILENT;
        waits.discount(pause);
        waits.expire(pause + TURN - 1);
        assert_eq!(waits.len(), 2);
        waits.expire(pause + TURN);
        assert_eq!(waits.len(), 1);
        waits.expire(pause + SILENT - 1);
        assert_eq!(waits.len(), 1);
        waits.expire(pause + SILENT);
        assert_eq!(waits.len(), 0);
    }

    #[test]
    fn a_taken_lock_ends_its_wait_with_or_without_a_turn() {
        for has_turn in [false, true] {
            let (mut waits, mut locks) = (Waits::default(), LockTable::default());
            let kept = waits.keep(wait(5, 2, LockKind::Write), &locks, &Defects::default());
            assert_eq!(kept, Ok(()));
            if has_turn {
                assert_eq!(waits.give_turns(0, TURN, &locks), [(2, 2)]);
            }
            // It waits for another one.
            let other = Lock {
                start: 20,
                end: 29,
                ..lock(2, LockKind::Write)
            };
            waits.taken(2, file(5), &other);
            assert_eq!(waits.len(), 1);
            take(&mut locks, 5, 2);
            waits.taken(2, file(5), &lock(2, LockKind::Write));
            assert_eq!(waits.len(), 0);
        }
    }

    #[test]
    fn the_end_of_a_wait_is_remembered_whatever_other_sessions_end() {
        let (mut waits, locks) = (Waits::default(), LockTable::default());
        let both = [1, 2].map(|number| Wait {
            number,
            ..wait(5, 1, LockKind::Write)
        });
        for wait in both {
            assert_eq!(waits.keep(wait, &locks, &Defects::default()), Ok(()));
        }
        waits.taken(1, file(5), &lock(1, LockKind::Write));
        (0..2 * ENDED_MAX as u64).for_each(|number| waits.end_one(2, number));
        assert!(waits.has_ended(1, 1) && waits.has_ended(1, 2) && !waits.has_ended(1, 3));
        waits.end(1);
        assert!(!waits.has_ended(1, 1));
    }

    #[test]
    fn turns_are_given_for_files_that_changed() {
        let (mut waits, mut locks) = (Waits::default(), LockTable::default());
        for inode in [5, 6] {
            take(&mut locks, inode, 1);
            let mut awaited = wait(inode, 2, LockKind::Write);
            awaited.number = inode;
            assert_eq!(waits.keep(awaited, &locks, &Defects::default()), Ok(()));
        }
        assert_eq!(waits.give_turns(0, TURN, &locks), []);
        assert_eq!(locks.end(1), BTreeSet::from([file(5), file(6)]));
        waits.locks_changed([file(6), file(7)]);
        assert_eq!(waits.give_turns(0, TURN, &locks), [(2, 6)]);
        waits.expire(0);
        assert!(!waits.is_due(0));
        waits.locks_changed([file(5)]);
        assert_eq!(waits.give_turns(0, TURN, &locks), [(2, 5)]);
    }

    #[test]
    fn the_number_of_waits_is_bounded() {
        let (mut waits, locks) = (Waits::default(), LockTable::default());
        let refused = Err(ErrorCode::TooManyLocks);
        for session in 0..4 {
            let of = |number: u64| Wait {
                session,
                number,
                ..wait(number, session, LockKind::Read)
            };
            for number in 0..WAITS_MAX as u64 {
                assert_eq!(waits.keep(of(number), &locks, &Defects::default()), Ok(()));
            }
            assert_eq!(
                waits.keep(of(WAITS_MAX as u64), &locks, &Defects::default()),
                refused
            );
        }
        assert_eq!(
            waits.keep(wait(0, 4, LockKind::Read), &locks, &Defects::default()),
            refused
        );
        waits.end(3);
        assert_eq!(
            waits.keep(wait(0, 4, LockKind::Read), &locks, &Defects::default()),
            Ok(())
        );
    }

    #[test]
    fn a_wait_that_closes_a_circle_is_refused() {
        let (mut waits, mut locks) = (Waits::default(), LockTable::default());
        (1..4).for_each(|owner| take(&mut locks, owner, owner));
        for owner in [1, 2] {
            let kept = waits.keep(
                wait(owner + 1, owner, LockKind::Write),
                &locks,
                &Defects::default(),
            );
            assert_eq!(kept, Ok(()));
        }
        let closes = waits.keep(wait(1, 3, LockKind::Read), &locks, &Defects::default());
        assert_eq!(closes, Err(ErrorCode::Deadlock));
        waits.end(2);
        assert_eq!(
            waits.keep(wait(1, 3, LockKind::Read), &locks, &Defects::default()),
            Ok(())
        );
    }
}
