//! Transport between threads and processes of one host, over the memory they share.
//!
//! - Registered regions are passed by descriptor and mapped by the importing side. One-sided requests are loads and
//!   stores of the initiator, executed when they are posted; the target's threads do not take part. Read-only memory is
//!   passed so that it can only be mapped for reading.
//! - Messages go through [rings](ring), one in each direction of an endpoint.
//! - A thread sleeps at its queue's [bell](bell).
//! - The end of a peer's process is [noticed](watch) by its descriptor.
//! - Memory that a peer lends may be a file, which the peer can shorten meanwhile. An access to missing memory ends no
//!   process, but its endpoint, with [`Failure::MemoryGone`](crate::Failure::MemoryGone). Rings and bells are never
//!   files.
//! - A key cannot be revoked from a process that has mapped the memory: the proof of revocation is that all those have
//!   ended. Until then they can continue to load and store there, within their rights; no new peer is given the memory.
//!   (They answer for processes to which they passed the memory on, and which they forked.) Memory that is passed with
//!   a mark does not need the end of processes: the mark disappears with the last mapping in any process.
//!
//! Order, for [`Capabilities`]: all requests of a queue are executed by the thread that posts them, in that order. A
//! read sees the thread's own writes since they are to the same memory, though mapped elsewhere. Each header is stored
//! with release and loaded with acquire, so the receiver of a message sees the writes posted before it. A read is
//! followed by an acquire fence, so the next one is not earlier (on x86-64 loads are in order anyway, and it costs
//! nothing).

mod doorbell;
mod endpoint;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod header;
mod ring;
#[cfg(test)]
mod tests;
mod transport;
mod watch;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pmem::{Kind, Lines, Region};

use self::transport::Thread;
use self::watch::{Process, Watcher};
use crate::registration::Details;
use crate::{
    Access, Capabilities, Copies, Device, Error, Key, Multicast, Order, Placement, Proof, Proves,
    Provider, Registration, Transport,
};

/// Shared memory, as a process has it.
pub struct Shm(Arc<Inner>);

struct Inner {
    watcher: Watcher,
    keys: Mutex<HashMap<Key, Arc<Exports>>>,
    /// See [`doorbell::NAP`]; tests make it longer.
    nap: Duration,
}

/// Holders of a registration's memory.
#[derive(Default)]
struct Exports {
    state: Mutex<ExportsState>,
}

#[derive(Default)]
struct ExportsState {
    is_withdrawn: bool,
    holders: Vec<Holder>,
}

/// Holder of an export.
enum Holder {
    /// All of another process: its mappings are not visible.
    Process(Arc<Process>),
    /// Another endpoint of this process, which drops its mappings before it marks the ring as closed, and maps nothing
    /// if the ring was closed before it joined.
    Endpoint(Lines),
}

impl Holder {
    fn is_gone(&self) -> bool {
        match self {
            Holder::Process(process) => process.is_gone(),
            Holder::Endpoint(head) => ring::has_nothing(head),
        }
    }
}

impl Shm {
    /// Opens the device for shared memory.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn new() -> Result<Shm, Error> {
        Shm::with(doorbell::NAP)
    }

    fn with(nap: Duration) -> Result<Shm, Error> {
        Ok(Shm(Arc::new(Inner {
            watcher: Watcher::new()?,
            keys: Mutex::default(),
            nap,
        })))
    }

    fn description() -> Capabilities {
        Capabilities {
            provider: Provider::Shm,
            message_bytes: 1 << 20,
            inline_bytes: 1 << 20,
            transfer_bytes: 1 << 30,
            pieces: 64,
            atomics: true,
            order: Order {
                reads: true,
                writes_before_messages: true,
                reads_after_writes: true,
            },
            multicast: Multicast::None,
            header_bytes: 0,
            credit_buffers: 0,
            pins_memory: false,
            revocation: Proves::PeersGone,
            copies: Copies {
                message: 2,
                write: 1,
                read: 1,
            },
            completed_write: Placement::Visible,
            passive_target: true,
            immediate_reads: true,
            // 0.78 µs beside 0.71 pushed; 256 B 0.80 beside 0.70.
            in_message_bytes: 64,
        }
    }
}

impl Device for Shm {
    fn capabilities(&self) -> Capabilities {
        Shm::description()
    }

    fn register_part(
        &self,
        region: &Region,
        part: Range<u64>,
        access: Access,
    ) -> Result<Registration, Error> {
        if access != Access::LOCAL && region.kind() == Kind::Simulated {
            return Err(refusal(
                region,
                "it belongs to this process; use a file or memory",
            ));
        }
        let key = Key(crate::random());
        self.0.keys.lock().insert(key, Arc::default());
        let forget = Forget {
            device: self.0.clone(),
            key,
        };
        let details = Details {
            key,
            base: part.start,
            local_key: 0,
            held: Some(Box::new(forget)),
        };
        Ok(Registration::new(region, part, access, details))
    }

    fn revoke(&self, registration: &Registration) -> Option<Proof> {
        let key = registration.key();
        if let Some(exports) = self.0.exports(key) {
            let mut state = exports.state.lock();
            state.is_withdrawn = true;
            state.holders.retain(|holder| !holder.is_gone());
            let marked = registration.mark();
            let is_held = match marked {
                // Unknown cases count as possible.
                Some(mark) => registration.region().is_marked(mark).unwrap_or(true),
                None => true,
            };
            if is_held && !state.holders.is_empty() {
                return None;
            }
        }
        Some(Proof::new(key))
    }

    fn open(&self) -> Result<Box<dyn Transport>, Error> {
        Ok(Box::new(Thread::new(self.0.clone())?))
    }
}

impl Inner {
    fn exports(&self, key: Key) -> Option<Arc<Exports>> {
        self.keys.lock().get(&key).cloned()
    }

    /// Records holders of a registration's memory.
    ///
    /// # Errors
    /// [`Error::Memory`] if its key was withdrawn.
    fn note_export(&self, registration: &Registration, holder: Holder) -> Result<(), Error> {
        let Some(exports) = self.exports(registration.key()) else {
            let reason = "it is registered with another device";
            return Err(refusal(registration.region(), reason));
        };
        let mut state = exports.state.lock();
        if state.is_withdrawn {
            let reason = "its key was withdrawn; register it again";
            return Err(refusal(registration.region(), reason));
        }
        if state.holders.len() == state.holders.capacity() {
            // Peers come and go: so the list does not become longer than about twice the necessary length.
            state.holders.retain(|holder| !holder.is_gone());
        }
        state.holders.push(holder);
        Ok(())
    }
}

/// Forgets a key when its registration goes.
struct Forget {
    device: Arc<Inner>,
    key: Key,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.device.keys.lock().remove(&self.key);
    }
}

fn refusal(region: &Region, reason: &'static str) -> Error {
    Error::Memory {
        provider: Provider::Shm,
        memory: format!("{region:?}"),
        reason,
    }
}
