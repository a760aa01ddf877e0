//! Two processes with only an address and keys of each other, over the available transports.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use connections::control::{self, Address, Identity, Listener, Local, Note, PeerSession, dial};
use connections::keys;
use connections::transports::{Transports, Wanted};
use fabric::tcp::TcpOptions;
use fabric::{
    Access, Event, Failure, Provider, Queue, Registration, RemoteRegion, Source, Work, WorkRequest,
};
use pmem::Region;

/// Nothing that works takes so long.
const LONG: Duration = Duration::from_secs(120);
const LENGTH: u64 = 8192;
/// Set for the process that is connected to: the directory with its keys.
const SERVES: &str = "TAKO_TEST_SERVES";

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Transports of a process here, or only one of them.
fn transports(only: Option<Provider>) -> Transports {
    Transports::open(&Wanted {
        only,
        tcp: TcpOptions {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            lost_after: LONG,
            prove_within: LONG,
            ..TcpOptions::default()
        },
        ..Wanted::default()
    })
    .unwrap()
}

fn memory(transports: &Transports, session: &PeerSession) -> Registration {
    let region = Region::memory(LENGTH, false).unwrap();
    let device = transports.device(session.choice().provider).unwrap();
    device.register(&region, Access::ALL).unwrap()
}

fn local(keys: &Path, transports: &Transports) -> Local {
    Local {
        identity: Identity::load(keys).unwrap(),
        offers: transports.offers().clone(),
        options: control::Options {
            step_timeout: LONG,
            ..control::Options::default()
        },
    }
}

fn contents() -> Vec<u8> {
    (0..LENGTH).map(|at| (at * 7 % 251) as u8).collect()
}

/// Listens, exports memory to every caller, and serves it until it is killed.
fn serve(place: &Path) {
    let mut transports = transports(None);
    let addresses = [
        Address::Unix(place.join("socket")),
        Address::Tcp("127.0.0.1:0".parse().unwrap()),
    ];
    let mut listener =
        Listener::bind(&addresses, local(&place.join("keys/b"), &transports)).unwrap();
    println!("\nlistens {}", listener.addresses()[1]);
    let caller = listener.accept(LONG).unwrap().expect("a caller");
    let mut session = caller.establish(&mut transports.queues()).unwrap();
    let memory = memory(&transports, &session);
    memory.region().write(0, &contents());
    let queue = transports.queue(session.choice().provider).unwrap();
    assert_eq!(session.receive(queue, LONG).unwrap(), Some(Note::Ready));
    session.export(queue, 5, &memory).unwrap();
    let end = Instant::now() + LONG;
    while Instant::now() < end {
        queue.wait(&mut Vec::new(), LONG);
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

impl Server {
    fn new(test: &str, place: &Path) -> (Server, Address) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(SERVES, place)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let server = Server(child);
        let mut lines = out.lines().map(Result::unwrap);
        let line = lines.find_map(|line| line.strip_prefix("listens ").map(str::to_string));
        let address = line.expect("a server").parse().unwrap();
        (server, Address::Tcp(address))
    }
}

/// Posts one request and waits for its end.
fn carry_out(
    queue: &mut Queue,
    session: &PeerSession,
    operation: Work<'_>,
) -> Result<u64, Failure> {
    let request = WorkRequest::new(1, operation);
    queue.post(session.endpoint(), &request).unwrap();
    queue.submit();
    let mut events = Vec::new();
    let end = Instant::now() + LONG;
    while Instant::now() < end {
        queue.wait(&mut events, LONG);
        for event in events.drain(..) {
            if let Event::Done(completion) = event {
                return completion.outcome;
            }
        }
    }
    panic!("the request does not end");
}

fn reach_all(queue: &mut Queue, session: &PeerSession, remote: RemoteRegion, own: &Registration) {
    let piece = [own.piece(0, LENGTH as u32)];
    let read = Work::Read {
        into: &piece,
        from: remote.at(0),
    };
    carry_out(queue, session, read).unwrap();
    let mut bytes = vec![0; LENGTH as usize];
    own.region().read(0, &mut bytes);
    assert!(
        bytes == contents(),
        "what was read is not what was exported"
    );
    let write = Work::Write {
        from: Source::Pieces(&[own.piece(0, 8)]),
        to: remote.at(8),
        immediate: None,
    };
    own.region().write(0, &41_u64.to_le_bytes());
    carry_out(queue, session, write).unwrap();
    let add = Work::FetchAndAdd {
        at: remote.at(8),
        addend: 1,
    };
    assert_eq!(carry_out(queue, session, add), Ok(41));
    assert_eq!(carry_out(queue, session, add), Ok(42));
}

fn between_processes(test: &str, provider: Provider) {
    if let Ok(place) = std::env::var(SERVES) {
        return serve(Path::new(&place));
    }
    let place = std::env::temp_dir().join(format!("tako-{test}-{}", std::process::id()));
    std::fs::create_dir(&place).unwrap();
    let scratch = Scratch(place);
    let directory = scratch.0.join("keys");
    keys::init(&directory, "a").unwrap();
    keys::issue(&directory, "b", keys::usual_validity()).unwrap();
    let (mut server, address) = Server::new(test, &scratch.0);

    let mut transports = transports(Some(provider).filter(|only| *only != Provider::Shm));
    let local = local(&directory.join("a"), &transports);
    let mut session = dial(&address, Some("b"), &local, &mut transports.queues()).unwrap();
    assert_eq!(session.choice().provider, provider);
    assert_eq!(
        session.identity().process.is_some(),
        provider == Provider::Shm
    );
    let own = memory(&transports, &session);
    let queue = transports.queue(session.choice().provider).unwrap();
    let note = session.receive(queue, LONG).unwrap();
    let Some(Note::Exported { name: 5, region }) = note else {
        panic!("{note:?}");
    };
    reach_all(queue, &session, region, &own);

    server.0.kill().unwrap();
    server.0.wait().unwrap();
    let mut events = Vec::new();
    let end = Instant::now() + LONG;
    let is_lost = |event: &Event| matches!(event, Event::Lost(endpoint, Failure::PeerLost) if *endpoint == session.endpoint());
    while !events.iter().any(is_lost) {
        assert!(Instant::now() < end, "its end is not noticed: {events:?}");
        queue.wait(&mut events, LONG);
    }
    let over = session.receive(queue, LONG).unwrap_err();
    assert!(matches!(over, control::Error::Closed { .. }), "{over}");
    session.close(queue);
}

#[test]
fn memory_is_reached_over_shm() {
    between_processes("memory_is_reached_over_shm", Provider::Shm);
}

#[test]
fn memory_is_reached_over_tcp() {
    between_processes("memory_is_reached_over_tcp", Provider::Tcp);
}
