//! Cases that need more than one thread: sleep, peers that die or lie, and broken networks.

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Cases, open};
use fabric::tcp::{Tcp, TcpOptions};
use fabric::verbs::Verbs;
use fabric::{
    Access, Device, EndpointId, Error, Event, Export, Failure, GroupAddress, GroupId, Key,
    Parameters, Peer, Queue, QueueOptions, RegionDescriptor, Role, Source, Work, WorkRequest,
};
use pmem::Region;

/// No event takes longer, however busy the machine.
pub const LONG: Duration = Duration::from_secs(60);
/// In which the end of a peer must be noticed: a quarter of a second until the next probe, and seven tries of up to half a
/// second.
pub const NOTICED_WITHIN: Duration = Duration::from_secs(8);

pub fn run(cases: &mut Cases) {
    cases.run("fabric: a sleeper is woken up", sleep_and_wake);
    cases.run("fabric: a killed peer is noticed while idle", || {
        killed(false);
    });
    cases.run("fabric: a killed peer is noticed under load", || {
        killed(true);
    });
    cases.run(
        "fabric: a cut link is noticed, and a new endpoint works",
        cut,
    );
    cases.run(
        "fabric: a group goes on after a datagram could not be sent",
        group_goes_on,
    );
    cases.run("fabric: an adapter that has failed is told", given_up);
    cases.run("fabric: a peer that asks for too much while idle", || {
        refused_while_idle();
    });
    cases.run("fabric: memory of another transport", foreign_memory);
}

/// A queue, and the parameters of its endpoint.
pub struct End {
    pub queue: Queue,
    pub id: EndpointId,
    parameters: Option<Parameters>,
    events: Vec<Event>,
}

impl End {
    pub fn new(device: &str, options: QueueOptions) -> End {
        End::over(&open(device), options)
    }

    pub fn over(device: &Verbs, options: QueueOptions) -> End {
        let mut queue = Queue::open(device, options).unwrap();
        let (id, parameters) = queue.offer().unwrap();
        End {
            queue,
            id,
            parameters: Some(parameters),
            events: Vec::new(),
        }
    }

    /// Makes another endpoint, and continues with that.
    pub fn offer(&mut self) {
        let (id, parameters) = self.queue.offer().unwrap();
        self.id = id;
        self.parameters = Some(parameters);
    }

    /// The same, in place of the one there was.
    pub fn renew(&mut self) {
        self.queue.close(self.id);
        self.offer();
    }

    fn accept(&mut self, role: Role, parameters: Parameters) -> Result<(), Error> {
        let peer = Peer {
            parameters,
            address: None,
            process: None,
        };
        self.queue.accept(self.id, role, peer)
    }

    /// Waits for the next thing that happens.
    pub fn next(&mut self) -> Event {
        let start = Instant::now();
        while self.events.is_empty() {
            assert!(start.elapsed() < LONG, "nothing happens");
            self.wait();
        }
        self.events.remove(0)
    }

    /// Waits until there is more to report.
    pub fn wait(&mut self) {
        self.queue.wait(&mut self.events, LONG);
    }

    fn send(&mut self, bytes: &[u8]) {
        let send = Work::Send {
            from: Source::Inline(bytes),
            immediate: None,
        };
        let request = WorkRequest::new(1, send).quiet();
        self.queue.post(self.id, &request).unwrap();
        self.queue.submit();
    }

    /// Waits for the end of the endpoint.
    fn lost(&mut self) -> Failure {
        loop {
            if let Event::Lost(_, failure) = self.next() {
                return failure;
            }
        }
    }
}

fn pair(near: QueueOptions, far: QueueOptions) -> (End, End) {
    try_pair(near, far).unwrap()
}

fn try_pair(near: QueueOptions, far: QueueOptions) -> Result<(End, End), Error> {
    let (mut near, mut far) = (End::new("rxe1", near), End::new("rxe2", far));
    join(&mut near, &mut far)?;
    Ok((near, far))
}

pub fn join(near: &mut End, far: &mut End) -> Result<(), Error> {
    far.accept(Role::Listener, near.parameters.take().unwrap())?;
    near.accept(Role::Dialer, far.parameters.take().unwrap())
}

fn sleepy() -> QueueOptions {
    QueueOptions {
        spin_max: Duration::ZERO,
        ..QueueOptions::default()
    }
}

fn sleep_and_wake() {
    const ROUNDS: u32 = 200;
    let (mut near, mut far) = pair(sleepy(), sleepy());
    let slept = thread::scope(|scope| {
        let echo = scope.spawn(move || {
            for _ in 0..ROUNDS {
                match far.next() {
                    Event::Message(message) => far.send(&message.to_vec()),
                    event => panic!("{event:?}"),
                }
            }
            assert_eq!(far.lost(), Failure::PeerLost);
            far.queue.counters().slept
        });
        let start = Instant::now();
        for round in 0..ROUNDS {
            near.send(&round.to_le_bytes());
            match near.next() {
                Event::Message(message) => assert_eq!(message.to_vec(), round.to_le_bytes()),
                event => panic!("{event:?}"),
            }
        }
        // A thread without a wake-up sleeps until the next probe.
        let took = start.elapsed();
        assert!(took < fabric::verbs::PROBE_EVERY / 4 * ROUNDS, "{took:?}");
        near.queue.close(near.id);
        drop(near);
        echo.join().unwrap()
    });
    assert!(slept >= u64::from(ROUNDS) / 2, "it slept {slept} times");
}

/// A process with the other end, until it is killed.
pub struct Victim {
    process: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Victim {
    pub fn start() -> Victim {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .arg("victim")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Victim {
            says: BufReader::new(process.stdout.take().unwrap()),
            hears: process.stdin.take().unwrap(),
            process,
        }
    }

    /// Joins its end to this one.
    pub fn join(&mut self, near: &mut End) {
        let bytes = from_hex(&self.hear());
        self.tell(&to_hex(&near.parameters.take().unwrap().bytes));
        assert_eq!(self.hear(), "accepted");
        let descriptors = Vec::new();
        let parameters = Parameters { bytes, descriptors };
        near.accept(Role::Dialer, parameters).unwrap();
    }

    /// The next number that it sends; nothing once it is dead and everything was received.
    pub fn number(&mut self) -> Option<u64> {
        self.hear().parse().ok()
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.hears, "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The other process: sends its parameters, and polls.
pub fn victim() {
    let mut far = End::new("rxe2", QueueOptions::default());
    println!("{}", to_hex(&far.parameters.take().unwrap().bytes));
    let mut lines = std::io::stdin().lines();
    let bytes = from_hex(&lines.next().unwrap().unwrap());
    let descriptors = Vec::new();
    let parameters = Parameters { bytes, descriptors };
    far.accept(Role::Listener, parameters).unwrap();
    println!("accepted");
    // It polls until it is killed.
    loop {
        if let Event::Message(message) = far.next()
            && let Ok(bytes) = message.to_vec().try_into()
        {
            println!("{}", u64::from_le_bytes(bytes));
        }
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// A process is there, and from one moment to the next it is not.
fn killed(under_load: bool) {
    let mut victim = Victim::start();
    let mut near = End::new("rxe1", sleepy());
    victim.join(&mut near);
    near.send(b"alive");
    if under_load {
        for _ in 0..20 {
            near.send(&[7; 200]);
        }
    }
    victim.kill();
    let start = Instant::now();
    victim.process.wait().unwrap();
    assert_eq!(near.lost(), Failure::PeerLost);
    let took = start.elapsed();
    assert!(took < NOTICED_WITHIN, "{took:?}");
    println!("noticed after {} ms", took.as_millis());
}

pub fn system(line: &str) {
    let mut words = line.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status();
    assert!(status.unwrap().success(), "{line}");
}

/// The software adapters of a guest do not fail, so they are given up.
fn given_up() {
    let adapter = open("rxe1");
    let mut near = End::over(&adapter, sleepy());
    let mut far = End::new("rxe2", sleepy());
    join(&mut near, &mut far).unwrap();
    near.send(b"before");
    assert!(matches!(far.next(), Event::Message(_)));
    adapter.give_up();
    assert_eq!(near.lost(), Failure::AdapterFailed);
    let refusal = near.queue.offer().unwrap_err().to_string();
    assert!(
        refusal.contains("use the RDMA adapter rxe1") && refusal.contains("it has failed"),
        "{refusal}"
    );
    drop(near);
    assert_eq!(far.lost(), Failure::PeerLost);
    // After reopening it works.
    let (mut near, mut far) = pair(sleepy(), sleepy());
    near.send(b"after");
    assert!(matches!(far.next(), Event::Message(_)));
}

fn cut() {
    let (mut near, mut far) = pair(sleepy(), sleepy());
    near.send(b"before");
    assert!(matches!(far.next(), Event::Message(_)));
    system("/bin/ip link set plug2 down");
    let start = Instant::now();
    assert_eq!(near.lost(), Failure::PeerLost);
    assert_eq!(far.lost(), Failure::PeerLost);
    let took = start.elapsed();
    assert!(took < NOTICED_WITHIN, "{took:?}");
    system("/bin/ip link set plug2 up");
    // The bridge takes its time: until then the other side's address is not found, or nothing arrives.
    let deadline = Instant::now() + LONG;
    loop {
        assert!(Instant::now() < deadline, "no new endpoint works");
        let Ok((mut near, mut far)) = try_pair(sleepy(), sleepy()) else {
            continue;
        };
        near.send(b"after");
        if let Event::Message(message) = far.next() {
            assert_eq!(message.to_vec(), b"after");
            break;
        }
    }
}

/// A datagram that the adapter cannot send fails the queue pair, which sends and receives others all the same later.
fn group_goes_on() {
    const GROUP: GroupId = GroupId(3);
    let address = GroupAddress {
        listens: true,
        is_unchecked: false,
        address: Ipv4Addr::new(239, 77, 200, 3),
        port: 20_000,
        interface: Ipv4Addr::UNSPECIFIED,
    };
    let device = open("rxe1");
    let mut sides = [End::over(&device, sleepy()), End::new("rxe2", sleepy())];
    for side in &mut sides {
        side.queue.join(GROUP, address).unwrap();
    }
    let mut reaches = |from: usize, number: u32| {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < LONG, "{number} does not come from {from}");
            let text = Source::Inline(b"to all");
            sides[from]
                .queue
                .send_to_group(GROUP, text, number)
                .unwrap();
            // Both handle their links.
            for side in &mut sides {
                let tick = Duration::from_millis(20);
                side.queue.wait(&mut side.events, tick);
            }
            let other = &mut sides[1 - from];
            let is_it = |event: Event| match event {
                Event::Message(message) => message.immediate == Some(number),
                event => panic!("{event:?}"),
            };
            if other.events.drain(..).any(is_it) {
                return;
            }
            if number == 0 && device.counters().unsent > 2 {
                return;
            }
        }
    };
    reaches(0, 1);
    assert_eq!(device.counters().unsent, 0);
    system("/bin/ip link set port1 down");
    reaches(0, 0);
    system("/bin/ip link set port1 up");
    reaches(1, 2);
    reaches(0, 3);
}

/// The target only sleeps, and learns nevertheless that its adapter has refused something.
fn refused_while_idle() {
    let (mut near, mut far) = pair(sleepy(), sleepy());
    let lie = Export {
        descriptor: RegionDescriptor {
            key: Key(0x00be_ef00),
            base: 0x1000,
            length: 4096,
            access: Access::ALL,
        },
        memory: None,
    };
    let remote = near.queue.import(near.id, lie).unwrap();
    let write = Work::Write {
        from: Source::Inline(b"forbidden"),
        to: remote.at(0),
        immediate: None,
    };
    near.queue
        .post(near.id, &WorkRequest::new(1, write))
        .unwrap();
    near.queue.submit();
    assert_eq!(near.lost(), Failure::Access);
    assert_eq!(far.lost(), Failure::Violation);
}

/// A request that cannot be handed to the adapter ends the endpoint. Those before it are not reported as successful:
/// they were in flight.
fn foreign_memory() {
    let (mut near, _far) = pair(sleepy(), sleepy());
    let region = Region::memory(4096, false).unwrap();
    let foreign = Tcp::new(TcpOptions::default());
    let foreign = foreign.register(&region, Access::LOCAL).unwrap();
    let piece = [foreign.piece(0, 8)];
    let sources = [
        Source::Inline(b"1"),
        Source::Inline(b"2"),
        Source::Pieces(&piece),
    ];
    for (id, from) in (0..).zip(sources) {
        let immediate = None;
        let send = Work::Send { from, immediate };
        let request = WorkRequest::new(id, send).quiet();
        near.queue.post(near.id, &request).unwrap();
    }
    near.queue.submit();
    for id in 0..3 {
        match near.next() {
            Event::Done(done) => assert_eq!((done.id.0, done.outcome), (id, Err(Failure::Flushed))),
            event => panic!("{event:?}"),
        }
    }
    assert_eq!(near.lost(), Failure::Access);
}
