use std::sync::Mutex as StdMutex;
use std::sync::OnceLock;

use operations::{FileKind, Outcome};
use protocol::client::Recalled;
use protocol::leases::Covers;

use super::super::{RemoteInode, attributes_of};
use super::*;
use crate::leases::{Kept, RecallListener, Renewable};
use crate::{HoldsSource, RequestError, Requests};

const FILE: FileId = FileId {
    unit: 0,
    inode: 7,
    generation: 3,
};
const PART: usize = 4096;

/// A cluster with one file.
#[derive(Default)]
struct Cluster {
    state: StdMutex<State>,
    cache: OnceLock<Arc<dyn Renewable>>,
}

#[derive(Default)]
struct State {
    contents: Vec<u8>,
    version: u64,
    /// Lengths of reads, and whether each sets the access time.
    reads: Vec<(u32, bool)>,
    /// The file is changed while the next window is read: after its data was taken.
    changes_behind: bool,
    has_no_lease: bool,
    /// Number of requests of attributes so far.
    asked: u32,
}

impl Cluster {
    fn with(length: usize) -> Arc<Cluster> {
        let cluster = Arc::new(Cluster::default());
        cluster.state.lock().unwrap().contents = contents(1, length);
        cluster
    }

    /// Another client changes the file: leases are recalled before.
    fn change(&self, seed: usize) {
        if let Some(cache) = self.cache.get() {
            cache.recalled(FILE.inode);
        }
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        state.contents = contents(seed, state.contents.len());
    }

    fn reads(&self) -> Vec<(u32, bool)> {
        std::mem::take(&mut self.state.lock().unwrap().reads)
    }
}

impl Requests for Cluster {
    fn call(&self, operation: Operation, _: Acknowledge) -> Result<Outcome, RequestError> {
        let mut state = self.state.lock().unwrap();
        leases::note(None);
        match operation {
            Operation::Attributes { file } => {
                let covers = Covers {
                    subject: true,
                    ..Covers::default()
                };
                let until = Instant::now() + Duration::from_secs(120);
                state.asked += 1;
                leases::note((!state.has_no_lease).then_some(Kept { until, covers }));
                let attributes = Attributes {
                    size: state.contents.len() as u64,
                    version: state.version,
                    ..attributes_of(file.inode, file.generation, FileKind::Regular)
                };
                Ok(Outcome {
                    file,
                    attributes: Some(attributes),
                    ..Outcome::done()
                })
            }
            Operation::Read {
                offset,
                length,
                note_read,
                ..
            } => {
                state.reads.push((length, note_read));
                let rest = state.contents.get(offset as usize..).unwrap_or_default();
                let data = rest[..rest.len().min(length as usize)].to_vec();
                let changes = length as u64 == WINDOW && std::mem::take(&mut state.changes_behind);
                drop(state);
                if changes {
                    self.change(2);
                }
                Ok(Outcome::with_data(data))
            }
            Operation::NoteRead { file, .. } => {
                let attributes = attributes_of(file.inode, file.generation, FileKind::Regular);
                Ok(Outcome {
                    file,
                    attributes: Some(attributes),
                    ..Outcome::done()
                })
            }
            Operation::Release { .. } => Ok(Outcome::done()),
            other => panic!("{other:?}"),
        }
    }

    fn read_ahead_max(&self) -> usize {
        2 * PART
    }

    fn set_holds(&self, _: HoldsSource) {}

    fn set_recalls(&self, _: Option<RecallListener>) {}

    fn invalidated(&self, _: Recalled) {}

    fn set_cache(&self, cache: Arc<dyn Renewable>) {
        let _ = self.cache.set(cache);
    }

    fn end(&self) {}
}

fn contents(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| ((at / 7 + seed) % 251) as u8)
        .collect()
}

/// A front end that caches under leases.
fn remote(cluster: &Arc<Cluster>) -> Remote {
    let remote = Remote::new(cluster.clone(), Acknowledge::Primary);
    remote.on_recall(Some(Box::new(|_| {})));
    remote
}

fn inode() -> RemoteInode {
    RemoteInode {
        file: FILE,
        number: FILE.inode,
        found: None,
    }
}

fn read(remote: &Remote, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let read = remote.read_noted(&inode(), offset as u64, &mut bytes);
    bytes.truncate(read.expect("the cluster answers"));
    bytes
}

/// Reads in order, from one offset to another; compares.
fn read_all(remote: &Remote, (from, to): (usize, usize), length: usize, expected: &[u8]) {
    for offset in (from..to).step_by(length) {
        let end = (offset + length).min(expected.len());
        let bytes = read(remote, offset, length);
        assert!(bytes == expected[offset..end], "at {offset}");
    }
}

#[test]
fn reads_in_order_need_few_requests() {
    for (part, length) in [(PART, 3 << 20), (5000, 1_200_001), (PART, PART * 5 + 1)] {
        let cluster = Cluster::with(length);
        let remote = remote(&cluster);
        read_all(&remote, (0, length), part, &contents(1, length));
        let reads = cluster.reads();
        assert_eq!(read(&remote, length, part), b"");
        let ordinary: Vec<_> = reads.iter().filter(|it| it.0 as usize == part).collect();
        assert_eq!(ordinary.len(), READS_MIN as usize, "{reads:?}");
        assert!(ordinary.iter().all(|(_, is_noted)| *is_noted));
        let most = length.div_ceil(WINDOW as usize) + 1;
        assert!(reads.len() <= ordinary.len() + most, "{reads:?}");
    }
}

#[test]
fn a_changed_file_is_read_again_and_sets_the_access_time() {
    let cluster = Cluster::with(1 << 20);
    let remote = remote(&cluster);
    read_all(&remote, (0, 20 * PART), PART, &contents(1, 1 << 20));
    cluster.reads();
    cluster.change(2);
    read_all(&remote, (20 * PART, 1 << 20), PART, &contents(2, 1 << 20));
    let reads = cluster.reads();
    assert_eq!(reads[0], (PART as u32, true));
    assert!(reads.len() < 6, "{reads:?}");
}

#[test]
fn a_window_that_was_read_before_a_change_is_not_used() {
    let cluster = Cluster::with(1 << 20);
    let remote = remote(&cluster);
    cluster.state.lock().unwrap().changes_behind = true;
    read_all(&remote, (0, 3 * PART), PART, &contents(1, 1 << 20));
    // Its window has the old contents.
    read_all(&remote, (3 * PART, 1 << 20), PART, &contents(2, 1 << 20));
    assert!(!cluster.state.lock().unwrap().changes_behind);
}

#[test]
fn nothing_is_read_ahead_without_a_lease_or_order() {
    let cluster = Cluster::with(1 << 20);
    let mount = remote(&cluster);
    for offset in [0, 9, 2, 7, 4, 5, 8, 1, 3, 6] {
        assert_eq!(read(&mount, offset * PART, PART).len(), PART);
    }
    assert!(cluster.reads().iter().all(|it| it.0 as usize == PART));
    let cluster = Cluster::with(1 << 20);
    cluster.state.lock().unwrap().has_no_lease = true;
    let mount = remote(&cluster);
    read_all(&mount, (0, 1 << 20), PART, &contents(1, 1 << 20));
    let reads = cluster.reads();
    assert!(reads.iter().all(|it| it.0 as usize == PART));
    let asked = cluster.state.lock().unwrap().asked;
    assert!(asked <= reads.len() as u32 / READS_MIN, "{asked}");
}

#[test]
fn nothing_is_asked_or_read_ahead_if_each_read_is_noted() {
    let cluster = Cluster::with(1 << 20);
    let remote = remote(&cluster);
    for offset in (0..20).map(|part| part * PART) {
        let mut bytes = vec![0; PART];
        let read = remote.read(&inode(), offset as u64, &mut bytes);
        assert_eq!(read.expect("the cluster answers"), PART);
        let noted = remote.note_read(&inode(), true);
        noted.expect("the cluster answers");
    }
    assert_eq!(cluster.reads(), [(PART as u32, false); 20]);
    assert_eq!(cluster.state.lock().unwrap().asked, 0);
}

#[test]
fn no_window_is_kept_of_a_file_that_the_kernel_forgets() {
    let cluster = Cluster::with(1 << 20);
    let remote = remote(&cluster);
    read_all(&remote, (0, 9 * PART), PART, &contents(1, 1 << 20));
    assert!(!remote.0.ahead.0.lock().is_empty());
    let released = remote.release_all(&[(FILE.inode, 1)]);
    released.expect("the cluster answers");
    assert!(remote.0.ahead.0.lock().is_empty());
}

#[test]
fn a_window_of_an_ended_stream_is_not_used_by_the_next_one() {
    let cluster = Cluster::with(1 << 20);
    let remote = remote(&cluster);
    let other = 100 * PART;
    read_all(&remote, (0, 3 * PART), PART, &contents(1, 1 << 20));
    // Another thread begins a stream while this one is about to request a window.
    read(&remote, other, PART);
    assert!(remote.leased(FILE).is_some());
    let window = remote.request_window(FILE, other as u64, 0);
    assert!(remote.data_of(FILE, &window).is_some());
    cluster.change(2);
    read_all(
        &remote,
        (other + PART, 1 << 20),
        PART,
        &contents(2, 1 << 20),
    );
}

#[test]
fn a_reader_leaves_the_window_to_the_one_that_waits_for_it() {
    let cluster = Cluster::with(1 << 20);
    let remote = remote(&cluster);
    read_all(&remote, (0, 5 * PART), PART, &contents(1, 1 << 20));
    cluster.reads();
    let window = remote.0.ahead.find(FILE, 5 * PART as u64, 0);
    let window = window.expect("it was requested");
    let waits = window.data.lock();
    read_all(&remote, (5 * PART, 7 * PART), PART, &contents(1, 1 << 20));
    assert_eq!(cluster.reads(), [(PART as u32, false); 2]);
    drop(waits);
    read_all(&remote, (7 * PART, 20 * PART), PART, &contents(1, 1 << 20));
    assert_eq!(cluster.reads(), []);
}

#[test]
fn a_window_that_failed_is_requested_again() {
    let cluster = Cluster::with(256 << 10);
    let remote = remote(&cluster);
    read_all(&remote, (0, 3 * PART), PART, &contents(1, 256 << 10));
    let window = remote.request_window(FILE, 3 * PART as u64, 0);
    *window.data.lock() = Data::Void;
    cluster.reads();
    read_all(
        &remote,
        (3 * PART, 256 << 10),
        PART,
        &contents(1, 256 << 10),
    );
    let reads = cluster.reads();
    assert!(reads.len() <= 1 + READS_MIN as usize, "{reads:?}");
}
