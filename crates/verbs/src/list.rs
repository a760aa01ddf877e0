//! Requests that are collected, and handed to the device by one call. Their room is made once.

use std::ptr;
use std::sync::Arc;

use crate::work::{
    self, Data, Entry, NO_PIECE, PIECES_MAX, Pieces, Posted, Receive, Request, Verb,
};
use crate::{Error, QueuePair, SharedReceiveQueue, ffi};

/// Requests of one kind, as the device reads them.
struct List<E> {
    entries: Box<[E]>,
    pieces: Box<[Pieces]>,
    length: usize,
}

impl<E: Entry> List<E> {
    fn new(room: usize) -> List<E> {
        List {
            entries: vec![E::empty(); room].into(),
            pieces: vec![[NO_PIECE; PIECES_MAX]; room].into(),
            length: 0,
        }
    }

    #[inline]
    fn push(&mut self, fill: impl FnOnce(&mut E, &mut Pieces)) {
        let at = self.length;
        assert!(
            at < self.entries.len(),
            "a list of {at} requests is full; post it first"
        );
        self.entries[at] = E::empty();
        fill(&mut self.entries[at], &mut self.pieces[at]);
        self.length += 1;
    }

    /// Links the entries, and gives the first one to `post`, which returns zero, or the number of an error and the first entry
    /// that was not posted. The list is empty then. Calls `refused` with the identity of each entry that was not posted, in
    /// order.
    #[inline]
    fn post(
        &mut self,
        post: impl FnOnce(*mut E, *mut *mut E) -> i32,
        mut refused: impl FnMut(u64),
    ) -> Posted {
        let length = std::mem::take(&mut self.length);
        if length == 0 {
            return Ok(());
        }
        let first = self.entries.as_mut_ptr();
        let pieces = self.pieces.as_mut_ptr();
        for index in 0..length {
            let next = match index + 1 < length {
                true => first.wrapping_add(index + 1),
                false => ptr::null_mut(),
            };
            // SAFETY: there are as many entries as pieces, and more than `index` of them.
            unsafe { (*first.add(index)).link(pieces.add(index).cast(), next) };
        }
        let mut bad = ptr::null_mut();
        match post(first, &mut bad) {
            0 => Ok(()),
            errno => {
                let posted = work::index_of(first, bad, length);
                let entries = &self.entries[posted..length];
                entries.iter().for_each(|entry| refused(entry.identity()));
                Err((posted, errno))
            }
        }
    }
}

/// Requests to one queue pair. Their inline data is copied into the list.
pub struct SendList {
    list: List<ffi::ibv_send_wr>,
    inline: Box<[u8]>,
    pair: Arc<QueuePair>,
}

// SAFETY: the pointers in the entries are set when a list is posted, and lead into the list itself.
unsafe impl Send for SendList {}

impl SendList {
    /// Room for so many.
    pub fn new(pair: &Arc<QueuePair>, room: usize) -> SendList {
        SendList {
            list: List::new(room),
            inline: vec![0; room * pair.inline_max() as usize].into(),
            pair: pair.clone(),
        }
    }

    /// Returns the queue pair that requests are posted to.
    pub fn pair(&self) -> &Arc<QueuePair> {
        &self.pair
    }

    /// Whether nothing waits to be posted.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.length == 0
    }

    /// Whether there is no room for another request.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.list.length == self.list.entries.len()
    }

    /// Adds a request to the list.
    /// Panics if there is no room, and for requests that [`QueuePair::post`] panics for; datagrams are not for
    /// lists. The memory that it names must be registered until it completes, or the device refuses it.
    #[inline]
    pub fn push(&mut self, request: &Request<'_>) {
        let is_datagram = matches!(request.operation, Verb::SendTo { .. });
        assert!(
            !is_datagram && self.pair.is_reliable(),
            "a list of requests is for connections"
        );
        let inline_max = self.pair.inline_max();
        let start = self.list.length * inline_max as usize;
        let inline = &mut self.inline;
        self.list.push(|entry, pieces| {
            work::fill_send(request, inline_max, entry, pieces);
            if let Verb::Send { data, .. } | Verb::Write { data, .. } = request.operation
                && let Data::Inline(bytes) = data
            {
                let copy = &mut inline[start..start + bytes.len()];
                copy.copy_from_slice(bytes);
                pieces[0].addr = copy.as_ptr() as u64;
            }
        });
    }

    /// Posts all, in the order in which they were added, by one call. The list is empty then. If the device does not take all,
    /// `refused` is called with the identity of each request that it did not take.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::System`].
    #[inline]
    pub fn post(&mut self, refused: impl FnMut(u64)) -> Result<(), Error> {
        let pair = &self.pair;
        self.list
            .post(
                // SAFETY: the pair lives, the entries are linked, their inline data is in this list, and the memory
                // they name is registered for as long as they are in flight, or refused by the device.
                |first, bad| unsafe {
                    ((*(*pair.pointer).context).ops.post_send)(pair.pointer, first, bad)
                },
                refused,
            )
            .map_err(|(posted, errno)| pair.post_failure(posted, errno))
    }
}

/// Requests to receive, for a queue that is shared.
pub struct ReceiveList {
    list: List<ffi::ibv_recv_wr>,
    queue: Arc<SharedReceiveQueue>,
}

// SAFETY: as for `SendList`.
unsafe impl Send for ReceiveList {}

impl ReceiveList {
    /// Room for so many.
    pub fn new(queue: &Arc<SharedReceiveQueue>, room: usize) -> ReceiveList {
        ReceiveList {
            list: List::new(room),
            queue: queue.clone(),
        }
    }

    /// Returns the shared receive queue.
    pub fn queue(&self) -> &Arc<SharedReceiveQueue> {
        &self.queue
    }

    /// Whether nothing waits to be posted.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.length == 0
    }

    /// Whether there is no room for another request.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.list.length == self.list.entries.len()
    }

    /// Number of requests to be posted.
    #[inline]
    pub fn length(&self) -> usize {
        self.list.length
    }

    /// Adds a request. Panics if there is no room, or if it has more than [`PIECES_MAX`] pieces.
    #[inline]
    pub fn push(&mut self, request: &Receive<'_>) {
        self.list
            .push(|entry, pieces| work::fill_receive(request, entry, pieces));
    }

    /// Posts all by one call, as [`SendList::post`] does.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::System`].
    #[inline]
    pub fn post(&mut self, refused: impl FnMut(u64)) -> Result<(), Error> {
        let queue = &self.queue;
        self.list
            .post(
                // SAFETY: as in `SendList::post`; nothing is inline.
                |first, bad| unsafe {
                    ((*(*queue.pointer).context).ops.post_srq_recv)(queue.pointer, first, bad)
                },
                refused,
            )
            .map_err(|(posted, errno)| queue.post_failure(posted, errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(list: &mut List<ffi::ibv_recv_wr>, id: u64) {
        let request = Receive { id, into: &[] };
        list.push(|entry, pieces| work::fill_receive(&request, entry, pieces));
    }

    /// Posts a list to a device that takes so many. Returns the requests it took, the one it reported as refused, and
    /// the result.
    fn post(list: &mut List<ffi::ibv_recv_wr>, takes: usize) -> (Vec<u64>, Vec<u64>, Posted) {
        let (mut taken, mut refused) = (Vec::new(), Vec::new());
        let device = |first: *mut ffi::ibv_recv_wr, bad: *mut *mut ffi::ibv_recv_wr| {
            let mut next = first;
            // SAFETY: the entries are linked, the last one to nothing; the place for the refused one is there.
            while let Some(entry) = unsafe { next.as_ref() } {
                if taken.len() == takes {
                    // SAFETY: as above.
                    unsafe { *bad = next };
                    return libc::ENOMEM;
                }
                taken.push(entry.wr_id);
                next = entry.next;
            }
            0
        };
        let result = list.post(device, |id| refused.push(id));
        (taken, refused, result)
    }

    #[test]
    fn a_list_is_posted_by_one_call_and_used_again() {
        let mut list = List::new(4);
        assert_eq!(post(&mut list, 0), (vec![], vec![], Ok(())));
        for round in 0..3 {
            let ids: Vec<u64> = (round * 10..round * 10 + 4 - round).collect();
            ids.iter().for_each(|id| push(&mut list, *id));
            assert_eq!(post(&mut list, 4), (ids, vec![], Ok(())));
        }
    }

    #[test]
    fn requests_that_the_device_refuses_are_named_and_forgotten() {
        let mut list = List::new(4);
        for takes in 0..4 {
            (0..4).for_each(|id| push(&mut list, id));
            let (taken, refused, result) = post(&mut list, takes);
            assert_eq!([taken, refused].concat(), [0, 1, 2, 3]);
            assert_eq!(result, Err((takes, libc::ENOMEM)));
        }
        push(&mut list, 7);
        assert_eq!(post(&mut list, 4), (vec![7], vec![], Ok(())));
    }

    #[test]
    #[should_panic(expected = "is full")]
    fn a_full_list_takes_no_more() {
        let mut list = List::new(2);
        (0..3).for_each(|id| push(&mut list, id));
    }
}
