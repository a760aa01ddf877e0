use std::collections::BTreeMap;
use std::sync::Arc;

use zerocopy::FromBytes;

use super::fuzzing::{
    Edit, Place, PoolBytes, SAMPLE_LENGTH, Sample, exercise, region_with, sample,
};
use super::*;
use crate::layout::directory::{EntryHeader, LeafHeader};
use crate::layout::extent::{ENTRIES, Extent, NodeHeader};
use crate::layout::group::GroupHeader;
use crate::layout::inode::Inode;
use crate::layout::superblock::RingState;
use crate::{
    FileKind, Geometry, NewInode, Node, Options, RenameMode, SetAttributes, Store, WriteAt,
};

/// Inodes of the samples.
const DIRECTORY: u16 = 2;
const DEEP: u16 = 3;
const DEEPER: u16 = 4;
const SMALL: u16 = 5;
const LARGE: u16 = 6;
const SPARSE: u16 = 7;
const HOLE: u16 = 8;
const EMPTY: u16 = 9;
const SHORT: u16 = 10;
const LONG: u16 = 11;
const PIPE: u16 = 12;
/// All kinds of checksums made right.
const ALL: u8 = u8::MAX;

fn check_bytes(bytes: &[u8]) -> Report {
    check(&region_with(bytes), &CheckOptions::default()).unwrap()
}

/// What a check says about a sample after some edits, with the checksums of `seals` made right.
fn report_after(which: Sample, edits: &[Edit], seals: u8) -> Report {
    let mut pool = PoolBytes::new(sample(which));
    edits.iter().for_each(|edit| pool.apply(edit));
    pool.seal(seals);
    check_bytes(&pool.bytes)
}

#[track_caller]
fn assert_finds(which: Sample, edits: &[Edit], seals: u8, words: &str) {
    let report = report_after(which, edits, seals);
    let found: Vec<String> = report.findings.iter().map(Finding::to_string).collect();
    assert!(
        found.iter().any(|finding| finding.contains(words)),
        "no {words:?} in {found:#?}"
    );
}

/// A random number below `bound` (xorshift, so that failures come back with their seed).
fn random(state: &mut u64, bound: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) % bound
}

/// All that a user can see of a pool.
fn tree(bytes: &[u8]) -> Result<BTreeMap<Vec<u8>, String>> {
    let store = Store::open(region_with(bytes), Options::default())?;
    let mut found = BTreeMap::new();
    let mut left = vec![(Vec::new(), store.root()?)];
    while let Some((path, node)) = left.pop() {
        let attributes = store.attributes(&node);
        let mut data = vec![0; attributes.size.min(100_000) as usize];
        if attributes.kind == FileKind::Regular {
            store.read(&node, 0, &mut data)?;
        } else if attributes.kind == FileKind::Symlink {
            data = store.read_link(&node)?;
        } else if attributes.kind == FileKind::Directory {
            store.read_directory(&node, 2, &mut |entry| {
                left.push((
                    [&path[..], b"/", &entry.name].concat(),
                    store.node(entry.number).unwrap(),
                ));
                true
            })?;
        }
        found.insert(
            path,
            format!("{attributes:?} {:x}", crate::checksum::crc32c(&data)),
        );
    }
    Ok(found)
}

#[test]
fn samples_are_clean_and_stay_so() {
    for which in Sample::ALL {
        let bytes = sample(which);
        assert_eq!(bytes, sample(which), "samples are always the same");
        let report = check_bytes(&bytes);
        assert_eq!(report.findings, []);
        let orphans = if which == Sample::Orphans { 2 } else { 0 };
        assert_eq!((report.inodes - orphans, report.orphans), (13, orphans));
        assert_eq!(
            report.records_replayed > 0,
            matches!(which, Sample::Crashed | Sample::Orphans)
        );
        exercise(&bytes).unwrap();
    }
    assert_eq!(
        report_after(Sample::Closed, &[], ALL).findings,
        [],
        "sealing changes nothing"
    );
}

#[test]
fn a_new_pool_is_clean() {
    for (length, geometry) in [
        (512 << 10, Geometry::small()),
        (5 << 20, Geometry::small()),
        (40 << 20, Geometry::for_length(40 << 20)),
    ] {
        let region = Region::memory(length, false).unwrap();
        Store::format(&region, &geometry).unwrap();
        let report = check(&region, &CheckOptions::default()).unwrap();
        assert_eq!(
            (report.findings, report.inodes, report.blocks_used),
            (vec![], 1, 0)
        );
    }
}

#[test]
fn what_is_no_pool_is_an_error() {
    let options = CheckOptions::default();
    assert_eq!(
        check(&region_with(&[0; 4096]), &options),
        Err(Error::NotAPool)
    );
    let mut pool = PoolBytes::new(sample(Sample::Closed));
    pool.bytes.truncate(SAMPLE_LENGTH as usize / 2);
    assert!(matches!(
        check(&region_with(&pool.bytes), &options),
        Err(Error::Truncated { .. })
    ));
}

fn inode(number: u16, offset: usize, width: u8, value: u64) -> Edit {
    Edit::set(Place::Inode, number, offset, width, value)
}

#[test]
fn damage_before_the_image_is_found() {
    let finds = |edits: &[Edit], seals, words| assert_finds(Sample::Closed, edits, seals, words);
    finds(
        &[Edit::set(Place::Superblock, 0, 40, 1, 9)],
        0,
        "first copy of the superblock is bad: both",
    );
    finds(
        &[Edit::set(Place::Superblock, 1, 0, 1, 1)],
        ALL,
        "second copy of the superblock is bad: this is not",
    );
    finds(
        &[Edit::set(Place::Superblock, 1, 150, 1, 77)],
        ALL,
        "two copies of the superblock differ",
    );
    finds(
        &[Edit::set(Place::Pool, 0, 4000, 1, 1)],
        ALL,
        "not zero behind its end",
    );
    let ring = |copy, offset, value| Edit::set(Place::RingState, copy, offset, 4, value);
    let start = std::mem::offset_of!(RingState, start);
    let epoch = std::mem::offset_of!(RingState, epoch);
    finds(&[ring(0, 20, 1)], 0, "a damaged first copy");
    finds(
        &[ring(1, start, 64 * 77), ring(1, epoch, 9)],
        0,
        "a damaged second copy",
    );
    finds(
        &[ring(0, epoch, 9), ring(1, epoch, 0)],
        0,
        "only damaged copies",
    );
    finds(&[ring(1, epoch, 99)], ALL, "contradicting copies");
    finds(&[ring(1, start, 1 << 30)], ALL, "contradicting copies");
    finds(
        &[ring(0, 20, 1), ring(1, 20, 1)],
        ALL,
        "bytes that should be zero in a copy",
    );
    finds(
        &[Edit::set(Place::RingState, 0, start, 8, 1 << 63)],
        ALL,
        "cannot have come to position",
    );
    // What a crash leaves while the second copy is written: its new epoch arrived, its position did not.
    let torn = [ring(1, start, 64 * 77)];
    assert_eq!(report_after(Sample::Closed, &torn, 0).findings, []);
    // An operation of no kind in a record with a good checksum.
    assert_finds(
        Sample::Crashed,
        &[Edit::set(Place::Record, 3, 32, 1, 99)],
        ALL,
        "an operation that is not possible",
    );
}

#[test]
fn damage_of_maps_is_found() {
    let finds = |edits: &[Edit], seals, words| assert_finds(Sample::Closed, edits, seals, words);
    finds(
        &[Edit::set(Place::Header, 0, 0, 1, 0)],
        ALL,
        "block 0: a group header is damaged",
    );
    finds(
        &[Edit::set(Place::Header, 0, 20, 1, 1)],
        0,
        "block 0: a group header is damaged",
    );
    finds(
        &[Edit::set(
            Place::Header,
            0,
            std::mem::offset_of!(GroupHeader, reserved),
            1,
            1,
        )],
        ALL,
        "should be zero",
    );
    finds(
        &[Edit::set(Place::Header, 0, 64 + 5 * 4, 1, 1)],
        ALL & !PoolBytes::BITMAPS,
        "line 5 of the bitmap of blocks",
    );
    finds(
        &[Edit::set(Place::Bitmap, 2, 4095, 1, 1)],
        0,
        "line 63 of the bitmap of orphans",
    );
    finds(
        &[Edit::set(Place::Bitmap, 1, 8, 1, 1)],
        ALL,
        "bitmap of inodes has bits behind its end",
    );
    finds(
        &[Edit::set(Place::Bitmap, 0, 13, 1, 0xff)],
        ALL,
        "bitmap of blocks has bits behind its end",
    );
    finds(
        &[Edit::set(Place::Bitmap, 0, 12, 1, 6)],
        ALL,
        "block 97: this and the next 1 are marked as used",
    );
    finds(
        &[Edit::set(Place::Bitmap, 0, 0, 8, u64::MAX << 1)],
        ALL,
        "block 0: in use, but marked as free",
    );
    finds(
        &[Edit::set(Place::Bitmap, 0, 0, 2, 0)],
        ALL,
        "block 0: this and the next 15 are in use, but marked as free",
    );
    finds(
        &[Edit::set(Place::Bitmap, 1, 0, 2, 0x3ffe)],
        ALL,
        "inode 0: the inode is free, but the bitmap has it as free",
    );
    finds(
        &[Edit::set(Place::Bitmap, 1, 0, 2, 0x3ff7)],
        ALL,
        "inode 3: the inode is in use, but the bitmap has it as free",
    );
    finds(
        &[Edit::set(Place::Bitmap, 1, 7, 1, 0x80)],
        ALL,
        "inode 63: the inode is free, but the bitmap has it as used",
    );
    finds(
        &[Edit::set(Place::Bitmap, 2, 7, 1, 0x80)],
        ALL,
        "inode 63: the inode is free, but noted as an orphan",
    );
    finds(
        &[Edit::set(Place::Bitmap, 2, 0, 1, 1 << SMALL)],
        ALL,
        "noted as an orphan, but has nothing to reclaim",
    );
}

/// Offset of a field of an inode.
macro_rules! field {
    ($field:ident) => {
        std::mem::offset_of!(Inode, $field)
    };
}

#[test]
fn damage_of_inodes_is_found() {
    let finds = |edits: &[Edit], seals, words| assert_finds(Sample::Closed, edits, seals, words);
    for (number, offset, width, value, words) in [
        (
            SMALL,
            field!(version),
            8,
            1 << 40,
            "newer than the last record",
        ),
        (
            SMALL,
            field!(version),
            8,
            1 << 63,
            "newer than the last record",
        ),
        (SMALL, field!(mode), 4, 0o030_644, "is of no kind of file"),
        (SMALL, field!(mode), 4, 0o1_100_644, "unknown bits"),
        (
            SMALL,
            field!(mode),
            4,
            0,
            "the inode is free, but not cleared",
        ),
        (SMALL, field!(flags), 4, 1, "unknown flags"),
        (SMALL, field!(reserved), 4, 1, "should be zero"),
        (SMALL, field!(attributes), 8, 30, "extended attributes"),
        (
            SMALL,
            field!(parent),
            8,
            1,
            "only directories have a parent",
        ),
        (
            SMALL,
            field!(entries),
            8,
            1,
            "only directories have entries",
        ),
        (SMALL, field!(size), 8, 1 << 63, "larger than a file can be"),
        (SMALL, field!(size), 8, 50, "not zero behind the end"),
        (SMALL, field!(size), 8, 0, "blocks behind the end"),
        (
            SMALL,
            field!(blocks),
            8,
            2,
            "says that it holds 2 blocks, but it holds 1",
        ),
        (
            SMALL,
            field!(links),
            4,
            3,
            "says that it has 3 names, but 51 lead to it",
        ),
        (
            SMALL,
            field!(links),
            4,
            0,
            "the inode has no links, but is not noted",
        ),
        (SMALL, field!(links), 4, 0, "51 names lead to it"),
        (
            SMALL,
            field!(count),
            2,
            5,
            "root of the extent tree is damaged",
        ),
        (
            SMALL,
            field!(count),
            2,
            0,
            "root of the extent tree is damaged",
        ),
        (
            SMALL,
            field!(depth),
            2,
            7,
            "root of the extent tree is damaged",
        ),
        (
            SMALL,
            field!(root) + 8,
            8,
            3,
            "root of the extent tree is damaged",
        ),
        (
            SMALL,
            field!(root) + 16,
            4,
            200,
            "root of the extent tree is damaged",
        ),
        (SMALL, field!(root) + 24, 8, 1, "should be zero"),
        (
            SMALL,
            field!(root) + 8,
            8,
            60,
            "block 60: in use, but marked as free",
        ),
        (
            SMALL,
            field!(generation),
            4,
            9,
            "leads to an earlier or later inode 5",
        ),
        (
            LARGE,
            field!(root),
            8,
            1 << 52,
            "root of the extent tree is damaged",
        ),
        (SPARSE, field!(depth), 2, 0, "use"),
        (
            SPARSE,
            field!(depth),
            2,
            2,
            "a node of the extent tree is damaged",
        ),
        (
            HOLE,
            field!(blocks),
            8,
            1,
            "says that it holds 1 blocks, but it holds 0",
        ),
        (
            EMPTY,
            field!(mode),
            4,
            0o010_644,
            "says another kind than inode 9",
        ),
        (SHORT, field!(size), 8, 0, "cannot have 0 bytes"),
        (SHORT, field!(size), 8, 5, "bytes behind the link's target"),
        (SHORT, field!(root) + 3, 1, 0, "has a NUL in it"),
        (
            SHORT,
            field!(size),
            8,
            200,
            "root of the extent tree is damaged",
        ),
        (LONG, field!(size), 8, 299, "bytes behind the link's target"),
        (LONG, field!(size), 8, 301, "has a NUL in it"),
        (LONG, field!(size), 8, 4096, "cannot have 4096 bytes"),
        (LONG, field!(root), 8, 1, "must be in one block"),
        (
            PIPE,
            field!(size),
            8,
            1,
            "root of the extent tree is damaged",
        ),
        (DEEP, field!(entries), 8, 1, "says that it has 1 names"),
        (DEEP, field!(size), 8, 4096, "the directory has size 4096"),
        (
            DEEP,
            field!(parent),
            8,
            1,
            "leads to directory 3, whose parent is 1",
        ),
        (
            DEEP,
            field!(links),
            4,
            7,
            "the directory has 7 links, but 1 subdirectories",
        ),
        (
            DEEP,
            field!(links),
            4,
            0,
            "the directory was removed, but has names",
        ),
        (DEEPER, field!(mode), 4, 0o100_644, "says another kind"),
        (1, field!(parent), 8, 2, "the root is not its own parent"),
        (1, field!(mode), 4, 0o100_644, "the root is not a directory"),
        (1, field!(mode), 4, 0, "the root is not a directory"),
        (1, field!(links), 4, 0, "the root has no links"),
        (
            0,
            field!(mode),
            4,
            0o100_644,
            "number 0 must not be an inode",
        ),
    ] {
        finds(&[inode(number, offset, width, value)], ALL, words);
        finds(
            &[inode(number, offset, width, value)],
            0,
            "does not match its checksum",
        );
    }
}

#[test]
fn damage_of_trees_is_found() {
    let finds = |edits: &[Edit], seals, words| assert_finds(Sample::Closed, edits, seals, words);
    let node = |offset, width, value| [Edit::set(Place::Node, 0, offset, width, value)];
    let entry = |index: usize, offset| ENTRIES + index * size_of::<Extent>() + offset;
    finds(&node(4000, 1, 9), 0, "a node of the extent tree is damaged");
    for (offset, width, value, words) in [
        (
            std::mem::offset_of!(NodeHeader, level),
            2,
            1,
            "a node of the extent tree is damaged",
        ),
        (
            std::mem::offset_of!(NodeHeader, count),
            2,
            0,
            "a node of the extent tree is damaged",
        ),
        (
            std::mem::offset_of!(NodeHeader, count),
            2,
            127,
            "a node of the extent tree is damaged",
        ),
        (
            std::mem::offset_of!(NodeHeader, count),
            2,
            6,
            "says that it holds 8 blocks, but it holds 7",
        ),
        (
            std::mem::offset_of!(NodeHeader, block),
            8,
            50,
            "a node of the extent tree is damaged",
        ),
        (
            std::mem::offset_of!(NodeHeader, owner),
            8,
            5,
            "belongs to another file",
        ),
        (
            std::mem::offset_of!(NodeHeader, generation),
            4,
            5,
            "belongs to another file",
        ),
        (
            std::mem::offset_of!(NodeHeader, reserved),
            4,
            5,
            "should be zero",
        ),
        (entry(1, 0), 8, 0, "a node of the extent tree is damaged"),
        (entry(1, 8), 8, 5, "a node of the extent tree is damaged"),
        (entry(1, 16), 4, 0, "a node of the extent tree is damaged"),
        (entry(1, 24), 8, 1, "should be zero"),
        (entry(6, 0), 8, 14, "blocks behind the end"),
    ] {
        finds(&node(offset, width, value), ALL, words);
    }
    // A second child, from key 3 on: what the first one has behind it is not found any more.
    let second = size_of::<Extent>() + field!(root);
    let edits = [
        inode(SPARSE, field!(count), 2, 2),
        inode(SPARSE, second, 8, 3),
        inode(SPARSE, second + 8, 8, 60),
    ];
    finds(
        &edits,
        ALL,
        "key 4 of the extent tree is where lookups do not find it",
    );
    let root_block = |value| inode(SMALL, field!(root) + 8, 8, value);
    let pool = PoolBytes::new(sample(Sample::Closed));
    let used = pool.inode(u64::from(SPARSE)).root[0].physical;
    finds(&[root_block(used)], ALL, "is in use elsewhere");
    finds(
        &[Edit::set(
            Place::Node,
            0,
            entry(1, 8),
            8,
            pool.inode(u64::from(SMALL)).root[0].physical,
        )],
        ALL,
        "in use elsewhere",
    );
    let of_small = pool.inode(u64::from(SMALL)).root[0].physical;
    finds(
        &[inode(SPARSE, field!(root) + 8, 8, of_small)],
        ALL,
        "a node of the extent tree is in use elsewhere",
    );
}

#[test]
fn damage_of_data_is_found() {
    let pool = PoolBytes::new(sample(Sample::Closed));
    let [small, large, long] =
        [SMALL, LARGE, LONG].map(|number| pool.inode(u64::from(number)).root[0].physical as u16);
    for block in [small, large, large + 2, long] {
        let edits = [Edit::set(Place::Block, block, 1, 1, 1)];
        assert_finds(
            Sample::Closed,
            &edits,
            0,
            &format!("block {block}: the data does not match its checksum"),
        );
        let mut pool = PoolBytes::new(sample(Sample::Closed));
        pool.apply(&edits[0]);
        let report = check(
            &region_with(&pool.bytes),
            &CheckOptions {
                data: block == small,
            },
        )
        .unwrap();
        assert_eq!(report.is_clean(), block != small);
        assert_eq!(
            report_after(Sample::Closed, &edits, ALL).findings,
            [],
            "other data, but whole"
        );
    }
    let behind = [Edit::set(Place::Block, small, 100, 1, 1)];
    assert_finds(
        Sample::NoChecksums,
        &behind,
        0,
        "not zero behind the end of the file",
    );
    assert_finds(
        Sample::Closed,
        &behind,
        ALL,
        "not zero behind the end of the file",
    );
}

/// Block and offset of the entry of a name.
fn entry(pool: &PoolBytes, name: &[u8]) -> (u16, usize) {
    let image = &pool.bytes[pool.layout().unwrap().1 as usize..];
    let end = [&[name.len() as u8, 0, 0, 0, 0, 0, 0], name].concat();
    let at = image
        .windows(end.len())
        .position(|bytes| bytes == end)
        .unwrap();
    let start = at - std::mem::offset_of!(EntryHeader, name_length);
    ((start / BLOCK) as u16, start % BLOCK)
}

#[test]
fn damage_of_leaves_is_found() {
    let pool = PoolBytes::new(sample(Sample::Closed));
    let (index, first) = entry(&pool, b"directory");
    let finds = |offset, width, value, words| {
        assert_finds(
            Sample::Closed,
            &[Edit::set(Place::Block, index, offset, width, value)],
            ALL,
            words,
        );
    };
    assert_finds(
        Sample::Closed,
        &[Edit::set(Place::Block, index, 4000, 1, 9)],
        0,
        "a directory leaf is damaged",
    );
    for (offset, width, value, words) in [
        (
            std::mem::offset_of!(LeafHeader, owner),
            8,
            2,
            "belongs elsewhere",
        ),
        (
            std::mem::offset_of!(LeafHeader, generation),
            4,
            7,
            "belongs elsewhere",
        ),
        (
            std::mem::offset_of!(LeafHeader, block),
            8,
            2,
            "a directory leaf is damaged",
        ),
        (
            std::mem::offset_of!(LeafHeader, logical),
            8,
            1 << 32,
            "a directory leaf is damaged",
        ),
        (
            std::mem::offset_of!(LeafHeader, depth),
            2,
            33,
            "a directory leaf is damaged",
        ),
        (
            std::mem::offset_of!(LeafHeader, count),
            2,
            3,
            "a directory leaf is damaged",
        ),
        (
            std::mem::offset_of!(LeafHeader, heap),
            2,
            64,
            "a directory leaf is damaged",
        ),
        (
            std::mem::offset_of!(LeafHeader, dead),
            2,
            8,
            "a directory leaf is damaged",
        ),
        (
            std::mem::offset_of!(LeafHeader, reserved),
            4,
            8,
            "should be zero",
        ),
        (
            std::mem::offset_of!(LeafHeader, padding),
            8,
            8,
            "should be zero",
        ),
        (
            first + 32,
            1,
            u64::from(b'/'),
            "a directory leaf is damaged",
        ),
        (
            first + 32,
            1,
            u64::from(b'Q'),
            "has the hash of another name",
        ),
        (
            first + std::mem::offset_of!(EntryHeader, number),
            8,
            40,
            "leads to inode 40, which is not in use",
        ),
        (
            first + std::mem::offset_of!(EntryHeader, number),
            8,
            0,
            "leads to inode 0, which is not in use",
        ),
        (
            first + std::mem::offset_of!(EntryHeader, number),
            8,
            u64::MAX,
            "which is not in use",
        ),
        (
            first + std::mem::offset_of!(EntryHeader, number),
            8,
            1,
            "leads to directory 1, whose parent is 1",
        ),
        (
            first + std::mem::offset_of!(EntryHeader, generation),
            4,
            3,
            "leads to an earlier or later inode",
        ),
        (
            first + std::mem::offset_of!(EntryHeader, unit),
            4,
            3,
            "leads to a unit that this pool does not know",
        ),
        (
            first + std::mem::offset_of!(EntryHeader, kind),
            1,
            6,
            "says another kind",
        ),
        (
            first + std::mem::offset_of!(EntryHeader, reserved),
            1,
            6,
            "should be zero",
        ),
    ] {
        finds(offset, width, value, words);
    }
}

#[test]
fn leaves_that_overlap_and_entries_that_overlap_are_found() {
    let pool = PoolBytes::new(sample(Sample::Closed));
    let first = (0..9)
        .filter_map(|leaf| Some((leaf, pool.locate(Place::Leaf, leaf)?.0)))
        .map(|(leaf, at)| {
            (
                leaf,
                at,
                LeafHeader::read_from_prefix(&pool.bytes[at..]).unwrap().0,
            )
        })
        .find(|(_, _, header)| header.owner == u64::from(DEEP) && header.logical == 0);
    let (leaf, at, header) = first.unwrap();
    let set = |offset, value| Edit::set(Place::Leaf, leaf, offset, 2, value);
    let depth = set(
        std::mem::offset_of!(LeafHeader, depth),
        u64::from(header.depth) - 1,
    );
    assert_finds(Sample::Closed, &[depth], ALL, "overlap or leave a gap");
    // A second slot for the first entry, with the room that removed entries left.
    let slot = u32::read_from_prefix(&pool.bytes[at + 64..]).unwrap().0;
    let length =
        pool.bytes[at + (slot >> 16) as usize + std::mem::offset_of!(EntryHeader, name_length)];
    let dead =
        u64::from(header.dead) - crate::layout::directory::entry_size(length as usize) as u64;
    let edits = [
        set(
            std::mem::offset_of!(LeafHeader, count),
            u64::from(header.count) + 1,
        ),
        set(std::mem::offset_of!(LeafHeader, dead), dead),
        Edit::set(
            Place::Leaf,
            leaf,
            64 + header.count as usize * 4,
            4,
            u64::from(slot),
        ),
    ];
    assert_finds(
        Sample::Closed,
        &edits,
        ALL,
        "entries of a directory leaf overlap",
    );
    assert_finds(Sample::Closed, &edits, ALL, "is there twice");
}

#[test]
fn directories_in_a_circle_are_found() {
    // "deep" becomes the parent of "directory", in which it is: the root's entry leads to "deeper" instead.
    let pool = PoolBytes::new(sample(Sample::Closed));
    let ((root_leaf, in_root), (deep_leaf, in_deep)) =
        (entry(&pool, b"directory"), entry(&pool, b"deeper"));
    let edits = [
        Edit::set(Place::Block, root_leaf, in_root + 8, 8, u64::from(DEEPER)),
        Edit::set(
            Place::Block,
            deep_leaf,
            in_deep + 8,
            8,
            u64::from(DIRECTORY),
        ),
        inode(DEEPER, field!(parent), 8, 1),
        inode(DIRECTORY, field!(parent), 8, u64::from(DEEP)),
    ];
    let report = report_after(Sample::Closed, &edits, ALL);
    let lost = [DIRECTORY, DEEP].map(|number| Finding {
        what: "no way from the root leads to the directory".into(),
        inode: Some(u64::from(number)),
        block: None,
    });
    assert_eq!(report.findings, lost);
}

#[test]
fn a_flipped_byte_is_found_or_changes_nothing() {
    for which in [Sample::Closed, Sample::Orphans] {
        let whole = sample(which);
        let expected = tree(&whole).unwrap();
        let mut bytes = whole.clone();
        let superblock = PoolBytes::new(whole.clone()).superblock().unwrap();
        let ring = superblock.ring_offset as usize..superblock.image_offset as usize;
        let step = if cfg!(debug_assertions) { 61 } else { 7 };
        for at in (0..bytes.len()).step_by(step) {
            // A record that does not match its checksum is where a crash cut the ring off.
            if which == Sample::Orphans && ring.contains(&at) {
                continue;
            }
            bytes[at] ^= 0x41;
            let report = check(&region_with(&bytes), &CheckOptions::default());
            if report.is_ok_and(|report| report.is_clean()) {
                assert_eq!(
                    tree(&bytes).as_ref(),
                    Ok(&expected),
                    "a damaged byte at {at} of {which:?} is not found"
                );
            }
            bytes[at] = whole[at];
        }
    }
}

#[test]
fn random_damage_breaks_nothing() {
    let samples = Sample::ALL.map(sample);
    let places = [
        Place::Superblock,
        Place::RingState,
        Place::Record,
        Place::Header,
        Place::Bitmap,
        Place::Inode,
    ];
    let places: Vec<Place> = places
        .into_iter()
        .chain([Place::Block, Place::Node, Place::Leaf, Place::Inode])
        .collect();
    for seed in 1..=4000u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut below = |bound| random(&mut state, bound);
        let mut pool = PoolBytes::new(samples[below(4) as usize].clone());
        for _ in 0..=below(3) {
            if below(2) == 0 {
                let at = below(SAMPLE_LENGTH) as usize;
                pool.bytes[at] ^= 1 << below(8);
            } else {
                let place = places[below(places.len() as u64) as usize];
                let (index, offset, width) = (below(20) as u16, below(4096) as u16, below(4) as u8);
                let value = [below(200), 1 << below(64), u64::MAX][below(3) as usize];
                pool.apply(&Edit {
                    place,
                    index,
                    offset: offset & !7 | offset & 4,
                    action: width,
                    value,
                });
            }
        }
        pool.seal(if below(4) == 0 { 0 } else { ALL });
        println!("seed {seed}");
        let _ = exercise(&pool.bytes);
    }
}

fn new_inode(kind: FileKind) -> NewInode<'static> {
    NewInode {
        kind,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        device: 0,
        target: b"somewhere",
    }
}

fn memory_pool(length: u64, geometry: &Geometry) -> (Region, Store) {
    let region = Region::memory(length, false).unwrap();
    Store::format(&region, geometry).unwrap();
    let store = Store::open(region.clone(), Options::default()).unwrap();
    (region, store)
}

#[track_caller]
fn assert_clean(region: &Region, when: &str) {
    let mut copy = vec![0; region.length() as usize];
    region.read(0, &mut copy);
    assert_eq!(check_bytes(&copy).findings, [], "{when}");
}

#[test]
fn trees_stay_right_in_any_order_of_writes() {
    let (region, store) = memory_pool(
        8 << 20,
        &Geometry {
            blocks_per_group: 2048,
            ..Geometry::small()
        },
    );
    let root = store.root().unwrap();
    let descending = store
        .create(&root, b"descending", &new_inode(FileKind::Regular))
        .unwrap();
    for index in (0..300u64).rev() {
        store
            .write(
                &descending,
                WriteAt::Offset(index * 2 * BLOCK as u64),
                &[1; BLOCK],
            )
            .unwrap();
    }
    assert_clean(&region, "after writes from the end to the beginning");
    let random_file = store
        .create(&root, b"random", &new_inode(FileKind::Regular))
        .unwrap();
    let mut state = 1;
    for round in 0..2000 {
        let (at, blocks) = (random(&mut state, 600), 1 + random(&mut state, 8));
        store
            .write(
                &random_file,
                WriteAt::Offset(at * BLOCK as u64),
                &vec![2; blocks as usize * BLOCK],
            )
            .unwrap();
        if round % 50 == 0 {
            assert_clean(&region, &format!("after {round} writes"));
        }
    }
    store
        .set_attributes(
            &random_file,
            &SetAttributes {
                size: Some(77),
                ..SetAttributes::default()
            },
        )
        .unwrap();
    assert_clean(&region, "after it was cut");
}

/// A name out of many, short or long.
fn random_name(state: &mut u64) -> Vec<u8> {
    let number = random(state, 150);
    let length = if number.is_multiple_of(7) {
        250
    } else {
        1 + number as usize % 60
    };
    let mut name = number.to_string().into_bytes();
    name.resize(name.len().max(length), b'n');
    name
}

/// One random operation; that it may fail is part of it.
fn random_step(
    store: &Store,
    directories: &mut Vec<Arc<Node>>,
    held: &mut Vec<Arc<Node>>,
    state: &mut u64,
) {
    let (name, other_name) = (random_name(state), random_name(state));
    let directory = directories[random(state, directories.len() as u64) as usize].clone();
    let other = directories[random(state, directories.len() as u64) as usize].clone();
    let found = store.lookup(&directory, &name).ok();
    let _ = match (random(state, 12), found) {
        (0, _) => store
            .create(&directory, &name, &new_inode(FileKind::Directory))
            .map(|made| directories.push(made)),
        (1, _) => store
            .create(&directory, &name, &new_inode(FileKind::Symlink))
            .map(drop),
        (2 | 3, None) => store
            .create(&directory, &name, &new_inode(FileKind::Regular))
            .map(drop),
        (2..5, Some(node)) => {
            let (offset, length) = (random(state, 90_000), random(state, 30_000) as usize);
            store
                .write(&node, WriteAt::Offset(offset), &vec![7; length])
                .map(drop)
        }
        (5, Some(node)) => {
            let size = Some(random(state, 100_000));
            store
                .set_attributes(
                    &node,
                    &SetAttributes {
                        size,
                        ..SetAttributes::default()
                    },
                )
                .map(drop)
        }
        (6, Some(node)) => store.link(&node, &other, &other_name),
        (7 | 8, _) => store.unlink(&directory, &name),
        (9, _) => store.remove_directory(&directory, &name),
        (10, Some(node)) => store.hold(&node).map(|()| held.push(node)),
        (11, _) if !held.is_empty() => store.release(
            &held.swap_remove(random(state, held.len() as u64) as usize),
            1,
        ),
        (choice, _) => {
            let mode = [
                RenameMode::Replace,
                RenameMode::Exchange,
                RenameMode::NoReplace,
            ][choice as usize % 3];
            store.rename(&directory, &name, &other, &other_name, mode)
        }
    };
}

#[test]
fn random_work_leaves_a_clean_pool() {
    for seed in 1..=6u64 {
        // Pools of one and of several groups, which get full.
        let length = if seed % 2 == 0 { 1 << 20 } else { 5 << 20 };
        let (region, mut store) = memory_pool(length, &Geometry::small());
        let mut state = seed;
        let (mut directories, mut held) = (vec![store.root().unwrap()], Vec::new());
        for step in 1..=3000 {
            random_step(&store, &mut directories, &mut held, &mut state);
            if step % 100 == 0 {
                assert_clean(&region, &format!("seed {seed}, step {step}"));
            }
            if step % 500 == 0 {
                // A crash: what was held is gone.
                held.clear();
                store = Store::open(region.clone(), Options::default()).unwrap();
                directories = vec![store.root().unwrap()];
                assert_clean(
                    &region,
                    &format!("seed {seed}, opened again at step {step}"),
                );
            }
        }
    }
}
