//! A transport that only supports set-up, and records its calls.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pmem::Region;

use fabric::{
    Access, Capabilities, Copies, Device, EndpointId, Error, Export, Limits, Multicast, Order,
    Parameters, Peer, Piece, Placement, Proof, Proves, Provider, Queue, QueueOptions, Registration,
    Report, Request, Role, Supply, Table, Transport,
};

/// A fake transport of a process.
#[derive(Clone)]
pub struct Fake {
    provider: Provider,
    table: Arc<Table>,
    pub seen: Arc<Mutex<Seen>>,
}

/// Calls that were recorded.
#[derive(Default)]
pub struct Seen {
    pub open: usize,
    pub established: Vec<Established>,
    /// It fails to establish the next endpoint.
    pub fails: bool,
    pub attached: Vec<Region>,
}

/// Recorded data of a peer.
pub struct Established {
    pub role: Role,
    pub secret: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
    pub has_address: bool,
    pub process: Option<OwnedFd>,
}

impl Fake {
    pub fn new(provider: Provider) -> Fake {
        Fake {
            provider,
            table: Arc::default(),
            seen: Arc::default(),
        }
    }

    pub fn queue(&self) -> Queue {
        let options = QueueOptions {
            endpoints: 4,
            window: 1,
            message_bytes: 64,
            outstanding: 1,
            group_buffers: 0,
            ..QueueOptions::default()
        };
        Queue::open(self, options).unwrap()
    }

    pub fn open(&self) -> usize {
        self.seen.lock().unwrap().open
    }

    pub fn fail(&self) {
        self.seen.lock().unwrap().fails = true;
    }
}

impl Device for Fake {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            provider: self.provider,
            message_bytes: 64,
            inline_bytes: 0,
            transfer_bytes: 4096,
            pieces: 1,
            atomics: false,
            order: Order {
                reads: true,
                writes_before_messages: true,
                reads_after_writes: true,
            },
            multicast: Multicast::None,
            header_bytes: 0,
            credit_buffers: 0,
            pins_memory: false,
            revocation: Proves::Key,
            copies: Copies {
                message: 1,
                write: 1,
                read: 1,
            },
            completed_write: Placement::Visible,
            passive_target: true,
            immediate_reads: false,
            in_message_bytes: 64,
        }
    }

    fn register_part(
        &self,
        region: &Region,
        part: Range<u64>,
        access: Access,
    ) -> Result<Registration, Error> {
        Ok(self.table.insert(region, part, access).expect("room"))
    }

    fn revoke(&self, registration: &Registration) -> Option<Proof> {
        Some(self.table.remove(registration.key()))
    }

    fn open(&self) -> Result<Box<dyn Transport>, Error> {
        Ok(Box::new(Side {
            capabilities: self.capabilities(),
            fake: self.clone(),
        }))
    }
}

struct Side {
    capabilities: Capabilities,
    fake: Fake,
}

impl Side {
    fn is_shm(&self) -> bool {
        self.fake.provider == Provider::Shm
    }
}

impl Transport for Side {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prepare(&mut self, _: EndpointId, _: Limits) -> Result<Parameters, Error> {
        self.fake.seen.lock().unwrap().open += 1;
        let mut parameters = Parameters {
            bytes: b"secret".to_vec(),
            descriptors: Vec::new(),
        };
        if self.is_shm() {
            let region = Region::memory(4096, false)?;
            parameters.descriptors.push(region.share(true)?);
        }
        Ok(parameters)
    }

    fn establish(&mut self, _: EndpointId, role: Role, peer: Peer) -> Result<(), Error> {
        let mut seen = self.fake.seen.lock().unwrap();
        if std::mem::take(&mut seen.fails) {
            return Err(Error::Peer { what: "ring" });
        }
        seen.established.push(Established {
            role,
            secret: peer.parameters.bytes,
            descriptors: peer.parameters.descriptors,
            has_address: peer.address.is_some(),
            process: peer.process,
        });
        Ok(())
    }

    fn close(&mut self, _: EndpointId) {
        self.fake.seen.lock().unwrap().open -= 1;
    }

    fn export(&mut self, _: EndpointId, registration: &Registration) -> Result<Export, Error> {
        let memory = match self.is_shm() {
            true => Some(registration.region().share(true)?),
            false => None,
        };
        Ok(Export {
            descriptor: registration.descriptor(),
            memory,
        })
    }

    fn import(&mut self, _: EndpointId, export: Export) -> Result<u32, Error> {
        if self.is_shm() {
            let what = "memory";
            let memory = export.memory.ok_or(Error::Peer { what })?;
            let attached = Region::attach(memory, export.descriptor.length, true)?;
            self.fake.seen.lock().unwrap().attached.push(attached);
        }
        Ok(0)
    }

    fn supply(&mut self, _: Supply, _: Piece<'_>) {}
    fn post(&mut self, _: EndpointId, _: Request<'_>) {}
    fn credit(&mut self, _: EndpointId, _: u32, _: bool) {}
    fn submit(&mut self) {}
    fn poll(&mut self, _: &mut Vec<Report>) {}
    fn sleep(&mut self, _: Duration) {}
}
