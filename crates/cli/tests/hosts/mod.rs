//! Hosts, as far as network namespaces on one bridge are hosts.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod cluster;
mod loss;

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::common;

/// Every host's interface has this name.
pub const INTERFACE: &str = "tako0";

/// Network namespaces that reach each other. They end with the test, and so does every process in them.
pub struct Hosts {
    names: Vec<String>,
    bridge: String,
}

fn ip(arguments: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(arguments.split(' ')).stderr(Stdio::null());
    common::run(&mut command).status.success()
}

fn tc(end: &str, form: &str) -> bool {
    let mut command = Command::new("tc");
    command.args(end.split(' ')).args(form.split(' '));
    common::run(command.stderr(Stdio::null())).status.success()
}

impl Hosts {
    fn made(count: usize) -> Hosts {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count_before = COUNT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}n{count_before}", std::process::id());
        let hosts = Hosts {
            names: (0..count).map(|host| format!("tako{id}h{host}")).collect(),
            bridge: format!("tako{id}b"),
        };
        for name in hosts.names.iter().chain([&hosts.bridge]) {
            assert!(
                ip(&format!("netns add {name}")),
                "cannot make a network namespace; run as root with iproute2"
            );
            assert!(ip(&format!("-n {name} link set lo up")));
        }
        hosts
    }

    /// So many of them at a switch. The address of each is [`Hosts::address`].
    pub fn new(count: usize) -> Hosts {
        let hosts = Hosts::made(count);
        let bridge = &hosts.bridge;
        assert!(ip(&format!("-n {bridge} link add br0 type bridge")));
        assert!(ip(&format!("-n {bridge} link set br0 up")));
        for (host, name) in hosts.names.iter().enumerate() {
            let peer = format!("type veth peer name h{host} netns {bridge}");
            assert!(ip(&format!("link add {INTERFACE} netns {name} {peer}")));
            assert!(ip(&format!("-n {bridge} link set h{host} master br0 up")));
            hosts.set_address(host);
        }
        hosts
    }

    /// Two hosts with a cable between them, at interfaces of so many queues. A frame comes by the queue of the number that it left by.
    pub fn with_cable(mtu: u32, queues: u32) -> Hosts {
        let hosts = Hosts::made(2);
        let [near, far] = [0, 1].map(|host: usize| &hosts.names[host]);
        let queues = format!("numrxqueues {queues} numtxqueues {queues}");
        let peer = format!("type veth peer name {INTERFACE} netns {far} {queues}");
        assert!(ip(&format!(
            "link add {INTERFACE} netns {near} {queues} {peer}"
        )));
        for host in 0..2 {
            let name = &hosts.names[host];
            assert!(ip(&format!("-n {name} link set {INTERFACE} mtu {mtu}")));
            hosts.set_address(host);
        }
        hosts
    }

    fn set_address(&self, host: usize) {
        let (name, address) = (&self.names[host], self.address(host));
        assert!(ip(&format!(
            "-n {name} address add {address}/24 dev {INTERFACE}"
        )));
        assert!(ip(&format!("-n {name} link set {INTERFACE} up")));
    }

    /// Returns the number of hosts.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// The address of a host.
    pub fn address(&self, host: usize) -> String {
        format!("10.0.0.{}", host + 1)
    }

    /// A program, ready to run on a host. It sees this process's mounts, and its own are seen here.
    pub fn command(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let namespace = format!("--net=/run/netns/{}", self.names[host]);
        command.args([&namespace, program]).stdin(Stdio::null());
        command
    }

    /// A host loses so many of 1000 datagrams to groups from now on.
    pub fn lose(&self, host: usize, permille: i32) {
        self.run_on_packets(host, loss::losing(permille));
    }

    /// A host gets so many of 1000 frames of groups with damage from now on.
    pub fn damage(&self, host: usize, permille: i32) {
        self.run_on_packets(host, loss::damaging(permille));
    }

    fn run_on_packets(&self, host: usize, program: Vec<loss::Instruction>) {
        let name = &self.names[host];
        let path = std::env::temp_dir().join(format!("{name}.o"));
        std::fs::write(&path, loss::object(program)).expect("written");
        let program = format!("object {} section xdp", path.display());
        assert!(ip(&format!(
            "-n {name} link set dev {INTERFACE} xdpgeneric off"
        )));
        let is_set = ip(&format!(
            "-n {name} link set dev {INTERFACE} xdpgeneric {program}"
        ));
        let _ = std::fs::remove_file(path);
        assert!(is_set, "the kernel takes no XDP program");
    }

    /// Whether a host gets datagrams to groups.
    pub fn set_groups(&self, host: usize, state: &str) {
        let bridge = &self.bridge;
        let what = format!("type bridge_slave mcast_flood {state}");
        assert!(ip(&format!("-n {bridge} link set h{host} {what}")));
    }

    /// Bytes that a host has sent.
    pub fn sent_bytes(&self, host: usize) -> u64 {
        let mut command = self.command(host, "awk");
        let program = format!("/{INTERFACE}:/ {{print $10}}");
        let output = common::run(command.args([&program, "/proc/net/dev"]));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.trim().parse().expect("a number")
    }

    /// Makes the link of a host slow, both ways. False if the kernel cannot.
    pub fn slow_down(&self, host: usize) -> bool {
        let form = "root tbf rate 4mbit burst 16kb latency 400ms";
        self.ends_of(host)
            .iter()
            .all(|end| tc(&end.replace("qdisc", "qdisc replace"), form))
    }

    /// Restores the speed of the host's link.
    pub fn speed_up(&self, host: usize) {
        for end in self.ends_of(host) {
            // It was fast if this fails.
            tc(&end.replace("qdisc", "qdisc delete"), "root");
        }
    }

    /// The arguments of tc(8) for both ends of a host's link.
    fn ends_of(&self, host: usize) -> [String; 2] {
        let (name, bridge) = (&self.names[host], &self.bridge);
        [
            format!("-n {bridge} qdisc dev h{host}"),
            format!("-n {name} qdisc dev {INTERFACE}"),
        ]
    }

    /// Takes a host off the network, or puts it back.
    pub fn set_link(&self, host: usize, state: &str) {
        let bridge = &self.bridge;
        assert!(ip(&format!("-n {bridge} link set h{host} {state}")));
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let mut list = Command::new("ip");
            let listed = common::run(list.args(["netns", "pids", name]));
            let pids = String::from_utf8_lossy(&listed.stdout).into_owned();
            let pids = pids.lines().filter_map(|line| line.parse().ok());
            for pid in pids.filter_map(Pid::from_raw) {
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        for name in self.names.iter().chain([&self.bridge]) {
            ip(&format!("netns delete {name}"));
        }
    }
}
