//! The interface that shared memory, TCP, verbs and the simulation have below [`Queue`](crate::Queue), and that
//! wrappers implement between them.

use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pmem::Region;

use crate::{
    Access, Buffer, Capabilities, EndpointId, Error, Failure, GroupId, Piece, Proof,
    RegionDescriptor, Registration, Remote, RemoteRegion, Source, Work,
};

/// Part of a region, for one owner until this is dropped.
#[derive(Debug)]
pub struct ReadMemory {
    /// Region that holds the bytes.
    pub region: Region,
    /// Where the part begins: at a whole page.
    pub start: u64,
    /// Whether a read changes its own bytes only, and not those in front of them for a while.
    pub is_exact: bool,
    /// Shows the transport that there is an owner.
    pub owner: Arc<()>,
}

/// A transport as a process has it, once. Its threads open a [`Transport`] each.
pub trait Device: Send + Sync {
    /// Returns the capabilities of the transport.
    fn capabilities(&self) -> Capabilities;

    /// Registers memory: for the own side for all requests, and for peers with the rights of `access`.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::System`].
    fn register(&self, region: &Region, access: Access) -> Result<Registration, Error> {
        self.register_part(region, 0..region.length(), access)
    }

    /// The same, but peers reach only this part of it, which is inside of the region. Their offsets begin with it.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::System`].
    fn register_part(
        &self,
        region: &Region,
        part: Range<u64>,
        access: Access,
    ) -> Result<Registration, Error>;

    /// Withdraws the key of registered memory; from now on no request of a peer that has not begun is executed. The
    /// proof comes once no peer can access the memory by it any more: ask again until then.
    fn revoke(&self, registration: &Registration) -> Option<Proof>;

    /// Frames of peers' writes and of own reads that were received where they belong, without a copy by this process.
    fn placed_frames(&self) -> u64 {
        0
    }

    /// Frames of reads that were sent to peers which receive them where they belong.
    fn fetched_frames(&self) -> u64 {
        0
    }

    /// Memory in which data of reads is received without a copy by this process, if as much of it has no owner.
    fn read_memory(&self, _bytes: u64) -> Option<ReadMemory> {
        None
    }

    /// Opens the resources of one thread.
    ///
    /// # Errors
    /// [`Error::System`].
    fn open(&self) -> Result<Box<dyn Transport>, Error>;
}

/// The endpoints of one thread. Nothing here waits, except [`Transport::look`], [`Transport::sleep`], and the set-up as
/// documented.
///
/// The [`Queue`](crate::Queue) above keeps these promises, and transports rely on them: no more than the agreed number of
/// requests is outstanding at an endpoint, no more messages are sent than the receiver has supplied buffers for, and
/// ranges are inside their registrations and allowed by the descriptor that was imported. Nothing of the kind is
/// promised of peers.
pub trait Transport: Send {
    /// Returns the capabilities of the transport.
    fn capabilities(&self) -> &Capabilities;

    /// Makes this side of an endpoint, and returns the data for the peer.
    ///
    /// # Errors
    /// [`Error::System`].
    fn prepare(&mut self, endpoint: EndpointId, limits: Limits) -> Result<Parameters, Error>;

    /// Joins this side to the peer's. Requests may be posted from then on. `role` distinguishes the two sides.
    ///
    /// # Errors
    /// [`Error::Peer`], [`Error::System`].
    fn establish(&mut self, endpoint: EndpointId, role: Role, peer: Peer) -> Result<(), Error>;

    /// The peer's process may have ended. A transport that learns of that by silence waits for less of it from now on.
    fn suspect(&mut self, _endpoint: EndpointId) {}

    /// Called before [`Transport::close`] with the buffers of requests that have not succeeded. A transport that may still access
    /// them after it keeps them until then.
    fn keep(&mut self, _endpoint: EndpointId, _buffers: Vec<Buffer>) {}

    /// Ends an endpoint. Nothing more is reported of it; all it had outstanding is forgotten.
    fn close(&mut self, endpoint: EndpointId);

    /// Data that a peer needs to access a registration through this endpoint: its description alone, unless the peer maps
    /// the memory.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::System`].
    fn export(
        &mut self,
        _endpoint: EndpointId,
        registration: &Registration,
    ) -> Result<Export, Error> {
        Ok(Export {
            descriptor: registration.descriptor(),
            memory: None,
        })
    }

    /// Accepts an export of a peer, and returns the transport's number for it. It is dropped with the endpoint.
    ///
    /// # Errors
    /// [`Error::Peer`], [`Error::System`].
    fn import(&mut self, endpoint: EndpointId, export: Export) -> Result<u32, Error>;

    /// Gives a buffer for a message, to be named when one has come: any of the endpoints', or only those of groups.
    fn supply(&mut self, buffer: Supply, piece: Piece<'_>);

    /// Gives buffers of endpoints back, each in the piece that it was given in first.
    fn supply_again<'a>(&mut self, numbers: &[u32], piece: &'a dyn Fn(u32) -> Piece<'a>) {
        for &number in numbers {
            self.supply(Supply::Endpoint(number), piece(number));
        }
    }

    /// Takes a request. It may begin only with [`Transport::submit`].
    fn post(&mut self, endpoint: EndpointId, request: Request<'_>);

    /// Lets `take` read a peer's memory: it receives the mapped region and the offset there; only where reads are immediate. The
    /// queue has validated the range. Returns whether the memory was there until `take` returned; if not, the endpoint has failed.
    fn load(
        &mut self,
        endpoint: EndpointId,
        from: Remote,
        take: &mut dyn FnMut(&Region, u64),
    ) -> bool {
        let _ = (endpoint, from, take);
        false
    }

    /// Sends the peer its total of credits, and asks for its count if `ask`. No request: nothing is reported about it,
    /// and it may be lost.
    fn credit(&mut self, endpoint: EndpointId, returned: u32, ask: bool);

    /// Begins all that was posted since.
    fn submit(&mut self);

    /// Handles new events, and advances pending work.
    fn poll(&mut self, reports: &mut Vec<Report>);

    /// Polls, at most so many times, whether there may be something to report: by the cheapest check.
    fn look(&mut self, times: u32) -> bool {
        let _ = times;
        std::hint::spin_loop();
        true
    }

    /// Sleeps until there may be something to report, or for so long. Does not sleep if there is something already, and
    /// may end early.
    fn sleep(&mut self, timeout: Duration);

    /// Prepares to block in a wait of the caller's own: until [`Transport::disarm`], whatever may be reported makes one of
    /// [`Transport::descriptors`] readable. Returns how long to block at most: `timeout`, less if the transport has to be
    /// polled earlier, and zero if there may be something to report already, or if it has nothing to block at.
    fn arm(&mut self, timeout: Duration) -> Duration {
        let _ = timeout;
        Duration::ZERO
    }

    /// Descriptors to block at after [`Transport::arm`].
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Ends what [`Transport::arm`] began. `ready`: whether one of the descriptors was readable.
    fn disarm(&mut self, ready: bool) {
        let _ = ready;
    }

    /// Joins a group, so that its messages are received, and sent. Returns how many messages may wait for the next poll, at
    /// least; [`u32::MAX`] if only buffers bound that.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::System`].
    fn join(&mut self, group: GroupId, address: GroupAddress) -> Result<u32, Error> {
        let _ = (group, address);
        Err(Error::Unsupported {
            provider: self.capabilities().provider,
            what: "groups",
        })
    }

    /// Leaves a group: no more of its messages arrive.
    fn leave(&mut self, group: GroupId) {
        let _ = group;
    }

    /// Sends one message to all members of a group but this one. Its arrival is not reported.
    fn send_to_group(&mut self, group: GroupId, from: Source<'_>, immediate: u32) {
        let _ = (group, from, immediate);
    }
}

/// Which side of an endpoint this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The one that asked for it.
    Dialer,
    /// The one that was asked.
    Listener,
}

/// Limits that two sides agree on before a transport makes its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests outstanding at once, at most.
    pub outstanding: u32,
    /// Messages that this side can hold.
    pub window: u32,
    /// Bytes of the longest message that this side can hold.
    pub message_bytes: u32,
}

/// Data that one side sends to the other over the control connection.
#[derive(Default)]
pub struct Parameters {
    /// To be validated by the receiver.
    pub bytes: Vec<u8>,
    /// Descriptors, on one host.
    pub descriptors: Vec<OwnedFd>,
}

/// Without the bytes, which contain secrets: this may be printed in a log.
impl std::fmt::Debug for Parameters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bytes, descriptors) = (self.bytes.len(), self.descriptors.len());
        write!(f, "Parameters({bytes} bytes, {descriptors} descriptors)")
    }
}

/// Data about a peer that the control connection has authenticated.
#[derive(Debug)]
pub struct Peer {
    /// Parameters of its transport.
    pub parameters: Parameters,
    /// Where it is, if it came over a network.
    pub address: Option<IpAddr>,
    /// Its process, if it is on this host.
    pub process: Option<OwnedFd>,
}

/// Registered memory on its way to a peer.
#[derive(Debug)]
pub struct Export {
    /// Description of the memory.
    pub descriptor: RegionDescriptor,
    /// The memory itself, on one host.
    pub memory: Option<OwnedFd>,
}

/// Where a group meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupAddress {
    /// Multicast address of the group.
    pub address: std::net::Ipv4Addr,
    /// A port, for transports that have some.
    pub port: u16,
    /// The address of the interface to use.
    pub interface: std::net::Ipv4Addr,
    /// Whether messages of the group are received, too. Only sending costs less over TCP and verbs.
    pub listens: bool,
    /// Whether what is sent has no checksum of the transport, if it can be left out: a message that was damaged on the way
    /// arrives with its damage.
    pub is_unchecked: bool,
}

/// A buffer that waits for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Supply {
    /// Buffer of an endpoint.
    Endpoint(u32),
    /// Buffer of a group.
    Group(u32),
}

/// A request as a transport gets it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Number of requests posted to this endpoint before it.
    pub sequence: u64,
    /// Whether its completion has to be reported; the report covers all before it, too.
    pub signaled: bool,
    /// Operation to execute.
    pub operation: &'a Work<'a>,
    /// The peer's total of credits: new with every [`Work::Send`], else as reported before.
    pub returned: u32,
}

impl Request<'_> {
    /// The transport's number of the peer's memory, the offset there, the access and the bytes.
    pub fn remote(&self) -> Option<(u32, u64, Access, u64)> {
        let (remote, access, length) = self.operation.remote()?;
        let RemoteRegion { number, .. } = remote.region;
        Some((number, remote.offset, access, length))
    }
}

/// Sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Endpoint of a peer.
    Endpoint(EndpointId),
    /// Some member of a group.
    Group(GroupId),
}

/// A report of a transport to its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// A signaled request has ended well, and all before it.
    Done {
        /// Endpoint of the request.
        endpoint: EndpointId,
        /// Sequence of the request.
        sequence: u64,
        /// Former value of an atomic's word.
        value: u64,
    },
    /// A request has failed. Those before it have ended well; the endpoint is of no use any more.
    Failed {
        /// Endpoint of the request.
        endpoint: EndpointId,
        /// Sequence of the request.
        sequence: u64,
        /// Reason of the failure.
        failure: Failure,
    },
    /// A message is in a supplied buffer, or one without data has come, which takes none.
    Received {
        /// Sender of the message.
        origin: Origin,
        /// Buffer that holds the data.
        buffer: Option<Arrival>,
        /// The 32 bits beside it.
        immediate: Option<u32>,
    },
    /// The peer reports its total of returned credits, and asks for this side's.
    Credit {
        /// Endpoint of the peer.
        endpoint: EndpointId,
        /// Count of returned credits.
        returned: u32,
        /// Whether the peer asks for credits.
        ask: bool,
    },
    /// The endpoint is of no use any more, whatever was outstanding.
    Lost {
        /// Number of the endpoint, which is not used again.
        endpoint: EndpointId,
        /// Reason of the end.
        failure: Failure,
    },
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Buffer that the message arrived in.
    pub buffer: Supply,
    /// Where in the buffer it begins.
    pub start: u32,
    /// Number of bytes that arrived.
    pub length: u32,
}
