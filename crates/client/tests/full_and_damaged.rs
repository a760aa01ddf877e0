//! `docs/SEMANTICS.md` on pools that are full or damaged, re-enacted.
#![forbid(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use client::{
    FileSystem, Geometry, LostData, OpenFlags, PoolOptions, Region, RenameMode, SetAttributes,
};
use common::{contents, errno, file_system, make_file};
use store::read_superblock;

const CREATE: OpenFlags = OpenFlags {
    create: true,
    ..OpenFlags::READ_WRITE
};

fn open(region: Region) -> FileSystem {
    FileSystem::open_region(region, PoolOptions::default()).expect("the pool opens")
}

/// Fills the pool with one file named `filler`.
fn fill(fs: &FileSystem) {
    let file = fs.open("filler", CREATE, 0o644).unwrap();
    for length in [1 << 18, 8192, 4096] {
        let data = vec![9; length];
        let error = loop {
            if let Err(error) = file.write(&data) {
                break error;
            }
        };
        assert_eq!(error.errno(), libc::ENOSPC);
    }
}

#[test]
fn a_full_pool_can_be_emptied() {
    let fs = file_system();
    fs.make_directory("d", 0o755).unwrap();
    make_file(&fs, "small", b"small");
    make_file(&fs, "cut", &[1; 100_000]);
    fill(&fs);
    assert_eq!(fs.statistics().unwrap().blocks_available, 0);
    fs.rename_path("small", "d/small", RenameMode::Replace)
        .unwrap();
    let change = SetAttributes {
        size: Some(5000),
        ..SetAttributes::default()
    };
    fs.set_attributes_path("cut", &change).unwrap();
    fs.remove_file("filler").unwrap();
    make_file(&fs, "again", &[2; 1_000_000]);
}

#[test]
fn a_full_pool_can_be_overwritten() {
    let fs = file_system();
    make_file(&fs, "file", &[1; 100_000]);
    fill(&fs);
    let file = fs.open("file", OpenFlags::WRITE, 0).unwrap();
    assert_eq!(file.write_at(&[2; 8192], 4096).unwrap(), 8192);
    assert_eq!(file.write_at(&[2; 100], 50_000).unwrap(), 100);
    // Longer ones need new blocks for as long as the old ones are there: 8 KiB are done, in place.
    assert_eq!(file.write_at(&[3; 65_536], 0).unwrap(), 8192);
    assert_eq!(contents(&fs, "file")[8190..8194], [3, 3, 2, 2]);
    assert_eq!(errno(file.write_at(&[2; 65_536], 200_000)), libc::ENOSPC);
}

/// A pool of two files, in the first of which one byte of the second block was damaged while it was closed.
fn damaged() -> FileSystem {
    let length = 16 << 20;
    let region = Region::memory(length, false).unwrap();
    FileSystem::format_region(&region, &Geometry::for_length(length)).unwrap();
    let fs = open(region.clone());
    for path in ["file", "other"] {
        make_file(&fs, path, &[7; 40_960]);
    }
    let file = fs.open("file", OpenFlags::WRITE, 0).unwrap();
    let mark: Vec<u8> = (0..4096u32).map(|index| (index * 7 % 253) as u8).collect();
    file.write_at(&mark, 4096).unwrap();
    drop(file);
    fs.close().unwrap();
    drop(fs);
    let mut bytes = vec![0; length as usize];
    region.read(0, &mut bytes);
    // The ring holds a copy of the block too.
    let places: Vec<usize> = (0..bytes.len())
        .step_by(64)
        .filter(|at| bytes[*at..].starts_with(&mark))
        .collect();
    assert!(!places.is_empty());
    for place in places {
        region.write(place as u64 + 100, &[255]);
    }
    open(region)
}

#[test]
fn only_what_is_damaged_fails() {
    let fs = damaged();
    let file = fs.open("file", OpenFlags::READ, 0).unwrap();
    let mut block = [0; 4096];
    assert_eq!(errno(file.read_at(&mut block, 4096)), libc::EIO);
    assert_eq!(errno(file.read_at(&mut block[..10], 5000)), libc::EIO);
    assert_eq!(errno(file.read_at(&mut [0; 40_960], 0)), libc::EIO);
    assert_eq!(file.read_at(&mut block, 0).unwrap(), 4096);
    assert_eq!(file.read_at(&mut [0; 32_768], 8192).unwrap(), 32_768);
    assert_eq!(contents(&fs, "other"), [7; 40_960]);
    make_file(&fs, "new", b"new");
}

#[test]
fn only_whole_writes_heal() {
    let fs = damaged();
    let file = fs.open("file", OpenFlags::READ_WRITE, 0).unwrap();
    let mut block = [0; 4096];
    file.write_at(&[1; 1000], 4196).unwrap();
    assert_eq!(errno(file.read_at(&mut block, 4096)), libc::EIO);
    file.write_at(&[1; 4096], 4096).unwrap();
    assert_eq!(file.read_at(&mut block, 4096).unwrap(), 4096);
    assert_eq!(block, [1; 4096]);
}

#[test]
fn lost_data_is_told_of_once() {
    let fs = damaged();
    let told: Arc<Mutex<Vec<LostData>>> = Arc::default();
    let hear = told.clone();
    fs.on_lost_data(move |lost| hear.lock().unwrap().push(*lost));
    let file = fs.open("file", OpenFlags::READ, 0).unwrap();
    for _ in 0..3 {
        assert_eq!(errno(file.read_at(&mut [0; 40_960], 0)), libc::EIO);
        assert_eq!(errno(file.read_at(&mut [0; 10], 8000)), libc::EIO);
    }
    let told = told.lock().unwrap();
    let [lost] = told[..] else {
        panic!("{told:?}");
    };
    let inode = fs.stat("file").unwrap().number;
    assert_eq!(
        (lost.inode, lost.offset, lost.is_last),
        (inode, 4096, false)
    );
    let line = lost.to_string();
    let begin = format!("inode {inode}, bytes 4096 to 8191: block {} of", lost.block);
    assert!(
        line.starts_with(&begin) && line.contains("`tako check`"),
        "{line}"
    );
    assert_eq!(line.lines().count(), 1);
}

/// However much is lost, the log and the memory for it stay short.
#[test]
fn a_thousand_blocks_are_told_of() {
    let length = 16 << 20;
    let region = Region::memory(length, false).unwrap();
    FileSystem::format_region(&region, &Geometry::for_length(length)).unwrap();
    let fs = open(region.clone());
    let blocks = 1100;
    make_file(&fs, "file", &vec![7; blocks * 4096]);
    let count = Arc::new(AtomicUsize::new(0));
    let hear = count.clone();
    fs.on_lost_data(move |lost| {
        let before = hear.fetch_add(1, Ordering::Relaxed);
        assert_eq!(lost.is_last, before == 999);
    });
    let file = fs.open("file", OpenFlags::READ, 0).unwrap();
    for block in 0..blocks as u64 {
        let at = file.next_extent(block * 4096).unwrap().unwrap();
        region.write(at.pool_offset + block * 4096 - at.offset, &[8]);
        assert_eq!(errno(file.read_at(&mut [0; 4096], block * 4096)), libc::EIO);
    }
    assert_eq!(count.load(Ordering::Relaxed), 1000);
}

#[test]
fn open_pools_grow() {
    let region = Region::memory(2 << 20, false).unwrap();
    FileSystem::format_region(&region, &Geometry::small()).unwrap();
    let fs = open(region.clone());
    make_file(&fs, "small", b"small");
    fill(&fs);
    let before = fs.statistics().unwrap();
    assert_eq!(errno(fs.grow(1 << 20)), libc::EINVAL);
    assert_eq!(errno(fs.grow(1 << 50)), libc::EFBIG);
    assert_eq!(fs.statistics().unwrap(), before);
    for length in [2 << 20, (3 << 20) + 12_345, 40 << 20] {
        fs.grow(length).unwrap();
        assert_eq!(read_superblock(&region).unwrap().pool_length, length);
    }
    let after = fs.statistics().unwrap();
    assert!(after.blocks_available > 8000 && after.inodes > 10 * before.inodes);
    assert_eq!(
        after.blocks - before.blocks,
        after.blocks_free - before.blocks_free
    );
    for index in 0..before.inodes_free + 10 {
        make_file(&fs, &format!("new-{index}"), &[3; 20_000]);
    }
    make_file(&fs, "large", &vec![4; 20 << 20]);
    // After a crash.
    let fs = open(region);
    assert_eq!(fs.statistics().unwrap().blocks, after.blocks);
    assert_eq!(contents(&fs, "large"), vec![4; 20 << 20]);
    assert_eq!(contents(&fs, "small"), b"small");
}
