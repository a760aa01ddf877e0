//! Features of POSIX and Linux besides reading and writing, through a mount. Needs root and /dev/fuse.

mod common;
mod mounted;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, Mode, OFlags, XattrFlags, getxattr, mkdirat, openat, removexattr, setxattr, unlinkat,
};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::common::{apart, run};
use crate::mounted::{Mounted, errno};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// A list: tag, permissions and number of each entry, as in Linux's extended attribute.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, number) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(number.to_le_bytes());
    }
    value
}

/// A list of owner, a user, the group, mask and others.
fn naming(user: u32, permissions: u16, mask: u16) -> Vec<u8> {
    list(&[
        (0x01, 6, u32::MAX),
        (0x02, permissions, user),
        (0x04, 0, u32::MAX),
        (0x10, mask, u32::MAX),
        (0x20, 0, u32::MAX),
    ])
}

/// Runs a command as a user and group of this number, with these further groups; returns its output, if it succeeded.
fn by(user: u32, groups: &str, words: &[&str]) -> Option<String> {
    let output = run(Command::new("setpriv")
        .arg(format!("--reuid={user}"))
        .arg(format!("--regid={user}"))
        .arg(format!("--groups={groups}"))
        .args(words));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn access_control_lists_decide() {
    let mounted = Mounted::new("");
    let path = mounted.path("secret");
    fs::write(&path, b"data").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let reads = |user: u32| by(user, &user.to_string(), &["cat", text(&path)]).is_some();
    assert!(!reads(1001));
    setxattr(&path, ACCESS, &naming(1001, 4, 7), XattrFlags::empty()).unwrap();
    assert_eq!(mode(&path), 0o670);
    assert!(reads(1001) && !reads(1002));
    // The mask bounds the named users and groups; chmod changes it.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!reads(1001));
    let mut value = [0; 100];
    let length = getxattr(&path, ACCESS, &mut value).unwrap();
    assert_eq!(value[..length], naming(1001, 4, 0));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(reads(1001));
    removexattr(&path, ACCESS).unwrap();
    assert!(!reads(1001));
    assert_eq!(getxattr(&path, ACCESS, &mut value), Err(Errno::NODATA));
    let incomplete = list(&[(0x01, 6, u32::MAX)]);
    let wrong = setxattr(&path, ACCESS, &incomplete, XattrFlags::empty());
    assert_eq!(wrong, Err(Errno::INVAL));
    let on_file = setxattr(&path, DEFAULT, &naming(1, 4, 4), XattrFlags::empty());
    assert_eq!(on_file, Err(Errno::ACCESS));
    mounted.end();
}

#[test]
fn default_lists_take_the_place_of_the_umask() {
    let mounted = Mounted::new("");
    let (plain, listed) = (mounted.path("plain"), mounted.path("listed"));
    for directory in [&plain, &listed] {
        fs::create_dir(directory).unwrap();
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    }
    setxattr(&listed, DEFAULT, &naming(1001, 6, 6), XattrFlags::empty()).unwrap();
    let script =
        "umask 077; cd $0; echo x >file; mkdir below; mkfifo fifo; ln -s file link; mknod node p";
    for directory in [&plain, &listed] {
        assert!(by(1002, "1002", &["sh", "-c", script, text(directory)]).is_some());
    }
    assert_eq!(mode(&plain.join("file")), 0o600);
    assert_eq!(mode(&plain.join("below")), 0o700);
    assert_eq!(mode(&listed.join("file")), 0o660);
    assert_eq!(mode(&listed.join("below")), 0o660);
    assert_eq!(mode(&listed.join("fifo")), 0o660);
    assert_eq!(mode(&listed.join("node")), 0o660);
    assert!(by(1001, "1001", &["cat", text(&listed.join("link"))]).is_some());
    assert!(by(1003, "1003", &["cat", text(&listed.join("link"))]).is_none());
    let mut value = [0; 100];
    let length = getxattr(listed.join("below"), DEFAULT, &mut value).unwrap();
    assert_eq!(value[..length], naming(1001, 6, 6));
    mounted.end();
}

/// Only a user in a file's group keeps its set-group bit when changing the mode, by chmod or by a list.
#[test]
fn lists_take_the_set_group_bit_from_strangers() {
    let mounted = Mounted::new("");
    let path = mounted.path("file");
    fs::write(&path, b"").unwrap();
    std::os::unix::fs::chown(&path, Some(1001), Some(50)).unwrap();
    let script = "
import os, sys
os.setxattr(sys.argv[1], 'system.posix_acl_access', bytes.fromhex(sys.argv[2]))
";
    let value = naming(1002, 4, 5);
    let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
    for (groups, expected) in [("50", 0o2650), ("1001,51", 0o650)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o2775)).unwrap();
        let words = ["/usr/bin/env", "python3", "-c", script, text(&path), &hex];
        assert!(by(1001, groups, &words).is_some(), "{groups}");
        assert_eq!(mode(&path), expected, "{groups}");
    }
    mounted.end();
}

/// The usual programs behave as on tmpfs.
#[test]
fn setfacl_and_getfacl_work() {
    let mounted = Mounted::new("");
    let directory = mounted.path("directory");
    fs::create_dir(&directory).unwrap();
    let script = "
set -e
cd $0
umask 022
setfacl -m u:1001:rw,g:1002:r,d:u:1001:rwx .
touch file
chmod g-w file
getfacl -cnp . file
cp -a file copy
test \"$(getfacl -cnp file)\" = \"$(getfacl -cnp copy)\"
setfacl -b copy
setfacl -k .
getfacl -cnp . copy
";
    let output = run(Command::new("sh").args(["-c", script]).arg(&directory));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let expected = "\
user::rwx\nuser:1001:rw-\ngroup::r-x\ngroup:1002:r--\nmask::rwx\nother::r-x\n\
default:user::rwx\ndefault:user:1001:rwx\ndefault:group::r-x\ndefault:mask::rwx\ndefault:other::r-x\n\n\
user::rw-\nuser:1001:rwx\t#effective:r--\ngroup::r-x\t#effective:r--\nmask::r--\nother::r--\n\n\
user::rwx\nuser:1001:rw-\ngroup::r-x\ngroup:1002:r--\nmask::rwx\nother::r-x\n\n\
user::rw-\ngroup::r--\nother::r--\n\n";
    assert_eq!(printed, expected);
    mounted.end();
}

/// Ranges, open file descriptions, deadlocks, interruption, whole files, death, and more waiting requests than a queue
/// has room for.
fn locks_are_kept(by: &str) {
    let mounted = Mounted::new(&format!("locks={by}"));
    let path = mounted.path("file");
    fs::write(&path, b"").unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/locks.py");
    let output = run(Command::new("python3").arg(script).arg(&path).arg(by));
    assert!(output.status.success(), "{output:?}");
    mounted.end();
}

/// One kernel sees all that use the mount, so it can keep the locks.
#[test]
fn locks_are_kept_by_the_kernel() {
    locks_are_kept("kernel");
}

#[test]
fn locks_are_kept_by_the_file_system() {
    locks_are_kept("shared");
}

/// `chattr` and `lsattr`, by root alone.
#[test]
fn flags_are_set_and_obeyed() {
    let mounted = Mounted::new("");
    let (path, directory) = (mounted.path("file"), mounted.path("directory"));
    fs::write(&path, b"data").unwrap();
    fs::create_dir(&directory).unwrap();
    std::os::unix::fs::chown(&path, Some(1001), None).unwrap();
    let chattr = |change: &str, path: &Path| {
        let output = run(Command::new("chattr").arg(change).arg(path));
        assert!(output.status.success(), "{output:?}");
    };
    let lsattr = |path: &Path| {
        let output = run(Command::new("lsattr").arg("-d").arg(path));
        String::from_utf8_lossy(&output.stdout)
            .split(' ')
            .next()
            .unwrap()
            .replace('-', "")
    };
    assert_eq!(lsattr(&path), "");
    chattr("+i", &path);
    assert_eq!((lsattr(&path), lsattr(&directory)), ("i".into(), "".into()));
    // The kernel does not ask when it opens: writing is refused, not opening.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    assert_eq!(
        errno(std::os::unix::fs::FileExt::write_at(&file, b"x", 0)),
        libc::EPERM
    );
    drop(file);
    assert_eq!(errno(fs::File::create(&path)), libc::EPERM);
    assert_eq!(errno(fs::remove_file(&path)), libc::EPERM);
    assert_eq!(errno(fs::rename(&path, mounted.path("new"))), libc::EPERM);
    assert_eq!(
        errno(fs::hard_link(&path, mounted.path("new"))),
        libc::EPERM
    );
    let mode = fs::set_permissions(&path, fs::Permissions::from_mode(0o600));
    assert_eq!(errno(mode), libc::EPERM);
    assert!(
        by(1001, "1001", &["chattr", "-i", text(&path)]).is_none(),
        "not even its owner"
    );
    chattr("=a", &path);
    assert_eq!(lsattr(&path), "a");
    let mut log = fs::OpenOptions::new().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut log, b", more").unwrap();
    drop(log);
    assert_eq!(errno(fs::write(&path, b"other")), libc::EPERM);
    assert_eq!(fs::read(&path).unwrap(), b"data, more");
    chattr("+a", &directory);
    fs::write(directory.join("name"), b"").unwrap();
    assert_eq!(errno(fs::remove_file(directory.join("name"))), libc::EPERM);
    let other = run(Command::new("chattr").arg("+d").arg(&path));
    assert!(!other.status.success(), "there are no other flags");
    chattr("-a", &directory);
    chattr("-a", &path);
    fs::remove_file(&path).unwrap();
    mounted.end();
}

#[test]
fn fiemap_is_not_passed_on() {
    let mounted = Mounted::new("");
    let path = mounted.path("file");
    fs::write(&path, b"data").unwrap();
    let script = "
import errno, fcntl, sys
FS_IOC_FIEMAP = 0xc020660b
with open(sys.argv[1]) as file:
    try:
        fcntl.ioctl(file, FS_IOC_FIEMAP, bytes(32))
    except OSError as error:
        sys.exit(0 if error.errno == errno.EOPNOTSUPP else 2)
sys.exit(1)
";
    let output = run(Command::new("python3").args(["-c", script]).arg(&path));
    assert!(output.status.success(), "{output:?}");
    mounted.end();
}

/// O_TMPFILE: a file without a name, which gets one or is gone with its last descriptor.
#[test]
fn unnamed_files_get_a_name_or_go() {
    let mounted = Mounted::new("");
    let free = || rustix::fs::statfs(&mounted.directory.0).unwrap().f_ffree;
    let before = free();
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let make = |flags| rustix::fs::open(&mounted.directory.0, flags, Mode::RUSR).unwrap();
    let file = make(flags);
    rustix::io::pwrite(&file, b"nameless", 0).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 0);
    assert_eq!(free(), before - 1);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let named = mounted.path("named");
    rustix::fs::linkat(
        rustix::fs::CWD,
        &path,
        rustix::fs::CWD,
        &named,
        AtFlags::SYMLINK_FOLLOW,
    )
    .unwrap();
    assert_eq!(std::fs::read(&named).unwrap(), b"nameless");
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 1);
    drop(file);
    std::fs::remove_file(&named).unwrap();

    let exclusive = make(flags | OFlags::EXCL);
    let path = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&exclusive)
    );
    let linked = rustix::fs::linkat(
        rustix::fs::CWD,
        &path,
        rustix::fs::CWD,
        &named,
        AtFlags::SYMLINK_FOLLOW,
    );
    assert_eq!(linked, Err(Errno::NOENT));
    drop(exclusive);
    mounted.end();
}

#[test]
fn statx_tells_the_birth_time() {
    let mounted = Mounted::new("");
    let path = mounted.path("born");
    // The kernel's clock for time stamps, which may lag behind the other.
    let time = clock_gettime(ClockId::RealtimeCoarse);
    let before = UNIX_EPOCH + Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
    fs::write(&path, b"x").unwrap();
    let born = || fs::metadata(&path).unwrap().created().unwrap();
    let first = born();
    assert!((before..=SystemTime::now()).contains(&first));
    fs::write(&path, b"other").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(born(), first);
    mounted.end();
}

#[test]
fn trees_may_be_deep() {
    const DEPTH: usize = 10_000;
    let mounted = Mounted::new("");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let enter = |at: &std::os::fd::OwnedFd, name| openat(at, name, flags, Mode::empty());
    let top = rustix::fs::open(&mounted.directory.0, flags, Mode::empty()).unwrap();
    let mut at = top.try_clone().unwrap();
    for _ in 0..DEPTH {
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = enter(&at, "d").unwrap();
    }
    let file = openat(&at, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
    rustix::io::write(&file, b"down here").unwrap();
    drop(file);
    // A directory does not go below itself, however deep that is.
    let below = rustix::fs::renameat(&top, "d", &at, "d");
    assert_eq!(below, Err(Errno::INVAL));
    unlinkat(&at, "file", AtFlags::empty()).unwrap();
    for _ in 0..DEPTH {
        at = enter(&at, "..").unwrap();
        unlinkat(&at, "d", AtFlags::REMOVEDIR).unwrap();
    }
    assert_eq!(fs::read_dir(&mounted.directory.0).unwrap().count(), 0);
    drop((at, top));
    mounted.end();
}

#[test]
fn files_may_be_large() {
    use std::os::unix::fs::FileExt;
    let mounted = Mounted::new("");
    let path = mounted.path("file");
    let file = fs::File::create_new(&path).unwrap();
    let end = 1 << 62;
    file.write_all_at(b"x", end - 1).unwrap();
    assert_eq!(errno(file.write_at(b"x", end)), libc::EFBIG);
    assert_eq!(errno(file.set_len(end + 1)), libc::EFBIG);
    let found = fs::metadata(&path).unwrap();
    assert!(found.len() == end && found.blocks() <= 64, "{found:?}");
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0));
    assert_eq!(data, Ok(end - 4096));
    file.set_len(0).unwrap();
    // A copy that reaches the end on the way returns its length, and its size is seen.
    let source = mounted.path("source");
    fs::write(&source, vec![1; 2 << 20]).unwrap();
    let source = fs::File::open(&source).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    let mut at = end - 1 - (1 << 20);
    let copied = rustix::fs::copy_file_range(&source, None, &file, Some(&mut at), 2 << 20);
    assert_eq!((copied, at), (Ok(1 << 20), end - 1));
    assert_eq!(file.metadata().unwrap().len(), end - 1);
    drop((file, source));
    mounted.end();
}

#[test]
fn path_descriptors_and_sockets_work() {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    let mounted = Mounted::new("");
    let path = mounted.path("file");
    fs::write(&path, b"data").unwrap();
    let descriptor = rustix::fs::open(&path, OFlags::PATH, Mode::empty()).unwrap();
    assert_eq!(rustix::fs::fstat(&descriptor).unwrap().st_size, 4);
    assert_eq!(rustix::io::read(&descriptor, &mut [0; 4]), Err(Errno::BADF));
    let own = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&descriptor)
    );
    assert_eq!(fs::read(own).unwrap(), b"data");
    let directory = rustix::fs::open(&mounted.directory.0, OFlags::PATH, Mode::empty()).unwrap();
    let found = rustix::fs::statat(&directory, "file", AtFlags::empty()).unwrap();
    assert_eq!(found.st_size, 4);
    drop((descriptor, directory));

    let path = mounted.path("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut one = UnixStream::connect(&path).unwrap();
    let (mut other, _) = listener.accept().unwrap();
    one.write_all(b"through").unwrap();
    drop(one);
    let mut heard = String::new();
    other.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "through");
    // A process that is being started would have it, too.
    let refused = apart(|| {
        drop((listener, other));
        errno(UnixStream::connect(&path))
    });
    assert_eq!(refused, libc::ECONNREFUSED);
    assert_eq!(errno(UnixListener::bind(&path)), libc::EADDRINUSE);
    mounted.end();
}

/// Copied data does not pass through the program.
#[test]
fn copies_stay_in_the_process_of_the_mount() {
    let mounted = Mounted::new("");
    let script = "
import mmap, os, sys
def opened(name):
    return os.open(os.path.join(sys.argv[1], name), os.O_RDWR | os.O_CREAT)
MIB = 1 << 20
one, other = opened('one'), opened('other')
data = bytes(range(256)) * (20 * 4096)
os.pwrite(one, data, 0)
free = os.statvfs(sys.argv[1]).f_bfree
# A request is for 16 MiB at most, which shows which process copies.
assert os.copy_file_range(one, other, 20 * MIB, 0, 0) == 16 * MIB
assert os.copy_file_range(one, other, 20 * MIB, 16 * MIB, 16 * MIB) == 4 * MIB
assert os.copy_file_range(one, other, 1, 20 * MIB, 0) == 0
assert os.pread(other, 20 * MIB, 0) == data
# Blocks are shared.
assert os.statvfs(sys.argv[1]).f_bfree > free - 256
assert os.fstat(other).st_blocks == os.fstat(one).st_blocks
# What is in the page cache is copied, and what is copied is not covered by it.
with mmap.mmap(one, 4096) as stored, mmap.mmap(other, 8192) as seen:
    stored[0:6] = b'stored'
    assert seen[100:106] != b'stored'
    assert os.copy_file_range(one, other, 50, 0, 100) == 50
    assert seen[100:106] == b'stored'
    assert seen[150:156] == data[150:156]
assert os.copy_file_range(one, one, 1000, 0, 30 * MIB) == 1000
assert os.fstat(one).st_size == 30 * MIB + 1000
";
    let output = run(Command::new("python3")
        .args(["-c", script])
        .arg(&mounted.directory.0));
    assert!(output.status.success(), "{output:?}");
    mounted.end();
}
