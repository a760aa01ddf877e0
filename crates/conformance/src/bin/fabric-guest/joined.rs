//! Between three guests, as nodes of a cluster meet: control connections with keys, the transport that is chosen then, and
//! what becomes of it when a network or a machine is gone. The first guest leads.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use connections::choice::Choice;
use connections::control::{self, Address, Identity, Listener, Local, Note, PeerSession, dial};
use connections::keys;
use connections::transports::{Transports, Wanted};
use fabric::{
    Access, EndpointId, Event, Failure, GroupAddress, GroupId, Origin, Provider, Queue,
    QueueOptions, Registration, RemoteRegion, Source, Work, WorkRequest,
};
use pmem::Region;

use crate::Cases;
use crate::faults::{LONG, NOTICED_WITHIN, system};

const NAMES: [&str; 3] = ["a", "b", "c"];
const KEYS: &str = "/lab/keys";
const LENGTH: u64 = 1 << 20;
/// Written data and its position.
const DATA: u32 = 100_000;
const AT: u64 = 4096;
const GROUP: GroupId = GroupId(1);

/// Keys for all guests.
pub fn make_keys(directory: &Path) {
    keys::init(directory, NAMES[0]).unwrap();
    for name in &NAMES[1..] {
        keys::issue(directory, name, keys::usual_validity()).unwrap();
    }
}

pub fn run(cases: &mut Cases, number: usize) {
    let name = NAMES[number - 1];
    if number == 1 {
        lead(cases, name);
    } else {
        cases.run(&format!("fabric: {name} serves {}", NAMES[0]), || {
            serve(name);
        });
    }
}

fn pattern(seed: u64) -> Vec<u8> {
    (0..u64::from(DATA))
        .map(|at| (at * 7 + seed) as u8 ^ (at >> 8) as u8)
        .collect()
}

/// A node, and the peers that it has sessions with.
struct Guest {
    transports: Transports,
    local: Local,
    memory: Registration,
    events: Vec<Event>,
}

struct Joined {
    session: PeerSession,
    remote: RemoteRegion,
}

impl Joined {
    fn id(&self) -> EndpointId {
        self.session.endpoint()
    }
}

impl Guest {
    fn new(name: &str) -> Guest {
        let wanted = Wanted {
            queues: QueueOptions {
                spin_max: Duration::ZERO,
                ..QueueOptions::default()
            },
            ..Wanted::default()
        };
        let transports = Transports::open(&wanted).unwrap();
        let region = Region::memory(LENGTH, false).unwrap();
        let device = transports.device(Provider::Verbs).expect("an adapter");
        let memory = device.register(&region, Access::ALL).unwrap();
        let local = Local {
            identity: Identity::load(&Path::new(KEYS).join(name)).unwrap(),
            offers: transports.offers().clone(),
            options: control::Options {
                step_timeout: LONG,
                ..control::Options::default()
            },
        };
        let mut node = Guest {
            transports,
            local,
            memory,
            events: Vec::new(),
        };
        let address = GroupAddress {
            listens: true,
            is_unchecked: false,
            address: Ipv4Addr::new(239, 1, 2, 7),
            port: 0,
            interface: Ipv4Addr::UNSPECIFIED,
        };
        node.queue().join(GROUP, address).unwrap();
        node
    }

    fn queue(&mut self) -> &mut Queue {
        self.transports.queue(Provider::Verbs).expect("an adapter")
    }

    /// Exchanges memory over a new session.
    fn exchange(&mut self, mut session: PeerSession) -> Joined {
        assert_eq!(session.choice().provider, Provider::Verbs);
        let (memory, queue) = (self.memory.clone(), self.queue());
        // The listener waits until the other side is ready.
        if session.identity().node == NAMES[0] {
            session.export(queue, 1, &memory).unwrap();
        }
        loop {
            match session.receive(queue, LONG).unwrap() {
                Some(Note::Ready) => session.export(queue, 1, &memory).unwrap(),
                Some(Note::Exported { region, .. }) => {
                    let remote = region;
                    return Joined { session, remote };
                }
                note => panic!("{note:?}"),
            }
        }
    }

    /// Waits for the next thing that happens.
    fn next(&mut self) -> Event {
        let start = Instant::now();
        while self.events.is_empty() {
            assert!(start.elapsed() < LONG, "nothing happens");
            let mut events = std::mem::take(&mut self.events);
            self.queue().wait(&mut events, LONG);
            self.events = events;
        }
        self.events.remove(0)
    }

    /// Waits for a message of a peer.
    fn hear(&mut self, from: &Joined) -> Vec<u8> {
        match self.next() {
            Event::Message(message) if message.origin == Origin::Endpoint(from.id()) => {
                message.to_vec()
            }
            event => panic!("{event:?}"),
        }
    }

    fn say(&mut self, to: &Joined, bytes: &[u8]) {
        let send = Work::Send {
            from: Source::Inline(bytes),
            immediate: None,
        };
        let queue = self.queue();
        queue
            .post(to.id(), &WorkRequest::new(1, send).quiet())
            .unwrap();
        queue.submit();
    }

    fn carry_out(&mut self, at: &Joined, operation: Work<'_>) -> u64 {
        let queue = self.queue();
        queue
            .post(at.id(), &WorkRequest::new(1, operation))
            .unwrap();
        queue.submit();
        match self.next() {
            Event::Done(completion) => completion.outcome.unwrap(),
            event => panic!("{event:?}"),
        }
    }

    /// Waits until a peer is found to be gone, which must not take long.
    fn lose(&mut self, peer: &Joined, what: &str) {
        let start = Instant::now();
        loop {
            match self.next() {
                Event::Lost(id, failure) => {
                    assert_eq!((id, failure), (peer.id(), Failure::PeerLost));
                    break;
                }
                Event::Done(completion) => assert!(completion.outcome.is_err()),
                event => panic!("{event:?}"),
            }
        }
        let took = start.elapsed();
        assert!(took < NOTICED_WITHIN, "{took:?}");
        println!("figure {what}: noticed after {} ms", took.as_millis());
    }
}

fn lead(cases: &mut Cases, name: &str) {
    let mut node = Guest::new(name);
    let mut listener = Listener::bind(&[leader()], node.local.clone()).unwrap();
    let mut peers = [
        meet(&mut node, &mut listener),
        meet(&mut node, &mut listener),
    ];
    peers.sort_by_key(|peer| peer.session.identity().node.clone());
    cases.run("fabric: reads, writes and atomics between guests", || {
        one_sided(&mut node, &peers[0], 1);
        one_sided(&mut node, &peers[1], 2);
    });
    cases.run("fabric: messages between guests", || {
        messages(&mut node, &peers[0]);
        messages(&mut node, &peers[1]);
    });
    cases.run("fabric: one send to two guests", || {
        group(&mut node, &peers)
    });
    let [mut second, third] = peers;
    cases.run("fabric: a guest with a cut link rejoins", || {
        node.say(&second, b"cut");
        node.lose(&second, "a cut link");
        messages(&mut node, &third);
        second = meet(&mut node, &mut listener);
        assert_eq!(second.session.identity().node, NAMES[1]);
        one_sided(&mut node, &second, 3);
    });
    cases.run("fabric: a guest that is killed", || {
        node.say(&third, b"die");
        node.lose(&third, "a killed guest");
        one_sided(&mut node, &second, 4);
        node.say(&second, b"end");
        assert_eq!(node.hear(&second), b"ended");
    });
}

fn leader() -> Address {
    Address::Tcp((Ipv4Addr::new(10, 0, 0, 1), 7100).into())
}

fn is_expected(choice: &Choice, other: &str) {
    let text = format!("verbs (not shm: {other} is on another host)");
    assert_eq!(choice.to_string(), text);
}

fn meet(node: &mut Guest, listener: &mut Listener) -> Joined {
    let caller = listener.accept(LONG).unwrap().expect("a caller");
    let session = caller.establish(&mut node.transports.queues()).unwrap();
    is_expected(session.choice(), NAMES[0]);
    println!("figure {}: {}", session.identity(), session.choice());
    node.exchange(session)
}

/// Written data is there, and is read back; words change correctly.
fn one_sided(node: &mut Guest, peer: &Joined, seed: u64) {
    let memory = node.memory.clone();
    memory.region().write(AT, &pattern(seed));
    let from = [memory.piece(AT, DATA)];
    node.carry_out(
        peer,
        Work::Write {
            from: Source::Pieces(&from),
            to: peer.remote.at(AT),
            immediate: None,
        },
    );
    let back = AT + u64::from(DATA).next_multiple_of(4096);
    let into = [memory.piece(back, DATA)];
    let from = peer.remote.at(AT);
    node.carry_out(peer, Work::Read { into: &into, from });
    let mut bytes = vec![0; DATA as usize];
    memory.region().read(back, &mut bytes);
    assert!(bytes == pattern(seed), "not what was written is read");
    node.say(peer, format!("check {seed}").as_bytes());
    assert_eq!(node.hear(peer), b"right");

    let at = peer.remote.at(0);
    let add = Work::FetchAndAdd { at, addend: 5 };
    let before = node.carry_out(peer, add);
    let swap = |expected, new| Work::CompareAndSwap { at, expected, new };
    assert_eq!(node.carry_out(peer, swap(before, 1)), before + 5);
    assert_eq!(node.carry_out(peer, swap(before + 5, before)), before + 5);
    assert_eq!(node.carry_out(peer, swap(before, before)), before);
}

/// More than there are credits.
fn messages(node: &mut Guest, peer: &Joined) {
    for round in 0..50_u32 {
        let bytes = format!("echo {round}");
        node.say(peer, bytes.as_bytes());
        assert_eq!(node.hear(peer), bytes.as_bytes());
    }
}

/// One send reaches both. Datagrams can be lost: then it is sent again.
fn group(node: &mut Guest, peers: &[Joined; 2]) {
    let start = Instant::now();
    let mut heard = [false; 2];
    while heard != [true; 2] {
        assert!(start.elapsed() < LONG, "the group is not reached");
        node.queue()
            .send_to_group(GROUP, Source::Inline(b"to all"), 9)
            .unwrap();
        let until = Instant::now() + Duration::from_secs(1);
        while heard != [true; 2] && Instant::now() < until {
            let mut events = std::mem::take(&mut node.events);
            let left = until.saturating_duration_since(Instant::now());
            node.queue().wait(&mut events, left);
            for event in events.drain(..) {
                heard[said(event, peers, b"heard").expect("an answer")] = true;
            }
        }
    }
    // Each answers all that came to it, in order: behind these answers there are no others.
    peers.iter().for_each(|peer| node.say(peer, b"echo all"));
    let mut done = [false; 2];
    while done != [true; 2] {
        let event = node.next();
        if let Some(peer) = said(event, peers, b"echo all") {
            done[peer] = true;
        }
    }
}

/// The peer that sent that; nothing for another message.
fn said(event: Event, peers: &[Joined; 2], what: &[u8]) -> Option<usize> {
    let Event::Message(message) = event else {
        panic!("{event:?}");
    };
    let is_from = |peer: &Joined| message.origin == Origin::Endpoint(peer.id());
    let peer = peers.iter().position(is_from).expect("a peer");
    (message.to_vec() == what).then_some(peer)
}

/// Connects to the leader, which may not be there yet, or not yet again.
fn join(node: &mut Guest) -> Joined {
    let start = Instant::now();
    loop {
        let local = node.local.clone();
        let session = dial(
            &leader(),
            Some(NAMES[0]),
            &local,
            &mut node.transports.queues(),
        );
        match session {
            Ok(session) => {
                is_expected(session.choice(), NAMES[0]);
                return node.exchange(session);
            }
            Err(error) => assert!(start.elapsed() < LONG, "{error}"),
        }
    }
}

fn serve(name: &str) {
    let mut node = Guest::new(name);
    let mut leader = join(&mut node);
    loop {
        let message = match node.next() {
            Event::Message(message) => message,
            event => panic!("{event:?}"),
        };
        if message.origin == Origin::Group(GROUP) {
            assert_eq!(
                (message.immediate, &*message.to_vec()),
                (Some(9), &b"to all"[..])
            );
            node.say(&leader, b"heard");
            continue;
        }
        let bytes = message.to_vec();
        drop(message);
        let text = String::from_utf8(bytes).unwrap();
        match text.split_once(' ').unwrap_or((&text, "")) {
            ("echo", _) => node.say(&leader, text.as_bytes()),
            ("check", seed) => {
                let mut bytes = vec![0; DATA as usize];
                node.memory.region().read(AT, &mut bytes);
                let is_right = bytes == pattern(seed.parse().unwrap());
                node.say(&leader, if is_right { b"right" } else { b"wrong" });
            }
            ("cut", _) => {
                system("/bin/ip link set eth0 down");
                node.lose(&leader, "the own link that is cut");
                system("/bin/ip link set eth0 up");
                leader = join(&mut node);
            }
            ("die", _) => {
                // To the lab, which waits for this, it ends as it should.
                println!("ended 0");
                std::fs::write("/proc/sysrq-trigger", "b").unwrap();
            }
            ("end", _) => {
                node.say(&leader, b"ended");
                // The leader closes its side once it has that.
                node.lose(&leader, "the end");
                return;
            }
            _ => panic!("{text}"),
        }
    }
}
