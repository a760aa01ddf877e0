//! Capabilities of a transport, as plain values. Upper layers decide by these, never by a transport's name.

/// Capabilities of a transport, its costs and its guarantees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its name, for people only.
    pub provider: Provider,
    /// The longest message that can be sent, in bytes.
    pub message_bytes: u32,
    /// The longest payload that may be inline ([`crate::Source::Inline`]), in bytes.
    pub inline_bytes: u32,
    /// The longest one-sided transfer, in bytes.
    pub transfer_bytes: u32,
    /// Number of pieces of memory that a request may name.
    pub pieces: u32,
    /// Whether aligned words of 8 bytes can be compared, swapped and added to.
    pub atomics: bool,
    /// Guarantees about the order of requests at the target.
    pub order: Order,
    /// Effect of one send to a group.
    pub multicast: Multicast,
    /// Bytes of the receiver's buffer that may be lost in front of a message (verbs: the global route header).
    pub header_bytes: u32,
    /// Additional buffers beyond its window that the transport needs for each endpoint: counts of credits take one
    /// until the queue is polled, and must not take those of messages.
    pub credit_buffers: u32,
    /// Whether memory is pinned and made known to an adapter when it is registered, which takes time.
    pub pins_memory: bool,
    /// Proof that a key cannot be used any more.
    pub revocation: Proves,
    /// Number of copies of each byte by a processor, on both sides together.
    pub copies: Copies,
    /// Guarantee of a completed write about the target's memory.
    pub completed_write: Placement,
    /// Whether one-sided requests are executed while the target's process does other work. Otherwise they wait until it
    /// polls its queue.
    pub passive_target: bool,
    /// Whether the thread that posts a one-sided read executes it at once: then [`crate::Queue::load`] works.
    pub immediate_reads: bool,
    /// Largest payload that should travel in its message, in bytes: up to it the one-sided ways are at most a tenth faster,
    /// as measured by `tako bench fabric --tune`.
    pub in_message_bytes: u32,
}

/// The transports there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Provider {
    /// Memory of the same host.
    Shm,
    /// RDMA requests of an adapter, by libibverbs.
    Verbs,
    /// Frames of an Ethernet interface.
    Ethernet,
    /// Connections over IP.
    Tcp,
    /// Simulated network of the lab.
    Simulated,
}

impl Provider {
    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Shm => "shm",
            Provider::Verbs => "verbs",
            Provider::Ethernet => "ethernet",
            Provider::Tcp => "tcp",
            Provider::Simulated => "simulated",
        }
    }
}

impl std::fmt::Display for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Guarantees about requests that one side posts to one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// A read sees memory as it was after the read posted before it, or later.
    pub reads: bool,
    /// A receiver of a message sees the writes that were posted before it.
    pub writes_before_messages: bool,
    /// A read sees the writes that were posted before it.
    pub reads_after_writes: bool,
}

/// Effect of one send to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multicast {
    /// There are no groups.
    None,
    /// One send reaches all members, or only some: lost messages are not repeated.
    Lossy {
        /// The longest payload, in bytes.
        bytes: u32,
        /// Whether a sender can leave out the checksum of the transport, so that damaged messages arrive and can be repaired.
        may_be_unchecked: bool,
    },
}

/// Proof that no peer can access memory by a key any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proves {
    /// That the key was withdrawn here.
    Key,
    /// That each process that had mapped the memory is gone.
    PeersGone,
}

/// Number of copies of a byte by a processor, by kind of request, both sides together. Copies by a kernel or an
/// adapter's software count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// From the sender's memory to the buffer of the message.
    pub message: u8,
    /// Into the target's memory.
    pub write: u8,
    /// Out of the target's memory.
    pub read: u8,
}

/// Guarantee of a completed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The data has entered the network: whether the target has it is not known (RBP's reason to pull).
    Sent,
    /// The target's memory has it, as any processor there sees it. It is not persistent.
    Visible,
}
