//! `docs/SEMANTICS.md` on ranges of files, re-enacted: allocated, punched, zeroed, taken out, put in.
#![forbid(unsafe_code)]

mod common;

use client::{Fallocate, File, FileSystem, OpenFlags};
use common::{contents, errno, file_system, make_file};

const CREATE: OpenFlags = OpenFlags {
    create: true,
    ..OpenFlags::READ_WRITE
};
const KEEP_SIZE: Fallocate = Fallocate::Allocate { keep_size: true };
const GROW: Fallocate = Fallocate::Allocate { keep_size: false };
const BLOCK: u64 = 4096;

fn new_file(fs: &FileSystem) -> File {
    fs.open("file", CREATE, 0o644).unwrap()
}

/// Units of 4096 bytes that the file holds.
fn blocks(file: &File) -> u64 {
    file.attributes().unwrap().blocks_512 / 8
}

fn size(file: &File) -> u64 {
    file.attributes().unwrap().size
}

/// Writes into another file until there is no space left.
fn fill(fs: &FileSystem) {
    let file = fs.open("filler", CREATE, 0o600).unwrap();
    for length in [1 << 20, 4096] {
        let data = vec![9; length];
        while file.write(&data).is_ok_and(|count| count == length) {}
    }
    assert_eq!(errno(file.write(&[9; 4096])), libc::ENOSPC);
}

#[test]
fn allocated_blocks_are_zeros() {
    let fs = file_system();
    let file = new_file(&fs);
    file.write_at(b"data", 5000).unwrap();
    file.fallocate(GROW, 100, 20_000).unwrap();
    assert_eq!((size(&file), blocks(&file)), (20_100, 5));
    let mut expected = vec![0; 20_100];
    expected[5000..5004].copy_from_slice(b"data");
    assert_eq!(contents(&fs, "file"), expected);
    // There is nothing in them to be found.
    assert_eq!(file.next_data(0).unwrap(), Some(4096));
    assert_eq!(file.next_hole(4096).unwrap(), Some(8192));
    file.fallocate(KEEP_SIZE, 1 << 20, 8192).unwrap();
    assert_eq!((size(&file), blocks(&file)), (20_100, 7));
    file.truncate(2 << 20).unwrap();
    expected.resize(2 << 20, 0);
    assert_eq!(contents(&fs, "file"), expected);
    assert_eq!(blocks(&file), 7);
    file.truncate(5003).unwrap();
    assert_eq!(blocks(&file), 2, "what was behind the end is free again");
    assert_eq!(errno(file.fallocate(GROW, 0, 0)), libc::EINVAL);
    assert_eq!(errno(file.fallocate(GROW, 1, 1 << 62)), libc::EFBIG);
    assert_eq!(errno(file.fallocate(GROW, 0, 1 << 40)), libc::ENOSPC);
    assert_eq!((size(&file), blocks(&file)), (5003, 2), "nothing was begun");
}

#[test]
fn allocated_blocks_can_be_written_in_a_full_pool() {
    let fs = file_system();
    let file = new_file(&fs);
    const LENGTH: usize = 3 << 20;
    file.fallocate(GROW, 0, LENGTH as u64).unwrap();
    fill(&fs);
    let held = blocks(&file);
    let mut expected = vec![0; LENGTH];
    // Every other block first, so that the extent tree grows as deep as it can.
    let small = (0..200).map(|index| (index * 8192 + 17, 100));
    let whole = (200..250).map(|index| (index * 8192, 4096));
    let long = [
        (LENGTH - (1 << 20) - 50, 1 << 20),
        (0, 300_000),
        (300_000, LENGTH - 300_000),
    ];
    for (index, (at, length)) in small.chain(whole).chain(long).enumerate() {
        let data = vec![index as u8 + 1; length];
        let mut done = 0;
        while done < length {
            done += file.write_at(&data[done..], (at + done) as u64).unwrap();
        }
        expected[at..at + length].copy_from_slice(&data);
    }
    assert!(contents(&fs, "file") == expected);
    assert!(blocks(&file) <= held + 8, "nodes of the tree only");
}

#[test]
fn punching_gives_blocks_back() {
    let fs = file_system();
    make_file(&fs, "file", &[7; 40_000]);
    let file = new_file(&fs);
    let free = fs.statistics().unwrap().blocks_free;
    file.fallocate(Fallocate::PunchHole, 5000, 20_000).unwrap();
    let mut expected = vec![7; 40_000];
    expected[5000..25_000].fill(0);
    assert!(contents(&fs, "file") == expected);
    assert_eq!((size(&file), blocks(&file)), (40_000, 6));
    assert_eq!(fs.statistics().unwrap().blocks_free, free + 4);
    assert_eq!(file.next_hole(0).unwrap(), Some(8192));
    // Inside one block, behind the end, and over all.
    file.fallocate(Fallocate::PunchHole, 10, 20).unwrap();
    expected[10..30].fill(0);
    file.fallocate(Fallocate::PunchHole, 100_000, 5000).unwrap();
    assert!(contents(&fs, "file") == expected);
    file.fallocate(Fallocate::PunchHole, 0, 1 << 40).unwrap();
    assert_eq!((size(&file), blocks(&file)), (40_000, 0));
    assert!(contents(&fs, "file") == [0; 40_000]);
}

#[test]
fn zeroed_ranges_keep_their_blocks() {
    let fs = file_system();
    make_file(&fs, "file", &[7; 40_000]);
    let file = new_file(&fs);
    let zero = |keep_size| Fallocate::ZeroRange { keep_size };
    file.fallocate(zero(true), 5000, 20_000).unwrap();
    let mut expected = vec![7; 40_000];
    expected[5000..25_000].fill(0);
    assert!(contents(&fs, "file") == expected);
    assert_eq!(blocks(&file), 10);
    file.fallocate(zero(true), 39_000, 50_000).unwrap();
    assert_eq!(size(&file), 40_000);
    file.fallocate(zero(false), 39_990, 50_000).unwrap();
    expected[39_000..].fill(0);
    expected.resize(89_990, 0);
    assert!(contents(&fs, "file") == expected);
    // In a full pool too: the former data makes room.
    fill(&fs);
    file.fallocate(zero(false), 0, 89_990).unwrap();
    assert!(contents(&fs, "file") == [0; 89_990]);
    assert_eq!(blocks(&file), 22);
}

/// A file of many extents, and its contents.
fn pieces(fs: &FileSystem, count: usize) -> (File, Vec<u8>) {
    let file = new_file(fs);
    let mut expected = vec![0; count * 8192 - 4096];
    for piece in 0..count {
        let (at, data) = (piece * 8192, [(piece as u8).wrapping_add(1); 4096]);
        file.write_at(&data, at as u64).unwrap();
        expected[at..at + 4096].copy_from_slice(&data);
    }
    (file, expected)
}

#[test]
fn ranges_are_taken_out_and_put_in() {
    let fs = file_system();
    let (file, mut expected) = pieces(&fs, 700);
    let mut random = 1u64;
    for round in 0..60 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(round);
        let last = expected.len() as u64 / BLOCK - 1;
        let at = (random >> 33) % last;
        let count = 1 + (random >> 20) % (if round % 7 == 0 { 300 } else { 9 });
        let (offset, length) = (at * BLOCK, count * BLOCK);
        let range = offset as usize..(offset + length) as usize;
        if random >> 63 == 0 {
            file.fallocate(Fallocate::InsertRange, offset, length)
                .unwrap();
            expected.splice(range.start..range.start, vec![0; length as usize]);
        } else if range.end < expected.len() {
            file.fallocate(Fallocate::CollapseRange, offset, length)
                .unwrap();
            expected.drain(range);
        }
        let data = [round as u8 + 100; 5000];
        file.write_at(&data, offset + 77).unwrap();
        let end = offset as usize + 5077;
        expected.resize(expected.len().max(end), 0);
        expected[end - 5000..end].copy_from_slice(&data);
        assert!(contents(&fs, "file") == expected, "round {round}");
    }
    for (mode, offset, length, error) in [
        (Fallocate::CollapseRange, 100, 4096, libc::EINVAL),
        (Fallocate::InsertRange, 4096, 100, libc::EINVAL),
        (Fallocate::CollapseRange, 0, 1 << 40, libc::EINVAL),
        (Fallocate::InsertRange, 1 << 40, 4096, libc::EINVAL),
        (Fallocate::InsertRange, 0, 1 << 61, 0),
        (Fallocate::InsertRange, 0, 1 << 61, libc::EFBIG),
    ] {
        let result = file.fallocate(mode, offset, length);
        let found = result.err().map_or(0, |error| error.errno());
        assert_eq!(found, error, "{mode:?} {offset} {length}");
    }
    drop(file);
    fs.remove_file("file").unwrap();
    assert_eq!(
        fs.statistics().unwrap().blocks_free,
        file_system().statistics().unwrap().blocks_free
    );
}

#[test]
fn a_file_in_too_many_pieces_is_not_moved() {
    let length = 16 << 20;
    let geometry = client::Geometry {
        ring_length: 64 << 10,
        ..client::Geometry::for_length(length)
    };
    let fs = common::file_system_of(length, &geometry);
    let (file, expected) = pieces(&fs, 1500);
    // Its tree has more nodes than a record of this pool has room for.
    assert_eq!(
        errno(file.fallocate(Fallocate::InsertRange, 4096, 4096)),
        libc::EFBIG
    );
    assert!(contents(&fs, "file") == expected);
}

#[test]
fn extents_say_where_data_is() {
    let (region, fs) = common::pool(16 << 20, &client::Geometry::for_length(16 << 20));
    let file = new_file(&fs);
    file.write_at(&[7; 10_000], 0).unwrap();
    file.fallocate(KEEP_SIZE, 20 * BLOCK, 2 * BLOCK).unwrap();
    let first = file.next_extent(0).unwrap().expect("data");
    assert_eq!((first.offset, first.length), (0, 3 * BLOCK));
    assert!(!first.is_unwritten);
    assert_eq!(file.next_extent(9_999).unwrap(), Some(first));
    let mut found = [0; 10_000];
    region.read(first.pool_offset, &mut found);
    assert_eq!(found, [7; 10_000], "the pool's own bytes");
    let second = file.next_extent(3 * BLOCK).unwrap().expect("blocks");
    assert_eq!((second.offset, second.length), (20 * BLOCK, 2 * BLOCK));
    assert!(second.is_unwritten);
    assert_eq!(file.next_extent(22 * BLOCK).unwrap(), None);
}
