//! The kernel's caches of a mount, and their invalidation. Needs root and /dev/fuse.

mod common;
mod mounted;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;

use client::{OpenFlags, RenameMode, SetAttributes};
use common::{apart, options, run};
use mounted::{Directory, Mounted, errno, file_system};
use rustix::fs::SeekFrom;

/// Nor does anything keep the mount busy then.
#[test]
fn no_cache_hides_data_in_holes() {
    for cache in ["strict", "writeback", "none"] {
        let mounted = Mounted::new(&format!("cache={cache}"));
        let file = fs::File::create_new(mounted.path("file")).unwrap();
        file.write_all_at(&[1; 4096], 1 << 20).unwrap();
        let end = file.metadata().unwrap().len();
        let data = rustix::fs::seek(&file, SeekFrom::Data(0)).unwrap();
        assert!(data <= 1 << 20, "{cache}: {data}");
        let hole = rustix::fs::seek(&file, SeekFrom::Hole(1 << 20)).unwrap();
        assert_eq!(hole, end, "{cache}");
        drop(file);
        let threads = fs::read_dir("/proc/self/task").unwrap();
        let names = threads
            .filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")).ok());
        let asking: Vec<String> = names.filter(|name| name.starts_with("iou-wrk")).collect();
        assert!(
            asking.is_empty(),
            "a request of our own may be in flight: {asking:?}"
        );
        mounted.end();
    }
}

/// The kernel asks for holes before it has written its data of a mapping.
#[test]
fn stores_of_a_mapping_are_in_no_hole() {
    let script = r"
import errno, mmap, os, subprocess, sys
path = sys.argv[1]
fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
os.ftruncate(fd, 1 << 20)

def seek(offset, whence):
    try:
        return os.lseek(fd, offset, whence)
    except OSError as error:
        assert error.errno == errno.ENXIO, error
        return None

finds = sys.argv[2] == 'holes'
with mmap.mmap(fd, 0) as shared:
    for at in 1 << 19, 1 << 18, 0, (1 << 20) - 1:
        shared[at:at + 1] = b'x'
        data, hole = seek(0, os.SEEK_DATA), seek(at, os.SEEK_HOLE)
        assert data is not None and data <= at < hole, (at, data, hole)
        if finds:
            assert hole == (at | 4095) + 1, (at, hole)
    assert not finds or seek(4096, os.SEEK_DATA) == 1 << 18
    shared[3 << 17] = ord('y')
    subprocess.run(['cp', '--sparse=auto', path, path + '.copy'], check=True)
    with open(path + '.copy', 'rb') as copy:
        assert copy.read() == bytes(shared)
";
    for cache in ["strict", "writeback", "none"] {
        let mounted = Mounted::new(&format!("cache={cache}"));
        let path = mounted.path("file");
        let finds = if cache == "writeback" {
            "none"
        } else {
            "holes"
        };
        let mut command = Command::new("python3");
        let done = run(command.args(["-c", script]).arg(&path).arg(finds));
        assert!(done.status.success(), "{cache}: {done:?}");
        mounted.end();
    }
}

#[test]
fn each_cache_shows_what_was_written() {
    for cache in ["strict", "writeback", "none"] {
        let mounted = Mounted::new(&format!("cache={cache}"));
        let path = mounted.path("file");
        let write = |at: u64, bytes: &[u8]| {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path);
            file.unwrap().write_all_at(bytes, at).unwrap();
        };
        write(0, &[1; 10_000]);
        write(5_000, b"in the middle");
        write(20_000, b"behind a hole");
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .open(&path)
            .unwrap();
        (&file).write_all(b"at the end").unwrap();
        let mut expected = vec![1; 10_000];
        expected[5_000..5_013].copy_from_slice(b"in the middle");
        expected.resize(20_000, 0);
        expected.extend(b"behind a holeat the end");
        assert_eq!(fs::read(&path).unwrap(), expected, "{cache}");
        assert_eq!(
            file.metadata().unwrap().len(),
            expected.len() as u64,
            "{cache}"
        );
        file.sync_all().unwrap();
        file.set_len(12_000).unwrap();
        expected.truncate(12_000);
        assert_eq!(fs::read(&path).unwrap(), expected, "{cache}");
        let script = "
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
view = mmap.mmap(file, 12000)
assert view[5000:5013] == b'in the middle'
view[100:107] = b'mapping'
assert os.pread(file, 7, 100) == b'mapping'
os.pwrite(file, b'written', 300)
assert view[300:307] == b'written'
view.flush()
";
        let output = run(Command::new("python3").args(["-c", script]).arg(&path));
        assert!(output.status.success(), "{cache}: {output:?}");
        expected[100..107].copy_from_slice(b"mapping");
        expected[300..307].copy_from_slice(b"written");
        assert_eq!(fs::read(&path).unwrap(), expected, "{cache}");
        drop(file);
        mounted.end();
    }
}

/// Long data of files that are created to be written is kept once, in the pool. Others are cached.
#[test]
fn files_created_to_be_written_are_not_cached_until_read() {
    let script = r"
import ctypes, mmap, os, sys
LENGTH = 4 << 20
libc = ctypes.CDLL(None, use_errno=True)

def cached(path):
    'Pages of the file in the page cache.'
    fd = os.open(path, os.O_RDONLY)
    found = (ctypes.c_uint64 * 5)()
    every = (ctypes.c_uint64 * 2)(0, 0)
    assert libc.syscall(451, fd, every, found, 0) == 0, os.strerror(ctypes.get_errno())
    os.close(fd)
    return found[0]

def written(name, flags, directory=sys.argv[1]):
    path = directory + '/' + name
    fd = os.open(path, flags | os.O_CREAT, 0o644)
    for at in range(0, LENGTH, 1 << 20):
        assert os.write(fd, bytes([at >> 20]) * (1 << 20)) == 1 << 20
    os.close(fd)
    assert os.stat(path).st_size == LENGTH
    return path

path = written('created', os.O_WRONLY | os.O_EXCL)
assert cached(path) == 0, cached(path)
with open(path, 'rb') as file:
    data = file.read()
assert data == b''.join(bytes([it]) * (1 << 20) for it in range(4))
assert cached(path) == LENGTH // 4096
for name, flags in ('both', os.O_RDWR), ('appended', os.O_WRONLY | os.O_APPEND), ('created', os.O_WRONLY):
    path = written(name, flags)
    assert cached(path) == LENGTH // 4096, name

# Data that sendfile and copies inside of the kernel bring goes the same way.
with open(path, 'rb') as source, open(sys.argv[1] + '/sent', 'wb') as target:
    assert os.sendfile(target.fileno(), source.fileno(), 0, 100_000) == 100_000
with open(sys.argv[1] + '/sent', 'rb') as file:
    assert file.read() == data[:100_000]
";
    if !drops_pages_after_write() {
        println!("this kernel keeps pages that are read during a write: not tried");
        return;
    }
    for options in ["cache=strict", "cache=strict,locks=shared"] {
        let mounted = Mounted::new(options);
        let mut command = Command::new("python3");
        let done = run(command.args(["-c", script]).arg(&mounted.directory.0));
        assert!(done.status.success(), "{options}: {done:?}");
        mounted.end();
    }
}

/// Linux 6.19 and later 6.18: otherwise the rule is off.
fn drops_pages_after_write() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(['.', '-', '\n'])
        .map_while(|part| part.parse::<u32>().ok());
    let mut next = || numbers.next().unwrap_or(0);
    let version = (next(), next(), next());
    version >= (6, 18, 10)
}

/// While one program writes a file past the page cache, others read and map it: each sees what was written last, at
/// the end of the file too.
#[test]
fn readers_of_a_created_file_see_each_write() {
    let script = r"
import mmap, os, random, sys, threading
path, rounds = sys.argv[1], 4000
out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
os.write(out, bytes(8192))
check = os.open(path, os.O_RDONLY)
view = mmap.mmap(check, 8192, prot=mmap.PROT_READ)
done = threading.Event()

def read():
    # Drops and reads its pages while the writes take place.
    fd = os.open(path, os.O_RDONLY)
    while not done.is_set():
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.pread(fd, 1 << 20, 0)
        bytes(view[:8192:4096])

readers = [threading.Thread(target=read) for _ in range(2)]
for reader in readers:
    reader.start()
try:
    size = 8192
    for value in range(1, rounds):
        number = value.to_bytes(4, 'little')
        at = value * 8 % 8188
        os.pwrite(out, number, at)
        assert os.pread(check, 4, at) == number, (value, at)
        assert view[at:at + 4] == number, (value, at)
        os.pwrite(out, number * 5, size)
        size += 20
        assert os.pread(check, 20, size - 20) == number * 5, (value, size)
finally:
    done.set()
    for reader in readers:
        reader.join()
";
    for options in ["cache=strict", "cache=writeback", "cache=none"] {
        let mounted = Mounted::new(options);
        let mut command = Command::new("python3");
        let done = run(command.args(["-c", script]).arg(mounted.path("file")));
        assert!(done.status.success(), "{options}: {done:?}");
        mounted.end();
    }
}

/// A program that has its own file system mounted, and changes it beside the mount.
#[test]
fn the_kernel_is_told_of_changes_beside_the_mount() {
    let directory = Directory::new();
    let beside = file_system();
    let mount = fuse::mount(beside.clone(), &directory.0, &options("")).unwrap();
    let notifier = mount.notifier();
    let path = directory.0.join("file");
    fs::write(&path, b"as it was").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"as it was");
    let number = beside.stat("file").unwrap().number;
    let flags = OpenFlags {
        write: true,
        ..OpenFlags::READ
    };
    let file = beside.open("file", flags, 0).unwrap();

    file.write_at(b"as it is.", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"as it was");
    notifier.contents_changed(number, 0..9).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"as it is.");

    file.truncate(5).unwrap();
    notifier.contents_changed(number, 5..u64::MAX).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"as it");

    let change = SetAttributes {
        permissions: Some(0o640),
        ..SetAttributes::default()
    };
    beside.set_attributes(number, &change).unwrap();
    notifier.attributes_changed(number).unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o640
    );

    beside
        .rename_path("file", "other", RenameMode::Replace)
        .unwrap();
    assert!(path.exists());
    notifier.name_changed(client::ROOT, b"file").unwrap();
    notifier.name_changed(client::ROOT, b"other").unwrap();
    assert_eq!(errno(fs::metadata(&path)), libc::ENOENT);
    assert_eq!(fs::read(directory.0.join("other")).unwrap(), b"as it");

    // Stored data is read without a request: its difference from the pool shows it.
    file.write_at(b"in the pool", 0).unwrap();
    notifier.contents_changed(number, 0..u64::MAX).unwrap();
    assert_eq!(fs::metadata(directory.0.join("other")).unwrap().len(), 11);
    notifier.store(number, 0, b"in the page").unwrap();
    assert_eq!(fs::read(directory.0.join("other")).unwrap(), b"in the page");
    // The kernel caches nothing of files that it does not know.
    notifier.attributes_changed(1_000_000).unwrap();
    notifier.name_changed(client::ROOT, b"nobody").unwrap();

    drop(file);
    apart(|| mount.unmount()).unwrap();
    let notifier = mount.notifier().clone();
    mount.wait().unwrap();
    notifier.attributes_changed(number).unwrap();
}
