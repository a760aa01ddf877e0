//! Queue pairs: where requests are posted.

use std::fmt;
use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::mtu_of_bytes;
use crate::port::Gid;
use crate::work::{self, PIECES_MAX, Receive, Request, Verb};
use crate::{CompletionQueue, Domain, Error, SharedReceiveQueue, ffi};

/// The queues of a queue pair.
#[derive(Clone)]
pub struct Queues {
    /// Queue for completions of posted requests.
    pub send: Arc<CompletionQueue>,
    /// Queue for completions of receptions. It may be the same.
    pub receive: Arc<CompletionQueue>,
    /// Where its receive requests are, if it shares them.
    pub shared: Option<Arc<SharedReceiveQueue>>,
    /// Own send requests that can be in flight, and as many receive requests unless it shares them.
    pub depth: u32,
    /// Bytes that requests can have inline, if the device can do so many.
    pub inline: u32,
}

/// A connection's end, or a place for datagrams.
pub struct QueuePair {
    pub(crate) pointer: *mut ffi::ibv_qp,
    inline_max: u32,
    kind: PairKind,
    /// The number of the first packet: another one after each reset, so that old packets are not mistaken for new ones.
    first_packet: AtomicU32,
    domain: Arc<Domain>,
    // Named for the objects they keep alive: a pair must be destroyed before its queues.
    _send: Arc<CompletionQueue>,
    _receive: Arc<CompletionQueue>,
    _shared: Option<Arc<SharedReceiveQueue>>,
}

// SAFETY: libibverbs may be used from all threads at once.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

#[derive(Clone, Copy)]
enum PairKind {
    Reliable,
    Datagram { key: u32 },
}

/// Data that a connection's other end needs about this one. Its bytes travel over an existing connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The number of the queue pair.
    pub queue_pair: u32,
    /// The number of its first packet, of 24 bits.
    pub first_packet: u32,
    /// Bytes that a packet can carry.
    pub mtu: u32,
    /// The port's local identifier, which only InfiniBand has.
    pub lid: u16,
    /// Reads and atomic operations of the other end that this one works at, at once.
    pub reads_served: u8,
    /// Own ones that this end has in flight, at most.
    pub reads_begun: u8,
    /// Address of this end's port.
    pub gid: Gid,
}

impl Peer {
    /// Maximum number of concurrent inbound and outbound reads and atomic operations.
    fn reads_with(&self, other: &Peer) -> Reads {
        Reads {
            begun: self.reads_begun.min(other.reads_served),
            served: self.reads_served.min(other.reads_begun),
        }
    }
}

/// Reads and atomic operations of a connection, seen from one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Reads {
    begun: u8,
    served: u8,
}

/// How long a connection waits for its other end.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// An answer is waited for 4.096 µs × 2^this, at least, before the request is sent again. From 1 to 31; devices round up.
    pub timeout: u8,
    /// Number of retransmissions, from 0 to 7.
    pub retries: u8,
    /// Number of retransmissions to a peer without a receive request, from 0 to 6; 7 for unlimited.
    pub receiver_retries: u8,
    /// Requested delay of a peer before it retransmits to a side without a receive request: a code of the InfiniBand
    /// specification, from 1 (0.01 ms) over 12 (0.64 ms) to 31 (491 ms).
    pub receiver_timer: u8,
}

impl Default for Patience {
    /// A peer that does not answer is found out after about half a second.
    fn default() -> Patience {
        Patience {
            timeout: 14,
            retries: 6,
            receiver_retries: 6,
            receiver_timer: 12,
        }
    }
}

/// State of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No operation is allowed.
    Reset,
    /// Receive requests can be posted.
    Initial,
    /// The queue pair can receive.
    ReadyToReceive,
    /// It sends and receives.
    Ready,
    /// Posted requests are finished, and no more begun.
    Draining,
    /// It has failed: all that is posted is flushed.
    Failed,
}

/// Reads and atomic operations of one side that a connection carries at once, at most: devices keep room for each.
const READS_MAX: u8 = 16;

impl QueuePair {
    /// An end of a reliable connection, which receive requests can be posted to, and which [`QueuePair::connect`] then connects.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn reliable(domain: &Arc<Domain>, queues: &Queues) -> Result<Arc<QueuePair>, Error> {
        QueuePair::new(domain, queues, PairKind::Reliable).map(Arc::new)
    }

    /// A place for datagrams, ready for use. It takes those that name this key.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn datagram(
        domain: &Arc<Domain>,
        queues: &Queues,
        key: u32,
    ) -> Result<Arc<QueuePair>, Error> {
        QueuePair::new(domain, queues, PairKind::Datagram { key }).map(Arc::new)
    }

    fn new(domain: &Arc<Domain>, queues: &Queues, kind: PairKind) -> Result<QueuePair, Error> {
        let device = domain.device();
        let of_device = |queue: &Arc<CompletionQueue>| Arc::ptr_eq(queue.device(), device);
        let shares_of_device =
            |queue: &Arc<SharedReceiveQueue>| Arc::ptr_eq(queue.device(), device);
        assert!(
            of_device(&queues.send)
                && of_device(&queues.receive)
                && queues.shared.as_ref().is_none_or(shares_of_device),
            "a queue pair and its queues are of one device"
        );
        let pieces = device.limits().pieces.min(PIECES_MAX as u32);
        let mut wanted = ffi::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queues.send.pointer,
            recv_cq: queues.receive.pointer,
            srq: queues
                .shared
                .as_ref()
                .map_or(ptr::null_mut(), |queue| queue.pointer),
            cap: ffi::ibv_qp_cap {
                max_send_wr: queues.depth,
                max_recv_wr: if queues.shared.is_some() {
                    0
                } else {
                    queues.depth
                },
                max_send_sge: pieces,
                max_recv_sge: if queues.shared.is_some() { 0 } else { pieces },
                max_inline_data: queues.inline,
            },
            qp_type: match kind {
                PairKind::Reliable => ffi::IBV_QPT_RC,
                PairKind::Datagram { .. } => ffi::IBV_QPT_UD,
            },
            sq_sig_all: 0,
        };
        let capacity = wanted.cap;
        let pointer = loop {
            // SAFETY: domain and queues live, and are of the device that the queues' owner opened.
            let pointer = unsafe { (device.verbs().ibv_create_qp)(domain.pointer, &mut wanted) };
            if !pointer.is_null() {
                break pointer;
            }
            // No function reports how much inline data a device supports.
            let error = io::Error::last_os_error();
            let inline = wanted.cap.max_inline_data.min(capacity.max_inline_data) / 2;
            if error.raw_os_error() != Some(libc::EINVAL) || wanted.cap.max_inline_data == 0 {
                return Err(Error::from_system(
                    "make a queue pair of",
                    device.name(),
                    error,
                ));
            }
            wanted.cap = ffi::ibv_qp_cap {
                max_inline_data: inline,
                ..capacity
            };
        };
        let pair = QueuePair {
            pointer,
            inline_max: wanted.cap.max_inline_data,
            kind,
            first_packet: AtomicU32::new(0),
            domain: domain.clone(),
            _send: queues.send.clone(),
            _receive: queues.receive.clone(),
            _shared: queues.shared.clone(),
        };
        pair.initialize()?;
        Ok(pair)
    }

    /// Takes a pair that is reset to where receive requests can be posted, and one for datagrams to where it is ready.
    fn initialize(&self) -> Result<(), Error> {
        self.first_packet
            .store(random() & 0x00ff_ffff, Ordering::Relaxed);
        let mut attributes = attributes(ffi::IBV_QPS_INIT);
        attributes.port_num = self.domain.device().port().number;
        let mut mask = ffi::IBV_QP_STATE | ffi::IBV_QP_PKEY_INDEX | ffi::IBV_QP_PORT;
        match self.kind {
            PairKind::Reliable => {
                // The registrations determine the permitted accesses.
                attributes.qp_access_flags = ffi::IBV_ACCESS_REMOTE_READ
                    | ffi::IBV_ACCESS_REMOTE_WRITE
                    | ffi::IBV_ACCESS_REMOTE_ATOMIC;
                mask |= ffi::IBV_QP_ACCESS_FLAGS;
            }
            PairKind::Datagram { key } => {
                attributes.qkey = key;
                mask |= ffi::IBV_QP_QKEY;
            }
        }
        self.modify(&mut attributes, mask)?;
        if matches!(self.kind, PairKind::Reliable) {
            return Ok(());
        }
        attributes.qp_state = ffi::IBV_QPS_RTR;
        self.modify(&mut attributes, ffi::IBV_QP_STATE)?;
        attributes.qp_state = ffi::IBV_QPS_RTS;
        attributes.sq_psn = self.first_packet.load(Ordering::Relaxed);
        self.modify(&mut attributes, ffi::IBV_QP_STATE | ffi::IBV_QP_SQ_PSN)
    }

    /// Data that the other end needs about this one.
    pub fn peer(&self) -> Peer {
        let device = self.domain.device();
        Peer {
            queue_pair: self.number(),
            first_packet: self.first_packet.load(Ordering::Relaxed),
            mtu: device.port().mtu,
            lid: device.port().lid,
            reads_served: device.limits().reads_served.min(READS_MAX),
            reads_begun: device.limits().reads_begun.min(READS_MAX),
            gid: device.gid().gid,
        }
    }

    /// Connects it with another end, which does the same, and makes it ready. Packets are as long as both ports
    /// support, and there are as many reads and atomic operations in flight as one end begins and the other one serves:
    /// more wait here.
    ///
    /// # Errors
    /// [`Error::System`], such as when the other end's address is unreachable.
    pub fn connect(&self, peer: &Peer, patience: &Patience) -> Result<(), Error> {
        let device = self.domain.device();
        let reads = self.peer().reads_with(peer);
        let mut attributes = attributes(ffi::IBV_QPS_RTR);
        attributes.path_mtu = mtu_of_bytes(device.port().mtu.min(peer.mtu));
        attributes.dest_qp_num = peer.queue_pair;
        attributes.rq_psn = peer.first_packet & 0x00ff_ffff;
        attributes.max_dest_rd_atomic = reads.served;
        attributes.min_rnr_timer = patience.receiver_timer;
        attributes.ah_attr = crate::address::attributes(device, peer.gid, peer.lid);
        self.modify(
            &mut attributes,
            ffi::IBV_QP_STATE
                | ffi::IBV_QP_AV
                | ffi::IBV_QP_PATH_MTU
                | ffi::IBV_QP_DEST_QPN
                | ffi::IBV_QP_RQ_PSN
                | ffi::IBV_QP_MAX_DEST_RD_ATOMIC
                | ffi::IBV_QP_MIN_RNR_TIMER,
        )?;
        attributes.qp_state = ffi::IBV_QPS_RTS;
        attributes.sq_psn = self.first_packet.load(Ordering::Relaxed);
        attributes.timeout = patience.timeout;
        attributes.retry_cnt = patience.retries;
        attributes.rnr_retry = patience.receiver_retries;
        attributes.max_rd_atomic = reads.begun;
        self.modify(
            &mut attributes,
            ffi::IBV_QP_STATE
                | ffi::IBV_QP_TIMEOUT
                | ffi::IBV_QP_RETRY_CNT
                | ffi::IBV_QP_RNR_RETRY
                | ffi::IBV_QP_SQ_PSN
                | ffi::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// Discards all requests and the connection. Then it can be connected again: the result of [`QueuePair::peer`] has
    /// changed. One for datagrams is ready again. Completions that are in their queue already stay there.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn reset(&self) -> Result<(), Error> {
        self.modify(&mut attributes(ffi::IBV_QPS_RESET), ffi::IBV_QP_STATE)?;
        self.initialize()
    }

    /// Makes it fail: all that is posted is flushed, and no peer reaches memory through it any more.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn fail(&self) -> Result<(), Error> {
        self.modify(&mut attributes(ffi::IBV_QPS_ERR), ffi::IBV_QP_STATE)
    }

    /// Returns the state of the queue pair.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn state(&self) -> Result<State, Error> {
        let mut attributes = attributes(ffi::IBV_QPS_RESET);
        // SAFETY: numbers and pointers, which may be zero.
        let mut made: ffi::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let verbs = self.domain.device().verbs();
        let mask = ffi::IBV_QP_STATE as i32;
        // SAFETY: the pair lives, attributes and the rest are room for them.
        match unsafe { (verbs.ibv_query_qp)(self.pointer, &mut attributes, mask, &mut made) } {
            0 => {}
            errno => return Err(self.failure("query a queue pair of", errno)),
        }
        Ok(match attributes.qp_state {
            ffi::IBV_QPS_RESET => State::Reset,
            ffi::IBV_QPS_INIT => State::Initial,
            ffi::IBV_QPS_RTR => State::ReadyToReceive,
            ffi::IBV_QPS_RTS => State::Ready,
            ffi::IBV_QPS_SQD | ffi::IBV_QPS_SQE => State::Draining,
            _ => State::Failed,
        })
    }

    /// Returns the number of the queue pair.
    pub fn number(&self) -> u32 {
        // SAFETY: the pair lives.
        unsafe { (*self.pointer).qp_num }
    }

    /// Bytes that a request can have inline.
    #[inline]
    pub fn inline_max(&self) -> u32 {
        self.inline_max
    }

    /// Posts requests, in this order. Panics if one has more bytes inline than fit, or more pieces than
    /// [`PIECES_MAX`](crate::PIECES_MAX), or if it is not for this kind of pair: those for datagrams take
    /// [`Verb::SendTo`], and they only.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::System`].
    #[inline]
    pub fn post(&self, requests: &[Request<'_>]) -> Result<(), Error> {
        work::post_all(
            requests,
            |request, entry, pieces| {
                // The library takes from a request what its pair's kind has there, such as an address.
                let is_datagram = matches!(request.operation, Verb::SendTo { .. });
                assert_eq!(
                    is_datagram,
                    matches!(self.kind, PairKind::Datagram { .. }),
                    "a request is not for this kind of queue pair"
                );
                work::fill_send(request, self.inline_max, entry, pieces);
            },
            // SAFETY: the pair lives, the requests are linked, and the memory they name is registered for as long as
            // they are in flight, or refused by the device.
            |first, refused| unsafe {
                ((*(*self.pointer).context).ops.post_send)(self.pointer, first, refused)
            },
        )
        .map_err(|(posted, errno)| self.post_failure(posted, errno))
    }

    /// Posts requests to receive. Panics if the pair shares them.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::System`].
    #[inline]
    pub fn post_receives(&self, requests: &[Receive<'_>]) -> Result<(), Error> {
        assert!(
            self._shared.is_none(),
            "a queue pair that shares its receive requests has none of its own"
        );
        work::post_all(
            requests,
            work::fill_receive,
            // SAFETY: as in `post`.
            |first, refused| unsafe {
                ((*(*self.pointer).context).ops.post_recv)(self.pointer, first, refused)
            },
        )
        .map_err(|(posted, errno)| self.post_failure(posted, errno))
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    fn modify(&self, attributes: &mut ffi::ibv_qp_attr, mask: u32) -> Result<(), Error> {
        let verbs = self.domain.device().verbs();
        // SAFETY: the pair lives, the attributes are those that the mask names.
        match unsafe { (verbs.ibv_modify_qp)(self.pointer, attributes, mask as i32) } {
            0 => Ok(()),
            errno => Err(self.failure("change a queue pair of", errno)),
        }
    }

    fn failure(&self, what: &'static str, errno: i32) -> Error {
        Error::returned(what, self.domain.device().name(), errno)
    }

    #[inline]
    pub(crate) fn is_reliable(&self) -> bool {
        matches!(self.kind, PairKind::Reliable)
    }

    #[cold]
    pub(crate) fn post_failure(&self, posted: usize, errno: i32) -> Error {
        work::post_failure(&self.domain, posted, errno)
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "QueuePair({} of {})",
            self.number(),
            self.domain.device().name()
        )
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let verbs = self.domain.device().verbs();
        // SAFETY: the pair is this value's own; groups that it belongs to hold it.
        unsafe { (verbs.ibv_destroy_qp)(self.pointer) };
    }
}

fn attributes(state: u32) -> ffi::ibv_qp_attr {
    // SAFETY: numbers, which may be zero.
    let mut attributes: ffi::ibv_qp_attr = unsafe { std::mem::zeroed() };
    attributes.qp_state = state;
    attributes
}

/// A number that is another one each time, also in the next process.
fn random() -> u32 {
    let mut bytes = [0; 4];
    let length = bytes.len();
    // SAFETY: the bytes are room for so many. Without randomness, zero suffices: it only distinguishes old packets from
    // new.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), length, 0) };
    u32::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_reads_are_under_way_as_both_ends_can() {
        let end = |reads_served, reads_begun| Peer {
            queue_pair: 1,
            first_packet: 0,
            mtu: 1024,
            lid: 0,
            reads_served,
            reads_begun,
            gid: Gid([1; 16]),
        };
        let reads = |begun, served| Reads { begun, served };
        let (strong, weak) = (end(16, 16), end(4, 1));
        assert_eq!(strong.reads_with(&strong), reads(16, 16));
        assert_eq!(strong.reads_with(&weak), reads(4, 1));
        assert_eq!(weak.reads_with(&strong), reads(1, 4));
        assert_eq!(weak.reads_with(&weak), reads(1, 1));
    }
}
