//! Locks of files, where the file system keeps them and not the kernel (`locks=shared`).
//!
//! A process's locks of ranges are released when it closes the file, which the kernel reports each time (flush); those
//! of an open file, of ranges or of the whole, when its last descriptor is closed (release). The kernel does not state
//! to which of the two a lock of a range belongs, but an open file's locks are all taken by it, and a process's are
//! released by then.
//!
//! A waiting request is answered by the thread that ends its wait. The kernel may interrupt any request, also before it
//! is seen here, after it was answered, or more than once.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use client::{Lock, LockKind, LockSpace, LockTicket, LockUser, LockWake, NotLocked};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{Answer, Later, head};
use crate::answer::put;
use crate::translate::errno;
use crate::wire::{self, locked};

/// Interruptions of requests that have not been seen yet which are remembered: many more than requests can be on their
/// way. Most are of requests that need none, and are forgotten in time.
const EARLY_MAX: usize = 1024;

pub(super) struct Locks {
    user: LockUser,
    handles: AtomicU64,
    waits: Arc<Mutex<Waits>>,
}

/// The requests that wait, by their numbers.
#[derive(Default)]
struct Waits {
    waiting: HashMap<u64, Stage>,
    early: VecDeque<u64>,
}

#[derive(Clone, Copy)]
enum Stage {
    /// It is about to wait.
    Begins,
    /// The same, and is to end at once.
    BeginsInterrupted,
    Waits(LockTicket),
}

impl Locks {
    pub(super) fn new(user: LockUser) -> Locks {
        Locks {
            user,
            handles: AtomicU64::new(0),
            waits: Arc::default(),
        }
    }

    /// A number for an open file.
    pub(super) fn new_handle(&self) -> u64 {
        self.handles.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn test(&self, node: u64, asked: &wire::LockIn, body: &mut [u8]) -> Answer {
        let found = self.user.in_the_way(node, &lock(asked));
        let lock = match found.map_err(|error| errno(&error))? {
            Some(found) => wire::FileLock {
                start: found.start,
                end: found.end,
                kind: kind_bits(found.kind),
                process: found.process,
            },
            None => wire::FileLock {
                kind: libc::F_UNLCK as u32,
                ..asked.lock
            },
        };
        Ok(put(body, &lock))
    }

    /// Takes a lock, or gives it back.
    pub(super) fn set(&self, node: u64, asked: &wire::LockIn) -> Answer {
        let wanted = lock(asked);
        if asked.lock.kind == libc::F_UNLCK as u32 {
            let given = self.user.give_back(node, &wanted);
            return given.map(|()| 0).map_err(|error| errno(&error));
        }
        let taken = self.user.take(node, &wanted);
        match taken.map_err(|error| errno(&error))? {
            true => Ok(0),
            false => Err(Errno::AGAIN),
        }
    }

    /// The same; None if the answer comes later.
    pub(super) fn set_or_wait(
        &self,
        header: &wire::InHeader,
        asked: &wire::LockIn,
        later: &dyn Fn() -> Option<Later>,
    ) -> Option<Answer> {
        match self.set(header.node, asked) {
            Err(Errno::AGAIN) => {}
            done => return Some(done),
        }
        let Some(later) = later() else {
            return Some(Err(Errno::NOLCK));
        };
        let unique = header.unique;
        if !self.waits.lock().begin(unique) {
            return Some(Err(Errno::INTR));
        }
        let waits = self.waits.clone();
        let wake: LockWake = Box::new(move |ended| {
            waits.lock().waiting.remove(&unique);
            let answer = match ended {
                Ok(true) => Ok(0),
                Ok(false) => Err(Errno::INTR),
                Err(error) => Err(refusal(&error)),
            };
            later(head(unique, answer), &[]);
        });
        let ticket = match self.user.take_or_wait(header.node, &lock(asked), wake) {
            Ok(Some(ticket)) => ticket,
            // It has become free meanwhile.
            Ok(None) => return Some(self.ended(unique, Ok(0))),
            Err(error) => return Some(self.ended(unique, Err(refusal(&error)))),
        };
        if self.waits.lock().is_interrupted(unique, ticket) {
            self.user.cancel(ticket);
        }
        None
    }

    fn ended(&self, unique: u64, answer: Answer) -> Answer {
        self.waits.lock().waiting.remove(&unique);
        answer
    }

    /// Ends the wait of a request, or sees to it that it will not begin.
    pub(super) fn interrupt(&self, unique: u64) {
        let ticket = self.waits.lock().interrupt(unique);
        if let Some(ticket) = ticket {
            self.user.cancel(ticket);
        }
    }

    pub(super) fn flush(&self, node: u64, asked: &wire::FlushIn) {
        // Locks that cannot be released now end with the session.
        let _ = self.user.give_back_ranges(node, asked.lock_owner);
    }

    pub(super) fn release(&self, node: u64, asked: &wire::ReleaseIn) {
        // As for ranges.
        let _ = self.user.close(node, asked.handle);
    }
}

impl Waits {
    /// A request is about to wait; false if it has been interrupted already.
    fn begin(&mut self, unique: u64) -> bool {
        if let Some(at) = self.early.iter().position(|early| *early == unique) {
            self.early.remove(at);
            return false;
        }
        self.waiting.insert(unique, Stage::Begins);
        true
    }

    /// A request waits, unless its wait has ended; whether it has been interrupted meanwhile.
    fn is_interrupted(&mut self, unique: u64, ticket: LockTicket) -> bool {
        let Some(stage) = self.waiting.get_mut(&unique) else {
            return false;
        };
        matches!(
            std::mem::replace(stage, Stage::Waits(ticket)),
            Stage::BeginsInterrupted
        )
    }

    /// Notes that a request is to end, and returns the wait to be ended for that.
    fn interrupt(&mut self, unique: u64) -> Option<LockTicket> {
        match self.waiting.get_mut(&unique) {
            Some(Stage::Waits(ticket)) => return Some(*ticket),
            Some(stage) => *stage = Stage::BeginsInterrupted,
            None => {
                if self.early.len() == EARLY_MAX {
                    self.early.pop_front();
                }
                self.early.push_back(unique);
            }
        }
        None
    }
}

fn refusal(error: &NotLocked) -> Errno {
    match error {
        NotLocked::Deadlock => Errno::DEADLK,
        NotLocked::Failed(error) => errno(error),
    }
}

fn lock(asked: &wire::LockIn) -> Lock {
    let kind = if asked.lock.kind == libc::F_RDLCK as u32 {
        LockKind::Read
    } else {
        LockKind::Write
    };
    let space = if asked.flags & locked::WHOLE != 0 {
        LockSpace::Whole
    } else {
        LockSpace::Ranges
    };
    Lock {
        space,
        kind,
        start: asked.lock.start,
        end: asked.lock.end,
        owner: asked.owner,
        handle: asked.handle,
        process: asked.lock.process,
    }
}

fn kind_bits(kind: LockKind) -> u32 {
    let kind = match kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
    };
    kind as u32
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use client::{FileSystem, Geometry, PoolOptions, Region};

    use super::*;

    const NODE: u64 = 1;

    fn locks() -> Locks {
        let region = Region::memory(32 << 20, false).unwrap();
        FileSystem::format_region(&region, &Geometry::for_length(32 << 20)).unwrap();
        let file_system = FileSystem::open_region(region, PoolOptions::default()).unwrap();
        Locks::new(file_system.lock_user())
    }

    fn asked(owner: u64, kind: i32) -> wire::LockIn {
        wire::LockIn {
            handle: owner,
            owner,
            lock: wire::FileLock {
                start: 0,
                end: client::LOCK_END,
                kind: kind as u32,
                process: owner as u32,
            },
            ..wire::LockIn::default()
        }
    }

    /// Requests the lock by request `unique`; later answers go into the channel.
    fn wait(
        locks: &Locks,
        unique: u64,
        owner: u64,
        say: &mpsc::Sender<(u64, i32)>,
    ) -> Option<Answer> {
        let header = wire::InHeader {
            unique,
            node: NODE,
            ..wire::InHeader::default()
        };
        let later = || -> Option<Later> {
            let say = say.clone();
            Some(Box::new(move |head, _| {
                say.send((head.unique, -head.error)).unwrap();
            }))
        };
        locks.set_or_wait(&header, &asked(owner, libc::F_WRLCK), &later)
    }

    #[test]
    fn interruptions_come_at_any_time() {
        let locks = locks();
        let (say, hear) = mpsc::channel();
        assert_eq!(wait(&locks, 2, 1, &say), Some(Ok(0)));
        // Before the request, of a request that has been answered, and of one that never comes.
        locks.interrupt(4);
        assert_eq!(wait(&locks, 4, 2, &say), Some(Err(Errno::INTR)));
        locks.interrupt(2);
        locks.interrupt(4);
        (1000..1000 + 2 * EARLY_MAX as u64).for_each(|unique| locks.interrupt(unique));
        assert_eq!(locks.waits.lock().early.len(), EARLY_MAX);
        // Twice, of one that waits.
        assert_eq!(wait(&locks, 6, 2, &say), None);
        assert_eq!(wait(&locks, 8, 3, &say), None);
        locks.interrupt(6);
        locks.interrupt(6);
        assert_eq!(hear.try_recv(), Ok((6, libc::EINTR)));
        // The other one continues to wait until the lock is free, and only then ends.
        assert!(hear.try_recv().is_err());
        locks.release(
            NODE,
            &wire::ReleaseIn {
                handle: 1,
                ..wire::ReleaseIn::default()
            },
        );
        assert_eq!(hear.try_recv(), Ok((8, 0)));
        locks.interrupt(8);
        assert!(hear.try_recv().is_err() && locks.waits.lock().waiting.is_empty());
    }

    #[test]
    fn waits_without_a_possible_answer_are_refused() {
        let locks = locks();
        let (say, _hear) = mpsc::channel();
        assert_eq!(wait(&locks, 2, 1, &say), Some(Ok(0)));
        let header = wire::InHeader {
            unique: 4,
            node: NODE,
            ..wire::InHeader::default()
        };
        let answer = locks.set_or_wait(&header, &asked(2, libc::F_RDLCK), &|| None);
        assert_eq!(answer, Some(Err(Errno::NOLCK)));
        assert_eq!(locks.user.waits(), 0);
    }
}
