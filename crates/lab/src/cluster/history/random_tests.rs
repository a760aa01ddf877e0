use std::collections::BTreeSet;

use pmem::Random;

use super::super::linear::{explain_part, since, starts_of, unmade, until};
use super::Invocation::*;
use super::Response::*;
use super::tests::{BLOCK, ENTRY, Expiration, LOCK, PLACE, Step, history, is_right, step};
use super::*;

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
    // A client dies now and then: its operation stays without an answer, its earlier writes may vanish.
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

fn random_operation(random: &mut Random, key: Key, value: u64) -> Invocation {
    match key {
        Key::Block { .. } => *random.pick(&[Write(value), Read, Read]),
        PLACE => *random.pick(&[Create, Remove, Lookup, Lookup, Place]),
        Key::Entry { .. } => *random.pick(&[Create, Remove, Lookup, Lookup]),
        Key::Lock { .. } => *random.pick(&[Acquire, Acquire, Release]),
        Key::List { .. } => Append(value),
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

/// The models again, in their simplest form.
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

    fn carry_out(&mut self, step: &Step, index: usize) -> Response {
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
            Place => {
                self.inode = Some(3000 + index as u64);
                Placed
            }
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
            // `tests` has these.
            Test | Append(_) | Insert(_) | Collapse(_) | Clear | ReadAt(_) => Refused,
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
        if step.operation == Place {
            let found = self.steps.iter().filter_map(|step| match step.outcome {
                Found(inode) if step.to > 0 => Some(inode),
                _ => None,
            });
            let place = |inode| Plain {
                inode: Some(inode),
                ..next.clone()
            };
            return found.chain([6000]).map(place).collect();
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
        Place => vec![Placed],
        Acquire => vec![Granted, Refused],
        Release => vec![Released, NotHeld],
        Test | Append(_) | Insert(_) | Collapse(_) | Clear | ReadAt(_) => return,
    };
    step.outcome = *random.pick(&outcomes);
}

#[test]
fn short_histories_are_judged_as_by_trying_everything() {
    for key in [BLOCK, ENTRY, PLACE, LOCK] {
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
    for key in [BLOCK, ENTRY, PLACE, LOCK] {
        for seed in 0..20 {
            let mut steps = long_history(seed, key, 400, 4);
            let checked = history(key, &steps, &[]).check().expect("it is right");
            assert_eq!((checked.keys, checked.operations), (1, 400));
            // An entry may be any inode until it is found.
            let most = if key == PLACE { 50_000 } else { 5000 };
            assert!(checked.configurations < most, "{checked:?}");
            let first_made = steps.iter().find_map(|step| match step.outcome {
                Made(inode) if step.to > 0 => Some(inode),
                _ => None,
            });
            let spoilt = steps
                .iter_mut()
                .skip(250)
                .find(|step| step.to > 0 && matches!(step.operation, Read | Lookup | Acquire));
            // Values from long ago.
            spoilt.expect("there is one").outcome = match key {
                Key::Block { .. } => Value(7),
                // Anything may have been renamed to it.
                PLACE => continue,
                Key::Entry { .. } => Found(first_made.unwrap_or_default()),
                Key::Lock { .. } | Key::List { .. } => continue,
            };
            let error = history(key, &steps, &[]).check().expect_err("it is wrong");
            assert!(error.lines().count() < 20, "seed {seed}: {error}");
        }
    }
}

#[test]
fn every_part_of_a_right_history_is_right() {
    for key in [BLOCK, ENTRY, PLACE, LOCK] {
        for seed in 0..60 {
            let steps = long_history(seed, key, 30, 3);
            let history = history(key, &steps, &[(1, 200, 300)]);
            let records: Vec<_> = history.records.iter().collect();
            let items = history.items(key, &records);
            let (unmade, start) = (unmade(&items), State::first(key));
            if explain(&items, std::slice::from_ref(&start), 100_000).0 != Verdict::Explained {
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
