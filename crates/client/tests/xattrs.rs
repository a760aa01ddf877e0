//! `docs/SEMANTICS.md` on extended attributes, re-enacted.
#![forbid(unsafe_code)]

mod common;

use client::{FileKind, FileSystem, NewInode, ROOT, XattrMode};
use common::{contents, errno, file_system, make_file};

fn names(fs: &FileSystem, number: u64) -> Vec<String> {
    let names = fs.xattr_names(number).unwrap().into_iter();
    names.map(|name| String::from_utf8(name).unwrap()).collect()
}

#[test]
fn attributes_are_set_and_removed() {
    let fs = file_system();
    let free = fs.statistics().unwrap().blocks_free;
    make_file(&fs, "file", b"data");
    let number = fs.stat("file").unwrap().number;
    let set = |name: &str, value: &[u8], mode| fs.set_xattr(number, name.as_bytes(), value, mode);
    set("user.a", b"1", XattrMode::Set).unwrap();
    set("trusted.b", b"", XattrMode::Create).unwrap();
    set("security.c", &[7; 300], XattrMode::Set).unwrap();
    assert_eq!(errno(set("user.a", b"2", XattrMode::Create)), libc::EEXIST);
    assert_eq!(
        errno(set("user.d", b"2", XattrMode::Replace)),
        libc::ENODATA
    );
    set("user.a", b"longer", XattrMode::Replace).unwrap();
    assert_eq!(names(&fs, number), ["user.a", "trusted.b", "security.c"]);
    assert_eq!(fs.xattr(number, b"user.a").unwrap(), b"longer");
    assert_eq!(fs.xattr(number, b"security.c").unwrap(), [7; 300]);
    assert_eq!(fs.stat("file").unwrap().blocks_512, 16, "all in one block");
    assert_eq!(fs.xattr_path("file", b"user.a").unwrap(), b"longer");
    assert_eq!(fs.xattr_names_path("file").unwrap().len(), 3);
    let replace = XattrMode::Replace;
    fs.set_xattr_path("file", b"trusted.b", b"by path", replace)
        .unwrap();
    fs.remove_xattr_path("file", b"trusted.b").unwrap();
    assert_eq!(errno(fs.remove_xattr(number, b"trusted.b")), libc::ENODATA);
    assert_eq!(errno(fs.xattr(number, b"trusted.b")), libc::ENODATA);
    for name in ["user.a", "security.c"] {
        fs.remove_xattr(number, name.as_bytes()).unwrap();
    }
    assert_eq!(fs.stat("file").unwrap().blocks_512, 8);
    assert_eq!(contents(&fs, "file"), b"data");
    set("user.a", b"again", XattrMode::Set).unwrap();
    fs.remove_file("file").unwrap();
    // The root directory has a leaf until its last name goes.
    assert_eq!(fs.statistics().unwrap().blocks_free, free);
}

#[test]
fn attributes_have_limits() {
    let fs = file_system();
    make_file(&fs, "file", b"");
    let number = fs.stat("file").unwrap().number;
    let set = |name: &[u8], value: &[u8]| fs.set_xattr(number, name, value, XattrMode::Set);
    for (name, error) in [
        (&b"user."[..], libc::EINVAL),
        (b"user.with\0nul", libc::EINVAL),
        (b"name", libc::EOPNOTSUPP),
        (b"system.name", libc::EOPNOTSUPP),
        (&[b"user.", &[b'x'; 251][..]].concat(), libc::ENAMETOOLONG),
    ] {
        assert_eq!(errno(set(name, b"")), error, "{name:?}");
    }
    // One block holds them all: a header of 64 bytes, 4 for each, names and values.
    set(b"user.a", &[1; 2000]).unwrap();
    assert_eq!(errno(set(b"user.b", &[2; 2011])), libc::ENOSPC);
    set(b"user.b", &[2; 2010]).unwrap();
    assert_eq!(fs.xattr(number, b"user.a").unwrap(), [1; 2000]);
    assert_eq!(errno(set(b"user.c", b"")), libc::ENOSPC);
    let fifo = NewInode::new(FileKind::Fifo, 0o600);
    let fifo = fs.create(ROOT, b"fifo", &fifo).unwrap().number;
    let set = |name: &[u8]| fs.set_xattr(fifo, name, b"", XattrMode::Set);
    assert_eq!(errno(set(b"user.a")), libc::EPERM);
    set(b"trusted.a").unwrap();
    fs.remove_file("fifo").unwrap();
}
