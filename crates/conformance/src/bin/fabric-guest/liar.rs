//! A peer that is no transport: a queue pair that sends and requests anything. Its endpoint ends; others continue.

use std::time::{Duration, Instant};

use fabric::{
    EndpointId, Event, Failure, Parameters, Peer, Queue, QueueOptions, Role, Source, Work,
    WorkRequest,
};
use verbs::{Data, Patience, Receive, Remote, Verb};

use crate::raw::RawEnd;
use crate::{Cases, open};

const LONG: Duration = Duration::from_secs(30);
const NOWHERE: Remote = Remote {
    address: 0x1000,
    key: 0x00be_ef00,
};

pub fn run(cases: &mut Cases) {
    let lies: [(&str, &[&[u8]]); 8] = [
        ("a message without a header", &[b""]),
        ("half a header", &[b"1234567"]),
        ("a kind that is none", &[&[0, 0, 0, 0, 4, 0, 0, 0]]),
        ("what should be zero", &[&[0, 0, 0, 0, 0, 0, 0, 1, 7]]),
        ("a count with data", &[&[0, 0, 0, 0, 1, 0, 0, 0, 7]]),
        (
            "credits for what was never sent",
            &[&[9, 0, 0, 0, 1, 0, 0, 0]],
        ),
        ("a message too long", &[&[0; 8000]]),
        (
            "more messages than there are buffers",
            &[&[0u8; 9] as &[u8]; 9],
        ),
    ];
    for (name, messages) in lies {
        cases.run(&format!("fabric: {name}"), || {
            let mut target = Target::new();
            for message in messages {
                target.say(message);
            }
            target.must_refuse();
        });
    }
    let asks = |operation| {
        move || {
            let mut target = Target::new();
            target.post(operation);
            target.must_refuse();
        }
    };
    cases.run(
        "fabric: a write to nowhere",
        asks(Verb::Write {
            data: Data::Inline(b"forbidden"),
            remote: NOWHERE,
            immediate: Some(1),
        }),
    );
    cases.run("fabric: announcements without end", || {
        let mut target = Target::new();
        for _ in 0..9 {
            target.post(Verb::Write {
                data: Data::Pieces(&[]),
                remote: NOWHERE,
                immediate: Some(1),
            });
        }
        target.must_refuse();
    });
    cases.run(
        "fabric: a receiver without buffers holds up its sender, and nothing is lost",
        without_buffers,
    );
    cases.run("fabric: endless questions delay no peer", || {
        let mut target = Target::new();
        for _ in 0..200 {
            target.say(&[0, 0, 0, 0, 2, 0, 0, 0]);
            target.poll();
        }
        target.others_go_on();
        assert!(target.lost.is_empty());
    });
}

/// The adapter retries for as long as necessary, and others continue meanwhile.
fn without_buffers() {
    const COUNT: u64 = 5;
    let mut target = Target::new();
    for id in 0..COUNT {
        let bytes = id.to_le_bytes();
        let send = Work::Send {
            from: Source::Inline(&bytes),
            immediate: None,
        };
        let request = WorkRequest::new(id, send);
        target.queue.post(target.liar, &request).unwrap();
    }
    target.queue.submit();
    // As long as a finite number of retries takes.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        let events = target.poll();
        assert!(events.is_empty(), "{events:?}");
    }
    target.others_go_on();
    let memory = target.end.memory.clone();
    for id in 0..COUNT {
        let into = [memory.piece(64 * id, 64)];
        let receive = Receive { id, into: &into };
        target.end.pair.post_receives(&[receive]).unwrap();
    }
    let mut ended = Vec::new();
    let start = Instant::now();
    while ended.len() < COUNT as usize {
        assert!(start.elapsed() < LONG, "messages do not end");
        for event in target.poll() {
            match event {
                Event::Done(done) => ended.push((done.id.0, done.outcome)),
                event => panic!("{event:?}"),
            }
        }
    }
    assert!(ended.into_iter().eq((0..COUNT).map(|id| (id, Ok(0)))));
    let mut room = vec![verbs::Completion::default(); 2 * COUNT as usize];
    let came = target.end.completions.poll(&mut room).unwrap();
    assert!(came.iter().map(|one| one.id()).eq(0..COUNT), "{came:?}");
    for id in 0..COUNT {
        let mut number = [0; 8];
        // Behind the transport's header.
        memory.region().read(64 * id + 8, &mut number);
        assert_eq!(u64::from_le_bytes(number), id);
    }
}

/// A queue with an honest peer, and one that lies.
struct Target {
    queue: Queue,
    honest: Queue,
    ids: [EndpointId; 2],
    lost: Vec<(EndpointId, Failure)>,
    liar: EndpointId,
    end: RawEnd,
}

fn peer(parameters: Parameters) -> Peer {
    Peer {
        parameters,
        address: None,
        process: None,
    }
}

impl Target {
    fn new() -> Target {
        let options = QueueOptions {
            window: 8,
            message_bytes: 4000,
            ..QueueOptions::default()
        };
        let mut queue = Queue::open(&open("rxe2"), options).unwrap();
        let mut honest = Queue::open(&open("rxe1"), options).unwrap();
        let (to_honest, ours) = queue.offer().unwrap();
        let (to_target, theirs) = honest.offer().unwrap();
        queue
            .accept(to_honest, Role::Listener, peer(theirs))
            .unwrap();
        honest.accept(to_target, Role::Dialer, peer(ours)).unwrap();

        let end = RawEnd::new("rxe1");
        let (liar, theirs) = queue.offer().unwrap();
        let limits = theirs.bytes[theirs.bytes.len() - 8..].to_vec();
        let own = end.pair.peer();
        let mut bytes = b"tkverbs2".to_vec();
        bytes.extend(own.queue_pair.to_le_bytes());
        bytes.extend(own.first_packet.to_le_bytes());
        bytes.extend(own.mtu.to_le_bytes());
        bytes.extend([0, 0, own.reads_served, own.reads_begun]);
        bytes.extend(own.gid.0);
        bytes.extend(limits);
        let descriptors = Vec::new();
        let parameters = Parameters { bytes, descriptors };
        queue
            .accept(liar, Role::Listener, peer(parameters))
            .unwrap();
        let word = |at: usize| u32::from_le_bytes(theirs.bytes[at..at + 4].try_into().unwrap());
        let other = verbs::Peer {
            queue_pair: word(8),
            first_packet: word(12),
            mtu: word(16),
            lid: 0,
            reads_served: theirs.bytes[22],
            reads_begun: theirs.bytes[23],
            gid: verbs::Gid(theirs.bytes[24..40].try_into().unwrap()),
        };
        end.pair.connect(&other, &Patience::default()).unwrap();
        Target {
            queue,
            honest,
            ids: [to_target, to_honest],
            lost: Vec::new(),
            liar,
            end,
        }
    }

    fn say(&mut self, message: &[u8]) {
        let memory = self.end.memory.clone();
        memory.region().write(0, message);
        let piece = [memory.piece(0, message.len() as u32)];
        let data = match message {
            [] => Data::Pieces(&[]),
            _ => Data::Pieces(&piece),
        };
        self.post(Verb::Send {
            data,
            immediate: None,
        });
    }

    /// Posts, and waits for the end, while the target does not poll.
    fn post(&mut self, operation: Verb<'_>) {
        self.end.post(true, operation);
        let mut room = [verbs::Completion::default()];
        let start = Instant::now();
        while self.end.completions.poll(&mut room).unwrap().is_empty() {
            assert!(start.elapsed() < LONG, "a request does not end");
        }
    }

    fn poll(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.queue.poll(&mut events);
        for event in &events {
            if let Event::Lost(id, failure) = event {
                self.lost.push((*id, *failure));
            }
        }
        events
    }

    fn must_refuse(&mut self) {
        let start = Instant::now();
        let mut kept = Vec::new();
        while self.lost.is_empty() {
            assert!(start.elapsed() < LONG, "the lie is not found");
            kept.extend(self.poll());
        }
        assert_eq!(self.lost, [(self.liar, Failure::Violation)]);
        drop(kept);
        self.others_go_on();
        assert_eq!(self.lost.len(), 1);
    }

    fn others_go_on(&mut self) {
        let [to_target, to_honest] = self.ids;
        let send = Work::Send {
            from: Source::Inline(b"honest"),
            immediate: None,
        };
        for (queue, id) in [(&mut self.honest, to_target), (&mut self.queue, to_honest)] {
            queue.post(id, &WorkRequest::new(1, send)).unwrap();
            queue.submit();
        }
        let (mut ours, mut theirs) = (false, false);
        let start = Instant::now();
        while !(ours && theirs) {
            assert!(start.elapsed() < LONG, "the others are held up");
            let is_message = |event: &Event| matches!(event, Event::Message(_));
            ours |= self.poll().iter().any(is_message);
            let mut events = Vec::new();
            self.honest.poll(&mut events);
            theirs |= events.iter().any(is_message);
        }
    }
}
