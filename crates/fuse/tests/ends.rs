//! Ends while requests are in flight: nothing hangs, no answered request is lost, nothing is left over. Needs root and
//! /dev/fuse.

mod common;
mod mounted;

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use client::{FileSystem, LOCK_END, Lock, LockKind, LockSpace, OpenFlags};
use common::{apart, options, run};
use mounted::{Directory, Mounted, errno};

const WRITERS: usize = 8;
/// Files that are there before the end comes.
const FILES_BEFORE: usize = 200;

/// A pool in a file, which goes with the test.
struct PoolFile(PathBuf);

impl PoolFile {
    fn new(name: &str) -> PoolFile {
        let path = PathBuf::from(format!("/dev/shm/tako-ends-{}-{name}", std::process::id()));
        // Sparse, and too large for writers to fill while a slow machine unmounts.
        FileSystem::format_pool(&path, 2 << 30, None).expect("a pool");
        PoolFile(path)
    }

    fn open(&self) -> FileSystem {
        FileSystem::open_pool(&self.0).expect("no other process holds the pool")
    }
}

impl Drop for PoolFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn contents(writer: usize, number: usize) -> Vec<u8> {
    format!("{writer} {number} ")
        .repeat(1 + number % 700)
        .into_bytes()
}

/// Writes files until one fails, and returns how many were answered.
fn write_files(directory: &Path, writer: usize, written: &AtomicUsize) -> usize {
    for number in 0.. {
        let write = || -> io::Result<()> {
            let mut file = File::create(directory.join(format!("{writer}-{number}")))?;
            file.write_all(&contents(writer, number))
        };
        if write().is_err() {
            return number;
        }
        written.fetch_add(1, Ordering::Relaxed);
    }
    unreachable!("it ends with a failure")
}

/// Aborts the connection of the mount at `directory`, as an administrator does.
fn abort(directory: &Path) {
    let control = Directory::new();
    let mount = |arguments: &[&str]| {
        let path = control.0.to_str().unwrap();
        let output = run(Command::new(arguments[0]).args(&arguments[1..]).arg(path));
        assert!(output.status.success(), "{output:?}");
    };
    // The number of a connection is the minor number of its mount.
    let device = fs::metadata(directory).unwrap().dev();
    mount(&["mount", "-t", "fusectl", "none"]);
    let number = libc::minor(device).to_string();
    let aborted = fs::write(control.0.join(number).join("abort"), "1");
    mount(&["umount"]);
    aborted.unwrap();
}

#[test]
fn an_aborted_connection_loses_nothing_that_was_answered() {
    for transport in ["auto", "classic"] {
        let pool = PoolFile::new(transport);
        let directory = Directory::new();
        let options = format!("transport={transport}").parse().unwrap();
        let mount = fuse::mount(pool.open(), &directory.0, &options).unwrap();
        let written = AtomicUsize::new(0);
        let answered: Vec<usize> = thread::scope(|scope| {
            let start = |writer| {
                let (path, written) = (&directory.0, &written);
                scope.spawn(move || write_files(path, writer, written))
            };
            let writers: Vec<_> = (0..WRITERS).map(start).collect();
            while written.load(Ordering::Relaxed) < FILES_BEFORE {
                thread::yield_now();
            }
            abort(&directory.0);
            writers
                .into_iter()
                .map(|writer| writer.join().unwrap())
                .collect()
        });
        // There is no answering thread any more, but the directory stays until it is unmounted.
        mount.wait().unwrap();
        assert_eq!(
            errno(File::create(directory.0.join("late"))),
            libc::ENOTCONN
        );
        apart(|| fuse::unmount(&directory.0)).unwrap();
        let file_system = pool.open();
        for (writer, count) in answered.into_iter().enumerate() {
            for number in 0..count {
                let read = OpenFlags::READ;
                let file = file_system
                    .open(format!("{writer}-{number}"), read, 0)
                    .unwrap();
                let mut found = vec![0; file.attributes().unwrap().size as usize];
                file.read_at(&mut found, 0).unwrap();
                assert_eq!(found, contents(writer, number), "{transport}");
            }
        }
    }
}

/// The kernel gives the device number of a mount that has ended to a later one.
#[test]
fn the_end_of_a_detached_mount_leaves_a_later_one_with_its_number() {
    const TRIES: usize = 100;
    for _ in 0..TRIES {
        let detached = Mounted::new("");
        let number = |mounted: &Mounted| fs::metadata(&mounted.directory.0).unwrap().dev();
        let before = number(&detached);
        let ended = run(Command::new("umount").arg("-l").arg(&detached.directory.0));
        assert!(ended.status.success(), "{ended:?}");
        let later = Mounted::new("");
        // Another test's mount may have the number.
        if number(&later) == before {
            fs::write(later.path("file"), b"data").unwrap();
            drop(detached);
            assert_eq!(fs::read(later.path("file")).unwrap(), b"data");
            return later.end();
        }
    }
    panic!("no later mount had the number");
}

#[test]
fn a_mount_in_use_ends_when_its_last_user_has() {
    let pool = PoolFile::new("lazily");
    let directory = Directory::new();
    let mount = fuse::mount(pool.open(), &directory.0, &options("")).unwrap();
    let stop = AtomicBool::new(false);
    let written = AtomicUsize::new(0);
    thread::scope(|scope| {
        let write = |writer: usize| {
            let file = File::create(directory.0.join(writer.to_string())).unwrap();
            let (stop, written) = (&stop, &written);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    (&file).write_all(&[7; 100]).unwrap();
                    written.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let writers: Vec<_> = (0..WRITERS).map(write).collect();
        assert!(matches!(
            apart(|| mount.unmount()),
            Err(fuse::Error::Busy(_))
        ));
        let output = run(Command::new("umount").arg("-l").arg(&directory.0));
        assert!(output.status.success(), "{output:?}");
        let before = written.load(Ordering::Relaxed);
        // A writer that ended early has failed, and reports why when the scope ends.
        while written.load(Ordering::Relaxed) < before + FILES_BEFORE
            && !writers.iter().any(|writer| writer.is_finished())
        {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    mount.wait().unwrap();
    let file_system = pool.open();
    let sizes = (0..WRITERS).map(|writer| file_system.stat(writer.to_string()).unwrap().size);
    assert_eq!(
        sizes.sum::<u64>(),
        100 * written.load(Ordering::Relaxed) as u64
    );
}

/// A lock of the whole file.
fn whole(owner: u64) -> Lock {
    Lock {
        space: LockSpace::Whole,
        kind: LockKind::Write,
        start: 0,
        end: LOCK_END,
        owner,
        handle: owner,
        process: 0,
    }
}

/// Shared locks exclude users of the file system beside the mount, and end with the mount, also with waiting callers.
#[test]
fn shared_locks_go_with_the_mount() {
    for transport in ["auto", "classic"] {
        let file_system = mounted::file_system();
        let beside = file_system.lock_user();
        let directory = Directory::new();
        let options = format!("locks=shared,transport={transport}")
            .parse()
            .unwrap();
        let mount = fuse::mount(file_system, &directory.0, &options).unwrap();
        let open = || File::create(directory.0.join("file")).unwrap();
        let (file, other) = (open(), open());
        let number = file.metadata().unwrap().ino();
        assert!(beside.take(number, &whole(1)).unwrap());
        assert!(matches!(file.try_lock(), Err(TryLockError::WouldBlock)));
        thread::scope(|scope| {
            let waits = scope.spawn(|| file.lock());
            while beside.waits() == 0 {
                thread::yield_now();
            }
            beside.give_back(number, &whole(1)).unwrap();
            waits.join().unwrap().unwrap();
            assert!(!beside.take(number, &whole(1)).unwrap());
            let waits = scope.spawn(|| other.lock());
            while beside.waits() == 0 {
                thread::yield_now();
            }
            abort(&directory.0);
            assert!(waits.join().unwrap().is_err(), "{transport}");
        });
        mount.wait().unwrap();
        assert!(beside.take(number, &whole(1)).unwrap() && beside.waits() == 0);
        drop((file, other));
        apart(|| fuse::unmount(&directory.0)).unwrap();
    }
}

/// Processes that are killed while their requests are answered leave no file, lock or handle behind.
#[test]
fn killed_clients_leave_nothing_behind() {
    kill_clients("locks=kernel");
}

#[test]
fn killed_clients_leave_no_shared_locks_behind() {
    kill_clients("locks=shared");
}

fn kill_clients(options: &str) {
    let mounted = Mounted::new(options);
    let free = || rustix::fs::statfs(&mounted.directory.0).unwrap().f_ffree;
    let before = free();
    let script = "
import fcntl, os, sys
os.chdir(sys.argv[1])
number = 0
while True:
    file = os.open(f'f{number % 10}', os.O_RDWR | os.O_CREAT)
    fcntl.lockf(file, fcntl.LOCK_EX)
    os.write(file, b'x' * 300000)
    os.pread(file, 300000, 0)
    os.unlink(f'f{number % 10}')
    hidden = os.open('.', os.O_TMPFILE | os.O_RDWR)
    os.write(hidden, b'y' * 5000)
    os.close(hidden)
    os.close(file)
    number += 1
    if number == 3:
        print('working', flush=True)
";
    for round in 0..8 {
        let directory = mounted.path(&format!("round-{round}"));
        fs::create_dir(&directory).unwrap();
        let mut client = apart(|| {
            let mut command = Command::new("python3");
            command.args(["-c", script]).arg(&directory);
            command.stdout(Stdio::piped()).spawn().unwrap()
        });
        let mut line = [0; 8];
        io::Read::read_exact(client.stdout.as_mut().unwrap(), &mut line).unwrap();
        client.kill().unwrap();
        client.wait().unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }
    // The kernel reports forgotten inodes later.
    while free() < before {
        thread::yield_now();
    }
    mounted.end();
}

#[test]
fn a_covered_mount_is_in_use() {
    let mounted = Mounted::new("");
    let mount = mounted.mount.as_ref().unwrap();
    let cover = run(Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(&mounted.directory.0));
    assert!(cover.status.success());
    let refused = apart(|| mount.unmount());
    assert!(
        run(Command::new("umount").arg(&mounted.directory.0))
            .status
            .success()
    );
    assert!(matches!(refused, Err(fuse::Error::Busy(_))), "{refused:?}");
    fs::write(mounted.path("file"), "data").unwrap();
    mounted.end();
}

#[test]
fn a_mount_ends_wherever_it_has_moved() {
    let (above, moved) = (Directory::new(), Directory::new());
    let directory = above.0.join("mount");
    fs::create_dir(&directory).unwrap();
    let mount = fuse::mount(mounted::file_system(), &directory, &options("")).unwrap();
    fs::rename(&above.0, &moved.0).unwrap();
    fs::write(moved.0.join("mount/file"), "data").unwrap();
    apart(|| mount.unmount()).unwrap();
    // The directory below the mount.
    fs::remove_dir(moved.0.join("mount")).unwrap();
    mount.wait().unwrap();
}
