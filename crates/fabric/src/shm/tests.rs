//! Tests that need two threads or two processes, or a malicious peer.

mod link;
mod shortened;

use std::time::{Duration, Instant};

use pmem::{LINE, Region};

use self::link::{Link, Other};
use super::*;
use crate::{
    EndpointId, Event, Failure, Origin, Parameters, Peer, Queue, QueueOptions, Refusal, Role,
    Source, Work, WorkRequest,
};

/// Time limit of a step.
const PATIENCE: Duration = Duration::from_secs(120);
/// So long that a wake-up which was lost is noticed.
const NO_NAP: Duration = Duration::from_secs(3600);

fn peer(parameters: Parameters) -> Peer {
    Peer {
        parameters,
        address: None,
        process: None,
    }
}

/// Two queues of this process.
fn join(near: &mut Queue, far: &mut Queue) -> (EndpointId, EndpointId) {
    let (to_far, ours) = near.offer().unwrap();
    let (to_near, theirs) = far.offer().unwrap();
    far.accept(to_near, Role::Listener, peer(ours)).unwrap();
    near.accept(to_far, Role::Dialer, peer(theirs)).unwrap();
    (to_far, to_near)
}

fn send(bytes: &[u8]) -> Work<'_> {
    Work::Send {
        from: Source::Inline(bytes),
        immediate: None,
    }
}

/// Posts as soon as there is room.
fn post(queue: &mut Queue, to: EndpointId, request: &WorkRequest<'_>) {
    let start = Instant::now();
    let mut events = Vec::new();
    loop {
        match queue.post(to, request) {
            Ok(()) => return queue.submit(),
            Err(Refusal::Held) => queue.wait(&mut events, Duration::from_secs(1)),
            Err(refusal) => panic!("{refusal}"),
        };
        assert!(
            start.elapsed() < PATIENCE && events.is_empty(),
            "{events:?}"
        );
    }
}

/// Polls until there is an event.
fn await_event(queue: &mut Queue) -> Event {
    let mut events = Vec::new();
    let count = queue.wait(&mut events, PATIENCE);
    assert_eq!(count, 1, "{events:?}");
    events.remove(0)
}

fn await_message(queue: &mut Queue) -> Vec<u8> {
    match await_event(queue) {
        Event::Message(message) => message.to_vec(),
        other => panic!("{other:?}"),
    }
}

fn await_loss(queue: &mut Queue) -> (EndpointId, Failure) {
    loop {
        if let Event::Lost(id, failure) = await_event(queue) {
            return (id, failure);
        }
    }
}

fn sleeping() -> QueueOptions {
    QueueOptions {
        spin_max: Duration::ZERO,
        ..QueueOptions::default()
    }
}

/// Answers each message with itself, until all peers are lost.
fn echo(queue: &mut Queue, mut peers: usize) {
    let mut events = Vec::new();
    while peers > 0 {
        queue.wait(&mut events, PATIENCE);
        for event in events.drain(..) {
            match event {
                Event::Message(message) => {
                    let Origin::Endpoint(to) = message.origin else {
                        panic!("{message:?}");
                    };
                    let bytes = message.to_vec();
                    post(queue, to, &WorkRequest::new(0, send(&bytes)).quiet());
                }
                Event::Lost(..) => peers -= 1,
                // An answer without a report of its completion.
                Event::Done(done) => assert_eq!(done.outcome, Err(Failure::Flushed)),
            }
        }
    }
}

fn ping(queue: &mut Queue, to: EndpointId, count: u64) {
    for number in 0..count {
        let bytes = number.to_le_bytes();
        post(queue, to, &WorkRequest::new(number, send(&bytes)).quiet());
        assert_eq!(await_message(queue), bytes);
    }
}

#[test]
fn no_wake_up_is_lost_between_processes() {
    let device = Shm::with(NO_NAP).unwrap();
    let mut queue = Queue::open(&device, sleeping()).unwrap();
    if let Some(mut link) = Link::to_parent() {
        link.join(&mut queue, Role::Listener);
        return echo(&mut queue, 1);
    }
    let mut other = Other::start("shm::tests::no_wake_up_is_lost_between_processes");
    let to = other.link.join(&mut queue, Role::Dialer);
    ping(&mut queue, to, 100_000);
    assert!(queue.counters().slept > 50_000, "{:?}", queue.counters());
    queue.close(to);
    other.ends();
}

#[test]
fn no_wake_up_is_lost_between_threads_that_look_for_a_while() {
    let device = Shm::with(NO_NAP).unwrap();
    let options = QueueOptions {
        spin_max: Duration::from_micros(3),
        ..QueueOptions::default()
    };
    let mut near = Queue::open(&device, options).unwrap();
    let mut far = Queue::open(&device, options).unwrap();
    let (to_far, _) = join(&mut near, &mut far);
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&mut far, 1));
        ping(&mut near, to_far, 80_000);
        near.close(to_far);
    });
}

#[test]
fn dropped_messages_among_many_held_ones_return() {
    let device = Shm::new().unwrap();
    let options = QueueOptions {
        window: 64,
        ..sleeping()
    };
    let mut near = Queue::open(&device, options).unwrap();
    let mut far = Queue::open(&device, options).unwrap();
    let (to_far, _) = join(&mut near, &mut far);
    let mut messages = Vec::new();
    for number in 0..64u64 {
        let bytes = number.to_le_bytes();
        post(
            &mut near,
            to_far,
            &WorkRequest::new(number, send(&bytes)).quiet(),
        );
        far.poll(&mut messages);
    }
    assert_eq!(messages.len(), 64);
    let more = WorkRequest::new(64, send(b"more")).quiet();
    near.poll(&mut Vec::new());
    assert_eq!(near.post(to_far, &more), Err(Refusal::Held));
    // Those behind many that stay: a few polls find them, and a sleeper has found them all.
    messages.truncate(32);
    let mut events = Vec::new();
    for _ in 0..4 {
        far.poll(&mut events);
    }
    near.poll(&mut events);
    assert_eq!(near.post(to_far, &more), Ok(()));
    messages.clear();
    let before = far.counters().credits_told;
    assert_eq!(far.wait(&mut events, PATIENCE), 1, "{events:?}");
    assert!(far.counters().credits_told > before);
}

/// Work of the process that is to be killed.
fn be_killed(link: &mut Link, queue: &mut Queue) {
    let to = link.join(queue, Role::Listener);
    let region = Region::memory(1 << 20, false).unwrap();
    let way = link.hear();
    link.say("ready");
    match way.as_str() {
        "sends" => loop {
            let mut events = Vec::new();
            queue.poll(&mut events);
            let bytes = [7; 1000];
            let _ = queue.post(to, &WorkRequest::new(0, send(&bytes)).quiet());
            queue.submit();
        },
        "sleeps" => loop {
            queue.wait(&mut Vec::new(), PATIENCE);
        },
        "writes" => {
            let remote = link.import(queue, to);
            loop {
                let mut events = Vec::new();
                queue.poll(&mut events);
                region.write(0, &[9; 4096]);
                let write = Work::Write {
                    from: Source::Inline(&[9; 4096]),
                    to: remote.at(0),
                    immediate: Some(4),
                };
                let _ = queue.post(to, &WorkRequest::new(0, write).quiet());
                queue.submit();
            }
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_peer_that_is_killed_is_noticed_whatever_it_did() {
    let device = Shm::with(NO_NAP).unwrap();
    if let Some(mut link) = Link::to_parent() {
        let mut queue = Queue::open(&device, QueueOptions::default()).unwrap();
        return be_killed(&mut link, &mut queue);
    }
    for round in 0..24 {
        let mut queue = Queue::open(&device, sleeping()).unwrap();
        let mut third = Queue::open(&device, QueueOptions::default()).unwrap();
        let mut other =
            Other::start("shm::tests::a_peer_that_is_killed_is_noticed_whatever_it_did");
        let to = other.link.join(&mut queue, Role::Dialer);
        let (to_third, _) = join(&mut queue, &mut third);
        let memory = Region::memory(1 << 20, false).unwrap();
        let memory = device.register(&memory, Access::ALL).unwrap();
        other.link.say(["sends", "sleeps", "writes"][round % 3]);
        assert_eq!(other.link.hear(), "ready");
        if round % 3 == 2 {
            other.link.export(&mut queue, to, &memory);
        }
        let start = Instant::now();
        let moment = Duration::from_micros(137 * round as u64);
        let mut events = Vec::new();
        while start.elapsed() < moment {
            queue.poll(&mut events);
            events.clear();
        }
        other.child.kill().unwrap();
        loop {
            queue.wait(&mut events, PATIENCE);
            assert!(start.elapsed() < PATIENCE);
            let lost = events
                .drain(..)
                .find(|event| !matches!(event, Event::Message(_)));
            match lost {
                Some(Event::Lost(id, Failure::PeerLost)) if id == to => break,
                None => {}
                other => panic!("{other:?}"),
            }
        }
        post(
            &mut queue,
            to_third,
            &WorkRequest::new(0, send(b"goes on")).quiet(),
        );
        assert_eq!(await_message(&mut third), b"goes on");
        if round % 3 == 2 {
            assert!(device.revoke(&memory).is_some(), "its holder is gone");
        }
    }
    let start = Instant::now();
    while device.0.watcher.is_running() {
        assert!(start.elapsed() < PATIENCE, "there is nothing to watch");
        std::thread::yield_now();
    }
}

#[test]
fn memory_that_a_process_was_given_is_free_when_it_is_gone() {
    let device = Shm::new().unwrap();
    let mut queue = Queue::open(&device, sleeping()).unwrap();
    if let Some(mut link) = Link::to_parent() {
        let to = link.join(&mut queue, Role::Listener);
        let remote = link.import(&mut queue, to);
        let add = Work::FetchAndAdd {
            at: remote.at(8),
            addend: 5,
        };
        post(&mut queue, to, &WorkRequest::new(1, add));
        assert!(matches!(await_event(&mut queue), Event::Done(done) if done.outcome == Ok(0)));
        link.say("added");
        await_loss(&mut queue);
        link.say("lost");
        return assert_eq!(link.hear(), "go");
    }
    let region = Region::memory(4096, false).unwrap();
    let memory = device.register(&region, Access::ALL).unwrap();
    let mut other =
        Other::start("shm::tests::memory_that_a_process_was_given_is_free_when_it_is_gone");
    let to = other.link.join(&mut queue, Role::Dialer);
    other.link.export(&mut queue, to, &memory);
    assert_eq!(other.link.hear(), "added");
    assert_eq!(region.load(8), 5);
    assert!(device.revoke(&memory).is_none());
    assert!(matches!(
        queue.export(to, &memory),
        Err(Error::Memory { .. })
    ));
    queue.close(to);
    assert_eq!(other.link.hear(), "lost");
    // Its endpoint is closed, but its mappings are unknown.
    assert!(device.revoke(&memory).is_none());
    other.link.say("go");
    other.ends();
    assert_eq!(device.revoke(&memory).unwrap().key(), memory.key());
    assert!(
        device.revoke(&memory).is_some(),
        "it can be asked for again"
    );
}

/// The memory is on its way to an endpoint of the same process that is never joined, or only later.
#[test]
fn memory_for_an_absent_peer_is_free_when_the_endpoint_is_closed() {
    let device = Shm::new().unwrap();
    let [mut near, mut far] = [(), ()].map(|()| Queue::open(&device, sleeping()).unwrap());
    let region = Region::memory(4096, false).unwrap();
    for is_late in [false, true] {
        let memory = device.register(&region, Access::ALL).unwrap();
        let (to_far, ours) = near.offer().unwrap();
        let (to_near, theirs) = far.offer().unwrap();
        near.accept(to_far, Role::Listener, peer(theirs)).unwrap();
        let export = near.export(to_far, &memory).unwrap();
        assert!(device.revoke(&memory).is_none(), "it may join yet");
        if !is_late {
            far.close(to_near);
            assert_eq!(await_loss(&mut near), (to_far, Failure::PeerLost));
        }
        near.close(to_far);
        assert!(device.revoke(&memory).is_some(), "no peer has it");
        if is_late {
            far.accept(to_near, Role::Dialer, peer(ours)).unwrap();
            let remote = far.import(to_near, export).unwrap();
            let at = remote.at(8);
            let add = WorkRequest::new(1, Work::FetchAndAdd { at, addend: 5 });
            post(&mut far, to_near, &add);
            let mut events = Vec::new();
            far.wait(&mut events, PATIENCE);
            let refused =
                |event: &Event| matches!(event, Event::Done(done) if done.outcome.is_err());
            assert!(events.iter().any(refused), "{events:?}");
            far.close(to_near);
            assert_eq!(region.load(8), 0);
        }
    }
}

/// The message that held the place has been dropped, and nothing else was asked of the queue since.
#[test]
fn the_only_place_is_used_again() {
    let device = Shm::new().unwrap();
    let options = QueueOptions {
        endpoints: 1,
        ..sleeping()
    };
    let [mut near, mut far] = [(), ()].map(|()| Queue::open(&device, options).unwrap());
    for _ in 0..3 {
        let (to_far, to_near) = join(&mut near, &mut far);
        post(&mut near, to_far, &WorkRequest::new(1, send(b"held")));
        let message = loop {
            if let Event::Message(message) = await_event(&mut far) {
                break message;
            }
        };
        near.close(to_far);
        assert_eq!(await_loss(&mut far), (to_near, Failure::PeerLost));
        drop(message);
    }
}

#[test]
fn memory_that_cannot_be_shared_is_refused() {
    let device = Shm::new().unwrap();
    let simulated = pmem::Simulation::new(4096).region();
    assert!(device.register(&simulated, Access::LOCAL).is_ok());
    let refusal = device.register(&simulated, Access::READ).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "Region(simulated memory, 4096 bytes) cannot be registered with shm: it belongs to this process; use a file \
         or memory"
    );
    let region = Region::memory(4096, false).unwrap();
    let private = Region::attach(region.share(false).unwrap(), 4096, false).unwrap();
    let private = device.register(&private, Access::READ).unwrap();
    let mut queue = Queue::open(&device, sleeping()).unwrap();
    let (to, _) = join_alone(&device, &mut queue);
    assert!(matches!(
        queue.export(to, &private),
        Err(Error::Memory { .. })
    ));
    let elsewhere = Shm::new().unwrap().register(&region, Access::READ).unwrap();
    assert!(matches!(
        queue.export(to, &elsewhere),
        Err(Error::Memory { .. })
    ));
}

fn join_alone(device: &Shm, queue: &mut Queue) -> (EndpointId, Queue) {
    let mut far = Queue::open(device, sleeping()).unwrap();
    (join(queue, &mut far).0, far)
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A peer with a ring and a bell that stores arbitrary values.
struct Liar {
    ring: Region,
    bell: Region,
    random: Random,
    slots: u64,
}

impl Liar {
    fn new(given: &Parameters, window: u32, message_bytes: u32, seed: u64) -> Liar {
        let lines = 2 + u64::from(window) * (1 + u64::from(message_bytes.div_ceil(64) | 1));
        let attach = |index: usize, bytes| {
            let descriptor = given.descriptors[index].try_clone().unwrap();
            Region::attach(descriptor, bytes, true).unwrap()
        };
        Liar {
            ring: attach(0, lines * LINE as u64),
            bell: attach(1, 2 * LINE as u64),
            random: Random(seed),
            slots: window.into(),
        }
    }

    fn lie(&mut self) {
        let random = &mut self.random;
        let word = random.next();
        let line = LINE as u64;
        match random.below(6) {
            0 => self
                .ring
                .store(random.below(self.ring.length() / 8) * 8, word),
            // Almost a header: a tag that may be waited for, and some length.
            1 | 2 => {
                let tag = random.below(2 * self.slots);
                let rest = word >> 32 & random.next() & random.next();
                let slot = 2 + random.below(self.slots);
                self.ring.store(slot * line, tag << 32 | rest);
                self.ring.store(slot * line + 8, word >> random.below(64));
            }
            // Counts of credits and questions.
            3 => self.ring.store(0, word >> random.below(64)),
            4 if random.below(8) == 0 => self.ring.store(8 + 8 * random.below(8), word),
            4 => self.bell.store(0, random.below(3)),
            _ => self.bell.store(line, word),
        }
    }
}

#[test]
fn lies_end_their_own_endpoint_at_most() {
    const WINDOW: u32 = 4;
    const BYTES: u32 = 200;
    let device = Shm::new().unwrap();
    let options = QueueOptions {
        endpoints: 2,
        window: WINDOW,
        message_bytes: BYTES,
        ..sleeping()
    };
    let mut queue = Queue::open(&device, options).unwrap();
    let mut honest = Queue::open(&device, options).unwrap();
    let (to_honest, _) = join(&mut queue, &mut honest);
    let (mut lost, mut violations, mut held) = (0, 0, Vec::new());
    let lies = |seed| {
        let mut stranger = Queue::open(&device, options).unwrap();
        let (id, given) = queue.offer().unwrap();
        let (_, theirs) = stranger.offer().unwrap();
        let mut liar = Liar::new(&given, WINDOW, BYTES, seed);
        queue.accept(id, Role::Listener, peer(theirs)).unwrap();
        let mut is_lost = false;
        for turn in 0..liar.random.below(40) {
            let _ = queue.post(id, &WorkRequest::new(turn, send(b"to a liar")).quiet());
            for _ in 0..liar.random.below(8) {
                liar.lie();
            }
            let mut events = Vec::new();
            queue.poll(&mut events);
            for event in events {
                match event {
                    Event::Message(message) => {
                        assert_eq!(message.origin, Origin::Endpoint(id));
                        assert!(message.length() <= BYTES);
                        held.push(message);
                    }
                    Event::Lost(lost, failure) => {
                        is_lost |= lost == id;
                        violations += u64::from(failure == Failure::Violation);
                    }
                    Event::Done(done) => assert_eq!(done.endpoint, id),
                }
            }
            if liar.random.below(3) == 0 {
                held.clear();
            }
        }
        held.clear();
        lost += u32::from(is_lost);
        queue.close(id);
        let request = WorkRequest::new(seed, send(b"honest")).quiet();
        queue.post(to_honest, &request).unwrap();
        queue.submit();
        assert_eq!(await_message(&mut honest), b"honest");
        // The liar may undo the changes that the honest side reports: they are seen all the same.
        honest.poll(&mut Vec::new());
        for _ in 0..=256 {
            liar.bell.store(LINE as u64, 0);
            assert_eq!(queue.poll(&mut Vec::new()), 0);
        }
    };
    (0..2000).for_each(lies);
    assert!(
        (500..2000).contains(&lost),
        "{lost} of 2000 liars were found out"
    );
    assert!(violations > 0);
    assert_eq!(queue.counters().violations, violations);
}

#[test]
fn a_process_that_stores_junk_delays_no_other() {
    let device = Shm::new().unwrap();
    let mut queue = Queue::open(&device, sleeping()).unwrap();
    if let Some(mut link) = Link::to_parent() {
        let (_, ours) = queue.offer().unwrap();
        let given = link.exchange(&ours);
        let options = QueueOptions::default();
        let mut liar = Liar::new(&given, options.window, options.message_bytes, 1);
        link.say("lies");
        loop {
            liar.lie();
        }
    }
    let mut other = Other::start("shm::tests::a_process_that_stores_junk_delays_no_other");
    other.link.join(&mut queue, Role::Dialer);
    assert_eq!(other.link.hear(), "lies");
    let mut honest = Queue::open(&device, sleeping()).unwrap();
    let (to, _) = join(&mut queue, &mut honest);
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&mut honest, 1));
        let start = Instant::now();
        let mut count = 0u64;
        let mut events = Vec::new();
        while count < 300 {
            let bytes = count.to_le_bytes();
            post(
                &mut queue,
                to,
                &WorkRequest::new(count, send(&bytes)).quiet(),
            );
            'answer: loop {
                queue.wait(&mut events, PATIENCE);
                assert!(start.elapsed() < PATIENCE, "{count} answers");
                for event in events.drain(..) {
                    if let Event::Message(message) = event
                        && message.origin == Origin::Endpoint(to)
                    {
                        assert_eq!(message.to_vec(), bytes);
                        break 'answer;
                    }
                }
            }
            count += 1;
        }
        queue.close(to);
    });
}

#[test]
fn one_queue_serves_many() {
    const CLIENTS: usize = 64;
    let device = Shm::new().unwrap();
    let mut server = Queue::open(&device, QueueOptions::default()).unwrap();
    let mut clients: Vec<(Queue, EndpointId)> = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = Queue::open(&device, sleeping()).unwrap();
        let (to_server, _) = join(&mut client, &mut server);
        clients.push((client, to_server));
    }
    assert!(matches!(server.offer(), Err(Error::Full { endpoints: 64 })));
    std::thread::scope(|scope| {
        for (client, to) in &mut clients {
            scope.spawn(|| {
                ping(client, *to, 50);
                client.close(*to);
            });
        }
        echo(&mut server, CLIENTS);
    });
    assert!(server.offer().is_ok());
}
