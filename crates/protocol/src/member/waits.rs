//! Waits for locks, in the order in which they came.
//!
//! When the lock of a wait is free, the wait has its turn: the lock is reserved for its owner, who takes it by a request of
//! its own. A client repeats its waits now and then. So the primary forgets those that are not repeated, and a new primary,
//! which knows none, gets them again.

use std::collections::BTreeSet;

use operations::{Lock, LockSpace};

use super::Member;
use super::locks::{LockTable, excludes};
use super::requests::Parked;
use crate::wire::{Body, ErrorCode, FileId, Operation, Outcome};

/// Waits of one session, at most.
pub(super) const WAITS_MAX: usize = 4096;

struct Wait {
    session: u64,
    number: u64,
    file: FileId,
    lock: Lock,
    heard_at: u64,
    /// End of the reservation, if it has its turn.
    turn_until: Option<u64>,
}

impl Wait {
    fn is_of(&self, session: u64, lock: &Lock) -> bool {
        let own = (self.session, self.lock.owner, self.lock.space);
        own == (session, lock.owner, lock.space)
    }
}

/// All waits.
#[derive(Default)]
pub(super) struct Waits {
    list: Vec<Wait>,
    /// When turns may be due: at once, after something changed.
    due_at: u64,
}

impl Waits {
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether a lock is reserved for another owner.
    pub fn is_reserved(&self, session: u64, file: FileId, lock: &Lock) -> bool {
        let mut turns = self.list.iter().filter(|it| it.turn_until.is_some());
        turns.any(|it| it.file == file && excludes(&(it.session, it.lock), &(session, *lock)))
    }

    /// A lock was taken, released or given up.
    pub fn locks_changed(&mut self) {
        self.due_at = 0;
    }

    /// An owner has taken a lock: its turn has ended.
    pub fn taken(&mut self, session: u64, file: FileId, lock: &Lock) {
        self.locks_changed();
        self.list
            .retain(|it| it.turn_until.is_none() || it.file != file || !it.is_of(session, lock));
    }

    fn end_one(&mut self, session: u64, number: u64) {
        self.locks_changed();
        self.list
            .retain(|it| (it.session, it.number) != (session, number));
    }

    /// A session has ended.
    pub fn end(&mut self, session: u64) {
        self.locks_changed();
        self.list.retain(|it| it.session != session);
    }

    /// Keeps a wait, or notes that it goes on. Returns whether it has its turn.
    fn keep(&mut self, wait: Wait, locks: &LockTable) -> Result<(), ErrorCode> {
        let same = |it: &&mut Wait| (it.session, it.number) == (wait.session, wait.number);
        if let Some(known) = self.list.iter_mut().find(same) {
            known.heard_at = wait.heard_at;
            return Ok(());
        }
        if self.would_wait_for_itself(&wait, locks) {
            return Err(ErrorCode::Deadlock);
        }
        let own = self.list.iter().filter(|it| it.session == wait.session);
        if own.count() >= WAITS_MAX {
            return Err(ErrorCode::NoSpace);
        }
        self.list.push(wait);
        self.locks_changed();
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
                    let waits = self.list.iter();
                    to_visit.extend(waits.filter(|it| it.is_of(holder, &held)));
                }
            }
        }
        false
    }

    /// Gives waits their turns, in their order, as far as locks are free. Returns their sessions and numbers.
    fn give_turns(&mut self, now: u64, turn_ns: u64, locks: &LockTable) -> Vec<(u64, u64)> {
        let mut given = Vec::new();
        for at in 0..self.list.len() {
            let Wait {
                session,
                number,
                file,
                lock,
                turn_until,
                ..
            } = self.list[at];
            let is_free = locks.conflict(session, file, &lock).is_none();
            if turn_until.is_none() && is_free && !self.is_reserved(session, file, &lock) {
                self.list[at].turn_until = Some(now + turn_ns);
                given.push((session, number));
            }
        }
        given
    }

    /// Drops waits that were not repeated, and those that have not used their turn.
    fn expire(&mut self, now: u64, silent_ns: u64) {
        self.list.retain(|it| {
            let is_unused = it.turn_until.is_some_and(|until| until <= now);
            !is_unused && now < it.heard_at + silent_ns
        });
    }

    /// When a wait or a turn ends next.
    fn next_end(&self, silent_ns: u64) -> u64 {
        let ends = self.list.iter().map(|it| {
            let forgotten_at = it.heard_at + silent_ns;
            it.turn_until
                .map_or(forgotten_at, |until| until.min(forgotten_at))
        });
        ends.min().unwrap_or(u64::MAX)
    }
}

impl Member {
    /// Keeps a wait for a lock, or ends one.
    pub(super) fn handle_wait(&mut self, now: u64, parked: &Parked) {
        let Some(primary) = self.primary() else {
            return;
        };
        let session = parked.session;
        let is_open = primary.sessions.by_number.get(&session);
        if is_open.is_none_or(|it| it.is_ending) {
            return;
        }
        let outcome = match &parked.operation {
            Operation::WaitLock { file, lock, wait } => {
                let (number, file, lock) = (*wait, *file, *lock);
                let wait = Wait {
                    session,
                    number,
                    file,
                    lock,
                    heard_at: now,
                    turn_until: None,
                };
                match primary.waits.keep(wait, &primary.sessions.locks) {
                    Ok(()) => {
                        self.give_turns(now);
                        let has_turn = self.has_turn(session, number);
                        Outcome {
                            count: has_turn.into(),
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
        let waits = self.primary().map(|primary| primary.waits.list.iter());
        waits
            .into_iter()
            .flatten()
            .any(|it| (it.session, it.number) == (session, number) && it.turn_until.is_some())
    }

    /// Notifies the owners of waits for locks that are free.
    pub(super) fn give_turns(&mut self, now: u64) {
        let (turn_ns, silent_ns) = (self.options.lease_ns, self.options.session_ns);
        let Some(primary) = self.primary() else {
            return;
        };
        if now < primary.waits.due_at || !primary.may_serve(now) {
            return;
        }
        primary.waits.expire(now, silent_ns);
        let turns = primary
            .waits
            .give_turns(now, turn_ns, &primary.sessions.locks);
        primary.waits.due_at = primary.waits.next_end(silent_ns);
        primary.next_tick = primary.next_tick.min(primary.waits.due_at);
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
            heard_at: 0,
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
            let kept = waits.keep(wait(5, owner, LockKind::Write), &locks);
            assert_eq!(kept, Ok(()));
        }
        assert_eq!(waits.give_turns(0, TURN, &locks), []);
        locks.end(1);
        assert_eq!(waits.give_turns(0, TURN, &locks), [(2, 2)]);
        assert_eq!(waits.give_turns(0, TURN, &locks), []);
        let write = |owner| lock(owner, LockKind::Write);
        assert!(waits.is_reserved(4, file(5), &write(4)));
        assert!(!waits.is_reserved(2, file(5), &write(2)));
        waits.taken(2, file(5), &write(2));
        take(&mut locks, 5, 2);
        assert_eq!(waits.give_turns(0, TURN, &locks), []);
        locks.end(2);
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
                .keep(wait(5, owner, kind), &locks)
                .expect("there is room");
        }
        locks.end(1);
        assert_eq!(waits.give_turns(0, TURN, &locks), [(2, 2), (4, 4)]);
    }

    #[test]
    fn unused_turns_and_waits_that_are_not_repeated_are_dropped() {
        let (mut waits, mut locks) = (Waits::default(), LockTable::default());
        for owner in [1, 2] {
            let kept = waits.keep(wait(5, owner, LockKind::Write), &locks);
            assert_eq!(kept, Ok(()));
        }
        assert_eq!(waits.give_turns(0, TURN, &locks), [(1, 1)]);
        assert_eq!(waits.next_end(100), TURN);
        waits.expire(TURN, 100);
        assert_eq!(waits.give_turns(TURN, TURN, &locks), [(2, 2)]);
        waits.end_one(2, 2);
        take(&mut locks, 5, 3);
        waits
            .keep(wait(5, 4, LockKind::Write), &locks)
            .expect("there is room");
        waits.expire(100, 100);
        assert_eq!(waits.len(), 0);
    }

    #[test]
    fn a_wait_that_closes_a_circle_is_refused() {
        let (mut waits, mut locks) = (Waits::default(), LockTable::default());
        (1..4).for_each(|owner| take(&mut locks, owner, owner));
        for owner in [1, 2] {
            let kept = waits.keep(wait(owner + 1, owner, LockKind::Write), &locks);
            assert_eq!(kept, Ok(()));
        }
        let closes = waits.keep(wait(1, 3, LockKind::Read), &locks);
        assert_eq!(closes, Err(ErrorCode::Deadlock));
        waits.end(2);
        assert_eq!(waits.keep(wait(1, 3, LockKind::Read), &locks), Ok(()));
    }
}
