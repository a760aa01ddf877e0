//! Memory that a peer takes away, since it is a file.

use std::fs::File;
use std::path::{Path, PathBuf};

use pmem::Region;

use super::link::{Link, Other};
use super::*;

const BYTES: u64 = 1 << 20;

/// A file that is removed when this goes.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let own = format!("tako-fabric-cut-{}", std::process::id());
        Scratch(Path::new("/dev/shm").join(own))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Lends a file, and shortens it on request, for as long as the test asks.
fn lend_and_shorten(link: &mut Link, device: &Shm, queue: &mut Queue) {
    while link.hear() == "lend" {
        let to = link.join(queue, Role::Listener);
        let scratch = Scratch::new();
        let region = Region::create(&scratch.0, BYTES).unwrap();
        region.write(0, &[7; BYTES as usize]);
        let memory = device.register(&region, Access::ALL).unwrap();
        link.export(queue, to, &memory);
        assert_eq!(link.hear(), "shorten");
        let file = File::options().write(true).open(&scratch.0).unwrap();
        file.set_len(4096).unwrap();
        link.say("shortened");
        // The ring is no file: messages continue until the endpoint has ended.
        match await_event(queue) {
            Event::Lost(id, Failure::PeerLost) => assert_eq!(id, to),
            other => panic!("{other:?}"),
        }
        queue.close(to);
    }
}

/// The first end of a request, and of the endpoint with it, if it failed.
fn await_end(queue: &mut Queue) -> (Result<u64, Failure>, Option<Failure>) {
    let (mut events, mut outcome, mut lost) = (Vec::new(), None, None);
    let start = Instant::now();
    loop {
        for event in events.drain(..) {
            match event {
                Event::Done(done) => outcome = outcome.or(Some(done.outcome)),
                Event::Lost(_, failure) => lost = Some(failure),
                Event::Message(message) => panic!("{message:?}"),
            }
        }
        match outcome {
            Some(outcome) if outcome.is_ok() || lost.is_some() => return (outcome, lost),
            _ => assert!(start.elapsed() < PATIENCE),
        }
        queue.wait(&mut events, PATIENCE);
    }
}

#[test]
fn a_file_that_the_peer_shortens_ends_the_endpoint_and_not_the_process() {
    let device = Shm::new().unwrap();
    let mut queue = Queue::open(&device, sleeping()).unwrap();
    if let Some(mut link) = Link::to_parent() {
        return lend_and_shorten(&mut link, &device, &mut queue);
    }
    let test = "shm::tests::shortened::a_file_that_the_peer_shortens_ends_the_endpoint_and_not_the_process";
    let mut other = Other::start(test);
    let mut third = Queue::open(&device, QueueOptions::default()).unwrap();
    let (to_third, _) = join(&mut queue, &mut third);
    let own = Region::memory(BYTES, false).unwrap();
    let own = device.register(&own, Access::LOCAL).unwrap();
    for way in 0..5 {
        other.link.say("lend");
        let to = other.link.join(&mut queue, Role::Dialer);
        let remote = other.link.import(&mut queue, to);
        let all = [own.piece(0, BYTES as u32)];
        let (at, last) = (remote.at(0), remote.at(BYTES - 8));
        let read = Work::Read {
            into: &all,
            from: at,
        };
        let write = |immediate| Work::Write {
            from: Source::Pieces(&all),
            to: at,
            immediate,
        };
        let operation = match way {
            0 => read,
            1 => write(None),
            2 => write(Some(9)),
            3 => Work::CompareAndSwap {
                at: last,
                expected: 0,
                new: 1,
            },
            _ => Work::FetchAndAdd {
                at: last,
                addend: 1,
            },
        };
        post(&mut queue, to, &WorkRequest::new(1, read));
        assert_eq!(await_end(&mut queue), (Ok(0), None));
        let mut found = [0; 8];
        own.region().read(BYTES - 8, &mut found);
        assert_eq!(found, [7; 8]);
        other.link.say("shorten");
        assert_eq!(other.link.hear(), "shortened");
        queue.post(to, &WorkRequest::new(2, operation)).unwrap();
        // It relies on the event before it: the other side would take it for one.
        let behind = WorkRequest::new(2, send(b"behind")).quiet();
        queue.post(to, &behind).unwrap();
        queue.submit();
        let gone = Failure::MemoryGone;
        assert_eq!(await_end(&mut queue), (Err(gone), Some(gone)), "way {way}");
        queue.close(to);
        // Others continue.
        let request = WorkRequest::new(3, send(b"goes on")).quiet();
        post(&mut queue, to_third, &request);
        assert_eq!(await_message(&mut third), b"goes on");
    }
    other.link.say("enough");
    other.ends();
}

#[test]
fn memory_that_is_not_sealed_is_refused() {
    let device = Shm::new().unwrap();
    let mut queue = Queue::open(&device, sleeping()).unwrap();
    let mut far = Queue::open(&device, sleeping()).unwrap();
    let (to, back) = join(&mut queue, &mut far);
    let region = Region::memory(4096, false).unwrap();
    let memory = device.register(&region, Access::ALL).unwrap();
    let mut export = far.export(back, &memory).unwrap();
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let unsealed = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    export.memory = Some(unsealed);
    assert_eq!(
        queue.import(to, export).unwrap_err().to_string(),
        "shared memory can shrink while it is used: it is not sealed; its owner must seal it \
         (F_SEAL_SHRINK)"
    );
}
