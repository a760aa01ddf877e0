//! Completions: what became of work.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

use crate::ffi;
use crate::{Device, Error};

/// Where completions of queue pairs arrive.
pub struct CompletionQueue {
    pub(crate) pointer: *mut ffi::ibv_cq,
    channel: *mut ffi::ibv_comp_channel,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be used from all threads at once.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue with room for `depth` completions. More than fit must never be in flight: the queue would fail, and all
    /// queue pairs with it.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn new(device: &Arc<Device>, depth: u32) -> Result<Arc<CompletionQueue>, Error> {
        let verbs = device.verbs();
        // SAFETY: the device is open.
        let channel = unsafe { (verbs.ibv_create_comp_channel)(device.context()) };
        if channel.is_null() {
            return Err(Error::last("make a completion channel of", device.name()));
        }
        let mut queue = CompletionQueue {
            pointer: ptr::null_mut(),
            channel,
            device: device.clone(),
        };
        // SAFETY: the device is open, and so is its channel.
        queue.pointer = unsafe {
            (verbs.ibv_create_cq)(device.context(), depth as i32, ptr::null_mut(), channel, 0)
        };
        if queue.pointer.is_null() {
            return Err(Error::last("make a completion queue of", device.name()));
        }
        rustix::fs::fcntl_setfl(queue.channel(), OFlags::NONBLOCK)
            .map_err(|errno| queue.failure("set up a completion channel of", errno.into()))?;
        Ok(Arc::new(queue))
    }

    /// Takes completions from the queue, as many as there are and fit, and returns them. Does not wait.
    ///
    /// # Errors
    /// [`Error::System`]: the queue has failed.
    #[inline]
    pub fn poll<'a>(&self, into: &'a mut [Completion]) -> Result<&'a [Completion], Error> {
        let room = i32::try_from(into.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue lives, and there is room for so many. A `Completion` has the library's layout.
        let count = unsafe {
            let operations = &(*(*self.pointer).context).ops;
            (operations.poll_cq)(self.pointer, room, into.as_mut_ptr().cast())
        };
        match usize::try_from(count) {
            Ok(count) => Ok(&into[..count]),
            Err(_) => Err(self.poll_failure()),
        }
    }

    /// Makes the next completion that arrives turn [`CompletionQueue::channel`] readable. Earlier ones do not: poll
    /// again before waiting.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn arm(&self) -> Result<(), Error> {
        // SAFETY: the queue lives.
        let errno = unsafe {
            let operations = &(*(*self.pointer).context).ops;
            (operations.req_notify_cq)(self.pointer, 0)
        };
        match errno {
            0 => Ok(()),
            _ => Err(self.failure(
                "arm a completion queue of",
                io::Error::from_raw_os_error(errno),
            )),
        }
    }

    /// Waits until a completion arrives after the queue was armed. `false` if none has within the time.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn wait(&self, timeout_ms: u32) -> Result<bool, Error> {
        let channel = self.channel();
        let mut ready = [PollFd::new(&channel, PollFlags::IN)];
        match rustix::event::poll(&mut ready, Some(&milliseconds(timeout_ms))) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(false),
            Ok(_) => self.take_event(),
            Err(errno) => Err(self.failure("wait for", errno.into())),
        }
    }

    /// Takes notice that the channel is readable. `false` if it is not.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn take_event(&self) -> Result<bool, Error> {
        let verbs = self.device.verbs();
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives, the places are room for one each.
        if unsafe { (verbs.ibv_get_cq_event)(self.channel, &mut queue, &mut context) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(self.failure("read the completion channel of", error)),
            };
        }
        // SAFETY: the channel has this queue only, and one event of it has been read.
        unsafe { (verbs.ibv_ack_cq_events)(queue, 1) };
        Ok(true)
    }

    /// Becomes readable when a completion arrives after [`CompletionQueue::arm`].
    pub fn channel(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    #[cold]
    fn poll_failure(&self) -> Error {
        self.failure("poll a completion queue of", io::ErrorKind::Other.into())
    }

    fn failure(&self, what: &'static str, error: io::Error) -> Error {
        Error::from_system(what, self.device.name(), error)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let verbs = self.device.verbs();
        // SAFETY: queue pairs hold their queues, so no one uses this one; all of its events have been acknowledged.
        unsafe {
            if !self.pointer.is_null() {
                (verbs.ibv_destroy_cq)(self.pointer);
            }
            (verbs.ibv_destroy_comp_channel)(self.channel);
        }
    }
}

pub(crate) fn milliseconds(count: u32) -> Timespec {
    Timespec {
        tv_sec: i64::from(count / 1000),
        tv_nsec: i64::from(count % 1000) * 1_000_000,
    }
}

/// Completion of a request.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Completion(ffi::ibv_wc);

impl Default for Completion {
    fn default() -> Completion {
        // SAFETY: numbers, which may be zero.
        Completion(unsafe { std::mem::zeroed() })
    }
}

impl Completion {
    /// The request's identity, as it was posted.
    #[inline]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Status of the request.
    #[inline]
    pub fn status(&self) -> Status {
        Status::from_ffi(self.0.status)
    }

    /// Kind of the request. It is undefined for a request that failed.
    #[inline]
    pub fn kind(&self) -> Kind {
        match self.0.opcode {
            ffi::IBV_WC_SEND => Kind::Send,
            ffi::IBV_WC_RDMA_WRITE => Kind::Write,
            ffi::IBV_WC_RDMA_READ => Kind::Read,
            ffi::IBV_WC_COMP_SWAP | ffi::IBV_WC_FETCH_ADD => Kind::Atomic,
            ffi::IBV_WC_RECV => Kind::Receive,
            ffi::IBV_WC_RECV_RDMA_WITH_IMM => Kind::Written,
            _ => Kind::Other,
        }
    }

    /// Bytes that were received, with the 40 of [`GRH`](crate::GRH) if it was a datagram.
    #[inline]
    pub fn length(&self) -> u32 {
        self.0.byte_len
    }

    /// The word that arrived with the data.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        (self.0.wc_flags & ffi::IBV_WC_WITH_IMM != 0).then(|| u32::from_be(self.0.imm_data))
    }

    /// The number of the queue pair here.
    #[inline]
    pub fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// The number of the queue pair that sent a datagram.
    pub fn source(&self) -> u32 {
        self.0.src_qp
    }

    /// Whether the first 40 bytes received are a global route header, which names the sender of the datagram.
    pub fn has_header(&self) -> bool {
        self.0.wc_flags & ffi::IBV_WC_GRH != 0
    }

    /// The vendor's code of the failure.
    pub fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, pair) = (self.id(), self.queue_pair());
        write!(
            f,
            "Completion({id} of queue pair {pair}: {})",
            self.status()
        )
    }
}

/// Kind of a completed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A message was sent.
    Send,
    /// A peer's memory was written.
    Write,
    /// A peer's memory was read.
    Read,
    /// A peer's word was compared and swapped, or added to.
    Atomic,
    /// A message was received.
    Receive,
    /// A peer has written memory here, with a notification.
    Written,
    /// Any other kind of completion.
    Other,
}

/// Status of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The request was executed.
    Success,
    /// The message was longer than the memory for it.
    LocalLength,
    /// Memory here was not registered, or no longer.
    LocalProtection,
    /// It was not tried, or stopped, since the queue pair had failed or was reset.
    Flushed,
    /// The peer did not understand the request, or has too little room for it.
    RemoteInvalid,
    /// The peer's memory was not registered with this key, or no longer, or not for this.
    RemoteAccess,
    /// The peer could not carry it out.
    RemoteOperation,
    /// The peer did not answer, after all retries.
    RetriesExceeded,
    /// The peer had no receive request, after all retries.
    ReceiverNotReady,
    /// Something else, as `enum ibv_wc_status` numbers it.
    Other(u32),
}

impl Status {
    #[inline]
    fn from_ffi(status: u32) -> Status {
        match status {
            ffi::IBV_WC_SUCCESS => Status::Success,
            ffi::IBV_WC_LOC_LEN_ERR => Status::LocalLength,
            ffi::IBV_WC_LOC_PROT_ERR => Status::LocalProtection,
            ffi::IBV_WC_WR_FLUSH_ERR => Status::Flushed,
            ffi::IBV_WC_REM_INV_REQ_ERR => Status::RemoteInvalid,
            ffi::IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
            ffi::IBV_WC_REM_OP_ERR => Status::RemoteOperation,
            ffi::IBV_WC_RETRY_EXC_ERR => Status::RetriesExceeded,
            ffi::IBV_WC_RNR_RETRY_EXC_ERR => Status::ReceiverNotReady,
            other => Status::Other(other),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Success => "success",
            Status::LocalLength => "the message was longer than the memory for it",
            Status::LocalProtection => "memory here was not registered",
            Status::Flushed => "the queue pair had failed",
            Status::RemoteInvalid => "the peer did not understand the request",
            Status::RemoteAccess => "the peer's memory was not registered for it",
            Status::RemoteOperation => "the peer could not carry it out",
            Status::RetriesExceeded => "the peer did not answer",
            Status::ReceiverNotReady => "the peer had no receive request",
            Status::Other(number) => return write!(f, "failure {number}"),
        })
    }
}
