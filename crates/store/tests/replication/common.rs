//! Two pools of one unit, and the contents of a store.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use pmem::Region;
use store::{FileKind, Geometry, LiveInode, NewInode, PoolOptions, Replica, Store, Transaction};

/// A primary and a replica with the same image, and the replica's region.
pub struct Unit {
    pub primary: Store,
    pub replica: Replica,
    pub region: Region,
}

impl Unit {
    pub fn new(length: u64, geometry: &Geometry) -> Unit {
        let region = Region::memory(length, false).expect("memory");
        Store::format(&region, geometry).expect("format");
        let copy = copy_of(&region);
        Unit {
            primary: Store::open(region, PoolOptions::default()).expect("the pool opens"),
            replica: Replica::open(copy.clone(), PoolOptions::default()).expect("the copy opens"),
            region: copy,
        }
    }

    /// Brings the replica to the primary's tail, in batches of some size.
    pub fn follow(&mut self) {
        let mut attempts = 0;
        while self.replica.tail().number < self.primary.volume().tail().number {
            let from = self.replica.tail().number;
            let limit = [1, 3000, 100_000][attempts % 3];
            let mut records = Vec::new();
            self.primary
                .volume()
                .read_records(from, limit, &mut records)
                .expect("the primary holds the records");
            let result = self
                .replica
                .ingest(&records)
                .expect("the records are right");
            fetch(&self.primary, &self.replica, &result.missing);
            attempts += 1;
            assert!(attempts < 100_000, "the replica does not get on");
        }
    }

    /// The same for a replica that is catching up.
    pub fn follow_unverified(&mut self) {
        while self.replica.tail().number < self.primary.volume().tail().number {
            let from = self.replica.tail().number;
            let mut records = Vec::new();
            self.primary
                .volume()
                .read_records(from, usize::MAX, &mut records)
                .expect("the primary holds the records");
            let result = self.replica.ingest_unverified(&records);
            let missing = result.expect("the records are right").missing;
            fetch(&self.primary, &self.replica, &missing);
        }
    }
}

/// Copies ranges of the image.
pub fn fetch(primary: &Store, replica: &Replica, ranges: &[Range<u64>]) {
    for range in ranges {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        primary
            .volume()
            .read_image(range.start, &mut bytes)
            .expect("inside");
        replica.write_image(range.start, &bytes).expect("inside");
    }
}

/// The same bytes in other memory.
pub fn copy_of(region: &Region) -> Region {
    let mut bytes = vec![0; region.length() as usize];
    region.read(0, &mut bytes);
    let copy = Region::memory(region.length(), false).expect("memory");
    copy.write(0, &bytes);
    copy
}

pub fn new_inode(kind: FileKind) -> NewInode<'static> {
    NewInode::new(kind, 0o755)
}

pub fn create(store: &Store, directory: &Arc<LiveInode>, name: &str) -> Arc<LiveInode> {
    store
        .names()
        .create(
            &mut Transaction::embedded(),
            directory,
            name.as_bytes(),
            &new_inode(FileKind::Regular),
        )
        .expect("the file is made")
}

/// Every path with its contents and version.
pub fn read_all(store: &Store) -> BTreeMap<String, (u64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut left = vec![(String::new(), store.root())];
    while let Some((path, node)) = left.pop() {
        let attributes = store.inodes().attributes(&node);
        let mut data = Vec::new();
        if attributes.kind == FileKind::Regular {
            data.resize(attributes.size as usize, 0);
            store
                .files()
                .read(&node, 0, &mut data)
                .expect("the file is read");
        } else {
            let mut visit = |entry: &store::Entry| {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                if name != "." && name != ".." {
                    let node = store
                        .inodes()
                        .node(entry.number)
                        .expect("the inode is there");
                    left.push((format!("{path}/{name}"), node));
                }
                true
            };
            store
                .names()
                .read_directory(&node, 0, &mut visit)
                .expect("the directory is read");
        }
        found.insert(path, (attributes.version, data));
    }
    found
}
