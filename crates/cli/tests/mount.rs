//! The life of a mount as users see it: started, refused, killed, replaced, ended.

mod common;
mod transport;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use common::{Scratch, TAKO, apart, tako};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// A pool, a directory to mount it on, and whatever serves it there in the background.
struct Background {
    scratch: Scratch,
    pool: String,
    directory: String,
}

impl Background {
    fn new() -> Background {
        let scratch = Scratch::new();
        let pool = scratch.pool("a.pool", "16M");
        let directory = scratch.path("directory");
        fs::create_dir(&directory).unwrap();
        Background {
            scratch,
            pool,
            directory,
        }
    }

    fn mount(&self) {
        let options = transport::options();
        let arguments = ["mount", "-o", &options, &self.pool, &self.directory];
        let said = tako(&arguments).ended(0);
        let expected = format!("is mounted on {}; requests come ", self.directory);
        assert!(
            said.contains(&expected) && said.lines().count() == 1,
            "{said}"
        );
    }

    fn unmount(&self) {
        assert_eq!(tako(&["umount", &self.directory]).ended(0), "");
    }

    /// The process that serves the mount, if one does: the one of the program that holds the pool.
    fn server(&self) -> Option<Pid> {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let mut processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let program = fs::canonicalize(TAKO).unwrap();
        let is = |link: &Path, path: &Path| fs::read_link(link).is_ok_and(|to| to == path);
        let holds = |pid: &i32| {
            let process = Path::new("/proc").join(pid.to_string());
            let mut files = fs::read_dir(process.join("fd"))
                .into_iter()
                .flatten()
                .flatten();
            is(&process.join("exe"), &program)
                && files.any(|file| is(&file.path(), Path::new(&self.pool)))
        };
        // A process that another test is starting may have a copy of the pool's descriptor.
        Pid::from_raw(apart(|| processes.find(holds))?)
    }

    /// Sends the serving process a signal that ends it, and waits until it has ended.
    fn end(&self, signal: Signal) {
        let server = self.server().expect("no process serves the mount");
        let descriptor = pidfd_open(server, PidfdFlags::empty()).unwrap();
        kill_process(server, signal).unwrap();
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None).unwrap();
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(server) = self.server() {
            let _ = kill_process(server, Signal::KILL);
        }
        let mut helper = Command::new("fusermount3");
        helper.args(["-uz", &self.directory]).stderr(Stdio::null());
        let _ = apart(|| helper.status());
    }
}

/// Whether the directory is an ordinary one with nothing in it, which no mount hides.
fn is_bare(directory: &str) -> bool {
    let parent = format!("{directory}/..");
    let device = |path: &str| fs::metadata(path).map(|found| found.dev()).ok();
    device(directory) == device(&parent)
        && fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

#[test]
fn a_mount_is_ready_when_it_returns_and_closed_when_it_ends() {
    let place = Background::new();
    for round in 0..10 {
        place.mount();
        fs::write(format!("{}/{round}", place.directory), "contents").unwrap();
        assert_eq!(fs::read_dir(&place.directory).unwrap().count(), round + 1);
        let shown = tako(&["ls", &format!("{}:/", place.pool)]).ended(0);
        assert_eq!(shown.lines().count(), round + 1);
        place.unmount();
        assert!(is_bare(&place.directory));
        // The very next command finds a pool that was closed.
        assert!(
            tako(&["check", &place.pool])
                .ended(0)
                .contains("records to replay: 0")
        );
    }
    assert!(place.server().is_none(), "the serving process did not end");
    assert_eq!(
        tako(&["cat", &format!("{}:/9", place.pool)]).ended(0),
        "contents"
    );
}

#[test]
fn a_mounted_pool_is_refused_to_others() {
    let place = Background::new();
    place.mount();
    let elsewhere = place.scratch.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for arguments in [
        &["mount", &place.pool, &elsewhere][..],
        &["mount", "--foreground", &place.pool, &elsewhere],
        &["check", &place.pool],
        &["mkfs", &place.pool, "--size", "16M", "--force"],
    ] {
        assert!(tako(arguments).ended(1).contains("in use"), "{arguments:?}");
    }
    assert!(is_bare(&elsewhere));
    fs::write(format!("{}/file", place.directory), "still there").unwrap();
    place.unmount();
}

#[test]
fn a_mounted_pool_is_examined_through_its_mount() {
    let place = Background::new();
    let examined = || -> serde_json::Value {
        serde_json::from_str(&tako(&["info", "--json", &place.pool]).ended(0)).unwrap()
    };
    let before = examined();
    place.mount();
    let during = examined();
    assert_eq!(during["identity"], before["identity"]);
    assert_eq!(during["memory"], before["memory"]);
    let mounts = tako(&["mounts"]).ended(0);
    let line = format!("{} on {} (rw,", place.pool, place.directory);
    assert!(mounts.contains(&line), "{mounts}");
    let table = tako(&["df", &place.pool]).ended(0);
    assert!(table.trim_end().ends_with(&place.directory), "{table}");
    let refused = tako(&["check", &place.pool]).ended(1);
    assert!(refused.contains("tako umount"), "{refused}");
    // By the pool, and lazily by the directory.
    tako(&["umount", &place.pool]).ended(0);
    assert!(is_bare(&place.directory));
    place.mount();
    let file = fs::File::create(format!("{}/file", place.directory)).unwrap();
    tako(&["umount", "--lazy", &place.directory]).ended(0);
    assert!(is_bare(&place.directory));
    (&file).write_all(b"still written").unwrap();
}

/// In a mount namespace where the pool's directory is read-only.
#[test]
fn a_pool_that_cannot_be_written_is_examined_and_read() {
    let place = Background::new();
    let script = "set -e
        mount --bind \"$2\" \"$2\"
        mount -o remount,bind,ro \"$2\"
        \"$1\" info \"$2/a.pool\"
        \"$1\" ls \"$2/a.pool:/\"
        ! \"$1\" mkdir \"$2/a.pool:/x\"";
    let program = common::command(&[]);
    let mut unshare = Command::new("unshare");
    let unshare = unshare
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(program.get_program())
        .arg(place.scratch.path("").trim_end_matches('/'));
    let output = common::run(unshare);
    assert!(output.status.success(), "{output:?}");
    let refused = String::from_utf8_lossy(&output.stderr);
    assert!(refused.contains("read-only file system"), "{refused}");
}

#[test]
fn a_killed_mount_is_mounted_over() {
    let place = Background::new();
    for round in 0..3 {
        place.mount();
        fs::write(format!("{}/{round}", place.directory), round.to_string()).unwrap();
        let file = fs::File::create(format!("{}/unlinked", place.directory)).unwrap();
        (&file).write_all(&[1; 10_000]).unwrap();
        fs::remove_file(format!("{}/unlinked", place.directory)).unwrap();
        place.end(Signal::KILL);
        // The latter two while the kernel still takes its queues down.
        let error = fs::read_dir(&place.directory).unwrap_err().raw_os_error();
        let expected = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED];
        let expected = expected.map(|errno| Some(errno.raw_os_error()));
        assert!(expected.contains(&error), "{error:?}");
        tako(&["check", &place.pool]).ended(0);
    }
    place.mount();
    for round in 0..3 {
        let read = fs::read_to_string(format!("{}/{round}", place.directory)).unwrap();
        assert_eq!(read, round.to_string());
    }
    place.unmount();
    // Nothing of the dead mounts is left below.
    assert!(is_bare(&place.directory));
    let report = tako(&["check", "--json", &place.pool]).ended(0);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        (&report["inodes"], &report["orphans"]),
        (&4.into(), &0.into())
    );
}

#[test]
fn a_killed_mount_is_unmounted() {
    let place = Background::new();
    place.mount();
    place.end(Signal::KILL);
    place.unmount();
    assert!(is_bare(&place.directory));
}

#[test]
fn a_killed_mount_is_found_by_a_link() {
    let place = Background::new();
    let (link, further) = (place.scratch.path("link"), place.scratch.path("further"));
    symlink(&place.directory, &link).unwrap();
    symlink("link", &further).unwrap();
    place.mount();
    for directory in [&link, &further] {
        place.end(Signal::KILL);
        tako(&["mount", &place.pool, directory]).ended(0);
    }
    place.end(Signal::KILL);
    tako(&["umount", &further]).ended(0);
    assert!(is_bare(&place.directory));
}

#[test]
fn invalid_mounts_are_refused() {
    let place = Background::new();
    let (pool, directory) = (&place.pool, &place.directory);
    let missing = place.scratch.path("missing");
    for foreground in [&["mount"][..], &["mount", "--foreground"]] {
        let refused =
            |code, arguments: &[&str]| tako(&[foreground, arguments].concat()).ended(code);
        assert!(refused(1, &[pool, &missing]).contains("does not exist"));
        assert!(refused(1, &[pool, pool]).contains("not a directory"));
        assert!(refused(1, &[&missing, directory]).contains("does not exist"));
        assert!(refused(2, &[pool, directory, "-o", "ro,sideways"]).contains("'sideways'"));
        assert!(refused(2, &["tako://host/cluster", directory]).contains("port"));
    }
    assert_eq!(tako(&["mount", pool]).code, Some(2));
    assert!(
        tako(&["umount", directory])
            .ended(1)
            .contains("no Tako file system")
    );
    assert!(
        tako(&["umount", &missing])
            .ended(1)
            .contains("no Tako file system")
    );
    assert!(is_bare(directory));
    tako(&["check", pool]).ended(0);
}

#[test]
fn options_are_kept() {
    let place = Background::new();
    let mount = |options: &[&str]| {
        let arguments = [
            &["mount"],
            options,
            &[place.pool.as_str(), &place.directory],
        ]
        .concat();
        tako(&arguments).ended(0);
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        table
            .lines()
            .find(|line| line.contains(&place.directory))
            .unwrap()
            .to_owned()
    };
    let line = mount(&[]);
    assert!(
        line.starts_with(&place.pool) && line.contains(" fuse.tako rw,nosuid,nodev,"),
        "{line}"
    );
    let script = format!("{}/script", place.directory);
    fs::write(&script, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let run_script = || apart(|| Command::new(&script).status());
    assert!(run_script().unwrap().success());
    place.unmount();

    let line = mount(&["-o", "ro,noexec", "-o", "threads=1"]);
    assert!(line.contains(" ro,") && line.contains("noexec"), "{line}");
    let error = fs::write(format!("{}/new", place.directory), "").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(
        run_script().unwrap_err().kind(),
        ErrorKind::PermissionDenied
    );
    place.unmount();
}

/// Only the first mount matters: the kernel sends reads of files that were opened while it was strict.
#[test]
fn strict_access_times_change_while_a_mount_goes_on() {
    let place = Background::new();
    let file = format!("{}/file", place.directory);
    let options = format!("{},strictatime", transport::options());
    tako(&["mount", "-o", &options, &place.pool, &place.directory]).ended(0);
    fs::write(&file, "contents").unwrap();
    let later = SystemTime::now() + Duration::from_secs(3600);
    let is_noted = || {
        let times = fs::FileTimes::new().set_accessed(later);
        File::open(&file).unwrap().set_times(times).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"contents");
        fs::metadata(&file).unwrap().accessed().unwrap() < later
    };
    assert!(is_noted());
    for (changed, notes) in [
        ("relatime", false),
        ("strictatime", true),
        ("ro", false),
        ("rw", true),
        ("noatime", false),
    ] {
        let changed = format!("remount,{changed}");
        tako(&["mount", "-o", &changed, &place.directory]).ended(0);
        // A mount that is read-only keeps the time that was set before.
        if changed != "remount,ro" {
            assert_eq!(is_noted(), notes, "{changed}");
        }
    }
    place.unmount();
}

#[test]
fn options_change_while_a_mount_goes_on() {
    let place = Background::new();
    place.mount();
    let file = format!("{}/file", place.directory);
    fs::write(&file, "contents").unwrap();
    let remount = |options: &str, code| {
        tako(&[
            "mount",
            "-o",
            &format!("remount,{options}"),
            &place.directory,
        ])
        .ended(code)
    };
    remount("ro", 0);
    assert_eq!(
        fs::write(&file, "").unwrap_err().kind(),
        ErrorKind::ReadOnlyFilesystem
    );
    remount("rw,noatime", 0);
    fs::write(&file, "other contents").unwrap();
    let accessed = || fs::metadata(&file).unwrap().atime_nsec();
    let before = accessed();
    assert_eq!(fs::read(&file).unwrap(), b"other contents");
    assert_eq!(accessed(), before);
    assert!(remount("threads=2", 2).contains("'threads=2' cannot be changed"));
    assert!(remount("strictatime", 1).contains("mount it again with strictatime"));
    place.unmount();

    // One that was opened read-only is never written to.
    let bytes = fs::read(&place.pool).unwrap();
    tako(&["mount", "-o", "ro", &place.pool, &place.directory]).ended(0);
    assert_eq!(fs::read(&file).unwrap(), b"other contents");
    assert!(remount("rw", 1).contains("opened read-only"));
    place.unmount();
    assert!(
        fs::read(&place.pool).unwrap() == bytes,
        "the pool was written"
    );
}

#[test]
fn a_mount_in_use_stays() {
    let place = Background::new();
    place.mount();
    let file = fs::File::create(format!("{}/file", place.directory)).unwrap();
    assert!(
        tako(&["umount", &place.directory])
            .ended(1)
            .contains("in use")
    );
    (&file).write_all(b"contents").unwrap();
    drop(file);
    place.unmount();
    assert_eq!(
        tako(&["cat", &format!("{}:/file", place.pool)]).ended(0),
        "contents"
    );
}

#[test]
fn relative_paths_begin_at_the_directory_of_the_caller() {
    let place = Background::new();
    let run = |arguments: &[&str]| {
        let mut command = common::command(arguments);
        let command = command.current_dir(place.scratch.path(""));
        let output = apart(|| command.output()).unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    run(&["mount", "a.pool", "directory"]);
    fs::write(format!("{}/file", place.directory), "contents").unwrap();
    let server = place.server().unwrap();
    let its_directory = fs::read_link(format!("/proc/{}/cwd", server.as_raw_pid()));
    assert_eq!(its_directory.unwrap().to_str(), Some("/"));
    run(&["umount", "directory"]);
    assert!(
        tako(&["check", &place.pool])
            .ended(0)
            .contains("records to replay: 0")
    );
}

#[test]
fn a_signal_unmounts() {
    let place = Background::new();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        place.mount();
        fs::write(
            format!("{}/{}", place.directory, signal.as_raw()),
            "contents",
        )
        .unwrap();
        place.end(signal);
        assert!(is_bare(&place.directory));
        assert!(
            tako(&["check", &place.pool])
                .ended(0)
                .contains("records to replay: 0")
        );
    }
    assert_eq!(
        tako(&["ls", &format!("{}:/", place.pool)]).ended(0),
        "1\n15\n2\n"
    );
}

/// umount(8) returns before the process that served the mount has closed the pool.
#[test]
fn a_pool_that_is_closed_soon_is_waited_for() {
    let place = Background::new();
    let held = pmem::Region::open(place.pool.as_ref(), pmem::Access::ReadWrite).unwrap();
    let options = transport::options();
    let arguments = ["mount", "--foreground", "-o", &options];
    let mut mount = common::command(&arguments);
    let mount = mount.args([&place.pool, &place.directory]);
    let mut child = common::start(mount.stdout(Stdio::piped()));
    let process = format!(" {} ", child.id());
    let waits = |line: &str| line.contains(" -> FLOCK ") && line.contains(&process);
    while !fs::read_to_string("/proc/locks")
        .unwrap()
        .lines()
        .any(waits)
    {
        assert_eq!(child.try_wait().unwrap(), None, "it did not wait");
        std::thread::yield_now();
    }
    drop(held);
    let mut line = String::new();
    let said = child.stdout.take().unwrap();
    BufReader::new(said).read_line(&mut line).unwrap();
    assert!(line.contains(" is mounted on "), "{line}");
    place.unmount();
    assert!(child.wait().unwrap().success());
}

/// By `mount -t tako` and by a line of fstab, in a mount namespace with the helper where mount(8) expects it.
#[test]
fn the_system_mounts_by_its_helper() {
    let place = Background::new();
    // The namespace's copies of mounts of other tests would keep their servers until it ends.
    let script = "set -e
        grep ' fuse.tako ' /proc/self/mounts | while read -r _ other _; do
            umount --lazy --no-canonicalize --internal-only \"$other\"
        done
        mount -t tmpfs none /mnt
        mkdir /mnt/upper /mnt/work
        mount -t overlay none -o lowerdir=/usr/sbin,upperdir=/mnt/upper,workdir=/mnt/work /usr/sbin
        ln -s \"$1\" /usr/sbin/mount.tako
        mount -t tako \"$2\" \"$3\" -o noatime,nodiratime,noexec,transport=classic
        grep \"$3 fuse.tako rw.*noexec,noatime,nodiratime\" /proc/self/mounts
        echo contents > \"$3/file\"
        umount \"$3\"
        echo \"$2 $3 tako ro,nofail,x-systemd.requires=none 0 0\" > /mnt/fstab
        mount --fstab /mnt/fstab \"$3\"
        grep \"$3 fuse.tako ro\" /proc/self/mounts
        cat \"$3/file\"
        umount \"$3\"
        mount --fake -t tako none /nowhere
        code=0; mount -t tako \"$3\" \"$3\" -o sideways 2>/mnt/error || code=$?
        grep sideways /mnt/error
        test $code = 1
        code=0; mount -t tako /nowhere \"$3\" 2>/mnt/error || code=$?
        test $code = 32
        ln -s \"$1\" /usr/sbin/mount.fuse.tako
        ln -s \"$1\" /usr/sbin/fsck.tako
        rm /usr/sbin/mount.tako
        cp \"$1\" /usr/sbin/mount.tako
        mount -t tako \"$2\" \"$3\"
        mount -o remount,ro,noatime \"$3\"
        grep \"$3 fuse.tako ro.*noatime\" /proc/self/mounts
        code=0; fsck -t tako \"$2\" 2>/mnt/error || code=$?
        test $code = 8
        mount -o remount,rw \"$3\"
        echo more > \"$3/more\"
        umount \"$3\"
        fsck -t tako \"$2\" -- -a
        code=0; fsck.tako 2>/dev/null || code=$?
        test $code = 16";
    let program = common::command(&[]);
    // All processes of the namespace end with the script, and their mounts with them.
    let namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let mut unshare = Command::new("timeout");
    let unshare = unshare
        .args(["--foreground", "--signal=KILL", "120", "unshare"])
        .args(namespaces)
        .args(["sh", "-c", script, "sh"])
        .arg(program.get_program())
        .args([&place.pool, &place.directory]);
    let output = common::run(unshare);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("contents\n"), "{said}");
}

#[test]
fn the_service_manager_is_told() {
    let place = Background::new();
    for name in [
        place.scratch.path("notify"),
        format!("@tako-test-{}", std::process::id()),
    ] {
        let socket = match name.strip_prefix('@') {
            Some(name) => {
                let address = SocketAddr::from_abstract_name(name).unwrap();
                UnixDatagram::bind_addr(&address).unwrap()
            }
            None => UnixDatagram::bind(&name).unwrap(),
        };
        let patience = Some(Duration::from_secs(120));
        socket.set_read_timeout(patience).unwrap();
        let options = transport::options();
        let arguments = [
            "mount",
            "--foreground",
            "-o",
            &options,
            &place.pool,
            &place.directory,
        ];
        let mut mount = common::command(&arguments);
        let mount = mount.env("NOTIFY_SOCKET", &name).stdout(Stdio::null());
        let mut child = common::start(mount);
        let mut said = [0; 64];
        let length = socket.recv(&mut said).unwrap();
        assert_eq!(&said[..length], b"READY=1\n");
        assert!(!is_bare(&place.directory));
        tako(&["umount", &place.directory]).ended(0);
        assert!(child.wait().unwrap().success());
    }
}

/// Sends a request to the process that serves a mount, as this user, and returns its answer.
fn ask(pool: &str, line: &str, user: u32) -> String {
    const SCRIPT: &str = "
import os, socket, sys
found = os.stat(sys.argv[1])
os.setuid(int(sys.argv[3]))
stream = socket.socket(socket.AF_UNIX)
stream.connect(f'\\0tako/pool/{found.st_dev}/{found.st_ino}')
try:
    stream.sendall(sys.argv[2].encode())
    sys.stdout.write(stream.makefile().readline())
except (BrokenPipeError, ConnectionResetError):
    pass
";
    let user = user.to_string();
    let mut python = Command::new("python3");
    let output = common::run(python.args(["-c", SCRIPT, pool, line, &user]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_mounted_pool_grows() {
    let place = Background::new();
    let grow = |size: &str| tako(&["grow", &place.pool, "--size", size]);
    let room = || rustix::fs::statvfs(&place.directory).unwrap();
    place.mount();
    fs::write(format!("{}/before", place.directory), "contents").unwrap();
    let before = room();
    let big = vec![7; 20 << 20];
    let path = format!("{}/big", place.directory);
    assert_eq!(
        fs::write(&path, &big).unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    assert!(grow("64M").ended(0).contains("stays mounted"));
    assert_eq!(fs::metadata(&place.pool).unwrap().len(), 64 << 20);
    let after = room();
    assert!(after.f_blocks * after.f_frsize > 60 << 20 && after.f_files > before.f_files);
    fs::write(&path, &big).unwrap();
    // An impossible length, and an unknown request.
    assert!(grow("63M").ended(1).contains("do not shrink"));
    assert!(grow("8T").ended(1).contains("while it is open"));
    let bare = tako(&["grow", &place.pool]);
    assert!(bare.code == Some(2) && bare.err.contains("--size"));
    for line in ["", "\n", "grow\n", "grow x\n", "grow -1\n", "shrink 1\n"] {
        let line = if line.is_empty() {
            "x".repeat(100)
        } else {
            line.into()
        };
        assert!(
            ask(&place.pool, &line, 0).contains("not understood"),
            "{line}"
        );
    }
    // The lock of a pool is no invitation.
    assert_eq!(ask(&place.pool, "grow 100000000\n", 65_534), "");
    assert_eq!(fs::metadata(&place.pool).unwrap().len(), 64 << 20);
    // Killed, it is as long, and holds the same.
    place.end(Signal::KILL);
    tako(&["check", &place.pool]).ended(0);
    place.mount();
    assert_eq!(room().f_blocks, after.f_blocks);
    assert!(fs::read(&path).unwrap() == big);
    assert!(grow("80M").ended(0).contains("stays mounted"));
    place.unmount();
    tako(&["check", &place.pool]).ended(0);
    assert!(grow("81M").ended(0).contains("room for"));
}

#[test]
fn lost_data_is_told_of_in_the_log() {
    let scratch = Scratch::new();
    let (pool, directory) = (scratch.pool("a.pool", "16M"), scratch.path("directory"));
    let mix = |byte: u32| (byte.wrapping_mul(0x9E37_79B9) >> 13) as u8;
    let data: Vec<u8> = (0..5000).map(mix).collect();
    fs::write(scratch.path("file"), &data).unwrap();
    tako(&["cp", &scratch.path("file"), &format!("{pool}:/file")]).ended(0);
    let mut bytes = fs::read(&pool).unwrap();
    let at = bytes.windows(60).rposition(|it| *it == data[..60]).unwrap();
    bytes[at + 100] ^= 1;
    fs::write(&pool, &bytes).unwrap();

    fs::create_dir(&directory).unwrap();
    let mut child = in_foreground(&pool, &directory, &scratch.path("log"));
    for _ in 0..3 {
        let read = fs::read(format!("{directory}/file")).map_err(|error| error.raw_os_error());
        assert_eq!(read, Err(Some(rustix::io::Errno::IO.raw_os_error())));
    }
    tako(&["umount", &directory]).ended(0);
    child.wait().unwrap();
    let log = fs::read_to_string(scratch.path("log")).unwrap();
    let begin = format!("tako: {pool}: inode ");
    assert!(
        log.starts_with(&begin) && log.contains("bytes 0 to 4095"),
        "{log}"
    );
    assert_eq!(log.lines().count(), 1, "{log}");
}

#[test]
fn a_mount_reports_that_its_pool_was_shortened() {
    let place = Background::new();
    fs::write(place.scratch.path("file"), [7; 5000]).unwrap();
    let file = format!("{}:/file", place.pool);
    tako(&["cp", &place.scratch.path("file"), &file]).ended(0);
    let log = place.scratch.path("log");
    let mut child = in_foreground(&place.pool, &place.directory, &log);
    let pool = fs::File::options().write(true).open(&place.pool).unwrap();
    pool.set_len(64 << 10).unwrap();
    fs::read(format!("{}/file", place.directory)).unwrap_err();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::BUS.as_raw()), "{status}");
    let log = fs::read_to_string(log).unwrap();
    let begin = format!("tako: {}: memory of the pool is gone", place.pool);
    assert!(log.starts_with(&begin) && log.lines().count() == 1, "{log}");
    assert_eq!(tako(&["umount", &place.directory]).ended(0), "");
    let said = tako(&["check", &place.pool]).ended(1);
    assert!(said.contains("it was truncated"), "{said}");
}

/// Starts a process that serves a mount and writes its log to a file.
fn in_foreground(pool: &str, directory: &str, log: &str) -> Child {
    let log = fs::File::create(log).unwrap();
    let mut mount = common::command(&["mount", "--foreground", pool, directory]);
    let mut child = common::start(mount.stdout(Stdio::piped()).stderr(log));
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    child
}
