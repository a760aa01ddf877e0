//! A cluster of nodes on several hosts that sends Ethernet frames, and mounts of it on another host.
#![forbid(unsafe_code)]

mod common;
mod hosts;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::network::{Io, Network};
use client::{Acknowledge, FileSystem, OpenFlags, Source};
use common::apart;
use fabric::Provider;
use hosts::cluster::{Cluster, is_whole, links, primary};
use hosts::{Hosts, INTERFACE};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Time limit on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LENGTH: usize = 1 << 20;
/// What lets a node offer frames.
const AT_INTERFACE: &str = "interface = \"tako0\"\n";
/// Options of a mount with EtherTypes for experiments.
const OTHER_TYPES: &str = ",transport=ethernet,ether_types=0x88b5:0x88b6";
/// Blocks of a file.
const BLOCKS: u64 = LENGTH as u64 / 4096;

/// A mount on the last host, which has no node. It ends with the value, and so does its process.
struct Mounted {
    directory: PathBuf,
    process: Child,
}

impl Mounted {
    fn new(cluster: &Cluster, name: &str, options: &str) -> Mounted {
        Mounted::start(cluster, name, options).expect("it is mounted")
    }

    fn start(cluster: &Cluster, name: &str, options: &str) -> Result<Mounted, String> {
        let directory = PathBuf::from(cluster.scratch.path(name));
        std::fs::create_dir(&directory).expect("it is new");
        let client = cluster.hosts.count() - 1;
        let nodes: Vec<String> = (0..client)
            .map(|host| cluster.hosts.address(host) + ":7474")
            .collect();
        let source = format!("tako://{}/hosts", nodes.join(","));
        let keys = cluster.scratch.path(&format!("keys/n{}", client + 1));
        let log = cluster.scratch.path(&format!("{name}.log"));
        let mut command = cluster.hosts.command(client, common::TAKO);
        command
            .args(["mount", "--foreground", &source])
            .arg(&directory);
        command.args(["-o", &format!("keys={keys}{options}")]);
        command.env("TAKO_STATE", cluster.scratch.path("client"));
        command.stderr(File::create(&log).expect("it can be made"));
        let process = common::start(command.stdout(Stdio::piped()));
        let mut mount = Mounted { directory, process };
        let said = mount.process.stdout.take().expect("a pipe");
        let mut line = String::new();
        let read = BufReader::new(said).read_line(&mut line);
        match read.is_ok() && line.contains("is mounted on") {
            true => Ok(mount),
            false => Err(std::fs::read_to_string(log).expect("it is there")),
        }
    }

    fn write(&self, name: &str, seed: usize) {
        let mut file = File::create(self.directory.join(name)).expect("it can be made");
        file.write_all(&bytes(seed)).expect("it has room");
        file.sync_all().expect("it is synced");
    }

    /// Removes a file's data from the kernel's cache.
    fn forget(&self, name: &str) {
        let file = File::open(self.directory.join(name)).expect("it is there");
        let advice = rustix::fs::Advice::DontNeed;
        rustix::fs::fadvise(&file, 0, None, advice).expect("it is a file");
    }

    fn verify(&self, name: &str, seed: usize) {
        let found = std::fs::read(self.directory.join(name)).expect("it is there");
        assert!(found == bytes(seed), "{name}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let mut command = common::command(&["umount", "-l"]);
        let _ = apart(|| command.arg(&self.directory).output());
        if std::thread::panicking() {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

fn bytes(seed: usize) -> Vec<u8> {
    (0..LENGTH)
        .map(|at| ((at / 7 + seed) % 251) as u8)
        .collect()
}

fn is_all_ethernet(links: &[&Value]) -> bool {
    links.iter().all(|link| link["transport"] == "ethernet")
}

/// Links of a kind of peer.
fn links_to(status: &Value, nodes: bool) -> Vec<&Value> {
    let mut found = links(status);
    found.retain(|link| link["is_node"] == nodes);
    found
}

#[test]
fn nodes_and_mounts_on_one_link_use_frames_and_go_on_without_the_primary() {
    let mut cluster = Cluster::start(3, Hosts::new(4), AT_INTERFACE);
    let status = cluster.wait("they serve", is_whole);
    let between = links_to(&status, true);
    assert!(between.len() >= 4);
    assert!(is_all_ethernet(&between), "{status:#}");
    let mount = Mounted::new(&cluster, "mount", ",transport=ethernet");
    for number in 0..4 {
        mount.write(&format!("before{number}"), number);
    }
    let status = cluster.status().expect("they serve");
    assert!(links_to(&status, false).len() >= 3, "{status:#}");
    assert!(is_all_ethernet(&links(&status)), "{status:#}");
    let lost = primary(&status);
    let _ = cluster.nodes[lost].kill();
    for number in 0..4 {
        mount.verify(&format!("before{number}"), number);
        mount.write(&format!("after{number}"), number + 4);
    }
    let _ = cluster.nodes[lost].wait();
    // It has its interface again, though the kernel frees that a moment after the process.
    let config = cluster.configure(lost, 3, &cluster.scratch.path("keys"));
    cluster.nodes[lost] = cluster.serve(lost, &config, &[]);
    let status = cluster.wait("all are in sync again", |status| {
        is_whole(status) && links_to(status, false).len() >= 3
    });
    assert!(is_all_ethernet(&links(&status)), "{status:#}");
    for number in 0..4 {
        mount.verify(&format!("before{number}"), number);
        mount.verify(&format!("after{number}"), number + 4);
    }
}

/// What the node reports under a name.
fn reported(status: &Value, name: &str) -> u64 {
    status["nodes"][0][name].as_u64().expect("a number")
}

#[test]
fn long_writes_are_received_in_the_pool_itself_and_long_reads_in_the_reader() {
    long_transfers_are_placed((1500, 2), 3);
}

#[test]
fn long_transfers_are_placed_on_an_interface_with_one_queue() {
    long_transfers_are_placed((1500, 1), 3);
}

#[test]
fn long_transfers_are_placed_in_jumbo_frames_where_the_mtu_allows_them() {
    long_transfers_are_placed((9000, 2), 1);
}

/// With so many frames for each block.
fn long_transfers_are_placed((mtu, queues): (u32, u32), frames: u64) {
    let queue = queues - 1;
    let most = BLOCKS * frames / 2..BLOCKS * frames * 11 / 10;
    let mut cluster = Cluster::start(
        1,
        Hosts::with_cable(mtu, queues),
        &format!("{AT_INTERFACE}data_queue = {queue}\nether_types = \"0x88b5:0x88b6\"\n"),
    );
    cluster.wait("it serves", is_whole);
    let other = Mounted::start(&cluster, "other", ",transport=ethernet");
    assert!(other.is_err_and(|said| said.contains("`ether_types` differs between the sides")));
    let mount = Mounted::new(&cluster, "mount", OTHER_TYPES);
    mount.write("sent", 1);
    drop(mount);
    let status = cluster.status().expect("it serves");
    assert_eq!(reported(&status, "placed"), 0);
    let written = status["nodes"][0]["load"]["written"].as_u64();
    assert!(written >= Some(LENGTH as u64), "{status:#}");
    let options = &format!("{OTHER_TYPES},io=client,data_queue={queue}");
    let mount = Mounted::new(&cluster, "placing", options);
    // Key and blocks come with the first requests.
    cluster.wait("most of a file is placed", |status| {
        mount.write("placed", 2);
        let before = reported(status, "placed");
        let now = reported(&cluster.status().expect("it serves"), "placed");
        most.contains(&(now - before))
    });
    mount.write("placed", 3);
    drop(mount);
    let mount = Mounted::new(&cluster, "reading", options);
    cluster.wait("most of a file is read in place", |status| {
        let before = reported(status, "fetched");
        mount.forget("placed");
        mount.verify("placed", 3);
        let now = reported(&cluster.status().expect("it serves"), "fetched");
        most.contains(&(now - before))
    });
    drop(mount);
    let mount = Mounted::new(&cluster, "again", ",transport=tcp");
    mount.verify("sent", 1);
    mount.verify("placed", 3);
    drop(mount);
    let _ = cluster.nodes[0].kill();
    let _ = cluster.nodes[0].wait();
    common::tako(&["check", &cluster.scratch.path("n1.pool")]).ended(0);
}

/// The memory for frames lies behind the pool, so the pool has to be opened again to become longer.
#[test]
fn a_pool_with_a_data_queue_grows_while_its_node_runs_without_it() {
    let placing = format!("{AT_INTERFACE}data_queue = 1\n");
    let mut cluster = Cluster::start(1, Hosts::with_cable(1500, 2), &placing);
    let status = cluster.wait("it serves", is_whole);
    let length = reported(&status, "pool");
    let mount = Mounted::new(&cluster, "mount", ",transport=tcp");
    mount.write("before", 1);
    let grow = |cluster: &Cluster| {
        let mut command = common::command(&["grow", "tako:///hosts", "--size", "128M"]);
        command.env("TAKO_STATE", cluster.scratch.path("state"));
        common::run(&mut command)
    };
    let refused = grow(&cluster);
    let said = String::from_utf8_lossy(&refused.stderr);
    let sentence = "growing the pools of cluster hosts failed: node n1 has `data_queue`";
    assert!(said.contains(sentence), "{said}");
    assert_eq!(refused.status.code(), Some(1), "{said}");
    let status = cluster.wait("it serves as before", is_whole);
    assert_eq!(reported(&status, "pool"), length);
    mount.write("refused", 2);
    cluster.restart(0, 1, AT_INTERFACE);
    cluster.wait("it serves without the queue", is_whole);
    let grown = grow(&cluster);
    assert!(grown.status.success(), "{grown:?}");
    cluster.restart(0, 1, &placing);
    let is_long = |status: &Value| is_whole(status) && reported(status, "pool") == 2 * length;
    cluster.wait("it has grown, and has the queue", is_long);
    mount.verify("before", 1);
    mount.verify("refused", 2);
}

/// A pool is made longer before the memory for frames lies behind it, so a node that missed the growth has to start again.
#[test]
fn a_node_with_a_data_queue_grows_with_its_unit_when_it_starts_again() {
    let mut cluster = Cluster::prepare(Hosts::with_cable(1500, 2), AT_INTERFACE);
    let keys = cluster.scratch.path("keys");
    let [path, other] = [0, 1].map(|node| cluster.configure(node, 2, &keys));
    let text = std::fs::read_to_string(&path).expect("it is there");
    let placing = format!("{AT_INTERFACE}data_queue = 1\n");
    std::fs::write(&path, text.replace(AT_INTERFACE, &placing)).expect("written");
    let log = cluster.scratch.path("n1.log");
    let mut command = cluster.hosts.command(0, common::TAKO);
    command.args(["serve", "--config", &path]);
    command.env("TAKO_STATE", cluster.scratch.path("state"));
    command.stdout(Stdio::null());
    command.stderr(File::create(&log).expect("it can be made"));
    cluster.nodes.push(common::start(&mut command));
    cluster.nodes.push(cluster.serve(1, &other, &[]));
    let status = cluster.wait("they serve", is_whole);
    let length = reported(&status, "pool");
    let stopped = Pid::from_child(&cluster.nodes[0]);
    kill_process(stopped, Signal::STOP).expect("it runs");
    cluster.wait("it is left out", |status| {
        status["serving"] == true && status["unit"]["in_sync"] == 1
    });
    let mut grow = common::command(&["grow", "tako:///hosts", "--size", "128M"]);
    grow.env("TAKO_STATE", cluster.scratch.path("state"));
    let grown = common::run(&mut grow);
    kill_process(stopped, Signal::CONT).expect("it is stopped");
    assert!(grown.status.success(), "{grown:?}");
    let ended = cluster.nodes[0].wait().expect("it is ours");
    let said = std::fs::read_to_string(&log).expect("it is there");
    assert_eq!(ended.code(), Some(1), "{said}");
    let sentence = "its unit has grown meanwhile; start the node again, and its pool grows first";
    assert!(said.contains(sentence), "{said}");
    cluster.nodes[0] = cluster.serve(0, &path, &[]);
    let is_long = |status: &Value| is_whole(status) && reported(status, "pool") == 2 * length;
    cluster.wait("it has grown, and has the queue", is_long);
}

/// Set for the process that maps a file: the source, and the directory of its keys.
const MAPS: [&str; 2] = ["TAKO_TEST_MAPS", "TAKO_TEST_KEYS"];

#[test]
fn a_file_is_mapped_in_the_pages_that_its_frames_were_received_in() {
    let options = format!("{AT_INTERFACE}data_queue = 1\n");
    let cluster = Cluster::start(1, Hosts::with_cable(1500, 2), &options);
    cluster.wait("it serves", is_whole);
    let mount = Mounted::new(&cluster, "mount", ",transport=ethernet");
    mount.write("mapped", 4);
    drop(mount);
    let source = format!("tako://{}:7474/hosts", cluster.hosts.address(0));
    let program = std::env::current_exe().expect("this program");
    let mut command = cluster.hosts.command(1, &program.to_string_lossy());
    command.args(["--exact", "this_process_maps_a_file", "--nocapture"]);
    command.env(MAPS[0], source);
    command.env(MAPS[1], cluster.scratch.path("keys/n2"));
    let output = common::run(&mut command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let fetched = reported(&cluster.status().expect("it serves"), "fetched");
    assert!(fetched >= BLOCKS * 3, "{fetched}");
}

/// A part of the test before, in a process on the other host. Of itself it does nothing.
#[test]
fn this_process_maps_a_file() {
    let [Some(source), Some(keys)] = MAPS.map(std::env::var_os) else {
        return;
    };
    let source: Source = source.to_string_lossy().parse().expect("a source");
    let mut options = source.options(Some(Path::new(&keys))).expect("keys");
    options.only = Some(Provider::Ethernet);
    options.interface = Some(INTERFACE.into());
    options.data_queue = Some(1);
    options.io = Io::Client;
    let network = Arc::new(Network::connect(options).expect("it is reached"));
    let files = FileSystem::remote(network.clone(), Acknowledge::Primary);
    let file = files.open("mapped", OpenFlags::READ, 0).expect("a file");
    let expected = bytes(4);
    // No transfer has reserved its buffers: these have 64 MiB nevertheless, and the rest is copied.
    let early: Vec<_> = (0..80).map(|_| file.map().expect("it is mapped")).collect();
    // Keys come with the first reads.
    let started = Instant::now();
    while network.one_sided().1 == 0 {
        assert!(started.elapsed() < PATIENCE, "no read was one-sided");
        let mut first = [0; 4096];
        file.read_at(&mut first, 0).expect("it is read");
    }
    assert!(early.iter().all(|map| map[..] == expected[..]));
    let copied = early.iter().filter(|map| map.copied_bytes() > 0).count();
    assert_eq!(copied, 80 - 64);
    drop(early);
    let _ = pmem::copied_bytes();
    for _ in 0..3 {
        let before = pmem::copied_bytes();
        let mut map = file.map().expect("it is mapped");
        assert!(map[..] == expected[..]);
        assert_eq!(map.copied_bytes(), 0);
        map.refresh().expect("it is mapped");
        // In another order.
        let pages = (0..LENGTH).step_by(4096).rev();
        assert!(pages.into_iter().all(|at| map[at] == expected[at]));
        assert_eq!(map.copied_bytes(), 0);
        assert_eq!(pmem::copied_bytes() - before, 0);
    }
    // More maps than there is memory for: the later ones are copied.
    let maps: Vec<_> = (0..70).map(|_| file.map().expect("it is mapped")).collect();
    assert!(maps.iter().all(|map| map[..] == expected[..]));
    let copied = maps.iter().filter(|map| map.copied_bytes() > 0).count();
    assert!((1..20).contains(&copied), "{copied}");
    drop(maps);
    let map = file.map().expect("it is mapped");
    assert!(map[..] == expected[..]);
    assert_eq!(map.copied_bytes(), 0);
}

#[test]
fn obstacles_to_frames_are_reported_and_tcp_is_used() {
    let mut cluster = Cluster::prepare(Hosts::new(4), AT_INTERFACE);
    let keys = cluster.scratch.path("keys");
    let lacks = ["setpriv", "--bounding-set=-net_raw,-bpf,-sys_admin"];
    for (node, before) in [&lacks[..], &[], &[]].into_iter().enumerate() {
        let config = cluster.configure(node, 3, &keys);
        cluster.nodes.push(cluster.serve(node, &config, before));
    }
    let status = cluster.wait("they serve", is_whole);
    for link in links_to(&status, true) {
        let reason = link["passed_over"].to_string();
        match link["transport"].as_str() {
            Some("ethernet") => {}
            _ => assert!(reason.contains("CAP_NET_RAW and CAP_BPF"), "{link:#}"),
        }
    }
    let has = |transport| {
        links(&status)
            .iter()
            .any(|link| link["transport"] == transport)
    };
    assert!(has("ethernet") && has("tcp"), "{status:#}");
    // The interface has one queue, which the first mount uses.
    let first = Mounted::new(&cluster, "first", ",interface=tako0");
    first.write("file", 1);
    let second = Mounted::new(&cluster, "second", ",interface=tako0");
    second.verify("file", 1);
    let status = cluster.status().expect("they serve");
    let reason = format!("queue 0 of {INTERFACE} is in use");
    let mut clients = links_to(&status, false).into_iter();
    let is_second = |link: &Value| link["passed_over"].to_string().contains(&reason);
    assert!(clients.any(is_second), "{status:#}");
    let said = Mounted::start(&cluster, "third", ",transport=ethernet");
    assert!(said.is_err_and(|said| said.contains(&reason)));
}
