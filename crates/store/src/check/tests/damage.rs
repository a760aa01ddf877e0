//! One fault at a time, each with the finding that it must lead to.

use zerocopy::FromBytes;

use super::*;
use crate::format::directory::{EntryHeader, LeafHeader, SLOT, SLOTS, entry_size};
use crate::format::extent::{ENTRIES, Extent, NodeHeader};
use crate::format::group::{GroupHeader, owners_word};
use crate::format::inode::Inode;
use crate::format::superblock::RingState;
use crate::format::xattr::{self, XattrHeader};
use crate::fuzzing::PoolPart;

/// Inodes of the samples.
const DIRECTORY: u16 = 3;
const DEEP: u16 = 4;
const DEEPER: u16 = 5;
const SMALL: u16 = 6;
const LARGE: u16 = 7;
const SPARSE: u16 = 8;
const HOLE: u16 = 9;
const EMPTY: u16 = 10;
const SHORT: u16 = 11;
const LONG: u16 = 12;
const PIPE: u16 = 13;
const SHARED: u16 = 16;

/// Sets a value (of some bytes) in a structure of the closed sample, makes checksums right, and expects words:
/// `place, index, [offset, width] = value => words;`
macro_rules! finds {
    ($seals:expr; $($place:ident $index:expr, [$offset:expr, $width:expr] = $value:expr => $words:expr;)*) => {
        $({
            let edit = Edit::set(PoolPart::$place, $index, $offset, $width, $value);
            assert_finds(Sample::Closed, &[edit], $seals, $words);
        })*
    };
}

macro_rules! at {
    ($structure:ident.$field:ident) => {
        std::mem::offset_of!($structure, $field)
    };
}

fn set_inode(number: u16, offset: usize, width: u8, value: u64) -> Edit {
    Edit::set(PoolPart::Inode, number, offset, width, value)
}

fn closed() -> PoolBytes {
    PoolBytes::new(sample(Sample::Closed))
}

#[test]
fn damage_before_the_image_is_found() {
    finds! { 0;
        Superblock 0, [40, 1] = 9 => "first copy of the superblock is bad: both";
        RingState 0, [20, 1] = 1 => "a damaged first copy";
        RingState 1, [at!(RingState.reserved), 1] = 1 => "a damaged second copy";
    }
    finds! { ALL;
        Superblock 1, [0, 1] = 1 => "second copy of the superblock is bad: this is not";
        Superblock 1, [150, 1] = 77 => "two copies of the superblock differ";
        Pool 0, [4000, 1] = 1 => "first copy of the superblock is not zero behind its end";
        RingState 1, [at!(RingState.reserved), 8] = 1 => "bytes that should be zero in a copy";
        RingState 0, [at!(RingState.start), 8] = 1 << 63 => "of the ring's state";
    }
    let ring = |copy, offset, value| Edit::set(PoolPart::RingState, copy, offset, 4, value);
    let (epoch, start) = (at!(RingState.epoch), at!(RingState.start));
    let both_words = [ring(1, start, 64 * 77), ring(1, epoch, 9)];
    assert_finds(Sample::Closed, &both_words, 0, "a damaged second copy");
    let both_copies = [ring(0, epoch, 9), ring(1, epoch, 0)];
    assert_finds(Sample::Closed, &both_copies, 0, "only damaged copies");
    // Result of a crash while the second copy is written: only one of its words arrived.
    let torn = report_after(Sample::Closed, &[ring(1, start, 64 * 77)], 0);
    assert_eq!(torn.findings, []);
    // An operation of no kind in a record with a good checksum.
    let operation = [Edit::set(PoolPart::Record, 3, 32, 1, 99)];
    assert_finds(
        Sample::Crashed,
        &operation,
        ALL,
        "an operation that is not possible",
    );
}

#[test]
fn damage_of_maps_is_found() {
    finds! { 0;
        Header 0, [20, 1] = 1 => "block 0: a group header is damaged";
        Bitmap 2, [4095, 1] = 1 => "line 63 of the bitmap of orphans";
    }
    finds! { ALL & !PoolBytes::BITMAPS;
        Header 0, [64 + 5 * 4, 1] = 1 => "line 5 of the bitmap of blocks";
    }
    finds! { ALL;
        Header 0, [0, 1] = 0 => "block 0: a group header is damaged";
        Header 0, [at!(GroupHeader.reserved), 1] = 1 => "should be zero";
        Bitmap 1, [8, 1] = 1 => "bitmap of inodes has bits behind its end";
        Bitmap 0, [13, 1] = 0xff => "bitmap of blocks has bits behind its end";
        Bitmap 0, [12, 1] = 6 => "block 97: this and the next 1 are marked as used";
        Bitmap 0, [0, 8] = u64::MAX << 1 => "block 0: in use, but marked as free";
        Bitmap 0, [0, 2] = 0 => "block 0: this and the next 15 are in use, but marked as free";
        Bitmap 1, [0, 2] = 0x7ffe => "inode 0: the inode is free, but the bitmap has it as free";
        Bitmap 1, [0, 2] = 0x7ff7 => "inode 3: the inode is in use, but the bitmap has it as free";
        Bitmap 1, [7, 1] = 0x80 => "inode 63: the inode is free, but the bitmap has it as used";
        Bitmap 2, [7, 1] = 0x80 => "inode 63: the inode is free, but noted as an orphan";
        Bitmap 2, [0, 1] = 1 << SMALL => "noted as an orphan, but has nothing to reclaim";
    }
}

#[test]
fn damage_of_counts_of_owners_is_found() {
    // The first block of a file of which another one has two copies; it has the last one once.
    let block = closed().inode(LARGE.into()).root[0].physical;
    let at = |block: u64| block as usize * 4;
    let (first, last) = (at(block), at(block + 3));
    let one = owners_word(1);
    let flags = at!(Inode.root) + at!(Extent.flags);
    assert!(report_after(Sample::Closed, &[], ALL).is_clean());
    finds! { ALL;
        Owners 0, [first, 4] = 0 => "has 2 owners beside the first, but its count says 0";
        Owners 0, [first, 4] = one.into() => "has 2 owners beside the first, but its count says 1";
        Owners 0, [first, 1] = 1 => "the count of the block's owners is damaged";
        Owners 0, [last + 2, 1] = 0 => "the count of the block's owners is damaged";
        Owners 0, [last, 4] = u32::MAX.into() => "has 1 owners beside the first, but its count says 65535";
        Owners 0, [0, 4] = one.into() => "block 0: the block has 0 owners beside the first, but";
        Inode SMALL, [flags, 2] = 4 => "root of the extent tree is damaged";
        Inode DEEP, [flags, 2] = 2 => "only a file's blocks can be shared";
        Inode LONG, [flags, 2] = 2 => "only a file's blocks can be shared";
        Inode LARGE, [flags, 2] = 0 => "are in use elsewhere";
        Inode SHARED, [flags, 2] = 0 => "are in use elsewhere";
        Owners 0, [at(511), 4] = one.into() => "block 511: the block has 0 owners beside";
    }
}

#[test]
fn damage_of_inodes_is_found() {
    let root = at!(Inode.root);
    finds! { 0;
        Inode SMALL, [at!(Inode.size), 1] = 1 => "inode 6: the inode does not match its checksum";
        Inode 40, [at!(Inode.mode), 1] = 1 => "inode 40: the inode does not match its checksum";
    }
    finds! { ALL;
        Inode SMALL, [at!(Inode.version), 8] = 1 << 40 => "newer than the last record";
        Inode SMALL, [at!(Inode.version), 8] = 1 << 63 => "newer than the last record";
        Inode SMALL, [at!(Inode.mode), 4] = 0o030_644 => "is of no kind of file";
        Inode SMALL, [at!(Inode.mode), 4] = 0o1_100_644 => "unknown bits";
        Inode SMALL, [at!(Inode.mode), 4] = 0 => "the inode is free, but not cleared";
        Inode SMALL, [at!(Inode.flags), 4] = 8 => "unknown flags";
        Inode SMALL, [at!(Inode.flags), 4] = 1 => "only a file in the system directory can be";
        Inode PIPE, [at!(Inode.flags), 4] = 2 => "a flag that none of its kind has";
        Inode LONG, [at!(Inode.flags), 4] = 4 => "a flag that none of its kind has";
        Inode DEEP, [at!(Inode.flags), 4] = 1 => "a flag that none of its kind has";
        Inode SPARSE, [at!(Inode.mode), 4] = 0o100_600 => "does not say what the mode says";
        Inode SMALL, [at!(Inode.attributes), 8] = 1 << 40 => "extended attributes is in use elsewhere";
        Inode SMALL, [at!(Inode.attributes), 8] = 90 => "block of extended attributes is damaged";
        Inode DEEP, [at!(Inode.attributes), 8] = 0 => "but it holds";
        Inode SMALL, [at!(Inode.parent), 8] = 1 => "only directories have a parent";
        Inode SMALL, [at!(Inode.entries), 8] = 1 => "only directories have entries";
        Inode SMALL, [at!(Inode.size), 8] = 1 << 63 => "larger than a file can be";
        Inode SMALL, [at!(Inode.size), 8] = 50 => "not zero behind the end";
        Inode SMALL, [at!(Inode.size), 8] = 0 => "blocks behind the end";
        Inode SMALL, [at!(Inode.blocks), 8] = 2 => "says that it holds 2 blocks, but it holds 1";
        Inode SMALL, [at!(Inode.links), 4] = 3 => "says that it has 3 names, but 51 lead to it";
        Inode SMALL, [at!(Inode.links), 4] = 0 => "the inode has no links, but is not noted";
        Inode SMALL, [at!(Inode.links), 4] = 0 => "51 names lead to it";
        Inode SMALL, [at!(Inode.count), 2] = 5 => "root of the extent tree is damaged";
        Inode SMALL, [at!(Inode.count), 2] = 0 => "root of the extent tree is damaged";
        Inode SMALL, [at!(Inode.depth), 2] = 7 => "root of the extent tree is damaged";
        Inode SMALL, [root + 8, 8] = 3 => "root of the extent tree is damaged";
        Inode SMALL, [root + 16, 4] = 200 => "root of the extent tree is damaged";
        Inode SMALL, [root + 22, 2] = 3 => "root of the extent tree is damaged";
        Inode SPARSE, [root + 22, 2] = 1 => "root of the extent tree is damaged";
        Inode DEEP, [root + 22, 2] = 1 => "only a file's blocks can be unwritten";
        Inode LONG, [root + 22, 2] = 1 => "only a file's blocks can be unwritten";
        Inode SMALL, [root + 24, 8] = 1 => "should be zero";
        Inode SMALL, [root + 8, 8] = 60 => "block 60: in use, but marked as free";
        Inode SMALL, [at!(Inode.generation), 4] = 9 => "leads to an earlier or later inode 6";
        Inode LARGE, [root, 8] = 1 << 52 => "root of the extent tree is damaged";
        Inode SPARSE, [at!(Inode.depth), 2] = 2 => "a node of the extent tree is damaged";
        Inode SPARSE, [at!(Inode.depth), 2] = 0 => "root of the extent tree is damaged";
        Inode HOLE, [at!(Inode.blocks), 8] = 1 => "says that it holds 1 blocks, but it holds 0";
        Inode EMPTY, [at!(Inode.mode), 4] = 0o010_644 => "says another kind than inode 10";
        Inode SHORT, [at!(Inode.size), 8] = 0 => "cannot have 0 bytes";
        Inode SHORT, [at!(Inode.size), 8] = 5 => "bytes behind the link's target";
        Inode SHORT, [at!(Inode.size), 8] = 200 => "root of the extent tree is damaged";
        Inode SHORT, [root + 3, 1] = 0 => "has a NUL in it";
        Inode LONG, [at!(Inode.size), 8] = 299 => "bytes behind the link's target";
        Inode LONG, [at!(Inode.size), 8] = 301 => "has a NUL in it";
        Inode LONG, [at!(Inode.size), 8] = 4096 => "cannot have 4096 bytes";
        Inode LONG, [root, 8] = 1 => "must be in one block";
        Inode PIPE, [at!(Inode.size), 8] = 1 => "root of the extent tree is damaged";
        Inode DEEP, [at!(Inode.entries), 8] = 1 => "says that it has 1 names";
        Inode DEEP, [at!(Inode.size), 8] = 4096 => "the directory has size 4096";
        Inode DEEP, [at!(Inode.parent), 8] = 1 => "leads to directory 4 with parent 1";
        Inode DEEP, [at!(Inode.links), 4] = 7 => "has 7 links, but 1 subdirectories";
        Inode DEEP, [at!(Inode.links), 4] = 0 => "the directory was removed, but has names";
        Inode DEEPER, [at!(Inode.mode), 4] = 0o100_644 => "says another kind";
        Inode 1, [at!(Inode.parent), 8] = 2 => "the root is not its own parent";
        Inode 1, [at!(Inode.mode), 4] = 0o100_644 => "the root is not a directory";
        Inode 1, [at!(Inode.mode), 4] = 0 => "the root is not a directory";
        Inode 1, [at!(Inode.links), 4] = 0 => "the root has no links";
        Inode 2, [at!(Inode.parent), 8] = 1 => "the system directory is not its own parent";
        Inode 2, [at!(Inode.mode), 4] = 0o100_644 => "the system directory is not a directory";
        Inode 2, [at!(Inode.mode), 4] = 0 => "the system directory is not a directory";
        Inode 0, [at!(Inode.mode), 4] = 0o100_644 => "number 0 must not be an inode";
    }
}

#[test]
fn damage_of_extended_attributes_is_found() {
    let damaged = "the block of extended attributes is damaged";
    finds! { 0;
        Xattrs 0, [70, 1] = 1 => damaged;
        Xattrs 0, [4000, 1] = 1 => damaged;
    }
    finds! { ALL;
        Xattrs 0, [at!(XattrHeader.block), 8] = 5 => damaged;
        Xattrs 0, [at!(XattrHeader.owner), 8] = 5 => "belongs to another file";
        Xattrs 0, [at!(XattrHeader.generation), 4] = 5 => "belongs to another file";
        Xattrs 0, [at!(XattrHeader.count), 2] = 5 => damaged;
        Xattrs 0, [at!(XattrHeader.end), 2] = 4096 => damaged;
        Xattrs 0, [at!(XattrHeader.end), 2] = 64 => damaged;
        Xattrs 0, [at!(XattrHeader.end), 2] = u64::from(u16::MAX) => damaged;
        Xattrs 0, [at!(XattrHeader.reserved), 8] = 1 => damaged;
        Xattrs 0, [xattr::ENTRIES, 1] = 0 => damaged;
        Xattrs 0, [xattr::ENTRIES + 1, 1] = 1 => damaged;
        Xattrs 0, [xattr::ENTRIES + 2, 2] = 4000 => damaged;
        Xattrs 0, [xattr::ENTRIES + 4, 1] = 0 => damaged;
    }
}

#[test]
fn damage_of_trees_is_found() {
    let entry = |index: usize, offset| ENTRIES + index * size_of::<Extent>() + offset;
    let block_of_small = closed().inode(u64::from(SMALL)).root[0].physical;
    let node_of_sparse = closed().inode(u64::from(SPARSE)).root[0].physical;
    let root_block = at!(Inode.root) + 8;
    finds! { 0;
        TreeNode 0, [4000, 1] = 9 => "a node of the extent tree is damaged";
    }
    finds! { ALL;
        TreeNode 0, [at!(NodeHeader.level), 2] = 1 => "a node of the extent tree is damaged";
        TreeNode 0, [at!(NodeHeader.count), 2] = 0 => "a node of the extent tree is damaged";
        TreeNode 0, [at!(NodeHeader.count), 2] = 127 => "a node of the extent tree is damaged";
        TreeNode 0, [at!(NodeHeader.count), 2] = 6 => "says that it holds 9 blocks, but it holds 8";
        TreeNode 0, [at!(NodeHeader.block), 8] = 50 => "a node of the extent tree is damaged";
        TreeNode 0, [at!(NodeHeader.owner), 8] = 5 => "belongs to another file";
        TreeNode 0, [at!(NodeHeader.generation), 4] = 5 => "belongs to another file";
        TreeNode 0, [at!(NodeHeader.reserved), 4] = 5 => "should be zero";
        TreeNode 0, [entry(1, 0), 8] = 0 => "a node of the extent tree is damaged";
        TreeNode 0, [entry(1, 8), 8] = 5 => "a node of the extent tree is damaged";
        TreeNode 0, [entry(1, 16), 4] = 0 => "a node of the extent tree is damaged";
        TreeNode 0, [entry(1, 24), 8] = 1 => "should be zero";
        TreeNode 0, [entry(6, 0), 8] = 14 => "blocks behind the end";
        TreeNode 0, [entry(1, 8), 8] = block_of_small => "are in use elsewhere";
        Inode SMALL, [root_block, 8] = node_of_sparse => "in use elsewhere";
        Inode SPARSE, [root_block, 8] = block_of_small => "a node of the extent tree is in use";
    }
    // A second child, from key 3 on: later entries of the first one are not found any more.
    let second = at!(Inode.root) + size_of::<Extent>();
    let edits = [
        set_inode(SPARSE, at!(Inode.count), 2, 2),
        set_inode(SPARSE, second, 8, 3),
        set_inode(SPARSE, second + 8, 8, 60),
    ];
    let words = "key 4 of the extent tree is where lookups do not find it";
    assert_finds(Sample::Closed, &edits, ALL, words);
}

#[test]
fn damage_of_data_is_found() {
    let first_block = |number: u16| closed().inode(u64::from(number)).root[0].physical as u16;
    for block in [SMALL, LARGE, LONG].map(first_block) {
        let edit = Edit::set(PoolPart::Block, block, 1, 1, 1);
        let words = format!("block {block}: the data does not match its checksum");
        assert_finds(Sample::Closed, &[edit], 0, &words);
        let other_data = report_after(Sample::Closed, &[edit], ALL);
        assert_eq!(other_data.findings, []);
        let mut pool = closed();
        pool.apply(&edit);
        let metadata_only = CheckOptions { data: false };
        let report = check(&region_with(&pool.bytes), &metadata_only).unwrap();
        assert_eq!(report.findings, []);
    }
    let behind_the_end = [Edit::set(PoolPart::Block, first_block(SMALL), 100, 1, 1)];
    for (which, seals) in [(Sample::Closed, ALL), (Sample::NoChecksums, 0)] {
        assert_finds(
            which,
            &behind_the_end,
            seals,
            "not zero behind the end of the file",
        );
    }
}

/// Block and offset of the entry of a name.
fn entry(pool: &PoolBytes, name: &[u8]) -> (u16, usize) {
    let image = &pool.bytes[pool.layout().unwrap().1 as usize..];
    let end = [&[name.len() as u8, 0, 0, 0, 0, 0, 0], name].concat();
    let at = image.windows(end.len()).position(|bytes| bytes == end);
    let start = at.unwrap() - at!(EntryHeader.name_length);
    ((start / BLOCK) as u16, start % BLOCK)
}

#[test]
fn damage_of_leaves_is_found() {
    let (block, first) = entry(&closed(), b"directory");
    finds! { 0;
        Block block, [first, 1] = 9 => "a directory leaf is damaged";
    }
    finds! { ALL;
        Block block, [at!(LeafHeader.owner), 8] = 2 => "belongs elsewhere";
        Block block, [at!(LeafHeader.generation), 4] = 7 => "belongs elsewhere";
        Block block, [at!(LeafHeader.block), 8] = 2 => "a directory leaf is damaged";
        Block block, [at!(LeafHeader.logical), 8] = 1 << 32 => "a directory leaf is damaged";
        Block block, [at!(LeafHeader.depth), 2] = 33 => "a directory leaf is damaged";
        Block block, [at!(LeafHeader.count), 2] = 3 => "a directory leaf is damaged";
        Block block, [at!(LeafHeader.heap), 2] = 64 => "a directory leaf is damaged";
        Block block, [at!(LeafHeader.dead), 2] = 8 => "a directory leaf is damaged";
        Block block, [at!(LeafHeader.reserved), 4] = 8 => "should be zero";
        Block block, [at!(LeafHeader.padding), 8] = 8 => "should be zero";
        Block block, [first + 32, 1] = u64::from(b'/') => "a directory leaf is damaged";
        Block block, [first + 32, 1] = u64::from(b'Q') => "has the hash of another name";
        Block block, [first + at!(EntryHeader.number), 8] = 40 => "leads to inode 40, which is not";
        Block block, [first + at!(EntryHeader.number), 8] = 0 => "leads to inode 0, which is not";
        Block block, [first + at!(EntryHeader.number), 8] = u64::MAX => "which is not in use";
        Block block, [first + at!(EntryHeader.number), 8] = 1 => "leads to directory 1 with";
        Block block, [first + at!(EntryHeader.number), 8] = 2 => "leads to directory 2 with";
        Block block, [first + at!(EntryHeader.generation), 4] = 3 => "an earlier or later inode";
        Block block, [first + at!(EntryHeader.unit), 4] = 3 => "leads to a unit that this pool";
        Block block, [first + at!(EntryHeader.kind), 1] = 6 => "says another kind";
        Block block, [first + at!(EntryHeader.reserved), 1] = 6 => "should be zero";
    }
}

#[test]
fn leaves_and_entries_that_overlap_are_found() {
    let pool = closed();
    let leaves = (0..9).filter_map(|index| Some((index, pool.locate(PoolPart::Leaf, index)?.0)));
    let (index, start, header) = leaves
        .map(|(index, start)| (index, start, &pool.bytes[start..]))
        .map(|(index, start, bytes)| (index, start, LeafHeader::read_from_prefix(bytes).unwrap().0))
        .find(|(_, _, header)| header.owner == u64::from(DEEP) && header.logical == 0)
        .unwrap();
    let set = |offset, value| Edit::set(PoolPart::Leaf, index, offset, 2, value);
    let lower = set(at!(LeafHeader.depth), u64::from(header.depth) - 1);
    assert_finds(Sample::Closed, &[lower], ALL, "overlap or leave a gap");
    // A second slot for the first entry, with the room that removed entries left.
    let slot = u32::read_from_prefix(&pool.bytes[start + SLOTS..])
        .unwrap()
        .0;
    let name_length = start + (slot >> 16) as usize + at!(EntryHeader.name_length);
    let length = entry_size(pool.bytes[name_length] as usize) as u64;
    let behind_slots = SLOTS + header.count as usize * SLOT;
    let edits = [
        set(at!(LeafHeader.count), u64::from(header.count) + 1),
        set(at!(LeafHeader.dead), u64::from(header.dead) - length),
        Edit::set(PoolPart::Leaf, index, behind_slots, 4, u64::from(slot)),
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
    // "deep" becomes the parent of "directory", in which it is; the root's entry leads to "deeper" instead.
    let (root_leaf, in_root) = entry(&closed(), b"directory");
    let (deep_leaf, in_deep) = entry(&closed(), b"deeper");
    let number = at!(EntryHeader.number);
    let set_entry =
        |leaf, entry, to: u16| Edit::set(PoolPart::Block, leaf, entry + number, 8, to.into());
    let edits = [
        set_entry(root_leaf, in_root, DEEPER),
        set_entry(deep_leaf, in_deep, DIRECTORY),
        set_inode(DEEPER, at!(Inode.parent), 8, 1),
        set_inode(DIRECTORY, at!(Inode.parent), 8, u64::from(DEEP)),
    ];
    let lost = [DIRECTORY, DEEP].map(|number| Finding {
        what: "no way from the root leads to the directory".into(),
        inode: Some(u64::from(number)),
        block: None,
    });
    assert_eq!(report_after(Sample::Closed, &edits, ALL).findings, lost);
}
