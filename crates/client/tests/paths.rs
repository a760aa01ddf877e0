//! Paths: their targets, and their errors.

mod common;

use client::{
    FileKind, FileSystem, Geometry, OpenFlags, PoolOptions, Region, RenameMode, SetAttributes,
};
use common::{contents, errno, file_system, make_file};
use store::format::directory::{ENTRY, EntryHeader};
use store::fuzzing::{Edit, PoolBytes, PoolPart};

const CREATE: OpenFlags = OpenFlags {
    create: true,
    ..OpenFlags::READ_WRITE
};

#[test]
fn dots_and_slashes_lead_where_they_should() {
    let fs = file_system();
    fs.make_directory("/a", 0o755).unwrap();
    fs.make_directory("a/b/", 0o755).unwrap();
    make_file(&fs, "a/b/file", b"here");
    for path in [
        "a/b/file",
        "/a/b/file",
        "//a///b//file",
        "./a/./b/../b/file",
        "../../a/b/file",
    ] {
        assert_eq!(contents(&fs, path), b"here", "{path}");
    }
    for root in ["/", ".", "..", "a/..", "/a/b/../..", "///"] {
        assert_eq!(fs.stat(root).unwrap().number, client::ROOT, "{root}");
    }
    assert_eq!(
        fs.stat("a/b/").unwrap().number,
        fs.stat("a/b").unwrap().number
    );
}

#[test]
fn wrong_paths_are_refused_with_their_errno() {
    let fs = file_system();
    fs.make_directory("d", 0o755).unwrap();
    make_file(&fs, "file", b"");
    assert_eq!(errno(fs.stat("")), libc::ENOENT);
    assert_eq!(errno(fs.stat("none")), libc::ENOENT);
    assert_eq!(errno(fs.stat("none/below")), libc::ENOENT);
    assert_eq!(errno(fs.stat("file/below")), libc::ENOTDIR);
    assert_eq!(errno(fs.stat("file/")), libc::ENOTDIR);
    assert_eq!(errno(fs.stat("file/.")), libc::ENOTDIR);
    assert_eq!(errno(fs.stat("file/..")), libc::ENOTDIR);
    assert_eq!(errno(fs.stat("n".repeat(256))), libc::ENAMETOOLONG);
    assert_eq!(errno(fs.stat("./".repeat(2048))), libc::ENAMETOOLONG);
    assert!(fs.stat("./".repeat(2047)).is_ok());
    fs.make_directory("n".repeat(255), 0o700).unwrap();
    assert_eq!(
        errno(fs.make_directory("n".repeat(256), 0o700)),
        libc::ENAMETOOLONG
    );
}

#[test]
fn names_that_cannot_be_made_or_taken_away() {
    let fs = file_system();
    fs.make_directory("d", 0o755).unwrap();
    fs.make_directory("d/e", 0o755).unwrap();
    make_file(&fs, "file", b"");
    for path in ["/", ".", "d/..", "d", "d/"] {
        assert_eq!(
            errno(fs.make_directory(path, 0o755)),
            libc::EEXIST,
            "{path}"
        );
    }
    assert_eq!(errno(fs.remove_file("/")), libc::EISDIR);
    assert_eq!(errno(fs.remove_file("d")), libc::EISDIR);
    assert_eq!(errno(fs.remove_file("d/")), libc::EISDIR);
    assert_eq!(errno(fs.remove_file("file/")), libc::ENOTDIR);
    assert_eq!(errno(fs.remove_directory_at("/")), libc::EBUSY);
    assert_eq!(errno(fs.remove_directory_at("d/.")), libc::EINVAL);
    assert_eq!(errno(fs.remove_directory_at("d/e/..")), libc::ENOTEMPTY);
    assert_eq!(errno(fs.remove_directory_at("d")), libc::ENOTEMPTY);
    assert_eq!(errno(fs.remove_directory_at("file")), libc::ENOTDIR);
    assert_eq!(
        errno(fs.rename_path("d/.", "x", RenameMode::Replace)),
        libc::EBUSY
    );
    assert_eq!(
        errno(fs.rename_path("file/", "x", RenameMode::Replace)),
        libc::ENOTDIR
    );
    assert_eq!(
        errno(fs.rename_path("file", "x/", RenameMode::Replace)),
        libc::ENOTDIR
    );
    assert_eq!(errno(fs.link_path("file", "x/")), libc::ENOENT);
    assert_eq!(errno(fs.symlink("file", "x/")), libc::ENOENT);
    assert_eq!(errno(fs.symlink("", "x")), libc::ENOENT);
    fs.rename_path("d/", "f/", RenameMode::Replace).unwrap();
    fs.remove_directory_at("f/e/").unwrap();
}

#[test]
fn symbolic_links_are_followed() {
    let fs = file_system();
    fs.make_directory("a", 0o755).unwrap();
    fs.make_directory("a/b", 0o755).unwrap();
    make_file(&fs, "a/file", b"target");
    fs.symlink("a/b", "down").unwrap();
    fs.symlink("../file", "a/b/up").unwrap();
    fs.symlink("/a/file", "a/b/absolute").unwrap();
    fs.symlink("down/", "with_slash").unwrap();
    for path in [
        "a/b/up",
        "down/up",
        "down/absolute",
        "with_slash/up",
        "down/../file",
    ] {
        assert_eq!(contents(&fs, path), b"target", "{path}");
    }
    assert_eq!(fs.symlink_stat("down").unwrap().kind, FileKind::Symlink);
    assert_eq!(fs.symlink_stat("down/").unwrap().kind, FileKind::Directory);
    assert_eq!(
        fs.stat("down").unwrap().number,
        fs.stat("a/b").unwrap().number
    );
    assert_eq!(errno(fs.stat("a/b/up/")), libc::ENOTDIR);
    assert_eq!(
        fs.read_link_path("a/b/up").unwrap().to_str(),
        Some("../file")
    );
    assert_eq!(errno(fs.read_link_path("a")), libc::EINVAL);

    // A link to a link is another name of the link.
    fs.link_path("down", "down_too").unwrap();
    assert_eq!(fs.symlink_stat("down_too").unwrap().kind, FileKind::Symlink);
    fs.remove_file("down").unwrap();
    assert_eq!(fs.symlink_stat("down_too").unwrap().links, 1);
}

#[test]
fn loops_and_long_chains_end() {
    let fs = file_system();
    fs.symlink("loop", "loop").unwrap();
    assert_eq!(errno(fs.stat("loop")), libc::ELOOP);
    assert_eq!(errno(fs.stat("loop/x")), libc::ELOOP);
    assert_eq!(errno(fs.open("loop", CREATE, 0o644)), libc::ELOOP);
    make_file(&fs, "link0", b"end");
    for number in 1..=41 {
        fs.symlink(format!("link{}", number - 1), format!("link{number}"))
            .unwrap();
    }
    assert_eq!(contents(&fs, "link40"), b"end");
    assert_eq!(errno(fs.stat("link41")), libc::ELOOP);
}

#[test]
fn open_creates_where_a_link_leads() {
    let fs = file_system();
    fs.make_directory("d", 0o755).unwrap();
    fs.symlink("d/new", "link").unwrap();
    assert_eq!(errno(fs.open("link", OpenFlags::READ, 0)), libc::ENOENT);
    let exclusive = OpenFlags {
        exclusive: true,
        ..CREATE
    };
    assert_eq!(errno(fs.open("link", exclusive, 0o600)), libc::EEXIST);
    let no_follow = OpenFlags {
        no_follow: true,
        ..CREATE
    };
    assert_eq!(errno(fs.open("link", no_follow, 0o600)), libc::ELOOP);
    fs.open("link", CREATE, 0o600).unwrap();
    assert_eq!(fs.symlink_stat("d/new").unwrap().permissions, 0o600);
    assert_eq!(errno(fs.open("d/new", exclusive, 0o600)), libc::EEXIST);
}

#[test]
fn open_keeps_to_its_flags() {
    let fs = file_system();
    fs.make_directory("d", 0o755).unwrap();
    make_file(&fs, "file", b"contents");
    let directory = OpenFlags {
        directory: true,
        ..OpenFlags::READ
    };
    assert_eq!(errno(fs.open("file", directory, 0)), libc::ENOTDIR);
    assert_eq!(errno(fs.open("file/", OpenFlags::READ, 0)), libc::ENOTDIR);
    assert_eq!(errno(fs.open("d", OpenFlags::WRITE, 0)), libc::EISDIR);
    assert_eq!(
        errno(fs.open(
            "d",
            OpenFlags {
                create: true,
                ..OpenFlags::READ
            },
            0
        )),
        libc::EISDIR
    );
    assert_eq!(errno(fs.open("new/", CREATE, 0o644)), libc::EISDIR);
    assert_eq!(errno(fs.open("none", OpenFlags::READ, 0)), libc::ENOENT);
    let opened = fs.open("d", directory, 0).unwrap();
    assert_eq!(errno(opened.read(&mut [0])), libc::EISDIR);
    fs.open(
        "file",
        OpenFlags {
            truncate: true,
            ..OpenFlags::WRITE
        },
        0,
    )
    .unwrap();
    assert_eq!(fs.stat("file").unwrap().size, 0);
}

#[test]
fn rename_replaces_exchanges_or_refuses() {
    let fs = file_system();
    make_file(&fs, "a", b"a");
    make_file(&fs, "b", b"b");
    assert_eq!(
        errno(fs.rename_path("a", "b", RenameMode::NoReplace)),
        libc::EEXIST
    );
    fs.rename_path("a", "b", RenameMode::Exchange).unwrap();
    assert_eq!(
        (contents(&fs, "a"), contents(&fs, "b")),
        (b"b".to_vec(), b"a".to_vec())
    );
    fs.rename_path("a", "b", RenameMode::Replace).unwrap();
    assert_eq!(contents(&fs, "b"), b"b");
    fs.make_directory("d", 0o755).unwrap();
    assert_eq!(
        errno(fs.rename_path("d", "d/below", RenameMode::Replace)),
        libc::EINVAL
    );
    assert_eq!(
        errno(fs.rename_path("b", "d", RenameMode::Replace)),
        libc::EISDIR
    );
    assert_eq!(
        errno(fs.rename_path("d", "b", RenameMode::Replace)),
        libc::ENOTDIR
    );
}

#[test]
fn a_directory_is_listed_without_its_dots() {
    let fs = file_system();
    fs.make_directory("d", 0o755).unwrap();
    make_file(&fs, "d/file", b"");
    fs.symlink("file", "d/link").unwrap();
    let mut entries = fs.list("d").unwrap();
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let names: Vec<_> = entries
        .iter()
        .map(|entry| (entry.name.as_slice(), entry.kind))
        .collect();
    assert_eq!(
        names,
        [
            (&b"file"[..], FileKind::Regular),
            (b"link", FileKind::Symlink)
        ]
    );
    assert_eq!(errno(fs.list("d/file")), libc::ENOTDIR);
}

#[test]
fn the_set_group_bit_is_inherited() {
    let fs = file_system();
    fs.make_directory("d", 0o755).unwrap();
    let change = SetAttributes {
        permissions: Some(0o2775),
        gid: Some(4242),
        ..SetAttributes::default()
    };
    fs.set_attributes_path("d", &change).unwrap();
    make_file(&fs, "d/file", b"");
    fs.make_directory("d/e", 0o755).unwrap();
    let (file, directory) = (fs.stat("d/file").unwrap(), fs.stat("d/e").unwrap());
    assert_eq!((file.gid, file.permissions), (4242, 0o644));
    assert_eq!((directory.gid, directory.permissions), (4242, 0o2755));
}

#[test]
fn errors_name_the_path() {
    let fs = file_system();
    let error = fs.stat("some/where").unwrap_err().to_string();
    assert!(error.starts_with("some/where: "), "{error}");
    make_file(&fs, "file", b"");
    let error = fs
        .rename_path("file", "no/where", RenameMode::Replace)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("no/where: "), "{error}");
}

/// The store remembers directories by name: a path must not lead where it led before.
#[test]
fn a_path_follows_each_change_of_its_directories() {
    let fs = file_system();
    let rename = |from: &str, to: &str, mode| fs.rename_path(from, to, mode).unwrap();
    for directory in ["a", "b", "a/d", "b/d"] {
        fs.make_directory(directory, 0o755).unwrap();
    }
    make_file(&fs, "a/d/file", b"of a");
    make_file(&fs, "b/d/file", b"of b");
    assert_eq!(contents(&fs, "a/d/file"), b"of a");
    assert_eq!(contents(&fs, "b/d/file"), b"of b");
    rename("a/d", "b/d", RenameMode::Exchange);
    assert_eq!(contents(&fs, "a/d/file"), b"of b");
    assert_eq!(contents(&fs, "b/d/file"), b"of a");
    rename("a", "c", RenameMode::Replace);
    assert_eq!(errno(fs.stat("a/d/file")), libc::ENOENT);
    assert_eq!(contents(&fs, "c/d/file"), b"of b");
    fs.remove_file("b/d/file").unwrap();
    rename("c/d", "b/d", RenameMode::Replace);
    assert_eq!(contents(&fs, "b/d/file"), b"of b");
    assert_eq!(errno(fs.stat("c/d/file")), libc::ENOENT);
    fs.remove_directory_at("c").unwrap();
    make_file(&fs, "c", b"");
    assert_eq!(errno(fs.stat("c/d/file")), libc::ENOTDIR);
    fs.remove_file("c").unwrap();
    fs.make_directory("c", 0o755).unwrap();
    assert_eq!(errno(fs.stat("c/d/file")), libc::ENOENT);
}

/// Contents of `directory/file`, read by this thread, which has used that path before.
#[track_caller]
fn assert_leads(fs: &FileSystem, path: &str, wanted: &[u8]) {
    for _ in 0..2 {
        assert_eq!(contents(fs, path), wanted, "{path}");
    }
}

#[test]
fn a_way_taken_before_leads_where_its_names_lead_now() {
    let fs = file_system();
    for (directory, text) in [("a", b"in a"), ("b", b"in b")] {
        fs.make_directory(directory, 0o755).unwrap();
        fs.make_directory(format!("{directory}/sub"), 0o755)
            .unwrap();
        make_file(&fs, &format!("{directory}/sub/file"), text);
    }
    assert_leads(&fs, "a/sub/file", b"in a");
    fs.rename_path("a", "b", RenameMode::Exchange).unwrap();
    assert_leads(&fs, "a/sub/file", b"in b");
    fs.rename_path("a/sub", "c", RenameMode::Replace).unwrap();
    assert_eq!(errno(fs.stat("a/sub/file")), libc::ENOENT);
    assert_leads(&fs, "c/file", b"in b");
    // Another directory, and then a link, of the same name.
    fs.make_directory("a/sub", 0o755).unwrap();
    assert_eq!(errno(fs.stat("a/sub/file")), libc::ENOENT);
    make_file(&fs, "a/sub/file", b"new");
    assert_leads(&fs, "a/sub/file", b"new");
    fs.remove_file("a/sub/file").unwrap();
    fs.remove_directory_at("a/sub").unwrap();
    assert_eq!(errno(fs.stat("a/sub/file")), libc::ENOENT);
    fs.symlink("../c", "a/sub").unwrap();
    assert_leads(&fs, "a/sub/file", b"in b");
    // A link is no directory, so that only its own name shows when it is removed.
    fs.remove_file("a/sub").unwrap();
    fs.symlink("../b/sub", "a/sub").unwrap();
    assert_leads(&fs, "a/sub/file", b"in a");
}

#[test]
fn a_way_taken_before_goes_on_from_its_end_only() {
    let fs = file_system();
    fs.make_directory("a", 0o755).unwrap();
    fs.make_directory("a/b", 0o755).unwrap();
    make_file(&fs, "a/file", b"a");
    make_file(&fs, "a/b/file", b"b");
    let number = |path: &str| fs.stat(path).unwrap().number;
    let (a, b) = (number("a"), number("a/b"));
    assert_ne!(a, b);
    for _ in 0..2 {
        assert_leads(&fs, "a/b/file", b"b");
        assert_eq!(number("a/b/.."), a);
        assert_eq!(number("a/b/."), b);
        assert_eq!(number("a/b/"), b);
        assert_leads(&fs, "/a/b/file", b"b");
        assert_leads(&fs, "a/b/../file", b"a");
        assert_leads(&fs, "a/file", b"a");
        assert_eq!(number(".."), client::ROOT);
    }
    // A link continues from its own directory, and has another target.
    fs.symlink("b/file", "a/link").unwrap();
    fs.symlink("/a/b", "a/absolute").unwrap();
    for _ in 0..2 {
        assert_leads(&fs, "a/link", b"b");
        assert_leads(&fs, "a/file", b"a");
        assert_leads(&fs, "a/absolute/file", b"b");
        assert_eq!(number("a/absolute/.."), a);
    }
}

#[test]
fn a_way_taken_before_is_of_one_file_system() {
    let (one, other) = (file_system(), file_system());
    for (fs, text) in [(&one, b"one"), (&other, b"two")] {
        fs.make_directory("a", 0o755).unwrap();
        make_file(fs, "a/file", text);
    }
    for _ in 0..2 {
        assert_leads(&one, "a/file", b"one");
        assert_leads(&other, "a/file", b"two");
    }
}

#[test]
fn a_way_taken_before_ends_when_another_thread_moves_it() {
    let fs = file_system();
    fs.make_directory("a", 0o755).unwrap();
    make_file(&fs, "a/file", b"here");
    for _ in 0..100 {
        assert_leads(&fs, "a/file", b"here");
        let moved = || fs.rename_path("a", "b", RenameMode::Replace).unwrap();
        std::thread::scope(|scope| scope.spawn(moved).join().unwrap());
        assert_eq!(errno(fs.stat("a/file")), libc::ENOENT);
        let back = || fs.rename_path("b", "a", RenameMode::Replace).unwrap();
        std::thread::scope(|scope| scope.spawn(back).join().unwrap());
    }
}

/// A directory `sub` with a file in it, a file `text`, and a directory `other`. The entry of one of these names was
/// damaged, with a right checksum, so that it states another kind than the inode.
fn with_wrong_kind(name: &str, kind: FileKind) -> FileSystem {
    let length = 4 << 20;
    let region = Region::memory(length, false).unwrap();
    FileSystem::format_region(&region, &Geometry::for_length(length)).unwrap();
    let open = || FileSystem::open_region(region.clone(), PoolOptions::default()).unwrap();
    let fs = open();
    for directory in ["sub", "other"] {
        fs.make_directory(directory, 0o755).unwrap();
    }
    make_file(&fs, "sub/file", b"old");
    make_file(&fs, "text", b"text");
    fs.close().unwrap();
    drop(fs);
    let mut bytes = vec![0; length as usize];
    region.read(0, &mut bytes);
    let mut pool = PoolBytes::new(bytes);
    let entry = (0..).find_map(|leaf| {
        let (start, length) = pool
            .locate(PoolPart::Leaf, leaf)
            .expect("a leaf with the name");
        let block = &pool.bytes[start..start + length];
        let at = |at: &usize| block[*at..].starts_with(name.as_bytes());
        (0..length).find(at).map(|at| (leaf, at - ENTRY))
    });
    let (leaf, entry) = entry.expect("an entry");
    let at = entry + std::mem::offset_of!(EntryHeader, kind);
    let old = if name == "text" {
        FileKind::Regular
    } else {
        FileKind::Directory
    };
    let byte = |kind: FileKind| (kind.bits() >> 12) as u8;
    let (start, _) = pool.locate(PoolPart::Leaf, leaf).unwrap();
    assert_eq!(pool.bytes[start + at], byte(old));
    pool.apply(&Edit::set(PoolPart::Leaf, leaf, at, 1, byte(kind).into()));
    pool.seal(PoolBytes::BLOCKS);
    region.write(0, &pool.bytes);
    open()
}

/// Ways to take a name away.
const TAKINGS: [fn(&FileSystem, &str); 4] = [
    |fs, name| fs.rename_path(name, "new", RenameMode::Replace).unwrap(),
    |fs, name| {
        fs.rename_path(name, "other/new", RenameMode::Replace)
            .unwrap()
    },
    |fs, name| {
        make_file(fs, "new", b"");
        fs.rename_path(name, "new", RenameMode::Exchange).unwrap();
        fs.remove_file(name).unwrap();
    },
    |fs, name| match name {
        "text" => fs.remove_file(name).unwrap(),
        _ => {
            fs.remove_file("sub/file").unwrap();
            fs.remove_directory_at(name).unwrap();
        }
    },
];

#[test]
fn a_way_taken_before_ends_with_its_name_whatever_kind_is_damaged() {
    // By another thread, which does not change this one's cached path.
    let take = |fs: &FileSystem, name, take: fn(&FileSystem, &str)| {
        std::thread::scope(|scope| scope.spawn(|| take(fs, name)).join().unwrap());
        let path = format!("{name}/file");
        assert_eq!(errno(fs.stat(&path)), libc::ENOENT);
        let make = || {
            fs.make_directory(name, 0o755).unwrap();
            make_file(fs, &path, b"new");
        };
        std::thread::scope(|scope| scope.spawn(make).join().unwrap());
        assert_leads(fs, &path, b"new");
    };
    for taking in TAKINGS {
        // By its inode it is a directory: a path leads through it.
        let fs = with_wrong_kind("sub", FileKind::Regular);
        assert_leads(&fs, "sub/file", b"old");
        take(&fs, "sub", taking);
        // By its entry only: none does, but it may be cached.
        let fs = with_wrong_kind("text", FileKind::Directory);
        for _ in 0..2 {
            assert_eq!(errno(fs.stat("text/file")), libc::ENOTDIR);
        }
        take(&fs, "text", taking);
    }
}
