//! Common beginning of the cases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pmem::Region;
use verbs::{
    Completion, CompletionQueue, Data, Device, Domain, GRH, Patience, Piece, QueuePair, Queues,
    Receive, Registration, Remote, Request, Rights, SharedReceiveQueue, Status, Verb, Wanted,
};

pub const LENGTH: u64 = 1 << 20;
pub const KEY: u32 = verbs::GROUP_KEY;
const DEPTH: u32 = 64;
/// No event takes longer, however busy the machine.
const LONG: Duration = Duration::from_secs(60);

pub fn all_rights() -> Rights {
    Rights::READ | Rights::WRITE | Rights::ATOMIC
}

/// One of the devices, with separate memory that others may use.
pub struct Endpoint {
    pub device: Arc<Device>,
    pub domain: Arc<Domain>,
    pub completions: Arc<CompletionQueue>,
    pub memory: Arc<Registration>,
}

impl Endpoint {
    pub fn new(device: &str) -> Endpoint {
        let region = Region::memory(LENGTH, false).unwrap();
        Endpoint::with(device, &region)
    }

    pub fn with(device: &str, region: &Region) -> Endpoint {
        let wanted = Wanted {
            device: Some(device.to_owned()),
            ..Wanted::default()
        };
        let device = Device::open(&wanted).unwrap();
        let domain = Domain::new(&device).unwrap();
        let completions = CompletionQueue::new(&device, 4 * DEPTH).unwrap();
        let memory = Registration::new(&domain, region, 0, region.length(), all_rights()).unwrap();
        Endpoint {
            device,
            domain,
            completions,
            memory,
        }
    }

    pub fn queues(&self, shared: Option<&Arc<SharedReceiveQueue>>) -> Queues {
        Queues {
            send: self.completions.clone(),
            receive: self.completions.clone(),
            shared: shared.cloned(),
            depth: DEPTH,
            inline: 128,
        }
    }

    pub fn reliable(&self) -> Arc<QueuePair> {
        QueuePair::reliable(&self.domain, &self.queues(None)).unwrap()
    }

    pub fn datagram(&self) -> Arc<QueuePair> {
        QueuePair::datagram(&self.domain, &self.queues(None), KEY).unwrap()
    }

    pub fn fill(&self, offset: u64, bytes: &[u8]) {
        self.memory.region().write(offset, bytes);
    }

    pub fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.region().read(offset, &mut bytes);
        bytes
    }

    pub fn word(&self, offset: u64) -> u64 {
        self.memory.region().load(offset)
    }

    pub fn remote(&self, offset: u64) -> Remote {
        self.memory.remote(offset)
    }

    /// The next completion, which must come.
    pub fn complete(&self) -> Completion {
        self.complete_within(LONG).expect("a completion comes")
    }

    pub fn complete_within(&self, time: Duration) -> Option<Completion> {
        let deadline = Instant::now() + time;
        let mut room = [Completion::default()];
        loop {
            if let Some(completion) = self.completions.poll(&mut room).unwrap().first() {
                return Some(*completion);
            }
            self.completions.arm().unwrap();
            if let Some(completion) = self.completions.poll(&mut room).unwrap().first() {
                return Some(*completion);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.completions.wait(left.as_millis() as u32 + 1).unwrap();
        }
    }

    /// The next completion, which must be a success with this identity.
    pub fn succeed(&self, id: u64) -> Completion {
        let completion = self.complete();
        assert_eq!(
            (completion.id(), completion.status()),
            (id, Status::Success),
            "{completion:?}"
        );
        completion
    }

    /// The next completion, which must have this status.
    pub fn fail(&self, id: u64, status: Status) {
        let completion = self.complete();
        assert_eq!(
            (completion.id(), completion.status()),
            (id, status),
            "{completion:?}"
        );
    }

    pub fn receive(&self, pair: &QueuePair, id: u64, offset: u64, length: u32) {
        let into = [self.memory.piece(offset, length)];
        pair.post_receives(&[Receive { id, into: &into }]).unwrap();
    }

    /// Receives a datagram of this length, which then begins behind the header.
    pub fn receive_datagram(&self, pair: &QueuePair, id: u64, offset: u64, length: u32) {
        self.receive(pair, id, offset, length + GRH);
    }
}

pub fn connect(a: &QueuePair, b: &QueuePair, patience: &Patience) {
    a.connect(&b.peer(), patience).unwrap();
    b.connect(&a.peer(), patience).unwrap();
}

/// Returns two queue pairs that are connected to each other.
pub fn connected(a: &Endpoint, b: &Endpoint) -> (Arc<QueuePair>, Arc<QueuePair>) {
    let pairs = (a.reliable(), b.reliable());
    connect(&pairs.0, &pairs.1, &Patience::default());
    pairs
}

pub fn request(id: u64, operation: Verb<'_>) -> Request<'_> {
    Request {
        id,
        signaled: true,
        fenced: false,
        operation,
    }
}

pub fn send<'a>(id: u64, pieces: &'a [Piece<'a>]) -> Request<'a> {
    let data = Data::Pieces(pieces);
    request(
        id,
        Verb::Send {
            data,
            immediate: None,
        },
    )
}

pub fn write<'a>(id: u64, pieces: &'a [Piece<'a>], remote: Remote) -> Request<'a> {
    let data = Data::Pieces(pieces);
    let immediate = None;
    request(
        id,
        Verb::Write {
            data,
            remote,
            immediate,
        },
    )
}

/// Bytes that are others for each number.
pub fn pattern(number: u64, length: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}
