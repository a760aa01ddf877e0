//! Mounts of a cluster: the tests of mounts, repeated, and what only a cluster does. Operations are encoded, decoded and
//! executed on a store.
#![forbid(unsafe_code)]
// The files of other tests run here again, over a remote file system; each loads the common modules.
#![expect(clippy::duplicate_mod)]

mod common;
#[path = "mount.rs"]
mod mount;
mod mounted;
#[path = "posix.rs"]
mod posix;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};

use common::{apart, run};
use mounted::Mounted;
use mounted::loopback::{self, Link};

/// A mount of a cluster, and the way there.
fn behind_link() -> (Mounted, Arc<Link>) {
    let link = Arc::default();
    let file_system = loopback::behind(mounted::store(), &link);
    (Mounted::of(file_system, ""), link)
}

/// A process that reads a file while the link is cut. So many wait for the cluster then.
fn reader(mounted: &Mounted, link: &Link, waiting: usize) -> Child {
    let mut cat = Command::new("cat");
    cat.arg(mounted.path("file"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let child = apart(|| cat.spawn()).expect("a process");
    link.wait_for(waiting);
    child
}

#[test]
fn killed_callers_end_while_the_cluster_is_unreachable() {
    const READERS: usize = 12;
    let (mounted, link) = behind_link();
    for number in 0..READERS {
        // A separate file for each: the kernel sends one request for a name that several want.
        fs::create_dir(mounted.path(&number.to_string())).unwrap();
    }
    fs::write(mounted.path("file"), b"data").unwrap();
    link.cut(true);
    let mut readers: Vec<Child> = (0..READERS)
        .map(|number| {
            let mut list = Command::new("ls");
            list.arg(mounted.path(&number.to_string()))
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            apart(|| list.spawn()).expect("a process")
        })
        .collect();
    link.wait_for(1);
    for reader in &mut readers {
        reader.kill().unwrap();
    }
    for reader in &mut readers {
        let killed = reader.wait().unwrap().signal();
        assert_eq!(killed, Some(Signal::KILL.as_raw()));
    }
    link.cut(false);
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"data");
    mounted.end();
}

/// Requests to a cluster take long.
#[test]
fn the_kernel_reads_far_ahead() {
    let mounted = Mounted::of(loopback::behind(mounted::store(), &Arc::default()), "");
    let device = fs::metadata(mounted.path("")).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    assert_eq!(fs::read_to_string(setting).unwrap().trim(), "512");
    mounted.end();
}

#[test]
fn calls_wait_until_the_cluster_is_reachable_again() {
    let (mounted, link) = behind_link();
    fs::write(mounted.path("file"), b"data").unwrap();
    link.cut(true);
    let mut reader = reader(&mounted, &link, 1);
    // A signal that ends no process ends no call.
    kill_process(Pid::from_child(&reader), Signal::CONT).unwrap();
    link.cut(false);
    let mut read = String::new();
    let mut output = reader.stdout.take().unwrap();
    output.read_to_string(&mut read).unwrap();
    assert!(reader.wait().unwrap().success());
    assert_eq!(read, "data");
    mounted.end();
}

#[test]
fn a_mount_of_an_unreachable_cluster_ends_by_force() {
    let (mut mounted, link) = behind_link();
    fs::write(mounted.path("file"), b"data").unwrap();
    link.cut(true);
    let mut reader = reader(&mounted, &link, 1);
    let forced = run(Command::new("umount")
        .args(["-f", "-l"])
        .arg(&mounted.directory.0));
    assert!(forced.status.success(), "{forced:?}");
    assert!(!reader.wait().unwrap().success());
    let mount = mounted.mount.take().expect("it was mounted");
    mount.wait().expect("a clean end");
}

#[test]
fn mounts_of_one_cluster_see_each_other() {
    let file_system = mounted::file_system();
    let one = Mounted::of(file_system.clone(), "");
    let other = Mounted::of(file_system, "");
    fs::write(one.path("file"), b"first").unwrap();
    let (mut seen, open) = ([0; 6], File::open(other.path("file")).unwrap());
    assert_eq!(open.read_at(&mut seen, 0).unwrap(), 5);
    // Of the same length, longer, and another file of the name.
    fs::write(one.path("file"), b"other").unwrap();
    assert_eq!(fs::read(other.path("file")).unwrap(), b"other");
    assert_eq!(open.read_at(&mut seen, 0).unwrap(), 5);
    assert_eq!(&seen[..5], b"other");
    fs::write(one.path("file"), b"longer").unwrap();
    assert_eq!(open.read_at(&mut seen, 0).unwrap(), 6);
    assert_eq!(open.metadata().unwrap().size(), 6);
    assert!(fs::metadata(other.path("new")).is_err());
    fs::write(one.path("new"), b"new").unwrap();
    assert_eq!(fs::read(other.path("new")).unwrap(), b"new");
    fs::rename(one.path("new"), one.path("file")).unwrap();
    assert_eq!(fs::read(other.path("file")).unwrap(), b"new");
    assert_eq!(fs::read_dir(&other.directory.0).unwrap().count(), 1);
    // The file that lost its name is still there for the reader that has it open.
    assert_eq!(open.read_at(&mut seen, 0).unwrap(), 6);
    drop(open);
    // The first one that is closed ends the session of both, and a mount without one gives no attributes: both are detached
    // before either is closed.
    for mounted in [&one, &other] {
        let detached = run(Command::new("umount").arg("-l").arg(&mounted.directory.0));
        assert!(detached.status.success(), "{detached:?}");
    }
}
