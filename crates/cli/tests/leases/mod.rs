//! Mounts of one cluster that keep names and attributes under leases: never stale, and without requests while nothing changes.

mod ahead;
mod locks;
mod races;
mod writing;

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, inotify, statx};
use rustix::process::{Pid, Signal, kill_process};

use crate::common;
use crate::nodes::{Cluster, PATIENCE, is_whole, kill};

/// Messages that all nodes have received.
fn messages(cluster: &Cluster) -> u64 {
    received(cluster).iter().sum()
}

/// Messages that each node has received.
fn received(cluster: &Cluster) -> Vec<u64> {
    let status = cluster.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    let received = nodes
        .iter()
        .filter_map(|node| node["load"]["messages"].as_u64());
    received.collect()
}

fn cluster() -> Cluster {
    let cluster = Cluster::new();
    cluster.up(&["--nodes", "3"]);
    cluster.wait("all are in sync", is_whole);
    cluster
}

/// A mount of a cluster, served by a child of this process.
struct Mount {
    directory: PathBuf,
    child: Child,
}

impl Mount {
    fn new(cluster: &Cluster, name: &str) -> Mount {
        Mount::with(cluster, name, "ack=all")
    }

    fn with(cluster: &Cluster, name: &str, options: &str) -> Mount {
        Mount::logging(cluster, name, options, Stdio::inherit())
    }

    /// A mount with this log.
    fn logging(cluster: &Cluster, name: &str, options: &str, log: Stdio) -> Mount {
        let directory = cluster.scratch.path(name);
        fs::create_dir(&directory).expect("a directory");
        let arguments = ["mount", "--foreground", "-o", options, "tako:///c"];
        let mut command = cluster.command(&[&arguments[..], &[&directory]].concat());
        let mut child = common::start(command.stdout(Stdio::piped()).stderr(log));
        let stdout = child.stdout.take().expect("a pipe");
        let mount = Mount {
            directory: directory.into(),
            child,
        };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert!(line.contains(" is mounted on "), "{line}");
        mount
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        kill_process(pid, signal).expect("it is ours");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut helper = Command::new("fusermount3");
        helper.arg("-uz").arg(&self.directory);
        let _ = common::apart(|| helper.stderr(Stdio::null()).status());
    }
}

fn exists(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).expect("it is there").len()
}

#[test]
fn a_call_sees_what_a_call_at_another_mount_has_done() {
    let cluster = cluster();
    let mounts = ["a", "b", "c"].map(|name| Mount::new(&cluster, name));
    fs::write(mounts[0].path("file"), "x").expect("a write");
    for round in 0..20 {
        let [one, two, three] = [0, 1, 2].map(|at| &mounts[(round + at) % 3]);
        let all = |look: &dyn Fn(&Mount)| [one, two, three].into_iter().for_each(look);
        let (name, other) = (format!("n{round}"), format!("m{round}"));
        all(&|mount| assert!(!exists(&mount.path(&name))));
        fs::write(one.path(&name), "1").expect("a new file");
        all(&|mount| assert_eq!(fs::read(mount.path(&name)).expect("it is there"), b"1"));
        let file = OpenOptions::new().append(true).open(two.path(&name));
        file.and_then(|mut file| file.write_all(b"23"))
            .expect("a write");
        all(&|mount| assert_eq!(size(&mount.path(&name)), 3));
        all(&|mount| assert_eq!(fs::read(mount.path(&name)).expect("it is there"), b"123"));
        let mode = fs::Permissions::from_mode(0o600 + round as u32 % 8);
        fs::set_permissions(three.path(&name), mode.clone()).expect("a chmod");
        let mode_of = |mount: &Mount| fs::metadata(mount.path(&name)).expect("it is there");
        all(&|mount| assert_eq!(mode_of(mount).permissions().mode() & 0o777, mode.mode()));
        let file = OpenOptions::new().write(true).open(one.path(&name));
        file.and_then(|file| file.set_len(1)).expect("a truncate");
        all(&|mount| assert_eq!(fs::read(mount.path(&name)).expect("it is there"), b"1"));
        all(&|mount| assert!(!exists(&mount.path(&other))));
        fs::rename(two.path(&name), two.path(&other)).expect("a rename");
        all(&|mount| assert!(!exists(&mount.path(&name)) && exists(&mount.path(&other))));
        fs::rename(three.path(&other), three.path("file")).expect("a rename over a file");
        all(&|mount| assert!(!exists(&mount.path(&other)) && size(&mount.path("file")) == 1));
        fs::hard_link(one.path("file"), one.path(&name)).expect("a link");
        all(&|mount| assert_eq!(size(&mount.path(&name)), 1));
        fs::remove_file(two.path(&name)).expect("an unlink");
        all(&|mount| assert!(!exists(&mount.path(&name))));
    }
}

/// The kernel of a busy machine may take longer than a lease for a few calls: of many it has to ask for few.
#[test]
fn cached_attributes_make_no_requests() {
    const CALLS: u64 = 20_000;
    let cluster = cluster();
    let mount = Mount::new(&cluster, "a");
    fs::write(mount.path("file"), "x").expect("a write");
    let file = File::open(mount.path("file")).expect("it opens");
    let before = messages(&cluster);
    for _ in 0..CALLS {
        assert_eq!(file.metadata().expect("attributes").len(), 1);
    }
    let sent = messages(&cluster) - before;
    assert!(sent < CALLS / 4, "{sent} messages for {CALLS} calls");
}

/// The primary receives each request and the tails of two replicas. What the kernel asks for besides is known from the answers. A
/// busy machine may take longer than a lease for some calls: one of several attempts shows the number.
#[test]
fn changes_of_new_files_are_one_request_each() {
    const FILES: u64 = 50;
    let cluster = cluster();
    let mount = Mount::new(&cluster, "a");
    let at_primary = |work: &dyn Fn()| {
        let before = received(&cluster);
        work();
        let after = received(&cluster);
        let grown = after.iter().zip(before);
        grown.map(|(after, before)| after - before).max()
    };
    let is_few = |most: u64, changes: u64| 2 * most < FILES * (6 * changes + 1);
    let start = Instant::now();
    for attempt in 0.. {
        let directory = mount.path(&attempt.to_string());
        let names = (0..FILES).map(|number| directory.join(number.to_string()));
        let names: Vec<PathBuf> = names.collect();
        let made = at_primary(&|| {
            fs::create_dir(&directory).expect("a new directory");
            for name in &names {
                fs::write(name, "x").expect("a new file");
                chown(name, Some(1000), None).expect("a new owner");
            }
        });
        let removed = at_primary(&|| {
            for name in &names {
                fs::remove_file(name).expect("it is there");
            }
        });
        let (made, removed) = (made.expect("nodes"), removed.expect("nodes"));
        // Made, written and given away; removed, and their space freed by a record each.
        if is_few(made, 3) && is_few(removed, 2) {
            return;
        }
        let (is_early, files) = (start.elapsed() < PATIENCE, FILES);
        assert!(is_early, "{made} and {removed} messages for {files} files");
    }
}

#[test]
fn a_stopped_mount_delays_others_until_its_leases_end() {
    let cluster = cluster();
    let (stopped, other) = (Mount::new(&cluster, "a"), Mount::new(&cluster, "b"));
    fs::write(other.path("file"), "x").expect("a write");
    assert_eq!(size(&stopped.path("file")), 1);
    assert!(!exists(&stopped.path("new")));
    stopped.signal(Signal::STOP);
    let start = Instant::now();
    fs::write(other.path("new"), "y").expect("a new file");
    fs::write(other.path("file"), "xyz").expect("a write");
    assert!(start.elapsed() < PATIENCE);
    stopped.signal(Signal::CONT);
    assert!(exists(&stopped.path("new")) && size(&stopped.path("file")) == 3);
    // One that is killed answers nothing more, either.
    assert!(!exists(&stopped.path("last")));
    drop(stopped);
    fs::write(other.path("last"), "z").expect("a new file");
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn leases_do_not_outlive_the_primary() {
    let cluster = cluster();
    let (one, two) = (Mount::new(&cluster, "a"), Mount::new(&cluster, "b"));
    fs::write(one.path("file"), "x").expect("a write");
    for mount in [&one, &two] {
        assert!(size(&mount.path("file")) == 1 && !exists(&mount.path("new")));
    }
    kill(crate::primary(&cluster.status()), Signal::KILL);
    fs::write(one.path("new"), "y").expect("a new file");
    assert!(exists(&two.path("new")));
    fs::write(two.path("file"), "xyz").expect("a write");
    assert_eq!(size(&one.path("file")), 3);
}

/// The kernel of a busy machine may take longer than a lease for a few calls: of many it has to ask for few.
#[test]
fn files_are_opened_and_read_again_without_requests() {
    const ROUNDS: u64 = 2_000;
    let cluster = cluster();
    let mount = Mount::new(&cluster, "a");
    let data = vec![7; 64 << 10];
    fs::write(mount.path("file"), &data).expect("a write");
    assert!(fs::read(mount.path("file")).expect("a read") == data);
    let before = messages(&cluster);
    for _ in 0..ROUNDS {
        assert!(fs::read(mount.path("file")).expect("a read") == data);
    }
    let sent = messages(&cluster) - before;
    assert!(sent < ROUNDS / 4, "{sent} messages for {ROUNDS} rounds");
}

/// Neither size nor time tell that the contents are others.
#[test]
fn pages_are_kept_by_version() {
    let cluster = cluster();
    let (one, two) = (Mount::new(&cluster, "a"), Mount::new(&cluster, "b"));
    let path = two.path("file");
    fs::write(&path, "0000").expect("a write");
    let modified = fs::metadata(&path).and_then(|it| it.modified());
    let times = FileTimes::new().set_modified(modified.expect("a time"));
    let open = File::open(one.path("file")).expect("it opens");
    for round in 1..200 {
        let data = format!("{round:04}");
        let file = OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("it opens");
        (&file).write_all(data.as_bytes()).expect("a write");
        let mut found = [0; 4];
        if round % 3 > 0 {
            file.set_times(times).expect("times");
        }
        if round % 2 > 0 {
            open.read_exact_at(&mut found, 0).expect("a read");
            assert_eq!(found, data.as_bytes());
        }
        assert_eq!(fs::read(one.path("file")).expect("a read"), data.as_bytes());
    }
}

/// The first read of a file sets its access time.
#[test]
fn a_first_read_leaves_the_pages() {
    let cluster = cluster();
    let (one, two) = (Mount::new(&cluster, "a"), Mount::new(&cluster, "b"));
    let data = vec![7; 64 << 10];
    for round in 0..10 {
        let name = format!("file{round}");
        fs::write(one.path(&name), &data).expect("a write");
        let path = two.path(&name);
        assert!(fs::read(&path).expect("a read") == data);
        // The kernel asks for attributes, and opens the file again.
        let forced = AtFlags::STATX_FORCE_SYNC;
        statx(CWD, &path, forced, StatxFlags::BASIC_STATS).expect("attributes");
        File::open(&path).expect("it opens");
        let columns = ["--bytes", "--noheadings", "--output", "RES"];
        let found = common::run(Command::new("fincore").args(columns).arg(&path));
        let resident = String::from_utf8_lossy(&found.stdout).trim().to_owned();
        assert_eq!(resident, data.len().to_string(), "{round}");
    }
}

/// The kernel that has the watch reports what its own mount does. Nothing tells it of other mounts.
#[test]
fn inotify_reports_changes_of_its_own_mount_only() {
    let cluster = cluster();
    let (one, two) = (Mount::new(&cluster, "a"), Mount::new(&cluster, "b"));
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let watch = inotify::init(flags).expect("a watch");
    let events = inotify::WatchFlags::ALL_EVENTS.difference(inotify::WatchFlags::ACCESS);
    inotify::add_watch(&watch, &one.directory, events).expect("a directory");
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut names = || {
        let mut reader = inotify::Reader::new(&watch, &mut buffer);
        let mut names = Vec::new();
        while let Ok(event) = reader.next() {
            names.extend(
                event
                    .file_name()
                    .map(|it| it.to_string_lossy().into_owned()),
            );
        }
        names
    };
    fs::write(two.path("other"), "x").expect("a write");
    fs::rename(two.path("other"), two.path("renamed")).expect("a rename");
    assert!(exists(&one.path("renamed")) && !exists(&one.path("other")));
    assert_eq!(names(), Vec::<String>::new());
    fs::write(one.path("own"), "x").expect("a write");
    assert!(names().iter().any(|name| name == "own"));
    fs::remove_file(two.path("own")).expect("an unlink");
    assert!(!exists(&one.path("own")));
    assert_eq!(names(), Vec::<String>::new());
}

/// The kernel of a busy machine may take longer than a lease for a few calls: of many it has to ask for few.
#[test]
fn directories_are_listed_again_without_requests() {
    const ROUNDS: u64 = 2_000;
    let cluster = cluster();
    let mount = Mount::new(&cluster, "a");
    for name in ["one", "two", "three"] {
        fs::write(mount.path(name), "x").expect("a write");
    }
    let listed = || fs::read_dir(mount.path("")).expect("a list").count();
    assert_eq!(listed(), 3);
    let before = messages(&cluster);
    for _ in 0..ROUNDS {
        assert_eq!(listed(), 3);
    }
    let sent = messages(&cluster) - before;
    assert!(sent < ROUNDS / 4, "{sent} messages for {ROUNDS} rounds");
}

/// The time does not tell that the names are others.
#[test]
fn listings_are_kept_by_version() {
    let cluster = cluster();
    let (one, two) = (Mount::new(&cluster, "a"), Mount::new(&cluster, "b"));
    let directory = two.path("directory");
    fs::create_dir(&directory).expect("a directory");
    let modified = fs::metadata(&directory).and_then(|it| it.modified());
    let times = FileTimes::new().set_modified(modified.expect("a time"));
    for round in 0..200 {
        let name = format!("n{round}");
        fs::write(directory.join(&name), "x").expect("a new file");
        if round > 0 {
            let former = directory.join(format!("n{}", round - 1));
            fs::remove_file(former).expect("an unlink");
        }
        if round % 3 > 0 {
            let open = File::open(&directory).expect("it opens");
            open.set_times(times).expect("times");
        }
        for mount in [&one, &two] {
            let listed = fs::read_dir(mount.path("directory")).expect("a list");
            let names: Vec<_> = listed.map(|it| it.expect("an entry").file_name()).collect();
            assert_eq!(names, [name.as_str()]);
        }
    }
}

/// Longer than a lease lasts without a renewal.
const SEVERAL_LEASES: Duration = Duration::from_millis(2500);
/// Pause between two new names.
const LOCK_EVERY: Duration = Duration::from_millis(600);

/// The kernel asks for each file again in each second, and the mount answers by itself. A busy machine may miss a renewal.
#[test]
fn leases_in_use_are_renewed_without_requests_for_each_file() {
    const FILES: u64 = 400;
    let cluster = cluster();
    let mount = Mount::new(&cluster, "a");
    let paths: Vec<PathBuf> = (0..FILES).map(|it| mount.path(&it.to_string())).collect();
    for path in &paths {
        fs::write(path, "x").expect("a write");
    }
    let start = Instant::now();
    loop {
        let before = messages(&cluster);
        let (window, mut locks) = (Instant::now(), 0);
        while window.elapsed() < SEVERAL_LEASES {
            assert!(paths.iter().all(|path| size(path) == 1));
            assert!(!exists(&mount.path("new")));
            // Programs like git make a name and remove it, beside the files that they look at.
            if window.elapsed() > LOCK_EVERY * locks {
                locks += 1;
                fs::write(mount.path("lock"), "").expect("a new file");
                fs::remove_file(mount.path("lock")).expect("an unlink");
            }
        }
        let sent = messages(&cluster) - before;
        if sent < FILES {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{sent} messages");
    }
}

#[test]
fn renewed_leases_are_recalled_and_do_not_outlive_the_primary() {
    let cluster = cluster();
    let (one, two) = (Mount::new(&cluster, "a"), Mount::new(&cluster, "b"));
    for (round, kills) in [false, true].into_iter().enumerate() {
        let (name, new) = (format!("file{round}"), format!("new{round}"));
        fs::write(two.path(&name), "x").expect("a write");
        let window = Instant::now();
        while window.elapsed() < SEVERAL_LEASES {
            assert!(size(&one.path(&name)) == 1 && !exists(&one.path(&new)));
        }
        if kills {
            kill(crate::primary(&cluster.status()), Signal::KILL);
        }
        fs::write(two.path(&name), "xyz").expect("a write");
        assert_eq!(size(&one.path(&name)), 3);
        fs::write(two.path(&new), "y").expect("a new file");
        assert!(exists(&one.path(&new)));
        fs::remove_file(two.path(&name)).expect("an unlink");
        assert!(!exists(&one.path(&name)));
    }
}
