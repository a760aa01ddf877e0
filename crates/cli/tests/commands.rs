//! Every command on pools without a mount, and its errors.

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;

use common::{Scratch, command, start, tako};
use rustix::process::{Pid, Signal};

/// Runs a command that must succeed, and returns its output.
fn done(arguments: &[&str]) -> String {
    tako(arguments).ended(0)
}

/// Runs a command that must fail, and returns its sentence.
fn failed(arguments: &[&str]) -> String {
    tako(arguments).ended(1)
}

/// Runs a command line that must be refused as such.
fn misused(arguments: &[&str]) -> String {
    let run = tako(arguments);
    assert_eq!(run.code, Some(2), "{arguments:?}: {}", run.err);
    assert_eq!(run.out, "", "{arguments:?}");
    run.err
}

#[test]
fn the_command_line_explains_itself() {
    assert!(done(&["--version"]).starts_with("tako "));
    let help = done(&["--help"]);
    for word in [
        "mkfs",
        "mount",
        "umount",
        "check",
        "grow",
        "info",
        "bench",
        "Exit codes",
    ] {
        assert!(help.contains(word), "{word}");
    }
    assert!(misused(&[]).contains("Usage"));
    assert!(misused(&["sing"]).contains("sing"));
    assert!(misused(&["ls", "no-pool"]).contains("POOL:/path"));
    assert!(misused(&["cp", "a", "b"]).contains("POOL:/path"));
    assert!(misused(&["mv", "a.pool:/x", "b.pool:/y"]).contains("another pool"));
    assert!(misused(&["ls", "tako://host/cluster"]).contains("port"));
}

#[test]
fn mkfs_takes_sizes_and_refuses_others() {
    let scratch = Scratch::new();
    let pool = scratch.path("a.pool");
    for size in ["", "0", "4GB", "1.5G", "99999999999T"] {
        assert!(
            misused(&["mkfs", &pool, "--size", size]).contains("512M"),
            "{size}"
        );
    }
    assert!(misused(&["mkfs", &pool]).contains("--size"));
    assert!(failed(&["mkfs", &pool, "--size", "100K"]).contains("too small"));
    assert!(failed(&["mkfs", &pool, "--size", "900T"]).contains("a pool must have"));
    assert!(failed(&["mkfs", &pool, "--size", "60T"]).contains("no room"));
    assert!(
        failed(&["mkfs", &pool, "--size", "8M", "--inodes", "1000000"]).contains("ask for fewer")
    );
    assert!(
        !Path::new(&pool).exists(),
        "a failure left something behind"
    );
    let missing = scratch.path("none");
    assert!(
        failed(&["mkfs", &format!("{missing}/a.pool"), "--size", "8M"])
            .contains(&format!("the directory {missing} does not exist"))
    );

    let said = done(&[
        "mkfs",
        &pool,
        "--size",
        "8M",
        "--inodes",
        "1200",
        "--no-data-checksums",
    ]);
    assert!(said.contains("survive a crash of the process"), "{said}");
    let info = json(&["info", "--json", &pool]);
    assert!(info["inodes_free"].as_u64().unwrap() >= 1200);
    assert_eq!(info["features"].as_array().unwrap().len(), 0);
    assert_eq!(fs::metadata(&pool).unwrap().len(), 8 << 20);
}

#[test]
fn mkfs_overwrites_nothing_unasked() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "8M");
    done(&["mkdir", &format!("{pool}:/kept")]);
    assert!(failed(&["mkfs", &pool, "--size", "8M"]).contains("--force"));
    assert_eq!(done(&["ls", &format!("{pool}:/")]), "kept\n");
    done(&["mkfs", &pool, "--size", "16M", "--force"]);
    assert_eq!(done(&["ls", &format!("{pool}:/")]), "");
    assert_eq!(fs::metadata(&pool).unwrap().len(), 16 << 20);

    let other = scratch.path("letter.txt");
    fs::write(&other, "Dear").unwrap();
    fs::write(scratch.path("empty"), "").unwrap();
    for path in [other.clone(), scratch.path("empty"), scratch.path("")] {
        for force in [&[][..], &["--force"]] {
            let arguments = [&["mkfs", &path, "--size", "8M"], force].concat();
            assert!(failed(&arguments).contains("not a pool"), "{path}");
        }
    }
    assert_eq!(fs::read(other).unwrap(), b"Dear");
    let _held = pmem::Region::open(pool.as_ref(), pmem::Access::ReadWrite).unwrap();
    assert!(failed(&["mkfs", &pool, "--size", "8M", "--force"]).contains("in use"));
}

#[test]
fn an_interrupted_mkfs_leaves_no_pool() {
    let scratch = Scratch::new();
    let pool = scratch.path("a.pool");
    let mut mkfs = command(&["mkfs", &pool, "--size", "2G"]);
    let mut mkfs = start(mkfs.stdout(Stdio::null()));
    // Its memory takes a while.
    while !Path::new(&pool).exists() && mkfs.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    rustix::process::kill_process(Pid::from_child(&mkfs), Signal::TERM).unwrap();
    let ended = mkfs.wait().unwrap();
    // A signal that came too late leaves a finished pool.
    assert_eq!(ended.success(), Path::new(&pool).exists(), "{ended}");
}

/// Output of a command as JSON.
fn json(arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&done(arguments)).unwrap()
}

#[test]
fn info_tells_what_a_pool_is() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "64M");
    let info = json(&["info", "--json", &pool]);
    assert_eq!(info["pool_bytes"], 64 << 20);
    assert_eq!(info["format_version"], 9);
    assert_eq!(info["features"][0], "data-checksums");
    assert_eq!(info["memory"]["survives"], "a crash of the process");
    assert_eq!(info["identity"].as_str().unwrap().len(), 36);
    assert_eq!(info["replayed_bytes"], 0);
    let text = done(&["info", &pool]);
    for part in [
        info["identity"].as_str().unwrap(),
        "64.0 MiB",
        "data-checksums",
        "survive a crash of the process",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(failed(&["info", &scratch.path("none")]).contains("does not exist"));
}

/// A small tree on this host: files, a directory that may not be written, links, a large file with holes.
fn make_tree(top: &str) {
    fs::create_dir_all(format!("{top}/sub/empty")).unwrap();
    fs::write(format!("{top}/hello"), "hello, octopus\n").unwrap();
    fs::write(format!("{top}/sub/nothing"), "").unwrap();
    fs::write(format!("{top}/sub/program"), "#!/bin/sh\n").unwrap();
    // No bits that the mask of this process could take away.
    fs::set_permissions(
        format!("{top}/sub/program"),
        PermissionsExt::from_mode(0o700),
    )
    .unwrap();
    fs::set_permissions(format!("{top}/sub/empty"), PermissionsExt::from_mode(0o500)).unwrap();
    symlink("../hello", format!("{top}/sub/link")).unwrap();
    symlink("nowhere", format!("{top}/dangling")).unwrap();
    let holes = File::create(format!("{top}/holes")).unwrap();
    holes.write_all_at(&[7; 5000], 3 << 20).unwrap();
    holes.write_all_at(b"end", (8 << 20) + 5).unwrap();
    holes.set_len(9 << 20).unwrap();
    fs::write(format!("{top}/large"), pattern(5 << 20)).unwrap();
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| (index * 31 + index / 4096) as u8)
        .collect()
}

/// Everything in a directory of this host: path, mode, and contents or target.
fn contents(top: &str) -> Vec<(String, u32, Vec<u8>)> {
    let mut all = Vec::new();
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(format!("{top}{directory}")).unwrap() {
            let entry = entry.unwrap();
            let below = format!("{directory}/{}", entry.file_name().to_str().unwrap());
            let found = entry.metadata().unwrap();
            let bytes = if found.is_symlink() {
                fs::read_link(entry.path())
                    .unwrap()
                    .as_os_str()
                    .as_bytes()
                    .to_vec()
            } else if found.is_dir() {
                directories.push(below.clone());
                Vec::new()
            } else {
                fs::read(entry.path()).unwrap()
            };
            all.push((below, found.mode(), bytes));
        }
    }
    all.sort();
    all
}

#[test]
fn a_tree_goes_in_and_out_unchanged() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "64M");
    let tree = scratch.path("tree");
    make_tree(&tree);
    done(&["cp", "-r", &tree, &format!("{pool}:/in")]);
    // A second time, over existing files; and into a directory, under its own name.
    done(&["cp", "-r", &format!("{tree}/."), &format!("{pool}:/in")]);
    done(&["mkdir", &format!("{pool}:/more")]);
    done(&["cp", "-r", &tree, &format!("{pool}:/more")]);
    done(&[
        "cp",
        "-r",
        &format!("{pool}:/more/tree"),
        &format!("{pool}:/again"),
    ]);
    for from in ["in", "more/tree", "again"] {
        let out = scratch.path(&from.replace('/', "-"));
        done(&["cp", "-r", &format!("{pool}:/{from}"), &out]);
        assert!(contents(&out) == contents(&tree), "{from} came out changed");
        let holes = fs::metadata(format!("{out}/holes")).unwrap();
        assert!(
            holes.blocks() * 512 < 1 << 20,
            "{from}: the holes were filled"
        );
    }
    let other = scratch.pool("b.pool", "64M");
    done(&["cp", "-r", &format!("{pool}:/in"), &format!("{other}:")]);
    assert_eq!(
        done(&["tree", &format!("{pool}:/in")])
            .lines()
            .skip(1)
            .collect::<Vec<_>>(),
        TREE
    );
    assert_eq!(
        done(&["tree", &format!("{other}:/in")])
            .lines()
            .skip(1)
            .collect::<Vec<_>>(),
        TREE
    );
    let held = json(&["check", "--json", &other]);
    assert_eq!(held["directories"], 4);
    assert!(
        held["blocks_used"].as_u64().unwrap() * 4096 < 6 << 20,
        "the holes were filled in a pool"
    );
}

const TREE: [&str; 10] = [
    "├── dangling",
    "├── hello",
    "├── holes",
    "├── large",
    "└── sub",
    "    ├── empty",
    "    ├── link",
    "    ├── nothing",
    "    └── program",
    "3 directories, 7 files",
];

#[test]
fn copies_go_where_cp_would_put_them() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "16M");
    let [one, two] = ["one", "two"].map(|name| {
        fs::write(scratch.path(name), name).unwrap();
        scratch.path(name)
    });
    let inside = |path: &str| format!("{pool}:{path}");
    done(&["mkdir", &inside("/d")]);
    done(&["cp", &one, &two, &inside("/d")]);
    done(&["cp", &one, &inside("/renamed")]);
    done(&["cp", &two, &inside("/renamed")]);
    assert_eq!(
        done(&["cat", &inside("/d/one"), &inside("/renamed")]),
        "onetwo"
    );
    // Through a link to a directory.
    symlink("d", scratch.path("link")).unwrap();
    done(&["cp", "-r", &scratch.path("link"), &inside("/link")]);
    done(&["cp", &one, &inside("/link/three")]);
    assert_eq!(done(&["ls", &inside("/d")]), "one\nthree\ntwo\n");
    done(&["cp", &inside("/d/one"), &scratch.path("out")]);
    assert_eq!(fs::read(scratch.path("out")).unwrap(), b"one");
    let odd = scratch.path("a:b");
    done(&["cp", &inside("/d/one"), &odd]);
    assert_eq!(fs::read(odd).unwrap(), b"one");
    done(&["cp", &inside("/d/one"), "/dev/null"]);

    assert!(failed(&["cp", &inside("/d"), &scratch.path("x")]).contains("add -r"));
    assert!(failed(&["cp", &one, &two, &inside("/renamed")]).contains("not a directory"));
    assert!(failed(&["cp", &inside("/none"), &scratch.path("x")]).contains("no file"));
    assert!(failed(&["cp", &scratch.path("none"), &inside("/x")]).contains("no such file"));
    assert!(failed(&["cp", &one, &inside("/none/x")]).contains("/none/x"));
    assert!(failed(&["cp", &inside("/d/one"), &inside("/d/../d/one")]).contains("one file"));
    assert!(failed(&["cp", "-r", &inside("/d"), &inside("/d/e")]).contains("into itself"));
    assert!(
        failed(&["cp", "-r", &inside("/d"), &inside("/renamed")]).contains("where a directory")
    );
    assert_eq!(done(&["cat", &inside("/d/one")]), "one");
}

#[test]
fn pipes_are_read_and_written() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "16M");
    let file = format!("{pool}:/file");
    let mut child = command(&["cp", "/dev/stdin", &file])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let data = pattern(3 << 20);
    child.stdin.take().unwrap().write_all(&data).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(command(&["cat", &file]).output().unwrap().stdout, data);

    // A reader that goes away early is no failure, one that cannot take anything is.
    let mut child = command(&["cat", &file])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut [0; 10])
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = command(&["ls", "-l", &format!("{pool}:/")])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stderr.starts_with(b"tako: cannot write the output"));
}

#[test]
fn listings_show_attributes() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "16M");
    let inside = |path: &str| format!("{pool}:{path}");
    fs::write(scratch.path("file"), vec![1; 10_000]).unwrap();
    fs::set_permissions(scratch.path("file"), PermissionsExt::from_mode(0o600)).unwrap();
    done(&["mkdir", "-p", &inside("/d/e")]);
    done(&["cp", &scratch.path("file"), &inside("/d/file")]);
    symlink("file", scratch.path("link")).unwrap();
    done(&["cp", "-r", &scratch.path("link"), &inside("/d/link")]);
    done(&["cp", &scratch.path("file"), &inside("/d/\x1b[31m\n")]);

    assert_eq!(
        done(&["ls", &inside("/d")]),
        "\\u{1b}[31m\\n\ne\nfile\nlink\n"
    );
    let long = done(&["ls", "-l", &inside("/d")]);
    let lines: Vec<&str> = long.lines().collect();
    assert!(lines[0].starts_with("total "), "{long}");
    assert!(lines[2].starts_with("drwx"), "{long}");
    assert!(
        lines[3].starts_with("-rw------- 1 ") && lines[3].contains(" 10000 "),
        "{long}"
    );
    assert!(
        lines[4].starts_with("lrwxrwxrwx 1 ") && lines[4].ends_with(" link -> file"),
        "{long}"
    );
    assert_eq!(
        done(&["ls", &inside("/d/file")]),
        format!("{pool}:/d/file\n")
    );
    let both = done(&["ls", &inside("/"), &inside("/d/e")]);
    assert_eq!(
        both,
        format!("{}:\nd\n\n{}:\n", inside("/"), inside("/d/e"))
    );

    let stat = done(&["stat", &inside("/d/file")]);
    for line in [
        "kind         regular file",
        "permissions  0600 -rw-------",
        "size         10000 B",
    ] {
        assert!(stat.lines().any(|found| found == line), "{line} in {stat}");
    }
    assert!(done(&["stat", &inside("/d/link")]).contains("target       file"));
    assert!(failed(&["stat", &inside("/d/link/")]).contains("not a directory"));
    assert!(failed(&["ls", &inside("/none")]).contains("tako ls"));
}

#[test]
fn space_is_counted() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "16M");
    let inside = |path: &str| format!("{pool}:{path}");
    fs::write(scratch.path("file"), vec![1; 1 << 20]).unwrap();
    done(&["mkdir", "-p", &inside("/d/e")]);
    done(&["cp", &scratch.path("file"), &inside("/d/e/one")]);
    done(&["cp", &scratch.path("file"), &inside("/d/two")]);
    let sizes = |arguments: &[&str]| -> Vec<u64> {
        let text = done(arguments);
        let first = |line: &str| line.split_whitespace().next().unwrap().parse().unwrap();
        text.lines().map(first).collect()
    };
    let found = sizes(&["du", &inside("/")]);
    assert_eq!(found.len(), 3);
    assert!((1024..1024 + 20).contains(&found[0]), "{found:?}");
    assert!((2048..2048 + 40).contains(&found[1]), "{found:?}");
    assert!(found[2] >= found[1], "{found:?}");
    assert_eq!(sizes(&["du", "-s", &inside("/d")]), found[1..2]);
    let two = inside("/d/two");
    assert_eq!(done(&["du", "-sh", &two]), format!("1.0M\t{two}\n"));
    assert_eq!(done(&["du", "-sb", &two]), format!("1048576\t{two}\n"));

    let table = done(&["df", "--bytes", &inside("/")]);
    let cells: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    let figures: Vec<u64> = cells[1..4]
        .iter()
        .map(|cell| cell.parse().unwrap())
        .collect();
    assert!(figures[0] < 16 << 20 && figures[1] >= 2 << 20, "{table}");
    assert!(figures[1] + figures[2] <= figures[0], "{table}");
    assert_eq!((cells[0], cells[5]), (pool.as_str(), "-"));
    assert_eq!(done(&["df", "--bytes", &pool]), table);
    assert!(done(&["df", "-h", &pool]).contains("M "));
    let inodes = done(&["df", "-i", &pool]);
    assert_eq!(
        inodes.lines().nth(1).unwrap().split_whitespace().nth(2),
        Some("5")
    );
}

#[test]
fn names_are_made_moved_and_removed() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "16M");
    let inside = |path: &str| format!("{pool}:{path}");
    fs::write(scratch.path("file"), "contents").unwrap();
    done(&["mkdir", &inside("/a"), &inside("/b")]);
    done(&["mkdir", "-p", &inside("/a/b/c"), &inside("/a/b")]);
    assert!(failed(&["mkdir", &inside("/a")]).contains("exists already"));
    assert!(failed(&["mkdir", &inside("/x/y")]).contains("/x/y"));
    done(&["cp", &scratch.path("file"), &inside("/f")]);
    assert!(failed(&["mkdir", "-p", &inside("/f/x")]).contains("/f: a file"));
    assert!(failed(&["mkdir", "-p", &inside("/f")]).contains("exists already"));

    done(&["mv", &inside("/f"), &inside("/a/b"), &inside("/b")]);
    done(&[
        "mv",
        &inside("/b/f"),
        &format!("{}/./a.pool:/g", scratch.path("")),
    ]);
    assert_eq!(
        done(&["tree", &inside("/")])
            .lines()
            .skip(1)
            .collect::<Vec<_>>()
            .join("\n"),
        MOVED
    );
    assert!(failed(&["mv", &inside("/none"), &inside("/b")]).contains("/none"));
    assert!(failed(&["mv", &inside("/none"), &inside("/no/g")]).contains("/none"));
    assert!(failed(&["mv", &inside("/g"), &inside("/no/g")]).contains("/no/g"));
    assert!(failed(&["mv", &inside("/"), &inside("/b")]).contains("root"));
    assert!(failed(&["mv", &inside("/b"), &inside("/b/b/x")]).contains("/b"));
    assert!(
        failed(&["mv", &inside("/a"), &inside("/b"), &inside("/g")]).contains("not a directory")
    );

    assert!(failed(&["rm", &inside("/b")]).contains("add -r"));
    assert!(failed(&["rm", &inside("/none")]).contains("no file"));
    assert!(failed(&["rm", "-r", &inside("/none")]).contains("no file"));
    for path in ["/", "/b/.", "/b/..", ""] {
        assert!(
            failed(&["rm", "-r", &inside(path)]).contains("no name"),
            "{path}"
        );
    }
    symlink("b", scratch.path("link")).unwrap();
    done(&["cp", "-r", &scratch.path("link"), &inside("/link")]);
    done(&["rm", "-r", &inside("/link/"), &inside("/a/")]);
    assert_eq!(
        done(&["ls", &inside("/"), &inside("/b")])
            .split_whitespace()
            .count(),
        5
    );
    done(&["rm", "-r", &inside("/b"), &inside("/g")]);
    assert_eq!(done(&["ls", &inside("/")]), "");
}

const MOVED: &str = "\
├── a
├── b
│   └── b
│       └── c
└── g
5 directories, 1 file";

#[test]
fn a_failure_with_one_operand_does_not_keep_a_command_from_the_others() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "16M");
    let inside = |path: &str| format!("{pool}:{path}");
    let (missing, other) = (inside("/missing"), inside("/other"));
    let expect = |arguments: &[&str], shown: &str| {
        let run = tako(arguments);
        assert_eq!(run.code, Some(1), "{arguments:?}: {}", run.err);
        assert_eq!(run.err.matches("tako: ").count(), 1, "{}", run.err);
        assert!(run.err.contains("/missing"), "{}", run.err);
        assert!(run.out.contains(shown), "{arguments:?}: {}", run.out);
    };
    fs::write(scratch.path("file"), "contents").unwrap();
    let file = scratch.path("file");
    expect(&["cp", &scratch.path("missing"), &file, &inside("/")], "");
    expect(&["cat", &missing, &inside("/file")], "contents");
    expect(&["mv", &missing, &inside("/file"), &inside("/")], "");
    expect(&["ls", &missing, &inside("/file")], "/file");
    expect(&["stat", &missing, &inside("/file")], "size         8 B");
    expect(&["chmod", "600", &missing, &inside("/file")], "");
    expect(&["du", "-c", &missing, &inside("/")], "total");
    expect(&["df", &scratch.path("missing"), &pool], "a.pool");
    expect(&["mkdir", &inside("/missing/a"), &other], "");
    expect(&["rm", &missing, &inside("/file"), "-d", &other], "");
    assert_eq!(done(&["ls", &inside("/")]), "");
}

#[test]
fn trees_deeper_than_any_path_are_walked() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "16M");
    let deep = format!("/{}", vec!["d".repeat(250); 12].join("/"));
    for top in ["/a", "/b"] {
        done(&["mkdir", "-p", &format!("{pool}:{top}{deep}")]);
    }
    done(&["mv", &format!("{pool}:/b"), &format!("{pool}:/a{deep}")]);
    assert_eq!(done(&["du", &format!("{pool}:/")]).lines().count(), 27);
    assert!(done(&["tree", &format!("{pool}:/")]).ends_with("27 directories, 0 files\n"));
    let out = scratch.path("out");
    assert!(failed(&["cp", "-r", &format!("{pool}:/a"), &out]).contains("long"));
    done(&["rm", "-r", &format!("{pool}:/a")]);
    assert_eq!(json(&["check", "--json", &pool])["inodes"], 1);
}

#[test]
fn a_full_pool_says_so_and_can_be_emptied() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "4M");
    fs::write(scratch.path("large"), pattern(8 << 20)).unwrap();
    let file = format!("{pool}:/large");
    assert!(failed(&["cp", &scratch.path("large"), &file]).contains("the pool is full"));
    done(&["rm", &file]);
    fs::write(scratch.path("small"), pattern(1 << 20)).unwrap();
    done(&["cp", &scratch.path("small"), &file]);
    done(&["check", &pool]);
}

#[test]
fn a_pool_is_opened_by_one_at_a_time() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "8M");
    let held = pmem::Region::open(pool.as_ref(), pmem::Access::ReadWrite).unwrap();
    let root = format!("{pool}:/");
    for arguments in [
        &["ls", &root][..],
        &["info", &pool],
        &["check", &pool],
        &["mkdir", &format!("{pool}:/d")],
        &["cp", "/dev/null", &format!("{pool}:/f")],
        &["mount", &pool, &scratch.path("")],
    ] {
        let sentence = failed(arguments);
        assert!(
            sentence.contains("in use") && sentence.contains(&pool),
            "{sentence}"
        );
    }
    drop(held);
    assert_eq!(done(&["ls", &root]), "");
}

#[test]
fn benchmarks_run_by_name() {
    let scratch = Scratch::new();
    let directory = scratch.path("");
    assert!(failed(&["bench", "no such"]).contains("no such"));
    let name = bench::workloads()[0];
    let report = json(&[
        "bench",
        "--quick",
        "--json",
        "--directory",
        &directory,
        name,
    ]);
    assert!(!report["rows"].as_array().unwrap().is_empty());
    assert_eq!(
        fs::read_dir(directory).unwrap().count(),
        0,
        "a pool was left behind"
    );
}

#[test]
fn benchmarks_that_are_killed_leave_no_pool() {
    let scratch = Scratch::new();
    let directory = scratch.path("");
    let mut command = command(&["bench", "--quick", "--directory", &directory]);
    let mut bench = start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
    let has_pool = || {
        let mut entries = fs::read_dir(&directory).unwrap();
        entries.any(|entry| entry.unwrap().path().join("pool").exists())
    };
    // Its name is there while its memory is made.
    while !has_pool() && bench.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    bench.kill().unwrap();
    bench.wait().unwrap();
    // The removing process has the same standard error, and ends after that.
    let mut said = String::new();
    let mut stderr = bench.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn mounts_are_measured_and_taken_away() {
    let scratch = Scratch::new();
    let directory = scratch.path("");
    let mounts = || {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.matches(&directory).count()
    };
    let report = json(&[
        "bench",
        "--quick",
        "--json",
        "--directory",
        &directory,
        "4 KiB write",
    ]);
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<&str> = rows
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    // One transport is to be had wherever mounts are.
    assert!(
        names
            .iter()
            .any(|name| name.starts_with("4 KiB write, classic")),
        "{names:?}"
    );
    assert_eq!(mounts(), 0);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn pools_grow_and_do_not_shrink() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "2M");
    let (big, place) = (scratch.path("big"), format!("{pool}:/big"));
    fs::write(&big, vec![7; 4 << 20]).unwrap();
    assert!(failed(&["cp", &big, &place]).contains("full"));
    done(&["rm", &place]);
    done(&["mkdir", &format!("{pool}:/kept")]);
    assert!(misused(&["grow", &pool]).contains("--size"));
    assert!(done(&["grow", &pool, "--size", "12M"]).contains("room for"));
    assert_eq!(fs::metadata(&pool).unwrap().len(), 12 << 20);
    done(&["cp", &big, &place]);
    assert_eq!(done(&["ls", &format!("{pool}:/")]), "big\nkept\n");
    assert!(failed(&["grow", &pool, "--size", "3M"]).contains("do not shrink"));
    done(&["check", &pool]);
    let held = pmem::Region::open(Path::new(&pool), pmem::Access::ReadWrite).unwrap();
    assert!(failed(&["grow", &pool, "--size", "20M"]).contains("in use"));
    drop(held);
    let other = scratch.path("other");
    fs::write(&other, "no pool").unwrap();
    assert!(failed(&["grow", &other, "--size", "20M"]).contains("not a Tako pool"));
    assert_eq!(fs::read(&other).unwrap(), b"no pool");
}

#[test]
fn a_cluster_gets_an_authority_and_keys_for_its_nodes() {
    let scratch = Scratch::new();
    let directory = scratch.path("keys");
    let said = done(&["keys", "init", &directory, "n1"]);
    assert!(
        said.starts_with("cluster ") && said.contains("authority.key"),
        "{said}"
    );
    assert!(
        said.contains(&format!("node n1: give it the directory {directory}/n1")),
        "{said}"
    );
    let said = done(&["keys", "issue", &directory, "n2"]);
    assert!(
        said.contains("valid for 729 days") || said.contains("valid for 730 days"),
        "{said}"
    );
    for key in ["authority.key", "n1/node.key", "n2/node.key"] {
        let metadata = fs::metadata(format!("{directory}/{key}")).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o600, "{key}");
    }
    let said = failed(&["keys", "init", &directory, "n1"]);
    assert!(said.contains("exists already"), "{said}");
    let said = failed(&["keys", "issue", &directory, "n2"]);
    assert!(said.contains("exists already"), "{said}");
    let said = failed(&["keys", "issue", &directory, "No Name"]);
    assert!(said.contains("a node's name must be"), "{said}");
    let said = failed(&["keys", "issue", &scratch.path("none"), "n3"]);
    assert!(said.contains("is missing"), "{said}");
    let said = done(&["keys", "revoke", &directory, "n2"]);
    let list = format!("copy {directory}/revoked.pem to the directories of all other nodes");
    assert!(
        said.contains("revoked: 1") && said.contains(&list),
        "{said}"
    );
    assert!(Path::new(&format!("{directory}/n1/revoked.pem")).exists());
    let said = failed(&["keys", "revoke", &directory, "n3"]);
    assert!(said.contains("check the node's name"), "{said}");
}

#[test]
fn the_first_node_is_called_as_its_host() {
    let scratch = Scratch::new();
    let directory = scratch.path("keys");
    let run = tako(&["keys", "init", &directory]);
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().to_lowercase();
    let name = host.split('.').next().unwrap();
    match run.code {
        Some(0) => assert!(Path::new(&format!("{directory}/{name}/node.pem")).exists()),
        code => assert!(
            code == Some(2) && run.err.contains("cannot be a node's"),
            "{}",
            run.err
        ),
    }
}
