//! Flags that are named after those of coreutils do what coreutils do, on tmpfs and on a mounted pool.

mod common;
mod mounted;
mod transport;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::process::Command;

use common::{Scratch, run, tako};
use mounted::Mounted;
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, XattrFlags};

fn done(arguments: &[&str]) -> String {
    tako(arguments).ended(0)
}

/// Output of a program of the system, in the C locale and UTC.
fn system(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C").env("TZ", "UTC");
    let output = run(&mut command);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

fn set_time(path: &str, seconds: i64) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: 123_456_789,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// An access control list: owner rwx, user 1234 rw-, group r-x, mask rwx, others none.
const LIST: [u8; 44] = [
    2, 0, 0, 0, // version
    1, 0, 7, 0, 255, 255, 255, 255, // owner
    2, 0, 6, 0, 210, 4, 0, 0, // user 1234
    4, 0, 5, 0, 255, 255, 255, 255, // group
    16, 0, 7, 0, 255, 255, 255, 255, // mask
    32, 0, 0, 0, 255, 255, 255, 255, // others
];

/// Files of every kind, with attributes that a plain copy loses.
fn make_tree(top: &str) {
    fs::create_dir_all(format!("{top}/sub/empty")).unwrap();
    let path = |name: &str| format!("{top}/{name}");
    fs::write(path("file"), "contents\n").unwrap();
    fs::write(path(".hidden"), vec![7; 123_456]).unwrap();
    fs::hard_link(path("file"), path("sub/second name")).unwrap();
    fs::write(path("program"), "#!/bin/sh\n").unwrap();
    std::os::unix::fs::chown(path("program"), Some(1234), Some(4321)).unwrap();
    fs::set_permissions(path("program"), PermissionsExt::from_mode(0o6751)).unwrap();
    fs::set_permissions(path("sub/empty"), PermissionsExt::from_mode(0o1500)).unwrap();
    symlink("file", path("link")).unwrap();
    symlink("nowhere", path("dangling")).unwrap();
    let pipe = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(CWD, path("pipe"), pipe, Mode::from_raw_mode(0o640), 0).unwrap();
    let holes = File::create(path("holes")).unwrap();
    holes.write_all_at(&[1; 4096], 8 << 20).unwrap();
    holes.set_len(16 << 20).unwrap();
    let flags = XattrFlags::empty();
    rustix::fs::setxattr(path("file"), "user.colour", b"red", flags).unwrap();
    rustix::fs::setxattr(path("sub"), "system.posix_acl_access", &LIST, flags).unwrap();
    for (name, seconds) in [
        ("file", 1_000_000_000),
        ("link", 1_100_000_000),
        ("program", 1_795_000_000),
        ("sub/empty", 86_400),
        ("sub", 1_200_000_000),
        ("", 1_300_000_000),
    ] {
        set_time(&path(name), seconds);
    }
}

/// All that `cp -a` is to keep of the files in a tree, by path.
fn facts(top: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut paths = vec![String::new()];
    while let Some(below) = paths.pop() {
        let path = format!("{top}{below}");
        let found = fs::symlink_metadata(&path).unwrap();
        let mut extra = String::new();
        if found.is_dir() {
            for entry in fs::read_dir(&path).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                paths.push(format!("{below}/{name}"));
            }
        } else {
            extra = format!("{} names, {} bytes", found.nlink(), found.len());
        }
        if !found.is_symlink() {
            let list = system("getfattr", &["-d", "-m", "-", "--absolute-names", &path]);
            extra.extend(list.lines().skip(1));
        }
        let (mode, uid, gid) = (found.mode(), found.uid(), found.gid());
        let (seconds, rest) = (found.mtime(), found.mtime_nsec());
        all.push(format!(
            "{below}: {mode:o} {uid}:{gid} {seconds}.{rest} {extra}"
        ));
    }
    all.sort();
    all
}

#[test]
fn an_archive_copy_keeps_what_that_of_coreutils_keeps() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "64M");
    let [tree, theirs, ours] = ["tree", "theirs", "ours"].map(|name| scratch.path(name));
    make_tree(&tree);
    system("cp", &["-a", &tree, &theirs]);
    done(&["cp", "-a", &tree, &format!("{pool}:/in")]);
    done(&["cp", "--archive", &format!("{pool}:/in"), &ours]);
    assert_eq!(facts(&ours), facts(&tree));
    assert_eq!(facts(&ours), facts(&theirs));
    let allocated = fs::metadata(format!("{ours}/holes")).unwrap().blocks() * 512;
    assert!(allocated < 1 << 20, "the holes were filled: {allocated}");
    let same = |name: &str| fs::metadata(format!("{ours}/{name}")).unwrap().ino();
    assert_eq!(same("file"), same("sub/second name"));

    // Through the mount, and over existing files.
    let mount = Mounted::new(&pool, &scratch.path("directory"));
    done(&["cp", "-a", &format!("{tree}/."), &format!("{pool}:/in")]);
    assert_eq!(facts(&mount.path("in")), facts(&tree));
    mount.unmount();
    done(&["check", &pool]);
}

/// Runs a command on the pool and its namesake on the mount, and expects the same output but for the paths.
fn is_alike(pool: &str, mount: &str, arguments: &[&str], path: &str) {
    let inside = format!("{pool}:{path}");
    let ours = done(&[arguments, &[&inside]].concat());
    let outside = format!("{mount}{path}");
    let theirs = system(arguments[0], &[&arguments[1..], &[&outside]].concat());
    assert_eq!(
        ours,
        theirs.replace(mount, &format!("{pool}:")),
        "{arguments:?}"
    );
}

#[test]
fn listings_are_those_of_coreutils() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "64M");
    let tree = scratch.path("tree");
    make_tree(&tree);
    done(&["cp", "-a", &tree, &format!("{pool}:/in")]);
    let unmounted: Vec<String> = LISTINGS
        .iter()
        .map(|arguments| done(&[*arguments, &[&*format!("{pool}:/in")]].concat()))
        .collect();
    let mount = Mounted::new(&pool, &scratch.path("directory"));
    for (arguments, unmounted) in LISTINGS.iter().zip(unmounted) {
        is_alike(&pool, &mount.directory, arguments, "/in");
        let mounted = done(&[*arguments, &[&*format!("{pool}:/in")]].concat());
        assert_eq!(mounted, unmounted, "{arguments:?}");
    }
    let du = |arguments: &[&str]| {
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let ours = done(&[arguments, &[&*format!("{pool}:/in")]].concat());
        let theirs = system("du", &[&arguments[1..], &[&*mount.path("in")]].concat());
        let theirs = theirs.replace(&mount.directory, &format!("{pool}:"));
        assert_eq!(sorted(&ours), sorted(&theirs), "{arguments:?}");
    };
    // A file with two names counts where it is met first, which is a matter of order.
    done(&["rm", &format!("{pool}:/in/sub/second name")]);
    for flags in [
        "-s", "-sh", "-sb", "-k", "-m", "-c", "-h", "-d1", "-ad1", "-b",
    ] {
        du(&["du", flags]);
    }
    let df = |flags: &[&str]| {
        let ours = done(&[&["df"], flags, &[&pool]].concat());
        let theirs = system("df", &[flags, &[&mount.directory]].concat());
        let cells =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        assert_eq!(cells(&ours), cells(&theirs), "{flags:?}");
    };
    for flags in [&[][..], &["-h"], &["-i"], &["-k"]] {
        df(flags);
    }
    mount.unmount();
}

const LISTINGS: [&[&str]; 14] = [
    &["ls"],
    &["ls", "-l"],
    &["ls", "-lah"],
    &["ls", "--all"],
    &["ls", "-A"],
    &["ls", "-ld"],
    &["ls", "-ln"],
    &["ls", "-lis"],
    &["ls", "-lSr"],
    &["ls", "-t"],
    &["ls", "-R"],
    &["ls", "-lR"],
    &["ls", "-l", "--full-time"],
    &["ls", "-go"],
];

#[test]
fn modes_owners_and_lengths_are_those_of_coreutils() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "16M");
    let host = scratch.path("file");
    fs::write(&host, vec![1; 10_000]).unwrap();
    let directory = scratch.path("directory");
    fs::create_dir(&directory).unwrap();
    for path in [&host, &directory] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o644)).unwrap();
        done(&["cp", "-a", path, &format!("{pool}:/")]);
    }
    let shown = |path: &str| {
        let ours = done(&["ls", "-ldn", &format!("{pool}:/{path}")]);
        let theirs = system("ls", &["-ldn", &scratch.path(path)]);
        let facts = |line: &str| -> Vec<String> {
            let cells = line.split_whitespace().map(str::to_owned);
            cells.take(if path == "file" { 5 } else { 1 }).collect()
        };
        (facts(&ours), facts(&theirs))
    };
    for mode in [
        "u+x",
        "go-r",
        "=rw",
        "a+X",
        "750",
        "2755",
        "u=rwx,g=u,o=",
        "+s",
        "00700",
        "u-w,a+t",
        "o=g",
    ] {
        for path in ["file", "directory"] {
            done(&["chmod", mode, &format!("{pool}:/{path}")]);
            system("chmod", &[mode, &scratch.path(path)]);
            let (ours, theirs) = shown(path);
            assert_eq!(ours, theirs, "{mode} {path}");
        }
    }
    for owner in ["1234", ":77", "root:root", "5:6"] {
        for mode in ["6755", "2644"] {
            done(&["chmod", mode, &format!("{pool}:/file")]);
            done(&["chown", owner, &format!("{pool}:/file")]);
            system("chmod", &[mode, &host]);
            system("chown", &[owner, &host]);
            let (ours, theirs) = shown("file");
            assert_eq!(ours, theirs, "{owner} {mode}");
        }
    }
    for length in ["0", "5K", "+100", "-1", "<7K", ">4K", "%4096", "/3000"] {
        done(&["truncate", "-s", length, &format!("{pool}:/file")]);
        system("truncate", &["-s", length, &host]);
        let (ours, theirs) = shown("file");
        assert_eq!(ours, theirs, "{length}");
    }
}

#[test]
fn trees_are_changed_and_removed_recursively() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "64M");
    let tree = scratch.path("tree");
    make_tree(&tree);
    let inside = |path: &str| format!("{pool}:{path}");
    done(&["cp", "-a", &tree, &inside("/in")]);
    let mount = scratch.path("directory");
    for round in 0..2 {
        // The second time through a mount.
        let mounted = (round == 1).then(|| Mounted::new(&pool, &mount));
        done(&["chmod", "-R", "g+w", &inside("/in")]);
        done(&["chown", "-R", "12:13", &inside("/in")]);
        let list = done(&["ls", "-lnA", &inside("/in")]);
        for line in list.lines().skip(1) {
            let is_changed =
                line.contains(" 12 13 ") && (line.starts_with('l') || line.contains('w'));
            assert!(is_changed, "{line}");
        }
        done(&["ln", &inside("/in/file"), &inside("/in/third")]);
        done(&["ln", "-s", "file", &inside("/in/soft")]);
        done(&["ln", "-sf", "third", &inside("/in/soft")]);
        assert!(done(&["ls", "-l", &inside("/in/soft")]).ends_with("/in/soft -> third\n"));
        assert!(tako(&["ln", &inside("/in/file"), &inside("/in/third")]).code == Some(1));
        done(&["mv", "-n", &inside("/in/third"), &inside("/in/soft")]);
        done(&["mv", "-T", &inside("/in/third"), &inside("/in/fourth")]);
        assert_eq!(done(&["cat", &inside("/in/fourth")]), "contents\n");
        done(&["mkdir", "-m", "2711", &inside("/in/made")]);
        assert!(done(&["ls", "-ld", &inside("/in/made")]).starts_with("drwx--s--x"));
        done(&["rm", "-d", &inside("/in/made")]);
        done(&["rm", &inside("/in/fourth"), &inside("/in/soft")]);
        done(&["rm", "-f", &inside("/in/none")]);
        done(&["cp", "-r", "-t", &inside("/in/sub"), &inside("/in/file")]);
        let said = done(&["rm", "-rfv", &inside("/in/sub")]);
        assert_eq!(said.lines().count(), 4, "{said}");
        done(&["cp", "-a", &format!("{tree}/sub"), &inside("/in")]);
        if let Some(mounted) = mounted {
            mounted.unmount();
        }
    }
    done(&["rm", "-rf", &inside("/in")]);
    done(&["check", &pool]);
}
