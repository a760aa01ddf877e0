//! Entry points for fuzzing, and for the fixed corpus that runs in the tests. Nothing else calls them.
//!
//! Whatever the bytes, none of them may panic or run for long, an answer fits into its room, and an error is one that the
//! kernel takes.

use client::{FileSystem, Geometry, PoolOptions, Region};
use rustix::io::Errno;

use crate::adapter::Adapter;
use crate::request::Request;
use crate::session::{DATA_LENGTH_MAX, Offer};
use crate::wire;
use crate::{Locks, MountOptions};

const POOL_LENGTH: u64 = 32 << 20;
/// The first error that the kernel keeps to itself (`ERESTARTSYS`).
const ERROR_END: i32 = 512;
/// Numbers of inodes that requests of a script may name.
const NODES: u64 = 16;

/// A request: its code, a length, as many bytes of a fixed part, and what follows it.
pub fn request(input: &[u8]) {
    let [code, length, rest @ ..] = input else {
        return;
    };
    let (argument, payload) = rest.split_at(rest.len().min((*length).into()));
    if let Err(errno) = Request::decode((*code).into(), argument, payload) {
        let known = [Errno::INVAL, Errno::NOSYS, Errno::NAMETOOLONG];
        assert!(known.contains(&errno), "{errno:?}");
    }
    let _ = Offer::decode(input);
}

/// Requests to a separate file system, one after the other: each a code, an inode, the stated length of the fixed part,
/// that of the rest, and all these bytes.
pub fn requests(input: &[u8]) {
    let region = Region::memory(POOL_LENGTH, false).expect("memory");
    FileSystem::format_region(&region, &Geometry::for_length(POOL_LENGTH)).expect("a pool");
    let file_system =
        FileSystem::open_region(region, PoolOptions::default()).expect("a file system");
    let options = MountOptions {
        locks: Locks::Shared,
        ..MountOptions::default()
    };
    let adapter = Adapter::new(file_system, &options);
    let mut body = vec![0; DATA_LENGTH_MAX];
    let mut rest = input;
    while let [code, node, fixed, length, bytes @ ..] = rest {
        let (argument, bytes) = bytes.split_at(bytes.len().min((*fixed).into()));
        let (payload, bytes) = bytes.split_at(bytes.len().min((*length).into()));
        rest = bytes;
        let header = wire::InHeader {
            opcode: (*code).into(),
            node: u64::from(*node) % NODES,
            ..wire::InHeader::default()
        };
        body[..payload.len()].copy_from_slice(payload);
        match adapter.serve(&header, argument, &mut body, payload.len()) {
            Ok(length) => assert!(length <= body.len()),
            Err(errno) => assert!((1..ERROR_END).contains(&errno.raw_os_error()), "{errno:?}"),
        }
    }
    adapter.close().expect("a clean end");
}
