//! Receive requests that several queue pairs share.

use std::ptr;
use std::sync::Arc;

use crate::work::{self, PIECES_MAX, Receive};
use crate::{Device, Domain, Error, ffi};

/// A queue of receive requests, from which each message takes one, whichever of its queue pairs it comes to.
pub struct SharedReceiveQueue {
    pub(crate) pointer: *mut ffi::ibv_srq,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs may be used from all threads at once.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// A queue with room for `depth` requests.
    ///
    /// # Errors
    /// [`Error::System`], if the device has no such queues, too.
    pub fn new(domain: &Arc<Domain>, depth: u32) -> Result<Arc<SharedReceiveQueue>, Error> {
        let device = domain.device();
        let mut wanted = ffi::ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: ffi::ibv_srq_attr {
                max_wr: depth,
                max_sge: device.limits().pieces.min(PIECES_MAX as u32),
                srq_limit: 0,
            },
        };
        // SAFETY: the domain lives.
        let pointer = unsafe { (device.verbs().ibv_create_srq)(domain.pointer, &mut wanted) };
        if pointer.is_null() {
            return Err(Error::last("make a shared receive queue of", device.name()));
        }
        Ok(Arc::new(SharedReceiveQueue {
            pointer,
            domain: domain.clone(),
        }))
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        self.domain.device()
    }

    /// Posts requests to receive.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::System`].
    pub fn post(&self, requests: &[Receive<'_>]) -> Result<(), Error> {
        work::post_all(
            requests,
            work::fill_receive,
            // SAFETY: the queue lives, the requests are linked, and their memory is registered for as long as they are
            // in flight, or refused by the device.
            |first, refused| unsafe {
                ((*(*self.pointer).context).ops.post_srq_recv)(self.pointer, first, refused)
            },
        )
        .map_err(|(posted, errno)| self.post_failure(posted, errno))
    }

    #[cold]
    pub(crate) fn post_failure(&self, posted: usize, errno: i32) -> Error {
        work::post_failure(&self.domain, posted, errno)
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        let verbs = self.domain.device().verbs();
        // SAFETY: queue pairs hold the queue they share, so no one uses this one.
        unsafe { (verbs.ibv_destroy_srq)(self.pointer) };
    }
}
