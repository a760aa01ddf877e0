//! Growing a unit: all its nodes reserve room first, then the map says that the image is longer.

use serde::{Deserialize, Serialize};

use super::{ClusterMap, NODES_MAX};
use crate::defects::{Defect, Defects};
use crate::map::NodeId;

/// Longest reason of a refusal, in bytes.
const REASON_MAX: usize = 1024;

/// A request for a longer image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// Bytes of the image then; 0 if nothing was requested.
    pub image: u64,
    /// Nodes that have reserved room in their pools, in order.
    pub ready: Vec<NodeId>,
    /// Why a node has no room, which ends the request; empty if none has said so.
    pub refused: String,
}

impl Growth {
    /// Whether it waits for nodes.
    pub fn is_pending(&self) -> bool {
        self.image > 0 && self.refused.is_empty()
    }

    pub(super) fn fault(&self) -> Option<&'static str> {
        let is_set = self.ready.is_sorted_by(|a, b| a < b) && self.ready.len() <= NODES_MAX;
        (!is_set || self.refused.len() > REASON_MAX).then_some("a request for growth is invalid")
    }
}

impl ClusterMap {
    /// The map with the request for an image of so many bytes; `None` if it has it, or the image is as long.
    pub fn ask_to_grow(&self, unit: u16, image: u64) -> Option<ClusterMap> {
        let mut next = self.next();
        let entry = next.units.iter_mut().find(|entry| entry.unit == unit)?;
        let is_known = entry.growth.is_pending() && entry.growth.image == image;
        if is_known || entry.map.version == 0 || image <= entry.map.image {
            return None;
        }
        entry.growth = Growth {
            image,
            ..Growth::default()
        };
        Some(next)
    }

    /// The map in which this node has room for the requested image. With the last node in sync the image has grown. `None` if
    /// nothing changes, or another image was requested.
    pub fn with_room(
        &self,
        unit: u16,
        node: NodeId,
        image: u64,
        defects: &Defects,
    ) -> Option<ClusterMap> {
        let mut next = self.next();
        let entry = next.units.iter_mut().find(|entry| entry.unit == unit)?;
        let growth = &mut entry.growth;
        if !growth.is_pending() || growth.image != image {
            return None;
        }
        let is_new = !growth.ready.contains(&node);
        if is_new {
            growth.ready.push(node);
            growth.ready.sort_unstable();
        }
        // A member that is away reserves room when it is back: it follows with an image of that length only.
        let is_ready = |node: &NodeId| growth.ready.contains(node);
        let has_all = entry.map.in_sync.iter().all(is_ready) || defects.has(Defect::GrowBeforeRoom);
        if has_all {
            entry.map = entry.map.grow(image)?;
            entry.growth = Growth::default();
        }
        (is_new || has_all).then_some(next)
    }

    /// The map in which a node has refused to make room: the unit stays as it is. `None` if that image is not requested.
    pub fn refuse_to_grow(&self, unit: u16, image: u64, reason: &str) -> Option<ClusterMap> {
        let mut next = self.next();
        let entry = next.units.iter_mut().find(|entry| entry.unit == unit)?;
        if !entry.growth.is_pending() || entry.growth.image != image {
            return None;
        }
        let end = reason.floor_char_boundary(REASON_MAX);
        entry.growth.refused = reason[..end].into();
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::UnitEntry;

    fn formed() -> ClusterMap {
        let mut map = ClusterMap {
            version: 1,
            units: vec![UnitEntry::default()],
            ..ClusterMap::default()
        };
        for pool in 1..=4 {
            map = map.register("n", [pool; 16], Vec::new()).0;
        }
        map.form(0, vec![1, 2, 3]).expect("it is formed")
    }

    #[test]
    fn an_image_grows_when_all_members_in_sync_have_room() {
        let map = formed().ask_to_grow(0, 900).expect("it is longer");
        assert_eq!(map.ask_to_grow(0, 900), None);
        assert_eq!(map.with_room(0, 1, 800, &Defects::default()), None);
        let map = map
            .with_room(0, 1, 900, &Defects::default())
            .expect("it is ready");
        let map = map
            .with_room(0, 4, 900, &Defects::default())
            .expect("a spare is ready");
        assert_eq!(
            map.with_room(0, 1, 900, &Defects::default()),
            None,
            "2 and 3 are not"
        );
        let mut map = map
            .with_room(0, 2, 900, &Defects::default())
            .expect("it is ready");
        assert_eq!((map.units[0].map.image, map.fault()), (0, None));
        // The last one has left: any other one brings it about.
        map.units[0].map.in_sync = vec![1, 2];
        let version = map.units[0].map.version;
        let grown = map
            .with_room(0, 1, 900, &Defects::default())
            .expect("all are ready");
        let unit = &grown.units[0];
        assert_eq!((unit.map.image, unit.map.version), (900, version + 1));
        assert_eq!(unit.growth, Growth::default());
        assert_eq!(grown.ask_to_grow(0, 900), None);
    }

    #[test]
    fn a_node_without_room_ends_the_request() {
        let map = formed().ask_to_grow(0, 900).expect("it is longer");
        let map = map.refuse_to_grow(0, 900, "n2 is full").expect("pending");
        assert_eq!(map.with_room(0, 1, 900, &Defects::default()), None);
        assert_eq!((map.units[0].map.image, map.fault()), (0, None));
        let again = map.ask_to_grow(0, 900).expect("it is requested again");
        assert!(again.units[0].growth.is_pending());
    }
}
