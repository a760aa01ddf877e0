//! The transports of a process: each is tried once, here and nowhere else, and each missing one has a reason.

use std::os::fd::BorrowedFd;

use crate::choice::{Offers, PREFERENCE};
use fabric::ethernet::{Ethernet, EthernetOptions};
use fabric::shm::Shm;
use fabric::tcp::{Tcp, TcpOptions};
use fabric::verbs::{Verbs, VerbsOptions};
use fabric::{Device, Error, Provider, Queue, QueueOptions};

/// Transports that a process requests.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Transport to use instead of a choice.
    pub only: Option<Provider>,
    /// Options that choose the RDMA adapter.
    pub verbs: VerbsOptions,
    /// Options that choose the Ethernet interface.
    pub ethernet: EthernetOptions,
    /// How endpoints over TCP are made and kept.
    pub tcp: TcpOptions,
    /// Options of the queues.
    pub queues: QueueOptions,
}

/// Its transports: a device for each, and the queue of the thread that opened it.
///
/// Whether shared memory reaches a peer, only [`dial`](crate::control::dial) finds out: it needs a Unix socket.
pub struct Transports {
    ready: Vec<Ready>,
    offers: Offers,
}

struct Ready {
    provider: Provider,
    device: Box<dyn Device>,
    queue: Queue,
}

impl Transports {
    /// Opens what there is. An adapter is there if its memory can be registered, too: a queue shows that.
    ///
    /// # Errors
    /// [`Error::Forced`]: the only one that is wanted is not there.
    pub fn open(wanted: &Wanted) -> Result<Transports, Error> {
        if let Some(provider) = wanted.only {
            let opened = open(provider, wanted).map_err(|error| Error::Forced {
                provider,
                source: Box::new(error),
            })?;
            return Ok(Transports {
                ready: vec![opened],
                offers: at_interface(Offers::new().with(provider).only(provider), wanted),
            });
        }
        let mut ready = Vec::new();
        let mut offers = Offers::new();
        for provider in PREFERENCE {
            offers = match open(provider, wanted) {
                Ok(opened) => {
                    ready.push(opened);
                    offers.with(provider)
                }
                Err(error) => offers.without(provider, &error.to_string()),
            };
        }
        let offers = at_interface(offers, wanted);
        Ok(Transports { ready, offers })
    }

    /// Data for peers ([`Local`](crate::control::Local)).
    pub fn offers(&self) -> &Offers {
        &self.offers
    }

    /// The device of a transport.
    pub fn device(&self, provider: Provider) -> Option<&dyn Device> {
        let mut ready = self.ready.iter();
        let found = ready.find(|ready| ready.provider == provider);
        found.map(|ready| &*ready.device)
    }

    /// Those that there are.
    pub fn providers(&self) -> Vec<Provider> {
        self.ready.iter().map(|ready| ready.provider).collect()
    }

    /// The queue of a transport.
    pub fn queue(&mut self, provider: Provider) -> Option<&mut Queue> {
        let mut ready = self.ready.iter_mut();
        let found = ready.find(|ready| ready.provider == provider);
        found.map(|ready| &mut ready.queue)
    }

    /// Descriptors to block at after [`Queue::arm`] of a transport's queue.
    pub fn descriptors(&self, provider: Provider) -> Vec<BorrowedFd<'_>> {
        let mut ready = self.ready.iter();
        let found = ready.find(|ready| ready.provider == provider);
        found.map_or(Vec::new(), |ready| ready.queue.descriptors())
    }

    /// All queues, for [`dial`](crate::control::dial) and [`Caller::establish`](crate::control::Caller::establish).
    pub fn queues(&mut self) -> Vec<&mut Queue> {
        self.ready
            .iter_mut()
            .map(|ready| &mut ready.queue)
            .collect()
    }
}

fn at_interface(offers: Offers, wanted: &Wanted) -> Offers {
    match &wanted.ethernet.interface {
        Some(interface) => offers.at_interface(interface),
        None => offers,
    }
}

fn open(provider: Provider, wanted: &Wanted) -> Result<Ready, Error> {
    let device: Box<dyn Device> = match provider {
        Provider::Shm => Box::new(Shm::new()?),
        Provider::Verbs => Box::new(Verbs::open(&wanted.verbs)?),
        Provider::Ethernet => Box::new(Ethernet::shared(&wanted.ethernet)?),
        Provider::Tcp => Box::new(Tcp::new(wanted.tcp)),
        Provider::Simulated => {
            let what = "way to another process";
            return Err(Error::Unsupported { provider, what });
        }
    };
    let queue = Queue::open(&*device, wanted.queues)?;
    Ok(Ready {
        provider,
        device,
        queue,
    })
}
