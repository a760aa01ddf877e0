//! Peers in other processes, and on other hosts as far as a network namespace is one.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use fabric::tcp::{Tcp, TcpOptions};
use fabric::{
    Event, Failure, GroupAddress, GroupId, Origin, Parameters, Peer, Queue, QueueOptions, Role,
    Source,
};

use super::namespaces::{ADDRESSES, Hosts, ip};
use super::{PATIENCE, hasty, message, open_with, options, peer, until};

const CHILD: &str = "TAKO_TEST_TCP_CHILD";

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len() / 2).map(|index| digits(2 * index)).collect()
}

fn parameters(bytes: Vec<u8>) -> Parameters {
    Parameters {
        bytes,
        descriptors: Vec::new(),
    }
}

/// The other process: sends a message, and then waits to be killed.
fn child(role: Role) {
    let (_device, mut queue) = open_with(options(), QueueOptions::default());
    let (endpoint, own) = queue.offer().unwrap();
    println!("parameters {}", hexadecimal(&own.bytes));
    let line = std::io::stdin().lines().next().unwrap().unwrap();
    queue
        .accept(endpoint, role, peer(parameters(bytes(&line))))
        .unwrap();
    queue.post(endpoint, &message(1, b"here I am")).unwrap();
    let mut events = Vec::new();
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        queue.wait(&mut events, Duration::from_secs(1));
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How long it takes to detect that the process of a peer in this role was killed.
fn kill_a_peer(role: Role, name: &str) -> Duration {
    let (_device, mut queue) = open_with(options(), QueueOptions::default());
    let (endpoint, own) = queue.offer().unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map(Killed)
        .unwrap();
    let lines = BufReader::new(other.0.stdout.take().unwrap()).lines();
    let line = lines
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("parameters ")?.1.to_owned()))
        .unwrap();
    let mut input = other.0.stdin.take().unwrap();
    writeln!(input, "{}", hexadecimal(&own.bytes)).unwrap();
    let own_role = match role {
        Role::Dialer => Role::Listener,
        Role::Listener => Role::Dialer,
    };
    let told = peer(parameters(bytes(&line)));
    queue.accept(endpoint, own_role, told).unwrap();
    until("a message", &mut [&mut queue], |_, event| match event {
        Event::Message(message) => message.to_vec() == b"here I am",
        other => panic!("{other:?}"),
    });
    queue.post(endpoint, &message(1, b"and you?")).unwrap();
    drop(other);
    let killed = Instant::now();
    let mut events = Vec::new();
    loop {
        queue.wait(&mut events, PATIENCE);
        for event in events.drain(..) {
            match event {
                Event::Done(done) => assert_eq!(done.outcome, Err(Failure::Flushed)),
                Event::Lost(id, failure) => {
                    assert_eq!((id, failure), (endpoint, Failure::PeerLost));
                    return killed.elapsed();
                }
                Event::Message(message) => panic!("{message:?}"),
            }
        }
        assert!(killed.elapsed() < PATIENCE);
    }
}

#[test]
fn a_killed_listener_is_noticed_at_once() {
    if std::env::var_os(CHILD).is_some() {
        return child(Role::Listener);
    }
    let took = kill_a_peer(
        Role::Listener,
        "hosts::a_killed_listener_is_noticed_at_once",
    );
    assert!(took < PATIENCE, "{took:?}");
}

#[test]
fn a_killed_dialer_is_noticed_at_once() {
    if std::env::var_os(CHILD).is_some() {
        return child(Role::Dialer);
    }
    let took = kill_a_peer(Role::Dialer, "hosts::a_killed_dialer_is_noticed_at_once");
    assert!(took < PATIENCE, "{took:?}");
}

fn open_on(hosts: &Hosts, side: usize) -> (Tcp, Queue) {
    hosts.enter(side);
    let device = Tcp::new(TcpOptions {
        address: IpAddr::V4(ADDRESSES[side]),
        ..hasty()
    });
    let queue = Queue::open(&device, QueueOptions::default()).unwrap();
    (device, queue)
}

type Told = (Sender<Vec<u8>>, Receiver<Vec<u8>>);

/// Joins two hosts, each in a separate thread.
fn join_hosts(queue: &mut Queue, side: usize, (tell, told): &Told) -> fabric::EndpointId {
    let (endpoint, own) = queue.offer().unwrap();
    tell.send(own.bytes).unwrap();
    let role = [Role::Dialer, Role::Listener][side];
    let other = Peer {
        address: Some(IpAddr::V4(ADDRESSES[1 - side])),
        ..peer(parameters(told.recv().unwrap()))
    };
    queue.accept(endpoint, role, other).unwrap();
    endpoint
}

/// Waits for the other host. A side that stops polling polls once more, so that its outstanding data is sent.
fn meet(queue: &mut Queue, (tell, told): &Told) {
    let mut events = Vec::new();
    queue.poll(&mut events);
    assert!(events.is_empty(), "{events:?}");
    tell.send(Vec::new()).unwrap();
    told.recv().unwrap();
}

fn on_two_hosts(hosts: &Hosts, act: impl Fn(usize, Told) + Sync) {
    let (tell_b, told_b) = channel();
    let (tell_a, told_a) = channel();
    let told = [(tell_b, told_a), (tell_a, told_b)];
    std::thread::scope(|scope| {
        for (side, told) in told.into_iter().enumerate() {
            let act = &act;
            scope.spawn(move || {
                hosts.enter(side);
                act(side, told);
            });
        }
    });
}

#[test]
fn messages_and_groups_reach_another_host() {
    let hosts = Hosts::new("reach");
    on_two_hosts(&hosts, |side, told| {
        let (_device, mut queue) = open_on(&hosts, side);
        let group = GroupId(3);
        let meets = GroupAddress {
            listens: true,
            is_unchecked: false,
            address: Ipv4Addr::new(239, 77, 0, 1),
            port: 7077,
            interface: ADDRESSES[side],
        };
        queue.join(group, meets).unwrap();
        let endpoint = join_hosts(&mut queue, side, &told);
        queue.post(endpoint, &message(1, b"over the link")).unwrap();
        let mut rest = 2;
        until("both", &mut [&mut queue], |_, event| {
            match event {
                Event::Message(message) => assert_eq!(message.to_vec(), b"over the link"),
                Event::Done(done) => assert_eq!(done.outcome, Ok(0)),
                Event::Lost(_, failure) => panic!("{failure}"),
            }
            rest -= 1;
            rest == 0
        });
        // Both are members now.
        meet(&mut queue, &told);
        queue
            .send_to_group(group, Source::Inline(b"to all"), side as u32)
            .unwrap();
        until("a message of the group", &mut [&mut queue], |_, event| {
            match event {
                Event::Message(message) => {
                    assert_eq!(message.origin, Origin::Group(group));
                    assert_eq!(message.immediate, Some(1 - side as u32));
                    assert_eq!(message.to_vec(), b"to all");
                }
                other => panic!("{other:?}"),
            }
            true
        });
        // The side that is done first must not end before the other is.
        meet(&mut queue, &told);
    });
}

#[test]
fn a_host_that_is_cut_off_is_lost_by_both_within_bounds() {
    let hosts = Hosts::new("cut");
    on_two_hosts(&hosts, |side, told| {
        let (_device, mut queue) = open_on(&hosts, side);
        let endpoint = join_hosts(&mut queue, side, &told);
        queue.post(endpoint, &message(1, b"before")).unwrap();
        let mut rest = 2;
        until("both", &mut [&mut queue], |_, event| {
            assert!(!matches!(event, Event::Lost(..)), "{event:?}");
            rest -= 1;
            rest == 0
        });
        meet(&mut queue, &told);
        if side == 0 {
            assert!(ip(&format!("-n {} link set veth down", hosts.names[0])));
        }
        meet(&mut queue, &told);
        let cut = Instant::now();
        // One side has something to send, the other only receives.
        if side == 0 {
            queue.post(endpoint, &message(2, b"after")).unwrap();
            queue.submit();
        }
        let mut events = Vec::new();
        loop {
            queue.wait(&mut events, PATIENCE);
            let lost = |event: &Event| matches!(event, Event::Lost(_, Failure::PeerLost));
            if events.iter().any(lost) {
                break;
            }
            assert!(cut.elapsed() < PATIENCE, "{events:?}");
        }
    });
}
