//! Buffers that wait for messages: of endpoints, or of groups. Each takes the next one.

use std::collections::VecDeque;
use std::sync::Arc;

use ::verbs::{Receive, ReceiveList, SharedReceiveQueue};

use super::link::{BATCH, Tag, identity, parse_identity};
use super::{Common, Memory};
use crate::{EndpointId, Error, Piece, Registration, Supply};

/// So many buffers are handed over by one call, if there is time.
const MANY: usize = 8;

pub struct ReceiveBuffers {
    /// Buffers to be handed to the adapter.
    list: ReceiveList,
    groups: bool,
    /// Buffers by number. A buffer's memory is kept for as long as the adapter may write there: until this is dropped.
    known: Vec<Option<Known>>,
    room: u32,
    waiting: VecDeque<u32>,
}

struct Known {
    /// Keeps the memory registered while the adapter may write there.
    registration: Registration,
    /// The adapter's name for it.
    local: Arc<::verbs::Registration>,
    offset: u64,
    length: u32,
}

impl ReceiveBuffers {
    /// The adapter holds at most so many; others wait here.
    pub fn new(common: &Common, groups: bool, depth: u32) -> Result<ReceiveBuffers, Error> {
        let depth = common.adapter().limits().shared_depth.min(depth);
        let queue = SharedReceiveQueue::new(&common.domain, depth)?;
        Ok(ReceiveBuffers {
            list: ReceiveList::new(&queue, BATCH),
            groups,
            known: Vec::new(),
            room: depth,
            waiting: VecDeque::new(),
        })
    }

    /// Where the adapter finds them.
    pub fn queue(&self) -> &Arc<SharedReceiveQueue> {
        self.list.queue()
    }

    /// Takes a buffer, to be handed over.
    pub fn supply(&mut self, number: u32, piece: Piece<'_>) {
        let index = number as usize;
        if self.known.len() <= index {
            self.known.resize_with(index + 1, || None);
        }
        let Some(memory) = piece.registration.held::<Memory>() else {
            return;
        };
        let known = Known {
            registration: piece.registration.clone(),
            local: memory.local.clone(),
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

    /// Takes a buffer that is free again, to be handed over.
    pub fn post(&mut self, number: u32) {
        let Some(Some(known)) = self.known.get(number as usize) else {
            return;
        };
        if self.room == 0 {
            return self.waiting.push_back(number);
        }
        self.room -= 1;
        let into = [known.local.piece(known.offset, known.length)];
        self.list.push(&Receive {
            id: identity(EndpointId(self.groups.into()), Tag::Buffer, number.into()),
            into: &into,
        });
        if self.list.is_full() {
            self.post_list();
        }
    }

    /// Hands them to the adapter if they are many. Otherwise they can wait as long as no peer knows that they are free:
    /// see [`ReceiveBuffers::hand_over`].
    #[inline]
    pub fn hand_over_many(&mut self) {
        if self.list.length() >= MANY.min(self.known.len() / 4 + 1) {
            self.post_list();
        }
    }

    /// Hands all to the adapter, by one call: before peers are notified, and before this thread blocks. Buffers that it
    /// does not take wait.
    #[inline]
    pub fn hand_over(&mut self) {
        if !self.list.is_empty() {
            self.post_list();
        }
    }

    fn post_list(&mut self) {
        let (room, waiting) = (&mut self.room, &mut self.waiting);
        // Refused ones are reported one by one.
        let _ = self.list.post(|refused| {
            *room += 1;
            waiting.push_back(parse_identity(refused).2);
        });
    }

    /// Contents of a buffer.
    pub fn read(&self, number: u32, offset: u32, into: &mut [u8]) {
        if let Some(Some(known)) = self.known.get(number as usize) {
            let at = known.offset + u64::from(offset);
            known.registration.region().read(at, into);
        }
    }

    /// The queue's name of it.
    pub fn name(&self, number: u32) -> Supply {
        match self.groups {
            true => Supply::Group(number),
            false => Supply::Endpoint(number),
        }
    }
}
