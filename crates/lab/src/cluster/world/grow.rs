//! Growth of the pools while the unit works, proposed by an operator.

use super::replace::OPERATOR;
use super::{Event, Machine, Setup, World};
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
    /// The operator proposes longer pools, until the map has them. All machines have room.
    pub(super) fn grow(&mut self, now: Time) {
        let read = |machine: &Machine| store::read_superblock(&machine.memory().region()).ok();
        let Some(superblock) = self.machines.iter().find_map(read) else {
            return;
        };
        let start = superblock.image_offset;
        let Some(map) = self.membership.valid().grow(ROOM as u64 - start) else {
            return;
        };
        self.queue.add(now + AGAIN_NS, Event::Grow);
        if let Some(at) = self.membership.travel(now) {
            let proposal = Event::Proposal {
                from: OPERATOR,
                incarnation: 0,
                map,
            };
            self.queue.add(at, proposal);
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
