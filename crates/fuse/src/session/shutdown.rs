//! Ends the threads of a session when one of them fails. Then the device is closed everywhere, and the kernel reports
//! to all waiting callers that there is no answer.

use std::io;
use std::os::fd::OwnedFd;

use fuse_device::Stop;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// The common end of a session's threads.
pub(super) struct Shutdown {
    /// None once it has begun.
    queues: Mutex<Option<Vec<Stop>>>,
    event: OwnedFd,
}

/// Begins the shutdown when it is dropped, as it is when a thread panics.
struct Guard<'a>(&'a Shutdown);

impl Shutdown {
    /// For the threads of these queues, and a listener.
    pub(super) fn new(queues: Vec<Stop>) -> io::Result<Shutdown> {
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Shutdown {
            queues: Mutex::new(Some(queues)),
            event,
        })
    }

    /// Adds the thread of a further queue.
    pub(super) fn add(&self, queue: Stop) {
        match &mut *self.queues.lock() {
            Some(queues) => queues.push(queue),
            None => queue.stop(),
        }
    }

    pub(super) fn begin(&self) {
        let queues = self.queues.lock().take();
        queues.iter().flatten().for_each(Stop::stop);
        // The event stays set, however often this is called.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Runs a thread's work, and begins the shutdown if that fails.
    pub(super) fn guard(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let guard = Guard(self);
        work()?;
        std::mem::forget(guard);
        Ok(())
    }

    /// Waits until `device` can be read; false if the shutdown has begun.
    pub(super) fn wait_for(&self, device: &OwnedFd) -> io::Result<bool> {
        let mut waited = [
            PollFd::new(device, PollFlags::IN),
            PollFd::new(&self.event, PollFlags::IN),
        ];
        rustix::io::retry_on_intr(|| poll(&mut waited, None))?;
        Ok(waited[1].revents().is_empty())
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.begin();
    }
}
