//! Two sides that fit, or nearly.

use std::os::fd::AsFd;

use rustix::event::PollFlags;

use super::*;
use fabric::{Access, Device, Role};
use pmem::Region;

/// A listener and a dialer in two threads, joined.
struct Pair {
    near: PeerSession,
    far: PeerSession,
    near_queues: [Queue; 2],
    far_queues: [Queue; 2],
}

fn join(listening: &TestProcess, addresses: &[Address], dialing: &TestProcess, last: bool) -> Pair {
    let mut listener = listening.listen(addresses);
    let mut bound = listener.addresses();
    let address = if last {
        bound.pop()
    } else {
        Some(bound.remove(0))
    };
    let address = address.unwrap();
    thread::scope(|scope| {
        let dialed = scope.spawn(|| {
            let mut queues = dialing.queues();
            (dialing.dial(&address, &mut queues).unwrap(), queues)
        });
        let caller = listener.accept(LONG).unwrap().expect("a caller");
        let mut far_queues = listening.queues();
        let mut far = establish(caller, &mut far_queues).unwrap();
        let (near, near_queues) = dialed.join().unwrap();
        let queue = queue_of_session(&mut far_queues, &far);
        assert_eq!(far.receive(queue, LONG).unwrap(), Some(Note::Ready));
        let counters = listener.counters();
        assert_eq!(counters.admitted, 1);
        assert_eq!(counters.malformed + counters.strangers, 0);
        Pair {
            near,
            far,
            near_queues,
            far_queues,
        }
    })
}

fn queue_of_session<'q>(queues: &'q mut [Queue; 2], session: &PeerSession) -> &'q mut Queue {
    let [shm, tcp] = queues;
    match session.choice().provider {
        Provider::Shm => shm,
        _ => tcp,
    }
}

impl Pair {
    /// Each exports memory to the other; then they part.
    fn use_up(mut self, near_node: &TestProcess) {
        let provider = self.near.choice().provider;
        let fake = match provider {
            Provider::Shm => &near_node.shm,
            _ => &near_node.tcp,
        };
        let region = Region::memory(8192, false).unwrap();
        region.write(100, b"seen by both");
        let registration = fake.register(&region, Access::READ).unwrap();
        let near_queue = queue_of_session(&mut self.near_queues, &self.near);
        let far_queue = queue_of_session(&mut self.far_queues, &self.far);
        self.near.export(near_queue, 77, &registration).unwrap();
        let note = self.far.receive(far_queue, LONG).unwrap();
        let Some(Note::Exported { name: 77, region }) = note else {
            panic!("{note:?}");
        };
        assert_eq!(region.length(), 8192);
        self.near.revoke(near_queue, 77).unwrap();
        let note = self.far.receive(far_queue, LONG).unwrap();
        assert_eq!(note, Some(Note::Revoked { name: 77 }));
        assert_eq!(self.near.receive(near_queue, Duration::ZERO).unwrap(), None);
        self.far.release(far_queue, 77).unwrap();
        process::wait_for(&self.near.as_fd(), PollFlags::IN, LONG).unwrap();
        let note = self.near.receive(near_queue, LONG).unwrap();
        assert_eq!(note, Some(Note::Released { name: 77 }));
        self.near.close(near_queue);
        let note = self.far.receive(far_queue, LONG).unwrap();
        assert_eq!(note, Some(Note::Goodbye));
        let over = self.far.receive(far_queue, LONG).unwrap_err();
        assert!(matches!(over, Error::Closed { .. }), "{over}");
        self.far.close(far_queue);
    }
}

#[test]
fn by_a_unix_socket_memory_is_passed() {
    let scratch = Scratch::new();
    let (a, b) = (
        TestProcess::on_this_host("a"),
        TestProcess::on_this_host("b"),
    );
    let pair = join(&b, &[scratch.socket()], &a, false);
    assert_eq!(pair.near.choice().to_string(), "shm");
    assert_eq!(pair.far.choice(), pair.near.choice());
    let process = std::process::id();
    assert_eq!(
        pair.near.identity().to_string(),
        format!("b (process {process})")
    );
    assert_eq!(
        pair.far.identity().to_string(),
        format!("a (process {process})")
    );
    pair.use_up(&a);
    for (node, role) in [(&a, Role::Dialer), (&b, Role::Listener)] {
        let seen = node.shm.seen.lock().unwrap();
        let [established] = &seen.established[..] else {
            panic!("{}", seen.established.len());
        };
        assert_eq!(established.role, role);
        assert_eq!(established.secret, b"secret");
        assert_eq!(established.descriptors.len(), 1);
        assert!(established.process.is_some() && !established.has_address);
        assert_eq!(seen.open, 0);
    }
    let mut bytes = [0; 12];
    b.shm.seen.lock().unwrap().attached[0].read(100, &mut bytes);
    assert_eq!(&bytes, b"seen by both");
    assert!(
        !scratch.path("socket").exists(),
        "the listener left its socket behind"
    );
}

/// Number of regions each of two sides exports to the other before it reads the other's exports.
const AT_ONCE: u64 = 2000;

fn export_and_receive(session: &mut PeerSession, queue: &mut Queue, node: &TestProcess) {
    let region = Region::memory(4096, false).unwrap();
    let fake = match session.choice().provider {
        Provider::Shm => &node.shm,
        _ => &node.tcp,
    };
    let registration = fake.register(&region, Access::READ).unwrap();
    for name in 0..AT_ONCE {
        session.export(queue, name, &registration).unwrap();
    }
    for expected in 0..AT_ONCE {
        let note = session.receive(queue, LONG).unwrap();
        let Some(Note::Exported { name, .. }) = note else {
            panic!("{note:?}");
        };
        assert_eq!(name, expected);
    }
    for name in 0..AT_ONCE {
        session.release(queue, name).unwrap();
    }
    for name in 0..AT_ONCE {
        let note = session.receive(queue, LONG).unwrap();
        assert_eq!(note, Some(Note::Released { name }));
    }
}

#[test]
fn two_sides_that_tell_much_at_once_listen_meanwhile() {
    let scratch = Scratch::new();
    let (a, b) = (
        TestProcess::on_this_host("a"),
        TestProcess::on_this_host("b"),
    );
    let by_socket = join(&b, &[scratch.socket()], &a, false);
    let [c, d] = scratch.keys("keys").map(TestProcess::new);
    let by_network = join(&d, &[loopback()], &c, false);
    for (mut pair, [near_node, far_node]) in [(by_socket, [&a, &b]), (by_network, [&c, &d])] {
        thread::scope(|scope| {
            scope.spawn(|| {
                let queue = queue_of_session(&mut pair.far_queues, &pair.far);
                // Three times as many in all as there may be at once.
                for _ in 0..3 {
                    export_and_receive(&mut pair.far, queue, far_node);
                }
            });
            let queue = queue_of_session(&mut pair.near_queues, &pair.near);
            for _ in 0..3 {
                export_and_receive(&mut pair.near, queue, near_node);
            }
        });
    }
}

#[test]
fn over_a_network_certificates_prove_names() {
    let scratch = Scratch::new();
    let [a, b] = scratch.keys("keys").map(TestProcess::new);
    let pair = join(&b, &[loopback()], &a, false);
    assert_eq!(
        pair.near.choice().to_string(),
        "tcp (not shm: b is on this host and has no Unix socket; let it listen at one, too; not verbs: a: \
         libibverbs is not installed; install libibverbs1; not ethernet: a: it is not set up there)"
    );
    assert_eq!(pair.far.choice(), pair.near.choice());
    assert_eq!(
        (&*pair.near.identity().node, &*pair.far.identity().node),
        ("b", "a")
    );
    assert!(pair.far.identity().address.unwrap().ip().is_loopback());
    pair.use_up(&a);
    let seen = b.tcp.seen.lock().unwrap();
    let established = &seen.established[0];
    assert!(established.process.is_none() && established.has_address);
    assert_eq!(established.secret, b"secret");
}

#[test]
fn on_the_same_host_a_unix_socket_takes_the_place_of_the_network() {
    let scratch = Scratch::new();
    let [a, b] = scratch.keys("keys").map(TestProcess::new);
    let pair = join(&b, &[scratch.socket(), loopback()], &a, true);
    assert_eq!(pair.near.choice().to_string(), "shm");
    assert!(pair.near.identity().process.is_some());
    pair.use_up(&a);
}

#[test]
fn waiting_for_ever_is_waiting_for_long() {
    let scratch = Scratch::new();
    let a = TestProcess::on_this_host("a").patient_for(Duration::MAX);
    let b = TestProcess::on_this_host("b").patient_for(Duration::MAX);
    let mut listener = b.listen(&[scratch.socket()]);
    thread::scope(|scope| {
        let dialed = scope.spawn(|| {
            let mut queues = a.queues();
            (a.dial(&scratch.socket(), &mut queues).unwrap(), queues)
        });
        let caller = listener.accept(Duration::MAX).unwrap().expect("a caller");
        let mut queues = b.queues();
        let mut session = establish(caller, &mut queues).unwrap();
        let note = session.receive(&mut queues[0], Duration::MAX).unwrap();
        assert_eq!(note, Some(Note::Ready));
        drop(dialed.join().unwrap());
    });
}

#[test]
fn a_forced_transport_is_used_or_none() {
    let scratch = Scratch::new();
    let (a, b) = (
        TestProcess::on_this_host("a"),
        TestProcess::on_this_host("b"),
    );
    let a = a.only(Provider::Tcp);
    let pair = join(&b, &[scratch.socket()], &a, false);
    assert_eq!(pair.far.choice().provider, Provider::Tcp);
    let reason = "a was told to use tcp only";
    assert_eq!(
        pair.far.choice().passed_over[0],
        (Provider::Shm, reason.into())
    );
    pair.use_up(&a);

    let b = b.only(Provider::Verbs);
    let (error, counters) = refused_dial(b.listen(&[scratch.socket()]), &a, &scratch.socket());
    assert!(
        error.contains("a was told to use tcp only, but b was told to use verbs only"),
        "{error}"
    );
    assert_eq!(counters.admitted, 0);

    let [a, b] = scratch.keys("keys").map(TestProcess::new);
    let a = a.only(Provider::Shm);
    let listener = b.listen(&[loopback()]);
    let address = listener.addresses().remove(0);
    let (error, _) = refused_dial(listener, &a, &address);
    assert!(
        error.contains("a was told to use shm only, but b is on this host and has no Unix"),
        "{error}"
    );
}

#[test]
fn a_transport_that_fails_leaves_no_endpoint() {
    let scratch = Scratch::new();
    let (a, b) = (
        TestProcess::on_this_host("a"),
        TestProcess::on_this_host("b"),
    );
    let mut listener = b.listen(&[scratch.socket()]);
    for listener_fails in [true, false] {
        let failing = if listener_fails { &b } else { &a };
        failing.shm.fail();
        thread::scope(|scope| {
            let dialed = scope.spawn(|| a.dial(&scratch.socket(), &mut a.queues()).map(|_| ()));
            let caller = listener.accept(LONG).unwrap().expect("a caller");
            let mut queues = b.queues();
            let mut session = establish(caller, &mut queues);
            let error = dialed.join().unwrap().unwrap_err().to_string();
            assert!(error.contains("invalid ring of the peer"), "{error}");
            if let Ok(session) = &mut session {
                let told = session
                    .receive(&mut queues[0], LONG)
                    .unwrap_err()
                    .to_string();
                assert!(told.contains("refuses: invalid ring"), "{told}");
                queues[0].close(session.endpoint());
            }
            assert_eq!(session.is_err(), listener_fails);
        });
        assert_eq!((a.open(), b.open()), (0, 0));
    }
}

#[test]
fn another_cluster_or_node_is_refused() {
    let scratch = Scratch::new();
    let a = TestProcess::on_this_host("a");
    let other = TestProcess::new(Identity::local([4; 16], "b").unwrap());
    let (error, counters) = refused_dial(other.listen(&[scratch.socket()]), &a, &scratch.socket());
    assert!(
        error.contains("belongs to cluster 04040404-0404-"),
        "{error}"
    );
    assert_eq!(counters.unfit, 1);

    let b = TestProcess::on_this_host("b");
    let mut listener = b.listen(&[scratch.socket()]);
    thread::scope(|scope| {
        let dialed =
            scope.spawn(|| dial(&scratch.socket(), Some("c"), &a.local, &mut []).map(|_| ()));
        while !dialed.is_finished() {
            assert!(
                listener
                    .accept(Duration::from_millis(20))
                    .unwrap()
                    .is_none()
            );
        }
        let error = dialed.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("is node b, not c"), "{error}");
    });
    let unreachable = a
        .dial(&Address::Unix(scratch.path("none")), &mut a.queues())
        .unwrap_err();
    assert!(
        unreachable.to_string().starts_with("cannot connect to"),
        "{unreachable}"
    );
    let no_keys = a
        .dial(&loopback(), &mut a.queues())
        .unwrap_err()
        .to_string();
    assert!(no_keys.contains("has no keys"), "{no_keys}");
    let no_keys = Listener::bind(&[loopback()], a.local.clone()).unwrap_err();
    assert!(no_keys.to_string().contains("has no keys"), "{no_keys}");
}

#[test]
fn a_socket_that_was_left_behind_is_taken_over_and_no_other() {
    let scratch = Scratch::new();
    let b = TestProcess::on_this_host("b");
    drop(std::os::unix::net::UnixListener::bind(scratch.path("socket")).unwrap());
    let first = b.listen(&[scratch.socket()]);
    let second = Listener::bind(&[scratch.socket()], b.local.clone()).unwrap_err();
    assert!(
        second.to_string().contains("no other process listens"),
        "{second}"
    );
    drop(first);
    std::fs::write(scratch.path("socket"), "a file").unwrap();
    assert!(Listener::bind(&[scratch.socket()], b.local.clone()).is_err());
    assert!(scratch.path("socket").exists());
}

/// The other process of the next test: the same program, with an address to dial.
const CHILD: &str = "TAKO_TEST_DIALS";

#[test]
fn two_processes() {
    if let Ok(place) = std::env::var(CHILD) {
        return dial_from_another_process(Path::new(&place));
    }
    let scratch = Scratch::new();
    let [_, b] = scratch.keys("keys").map(TestProcess::new);
    let mut listener = b.listen(&[scratch.socket(), loopback()]);
    let Address::Tcp(address) = listener.addresses()[1].clone() else {
        panic!("{:?}", listener.addresses());
    };
    std::fs::write(scratch.path("address"), address.to_string()).unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "control::tests::pairs::two_processes",
            "--nocapture",
        ])
        .env(CHILD, &scratch.0)
        .spawn()
        .unwrap();
    for expected in [Provider::Shm, Provider::Tcp] {
        let caller = listener.accept(LONG).unwrap().expect("a caller");
        let mut queues = b.queues();
        let mut session = establish(caller, &mut queues).unwrap();
        assert_eq!(session.choice().provider, expected);
        let process = (expected == Provider::Shm).then_some(child.id());
        assert_eq!(session.identity().process, process);
        let queue = queue_of_session(&mut queues, &session);
        assert_eq!(session.receive(queue, LONG).unwrap(), Some(Note::Ready));
        let note = session.receive(queue, LONG).unwrap();
        assert!(
            matches!(note, Some(Note::Exported { name: 1, .. })),
            "{note:?}"
        );
        assert_eq!(session.receive(queue, LONG).unwrap(), Some(Note::Goodbye));
    }
    assert!(child.wait().unwrap().success());
    let seen = b.shm.seen.lock().unwrap();
    let mut bytes = [0; 5];
    seen.attached[0].read(0, &mut bytes);
    assert_eq!(&bytes, b"child");
    let process = seen.established[0].process.as_ref().unwrap();
    process::wait_for(process, PollFlags::IN, LONG).unwrap();
}

fn dial_from_another_process(place: &Path) {
    let a = TestProcess::new(Identity::load(&place.join("keys/a")).unwrap());
    let address = std::fs::read_to_string(place.join("address")).unwrap();
    let address = Address::Tcp(address.parse().unwrap());
    let region = Region::memory(4096, false).unwrap();
    region.write(0, b"child");
    for node in [
        a,
        TestProcess::new(Identity::load(&place.join("keys/a")).unwrap()).only(Provider::Tcp),
    ] {
        let mut queues = node.queues();
        let mut session = node.dial(&address, &mut queues).unwrap();
        let fake = match session.choice().provider {
            Provider::Shm => &node.shm,
            _ => &node.tcp,
        };
        let registration = fake.register(&region, Access::READ).unwrap();
        let queue = queue_of_session(&mut queues, &session);
        session.export(queue, 1, &registration).unwrap();
        session.close(queue);
    }
}
