//! Members that have been away for too long, and the spares that take their places.

use std::collections::BTreeMap;

use protocol::cluster::UnitEntry;
use protocol::{ClusterMap, NodeId};

use super::{UNIT, registration};

/// The primary's knowledge of members that are not in sync.
#[derive(Default)]
pub struct AbsentMembers {
    /// The epoch in which it was noted: what an earlier primary heard of is unknown.
    epoch: u32,
    /// When each of them was last heard of; at first, when it was first missed.
    heard: BTreeMap<NodeId, u64>,
    /// Version of the cluster map for which a replacement was proposed.
    proposed: u64,
}

/// How long a member may be away, in nanoseconds; `None` if it may forever.
fn limit(unit: &UnitEntry) -> Option<u64> {
    (unit.spare_after > 0).then(|| u64::from(unit.spare_after) * 1_000_000_000)
}

fn missing(unit: &UnitEntry) -> impl Iterator<Item = NodeId> {
    let members = unit.map.members.iter().copied();
    members.filter(|node| !unit.map.is_in_sync(*node))
}

impl AbsentMembers {
    /// A node sent a message.
    pub fn hear(&mut self, now: u64, node: NodeId) {
        if let Some(heard) = self.heard.get_mut(&node) {
            *heard = now;
        }
    }

    /// The member that has been away for too long, and the spare for its place. The caller is the primary and proposes it.
    pub fn replacement(
        &mut self,
        now: u64,
        map: &ClusterMap,
        is_linked: impl Fn(NodeId) -> bool,
    ) -> Option<(NodeId, NodeId)> {
        let unit = map.unit(UNIT)?;
        if self.epoch != unit.map.epoch {
            self.epoch = unit.map.epoch;
            self.heard.clear();
        }
        self.heard
            .retain(|node, _| missing(unit).any(|it| it == *node));
        for node in missing(unit) {
            self.heard.entry(node).or_insert(now);
        }
        let limit = limit(unit)?;
        if self.proposed == map.version {
            return None;
        }
        let is_away = |node: &NodeId| self.heard.get(node).is_some_and(|at| now >= at + limit);
        let mut away = missing(unit).filter(is_away);
        let found = away.find_map(|old| {
            let spares = registration::spares_for(map, old);
            let spare = spares.into_iter().find(|spare| is_linked(*spare))?;
            Some((old, spare))
        })?;
        self.proposed = map.version;
        Some(found)
    }

    /// When a member will have been away for too long, at the earliest after `now`.
    pub fn next(&self, now: u64, map: &ClusterMap) -> Option<u64> {
        let limit = limit(map.unit(UNIT)?)?;
        let ends = self.heard.values().map(|at| at + limit);
        ends.filter(|end| *end > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Three members, of which the third is not in sync, and two spares.
    fn map() -> ClusterMap {
        let mut map = ClusterMap {
            version: 1,
            units: vec![UnitEntry {
                members: 3,
                spare_after: 10,
                ..UnitEntry::default()
            }],
            ..ClusterMap::default()
        };
        for name in ["n1", "n2", "n3"] {
            map = map.register(name, [name.as_bytes()[1]; 16], Vec::new()).0;
        }
        map = map.form(UNIT, vec![1, 2, 3]).expect("it is not formed");
        for name in ["n4", "n5"] {
            map = map.register(name, [name.as_bytes()[1]; 16], Vec::new()).0;
        }
        map.units[0].map.in_sync = vec![1, 2];
        map
    }

    #[test]
    fn a_linked_spare_replaces_a_member_that_has_been_away() {
        let (map, mut absence) = (map(), AbsentMembers::default());
        let linked = |node| node == 5;
        assert_eq!(absence.replacement(SECOND, &map, linked), None);
        assert_eq!(absence.next(SECOND, &map), Some(11 * SECOND));
        assert_eq!(absence.replacement(10 * SECOND, &map, linked), None);
        absence.hear(10 * SECOND, 3);
        assert_eq!(absence.replacement(11 * SECOND, &map, linked), None);
        let late = 20 * SECOND;
        assert_eq!(absence.replacement(late, &map, |_| false), None);
        assert_eq!(absence.replacement(late, &map, linked), Some((3, 5)));
        assert_eq!(absence.replacement(late, &map, linked), None, "once");
        let map = map.next();
        assert_eq!(absence.replacement(late, &map, linked), Some((3, 5)));
    }

    #[test]
    fn a_new_primary_waits_anew_and_a_member_in_sync_stays() {
        let (mut map, mut absence) = (map(), AbsentMembers::default());
        assert_eq!(absence.replacement(0, &map, |_| true), None);
        map.units[0].map.epoch += 1;
        assert_eq!(absence.replacement(11 * SECOND, &map, |_| true), None);
        map.units[0].map.in_sync = vec![1, 2, 3];
        assert_eq!(absence.replacement(60 * SECOND, &map, |_| true), None);
        map.units[0].spare_after = 0;
        map.units[0].map.in_sync = vec![1, 2];
        assert_eq!(absence.replacement(61 * SECOND, &map, |_| true), None);
        assert_eq!(absence.replacement(99 * SECOND, &map, |_| true), None);
    }
}
