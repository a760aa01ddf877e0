//! Reads of mapped files that land in the pages, or do not.

use std::result::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use fabric::{Access, Provider, ReadMemory, Table};
use operations::{Attributes, FileId, FileKind};
use pmem::Region;
use protocol::client::Recalled;
use protocol::leases::Covers;

use super::super::attributes_of;
use super::*;
use crate::backend::{Backend, Inode};
use crate::leases::{self, Kept, RecallListener, Renewable};
use crate::{File, HoldsSource, LandingError, Map, OpenFlags, RequestError, Requests};

const PAGE: u64 = 4096;
const PAGES: u64 = 64;
/// No test takes so long.
const LONG: Duration = Duration::from_secs(120);
/// Stands for no damaged page.
const NONE: u64 = u64::MAX;

/// A cluster with one file: each page contains its number.
struct Cluster {
    /// This page cannot be read.
    damaged: AtomicU64,
    /// Outcomes come without data, and nothing has landed.
    is_without_data: AtomicBool,
    is_unreachable: AtomicBool,
    /// Whether data was requested before the cluster became unreachable.
    may_land: AtomicBool,
    /// How often attributes were asked for.
    asked: AtomicU64,
    target: ReadTarget,
}

impl Cluster {
    fn new() -> Arc<Cluster> {
        let region = Region::memory(PAGES * PAGE, false).unwrap();
        let table = Table::default();
        let registered = table.insert(&region, 0..PAGES * PAGE, Access::LOCAL);
        let memory = ReadMemory {
            region,
            start: 0,
            is_exact: true,
            owner: Arc::new(()),
        };
        Arc::new(Cluster {
            damaged: NONE.into(),
            is_without_data: AtomicBool::new(false),
            is_unreachable: AtomicBool::new(false),
            may_land: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            target: ReadTarget::new(Provider::Ethernet, registered.unwrap(), memory),
        })
    }
}

fn number(page: u64) -> u8 {
    page as u8 + 1
}

impl Requests for Cluster {
    fn call(&self, operation: Operation, _: Acknowledge) -> Result<Outcome, RequestError> {
        match operation {
            Operation::Attributes { file } => {
                self.asked.fetch_add(1, Ordering::Relaxed);
                let covers = Covers {
                    subject: true,
                    ..Covers::default()
                };
                let until = Instant::now() + LONG;
                leases::note(Some(Kept { until, covers }));
                Ok(Outcome {
                    file,
                    attributes: Some(Attributes {
                        size: PAGES * PAGE,
                        version: 1,
                        ..attributes_of(file.inode, file.generation, FileKind::Regular)
                    }),
                    ..Outcome::done()
                })
            }
            Operation::Read { length, .. } => {
                leases::note(None);
                let data = vec![1; length as usize];
                Ok(Outcome::with(Details::Data(data.into())))
            }
            Operation::Release { .. } => Ok(Outcome::done()),
            other => panic!("{other:?}"),
        }
    }

    fn read_target(&self, _: u64) -> Option<ReadTarget> {
        Some(self.target.clone())
    }

    fn call_landing(
        &self,
        operation: Operation,
        (target, at): (ReadTarget, u64),
    ) -> Result<(Outcome, bool), LandingError> {
        let Operation::Read { offset, length, .. } = operation else {
            panic!("{operation:?}");
        };
        assert_eq!(offset, at);
        if self.is_unreachable.load(Ordering::Relaxed) {
            return Err(LandingError {
                source: RequestError::Unreachable("no answer".to_owned()),
                may_land: self.may_land.load(Ordering::Relaxed),
            });
        }
        let count = u64::from(length);
        let landed = Outcome {
            count,
            ..Outcome::done()
        };
        if self.is_without_data.load(Ordering::Relaxed) {
            return Ok((landed, false));
        }
        let damaged = self.damaged.load(Ordering::Relaxed);
        if (offset / PAGE..(offset + count).div_ceil(PAGE)).contains(&damaged) {
            return Ok((Outcome::failed(ErrorCode::Corrupt), false));
        }
        let (region, start) = target.range();
        for at in (offset..offset + count).step_by(PAGE as usize) {
            region.write(start + at, &[number(at / PAGE); PAGE as usize]);
        }
        Ok((landed, true))
    }

    fn set_holds(&self, _: HoldsSource) {}

    fn set_recalls(&self, _: Option<RecallListener>) {}

    fn invalidated(&self, _: Recalled) {}

    fn set_cache(&self, _: Arc<dyn Renewable>) {}

    fn end(&self) {}
}

fn map(cluster: &Arc<Cluster>) -> Map {
    let remote = Remote::new(cluster.clone(), Acknowledge::Primary);
    let inode = RemoteInode {
        file: FileId::default(),
        number: 7,
        found: None,
    };
    let inode = Inode::Remote(Arc::new(inode));
    let file = File::held(Backend::Remote(remote), inode, OpenFlags::READ_WRITE);
    Map::new(file).unwrap()
}

#[test]
fn a_damaged_page_keeps_no_other_page_from_being_read() {
    let cluster = Cluster::new();
    cluster.damaged.store(5, Ordering::Relaxed);
    let map = map(&cluster);
    assert!(map.load(0..PAGES * PAGE).is_err());
    // Its access reads several pages first.
    assert_eq!(map[3 * PAGE as usize], number(3));
    assert!(map.load(5 * PAGE..6 * PAGE).is_err());
    cluster.damaged.store(NONE, Ordering::Relaxed);
    map.load(0..PAGES * PAGE).unwrap();
    let expected = |page| map[(page * PAGE) as usize] == number(page);
    assert!((0..PAGES).all(expected));
    assert_eq!(map.copied_bytes(), 0);
}

#[test]
fn a_read_without_its_data_is_an_error_and_not_empty() {
    let cluster = Cluster::new();
    cluster.is_without_data.store(true, Ordering::Relaxed);
    let map = map(&cluster);
    assert!(map.load(0..PAGE).is_err());
    cluster.is_without_data.store(false, Ordering::Relaxed);
    assert_eq!(map[0], number(0));
}

#[test]
fn nothing_is_read_behind_a_read_with_an_unknown_end() {
    let cluster = Cluster::new();
    cluster.is_unreachable.store(true, Ordering::Relaxed);
    cluster.may_land.store(true, Ordering::Relaxed);
    let map = map(&cluster);
    assert!(map.load(0..PAGE).is_err());
    cluster.is_unreachable.store(false, Ordering::Relaxed);
    assert!(map.load(0..PAGE).is_err(), "its data may land later");
}

#[test]
fn a_map_is_read_after_a_call_that_requested_no_data() {
    let cluster = Cluster::new();
    cluster.is_unreachable.store(true, Ordering::Relaxed);
    let map = map(&cluster);
    assert!(map.load(0..PAGE).is_err());
    cluster.is_unreachable.store(false, Ordering::Relaxed);
    map.load(0..PAGES * PAGE).unwrap();
    assert_eq!(map[5 * PAGE as usize], number(5));
}

#[test]
fn a_long_read_that_is_noted_ends_what_is_known_of_the_attributes() {
    let cluster = Cluster::new();
    let remote = Remote::new(cluster.clone(), Acknowledge::Primary);
    remote.0.cache.turn(true);
    let inode = RemoteInode {
        file: FileId::default(),
        number: 7,
        found: None,
    };
    let asked = || {
        let file = inode.file;
        remote.call(Operation::Attributes { file }).unwrap();
        cluster.asked.load(Ordering::Relaxed)
    };
    let mut into = vec![0; 5 * DATA_MAX];
    assert_eq!([asked(), asked()], [1, 1], "they are kept");
    assert_eq!(remote.read(&inode, 0, &mut into).unwrap(), into.len());
    assert_eq!(asked(), 1);
    assert_eq!(remote.read_noted(&inode, 0, &mut into).unwrap(), into.len());
    assert!(into.iter().all(|byte| *byte == 1));
    assert_eq!(asked(), 2);
}
