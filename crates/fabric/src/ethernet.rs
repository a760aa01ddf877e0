//! The transport over Ethernet frames (AF_XDP): no IP, no connections of the kernel, one interface of this host.
//!
//! ```text
//!   Ethernet            an interface with the XDP program: one UMEM for all threads
//!     │ Shared
//!   EthernetTransport   a thread's socket: receive and transmit ring
//!     │ Link            an endpoint: packets with numbers, acknowledged, repeated, in order, once
//!   frames              docs/ETHERNET.md
//! ```
//! A thread that polls a queue does all its work: it receives, executes requests of peers, and sends. Lost packets are
//! repeated, repeated ones are dropped, early ones wait. Packets are authenticated with a key that the control
//! connection has passed, unless both sides disable it.

#[cfg(test)]
mod document;
mod faulty;
mod fetch;
mod frames;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod input;
mod link;
mod local;
mod output;
mod payload;
mod placement;
mod protection;
mod route;
mod shared;
mod transport;
pub mod unreachable;
mod window;
mod wire;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pmem::Region;
use xdp::Interface;
pub use xdp::{Mode, Modes, Shape};

pub use self::route::interface_towards;
use self::shared::Shared;
use self::transport::EthernetTransport;
use crate::{
    Access, Capabilities, Copies, Device, Error, Multicast, Order, Placement, Proof, Proves,
    Provider, ReadMemory, Registration, Transport,
};

/// Bytes of the longest one-sided transfer.
const TRANSFER_MAX: u32 = 1 << 30;
/// Memory for reads behind a pool: the buffers that a client has for transfers fit into it.
const READ_BYTES: u64 = 10 << 20;
/// Bytes of the longest message.
const MESSAGE_MAX: u32 = 1 << 20;

/// Least value of an EtherType; lower ones are lengths of frames.
const TYPE_MIN: u16 = 0x0600;
/// IPv4, ARP, VLAN, IPv6, provider bridging.
const TYPES_IN_USE: [u16; 5] = [0x0800, 0x0806, 0x8100, 0x86dd, 0x88a8];

/// Which interface to use, and how.
#[derive(Clone, Debug)]
pub struct EthernetOptions {
    /// The interface. Without one there is no transport over Ethernet.
    pub interface: Option<String>,
    /// Number of the interface's queue.
    pub queue: u32,
    /// EtherTypes of data and of commands; the same on both sides.
    pub types: [u16; 2],
    /// Modes by which frames get into memory.
    pub modes: Modes,
    /// Whether packets must be authenticated. They are if one side wants it; else a checksum guards against damage only.
    pub authenticated: bool,
    /// The key of messages to groups, the same at all members; without one a checksum guards them against damage only.
    pub group_key: Option<[u8; 32]>,
    /// An endpoint is lost when nothing was heard of its other side for so long.
    pub lost_after: Duration,
    /// Threads that can use the interface at once: 1 to 64.
    pub transports: u32,
    /// Frames that can wait to be received: 64 to 65 536. With placed data on the queue of all other frames, as many as 1024 more than
    /// there are frames in a run, or some runs travel in packets.
    pub receive_frames: u32,
    /// Memory that long writes of peers are received in without a copy by this process.
    pub pool: Option<PlacedPool>,
    /// How blocks are cut into frames that are received there; the same on both sides. By strip something else may use the bytes in
    /// front of a block.
    pub shape: Shape,
    /// Injected faults, for tests.
    pub faults: FrameFaults,
}

impl Default for EthernetOptions {
    fn default() -> EthernetOptions {
        EthernetOptions {
            interface: None,
            queue: 0,
            types: wire::TYPES,
            modes: Modes::Fastest,
            authenticated: true,
            group_key: None,
            lost_after: Duration::from_secs(5),
            transports: 8,
            receive_frames: 2048,
            pool: None,
            shape: Shape::Strip,
            faults: FrameFaults::default(),
        }
    }
}

/// Reads two EtherTypes, of data and of commands: `0x88b5:0x88b6`.
///
/// # Errors
/// One sentence: which values are possible.
pub fn parse_types(text: &str) -> Result<[u16; 2], String> {
    let number = |text: &str| {
        let digits = text.strip_prefix("0x")?;
        let number = u16::from_str_radix(digits, 16).ok()?;
        // Below is the length of a frame; the others are IP, ARP and VLAN.
        let is_free = number >= TYPE_MIN && !TYPES_IN_USE.contains(&number);
        is_free.then_some(number)
    };
    let pair = text.split_once(':').and_then(|(data, commands)| {
        let pair = [number(data)?, number(commands)?];
        (pair[0] != pair[1]).then_some(pair)
    });
    pair.ok_or_else(|| {
        format!(
            "must be two different EtherTypes from {TYPE_MIN:#06x} that neither IP, ARP nor VLANs use, as in 0x88b5:0x88b6, got '{text}'"
        )
    })
}

impl EthernetOptions {
    /// Bytes at the end of a pool that are needed for frames.
    pub fn frame_memory(&self) -> u64 {
        Shared::frame_memory(self)
    }

    /// Lets long writes of peers be received in a pool, or only those of this side in pools of peers; and long reads of this side in
    /// memory behind it, of which `map_bytes` are for mapped files. Data comes by a queue of the interface of its own, in jumbo frames
    /// if the interface has the MTU for them.
    ///
    /// # Errors
    /// Those of [`Region::with_memory_behind`] and [`Region::memory`].
    pub fn place(
        &mut self,
        pool: Option<&Region>,
        queue: u32,
        map_bytes: u64,
    ) -> Result<(), pmem::Error> {
        let interface = self.interface.as_deref().map(Interface::named);
        let has_own_queue = queue != self.queue;
        if has_own_queue
            && interface.is_some_and(|it| it.is_ok_and(|it| it.mtu >= Shape::Jumbo.mtu()))
        {
            self.shape = Shape::Jumbo;
        }
        let read_bytes = READ_BYTES + map_bytes;
        let bytes = read_bytes + self.frame_memory();
        let region = match pool {
            Some(pool) => pool.with_memory_behind(bytes)?,
            None => Region::memory(bytes, false)?,
        };
        self.pool = Some(PlacedPool {
            region,
            queue,
            read_bytes,
        });
        Ok(())
    }
}

/// Memory that data is placed in: whole aligned blocks of 4 KiB, but for the first one.
#[derive(Clone, Debug)]
pub struct PlacedPool {
    /// The memory. Its end is for frames, and out of reach of peers: [`EthernetOptions::frame_memory`] bytes.
    pub region: Region,
    /// The interface's queue that data comes by. If it is that of commands, frames without content precede data.
    pub queue: u32,
    /// Bytes in front of the memory for frames that long reads are received in ([`Device::read_memory`]).
    pub read_bytes: u64,
}

/// Faults injected into received frames, each per thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameFaults {
    /// Share of lost frames.
    pub loss_permille: u32,
    /// Share of frames that are received twice.
    pub duplication_permille: u32,
    /// Share of frames that are received after the next one.
    pub reorder_permille: u32,
    /// Received with one wrong bit.
    pub corruption_permille: u32,
    /// Seed of the choice.
    pub seed: u64,
}

impl FrameFaults {
    fn are_some(&self) -> bool {
        *self
            != FrameFaults {
                seed: self.seed,
                ..FrameFaults::default()
            }
    }
}

/// Counts of events at a process's interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthernetCounters {
    /// Packets that were repeated.
    pub repeated: u64,
    /// Packets that came more than once, or too late.
    pub duplicates: u64,
    /// Packets that came before those in front of them.
    pub reordered: u64,
    /// Packets that were forged or damaged.
    pub rejected: u64,
    /// Frames that were no packets, or for no endpoint.
    pub strange: u64,
    /// Requests of peers that were refused.
    pub refused: u64,
    /// Runs of blocks that were received where they belong.
    pub placed: u64,
    /// Number of frames in these runs.
    pub placed_frames: u64,
    /// Frames of reads that were sent to be placed.
    pub fetched_frames: u64,
    /// Messages to groups that were dropped for want of a buffer.
    pub unbuffered: u64,
    /// On one queue: how often all frames were dropped until aimed descriptors were withdrawn.
    pub stops: u64,
}

#[derive(Default)]
struct Counts {
    repeated: AtomicU64,
    duplicates: AtomicU64,
    reordered: AtomicU64,
    rejected: AtomicU64,
    strange: AtomicU64,
    refused: AtomicU64,
    placed: AtomicU64,
    placed_frames: AtomicU64,
    fetched_frames: AtomicU64,
    unbuffered: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Interfaces that [`Ethernet::shared`] has opened.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// An interface as a process has it.
pub struct Ethernet {
    shared: Arc<Shared>,
}

impl Ethernet {
    /// Attaches to the interface, until the last transport and this value are gone.
    ///
    /// # Errors
    /// [`Error::NoInterface`], [`Error::Ethernet`]: no such interface, missing capabilities, a queue in use.
    pub fn open(options: EthernetOptions) -> Result<Ethernet, Error> {
        let shared = Arc::new(Shared::open(options)?);
        Ok(Ethernet { shared })
    }

    /// The same, shared by all callers of this process that name the same interface: only one can be attached to it. The options
    /// of the first one hold.
    ///
    /// # Errors
    /// As [`Ethernet::open`].
    pub fn shared(options: &EthernetOptions) -> Result<Ethernet, Error> {
        let mut open = OPEN.lock();
        open.retain(|shared| shared.strong_count() > 0);
        let name = options.interface.as_deref().ok_or(Error::NoInterface)?;
        let interface = xdp::Interface::named(name)?;
        let is_it = |shared: &Arc<Shared>| {
            let found = &shared.interface;
            (found.index, found.hardware) == (interface.index, interface.hardware)
                && shared.options.queue == options.queue
        };
        if let Some(shared) = open.iter().filter_map(Weak::upgrade).find(is_it) {
            return Ok(Ethernet { shared });
        }
        let opened = Ethernet::open(options.clone())?;
        open.push(Arc::downgrade(&opened.shared));
        Ok(opened)
    }

    /// Mode by which frames get into memory.
    pub fn mode(&self) -> Mode {
        self.shared.mode
    }

    /// Returns the counts of events since the device was opened.
    pub fn counters(&self) -> EthernetCounters {
        let counts = &self.shared.counts;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EthernetCounters {
            repeated: read(&counts.repeated),
            duplicates: read(&counts.duplicates),
            reordered: read(&counts.reordered),
            rejected: read(&counts.rejected),
            strange: read(&counts.strange),
            refused: read(&counts.refused),
            placed: read(&counts.placed),
            placed_frames: read(&counts.placed_frames),
            fetched_frames: read(&counts.fetched_frames),
            unbuffered: read(&counts.unbuffered),
            stops: self.shared.port.lock().stops(),
        }
    }
}

fn capabilities(shared: &Shared) -> Capabilities {
    let group_head = wire::HEADER_BYTES + size_of::<wire::Group>();
    // One into the frame, two out of it, those of the kernel on both sides, and into the packet.
    let copies = 4 + 2 * shared.mode.copies();
    // Into the frame, and those of the kernel: blocks of a pool are received in place.
    let placed = match shared.placement {
        Some(_) => copies - 3,
        None => copies,
    };
    Capabilities {
        provider: Provider::Ethernet,
        message_bytes: MESSAGE_MAX,
        inline_bytes: 256,
        transfer_bytes: TRANSFER_MAX,
        pieces: 16,
        atomics: true,
        // All packets of a direction are executed in the order of their numbers; a read takes its data later still.
        order: Order {
            reads: true,
            writes_before_messages: true,
            reads_after_writes: true,
        },
        multicast: Multicast::Lossy {
            bytes: shared.frame_bytes - group_head as u32,
            may_be_unchecked: false,
        },
        header_bytes: 0,
        credit_buffers: 0,
        pins_memory: false,
        revocation: Proves::Key,
        copies: Copies {
            message: copies,
            write: placed,
            read: placed,
        },
        completed_write: Placement::Visible,
        passive_target: false,
        immediate_reads: false,
        in_message_bytes: 64 << 10,
    }
}

impl Device for Ethernet {
    fn capabilities(&self) -> Capabilities {
        capabilities(&self.shared)
    }

    fn register_part(
        &self,
        region: &Region,
        part: Range<u64>,
        access: Access,
    ) -> Result<Registration, Error> {
        let table = &self.shared.table;
        table.register(Provider::Ethernet, region, part, access)
    }

    fn revoke(&self, registration: &Registration) -> Option<Proof> {
        let key = registration.key();
        let proof = self.shared.table.remove(key);
        // Nothing is aimed by this key from here on; earlier aims are withdrawn.
        if let Some((placement, shape)) = &self.shared.placement {
            placement.lock().withdraw(&self.shared, *shape, key);
        }
        Some(proof)
    }

    fn placed_frames(&self) -> u64 {
        self.counters().placed_frames
    }

    fn fetched_frames(&self) -> u64 {
        self.counters().fetched_frames
    }

    fn read_memory(&self, bytes: u64) -> Option<ReadMemory> {
        self.shared.read_memory(bytes)
    }

    fn open(&self) -> Result<Box<dyn Transport>, Error> {
        Ok(Box::new(EthernetTransport::open(&self.shared)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ether_types_are_two_different_ones_that_nothing_else_uses() {
        assert_eq!(parse_types("0x88b5:0x88b6"), Ok([0x88b5, 0x88b6]));
        assert_eq!(parse_types("0x600:0xffff"), Ok([0x600, 0xffff]));
        for wrong in [
            "",
            "0x88b5",
            "0x88b5:0x88b5",
            "88b5:88b6",
            "0x88b5:0x5ff",
            "0x88b5:0x0800",
            "0x86dd:0x88b6",
            "0x88b5:0x188b6",
            "0x88b5:0x88b6:0x88b7",
        ] {
            let sentence = parse_types(wrong).unwrap_err();
            assert!(sentence.ends_with(&format!("got '{wrong}'")), "{sentence}");
        }
    }
}
