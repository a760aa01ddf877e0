//! `docs/SEMANTICS.md` on access control lists, re-enacted.
#![forbid(unsafe_code)]

mod common;

use client::{FileKind, FileSystem, NewInode, ROOT, SetAttributes, XattrMode};
use common::{contents, errno, file_system, make_file};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const NOBODY: u32 = u32::MAX;

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

/// Owner, user 7, group, mask and others.
fn named(owner: u16, user: u16, group: u16, mask: u16, others: u16) -> Vec<u8> {
    list(&[
        (0x01, owner, NOBODY),
        (0x02, user, 7),
        (0x04, group, NOBODY),
        (0x10, mask, NOBODY),
        (0x20, others, NOBODY),
    ])
}

fn set(fs: &FileSystem, path: &str, name: &[u8], value: &[u8]) -> Result<(), client::Error> {
    fs.set_xattr_path(path, name, value, XattrMode::Set)
}

fn permissions(fs: &FileSystem, path: &str) -> u32 {
    fs.stat(path).unwrap().permissions
}

fn change_mode(fs: &FileSystem, path: &str, permissions: u32) {
    let change = SetAttributes {
        permissions: Some(permissions),
        ..SetAttributes::default()
    };
    fs.set_attributes_path(path, &change).unwrap();
}

#[test]
fn lists_and_modes_follow_each_other() {
    let fs = file_system();
    make_file(&fs, "file", b"data");
    change_mode(&fs, "file", 0o4644);
    set(&fs, "file", ACCESS, &named(6, 7, 4, 5, 0)).unwrap();
    assert_eq!(permissions(&fs, "file"), 0o4650, "the mask is the group's");
    change_mode(&fs, "file", 0o724);
    let expected = named(7, 7, 4, 2, 4);
    assert_eq!(fs.xattr_path("file", ACCESS).unwrap(), expected);
    let shown = fs.xattr_names_path("file").unwrap();
    assert_eq!(shown, [ACCESS.to_vec()]);
    // A list equivalent to a mode becomes the mode, and takes no block.
    let basic = [(0x01, 6, NOBODY), (0x04, 0, NOBODY), (0x20, 1, NOBODY)];
    set(&fs, "file", ACCESS, &list(&basic)).unwrap();
    assert_eq!(permissions(&fs, "file"), 0o601);
    assert_eq!(errno(fs.xattr_path("file", ACCESS)), libc::ENODATA);
    assert_eq!(fs.stat("file").unwrap().blocks_512, 8);
    // Without its list a file keeps the mode. No entries are no list.
    for no_list in [None, Some(list(&[]))] {
        set(&fs, "file", ACCESS, &named(6, 7, 4, 5, 0)).unwrap();
        match no_list {
            None => fs.remove_xattr_path("file", ACCESS).unwrap(),
            Some(value) => set(&fs, "file", ACCESS, &value).unwrap(),
        }
        assert_eq!(permissions(&fs, "file"), 0o650);
        assert_eq!(errno(fs.xattr_path("file", ACCESS)), libc::ENODATA);
    }
    fs.remove_xattr_path("file", ACCESS).unwrap();
    assert_eq!(contents(&fs, "file"), b"data");
}

#[test]
fn new_files_get_the_default_list() {
    let fs = file_system();
    fs.make_directory("d", 0o755).unwrap();
    let handed_on = named(7, 6, 5, 7, 5);
    set(&fs, "d", DEFAULT, &handed_on).unwrap();
    assert_eq!(
        permissions(&fs, "d"),
        0o755,
        "it is not the directory's own"
    );
    let directory = fs.stat("d").unwrap().number;
    let make = |name: &str, kind, permissions| {
        let new = NewInode {
            umask: 0o077,
            target: if kind == FileKind::Symlink { b"t" } else { b"" },
            ..NewInode::new(kind, permissions)
        };
        fs.create(directory, name.as_bytes(), &new).unwrap()
    };
    let file = make("file", FileKind::Regular, 0o640);
    assert_eq!(file.permissions, 0o640, "the umask does not count");
    let expected = named(6, 6, 5, 4, 0);
    assert_eq!(fs.xattr(file.number, ACCESS).unwrap(), expected);
    assert_eq!(errno(fs.xattr(file.number, DEFAULT)), libc::ENODATA);
    let below = make("below", FileKind::Directory, 0o777);
    assert_eq!(below.permissions, 0o775);
    assert_eq!(fs.xattr(below.number, DEFAULT).unwrap(), handed_on);
    let fifo = make("fifo", FileKind::Fifo, 0o666);
    assert_eq!(fifo.permissions, 0o664);
    assert!(fs.xattr(fifo.number, ACCESS).is_ok());
    let link = make("link", FileKind::Symlink, 0o777);
    assert_eq!(link.permissions, 0o777);
    assert!(fs.xattr_names(link.number).unwrap().is_empty());
    // A default list equivalent to a mode leaves a mode; the umask still does not count.
    let basic = [(0x01, 6, NOBODY), (0x04, 6, NOBODY), (0x20, 0, NOBODY)];
    set(&fs, "d", DEFAULT, &list(&basic)).unwrap();
    let plain = make("plain", FileKind::Regular, 0o666);
    assert_eq!((plain.permissions, plain.blocks_512), (0o660, 0));
    fs.remove_xattr_path("d", DEFAULT).unwrap();
    assert_eq!(make("late", FileKind::Regular, 0o666).permissions, 0o600);
}

#[test]
fn lists_have_rules() {
    let fs = file_system();
    make_file(&fs, "file", b"");
    let right = named(6, 7, 4, 5, 0);
    let no_mask = [&right[..28], &right[36..]].concat();
    let unsorted = [&right[..4], &right[12..20], &right[4..12], &right[20..]].concat();
    let another_version = [&[3], &right[1..]].concat();
    for wrong in [
        &b""[..],
        &right[..43],
        &no_mask,
        &unsorted,
        &another_version,
    ] {
        assert_eq!(errno(set(&fs, "file", ACCESS, wrong)), libc::EINVAL);
    }
    assert_eq!(permissions(&fs, "file"), 0o644);
    assert_eq!(errno(set(&fs, "file", DEFAULT, &right)), libc::EACCES);
    let link = NewInode {
        target: b"file",
        ..NewInode::new(FileKind::Symlink, 0o777)
    };
    let link = fs.create(ROOT, b"link", &link).unwrap().number;
    let on_link = fs.set_xattr(link, ACCESS, &right, XattrMode::Set);
    assert_eq!(errno(on_link), libc::EOPNOTSUPP);
    // Lists and other attributes share one block: 64 bytes, 4 for each attribute, names and values.
    let users = |count| {
        let users = (0..count).map(|user| (0x02, 6, user));
        let [owner, rest @ ..] = [
            (0x01, 6, NOBODY),
            (0x04, 4, NOBODY),
            (0x10, 6, NOBODY),
            (0x20, 0, NOBODY),
        ];
        list(
            &std::iter::once(owner)
                .chain(users)
                .chain(rest)
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(errno(set(&fs, "file", ACCESS, &users(497))), libc::ENOSPC);
    set(&fs, "file", ACCESS, &users(496)).unwrap();
    assert_eq!(fs.xattr_path("file", ACCESS).unwrap(), users(496));
    assert_eq!(
        errno(set(&fs, "file", b"user.name", &[1; 50])),
        libc::ENOSPC
    );
    change_mode(&fs, "file", 0o600);
    assert_eq!(
        fs.xattr_path("file", ACCESS).unwrap().len(),
        users(496).len()
    );
}
