//! The tests of file systems, repeated on a cluster: operations are encoded, decoded and executed on a store.
#![forbid(unsafe_code)]
// The files of other tests run here once more, over a remote file system; each loads the common modules.
#![expect(clippy::duplicate_mod)]

#[path = "acls.rs"]
mod acls;
mod common;
#[path = "copies.rs"]
mod copies;
#[path = "files.rs"]
mod files;
#[path = "flags.rs"]
mod flags;
#[path = "locks.rs"]
mod locks;
#[path = "paths.rs"]
mod paths;
#[path = "ranges.rs"]
mod ranges;
#[path = "semantics.rs"]
mod semantics;
#[path = "unnamed.rs"]
mod unnamed;
#[path = "xattrs.rs"]
mod xattrs;

use client::{FileSystem, Geometry, OpenFlags, Options, Region};
use common::{loopback, make_file};
use store::Store;

#[test]
fn a_session_knows_the_holds_that_it_would_resume_with() {
    let region = Region::memory(16 << 20, false).unwrap();
    FileSystem::format_region(&region, &Geometry::for_length(16 << 20)).unwrap();
    let store = Store::open(region, Options::default()).unwrap();
    let (fs, holds) = loopback::with_holds(store);
    make_file(&fs, "file", b"data");
    assert_eq!(holds(), []);
    let file = fs.open("file", OpenFlags::READ, 0).unwrap();
    fs.remove_file("file").unwrap();
    let held = holds();
    assert_eq!((held.len(), held[0].count), (1, 1));
    assert_eq!(file.read_at(&mut [0; 4], 0).unwrap(), 4);
    drop(file);
    assert_eq!(holds(), []);
}
