//! Buffers that wait for messages: of endpoints, or of groups. Each takes the next one.

use std::collections::VecDeque;
use std::sync::Arc;

use ::verbs::{Receive, SharedReceiveQueue};

use super::link::{Tag, identity};
use super::{Common, Memory};
use crate::{EndpointId, Error, Piece, Registration, Supply};

pub struct Supplies {
    pub queue: Arc<SharedReceiveQueue>,
    groups: bool,
    /// By their numbers. A buffer's memory is kept for as long as the adapter may write there: until this goes.
    known: Vec<Option<Known>>,
    room: u32,
    waiting: VecDeque<u32>,
}

struct Known {
    registration: Registration,
    offset: u64,
    length: u32,
}

impl Supplies {
    /// The adapter holds so many at most; others wait here for their turn.
    pub fn new(common: &Common, groups: bool, depth: u32) -> Result<Supplies, Error> {
        let depth = common.adapter().limits().shared_depth.min(depth);
        Ok(Supplies {
            queue: SharedReceiveQueue::new(&common.domain, depth)?,
            groups,
            known: Vec::new(),
            room: depth,
            waiting: VecDeque::new(),
        })
    }

    /// Gives a buffer to the adapter.
    pub fn supply(&mut self, number: u32, piece: Piece<'_>) {
        let index = number as usize;
        if self.known.len() <= index {
            self.known.resize_with(index + 1, || None);
        }
        let known = Known {
            registration: piece.registration.clone(),
            offset: piece.offset,
            length: piece.length,
        };
        self.known[index] = Some(known);
        self.post(number);
    }

    /// The adapter has put something into it, or given it back.
    pub fn taken(&mut self) {
        self.room += 1;
        if let Some(number) = self.waiting.pop_front() {
            self.post(number);
        }
    }

    /// Gives a buffer to the adapter again.
    pub fn post(&mut self, number: u32) {
        let Some(Some(known)) = self.known.get(number as usize) else {
            return;
        };
        let Some(memory) = known.registration.held::<Memory>() else {
            return;
        };
        if self.room == 0 {
            return self.waiting.push_back(number);
        }
        let into = [memory.local.piece(known.offset, known.length)];
        let receive = Receive {
            id: identity(EndpointId(self.groups.into()), Tag::Buffer, number.into()),
            into: &into,
        };
        match self.queue.post(&[receive]) {
            Ok(()) => self.room -= 1,
            Err(_) => self.waiting.push_back(number),
        }
    }

    /// What is in a buffer.
    pub fn read(&self, number: u32, offset: u32, into: &mut [u8]) {
        if let Some(Some(known)) = self.known.get(number as usize) {
            let at = known.offset + u64::from(offset);
            known.registration.region().read(at, into);
        }
    }

    /// What the queue calls it.
    pub fn name(&self, number: u32) -> Supply {
        match self.groups {
            true => Supply::Group(number),
            false => Supply::Endpoint(number),
        }
    }
}
