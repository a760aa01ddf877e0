//! Messengers over two adapters: like shares of clients that send all they can (M5), and from which length on a message should be
//! pulled (B4).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use connections::control::{Address, Caller, Identity, Listener};
use connections::messenger::{Event, LinkId, Messenger, Options};
use fabric::Provider;

use crate::compare::compare;
use crate::faults::LONG;

const CLUSTER: [u8; 16] = [5; 16];
/// As many clients as a unit has.
const CLIENTS: usize = 32;
/// Messages of each, on average.
const EACH: usize = 100;
/// Messages in a round of a figure.
const COUNT: u64 = 20;

fn options(adapter: &str) -> Options {
    let mut options = Options::default();
    options.wanted.only = Some(Provider::Verbs);
    options.wanted.verbs.device = Some(adapter.to_owned());
    options.control.step_timeout = LONG;
    options
}

/// A client has one link: buffers for more would be pinned in vain.
fn client_options(pull_min: usize) -> Options {
    let mut options = options("rxe2");
    options.wanted.queues.endpoints = 1;
    options.pull_min = pull_min;
    options
}

fn messenger(node: &str, options: Options) -> Messenger {
    let identity = Identity::local(CLUSTER, node).unwrap();
    Messenger::open(identity, options).unwrap()
}

/// A messenger that clients dial. It and its clients are driven by one thread.
struct Server {
    messenger: Messenger,
    listener: Listener,
    address: Address,
}

impl Server {
    fn new(options: Options) -> Server {
        let messenger = messenger("server", options);
        let address = Address::Unix(PathBuf::from(format!(
            "/tmp/tako-messengers-{}",
            std::process::id()
        )));
        let listener = Listener::bind(std::slice::from_ref(&address), messenger.local().clone());
        Server {
            messenger,
            listener: listener.unwrap(),
            address,
        }
    }

    /// A client, its link, and the server's link to it.
    fn client(&mut self, options: Options) -> (Messenger, LinkId, LinkId) {
        let mut client = messenger("client", options);
        client.dial(&self.address, Some("server"));
        let caller = self.caller(&mut client);
        let link = self.messenger.accept(caller).unwrap();
        let start = Instant::now();
        let mut events = Vec::new();
        while events.is_empty() {
            assert!(start.elapsed() < LONG, "the client is not joined");
            self.messenger.poll(&mut Vec::new());
            client.wait(&mut events, Duration::from_millis(1));
        }
        match &events[..] {
            [
                Event::Dialed {
                    outcome: Ok(own), ..
                },
            ] => (client, *own, link),
            _ => panic!("{events:?}"),
        }
    }

    fn caller(&mut self, client: &mut Messenger) -> Caller {
        let start = Instant::now();
        while start.elapsed() < LONG {
            client.poll(&mut Vec::new());
            if let Some(caller) = self.listener.accept(Duration::from_millis(1)).unwrap() {
                return caller;
            }
        }
        panic!("no client calls");
    }
}

/// Congestion (M5): 32 clients send all they can to one server. Their shares are within 2 × of each other, the clients are held back,
/// and nothing is dropped. Each has at most `window` fragments on its way: what a software adapter does not answer within 0.13 s is
/// sent again, and rdma_rxe then may take a part of a long message for an invalid request, which ends the link.
pub fn clients_get_like_shares(length: usize, window: u32) {
    let mut options = options("rxe1");
    options.wanted.queues.window = window;
    let mut server = Server::new(options);
    let mut clients = Vec::new();
    let mut shares = std::collections::BTreeMap::new();
    for _ in 0..CLIENTS {
        let (client, own, link) = server.client(client_options(Options::default().pull_min));
        shares.insert(link, 0);
        clients.push((client, own));
    }
    let bytes = Bytes::from(vec![7; length]);
    let most = Options::default().backlog_bytes;
    let (mut sent, mut held_back) = (0, 0);
    let (mut events, mut of_clients) = (Vec::new(), Vec::new());
    let mut count = |events: &mut Vec<Event>| {
        for event in events.drain(..) {
            match event {
                Event::Message { link, bytes } if bytes.len() == length => {
                    *shares.get_mut(&link).unwrap() += 1;
                }
                event => panic!("{event:?}"),
            }
        }
        shares.values().copied().collect::<Vec<usize>>()
    };
    let start = Instant::now();
    // Each is as much behind as it may be, at all times.
    while count(&mut events).iter().sum::<usize>() < CLIENTS * EACH {
        for (client, link) in &mut clients {
            while client.backlog(*link) < 8 * length {
                client.send(*link, &bytes).unwrap();
                sent += 1;
            }
            assert!(client.backlog(*link) <= most);
            client.poll(&mut of_clients);
            assert!(of_clients.is_empty(), "a client: {of_clients:?}");
            held_back += usize::from(client.backlog(*link) > 0);
        }
        server.messenger.poll(&mut events);
        server.messenger.poll(&mut events);
        assert!(start.elapsed() < LONG, "{:?}", count(&mut events));
    }
    let shares = count(&mut events);
    let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
    println!(
        "figure shares of {CLIENTS} clients with {length} bytes: {least} to {most} messages, held back {held_back} times"
    );
    assert!(held_back > 0);
    assert!(*most <= 2 * least, "{length} bytes: {shares:?}");
    while count(&mut events).iter().sum::<usize>() < sent {
        clients.iter_mut().for_each(|(client, _)| {
            client.poll(&mut Vec::new());
        });
        server.messenger.poll(&mut events);
        assert!(start.elapsed() < LONG, "messages were dropped");
    }
}

/// A message and a short answer: with the data in fragments in messages, and pulled.
pub fn pulls() {
    for kib in [8, 16, 32, 64, 256, 1024] {
        let mut server = Server::new(options("rxe1"));
        let [mut messages, mut pulled] =
            [usize::MAX, 1].map(|pull_min| server.client(client_options(pull_min)));
        let bytes = Bytes::from(vec![7; kib << 10]);
        let server = std::cell::RefCell::new(server);
        let ping = |(client, own, link): &mut (Messenger, LinkId, LinkId), count| {
            let server = &mut server.borrow_mut().messenger;
            for _ in 0..count {
                client.send(*own, &bytes).unwrap();
                client.submit();
                await_message(server, client, bytes.len());
                server.send(*link, &Bytes::from_static(&[1; 8])).unwrap();
                server.submit();
                await_message(client, server, 8);
            }
        };
        let before = server.borrow().messenger.pulled_fragments();
        let ways: [&mut dyn FnMut(u64); 2] =
            [&mut |count| ping(&mut messages, count), &mut |count| {
                ping(&mut pulled, count)
            }];
        let names = ["in messages", "pulled"];
        compare(&format!("{kib} KiB to a messenger"), COUNT, names, ways);
        let after = server.borrow().messenger.pulled_fragments();
        println!("figure {kib} KiB: {} fragments pulled", after - before);
        assert!(after > before, "{kib} KiB were never pulled");
    }
}

fn await_message(receiver: &mut Messenger, sender: &mut Messenger, length: usize) {
    let mut events = Vec::new();
    while receiver.poll(&mut events) == 0 {
        sender.poll(&mut Vec::new());
    }
    assert!(matches!(&events[..], [Event::Message { bytes, .. }] if bytes.len() == length));
}
