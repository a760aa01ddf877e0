//! The search for an order of operations that explains a history, after Wing, Gong and Lowe.

use std::collections::{BTreeMap, HashSet};

use super::history::{Action, Invocation, Item, Moment, NEVER, Response};
use super::state::State;
use super::time::Time;

/// Result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Some order explains all results.
    Explained,
    /// No order explains all results.
    Unexplained,
    /// The bound on configurations was reached.
    GaveUp,
}

/// A part of an order: the events so far, and the resulting state.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Configuration {
    /// Bits of the items that have happened.
    done: Vec<u64>,
    /// All items before this one have happened.
    first: usize,
    state: State,
}

impl Configuration {
    fn is_done(&self, index: usize) -> bool {
        self.done[index / 64] >> (index % 64) & 1 != 0
    }

    fn set_done(&mut self, index: usize, items: usize) {
        self.done[index / 64] |= 1 << (index % 64);
        while self.first < items && self.is_done(self.first) {
            self.first += 1;
        }
    }

    /// Items of which any may happen next: those invoked before the first of the completions that are left.
    fn candidates(&self, items: &[Item]) -> Vec<usize> {
        let mut candidates = Vec::new();
        let mut completed = NEVER;
        for (index, item) in items.iter().enumerate().skip(self.first) {
            if item.invoked > completed {
                break;
            }
            if !self.is_done(index) {
                completed = completed.min(item.completed);
                candidates.push(index);
            }
        }
        candidates
    }
}

struct Search<'a> {
    items: &'a [Item],
    unmade: &'a [u64],
    /// For each item that may not happen: the previous one with the same effect.
    twins: Vec<Option<usize>>,
    values: BTreeMap<u64, Users>,
    /// Items that may give any inode to the key.
    places: Vec<usize>,
}

/// Which items give a value or an inode to a key, and which must see it there.
#[derive(Default)]
struct Users {
    sources: Vec<usize>,
    observers: Vec<usize>,
}

/// Searches for an order of the items, which are sorted by invocation, from any of some states. Also returns the number
/// of configurations examined.
pub(super) fn explain(items: &[Item], starts: &[State], bound: usize) -> (Verdict, usize) {
    explain_part(items, &unmade(items), starts, bound)
}

/// The same for a part of a history, in which inodes may be found that were made in another part.
pub(super) fn explain_part(
    items: &[Item],
    unmade: &[u64],
    starts: &[State],
    bound: usize,
) -> (Verdict, usize) {
    let items = &relevant(items)[..];
    let search = Search::new(items, unmade);
    let start = |state: &State| Configuration {
        done: vec![0; items.len().div_ceil(64)],
        first: 0,
        state: state.clone(),
    };
    let mut seen = HashSet::new();
    let mut left: Vec<_> = starts.iter().rev().map(start).collect();
    while let Some(mut configuration) = left.pop() {
        let candidates = search.observe(&mut configuration);
        let completes = |index: &usize| items[*index].completed < NEVER;
        if !candidates.iter().any(completes) {
            return (Verdict::Explained, seen.len());
        }
        if !seen.insert(configuration.clone()) {
            continue;
        }
        if seen.len() > bound {
            return (Verdict::GaveUp, seen.len());
        }
        search.branch(&configuration, candidates, &mut left);
    }
    (Verdict::Unexplained, seen.len())
}

impl<'a> Search<'a> {
    fn new(items: &'a [Item], unmade: &'a [u64]) -> Search<'a> {
        let mut values = BTreeMap::<u64, Users>::new();
        for (index, item) in items.iter().enumerate() {
            let Action::Do {
                operation, outcome, ..
            } = &item.action
            else {
                continue;
            };
            match (operation, outcome) {
                (Invocation::Write(value) | Invocation::Append(value), _)
                | (_, Some(Response::Made(value))) => {
                    values.entry(*value).or_default().sources.push(index);
                }
                (_, Some(Response::Value(value) | Response::Found(value))) => {
                    values.entry(*value).or_default().observers.push(index);
                }
                _ => {}
            }
        }
        let twin = |index: usize| {
            let kind = items[index].interchangeable()?;
            (0..index).rfind(|other| items[*other].interchangeable() == Some(kind))
        };
        let is_place = |index: &usize| {
            matches!(
                &items[*index].action,
                Action::Do {
                    operation: Invocation::Place,
                    ..
                }
            )
        };
        Search {
            items,
            unmade,
            twins: (0..items.len()).map(twin).collect(),
            values,
            places: (0..items.len()).filter(is_place).collect(),
        }
    }

    /// Whether a step makes a value unreachable that must still be seen.
    fn is_dead_end(&self, before: &State, next: &Configuration) -> bool {
        let kept = next.state.values();
        let is_left = |indexes: &[usize]| indexes.iter().any(|index| !next.is_done(*index));
        let is_missed = |value: &u64| {
            let users = self.values.get(value);
            let is_lost = |users: &Users| is_left(&users.observers) && !is_left(&users.sources);
            users.is_some_and(is_lost) && !is_left(&self.places)
        };
        let before = before.values();
        let mut lost = before.iter().filter(|value| !kept.contains(value));
        lost.any(is_missed)
    }

    /// Applies all possible observations, and returns the events that are possible then. As observations change
    /// nothing, an order in which they come later is as good with them here. (One that reveals an unknown value changes
    /// that.)
    fn observe(&self, configuration: &mut Configuration) -> Vec<usize> {
        loop {
            let candidates = configuration.candidates(self.items);
            let fits = |index: &usize| {
                let item = &self.items[*index];
                item.is_observation()
                    && self.after(configuration, item) == std::slice::from_ref(&configuration.state)
            };
            let fitting: Vec<_> = candidates.iter().copied().filter(fits).collect();
            if fitting.is_empty() {
                return candidates;
            }
            for index in fitting {
                configuration.set_done(index, self.items.len());
            }
        }
    }

    /// Adds what each candidate leads to. What completes first is tried first, that is added last.
    fn branch(
        &self,
        configuration: &Configuration,
        mut candidates: Vec<usize>,
        left: &mut Vec<Configuration>,
    ) {
        candidates
            .retain(|index| self.twins[*index].is_none_or(|twin| configuration.is_done(twin)));
        candidates.sort_by_key(|index| std::cmp::Reverse(self.items[*index].completed));
        for index in candidates {
            for state in self
                .after(configuration, &self.items[index])
                .into_iter()
                .rev()
            {
                let mut next = configuration.clone();
                next.state = state;
                next.set_done(index, self.items.len());
                if !self.is_dead_end(&configuration.state, &next) {
                    left.push(next);
                }
            }
        }
    }

    fn after(&self, configuration: &Configuration, item: &Item) -> Vec<State> {
        configuration.state.after(item, self.unmade)
    }
}

/// The items without those that explain nothing and need no explanation.
fn relevant(items: &[Item]) -> Vec<Item> {
    let is_read = |value: u64| {
        items.iter().any(|item| {
            matches!(&item.action, Action::Do { outcome: Some(Response::Value(read)), .. } if *read == value)
        })
    };
    let vanishes_at = |at: &Time| {
        let vanishes = |item: &Item| matches!(&item.action, Action::Do { vanishes, .. } if vanishes.contains(at));
        items.iter().any(vanishes)
    };
    let needed = |item: &&Item| match &item.action {
        Action::Takeover(at) => vanishes_at(at),
        _ if item.completed < NEVER => true,
        // Events after a write that no client read are as good without it.
        Action::Do {
            operation: Invocation::Write(value),
            ..
        } => is_read(*value),
        Action::Do {
            operation:
                Invocation::Read | Invocation::Lookup | Invocation::Test | Invocation::ReadAt(_),
            ..
        } => false,
        Action::Do { .. } => !item.is_observation(),
        Action::Expire(_) => true,
    };
    items.iter().filter(needed).cloned().collect()
}

/// Inodes that were found, and not made by a creation that was answered.
pub(super) fn unmade(items: &[Item]) -> Vec<u64> {
    let outcomes = || {
        items.iter().filter_map(|item| match &item.action {
            Action::Do { outcome, .. } => *outcome,
            _ => None,
        })
    };
    let mut unmade: Vec<_> = outcomes()
        .filter_map(|outcome| match outcome {
            Response::Found(inode) => Some(inode),
            _ => None,
        })
        .filter(|inode| !outcomes().any(|outcome| outcome == Response::Made(*inode)))
        .collect();
    unmade.sort_unstable();
    unmade.dedup();
    unmade
}

/// A part of a history that has no explanation by itself.
pub(super) struct Window {
    pub(super) items: Vec<Item>,
    /// Whether it is so only as nothing happened before it.
    pub(super) from_start: bool,
}

/// Configurations examined for each attempt to omit something.
const SHRINKING_MAX: usize = 20_000;

/// The smallest part that can be found of a history that has no explanation from this state.
pub(super) fn shrink(items: &[Item], start: State) -> Window {
    let unmade = unmade(items);
    let fails = |items: &[Item], starts: &[State]| {
        explain_part(items, &unmade, starts, SHRINKING_MAX).0 == Verdict::Unexplained
    };
    // The shortest beginning that fails; so does every longer one.
    let mut ends: Vec<_> = items.iter().map(|item| item.completed).collect();
    ends.sort_unstable();
    let starts = [start.clone()];
    let fit = |end: &Moment| !fails(&until(items, *end), &starts);
    let end = ends[ends.partition_point(fit).min(ends.len() - 1)];
    let mut items = until(items, end);
    // The latest start from which it fails, whatever was there before.
    let begins: Vec<_> = items.iter().map(|item| item.invoked).collect();
    let from = |begin: Moment| (since(&items, begin), starts_of(&items, begin, &start));
    let fails_from = |begin: &Moment| {
        let (items, starts) = from(*begin);
        fails(&items, &starts)
    };
    let count = match start.forgets() {
        true => begins.partition_point(fails_from),
        false => 0,
    };
    let (kept, starts) = match count.checked_sub(1) {
        Some(last) => from(begins[last]),
        None => (items.clone(), vec![start]),
    };
    let from_start = kept.len() == items.len();
    items = kept;
    // Unneeded parts: observations are omitted, anything else may as well not have happened.
    let mut index = 0;
    while index < items.len() {
        let mut fewer = items.clone();
        if fewer[index].is_observation() {
            fewer.remove(index);
        } else {
            fewer[index].completed = NEVER;
        }
        let is_shorter = relevant(&fewer).len() < relevant(&items).len();
        if is_shorter && fails(&fewer, &starts) {
            items = relevant(&fewer);
        } else {
            index += 1;
        }
    }
    Window {
        items: relevant(&items),
        from_start,
    }
}

/// The history up to a moment. Operations in flight may have happened, with their later outcome.
pub(super) fn until(items: &[Item], end: Moment) -> Vec<Item> {
    let begun = items.iter().filter(|item| item.invoked <= end).cloned();
    begun
        .map(|mut item| {
            if item.completed > end {
                item.completed = NEVER;
            }
            item
        })
        .collect()
}

/// Whether something that completed before a moment matters only as a state that it may have left.
fn is_past(item: &Item, begin: Moment) -> bool {
    let may_vanish = match &item.action {
        Action::Do { vanishes, .. } => vanishes.iter().any(|at| (*at, u64::MAX) >= begin),
        _ => false,
    };
    item.completed < begin && !may_vanish
}

/// The history from a moment on. Operations in flight may have happened before.
pub(super) fn since(items: &[Item], begin: Moment) -> Vec<Item> {
    let left = items.iter().filter(|item| !is_past(item, begin)).cloned();
    left.map(|mut item| {
        if item.invoked < begin {
            item.completed = NEVER;
        }
        item
    })
    .collect()
}

pub(super) fn starts_of(items: &[Item], begin: Moment, start: &State) -> Vec<State> {
    let past = items.iter().filter(|item| is_past(item, begin));
    start.clone().any_after(past)
}
