//! The map of a unit: who its members are, who orders its changes, and who has them all.
//!
//! The map is an input. A membership service keeps it and changes it by compare and swap on its version, so that of two
//! proposals made from one map at most one succeeds.

/// Names a member or a client on the fabric.
pub type NodeId = u32;

/// Place in the unit's one order of records. As a tail: the position behind the last record, and that record's epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence {
    /// Epoch in which the record was made.
    pub epoch: u32,
    /// Its position, in bytes since the unit was made.
    pub number: u64,
}

impl Sequence {
    /// Of this epoch and number.
    pub fn new(epoch: u32, number: u64) -> Sequence {
        Sequence { epoch, number }
    }
}

/// Where an epoch's records begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// The epoch.
    pub epoch: u32,
    /// Position of its first record.
    pub start: u64,
}

/// Epochs that a map remembers. Whoever missed more is refilled as a whole.
pub const LINEAGE_MAX: usize = 32;

/// One unit in the cluster map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitMap {
    /// Grows by one with each change of the map.
    pub version: u64,
    /// Grows with each change of the primary.
    pub epoch: u32,
    /// Orders the changes of this epoch.
    pub primary: NodeId,
    /// All nodes that belong to the unit.
    pub members: Vec<NodeId>,
    /// Members that have every record that was acknowledged; the primary is one of them.
    pub in_sync: Vec<NodeId>,
    /// The epochs that the unit's records are of, oldest first. The epochs of primaries whose records were all lost are
    /// not among them.
    pub lineage: Vec<EpochStart>,
}

impl UnitMap {
    /// Whether this member has every acknowledged record.
    pub fn is_in_sync(&self, node: NodeId) -> bool {
        self.in_sync.contains(&node)
    }

    /// The map after this one, with the same roles.
    pub fn next(&self) -> UnitMap {
        UnitMap {
            version: self.version + 1,
            ..self.clone()
        }
    }

    /// The map in which `node`, whose last record is `tail`, begins a new epoch with these members in sync.
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

    /// How much of a member's history, whose epochs began at `history` and which ends at `tail`, is the unit's: the
    /// position up to which its records are the same. `None` if the map does not reach back that far.
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
            // An old primary that went on alone.
            (&[(1, 0), (2, 900)], &[(1, 0)], 1000, Some(900)),
            // One that stopped earlier.
            (&[(1, 0), (2, 900)], &[(1, 0)], 800, Some(800)),
            // An epoch whose records all were lost, though the unit went on behind its start.
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
    fn who_is_promoted_leaves_out_epochs_it_has_not_seen() {
        let before = map(&[(1, 0), (2, 900)]);
        let after = before.promote(7, Sequence::new(1, 1000), vec![7]);
        assert_eq!(after.lineage, starts(&[(1, 0), (3, 1000)]));
        assert_eq!((after.epoch, after.primary), (3, 7));
    }
}
