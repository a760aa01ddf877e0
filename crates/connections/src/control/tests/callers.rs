//! Faulty callers and listeners: each is refused, counted, and delays no other.

use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use super::*;
use crate::choice::Choice;
use crate::control::channel::{Channel, Trouble};
use crate::control::message::{Hidden, Message, Versions};
use fabric::{Key, RegionDescriptor};

/// Messages of one, after a word of the sentence by which it is refused.
type Script<'a> = Box<dyn Fn(&mut Raw) + Send + Sync + 'a>;

/// A caller over a Unix socket that sends whatever a test wants.
struct Raw(Channel);

impl Raw {
    fn new(address: &Address) -> Raw {
        let Address::Unix(path) = address else {
            panic!("{address}");
        };
        Raw(Channel::unix(UnixStream::connect(path).unwrap()).unwrap())
    }

    fn say(&mut self, message: Message) -> &mut Raw {
        self.say_with(message, Vec::new())
    }

    fn say_with(&mut self, message: Message, descriptors: Vec<OwnedFd>) -> &mut Raw {
        self.0.send(&message, descriptors).unwrap();
        self
    }

    fn say_bytes(&mut self, bytes: &[u8]) -> &mut Raw {
        let sent = rustix::io::write(&self.0, bytes).unwrap();
        assert_eq!(sent, bytes.len());
        self
    }

    /// The end of a script.
    fn end(&mut self) {}

    /// Waits for the next message.
    fn hear(&mut self) -> Result<Message, Trouble> {
        let end = Instant::now() + LONG;
        loop {
            if let Some((message, _)) = self.0.next()? {
                return Ok(message);
            }
            assert!(Instant::now() < end, "nothing comes");
            process::wait_for(&self.0, self.0.interest(), LONG).unwrap();
        }
    }

    /// The sentence by which it was refused.
    fn refusal(&mut self) -> String {
        loop {
            match self.hear().expect("a refusal") {
                Message::Refused(reason) => return reason,
                _ => continue,
            }
        }
    }
}

fn shm() -> Message {
    Message::Choice(Choice {
        provider: Provider::Shm,
        passed_over: Vec::new(),
    })
}

fn offer() -> Message {
    // Window and longest message, as a queue adds them.
    Message::Offer(Hidden(vec![1, 0, 0, 0, 64, 0, 0, 0]))
}

fn export(length: u64) -> Message {
    let descriptor = RegionDescriptor {
        key: Key(1),
        base: 0,
        length,
        access: fabric::Access::READ,
    };
    Message::Export {
        name: 1,
        descriptor,
    }
}

fn pipe() -> OwnedFd {
    io::pipe().unwrap().0.into()
}

/// The listener takes all callers, and returns none.
pub fn serve(listener: &mut Listener) {
    let caller = listener.accept(Duration::from_millis(20)).unwrap();
    assert!(caller.is_none(), "{caller:?}");
}

/// A correct caller gets through.
pub fn somebody_gets_through(
    listener: &mut Listener,
    address: &Address,
    node: &TestProcess,
    dialer: &TestProcess,
) {
    thread::scope(|scope| {
        let dialed = scope.spawn(|| {
            let mut queues = dialer.queues();
            let session = dialer.dial(address, &mut queues).unwrap();
            session.close(&mut queues[0]);
        });
        let caller = listener.accept(LONG).unwrap().expect("a caller");
        let session = establish(caller, &mut node.queues()).unwrap();
        dialed.join().unwrap();
        drop(session);
    });
}

#[test]
fn misplaced_and_invalid_messages_are_refused() {
    let scratch = Scratch::new();
    let (a, b) = (
        TestProcess::on_this_host("a"),
        TestProcess::on_this_host("b"),
    );
    let hello = || Message::Hello(a.local.hello(Vec::new()));
    let mut listener = b.listen(&[scratch.socket()]);
    let mut doubled = hello().encode(0);
    doubled[8] ^= 1;
    let malformed: Vec<(&str, Script<'_>)> = vec![
        (
            "must be zero",
            Box::new(|raw| raw.say_bytes(b"GET / HTTP/1.1\r\n\r\n").end()),
        ),
        (
            "longer than allowed",
            Box::new(|raw| {
                raw.say_bytes(&[0xff; 64][..4])
                    .say_bytes(&[1, 0, 0, 0])
                    .end()
            }),
        ),
        (
            "not a control connection",
            Box::new(move |raw| raw.say_bytes(&doubled).end()),
        ),
        ("out of turn", Box::new(|raw| raw.say(shm()).end())),
        ("out of turn", Box::new(|raw| raw.say(Message::Ready).end())),
    ];
    let greeted: Vec<(&str, Script<'_>)> = vec![
        ("out of turn", Box::new(|raw| raw.say(offer()).end())),
        (
            "out of turn",
            Box::new(|raw| raw.say(shm()).say(shm()).end()),
        ),
        ("out of turn", Box::new(|raw| raw.say(export(1)).end())),
        (
            "a message has descriptors",
            Box::new(|raw| raw.say_with(shm(), vec![pipe()]).end()),
        ),
        (
            "descriptors came",
            Box::new(|raw| {
                let frame = shm().encode(0);
                send_descriptors(&raw.0, &frame[..1], &[pipe()]);
                raw.say_bytes(&frame[1..]).end()
            }),
        ),
    ];
    let greeted = greeted.into_iter().map(|(expected, script)| {
        let hello = hello();
        let script: Script<'_> = Box::new(move |raw| script(raw.say(hello.clone())));
        (expected, script)
    });
    let mut count = 0;
    for (expected, script) in malformed.into_iter().chain(greeted) {
        let mut raw = Raw::new(&scratch.socket());
        script(&mut raw);
        serve(&mut listener);
        count += 1;
        assert_eq!(listener.counters().malformed, count, "{expected}");
        let reason = raw.refusal();
        assert!(reason.contains(expected), "{reason}");
    }
    somebody_gets_through(&mut listener, &scratch.socket(), &b, &a);
}

#[test]
fn peers_with_nothing_in_common_are_refused() {
    let scratch = Scratch::new();
    let (a, b) = (
        TestProcess::on_this_host("a"),
        TestProcess::on_this_host("b"),
    );
    let mut listener = b.listen(&[scratch.socket()]);
    let hello = a.local.hello(Vec::new());
    let mut later = hello.clone();
    later.versions = Versions { min: 7, max: 9 };
    let mut raw = Raw::new(&scratch.socket());
    raw.say(Message::Hello(later));
    serve(&mut listener);
    let reason = raw.refusal();
    assert!(
        reason.contains("speaks version 7 to 9 of control connections and this node 2;"),
        "{reason}"
    );
    let mut raw = Raw::new(&scratch.socket());
    let verbs = Choice {
        provider: Provider::Verbs,
        passed_over: Vec::new(),
    };
    raw.say(Message::Hello(hello)).say(Message::Choice(verbs));
    serve(&mut listener);
    assert!(
        raw.refusal()
            .contains("chose verbs, but b: libibverbs is not installed")
    );
    assert_eq!(listener.counters().unfit, 2);
    somebody_gets_through(&mut listener, &scratch.socket(), &b, &a);
}

#[test]
fn more_descriptors_than_any_message_has_are_refused() {
    let scratch = Scratch::new();
    let b = TestProcess::on_this_host("b");
    let mut listener = b.listen(&[scratch.socket()]);
    let head = offer().encode(16);
    for (parts, each) in [(1, 17), (2, 9)] {
        let mut raw = Raw::new(&scratch.socket());
        for part in 0..parts {
            let descriptors: Vec<OwnedFd> = (0..each).map(|_| pipe()).collect();
            send_descriptors(&raw.0, &head[part..part + 1], &descriptors);
        }
        serve(&mut listener);
        assert!(raw.refusal().contains("more descriptors"));
    }
    assert_eq!(listener.counters().malformed, 2);
}

fn send_descriptors(channel: &Channel, bytes: &[u8], descriptors: &[OwnedFd]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    let bytes = [io::IoSlice::new(bytes)];
    assert_eq!(
        sendmsg(channel, &bytes, &mut control, SendFlags::empty()),
        Ok(1)
    );
}

#[test]
fn a_leaving_caller_leaves_nothing() {
    let scratch = Scratch::new();
    let (a, b) = (
        TestProcess::on_this_host("a"),
        TestProcess::on_this_host("b"),
    );
    let mut listener = b.listen(&[scratch.socket()]);
    let script = [Message::Hello(a.local.hello(Vec::new())), shm()];
    for said in 0..=script.len() {
        for waits in [false, true] {
            let mut raw = Raw::new(&scratch.socket());
            for message in &script[..said] {
                raw.say(message.clone());
                if waits {
                    serve(&mut listener);
                }
            }
            drop(raw);
            serve(&mut listener);
        }
    }
    assert_eq!(listener.counters().gone, 6);
    for is_established in [false, true] {
        let mut raw = Raw::new(&scratch.socket());
        raw.say(script[0].clone()).say(shm()).say(offer());
        let caller = listener.accept(LONG).unwrap().expect("a caller");
        drop(raw);
        let mut queues = b.queues();
        if !is_established {
            drop(caller);
            continue;
        }
        // Its end may be noticed at once, or when the session is asked.
        if let Ok(mut session) = establish(caller, &mut queues) {
            let over = session.receive(&mut queues[0], LONG).unwrap_err();
            assert!(matches!(over, Error::Closed { .. }), "{over}");
            session.close(&mut queues[0]);
        }
    }
    assert_eq!(b.open(), 0);
    assert_eq!(listener.pending(), 0);
}

/// The descriptor of 4096 bytes of memory.
fn memory() -> Vec<OwnedFd> {
    let region = pmem::Region::memory(4096, false).unwrap();
    vec![region.share(true).unwrap()]
}

/// Messages forbidden to a dialer once it has made its offer.
fn breaches() -> Vec<(&'static str, Script<'static>)> {
    vec![
        (
            "out of turn",
            Box::new(|raw| raw.say_with(export(4096), memory()).end()),
        ),
        (
            "out of turn",
            Box::new(|raw| raw.say(Message::Ready).say(Message::Ready).end()),
        ),
        (
            "out of turn",
            Box::new(|raw| raw.say(Message::Ready).say(shm()).end()),
        ),
        (
            "no such message",
            Box::new(|raw| raw.say(Message::Ready).say_bytes(&[0; 64]).end()),
        ),
        (
            "memory",
            Box::new(|raw| raw.say(Message::Ready).say(export(4096)).end()),
        ),
        (
            "",
            Box::new(|raw| {
                raw.say(Message::Ready)
                    .say_with(export(4096), vec![pipe()])
                    .end()
            }),
        ),
        (
            "",
            Box::new(|raw| {
                raw.say(Message::Ready)
                    .say_with(export(8192), memory())
                    .end()
            }),
        ),
        (
            "",
            Box::new(|raw| raw.say(Message::Ready).say_with(export(0), memory()).end()),
        ),
        ("did not join", Box::new(|_| {})),
    ]
}

#[test]
fn a_session_ends_with_what_breaks_its_rules() {
    let scratch = Scratch::new();
    let a = TestProcess::on_this_host("a");
    let b = TestProcess::on_this_host("b").patient_for(SHORT);
    let mut listener = b.listen(&[scratch.socket()]);
    for (expected, script) in breaches() {
        let mut raw = Raw::new(&scratch.socket());
        raw.say(Message::Hello(a.local.hello(Vec::new())))
            .say(shm())
            .say(offer());
        let caller = listener.accept(LONG).unwrap().expect("a caller");
        let mut queues = b.queues();
        let mut session = establish(caller, &mut queues).unwrap();
        script(&mut raw);
        let error = loop {
            match session.receive(&mut queues[0], LONG) {
                Ok(note) => assert_eq!(note, Some(Note::Ready)),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(b.open(), 0, "{error}");
        assert!(!raw.refusal().is_empty());
    }
}

#[test]
fn a_session_takes_so_much_memory_and_no_more() {
    let scratch = Scratch::new();
    let (a, b) = (
        TestProcess::on_this_host("a"),
        TestProcess::on_this_host("b"),
    );
    let mut listener = b.listen(&[scratch.socket()]);
    let tcp = Choice {
        provider: Provider::Tcp,
        passed_over: Vec::new(),
    };
    let mut raw = Raw::new(&scratch.socket());
    raw.say(Message::Hello(a.local.hello(Vec::new())))
        .say(Message::Choice(tcp))
        .say(offer());
    let caller = listener.accept(LONG).unwrap().expect("a caller");
    let mut queues = b.queues();
    let mut session = establish(caller, &mut queues).unwrap();
    raw.say(Message::Ready);
    assert_eq!(
        session.receive(&mut queues[1], LONG).unwrap(),
        Some(Note::Ready)
    );
    for _ in 0..4096 {
        raw.say(export(64));
        let note = session.receive(&mut queues[1], LONG).unwrap();
        assert!(matches!(note, Some(Note::Exported { .. })), "{note:?}");
    }
    raw.say(export(64));
    let error = session
        .receive(&mut queues[1], LONG)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("more memory than a session takes"),
        "{error}"
    );
}

#[test]
fn listeners_that_lie_are_left() {
    let scratch = Scratch::new();
    let a = TestProcess::on_this_host("a").patient_for(SHORT);
    let b = TestProcess::on_this_host("b");
    let hello = || Message::Hello(b.local.hello(Vec::new()));
    let socket = UnixListener::bind(scratch.path("socket")).unwrap();
    let mut later = b.local.hello(Vec::new());
    later.versions = Versions { min: 3, max: 4 };
    let table: Vec<(&str, Script<'_>)> = vec![
        ("did not say hello in time", Box::new(|_| {})),
        (
            "no such message",
            Box::new(|raw| raw.say_bytes(&[0; 64]).end()),
        ),
        ("out of turn", Box::new(|raw| raw.say(Message::Ready).end())),
        (
            "ended the connection",
            Box::new(|raw| raw.say(Message::Goodbye).end()),
        ),
        (
            "refuses: there is no room",
            Box::new(|raw| raw.say(Message::Refused("there is no room".into())).end()),
        ),
        (
            "speaks version 3 to 4 of control connections and this node 2;",
            { Box::new(move |raw| raw.say(Message::Hello(later.clone())).end()) },
        ),
        (
            "did not make its side of an endpoint in time",
            Box::new(|raw| raw.say(hello()).end()),
        ),
        (
            "out of turn",
            Box::new(|raw| raw.say(hello()).say(Message::Ready).end()),
        ),
        (
            "out of turn",
            Box::new(|raw| raw.say(hello()).say(offer()).say(offer()).end()),
        ),
        (
            "did not join its side",
            Box::new(|raw| raw.say(hello()).say(offer()).end()),
        ),
        (
            "size of buffers",
            Box::new(|raw| {
                let nothing = Message::Offer(Hidden(Vec::new()));
                raw.say(hello()).say(nothing).say(Message::Ready);
            }),
        ),
    ];
    for (expected, script) in &table {
        let error = thread::scope(|scope| {
            let dialed = scope.spawn(|| a.dial(&scratch.socket(), &mut a.queues()).map(|_| ()));
            let (stream, _) = socket.accept().unwrap();
            let mut raw = Raw(Channel::unix(stream).unwrap());
            script(&mut raw);
            dialed.join().unwrap().unwrap_err().to_string()
        });
        assert!(error.contains(expected), "{error}");
        assert_eq!(a.open(), 0, "{error}");
    }
}

#[test]
fn thousands_of_silent_callers_delay_no_other() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let scratch = Scratch::new();
    let [a, b] = scratch.keys("keys").map(TestProcess::new);
    let b = b.patient_for(SHORT);
    let mut listener = b.listen(&[scratch.socket(), loopback()]);
    let Address::Tcp(tcp) = listener.addresses()[1].clone() else {
        panic!("{:?}", listener.addresses());
    };
    let path = scratch.path("socket");
    let mut silent: Vec<OwnedFd> = Vec::new();
    thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            for _ in 0..1000 {
                silent.push(UnixStream::connect(&path).unwrap().into());
                silent.push(TcpStream::connect(tcp).unwrap().into());
            }
        });
        while !connecting.is_finished() {
            serve(&mut listener);
        }
    });
    let end = Instant::now() + LONG;
    // Some have connected and wait to be taken: they would crowd out a new one.
    while listener.counters().connected < 2000 {
        assert!(Instant::now() < end, "{:?}", listener.counters());
        serve(&mut listener);
    }
    assert_eq!(listener.pending(), 16);
    somebody_gets_through(&mut listener, &scratch.socket(), &b, &a);
    while listener.pending() > 0 {
        assert!(Instant::now() < end, "{:?}", listener.counters());
        serve(&mut listener);
    }
    let counters = listener.counters();
    assert_eq!(counters.connected, 2001);
    assert_eq!(counters.admitted, 1);
    assert_eq!(counters.crowded_out + counters.silent, 2000, "{counters:?}");
    assert!(counters.silent >= 15, "{counters:?}");
}

#[test]
fn bytes_that_trickle_take_no_longer_than_a_step() {
    let scratch = Scratch::new();
    let a = TestProcess::on_this_host("a");
    let b = TestProcess::on_this_host("b").patient_for(SHORT);
    let mut listener = b.listen(&[scratch.socket()]);
    let hello = Message::Hello(a.local.hello(Vec::new())).encode(0);
    let (idle, _other) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        let path = scratch.path("socket");
        let trickling = scope.spawn(move || {
            let mut stream = UnixStream::connect(path).unwrap();
            let mut hello = hello.iter();
            // All of it takes three times as long.
            let step = SHORT * 3 / hello.len() as u32;
            while let Some(byte) = hello.next()
                && stream.write_all(&[*byte]).is_ok()
            {
                process::wait_for(&idle, rustix::event::PollFlags::IN, step).unwrap();
            }
            hello.len()
        });
        while listener.counters().connected == 0 {
            serve(&mut listener);
        }
        somebody_gets_through(&mut listener, &scratch.socket(), &b, &a);
        while listener.counters().silent == 0 {
            assert!(!trickling.is_finished(), "it was let in");
            serve(&mut listener);
        }
        assert!(trickling.join().unwrap() > 0);
    });
}
