//! Small pools with some of everything in them, the same bytes each time.

use std::sync::Arc;

use pmem::Region;
use zerocopy::IntoBytes;

use super::edit::PoolBytes;
use super::embedded;
use crate::format::superblock::SUPERBLOCKS;
use crate::inode::acl::{ACCESS, DEFAULT};
use crate::{
    Clock, Fallocate, FileKind, Geometry, LiveInode, NewInode, PoolOptions, ROOT, RenameMode,
    SYSTEM, SetAttributes, Store, WriteAt, XattrMode,
};

/// Bytes of a sample.
pub const SAMPLE_LENGTH: u64 = 512 << 10;

/// Selection of a sample pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// Closed: the ring is empty.
    Closed = 0,
    /// After a crash: the ring is full of records.
    Crashed = 1,
    /// After a crash while files without a name are held.
    Orphans = 2,
    /// Closed, without data checksums.
    NoChecksums = 3,
}

impl Sample {
    /// All samples of pools.
    pub const ALL: [Sample; 4] = [
        Sample::Closed,
        Sample::Crashed,
        Sample::Orphans,
        Sample::NoChecksums,
    ];
}

/// The bytes of a sample.
pub fn sample(which: Sample) -> Vec<u8> {
    let region = Region::memory(SAMPLE_LENGTH, false).expect("memory for a pool");
    let geometry = Geometry {
        data_checksums: which != Sample::NoChecksums,
        ..Geometry::small()
    };
    Store::format(&region, &geometry).expect("the pool is large enough");
    forget_chance(&region);
    let options = PoolOptions {
        clock: Clock::Manual(Default::default()),
        ..PoolOptions::default()
    };
    let store = Store::open(region.clone(), options).expect("a new pool opens");
    fill(&store)
        .and_then(|()| share(&store))
        .expect("the sample fits into the pool");
    if which == Sample::Orphans {
        leave_orphans(&store).expect("the sample's files can be removed");
    }
    if matches!(which, Sample::Closed | Sample::NoChecksums) {
        store.close().expect("closing");
    }
    let mut bytes = vec![0; SAMPLE_LENGTH as usize];
    region.read(0, &mut bytes);
    bytes
}

/// Replaces identities, times and owners that are different each time.
fn forget_chance(region: &Region) {
    let mut bytes = vec![0; SAMPLE_LENGTH as usize];
    region.read(0, &mut bytes);
    let mut pool = PoolBytes::new(bytes);
    let mut superblock = pool.superblock().expect("a new pool has a superblock");
    (
        superblock.pool,
        superblock.unit,
        superblock.hash_key,
        superblock.created_ns,
    ) = ([1; 16], [2; 16], [3; 16], 0);
    superblock.crc = superblock.checksum();
    for number in [ROOT, SYSTEM] {
        let mut root = pool.inode(number);
        (root.uid, root.gid) = (0, 0);
        (
            root.accessed_ns,
            root.modified_ns,
            root.changed_ns,
            root.created_ns,
        ) = (0, 0, 0, 0);
        pool.put_inode(number, root);
    }
    for offset in SUPERBLOCKS {
        pool.bytes[offset as usize..][..size_of_val(&superblock)]
            .copy_from_slice(superblock.as_bytes());
    }
    region.write(0, &pool.bytes);
}

fn new(kind: FileKind) -> NewInode<'static> {
    NewInode {
        kind,
        permissions: 0o640,
        uid: 7,
        gid: 8,
        device: 0,
        target: b"",
        umask: 0,
    }
}

fn file(
    store: &Store,
    directory: &Arc<LiveInode>,
    name: &[u8],
) -> crate::error::Result<Arc<LiveInode>> {
    store
        .names()
        .create(&mut embedded(), directory, name, &new(FileKind::Regular))
}

fn fill(store: &Store) -> crate::error::Result<()> {
    let root = store.root();
    let directory = store.names().create(
        &mut embedded(),
        &root,
        b"directory",
        &new(FileKind::Directory),
    )?;
    let deep = store.names().create(
        &mut embedded(),
        &directory,
        b"deep",
        &new(FileKind::Directory),
    )?;
    store
        .names()
        .create(&mut embedded(), &deep, b"deeper", &new(FileKind::Directory))?;
    let small = file(store, &root, b"small")?;
    store
        .files()
        .write(&mut embedded(), &small, WriteAt::End, &[0x51; 100])?;
    let large = file(store, &deep, b"large")?;
    store.files().write(
        &mut embedded(),
        &large,
        WriteAt::End,
        &[0x52; 3 * crate::BLOCK + 5],
    )?;
    let every_second = file(store, &directory, b"sparse")?;
    sparse(store, &every_second, 7)?;
    let hole = file(store, &directory, b"hole")?;
    store.inodes().set_attributes(
        &mut embedded(),
        &hole,
        &SetAttributes {
            size: Some(1 << 40),
            ..SetAttributes::default()
        },
    )?;
    file(store, &root, b"empty")?;
    fill_directories(store, &directory, &deep, &small)?;
    fill_attributes(store, &deep, &every_second)
}

/// Links, special files and many names.
fn fill_directories(
    store: &Store,
    directory: &Arc<LiveInode>,
    deep: &Arc<LiveInode>,
    small: &Arc<LiveInode>,
) -> crate::error::Result<()> {
    let root = store.root();
    for (name, target) in [
        (&b"short"[..], &b"directory/deep"[..]),
        (b"long", &[b'x'; 300]),
    ] {
        let link = new(FileKind::Symlink);
        store
            .names()
            .create(&mut embedded(), &root, name, &NewInode { target, ..link })?;
    }
    store
        .names()
        .create(&mut embedded(), directory, b"pipe", &new(FileKind::Fifo))?;
    store.names().create(
        &mut embedded(),
        directory,
        b"device",
        &NewInode {
            device: 0x103,
            ..new(FileKind::CharacterDevice)
        },
    )?;
    // Enough names for several leaves.
    for index in 0..70 {
        store.names().link(
            &mut embedded(),
            small,
            deep,
            format!("{index:02}-a-name-of-more-than-sixty-bytes-so-that-leaves-fill-up-soon")
                .as_bytes(),
        )?;
    }
    for index in 10..30 {
        store.names().unlink(
            &mut embedded(),
            deep,
            format!("{index:02}-a-name-of-more-than-sixty-bytes-so-that-leaves-fill-up-soon")
                .as_bytes(),
        )?;
    }
    store.names().rename(
        &mut embedded(),
        deep,
        b"large",
        &root,
        b"moved",
        RenameMode::NoReplace,
    )
}

/// Allocated blocks, extended attributes and access control lists.
fn fill_attributes(
    store: &Store,
    deep: &Arc<LiveInode>,
    every_second: &Arc<LiveInode>,
) -> crate::error::Result<()> {
    let root = store.root();
    let allocated = file(store, &root, b"allocated")?;
    store.files().write(
        &mut embedded(),
        &allocated,
        WriteAt::Offset(5000),
        &[0x53; 100],
    )?;
    let mode = Fallocate::Allocate { keep_size: true };
    store.files().fallocate(
        &mut embedded(),
        &allocated,
        mode,
        0,
        5 * crate::BLOCK as u64,
    )?;
    for (name, value) in [
        (&b"user.first"[..], &b"value"[..]),
        (b"trusted.second", b""),
    ] {
        store
            .inodes()
            .set_xattr(&mut embedded(), &allocated, name, value, XattrMode::Create)?;
    }
    store.inodes().set_xattr(
        &mut embedded(),
        deep,
        b"user.name",
        &[b'v'; 900],
        XattrMode::Set,
    )?;
    for (node, name) in [(deep, DEFAULT), (every_second, ACCESS)] {
        store
            .inodes()
            .set_xattr(&mut embedded(), node, name, &list(), XattrMode::Set)?;
    }
    Ok(())
}

/// An access control list that names a user.
fn list() -> Vec<u8> {
    let entry = |tag: u8, permissions: u8, number: [u8; 4]| {
        [&[tag, 0, permissions, 0][..], &number].concat()
    };
    let nobody = [255; 4];
    let entries = [
        entry(1, 6, nobody),
        entry(2, 5, [9, 0, 0, 0]),
        entry(4, 4, nobody),
        entry(16, 5, nobody),
        entry(32, 0, nobody),
    ];
    [&[2, 0, 0, 0], &entries.concat()[..]].concat()
}

/// Another file, with blocks of a large one, of which it has some twice.
fn share(store: &Store) -> crate::error::Result<()> {
    let large = store.names().lookup(&store.root(), b"moved")?;
    let shared = store.names().create(
        &mut embedded(),
        &store.root(),
        b"shared",
        &new(FileKind::Regular),
    )?;
    for to in [0, 2 * crate::BLOCK as u64] {
        store.files().share(
            &mut embedded(),
            (&large, 0),
            (&shared, to),
            4 * crate::BLOCK as u64,
        )?;
    }
    Ok(())
}

/// Every second block, so that each is a separate extent.
fn sparse(store: &Store, node: &LiveInode, extents: u64) -> crate::error::Result<()> {
    for index in 0..extents {
        store.files().write(
            &mut embedded(),
            node,
            WriteAt::Offset(index * 2 * crate::BLOCK as u64),
            &[0x53; 64],
        )?;
    }
    Ok(())
}

fn leave_orphans(store: &Store) -> crate::error::Result<()> {
    let root = store.root();
    let removed =
        store
            .names()
            .create(&mut embedded(), &root, b"removed", &new(FileKind::Regular))?;
    sparse(store, &removed, 6)?;
    let empty = store.names().create(
        &mut embedded(),
        &root,
        b"removed-too",
        &new(FileKind::Directory),
    )?;
    for node in [&removed, &empty] {
        store.inodes().hold(node)?;
    }
    store.names().unlink(&mut embedded(), &root, b"removed")?;
    store
        .names()
        .remove_directory(&mut embedded(), &root, b"removed-too")
}
