//! Memory that disappears while it is used. A test that may end a process runs in a separate one.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use crate::scratch::Scratch;
use crate::{Access, Region};

const BYTES: u64 = 64 << 10;
const PATTERN: u64 = 0x1122_3344_5566_7788;
/// Marks a process as the child of a test, and gives it the path of its files.
const OTHER: &str = "TAKO_PMEM_CUT";

/// A file full of the pattern, attached as a peer's.
fn peer(path: &Path, writable: bool) -> Region {
    let owner = Region::create(path, BYTES).unwrap();
    owner.write(0, &PATTERN.to_ne_bytes().repeat(BYTES as usize / 8));
    Region::attach(owner.share(writable).unwrap(), BYTES, writable).unwrap()
}

fn shorten(path: &Path, length: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(length).unwrap();
}

/// Runs a test in another process, where [`in_other`] is something.
fn run(test: &str) -> ExitStatus {
    run_telling(test).0
}

/// The same; also returns the child's standard error.
fn run_telling(test: &str) -> (ExitStatus, String) {
    let scratch = Scratch::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("watched::tests::{test}")]);
    let output = command.env(OTHER, scratch.path()).output().unwrap();
    // Shown if this test fails.
    print!("{}", String::from_utf8_lossy(&output.stdout));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status, told)
}

fn in_other() -> Option<PathBuf> {
    std::env::var_os(OTHER).map(PathBuf::from)
}

#[test]
fn a_shortened_file_is_cut_and_ends_no_process() {
    let Some(directory) = in_other() else {
        let status = run("a_shortened_file_is_cut_and_ends_no_process");
        return assert!(status.success(), "{status}");
    };
    type Operation = fn(&Region);
    let operations: [Operation; 6] = [
        |region| {
            let mut bytes = [1; 100];
            region.read(BYTES - 100, &mut bytes);
            assert_eq!(bytes, [0; 100]);
        },
        |region| region.write(BYTES - 3, &[1; 3]),
        |region| region.write_flushed(8192, &[1; 4096]),
        |region| assert_eq!(region.compare_and_swap(BYTES - 8, 5, 6), 0),
        |region| {
            region.fetch_and_add(BYTES - 8, 5);
        },
        |region| {
            let own = Region::memory(BYTES, false).unwrap();
            own.copy_from(0, region, 0, BYTES as usize);
            region.copy_from(0, &own, 0, BYTES as usize);
        },
    ];
    let memory = Path::new("/dev/shm");
    let in_memory = Scratch::within(memory);
    for (number, operation) in operations.into_iter().enumerate() {
        for directory in [&directory, in_memory.path()] {
            let path = directory.join(number.to_string());
            let region = peer(&path, true);
            let other = peer(&directory.join(format!("other {number}")), true);
            shorten(&path, 4096);
            let mut first = [0; 8];
            region.read(4088, &mut first);
            assert_eq!(u64::from_ne_bytes(first), PATTERN, "it is there yet");
            assert!(!region.is_cut());
            operation(&region);
            assert!(region.is_cut());
            assert!(!other.is_cut() && other.load(BYTES - 8) == PATTERN);
            // And again, without another signal.
            operation(&region);
        }
    }
    let path = directory.join("read only");
    let region = peer(&path, false);
    shorten(&path, 0);
    assert_eq!((region.load(0), region.is_cut()), (0, true));
}

#[test]
fn a_concurrent_reader_has_the_contents_or_the_mark() {
    const ROUNDS: usize = 60;
    let Some(directory) = in_other() else {
        let status = run("a_concurrent_reader_has_the_contents_or_the_mark");
        return assert!(status.success(), "{status}");
    };
    let path = directory.join("pool");
    for round in 0..ROUNDS {
        let region = peer(&path, round % 2 == 0);
        let begun = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut bytes = vec![0; BYTES as usize];
                    loop {
                        region.read(0, &mut bytes);
                        if region.is_cut() {
                            return;
                        }
                        let (words, _) = bytes.as_chunks::<8>();
                        let found = |word: &[u8; 8]| u64::from_ne_bytes(*word) == PATTERN;
                        assert!(words.iter().all(found), "zeros, and it is not cut");
                        begun.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            while begun.load(Ordering::Relaxed) < 3 + round as u32 % 7 {
                thread::yield_now();
            }
            shorten(&path, round as u64 % 16 * 4096);
        });
        drop(region);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn others_come_and_go_meanwhile() {
    let Some(directory) = in_other() else {
        let status = run("others_come_and_go_meanwhile");
        return assert!(status.success(), "{status}");
    };
    let all_cut = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..2 {
            let (directory, all_cut) = (&directory, &all_cut);
            scope.spawn(move || {
                let path = directory.join(format!("passing {number}"));
                while !all_cut.load(Ordering::Relaxed) {
                    let region = peer(&path, true);
                    assert_eq!((region.load(0), region.is_cut()), (PATTERN, false));
                    drop(region);
                    fs::remove_file(&path).unwrap();
                }
            });
        }
        // More than the table has at first.
        let path = |number| directory.join(format!("{number}"));
        let regions: Vec<Region> = (0..200).map(|number| peer(&path(number), true)).collect();
        for (number, region) in regions.iter().enumerate().step_by(3) {
            shorten(&path(number), 0);
            region.store(BYTES - 8, 1);
        }
        for (number, region) in regions.iter().enumerate() {
            let word = region.load(0);
            let expected = if number % 3 == 0 { 0 } else { PATTERN };
            assert_eq!((word, region.is_cut()), (expected, number % 3 == 0));
        }
        all_cut.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_own_pool_that_goes_ends_the_process_which_says_why() {
    let Some(directory) = in_other() else {
        let (status, told) = run_telling("an_own_pool_that_goes_ends_the_process_which_says_why");
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
        assert!(told.contains("own: memory of the pool is gone"), "{told}");
        return;
    };
    let _watched = peer(&directory.join("peer"), true);
    let path = directory.join("own");
    let own = Region::create(&path, BYTES).unwrap();
    drop(own);
    let own = Region::open(&path, Access::ReadWrite).unwrap();
    shorten(&path, 0);
    own.load(0);
    unreachable!("there is no such memory");
}

#[test]
fn unwatched_memory_ends_the_process_as_before() {
    let Some(directory) = in_other() else {
        let (status, told) = run_telling("unwatched_memory_ends_the_process_as_before");
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
        assert_eq!(told, "");
        return;
    };
    let _watched = peer(&directory.join("peer"), true);
    let path = directory.join("other");
    let own = Region::create(&path, BYTES).unwrap();
    let file = File::open(&path).unwrap();
    drop(own);
    let flags = rustix::mm::MapFlags::SHARED;
    let protection = rustix::mm::ProtFlags::READ;
    // SAFETY: a new mapping, which no other code knows.
    let at = unsafe { rustix::mm::mmap(ptr::null_mut(), 4096, protection, flags, &file, 0) };
    shorten(&path, 0);
    // SAFETY: it is mapped; the test expects the load to fail.
    unsafe { at.unwrap().cast::<u8>().read_volatile() };
    unreachable!("there is no such memory");
}

#[test]
fn a_handler_that_was_there_before_gets_what_is_its_own() {
    static GOT: AtomicU32 = AtomicU32::new(0);
    extern "C" fn before(signal: libc::c_int) {
        if GOT.fetch_add(signal as u32, Ordering::Relaxed) > 0 {
            // Again and again, else.
            // SAFETY: it does nothing but end this process.
            unsafe { libc::_exit(1) }
        }
    }
    let Some(directory) = in_other() else {
        let status = run("a_handler_that_was_there_before_gets_what_is_its_own");
        return assert!(status.success(), "{status}");
    };
    // SAFETY: the handler only adds to an atomic.
    unsafe { libc::signal(libc::SIGBUS, before as *const () as usize) };
    let path = directory.join("peer");
    let region = peer(&path, true);
    // SAFETY: there is a handler for it.
    unsafe { libc::raise(libc::SIGBUS) };
    assert_eq!(GOT.load(Ordering::Relaxed), libc::SIGBUS as u32);
    shorten(&path, 0);
    assert_eq!((region.load(0), region.is_cut()), (0, true));
    assert_eq!(GOT.load(Ordering::Relaxed), libc::SIGBUS as u32);
}
