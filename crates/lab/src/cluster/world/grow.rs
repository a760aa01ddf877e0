//! Growth of the pools while the unit works, proposed by an operator.

use protocol::cluster::{Growth, UnitEntry};
use protocol::{ClusterMap, UnitMap};

use super::replace::OPERATOR;
use super::{Machine, Setup, World, WorldEvent};
use crate::cluster::time::{MILLISECOND, Time};

/// Bytes of the memory of each machine, if the pools grow. A second group of blocks fits.
const ROOM: usize = 3 << 20;
/// Until the operator tries again.
const AGAIN_NS: Time = 100 * MILLISECOND;

impl Setup {
    /// The memory of a machine with this pool at its start. What lies behind it has any contents.
    pub(super) fn with_room(&self, mut pool: Vec<u8>) -> Vec<u8> {
        if self.grows_at.is_some() {
            pool.resize(ROOM, 0xee);
        }
        pool
    }
}

impl World {
    /// Machines reserve room one after the other. When all members in sync have, the map grows.
    pub(super) fn grow(&mut self, now: Time) {
        let read = |machine: &Machine| store::read_superblock(&machine.memory().region()).ok();
        let Some(superblock) = self.machines.iter().find_map(read) else {
            return;
        };
        let image = ROOM as u64 - superblock.image_offset;
        if self.membership.valid().image >= image {
            return;
        }
        self.queue.add(now + AGAIN_NS, WorldEvent::Grow);
        let without = self
            .machines
            .iter_mut()
            .filter(|it| it.is_up() && !it.has_room);
        let slow = self.random.one_in(2);
        if let Some(machine) = without.into_iter().next().filter(|_| !slow) {
            machine.has_room = true;
        }
        let Some(map) = self.grown(image) else {
            return;
        };
        if let Some(at) = self.membership.travel(now) {
            let proposal = WorldEvent::Proposal {
                from: OPERATOR,
                incarnation: 0,
                map,
            };
            self.queue.add(at, proposal);
        }
    }

    /// The map with the longer image, once enough machines have room.
    fn grown(&self, image: u64) -> Option<UnitMap> {
        let valid = self.membership.valid();
        let ready = self.machines.iter().filter(|machine| machine.has_room);
        let ready: Vec<_> = ready.map(|machine| machine.node).collect();
        let growth = Growth {
            image,
            ready: ready.clone(),
            ..Growth::default()
        };
        let entry = UnitEntry {
            map: valid.clone(),
            growth,
            ..UnitEntry::default()
        };
        let cluster = ClusterMap {
            units: vec![entry],
            ..ClusterMap::default()
        };
        let next = cluster.with_room(0, *ready.last()?, image, &self.setup.defects)?;
        let next = next.units.into_iter().next()?.map;
        (next.version > valid.version).then_some(next)
    }

    /// No image grows that a member in sync has no room for.
    pub(super) fn check_room(&self, before: &UnitMap, map: &UnitMap) -> Result<(), String> {
        let mut in_sync = map.in_sync.iter();
        let has_none = |node: &&u32| !self.machines[**node as usize].has_room;
        match in_sync.find(has_none).filter(|_| map.image > before.image) {
            Some(node) => Err(format!("the image grows, and member {node} has no room")),
            None => Ok(()),
        }
    }

    /// The images are as long as the map says.
    pub(super) fn examine_lengths(&self) -> Result<(), String> {
        let map = self.membership.valid();
        for member in &map.members {
            let region = self.machines[*member as usize].memory().region();
            let superblock = store::read_superblock(&region).map_err(|error| error.to_string())?;
            if superblock.image_length < map.image {
                return Err(format!(
                    "the image of member {member} has {} bytes, and the map says {}",
                    superblock.image_length, map.image
                ));
            }
        }
        Ok(())
    }
}
