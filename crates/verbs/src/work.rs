//! Requests, as they are posted.

use std::mem::MaybeUninit;
use std::ptr;

use crate::memory::{Domain, Piece, Remote};
use crate::{Address, Error, ffi};

/// Pieces of memory in one request, at most.
pub const PIECES_MAX: usize = 4;

/// Requests that are handed to the device at once. Longer batches are handed over in parts.
const BATCH: usize = 16;

/// A request to a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Returned with the completion.
    pub id: u64,
    /// Whether it completes visibly if it succeeds. One that fails always does. A signaled one also reports that those
    /// before it are done.
    pub signaled: bool,
    /// Whether it waits until reads and atomic operations before it are done.
    pub fenced: bool,
    /// Operation to execute.
    pub operation: Verb<'a>,
}

/// The RDMA verb of a request, with its arguments.
#[derive(Clone, Copy, Debug)]
pub enum Verb<'a> {
    /// Sends a message, with a word beside it if wanted.
    Send {
        /// Data to send.
        data: Data<'a>,
        /// Immediate word that the peer receives.
        immediate: Option<u32>,
    },
    /// Sends a message to a queue pair for datagrams.
    SendTo {
        /// Data to send: at most as much as one packet has room for.
        data: Data<'a>,
        /// The word beside it.
        immediate: Option<u32>,
        /// Destination of the data.
        address: &'a Address,
        /// The number of the queue pair there.
        queue_pair: u32,
        /// The key that the queue pair there was made with.
        key: u32,
    },
    /// Writes to a peer's memory. With a word the peer gets a completion, which takes one of its receive requests.
    Write {
        /// Data to write.
        data: Data<'a>,
        /// Destination of the data.
        remote: Remote,
        /// Immediate word that the peer receives.
        immediate: Option<u32>,
    },
    /// Reads from a peer's memory.
    Read {
        /// Destination: memory here, filled one piece after the other.
        into: &'a [Piece<'a>],
        /// Remote memory to read.
        remote: Remote,
    },
    /// Replaces a peer's word of 8 bytes, at a multiple of 8, if it is as expected.
    CompareAndSwap {
        /// 8 bytes here for the word as it was.
        into: Piece<'a>,
        /// Where the word is.
        remote: Remote,
        /// Value to compare the memory with.
        expected: u64,
        /// Value to store if the comparison succeeds.
        new: u64,
    },
    /// Adds to a peer's word of 8 bytes, at a multiple of 8.
    FetchAndAdd {
        /// 8 bytes here for the word as it was.
        into: Piece<'a>,
        /// Where the word is.
        remote: Remote,
        /// Number that is added to the word, modulo 2^64.
        add: u64,
    },
}

/// Bytes that are sent or written.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Copied into the request itself; at most as many as [`QueuePair::inline_max`](crate::QueuePair::inline_max).
    Inline(&'a [u8]),
    /// Fetched by the device, one piece after the other, until the request completes.
    Pieces(&'a [Piece<'a>]),
}

/// A request for memory that a message is received in.
#[derive(Clone, Copy, Debug)]
pub struct Receive<'a> {
    /// Returned with the completion.
    pub id: u64,
    /// Where a message goes. A datagram is preceded by the 40 bytes of [`GRH`](crate::GRH).
    pub into: &'a [Piece<'a>],
}

/// If not all requests were posted, how many were, and the number of the error.
pub(crate) type Posted = Result<(), (usize, i32)>;

pub(crate) type Pieces = [ffi::ibv_sge; PIECES_MAX];
pub(crate) const NO_PIECE: ffi::ibv_sge = ffi::ibv_sge {
    addr: 0,
    length: 0,
    lkey: 0,
};

/// A request as the device reads it.
pub(crate) trait Entry: Copy {
    /// One that asks for nothing.
    fn empty() -> Self;
    fn link(&mut self, pieces: *mut ffi::ibv_sge, next: *mut Self);
    fn identity(&self) -> u64;
}

impl Entry for ffi::ibv_send_wr {
    fn empty() -> Self {
        // SAFETY: numbers and pointers, which may be zero.
        unsafe { std::mem::zeroed() }
    }

    fn link(&mut self, pieces: *mut ffi::ibv_sge, next: *mut Self) {
        self.sg_list = pieces;
        self.next = next;
    }

    fn identity(&self) -> u64 {
        self.wr_id
    }
}

impl Entry for ffi::ibv_recv_wr {
    fn empty() -> Self {
        // SAFETY: as above.
        unsafe { std::mem::zeroed() }
    }

    fn link(&mut self, pieces: *mut ffi::ibv_sge, next: *mut Self) {
        self.sg_list = pieces;
        self.next = next;
    }

    fn identity(&self) -> u64 {
        self.wr_id
    }
}

/// Posts requests in batches, linked as the device wants them. `post` is given the first one of a batch; it returns zero, or
/// the number of an error and the first request that was not posted.
pub(crate) fn post_all<R, E: Entry>(
    requests: &[R],
    fill: impl Fn(&R, &mut E, &mut Pieces),
    post: impl Fn(*mut E, *mut *mut E) -> i32,
) -> Posted {
    let mut posted = 0;
    for batch in requests.chunks(BATCH) {
        let mut pieces = [const { MaybeUninit::<Pieces>::uninit() }; BATCH];
        let mut entries = [const { MaybeUninit::<E>::uninit() }; BATCH];
        let first: *mut E = entries.as_mut_ptr().cast();
        for (index, (request, pieces)) in batch.iter().zip(&mut pieces).enumerate() {
            let mut entry = E::empty();
            let pieces = pieces.write([NO_PIECE; PIECES_MAX]);
            fill(request, &mut entry, pieces);
            let next = match index + 1 < batch.len() {
                true => first.wrapping_add(index + 1),
                false => ptr::null_mut(),
            };
            entry.link(pieces.as_mut_ptr(), next);
            // SAFETY: a batch has at most as many requests as there are entries.
            unsafe { first.add(index).write(entry) };
        }
        let mut refused = ptr::null_mut();
        match post(first, &mut refused) {
            0 => posted += batch.len(),
            errno => return Err((posted + index_of(first, refused, batch.len()), errno)),
        }
    }
    Ok(())
}

/// The error of a queue that refused a request after so many were posted.
pub(crate) fn post_failure(domain: &Domain, posted: usize, errno: i32) -> Error {
    match errno {
        libc::ENOMEM => Error::QueueFull { posted },
        _ => Error::returned("post to a queue of", domain.device().name(), errno),
    }
}

#[inline]
pub(crate) fn fill_receive(
    request: &Receive<'_>,
    entry: &mut ffi::ibv_recv_wr,
    pieces: &mut Pieces,
) {
    entry.wr_id = request.id;
    entry.num_sge = fill_pieces(request.into, pieces);
}

pub(crate) fn index_of<T>(first: *const T, refused: *const T, count: usize) -> usize {
    let distance = (refused as usize).wrapping_sub(first as usize) / size_of::<T>();
    // A pointer outside of the batch has no meaning: then none is considered posted.
    if distance < count { distance } else { 0 }
}

#[inline]
pub(crate) fn fill_send(
    request: &Request<'_>,
    inline_max: u32,
    entry: &mut ffi::ibv_send_wr,
    pieces: &mut Pieces,
) {
    entry.wr_id = request.id;
    entry.send_flags = match request.signaled {
        true => ffi::IBV_SEND_SIGNALED,
        false => 0,
    };
    if request.fenced {
        entry.send_flags |= ffi::IBV_SEND_FENCE;
    }
    match request.operation {
        Verb::Send { data, immediate } => {
            entry.opcode = with_immediate(entry, ffi::IBV_WR_SEND, immediate);
            fill_data(data, inline_max, entry, pieces);
        }
        Verb::SendTo {
            data,
            immediate,
            address,
            queue_pair,
            key,
        } => {
            entry.opcode = with_immediate(entry, ffi::IBV_WR_SEND, immediate);
            entry.wr.ud = ffi::Datagram {
                ah: address.pointer,
                remote_qpn: queue_pair,
                remote_qkey: key,
            };
            fill_data(data, inline_max, entry, pieces);
        }
        Verb::Write {
            data,
            remote,
            immediate,
        } => {
            entry.opcode = with_immediate(entry, ffi::IBV_WR_RDMA_WRITE, immediate);
            entry.wr = rdma(remote);
            fill_data(data, inline_max, entry, pieces);
        }
        Verb::Read { into, remote } => {
            entry.opcode = ffi::IBV_WR_RDMA_READ;
            entry.wr = rdma(remote);
            entry.num_sge = fill_pieces(into, pieces);
        }
        Verb::CompareAndSwap {
            into,
            remote,
            expected,
            new,
        } => {
            entry.opcode = ffi::IBV_WR_ATOMIC_CMP_AND_SWP;
            entry.wr = atomic(remote, expected, new);
            entry.num_sge = fill_word(into, pieces);
        }
        Verb::FetchAndAdd { into, remote, add } => {
            entry.opcode = ffi::IBV_WR_ATOMIC_FETCH_AND_ADD;
            entry.wr = atomic(remote, add, 0);
            entry.num_sge = fill_word(into, pieces);
        }
    }
}

#[inline]
fn rdma(remote: Remote) -> ffi::Target {
    ffi::Target {
        rdma: ffi::Rdma {
            remote_addr: remote.address,
            rkey: remote.key,
        },
    }
}

fn atomic(remote: Remote, compare_add: u64, swap: u64) -> ffi::Target {
    ffi::Target {
        atomic: ffi::Atomic {
            remote_addr: remote.address,
            compare_add,
            swap,
            rkey: remote.key,
        },
    }
}

/// The operation that has a word beside it, if there is one.
fn with_immediate(entry: &mut ffi::ibv_send_wr, plain: u32, immediate: Option<u32>) -> u32 {
    const _: () = assert!(ffi::IBV_WR_SEND_WITH_IMM == ffi::IBV_WR_SEND + 1);
    const _: () = assert!(ffi::IBV_WR_RDMA_WRITE_WITH_IMM == ffi::IBV_WR_RDMA_WRITE + 1);
    match immediate {
        None => plain,
        Some(word) => {
            entry.imm_data = word.to_be();
            plain + 1
        }
    }
}

#[inline]
fn fill_data(data: Data<'_>, inline_max: u32, entry: &mut ffi::ibv_send_wr, pieces: &mut Pieces) {
    match data {
        Data::Pieces(data) => entry.num_sge = fill_pieces(data, pieces),
        Data::Inline(bytes) => {
            assert!(
                bytes.len() <= inline_max as usize,
                "{} bytes are posted inline, at most {inline_max} fit",
                bytes.len()
            );
            // The library copies them before the call that posts returns.
            pieces[0] = ffi::ibv_sge {
                addr: bytes.as_ptr() as u64,
                length: bytes.len() as u32,
                lkey: 0,
            };
            entry.num_sge = 1;
            entry.send_flags |= ffi::IBV_SEND_INLINE;
        }
    }
}

#[inline]
fn fill_pieces(from: &[Piece<'_>], into: &mut Pieces) -> i32 {
    assert!(
        from.len() <= into.len(),
        "a request has {} pieces, at most {PIECES_MAX} are allowed",
        from.len()
    );
    for (from, into) in from.iter().zip(into) {
        *into = from.to_ffi();
    }
    from.len() as i32
}

fn fill_word(into: Piece<'_>, pieces: &mut Pieces) -> i32 {
    assert!(
        into.length() == 8,
        "an atomic operation answers with 8 bytes, not {}",
        into.length()
    );
    fill_pieces(&[into], pieces)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Posts so many requests; `accept` returns how many of each batch are taken. Returns the identities that were,
    /// batch by batch, and the result.
    fn post(count: u64, accept: usize) -> (Vec<Vec<u64>>, Posted) {
        let requests: Vec<_> = (0..count).map(|id| Receive { id, into: &[] }).collect();
        let batches = RefCell::new(Vec::new());
        let result = post_all(&requests, fill_receive, |first, refused| {
            let mut batch = Vec::new();
            let mut next = first;
            // SAFETY: the entries are linked, the last one to nothing; the place for the refused one is there.
            while let Some(entry) = unsafe { next.as_ref() } {
                if batch.len() == accept {
                    // SAFETY: as above.
                    unsafe { *refused = next };
                    batches.borrow_mut().push(batch);
                    return libc::ENOMEM;
                }
                batch.push(entry.wr_id);
                next = entry.next;
            }
            batches.borrow_mut().push(batch);
            0
        });
        (batches.into_inner(), result)
    }

    #[test]
    fn requests_are_linked_in_batches() {
        let (batches, result) = post(BATCH as u64 * 2 + 3, usize::MAX);
        assert_eq!(result, Ok(()));
        let lengths: Vec<usize> = batches.iter().map(Vec::len).collect();
        assert_eq!(lengths, [BATCH, BATCH, 3]);
        assert!(batches.concat().into_iter().eq(0..BATCH as u64 * 2 + 3));
        assert_eq!(post(0, 0), (Vec::new(), Ok(())));
    }

    #[test]
    fn refused_requests_are_counted() {
        for taken in [0, 1, BATCH - 1] {
            let (batches, result) = post(BATCH as u64 * 2, taken);
            assert_eq!(result, Err((taken, libc::ENOMEM)));
            assert_eq!(batches.len(), 1);
        }
    }
}
