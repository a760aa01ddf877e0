use std::collections::BTreeSet;

use super::super::linear::{explain_part, since, starts_of, unmade, until};
use super::Operation::*;
use super::Outcome::*;
use super::*;
use crate::random::Random;

const BLOCK: Key = Key::Block { file: 3, block: 1 };
const ENTRY: Key = Key::Entry {
    directory: 1,
    name: 2,
};
const LOCK: Key = Key::Lock { file: 3 };

/// An operation as a test writes it; `to` 0: it never completes.
#[derive(Clone, Debug)]
struct Step {
    client: u32,
    operation: Operation,
    outcome: Outcome,
    from: Time,
    to: Time,
    vanishes: Vec<Time>,
}

fn step(client: u32, operation: Operation, outcome: Outcome, from: Time, to: Time) -> Step {
    Step {
        client,
        operation,
        outcome,
        from,
        to,
        vanishes: Vec::new(),
    }
}

impl Step {
    fn vanishing(mut self, at: &[Time]) -> Step {
        self.vanishes = at.to_vec();
        self
    }
}

type Expiration = (u32, Time, Time);

fn history(key: Key, steps: &[Step], expirations: &[Expiration]) -> History {
    let mut events: Vec<_> = (0..steps.len())
        .flat_map(|index| [(steps[index].from, index), (steps[index].to, index)])
        .filter(|(time, _)| *time > 0)
        .collect();
    events.sort_unstable();
    let mut history = History::new();
    let mut ids = vec![None; steps.len()];
    for (time, index) in events {
        let step = &steps[index];
        match ids[index] {
            None => ids[index] = Some(history.invoke(step.client, key, step.operation, time)),
            Some(id) => history.complete(id, step.outcome, time),
        }
    }
    for (id, step) in ids.iter().zip(steps) {
        for at in &step.vanishes {
            history.may_vanish(id.expect("it was invoked"), *at);
        }
    }
    for (client, from, to) in expirations {
        history.expired(*client, *from, *to);
    }
    history
}

fn is_right(key: Key, steps: &[Step], expirations: &[Expiration]) -> bool {
    match history(key, steps, expirations).check() {
        Ok(checked) => {
            assert!(checked.gave_up.is_empty());
            true
        }
        Err(_) => false,
    }
}

fn all(key: Key, right: bool, table: &[(&str, Vec<Step>)]) {
    for (name, steps) in table {
        assert_eq!(is_right(key, steps, &[]), right, "{name}");
    }
}

#[test]
fn right_histories_of_blocks_are_accepted() {
    let write = |client, value, from, to| step(client, Write(value), Written, from, to);
    let read = |client, value, from, to| step(client, Read, Value(value), from, to);
    let table = [
        ("nothing", vec![]),
        ("0 at first", vec![read(1, 0, 1, 2), write(1, 5, 3, 4)]),
        ("its own", vec![write(1, 5, 1, 2), read(1, 5, 3, 4)]),
        ("overlap, new", vec![write(1, 5, 1, 9), read(2, 5, 2, 3)]),
        ("overlap, old", vec![write(1, 5, 1, 9), read(2, 0, 2, 3)]),
        (
            "two writers, either order",
            vec![write(1, 5, 1, 9), write(2, 6, 2, 8), read(1, 5, 10, 11)],
        ),
        (
            "never completed, and happened late",
            vec![write(1, 5, 1, 0), read(2, 0, 2, 3), read(2, 5, 4, 5)],
        ),
        (
            "never completed, nor happened",
            vec![write(1, 5, 1, 0), read(2, 0, 2, 3)],
        ),
        (
            "a read that never completed",
            vec![write(1, 5, 1, 2), step(2, Read, Value(7), 3, 0)],
        ),
    ];
    all(BLOCK, true, &table);
}

#[test]
fn wrong_histories_of_blocks_are_rejected() {
    let write = |client, value, from, to| step(client, Write(value), Written, from, to);
    let read = |client, value, from, to| step(client, Read, Value(value), from, to);
    let table = [
        ("stale", vec![write(1, 5, 1, 2), read(2, 0, 3, 4)]),
        (
            "lost update",
            vec![write(1, 5, 1, 2), write(2, 6, 3, 4), read(1, 5, 5, 6)],
        ),
        ("never written", vec![write(1, 5, 1, 2), read(2, 7, 3, 4)]),
        (
            "read before it was written",
            vec![read(2, 5, 1, 2), write(1, 5, 3, 4)],
        ),
        (
            "new, then old, while it is written",
            vec![write(1, 5, 1, 9), read(2, 5, 2, 3), read(3, 0, 4, 5)],
        ),
        (
            "two readers see two orders",
            vec![
                write(1, 5, 1, 9),
                write(2, 6, 2, 8),
                read(3, 5, 10, 11),
                read(3, 6, 12, 13),
            ],
        ),
        (
            "never completed, happened and came back",
            vec![
                write(1, 5, 1, 0),
                read(2, 5, 2, 3),
                write(2, 6, 4, 5),
                read(2, 5, 6, 7),
            ],
        ),
    ];
    all(BLOCK, false, &table);
}

#[test]
fn writes_vanish_with_permission_only() {
    let write = |client, value, from, to| step(client, Write(value), Written, from, to);
    let read = |client, value, from, to| step(client, Read, Value(value), from, to);
    let (first, second) = (write(1, 5, 1, 2), write(1, 6, 3, 4));
    let may = |step: &Step, at: &[Time]| step.clone().vanishing(at);
    let read_both = [read(2, 6, 5, 6), read(2, 5, 11, 12)];
    let with = |steps: &[Step]| [steps, &read_both].concat();
    let right = [
        ("it vanished", with(&[first.clone(), may(&second, &[10])])),
        (
            "both vanished",
            vec![may(&first, &[10]), may(&second, &[10]), read(2, 0, 11, 12)],
        ),
        (
            "it did not",
            vec![may(&first, &[10]), may(&second, &[10]), read(2, 6, 11, 12)],
        ),
        (
            "one at each takeover",
            vec![
                may(&first, &[10, 20]),
                may(&second, &[10, 20]),
                read(2, 5, 11, 12),
                read(2, 0, 21, 22),
            ],
        ),
        (
            "the lower one had vanished before",
            vec![
                may(&first, &[10]),
                may(&second, &[20]),
                read(2, 6, 11, 12),
                read(2, 0, 21, 22),
            ],
        ),
        (
            "while a read is under way",
            vec![first.clone(), may(&second, &[10]), read(2, 5, 9, 12)],
        ),
        (
            "one that never completed",
            with(&[first.clone(), may(&step(1, Write(6), Written, 3, 0), &[10])]),
        ),
    ];
    all(BLOCK, true, &right);
    let wrong = [
        ("without", with(&[first.clone(), second.clone()])),
        ("the other one", with(&[may(&first, &[10]), second.clone()])),
        (
            "a later takeover",
            with(&[first.clone(), may(&second, &[20])]),
        ),
        (
            "before the takeover",
            vec![first.clone(), may(&second, &[10]), read(2, 5, 5, 6)],
        ),
        (
            "more than permitted",
            vec![first.clone(), may(&second, &[10]), read(2, 0, 11, 12)],
        ),
        (
            "it came back",
            [
                with(&[first.clone(), may(&second, &[10, 20])]),
                vec![read(2, 6, 21, 22)],
            ]
            .concat(),
        ),
        (
            "the one that was seen after the takeover, without another",
            vec![
                may(&first, &[10]),
                may(&second, &[10]),
                read(2, 5, 11, 12),
                read(2, 0, 13, 14),
            ],
        ),
        (
            "a write above stays",
            vec![may(&second, &[10]), write(2, 7, 5, 6), read(2, 0, 11, 12)],
        ),
    ];
    all(BLOCK, false, &wrong);
}

#[test]
fn entries_are_made_and_removed_once() {
    let lookup = |outcome, from, to| step(2, Lookup, outcome, from, to);
    let made = |inode, from, to| step(1, Create, Made(inode), from, to);
    let pending = |client, from| step(client, Create, Exists, from, 0);
    let right = [
        ("missing at first", vec![lookup(Missing, 1, 2)]),
        (
            "made, found, removed",
            vec![
                made(7, 1, 2),
                lookup(Found(7), 3, 4),
                step(2, Remove, Removed, 5, 6),
                lookup(Missing, 7, 8),
                made(8, 9, 10),
            ],
        ),
        (
            "one of two",
            vec![made(7, 1, 9), step(2, Create, Exists, 2, 8)],
        ),
        (
            "made without an answer",
            vec![
                pending(1, 1),
                lookup(Missing, 2, 3),
                lookup(Found(7), 4, 5),
                step(2, Create, Exists, 6, 7),
            ],
        ),
        (
            "made without an answer and never seen",
            vec![pending(1, 1), step(2, Remove, Removed, 2, 3)],
        ),
        (
            "removed without an answer",
            vec![
                made(7, 1, 2),
                step(2, Remove, Removed, 3, 0),
                lookup(Found(7), 4, 5),
                lookup(Missing, 6, 7),
            ],
        ),
        (
            "two without an answer",
            vec![
                pending(1, 1),
                pending(3, 2),
                lookup(Found(7), 4, 5),
                step(2, Remove, Removed, 6, 7),
                lookup(Found(8), 8, 9),
            ],
        ),
    ];
    all(ENTRY, true, &right);
    let wrong = [
        (
            "made twice",
            vec![made(7, 1, 4), step(2, Create, Made(8), 2, 3)],
        ),
        ("another inode", vec![made(7, 1, 2), lookup(Found(8), 3, 4)]),
        ("lost", vec![made(7, 1, 2), lookup(Missing, 3, 4)]),
        ("out of nothing", vec![lookup(Found(7), 1, 2)]),
        (
            "exists, out of nothing",
            vec![step(1, Create, Exists, 1, 2)],
        ),
        (
            "removed twice",
            vec![
                made(7, 1, 2),
                step(1, Remove, Removed, 3, 6),
                step(2, Remove, Removed, 4, 5),
            ],
        ),
        (
            "removed and came back, though there is a creation without an answer",
            vec![
                pending(1, 1),
                pending(3, 2),
                lookup(Found(7), 4, 5),
                step(2, Remove, Removed, 6, 7),
                lookup(Found(7), 8, 9),
            ],
        ),
    ];
    all(ENTRY, false, &wrong);
}

#[test]
fn locks_are_granted_to_one() {
    let granted = |client, from, to| step(client, Acquire, Granted, from, to);
    let refused = |client, from, to| step(client, Acquire, Refused, from, to);
    let released = |client, from, to| step(client, Release, Released, from, to);
    let right = [
        (
            "in turn",
            vec![
                granted(1, 1, 2),
                refused(2, 3, 4),
                released(1, 5, 6),
                granted(2, 7, 8),
                step(1, Release, NotHeld, 9, 10),
            ],
        ),
        ("again", vec![granted(1, 1, 2), granted(1, 3, 4)]),
        (
            "granted without an answer",
            vec![step(1, Acquire, Granted, 1, 0), refused(2, 3, 4)],
        ),
        (
            "released without an answer",
            vec![
                granted(1, 1, 2),
                step(1, Release, Released, 3, 0),
                granted(2, 4, 5),
            ],
        ),
    ];
    all(LOCK, true, &right);
    let wrong = [
        ("twice", vec![granted(1, 1, 2), granted(2, 3, 4)]),
        ("twice at a time", vec![granted(1, 1, 4), granted(2, 2, 3)]),
        ("refused though free", vec![refused(1, 1, 2)]),
        (
            "released by another",
            vec![granted(1, 1, 2), released(2, 3, 4)],
        ),
        (
            "forgotten",
            vec![granted(1, 1, 2), step(1, Release, NotHeld, 3, 4)],
        ),
    ];
    all(LOCK, false, &wrong);
}

#[test]
fn a_session_that_expired_has_no_locks() {
    let granted = |client, from, to| step(client, Acquire, Granted, from, to);
    let refused = |client, from, to| step(client, Acquire, Refused, from, to);
    let expires = [(1, 10, 20)];
    let check = |steps: &[Step]| is_right(LOCK, steps, &expires);
    assert!(check(&[granted(1, 1, 2), granted(2, 15, 16)]));
    assert!(check(&[granted(1, 1, 2), refused(2, 15, 16)]));
    assert!(check(&[granted(1, 1, 2), granted(2, 21, 22)]));
    assert!(check(&[
        granted(1, 1, 2),
        refused(2, 12, 13),
        granted(2, 14, 15)
    ]));
    assert!(!check(&[granted(1, 1, 2), granted(2, 8, 9)]));
    assert!(!check(&[granted(1, 1, 2), refused(2, 21, 22)]));
    assert!(!check(&[
        granted(1, 1, 2),
        granted(2, 12, 13),
        step(1, Release, Released, 21, 22)
    ]));
    // The old session gets no lock any more, a new one does.
    let pending = step(1, Acquire, Granted, 5, 0);
    assert!(!check(&[pending, refused(2, 21, 22)]));
    assert!(check(&[granted(1, 25, 26), refused(2, 27, 28)]));
    let pending = |from| step(1, Acquire, Granted, from, 0);
    assert!(check(&[pending(5), pending(25), refused(2, 27, 28)]));
    // Another client's session says nothing.
    assert!(!is_right(
        LOCK,
        &[granted(2, 1, 2), granted(3, 21, 22)],
        &expires
    ));
}

#[test]
fn what_was_withdrawn_does_not_count() {
    let mut history = history(BLOCK, &[step(2, Read, Value(0), 5, 6)], &[]);
    let id = history.invoke(1, BLOCK, Write(4), 7);
    history.withdraw(id);
    let id = history.invoke(1, BLOCK, Read, 8);
    history.complete(id, Value(4), 9);
    assert!(history.check().is_err());
}

#[test]
fn of_two_moments_at_one_time_the_first_recorded_is_first() {
    let mut history = History::new();
    let write = history.invoke(1, BLOCK, Write(5), 10);
    history.complete(write, Written, 10);
    let read = history.invoke(1, BLOCK, Read, 10);
    history.complete(read, Value(0), 10);
    assert!(history.check().is_err());
}

#[test]
fn a_message_shows_what_is_wrong_and_little_else() {
    let mut steps = Vec::new();
    for index in 0..100 {
        let from = index * 10 + 1;
        let (write, read) = (index % 3, (index + 1) % 3);
        steps.push(step(write as u32, Write(index), Written, from, from + 4));
        steps.push(step(read as u32, Read, Value(index), from + 5, from + 9));
    }
    assert!(is_right(BLOCK, &steps, &[]));
    steps[101].outcome = Value(49);
    let error = history(BLOCK, &steps, &[])
        .check()
        .expect_err("it is stale");
    assert_eq!(
        error,
        "block 1 of file 3: no order explains these, whatever was there before:\n  \
         0.000501 ms to 0.000505 ms: client 2: Write(50) -> Written\n  \
         0.000506 ms to 0.000510 ms: client 0: Read -> Value(49)"
    );
    let steps = [
        step(1, Write(5), Written, 1, 2).vanishing(&[4]),
        step(2, Read, Value(0), 3, 6),
        step(2, Read, Value(5), 7, 8),
        step(2, Read, Value(6), 9, 0),
        step(2, Read, Value(0), 10, 12),
    ];
    let error = history(BLOCK, &steps, &[])
        .check()
        .expect_err("it came back");
    assert_eq!(
        error,
        "block 1 of file 3: no order explains these:\n  \
         0.000001 ms to 0.000002 ms: client 1: Write(5) -> Written, may vanish at 0.000004 ms\n  \
         0.000003 ms to 0.000006 ms: client 2: Read -> Value(0)\n  \
         0.000004 ms: takeover\n  \
         0.000007 ms to 0.000008 ms: client 2: Read -> Value(5)"
    );
    let steps = [
        step(1, Acquire, Granted, 1, 2),
        step(2, Acquire, Granted, 12, 13),
    ];
    let error = history(LOCK, &steps, &[(1, 14, 16)])
        .check()
        .expect_err("twice");
    assert_eq!(
        error,
        "the lock of file 3: no order explains these:\n  \
         0.000001 ms to 0.000002 ms: client 1: Acquire -> Granted\n  \
         0.000012 ms to 0.000013 ms: client 2: Acquire -> Granted"
    );
}

/// A history of many operations on one key: each has its effect at a random instant of its interval.
fn long_history(seed: u64, key: Key, count: usize, clients: u32) -> Vec<Step> {
    let mut random = Random::new(seed);
    let mut free_at = vec![1; clients as usize];
    let mut steps = Vec::new();
    for index in 0..count {
        let client = (0..clients as usize).min_by_key(|client| free_at[*client]);
        let client = client.expect("there are clients");
        let from = free_at[client] + random.between(1, 30);
        let to = from + random.between(1, 100);
        free_at[client] = to;
        let operation = random_operation(&mut random, key, index as u64 + 1);
        steps.push(step(client as u32, operation, Written, from, to));
    }
    // A client dies now and then: its operation stays without an answer, what it wrote before may vanish.
    for index in (20..count).step_by(40) {
        let (client, at) = (steps[index].client, steps[index].to + 50);
        steps[index].to = 0;
        for step in &mut steps[index - 20..=index] {
            if step.client == client && matches!(step.operation, Write(_)) {
                step.vanishes = vec![at];
            }
        }
    }
    carry_out(&mut random, &mut steps);
    steps
}

fn random_operation(random: &mut Random, key: Key, value: u64) -> Operation {
    match key {
        Key::Block { .. } => *random.pick(&[Write(value), Read, Read]),
        Key::Entry { .. } => *random.pick(&[Create, Remove, Lookup, Lookup]),
        Key::Lock { .. } => *random.pick(&[Acquire, Acquire, Release]),
    }
}

/// Gives steps the outcomes that they have when each takes effect at a random instant of its interval.
fn carry_out(random: &mut Random, steps: &mut [Step]) {
    let mut effects = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        if step.to > 0 {
            effects.push((random.between(step.from, step.to), 1, index));
        } else if random.one_in(2) {
            effects.push((random.between(step.from, step.from + 200), 1, index));
        }
        effects.extend(step.vanishes.iter().map(|at| (*at, 0, index)));
    }
    effects.sort_unstable();
    let mut state = Plain::default();
    for (_, kind, index) in effects {
        if kind == 1 {
            steps[index].outcome = state.carry_out(&steps[index], index);
        } else if random.one_in(2) {
            state.lose(index);
        }
    }
}

/// The models once more, as plain as can be.
#[derive(Clone, Default)]
struct Plain {
    writes: Vec<(usize, u64)>,
    inode: Option<u64>,
    guessed: Vec<u64>,
    holder: Option<u32>,
    /// Clients that expired, and since when.
    expired: Vec<(u32, Time)>,
}

impl Plain {
    fn lose(&mut self, index: usize) {
        self.writes.retain(|(write, _)| *write != index);
    }

    fn carry_out(&mut self, step: &Step, index: usize) -> Outcome {
        let client = Some(step.client);
        match step.operation {
            Write(value) => {
                self.writes.push((index, value));
                Written
            }
            Read => Value(self.writes.last().map_or(0, |(_, value)| *value)),
            Create if self.inode.is_some() => Exists,
            Create => {
                self.inode = Some(1000 + index as u64);
                Made(1000 + index as u64)
            }
            Remove => self.inode.take().map_or(Missing, |_| Removed),
            Lookup => self.inode.map_or(Missing, Found),
            Acquire if self.holder.is_none() || self.holder == client => {
                self.holder = client;
                Granted
            }
            Acquire => Refused,
            Release if self.holder == client => {
                self.holder = None;
                Released
            }
            Release => NotHeld,
        }
    }
}

/// Tries every order, every guess and every loss, one after the other.
struct BruteForce<'a> {
    steps: &'a [Step],
    takeovers: Vec<Time>,
    expirations: &'a [Expiration],
}

impl BruteForce<'_> {
    /// Interval of the steps, takeovers and expirations, by number.
    fn interval(&self, index: usize) -> (Time, Time) {
        let steps = self.steps.len();
        let after_takeovers = steps + self.takeovers.len();
        if index < steps {
            let step = &self.steps[index];
            let to = if step.to == 0 { Time::MAX } else { step.to };
            (step.from, to)
        } else if index < after_takeovers {
            let at = self.takeovers[index - steps];
            (at, at)
        } else {
            let (_, from, to) = self.expirations[index - after_takeovers];
            (from, to)
        }
    }

    fn explains(&self, done: u32, state: &Plain) -> bool {
        let count = self.steps.len() + self.takeovers.len() + self.expirations.len();
        let left: Vec<_> = (0..count).filter(|index| done >> index & 1 == 0).collect();
        if left
            .iter()
            .all(|index| self.interval(*index).1 == Time::MAX)
        {
            return true;
        }
        left.iter().any(|index| {
            let from = self.interval(*index).0;
            let is_next = left.iter().all(|other| self.interval(*other).1 >= from);
            let follows = |state: &Plain| self.explains(done | 1 << index, state);
            is_next && self.after(*index, state).iter().any(follows)
        })
    }

    fn after(&self, index: usize, state: &Plain) -> Vec<Plain> {
        let steps = self.steps.len();
        let mut next = state.clone();
        if let Some(step) = self.steps.get(index) {
            return self.after_step(index, step, next);
        }
        if let Some(at) = self.takeovers.get(index - steps) {
            let mut left = vec![next];
            for (write, _) in &state.writes {
                if self.steps[*write].vanishes.contains(at) {
                    let mut without = left.clone();
                    without.iter_mut().for_each(|state| state.lose(*write));
                    left.extend(without);
                }
            }
            return left;
        }
        let (client, from, _) = self.expirations[index - steps - self.takeovers.len()];
        next.holder = next.holder.filter(|holder| *holder != client);
        next.expired.push((client, from));
        vec![next]
    }

    fn after_step(&self, index: usize, step: &Step, mut next: Plain) -> Vec<Plain> {
        let is_dead = next
            .expired
            .iter()
            .any(|(client, since)| *client == step.client && step.from < *since);
        if step.to == 0 && step.operation == Create && next.inode.is_none() {
            let made = |inode| {
                self.steps
                    .iter()
                    .any(|step| step.to > 0 && step.outcome == Made(inode))
            };
            let found = self.steps.iter().filter_map(|step| match step.outcome {
                Found(inode) if step.to > 0 && !made(inode) => Some(inode),
                _ => None,
            });
            let found: BTreeSet<_> = found
                .filter(|inode| !next.guessed.contains(inode))
                .collect();
            let guess = |inode| {
                let mut next = next.clone();
                next.inode = Some(inode);
                next.guessed.push(inode);
                next
            };
            return found.into_iter().chain([5000]).map(guess).collect();
        }
        let outcome = match next.carry_out(step, index) {
            Granted if is_dead => return Vec::new(),
            Made(_) => match step.outcome {
                Made(inode) => {
                    next.inode = Some(inode);
                    Made(inode)
                }
                _ => return Vec::new(),
            },
            outcome => outcome,
        };
        if step.to == 0 || outcome == step.outcome {
            vec![next]
        } else {
            Vec::new()
        }
    }
}

/// A short history; half of them with something changed that may make it wrong.
fn short_history(seed: u64, key: Key) -> (Vec<Step>, Vec<Expiration>) {
    let mut random = Random::new(seed);
    let count = random.between(2, 6) as usize;
    // Every moment is another time, so that both checkers agree on what comes first.
    let mut times: Vec<Time> = (1..60).collect();
    let mut time = |random: &mut Random| times.remove(random.below(times.len()));
    let takeovers = [time(&mut random), time(&mut random)];
    let mut steps = Vec::new();
    for index in 0..count {
        let (first, second) = (time(&mut random), time(&mut random));
        let value = if random.one_in(8) {
            1
        } else {
            index as u64 + 1
        };
        let operation = random_operation(&mut random, key, value);
        let (from, to) = (first.min(second), first.max(second));
        let to = if random.one_in(5) { 0 } else { to };
        let client = random.below(3) as u32;
        let mut step = step(client, operation, Written, from, to);
        if matches!(operation, Write(_)) {
            let permitted = takeovers.iter().filter(|_| random.one_in(3));
            step.vanishes = permitted.copied().collect();
        }
        steps.push(step);
    }
    carry_out(&mut random, &mut steps);
    for _ in 0..random.below(3) {
        spoil(&mut random, &mut steps);
    }
    let mut expirations = Vec::new();
    if key == LOCK && random.one_in(2) {
        let (first, second) = (time(&mut random), time(&mut random));
        expirations.push((random.below(3) as u32, first.min(second), first.max(second)));
    }
    (steps, expirations)
}

fn spoil(random: &mut Random, steps: &mut [Step]) {
    let inodes: Vec<_> = (0..steps.len() as u64).map(|index| 1000 + index).collect();
    let index = random.below(steps.len());
    let step = &mut steps[index];
    step.vanishes.clear();
    let outcomes = match step.operation {
        Write(_) => vec![Written],
        Read => vec![Value(random.between(0, 6))],
        Create => vec![Made(2000 + index as u64), Exists],
        Remove => vec![Removed, Missing],
        Lookup => vec![Missing, Found(*random.pick(&inodes))],
        Acquire => vec![Granted, Refused],
        Release => vec![Released, NotHeld],
    };
    step.outcome = *random.pick(&outcomes);
}

#[test]
fn short_histories_are_judged_as_by_trying_everything() {
    for key in [BLOCK, ENTRY, LOCK] {
        let (mut right, mut wrong) = (0, 0);
        for seed in 0..3000 {
            let (steps, expirations) = short_history(seed, key);
            let takeovers = steps.iter().flat_map(|step| step.vanishes.clone());
            let brute = BruteForce {
                steps: &steps,
                takeovers: takeovers.collect::<BTreeSet<_>>().into_iter().collect(),
                expirations: &expirations,
            };
            let expected = brute.explains(0, &Plain::default());
            let verdict = is_right(key, &steps, &expirations);
            assert_eq!(verdict, expected, "seed {seed}: {steps:#?} {expirations:?}");
            right += usize::from(expected);
            wrong += usize::from(!expected);
        }
        assert!(
            right > 500 && wrong > 300,
            "{key}: {right} right, {wrong} wrong"
        );
    }
}

#[test]
fn long_histories_are_quick_to_check() {
    for key in [BLOCK, ENTRY, LOCK] {
        for seed in 0..20 {
            let mut steps = long_history(seed, key, 400, 4);
            let checked = history(key, &steps, &[]).check().expect("it is right");
            assert_eq!((checked.keys, checked.operations), (1, 400));
            assert!(checked.configurations < 5000, "{checked:?}");
            let first_made = steps.iter().find_map(|step| match step.outcome {
                Made(inode) if step.to > 0 => Some(inode),
                _ => None,
            });
            let spoilt = steps
                .iter_mut()
                .skip(250)
                .find(|step| step.to > 0 && matches!(step.operation, Read | Lookup | Acquire));
            // What was there long ago.
            spoilt.expect("there is one").outcome = match key {
                Key::Block { .. } => Value(7),
                Key::Entry { .. } => Found(first_made.unwrap_or_default()),
                Key::Lock { .. } => continue,
            };
            let error = history(key, &steps, &[]).check().expect_err("it is wrong");
            assert!(error.lines().count() < 20, "seed {seed}: {error}");
        }
    }
}

#[test]
fn every_part_of_a_right_history_is_right() {
    for key in [BLOCK, ENTRY, LOCK] {
        for seed in 0..60 {
            let steps = long_history(seed, key, 30, 3);
            let history = history(key, &steps, &[(1, 200, 300)]);
            let records: Vec<_> = history.records.iter().collect();
            let items = history.items(key, &records);
            let (unmade, start) = (unmade(&items), State::first(key));
            if explain(&items, &[start.clone()], 100_000).0 != Verdict::Explained {
                assert_eq!(key, LOCK, "only the session that expires may be wrong");
                continue;
            }
            for (begin, end) in items.iter().zip(items.iter().skip(9)) {
                let (begin, items) = (begin.invoked, until(&items, end.completed));
                let starts = starts_of(&items, begin, &start);
                let part = since(&items, begin);
                let (verdict, _) = explain_part(&part, &unmade, &starts, 100_000);
                assert_eq!(verdict, Verdict::Explained, "seed {seed} from {begin:?}");
            }
        }
    }
}

#[test]
fn giving_up_is_counted() {
    let steps = long_history(1, BLOCK, 400, 4);
    let checked = history(BLOCK, &steps, &[]).check_within(10);
    let checked = checked.expect("nothing wrong was found");
    assert_eq!((checked.keys, checked.gave_up), (0, vec![BLOCK]));
}

#[test]
fn every_key_is_checked_for_itself() {
    let mut history = History::new();
    let other = Key::Block { file: 3, block: 2 };
    for (key, outcome) in [(BLOCK, Value(0)), (other, Value(5))] {
        let write = history.invoke(1, other, Write(5), 10);
        history.complete(write, Written, 20);
        let read = history.invoke(1, key, Read, 30);
        history.complete(read, outcome, 40);
    }
    let checked = history.check().expect("it is right");
    assert_eq!((checked.keys, checked.operations), (2, 4));
    assert_eq!((history.len(), history.is_empty()), (4, false));
}
