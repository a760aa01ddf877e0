//! Mounts that answer writes early, under leases for writing.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::Signal;

use super::{Mount, cluster, messages, size};
use crate::nodes::{PATIENCE, kill};
use crate::{common, primary};

const OPTIONS: &str = "ack=primary,cache=writeback";

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options.open(path).expect("it opens")
}

/// Writes `text` at this offset, in parts of a few bytes.
fn write_parts(file: &File, text: &[u8], offset: u64) {
    for (at, part) in (0..).step_by(7).zip(text.chunks(7)) {
        file.write_all_at(part, offset + at).expect("a write");
    }
}

/// On a busy machine leases end early now and then.
#[test]
fn small_writes_take_few_messages_and_are_seen_everywhere() {
    const WRITES: u64 = 4_000;
    let cluster = cluster();
    let (one, two) = (
        Mount::with(&cluster, "a", OPTIONS),
        Mount::new(&cluster, "b"),
    );
    let file = open(&one.path("file"));
    let before = messages(&cluster);
    for number in 0..WRITES {
        file.write_all_at(&number.to_le_bytes(), number * 8)
            .expect("a write");
    }
    let sent = messages(&cluster) - before;
    assert!(sent < WRITES / 4, "{sent} messages for {WRITES} writes");
    assert_eq!(size(&two.path("file")), WRITES * 8);
    assert_eq!(size(&one.path("file")), WRITES * 8);
    let expected: Vec<u8> = (0..WRITES).flat_map(u64::to_le_bytes).collect();
    assert!(fs::read(two.path("file")).expect("a read") == expected);
    assert!(fs::read(one.path("file")).expect("a read") == expected);
    file.sync_all().expect("a sync");
}

#[test]
fn each_call_sees_what_another_mount_has_answered() {
    let cluster = cluster();
    let mounts = ["a", "b"].map(|name| Mount::with(&cluster, name, OPTIONS));
    let mut text = Vec::new();
    for round in 0..60_usize {
        let (one, two) = (&mounts[round % 2], &mounts[(round + 1) % 2]);
        let path = one.path("file");
        let file = open(&path);
        let next = format!("round {round} of a longer text;");
        match round % 5 {
            0 => {
                let mut appending = OpenOptions::new()
                    .append(true)
                    .open(&path)
                    .expect("it opens");
                appending.write_all(next.as_bytes()).expect("a write");
                appending.write_all(b"more").expect("a write");
                text.extend(next.bytes().chain(*b"more"));
            }
            1 => {
                write_parts(&file, next.as_bytes(), 3);
                text.resize(text.len().max(3 + next.len()), 0);
                text[3..][..next.len()].copy_from_slice(next.as_bytes());
            }
            2 => {
                write_parts(&file, next.as_bytes(), text.len() as u64 + 9);
                text.resize(text.len() + 9, 0);
                text.extend(next.bytes());
            }
            3 => {
                write_parts(&file, next.as_bytes(), 0);
                text[..next.len()].copy_from_slice(next.as_bytes());
                file.set_len(next.len() as u64 - 3).expect("a truncate");
                text.truncate(next.len() - 3);
            }
            _ => {
                write_parts(&file, next.as_bytes(), text.len() as u64);
                text.extend(next.bytes());
                fs::rename(&path, one.path("other")).expect("a rename");
                fs::rename(two.path("other"), two.path("file")).expect("a rename");
            }
        }
        assert_eq!(size(&two.path("file")), text.len() as u64, "round {round}");
        let listed = fs::read_dir(&two.directory).expect("a list").next();
        let listed = listed.expect("a file").and_then(|entry| entry.metadata());
        assert_eq!(listed.expect("attributes").len(), text.len() as u64);
        assert!(
            fs::read(two.path("file")).expect("a read") == text,
            "round {round}"
        );
        let mut own = Vec::new();
        (&file).read_to_end(&mut own).expect("a read");
        assert!(own == text, "round {round}");
    }
}

#[test]
fn a_hole_before_a_write_that_was_answered_is_read_as_zeros() {
    let cluster = cluster();
    let mount = Mount::with(&cluster, "a", OPTIONS);
    let file = open(&mount.path("file"));
    for offset in 0..100 {
        file.write_all_at(&[1; 1024], offset * 1024)
            .expect("a write");
    }
    for _ in 0..10 {
        file.set_len(0).expect("a truncate");
        file.write_all_at(&[2; 1024], 50 << 10).expect("a write");
        let mut found = [3; 4096];
        let read = file.read_at(&mut found, 0).expect("a read");
        assert_eq!((read, found), (4096, [0; 4096]));
    }
}

#[test]
fn answered_writes_outlive_the_primary() {
    let cluster = cluster();
    let (one, two) = (
        Mount::with(&cluster, "a", OPTIONS),
        Mount::with(&cluster, "b", OPTIONS),
    );
    let file = open(&one.path("file"));
    let text = b"written before the primary is lost".repeat(100);
    write_parts(&file, &text, 0);
    kill(primary(&cluster.status()), Signal::KILL);
    assert!(fs::read(two.path("file")).expect("a read") == text);
    write_parts(&file, b"and after", 5);
    file.sync_all().expect("a sync");
    let found = fs::read(two.path("file")).expect("a read");
    assert_eq!(&found[5..14], b"and after");
}

/// Writes may have been sent before the mount was stopped: it is tried until some are lost, of which the program is notified.
#[test]
fn a_stopped_owner_delays_others_and_reports_what_is_lost() {
    const ATTEMPTS: usize = 20;
    let cluster = cluster();
    let (mut stopped, other) = (
        Mount::logging(&cluster, "a", OPTIONS, Stdio::piped()),
        Mount::new(&cluster, "b"),
    );
    let has_lost = (0..ATTEMPTS).any(|round| {
        let name = format!("file{round}");
        let file = open(&stopped.path(&name));
        let text = b"answered early ".repeat(50);
        write_parts(&file, &text, 0);
        stopped.signal(Signal::STOP);
        let start = Instant::now();
        let found = fs::read(other.path(&name)).expect("a read");
        assert!(start.elapsed() < PATIENCE);
        stopped.signal(Signal::CONT);
        let synced = file.sync_all();
        let is_lost = found != text;
        match is_lost {
            false => synced.expect("a sync"),
            true => assert!(synced.is_err(), "{} bytes of {}", found.len(), text.len()),
        }
        drop(file);
        assert_eq!(fs::read(stopped.path(&name)).expect("a read"), found);
        // It works on, in a new session.
        fs::write(stopped.path(&name), "new text").expect("a write");
        assert_eq!(fs::read(other.path(&name)).expect("a read"), b"new text");
        is_lost
    });
    assert!(has_lost, "all was sent before the mount was stopped");
    let file = open(&stopped.path("killed"));
    write_parts(&file, &b"answered early ".repeat(50), 0);
    let stderr = stopped.child.stderr.take();
    drop(stopped);
    let (mut log, mut stderr) = (String::new(), stderr.expect("a pipe"));
    stderr.read_to_string(&mut log).expect("a log");
    assert!(
        log.contains("writes to 1 file(s) that were answered early are lost"),
        "{log}"
    );
    let start = Instant::now();
    fs::write(other.path("killed"), "new text").expect("a write");
    assert_eq!(fs::read(other.path("killed")).expect("a read"), b"new text");
    assert!(start.elapsed() < PATIENCE);
}

/// Writes a line of its input to the file, and says so.
const WRITER: &str = "
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for line in iter(sys.stdin.readline, ''):
    os.pwrite(file, line.encode(), 0)
    print('done', flush=True)
";

/// Exit code and log of a mount that ends without its cluster, if it had answered a write that no node has.
fn end_without_nodes() -> Option<(Option<i32>, String)> {
    let cluster = cluster();
    let mut mount = Mount::logging(&cluster, "a", OPTIONS, Stdio::piped());
    let status = cluster.status();
    let mut python = Command::new("python3");
    python.args(["-c", WRITER]).arg(mount.path("file"));
    let mut writer = common::start(python.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let stdout = BufReader::new(writer.stdout.take().expect("a pipe"));
    let (say, answers) = channel();
    thread::spawn(move || {
        // The test may not wait any more.
        let mut lines = stdout.lines().map_while(Result::ok);
        lines.all(|line| say.send(line).is_ok())
    });
    let mut stdin = writer.stdin.take().expect("a pipe");
    let mut write = |within: Duration| {
        writeln!(stdin, "text").expect("it runs");
        answers.recv_timeout(within).is_ok()
    };
    let is_prepared = (0..5).all(|_| write(PATIENCE));
    for node in status["nodes"].as_array().expect("nodes") {
        kill(node, Signal::KILL);
    }
    // Longer than the lease lasts.
    let is_answered = write(Duration::from_secs(3));
    // The close of the writer waits for the cluster, whatever happens to it, until the mount ends by force.
    let mut umount = Command::new("umount");
    let forced = common::run(umount.args(["-f", "-l"]).arg(&mount.directory));
    assert!(forced.status.success(), "{forced:?}");
    writer.kill().expect("it was not waited for");
    writer.wait().expect("it has ended");
    let code = mount.child.wait().expect("it ends").code();
    let (mut log, mut stderr) = (String::new(), mount.child.stderr.take().expect("a pipe"));
    stderr.read_to_string(&mut log).expect("a log");
    (is_prepared && is_answered).then_some((code, log))
}

/// The lease may end before the write that no node gets: then it is tried again.
#[test]
fn a_mount_that_ends_reports_answered_writes_that_no_node_has() {
    const ATTEMPTS: usize = 5;
    let ended = (0..ATTEMPTS).find_map(|_| end_without_nodes());
    let (code, log) = ended.expect("a write is answered early");
    assert_eq!(code, Some(1), "{log}");
    let expected = "writes to 1 file(s) that were answered early are lost";
    assert_eq!(log.matches(expected).count(), 2, "{log}");
    assert!(!log.contains("nothing is lost"), "{log}");
}

/// Locks a file, writes more than the cluster has room for, closes the file, and goes on.
const FILLER: &str = "
import errno, fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(file, fcntl.LOCK_EX, 1)
try:
    for at in range(3000): os.pwrite(file, bytes(65536), at * 65536)
except OSError as error: print(errno.errorcode[error.errno], flush=True)
else: print('all writes were answered', flush=True)
try: os.close(file)
except OSError as error: print(errno.errorcode[error.errno], flush=True)
else: print('closed', flush=True)
sys.stdin.read()
";

/// Whether a write was lost after it was answered depends on the lease: it is tried until one was.
#[test]
fn a_close_that_reports_a_lost_write_releases_its_locks() {
    const ATTEMPTS: usize = 10;
    let cluster = cluster();
    let (one, two) = (
        Mount::with(&cluster, "a", OPTIONS),
        Mount::new(&cluster, "b"),
    );
    let has_lost = (0..ATTEMPTS).any(|round| {
        let name = format!("file{round}");
        let mut python = Command::new("python3");
        python.args(["-c", FILLER]).arg(one.path(&name));
        let mut filler = common::start(python.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let stdout = BufReader::new(filler.stdout.take().expect("a pipe"));
        let mut lines = stdout.lines().map(|line| line.expect("a line"));
        assert_eq!(lines.next().as_deref(), Some("ENOSPC"));
        let closed = lines.next().expect("it closes the file");
        let file = open(&two.path(&name));
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).expect("the lock is free");
        drop(file);
        drop(filler.stdin.take());
        assert!(filler.wait().expect("it ends").success());
        fs::remove_file(two.path(&name)).expect("an unlink");
        closed == "ENOSPC"
    });
    assert!(
        has_lost,
        "no write was answered that the cluster has no room for"
    );
}
