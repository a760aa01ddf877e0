//! The back ends over real memory: copies, locks, errors.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::scratch::Scratch;
use crate::{Access, Error, Kind, LINE, Region, Simulation, Survival};

fn pool(directory: &Scratch) -> PathBuf {
    directory.path().join("pool")
}

fn contents(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.length() as usize];
    region.read(0, &mut bytes);
    bytes
}

/// Bytes that differ from their neighbours and from those of another seed.
fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|index| ((index + seed) * 37 + 1) as u8)
        .collect()
}

#[test]
fn copies_of_every_alignment_and_length_change_exactly_their_range() {
    type Copy = fn(&Region, u64, &[u8]);
    let copies: [(&str, Copy); 4] = [
        ("write", |region, offset, bytes| region.write(offset, bytes)),
        ("write_flushed", |region, offset, bytes| {
            region.write_flushed(offset, bytes)
        }),
        ("write_streamed", |region, offset, bytes| {
            region.write_streamed(offset, bytes)
        }),
        ("zero_flushed", |region, offset, bytes| {
            region.zero_flushed(offset, bytes.len() as u64)
        }),
    ];
    let lengths = (0..=2 * LINE + 2).chain([191, 192, 383, 384, 385, 447, 448, 449, 511, 512, 700]);
    let lengths: Vec<usize> = lengths.collect();
    let region = Region::memory(1024, false).unwrap();
    let before = pattern(1024, 500);
    for (name, copy) in copies {
        for offset in (0..=LINE).map(|shift| LINE + shift) {
            for &length in &lengths {
                region.write(0, &before);
                let source = pattern(length + 8, offset);
                // The source is aligned differently from the target.
                let bytes = &source[length % 8..][..length];
                copy(&region, offset as u64, bytes);
                region.fence();
                let mut expected = before.clone();
                match name {
                    "zero_flushed" => expected[offset..offset + length].fill(0),
                    _ => expected[offset..offset + length].copy_from_slice(bytes),
                }
                assert!(
                    contents(&region) == expected,
                    "{name} of {length} bytes at {offset}"
                );
                let mut read = vec![0; length];
                region.read(offset as u64, &mut read);
                assert_eq!(read, expected[offset..offset + length]);
            }
        }
    }
}

#[test]
fn copies_reach_the_end_of_the_region() {
    let region = Region::memory(1000, false).unwrap();
    region.write_flushed(0, &pattern(1000, 1));
    region.flush(0, 1000);
    region.flush(1000, 0);
    region.fence_everywhere();
    assert_eq!(contents(&region), pattern(1000, 1));
    region.zero_flushed(0, 1000);
    region.fence();
    assert_eq!(contents(&region), vec![0; 1000]);
}

#[test]
fn aligned_words_of_a_copy_are_never_seen_torn() {
    let region = Region::memory(4096, false).unwrap();
    let stop = AtomicBool::new(false);
    // An offset and a length at which `memcpy` could store words by halves.
    let (offset, length) = (8, 8 * 9 + 4);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..200_000_u32 {
                region.write(offset, &vec![(round % 2 * 255) as u8; length]);
            }
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            for word in 0..9 {
                let value = region.load(offset + word * 8);
                assert!(value == 0 || value == u64::MAX, "torn: {value:x}");
            }
            let half = region.load_u32(offset + 72);
            assert!(half == 0 || half == u32::MAX, "torn: {half:x}");
        }
    });
}

#[test]
fn words_are_stored_in_native_order() {
    let region = Region::memory(64, false).unwrap();
    region.store(8, 0x0102_0304_0506_0708);
    region.store_u32(20, 0xaabb_ccdd);
    assert_eq!(region.load(8), 0x0102_0304_0506_0708);
    assert_eq!(region.load_u32(20), 0xaabb_ccdd);
    let bytes = contents(&region);
    assert_eq!(bytes[8..16], 0x0102_0304_0506_0708_u64.to_ne_bytes());
    assert_eq!(bytes[20..24], 0xaabb_ccdd_u32.to_ne_bytes());
    region.prefetch(63);
}

#[test]
fn every_operation_checks_its_range() {
    type Operation = fn(&Region);
    let operations: [(&str, Operation); 13] = [
        ("read", |region| region.read(120, &mut [0; 9])),
        ("read far", |region| region.read(u64::MAX, &mut [0; 2])),
        ("write", |region| region.write(128, &[1])),
        ("write_flushed", |region| region.write_flushed(127, &[0; 2])),
        ("zero_flushed", |region| region.zero_flushed(0, 129)),
        ("zero_flushed far", |region| {
            region.zero_flushed(64, u64::MAX)
        }),
        ("load", |region| {
            region.load(128);
        }),
        ("load unaligned", |region| {
            region.load(4);
        }),
        ("store", |region| region.store(u64::MAX - 7, 1)),
        ("load_u32", |region| {
            region.load_u32(2);
        }),
        ("store_u32", |region| region.store_u32(128, 1)),
        ("flush", |region| region.flush(128, 1)),
        ("prefetch", |region| region.prefetch(128)),
    ];
    for region in [
        Region::memory(128, false).unwrap(),
        Simulation::new(128).region(),
    ] {
        for (name, operation) in operations {
            let outcome =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| operation(&region)));
            let panic = outcome.expect_err(name);
            let message = panic
                .downcast_ref::<String>()
                .expect("a message with figures");
            assert!(
                message.contains("a region of 128 bytes") || message.contains("not a multiple of"),
                "{name}: {message}"
            );
        }
    }
}

#[test]
fn a_file_keeps_its_contents_and_its_length() {
    let directory = Scratch::new();
    let path = pool(&directory);
    let region = Region::create(&path, 10_000).unwrap();
    assert_eq!(region.length(), 10_000);
    assert_eq!(contents(&region), vec![0; 10_000]);
    region.populate();
    region.write(9_990, b"0123456789");
    let clone = region.clone();
    drop(region);
    assert!(matches!(
        Region::open(&path, Access::ReadWrite),
        Err(Error::Busy { .. })
    ));
    drop(clone);

    assert_eq!(fs::metadata(&path).unwrap().len(), 10_000);
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let region = Region::open(&path, Access::ReadWrite).unwrap();
    assert_eq!(&contents(&region)[9_990..], b"0123456789");
    assert_eq!(region.kind(), Kind::File);
    assert_eq!(region.survives(), Survival::ProcessCrash);
    assert_ne!(region.flush_instruction(), "simulated");
    assert_eq!(format!("{region:?}"), "Region(file, 10000 bytes)");
}

/// On tmpfs it gets large pages, if the kernel has any.
#[test]
fn a_file_in_memory_is_filled_to_its_end() {
    use std::os::unix::fs::MetadataExt;
    let directory = Scratch::within(Path::new("/dev/shm"));
    let path = pool(&directory);
    let length = (5 << 20) + 10_000;
    let region = Region::create(&path, length).unwrap();
    assert!(contents(&region).iter().all(|byte| *byte == 0));
    region.write(length - 10, b"0123456789");
    region.grow(9 << 20).unwrap();
    region.write((9 << 20) - 3, b"end");
    drop(region);
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.len(), 9 << 20);
    assert!(metadata.blocks() * 512 >= 9 << 20);
    let region = Region::open(&path, Access::ReadWrite).unwrap();
    let contents = contents(&region);
    assert_eq!(contents[length as usize - 10..][..10], *b"0123456789");
    assert!(contents.ends_with(b"end"));
}

#[test]
fn private_stores_never_reach_the_file() {
    let directory = Scratch::new();
    let path = pool(&directory);
    Region::create(&path, 8192).unwrap().write(0, b"public");
    // Reading permission is enough.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    let region = Region::open(&path, Access::Private).unwrap();
    region.populate();
    assert_eq!(&contents(&region)[..6], b"public");
    assert_eq!(region.survives(), Survival::Nothing);
    region.write_flushed(0, &pattern(8192, 3));
    region.fence_everywhere();
    assert_eq!(contents(&region), pattern(8192, 3));
    assert_eq!(&fs::read(&path).unwrap()[..7], b"public\0");
    drop(region);
    assert_eq!(&fs::read(&path).unwrap()[..7], b"public\0");
}

#[test]
fn memory_starts_as_zeros_and_survives_nothing() {
    let region = Region::memory(3 << 20, false).unwrap();
    assert_eq!((region.length(), region.kind()), (3 << 20, Kind::Memory));
    assert_eq!(region.survives(), Survival::Nothing);
    assert_eq!(region.load((3 << 20) - 8), 0);
    match Region::memory(3 << 20, true) {
        Ok(region) => {
            assert_eq!(
                (region.length(), region.kind()),
                (3 << 20, Kind::HugePageMemory)
            );
            region.write_flushed((3 << 20) - 5, b"hello");
        }
        Err(error) => assert!(matches!(error, Error::NoHugePages), "{error}"),
    }
}

#[test]
fn files_that_are_no_pools_are_reported() {
    let directory = Scratch::new();
    let empty = directory.path().join("empty");
    fs::write(&empty, b"").unwrap();
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let cases: [(&Path, &str); 5] = [
        (directory.path(), "a directory"),
        (&empty, "an empty file"),
        (&fifo, "a FIFO"),
        (&socket, "a socket or a device without a driver"),
        (Path::new("/dev/null"), "a device other than DAX"),
    ];
    for (path, expected) in cases {
        for access in [Access::ReadWrite, Access::Private] {
            match Region::open(path, access) {
                Err(Error::NotAPool { path: at, kind }) => {
                    assert_eq!((at.as_path(), kind), (path, expected))
                }
                other => panic!("{}: {other:?}", path.display()),
            }
        }
    }
}

#[test]
fn paths_that_lead_nowhere() {
    let directory = Scratch::new();
    let path = pool(&directory);
    let below_file = path.join("deeper");
    assert!(matches!(
        Region::open(&path, Access::ReadWrite),
        Err(Error::NotFound { .. })
    ));
    Region::create(&path, 64).unwrap();
    assert!(matches!(
        Region::create(&path, 64),
        Err(Error::Exists { .. })
    ));
    assert!(matches!(
        Region::create(&below_file, 64),
        Err(Error::NotFound { .. })
    ));
    let error = Region::create(&path, 64).unwrap_err().to_string();
    assert!(error.starts_with(path.to_str().unwrap()), "{error}");
}

#[test]
fn a_pool_that_cannot_be_made_leaves_nothing_behind() {
    let directory = Scratch::new();
    let path = pool(&directory);
    for length in [0, (1 << 46) + 1, u64::MAX] {
        assert!(matches!(
            Region::create(&path, length),
            Err(Error::Length { .. })
        ));
        assert!(matches!(
            Region::memory(length, false),
            Err(Error::Length { .. })
        ));
    }
    match Region::create(&path, 1 << 46) {
        Err(Error::NoSpace { length, .. }) => assert_eq!(length, 1 << 46),
        other => panic!("{other:?}"),
    }
    assert!(!path.exists());
}

#[test]
fn permission_is_needed() {
    let directory = Scratch::new();
    let path = pool(&directory);
    Region::create(&path, 64).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            // Root has all permissions, so the test's thread changes its user.
            let _ = rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65_534));
            for access in [Access::ReadWrite, Access::Private] {
                assert!(matches!(
                    Region::open(&path, access),
                    Err(Error::Permission { .. })
                ));
            }
            let new = directory.path().join("new");
            assert!(matches!(
                Region::create(&new, 64),
                Err(Error::Permission { .. })
            ));
        });
    });
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Names the pool that this test's other process is to hold.
const HELD_POOL: &str = "TAKO_PMEM_HELD_POOL";

#[test]
fn another_process_holds_its_pool_until_it_is_killed_and_its_stores_stay() {
    if let Some(path) = std::env::var_os(HELD_POOL) {
        let region = Region::open(Path::new(&path), Access::ReadWrite).unwrap();
        region.write(100, b"neither flushed nor fenced");
        println!("\nheld");
        loop {
            thread::park();
        }
    }
    let directory = Scratch::new();
    let path = pool(&directory);
    Region::create(&path, 4096).unwrap();
    let mut other = hold_in_another_process(&path);
    let busy = Region::open(&path, Access::Private).unwrap_err();
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(
        matches!(&busy, Error::Busy { path: at } if *at == path),
        "{busy}"
    );
    let region = Region::open(&path, Access::ReadWrite).unwrap();
    assert_eq!(&contents(&region)[100..126], b"neither flushed nor fenced");
}

fn hold_in_another_process(path: &Path) -> Child {
    let name =
        "region::tests::another_process_holds_its_pool_until_it_is_killed_and_its_stores_stay";
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(HELD_POOL, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(
        lines.map_while(Result::ok).any(|line| line == "held"),
        "the other process failed"
    );
    other
}

#[test]
fn fences_in_many_threads() {
    let region = Region::memory(1 << 20, false).unwrap();
    thread::scope(|scope| {
        for worker in 0..4 {
            let region = region.clone();
            scope.spawn(move || {
                for round in 0..100 {
                    region.write_flushed(worker << 16, &[round; 1000]);
                    match round % 2 {
                        0 => region.fence(),
                        _ => region.fence_everywhere(),
                    }
                }
            });
        }
    });
    assert!((0..4).all(|worker| region.load(worker << 16) == u64::from_ne_bytes([99; 8])));
}

#[test]
fn a_shared_region_is_the_same_memory_elsewhere() {
    let region = Region::memory(8192, false).unwrap();
    let writable = Region::attach(region.share(true).unwrap(), 8192, true).unwrap();
    let readable = Region::attach(region.share(false).unwrap(), 4096, false).unwrap();
    writable.store(64, 7);
    assert_eq!((region.load(64), readable.load(64)), (7, 7));
    assert_eq!(readable.length(), 4096);
    assert_eq!(region.compare_and_swap(64, 8, 9), 7);
    assert_eq!(writable.compare_and_swap(64, 7, 9), 7);
    assert_eq!(writable.fetch_and_add(64, u64::MAX), 9);
    assert_eq!(readable.load(64), 8);
    region.copy_from(1001, &writable, 64, 8);
    let mut word = [0; 8];
    writable.read(1001, &mut word);
    assert_eq!(word, 8u64.to_ne_bytes());
}

#[test]
fn memory_that_could_kill_this_process_is_not_attached() {
    let region = Region::memory(8192, false).unwrap();
    let longer = Region::attach(region.share(true).unwrap(), 8193, true);
    assert!(matches!(longer, Err(Error::NotAPool { .. })), "{longer:?}");
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let unsealed = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, 8192).unwrap();
    let shrinking = Region::attach(unsealed, 8192, true);
    assert!(matches!(shrinking, Err(Error::Unsealed)), "{shrinking:?}");
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    assert!(Region::attach(pipe, 8192, true).is_err());
    let simulated = Simulation::new(4096).region();
    assert!(matches!(simulated.share(true), Err(Error::NotShared)));
    let copied = Region::attach(region.share(false).unwrap(), 8192, false).unwrap();
    assert!(matches!(copied.share(false), Err(Error::NotShared)));
    let foreign = Region::attach(region.share(true).unwrap(), 8192, true).unwrap();
    assert!(matches!(foreign.share(true), Err(Error::NotShared)));
}

/// The former length of memory that was shortened and then sealed is not accepted.
#[test]
fn memory_that_shrinks_while_it_is_attached_is_refused_or_long_enough() {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    for round in 0..2000 {
        let memory = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&memory, 8192).unwrap();
        let given = rustix::io::fcntl_dupfd_cloexec(&memory, 0).unwrap();
        let begun = AtomicBool::new(false);
        let attached = thread::scope(|scope| {
            scope.spawn(|| {
                begun.store(true, Ordering::Release);
                (0..round % 200).for_each(|_| std::hint::spin_loop());
                rustix::fs::ftruncate(&memory, 0).unwrap();
                rustix::fs::fcntl_add_seals(&memory, rustix::fs::SealFlags::SHRINK).unwrap();
            });
            while !begun.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            Region::attach(given, 8192, true)
        });
        let length = rustix::fs::fstat(&memory).unwrap().st_size;
        assert!(attached.is_err() || length == 8192, "{length} bytes");
    }
}

#[test]
fn a_sleeper_at_a_word_is_woken_up() {
    let region = Region::memory(4096, false).unwrap();
    let elsewhere = Region::attach(region.share(true).unwrap(), 4096, true).unwrap();
    let sleeper = std::thread::spawn(move || {
        while elsewhere.load_u32(128) == 0 {
            elsewhere.sleep_while(128, 0, None);
        }
    });
    region.store_u32(128, 1);
    region.wake(128);
    sleeper.join().unwrap();
    region.sleep_while(128, 1, Some(std::time::Duration::from_millis(1)));
}

/// Waits until a mark is gone: a child that another test is just starting has all descriptors for a moment.
fn wait_for_end(region: &Region, mark: u64) {
    let start = Instant::now();
    while region.is_marked(mark).unwrap() {
        assert!(start.elapsed() < Duration::from_secs(60), "mark {mark}");
        thread::yield_now();
    }
}

#[test]
fn a_mark_lasts_as_long_as_a_descriptor_or_mapping_that_has_it() {
    let directory = Scratch::new();
    let path = pool(&directory);
    let region = Region::create(&path, 8192).unwrap();
    let marked = |region: &Region, mark| region.is_marked(mark).unwrap();
    assert!(!marked(&region, 7));
    let shared = region.share_marked(true, 7).unwrap();
    let second = region.share_marked(false, 7).unwrap();
    assert!(marked(&region, 7) && !marked(&region, 8));
    let attached = Region::attach(shared, 8192, true).unwrap();
    drop(second);
    assert!(marked(&region, 7), "it is mapped");
    drop(region);
    let again = Region::open(&path, Access::ReadWrite).unwrap();
    assert!(marked(&again, 7), "every process that opens the pool");
    assert!(!marked(&again, u64::MAX));
    drop(attached);
    wait_for_end(&again, 7);
    let memory = Region::memory(8192, false).unwrap();
    let shared = memory.share_marked(false, u64::MAX).unwrap();
    assert!(marked(&memory, u64::MAX));
    drop(shared);
    wait_for_end(&memory, u64::MAX);
}

#[test]
fn memory_behind_a_pool_is_reached_with_it_and_is_not_in_its_file() {
    let scratch = Scratch::new();
    let path = scratch.path().join("pool");
    let pool = Region::create(&path, 3 * 4096).unwrap();
    let longer = pool.with_memory_behind(8192).unwrap();
    assert_eq!(longer.length(), 5 * 4096);
    assert_eq!(longer.address(0, 1), pool.address(0, 1));
    longer.write(3 * 4096 - 4, b"in front");
    let mut found = [0; 4];
    pool.read(3 * 4096 - 4, &mut found);
    assert_eq!(&found, b"in f");
    longer.read(3 * 4096, &mut found);
    assert_eq!(&found, b"ront");
    assert!(matches!(
        pool.with_memory_behind(1),
        Err(Error::NoReach { .. })
    ));
    assert!(matches!(pool.grow(4 * 4096), Err(Error::NoReach { .. })));
    drop(pool);
    longer.store(4 * 4096, 7);
    assert_eq!(longer.load(4 * 4096), 7);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 * 4096);
}
