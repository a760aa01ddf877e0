//! The map of a unit: its members, its primary, and the members in sync.
//!
//! The map is an input. A membership service keeps it and changes it by compare and swap on its version, so that of two
//! proposals made from one map at most one succeeds.

use serde::{Deserialize, Serialize};

use crate::defects::{Defect, Defects};

/// Names a member or a client on the fabric.
pub type NodeId = u32;

/// The primary of a unit that has none yet.
pub const NO_NODE: NodeId = NodeId::MAX;

/// Place in the unit's one order of records. As a tail: the position behind the last record, and that record's epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence {
    /// Epoch in which the record was made.
    pub epoch: u32,
    /// Its position, in bytes since the unit was made.
    pub number: u64,
}

impl Sequence {
    /// The sequence of this epoch and number.
    pub fn new(epoch: u32, number: u64) -> Sequence {
        Sequence { epoch, number }
    }
}

/// Where an epoch's records begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochStart {
    /// Number of the epoch.
    pub epoch: u32,
    /// Position of its first record.
    pub start: u64,
}

/// Members of a unit, at most.
pub const MEMBERS_MAX: usize = 16;

/// Epochs that a map remembers. A member that missed more is refilled as a whole.
pub const LINEAGE_MAX: usize = 32;

/// One unit in the cluster map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitMap {
    /// Grows by one with each change of the map.
    pub version: u64,
    /// Grows with each change of the primary.
    pub epoch: u32,
    /// Orders the changes of this epoch.
    pub primary: NodeId,
    /// All nodes that belong to the unit.
    pub members: Vec<NodeId>,
    /// Members that take all records and keep all metadata, but no data of files. A member is full or not for as long as
    /// its pool is the unit's.
    pub metadata_only: Vec<NodeId>,
    /// Members that have every record that was acknowledged; the primary is one of them.
    pub in_sync: Vec<NodeId>,
    /// The epochs of the unit's records, oldest first, except those of primaries that lost all their records.
    pub lineage: Vec<EpochStart>,
    /// Bytes that the image has in all pools, at least; 0 until the unit has grown.
    #[serde(default)]
    pub image: u64,
}

impl UnitMap {
    /// Whether this member has every acknowledged record.
    pub fn is_in_sync(&self, node: NodeId) -> bool {
        self.in_sync.contains(&node)
    }

    /// Whether this member has no data of files.
    pub fn is_metadata_only(&self, node: NodeId) -> bool {
        self.metadata_only.contains(&node)
    }

    /// Members in sync that have the data of files: clients access their memories.
    pub fn full_in_sync(&self) -> Vec<NodeId> {
        self.full_in_sync_each().collect()
    }

    /// These members, without a list of them in memory.
    pub fn full_in_sync_each(&self) -> impl Iterator<Item = NodeId> {
        let in_sync = self.in_sync.iter().copied();
        in_sync.filter(|node| !self.is_metadata_only(*node))
    }

    /// Returns why this map is invalid: such a map is rejected. Above all, it must leave a member in sync that can be
    /// primary.
    pub fn fault(&self, defects: &Defects) -> Option<&'static str> {
        let is_member = |node: &NodeId| self.members.contains(node);
        // Sorted, so that one set has one map: the same is never proposed again.
        let is_set = |list: &[NodeId]| list.is_sorted_by(|a, b| a < b);
        let may_serve = |node: &NodeId| {
            !self.is_metadata_only(*node) || defects.has(Defect::PromoteMetadataOnly)
        };
        let has_order = self
            .lineage
            .is_sorted_by(|a, b| a.epoch < b.epoch && a.start <= b.start);
        let lists = [&self.members, &self.in_sync, &self.metadata_only];
        if self.members.len() > MEMBERS_MAX || self.lineage.len() > LINEAGE_MAX {
            return Some("it has too many members or epochs");
        }
        if !lists
            .into_iter()
            .all(|list| is_set(list) && list.iter().all(is_member))
        {
            return Some(
                "a member is listed twice or out of order, or one in sync is not a member",
            );
        }
        if !self.in_sync.iter().any(may_serve) {
            return Some("no member in sync can be primary");
        }
        if self.primary != NO_NODE && !(self.is_in_sync(self.primary) && may_serve(&self.primary)) {
            return Some("the primary is not in sync, or has no data");
        }
        if !has_order {
            return Some("its epochs are not in order");
        }
        None
    }

    /// The map after this one, with the same roles.
    pub fn next(&self) -> UnitMap {
        UnitMap {
            version: self.version + 1,
            ..self.clone()
        }
    }

    /// Takes up the epochs of a member's records that are not the unit's: they will be when it is promoted.
    pub fn adopt(&mut self, history: &[EpochStart]) {
        let is_new = |own: &&EpochStart| self.lineage.iter().all(|of| of.epoch != own.epoch);
        let own: Vec<_> = history.iter().filter(is_new).copied().collect();
        self.lineage.extend(own);
        self.lineage.sort_by_key(|of| of.epoch);
    }

    /// The map in which `node`, with last record `tail`, begins a new epoch with these members in sync.
    pub fn promote(&self, node: NodeId, tail: Sequence, in_sync: Vec<NodeId>) -> UnitMap {
        let epoch = self.epoch + 1;
        let mut lineage: Vec<_> = self.lineage.clone();
        // Records of epochs behind its own are records that the new primary does not have.
        lineage.retain(|of| of.epoch <= tail.epoch);
        lineage.push(EpochStart {
            epoch,
            start: tail.number,
        });
        let surplus = lineage.len().saturating_sub(LINEAGE_MAX);
        lineage.drain(..surplus);
        UnitMap {
            epoch,
            primary: node,
            in_sync,
            lineage,
            ..self.next()
        }
    }

    /// The map in which `new` replaces `old`, a permanently lost machine. None as long as `old` is in sync, for then it
    /// may serve, or be the last that has all that was acknowledged.
    pub fn replace(&self, old: NodeId, new: NodeId) -> Option<UnitMap> {
        let is_possible = self.members.contains(&old) && !self.is_in_sync(old);
        if !is_possible || self.members.contains(&new) {
            return None;
        }
        let mut next = self.next();
        for list in [&mut next.members, &mut next.metadata_only] {
            for node in list.iter_mut().filter(|node| **node == old) {
                *node = new;
            }
            list.sort_unstable();
        }
        Some(next)
    }

    /// The map in which the image has grown to so many bytes.
    pub fn grow(&self, image: u64) -> Option<UnitMap> {
        (image > self.image).then(|| UnitMap {
            image,
            ..self.next()
        })
    }

    /// Common part of a member's history, which has epochs beginning at `history` and ends at `tail`, with the unit's:
    /// the position up to which its records are the same. `None` if the map does not reach back that far.
    pub fn common_prefix(&self, history: &[EpochStart], tail: Sequence) -> Option<u64> {
        let end_of = |list: &[EpochStart], epoch: u32, end: u64| {
            let next = list.iter().find(|of| of.epoch > epoch);
            next.map_or(end, |of| of.start)
        };
        let shared = history
            .iter()
            .rev()
            .find(|own| self.lineage.iter().any(|of| of.epoch == own.epoch))?;
        let own_end = end_of(history, shared.epoch, tail.number);
        let unit_end = end_of(&self.lineage, shared.epoch, u64::MAX);
        Some(own_end.min(unit_end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Starts = &'static [(u32, u64)];

    fn starts(list: &[(u32, u64)]) -> Vec<EpochStart> {
        let start = |(epoch, start): &(u32, u64)| EpochStart {
            epoch: *epoch,
            start: *start,
        };
        list.iter().map(start).collect()
    }

    fn map(lineage: &[(u32, u64)]) -> UnitMap {
        UnitMap {
            epoch: lineage.last().map_or(0, |of| of.0),
            lineage: starts(lineage),
            ..UnitMap::default()
        }
    }

    #[test]
    fn history_is_shared_up_to_where_it_parts() {
        let cases: [(Starts, Starts, u64, Option<u64>); 6] = [
            // Nothing new since.
            (&[(1, 0)], &[(1, 0)], 900, Some(900)),
            // An old primary that continued alone.
            (&[(1, 0), (2, 900)], &[(1, 0)], 1000, Some(900)),
            // One that stopped earlier.
            (&[(1, 0), (2, 900)], &[(1, 0)], 800, Some(800)),
            // An epoch with all records lost, though the unit continued after its start.
            (&[(1, 0), (3, 1000)], &[(1, 0), (2, 900)], 950, Some(900)),
            // Several epochs missed.
            (
                &[(1, 0), (2, 900), (4, 950)],
                &[(1, 0), (2, 900)],
                990,
                Some(950),
            ),
            // Too old for the map.
            (&[(7, 5000), (8, 6000)], &[(3, 100)], 400, None),
        ];
        for (lineage, history, tail, expected) in cases {
            let history = starts(history);
            let epoch = history.last().expect("cases have epochs").epoch;
            let found = map(lineage).common_prefix(&history, Sequence::new(epoch, tail));
            assert_eq!(found, expected, "{lineage:?} {history:?} {tail}");
        }
    }

    #[test]
    fn maps_without_a_possible_primary_are_refused() {
        let start = EpochStart { epoch: 1, start: 0 };
        let right = UnitMap {
            version: 1,
            epoch: 1,
            primary: 1,
            members: vec![1, 2, 3],
            metadata_only: vec![3],
            in_sync: vec![1, 3],
            lineage: vec![start],
            image: 0,
        };
        let fault = |map: &UnitMap| map.fault(&Defects::default());
        assert_eq!(fault(&right), None);
        let changes: [fn(&mut UnitMap); 10] = [
            |map| map.primary = 3,
            |map| map.primary = 2,
            |map| map.primary = 7,
            |map| (map.primary, map.in_sync) = (NO_NODE, vec![3]),
            |map| map.in_sync = vec![1, 1],
            |map| map.members = vec![1, 3, 2],
            |map| map.in_sync = vec![1, 7],
            |map| map.metadata_only = vec![7],
            |map| map.members = (0..=MEMBERS_MAX as u32).collect(),
            |map| map.lineage = vec![map.lineage[0]; 2],
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut map = right.clone();
            change(&mut map);
            assert!(fault(&map).is_some(), "change {index}");
        }
    }

    #[test]
    fn a_spare_takes_the_place_of_one_that_is_not_in_sync() {
        let map = UnitMap {
            version: 7,
            primary: 1,
            members: vec![1, 2, 3],
            metadata_only: vec![3],
            in_sync: vec![1, 2],
            ..map(&[(1, 0)])
        };
        let next = map.replace(3, 4).expect("3 is not in sync");
        assert_eq!(next.fault(&Defects::default()), None);
        assert_eq!((next.version, next.primary), (8, 1));
        assert_eq!((next.members, next.metadata_only), (vec![1, 2, 4], vec![4]));
        assert_eq!(next.in_sync, map.in_sync);
        let next = map.replace(3, 0).expect("3 is not in sync");
        assert_eq!(next.members, [0, 1, 2]);
        for (old, new) in [(1, 4), (2, 4), (5, 4), (3, 2)] {
            assert_eq!(map.replace(old, new), None, "{old} by {new}");
        }
    }

    #[test]
    fn a_new_primary_brings_the_epochs_of_its_own_records() {
        let mut before = map(&[(1, 0), (3, 900)]);
        before.adopt(&starts(&[(1, 0), (2, 900)]));
        let after = before.promote(7, Sequence::new(2, 960), vec![7]);
        assert_eq!(after.lineage, starts(&[(1, 0), (2, 900), (4, 960)]));
    }

    #[test]
    fn a_new_primary_leaves_out_epochs_it_has_not_seen() {
        let before = map(&[(1, 0), (2, 900)]);
        let after = before.promote(7, Sequence::new(1, 1000), vec![7]);
        assert_eq!(after.lineage, starts(&[(1, 0), (3, 1000)]));
        assert_eq!((after.epoch, after.primary), (3, 7));
    }
}
