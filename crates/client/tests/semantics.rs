//! `docs/SEMANTICS.md`, re-enacted. Each test is named in the document beside its statement.
#![forbid(unsafe_code)]

mod common;

use std::collections::BTreeSet;
use std::io::{IoSlice, SeekFrom};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use client::{
    Clock, FileKind, FileSystem, Geometry, NewInode, OpenFlags, PoolOptions, ROOT, Region,
    RenameMode, SetAttributes,
};
use common::{contents, errno, file_system, file_system_of, make_file};
use pmem::{Access, Moment, Simulation};

const CREATE: OpenFlags = OpenFlags {
    create: true,
    ..OpenFlags::READ_WRITE
};
const EXCLUSIVE: OpenFlags = OpenFlags {
    exclusive: true,
    ..CREATE
};
const SIMULATED: u64 = 1 << 20;
/// Images of one crash that are examined.
const IMAGES: usize = 12;

/// A file system in memory with crashes that can be enumerated.
fn simulated(length: u64, geometry: &Geometry) -> (Simulation, FileSystem) {
    let simulation = Simulation::new(length);
    FileSystem::format_region(&simulation.region(), geometry).expect("a pool");
    let fs = open(simulation.region());
    (simulation, fs)
}

fn open(region: Region) -> FileSystem {
    common::open(region, PoolOptions::default())
}

/// Opens possible images after a crash at this moment, and examines them.
fn after_crashes(moment: &Moment, look: impl Fn(&FileSystem)) {
    for image in moment.images(IMAGES, 1) {
        look(&open(Simulation::from_image(image).region()));
    }
}

/// The moments before each fence of `work`, and the one behind it.
fn moments(simulation: &Simulation, work: impl FnOnce()) -> Vec<Moment> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let keep = seen.clone();
    simulation.observe_fences(Some(Box::new(move |moment: &Moment| {
        keep.lock().unwrap().push(moment.clone())
    })));
    work();
    simulation.observe_fences(None);
    let mut moments = std::mem::take(&mut *seen.lock().unwrap());
    moments.push(simulation.moment());
    moments
}

fn special(kind: FileKind) -> NewInode<'static> {
    NewInode::new(kind, 0o600)
}

#[test]
fn the_document_and_the_tests_name_each_other() {
    let document = include_str!("../../../docs/SEMANTICS.md");
    let named = |before: &str| -> Vec<&str> {
        let parts = document.split(before).skip(1);
        parts.filter_map(|rest| rest.split('`').next()).collect()
    };
    let mount: BTreeSet<&str> = named("mount test `").into_iter().collect();
    let mount_tests = concat!(
        include_str!("../../fuse/tests/mount.rs"),
        include_str!("../../fuse/tests/posix.rs"),
        include_str!("../../fuse/tests/caches.rs"),
        include_str!("../../fuse/tests/ends.rs"),
    );
    for name in &mount {
        let is_there = mount_tests.contains(&format!("#[test]\nfn {name}()"));
        assert!(
            is_there,
            "crates/fuse/tests/{{mount,posix,caches,ends}}.rs have no test {name}"
        );
    }
    let own = |name: &&str| !mount.contains(name);
    let all: Vec<&str> = named("test `").into_iter().filter(own).collect();
    let named: BTreeSet<&str> = all.iter().copied().collect();
    let files = [
        include_str!("semantics.rs"),
        include_str!("full_and_damaged.rs"),
        include_str!("ranges.rs"),
        include_str!("copies.rs"),
        include_str!("xattrs.rs"),
        include_str!("acls.rs"),
        include_str!("flags.rs"),
        include_str!("unnamed.rs"),
        include_str!("locks.rs"),
    ];
    let tests: BTreeSet<&str> = files
        .into_iter()
        .flat_map(|file| file.split("#[test]\nfn ").skip(1))
        .filter_map(|rest| rest.split('(').next())
        .filter(|name| *name != "the_document_and_the_tests_name_each_other")
        .collect();
    assert_eq!(named, tests, "left: the document, right: the tests");
    assert_eq!(all.len(), named.len(), "a test is named twice");
}

#[test]
fn a_write_is_persistent_when_it_returns() {
    let (simulation, fs) = simulated(SIMULATED, &Geometry::small());
    let file = fs.open("file", CREATE, 0o644).unwrap();
    for length in [64, 4096, 20_000] {
        let data = vec![length as u8; length];
        file.write_at(&data, 10).unwrap();
        let expected = file.attributes().unwrap();
        after_crashes(&simulation.moment(), |fs| {
            assert_eq!(contents(fs, "file")[10..10 + length], data);
            let found = fs.stat("file").unwrap();
            assert_eq!(
                (found.size, found.modified_ns),
                (expected.size, expected.modified_ns)
            );
        });
    }
}

#[test]
fn every_change_is_persistent_when_it_returns() {
    let (simulation, fs) = simulated(SIMULATED, &Geometry::small());
    let holds = |look: &dyn Fn(&FileSystem) -> bool| {
        after_crashes(&simulation.moment(), |fs| assert!(look(fs)));
    };
    drop(fs.open("a", CREATE, 0o644).unwrap());
    holds(&|fs| fs.stat("a").is_ok());
    fs.link_path("a", "b").unwrap();
    holds(&|fs| fs.stat("b").unwrap().links == 2);
    fs.rename_path("b", "c", RenameMode::Replace).unwrap();
    holds(&|fs| fs.stat("b").is_err() && fs.stat("c").is_ok());
    fs.remove_file("a").unwrap();
    holds(&|fs| fs.stat("a").is_err());
    let change = SetAttributes {
        size: Some(77),
        permissions: Some(0o400),
        ..SetAttributes::default()
    };
    fs.set_attributes_path("c", &change).unwrap();
    holds(&|fs| {
        let found = fs.stat("c").unwrap();
        (found.size, found.permissions) == (77, 0o400)
    });
}

#[test]
fn a_write_is_whole_or_absent_after_a_crash() {
    for length in [100, 8192, 30_000] {
        let (simulation, fs) = simulated(SIMULATED, &Geometry::small());
        make_file(&fs, "file", &[1; 40_000]);
        let file = fs.open("file", OpenFlags::WRITE, 0).unwrap();
        let moments = moments(&simulation, || {
            file.write_at(&vec![2; length], 5000).unwrap();
        });
        assert!(moments.len() > 1);
        for moment in moments {
            after_crashes(&moment, |fs| {
                let found = contents(fs, "file");
                let changed = found.iter().filter(|byte| **byte == 2).count();
                assert!(changed == 0 || changed == length, "{changed} of {length}");
                assert!(changed == 0 || found[5000..5000 + length] == vec![2; length]);
            });
        }
    }
}

#[test]
fn up_to_1_mib_is_one_change() {
    let fences_of = |pool: u64, length: usize| {
        let (simulation, fs) = simulated(pool, &Geometry::for_length(pool));
        let file = fs.open("file", CREATE, 0o644).unwrap();
        let before = simulation.fences();
        file.write_at(&vec![1; length], 0).unwrap();
        simulation.fences() - before
    };
    // Data, then the record that names it: two fences for each change of whole blocks.
    assert_eq!(fences_of(64 << 20, 1 << 20), 2);
    assert_eq!(fences_of(64 << 20, 2 << 20), 4);
    assert_eq!(fences_of(16 << 20, 1 << 20), 4, "the ring has 512 KiB");
}

#[test]
fn a_vectored_write_is_one_change() {
    let (simulation, fs) = simulated(SIMULATED, &Geometry::small());
    let file = fs.open("file", CREATE, 0o644).unwrap();
    let before = simulation.fences();
    let slices = [b"one", b"two"].map(|part| IoSlice::new(part));
    assert_eq!(file.write_vectored(&slices).unwrap(), 6);
    assert_eq!(simulation.fences() - before, 1);
    assert_eq!(contents(&fs, "file"), b"onetwo");
}

#[test]
fn memory_says_what_it_outlives() {
    use pmem::Survival;
    let memory = Region::memory(1 << 20, false).unwrap();
    assert_eq!(memory.survives(), Survival::Nothing);
    let directory = Scratch::new("survival");
    let path = directory.0.join("pool");
    let file = Region::create(&path, 1 << 20).unwrap();
    assert!(file.survives() < Survival::NodeCrash || file.kind() == pmem::Kind::FileDax);
    drop(file);
    let private = Region::open(&path, Access::Private).unwrap();
    assert_eq!(private.survives(), Survival::Nothing);
}

/// A directory of this test's own, removed when dropped.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tako-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn sync_has_nothing_left_to_do() {
    let (simulation, fs) = simulated(SIMULATED, &Geometry::small());
    let file = fs.open("file", CREATE, 0o644).unwrap();
    file.write(b"data").unwrap();
    let before = (simulation.fences(), simulation.moment().pending_lines());
    file.sync().unwrap();
    file.sync_data().unwrap();
    let after = (simulation.fences(), simulation.moment().pending_lines());
    assert_eq!(before, after);
}

#[test]
fn appending_goes_to_the_end() {
    let fs = file_system();
    make_file(&fs, "file", b"start");
    let append = OpenFlags {
        append: true,
        ..OpenFlags::WRITE
    };
    let file = fs.open("file", append, 0).unwrap();
    file.write_at(b"1", 0).unwrap();
    file.write(b"2").unwrap();
    assert_eq!(contents(&fs, "file"), b"start12");
    thread::scope(|scope| {
        for letter in [b'a', b'b'] {
            let fs = &fs;
            scope.spawn(move || {
                let file = fs.open("file", append, 0).unwrap();
                (0..300).for_each(|_| assert_eq!(file.write(&[letter; 7]).unwrap(), 7));
            });
        }
    });
    let found = contents(&fs, "file");
    assert_eq!(found.len(), 7 + 2 * 300 * 7);
    let mut pieces = found[7..].chunks(7);
    assert!(pieces.all(|piece| piece.iter().all(|byte| *byte == piece[0])));
}

#[test]
fn exclusive_creation_has_one_winner() {
    let fs = file_system();
    let open = || fs.open("file", EXCLUSIVE, 0o644).is_ok();
    let winners = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
        let wins = threads.into_iter().map(|thread| thread.join().unwrap());
        wins.filter(|win| *win).count()
    });
    assert_eq!(winners, 1);
    fs.symlink("nowhere", "link").unwrap();
    assert_eq!(errno(fs.open("link", EXCLUSIVE, 0o644)), libc::EEXIST);
}

#[test]
fn opening_can_cut() {
    let fs = file_system();
    make_file(&fs, "file", b"contents");
    let cut = OpenFlags {
        truncate: true,
        ..OpenFlags::READ
    };
    fs.open("file", cut, 0).unwrap();
    assert_eq!(fs.stat("file").unwrap().size, 0);
}

#[test]
fn access_modes_hold() {
    let fs = file_system();
    make_file(&fs, "file", b"contents");
    let reader = fs.open("file", OpenFlags::READ, 0).unwrap();
    let writer = fs.open("file", OpenFlags::WRITE, 0).unwrap();
    assert_eq!(errno(writer.read(&mut [0])), libc::EBADF);
    assert_eq!(errno(reader.write(b"x")), libc::EBADF);
    assert_eq!(errno(reader.truncate(0)), libc::EINVAL);
}

#[test]
fn rename_never_leaves_a_gap() {
    let fs = file_system();
    make_file(&fs, "name", b"0");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for index in 0..2000 {
                let other = format!("other{}", index % 2);
                make_file(&fs, &other, b"1");
                fs.rename_path(&other, "name", RenameMode::Replace).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            assert!(fs.stat("name").is_ok());
        }
    });
}

#[test]
fn a_rename_is_whole_or_absent_after_a_crash() {
    let (simulation, fs) = simulated(SIMULATED, &Geometry::small());
    fs.make_directory("d", 0o755).unwrap();
    make_file(&fs, "old", b"new contents");
    make_file(&fs, "d/name", b"old contents");
    let moments = moments(&simulation, || {
        fs.rename_path("old", "d/name", RenameMode::Replace)
            .unwrap()
    });
    for moment in moments {
        after_crashes(&moment, |fs| {
            let happened = fs.stat("old").is_err();
            let expected: &[u8] = if happened {
                b"new contents"
            } else {
                b"old contents"
            };
            assert_eq!(contents(fs, "d/name"), expected);
        });
    }
}

#[test]
fn rename_objects_where_it_must() {
    let fs = file_system();
    fs.make_directory("d", 0o755).unwrap();
    fs.make_directory("e", 0o755).unwrap();
    make_file(&fs, "a", b"a");
    make_file(&fs, "e/inside", b"");
    fs.link_path("a", "b").unwrap();
    let rename = |from, to, mode| fs.rename_path(from, to, mode);
    rename("a", "b", RenameMode::Replace).unwrap();
    assert!(fs.stat("a").is_ok() && fs.stat("b").is_ok());
    for (from, to, mode, expected) in [
        ("a", "b", RenameMode::NoReplace, libc::EEXIST),
        ("a", "nothing", RenameMode::Exchange, libc::ENOENT),
        ("a", "d", RenameMode::Replace, libc::EISDIR),
        ("d", "a", RenameMode::Replace, libc::ENOTDIR),
        ("d", "e", RenameMode::Replace, libc::ENOTEMPTY),
        ("d", "d/below", RenameMode::Replace, libc::EINVAL),
    ] {
        assert_eq!(errno(rename(from, to, mode)), expected, "{from} to {to}");
    }
    rename("a", "d", RenameMode::Exchange).unwrap();
    assert_eq!(fs.stat("a").unwrap().kind, FileKind::Directory);
}

#[test]
fn names_are_counted() {
    let fs = file_system_of(64 << 20, &Geometry::for_length(64 << 20));
    let number = fs
        .create(ROOT, b"file", &special(FileKind::Regular))
        .unwrap()
        .number;
    for index in 1..65_000 {
        fs.link(number, ROOT, format!("{index}").as_bytes())
            .unwrap();
    }
    assert_eq!(errno(fs.link(number, ROOT, b"more")), libc::EMLINK);
    fs.make_directory("d", 0o755).unwrap();
    assert_eq!(errno(fs.link_path("d", "e")), libc::EPERM);
    fs.make_directory("d/e", 0o755).unwrap();
    assert_eq!(fs.stat("d").unwrap().links, 3);
}

#[test]
fn removing_objects_where_it_must() {
    let fs = file_system();
    fs.make_directory("d", 0o755).unwrap();
    make_file(&fs, "d/file", b"");
    assert_eq!(errno(fs.remove_file("d")), libc::EISDIR);
    assert_eq!(errno(fs.remove_directory_at("d")), libc::ENOTEMPTY);
    assert_eq!(errno(fs.remove_directory_at("d/file")), libc::ENOTDIR);
}

#[test]
fn an_unlinked_file_lives_while_it_is_open() {
    let fs = file_system();
    let free = fs.statistics().unwrap().blocks_free;
    make_file(&fs, "file", &[5; 100_000]);
    let file = fs.open("file", OpenFlags::READ_WRITE, 0).unwrap();
    fs.remove_file("file").unwrap();
    file.write_at(b"more", 100_000).unwrap();
    let mut part = [0; 8];
    assert_eq!(file.read_at(&mut part, 99_996).unwrap(), 8);
    assert_eq!(&part, b"\x05\x05\x05\x05more");
    assert_eq!(errno(fs.link(file.number(), ROOT, b"again")), libc::ENOENT);
    drop(file);
    // The root directory keeps its leaf, or not; a file of 25 blocks is gone.
    assert!(fs.statistics().unwrap().blocks_free + 1 >= free);
}

#[test]
fn an_unlinked_file_is_gone_after_a_crash() {
    let (simulation, fs) = simulated(SIMULATED, &Geometry::small());
    let free = (
        fs.statistics().unwrap().blocks_free,
        fs.statistics().unwrap().inodes_free,
    );
    make_file(&fs, "file", &[5; 50_000]);
    let file = fs.open("file", OpenFlags::READ, 0).unwrap();
    fs.remove_file("file").unwrap();
    after_crashes(&simulation.moment(), |fs| {
        let statistics = fs.statistics().unwrap();
        assert_eq!((statistics.blocks_free, statistics.inodes_free), free);
    });
    drop(file);
}

#[test]
fn growing_again_shows_zeros() {
    let fs = file_system();
    make_file(&fs, "file", &[1; 10_000]);
    let file = fs.open("file", OpenFlags::WRITE, 0).unwrap();
    file.truncate(5000).unwrap();
    file.truncate(10_000).unwrap();
    let found = contents(&fs, "file");
    assert!(found[..5000].iter().all(|byte| *byte == 1));
    assert!(found[5000..].iter().all(|byte| *byte == 0));
}

#[test]
fn holes_are_zeros_and_take_no_space() {
    let fs = file_system();
    let file = fs.open("file", CREATE, 0o644).unwrap();
    file.write_at(b"data", 1 << 30).unwrap();
    let mut part = [1; 100];
    assert_eq!(file.read_at(&mut part, 12_345).unwrap(), 100);
    assert_eq!(part, [0; 100]);
    assert!(file.attributes().unwrap().blocks_512 <= 8);
    assert_eq!(file.next_data(0).unwrap(), Some(1 << 30));
    assert_eq!(file.next_hole(1 << 30).unwrap(), Some((1 << 30) + 4));
    file.truncate(2 << 30).unwrap();
    assert_eq!(file.next_hole(1 << 30).unwrap(), Some((1 << 30) + 4096));
    file.write_at(&[0; 4096], 0).unwrap();
    assert_eq!(file.next_data(0).unwrap(), Some(0), "zeros are data");
}

#[test]
fn files_end_at_2_to_the_62() {
    let fs = file_system();
    let file = fs.open("file", CREATE, 0o644).unwrap();
    file.write_at(b"x", (1 << 62) - 1).unwrap();
    assert_eq!(errno(file.write_at(b"xy", (1 << 62) - 1)), libc::EFBIG);
    assert_eq!(errno(file.truncate((1 << 62) + 1)), libc::EFBIG);
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 1 << 62);
}

#[test]
fn cookies_stay_valid() {
    let region = Region::memory(64 << 20, false).unwrap();
    FileSystem::format_region(&region, &Geometry::for_length(64 << 20)).unwrap();
    let mut fs = open(region.clone());
    for index in 0..1000 {
        make_file(&fs, &format!("stays{index}"), b"");
        make_file(&fs, &format!("goes{index}"), b"");
    }
    let (mut cookie, mut names) = (0, Vec::new());
    for round in 0.. {
        let before = names.len();
        fs.read_directory(ROOT, cookie, &mut |entry| {
            let wanted = names.len() - before < 100;
            if wanted {
                assert!(0 < entry.cookie && entry.cookie <= i64::MAX as u64);
                names.push(String::from_utf8(entry.name.clone()).unwrap());
                cookie = entry.cookie;
            }
            wanted
        })
        .unwrap();
        if names.len() == before {
            break;
        }
        for index in 0..50 {
            let _ = fs.remove_file(format!("goes{}", round * 50 + index));
            make_file(&fs, &format!("comes{round}-{index}"), b"");
        }
        if round == 3 {
            fs.close().unwrap();
            drop(fs);
            fs = open(region.clone());
        }
    }
    assert_eq!(names[..2], [".", ".."]);
    let mut stayed: Vec<_> = names
        .iter()
        .filter(|name| name.starts_with("stays"))
        .collect();
    assert_eq!(stayed.len(), 1000);
    stayed.sort();
    stayed.dedup();
    assert_eq!(stayed.len(), 1000);
}

/// A file system with a clock that the test moves.
fn with_clock() -> (FileSystem, Arc<AtomicI64>) {
    let now = Arc::new(AtomicI64::new(1000));
    let region = Region::memory(16 << 20, false).unwrap();
    FileSystem::format_region(&region, &Geometry::for_length(16 << 20)).unwrap();
    let options = PoolOptions {
        clock: Clock::Manual(now.clone()),
        ..PoolOptions::default()
    };
    (common::open(region, options), now)
}

#[test]
fn times_follow_changes() {
    let (fs, now) = with_clock();
    let times = |path| {
        let found = fs.stat(path).unwrap();
        (found.modified_ns, found.changed_ns)
    };
    make_file(&fs, "file", b"");
    now.store(2000, Ordering::Relaxed);
    let file = fs.open("file", OpenFlags::WRITE, 0).unwrap();
    file.write(b"data").unwrap();
    assert_eq!((times("file"), times("/")), ((2000, 2000), (1000, 1000)));
    now.store(3000, Ordering::Relaxed);
    fs.link_path("file", "link").unwrap();
    assert_eq!((times("file"), times("/")), ((2000, 3000), (3000, 3000)));
    now.store(4000, Ordering::Relaxed);
    fs.rename_path("link", "name", RenameMode::Replace).unwrap();
    assert_eq!((times("file"), times("/")), ((2000, 4000), (4000, 4000)));
    now.store(5000, Ordering::Relaxed);
    fs.remove_file("name").unwrap();
    assert_eq!((times("file"), times("/")), ((2000, 5000), (5000, 5000)));
    now.store(6000, Ordering::Relaxed);
    file.truncate(1).unwrap();
    assert_eq!((times("file"), times("/")), ((6000, 6000), (5000, 5000)));
}

#[test]
fn reads_change_access_times_now_and_then() {
    let (fs, now) = with_clock();
    make_file(&fs, "file", b"data");
    let read_at = |time, flags| {
        now.store(time, Ordering::Relaxed);
        let file = fs.open("file", flags, 0).unwrap();
        file.read_at(&mut [0; 4], 0).unwrap();
        file.attributes().unwrap().accessed_ns
    };
    let unnoted = OpenFlags {
        no_access_time: true,
        ..OpenFlags::READ
    };
    assert_eq!(read_at(2000, unnoted), 1000);
    assert_eq!(
        read_at(2000, OpenFlags::READ),
        2000,
        "older than the change"
    );
    assert_eq!(
        read_at(3000, OpenFlags::READ),
        2000,
        "known to be read since"
    );
    const DAY: i64 = 24 * 3600 * 1_000_000_000;
    assert_eq!(read_at(2000 + DAY, OpenFlags::READ), 2000 + DAY);
    fs.open("file", OpenFlags::WRITE, 0)
        .unwrap()
        .write(b"x")
        .unwrap();
    assert_eq!(read_at(2001 + DAY, OpenFlags::READ), 2001 + DAY);
}

#[test]
fn readers_see_whole_writes() {
    // A cluster gets longer writes in parts.
    const LENGTH: usize = (1 << 20) + if common::IS_REMOTE { 0 } else { 5000 };
    // The ring is not shorter than a write.
    let fs = file_system_of(32 << 20, &Geometry::for_length(32 << 20));
    make_file(&fs, "file", &vec![0; LENGTH]);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs.open("file", OpenFlags::WRITE, 0).unwrap();
            for round in 0..60u8 {
                assert_eq!(file.write_at(&vec![round; LENGTH], 0).unwrap(), LENGTH);
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let found = contents(&fs, "file");
            assert!(found.iter().all(|byte| *byte == found[0]));
        }
    });
}

#[test]
fn a_pool_has_one_process() {
    let directory = Scratch::new("one-process");
    let pool = directory.0.join("pool");
    FileSystem::format_pool(&pool, 8 << 20, None).unwrap();
    let fs = FileSystem::open_pool(&pool).unwrap();
    assert_eq!(errno(FileSystem::open_pool(&pool)), libc::EBUSY);
    assert_eq!(errno(FileSystem::open_pool_private(&pool)), libc::EBUSY);
    drop(fs);
    let before = std::fs::read(&pool).unwrap();
    let fs = FileSystem::open_pool_private(&pool).unwrap();
    make_file(&fs, "file", b"no reader will see this");
    drop(fs);
    assert!(std::fs::read(&pool).unwrap() == before);
}

#[test]
fn names_are_bytes() {
    let fs = file_system();
    let create = |name: &[u8]| fs.create(ROOT, name, &special(FileKind::Regular));
    for name in [&[b'n'; 255][..], b"\xff\xfe\n ", b"Name", b"name"] {
        create(name).unwrap();
        assert!(fs.lookup(ROOT, name).is_ok());
    }
    assert_eq!(errno(create(&[b'n'; 256])), libc::ENAMETOOLONG);
    assert_eq!(errno(create(b"a/b")), libc::EINVAL);
    assert_eq!(errno(create(b"a\0b")), libc::EINVAL);
    assert_eq!(errno(create(b"NAME").and(create(b"NAME"))), libc::EEXIST);
}

#[test]
fn paths_have_limits() {
    let fs = file_system();
    fs.symlink("t".repeat(4095), "long").unwrap();
    assert_eq!(fs.read_link_path("long").unwrap().as_os_str().len(), 4095);
    assert_eq!(
        errno(fs.symlink("t".repeat(4096), "longer")),
        libc::ENAMETOOLONG
    );
    make_file(&fs, "link0", b"");
    for index in 1..=41 {
        fs.symlink(format!("link{}", index - 1), format!("link{index}"))
            .unwrap();
    }
    assert!(fs.stat("link40").is_ok());
    assert_eq!(errno(fs.stat("link41")), libc::ELOOP);
    let path = |length: usize| format!("{}link0", "/".repeat(length - 5));
    assert!(fs.stat(path(4095)).is_ok());
    assert_eq!(errno(fs.stat(path(4096))), libc::ENAMETOOLONG);
}

#[test]
fn numbers_come_back_with_another_generation() {
    let fs = file_system_of(SIMULATED, &Geometry::small());
    make_file(&fs, "file", b"");
    let old = fs.stat("file").unwrap();
    fs.remove_file("file").unwrap();
    assert_eq!(errno(fs.attributes(old.number)), libc::ESTALE);
    let found = (0..200).find_map(|_| {
        make_file(&fs, "file", b"");
        let new = fs.stat("file").unwrap();
        fs.remove_file("file").unwrap();
        (new.number == old.number).then_some(new.generation)
    });
    assert!(found.expect("the number is used again") > old.generation);
}

#[test]
fn the_library_checks_no_permissions() {
    let fs = file_system();
    make_file(&fs, "file", b"data");
    let change = SetAttributes {
        permissions: Some(0),
        uid: Some(12_345),
        ..SetAttributes::default()
    };
    fs.set_attributes_path("file", &change).unwrap();
    let file = fs.open("file", OpenFlags::READ_WRITE, 0).unwrap();
    file.write(b"DATA").unwrap();
    assert_eq!(contents(&fs, "file"), b"DATA");
}

#[test]
fn the_set_group_bit_is_inherited() {
    let fs = file_system();
    fs.make_directory("d", 0o755).unwrap();
    let change = SetAttributes {
        permissions: Some(0o2775),
        gid: Some(4242),
        ..SetAttributes::default()
    };
    fs.set_attributes_path("d", &change).unwrap();
    make_file(&fs, "d/file", b"");
    fs.make_directory("d/below", 0o755).unwrap();
    assert_eq!(fs.stat("d/file").unwrap().gid, 4242);
    let below = fs.stat("d/below").unwrap();
    assert_eq!((below.gid, below.permissions), (4242, 0o2755));
}

#[test]
fn special_files_cannot_be_opened_here() {
    let fs = file_system();
    for kind in [FileKind::Fifo, FileKind::Socket, FileKind::CharacterDevice] {
        fs.create(ROOT, b"special", &special(kind)).unwrap();
        assert_eq!(errno(fs.open("special", OpenFlags::READ, 0)), libc::ENXIO);
        fs.remove_file("special").unwrap();
    }
}
