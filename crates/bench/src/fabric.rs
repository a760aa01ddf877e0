//! Transports between peers, each beside the plainest loop over the same memory or socket.
//!
//! Both peers are threads of this process, each with a queue. The raw side has no frames, no checks, no credits and no
//! completions: bytes in a socket, words in memory.

mod ethernet;
mod frames;
mod messages;
pub mod ping;
mod raw;
mod requests;
mod sizes;
mod transfers;

pub use sizes::{tune, tuned};

use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use fabric::shm::Shm;
use fabric::tcp::{Tcp, TcpOptions};
use fabric::verbs::{Verbs, VerbsOptions};
use fabric::{
    Access, Device, EndpointId, Event, Failure, Parameters, Peer, Provider, Queue, QueueOptions,
    Refusal, Registration, RemoteRegion, Role, Source, Work, WorkRequest,
};
use pmem::Region;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::report::Note;
use crate::{Error, Workload};

/// Name of the group of its rows.
pub const GROUP: &str = "fabric";

pub const WORKLOADS: [Workload; 10] = [
    Workload {
        name: "shm ping",
        measure: ping::shm,
    },
    Workload {
        name: "tcp ping",
        measure: ping::tcp,
    },
    Workload {
        name: "shm one-sided",
        measure: transfers::shm,
    },
    Workload {
        name: "tcp one-sided",
        measure: transfers::tcp,
    },
    Workload {
        name: "shm messages",
        measure: messages::shm,
    },
    Workload {
        name: "tcp messages",
        measure: messages::tcp,
    },
    Workload {
        name: "ethernet",
        measure: ethernet::measure,
    },
    Workload {
        name: "idle connections",
        measure: messages::idle,
    },
    Workload {
        name: "request and answer",
        measure: requests::measure,
    },
    Workload {
        name: "ways of a payload",
        measure: sizes::measure,
    },
];

/// Time limit after which the run is abandoned.
const PATIENCE: Duration = Duration::from_secs(20);

/// Addresses of two ends in this network namespace.
const LOCAL: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST); 2];

/// A peer's queue, with its events.
struct End {
    queue: Queue,
    events: Vec<Event>,
}

/// Two peers and what joins them.
struct Ends {
    near: End,
    far: End,
    to_far: EndpointId,
    to_near: EndpointId,
}

fn device(provider: Provider) -> Result<Box<dyn Device>, Error> {
    Ok(match provider {
        Provider::Tcp => Box::new(Tcp::new(TcpOptions {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            ..TcpOptions::default()
        })),
        Provider::Verbs => Box::new(Verbs::open(&VerbsOptions::default())?),
        _ => Box::new(Shm::new()?),
    })
}

/// Why verbs cannot be measured on this machine, if that was tried.
static WITHOUT_VERBS: OnceLock<Option<String>> = OnceLock::new();

/// The transports with ways of a payload to compare: verbs only where this machine has an adapter, and may use enough memory for it.
fn with_ways() -> impl Iterator<Item = Provider> {
    let reason = WITHOUT_VERBS.get_or_init(|| {
        let tried = device(Provider::Verbs)
            .and_then(|device| Ends::new(&*device, sizes::options()).map(drop));
        tried.err().map(|error| error.to_string())
    });
    let verbs = reason.is_none().then_some(Provider::Verbs);
    [Provider::Shm, Provider::Tcp].into_iter().chain(verbs)
}

/// Why rows over verbs are missing, if they are.
pub fn missing() -> Option<Note> {
    let reason = WITHOUT_VERBS.get()?.as_ref()?;
    Some(Note {
        name: "verbs",
        text: format!("not measured: {reason}"),
    })
}

impl Ends {
    fn new(device: &dyn Device, options: QueueOptions) -> Result<Ends, Error> {
        let near = End::new(device, options)?;
        let far = End::new(device, options)?;
        Ends::of(near, far, LOCAL)
    }

    /// Joins two ends at these addresses.
    fn of(mut near: End, mut far: End, addresses: [IpAddr; 2]) -> Result<Ends, Error> {
        let (to_far, to_near) = join(&mut near, &mut far, addresses)?;
        Ok(Ends {
            near,
            far,
            to_far,
            to_near,
        })
    }

    /// Memory of the far side, as the near side knows it.
    fn import(&mut self, memory: &Registration) -> Result<RemoteRegion, Error> {
        let export = self.far.queue.export(self.to_near, memory)?;
        Ok(self.near.queue.import(self.to_far, export)?)
    }
}

impl End {
    fn new(device: &dyn Device, options: QueueOptions) -> Result<End, Error> {
        Ok(End {
            queue: Queue::open(device, options)?,
            // Not in one line with the other thread's.
            events: Vec::with_capacity(64),
        })
    }

    /// Posts, as soon as there is room.
    fn post(&mut self, endpoint: EndpointId, request: &WorkRequest<'_>) -> Result<(), Error> {
        let mut since = None;
        loop {
            match self.queue.post(endpoint, request) {
                Ok(()) => return Ok(()),
                Err(Refusal::Held) => self.queue.poll(&mut self.events),
                Err(refusal) => return Err(Error::Fabric(refusal.to_string())),
            };
            if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(Error::Fabric("there is never room for a request".into()));
            }
        }
    }

    /// Polls, and counts events: completions of requests, and messages.
    fn count(&mut self) -> Result<(u64, u64), Error> {
        self.queue.poll(&mut self.events);
        self.sort()
    }

    /// The same, but may sleep.
    fn count_waiting(&mut self) -> Result<(u64, u64), Error> {
        self.queue.wait(&mut self.events, PATIENCE);
        self.sort()
    }

    fn sort(&mut self) -> Result<(u64, u64), Error> {
        let (mut done, mut messages) = (0, 0);
        for event in self.events.drain(..) {
            match event {
                Event::Message(_) => messages += 1,
                Event::Done(completion) => match completion.outcome {
                    Ok(_) => done += 1,
                    // The reason is reported when the endpoint ends.
                    Err(Failure::Flushed) => {}
                    Err(failure) => return Err(Error::Fabric(failure.to_string())),
                },
                Event::Lost(_, failure) => return Err(Error::Fabric(failure.to_string())),
            }
        }
        Ok((done, messages))
    }
}

fn join(
    near: &mut End,
    far: &mut End,
    [near_address, far_address]: [IpAddr; 2],
) -> Result<(EndpointId, EndpointId), Error> {
    let peer = |parameters: Parameters, address| Peer {
        parameters,
        address: Some(address),
        process: None,
    };
    let (to_far, near_parameters) = near.queue.offer()?;
    let (to_near, far_parameters) = far.queue.offer()?;
    far.queue
        .accept(to_near, Role::Listener, peer(near_parameters, near_address))?;
    near.queue
        .accept(to_far, Role::Dialer, peer(far_parameters, far_address))?;
    // Set-up continues while both poll: it ends when a message has arrived.
    let note = Work::Send {
        from: Source::Inline(b""),
        immediate: None,
    };
    near.post(to_far, &WorkRequest::new(0, note))?;
    let start = Instant::now();
    let (mut is_done, mut has_come) = (false, false);
    while !(is_done && has_come) {
        is_done |= near.count()?.0 > 0;
        has_come |= far.count()?.1 > 0;
        if start.elapsed() > PATIENCE {
            return Err(Error::Fabric("an endpoint cannot be set up".into()));
        }
    }
    Ok((to_far, to_near))
}

fn memory(device: &dyn Device, bytes: u64, access: Access) -> Result<Registration, Error> {
    let region = Region::memory(bytes, false)?;
    region.populate();
    Ok(device.register(&region, access)?)
}

/// Options for a benchmark: a thread that polls all the time, or one that blocks at once.
fn options(spins: bool) -> QueueOptions {
    QueueOptions {
        spin_max: if spins { PATIENCE } else { Duration::ZERO },
        ..QueueOptions::default()
    }
}

/// Where the two sides run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    /// Each has a separate processor, if there are two. Threads that spin on one processor measure only how the system
    /// schedules them.
    Apart,
    /// Where the system has them.
    Anywhere,
}

impl Placement {
    /// For sides that sleep while they wait, or spin.
    fn of(sleeps: bool) -> Placement {
        match sleeps {
            true => Placement::Anywhere,
            false => Placement::Apart,
        }
    }
}

/// Runs the far side in a thread for as long as the near side needs it.
fn with_far<T: Send>(
    place: Placement,
    far: impl FnOnce() -> Result<(), Error> + Send,
    near: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let everywhere = sched_getaffinity(None)?;
    let mut processors = (0..CpuSet::MAX_CPU).filter(|number| everywhere.is_set(*number));
    let (first, second) = match place {
        Placement::Apart => (processors.next(), processors.next()),
        Placement::Anywhere => (None, None),
    };
    let result = std::thread::scope(|scope| {
        let far = scope.spawn(move || {
            stay_on(second)?;
            far()
        });
        let result = stay_on(second.and(first)).and_then(|()| near());
        let ended = far
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        result.and_then(|value| ended.map(|()| value))
    });
    sched_setaffinity(None, &everywhere)?;
    result
}

/// Keeps this thread on a processor.
fn stay_on(processor: Option<usize>) -> Result<(), Error> {
    let Some(processor) = processor else {
        return Ok(());
    };
    let mut only = CpuSet::new();
    only.set(processor);
    Ok(sched_setaffinity(None, &only)?)
}
