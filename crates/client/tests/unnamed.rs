//! `docs/SEMANTICS.md` on files without a name, whiteouts and copies, re-enacted.
#![forbid(unsafe_code)]

mod common;

use client::{FileKind, OpenFlags, RenameMode};
use common::{contents, errno, file_system, make_file};

#[test]
fn unnamed_files_can_get_a_name() {
    let fs = file_system();
    fs.make_directory("d", 0o755).unwrap();
    let free = fs.statistics().unwrap();
    let open = |flags| fs.open_unnamed("d", flags, 0o640);
    let file = open(OpenFlags::READ_WRITE).unwrap();
    file.write(b"data").unwrap();
    let attributes = file.attributes().unwrap();
    assert_eq!((attributes.links, attributes.permissions), (0, 0o640));
    assert!(fs.list("d").unwrap().is_empty());
    fs.link_file(&file, "d/name").unwrap();
    assert_eq!(file.attributes().unwrap().links, 1);
    fs.link_file(&file, "other").unwrap();
    fs.remove_file("other").unwrap();
    assert_eq!(contents(&fs, "d/name"), b"data");
    // Once it had a name, it is a file like any other.
    fs.remove_file("d/name").unwrap();
    assert_eq!(errno(fs.link_file(&file, "d/name")), libc::ENOENT);
    drop(file);
    let exclusive = OpenFlags {
        exclusive: true,
        ..OpenFlags::WRITE
    };
    let never = open(exclusive).unwrap();
    never.write(&[1; 100_000]).unwrap();
    assert_eq!(errno(fs.link_file(&never, "d/name")), libc::ENOENT);
    drop(never);
    let gone = open(OpenFlags::WRITE).unwrap();
    gone.write(&[1; 100_000]).unwrap();
    drop(gone);
    assert_eq!(fs.statistics().unwrap().inodes_free, free.inodes_free);
    assert_eq!(errno(open(OpenFlags::READ)), libc::EINVAL);
    make_file(&fs, "file", b"");
    let in_file = fs.open_unnamed("file", OpenFlags::WRITE, 0o600);
    assert_eq!(errno(in_file), libc::ENOTDIR);
}

#[test]
fn whiteouts_take_the_old_name() {
    let fs = file_system();
    for directory in ["d", "d/below", "e"] {
        fs.make_directory(directory, 0o755).unwrap();
    }
    make_file(&fs, "file", b"data");
    make_file(&fs, "target", b"old");
    let whiteout = |from, to| fs.rename_path(from, to, RenameMode::Whiteout);
    whiteout("file", "target").unwrap();
    assert_eq!(contents(&fs, "target"), b"data");
    let left = fs.stat("file").unwrap();
    assert_eq!((left.kind, left.device), (FileKind::CharacterDevice, 0));
    assert_eq!((left.permissions, left.links, left.uid), (0, 1, 0));
    whiteout("d/below", "e/moved").unwrap();
    assert_eq!(fs.stat("d").unwrap().links, 2);
    assert_eq!(fs.stat("e").unwrap().links, 3);
    let left = fs.stat("d/below").unwrap();
    assert_eq!(left.kind, FileKind::CharacterDevice);
    whiteout("target", "target").unwrap();
    assert_eq!(contents(&fs, "target"), b"data");
    for name in ["file", "d/below"] {
        fs.remove_file(name).unwrap();
    }
}

#[test]
fn ranges_are_copied() {
    let fs = file_system();
    make_file(&fs, "from", &[7; 3_000_000]);
    make_file(&fs, "to", b"something");
    let from = fs.open("from", OpenFlags::READ, 0).unwrap();
    let to = fs.open("to", OpenFlags::READ_WRITE, 0).unwrap();
    assert_eq!(from.copy_range(100, &to, 5, 5_000_000).unwrap(), 2_999_900);
    let expected = [&b"somet"[..], &[7; 2_999_900]].concat();
    assert!(contents(&fs, "to") == expected);
    assert_eq!(from.copy_range(3_000_000, &to, 0, 1).unwrap(), 0);
    assert_eq!(to.copy_range(0, &to, 4_000_000, 1000).unwrap(), 1000);
    assert_eq!(errno(to.copy_range(0, &to, 999, 1000)), libc::EINVAL);
    assert_eq!(errno(to.copy_range(0, &from, 0, 1)), libc::EBADF);
    let log = OpenFlags {
        append: true,
        ..OpenFlags::WRITE
    };
    let log = fs.open("to", log, 0).unwrap();
    assert_eq!(errno(from.copy_range(0, &log, 0, 1)), libc::EBADF);
    assert_eq!(errno(log.copy_range(0, &to, 0, 1)), libc::EBADF);
}
