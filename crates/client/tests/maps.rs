//! Mapped files.

mod common;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use client::{FileSystem, OpenFlags, WriteAt, XattrMode};
use common::{contents, errno, file_system, make_file};

/// Not a multiple of a page's length.
const LENGTH: usize = (2 << 20) + 77;

fn pattern() -> Vec<u8> {
    (0..LENGTH).map(|at| (at / 97 % 251) as u8).collect()
}

fn patterned() -> FileSystem {
    let fs = file_system();
    make_file(&fs, "file", &pattern());
    fs
}

#[test]
fn a_map_shows_the_contents_to_all_threads() {
    let fs = patterned();
    let map = fs.open("file", OpenFlags::READ, 0).unwrap().map().unwrap();
    let expected = pattern();
    thread::scope(|scope| {
        for first in [0, 1 << 20, LENGTH - 1] {
            let (map, expected) = (&map, &expected);
            scope.spawn(move || {
                assert!(map[first..] == expected[first..]);
                assert!(map[..] == expected[..]);
            });
        }
    });
}

#[test]
fn a_map_keeps_the_pages_it_has_shown_and_a_refreshed_one_has_new_ones() {
    let fs = patterned();
    let file = fs.open("file", OpenFlags::READ_WRITE, 0).unwrap();
    let mut map = file.map().unwrap();
    assert!(map.is_current().unwrap());
    let before = map[0];
    file.write_at(&[before + 1], 0).unwrap();
    file.truncate(1 << 20).unwrap();
    assert!(!map.is_current().unwrap());
    assert_eq!(map[0], before);
    assert_eq!((map.len(), map[LENGTH - 1]), (LENGTH, 0), "behind its end");
    map.refresh().unwrap();
    assert!(map.is_current().unwrap());
    assert_eq!((map.len(), map[0]), (1 << 20, before + 1));
}

#[test]
fn a_map_outlives_its_file_and_the_last_name() {
    let fs = patterned();
    let file = fs.open("file", OpenFlags::READ, 0).unwrap();
    let map = file.map().unwrap();
    fs.remove_file("file").unwrap();
    drop(file);
    assert!(map[..] == pattern()[..]);
}

/// The write has the lock of the file that the access would need.
#[test]
fn a_file_is_written_from_its_own_map() {
    let fs = patterned();
    let file = fs.open("file", OpenFlags::READ_WRITE, 0).unwrap();
    let map = file.map().unwrap();
    assert_eq!(file.write_at(&map[100..6000], 0).unwrap(), 5900);
    assert_eq!(
        file.write_at(&map[1 << 20..], 6000).unwrap(),
        LENGTH - (1 << 20)
    );
    assert!(contents(&fs, "file")[..5900] == pattern()[100..6000]);
}

/// The same for calls by number, and for attributes. They end in the time that only guards against hanging.
#[test]
fn a_file_is_changed_by_number_from_its_own_map() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let fs = patterned();
        let number = fs.stat("file").unwrap().number;
        // Parts that no other call has read.
        let map = fs.open("file", OpenFlags::READ, 0).unwrap().map().unwrap();
        let part = |index: usize| &map[index << 18..][..6000];
        fs.write(number, WriteAt::Offset(0), part(1)).unwrap();
        let at = WriteAt::Offset(6000);
        fs.write_dropping(number, true, at, part(2)).unwrap();
        let value = &part(3)[..100];
        let mode = XattrMode::Set;
        fs.set_xattr(number, b"user.a", value, mode).unwrap();
        let value = &part(4)[..100];
        fs.set_xattr_path("file", b"user.b", value, mode).unwrap();
        let (written, expected) = (contents(&fs, "file"), pattern());
        assert!(written[..6000] == expected[1 << 18..][..6000]);
        assert!(written[6000..12_000] == expected[2 << 18..][..6000]);
        let found = fs.xattr(number, b"user.a").unwrap();
        assert_eq!(found, expected[3 << 18..][..100]);
        let found = fs.xattr(number, b"user.b").unwrap();
        assert_eq!(found, expected[4 << 18..][..100]);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(100)).unwrap();
}

#[test]
fn maps_need_a_file_that_is_open_for_reading() {
    let fs = patterned();
    fs.make_directory("directory", 0o755).unwrap();
    make_file(&fs, "empty", b"");
    let open = |path, flags| fs.open(path, flags, 0).unwrap();
    let directory = open("directory", OpenFlags::READ);
    assert_eq!(errno(directory.map().map(drop)), libc::EISDIR);
    let written = open("file", OpenFlags::WRITE);
    assert_eq!(errno(written.map().map(drop)), libc::EBADF);
    let empty = open("empty", OpenFlags::READ).map().unwrap();
    assert!(empty.is_empty() && empty.load(0..10).is_ok());
}
