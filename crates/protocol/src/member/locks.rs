//! Advisory locks of all sessions, as the primary has them in memory. Each session's locks have positions, by which the image
//! has them too.

use std::collections::{BTreeMap, BTreeSet};

use crate::wire::{ErrorCode, FileId};
use operations::{Lock, LockKind};

/// Most positions of a session's locks.
pub const LOCKS_MAX: usize = 1 << 14;

/// A lock of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// File that it concerns.
    pub file: FileId,
    /// Kind, range and owner of the lock.
    pub lock: Lock,
}

/// Consecutive positions of a session's locks that change together, with their contents before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LockEdit {
    pub first: usize,
    /// Locks that were released or replaced.
    pub count: u64,
    pub before: Vec<Option<HeldLock>>,
    pub after: Vec<Option<HeldLock>>,
}

/// Locks of all files.
#[derive(Default)]
pub(super) struct LockTable {
    by_session: BTreeMap<u64, Vec<Option<HeldLock>>>,
    /// Session and position of each lock of a file.
    by_file: BTreeMap<FileId, BTreeSet<(u64, usize)>>,
}

/// Whether two locks of a file, each with its session, cannot be held at the same time.
pub(super) fn excludes((holder, held): &(u64, Lock), (session, wanted): &(u64, Lock)) -> bool {
    let is_own = holder == session && is_same_owner(held, wanted);
    let is_exclusive = held.kind == LockKind::Write || wanted.kind == LockKind::Write;
    !is_own && is_exclusive && held.space == wanted.space && held.overlaps(wanted)
}

/// Whether both are of one owner and space.
fn is_same_owner(one: &Lock, other: &Lock) -> bool {
    (one.owner, one.space) == (other.owner, other.space)
}

impl LockTable {
    /// The first lock that excludes the wanted one.
    pub fn conflict(&self, session: u64, file: FileId, wanted: &Lock) -> Option<Lock> {
        let excludes = self.conflicts(session, file, wanted);
        excludes.map(|(_, lock)| lock).min_by_key(|lock| lock.start)
    }

    /// All locks that exclude the wanted one, with their sessions.
    pub fn conflicts(
        &self,
        session: u64,
        file: FileId,
        wanted: &Lock,
    ) -> impl Iterator<Item = (u64, Lock)> {
        let held = self.of_file(file).map(|(holder, _, lock)| (holder, lock));
        let wanted = *wanted;
        held.filter(move |held| excludes(held, &(session, wanted)))
    }

    fn of_file(&self, file: FileId) -> impl Iterator<Item = (u64, usize, Lock)> {
        let positions = self.by_file.get(&file).into_iter().flatten();
        positions.filter_map(|(session, position)| {
            let held = (*self.by_session.get(session)?.get(*position)?)?;
            Some((*session, *position, held.lock))
        })
    }

    /// Locks of a session on a file.
    fn own(&self, session: u64, file: FileId) -> impl Iterator<Item = (usize, Lock)> {
        let held = self.of_file(file);
        held.filter(move |(holder, ..)| *holder == session)
            .map(|(_, position, lock)| (position, lock))
    }

    /// Takes a lock: it replaces the owner's locks of the same bytes.
    pub fn set(&mut self, session: u64, file: FileId, lock: &Lock) -> Result<LockEdit, ErrorCode> {
        if self.conflict(session, file, lock).is_some() {
            return Err(ErrorCode::Locked);
        }
        self.replace(session, file, lock, Some(*lock))
    }

    /// Releases the owner's locks of these bytes.
    pub fn remove(
        &mut self,
        session: u64,
        file: FileId,
        range: &Lock,
    ) -> Result<LockEdit, ErrorCode> {
        self.replace(session, file, range, None)
    }

    /// Releases all locks that were taken by an open file.
    pub fn remove_handle(
        &mut self,
        session: u64,
        file: FileId,
        handle: u64,
    ) -> Result<LockEdit, ErrorCode> {
        let taken = self.own(session, file);
        let gone = taken.filter(|(_, lock)| lock.handle == handle);
        let gone = gone.map(|(position, _)| position).collect();
        self.edit(session, file, gone, Vec::new())
    }

    /// Puts `new` in place of the bytes of `range` that its owner holds.
    fn replace(
        &mut self,
        session: u64,
        file: FileId,
        range: &Lock,
        new: Option<Lock>,
    ) -> Result<LockEdit, ErrorCode> {
        let (mut gone, mut added) = (Vec::new(), Vec::new());
        let mut new = new;
        for (position, held) in self.own(session, file) {
            if !is_same_owner(&held, range) {
                continue;
            }
            if let Some(new) = new.as_mut().filter(|new| joins(new, &held)) {
                (new.start, new.end) = (new.start.min(held.start), new.end.max(held.end));
                gone.push(position);
            } else if held.overlaps(range) {
                gone.push(position);
                added.extend(outside(&held, range));
            }
        }
        added.extend(new);
        self.edit(session, file, gone, added)
    }

    /// Puts locks in place of those at some positions.
    fn edit(
        &mut self,
        session: u64,
        file: FileId,
        gone: Vec<usize>,
        added: Vec<Lock>,
    ) -> Result<LockEdit, ErrorCode> {
        let locks = self.by_session.entry(session).or_default();
        let free = (0..).filter(|at| locks.get(*at).is_none_or(Option::is_none));
        let positions: Vec<usize> = gone.iter().copied().chain(free).take(added.len()).collect();
        let touched = || gone.iter().chain(&positions).copied();
        let (Some(first), Some(last)) = (touched().min(), touched().max()) else {
            return Ok(LockEdit {
                first: 0,
                count: 0,
                before: Vec::new(),
                after: Vec::new(),
            });
        };
        if last >= LOCKS_MAX {
            return Err(ErrorCode::TooManyLocks);
        }
        if locks.len() <= last {
            locks.resize(last + 1, None);
        }
        let before = locks[first..=last].to_vec();
        let mut after = before.clone();
        gone.iter().for_each(|at| after[at - first] = None);
        for (at, lock) in positions.iter().zip(added) {
            after[at - first] = Some(HeldLock { file, lock });
        }
        let edit = LockEdit {
            first,
            count: gone.len() as u64,
            before,
            after,
        };
        self.put(session, first, &edit.after);
        Ok(edit)
    }

    /// Takes an edit back that could not be recorded.
    pub fn undo(&mut self, session: u64, edit: &LockEdit) {
        let locks = self.by_session.get(&session);
        let now = locks.and_then(|locks| locks.get(edit.first..edit.first + edit.after.len()));
        if now == Some(&edit.after[..]) {
            self.put(session, edit.first, &edit.before);
        }
    }

    /// Puts these at consecutive positions of a session.
    pub fn put(&mut self, session: u64, first: usize, entries: &[Option<HeldLock>]) {
        let locks = self.by_session.entry(session).or_default();
        if locks.len() < first + entries.len() {
            locks.resize(first + entries.len(), None);
        }
        for (at, entry) in (first..).zip(entries) {
            if let Some(old) = std::mem::replace(&mut locks[at], *entry) {
                forget(&mut self.by_file, session, at, old.file);
            }
            if let Some(held) = entry {
                self.by_file
                    .entry(held.file)
                    .or_default()
                    .insert((session, at));
            }
        }
    }

    /// Drops all locks of a session. Returns their files.
    pub fn end(&mut self, session: u64) -> BTreeSet<FileId> {
        let locks = self.by_session.remove(&session).unwrap_or_default();
        let mut files = BTreeSet::new();
        for (at, held) in locks.into_iter().enumerate() {
            if let Some(held) = held {
                forget(&mut self.by_file, session, at, held.file);
                files.insert(held.file);
            }
        }
        files
    }
}

fn forget(
    by_file: &mut BTreeMap<FileId, BTreeSet<(u64, usize)>>,
    session: u64,
    at: usize,
    file: FileId,
) {
    if let Some(positions) = by_file.get_mut(&file) {
        positions.remove(&(session, at));
        if positions.is_empty() {
            by_file.remove(&file);
        }
    }
}

/// Whether two locks of one owner become one: they touch, and differ in nothing but their bytes.
fn joins(new: &Lock, held: &Lock) -> bool {
    let touches =
        new.start <= held.end.saturating_add(1) && held.start <= new.end.saturating_add(1);
    let is_alike = (new.kind, new.handle, new.process) == (held.kind, held.handle, held.process);
    touches && is_alike
}

/// The parts of a lock outside a range.
fn outside(held: &Lock, range: &Lock) -> impl Iterator<Item = Lock> {
    let before = (held.start < range.start).then(|| Lock {
        end: range.start - 1,
        ..*held
    });
    let after = (held.end > range.end).then(|| Lock {
        start: range.end + 1,
        ..*held
    });
    before.into_iter().chain(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use operations::LockSpace;

    const FILE: FileId = FileId {
        unit: 0,
        inode: 5,
        generation: 1,
    };

    fn lock(owner: u64, kind: LockKind, start: u64, end: u64) -> Lock {
        Lock {
            space: LockSpace::Ranges,
            kind,
            start,
            end,
            owner,
            handle: owner,
            process: 1,
        }
    }

    fn held(table: &LockTable, session: u64) -> Vec<(u64, u64)> {
        let own = table.own(session, FILE);
        let mut own: Vec<_> = own.map(|(_, lock)| (lock.start, lock.end)).collect();
        own.sort_unstable();
        own
    }

    #[test]
    fn write_locks_exclude_other_owners_and_read_locks_do_not_exclude_read_locks() {
        let mut table = LockTable::default();
        let write = |owner| lock(owner, LockKind::Write, 0, 9);
        assert!(table.set(1, FILE, &write(1)).is_ok());
        assert!(table.set(1, FILE, &write(1)).is_ok());
        assert_eq!(table.set(1, FILE, &write(2)), Err(ErrorCode::Locked));
        assert_eq!(table.set(2, FILE, &write(1)), Err(ErrorCode::Locked));
        assert_eq!(table.conflict(2, FILE, &write(1)), Some(write(1)));
        let whole = Lock {
            space: LockSpace::Whole,
            ..write(2)
        };
        assert!(table.set(2, FILE, &whole).is_ok());
        table.end(1);
        let read = |owner| lock(owner, LockKind::Read, 5, 6);
        assert!(table.set(2, FILE, &read(1)).is_ok());
        assert!(table.set(3, FILE, &read(1)).is_ok());
        assert_eq!(table.set(3, FILE, &write(1)), Err(ErrorCode::Locked));
    }

    #[test]
    fn unlocking_the_middle_leaves_both_ends_and_locking_it_again_joins_them() {
        let mut table = LockTable::default();
        let all = lock(1, LockKind::Write, 0, 99);
        let middle = lock(1, LockKind::Write, 10, 19);
        table.set(7, FILE, &all).expect("it is free");
        let edit = table.remove(7, FILE, &middle).expect("there is room");
        assert_eq!(held(&table, 7), [(0, 9), (20, 99)]);
        assert_eq!((edit.first, edit.before.len(), edit.after.len()), (0, 2, 2));
        table.set(7, FILE, &middle).expect("it is free");
        assert_eq!(held(&table, 7), [(0, 99)]);
        let inner = lock(1, LockKind::Read, 40, 50);
        table.set(7, FILE, &inner).expect("it is its own");
        assert_eq!(held(&table, 7), [(0, 39), (40, 50), (51, 99)]);
        table.remove_handle(7, FILE, 1).expect("there is room");
        assert_eq!(held(&table, 7), []);
        assert!(table.by_file.is_empty());
    }

    #[test]
    fn an_edit_that_is_undone_leaves_the_locks_as_they_were() {
        let mut table = LockTable::default();
        table
            .set(7, FILE, &lock(1, LockKind::Write, 0, 9))
            .expect("it is free");
        let edit = table.remove(7, FILE, &lock(1, LockKind::Write, 3, 4));
        table.undo(7, &edit.expect("there is room"));
        assert_eq!(held(&table, 7), [(0, 9)]);
    }

    #[test]
    fn a_session_has_a_bounded_number_of_locks() {
        let mut table = LockTable::default();
        for at in 0..LOCKS_MAX as u64 {
            let lock = lock(1, LockKind::Read, 2 * at, 2 * at);
            table.put(7, at as usize, &[Some(HeldLock { file: FILE, lock })]);
        }
        let one_more = lock(2, LockKind::Read, 0, 0);
        assert_eq!(table.set(7, FILE, &one_more), Err(ErrorCode::TooManyLocks));
    }
}
