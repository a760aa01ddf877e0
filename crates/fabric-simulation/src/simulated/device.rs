//! A node of the network, and its transports.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pmem::Region;

use super::world::{Asked, Flight, SideId, World};
use fabric::{
    Access, Capabilities, Copies, Device, EndpointId, Error, Export, GroupAddress, GroupId, Limits,
    Multicast, Order, Parameters, Peer, Piece, Placement, Proof, Proves, Provider, Registration,
    Report, Request, Role, Source, Supply, Table, Transport, Work,
};

/// Simulated time of a poll.
const POLL_NS: u64 = 2_000;

pub struct SimulatedDevice {
    world: Arc<Mutex<World>>,
    table: Arc<Table>,
    node: usize,
}

impl SimulatedDevice {
    pub fn new(world: Arc<Mutex<World>>) -> SimulatedDevice {
        let table = Arc::new(Table::default());
        let node = world.lock().add_node(table.clone());
        SimulatedDevice { world, table, node }
    }
}

fn capabilities() -> Capabilities {
    Capabilities {
        provider: Provider::Simulated,
        message_bytes: 1 << 16,
        inline_bytes: 1 << 16,
        transfer_bytes: 1 << 30,
        pieces: 16,
        atomics: true,
        order: Order {
            reads: true,
            writes_before_messages: true,
            reads_after_writes: true,
        },
        multicast: Multicast::Lossy {
            bytes: 8192,
            may_be_unchecked: false,
        },
        header_bytes: 0,
        credit_buffers: 0,
        pins_memory: false,
        revocation: Proves::Key,
        copies: Copies {
            message: 2,
            write: 2,
            read: 2,
        },
        completed_write: Placement::Visible,
        passive_target: true,
        immediate_reads: false,
        in_message_bytes: 4096,
    }
}

impl Device for SimulatedDevice {
    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn register_part(
        &self,
        region: &Region,
        part: Range<u64>,
        access: Access,
    ) -> Result<Registration, Error> {
        self.table
            .insert(region, part, access)
            .ok_or_else(|| Error::Memory {
                provider: Provider::Simulated,
                memory: format!("{region:?}"),
                reason: "65536 regions are registered; withdraw some",
            })
    }

    fn revoke(&self, registration: &Registration) -> Option<Proof> {
        Some(self.table.remove(registration.key()))
    }

    fn open(&self) -> Result<Box<dyn Transport>, Error> {
        let queue = self.world.lock().add_queue(self.node);
        Ok(Box::new(SimulatedTransport {
            world: self.world.clone(),
            capabilities: capabilities(),
            queue,
            sides: Vec::new(),
        }))
    }
}

struct SimulatedTransport {
    world: Arc<Mutex<World>>,
    capabilities: Capabilities,
    queue: usize,
    sides: Vec<(EndpointId, SideId)>,
}

impl SimulatedTransport {
    fn side(&self, endpoint: EndpointId) -> Option<SideId> {
        let found = self.sides.iter().find(|(id, _)| *id == endpoint);
        found.map(|&(_, side)| side)
    }
}

impl Transport for SimulatedTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prepare(&mut self, endpoint: EndpointId, _limits: Limits) -> Result<Parameters, Error> {
        let side = self.world.lock().add_side(self.queue, endpoint);
        self.sides.push((endpoint, side));
        Ok(Parameters {
            bytes: side.to_le_bytes().to_vec(),
            descriptors: Vec::new(),
        })
    }

    fn establish(&mut self, endpoint: EndpointId, _role: Role, peer: Peer) -> Result<(), Error> {
        let wrong = Error::Peer { what: "number" };
        let Ok(bytes) = <[u8; 8]>::try_from(peer.parameters.bytes) else {
            return Err(wrong);
        };
        let side = self.side(endpoint).ok_or(Error::NoEndpoint)?;
        match self.world.lock().join(side, u64::from_le_bytes(bytes)) {
            true => Ok(()),
            false => Err(wrong),
        }
    }

    fn close(&mut self, endpoint: EndpointId) {
        if let Some(side) = self.side(endpoint) {
            self.world.lock().remove_side(side);
            self.sides.retain(|(id, _)| *id != endpoint);
        }
    }

    fn import(&mut self, endpoint: EndpointId, export: Export) -> Result<u32, Error> {
        let id = self.side(endpoint).ok_or(Error::NoEndpoint)?;
        let mut world = self.world.lock();
        let side = world.side(id).ok_or(Error::NoEndpoint)?;
        side.imports.push(export.descriptor);
        Ok(side.imports.len() as u32 - 1)
    }

    fn supply(&mut self, buffer: Supply, piece: Piece<'_>) {
        self.world.lock().supply(self.queue, buffer, piece);
    }

    fn post(&mut self, endpoint: EndpointId, request: Request<'_>) {
        let Some(id) = self.side(endpoint) else {
            return;
        };
        let mut world = self.world.lock();
        let Some(side) = world.side(id) else { return };
        let memory = request.remote().map(|(number, offset, ..)| {
            let descriptor = &side.imports[number as usize];
            (descriptor.key, offset)
        });
        let asked = match *request.operation {
            Work::Read { into, .. } => {
                let target = into
                    .iter()
                    .map(|piece| (piece.registration.clone(), piece.offset, piece.length));
                side.targets.push_back((request.sequence, target.collect()));
                Asked::Read {
                    length: Source::Pieces(into).length(),
                }
            }
            Work::Write {
                from, immediate, ..
            } => Asked::Write {
                data: gather(from),
                immediate,
            },
            Work::CompareAndSwap { expected, new, .. } => Asked::CompareAndSwap { expected, new },
            Work::FetchAndAdd { addend, .. } => Asked::FetchAndAdd { addend },
            Work::Send { from, immediate } => Asked::Send {
                data: gather(from),
                immediate,
                returned: request.returned,
            },
        };
        let flight = Flight {
            sequence: request.sequence,
            signaled: request.signaled,
            memory,
            asked,
        };
        world.send(id, flight);
    }

    fn credit(&mut self, endpoint: EndpointId, returned: u32, ask: bool) {
        let Some(id) = self.side(endpoint) else {
            return;
        };
        let flight = Flight {
            sequence: 0,
            signaled: false,
            memory: None,
            asked: Asked::Credit { returned, ask },
        };
        self.world.lock().send(id, flight);
    }

    fn submit(&mut self) {}

    fn poll(&mut self, reports: &mut Vec<Report>) {
        let mut world = self.world.lock();
        world.advance(POLL_NS);
        world.take_reports(self.queue, reports);
    }

    fn sleep(&mut self, timeout: Duration) {
        let mut world = self.world.lock();
        if !world.has_reports(self.queue) {
            world.advance(timeout.as_nanos() as u64);
        }
    }

    /// Time passes; there is nothing to block at.
    fn arm(&mut self, timeout: Duration) -> Duration {
        self.sleep(timeout);
        Duration::ZERO
    }

    fn join(&mut self, group: GroupId, address: GroupAddress) -> Result<u32, Error> {
        let (at, listens) = (address.address.to_bits(), address.listens);
        let mut world = self.world.lock();
        world.join_group(self.queue, group, at, listens);
        Ok(u32::MAX)
    }

    fn leave(&mut self, group: GroupId) {
        self.world.lock().leave_group(self.queue, group);
    }

    fn send_to_group(&mut self, group: GroupId, from: Source<'_>, immediate: u32) {
        let data = gather(from);
        self.world
            .lock()
            .send_to_group(self.queue, group, &data, immediate);
    }
}

impl Drop for SimulatedTransport {
    fn drop(&mut self) {
        self.world.lock().remove_queue(self.queue);
    }
}

fn gather(source: Source<'_>) -> Vec<u8> {
    match source {
        Source::Inline(bytes) => bytes.to_vec(),
        Source::Pieces(pieces) => {
            let mut data = vec![0; Source::Pieces(pieces).length() as usize];
            let mut at = 0;
            for piece in pieces {
                let end = at + piece.length as usize;
                piece
                    .registration
                    .region()
                    .read(piece.offset, &mut data[at..end]);
                at = end;
            }
            data
        }
    }
}
