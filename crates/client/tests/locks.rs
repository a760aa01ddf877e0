//! `docs/SEMANTICS.md` on locks between users of a file system, re-enacted.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use client::{
    LOCK_END, Lock, LockKind, LockSpace, LockTicket, LockUser, LockWake, NotLocked, ROOT,
};
use common::file_system;

const BYTES: usize = 12;
const OWNERS: u64 = 4;
/// Longest wait for a report, in a test that fails otherwise.
const LONG: Duration = Duration::from_secs(120);

fn range(owner: u64, kind: LockKind, start: u64, end: u64) -> Lock {
    Lock {
        space: LockSpace::Ranges,
        kind,
        start,
        end,
        owner,
        handle: owner,
        process: owner as u32,
    }
}

fn whole(owner: u64, kind: LockKind) -> Lock {
    Lock {
        space: LockSpace::Whole,
        ..range(owner, kind, 0, LOCK_END)
    }
}

/// Sends the end of a wait into the channel.
fn wake(owner: u64, say: &mpsc::Sender<(u64, bool)>) -> LockWake {
    let say = say.clone();
    // The receiver may be gone.
    Box::new(move |ended| say.send((owner, ended.unwrap())).unwrap_or_default())
}

fn wait(user: &LockUser, number: u64, lock: &Lock, say: &mpsc::Sender<(u64, bool)>) -> LockTicket {
    user.take_or_wait(number, lock, wake(lock.owner, say))
        .unwrap()
        .unwrap()
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }

    fn lock(&mut self) -> Lock {
        let kind = [LockKind::Read, LockKind::Write][self.below(2) as usize];
        let (one, other) = (self.below(BYTES as u64), self.below(BYTES as u64));
        range(self.below(OWNERS), kind, one.min(other), one.max(other))
    }
}

/// Locks of each owner on each byte.
type Model = [[Option<LockKind>; BYTES]; OWNERS as usize];

fn is_free(model: &Model, wanted: &Lock) -> bool {
    (0..OWNERS)
        .filter(|owner| *owner != wanted.owner)
        .all(|owner| {
            let bytes = &model[owner as usize][wanted.start as usize..=wanted.end as usize];
            let stands = |held: &Option<LockKind>| {
                held.is_some_and(|held| held == LockKind::Write || wanted.kind == LockKind::Write)
            };
            !bytes.iter().any(stands)
        })
}

fn enter(model: &mut Model, lock: &Lock, kind: Option<LockKind>) {
    model[lock.owner as usize][lock.start as usize..=lock.end as usize].fill(kind);
}

/// The table has the same state as the model for each byte.
fn compare(user: &LockUser, model: &Model, seed: u64) {
    for byte in 0..BYTES as u64 {
        for kind in [LockKind::Read, LockKind::Write] {
            for owner in 0..=OWNERS {
                let wanted = range(owner, kind, byte, byte);
                let found = user.in_the_way(ROOT, &wanted).unwrap();
                assert_eq!(
                    found.is_none(),
                    is_free(model, &wanted),
                    "seed {seed}: {found:?}"
                );
            }
        }
    }
}

#[test]
fn locks_are_as_a_model_says() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let user = file_system().lock_user();
        let mut model: Model = Default::default();
        let (say, hear) = mpsc::channel();
        // An owner waits for one lock at a time.
        let mut waiting: Vec<(LockTicket, Lock)> = Vec::new();
        for _ in 0..200 {
            let lock = random.lock();
            if waiting.iter().any(|(_, wanted)| wanted.owner == lock.owner) {
                if random.below(4) == 0 {
                    let at = waiting
                        .iter()
                        .position(|(_, wanted)| wanted.owner == lock.owner);
                    let (ticket, wanted) = waiting.remove(at.unwrap());
                    user.cancel(ticket);
                    assert_eq!(hear.try_recv(), Ok((wanted.owner, false)));
                }
                continue;
            }
            match random.below(4) {
                0 => {
                    user.give_back(ROOT, &lock).unwrap();
                    enter(&mut model, &lock, None);
                }
                1 => {
                    user.give_back_ranges(ROOT, lock.owner).unwrap();
                    model[lock.owner as usize].fill(None);
                }
                2 => {
                    let is_taken = user.take(ROOT, &lock).unwrap();
                    assert_eq!(is_taken, is_free(&model, &lock), "seed {seed}");
                    if is_taken {
                        enter(&mut model, &lock, Some(lock.kind));
                    }
                }
                _ => match user.take_or_wait(ROOT, &lock, wake(lock.owner, &say)) {
                    Ok(None) => {
                        assert!(is_free(&model, &lock), "seed {seed}");
                        enter(&mut model, &lock, Some(lock.kind));
                    }
                    Ok(Some(ticket)) => waiting.push((ticket, lock)),
                    Err(NotLocked::Deadlock) => assert!(!is_free(&model, &lock), "seed {seed}"),
                    Err(NotLocked::Failed(error)) => panic!("{error}"),
                },
            }
            // No owner waits for a lock that is free: of a cluster, another thread may be about to report it.
            let is_free_for = |waits: &[(LockTicket, Lock)], model: &Model| {
                waits.iter().any(|(_, wanted)| is_free(model, wanted))
            };
            while is_free_for(&waiting, &model) {
                let (owner, is_held) = hear.recv_timeout(LONG).expect("a wait ends");
                let at = waiting
                    .iter()
                    .position(|(_, wanted)| wanted.owner == owner)
                    .unwrap();
                let (_, wanted) = waiting.remove(at);
                assert!(is_held && is_free(&model, &wanted), "seed {seed}");
                enter(&mut model, &wanted, Some(wanted.kind));
            }
            assert!(hear.try_recv().is_err(), "seed {seed}");
            compare(&user, &model, seed);
        }
    }
}

#[test]
fn waits_for_each_other_are_refused() {
    let user = file_system().lock_user();
    let (say, hear) = mpsc::channel();
    let byte = |owner, at| range(owner, LockKind::Write, at, at);
    for owner in 0..3 {
        assert!(user.take(owner, &byte(owner, 0)).unwrap());
    }
    // Over three files: 0 waits for 1, 1 for 2, and 2 would wait for 0.
    wait(&user, 1, &byte(0, 0), &say);
    wait(&user, 2, &byte(1, 0), &say);
    let ended = user.take_or_wait(0, &byte(2, 0), wake(2, &say));
    assert!(matches!(ended, Err(NotLocked::Deadlock)));
    assert!(hear.try_recv().is_err());
    user.give_back(2, &byte(2, 0)).unwrap();
    assert_eq!(hear.try_recv(), Ok((1, true)));
    user.give_back_ranges(1, 1).unwrap();
    assert_eq!(hear.try_recv(), Ok((0, true)));
    // Locks of whole files are not compared: their owners are open files, which do not wait.
    let takes = |number| user.take(number, &whole(number, LockKind::Write)).unwrap();
    assert!(takes(0) && takes(1));
    wait(&user, 1, &whole(0, LockKind::Write), &say);
    wait(&user, 0, &whole(1, LockKind::Write), &say);
    assert_eq!(user.waits(), 2);
}

#[test]
fn whole_files_change_hands() {
    let user = file_system().lock_user();
    let (say, hear) = mpsc::channel();
    let (read, write) = (LockKind::Read, LockKind::Write);
    let takes = |lock| user.take(ROOT, &lock).unwrap();
    assert!(takes(whole(0, read)) && takes(whole(1, read)));
    // Ranges are others' business.
    assert!(takes(range(2, write, 0, LOCK_END)));
    wait(&user, ROOT, &whole(2, write), &say);
    // A caller that requests the other kind has lost its former lock: now two wait for one.
    wait(&user, ROOT, &whole(1, write), &say);
    assert!(!takes(whole(3, write)) && hear.try_recv().is_err());
    user.close(ROOT, 0).unwrap();
    assert_eq!(hear.try_recv(), Ok((2, true)));
    user.close(ROOT, 2).unwrap();
    assert_eq!(hear.try_recv(), Ok((1, true)));
    assert!(
        user.in_the_way(ROOT, &range(0, read, 7, 7))
            .unwrap()
            .is_none(),
        "closing gave back ranges too"
    );
}

/// The locks of a user, and its waits, go with it.
#[test]
fn users_keep_each_other_out() {
    let file_system = file_system();
    let (one, other) = (file_system.lock_user(), file_system.clone().lock_user());
    let (say, hear) = mpsc::channel();
    let lock = range(7, LockKind::Write, 0, 9);
    assert!(one.take(ROOT, &lock).unwrap());
    // The same number belongs to another user.
    assert_eq!(other.in_the_way(ROOT, &lock).unwrap(), Some(lock));
    wait(&other, ROOT, &lock, &say);
    let third = file_system.lock_user();
    wait(&third, ROOT, &range(8, LockKind::Read, 3, 3), &say);
    drop(third);
    assert_eq!(hear.try_recv(), Ok((8, false)));
    drop(one);
    assert_eq!((hear.try_recv(), other.waits()), (Ok((7, true)), 0));
}

/// Alternating threads are never two at a time, and all get the lock.
#[test]
fn threads_take_turns() {
    const THREADS: u64 = 8;
    const TURNS: usize = 2000;
    let user = Arc::new(file_system().lock_user());
    let inside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for owner in 0..THREADS {
            let (user, inside) = (user.clone(), &inside);
            scope.spawn(move || {
                for _ in 0..TURNS {
                    let (say, hear) = mpsc::channel();
                    let lock = range(owner, LockKind::Write, 5, 9);
                    let ticket = user.take_or_wait(ROOT, &lock, wake(owner, &say));
                    if ticket.unwrap().is_some() {
                        assert_eq!(hear.recv(), Ok((owner, true)));
                    }
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    user.give_back(ROOT, &lock).unwrap();
                }
            });
        }
    });
    assert_eq!(user.waits(), 0);
}
