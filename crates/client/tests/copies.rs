//! `docs/SEMANTICS.md` on copies that share blocks, re-enacted.
#![forbid(unsafe_code)]

mod common;

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use client::{Fallocate, File, FileSystem, Geometry, OpenFlags, PoolOptions, Region};
use common::{contents, errno, file_system, file_system_of, make_file, pool};
use rustix::time::{ClockId, clock_gettime};
use store::{CheckOptions, Store};

const CREATE: OpenFlags = OpenFlags {
    create: true,
    ..OpenFlags::READ_WRITE
};
const MIB: usize = 1 << 20;

fn open(fs: &FileSystem, path: &str) -> File {
    fs.open(path, CREATE, 0o644).unwrap()
}

/// Copies a whole file to a new one.
fn copy(fs: &FileSystem, from: &str, to: &str) {
    let from = open(fs, from);
    let size = from.attributes().unwrap().size;
    let copied = from.copy_range(0, &open(fs, to), 0, size).unwrap();
    assert_eq!(copied, size);
}

/// Bytes that differ from one to the next.
fn bytes(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|at| seed.wrapping_add((at % 251) as u8))
        .collect()
}

/// State after a crash of the process, checked, and opened again.
fn crashed(region: &Region) -> FileSystem {
    let mut bytes = vec![0; region.length() as usize];
    region.read(0, &mut bytes);
    let with_bytes = || {
        let copy = Region::memory(bytes.len() as u64, false).unwrap();
        copy.write(0, &bytes);
        copy
    };
    let report = store::check(&with_bytes(), &CheckOptions::default()).unwrap();
    assert_eq!(report.findings, []);
    common::open(with_bytes(), PoolOptions::default())
}

/// Writes into another file until there is no space left.
fn fill(fs: &FileSystem) {
    let file = open(fs, "filler");
    for length in [MIB, 4096] {
        let data = vec![9; length];
        while file.write(&data).is_ok_and(|count| count == length) {}
    }
    assert_eq!(errno(file.write(&[9; 4096])), libc::ENOSPC);
}

/// Processor time of this thread, which other threads do not increase.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn copies_take_no_blocks_of_data() {
    let length = 160 << 20;
    let fs = file_system_of(length, &Geometry::for_length(length));
    let file = open(&fs, "file");
    for part in 0..64 {
        file.write(&bytes(MIB, part)).unwrap();
    }
    let free = fs.statistics().unwrap().blocks_free;
    let start = processor_time();
    copy(&fs, "file", "copy");
    let shared = processor_time() - start;
    assert!(
        fs.statistics().unwrap().blocks_free > free - 256,
        "less than 1 MiB"
    );
    // The same, a byte further, has to be copied.
    let start = processor_time();
    let other = open(&fs, "other");
    assert_eq!(file.copy_range(0, &other, 1, 64 << 20).unwrap(), 64 << 20);
    let copied = processor_time() - start;
    println!("64 MiB shared in {shared:?}, copied in {copied:?}");
    assert!(shared * 10 < copied, "{shared:?}, copied in {copied:?}");
    let blocks = |path: &str| fs.stat(path).unwrap().blocks_512;
    assert_eq!(blocks("copy"), blocks("file"), "shared blocks count as own");
    let mut found = vec![0; MIB];
    for part in 0..64 {
        let copy = open(&fs, "copy");
        copy.read_at(&mut found, u64::from(part) << 20).unwrap();
        assert!(found == bytes(MIB, part));
    }
}

#[test]
fn writes_are_seen_in_one_of_two_copies() {
    const SIZE: usize = 300_007;
    for side in ["file", "copy"] {
        for change in 0..8 {
            let (region, fs) = pool(16 << 20, &Geometry::for_length(16 << 20));
            make_file(&fs, "file", &bytes(SIZE, 3));
            copy(&fs, "file", "copy");
            let mut expected = bytes(SIZE, 3);
            let file = open(&fs, side);
            let mut write = |at: usize, length: usize| {
                file.write_at(&vec![0xee; length], at as u64).unwrap();
                expected.resize(expected.len().max(at + length), 0);
                expected[at..at + length].fill(0xee);
            };
            match change {
                0 => write(5, 1),
                1 => write(8192, 4096),
                2 => write(8000, 8192),
                3 => write(4097, 200_000),
                4 => write(SIZE, 100),
                5 => {
                    file.truncate(5000).unwrap();
                    expected.truncate(5000);
                }
                6 => {
                    file.fallocate(Fallocate::PunchHole, 100, 9000).unwrap();
                    expected[100..9100].fill(0);
                }
                _ => {
                    let zero = Fallocate::ZeroRange { keep_size: true };
                    file.fallocate(zero, 100, 100_000).unwrap();
                    expected[100..100_100].fill(0);
                }
            }
            let other = if side == "file" { "copy" } else { "file" };
            for fs in [&fs, &crashed(&region)] {
                assert!(contents(fs, side) == expected, "{change} of {side}");
                assert!(contents(fs, other) == bytes(SIZE, 3), "{change} of {side}");
            }
        }
    }
}

#[test]
fn blocks_are_free_when_their_last_owner_lets_go() {
    let (region, fs) = pool(16 << 20, &Geometry::for_length(16 << 20));
    make_file(&fs, "probe", b"");
    let free = fs.statistics().unwrap().blocks_free;
    make_file(&fs, "one", &bytes(2 * MIB, 1));
    copy(&fs, "one", "two");
    copy(&fs, "two", "three");
    fs.remove_file("one").unwrap();
    open(&fs, "two").truncate(MIB as u64).unwrap();
    assert!(contents(&fs, "three") == bytes(2 * MIB, 1));
    assert!(fs.statistics().unwrap().blocks_free <= free - 512);
    // Blocks of the last owner are written in place again.
    fs.remove_file("two").unwrap();
    let held = fs.statistics().unwrap().blocks_free;
    open(&fs, "three").write_at(&[7; 100], 5000).unwrap();
    assert_eq!(fs.statistics().unwrap().blocks_free, held);
    make_file(&fs, "four", b"");
    fs.rename_path("four", "three", client::RenameMode::Replace)
        .unwrap();
    assert_eq!(fs.statistics().unwrap().blocks_free, free);
    drop(crashed(&region));
}

#[test]
fn holes_stay_holes_in_copies() {
    let fs = file_system();
    let file = open(&fs, "file");
    file.write_at(&[1; 4096], 40_960).unwrap();
    file.fallocate(Fallocate::Allocate { keep_size: false }, 81_920, 40_960)
        .unwrap();
    make_file(&fs, "copy", &[2; 100_000]);
    copy(&fs, "file", "copy");
    assert!(contents(&fs, "copy") == contents(&fs, "file"));
    let held = open(&fs, "copy").attributes().unwrap().blocks_512 / 8;
    assert_eq!(held, 1, "a hole, and what was allocated, takes no blocks");
}

#[test]
fn copies_of_parts_share_the_blocks_between() {
    let (region, fs) = pool(16 << 20, &Geometry::for_length(16 << 20));
    let old = bytes(100_000, 1);
    make_file(&fs, "file", &old);
    let new = bytes(90_000, 9);
    make_file(&fs, "copy", &new);
    let (file, copy) = (open(&fs, "file"), open(&fs, "copy"));
    let free = fs.statistics().unwrap().blocks_free;
    assert_eq!(file.copy_range(100, &copy, 4196, 60_000).unwrap(), 60_000);
    let mut expected = new;
    expected[4196..64_196].copy_from_slice(&old[100..60_100]);
    assert!(contents(&fs, "copy") == expected);
    assert_eq!(fs.statistics().unwrap().blocks_free, free + 13);
    // Within a file, to a position beyond its data; the last block stays separate.
    assert_eq!(copy.copy_range(0, &copy, 122_880, 90_000).unwrap(), 90_000);
    let mut whole = expected.clone();
    whole.resize(122_880, 0);
    whole.extend_from_slice(&expected);
    assert!(contents(&fs, "copy") == whole);
    assert_eq!(errno(copy.copy_range(0, &copy, 4096, 8192)), libc::EINVAL);
    assert!(contents(&crashed(&region), "copy") == whole);
}

#[test]
fn shared_data_in_a_full_pool() {
    let (region, fs) = pool(16 << 20, &Geometry::for_length(16 << 20));
    let old = bytes(MIB + 5000, 1);
    make_file(&fs, "file", &old);
    fill(&fs);
    copy(&fs, "file", "copy");
    assert!(contents(&fs, "copy") == old);
    let file = open(&fs, "file");
    for (at, length) in [(0, 4096), (10, 100), (4096, 65_536)] {
        assert_eq!(errno(file.write_at(&vec![5; length], at)), libc::ENOSPC);
    }
    assert!(contents(&fs, "file") == old && contents(&fs, "copy") == old);
    // Operations that free space work.
    file.truncate(5000).unwrap();
    assert!(contents(&fs, "file") == old[..5000]);
    file.fallocate(Fallocate::PunchHole, 100, 300).unwrap();
    fs.remove_file("copy").unwrap();
    file.write_at(&[5; 4096], 0).unwrap();
    drop(crashed(&region));
}

#[test]
fn a_block_has_so_many_owners() {
    let (region, fs) = pool(16 << 20, &Geometry::for_length(16 << 20));
    let file = open(&fs, "file");
    file.write(&bytes(4096, 1)).unwrap();
    let free = fs.statistics().unwrap().blocks_free;
    // 65 536 owners of one block.
    for doublings in 0..16 {
        let size = 4096 << doublings;
        assert_eq!(file.copy_range(0, &file, size, size).unwrap(), size);
    }
    make_file(&fs, "copy", b"");
    let before = fs.statistics().unwrap().blocks_free;
    copy_block(&fs, "file", "copy");
    assert_eq!(
        fs.statistics().unwrap().blocks_free,
        before - 1,
        "one more is copied"
    );
    let fs = crashed(&region);
    assert!(contents(&fs, "copy") == bytes(4096, 1));
    fs.remove_file("copy").unwrap();
    open(&fs, "file").truncate(4096).unwrap();
    assert_eq!(fs.statistics().unwrap().blocks_free, free);
}

fn copy_block(fs: &FileSystem, from: &str, to: &str) {
    let copied = open(fs, from).copy_range(0, &open(fs, to), 0, 4096);
    assert_eq!(copied.unwrap(), 4096);
}

#[test]
fn threads_share_and_write_the_same_blocks() {
    const BLOCKS: usize = 48;
    let (region, fs) = pool(16 << 20, &Geometry::for_length(16 << 20));
    make_file(&fs, "common", &bytes(BLOCKS * 4096, 0));
    let step = Barrier::new(3);
    let work = |own: u8| {
        let name = format!("own{own}");
        let mut random = u64::from(own) + 1;
        let mut below = move |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 11) % bound
        };
        for round in 0..30 {
            step.wait();
            copy(&fs, "common", &name);
            let mut expected = bytes(BLOCKS * 4096, 0);
            let file = open(&fs, &name);
            for _ in 0..60 {
                let at = below((BLOCKS as u64 - 3) * 4096) as usize;
                let at = if below(2) == 0 { at } else { at / 4096 * 4096 };
                let length = [1, 100, 4096, 9000][below(4) as usize];
                file.write_at(&vec![own + round; length], at as u64)
                    .unwrap();
                expected[at..at + length].fill(own + round);
            }
            assert!(contents(&fs, &name) == expected, "{round} of {own}");
            if round % 2 == 0 {
                fs.remove_file(&name).unwrap();
            }
        }
    };
    thread::scope(|scope| {
        for own in [1, 101, 201] {
            let work = &work;
            scope.spawn(move || work(own));
        }
    });
    assert!(contents(&fs, "common") == bytes(BLOCKS * 4096, 0));
    drop(crashed(&region));
}

#[test]
fn a_pool_that_grew_shares_in_its_new_part() {
    let length = 8 << 20;
    let region = Region::memory(24 << 20, false).unwrap();
    let small = Region::memory(length, false).unwrap();
    FileSystem::format_region(&small, &Geometry::small()).unwrap();
    let mut old = vec![0; length as usize];
    small.read(0, &mut old);
    region.write(0, &old);
    let store = Arc::new(Store::open(region.clone(), PoolOptions::default()).unwrap());
    store.volume().grow().unwrap();
    let fs = FileSystem::of_store(store);
    make_file(&fs, "file", &bytes(12 * MIB, 1));
    copy(&fs, "file", "copy");
    fs.remove_file("file").unwrap();
    assert!(contents(&crashed(&region), "copy") == bytes(12 * MIB, 1));
}

#[test]
fn bytes_copied_before_an_error_are_reported() {
    let fs = file_system();
    let (file, copy) = (open(&fs, "file"), open(&fs, "copy"));
    file.write_at(&bytes(2 * MIB, 1), 0).unwrap();
    // The second piece would end behind where files end.
    let end = (1 << 62) - 1;
    let start = end - MIB as u64;
    let copied = file.copy_range(0, &copy, start, 2 * MIB as u64).unwrap();
    assert_eq!((copied, copy.attributes().unwrap().size), (MIB as u64, end));
    let rest = file.copy_range(copied, &copy, end, MIB as u64);
    assert_eq!(errno(rest), libc::EFBIG);
}
