//! Processes that are stopped for a while. Their messages, timers and other events wait, and are handled in order when they
//! continue.
//!
//! The kernel of a client's machine goes on: it answers programs from its caches for as long as their leases last.

use std::collections::BTreeMap;

use protocol::Transmit;
use protocol::defects::Defect;

use super::super::time::{OldTime, Time};
use super::super::workload::pause as pause_of_programs;
use super::{FIRST_CLIENT, Flight, World, WorldEvent};

/// A process that is stopped.
struct Pause {
    incarnation: u64,
    until: Time,
    /// One more event is handled. Its messages are sent when the process continues.
    is_in_step: bool,
}

/// The processes that are stopped, by node.
#[derive(Default)]
pub struct Pauses {
    stopped: BTreeMap<u32, Pause>,
}

impl Pauses {
    /// When the process continues; `now` if it runs.
    pub fn end(&self, now: Time, (node, incarnation): (u32, u64)) -> Time {
        let pause = self.stopped.get(&node);
        let pause = pause.filter(|it| it.incarnation == incarnation);
        pause.map_or(now, |it| it.until.max(now))
    }
}

impl WorldEvent {
    /// The node that handles the event.
    fn receiver(&self) -> Option<u32> {
        match self {
            WorldEvent::Deliver { to, .. } | WorldEvent::Answer { to, .. } => Some(*to),
            WorldEvent::Timer { node, .. } => Some(*node),
            WorldEvent::Notice(notice) => Some(notice.watcher),
            WorldEvent::Work { client, .. } => Some(FIRST_CLIENT + *client as u32),
            WorldEvent::Flight(Flight::Back { sender, .. }) => {
                Some(FIRST_CLIENT + sender.client() as u32)
            }
            WorldEvent::LocalRead(read) => Some(read.member()),
            _ => None,
        }
    }
}

impl World {
    /// The process of a node, by its number; `None` if it is down.
    fn incarnation(&self, node: u32) -> Option<u64> {
        match node.checked_sub(FIRST_CLIENT) {
            Some(client) => {
                let worker = self.workers.get(client as usize)?;
                worker.is_up().then_some(worker.incarnation)
            }
            None => {
                let machine = self.machines.get(node as usize)?;
                machine.is_up().then_some(machine.incarnation)
            }
        }
    }

    /// Stops the process of a node for this time. A pause that lasts longer continues.
    pub(super) fn pause(&mut self, node: u32, (from, until): (Time, Time), is_in_step: bool) {
        let Some(incarnation) = self.incarnation(node) else {
            return;
        };
        if self.pauses.end(from, (node, incarnation)) >= until {
            return;
        }
        let pause = Pause {
            incarnation,
            until,
            is_in_step,
        };
        self.pauses.stopped.insert(node, pause);
        let old_time = Some(OldTime { from, until });
        match node.checked_sub(FIRST_CLIENT) {
            Some(client) if self.setup.defects.has(Defect::TrustOldTime) => {
                self.workers[client as usize].old_time = old_time;
            }
            None if self.setup.defects.has(Defect::ServeByOldTime) => {
                self.machines[node as usize].old_time = old_time;
            }
            _ => {}
        }
    }

    /// Whether the process of a node is stopped.
    pub(super) fn is_paused(&self, now: Time, node: u32) -> bool {
        let incarnation = self.incarnation(node);
        incarnation.is_some_and(|number| self.pauses.end(now, (node, number)) > now)
    }

    /// Returns the event if it is to be handled now. Otherwise it waits until its process continues.
    pub(super) fn unless_paused(&mut self, now: Time, event: WorldEvent) -> Option<WorldEvent> {
        let Some(node) = event.receiver().filter(|node| self.is_paused(now, *node)) else {
            return Some(event);
        };
        let pause = self.pauses.stopped.get_mut(&node)?;
        if std::mem::take(&mut pause.is_in_step) {
            return Some(event);
        }
        let mut at = pause.until;
        if let WorldEvent::Work { client, .. } = event
            && self.random.one_in(2)
        {
            self.workers[client].look_at_kept(now, &mut self.history);
            at = at.min(now + pause_of_programs(&mut self.random));
        }
        self.queue.add(at, event);
        None
    }

    /// Returns the message if it is to be sent now. Otherwise it is sent when its sender's process continues.
    pub(super) fn hold_message(
        &mut self,
        now: Time,
        from: u32,
        transmit: Transmit,
    ) -> Option<Transmit> {
        let Some(incarnation) = self.incarnation(from) else {
            return Some(transmit);
        };
        let at = self.pauses.end(now, (from, incarnation));
        if at <= now {
            return Some(transmit);
        }
        let event = WorldEvent::Send {
            from,
            incarnation,
            transmit,
        };
        self.queue.add(at, event);
        None
    }

    /// Sends a message that waited for this, if its sender's process still exists.
    pub(super) fn send_held(
        &mut self,
        now: Time,
        (from, incarnation): (u32, u64),
        transmit: Transmit,
    ) {
        if self.incarnation(from) == Some(incarnation) {
            self.transmit(now, from, transmit);
        }
    }
}
