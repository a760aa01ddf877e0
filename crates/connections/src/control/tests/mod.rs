//! Two sides in two threads, or one of them as it should not be, over a transport that does nothing.

mod callers;
mod fake;
mod pairs;
mod strangers;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use self::fake::Fake;
use super::*;
use crate::keys;
use fabric::Queue;

const CLUSTER: [u8; 16] = [3; 16];
/// Nothing that works takes so long.
const LONG: Duration = Duration::from_secs(120);
/// Duration of a step without a peer. A busy machine does not delay the others for so long.
const SHORT: Duration = Duration::from_secs(3);

/// A directory that goes with all that is in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tako-control-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn socket(&self) -> Address {
        Address::Unix(self.path("socket"))
    }

    /// The keys of the nodes `a` and `b` of a new cluster.
    fn keys(&self, cluster: &str) -> [Identity; 2] {
        let directory = self.path(cluster);
        keys::init(&directory, "a").unwrap();
        keys::issue(&directory, "b", keys::usual_validity()).unwrap();
        ["a", "b"].map(|node| Identity::load(&directory.join(node)).unwrap())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process of the tests: its identity, and its transports.
struct TestProcess {
    local: Local,
    shm: Fake,
    tcp: Fake,
}

impl TestProcess {
    fn new(identity: Identity) -> TestProcess {
        let reason = "libibverbs is not installed; install libibverbs1";
        TestProcess {
            local: Local {
                identity,
                offers: Offers::new()
                    .with(Provider::Shm)
                    .without(Provider::Verbs, reason)
                    .with(Provider::Tcp),
                options: Options {
                    step_timeout: LONG,
                    callers: 16,
                    messages: 0,
                },
            },
            shm: Fake::new(Provider::Shm),
            tcp: Fake::new(Provider::Tcp),
        }
    }

    fn on_this_host(name: &str) -> TestProcess {
        TestProcess::new(Identity::local(CLUSTER, name).unwrap())
    }

    fn patient_for(mut self, step_timeout: Duration) -> TestProcess {
        self.local.options.step_timeout = step_timeout;
        self
    }

    fn only(mut self, provider: Provider) -> TestProcess {
        self.local.offers = self.local.offers.only(provider);
        self
    }

    fn queues(&self) -> [Queue; 2] {
        [self.shm.queue(), self.tcp.queue()]
    }

    fn listen(&self, addresses: &[Address]) -> Listener {
        Listener::bind(addresses, self.local.clone()).unwrap()
    }

    fn dial(&self, address: &Address, queues: &mut [Queue; 2]) -> Result<PeerSession, Error> {
        let [shm, tcp] = queues;
        dial(address, None, &self.local, &mut [shm, tcp])
    }

    /// Number of its endpoints.
    fn open(&self) -> usize {
        self.shm.open() + self.tcp.open()
    }
}

fn establish(caller: Caller, queues: &mut [Queue; 2]) -> Result<PeerSession, Error> {
    let [shm, tcp] = queues;
    caller.establish(&mut [shm, tcp])
}

fn loopback() -> Address {
    Address::Tcp("127.0.0.1:0".parse().unwrap())
}

/// The dialer's final result, with a listener that returns no caller.
fn refused_dial(
    mut listener: Listener,
    dialer: &TestProcess,
    address: &Address,
) -> (String, Counters) {
    let error = thread::scope(|scope| {
        let dialing = scope.spawn(|| dialer.dial(address, &mut dialer.queues()).map(|_| ()));
        let end = Instant::now() + LONG;
        while !dialing.is_finished() {
            assert!(Instant::now() < end, "the dialer hangs");
            let caller = listener.accept(Duration::from_millis(20)).unwrap();
            assert!(caller.is_none(), "somebody was admitted");
        }
        dialing.join().unwrap().unwrap_err().to_string()
    });
    assert_eq!(dialer.open(), 0);
    // The dialer's last message may not have been read.
    assert!(
        listener
            .accept(Duration::from_millis(20))
            .unwrap()
            .is_none()
    );
    (error, listener.counters())
}
