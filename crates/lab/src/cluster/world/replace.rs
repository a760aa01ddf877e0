//! A member's machine that is permanently lost, or declared failed, and the spare that replaces it.

use pmem::Random;
use protocol::UnitMap;

use super::{FIRST_CLIENT, Machine, World, WorldEvent, clock};
use crate::cluster::plan::Cue;
use crate::cluster::template;
use crate::cluster::time::{MILLISECOND, SECOND, Time};

/// Sender of the proposal of a map with the spare. Only the membership service receives it.
pub(super) const OPERATOR: u32 = FIRST_CLIENT - 1;
/// Distinguishes the random numbers of a spare from the others.
const SPARE: u64 = 0x5350_4152_4500;
/// Delay until the operator reads the map, and again.
const LOOKS_NS: (Time, Time) = (10 * MILLISECOND, 500 * MILLISECOND);
/// When a fault that would be the end of the unit is tried again.
const LATER_NS: Time = 50 * MILLISECOND;

/// How long a machine that is only declared failed is unreachable.
const AWAY_NS: (Time, Time) = (2 * SECOND, 9 * SECOND);

/// The lost machine, and its replacement.
pub(super) struct Replacement {
    gone: u32,
    is_lost: bool,
    spare: u32,
    random: Random,
}

impl World {
    /// A member's machine is lost, unless one is already. If no other member could lead, the fault comes later.
    pub(super) fn replace(
        &mut self,
        now: Time,
        gone: u32,
        is_lost: bool,
        again: WorldEvent,
    ) -> Result<(), String> {
        if self.replacement.is_some() {
            return Ok(());
        }
        let map = self.membership.valid();
        if map.full_in_sync().iter().all(|node| *node == gone) {
            self.queue.add(now + LATER_NS, again);
            return Ok(());
        }
        let image = self.setup.with_room(template::spare()?);
        let mut random = Random::new(self.setup.seed ^ SPARE);
        let (spare, own_clock) = (self.machines.len() as u32, clock(&mut random));
        let machine = Machine::new(spare, own_clock, image, random.next_number());
        self.machines.push(machine);
        if is_lost {
            self.machines[gone as usize].destroy();
            self.membership.unwatch(gone);
        } else {
            let until = now + random.between(AWAY_NS.0, AWAY_NS.1);
            self.links.isolate(gone, until.min(self.plan.end()));
        }
        let starts_at = now + random.between(0, 3 * SECOND);
        self.queue
            .add(starts_at, WorldEvent::StartMember(spare as usize));
        let looks_at = now + random.between(LOOKS_NS.0, LOOKS_NS.1);
        self.queue.add(looks_at, WorldEvent::Operator);
        self.replacement = Some(Replacement {
            gone,
            is_lost,
            spare,
            random,
        });
        Ok(())
    }

    /// Whether this machine is permanently lost. Its proposals are lost with it: a map by which no other member is in
    /// sync would be the end of the unit.
    pub(super) fn is_gone(&self, node: u32) -> bool {
        let replacement = self.replacement.as_ref();
        replacement.is_some_and(|it| it.is_lost && it.gone == node)
    }

    /// Whether a spare has taken a place.
    pub(super) fn is_replaced(&self) -> bool {
        let members = &self.membership.valid().members;
        let replacement = self.replacement.as_ref();
        replacement.is_some_and(|it| members.contains(&it.spare))
    }

    /// This member, or the spare if its machine is gone.
    pub(super) fn in_place_of(&self, node: u32) -> u32 {
        let replacement = self.replacement.as_ref();
        let spare = replacement.filter(|_| self.is_gone(node));
        spare.map_or(node, |it| it.spare)
    }

    /// The operator proposes the spare as soon as the map allows it, until it is a member.
    pub(super) fn operate(&mut self, now: Time) {
        let Some(replacement) = &mut self.replacement else {
            return;
        };
        let Replacement { gone, spare, .. } = *replacement;
        let next_look = now + replacement.random.between(LOOKS_NS.0, LOOKS_NS.1);
        let map = self.membership.valid();
        if map.members.contains(&spare) {
            return;
        }
        let next = map.replace(gone, spare);
        self.queue.add(next_look, WorldEvent::Operator);
        if let Some(map) = next
            && let Some(at) = self.membership.travel(now)
        {
            self.note(|| format!("the operator proposes {map:?}"));
            let proposal = WorldEvent::Proposal {
                from: OPERATOR,
                incarnation: 0,
                map,
            };
            self.queue.add(at, proposal);
        }
    }

    /// Faults may wait for what became of the spare.
    pub(super) fn sight_spare(&mut self, now: Time, before: &UnitMap, map: &UnitMap) {
        let Some(spare) = self.replacement.as_ref().map(|it| it.spare) else {
            return;
        };
        if map.members.contains(&spare) && !before.members.contains(&spare) {
            self.sight(now, Cue::Replaced, spare);
        }
        if map.is_in_sync(spare) && !before.is_in_sync(spare) {
            self.sight(now, Cue::SpareInSync, spare);
        }
    }
}
