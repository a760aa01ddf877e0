//! Clusters on this host: started, examined, disturbed, stopped, started again.
#![forbid(unsafe_code)]

mod common;
mod leases;
mod mounted;
mod nodes;
mod transport;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};
use serde_json::Value;

use mounted::Mounted;
use nodes::{
    Cluster, PATIENCE, ends_by, examine, is_whole, kill, mounted, primary, under_load,
    verify_records,
};

#[test]
fn a_cluster_starts_survives_its_primary_and_starts_again() {
    let cluster = Cluster::new();
    let said = cluster.up(&["--nodes", "3"]);
    assert!(said.contains("3 nodes serve tako:///c"), "{said}");
    let before = cluster.wait("all are in sync", is_whole);
    assert_eq!(before["source"], "tako:///c");
    let survives = &before["unit"]["survives"];
    assert_eq!(survives["process_crash"], true);
    // All members are on one machine, in its volatile memory.
    assert_eq!(survives["machine_crash"], false);
    kill(primary(&before), Signal::KILL);
    let after = cluster.wait("another one serves", |status| {
        status["serving"] == true && status["unit"]["primary"] != before["unit"]["primary"]
    });
    assert_eq!(after["unit"]["in_sync"], 2);
    cluster.tako(&["up", "--name", "c"]).ended(0);
    cluster.wait("the node is back", is_whole);
    cluster.down(&[]).ended(0);
    let refused = cluster.tako(&["status", "--name", "c"]).ended(1);
    assert!(refused.contains("tako up --name c"), "{refused}");
    cluster.tako(&["up", "--name", "c"]).ended(0);
    let again = cluster.wait("it serves again", is_whole);
    assert_eq!(again["identity"], before["identity"]);
    cluster.down(&["--remove"]).ended(0);
    assert!(!Path::new(&cluster.scratch.path("pools")).exists());
    assert!(!Path::new(&cluster.state()).join("c").exists());
}

#[test]
fn status_shows_load_and_space() {
    let cluster = Cluster::serving("2", "64M");
    let directory = mounted(&cluster);
    let before = cluster.status();
    let space = |status: &Value, key: &str| status["unit"]["space"][key].as_u64().expect("space");
    let found = rustix::fs::statvfs(&directory).expect("it is mounted");
    assert_eq!(space(&before, "total"), found.f_blocks * found.f_frsize);
    const LENGTH: u64 = 1 << 20;
    std::fs::write(directory.join("file"), vec![7; LENGTH as usize]).expect("written");
    let file = File::open(directory.join("file")).expect("it is there");
    file.sync_all().expect("synced");
    let after = cluster.status();
    let load = |key: &str| {
        let of = |status| primary(status)["load"][key].as_u64().expect("load");
        of(&after) - of(&before)
    };
    assert!(space(&after, "used") >= space(&before, "used") + LENGTH);
    assert!(load("changes") > 0 && load("reads") > 0 && load("messages") > 0);
    assert!(load("written") >= LENGTH, "{after:#}");
    assert!(after["unit"]["sessions"].as_u64() > Some(0), "{after:#}");
    assert_eq!(primary(&after)["pool"], 64 << 20);
    let said = cluster.tako(&["status", "--name", "c"]).ended(0);
    assert!(
        said.contains(" used, ") && said.contains(" changes, "),
        "{said}"
    );
}

/// Each client takes descriptors, and the limit that a shell gives by default is low.
#[test]
fn a_node_may_open_as_many_descriptors_as_the_host_lets_it() {
    let cluster = Cluster::new();
    let pools = cluster.scratch.path("pools");
    let up = [
        "up",
        "--name",
        "c",
        "--nodes",
        "1",
        "--size",
        "16M",
        "--directory",
        &pools,
    ];
    let tako = cluster.command(&up);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -Sn 64 && exec \"$0\" \"$@\""]);
    shell.arg(tako.get_program()).args(tako.get_args());
    shell.envs(
        tako.get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    assert!(common::run(&mut shell).status.success());
    let status = cluster.wait("it serves", is_whole);
    let pid = &primary(&status)["pid"];
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let words: Vec<&str> = line.expect("a limit").split_whitespace().collect();
    assert_eq!(words[3], words[4], "{limits}");
}

/// The kernel takes a killed process apart bit by bit: the lock of its pool may outlive its place in /proc.
#[test]
fn a_node_starts_again_although_its_killed_process_still_has_the_pool() {
    let cluster = Cluster::serving("3", "16M");
    let before = cluster.status();
    kill(primary(&before), Signal::KILL);
    let name = before["unit"]["primary"].as_str().expect("a primary");
    let pool = File::open(cluster.scratch.path(&format!("pools/c-{name}.pool"))).expect("a pool");
    rustix::fs::flock(&pool, FlockOperation::LockExclusive).expect("the process has ended");
    let mut up = cluster.command(&["up", "--name", "c"]);
    let mut up = common::start(up.stdout(Stdio::null()));
    let inode = format!(":{} ", pool.metadata().expect("a pool").ino());
    let is_waited_for = || {
        let locks = std::fs::read_to_string("/proc/locks").expect("the kernel lists locks");
        let mut waits = locks.lines().filter(|line| line.contains("->"));
        waits.any(|line| line.contains(&inode))
    };
    while up.try_wait().expect("it is ours").is_none() && !is_waited_for() {
        thread::yield_now();
    }
    drop(pool);
    assert!(up.wait().expect("it is ours").success());
    assert!(is_whole(&cluster.status()), "it is ready only in sync");
}

#[test]
fn a_stopped_primary_is_replaced_and_follows_when_it_goes_on() {
    let cluster = Cluster::new();
    cluster.up(&["--nodes", "3"]);
    let before = cluster.wait("all are in sync", is_whole);
    kill(primary(&before), Signal::STOP);
    cluster.wait("another one serves", |status| {
        status["serving"] == true && status["unit"]["primary"] != before["unit"]["primary"]
    });
    kill(primary(&before), Signal::CONT);
    cluster.wait("it follows", is_whole);
}

#[test]
fn synced_data_outlives_the_primary_a_restart_and_the_mount() {
    let cluster = Cluster::new();
    cluster.up(&["--nodes", "3"]);
    let directory = mounted(&cluster);
    let before = cluster.wait("all are in sync", is_whole);
    let counts = under_load(&directory, || {
        kill(primary(&before), Signal::KILL);
        cluster.wait("another one serves", |status| {
            status["serving"] == true && status["unit"]["primary"] != before["unit"]["primary"]
        });
        cluster.tako(&["up", "--name", "c"]).ended(0);
        cluster.wait("the node is back", is_whole);
    });
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    let verify =
        || (0..2).for_each(|writer| verify_records(&directory, writer as u32, counts[writer]));
    verify();
    examine(&cluster);
    assert_eq!(
        std::fs::read_dir(&directory).expect("it is there").count(),
        0
    );
    let directory_text = directory.display().to_string();
    let up = ["up", "--name", "c", "--mount", &directory_text];
    cluster.tako(&up).ended(0);
    verify();
}

/// The process that is told to end sends no request to its own mount, which nothing would answer.
#[test]
fn a_mount_ends_by_a_signal_although_no_node_is_left() {
    let cluster = Cluster::serving("1", "16M");
    let path = cluster.scratch.path("mount");
    let arguments = ["mount", "--foreground", "tako:///c", &path];
    let mut mounted = Mounted::by(&mut cluster.command(&arguments), &path);
    std::fs::write(mounted.path("file"), "contents").expect("written");
    kill(primary(&cluster.status()), Signal::KILL);
    let pid = Pid::from_child(&mounted.child);
    let ended = ends_by(pid, Signal::TERM, Duration::from_secs(60));
    if !ended {
        // Otherwise the process could not even be killed.
        mounted.abort();
    }
    assert!(ended, "the mount goes on");
    let is_mounted = std::fs::read_to_string("/proc/self/mounts").expect("the kernel lists mounts");
    assert!(!is_mounted.contains(&path));
    mounted.child.wait().expect("it has ended");
}

#[test]
fn changes_wait_for_a_second_member_and_reads_go_on() {
    let cluster = Cluster::new();
    cluster.up(&["--nodes", "3"]);
    let directory = mounted(&cluster);
    std::fs::write(directory.join("before"), "there").expect("written");
    let before = cluster.wait("all are in sync", is_whole);
    let nodes = before["nodes"].as_array().expect("nodes");
    for node in nodes.iter().filter(|node| node["role"] != "primary") {
        kill(node, Signal::KILL);
    }
    cluster.wait("one member serves", |status| {
        status["serving"] == true && status["unit"]["in_sync"] == 1
    });
    let (started, is_started) = channel();
    let (ended, is_ended) = channel();
    let path = directory.join("after");
    let writer = thread::spawn(move || {
        started.send(()).expect("the test listens");
        std::fs::write(path, "later").expect("written");
        ended.send(()).expect("the test listens");
    });
    is_started.recv().expect("it writes");
    assert!(is_ended.recv_timeout(Duration::from_millis(500)).is_err());
    assert_eq!(
        std::fs::read(directory.join("before")).expect("read"),
        b"there"
    );
    cluster.tako(&["up", "--name", "c"]).ended(0);
    is_ended
        .recv_timeout(PATIENCE)
        .expect("there are two members again");
    writer.join().expect("it wrote");
}

#[test]
fn members_are_identical_after_random_kills_and_stops_under_load() {
    let cluster = Cluster::new();
    cluster.up(&["--nodes", "3"]);
    let directory = mounted(&cluster);
    cluster.wait("all are in sync", is_whole);
    // Which process is hit, and whether it is killed, or stopped for longer than a lease.
    let rounds = [(0, true), (1, false), (2, true), (1, true), (0, false)];
    let counts = under_load(&directory, || {
        for (index, is_killed) in rounds {
            let status = cluster.wait("all are in sync", is_whole);
            let node = status["nodes"][index].clone();
            let is_left_out = |status: &Value| {
                let found = &status["nodes"][index];
                status["serving"] == true && found["in_sync"] == false
            };
            kill(
                &node,
                if is_killed {
                    Signal::KILL
                } else {
                    Signal::STOP
                },
            );
            cluster.wait("it is left out", is_left_out);
            match is_killed {
                true => drop(cluster.tako(&["up", "--name", "c"]).ended(0)),
                false => kill(&node, Signal::CONT),
            }
        }
        cluster.wait("all are back", is_whole);
    });
    for (writer, count) in (0..2).zip(counts) {
        assert!(count > 0);
        verify_records(&directory, writer, count);
    }
    examine(&cluster);
}

#[test]
fn mistakes_are_told_in_one_sentence_and_leave_nothing() {
    let cluster = Cluster::new();
    let refused = cluster.down(&[]).ended(1);
    assert!(refused.contains("there is no cluster c"), "{refused}");
    cluster.tako(&["up", "--name", "No!"]).ended(2);
    // A pool that is too small to be one: nothing is left of the attempt.
    let pools = cluster.scratch.path("pools");
    let up = ["up", "--name", "c", "--nodes", "2", "--directory", &pools];
    let refused = cluster
        .tako(&[&up[..], &["--size", "64K"]].concat())
        .ended(1);
    assert!(refused.contains("node n1 did not start: "), "{refused}");
    let least = "`size` of a pool must be at least 4194304 bytes, got 65536";
    assert!(refused.contains(least), "{refused}");
    // Neither is a directory that does not exist.
    let nowhere = cluster.scratch.path("nowhere");
    let refused = cluster
        .tako(&[&up[..], &["--mount", &nowhere]].concat())
        .ended(1);
    assert!(refused.contains("nowhere does not exist"), "{refused}");
    assert!(!Path::new(&cluster.state()).join("c").exists());
    assert!(!Path::new(&pools).exists());
    // A file that is no pool is not overwritten.
    std::fs::create_dir(&pools).expect("it is gone");
    let pool = Path::new(&pools).join("c-n2.pool");
    std::fs::write(&pool, vec![7; 1 << 20]).expect("written");
    let refused = cluster
        .tako(&[&up[..], &["--size", "16M"]].concat())
        .ended(1);
    assert!(refused.contains("c-n2.pool"), "{refused}");
    assert_eq!(std::fs::read(&pool).expect("it is there"), vec![7; 1 << 20]);
    std::fs::remove_file(&pool).expect("it is there");
    cluster
        .tako(&[&up[..], &["--size", "4M"]].concat())
        .ended(0);
    let refused = cluster
        .tako(&["up", "--name", "c", "--nodes", "3"])
        .ended(1);
    assert!(refused.contains("has 2 nodes"), "{refused}");
    for option in [["--size", "8M"], ["--min-sync", "1"], ["--group", "off"]] {
        let refused = cluster.tako(&[&["up", "--name", "c"], &option[..]].concat());
        let sentence = format!("exists already; leave out {}", option[0]);
        let refused = refused.ended(1);
        assert!(refused.contains(&sentence), "{refused}");
    }
    // Commands for one pool file refuse a cluster.
    for command in ["info", "check", "mkfs"] {
        let refused = cluster.tako(&[command, "tako:///c"]).ended(2);
        assert!(refused.contains("is a cluster, not a pool; "), "{refused}");
    }
    // A pool of the unit is not opened alone.
    cluster.down(&[]).ended(0);
    for command in [&["ls", "tako:///c:/"][..], &["mount", "tako:///c", &pools]] {
        let refused = cluster.tako(command).ended(1);
        let sentence = "tako: no node of cluster c runs on this host; its files are kept; serve them with `tako up --name c`\n";
        assert_eq!(refused, sentence);
    }
    let pool = pool.display().to_string();
    let refused = cluster.tako(&["mount", &pool, &pools]).ended(1);
    assert!(refused.contains("unit"), "{refused}");
    let refused = common::tako(&["ls", &format!("{pool}:/")]).ended(1);
    assert!(refused.contains("unit"), "{refused}");
}

#[test]
fn a_directory_shows_one_cluster_at_a_time() {
    let cluster = Cluster::serving("1", "16M");
    let directory = mounted(&cluster);
    std::fs::write(directory.join("file"), "contents").expect("written");
    let path = directory.display().to_string();
    let again = cluster.tako(&["up", "--name", "c", "--mount", &path]);
    let already = format!("tako:///c is mounted on {path} already\n");
    assert!(again.ended(0).ends_with(&already));
    let pool = cluster.scratch.pool("alone", "16M");
    for source in ["tako:///c", &pool] {
        let refused = cluster.tako(&["mount", source, &path]).ended(1);
        assert!(refused.contains("shows tako:///c already"), "{refused}");
    }
    // A mount of which the process was killed is replaced.
    let other = cluster.scratch.path("other");
    let mount = ["mount", "--foreground", "tako:///c", &other];
    let mut killed = Mounted::by(&mut cluster.command(&mount), &other);
    killed.child.kill().expect("it is ours");
    killed.child.wait().expect("it is ours");
    cluster.tako(&["mount", "tako:///c", &other]).ended(0);
    let remount = ["mount", "-o", "remount,ro", &other];
    let refused = cluster.tako(&remount).ended(1);
    assert!(
        refused.contains("it shows a cluster; unmount it"),
        "{refused}"
    );
    std::fs::write(format!("{other}/more"), "contents").expect("it is as before");
    let unknown = ["mount", "-o", "bogus", "tako:///c", &other];
    let refused = cluster.tako(&unknown).ended(2);
    assert!(refused.contains("and of clusters hard, soft,"), "{refused}");
    // With several directories the source does not name one.
    let refused = cluster.tako(&["umount", "tako:///c"]).ended(1);
    let several = format!("is mounted on {path} and {other}; name the directory");
    assert!(refused.contains(&several), "{refused}");
    cluster.tako(&["umount", &other]).ended(0);
    drop(killed);
    let found = std::fs::read(directory.join("file")).expect("it is there");
    assert_eq!(found, b"contents");
    cluster.tako(&["umount", "tako:///c"]).ended(0);
    assert!(!directory.join("file").exists());
    cluster.down(&[]).ended(0);
}

#[test]
fn half_made_configurations_are_refused() {
    let cluster = Cluster::new();
    let path = cluster.scratch.path("node.toml");
    let serve = |text: &str| {
        std::fs::write(&path, text).expect("written");
        cluster.tako(&["serve", "--config", &path]).ended(1)
    };
    let missing = serve("cluster = \"c\"\n");
    assert!(missing.contains("name"), "{missing}");
    let sections = "[pool]\npath = \"/nowhere/p\"\nsize = \"16M\"\n[membership]\ndirectory = \"D\"\n[unit]\nmembers = 1\n";
    let sections = sections.replace('D', &cluster.scratch.path("membership"));
    let with = |listen: &str| {
        serve(&format!(
            "cluster = \"c\"\nname = \"n1\"\nlisten = [{listen}]\n{sections}"
        ))
    };
    let without_address = with("");
    assert!(
        without_address.contains("`listen` is empty"),
        "{without_address}"
    );
    let without_keys = with("\"127.0.0.1:0\"");
    assert!(without_keys.contains("/nowhere/p"), "{without_keys}");
    let alone = cluster.scratch.pool("alone", "16M");
    let sections = sections.replace("/nowhere/p", &alone);
    let text = format!("cluster = \"c\"\nname = \"n1\"\nlisten = [\"/tmp/s\"]\n{sections}");
    let refused = serve(&text);
    assert!(refused.contains("is a pool by itself"), "{refused}");
}

#[test]
fn commands_work_on_a_cluster_without_a_mount() {
    let cluster = Cluster::new();
    cluster.up(&["--nodes", "1"]);
    let file = cluster.scratch.path("file");
    // Longer than one change may be.
    let contents = "line\n".repeat(500_000);
    std::fs::write(&file, &contents).expect("a file");
    cluster.tako(&["mkdir", "tako:///c:/d"]).ended(0);
    cluster.tako(&["cp", &file, "tako:///c:/d/file"]).ended(0);
    assert_eq!(
        cluster.tako(&["cat", "tako:///c:/d/file"]).ended(0),
        contents
    );
    let mv = ["mv", "tako:///c:/d/file", "tako:///c:/moved"];
    cluster.tako(&mv).ended(0);
    let listed = cluster.tako(&["ls", "tako:///c:/"]).ended(0);
    assert_eq!(
        listed.split_whitespace().collect::<Vec<_>>(),
        ["d", "moved"]
    );
    cluster.tako(&["rm", "tako:///c:/moved"]).ended(0);
    let missing = cluster.tako(&["cat", "tako:///c:/moved"]);
    assert!(missing.ended(1).contains("tako:///c:/moved"));
    let nowhere = cluster.tako(&["ls", "tako:///other:/"]).ended(1);
    let sentence = "there is no cluster other on this host; start it with `tako up --name other`\n";
    assert!(nowhere.ends_with(sentence), "{nowhere}");
}

/// A file that is open and has no name keeps its contents across a takeover. Its blocks are freed when it is closed,
/// and when the process that has it open is killed with its mount.
#[test]
fn space_of_removed_files_comes_back_after_a_takeover() {
    const LENGTH: usize = 4 << 20;
    /// Blocks that lists of sessions and locks may take, and stay.
    const BLOCKS_OF_LISTS: u64 = 16;
    let cluster = Cluster::serving("3", "64M");
    let directory = mounted(&cluster);
    let mount = || {
        let path = cluster.scratch.path("other");
        let mount = ["mount", "--foreground", "tako:///c", &path];
        Mounted::by(&mut cluster.command(&mount), &path)
    };
    let blocks_free = || {
        rustix::fs::statvfs(&directory)
            .expect("it is mounted")
            .f_bfree
    };
    let before = blocks_free();
    let hold = |mounted: &Mounted| {
        let path = mounted.path("removed");
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(&path);
        let mut file = file.expect("it is new");
        file.write_all(&[7; LENGTH]).expect("written");
        std::fs::remove_file(&path).expect("it is there");
        file
    };
    let is_back = || blocks_free() + BLOCKS_OF_LISTS >= before;
    let comes_back = || {
        cluster.wait("the space is back", |_| is_back());
    };
    let is_whole_file = |file: &File| {
        let mut found = vec![0; LENGTH];
        file.read_exact_at(&mut found, 0).expect("it is held");
        assert!(found.iter().all(|byte| *byte == 7));
    };
    let other = mount();
    let file = hold(&other);
    cluster.lose_primary();
    is_whole_file(&file);
    assert!(!is_back());
    drop(file);
    comes_back();
    cluster.up_again();
    cluster.wait("the node is back", is_whole);
    let file = hold(&other);
    cluster.lose_primary();
    is_whole_file(&file);
    // Its process ends with an error from now on.
    drop(other);
    comes_back();
    drop(file);
    cluster.up_again();
    examine(&cluster);
}
