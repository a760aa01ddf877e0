//! What a transport can do, as plain values. Upper layers decide by these, never by a transport's name.

/// What a transport can do, what it costs and what it proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its name, for people only.
    pub provider: Provider,
    /// The longest message that can be sent, in bytes.
    pub message_bytes: u32,
    /// The longest payload that may be given by value ([`crate::Source::Inline`]), in bytes.
    pub inline_bytes: u32,
    /// The longest one-sided transfer, in bytes.
    pub transfer_bytes: u32,
    /// How many pieces of memory a request may name.
    pub pieces: u32,
    /// Whether aligned words of 8 bytes can be compared, swapped and added to.
    pub atomics: bool,
    /// What is promised about the order of requests at the target.
    pub order: Order,
    /// What one send to a group does.
    pub multicast: Multicast,
    /// Bytes of the receiver's buffer that may be lost in front of a message (verbs: the global route header).
    pub header_bytes: u32,
    /// How many buffers more than its window the transport needs for each endpoint: counts of credits take one until the
    /// queue is polled, and must not take those of messages.
    pub credit_buffers: u32,
    /// Whether memory is pinned and made known to an adapter when it is registered, which takes time.
    pub pins_memory: bool,
    /// What proves that a key is of no use any more.
    pub revocation: Proves,
    /// How often a processor copies each byte on the way, on both sides together.
    pub copies: Copies,
    /// What a completed write says about the target's memory.
    pub completed_write: Placement,
    /// Whether one-sided requests are carried out while the target's process looks after something else. Otherwise they
    /// wait until it polls its queue.
    pub passive_target: bool,
    /// Largest payload that should travel in its message, in bytes: up to it the one-sided ways are at most a tenth faster,
    /// as measured by `tako bench fabric --tune`.
    pub in_message_bytes: u32,
}

/// The transports there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Provider {
    /// Memory of the same host.
    Shm,
    /// An RDMA adapter.
    Verbs,
    /// Frames of an Ethernet interface.
    Ethernet,
    /// Connections over IP.
    Tcp,
    /// The simulation.
    Simulated,
}

impl Provider {
    /// As it is written in options and reports.
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

/// What is promised about requests that one side posts to one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// A read sees memory as it was after the read posted before it, or later.
    pub reads: bool,
    /// Who receives a message sees the writes that were posted before it.
    pub writes_before_messages: bool,
    /// A read sees the writes that were posted before it.
    pub reads_after_writes: bool,
}

/// What one send to a group does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multicast {
    /// There are no groups.
    None,
    /// One send reaches all members, or only some: nobody repeats what is lost.
    Lossy {
        /// The longest payload, in bytes.
        bytes: u32,
    },
}

/// What proves that nobody can reach memory by a key any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proves {
    /// That the key was withdrawn here.
    Key,
    /// That each process that had mapped the memory is gone.
    PeersGone,
}

/// How often a processor copies a byte, by kind of request, both sides together. What a kernel or an adapter's software
/// does on the way counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// From the sender's memory to the buffer of the message.
    pub message: u8,
    /// Into the target's memory.
    pub write: u8,
    /// Out of the target's memory.
    pub read: u8,
}

/// What a completed write says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The data has entered the network: whether the target has it is not known (RBP's reason to pull).
    Sent,
    /// The target's memory has it, as any processor there sees it. It is not persistent.
    Visible,
}
