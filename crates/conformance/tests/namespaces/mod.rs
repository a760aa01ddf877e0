//! Two hosts, as far as a network namespace is one.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Addresses of the two namespaces.
pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];

/// Two network namespaces with a link between them.
pub struct Hosts {
    pub names: [String; 2],
    /// To be entered again and again.
    files: [File; 2],
}

pub fn ip(arguments: &str) -> bool {
    let status = Command::new("ip")
        .args(arguments.split(' '))
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

impl Hosts {
    pub fn new(test: &str) -> Hosts {
        let name = |side: &str| format!("tako-{test}-{}-{side}", std::process::id());
        let names = [name("a"), name("b")];
        for name in &names {
            assert!(
                ip(&format!("netns add {name}")),
                "cannot make a network namespace; run as root with iproute2"
            );
        }
        let open = |name| File::open(format!("/run/netns/{name}")).unwrap();
        let hosts = Hosts {
            files: names.each_ref().map(open),
            names,
        };
        let [a, b] = &hosts.names;
        assert!(ip(&format!(
            "link add veth netns {a} type veth peer name veth netns {b}"
        )));
        for (name, address) in hosts.names.iter().zip(ADDRESSES) {
            assert!(ip(&format!("-n {name} address add {address}/24 dev veth")));
            assert!(ip(&format!("-n {name} link set veth up")));
            assert!(ip(&format!("-n {name} link set lo up")));
        }
        hosts.meet();
        hosts
    }

    /// Waits until the link carries data, which takes the kernel a while, and drops earlier packets.
    fn meet(&self) {
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                self.enter(1);
                let listener = TcpListener::bind((ADDRESSES[1], 0)).unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                listener.accept().unwrap();
            });
            scope.spawn(move || {
                self.enter(0);
                TcpStream::connect(told.recv().unwrap()).unwrap();
            });
        });
    }

    /// The calling thread is on this host from now on: its new sockets are.
    pub fn enter(&self, side: usize) {
        enter(&self.files[side]);
    }
}

pub fn enter(namespace: &File) {
    let kind = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(namespace.as_fd(), kind).unwrap();
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns delete {name}"));
        }
    }
}
