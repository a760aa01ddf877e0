//! Hosts on one Ethernet link, each a network namespace without a name: all goes with the last descriptor of it, also when the
//! process is killed.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::Arc;

use fabric::Device;
use fabric::ethernet::{Ethernet, EthernetOptions, FrameFaults};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::suite::Setup;

/// Every host's interface has this name.
pub const INTERFACE: &str = "tako0";

/// Hosts, and the link between them.
pub struct Link {
    home: File,
    hosts: Vec<File>,
    switch: Option<File>,
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.expect("iproute2 is not installed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "ip {arguments}: {said}; run as root"
    );
}

fn namespace() -> File {
    File::open("/proc/thread-self/ns/net").unwrap()
}

fn enter(namespace: &File) {
    let kind = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(namespace.as_fd(), kind).unwrap();
}

/// A new namespace, in which the thread is afterwards.
fn new_namespace() -> File {
    #[expect(deprecated, reason = "unsafe only for other flags")]
    rustix::thread::unshare(UnshareFlags::NEWNET).expect("run as root");
    ip("link set lo up");
    namespace()
}

impl Link {
    /// Two hosts with a cable between them.
    pub fn pair() -> Link {
        Link::cable(3)
    }

    /// The same, with interfaces of so many queues.
    pub fn cable(queues: u32) -> Link {
        let home = namespace();
        let far = new_namespace();
        let near = new_namespace();
        let peer = path(&far);
        ip(&format!(
            "link add {INTERFACE} numrxqueues {queues} numtxqueues {queues} type veth peer name {INTERFACE} \
             numrxqueues {queues} numtxqueues {queues} netns {peer}"
        ));
        let hosts = vec![near, far];
        for host in &hosts {
            enter(host);
            ip(&format!("link set {INTERFACE} up"));
        }
        enter(&home);
        Link {
            home,
            hosts,
            switch: None,
        }
    }

    /// So many hosts at a switch.
    pub fn bridge(count: usize) -> Link {
        let home = namespace();
        let hosts: Vec<File> = (0..count).map(|_| new_namespace()).collect();
        let switch = new_namespace();
        ip("link add switch type bridge");
        ip("link set switch up");
        for (number, host) in hosts.iter().enumerate() {
            let peer = path(host);
            ip(&format!(
                "link add port{number} type veth peer name {INTERFACE} netns {peer}"
            ));
            ip(&format!("link set port{number} master switch up"));
            enter(host);
            ip(&format!("link set {INTERFACE} up"));
            enter(&switch);
        }
        enter(&home);
        Link {
            home,
            hosts,
            switch: Some(switch),
        }
    }

    /// Does something on a host.
    pub fn on<R>(&self, host: usize, act: impl FnOnce() -> R) -> R {
        enter(&self.hosts[host]);
        let result = act();
        enter(&self.home);
        result
    }

    /// The thread is on a host from now on, until the link is dropped.
    pub fn enter(&self, host: usize) {
        enter(&self.hosts[host]);
    }

    /// Runs `ip` on a host.
    pub fn ip(&self, host: usize, arguments: &str) {
        self.on(host, || ip(arguments));
        self.enter(host);
    }

    /// Runs `ip` on the switch.
    pub fn on_switch(&self, arguments: &str) {
        let switch = self.switch.as_ref().expect("a switch");
        let before = namespace();
        enter(switch);
        ip(arguments);
        enter(&before);
    }

    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }
}

/// Where `ip` finds a namespace.
fn path(namespace: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())
}

/// Sides of a test on the hosts of a link, alternately.
pub struct OnLink {
    link: Link,
    options: EthernetOptions,
    /// One device for each host.
    devices: RefCell<Vec<Arc<Ethernet>>>,
    next: Cell<usize>,
}

impl OnLink {
    pub fn over(link: Link, options: EthernetOptions) -> OnLink {
        OnLink {
            link,
            options,
            devices: RefCell::default(),
            next: Cell::new(0),
        }
    }

    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The interface of a side that was made.
    pub fn ethernet(&self, side: usize) -> Arc<Ethernet> {
        self.devices.borrow()[side].clone()
    }

    /// Two hosts with a cable between them. Two sides on one host share its interface.
    pub fn pair() -> OnLink {
        OnLink::over(Link::pair(), options())
    }

    /// Four hosts at a switch that do without authentication, with the EtherTypes for experiments (IEEE 802).
    pub fn bridge() -> OnLink {
        let options = EthernetOptions {
            authenticated: false,
            types: [0x88b5, 0x88b6],
            ..options()
        };
        OnLink::over(Link::bridge(4), options)
    }

    /// The same as a pair, but frames are lost, doubled, reordered and damaged.
    pub fn faulty() -> OnLink {
        let faults = FrameFaults {
            loss_permille: 10,
            duplication_permille: 10,
            reorder_permille: 20,
            corruption_permille: 10,
            seed: 1,
        };
        let options = EthernetOptions {
            faults,
            ..options()
        };
        OnLink::over(Link::pair(), options)
    }
}

/// Small, since each test has its own interfaces; and no side is lost because the machine is busy.
pub fn options() -> EthernetOptions {
    EthernetOptions {
        interface: Some(INTERFACE.into()),
        lost_after: std::time::Duration::from_secs(30),
        transports: 12,
        receive_frames: 1024,
        ..EthernetOptions::default()
    }
}

impl Setup for OnLink {
    fn device(&self) -> Arc<dyn Device> {
        let side = self.next.replace(self.next.get() + 1) % self.link.hosts();
        let mut devices = self.devices.borrow_mut();
        if devices.len() <= side {
            let opened = self.link.on(side, || Ethernet::open(self.options.clone()));
            devices.push(Arc::new(opened.unwrap()));
        }
        // Its sockets are made next, in the thread's namespace.
        self.link.enter(side);
        devices[side].clone()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The thread may have other tests to run.
        enter(&self.home);
    }
}
