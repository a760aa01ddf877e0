//! The transport over RDMA: one reliable connection (RC) for each endpoint, datagrams (UD) for groups.
//!
//! - One-sided requests are the adapters'. The target's processor has no part in them.
//! - Messages go into buffers that all endpoints of a queue share (a shared receive queue), behind a [header](wire). The
//!   credits above see to it that there is one for each; if counts of credits have taken too many, the sender's adapter
//!   waits and tries again, for ever.
//! - A lost peer is detected by requests without an acknowledgement. While there are none, a [probe](link) is sent
//!   every [`PROBE_EVERY`]: a write of no bytes. So detection takes no longer than that and the adapter's retries, a
//!   second or so, which a slow link doubles. A side that closes an endpoint reports it.
//! - The target's adapter has all successful requests; failed ones are unknown. So nothing is repeated here: the
//!   endpoint ends, and its user sets up a new one (`docs/decisions/0013-lost-endpoints.md`).
//! - An adapter that fails as a whole reports it by an event; all its endpoints are lost then, and it takes no new
//!   ones.
//! - An adapter that refuses a request of a peer ends the connection, on both sides. Its owner learns that by an event,
//!   if the adapter gives one, or by the next probe.
//!
//! Order, for [`Capabilities`]: the target's adapter executes the requests of one connection in the order in which they
//! were posted (InfiniBand Architecture Specification, volume 1, 9.5), and they complete in this order.
//!
//! Atomics are atomic with respect to others of the same adapter. Those of processors may come between.
//!
//! Cost of a registration: memory that peers may access is registered twice, for them and for this side, so that
//! withdrawing the one leaves the other. It counts twice against the memory that may be locked.

mod closing;
mod faults;
mod group;
mod link;
mod receive_buffers;
mod transport;
pub(crate) mod wire;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ::verbs::{
    CompletionQueue, Device as Adapter, Domain, Event, GRH, PIECES_MAX, Patience, QueuePair,
    Queues, Rights, Wanted,
};
use parking_lot::Mutex;
use pmem::Region;

use self::faults::AdapterFaults;
use self::transport::VerbsTransport;
use crate::registration::Details;
use crate::{
    Access, Capabilities, Copies, Device, Error, Key, Multicast, Order, Placement, Proof, Proves,
    Provider, Registration, Transport,
};

/// Interval of checks of an idle endpoint.
pub const PROBE_EVERY: Duration = Duration::from_millis(250);

/// The longest inline payload: a common limit of adapters, with the header.
const INLINE_BYTES: u32 = 256;

/// Seven tries of 0.13 s to four times that. (With more retries than six, rdma_rxe never gives up.) No limit for a
/// receiver without buffers, which will have some.
const PATIENCE: Patience = Patience {
    timeout: 15,
    retries: 6,
    receiver_retries: 7,
    receiver_timer: 12,
};

/// Options that select the RDMA adapter.
/// Open fields are chosen, and [`Verbs::explanation`] describes the choice.
#[derive(Clone, Debug, Default)]
pub struct VerbsOptions {
    /// The adapter's name, as `rdma link` shows it.
    pub device: Option<String>,
    /// The number of its port, from 1.
    pub port: Option<u8>,
    /// The place of its address in the port's table.
    pub gid_index: Option<u8>,
}

/// Counts of events of an adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbsCounters {
    /// Endpoints with an other side that broke the rules, or requested something forbidden.
    pub refused: u64,
    /// Messages to groups that could not be sent: for want of room, or since the adapter failed to.
    pub unsent: u64,
    /// Datagrams to groups that were none of ours.
    pub strange: u64,
    /// Attempts to withdraw a key that the adapter has refused: there is no proof then, and another attempt has to be made.
    pub unrevoked: u64,
}

#[derive(Default)]
struct Counts {
    refused: AtomicU64,
    unsent: AtomicU64,
    strange: AtomicU64,
    unrevoked: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// State that the threads of a process share.
struct Common {
    domain: Arc<Domain>,
    capabilities: Capabilities,
    counts: Counts,
    trouble: AdapterFaults,
}

impl Common {
    fn adapter(&self) -> &Arc<Adapter> {
        self.domain.device()
    }

    /// Reads the adapter's events. One thread reads them for all.
    fn read_events(&self) {
        while let Ok(Some(event)) = self.adapter().next_event() {
            self.trouble.note(event);
        }
    }

    /// # Errors
    /// [`Error::System`] if the adapter has failed.
    fn check_adapter(&self) -> Result<(), Error> {
        if !self.trouble.is_adapter() {
            return Ok(());
        }
        Err(Error::System {
            what: format!("use the RDMA adapter {}", self.adapter().name()),
            source: rustix::io::Errno::IO.into(),
            remedy: "it has failed, and the kernel's log may say why; start this process again when it is back, or use \
                     another transport",
        })
    }
}

/// An RDMA adapter, as a process has it.
pub struct Verbs(Arc<Common>);

impl Verbs {
    /// Opens an RDMA adapter.
    /// The error is one sentence with the missing part and the remedy: peers receive it
    /// (`connections::transports::Transports`).
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn open(options: &VerbsOptions) -> Result<Verbs, Error> {
        let adapter = Adapter::open(&Wanted {
            device: options.device.clone(),
            port: options.port,
            gid_index: options.gid_index,
        })?;
        let domain = Domain::new(&adapter)?;
        let capabilities = capabilities(&domain)?;
        Ok(Verbs(Arc::new(Common {
            domain,
            capabilities,
            counts: Counts::default(),
            trouble: AdapterFaults::default(),
        })))
    }

    /// Which adapter, port and address are used, and why, in one sentence.
    pub fn explanation(&self) -> &str {
        self.0.adapter().explanation()
    }

    /// The address of IPv4 that groups meet at, if the adapter has one.
    pub fn address(&self) -> Option<std::net::Ipv4Addr> {
        self.0.adapter().gid().gid.ipv4()
    }

    /// Gives the adapter up, as if it had reported its failure: its endpoints are lost, and there will be no others.
    pub fn give_up(&self) {
        self.0.trouble.note(Event::DeviceFailed);
    }

    /// Returns the counts of events since the adapter was opened.
    pub fn counters(&self) -> VerbsCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.0.counts;
        VerbsCounters {
            refused: read(&counts.refused),
            unsent: read(&counts.unsent),
            strange: read(&counts.strange),
            unrevoked: read(&counts.unrevoked),
        }
    }
}

fn capabilities(domain: &Arc<Domain>) -> Result<Capabilities, Error> {
    let adapter = domain.device();
    let (limits, port) = (adapter.limits(), adapter.port());
    // The greatest inline length is known only from a queue pair.
    let completions = CompletionQueue::new(adapter, 1)?;
    let queues = Queues {
        send: completions.clone(),
        receive: completions,
        shared: None,
        depth: 1,
        inline: INLINE_BYTES + wire::HEADER_BYTES,
    };
    let inline = QueuePair::reliable(domain, &queues)?.inline_max();
    let copies = if is_software(adapter.name()) { 2 } else { 0 };
    Ok(Capabilities {
        provider: Provider::Verbs,
        message_bytes: port.message_max.min(1 << 20) - wire::HEADER_BYTES,
        inline_bytes: inline.saturating_sub(wire::HEADER_BYTES).min(INLINE_BYTES),
        transfer_bytes: port.message_max.min(1 << 30),
        // One is the header's.
        pieces: limits.pieces.min(PIECES_MAX as u32) - 1,
        atomics: limits.atomics,
        order: Order {
            reads: true,
            writes_before_messages: true,
            reads_after_writes: true,
        },
        multicast: match limits.groups {
            0 => Multicast::None,
            _ => Multicast::Lossy {
                bytes: port.mtu,
                may_be_unchecked: false,
            },
        },
        header_bytes: GRH,
        credit_buffers: link::OWN_MAX,
        pins_memory: true,
        revocation: Proves::Key,
        copies: Copies {
            message: copies,
            write: copies,
            read: copies,
        },
        // The acknowledgement proves that the target's adapter has the data, not that it has reached the memory (RBP).
        // A read after the write proves that, and so does a message after it for its receiver.
        completed_write: Placement::Sent,
        passive_target: true,
        immediate_reads: false,
        // `scripts/lab.sh measure`, emulated: up to 1 KiB a message takes at most a tenth more than a push, 4 KiB 1.25.
        in_message_bytes: 1024,
    })
}

/// Whether the kernel plays the adapter: then there is no device behind it.
fn is_software(name: &str) -> bool {
    let class = std::path::Path::new("/sys/class/infiniband").join(name);
    !class.join("device").exists()
}

/// State of a registration of memory.
struct Memory {
    /// Bytes that the adapter knows: the region may have grown since.
    length: u64,
    /// For this side's requests.
    local: Arc<::verbs::Registration>,
    /// For peers, until it is withdrawn.
    remote: Mutex<Option<Arc<::verbs::Registration>>>,
    /// Whether it is to be, even if the adapter has refused it so far.
    is_withdrawn: AtomicBool,
}

impl Memory {
    fn is_withdrawn(&self) -> bool {
        self.is_withdrawn.load(Ordering::Relaxed)
    }
}

fn rights(access: Access) -> Rights {
    let table = [
        (Access::READ, Rights::READ),
        (Access::WRITE, Rights::WRITE),
        (Access::ATOMIC, Rights::ATOMIC),
    ];
    let allowed = table.into_iter().filter(|(one, _)| access.allows(*one));
    allowed.fold(Rights::LOCAL, |all, (_, right)| all | right)
}

impl Device for Verbs {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities.clone()
    }

    fn register_part(
        &self,
        region: &Region,
        part: Range<u64>,
        access: Access,
    ) -> Result<Registration, Error> {
        let length = region.length();
        let (start, reached) = (part.start, part.end - part.start);
        let domain = &self.0.domain;
        let local = ::verbs::Registration::new(domain, region, 0, length, Rights::LOCAL)?;
        let remote = match access {
            Access::LOCAL => None,
            _ => Some(::verbs::Registration::new(
                domain,
                region,
                start,
                reached,
                rights(access),
            )?),
        };
        let named = remote.as_ref().unwrap_or(&local).remote(start);
        let details = Details {
            key: Key(named.key.into()),
            base: named.address,
            local_key: 0,
            held: Some(Box::new(Memory {
                length,
                local,
                remote: Mutex::new(remote),
                is_withdrawn: AtomicBool::new(false),
            })),
        };
        Ok(Registration::new(region, part, access, details))
    }

    fn revoke(&self, registration: &Registration) -> Option<Proof> {
        let memory = registration.held::<Memory>()?;
        if registration.access() == Access::LOCAL {
            return Some(Proof::new(registration.key()));
        }
        // Once it has ended, the adapter works at nothing with this key any more: see there. A second call waits here.
        let mut remote = memory.remote.lock();
        memory.is_withdrawn.store(true, Ordering::Relaxed);
        if let Some(key) = remote.take()
            && let Err((key, _)) = ::verbs::Registration::end(key)
        {
            // It may still be good.
            *remote = Some(key);
            count(&self.0.counts.unrevoked);
            return None;
        }
        Some(Proof::new(registration.key()))
    }

    fn open(&self) -> Result<Box<dyn Transport>, Error> {
        Ok(Box::new(VerbsTransport::open(self.0.clone())?))
    }
}
