//! The messages between this side and the peer of an endpoint: those that wait for the peer, and the one that comes.

use std::collections::VecDeque;

use super::Reason;
use super::announced::{self, Note, SLOT_BYTES, Slots};
use super::fragment::{Incoming, Outgoing, head};
use super::pull::{About, Arriving, LENT_MAX, Location, Memory, OFFERED, Pulls, StreamDefect};
use fabric::{EndpointId, Failure, Message, Pool, Queue, Refusal, Source, Work, WorkRequest};

/// Why a location ends a link.
const UNREADABLE: &str = "it describes memory that cannot be read";

/// Messages of one endpoint, both ways.
pub struct Stream {
    pub endpoint: EndpointId,
    incoming: Incoming,
    backlog: VecDeque<Waiting>,
    backlog_bytes: usize,
    /// Number of the last request of the endpoint, of messages and transfers.
    pub posted: u64,
    pub pulls: Pulls,
    pub slots: Slots,
}

struct Waiting {
    message: Outgoing,
    /// Bytes of it that were posted.
    at: usize,
}

/// Posted part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    All,
    /// Not all: the peer, or the transport, takes no more now.
    Part,
}

impl Stream {
    pub fn new(endpoint: EndpointId, pull_min: usize, slots: Slots) -> Stream {
        Stream {
            endpoint,
            incoming: Incoming::default(),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            posted: 0,
            pulls: Pulls::new(pull_min),
            slots,
        }
    }

    pub fn backlog_bytes(&self) -> usize {
        self.backlog_bytes
    }

    /// Keeps a message, of which `at` bytes were posted.
    pub fn keep(&mut self, message: Outgoing, at: usize) {
        // An empty message counts, too.
        self.backlog_bytes += message.length().max(1);
        self.backlog.push_back(Waiting { message, at });
    }

    /// Posts what waits; whether nothing waits any more, also to be read.
    pub fn catch_up(&mut self, queue: &mut Queue, pool: Option<&Pool>) -> bool {
        if !self.post_owed(queue) {
            return false;
        }
        while let Some(mut waiting) = self.backlog.pop_front() {
            let posted = self.post(queue, pool, &waiting.message, &mut waiting.at);
            if posted == Post::Part {
                self.backlog.push_front(waiting);
                return false;
            }
            self.backlog_bytes -= waiting.message.length().max(1);
        }
        !self.has_unread()
    }

    /// Takes a message of the transport; returns the message of the peer that it completes.
    pub fn take(&mut self, queue: &mut Queue, message: Message) -> Result<Option<Vec<u8>>, Reason> {
        match About::of(&message)? {
            None if self.pulls.arriving.is_empty()
                || self.pulls.has(StreamDefect::OvertakeRead) =>
            {
                Ok(self.incoming.take(&message)?)
            }
            None => {
                let waits = Arriving::InMessage(message);
                self.pulls.arriving.push_back(waits);
                Ok(None)
            }
            Some(About::Slots(note)) => self.take_announced(note, message),
            Some(About::Location(location)) if queue.capabilities().immediate_reads => {
                self.pull(queue, location)
            }
            Some(About::Location(_)) if self.pulls.unreported() >= LENT_MAX => {
                Err("it describes more fragments than it may".into())
            }
            Some(About::Location(location)) => {
                self.pulls.source(location.memory)?;
                self.pulls.arriving.push_back(Arriving::At(location));
                if self.pulls.has(StreamDefect::ReportBeforeRead) {
                    self.pulls.has_copied(location.memory);
                }
                Ok(None)
            }
            Some(about) => {
                self.pulls.receive(about)?;
                Ok(None)
            }
        }
    }

    /// Takes what the peer sends about slots; a message in a slot is copied at once, so that its credit can be returned.
    fn take_announced(&mut self, note: Note, message: Message) -> Result<Option<Vec<u8>>, Reason> {
        let Some(in_slot) = self.slots.note_received(note)? else {
            // If the peer has exported slots, they are to be imported.
            self.pulls.is_announced |= matches!(note, Note::Slots(_));
            return Ok(None);
        };
        let append = |into: &mut Vec<u8>| {
            in_slot.append_to(into);
            Ok(())
        };
        if self.pulls.has(StreamDefect::CopySlotLate) {
            let left = Arriving::LeftInSlot(in_slot.offset, in_slot.length);
            self.pulls.arriving.push_back(left);
            return Ok(None);
        }
        if self.pulls.arriving.is_empty() || self.pulls.has(StreamDefect::OvertakeRead) {
            return Ok(self.incoming.add(0, in_slot.length, append)?);
        }
        let mut bytes = Vec::with_capacity(in_slot.length);
        in_slot.append_to(&mut bytes);
        self.pulls.arriving.push_back(Arriving::FromSlot {
            bytes,
            _announcement: message,
        });
        Ok(None)
    }

    /// Copies a fragment out of the peer's memory, at once.
    fn pull(&mut self, queue: &mut Queue, location: Location) -> Result<Option<Vec<u8>>, Reason> {
        let Location {
            memory,
            head,
            length,
            offset,
        } = location;
        let from = self.pulls.source(memory)?.at(offset);
        let endpoint = self.endpoint;
        let mut is_gone = false;
        let whole = self.incoming.add(head, length as usize, |into| {
            let loaded = queue.load(endpoint, (from, length), into);
            is_gone = matches!(loaded, Err(Refusal::NoEndpoint));
            loaded.map_err(|_| UNREADABLE)
        });
        if is_gone {
            return Err(Failure::MemoryGone.into());
        }
        let whole = whole?;
        self.pulls.has_copied(memory);
        Ok(whole)
    }

    /// Begins to read one fragment; whether there was one, and room for it.
    pub fn post_read(&mut self, queue: &mut Queue, pool: &Pool) -> Result<bool, &'static str> {
        let mut arriving = self.pulls.arriving.iter().enumerate();
        let next = arriving.find_map(|(index, it)| match it {
            Arriving::At(location) => Some((index, *location)),
            _ => None,
        });
        let Some((index, location)) = next else {
            return Ok(false);
        };
        let from = self.pulls.source(location.memory)?.at(location.offset);
        let Some(buffer) = pool.allocate(location.length) else {
            return Ok(false);
        };
        self.posted += 1;
        let number = self.posted;
        let into = &[buffer.piece(0, location.length)];
        let request = WorkRequest::new(number, Work::Read { into, from });
        match queue.post(self.endpoint, &request.keeping(&buffer)) {
            Ok(()) => {
                self.pulls.arriving[index] = Arriving::Read(number, location, buffer);
                Ok(true)
            }
            Err(Refusal::Invalid(_)) => Err(UNREADABLE),
            Err(_) => Ok(false),
        }
    }

    /// Whether locations wait for room.
    pub fn has_unread(&self) -> bool {
        let mut arriving = self.pulls.arriving.iter();
        arriving.any(|it| matches!(it, Arriving::At(_)))
    }

    /// Takes fragments up to one that is being read; `ended` is the number of the read that has. Returns the messages that they
    /// complete.
    pub fn take_arrived(&mut self, ended: u64) -> Result<Vec<Vec<u8>>, &'static str> {
        let mut whole = Vec::new();
        loop {
            let taken = match self.pulls.arriving.pop_front() {
                Some(Arriving::InMessage(message)) => self.incoming.take(&message)?,
                Some(Arriving::FromSlot { bytes, .. }) => {
                    self.incoming.add(0, bytes.len(), |into| {
                        into.extend_from_slice(&bytes);
                        Ok(())
                    })?
                }
                Some(Arriving::LeftInSlot(offset, length)) => {
                    let in_slot = self.slots.at(offset, length);
                    let in_slot = in_slot.ok_or("there are no slots")?;
                    self.incoming.add(0, length, |into| {
                        in_slot.append_to(into);
                        Ok(())
                    })?
                }
                Some(Arriving::Read(number, location, buffer))
                    if number <= ended || self.pulls.has(StreamDefect::TakeBeforeRead) =>
                {
                    if !self.pulls.has(StreamDefect::ReportBeforeRead) {
                        self.pulls.has_copied(location.memory);
                    }
                    let length = location.length;
                    self.incoming.add(location.head, length as usize, |into| {
                        buffer.append_to(length, into);
                        Ok(())
                    })?
                }
                Some(other) => {
                    self.pulls.arriving.push_front(other);
                    return Ok(whole);
                }
                None => return Ok(whole),
            };
            whole.extend(taken);
        }
    }

    /// Posts messages about slots and pulls that are owed to the peer; whether there was room for them.
    pub fn post_owed(&mut self, queue: &mut Queue) -> bool {
        if let Some(note) = self.slots.owed() {
            let head = OFFERED | note.encode();
            let posted = self.post_piece(queue, Source::Inline(&[]), head, None);
            if posted.is_err() {
                return false;
            }
            self.slots.note_sent();
        }
        while let Some(head) = self.pulls.owed() {
            if self
                .post_piece(queue, Source::Inline(&[]), head, None)
                .is_err()
            {
                return false;
            }
            self.pulls.sent_owed();
        }
        true
    }

    /// Posts a fragment's location, if it is to be pulled. Returns its length; `None`: it is to be sent in a message.
    fn post_pulled(
        &mut self,
        queue: &mut Queue,
        message: &Outgoing,
        at: usize,
    ) -> Option<Result<usize, Refusal>> {
        let (piece, begin) = message.at(at);
        let rest = &piece[begin..];
        let locate = |memory, length: usize, offset| Location {
            memory,
            head: head(at, length, message.length()),
            length: length as u32,
            offset,
        };
        if let Some((offset, length)) = self.pulls.in_arena(rest) {
            let posted = self.post_location(queue, locate(Memory::Arena, length, offset));
            if posted.is_ok() {
                self.pulls.sent_in_arena(piece.slice(begin..begin + length));
            }
            return Some(posted.map(|()| length));
        }
        let (buffer, length) = self.pulls.fill(rest)?;
        let offset = buffer.describe(length as u32).offset;
        let posted = self.post_location(queue, locate(Memory::Pool, length, offset));
        self.pulls.sent(buffer, posted.is_ok());
        Some(posted.map(|()| length))
    }

    fn post_location(&mut self, queue: &mut Queue, location: Location) -> Result<(), Refusal> {
        let bytes = location.encode();
        self.post_piece(queue, Source::Inline(&bytes), location.immediate(), None)
    }

    /// Posts a whole message as a write to a slot of the peer. `None`: it is to be sent as a message.
    fn post_announced(
        &mut self,
        queue: &mut Queue,
        pool: Option<&Pool>,
        bytes: &[u8],
    ) -> Option<Result<(), Refusal>> {
        let unused = u64::from(self.pulls.has(StreamDefect::ReuseSlot));
        let (to, note) = self.slots.next(bytes.len(), unused)?;
        let mut copy = [0; SLOT_BYTES];
        let length = announced::fill(&mut copy, bytes);
        let write = |from| Work::Write {
            from,
            to,
            immediate: Some(OFFERED | note.encode()),
        };
        let posted = match length <= queue.capabilities().inline_bytes as usize {
            true => self.post_counted(queue, write(Source::Inline(&copy[..length])), None),
            false => {
                let buffer = pool?.allocate(length as u32)?;
                buffer.write(0, &copy[..length]);
                let pieces = [buffer.piece(0, length as u32)];
                self.post_counted(queue, write(Source::Pieces(&pieces)), Some(&buffer))
            }
        };
        if let Err(Refusal::Invalid(_)) = posted {
            self.slots.give_up("the peer's slots cannot be written");
            return None;
        }
        Some(posted)
    }

    /// Posts a message from `at` on, and moves `at`.
    pub fn post(
        &mut self,
        queue: &mut Queue,
        pool: Option<&Pool>,
        message: &Outgoing,
        at: &mut usize,
    ) -> Post {
        let endpoint = self.endpoint;
        let Some((longest, inline)) = queue.message_bytes(endpoint) else {
            // It is lost, which the next poll reports.
            return Post::Part;
        };
        if !self.post_owed(queue) {
            return Post::Part;
        }
        let (first, _) = message.at(0);
        if *at == 0
            && first.len() == message.length()
            && let Some(posted) = self.post_announced(queue, pool, first)
        {
            return posted.map_or(Post::Part, |()| Post::All);
        }
        loop {
            match self.post_pulled(queue, message, *at) {
                None => {}
                Some(Err(_)) => return Post::Part,
                Some(Ok(length)) => {
                    *at += length;
                    if *at == message.length() {
                        return Post::All;
                    }
                    continue;
                }
            }
            let (piece, begin) = message.at(*at);
            let length = (piece.len() - begin).min(longest as usize);
            let piece = &piece[begin..begin + length];
            let head = head(*at, length, message.length());
            let posted = match (length <= inline as usize, pool) {
                (true, _) => self.post_piece(queue, Source::Inline(piece), head, None),
                (false, Some(pool)) => {
                    let Some(buffer) = pool.allocate(length as u32) else {
                        return Post::Part;
                    };
                    buffer.write(0, piece);
                    let pieces = [buffer.piece(0, length as u32)];
                    self.post_piece(queue, Source::Pieces(&pieces), head, Some(&buffer))
                }
                (false, None) => Err(Refusal::Invalid("no buffer is so large")),
            };
            if posted.is_err() {
                return Post::Part;
            }
            *at += length;
            if *at == message.length() {
                return Post::All;
            }
        }
    }

    fn post_piece(
        &mut self,
        queue: &mut Queue,
        from: Source<'_>,
        head: u32,
        keep: Option<&fabric::Buffer>,
    ) -> Result<(), Refusal> {
        let immediate = Some(head);
        self.post_counted(queue, Work::Send { from, immediate }, keep)
    }

    /// Posts work that takes a credit.
    fn post_counted(
        &mut self,
        queue: &mut Queue,
        work: Work<'_>,
        keep: Option<&fabric::Buffer>,
    ) -> Result<(), Refusal> {
        self.posted += 1;
        let request = WorkRequest::new(self.posted, work);
        match keep {
            // Its end is to be known soon: then the buffer is free again.
            Some(buffer) => queue.post(self.endpoint, &request.keeping(buffer)),
            None => queue.post(self.endpoint, &request.quiet()),
        }?;
        self.slots.count_sent();
        Ok(())
    }
}
