//! Operations and observations of clients, and whether one order explains them (linearizability).
//!
//! Every key is examined separately: one block of a file, one name in a directory, one lock. An operation takes effect
//! at one instant between its invocation and its completion; one that never completed does so at any later instant, or
//! never. The caller adds further possibilities: writes that may vanish, sessions that expire.

use std::collections::BTreeMap;
use std::fmt;

use super::linear::{Verdict, explain, shrink};
use super::state::State;
use super::time::{Time, milliseconds};

/// Object of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A block of a file; it holds a value, 0 at first.
    Block {
        /// Number of the file.
        file: u64,
        /// The number of the block.
        block: u64,
    },
    /// A name in a directory; it is missing at first.
    Entry {
        /// Number of the directory.
        directory: u64,
        /// Number that stands for the name.
        name: u64,
    },
    /// A lock; it is free at first.
    Lock {
        /// The file that it is on.
        file: u64,
        /// The part of the file.
        part: u64,
    },
    /// The blocks of a file that grows and shrinks; it is empty at first.
    List {
        /// Number of the file.
        file: u64,
    },
}

/// A request of a client, as the history records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invocation {
    /// Replaces the value of a block. Values should differ, as equal ones are indistinguishable.
    Write(u64),
    /// Reads a block.
    Read,
    /// Makes an entry.
    Create,
    /// Removes an entry.
    Remove,
    /// Looks an entry up.
    Lookup,
    /// Puts an inode there that had another name, in place of the former entry. Its number is unknown.
    Place,
    /// Tries to take a lock; its holder is granted it again.
    Acquire,
    /// Gives a lock back.
    Release,
    /// Asks whether another client has a lock.
    Test,
    /// Adds a value at the end of a list.
    Append(u64),
    /// Inserts a hole before this value of a list.
    Insert(u64),
    /// Removes this value of a list, unless it is the last.
    Collapse(u64),
    /// Empties a list.
    Clear,
    /// Reads this value of a list.
    ReadAt(u64),
}

/// The answer to an [`Invocation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// The value was written.
    Written,
    /// The block holds this value.
    Value(u64),
    /// The entry was made, with this inode (and generation: no two files have the same number).
    Made(u64),
    /// The entry was there already.
    Exists,
    /// The entry was removed.
    Removed,
    /// There is no such entry.
    Missing,
    /// The entry is there, with this inode.
    Found(u64),
    /// The entry is another inode's now.
    Placed,
    /// The lock is the client's.
    Granted,
    /// Another session holds the lock.
    Refused,
    /// The lock was released.
    Released,
    /// The lock was not the client's.
    NotHeld,
    /// The lock is not the client's any more, if it was.
    Gone,
    /// The value has this place in the list.
    At(u64),
}

impl Invocation {
    fn is_on(self, key: Key) -> bool {
        use Invocation::*;
        match key {
            Key::Block { .. } => matches!(self, Write(_) | Read),
            Key::Entry { .. } => matches!(self, Create | Remove | Lookup | Place),
            Key::Lock { .. } => matches!(self, Acquire | Release | Test),
            Key::List { .. } => {
                matches!(
                    self,
                    Append(_) | Insert(_) | Collapse(_) | Clear | ReadAt(_)
                )
            }
        }
    }

    fn may_answer(self, outcome: Response) -> bool {
        use Response::*;
        match self {
            Invocation::Write(_) => outcome == Written,
            Invocation::Read => matches!(outcome, Value(_)),
            Invocation::Create => matches!(outcome, Made(_) | Exists),
            Invocation::Remove => matches!(outcome, Removed | Missing),
            Invocation::Lookup => matches!(outcome, Found(_) | Missing),
            Invocation::Place => outcome == Placed,
            Invocation::Acquire => matches!(outcome, Granted | Refused),
            Invocation::Release => matches!(outcome, Released | NotHeld | Gone),
            Invocation::Test => matches!(outcome, Refused | NotHeld),
            Invocation::Append(_) => matches!(outcome, At(_)),
            Invocation::Insert(_) | Invocation::Collapse(_) => matches!(outcome, Written | Refused),
            Invocation::Clear => outcome == Written,
            Invocation::ReadAt(_) => matches!(outcome, Value(_) | Missing),
        }
    }
}

/// A moment of the history: of two at the same time, the one recorded first came first.
pub(super) type Moment = (Time, u64);

/// When an operation completes that does not.
pub(super) const NEVER: Moment = (Time::MAX, u64::MAX);

/// An event on a key, at one instant of an interval.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) invoked: Moment,
    /// It has happened by then; [`NEVER`]: it may not happen at all.
    pub(super) completed: Moment,
    pub(super) action: Action,
    /// Text that describes the operation in messages.
    line: String,
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    /// An operation, with its outcome if it is known.
    Do {
        client: u32,
        operation: Invocation,
        outcome: Option<Response>,
        /// The takeovers at which a write may vanish.
        vanishes: Vec<Time>,
    },
    /// Another member takes over: writes may vanish.
    Takeover(Time),
    /// The session of a client expires.
    Expire(u32),
}

impl Item {
    /// Its effect, if it may not happen, and if all with the same effect are equivalent: the oldest of them explains
    /// everything that a younger one explains. (Of two writes one may vanish, of two locks one is of an expired
    /// session.)
    pub(super) fn interchangeable(&self) -> Option<(Invocation, Option<Response>)> {
        match self.action {
            Action::Do {
                operation: operation @ (Invocation::Create | Invocation::Remove | Invocation::Place),
                outcome,
                ..
            } if self.completed == NEVER => Some((operation, outcome)),
            _ => None,
        }
    }

    /// Whether it never changes the value, only observes it.
    pub(super) fn is_observation(&self) -> bool {
        use Response::*;
        let Action::Do { outcome, .. } = &self.action else {
            return false;
        };
        matches!(
            outcome,
            Some(Value(_) | Exists | Missing | Found(_) | Refused | NotHeld)
        )
    }
}

/// An operation of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(usize);

struct Record {
    client: u32,
    key: Key,
    operation: Invocation,
    invoked: Moment,
    completed: Option<(Moment, Response)>,
    withdrawn: bool,
    vanishes: Vec<Time>,
}

/// Operations and observations of clients.
#[derive(Default)]
pub struct History {
    records: Vec<Record>,
    expirations: Vec<(u32, Time, Time)>,
    moments: u64,
}

/// Result of a check without errors.
#[must_use = "keys that were given up are not proved right"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Number of keys with an order that explains their operations.
    pub keys: usize,
    /// Operations on all keys.
    pub operations: usize,
    /// Configurations that were examined.
    pub configurations: usize,
    /// Keys that took too long: they are neither right nor wrong.
    pub gave_up: Vec<Key>,
}

/// Configurations of a key that are examined before it is abandoned.
const CONFIGURATIONS_MAX: usize = 1_000_000;

impl History {
    /// A history in which nothing has happened.
    pub fn new() -> History {
        History::default()
    }

    /// A client asks for an operation.
    pub fn invoke(&mut self, client: u32, key: Key, operation: Invocation, now: Time) -> Id {
        assert!(operation.is_on(key), "{operation:?} is not for {key:?}");
        let invoked = self.moment(now);
        self.records.push(Record {
            client,
            key,
            operation,
            invoked,
            completed: None,
            withdrawn: false,
            vanishes: Vec::new(),
        });
        Id(self.records.len() - 1)
    }

    /// The operation is answered. One with an unknown result (a time-out, EIO) is never completed.
    pub fn complete(&mut self, id: Id, outcome: Response, now: Time) {
        let moment = self.moment(now);
        let record = &mut self.records[id.0];
        let operation = record.operation;
        assert!(
            operation.may_answer(outcome),
            "{operation:?}: not {outcome:?}"
        );
        assert!(record.completed.is_none() && !record.withdrawn && record.invoked <= moment);
        record.completed = Some((moment, outcome));
    }

    /// The operation certainly did not happen and never will: it was refused for reasons beside its key.
    pub fn withdraw(&mut self, id: Id) {
        self.records[id.0].withdrawn = true;
    }

    /// A write may be undone by the takeover at this instant; several are possible. Allowed only for unsynced writes
    /// of a client that died.
    pub fn may_vanish(&mut self, id: Id, at: Time) {
        let record = &mut self.records[id.0];
        assert!(matches!(record.operation, Invocation::Write(_)));
        record.vanishes.push(at);
    }

    /// The session of a client expires within an interval: its locks are free from then on. A request from before the
    /// interval gets it no lock later; a request from then on may be of a new session.
    pub fn expired(&mut self, client: u32, from: Time, to: Time) {
        assert!(from <= to);
        self.expirations.push((client, from, to));
    }

    /// Number of operations that were invoked.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Searches for an order that explains every key. An error shows a part of the history that has none.
    pub fn check(&self) -> Result<Checked, String> {
        self.check_within(CONFIGURATIONS_MAX)
    }

    /// The same, examining at most so many configurations of each key.
    pub fn check_within(&self, configurations_max: usize) -> Result<Checked, String> {
        let mut by_key = BTreeMap::<Key, Vec<&Record>>::new();
        for record in self.records.iter().filter(|record| !record.withdrawn) {
            by_key.entry(record.key).or_default().push(record);
        }
        let mut checked = Checked::default();
        for (key, records) in by_key {
            let items = self.items(key, &records);
            checked.operations += records.len();
            let start = [State::first(key)];
            let (verdict, configurations) = explain(&items, &start, configurations_max);
            checked.configurations += configurations;
            match verdict {
                Verdict::Explained => checked.keys += 1,
                Verdict::GaveUp => checked.gave_up.push(key),
                Verdict::Unexplained => return Err(message(key, &items)),
            }
        }
        Ok(checked)
    }

    fn moment(&mut self, now: Time) -> Moment {
        self.moments += 1;
        (now, self.moments)
    }

    /// All that happens to a key, by the time of invocation.
    fn items(&self, key: Key, records: &[&Record]) -> Vec<Item> {
        let mut items: Vec<_> = records.iter().map(|record| record.item()).collect();
        let vanishes = records.iter().flat_map(|record| &record.vanishes);
        let mut takeovers: Vec<_> = vanishes.copied().collect();
        takeovers.sort_unstable();
        takeovers.dedup();
        items.extend(takeovers.into_iter().map(|at| Item {
            // It may come before and after all else that happens at that time.
            invoked: (at, 0),
            completed: (at, u64::MAX),
            action: Action::Takeover(at),
            line: format!("{}: takeover", milliseconds(at)),
        }));
        for (client, from, to) in &self.expirations {
            let takes = |record: &&Record| {
                record.client == *client && record.operation == Invocation::Acquire
            };
            if matches!(key, Key::Lock { .. }) && records.iter().any(takes) {
                let interval = format!("{} to {}", milliseconds(*from), milliseconds(*to));
                items.push(Item {
                    invoked: (*from, 0),
                    completed: (*to, u64::MAX),
                    action: Action::Expire(*client),
                    line: format!("{interval}: the session of client {client} expires"),
                });
            }
        }
        items.sort_by_key(|item| item.invoked);
        items
    }
}

impl Record {
    fn item(&self) -> Item {
        Item {
            invoked: self.invoked,
            completed: self.completed.map_or(NEVER, |(moment, _)| moment),
            action: Action::Do {
                client: self.client,
                operation: self.operation,
                outcome: self.completed.map(|(_, outcome)| outcome),
                vanishes: self.vanishes.clone(),
            },
            line: self.to_string(),
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (client, operation) = (self.client, self.operation);
        write!(formatter, "{} to ", milliseconds(self.invoked.0))?;
        match &self.completed {
            Some((moment, outcome)) => {
                let completed = milliseconds(moment.0);
                write!(
                    formatter,
                    "{completed}: client {client}: {operation:?} -> {outcome:?}"
                )?;
            }
            None => write!(formatter, "?: client {client}: {operation:?}")?,
        }
        for at in &self.vanishes {
            write!(formatter, ", may vanish at {}", milliseconds(*at))?;
        }
        Ok(())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Block { file, block } => write!(formatter, "block {block} of file {file}"),
            Key::Entry { directory, name } => {
                write!(formatter, "name {name} in directory {directory}")
            }
            Key::List { file } => write!(formatter, "the blocks of file {file}"),
            Key::Lock { file, part } => write!(formatter, "the lock of part {part} of file {file}"),
        }
    }
}

fn message(key: Key, items: &[Item]) -> String {
    let window = shrink(items, State::first(key));
    let before = if window.from_start {
        ""
    } else {
        ", whatever was there before"
    };
    let lines: String = window
        .items
        .iter()
        .map(|item| format!("\n  {}", item.line))
        .collect();
    format!("{key}: no order explains these{before}:{lines}")
}

#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;
