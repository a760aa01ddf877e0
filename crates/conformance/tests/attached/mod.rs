//! Interfaces: leftovers of attaching, refusals, and the power of strangers on the link.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use connections::control;
use connections::transports::{Transports, Wanted};
use fabric::ethernet::{Ethernet, EthernetOptions, FrameFaults};
use fabric::{
    Access, Event, Multicast, Provider, Queue, QueueOptions, Role, Source, Work, WorkRequest,
};
use pmem::Region;
use xdp::{Descriptor, Interface, Modes, Port, PortOptions};

use super::link::{INTERFACE, Link, options};
use super::suite::{self, Pair, Setup};

/// Set for the process that is killed.
const HOLD: &str = "TAKO_TEST_HOLD";
const PATIENCE: Duration = Duration::from_secs(120);

/// The system's state of the interface: flags, MTU, offloads, XDP programs.
fn shown() -> String {
    let output = Command::new("ip")
        .args(["-details", "link", "show", "dev", INTERFACE])
        .output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

#[test]
fn an_interface_is_as_it_was_also_after_kill() {
    const TEST: &str = "attached::an_interface_is_as_it_was_also_after_kill";
    if std::env::var_os(HOLD).is_some() {
        let _held = Ethernet::open(options()).unwrap();
        println!("attached");
        // Until it is killed, or the other process has gone.
        let _ = std::io::stdin().lines().next();
        return;
    }
    let link = Link::pair();
    link.enter(0);
    let before = shown();
    assert!(!before.contains("xdp"));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env(HOLD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let attached = lines
        .map_while(Result::ok)
        .any(|line| line.contains("attached"));
    assert!(attached, "the other process does not attach");
    assert!(shown().contains("xdp"));
    let busy = Ethernet::open(options()).err().unwrap().to_string();
    assert!(busy.contains("in use by another XDP program"), "{busy}");
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel frees the queue a little after the process has ended.
    drop(Ethernet::open(options()).unwrap());
    assert_eq!(shown(), before);
}

#[test]
fn a_missing_part_is_named_in_a_sentence() {
    let link = Link::pair();
    link.enter(0);
    let refused = |options: EthernetOptions| Ethernet::open(options).err().unwrap().to_string();
    let none = refused(EthernetOptions::default());
    assert!(none.contains("no interface was chosen"), "{none}");
    let other = refused(EthernetOptions {
        interface: Some("none0".into()),
        ..options()
    });
    assert!(
        other.contains("no Ethernet interface none0; there are: tako0"),
        "{other}"
    );
    let queue = refused(EthernetOptions {
        queue: 99,
        ..options()
    });
    assert!(queue.contains("has no queue 99"), "{queue}");
    link.ip(0, &format!("link set {INTERFACE} mtu 300"));
    let short = refused(options());
    assert!(short.contains("has an MTU of 300, at least 512"), "{short}");
    link.ip(0, &format!("link set {INTERFACE} down"));
    let down = refused(options());
    assert!(
        down.contains("is down; run `ip link set tako0 up`"),
        "{down}"
    );
}

fn ball(bytes: &[u8]) -> Work<'_> {
    Work::Send {
        from: Source::Inline(bytes),
        immediate: None,
    }
}

/// Two threads that sleep until something arrives.
#[test]
fn threads_wake_each_other() {
    const ROUNDS: u64 = 2000;
    let setup = super::link::OnLink::pair();
    let layout = QueueOptions {
        spin_max: Duration::ZERO,
        ..QueueOptions::default()
    };
    let open = || {
        let device = setup.device();
        let queue = Queue::open(&*device, layout).unwrap();
        (device, queue)
    };
    let ((_near_device, mut near), (_far_device, mut far)) = (open(), open());
    let (to_far, near_says) = near.offer().unwrap();
    let (to_near, far_says) = far.offer().unwrap();
    far.accept(to_near, Role::Listener, suite::peer(&setup, near_says))
        .unwrap();
    near.accept(to_far, Role::Dialer, suite::peer(&setup, far_says))
        .unwrap();
    let echo = std::thread::spawn(move || {
        let mut events = Vec::new();
        loop {
            far.wait(&mut events, PATIENCE);
            for event in events.drain(..) {
                match event {
                    Event::Message(message) => {
                        let bytes = message.to_vec();
                        drop(message);
                        let answer = WorkRequest::new(0, ball(&bytes)).quiet();
                        far.post(to_near, &answer).unwrap();
                        far.submit();
                    }
                    Event::Lost(..) => return,
                    Event::Done(_) => {}
                }
            }
        }
    });
    let mut events = Vec::new();
    for round in 0..ROUNDS {
        let bytes = round.to_le_bytes();
        near.post(to_far, &WorkRequest::new(0, ball(&bytes)).quiet())
            .unwrap();
        near.submit();
        while near.wait(&mut events, PATIENCE) == 0 {}
        match events.pop() {
            Some(Event::Message(answer)) => assert_eq!(answer.to_vec(), bytes),
            other => panic!("{other:?}"),
        }
    }
    near.close(to_far);
    while !echo.is_finished() {
        near.poll(&mut events);
    }
    echo.join().unwrap();
}

/// A packet that claims to come from another host, with valid fields except its check.
fn forged(from: [u8; 6], to: [u8; 6], endpoint: u32, kind: u8) -> Vec<u8> {
    let mut frame = vec![0; 256];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..14].copy_from_slice(&[0x80, 0x01]);
    frame[14..16].copy_from_slice(&[0, 1]);
    frame[16..18].copy_from_slice(&[4, kind]);
    frame[24..28].copy_from_slice(&endpoint.to_le_bytes());
    // Packets that are not repeated have the highest bit of their number set.
    if kind >= 16 {
        frame[32..40].copy_from_slice(&(u64::MAX / 2 + 1000).to_le_bytes());
    }
    frame
}

#[test]
fn forged_packets_change_nothing() {
    let link = Link::bridge(3);
    let hardware: Vec<[u8; 6]> = (0..3)
        .map(|host| link.on(host, || Interface::named(INTERFACE).unwrap().hardware.0))
        .collect();
    let setup = super::link::OnLink::over(link, options());
    let mut pair = Pair::new(&setup);
    let far = pair.far.memory(4096, Access::ALL);
    let remote = pair.import(&far);
    // The third host attaches with nothing but sockets.
    setup.link().enter(2);
    let interface = Interface::named(INTERFACE).unwrap();
    let memory = Region::memory(64 * 2048, false).unwrap();
    let layout = PortOptions {
        queue: 0,
        types: [0x8000, 0x8001],
        chunk: 2048,
        ring: 64,
        sockets: 1,
        modes: Modes::Fastest,
        placed: None,
    };
    let mut port = Port::open(&interface, &memory, &layout).unwrap();
    let mut socket = port.socket(64).unwrap();
    let endpoint = pair.to_near.0;
    for (number, kind) in [
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 18, 19, 20, 21,
    ]
    .into_iter()
    .enumerate()
    {
        let frame = forged(hardware[0], hardware[1], endpoint, kind);
        let address = number as u64 * 2048;
        memory.write(address, &frame);
        assert!(socket.transmit(Descriptor {
            address,
            length: frame.len() as u32,
            options: 0,
        }));
    }
    assert!(socket.flush());
    let counters = || setup.ethernet(1).counters();
    pair.until("the forged packets", |_, _| counters().rejected >= 19);
    while port.completed().is_some() {}
    assert!(pair.far.lost.is_empty() && pair.far.messages.is_empty());
    let mut found = [1; 4096];
    far.region().read(0, &mut found);
    assert_eq!(found, [0; 4096]);
    let write = Work::Write {
        from: Source::Inline(b"right"),
        to: remote.at(0),
        immediate: None,
    };
    assert_eq!(pair.carry_out(1, write), Ok(0));
}

/// Keys of two nodes, which go with the value.
struct Keys(std::path::PathBuf);

impl Keys {
    fn new(test: &str) -> Keys {
        let name = format!("tako-attached-{test}-{}", std::process::id());
        let keys = Keys(std::env::temp_dir().join(name));
        connections::keys::init(&keys.0, "a").unwrap();
        connections::keys::issue(&keys.0, "b", connections::keys::usual_validity()).unwrap();
        keys
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn node(keys: &std::path::Path, transports: &Transports) -> control::Local {
    control::Local {
        identity: control::Identity::load(keys).unwrap(),
        offers: transports.offers().clone(),
        options: control::Options::default(),
    }
}

fn transports(interface: &str) -> Transports {
    transports_with(EthernetOptions {
        interface: Some(interface.into()),
        ..options()
    })
}

fn transports_with(ethernet: EthernetOptions) -> Transports {
    Transports::open(&Wanted {
        ethernet,
        ..Wanted::default()
    })
    .unwrap()
}

/// A node on host 1 that accepts a caller, and one on host 0 that dials it at an address. The dialer's choice.
fn chosen(link: &Link, keys: &Keys, address: &str, interface: &str) -> String {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let listening = scope.spawn(move || {
            link.enter(1);
            let mut transports = transports(INTERFACE);
            let local = node(&keys.0.join("b"), &transports);
            let listen = [control::Address::Tcp(
                format!("{address}:0").parse().unwrap(),
            )];
            let mut listener = control::Listener::bind(&listen, local).unwrap();
            tell.send(listener.addresses()[0].clone()).unwrap();
            let caller = listener.accept(PATIENCE).unwrap().expect("a caller");
            let session = caller.establish(&mut transports.queues()).unwrap();
            let provider = session.choice().provider;
            let queue = transports.queue(provider).unwrap();
            let mut events = Vec::new();
            while !matches!(events.last(), Some(Event::Message(_))) {
                queue.wait(&mut events, PATIENCE);
            }
            // The acknowledgement is sent before the end.
            queue.poll(&mut events);
        });
        link.enter(0);
        let mut transports = transports(interface);
        let local = node(&keys.0.join("a"), &transports);
        let address = told.recv().unwrap();
        let session = control::dial(&address, Some("b"), &local, &mut transports.queues()).unwrap();
        let queue = transports.queue(session.choice().provider).unwrap();
        let request = WorkRequest::new(1, ball(b"over the link"));
        queue.post(session.endpoint(), &request).unwrap();
        queue.submit();
        let mut events = Vec::new();
        while !listening.is_finished() {
            queue.poll(&mut events);
        }
        listening.join().unwrap();
        session.choice().to_string()
    })
}

#[test]
fn hosts_on_one_link_choose_ethernet_and_others_say_why_not() {
    let link = Link::pair();
    link.ip(0, &format!("address add 10.88.0.1/24 dev {INTERFACE}"));
    link.ip(0, "link add other0 type veth peer name other1");
    link.ip(0, "link set other0 up");
    link.ip(1, &format!("address add 10.88.0.2/24 dev {INTERFACE}"));
    let keys = Keys::new("chosen");
    let same = chosen(&link, &keys, "10.88.0.2", INTERFACE);
    assert!(same.starts_with("ethernet ("), "{same}");
    let other = chosen(&link, &keys, "10.88.0.2", "other0");
    assert!(other.starts_with("tcp ("), "{other}");
    let reason = "not ethernet: a: 10.88.0.2 is not on the link of other0";
    assert!(other.contains(reason), "{other}");
}

/// The listener of a node on host 1, which joins all callers.
fn join_callers(link: &Link, keys: &Keys, tell: &Sender<control::Address>, ended: &AtomicBool) {
    link.enter(1);
    let mut transports = transports(INTERFACE);
    let local = node(&keys.0.join("b"), &transports);
    let address = "10.89.0.2:0".parse().unwrap();
    let mut listener = control::Listener::bind(&[control::Address::Tcp(address)], local).unwrap();
    tell.send(listener.addresses()[0].clone()).unwrap();
    let mut sessions = Vec::new();
    while !ended.load(Ordering::Acquire) {
        if let Some(caller) = listener.accept(Duration::from_millis(10)).unwrap() {
            sessions.extend(caller.establish(&mut transports.queues()));
        }
        for queue in transports.queues() {
            queue.poll(&mut Vec::new());
        }
    }
}

#[test]
fn a_host_without_frames_is_reached_by_tcp() {
    let link = Link::pair();
    link.ip(0, &format!("address add 10.89.0.1/24 dev {INTERFACE}"));
    link.ip(1, &format!("address add 10.89.0.2/24 dev {INTERFACE}"));
    let keys = Keys::new("unreached");
    let ended = AtomicBool::new(false);
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| join_callers(&link, &keys, &tell, &ended));
        link.enter(0);
        let mut transports = transports_with(EthernetOptions {
            lost_after: Duration::from_secs(1),
            faults: FrameFaults {
                loss_permille: 1000,
                ..FrameFaults::default()
            },
            ..options()
        });
        let local = node(&keys.0.join("a"), &transports);
        let address = told.recv().unwrap();
        let mut dial = || {
            let session = control::dial(&address, Some("b"), &local, &mut transports.queues());
            let session = session.unwrap();
            let provider = session.choice().provider;
            let mut events = Vec::new();
            while provider == Provider::Ethernet && events.is_empty() {
                let queue = transports.queue(provider).unwrap();
                queue.wait(&mut events, PATIENCE);
            }
            session.choice().to_string()
        };
        let first = dial();
        assert!(first.starts_with("ethernet ("), "{first}");
        let second = dial();
        ended.store(true, Ordering::Release);
        assert!(second.starts_with("tcp ("), "{second}");
        let reason = "not ethernet: a: frames from 10.89.0.2 did not come to tako0";
        assert!(second.contains(reason), "{second}");
    });
}

/// The kernel keeps 256 bytes of the 4096 that each frame has.
#[test]
fn packets_are_as_long_as_the_mtu_allows() {
    const LENGTH: usize = 100_000;
    let link = Link::pair();
    for host in 0..2 {
        link.ip(host, &format!("link set {INTERFACE} mtu 9000"));
    }
    let setup = super::link::OnLink::over(link, options());
    let mut pair = Pair::new(&setup);
    let longest = match pair.near.device.capabilities().multicast {
        Multicast::Lossy { bytes, .. } => bytes,
        other => panic!("{other:?}"),
    };
    assert!((3700..3840).contains(&longest), "{longest}");
    let far = pair.far.memory(LENGTH as u64, Access::ALL);
    let remote = pair.import(&far);
    let near = pair.near.memory(2 * LENGTH as u64, Access::LOCAL);
    let bytes: Vec<u8> = (0..LENGTH).map(|at| (at / 7) as u8).collect();
    near.region().write(0, &bytes);
    let written = [near.piece(0, LENGTH as u32)];
    let write = Work::Write {
        from: Source::Pieces(&written),
        to: remote.at(0),
        immediate: None,
    };
    assert_eq!(pair.carry_out(1, write), Ok(0));
    let into = [near.piece(LENGTH as u64, LENGTH as u32)];
    let read = Work::Read {
        into: &into,
        from: remote.at(0),
    };
    assert_eq!(pair.carry_out(2, read), Ok(0));
    let mut found = vec![0; LENGTH];
    near.region().read(LENGTH as u64, &mut found);
    assert!(found == bytes);
}
