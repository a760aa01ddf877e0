//! Callers and listeners as they should not be: each is refused, counted, and holds up nobody.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::process::geteuid;
use rustix::thread::{Uid, set_thread_res_uid};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::*;
use crate::choice::Choice;
use crate::control::channel::{Channel, Trouble};
use crate::control::message::{Hidden, Malformed, Message, Versions};
use crate::{Key, RegionDescriptor};

/// A caller over a Unix socket that says what a test wants.
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

    /// What comes next.
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
        access: crate::Access::READ,
    };
    Message::Export {
        name: 1,
        descriptor,
    }
}

fn pipe() -> OwnedFd {
    rustix::pipe::pipe().unwrap().0
}

/// The listener takes what there is, and gives nobody out.
fn serve(listener: &mut Listener) {
    let caller = listener.accept(Duration::from_millis(20)).unwrap();
    assert!(caller.is_none(), "{caller:?}");
}

/// Somebody who does all right gets through.
fn somebody_gets_through(listener: &mut Listener, address: &Address, node: &Node, dialer: &Node) {
    thread::scope(|scope| {
        let dialed = scope.spawn(|| {
            let mut queues = dialer.queues();
            let session = dialer.dial(address, &mut queues).unwrap();
            session.close(&mut queues[0]);
        });
        let caller = listener.accept(LONG).unwrap().expect("a caller");
        let mut queues = node.queues();
        establish(caller, &mut queues).unwrap();
        dialed.join().unwrap();
    });
}

#[test]
fn what_comes_out_of_turn_or_is_no_message_is_refused() {
    let scratch = Scratch::new();
    let (a, b) = (Node::on_this_host("a"), Node::on_this_host("b"));
    let hello = || Message::Hello(a.local.hello(Vec::new()));
    let mut listener = b.listen(&[scratch.socket()]);
    let mut later = a.local.hello(Vec::new());
    later.versions = Versions { min: 7, max: 9 };
    type Script = Box<dyn Fn(&mut Raw)>;
    let mut doubled = hello().encode(0);
    doubled[8] ^= 1;
    let malformed: Vec<(&str, Script)> = vec![
        (
            "no such message",
            Box::new(|raw| drop(raw.say_bytes(b"GET / HTTP/1.1\r\n\r\n"))),
        ),
        (
            "longer than allowed",
            Box::new(|raw| drop(raw.say_bytes(&[0xff; 64][..4]).say_bytes(&[1, 0, 0, 0]))),
        ),
        (
            "not a control connection",
            Box::new(move |raw| drop(raw.say_bytes(&doubled))),
        ),
        ("out of turn", Box::new(|raw| drop(raw.say(shm())))),
        ("out of turn", Box::new(|raw| drop(raw.say(Message::Ready)))),
    ];
    let greeted: Vec<(&str, Script)> = vec![
        ("out of turn", Box::new(|raw| drop(raw.say(offer())))),
        (
            "out of turn",
            Box::new(|raw| drop(raw.say(shm()).say(shm()))),
        ),
        ("out of turn", Box::new(|raw| drop(raw.say(export(1))))),
        (
            "descriptors came",
            Box::new(|raw| drop(raw.say_with(shm(), vec![pipe()]))),
        ),
    ];
    let greeted = greeted.into_iter().map(|(expected, script)| {
        let hello = hello();
        let script: Script = Box::new(move |raw| script(raw.say(hello.clone())));
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
    let mut raw = Raw::new(&scratch.socket());
    raw.say(Message::Hello(later));
    serve(&mut listener);
    let reason = raw.refusal();
    assert!(
        reason.contains("speaks version 7 to 9 of control connections and this node 1;"),
        "{reason}"
    );
    let mut tcp = Raw::new(&scratch.socket());
    let verbs = Choice {
        provider: Provider::Verbs,
        passed_over: Vec::new(),
    };
    tcp.say(hello()).say(Message::Choice(verbs));
    serve(&mut listener);
    assert!(
        tcp.refusal()
            .contains("chose verbs, but b: libibverbs is not installed")
    );
    assert_eq!(listener.counters().unfit, 2);
    somebody_gets_through(&mut listener, &scratch.socket(), &b, &a);
}
