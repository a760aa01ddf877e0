//! Hosts, as far as network namespaces on one bridge are hosts.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod cluster;

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

impl Hosts {
    /// So many of them. The address of each is [`Hosts::address`].
    pub fn new(count: usize) -> Hosts {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count_before = COUNT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}n{count_before}", std::process::id());
        let hosts = Hosts {
            names: (0..count).map(|host| format!("tako{id}h{host}")).collect(),
            bridge: format!("tako{id}b"),
        };
        assert!(
            ip(&format!("netns add {}", hosts.bridge)),
            "cannot make a network namespace; run as root with iproute2"
        );
        let bridge = &hosts.bridge;
        assert!(ip(&format!("-n {bridge} link add br0 type bridge")));
        assert!(ip(&format!("-n {bridge} link set br0 up")));
        for (host, name) in hosts.names.iter().enumerate() {
            assert!(ip(&format!("netns add {name}")));
            let peer = format!("type veth peer name h{host} netns {bridge}");
            assert!(ip(&format!("link add {INTERFACE} netns {name} {peer}")));
            assert!(ip(&format!("-n {bridge} link set h{host} master br0 up")));
            let address = hosts.address(host);
            assert!(ip(&format!(
                "-n {name} address add {address}/24 dev {INTERFACE}"
            )));
            assert!(ip(&format!("-n {name} link set {INTERFACE} up")));
            assert!(ip(&format!("-n {name} link set lo up")));
        }
        hosts
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
