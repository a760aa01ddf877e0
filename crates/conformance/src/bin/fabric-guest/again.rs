//! Work with a lost endpoint. Each request completes with a status, once; a successful one was executed; nothing was
//! executed twice; and a new endpoint continues. Failed requests are repeated there, and the receiver recognizes by the
//! numbers what it already has, as the protocol above does.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use fabric::{
    Access, Event, Export, Failure, Key, QueueOptions, Refusal, RegionDescriptor, Registration,
    RemoteRegion, Source, Work, WorkRequest,
};
use pmem::Region;

use crate::faults::{End, LONG, NOTICED_WITHIN, Victim, join, system};
use crate::{Cases, open};

/// Pieces of work. Each adds one to a word of the receiver's, and then sends its number.
const WORK: Range<u64> = 0..60;
/// After which one there is trouble, while others are on their way.
const TROUBLE_AFTER: u64 = 20;
/// The number of a request that is no work.
const FORBIDDEN: u64 = u64::MAX;

pub fn run(cases: &mut Cases) {
    cases.run("fabric: work goes on after a link was cut", || {
        let down = |_: &mut Worker| system("/bin/ip link set plug2 down");
        goes_on(
            down,
            || system("/bin/ip link set plug2 up"),
            Failure::PeerLost,
        );
    });
    cases.run("fabric: work goes on after no retry was answered", || {
        let lose = |_: &mut Worker| system("/bin/tc qdisc add dev port1 root netem loss 100%");
        let heal = || system("/bin/tc qdisc del dev port1 root");
        goes_on(lose, heal, Failure::PeerLost);
    });
    cases.run("fabric: work goes on after a queue pair has failed", || {
        goes_on(Worker::post_forbidden, || (), Failure::Access);
    });
    cases.run("fabric: work goes on after its receiver has died", died);
    cases.run(
        "fabric: messages that came before a failure are told",
        told_first,
    );
}

struct Worker {
    near: End,
    far: End,
    /// The far side's memory, and how the near side reaches it.
    memory: Registration,
    remote: Option<RemoteRegion>,
    /// The near side's requests on this endpoint, and their reported completions.
    posted: Vec<u64>,
    told: Vec<(u64, Result<u64, Failure>)>,
    /// The numbers that came over it.
    came: Vec<u64>,
    lost: [Option<Failure>; 2],
}

impl Worker {
    fn new() -> Worker {
        let (near, device) = (End::new("rxe1", QueueOptions::default()), open("rxe2"));
        let far = End::over(&device, QueueOptions::default());
        let region = Region::memory(4096, false).unwrap();
        Worker {
            near,
            far,
            memory: fabric::Device::register(&device, &region, Access::ALL).unwrap(),
            remote: None,
            posted: Vec::new(),
            told: Vec::new(),
            came: Vec::new(),
            lost: [None; 2],
        }
    }

    /// Joins the two sides by an endpoint, which may fail.
    fn join(&mut self) -> bool {
        let is_joined = join(&mut self.near, &mut self.far).is_ok();
        if is_joined {
            let export = self.far.queue.export(self.far.id, &self.memory).unwrap();
            self.remote = Some(self.near.queue.import(self.near.id, export).unwrap());
        }
        is_joined
    }

    /// Ends what there is, and offers new endpoints.
    fn renew(&mut self) {
        self.near.renew();
        self.far.renew();
        self.posted.clear();
        self.told.clear();
        self.came.clear();
        self.lost = [None; 2];
    }

    fn poll(&mut self) {
        let (mut near, mut far) = (Vec::new(), Vec::new());
        self.near.queue.poll(&mut near);
        self.far.queue.poll(&mut far);
        for event in near {
            match event {
                Event::Done(done) => self.told.push((done.id.0, done.outcome)),
                Event::Lost(_, failure) => self.lost[0] = Some(failure),
                Event::Message(message) => panic!("{message:?}"),
            }
        }
        for event in far {
            match event {
                Event::Message(message) => {
                    let bytes = message.to_vec().try_into().unwrap();
                    self.came.push(u64::from_le_bytes(bytes));
                }
                Event::Lost(_, failure) => self.lost[1] = Some(failure),
                Event::Done(done) => panic!("{done:?}"),
            }
        }
        // The adapters work on this processor.
        thread::yield_now();
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Worker) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < LONG, "in vain: {what}");
            self.poll();
        }
    }

    /// Posts as soon as there is room, unless the endpoint is lost.
    fn post(&mut self, id: u64, operation: Work<'_>) {
        let start = Instant::now();
        loop {
            match self
                .near
                .queue
                .post(self.near.id, &WorkRequest::new(id, operation))
            {
                Ok(()) => return self.posted.push(id),
                Err(Refusal::Held) => self.poll(),
                Err(Refusal::NoEndpoint) => return,
                Err(refusal) => panic!("{refusal}"),
            }
            assert!(start.elapsed() < LONG, "there is no room");
        }
    }

    fn work(&mut self, number: u64) {
        let at = self.remote.expect("it is joined").at(0);
        self.post(2 * number, Work::FetchAndAdd { at, addend: 1 });
        let bytes = number.to_le_bytes();
        let send = Work::Send {
            from: Source::Inline(&bytes),
            immediate: None,
        };
        self.post(2 * number + 1, send);
    }

    /// A request that the other adapter refuses, so that both queue pairs fail.
    fn post_forbidden(&mut self) {
        let descriptor = RegionDescriptor {
            key: Key(0x00be_ef00),
            ..self.memory.descriptor()
        };
        let lie = Export {
            descriptor,
            memory: None,
        };
        let remote = self.near.queue.import(self.near.id, lie).unwrap();
        let write = Work::Write {
            from: Source::Inline(b"forbidden"),
            to: remote.at(0),
            immediate: None,
        };
        self.post(FORBIDDEN, write);
    }

    /// The reports agree with the effects. `numbers` is the work, `before` the word's value then.
    fn check(&self, numbers: &[u64], before: u64) {
        let told: Vec<u64> = self.told.iter().map(|(id, _)| *id).collect();
        assert_eq!(told, self.posted, "each is told once, in order");
        let well = self.told.iter().take_while(|(_, outcome)| outcome.is_ok());
        let well = well.count();
        let failed = &self.told[well..];
        assert!(
            failed.iter().all(|(_, outcome)| outcome.is_err()),
            "{failed:?}"
        );
        let is_flushed = |(_, outcome): &(u64, _)| *outcome == Err(Failure::Flushed);
        assert!(failed.iter().skip(1).all(is_flushed), "{failed:?}");
        let come = self.came.len();
        assert_eq!(self.came, numbers[..come], "all in order, none twice");
        let well = |kind| {
            let of_kind = |(id, outcome): &&(u64, Result<_, _>)| {
                *id != FORBIDDEN && id % 2 == kind && outcome.is_ok()
            };
            self.told.iter().filter(of_kind).count() as u64
        };
        let (added, come) = (self.memory.region().load(0) - before, come as u64);
        assert!(well(1) <= come, "{} of {come} were sent", well(1));
        assert!(well(0) <= added, "{} of {added} were added", well(0));
        // The addition precedes the message.
        assert!((come..=come + 1).contains(&added), "{added}, {come}");
    }
}

fn goes_on(trouble: impl Fn(&mut Worker), heal: impl Fn(), expected: Failure) {
    let mut worker = Worker::new();
    assert!(worker.join());
    for number in WORK {
        worker.work(number);
        if number == TROUBLE_AFTER {
            trouble(&mut worker);
        }
    }
    let start = Instant::now();
    worker.until("the end of both sides", |worker| {
        !worker.lost.contains(&None)
    });
    assert!(start.elapsed() < NOTICED_WITHIN, "{:?}", start.elapsed());
    assert_eq!(worker.lost[0], Some(expected));
    assert!(!worker.told.is_empty() && worker.told.iter().any(|(_, end)| end.is_err()));
    let mut left: Vec<u64> = WORK.collect();
    worker.check(&left, 0);
    heal();
    let deadline = Instant::now() + LONG;
    loop {
        // A repeated request is checked with the receiver; here, both are one program.
        left.retain(|number| !worker.came.contains(number));
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "no new endpoint works");
        let before = worker.memory.region().load(0);
        worker.renew();
        // The bridge takes its time.
        if !worker.join() {
            continue;
        }
        left.iter().for_each(|number| worker.work(*number));
        worker.until("the end of all work, or of both sides", |worker| {
            worker.told.len() == 2 * left.len() && worker.came.len() == left.len()
                || !worker.lost.contains(&None)
        });
        worker.check(&left, before);
    }
}

/// The receiver's adapter had all successful requests; the receiver itself has reported those that it had.
fn died() {
    let mut victim = Victim::start();
    let mut near = End::new("rxe1", QueueOptions::default());
    victim.join(&mut near);
    let mut posted = Vec::new();
    for number in WORK {
        post_number(&mut near, number, &mut posted);
        if number == TROUBLE_AFTER {
            near.queue.submit();
            // It is alive, and at work.
            assert_eq!(victim.number(), Some(0));
            victim.kill();
        }
    }
    let mut told = Vec::new();
    let failure = loop {
        match near.next() {
            Event::Done(done) => told.push(done.id.0),
            Event::Lost(_, failure) => break failure,
            event => panic!("{event:?}"),
        }
    };
    assert_eq!(failure, Failure::PeerLost);
    assert_eq!(told, posted, "each is told once, in order");
    let said: Vec<u64> = std::iter::from_fn(|| victim.number()).collect();
    let end = said.len() as u64 + 1;
    assert!(said.into_iter().eq(1..end), "all in order, none twice");
    let mut next = Victim::start();
    near.renew();
    next.join(&mut near);
    for number in end..WORK.end {
        post_number(&mut near, number, &mut posted);
        near.queue.submit();
        assert_eq!(next.number(), Some(number));
    }
}

/// Posts a message as soon as there is room, unless the endpoint is lost.
fn post_number(near: &mut End, number: u64, posted: &mut Vec<u64>) {
    let bytes = number.to_le_bytes();
    let send = Work::Send {
        from: Source::Inline(&bytes),
        immediate: None,
    };
    loop {
        match near.queue.post(near.id, &WorkRequest::new(number, send)) {
            Ok(()) => return posted.push(number),
            Err(Refusal::NoEndpoint) => return,
            Err(Refusal::Held) => near.wait(),
            Err(refusal) => panic!("{refusal}"),
        }
    }
}

/// A request that succeeded for its sender is reported by its receiver, however many there are, before a failure.
fn told_first() {
    const ENDPOINTS: usize = 24;
    let (device, mut far) = (open("rxe2"), Vec::new());
    let options = QueueOptions {
        spin_max: Duration::ZERO,
        ..QueueOptions::default()
    };
    let one = QueueOptions {
        endpoints: 1,
        ..options
    };
    let mut senders: Vec<End> = (0..ENDPOINTS).map(|_| End::new("rxe1", one)).collect();
    let mut receiver = End::over(&device, options);
    for sender in &mut senders {
        join(sender, &mut receiver).unwrap();
        far.push(receiver.id);
        receiver.offer();
    }
    let mut sent = 0;
    for sender in &mut senders {
        let mut posted = Vec::new();
        for number in 0..options.window.into() {
            post_number(sender, number, &mut posted);
        }
        for number in posted {
            match sender.next() {
                Event::Done(done) => assert_eq!((done.id.0, done.outcome), (number, Ok(0))),
                event => panic!("{event:?}"),
            }
            sent += 1;
        }
    }
    device.give_up();
    let mut messages = Vec::new();
    while !far.is_empty() {
        match receiver.next() {
            Event::Message(message) => messages.push(message),
            Event::Lost(id, _) => far.retain(|one| *one != id),
            event => panic!("{event:?}"),
        }
    }
    assert_eq!(messages.len(), sent);
}
