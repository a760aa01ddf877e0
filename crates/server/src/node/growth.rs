//! Growing the pools of a unit. The request is in the cluster map; each node reserves room and notes that there.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pmem::Region;
use protocol::{ClusterMap, Defects, NodeId};

use super::error::KEEPS_LENGTH;
use super::membership_threads::RETRY;
use super::opening::format_of;
use super::{Inbox, Input, Log, NodeError, UNIT, registration, spawn};
use crate::core::Failed;
use crate::membership::Membership;
use crate::pool::PoolError;

/// Reserves room in this node's pool and gives it back, on a separate thread, since that takes a while.
pub struct Growing {
    pub id: NodeId,
    pub name: String,
    pub region: Region,
    /// Whether an interface receives data in the pool.
    pub has_data_queue: bool,
    pub membership: Arc<dyn Membership>,
    pub inbox: Inbox,
    pub log: Log,
    /// Bytes of the pool when it was opened: it does not become shorter.
    pub least: u64,
    /// Whether the thread runs.
    pub is_at_work: Arc<AtomicBool>,
    /// Image of another length than before that the thread has reserved room for, or failed to.
    pub tried: Arc<AtomicU64>,
    /// Bytes of the pool after the thread gave room back, or failed to.
    pub kept: Arc<AtomicU64>,
}

/// Why a node cannot reserve room, and what to do.
fn refusal(name: &str, has_data_queue: bool, error: &pmem::Error) -> String {
    match error {
        pmem::Error::NoReach { .. } if has_data_queue => format!(
            "node {name} has `data_queue`: {KEEPS_LENGTH}; restart the nodes without `data_queue`, grow the pools, and restart them \
             with it"
        ),
        error => format!("node {name}: {error}"),
    }
}

impl Growing {
    /// Why the node ends when its pool at this path fails so.
    pub fn end_of_node(&self, path: &str, source: Failed) -> NodeError {
        match source.source {
            PoolError::Region(pmem::Error::NoReach { .. }) if self.has_data_queue => {
                let name = self.name.clone();
                NodeError::KeepsLength { name }
            }
            _ => NodeError::Failed {
                path: path.into(),
                source,
            },
        }
    }

    /// Begins what this map requests of the node. The image starts at `start` in the pool.
    pub fn take_map(&self, map: &ClusterMap, start: u64) {
        let Some(unit) = map.unit(UNIT) else {
            return;
        };
        let (id, name, image) = (self.id, self.name.clone(), unit.growth.image);
        let has_data_queue = self.has_data_queue;
        let with_room = move |map: &ClusterMap| map.with_room(UNIT, id, image, &Defects::default());
        if with_room(map).is_some() {
            let reserve = move |region: &Region| region.grow(start.saturating_add(image));
            self.begin(reserve, move |map, reserved| match reserved {
                Ok(()) => with_room(map),
                Err(error) => {
                    map.refuse_to_grow(UNIT, image, &refusal(&name, has_data_queue, error))
                }
            });
            return;
        }
        // A request that another node has refused, or that was replaced by a smaller one.
        let needed = start.saturating_add(unit.map.image).max(self.least);
        let length = self.region.length();
        // A file system with large pages leaves more than is needed.
        let is_new = length > needed && length != self.kept.load(Ordering::Acquire);
        if !unit.growth.is_pending() && is_new {
            let (log, kept) = (self.log.clone(), self.kept.clone());
            let give_back = move |region: &Region| {
                let given_back = region.shrink(needed);
                kept.store(region.length(), Ordering::Release);
                given_back.inspect_err(|error| {
                    log(format_args!(
                        "{name}: keeps room that is not needed: {error}"
                    ));
                })
            };
            self.begin(give_back, |_, _| None);
        }
    }

    /// Whether this map has to wait: the unit has grown without this node. Its pool gets room first, then the map comes again.
    pub fn reserves_first(&self, map: &ClusterMap, own: &Range<u64>) -> bool {
        let image = map.unit(UNIT).map_or(0, |unit| unit.map.image);
        let length = own.start.saturating_add(image);
        if length <= own.end {
            return false;
        }
        // The pool may be becoming shorter.
        if self.is_at_work.load(Ordering::Acquire) {
            return true;
        }
        // Without room the node ends when it takes the map.
        if length <= self.region.length() || self.tried.load(Ordering::Acquire) == image {
            return false;
        }
        let tried = self.tried.clone();
        let reserve = move |region: &Region| {
            let reserved = region.grow(length);
            tried.store(image, Ordering::Release);
            reserved
        };
        self.begin(reserve, |_, _| None)
    }

    /// Changes the length of the pool on a separate thread, unless one runs: it sends the map that follows. False: it did not start.
    fn begin(
        &self,
        work: impl FnOnce(&Region) -> Result<(), pmem::Error> + Send + 'static,
        next: impl Fn(&ClusterMap, &Result<(), pmem::Error>) -> Option<ClusterMap> + Send + 'static,
    ) -> bool {
        if self.is_at_work.swap(true, Ordering::AcqRel) {
            return false;
        }
        let (region, membership) = (self.region.clone(), self.membership.clone());
        let (inbox, is_at_work) = (self.inbox.clone(), self.is_at_work.clone());
        let started = spawn("tako-grow", move || {
            let done = work(&region);
            let next = |map: &ClusterMap| next(map, &done);
            while inbox.is_open() {
                if let Ok(map) = registration::update(membership.as_ref(), next) {
                    is_at_work.store(false, Ordering::Release);
                    inbox.send(Input::Map(map));
                    return;
                }
                inbox.pause(RETRY);
            }
        });
        if let Err(error) = &started {
            self.is_at_work.store(false, Ordering::Release);
            (self.log)(format_args!("{}: {error}", self.name));
        }
        started.is_ok()
    }
}

/// Makes the pools of the cluster's unit at least so many bytes long, and waits until they are, at most so long.
///
/// # Errors
/// [`NodeError::NotGrown`] if a node has no room, or the pools are as long: then the unit stays as it is. Or the time has expired,
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use connections::control::Identity;
    use connections::messenger::{Messenger, Options};
    use protocol::cluster::UnitEntry;

    use super::*;
    use crate::membership::MembershipError;

    /// A map that does not change.
    struct Fixed(ClusterMap);

    impl Membership for Fixed {
        fn read(&self) -> Result<Option<ClusterMap>, MembershipError> {
            Ok(Some(self.0.clone()))
        }

        fn propose(&self, _: &ClusterMap) -> Result<ClusterMap, MembershipError> {
            Ok(self.0.clone())
        }

        fn wait(&self, _: u64, _: Duration) -> Result<Option<ClusterMap>, MembershipError> {
            Ok(None)
        }
    }

    #[test]
    fn room_that_cannot_be_given_back_is_tried_once() {
        let map = ClusterMap {
            version: 1,
            units: vec![UnitEntry::default()],
            ..ClusterMap::default()
        };
        let identity = Identity::local([1; 16], "n1").unwrap();
        let messenger = Messenger::open(identity, Options::default()).unwrap();
        let (inputs, received) = channel();
        let growing = Growing {
            id: 1,
            name: "n1".into(),
            // Memory does not become shorter.
            region: Region::memory(8192, false).unwrap(),
            has_data_queue: false,
            membership: Arc::new(Fixed(map.clone())),
            inbox: Inbox {
                inputs,
                handle: messenger.handle(),
                stop: Arc::default(),
            },
            log: Arc::new(|_| {}),
            least: 4096,
            is_at_work: Arc::default(),
            tried: Arc::default(),
            kept: Arc::default(),
        };
        growing.take_map(&map, 0);
        let next = received.recv_timeout(Duration::from_secs(60));
        assert!(matches!(next, Ok(Input::Map(_))));
        growing.take_map(&map, 0);
        assert!(!growing.is_at_work.load(Ordering::Acquire));
    }
}
