//! A process without a descriptor left. Alone in its program, since the limit is the process's.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use fabric::tcp::{Tcp, TcpOptions};
use fabric::{Queue, QueueOptions};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::ClockId;

/// No caller authenticates here, so each admitted one is dismissed after this.
const PROVE_WITHIN: Duration = Duration::from_millis(50);

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn exhaust() -> Vec<File> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: Some(256),
        maximum,
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

fn is_closed(mut caller: &TcpStream) -> bool {
    matches!(caller.read(&mut [0; 1]), Ok(0))
}

#[test]
fn a_caller_waits_until_there_is_a_descriptor() {
    let options = TcpOptions {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        lost_after: Duration::from_secs(1),
        prove_within: PROVE_WITHIN,
        unproved: 8,
    };
    let mut queue = Queue::open(&Tcp::new(options), QueueOptions::default()).unwrap();
    let (_, told) = queue.offer().unwrap();
    let port = u16::from_le_bytes([told.bytes[6], told.bytes[7]]);
    let socket: OwnedFd =
        rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let files = exhaust();
    rustix::net::connect(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port))).unwrap();
    let caller = TcpStream::from(socket);
    caller.set_nonblocking(true).unwrap();

    // It is not taken, and that does not keep the processor busy.
    let (before, start) = (processor_time(), Instant::now());
    let mut events = Vec::new();
    while start.elapsed() < PROVE_WITHIN * 10 {
        queue.wait(&mut events, PROVE_WITHIN);
    }
    let busy = processor_time() - before;
    assert!(busy < start.elapsed() / 4, "busy for {busy:?}");
    assert!(!is_closed(&caller));

    // There is one again: it is taken, and as it sends nothing it is dismissed.
    drop(files);
    let start = Instant::now();
    while !is_closed(&caller) {
        queue.wait(&mut events, PROVE_WITHIN);
        assert!(
            start.elapsed() < Duration::from_secs(120),
            "no process took it"
        );
    }
    assert!(events.is_empty());
}
