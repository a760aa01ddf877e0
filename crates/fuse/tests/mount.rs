//! A pool in memory, mounted, and used through the system's own calls. Needs root and /dev/fuse.

mod common;
mod mounted;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{
    FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::{apart, options, run};
use crate::mounted::{Directory, Mounted, errno, file_system};
use fuse::Error;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};

/// Makes the kernel ask for the contents of a file at its next reading.
fn forget_cached(path: &Path) {
    let file = File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[test]
fn files_are_created_written_read_and_removed() {
    let mounted = Mounted::new("");
    let path = mounted.path("file");
    fs::write(&path, b"hello").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello");
    OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b", world")
        .unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello, world");
    OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .write_all_at(b"HELLO", 0)
        .unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"HELLO, world");
    File::create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    fs::remove_file(&path).unwrap();
    assert_eq!(errno(File::open(&path)), libc::ENOENT);
    mounted.end();
}

#[test]
fn large_files_come_back_as_they_were() {
    let mounted = Mounted::new("");
    let path = mounted.path("large");
    let data: Vec<u8> = (0..(20 << 20) + 12345u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    fs::write(&path, &data).unwrap();
    assert!(fs::read(&path).unwrap() == data, "from the cache");
    forget_cached(&path);
    assert!(fs::read(&path).unwrap() == data, "from the pool");
    mounted.end();
}

#[test]
fn appending_threads_lose_nothing() {
    let mounted = Mounted::new("");
    let path = mounted.path("log");
    thread::scope(|scope| {
        for letter in b'a'..=b'd' {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(path)
                    .unwrap();
                (0..200).for_each(|_| file.write_all(&[letter; 10]).unwrap());
            });
        }
    });
    let log = fs::read(&path).unwrap();
    assert_eq!(log.len(), 8000);
    assert!(
        log.chunks(10)
            .all(|line| line.iter().all(|byte| *byte == line[0]))
    );
    mounted.end();
}

#[test]
fn exclusive_creation_has_one_winner() {
    let mounted = Mounted::new("");
    for round in 0..20 {
        let path = mounted.path(&format!("lock{round}"));
        let winners: usize = thread::scope(|scope| {
            let open = || OpenOptions::new().write(true).create_new(true).open(&path);
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
            threads
                .into_iter()
                .map(|thread| usize::from(thread.join().unwrap().is_ok()))
                .sum()
        });
        assert_eq!(winners, 1);
    }
    mounted.end();
}

#[test]
fn names_are_moved_linked_and_replaced() {
    let mounted = Mounted::new("");
    let (a, b, c) = (mounted.path("a"), mounted.path("b"), mounted.path("c"));
    fs::write(&a, b"a").unwrap();
    fs::hard_link(&a, &b).unwrap();
    assert_eq!(fs::metadata(&a).unwrap().nlink(), 2);
    assert_eq!(
        fs::metadata(&a).unwrap().ino(),
        fs::metadata(&b).unwrap().ino()
    );
    fs::write(&c, b"c").unwrap();
    fs::rename(&c, &a).unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"c");
    assert_eq!(fs::metadata(&b).unwrap().nlink(), 1);
    assert_eq!(errno(fs::metadata(&c)), libc::ENOENT);

    let (d, e) = (mounted.path("d"), mounted.path("e"));
    fs::create_dir_all(d.join("below")).unwrap();
    fs::create_dir(&e).unwrap();
    fs::rename(&a, d.join("below/a")).unwrap();
    fs::rename(d.join("below"), e.join("below")).unwrap();
    assert_eq!(fs::read(e.join("below/a")).unwrap(), b"c");
    assert_eq!(errno(fs::rename(&e, e.join("below/e"))), libc::EINVAL);
    assert_eq!(errno(fs::remove_dir(&e)), libc::ENOTEMPTY);
    assert_eq!(fs::metadata(&d).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(&e).unwrap().nlink(), 3);
    mounted.end();
}

#[test]
fn rename_flags_are_honoured() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let mounted = Mounted::new("");
    let (a, b) = (mounted.path("a"), mounted.path("b"));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    let rename =
        |flags| renameat_with(CWD, &a, CWD, &b, flags).map_err(|errno| errno.raw_os_error());
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(libc::EEXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (fs::read(&a).unwrap(), fs::read(&b).unwrap()),
        (b"b".to_vec(), b"a".to_vec())
    );
    let both = RenameFlags::WHITEOUT | RenameFlags::NOREPLACE;
    assert_eq!(rename(both), Err(libc::EEXIST));
    rename(RenameFlags::WHITEOUT).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"b");
    let left = fs::metadata(&a).unwrap();
    assert!(left.file_type().is_char_device());
    assert_eq!((left.rdev(), left.mode() & 0o7777), (0, 0));
    mounted.end();
}

#[test]
fn symbolic_links_and_special_files() {
    let mounted = Mounted::new("");
    let link = mounted.path("link");
    fs::write(mounted.path("file"), b"target").unwrap();
    symlink("file", &link).unwrap();
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("file"));
    assert_eq!(fs::read(&link).unwrap(), b"target");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());

    let pipe = mounted.path("pipe");
    assert!(run(Command::new("mkfifo").arg(&pipe)).status.success());
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    let writer = thread::spawn({
        let pipe = pipe.clone();
        move || fs::write(pipe, b"through").unwrap()
    });
    assert_eq!(fs::read(&pipe).unwrap(), b"through");
    writer.join().unwrap();

    let device = mounted.path("null");
    assert!(
        run(Command::new("mknod").arg(&device).args(["c", "1", "3"]))
            .status
            .success()
    );
    let (found, system) = (
        fs::metadata(&device).unwrap(),
        fs::metadata("/dev/null").unwrap(),
    );
    assert!(found.file_type().is_char_device());
    assert_eq!(found.rdev(), system.rdev());
    assert_eq!(
        errno(File::open(&device)),
        libc::EACCES,
        "devices are not opened by default"
    );
    mounted.end();
}

#[test]
fn a_directory_of_2000_files_is_read_whole() {
    let mounted = Mounted::new("");
    let directory = mounted.path("many");
    fs::create_dir(&directory).unwrap();
    let name = |number: usize| format!("file-{number}-{}", "x".repeat(number % 90));
    for number in 0..2000 {
        File::create(directory.join(name(number))).unwrap();
    }
    let list = || -> Vec<String> {
        let entries = fs::read_dir(&directory).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    };
    let expected: BTreeSet<String> = (0..2000).map(name).collect();
    for round in ["first", "from the cache"] {
        let listed = list();
        assert_eq!(listed.len(), 2000, "{round}");
        assert_eq!(
            listed.into_iter().collect::<BTreeSet<_>>(),
            expected,
            "{round}"
        );
    }
    // The names that were there all the time are seen once each, whatever else comes and goes.
    let mut seen = BTreeSet::new();
    for (index, entry) in fs::read_dir(&directory).unwrap().enumerate() {
        let entry = entry.unwrap().file_name().into_string().unwrap();
        assert!(seen.insert(entry.clone()), "{entry} was seen twice");
        if index % 2 == 0 {
            fs::remove_file(directory.join(&entry)).unwrap();
        }
    }
    assert_eq!(seen, expected);
    let (kept, sizes) = (
        list(),
        fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len()),
    );
    assert_eq!((kept.len(), sizes.sum::<u64>()), (1000, 0));
    fs::remove_dir_all(&directory).unwrap();
    mounted.end();
}

#[test]
fn attributes_are_kept() {
    let mounted = Mounted::new("");
    let path = mounted.path("file");
    fs::write(&path, b"x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
    std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.uid(), found.gid()), (1234, 4321));
    assert_eq!(
        found.mode() & 0o7777,
        0o751,
        "chown takes the set-user bit away"
    );

    // 1.2 seconds before 1970, and a time after.
    let script =
        "import os,sys; os.utime(sys.argv[1], ns=(-1_200_000_000, 1_700_000_000_123_456_789))";
    assert!(
        run(Command::new("python3").args(["-c", script]).arg(&path))
            .status
            .success()
    );
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.atime(), found.atime_nsec()), (-2, 800_000_000));
    assert_eq!(
        (found.mtime(), found.mtime_nsec()),
        (1_700_000_000, 123_456_789)
    );
    let before = found.ctime() * 1_000_000_000 + found.ctime_nsec();
    assert!(before > 1_700_000_000_000_000_000);

    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6777);
    let as_other = [
        "--reuid=1234",
        "--regid=4321",
        "--clear-groups",
        "sh",
        "-c",
        "echo more >> \"$0\"",
    ];
    assert!(
        run(Command::new("setpriv").args(as_other).arg(&path))
            .status
            .success()
    );
    assert_eq!(
        fs::metadata(&path).unwrap().mode() & 0o7777,
        0o777,
        "writing takes the bits away"
    );
    mounted.end();
}

#[test]
fn permissions_are_enforced_for_others() {
    let mounted = Mounted::new("");
    let path = mounted.path("secret");
    fs::write(&path, b"x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let cat = |path: &Path| {
        let words = ["--reuid=65534", "--regid=65534", "--clear-groups", "cat"];
        run(Command::new("setpriv").args(words).arg(path))
            .status
            .success()
    };
    assert!(!cat(&path));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
    assert!(cat(&path));
    mounted.end();
}

#[test]
fn the_umask_applies_once() {
    let mounted = Mounted::new("");
    let script = "umask 027; touch \"$0/file\"; mkdir \"$0/directory\"";
    assert!(
        run(Command::new("sh")
            .args(["-c", script])
            .arg(&mounted.directory.0))
        .status
        .success()
    );
    assert_eq!(
        fs::metadata(mounted.path("file")).unwrap().mode() & 0o7777,
        0o640
    );
    assert_eq!(
        fs::metadata(mounted.path("directory")).unwrap().mode() & 0o7777,
        0o750
    );
    mounted.end();
}

#[test]
fn mappings_are_written_and_read() {
    let mounted = Mounted::new("");
    let path = mounted.path("mapped");
    fs::write(&path, vec![b'.'; 3 << 20]).unwrap();
    let script = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_APPEND)
with mmap.mmap(fd, 0) as shared:
    assert shared[:4] == b'....'
    shared[0:5] = b'first'
    shared[2 << 20:(2 << 20) + 6] = b'second'
    shared.flush()
    os.pwrite(fd, b'appended', 0)
    assert os.pread(fd, 5, 0) == b'first'
";
    assert!(
        run(Command::new("python3").args(["-c", script]).arg(&path))
            .status
            .success()
    );
    forget_cached(&path);
    let contents = fs::read(&path).unwrap();
    assert_eq!(contents.len(), (3 << 20) + 8);
    assert!(contents.starts_with(b"first.") && contents.ends_with(b".appended"));
    assert_eq!(&contents[2 << 20..(2 << 20) + 7], b"second.");
    mounted.end();
}

#[test]
fn holes_take_no_space_and_are_found() {
    let mounted = Mounted::new("");
    let path = mounted.path("sparse");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_all_at(b"data", 1 << 30).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 40);
    assert!(fs::metadata(&path).unwrap().blocks() < 64);
    let seek = |from| rustix::fs::seek(&file, from).map_err(|errno| errno.raw_os_error());
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(1 << 30));
    assert_eq!(
        seek(rustix::fs::SeekFrom::Hole(1 << 30)),
        Ok((1 << 30) + 4096)
    );
    assert_eq!(
        seek(rustix::fs::SeekFrom::Data((1 << 30) + 4096)),
        Err(libc::ENXIO)
    );
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(1 << 40)), Err(libc::ENXIO));
    let mut bytes = [1; 8];
    file.seek(SeekFrom::Start((1 << 30) - 2)).unwrap();
    file.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"\0\0data\0\0");
    // Data that was cut off does not reappear.
    file.set_len((1 << 30) + 2).unwrap();
    file.set_len(1 << 31).unwrap();
    file.read_exact_at(&mut bytes, (1 << 30) - 2).unwrap();
    assert_eq!(&bytes, b"\0\0da\0\0\0\0");
    drop(file);
    mounted.end();
}

#[test]
fn statistics_follow_what_is_stored() {
    let mounted = Mounted::new("");
    let free = || rustix::fs::statvfs(&mounted.directory.0).unwrap();
    let before = free();
    assert_eq!((before.f_bsize, before.f_namemax), (4096, 255));
    assert!(
        before.f_blocks > 0
            && before.f_bfree <= before.f_blocks
            && before.f_bavail <= before.f_bfree
    );
    fs::write(mounted.path("file"), vec![1; 4 << 20]).unwrap();
    let during = free();
    assert!(before.f_bfree - during.f_bfree >= 1024);
    assert_eq!(before.f_ffree - during.f_ffree, 1);
    fs::remove_file(mounted.path("file")).unwrap();
    mounted.end();
}

#[test]
fn an_open_file_outlives_its_name() {
    let mounted = Mounted::new("");
    let path = mounted.path("file");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.write_all_at(b"before", 0).unwrap();
    let twin = file.try_clone().unwrap();
    fs::remove_file(&path).unwrap();
    drop(file);
    // Many other inodes come and go meanwhile.
    for number in 0..3000 {
        fs::write(mounted.path(&format!("other{number}")), b"other").unwrap();
    }
    // The kernel forgets unused inodes.
    fs::write("/proc/sys/vm/drop_caches", b"2").unwrap();
    assert_eq!(twin.metadata().unwrap().nlink(), 0);
    let mut bytes = [0; 6];
    twin.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"before");
    twin.write_all_at(b"after", 100).unwrap();
    assert_eq!(twin.metadata().unwrap().len(), 105);
    drop(twin);
    mounted.end();
}

#[test]
fn direct_and_synchronous_access_works() {
    let mounted = Mounted::new("");
    let path = mounted.path("file");
    let mut direct = OpenOptions::new();
    direct
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT | libc::O_SYNC);
    let file = direct.open(&path).unwrap();
    file.write_all_at(&[7; 8192], 0).unwrap();
    file.sync_all().unwrap();
    let mut bytes = [0; 8192];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [7; 8192]);
    assert_eq!(fs::read(&path).unwrap(), bytes);
    drop(file);
    mounted.end();
}

#[test]
fn access_times_follow_reads() {
    let mounted = Mounted::new("");
    let path = mounted.path("file");
    fs::write(&path, b"data").unwrap();
    let set = |accessed, modified| {
        let time = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let times = fs::FileTimes::new().set_accessed(time(accessed));
        let file = File::options().write(true).open(&path).unwrap();
        file.set_times(times.set_modified(time(modified))).unwrap();
    };
    let read = |flags| {
        let file = File::options().read(true).custom_flags(flags).open(&path);
        file.unwrap().read_exact(&mut [0; 4]).unwrap();
        fs::metadata(&path).unwrap().atime()
    };
    set(1000, 2000);
    assert_eq!(read(libc::O_NOATIME | libc::O_DIRECT), 1000);
    assert!(read(libc::O_DIRECT) > 2000);
    mounted.end();
}

/// Sets a time of access in the future, which `relatime` leaves.
fn access_later(path: &Path) -> SystemTime {
    let later = SystemTime::now() + Duration::from_secs(3600);
    let seconds = later.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(seconds as i64, 0),
        last_modification: time(0, UTIME_OMIT),
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    later - Duration::from_secs(1)
}

#[test]
fn every_read_sets_strict_access_times() {
    for (options, always) in [("strictatime", true), ("", false)] {
        let mounted = Mounted::new(options);
        let paths = ["file", "directory", "link"].map(|name| mounted.path(name));
        let [file, directory, link] = &paths;
        fs::write(file, b"data").unwrap();
        fs::create_dir(directory).unwrap();
        symlink("file", link).unwrap();
        // From the second time on the kernel could answer.
        for round in 0..3 {
            let later = paths.each_ref().map(|path| access_later(path));
            assert_eq!(fs::read(file).unwrap(), b"data");
            assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
            assert_eq!(fs::read_link(link).unwrap(), Path::new("file"));
            for (path, later) in paths.iter().zip(later) {
                let accessed = fs::symlink_metadata(path).unwrap().accessed().unwrap();
                assert_eq!(accessed < later, always, "{options} {path:?} {round}");
            }
        }
        mounted.end();
    }
}

#[test]
fn access_times_of_directories_follow_reads_or_not() {
    for (options, follows) in [("", true), ("nodiratime", false), ("noatime", false)] {
        let mounted = Mounted::new(options);
        let (path, file) = (mounted.path("directory"), mounted.path("file"));
        fs::create_dir(&path).unwrap();
        fs::write(&file, b"data").unwrap();
        let times = fs::FileTimes::new().set_accessed(UNIX_EPOCH + Duration::from_secs(1000));
        for path in [&path, &file] {
            File::open(path).unwrap().set_times(times).unwrap();
        }
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        let accessed = |path| fs::metadata(path).unwrap().atime();
        assert_eq!(accessed(&path) > 1000, follows, "{options}");
        fs::read(&file).unwrap();
        assert_eq!(accessed(&file) > 1000, options != "noatime", "{options}");
        mounted.end();
    }
}

#[test]
fn symbolic_links_are_followed_or_only_read() {
    for (options, follows) in [("", true), ("nosymfollow", false)] {
        let mounted = Mounted::new(options);
        let (file, link) = (mounted.path("file"), mounted.path("link"));
        fs::write(&file, b"data").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("file"));
        assert_eq!(fs::read(&link).is_ok(), follows, "{options}");
        mounted.end();
    }
}

#[test]
fn extended_attributes_are_kept() {
    use rustix::fs::{XattrFlags, getxattr, getxattr_query, listxattr, removexattr, setxattr};
    use rustix::io::Errno;
    let mounted = Mounted::new("");
    let path = mounted.path("file");
    fs::write(&path, b"").unwrap();
    let mut value = [0; 100];
    setxattr(&path, "user.name", b"value", XattrFlags::empty()).unwrap();
    setxattr(&path, "trusted.empty", b"", XattrFlags::CREATE).unwrap();
    assert_eq!(getxattr(&path, "user.name", &mut value), Ok(5));
    assert_eq!(&value[..5], b"value");
    assert_eq!(
        getxattr(&path, "user.name", &mut value[..3]),
        Err(Errno::RANGE)
    );
    assert_eq!(getxattr_query(&path, "user.name"), Ok(5));
    let length = listxattr(&path, &mut value).unwrap();
    assert_eq!(&value[..length], b"user.name\0trusted.empty\0");
    let set = |flags| setxattr(&path, "user.name", b"other", flags);
    assert_eq!(set(XattrFlags::CREATE), Err(Errno::EXIST));
    removexattr(&path, "user.name").unwrap();
    assert_eq!(set(XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(removexattr(&path, "user.name"), Err(Errno::NODATA));
    let long = setxattr(&path, "user.long", &[1; 5000], XattrFlags::empty());
    assert_eq!(long, Err(Errno::NOSPC));
    mounted.end();
}

/// A file's privileges are removed when another user changes the file.
#[test]
fn privileges_are_dropped_by_changes() {
    let mounted = Mounted::new("");
    let path = mounted.path("file");
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    // An empty set of capabilities, of revision 2.
    let capability = [&[0, 0, 0, 2][..], &[0; 16]].concat();
    let flags = rustix::fs::XattrFlags::empty();
    let has_capability = || {
        let known = rustix::fs::getxattr(&path, "security.capability", &mut [0; 100][..]);
        known != Err(rustix::io::Errno::NODATA)
    };
    fs::write(&path, b"data").unwrap();
    set(0o6755);
    rustix::fs::setxattr(&path, "security.capability", &capability, flags).unwrap();
    fs::write(&path, b"by root").unwrap();
    assert_eq!(mode(), 0o6755, "root may write such a file");
    assert!(!has_capability(), "but its capabilities go");
    std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
    assert_eq!(mode(), 0o755);
    let by_another = |command: &str| {
        let words = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let script = ["sh", "-c", command].map(Into::into);
        let command = [
            &words.map(Into::into)[..],
            &script,
            &[path.clone().into_os_string()],
        ];
        let output = run(Command::new("setpriv").args(command.concat()));
        assert!(output.status.success(), "{output:?}");
    };
    for change in ["echo x >>$0", ": >$0", "fallocate -l 10000 $0"] {
        set(0o6777);
        by_another(change);
        assert_eq!(mode(), 0o777, "{change}");
    }
    set(0o2745);
    std::os::unix::fs::chown(&path, Some(13), None).unwrap();
    assert_eq!(
        mode(),
        0o2745,
        "of a file that its group cannot execute, the bit means locking"
    );
    mounted.end();
}

#[test]
fn ranges_are_allocated_and_punched() {
    use rustix::fs::{FallocateFlags, fallocate};
    let mounted = Mounted::new("");
    let path = mounted.path("file");
    fs::write(&path, [7; 20_000]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 100, 9000).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE, 15_000, 10_000).unwrap();
    fallocate(&file, FallocateFlags::empty(), 20_000, 20_000).unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 60_000, 4096).unwrap();
    let mut expected = vec![7; 40_000];
    expected[100..9100].fill(0);
    expected[15_000..].fill(0);
    assert!(fs::read(&path).unwrap() == expected);
    assert_eq!(file.metadata().unwrap().blocks(), (9 + 2) * 8);
    drop(file);
    mounted.end();
}

#[test]
fn long_names_and_missing_features_have_their_errno() {
    let mounted = Mounted::new("");
    fs::write(mounted.path(&"n".repeat(255)), b"").unwrap();
    assert_eq!(
        errno(fs::write(mounted.path(&"n".repeat(256)), b"")),
        libc::ENAMETOOLONG
    );
    let file = File::create(mounted.path("file")).unwrap();
    let collapse = rustix::fs::FallocateFlags::COLLAPSE_RANGE;
    let collapse = rustix::fs::fallocate(&file, collapse, 0, 4096);
    assert_eq!(collapse, Err(rustix::io::Errno::OPNOTSUPP));
    drop(file);
    fs::write(mounted.path("file"), b"copied").unwrap();
    assert_eq!(
        fs::copy(mounted.path("file"), mounted.path("copy")).unwrap(),
        6
    );
    assert_eq!(fs::read(mounted.path("copy")).unwrap(), b"copied");
    mounted.end();
}

#[test]
fn a_mount_in_use_stays() {
    let mounted = Mounted::new("");
    let file = File::create(mounted.path("file")).unwrap();
    let mount = mounted.mount.as_ref().unwrap();
    assert!(matches!(mount.unmount(), Err(Error::Busy(_))));
    assert!(matches!(
        fuse::unmount(&mounted.directory.0),
        Err(Error::Busy(_))
    ));
    assert!(mounted.path("file").exists());
    drop(file);
    mounted.end();
}

#[test]
fn unmounting_from_outside_ends_the_session() {
    let mut mounted = Mounted::new("");
    fs::write(mounted.path("file"), b"x").unwrap();
    let mount = mounted.mount.take().unwrap();
    apart(|| fuse::unmount(&mounted.directory.0)).unwrap();
    mount.wait().unwrap();
    assert!(fs::read_dir(&mounted.directory.0).unwrap().next().is_none());
    assert!(matches!(
        fuse::unmount(&mounted.directory.0),
        Err(Error::NotMounted(_))
    ));
}

#[test]
fn the_directory_below_is_left_alone() {
    let below = Mounted::new("");
    fs::write(below.path("below"), b"x").unwrap();
    let above = fuse::mount(file_system(), &below.directory.0, &options("")).unwrap();
    assert!(!below.path("below").exists());
    let mut umount = Command::new("umount");
    let unmounted = apart(|| umount.arg(&below.directory.0).status().unwrap());
    assert!(unmounted.success());
    drop(above);
    assert!(below.path("below").exists());
    below.end();
}

#[test]
fn read_only_mounts_refuse_changes() {
    let mounted = Mounted::new("ro");
    assert_eq!(errno(File::create(mounted.path("file"))), libc::EROFS);
    mounted.end();
}

#[test]
fn wrong_mount_points_are_refused() {
    let directory = Directory::new();
    let missing = directory.0.join("missing");
    let result = fuse::mount(file_system(), &missing, &options(""));
    assert!(matches!(result.err(), Some(Error::NoDirectory(_))));
    let file = directory.0.join("file");
    fs::write(&file, b"").unwrap();
    let result = fuse::mount(file_system(), &file, &options(""));
    assert!(matches!(result.err(), Some(Error::NotADirectory(_))));
    fs::remove_file(&file).unwrap();
    assert!(matches!(
        fuse::unmount(&directory.0),
        Err(Error::NotMounted(_))
    ));
    assert!(matches!(fuse::unmount(&missing), Err(Error::NotMounted(_))));
}
