//! One side of an endpoint without a control connection: the lab runs pulls and announced messages over a simulated network by it.

use std::sync::Arc;

use bytes::Bytes;

pub use super::announced::LONGEST as ANNOUNCED_MAX;
use super::announced::{self, RequestWay, Slots};
use super::link::end_lent;
use super::pull::{CLASSES, LONGEST, Memory};
pub use super::pull::{PULL_MIN, StreamDefect};
use super::stream::Stream;
use fabric::buffers::Class;
use fabric::{
    Access, Device, Error, Event, Export, Parameters, Peer, Pool, Queue, QueueOptions,
    Registration, RemoteRegion, Role,
};
use pmem::Arena;

/// How [`Side::poll`] begins the reason if the transport has ended the link.
pub const LOST: &str = "the link has ended";
/// Number of the only connection.
const CONNECTION: u16 = 7;

/// One side of an endpoint, and its messages.
pub struct Side {
    device: Arc<dyn Device>,
    queue: Queue,
    /// The own arena, once it is lent. Declared before `stream`, as in a link.
    arena: Option<Registration>,
    stream: Stream,
    /// Credits of each side.
    window: u32,
    /// The peer's memory, which is used from when the peer's stream has announced it.
    exported: Vec<(Memory, RemoteRegion)>,
    /// Buffers into which fragments are read.
    reads: Pool,
}

impl Side {
    /// Returns a side that reads at most `reads` fragments at once and gives as many credits as its peer, and what that needs to join it.
    ///
    /// # Errors
    /// As [`Queue::open`].
    pub fn new(
        device: Arc<dyn Device>,
        reads: u32,
        window: u32,
    ) -> Result<(Side, Parameters), Error> {
        let options = QueueOptions {
            message_bytes: 16 << 10,
            window,
            ..QueueOptions::default()
        };
        let mut queue = Queue::open(&*device, options)?;
        let (endpoint, parameters) = queue.offer()?;
        let class = Class {
            bytes: LONGEST,
            count: reads,
        };
        let side = Side {
            reads: Pool::for_reads(&*device, &[class])?,
            stream: Stream::new(
                endpoint,
                PULL_MIN,
                Slots::new(CONNECTION, RequestWay::Message),
            ),
            device,
            arena: None,
            queue,
            window,
            exported: Vec::new(),
        };
        Ok((side, parameters))
    }

    /// Breaks a rule of pulls or slots.
    pub fn with_defect(mut self, defect: Option<StreamDefect>) -> Side {
        self.stream.pulls.broken = defect;
        self
    }

    /// Joins this side to its peer's.
    ///
    /// # Errors
    /// As [`Queue::accept`].
    pub fn join(&mut self, role: Role, parameters: Parameters) -> Result<(), Error> {
        let peer = Peer {
            parameters,
            address: None,
            process: None,
        };
        self.queue.accept(self.stream.endpoint, role, peer)
    }

    /// Makes the pool from which the peer pulls. Returns its export, to be given to [`Side::import`] of the peer.
    ///
    /// # Errors
    /// As [`Pool::new`] and [`Queue::export`].
    pub fn offer_pool(&mut self) -> Result<Export, Error> {
        let pool = Pool::new(&*self.device, &CLASSES, Access::READ)?;
        self.stream.pulls.offered(Some(&pool));
        self.queue.export(self.stream.endpoint, pool.registration())
    }

    /// Makes slots into which the peer writes short messages. Returns their export, to be given to [`Side::import_slots`] of the peer.
    ///
    /// # Errors
    /// As [`Queue::export`], and those of registrations.
    pub fn offer_slots(&mut self) -> Result<Export, Error> {
        let own = announced::make(&*self.device, self.window)?;
        let export = self.queue.export(self.stream.endpoint, &own)?;
        self.stream.slots.offered(Ok(own));
        Ok(export)
    }

    /// Takes the export of the peer's slots.
    ///
    /// # Errors
    /// As [`Queue::import`].
    pub fn import_slots(&mut self, export: Export) -> Result<(), Error> {
        let region = self.queue.import(self.stream.endpoint, export)?;
        let imported = self.stream.slots.imported(region, self.window);
        imported.map_err(|what| Error::Peer { what })
    }

    /// Takes the export of the peer's pool.
    ///
    /// # Errors
    /// As [`Queue::import`].
    pub fn import(&mut self, export: Export) -> Result<(), Error> {
        let region = self.queue.import(self.stream.endpoint, export)?;
        self.exported.push((Memory::Pool, region));
        Ok(())
    }

    /// Lends an arena to the peer. Returns its export, to be given to [`Side::import_arena`] of the peer.
    ///
    /// # Errors
    /// As [`Queue::export`], and those of registrations.
    pub fn lend(&mut self, arena: &Arena) -> Result<Export, Error> {
        let registration = self.device.register(arena.region(), Access::READ)?;
        let export = self.queue.export(self.stream.endpoint, &registration)?;
        self.stream.pulls.offered_arena(Some(arena));
        self.arena = Some(registration);
        Ok(export)
    }

    /// Takes the export of the peer's arena.
    ///
    /// # Errors
    /// As [`Queue::import`].
    pub fn import_arena(&mut self, export: Export) -> Result<(), Error> {
        let region = self.queue.import(self.stream.endpoint, export)?;
        self.exported.push((Memory::Arena, region));
        Ok(())
    }

    /// Sends a message with the next poll, or later.
    pub fn send(&mut self, pieces: [Bytes; 3]) {
        self.stream.keep(pieces.into(), 0);
    }

    /// Does what a messenger does in a poll. Returns the messages that are complete.
    ///
    /// # Errors
    /// Why the link would end; it begins with [`LOST`] if the transport has ended it.
    pub fn poll(&mut self) -> Result<Vec<Vec<u8>>, String> {
        let Side { queue, stream, .. } = self;
        let (mut events, mut whole) = (Vec::new(), Vec::new());
        if stream.pulls.has(StreamDefect::CopySlotLate) {
            whole = stream.take_arrived(0)?;
        }
        queue.poll(&mut events);
        for event in events {
            match event {
                Event::Message(message) => {
                    let taken = stream.take(queue, message);
                    whole.extend(taken.map_err(|reason| reason.to_string())?);
                }
                Event::Done(completion) => {
                    completion.outcome.map_err(|failure| lost(&failure))?;
                    whole.extend(stream.take_arrived(completion.id.0)?);
                }
                Event::Lost(_, failure) => return Err(lost(&failure)),
            }
        }
        if std::mem::take(&mut stream.pulls.is_announced) {
            for (memory, region) in self.exported.drain(..) {
                stream.pulls.imported(memory, region);
            }
        }
        if stream.has_unread() {
            while stream.post_read(queue, &self.reads)? {}
        }
        stream.catch_up(queue, None);
        queue.submit();
        Ok(whole)
    }

    /// Ends the link as a messenger does. Returns the queue: as over verbs, it executes reads of the peer until it is dropped.
    pub fn end(self) -> Queue {
        end_lent(Some(&*self.device), self.arena, self.stream);
        self.queue
    }

    /// Returns the number of messages that the peer has written into slots.
    pub fn announced(&self) -> u64 {
        self.stream.slots.received
    }

    /// Returns the number of fragments that this side has pulled out of the peer's pool and its arena.
    pub fn pulled(&self) -> [u64; 2] {
        self.stream.pulls.copied_in_all
    }
}

fn lost(failure: &fabric::Failure) -> String {
    format!("{LOST}: {failure}")
}
