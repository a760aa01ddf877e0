//! Cases of TCP only: connections that are cut, peers that lie at the level of bytes, other processes and other hosts.
#![forbid(unsafe_code)]

#[path = "../cut/mod.rs"]
mod cut;
mod cuts;
mod hosts;
mod liars;
#[path = "../namespaces/mod.rs"]
mod namespaces;
mod refusals;
mod slow;
mod threads;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use fabric::tcp::{Tcp, TcpOptions};
use fabric::{
    EndpointId, Event, Parameters, Peer, Queue, QueueOptions, Role, Source, Work, WorkRequest,
};

/// Time limit of a step.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Options for endpoints of this host, which nothing but their ends ends, however busy the machine is.
pub fn options() -> TcpOptions {
    TcpOptions {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        lost_after: PATIENCE,
        prove_within: PATIENCE,
        unproved: 8,
    }
}

/// The same, of endpoints that are lost soon.
pub fn hasty() -> TcpOptions {
    TcpOptions {
        lost_after: Duration::from_secs(3),
        ..options()
    }
}

/// A process's device and one queue of it.
pub fn open() -> (Tcp, Queue) {
    open_with(options(), QueueOptions::default())
}

/// The same, laid out as asked for.
pub fn open_with(tcp: TcpOptions, options: QueueOptions) -> (Tcp, Queue) {
    let device = Tcp::new(tcp);
    let queue = Queue::open(&device, options).unwrap();
    (device, queue)
}

/// A peer on this host.
pub fn peer(parameters: Parameters) -> Peer {
    Peer {
        parameters,
        address: None,
        process: None,
    }
}

/// An endpoint between two queues of this process; the first one dials.
pub fn join(near: &mut Queue, far: &mut Queue) -> (EndpointId, EndpointId) {
    let (to_far, near_says) = near.offer().unwrap();
    let (to_near, far_says) = far.offer().unwrap();
    // The dialer may be first.
    near.accept(to_far, Role::Dialer, peer(far_says)).unwrap();
    far.accept(to_near, Role::Listener, peer(near_says))
        .unwrap();
    (to_far, to_near)
}

/// Returns a request that sends these bytes inline.
pub fn message(id: u64, bytes: &[u8]) -> WorkRequest<'_> {
    WorkRequest::new(
        id,
        Work::Send {
            from: Source::Inline(bytes),
            immediate: None,
        },
    )
}

/// Polls queues alternately until one has reported a matching event.
pub fn until(what: &str, queues: &mut [&mut Queue], mut is_so: impl FnMut(usize, Event) -> bool) {
    let start = Instant::now();
    let mut events = Vec::new();
    loop {
        for (index, queue) in queues.iter_mut().enumerate() {
            queue.poll(&mut events);
            let mut so = false;
            for event in events.drain(..) {
                so |= is_so(index, event);
            }
            if so {
                return;
            }
        }
        std::thread::yield_now();
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
    }
}

/// Sends a message and waits until it is there, which shows that an endpoint works.
pub fn exchange(near: &mut Queue, to_far: EndpointId, far: &mut Queue) {
    near.post(to_far, &message(1, b"does it work?")).unwrap();
    let mut rest = 2;
    until("a message", &mut [near, far], |_, event| {
        match event {
            Event::Message(message) => assert_eq!(message.to_vec(), b"does it work?"),
            Event::Done(done) => assert_eq!(done.outcome, Ok(0)),
            Event::Lost(_, failure) => panic!("{failure}"),
        }
        rest -= 1;
        rest == 0
    });
}
