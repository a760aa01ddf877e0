//! Result for a reader of the image from outside, as by one-sided reads: data, then the version word.

use std::sync::atomic::{AtomicBool, Ordering};

use pmem::Region;
use store::{
    BLOCK, FileKind, Geometry, LiveInode, NewInode, PoolOptions, Store, Transaction, WriteAt,
};

const POOL: u64 = 64 << 20;
/// Changes of data in place while it is read.
const CHANGES: usize = 30_000;
/// Bit 63 of a version word, as docs/LAYOUT.md has it.
const CHANGING: u64 = 1 << 63;

/// How often a reader found the file unchanged, and how often the mark told it to discard its result.
#[derive(Debug, Default)]
struct Seen {
    valid: usize,
    refused: usize,
}

/// Reads the file's first bytes from outside until `is_over`. Each byte of the file is the same at any time.
fn read_outside(
    region: &Region,
    store: &Store,
    file: &LiveInode,
    length: usize,
    is_over: &AtomicBool,
) -> Seen {
    let base = store.volume().superblock().image_offset;
    let mut seen = Seen::default();
    let mut bytes = vec![0; length];
    while !is_over.load(Ordering::Relaxed) {
        let layout = store.files().layout(file, 0, length as u64).unwrap();
        assert_eq!(
            layout.version & CHANGING,
            0,
            "a layout handed out too early"
        );
        let place = layout.mapped[0];
        assert_eq!(place.length, length as u64, "the file lies in one piece");
        // The layout stays good for as long as the version does.
        for _ in 0..20 {
            region.read(base + place.image_offset, &mut bytes);
            let version = region.load(base + layout.version_offset);
            if version != layout.version {
                seen.refused += 1;
                break;
            }
            seen.valid += 1;
            let same = bytes.iter().all(|byte| *byte == bytes[0]);
            assert!(same, "half a change under the version of a whole one");
        }
    }
    seen
}

/// Overwrites the first `length` bytes of a file in place, again and again, while they are read.
fn overwritten_while_read(length: usize) {
    let region = Region::memory(POOL, false).unwrap();
    Store::format(&region, &Geometry::for_length(POOL)).unwrap();
    // A pool of a unit: only such images are read from outside.
    let options = PoolOptions {
        hold_freed: true,
        ..PoolOptions::default()
    };
    let store = Store::open(region.clone(), options).unwrap();
    let new = NewInode::new(FileKind::Regular, 0o644);
    let file = store
        .names()
        .create(&mut Transaction::embedded(), &store.root(), b"f", &new)
        .unwrap();
    let all = vec![0; 16 * BLOCK];
    store
        .files()
        .write(
            &mut Transaction::embedded(),
            &file,
            WriteAt::Offset(0),
            &all,
        )
        .unwrap();
    let is_over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_outside(&region, &store, &file, length, &is_over));
        for change in 0..CHANGES {
            let data = vec![change as u8; length];
            store
                .files()
                .write(
                    &mut Transaction::embedded(),
                    &file,
                    WriteAt::Offset(0),
                    &data,
                )
                .unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    let layout = store.files().layout(&file, 0, 1).unwrap();
    let word = region.load(store.volume().superblock().image_offset + layout.version_offset);
    assert_eq!(word, layout.version, "the mark goes with the change");
    assert!(seen.valid > 0, "{length}: {seen:?}");
}

#[test]
fn a_reader_from_outside_never_believes_half_a_change() {
    for length in [64, 1000, BLOCK, 2 * BLOCK] {
        overwritten_while_read(length);
    }
}
