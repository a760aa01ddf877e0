//! Possible values of a key, and their changes: the models that histories are compared with.

use super::history::{Action, Invocation, Item, Key, Response};
use super::time::Time;

/// Value of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    Block(Block),
    Entry {
        inode: Option<u64>,
        /// Inodes that creations got that were never answered: each is of one creation only.
        guessed: Vec<u64>,
    },
    Lock {
        holder: Option<u32>,
        /// Sessions that expired: client, and since when.
        expired: Vec<(u32, Time)>,
    },
    List(Vec<u64>),
}

/// Value of a hole in a list.
const HOLE: u64 = 0;

/// The inode of a creation that was never answered, if no client ever found it.
const UNSEEN: u64 = u64::MAX;
/// An inode that had another name before, as long as no client has found it here.
const PLACED: u64 = u64::MAX - 1;

/// The writes of a block that matter: the last is what reads see, those below appear if it vanishes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Block {
    /// The lowest never vanishes. There always is one.
    applied: Vec<Applied>,
    last_takeover: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Applied {
    value: u64,
    /// It had the permission to vanish, and need not be there any more. It is decided when those above it have
    /// vanished: which of many writes are still there makes no difference before.
    is_loose: bool,
    /// Later takeovers at which it may vanish.
    vanishes: Vec<Time>,
}

impl Block {
    fn new(value: u64) -> Block {
        let first = Applied {
            value,
            is_loose: false,
            vanishes: Vec::new(),
        };
        Block {
            applied: vec![first],
            last_takeover: None,
        }
    }

    fn value(&self) -> Option<u64> {
        self.applied.last().map(|applied| applied.value)
    }

    fn write(&self, value: u64, vanishes: &[Time]) -> Block {
        let mut block = self.clone();
        let is_later = |at: &&Time| Some(**at) > self.last_takeover;
        let mut vanishes: Vec<_> = vanishes.iter().filter(is_later).copied().collect();
        vanishes.sort_unstable();
        vanishes.dedup();
        block.applied.push(Applied {
            value,
            is_loose: false,
            vanishes,
        });
        block.forget();
        block
    }

    /// All that may be left after a takeover: the last write, or one below it if all above may vanish.
    fn take_over(&self, now: Time) -> Vec<Block> {
        let mut block = self.clone();
        block.last_takeover = Some(now);
        for applied in &mut block.applied {
            applied.is_loose |= applied.vanishes.contains(&now);
            applied.vanishes.retain(|at| *at > now);
        }
        let mut left = Vec::new();
        while let Some(last) = block.applied.last_mut() {
            let was_loose = std::mem::take(&mut last.is_loose);
            let mut shown = block.clone();
            shown.forget();
            left.push(shown);
            if !was_loose {
                break;
            }
            block.applied.pop();
        }
        left
    }

    /// Discards the values below a write that never vanishes.
    fn forget(&mut self) {
        let stays = |applied: &Applied| !applied.is_loose && applied.vanishes.is_empty();
        if let Some(lowest) = self.applied.iter().rposition(stays) {
            self.applied.drain(..lowest);
        }
    }
}

impl State {
    /// Initial value of a key.
    pub(super) fn first(key: Key) -> State {
        match key {
            Key::Block { .. } => State::Block(Block::new(0)),
            Key::Entry { .. } => State::entry(None),
            Key::Lock { .. } => State::lock(None),
            Key::List { .. } => State::List(Vec::new()),
        }
    }

    /// The values or inodes that are here, or may appear again.
    pub(super) fn values(&self) -> Vec<u64> {
        match self {
            State::Block(block) => block.applied.iter().map(|applied| applied.value).collect(),
            State::Entry { inode, .. } => inode.iter().copied().collect(),
            State::Lock { .. } => Vec::new(),
            State::List(list) => {
                let values = list.iter().copied();
                values.filter(|value| *value != HOLE).collect()
            }
        }
    }

    /// Whether the states that a part of a history may begin with are known without all before it.
    pub(super) fn forgets(&self) -> bool {
        !matches!(self, State::List(_))
    }

    /// This state, and all others that items like these may leave.
    pub(super) fn any_after<'a>(self, items: impl Iterator<Item = &'a Item>) -> Vec<State> {
        let mut states = vec![self];
        for item in items {
            let Action::Do {
                client,
                operation,
                outcome,
                ..
            } = &item.action
            else {
                continue;
            };
            let left = match (operation, outcome) {
                (Invocation::Write(value), _) => State::Block(Block::new(*value)),
                (_, Some(Response::Made(inode))) => State::entry(Some(*inode)),
                (Invocation::Place, _) => State::entry(Some(PLACED)),
                (_, Some(Response::Granted)) => State::lock(Some(*client)),
                _ => continue,
            };
            if !states.contains(&left) {
                states.push(left);
            }
        }
        states
    }

    fn entry(inode: Option<u64>) -> State {
        State::Entry {
            inode,
            guessed: Vec::new(),
        }
    }

    fn lock(holder: Option<u32>) -> State {
        State::Lock {
            holder,
            expired: Vec::new(),
        }
    }

    /// The states to which an item may lead from this one; none if it cannot happen now, or does nothing that
    /// it had to do.
    pub(super) fn after(&self, item: &Item, unmade: &[u64]) -> Vec<State> {
        match self {
            State::Block(block) => {
                let left = block_after(block, &item.action);
                left.into_iter().map(State::Block).collect()
            }
            State::Entry { inode, guessed } => entry_after(*inode, guessed, &item.action, unmade),
            State::Lock { holder, expired } => lock_after(*holder, expired, item),
            State::List(list) => {
                let left = list_after(list, &item.action);
                left.map(State::List).into_iter().collect()
            }
        }
    }
}

fn list_after(list: &[u64], action: &Action) -> Option<Vec<u64>> {
    use Invocation::{Append, Clear, Collapse, Insert, ReadAt};
    let Action::Do {
        operation, outcome, ..
    } = action
    else {
        return None;
    };
    let length = list.len() as u64;
    let mut list = list.to_vec();
    match (*operation, *outcome) {
        (Append(_), Some(Response::At(index))) if index != length => return None,
        (Append(value), _) => list.push(value),
        (Insert(at), Some(Response::Written) | None) if at < length => {
            list.insert(at as usize, HOLE);
        }
        (Insert(at), Some(Response::Refused)) if at >= length => {}
        (Collapse(at), Some(Response::Written) | None) if at + 1 < length => {
            list.remove(at as usize);
        }
        (Collapse(at), Some(Response::Refused)) if at + 1 >= length => {}
        (Clear, _) => list.clear(),
        (ReadAt(at), Some(Response::Value(value))) if list.get(at as usize) == Some(&value) => {}
        (ReadAt(at), Some(Response::Missing)) if at >= length => {}
        _ => return None,
    }
    Some(list)
}

fn block_after(block: &Block, action: &Action) -> Vec<Block> {
    match action {
        Action::Takeover(at) => block.take_over(*at),
        Action::Do {
            operation: Invocation::Write(value),
            vanishes,
            ..
        } => vec![block.write(*value, vanishes)],
        Action::Do {
            outcome: Some(Response::Value(value)),
            ..
        } if block.value() == Some(*value) => vec![block.clone()],
        _ => Vec::new(),
    }
}

/// `unmade`: inodes that were found, and not made by a creation that was answered.
fn entry_after(inode: Option<u64>, guessed: &[u64], action: &Action, unmade: &[u64]) -> Vec<State> {
    use Invocation::{Create, Lookup, Place, Remove};
    let Action::Do {
        operation, outcome, ..
    } = action
    else {
        return Vec::new();
    };
    let becomes = |inode| State::Entry {
        inode,
        guessed: guessed.to_vec(),
    };
    match (operation, outcome, inode) {
        (Create, Some(Response::Made(made)), None) => vec![becomes(Some(*made))],
        (Create, None, None) => {
            let guess = |made: &u64| {
                let mut guessed = guessed.to_vec();
                guessed.push(*made);
                guessed.sort_unstable();
                let inode = Some(*made);
                State::Entry { inode, guessed }
            };
            let free = unmade.iter().filter(|made| !guessed.contains(made));
            free.map(guess).chain([becomes(Some(UNSEEN))]).collect()
        }
        (Create, Some(Response::Exists), Some(_)) => vec![becomes(inode)],
        (Remove, Some(Response::Removed) | None, Some(_)) => vec![becomes(None)],
        (Remove | Lookup, Some(Response::Missing), None) => vec![becomes(None)],
        (Lookup, Some(Response::Found(found)), Some(inode))
            if [*found, PLACED].contains(&inode) =>
        {
            vec![becomes(Some(*found))]
        }
        (Place, _, _) => vec![becomes(Some(PLACED))],
        _ => Vec::new(),
    }
}

fn lock_after(holder: Option<u32>, expired: &[(u32, Time)], item: &Item) -> Vec<State> {
    use Invocation::{Acquire, Release};
    let becomes = |holder| {
        vec![State::Lock {
            holder,
            expired: expired.to_vec(),
        }]
    };
    let (client, operation, outcome) = match &item.action {
        Action::Do {
            client,
            operation,
            outcome,
            ..
        } => (*client, operation, outcome),
        Action::Expire(client) => {
            let mut expired = expired.to_vec();
            expired.push((*client, item.invoked.0));
            expired.sort_unstable();
            let holder = holder.filter(|holder| holder != client);
            return vec![State::Lock { holder, expired }];
        }
        Action::Takeover(_) => return Vec::new(),
    };
    let is_mine = holder == Some(client);
    let is_alive = || {
        let ended = |(other, since): &(u32, Time)| *other == client && item.invoked.0 < *since;
        !expired.iter().any(ended)
    };
    match (operation, outcome) {
        (Acquire, Some(Response::Granted) | None)
            if (holder.is_none() || is_mine) && is_alive() =>
        {
            becomes(Some(client))
        }
        (Acquire, Some(Response::Refused)) if holder.is_some() && !is_mine => becomes(holder),
        (Release, Some(Response::Released) | None) if is_mine => becomes(None),
        (Invocation::Test, Some(Response::Refused)) if holder.is_some() && !is_mine => {
            becomes(holder)
        }
        (Invocation::Test, Some(Response::NotHeld)) if holder.is_none() || is_mine => {
            becomes(holder)
        }
        (Release, Some(Response::Gone)) => becomes(holder.filter(|_| !is_mine)),
        (Release, Some(Response::NotHeld)) if !is_mine => becomes(holder),
        _ => Vec::new(),
    }
}
