//! The threads that talk to membership: one watches the cluster map, the other proposes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use protocol::{ClusterMap, NodeId, UnitMap};

use super::{Inbox, Input, Log, NodeConfig, NodeError, UNIT, registration, spawn};
use crate::membership::{Membership, MembershipError};

/// The watcher polls a map that does not change this often.
const WATCH_FOR: Duration = Duration::from_secs(30);
/// Pause after membership has failed.
pub const RETRY: Duration = Duration::from_millis(250);

/// Work of the proposer.
pub enum Task {
    /// Propose this map of the unit.
    Propose(UnitMap),
    /// Take the part that the node has by the current map: form the unit, or replace a lost pool.
    TakeRole,
    /// Give the place of the first node, which has been away for too long, to the second one.
    Replace(NodeId, NodeId),
    /// Read the current map.
    Refresh,
}

/// Starts both threads of membership.
pub fn start(
    config: &NodeConfig,
    membership: &Arc<dyn Membership>,
    inbox: &Inbox,
    id: NodeId,
    log: &Log,
) -> Result<Sender<Task>, NodeError> {
    let name = config.name.clone();
    let (watched, to, out) = (membership.clone(), inbox.clone(), log.clone());
    spawn("tako-watch", move || {
        watch(watched.as_ref(), &to, &out, &name)
    })?;
    let (tasks, received) = channel();
    let (membership, inbox, log) = (membership.clone(), inbox.clone(), log.clone());
    spawn("tako-propose", move || {
        propose_all(membership.as_ref(), &received, &inbox, id, &log);
    })?;
    Ok(tasks)
}

fn watch(membership: &dyn Membership, inbox: &Inbox, log: &Log, name: &str) {
    let mut known = 0;
    let mut has_failed = false;
    loop {
        match membership.wait(known, WATCH_FOR) {
            Ok(map) => {
                if std::mem::take(&mut has_failed) {
                    log(format_args!("{name}: membership is back"));
                }
                known = map.as_ref().map_or(known, |map| map.version);
                let is_running = match map {
                    Some(map) => inbox.send(Input::Map(map)),
                    None => inbox.is_open(),
                };
                if !is_running {
                    return;
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut has_failed, true) {
                    log(format_args!("{name}: {error}"));
                }
                inbox.pause(RETRY);
            }
        }
    }
}

fn propose_all(
    membership: &dyn Membership,
    tasks: &Receiver<Task>,
    inbox: &Inbox,
    id: NodeId,
    log: &Log,
) {
    for task in tasks {
        let mut has_failed = false;
        loop {
            let done = match &task {
                Task::Propose(map) => propose(membership, map).map(Input::Proposed),
                Task::TakeRole => take_role(membership, id).map(Input::Map),
                Task::Replace(old, new) => replace(membership, *old, *new).map(Input::Map),
                Task::Refresh => membership
                    .read()
                    .map(|map| Input::Map(map.unwrap_or_default())),
            };
            match done {
                Ok(input) => {
                    inbox.send(input);
                    break;
                }
                Err(error) if inbox.is_open() => {
                    if !std::mem::replace(&mut has_failed, true) {
                        log(format_args!("{error}"));
                    }
                    inbox.pause(RETRY);
                }
                Err(_) => return,
            }
        }
    }
}

/// Proposes a map of the unit until it, or another one of its version, is in force.
fn propose(membership: &dyn Membership, map: &UnitMap) -> Result<ClusterMap, MembershipError> {
    loop {
        let current = membership.read()?.unwrap_or_default();
        let Some(next) = current.with_unit(UNIT, map.clone()) else {
            return Ok(current);
        };
        let now_valid = membership.propose(&next)?;
        if now_valid == next {
            return Ok(next);
        }
    }
}

/// Proposes a spare once: if the map changes meanwhile, the primary checks again.
fn replace(
    membership: &dyn Membership,
    old: NodeId,
    new: NodeId,
) -> Result<ClusterMap, MembershipError> {
    let current = membership.read()?.unwrap_or_default();
    let unit = current.unit(UNIT);
    let replaced = unit.and_then(|unit| unit.map.replace(old, new));
    match replaced.and_then(|map| current.with_unit(UNIT, map)) {
        Some(next) => membership.propose(&next),
        None => Ok(current),
    }
}

fn take_role(membership: &dyn Membership, id: NodeId) -> Result<ClusterMap, MembershipError> {
    loop {
        let current = membership.read()?.unwrap_or_default();
        let Some(next) = registration::next_roles(&current, id) else {
            return Ok(current);
        };
        membership.propose(&next)?;
    }
}
