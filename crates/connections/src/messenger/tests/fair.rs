//! Congestion (M5): all peers send as much as they can, and one receives.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::*;
use crate::keys;

/// So many clients, as a unit has.
const PEERS: usize = 32;
/// Bytes of a message: one that fits into a packet, and one of many packets.
const LENGTHS: [usize; 2] = [100, 64 << 10];
/// Name of the interface on both hosts.
const INTERFACE: &str = "tako0";

/// Two hosts with a cable between them: network namespaces, which end with their descriptors. The thread returns to its own.
struct Cable {
    home: File,
    hosts: [File; 2],
}

fn namespace() -> File {
    File::open("/proc/thread-self/ns/net").unwrap()
}

fn enter(namespace: &File) {
    let kind = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(namespace.as_fd(), kind).unwrap();
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.expect("iproute2 is not installed");
    let said = String::from_utf8_lossy(&output.stderr);
    let is_done = output.status.success();
    assert!(is_done, "ip {arguments}: {said}; run as root");
}

impl Cable {
    fn new() -> Cable {
        let home = namespace();
        let hosts = [(); 2].map(|()| {
            #[expect(deprecated, reason = "unsafe only for other flags")]
            rustix::thread::unshare(UnshareFlags::NEWNET).expect("run as root");
            namespace()
        });
        let cable = Cable { home, hosts };
        let first = cable.hosts[0].as_raw_fd();
        let first = format!("/proc/{}/fd/{first}", std::process::id());
        let peer = format!("type veth peer name {INTERFACE} netns {first}");
        ip(&format!("link add {INTERFACE} {peer}"));
        for (host, namespace) in cable.hosts.iter().enumerate() {
            enter(namespace);
            ip(&format!(
                "address add 10.97.0.{}/24 dev {INTERFACE}",
                host + 1
            ));
            ip(&format!("link set {INTERFACE} up"));
        }
        cable
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // The thread may have other tests to run.
        enter(&self.home);
    }
}

#[test]
fn peers_that_send_all_they_can_get_like_shares() {
    for provider in BOTH {
        for length in LENGTHS {
            let scratch = Scratch::new();
            let near = messenger("near", options(provider));
            let listener = Listener::bind(&[scratch.socket()], near.local().clone()).unwrap();
            let peer = || messenger("far", options(provider));
            get_like_shares(near, listener, &peer, length);
        }
    }
}

#[test]
fn peers_over_ethernet_that_send_all_they_can_get_like_shares() {
    let (cable, scratch) = (Cable::new(), Scratch::new());
    let keys = scratch.0.join("keys");
    keys::init(&keys, "near").unwrap();
    keys::issue(&keys, "far", keys::usual_validity()).unwrap();
    let open = |host: usize| {
        let mut options = options(Provider::Ethernet);
        options.wanted.ethernet.interface = Some(INTERFACE.into());
        options.wanted.ethernet.transports = PEERS as u32;
        options.wanted.ethernet.lost_after = LONG;
        // Sockets belong to the host that the thread is on.
        enter(&cable.hosts[host]);
        let node = keys.join(["near", "far"][host]);
        Messenger::open(Identity::load(&node).unwrap(), options).unwrap()
    };
    for length in LENGTHS {
        let near = open(0);
        let address = Address::Tcp("10.97.0.1:0".parse().unwrap());
        let listener = Listener::bind(&[address], near.local().clone()).unwrap();
        get_like_shares(near, listener, &|| open(1), length);
    }
}

/// Peers link to the listening side, and send messages of this length.
fn get_like_shares(
    mut near: Messenger,
    mut listener: Listener,
    peer: &dyn Fn() -> Messenger,
    length: usize,
) {
    let address = listener.addresses()[0].clone();
    let mut peers: Vec<(Messenger, LinkId)> = Vec::new();
    let mut shares = BTreeMap::new();
    for _ in 0..PEERS {
        let mut peer = peer();
        peer.dial(&address, Some("near"));
        let link = near.accept(caller(&mut listener, &mut peer)).unwrap();
        shares.insert(link, 0);
        let mut events = Vec::new();
        while events.is_empty() {
            near.poll(&mut Vec::new());
            peer.wait(&mut events, Duration::from_millis(1));
        }
        match &events[..] {
            [
                Event::Dialed {
                    outcome: Ok(link), ..
                },
            ] => peers.push((peer, *link)),
            _ => panic!("{events:?}"),
        }
    }
    send_all(&mut near, &mut peers, shares, length);
}

fn send_all(
    near: &mut Messenger,
    peers: &mut [(Messenger, LinkId)],
    mut shares: BTreeMap<LinkId, usize>,
    length: usize,
) {
    let bytes = message(1, length);
    let most = Options::default().backlog_bytes;
    let (mut sent, mut events) = (0, Vec::new());
    let mut count = |events: &mut Vec<Event>| {
        for event in events.drain(..) {
            match event {
                Event::Message { link, .. } => *shares.get_mut(&link).unwrap() += 1,
                event => panic!("{event:?}"),
            }
        }
        shares.values().copied().collect::<Vec<usize>>()
    };
    let start = Instant::now();
    // Each is as much behind as it may be, at all times.
    while count(&mut events).iter().sum::<usize>() < PEERS * 100 {
        for (peer, link) in &mut *peers {
            while peer.backlog(*link) < 8 * length {
                peer.send(*link, &bytes).unwrap();
                sent += 1;
            }
            assert!(peer.backlog(*link) <= most);
            peer.poll(&mut Vec::new());
        }
        near.poll(&mut events);
        assert!(start.elapsed() < LONG);
    }
    let shares = count(&mut events);
    let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
    assert!(*most <= 2 * least, "{length} bytes: {shares:?}");
    // Nothing was dropped.
    while count(&mut events).iter().sum::<usize>() < sent {
        peers.iter_mut().for_each(|(peer, _)| {
            peer.poll(&mut Vec::new());
        });
        near.poll(&mut events);
        assert!(start.elapsed() < LONG);
    }
}
