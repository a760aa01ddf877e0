//! Two messengers, in one thread, two threads or two processes, over each transport that is everywhere.

mod announced;
mod arena;
mod fair;
mod memory;
mod pull;
mod ways;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::time::{ClockId, clock_gettime};

use super::fragment::head;
use super::*;
use crate::control::{Address, Listener};
use fabric::tcp::TcpOptions;
use fabric::{Source, Work, WorkRequest};

const CLUSTER: [u8; 16] = [5; 16];
/// Nothing that works takes so long.
const LONG: Duration = Duration::from_secs(120);
const BOTH: [Provider; 2] = [Provider::Shm, Provider::Tcp];
/// The ways of short messages: each test of messages runs over all of them.
const WAYS: [Way; 3] = [
    Way(Provider::Shm, RequestWay::Message),
    Way(Provider::Tcp, RequestWay::Message),
    Way(Provider::Shm, RequestWay::Announced),
];
/// Set for a process that is dialed: its directory and transport.
const SERVES: &str = "TAKO_TEST_MESSENGER";

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tako-messenger-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    fn socket(&self) -> Address {
        Address::Unix(self.0.join("socket"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A transport, and how short messages travel.
#[derive(Clone, Copy, Debug)]
struct Way(Provider, RequestWay);

impl From<Provider> for Way {
    fn from(provider: Provider) -> Way {
        Way(provider, RequestWay::Message)
    }
}

fn options(way: impl Into<Way>) -> Options {
    let mut options = Options::default();
    let Way(only, requests) = way.into();
    (options.wanted.only, options.requests) = (Some(only), requests);
    options.wanted.tcp = TcpOptions {
        lost_after: Duration::from_secs(5),
        ..TcpOptions::default()
    };
    options.control.step_timeout = LONG;
    options
}

fn messenger(node: &str, options: Options) -> Messenger {
    let identity = Identity::local(CLUSTER, node).unwrap();
    Messenger::open(identity, options).unwrap()
}

/// Two messengers and the link of each to the other one.
struct Pair {
    near: Messenger,
    far: Messenger,
    to_far: LinkId,
    to_near: LinkId,
}

impl Pair {
    fn new(options: Options) -> Pair {
        Pair::of(options.clone(), options)
    }

    fn of(near: Options, far: Options) -> Pair {
        let mut near = messenger("near", near);
        let mut far = messenger("far", far);
        let (to_far, to_near) = join(&mut near, &mut far);
        Pair {
            near,
            far,
            to_far,
            to_near,
        }
    }
}

/// Makes a link that `far` dials. Returns the names that `near` and `far` have for it.
fn join(near: &mut Messenger, far: &mut Messenger) -> (LinkId, LinkId) {
    let scratch = Scratch::new();
    let local = near.local().clone();
    let mut listener = Listener::bind(&[scratch.socket()], local).unwrap();
    let dial = far.dial(&scratch.socket(), Some("near"));
    near.handle().pass(caller(&mut listener, far));
    let mut events = Vec::new();
    near.wait(&mut events, LONG);
    let to_far = match &events[..] {
        [Event::Accepted(Ok(link))] => *link,
        _ => panic!("{events:?}"),
    };
    let mut events = Vec::new();
    while events.is_empty() {
        far.wait(&mut events, LONG);
    }
    match &events[..] {
        [
            Event::Dialed {
                dial: ended,
                outcome,
            },
        ] if *ended == dial => (to_far, *outcome.as_ref().unwrap()),
        _ => panic!("{events:?}"),
    }
}

/// Runs another test in a process of its own, with this variable set.
fn run_alone(test: &str, variable: &str) {
    let program = std::env::current_exe().unwrap();
    let name = format!("messenger::tests::{test}");
    let mut command = Command::new(program);
    command.args(["--exact", &name, "--nocapture"]);
    let output = command.env(variable, "1").output().unwrap();
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(report.contains("1 passed"), "{report}");
}

/// The dialing peer, once it has sent everything.
fn caller(listener: &mut Listener, dials: &mut Messenger) -> crate::control::Caller {
    let start = Instant::now();
    while start.elapsed() < LONG {
        dials.poll(&mut Vec::new());
        if let Some(caller) = listener.accept(Duration::from_millis(1)).unwrap() {
            return caller;
        }
    }
    panic!("nothing calls");
}

fn link(messenger: &mut Messenger, id: LinkId) -> &mut Link {
    messenger.links[id.slot()].link.as_deref_mut().unwrap()
}

fn message(seed: usize, length: usize) -> Bytes {
    (0..length).map(|at| ((at + seed) % 251) as u8).collect()
}

/// The messages in these events, which are all of one link.
fn messages(events: Vec<Event>, from: LinkId) -> Vec<Bytes> {
    let message = |event| match event {
        Event::Message { link, bytes } if link == from => bytes,
        event => panic!("{event:?}"),
    };
    events.into_iter().map(message).collect()
}

#[test]
fn messages_of_any_length_arrive_whole_and_in_order_both_ways() {
    let lengths = [
        0,
        1,
        255,
        256,
        257,
        4096,
        16 << 10,
        (16 << 10) + 1,
        100_000,
        1 << 20,
        MESSAGE_MAX,
        3,
    ];
    for way in WAYS {
        let mut pair = Pair::new(options(way));
        let (mut to_far, mut to_near) = (Vec::new(), Vec::new());
        for (seed, &length) in lengths.iter().enumerate() {
            pair.near.send(pair.to_far, &message(seed, length)).unwrap();
            pair.far
                .send(pair.to_near, &message(seed + 7, length))
                .unwrap();
            pair.near.poll(&mut to_near);
            pair.far.poll(&mut to_far);
        }
        let start = Instant::now();
        while to_far.len() < lengths.len() || to_near.len() < lengths.len() {
            pair.near.wait(&mut to_near, Duration::from_millis(1));
            pair.far.wait(&mut to_far, Duration::from_millis(1));
            assert!(start.elapsed() < LONG, "{} {}", to_far.len(), to_near.len());
        }
        let all = |shift| {
            lengths
                .iter()
                .enumerate()
                .map(move |(seed, &length)| message(seed + shift, length))
        };
        assert!(messages(to_far, pair.to_near).into_iter().eq(all(0)));
        assert!(messages(to_near, pair.to_far).into_iter().eq(all(7)));
        assert_eq!(pair.near.choice(pair.to_far).unwrap().provider, way.0);
        assert_eq!(pair.near.peer(pair.to_far).unwrap().node, "far");
        assert_eq!(pair.far.peer(pair.to_near).unwrap().node, "near");
    }
}

#[test]
fn a_peer_that_takes_nothing_fills_the_backlog_and_gets_all_later() {
    for way in WAYS {
        let mut pair = Pair::new(options(way));
        let length = 1 << 20;
        let mut sent = 0;
        let error = loop {
            match pair.near.send(pair.to_far, &message(sent, length)) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
            pair.near.poll(&mut Vec::new());
            assert!(sent < 100, "no bound");
        };
        assert!(
            matches!(error, SendError::Backlog(waiting) if waiting > 15 << 20),
            "{error}"
        );
        let mut events = Vec::new();
        let start = Instant::now();
        while events.len() < sent {
            pair.near.poll(&mut Vec::new());
            pair.far.poll(&mut events);
            assert!(start.elapsed() < LONG, "{} of {sent}", events.len());
        }
        let expected = (0..sent).map(|seed| message(seed, length));
        assert!(messages(events, pair.to_near).into_iter().eq(expected));
        while pair.near.backlog(pair.to_far) > 0 {
            pair.near.poll(&mut Vec::new());
        }
        pair.near
            .send(pair.to_far, &Bytes::from_static(b"again"))
            .unwrap();
        let too_long = pair
            .near
            .send(pair.to_far, &vec![0; MESSAGE_MAX + 1].into());
        assert_eq!(too_long, Err(SendError::TooLong(MESSAGE_MAX + 1)));
    }
}

#[test]
fn the_end_of_a_link_is_reported_once_and_its_id_is_not_used_again() {
    for way in WAYS {
        let mut pair = Pair::new(options(way));
        pair.far.close(pair.to_near);
        assert_eq!(
            pair.far.send(pair.to_near, &Bytes::from_static(b"a")),
            Err(SendError::Ended)
        );
        assert_eq!(pair.far.links().count(), 0);
        let mut events = Vec::new();
        while events.is_empty() {
            pair.near.wait(&mut events, LONG);
        }
        assert!(
            matches!(&events[..], [Event::Lost { link, .. }] if *link == pair.to_far),
            "{events:?}"
        );
        assert_eq!(
            pair.near.send(pair.to_far, &Bytes::from_static(b"a")),
            Err(SendError::Ended)
        );
        assert_eq!(
            pair.near.wait(&mut Vec::new(), Duration::from_millis(50)),
            0
        );
        assert!(pair.near.peer(pair.to_far).is_none());
    }
}

/// The goodbye of a link travels by the control connection, and its messages by the transport.
#[test]
fn messages_before_a_goodbye_arrive_before_the_end() {
    for way in WAYS {
        let mut pair = Pair::new(options(way));
        let (first, last) = (message(1, 100), message(3, 2000));
        let mut events = Vec::new();
        // The transport's connection is there once a message has arrived.
        pair.far.send(pair.to_near, &first).unwrap();
        while events.is_empty() {
            pair.far.wait(&mut Vec::new(), Duration::from_millis(1));
            pair.near.wait(&mut events, Duration::from_millis(1));
        }
        assert_eq!(messages(std::mem::take(&mut events), pair.to_far), [first]);
        pair.far.send(pair.to_near, &last).unwrap();
        pair.far.submit();
        pair.far.close(pair.to_near);
        let near = &mut pair.near;
        let slot = pair.to_far.slot();
        let is_open = |link: &Link| !link.is_closed_there;
        while near.links[slot].link.as_deref().is_some_and(is_open) {
            near.hear(slot, &mut events);
        }
        while !matches!(events.last(), Some(Event::Lost { .. })) {
            near.wait(&mut events, LONG);
        }
        let end = events.pop();
        assert!(
            matches!(end, Some(Event::Lost { link, reason: Reason::Closed }) if link == pair.to_far),
            "{way:?}: {end:?}"
        );
        assert_eq!(messages(events, pair.to_far), [last], "{way:?}");
    }
}

#[test]
fn dialing_an_address_without_a_listener_is_reported() {
    let scratch = Scratch::new();
    let mut near = messenger("near", options(Provider::Shm));
    let dial = near.dial(&scratch.socket(), None);
    let mut events = Vec::new();
    near.wait(&mut events, LONG);
    match &events[..] {
        [
            Event::Dialed {
                dial: ended,
                outcome: Err(control::Error::Unreachable { .. }),
            },
        ] => {
            assert_eq!(*ended, dial);
        }
        _ => panic!("{events:?}"),
    }
}

#[test]
fn a_handle_wakes_a_blocked_thread() {
    let mut options = options(Provider::Tcp);
    options.spin_max = Duration::ZERO;
    let mut near = messenger("near", options);
    let handle = near.handle();
    let waits = thread::spawn(move || {
        let start = Instant::now();
        for _ in 0..2 {
            assert_eq!(near.wait(&mut Vec::new(), LONG), 0);
        }
        start.elapsed()
    });
    let start = Instant::now();
    while !waits.is_finished() && start.elapsed() < LONG {
        handle.wake();
        thread::yield_now();
    }
    assert!(waits.join().unwrap() < LONG / 2);
}

#[test]
fn a_call_ends_a_wait_whichever_poll_takes_it() {
    for spin_max in [Duration::ZERO, Options::default().spin_max, LONG] {
        let mut options = options(Provider::Tcp);
        options.spin_max = spin_max;
        let mut near = messenger("near", options);
        let handle = near.handle();
        // Before the wait, which polls first as long as that helps; and before a poll before the wait.
        for polls in [0, 1] {
            handle.wake();
            let start = Instant::now();
            for _ in 0..polls {
                near.poll(&mut Vec::new());
            }
            assert_eq!(near.wait(&mut Vec::new(), LONG), 0);
            assert!(start.elapsed() < LONG / 2, "{spin_max:?}");
        }
        // At any moment of the wait.
        let rounds = AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=2000 {
                    rounds.store(round, Ordering::Relaxed);
                    handle.wake();
                    let start = Instant::now();
                    while rounds.load(Ordering::Relaxed) == round && start.elapsed() < LONG {
                        thread::yield_now();
                    }
                }
            });
            let start = Instant::now();
            for round in 1..=2000 {
                while rounds.load(Ordering::Relaxed) != round {
                    near.wait(&mut Vec::new(), LONG);
                    assert!(start.elapsed() < LONG / 2, "{spin_max:?}: round {round}");
                }
                rounds.store(0, Ordering::Relaxed);
            }
        });
    }
}

#[test]
fn no_wake_up_is_lost_between_threads_that_block_at_once() {
    for way in WAYS {
        let mut options = options(way);
        options.spin_max = Duration::ZERO;
        let pair = Pair::new(options);
        let echo = |mut messenger: Messenger, link, begins: bool| {
            move || {
                let start = Instant::now();
                if begins {
                    messenger.send(link, &Bytes::from_static(b"ball")).unwrap();
                }
                let mut events = Vec::new();
                for _ in 0..300 {
                    while events.is_empty() {
                        messenger.wait(&mut events, LONG);
                    }
                    assert_eq!(messages(std::mem::take(&mut events), link), [&b"ball"[..]]);
                    messenger.send(link, &Bytes::from_static(b"ball")).unwrap();
                }
                // The last message reaches the other side, and the end of this one only after it.
                messenger.wait(&mut events, LONG);
                start.elapsed()
            }
        };
        let near = thread::spawn(echo(pair.near, pair.to_far, true));
        let far = thread::spawn(echo(pair.far, pair.to_near, false));
        let slowest = near.join().unwrap().max(far.join().unwrap());
        // A lost wake-up over shared memory lasts for a nap of 100 ms.
        assert!(slowest < Duration::from_secs(25), "{way:?}: {slowest:?}");
    }
}

#[test]
fn an_idle_link_uses_no_processor() {
    for way in WAYS {
        let mut pair = Pair::new(options(way));
        pair.far
            .send(pair.to_near, &Bytes::from_static(b"joined"))
            .unwrap();
        let mut events = Vec::new();
        while events.is_empty() {
            pair.far.poll(&mut Vec::new());
            pair.near.wait(&mut events, Duration::from_millis(1));
        }
        // Acknowledgements in flight.
        pair.near.wait(&mut Vec::new(), Duration::from_millis(100));
        let used = || {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        let before = used();
        assert_eq!(pair.near.wait(&mut Vec::new(), Duration::from_secs(1)), 0);
        let used = used() - before;
        assert!(used < Duration::from_millis(100), "{way:?}: {used:?}");
    }
}

#[test]
fn a_peer_with_hostile_fragments_is_lost() {
    let cases: [&[(Option<u32>, usize)]; 4] = [
        &[(None, 8)],
        &[(Some(head(8, 8, 16)), 8)],
        &[(Some(head(0, 8, 100)), 8), (Some(head(9, 8, 100)), 8)],
        &[(Some(head(0, 8, MESSAGE_MAX + 1)), 8)],
    ];
    for way in WAYS {
        for case in cases {
            let mut pair = Pair::new(options(way));
            let queue = pair.far.transports.queue(way.0).unwrap();
            let link = pair.far.links[pair.to_near.slot()].link.as_ref().unwrap();
            for (number, &(immediate, length)) in (1..).zip(case) {
                let bytes = vec![1; length];
                let from = Source::Inline(&bytes);
                let request = WorkRequest::new(number, Work::Send { from, immediate });
                queue.post(link.session.endpoint(), &request).unwrap();
            }
            let mut events = Vec::new();
            let start = Instant::now();
            while events.is_empty() && start.elapsed() < LONG {
                pair.far.poll(&mut Vec::new());
                pair.near.wait(&mut events, Duration::from_millis(1));
            }
            assert!(
                matches!(&events[..], [Event::Lost { link, reason: Reason::Fragment(_) }] if *link == pair.to_far),
                "{case:?}: {events:?}"
            );
        }
    }
}

/// Returns each message to its sender until it is killed.
fn serve(place: &Path, provider: Provider) {
    let mut messenger = messenger("server", options(provider));
    let socket = Address::Unix(place.join("socket"));
    let mut listener = Listener::bind(&[socket], messenger.local().clone()).unwrap();
    println!("\nlistens");
    let caller = listener.accept(LONG).unwrap().expect("a caller");
    let link = messenger.accept(caller).unwrap();
    let end = Instant::now() + LONG;
    let mut events = Vec::new();
    while Instant::now() < end {
        messenger.wait(&mut events, LONG);
        for bytes in messages(std::mem::take(&mut events), link) {
            messenger.send(link, &bytes).unwrap();
        }
    }
}

/// Ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_process_is_lost_and_a_live_one_answers() {
    if let Ok(value) = std::env::var(SERVES) {
        let (place, provider) = value.rsplit_once(' ').unwrap();
        let provider = BOTH.into_iter().find(|it| it.name() == provider).unwrap();
        return serve(Path::new(place), provider);
    }
    for provider in BOTH {
        let scratch = Scratch::new();
        let test = "messenger::tests::a_killed_process_is_lost_and_a_live_one_answers";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(SERVES, format!("{} {provider}", scratch.0.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut server = Server(child);
        let mut lines = out.lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "listens"));
        let mut near = messenger("near", options(provider));
        let link = near.dial_now(&scratch.socket(), Some("server")).unwrap();
        for (seed, length) in [(1, 10), (2, 100_000), (3, MESSAGE_MAX)] {
            near.send(link, &message(seed, length)).unwrap();
            let mut events = Vec::new();
            while events.is_empty() {
                near.wait(&mut events, LONG);
            }
            assert!(messages(events, link) == [message(seed, length)]);
        }
        server.0.kill().unwrap();
        let mut events = Vec::new();
        let start = Instant::now();
        while events.is_empty() && start.elapsed() < LONG {
            near.wait(&mut events, LONG);
        }
        assert!(
            matches!(
                &events[..],
                [Event::Lost {
                    reason: Reason::Transport(Failure::PeerLost),
                    ..
                }]
            ),
            "{events:?}"
        );
    }
}
