//! Mounts that answer writes early, under leases for writing.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rustix::process::Signal;

use super::{Mount, cluster, messages, size};
use crate::nodes::{PATIENCE, kill};
use crate::primary;

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
    let (stopped, other) = (
        Mount::with(&cluster, "a", OPTIONS),
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
    drop(stopped);
    let start = Instant::now();
    fs::write(other.path("killed"), "new text").expect("a write");
    assert_eq!(fs::read(other.path("killed")).expect("a read"), b"new text");
    assert!(start.elapsed() < PATIENCE);
}
