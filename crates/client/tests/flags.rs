//! `docs/SEMANTICS.md` on the flags of files and directories, re-enacted.
#![forbid(unsafe_code)]

mod common;

use client::{
    Error, Fallocate, FileFlags, FileKind, FileSystem, NewInode, OpenFlags, ROOT, RenameMode,
    SetAttributes, XattrMode,
};
use common::{contents, errno, file_system, make_file};

const IMMUTABLE: FileFlags = FileFlags {
    immutable: true,
    append_only: false,
};
const APPEND_ONLY: FileFlags = FileFlags {
    immutable: false,
    append_only: true,
};
const APPEND: OpenFlags = OpenFlags {
    append: true,
    ..OpenFlags::WRITE
};

/// Every change of the attributes of `path`, and of the file as a whole.
fn changes(fs: &FileSystem, path: &str) -> Vec<Result<(), Error>> {
    let set = |change: SetAttributes| fs.set_attributes_path(path, &change).map(drop);
    let none = SetAttributes::default();
    let (permissions, uid, modified_ns) = (Some(0o600), Some(1), Some(1));
    vec![
        set(SetAttributes {
            permissions,
            ..none
        }),
        set(SetAttributes { uid, ..none }),
        set(SetAttributes {
            modified_ns,
            ..none
        }),
        fs.set_xattr_path(path, b"user.a", b"", XattrMode::Set),
        fs.remove_xattr_path(path, b"user.a"),
        fs.rename_path(path, "other", RenameMode::Replace),
        fs.rename_path("victim", path, RenameMode::Replace),
        fs.rename_path("victim", path, RenameMode::Exchange),
    ]
}

#[test]
fn immutable_files_do_not_change() {
    let fs = file_system();
    make_file(&fs, "file", b"data");
    make_file(&fs, "victim", b"");
    let open = fs.open("file", OpenFlags::READ_WRITE, 0).unwrap();
    fs.set_flags_path("file", IMMUTABLE).unwrap();
    let before = fs.stat("file").unwrap();
    assert_eq!(before.flags, IMMUTABLE);
    for change in changes(&fs, "file") {
        assert_eq!(errno(change), libc::EPERM);
    }
    assert_eq!(errno(fs.link_path("file", "link")), libc::EPERM);
    assert_eq!(errno(fs.remove_file("file")), libc::EPERM);
    let truncate = OpenFlags {
        truncate: true,
        ..OpenFlags::READ
    };
    for flags in [OpenFlags::WRITE, APPEND, truncate] {
        assert_eq!(errno(fs.open("file", flags, 0)), libc::EPERM);
    }
    assert_eq!(errno(open.write_at(b"x", 0)), libc::EPERM, "open before");
    assert_eq!(errno(open.truncate(0)), libc::EPERM);
    let grow = Fallocate::Allocate { keep_size: true };
    assert_eq!(errno(open.fallocate(grow, 0, 9000)), libc::EPERM);
    // A read may change the time of access, and with it the version.
    assert_eq!(fs.stat("file").unwrap().version, before.version);
    assert_eq!(contents(&fs, "file"), b"data");
    fs.set_flags_path("file", FileFlags::default()).unwrap();
    open.write_at(b"D", 0).unwrap();
    fs.remove_file("file").unwrap();
}

#[test]
fn append_only_files_grow() {
    let fs = file_system();
    make_file(&fs, "log", b"one ");
    make_file(&fs, "victim", b"");
    fs.set_flags_path("log", APPEND_ONLY).unwrap();
    let log = fs.open("log", APPEND, 0).unwrap();
    log.write(b"two").unwrap();
    log.fallocate(Fallocate::Allocate { keep_size: true }, 0, 9000)
        .unwrap();
    assert_eq!(contents(&fs, "log"), b"one two");
    for change in changes(&fs, "log") {
        assert_eq!(errno(change), libc::EPERM);
    }
    let truncate = OpenFlags {
        truncate: true,
        ..APPEND
    };
    for flags in [OpenFlags::WRITE, truncate] {
        assert_eq!(errno(fs.open("log", flags, 0)), libc::EPERM);
    }
    let punched = log.fallocate(Fallocate::PunchHole, 0, 4096);
    assert_eq!(errno(punched), libc::EPERM);
    assert_eq!(errno(log.truncate(0)), libc::EPERM);
    assert_eq!(errno(fs.remove_file("log")), libc::EPERM);
}

#[test]
fn directories_keep_their_names() {
    let fs = file_system();
    fs.make_directory("d", 0o755).unwrap();
    make_file(&fs, "d/file", b"");
    make_file(&fs, "outside", b"");
    let moves = [
        ("d/file", "new"),
        ("outside", "d/file"),
        ("d/file", "d/new"),
    ];
    let leave = || {
        for (from, to) in moves {
            let renamed = fs.rename_path(from, to, RenameMode::Replace);
            assert_eq!(errno(renamed), libc::EPERM, "{from} to {to}");
        }
        assert_eq!(errno(fs.remove_file("d/file")), libc::EPERM);
        assert_eq!(errno(fs.remove_directory_at("d")), libc::EPERM);
        // Their contents may change.
        let file = fs.open("d/file", OpenFlags::WRITE, 0).unwrap();
        file.write(b"x").unwrap();
    };
    let create = OpenFlags {
        create: true,
        ..OpenFlags::WRITE
    };
    fs.set_flags_path("d", APPEND_ONLY).unwrap();
    leave();
    drop(fs.open("d/more", create, 0o644).unwrap());
    fs.rename_path("outside", "d/moved", RenameMode::Replace)
        .unwrap();
    fs.set_flags_path("d", IMMUTABLE).unwrap();
    make_file(&fs, "outside", b"");
    leave();
    assert_eq!(errno(fs.open("d/never", create, 0o644)), libc::EPERM);
    assert_eq!(errno(fs.link_path("outside", "d/never")), libc::EPERM);
    assert_eq!(errno(fs.make_directory("d/file", 0)), libc::EEXIST);
    fs.set_flags_path("d", FileFlags::default()).unwrap();
    fs.remove_file("d/file").unwrap();
    let fifo = NewInode::new(FileKind::Fifo, 0o600);
    let fifo = fs.create(ROOT, b"fifo", &fifo).unwrap().number;
    assert_eq!(errno(fs.set_flags(fifo, IMMUTABLE)), libc::EINVAL);
}
