//! Locks of parts of files: tried, waited for and released, one request at a time, as by a process that blocks.
//!
//! A process that waits releases nothing, so that waits for each other last until they are reported.

use std::collections::BTreeSet;

use operations::{LOCK_END, Lock};
use pmem::Random;
use protocol::Defects;
use protocol::defects::Defect;
use protocol::wire::{ErrorCode, FileId, Operation, Outcome};

use super::LOCK;
use crate::cluster::time::{MILLISECOND, Time};
use crate::cluster::waits::{Kept, WaitLog};

/// Bytes of a part of a file, and the number of parts.
const PART: u64 = 10;
const PARTS: u64 = 2;
/// How often a wait is repeated.
const REPEAT_EVERY: Time = 400 * MILLISECOND;

/// The parts that a lock covers.
pub(super) fn parts(lock: &Lock) -> Vec<u64> {
    match lock.end {
        LOCK_END => vec![0],
        end => (lock.start / PART..=end / PART).collect(),
    }
}

/// A lock of all parts.
pub(super) fn all_parts() -> Lock {
    lock_of(0, PARTS - 1)
}

/// A lock of one part.
pub(super) fn any_part(random: &mut Random) -> Lock {
    let part = random.below(PARTS as usize) as u64;
    lock_of(part, part)
}

fn lock_of(first: u64, last: u64) -> Lock {
    Lock {
        start: first * PART,
        end: (last + 1) * PART - 1,
        ..LOCK
    }
}

struct Wait {
    number: u64,
    file: FileId,
    lock: Lock,
    /// When it was asked for first, and the last time.
    asked: Time,
    repeated: Time,
    /// Time at which the wait is cancelled.
    cancelled_at: Time,
    /// A repetition is in flight, and the lock is asked for.
    is_asked: bool,
    is_taking: bool,
    /// Requests in flight that end it.
    ends: u32,
    is_cancelled: bool,
    kept: Option<Kept>,
}

/// The locks of a process.
#[derive(Default)]
pub(super) struct Locks {
    held: BTreeSet<(FileId, u64)>,
    wait: Option<Wait>,
    /// A lock is tried or released.
    is_busy: bool,
    numbers: u64,
    /// Requests to be made.
    pub(super) requests: Vec<Operation>,
}

impl Locks {
    /// Whether locks are held or waited for.
    pub(super) fn are_used(&self) -> bool {
        !self.held.is_empty() || self.wait.is_some() || self.is_busy
    }

    /// Forgets all locks and waits, since the session has ended.
    pub(super) fn end(&mut self, client: u32, now: Time, log: &mut WaitLog) {
        if let Some(wait) = self.wait.take() {
            wait.end(client, now, log);
        }
        *self = Locks {
            numbers: self.numbers,
            ..Locks::default()
        };
    }

    /// Releases a lock, if there is one and nothing is waited for.
    pub(super) fn release(&mut self, random: &mut Random) -> Option<Operation> {
        if self.is_busy || self.wait.is_some() || self.held.is_empty() {
            return None;
        }
        let held: Vec<(FileId, u64)> = self.held.iter().copied().collect();
        let (file, part) = *random.pick(&held);
        let is_whole = (0..PARTS).all(|part| self.held.contains(&(file, part)));
        let range = match is_whole && random.one_in(2) {
            true => all_parts(),
            false => lock_of(part, part),
        };
        self.is_busy = true;
        if is_whole && random.one_in(2) {
            let handle = LOCK.handle;
            return Some(Operation::UnlockHandle { file, handle });
        }
        Some(Operation::Unlock { file, range })
    }

    /// Uses a lock, if no other is tried or waited for.
    pub(super) fn choose(
        &mut self,
        now: Time,
        file: FileId,
        random: &mut Random,
    ) -> Option<Operation> {
        if self.is_busy || self.wait.is_some() {
            return None;
        }
        if random.one_in(3)
            && let Some(operation) = self.release(random)
        {
            return Some(operation);
        }
        let lock = match random.below(PARTS as usize + 1) as u64 {
            PARTS => all_parts(),
            part => lock_of(part, part),
        };
        if random.one_in(3) {
            self.is_busy = true;
            return Some(Operation::SetLock { file, lock });
        }
        self.numbers += 1;
        let patience = match random.below(3) {
            0 => random.between(MILLISECOND, 1500 * MILLISECOND),
            _ => Time::MAX - now,
        };
        self.wait = Some(Wait {
            number: self.numbers,
            file,
            lock,
            asked: now,
            repeated: now,
            cancelled_at: now + patience,
            is_asked: true,
            is_taking: false,
            ends: 0,
            is_cancelled: false,
            kept: None,
        });
        let wait = self.numbers;
        Some(Operation::WaitLock { file, lock, wait })
    }

    /// Returns the time of the next event, if any is planned.
    pub(super) fn due(&self) -> Option<Time> {
        let wait = self.wait.as_ref()?;
        let is_open = !wait.is_cancelled && !wait.is_taking;
        let repeat = wait.repeated + REPEAT_EVERY;
        let repeat = if wait.is_asked { Time::MAX } else { repeat };
        is_open.then(|| repeat.min(wait.cancelled_at))
    }

    /// Repeats the wait, or cancels it.
    pub(super) fn on_time(&mut self, client: u32, now: Time, defects: &Defects, log: &mut WaitLog) {
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        let Some(wait) = &mut self.wait else {
            return;
        };
        if now >= wait.cancelled_at {
            wait.is_cancelled = true;
            wait.ends += 1;
            wait.end(client, now, log);
            let wait = wait.number;
            return self.requests.push(Operation::EndWait { wait });
        }
        wait.repeated = now;
        if !defects.has(Defect::ForgetWaits) {
            wait.is_asked = true;
            let (file, lock, wait) = (wait.file, wait.lock, wait.number);
            self.requests.push(Operation::WaitLock { file, lock, wait });
        }
    }

    /// The lock of a wait is free, and reserved for it.
    pub(super) fn has_turn(&mut self, number: u64) {
        let wait = self.wait.as_mut().filter(|it| it.number == number);
        if let Some(wait) = wait.filter(|it| !it.is_cancelled && !it.is_taking) {
            wait.is_taking = true;
            let (file, lock) = (wait.file, wait.lock);
            self.requests.push(Operation::SetLock { file, lock });
        }
    }

    /// A request was answered that was made at this time.
    pub(super) fn answered(
        &mut self,
        client: u32,
        (asked, now): (Time, Time),
        (operation, outcome): (&Operation, &Outcome),
        log: &mut WaitLog,
    ) {
        match operation {
            Operation::SetLock { file, lock } => {
                // Another one may have it after all; a process that gets any other error waits no longer.
                let goes_on = outcome.error == Some(ErrorCode::Locked);
                let wait = self.wait.take_if(|it| it.is_taking && !goes_on);
                match (&mut self.wait, &wait) {
                    // Without space for the record of the lock, the primary has ended the wait earlier.
                    (_, Some(wait)) if !outcome.is_done() => wait.end(client, asked, log),
                    (_, Some(wait)) => wait.end(client, now, log),
                    (Some(wait), _) if wait.is_taking => wait.is_taking = false,
                    _ => self.is_busy = false,
                }
                if outcome.is_done() {
                    let asked = wait.map_or(asked, |it| it.asked);
                    self.taken(client, (*file, lock), (asked, now), log);
                }
            }
            Operation::Unlock { file, range } => {
                self.is_busy = false;
                if outcome.is_done() {
                    let gone = parts(range);
                    self.held
                        .retain(|(of, part)| of != file || !gone.contains(part));
                }
            }
            Operation::UnlockHandle { file, .. } => {
                self.is_busy = false;
                if outcome.is_done() {
                    self.held.retain(|(of, _)| of != file);
                }
            }
            Operation::WaitLock { wait, .. } => {
                self.waits(client, *wait, (asked, now), outcome, log)
            }
            Operation::EndWait { wait } => {
                if let Some(known) = self.wait.as_mut().filter(|it| it.number == *wait) {
                    known.ends -= 1;
                }
                let is_over = |it: &mut Wait| it.is_cancelled && it.ends == 0 && !it.is_asked;
                self.wait.take_if(is_over);
            }
            _ => {}
        }
    }

    fn taken(
        &mut self,
        client: u32,
        (file, lock): (FileId, &Lock),
        (asked, now): (Time, Time),
        log: &mut WaitLog,
    ) {
        let parts = parts(lock);
        let is_new = parts.iter().all(|part| !self.held.contains(&(file, *part)));
        self.held.extend(parts.iter().map(|part| (file, *part)));
        if is_new {
            log.taken(client, file.inode, parts, asked, now);
        }
    }

    /// A wait was kept, or refused.
    fn waits(
        &mut self,
        client: u32,
        number: u64,
        (asked, now): (Time, Time),
        outcome: &Outcome,
        log: &mut WaitLog,
    ) {
        let holds_nothing = self.held.is_empty();
        let Some(wait) = self.wait.as_mut().filter(|it| it.number == number) else {
            return;
        };
        wait.is_asked = false;
        if wait.is_cancelled {
            // The primary may have got it after the end.
            wait.ends += 1;
            let wait = number;
            return self.requests.push(Operation::EndWait { wait });
        }
        if let Some(error) = outcome.error {
            if error == ErrorCode::Deadlock && holds_nothing {
                log.fault(format!(
                    "client {client} was told of a circle of waits, and has no lock"
                ));
            }
            wait.end(client, now, log);
            self.wait = None;
            return;
        }
        let has_turn = outcome.count > 0;
        if let Some(kept) = wait.kept.filter(|kept| kept.is_over(now)) {
            wait.had(client, kept, now, log);
            wait.kept = None;
        }
        wait.kept = Some(Kept::answered(wait.kept, asked, now, has_turn));
        if has_turn {
            self.has_turn(number);
        }
    }
}

impl Wait {
    /// It goes on no longer.
    fn end(&self, client: u32, now: Time, log: &mut WaitLog) {
        if let Some(kept) = self.kept {
            self.had(client, kept, now, log);
        }
    }

    fn had(&self, client: u32, kept: Kept, now: Time, log: &mut WaitLog) {
        log.had(client, (self.file.inode, &parts(&self.lock)), kept, now);
    }
}
