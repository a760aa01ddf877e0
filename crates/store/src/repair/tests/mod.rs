use std::collections::BTreeMap;

use super::*;
use crate::format::superblock::{RING_STATES, SUPERBLOCKS};
use crate::format::{directory, extent};
use crate::fuzzing::{PoolBytes, SAMPLE_LENGTH, Sample, region_with, sample};
use crate::{
    BLOCK, Error, Geometry, LiveInode, NewInode, PoolOptions, Store, Transaction, WriteAt,
};

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.length() as usize];
    region.read(0, &mut bytes);
    bytes
}

/// A pool of 5 MiB with some work done in it, closed.
fn pool(work: impl FnOnce(&Store)) -> Region {
    let region = Region::memory(5 << 20, false).unwrap();
    Store::format(&region, &Geometry::small()).unwrap();
    let store = open(&region);
    work(&store);
    store.close().unwrap();
    region
}

fn open(region: &Region) -> Store {
    Store::open(region.clone(), PoolOptions::default()).unwrap()
}

fn create(store: &Store, at: &std::sync::Arc<LiveInode>, name: &str) -> std::sync::Arc<LiveInode> {
    let kind = match name.ends_with('/') {
        true => FileKind::Directory,
        false => FileKind::Regular,
    };
    let new = NewInode::new(kind, 0o644);
    let name = name.trim_end_matches('/').as_bytes();
    store
        .names()
        .create(&mut Transaction::embedded(), at, name, &new)
        .unwrap()
}

fn write(store: &Store, node: &LiveInode, block: u64) {
    let at = WriteAt::Offset(block * BLOCK as u64);
    store
        .files()
        .write(
            &mut Transaction::embedded(),
            node,
            at,
            &[block as u8; BLOCK],
        )
        .unwrap();
}

fn read(store: &Store, node: &LiveInode, block: u64) -> Result<u8> {
    let mut data = [0; BLOCK];
    store.files().read(node, block * BLOCK as u64, &mut data)?;
    Ok(data[7])
}

/// Puts noise into the nth block of metadata of an inode.
fn spoil(region: &Region, magic: u32, owner: u64, nth: usize) {
    let bytes = bytes_of(region);
    let image = PoolBytes::new(bytes.clone())
        .superblock()
        .unwrap()
        .image_offset as usize;
    let mut blocks = (image..bytes.len()).step_by(BLOCK);
    let start = [&magic.to_le_bytes()[..], &owner.to_le_bytes()].concat();
    let is_such =
        |at: &usize| bytes[*at..*at + 4] == start[..4] && bytes[*at + 8..*at + 16] == start[4..];
    let at = blocks.by_ref().filter(is_such).nth(nth).unwrap();
    region.write(at as u64 + 128, &[0x5a; 64]);
}

/// Repairs, and expects that nothing is left but lost data.
fn mend(region: &Region) -> Repair {
    let done = repair(region).unwrap();
    let is_lost = |it: &Finding| it.what == "the data does not match its checksum";
    assert!(done.left.findings.iter().all(is_lost), "{done:#?}");
    assert_eq!(repair(region).unwrap().done, []);
    done
}

fn names(store: &Store, node: &LiveInode) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let visit = &mut |entry: &crate::Entry| {
        let name = String::from_utf8(entry.name.clone()).unwrap();
        found.insert(name, entry.number);
        true
    };
    store.names().read_directory(node, 2, visit).unwrap();
    found
}

#[test]
fn a_whole_pool_is_only_recovered() {
    for which in Sample::ALL {
        let bytes = sample(which);
        let region = region_with(&bytes);
        let repaired = repair(&region).unwrap();
        assert_eq!((repaired.done, repaired.left.findings), (vec![], vec![]));
        let is_closed = matches!(which, Sample::Closed | Sample::NoChecksums);
        assert!(!is_closed || bytes_of(&region) == bytes, "{which:?}");
    }
}

#[test]
fn lost_extents_are_errors_and_not_zeros() {
    let mut number = 0;
    let region = pool(|store| {
        let file = create(store, &store.root(), "file");
        number = file.number();
        for block in 0..300 {
            write(store, &file, block * 2);
        }
    });
    spoil(&region, extent::MAGIC, number, 1);
    let done = mend(&region);
    assert!(
        done.done
            .iter()
            .any(|it| it.what.contains("of /file are lost"))
    );
    let store = open(&region);
    let file = store.inodes().node(number).unwrap();
    let mut lost = 0;
    for block in 0..300 {
        match read(&store, &file, block * 2) {
            Ok(byte) => assert_eq!(byte, (block * 2) as u8),
            Err(error) => {
                assert!(matches!(error, Error::Corrupt { .. }));
                lost += 1;
                write(&store, &file, block * 2);
                assert_eq!(read(&store, &file, block * 2), Ok((block * 2) as u8));
            }
        }
    }
    assert!((50..=126).contains(&lost), "{lost} blocks of one node");
    store
        .names()
        .unlink(&mut Transaction::embedded(), &store.root(), b"file")
        .unwrap();
    store.close().unwrap();
    let report = check(&region, &CheckOptions::default()).unwrap();
    assert_eq!((report.findings, report.blocks_used > 1), (vec![], false));
}

#[test]
fn files_without_a_name_are_in_lost_and_found() {
    let mut number = 0;
    let region = pool(|store| {
        let directory = create(store, &store.root(), "directory/");
        number = directory.number();
        for index in 0..120 {
            let name = format!("{index}-with-a-name-so-long-that-there-are-several-leaves");
            let name = name + if index % 10 == 0 { "/" } else { "" };
            let made = create(store, &directory, &name);
            if index % 10 == 0 {
                create(store, &made, "below");
            } else {
                write(store, &made, 0);
            }
        }
    });
    let mut total = 0;
    for round in 1..=2 {
        spoil(&region, directory::MAGIC, number, round);
        mend(&region);
        let store = open(&region);
        let root = store.root();
        let own = names(&store, &root);
        assert_eq!(own.keys().collect::<Vec<_>>(), ["directory", "lost+found"]);
        let found = names(&store, &store.inodes().node(own["lost+found"]).unwrap());
        let kept = names(&store, &store.inodes().node(own["directory"]).unwrap());
        assert_eq!(found.len() + kept.len(), 120);
        assert!(found.len() > total, "round {round}");
        total = found.len();
        for (name, number) in found {
            assert_eq!(name, format!("#{number}"));
            let node = store.inodes().node(number).unwrap();
            match store.inodes().attributes(&node).kind {
                FileKind::Directory => assert!(names(&store, &node).contains_key("below")),
                _ => assert_eq!(read(&store, &node, 0), Ok(0)),
            }
        }
        store.close().unwrap();
    }
}

#[test]
fn superblocks_with_a_flipped_bit_each_are_mended() {
    let whole = sample(Sample::Closed);
    let mut bytes = whole.clone();
    for (copy, offset) in SUPERBLOCKS.into_iter().enumerate() {
        bytes[offset as usize + 60 + 50 * copy] ^= 0x10;
    }
    assert!(check(&region_with(&bytes), &CheckOptions::default()).is_err());
    let region = region_with(&bytes);
    mend(&region);
    let superblock = |bytes: &[u8]| PoolBytes::new(bytes.to_vec()).superblock();
    assert_eq!(superblock(&bytes_of(&region)), superblock(&whole));
    // In more than a bit: such a pool cannot be repaired.
    bytes[60] ^= 0x3f;
    bytes[4096 + 60] ^= 0x3f;
    let region = region_with(&bytes);
    assert!(matches!(repair(&region), Err(Error::DamagedSuperblock(_))));
    assert!(bytes_of(&region) == bytes, "nothing is written then");
}

#[test]
fn a_ring_without_its_state_is_replayed() {
    for which in [Sample::Crashed, Sample::Orphans, Sample::Closed] {
        let mut bytes = sample(which);
        let whole = region_with(&bytes);
        let store = open(&whole);
        let expected = names(&store, &store.root());
        drop(store);
        for offset in RING_STATES {
            bytes[offset as usize..][..64].fill(0x77);
        }
        let region = region_with(&bytes);
        let done = mend(&region);
        assert!(done.done[0].what.contains("ring's state was lost"));
        let store = open(&region);
        assert_eq!(names(&store, &store.root()), expected, "{which:?}");
        assert_eq!(bytes.len() as u64, SAMPLE_LENGTH);
    }
}

#[test]
fn a_block_of_two_files_stays_with_the_one_changed_last() {
    let mut numbers = [0; 2];
    let region = pool(|store| {
        for (index, name) in ["first", "second"].into_iter().enumerate() {
            let file = create(store, &store.root(), name);
            write(store, &file, 9);
            numbers[index] = file.number();
        }
    });
    let mut pool = PoolBytes::new(bytes_of(&region));
    let (mut first, second) = (pool.inode(numbers[0]), pool.inode(numbers[1]));
    first.root[0].physical = second.root[0].physical;
    pool.put_inode(numbers[0], first);
    region.write(0, &pool.bytes);
    mend(&region);
    let store = open(&region);
    let [first, second] = numbers.map(|number| store.inodes().node(number).unwrap());
    assert!(read(&store, &first, 9).is_err());
    assert_eq!(read(&store, &second, 9), Ok(9));
}

#[test]
fn a_pool_without_free_blocks_is_repaired() {
    let mut number = 0;
    let region = pool(|store| {
        let root = store.root();
        let directory = create(store, &root, "directory/");
        number = directory.number();
        for index in 0..30 {
            create(store, &directory, &format!("{index}"));
        }
        let file = create(store, &root, "file");
        for block in 0.. {
            let at = WriteAt::Offset(block * BLOCK as u64);
            if store
                .files()
                .write(&mut Transaction::embedded(), &file, at, &[1; BLOCK])
                .is_err()
            {
                break;
            }
        }
    });
    spoil(&region, directory::MAGIC, number, 0);
    let done = mend(&region);
    let attached = done
        .done
        .iter()
        .filter(|it| it.what.contains("/lost+found/"));
    assert_eq!(attached.count(), 30);
}

#[test]
fn growing_makes_room_and_keeps_all() {
    let old = pool(|store| {
        write(store, &create(store, &store.root(), "file"), 3);
    });
    let region = Region::memory(9 << 20, false).unwrap();
    region.write(0, &vec![0xee; 9 << 20]);
    region.write(0, &bytes_of(&old));
    let before = open(&old).volume().statistics();
    let grown = open(&region).volume().grow().unwrap();
    assert_eq!(grown.pool_length, 9 << 20);
    let clean = |region: &Region| check(region, &CheckOptions::default()).unwrap().findings;
    assert_eq!(clean(&region), []);
    let store = open(&region);
    let after = store.volume().statistics();
    assert_eq!(
        after.blocks - before.blocks,
        after.blocks_free - before.blocks_free
    );
    assert!(after.blocks > before.blocks * 3 / 2 && after.inodes > before.inodes);
    let file = store.names().lookup(&store.root(), b"file").unwrap();
    assert_eq!(read(&store, &file, 3), Ok(3));
    let more = WriteAt::Offset(0);
    for index in 0..3 {
        let made = create(&store, &store.root(), &format!("{index}"));
        store
            .files()
            .write(&mut Transaction::embedded(), &made, more, &vec![7; 2 << 20])
            .unwrap();
    }
    store.close().unwrap();
    assert_eq!(clean(&region), []);
    // After a crash between the two superblocks.
    let superblock = &bytes_of(&old)[..BLOCK];
    region.write(0, superblock);
    assert_eq!(
        open(&region).volume().grow().unwrap().image_length,
        grown.image_length
    );
    // Nothing changes when there is nothing more.
    let store = open(&region);
    let before = store.volume().statistics();
    assert_eq!(
        store.volume().grow().unwrap().image_length,
        grown.image_length
    );
    assert_eq!(store.volume().statistics(), before);
}
