//! Advisory locks of all sessions, as the primary has them in memory. Each session's locks have positions, by which the image
//! has them too.

use std::collections::{BTreeMap, BTreeSet};

use crate::wire::{ErrorCode, FileId};
use operations::{Lock, LockKind};

/// Positions of a session's locks. No image has room for so many.
pub const LOCKS_MAX: usize = 1 << 34;
/// Most consecutive positions of one record: so few that it overwrites them in place, and needs no space if they were
/// used before.
const LOCK_RECORD_MAX: usize = 128;

/// A lock of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// File that it concerns.
    pub file: FileId,
    /// Kind, range and owner of the lock.
    pub lock: Lock,
}

/// Consecutive positions of a session's locks that one record changes, with their contents before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LockPart {
    pub first: usize,
    pub before: Vec<Option<HeldLock>>,
    pub after: Vec<Option<HeldLock>>,
}

/// A change of a session's locks: one record, or several of which the first adds locks and all others remove some. So
/// between two of them the session has more locks than it knows of, and never fewer; a repeated request removes those.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LockEdit {
    /// Locks that were released or replaced.
    pub count: u64,
    pub parts: Vec<LockPart>,
}

impl LockEdit {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| part.before == part.after)
    }
}

/// The locks of a session by position.
#[derive(Default)]
struct Positions {
    locks: Vec<Option<HeldLock>>,
    /// Positions of these without a lock.
    unused: BTreeSet<usize>,
}

impl Positions {
    /// Positions without a lock, in order.
    fn free(&self) -> impl Iterator<Item = usize> {
        self.unused.iter().copied().chain(self.locks.len()..)
    }

    /// Puts a lock at a position, or none. Returns the former one.
    fn replace(&mut self, at: usize, entry: Option<HeldLock>) -> Option<HeldLock> {
        if self.locks.len() <= at {
            self.unused.extend(self.locks.len()..=at);
            self.locks.resize(at + 1, None);
        }
        match entry {
            None => self.unused.insert(at),
            Some(_) => self.unused.remove(&at),
        };
        std::mem::replace(&mut self.locks[at], entry)
    }

    fn at(&self, at: usize) -> Option<HeldLock> {
        self.locks.get(at).copied().flatten()
    }

    /// The part in which these changes are, by ascending position.
    fn part(&self, changes: &[(usize, Option<HeldLock>)]) -> LockPart {
        let (first, last) = (changes[0].0, changes[changes.len() - 1].0);
        let before: Vec<_> = (first..=last).map(|at| self.at(at)).collect();
        let mut after = before.clone();
        for (at, entry) in changes {
            after[at - first] = *entry;
        }
        LockPart {
            first,
            before,
            after,
        }
    }
}

/// Locks of all sessions, by session and by file.
#[derive(Default)]
pub(super) struct LockTable {
    by_session: BTreeMap<u64, Positions>,
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
            let held = self.by_session.get(session)?.at(*position)?;
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
        mut gone: Vec<usize>,
        added: Vec<Lock>,
    ) -> Result<LockEdit, ErrorCode> {
        gone.sort_unstable();
        let count = gone.len() as u64;
        let locks = self.by_session.entry(session).or_default();
        let free = locks.free();
        let mut positions: Vec<usize> =
            gone.iter().copied().chain(free).take(added.len()).collect();
        let touched = || gone.iter().chain(&positions).copied();
        let range = touched().min().zip(touched().max());
        let is_wide = range.is_some_and(|(first, last)| last - first >= LOCK_RECORD_MAX);
        if is_wide {
            positions = locks.free().take(added.len()).collect();
        }
        positions.sort_unstable();
        if positions.last().is_some_and(|last| *last >= LOCKS_MAX) {
            return Err(ErrorCode::TooManyLocks);
        }
        let new = added.into_iter().map(|lock| Some(HeldLock { file, lock }));
        let mut changes: Vec<_> = positions.iter().copied().zip(new).collect();
        let removed = gone.iter().filter(|at| !positions.contains(at));
        changes.extend(removed.map(|at| (*at, None)));
        if !is_wide {
            changes.sort_unstable_by_key(|(at, _)| *at);
        }
        let parts = records(&changes).map(|changes| locks.part(changes));
        let edit = LockEdit {
            count,
            parts: parts.collect(),
        };
        for part in &edit.parts {
            self.put(session, part.first, &part.after);
        }
        Ok(edit)
    }

    /// Takes an edit back that could not be recorded.
    pub fn undo(&mut self, session: u64, edit: &LockEdit) {
        let Some(locks) = self.by_session.get(&session) else {
            return;
        };
        let is_there = |part: &&LockPart| {
            let mut after = (part.first..).zip(&part.after);
            after.all(|(at, entry)| locks.at(at) == *entry)
        };
        let parts: Vec<&LockPart> = edit.parts.iter().filter(is_there).collect();
        for part in parts {
            self.put(session, part.first, &part.before);
        }
    }

    /// Puts these at consecutive positions of a session.
    pub fn put(&mut self, session: u64, first: usize, entries: &[Option<HeldLock>]) {
        let locks = self.by_session.entry(session).or_default();
        for (at, entry) in (first..).zip(entries) {
            if let Some(old) = locks.replace(at, *entry) {
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
        let locks = self.by_session.remove(&session).unwrap_or_default().locks;
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

/// Changes in runs of ascending positions that one record holds.
fn records(
    changes: &[(usize, Option<HeldLock>)],
) -> impl Iterator<Item = &[(usize, Option<HeldLock>)]> {
    let mut rest = changes;
    std::iter::from_fn(move || {
        let (first, _) = *rest.first()?;
        let is_in = |(at, _): &(usize, _)| (first..first + LOCK_RECORD_MAX).contains(at);
        let is_next = |(index, it): (usize, &(usize, _))| {
            is_in(it) && (index == 0 || rest[index - 1].0 < it.0)
        };
        let count = rest
            .iter()
            .enumerate()
            .take_while(|it| is_next(*it))
            .count();
        let (one, after) = rest.split_at(count);
        rest = after;
        Some(one)
    })
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
        let parts = edit.parts.iter();
        let parts: Vec<_> = parts
            .map(|it| (it.first, it.before.len(), it.after.len()))
            .collect();
        assert_eq!(parts, [(0, 2, 2)]);
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

    /// The image after each record of an edit.
    fn images(before: &[Option<HeldLock>], edit: &LockEdit) -> Vec<Vec<Option<HeldLock>>> {
        let mut image = before.to_vec();
        let record = |part: &LockPart| {
            image.resize(image.len().max(part.first + part.after.len()), None);
            image[part.first..][..part.after.len()].copy_from_slice(&part.after);
            image.clone()
        };
        edit.parts.iter().map(record).collect()
    }

    #[test]
    fn a_change_of_many_locks_adds_before_it_removes_and_each_record_is_short() {
        const LOCKS: u64 = 40_000;
        let mut table = LockTable::default();
        for at in 0..LOCKS {
            let lock = lock(1, LockKind::Write, 2 * at, 2 * at);
            table.put(7, at as usize, &[Some(HeldLock { file: FILE, lock })]);
        }
        let before = table.by_session[&7].locks.clone();
        let all = lock(1, LockKind::Write, 0, 2 * LOCKS);
        let edit = table.set(7, FILE, &all).expect("it is its own");
        assert_eq!((edit.count, held(&table, 7)), (LOCKS, vec![(0, 2 * LOCKS)]));
        assert!(edit.parts.len() as u64 > LOCKS / LOCK_RECORD_MAX as u64);
        let is_short = |part: &LockPart| part.after.len() <= LOCK_RECORD_MAX;
        assert!(edit.parts.iter().all(is_short));
        let wanted = Some(HeldLock {
            file: FILE,
            lock: all,
        });
        let images = images(&before, &edit);
        assert!(images.iter().all(|image| image.contains(&wanted)));
        let held = |image: &Vec<Option<HeldLock>>| image.iter().flatten().count();
        assert_eq!(
            (held(&images[0]), images.last().map(held)),
            (40_001, Some(1))
        );
        table.undo(7, &edit);
        assert_eq!(table.by_session[&7].locks[..before.len()], before);
        assert_eq!(table.set(7, FILE, &all), Ok(edit));
    }
}
