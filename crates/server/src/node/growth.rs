//! Growing the pools of a unit. The request is in the cluster map; each node reserves room and notes that there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmem::Region;
use protocol::{ClusterMap, NodeId};

use super::membership_threads::RETRY;
use super::opening::format_of;
use super::{Inbox, Input, Log, NodeError, UNIT, registration, spawn};
use crate::membership::Membership;

/// Reserves room in this node's pool, on a separate thread, since that takes a while.
pub struct Growing {
    pub id: NodeId,
    pub name: String,
    pub region: Region,
    pub membership: Arc<dyn Membership>,
    pub inbox: Inbox,
    pub log: Log,
    /// Whether the thread runs.
    pub is_at_work: Arc<AtomicBool>,
}

impl Growing {
    /// Begins what this map requests of the node. The image starts at `start` in the pool.
    pub fn take_map(&self, map: &ClusterMap, start: u64) {
        let growth = map.unit(UNIT).map(|unit| &unit.growth);
        let Some(image) = growth.map(|it| it.image).filter(|image| *image > 0) else {
            return;
        };
        let is_wanted = map.with_room(UNIT, self.id, image).is_some();
        if !is_wanted || self.is_at_work.swap(true, Ordering::AcqRel) {
            return;
        }
        let (region, membership) = (self.region.clone(), self.membership.clone());
        let (id, inbox, name) = (self.id, self.inbox.clone(), self.name.clone());
        let is_at_work = self.is_at_work.clone();
        let started = spawn("tako-grow", move || {
            let reserved = region.grow(start.saturating_add(image));
            let next = |map: &ClusterMap| match &reserved {
                Ok(()) => map.with_room(UNIT, id, image),
                Err(error) => map.refuse_to_grow(UNIT, image, &format!("node {name}: {error}")),
            };
            while inbox.is_open() {
                if let Ok(map) = registration::update(membership.as_ref(), next) {
                    is_at_work.store(false, Ordering::Release);
                    inbox.send(Input::Map(map));
                    return;
                }
                inbox.pause(RETRY);
            }
        });
        if let Err(error) = started {
            self.is_at_work.store(false, Ordering::Release);
            (self.log)(format_args!("{}: {error}", self.name));
        }
    }
}

/// Makes the pools of the cluster's unit at least so many bytes long, and waits until they are, at most so long.
///
/// # Errors
/// [`NodeError::NotGrown`] if a node has no room, or the pools are as long: then the unit stays as it is. Or the time is over,
/// and the unit grows as soon as all members in sync have reserved room. [`NodeError::Membership`].
pub fn grow(membership: &dyn Membership, length: u64, within: Duration) -> Result<(), NodeError> {
    let end = Instant::now() + within;
    let mut map = membership.read()?.unwrap_or_default();
    let refused = |map: &ClusterMap, reason: String| {
        let cluster = map.name.clone();
        Err(NodeError::NotGrown { cluster, reason })
    };
    let format = format_of(&map, false);
    let superblock = |pool_length| {
        store::MemberFormat {
            pool_length,
            ..format
        }
        .superblock()
    };
    let wrong = |source: store::Error| NodeError::NotGrown {
        cluster: map.name.clone(),
        reason: source.to_string(),
    };
    let image = superblock(length).map_err(wrong)?.image_length;
    let first = superblock(format.pool_length).map_err(wrong)?.image_length;
    let own = map.unit(UNIT).map_or(0, |unit| unit.map.image).max(first);
    if image <= own {
        let pools = superblock(format.pool_length).map_err(wrong)?.image_offset + own;
        return refused(
            &map,
            format!("its pools have {pools} bytes; name a larger size"),
        );
    }
    map = registration::update(membership, |map| map.ask_to_grow(UNIT, image))?;
    loop {
        let Some(unit) = map.unit(UNIT).filter(|unit| unit.map.version > 0) else {
            return refused(&map, "it is not formed; start all its nodes first".into());
        };
        if unit.map.image >= image {
            return Ok(());
        }
        if unit.growth.image != image {
            return refused(&map, "another size was asked for meanwhile".into());
        }
        if !unit.growth.refused.is_empty() {
            return refused(&map, unit.growth.refused.clone());
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let reason =
                "not all members in sync have answered; it grows when they have, see `tako status`";
            return refused(&map, reason.into());
        }
        map = membership.wait(map.version, left)?.unwrap_or(map);
    }
}
