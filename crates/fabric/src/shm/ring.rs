//! A ring: memory of the receiver, shared with one sender, through which one direction of an endpoint's messages goes.
//!
//! ```text
//!  line 0             stored by the sender: its count of credits and its questions for ours; whether it has closed;
//!                     whether it has joined
//!  line 1             stored by the receiver: whether it has closed
//!  lines 2..          headers, one line for each message of the window
//!                      0         8           16                                64
//!                      ┌─────────┬───────────┬─────────────────────────────────┐
//!                      │ header  │ immediate │ unused                          │
//!                      └─────────┴───────────┴─────────────────────────────────┘
//!  then               for each message of the window: room for data, an odd number of lines
//! ```
//! Message `n` has the slot `n % window`. Its header word, with `n + 1` as its tag, is stored last, with release: a
//! thread that loads it with acquire sees all of the message.
//!
//! **Only a header can look like one**, so nothing has to be cleared: headers have separate lines, where data is never
//! in the first word, and the old header has a tag that is less by `window`. (Tags wrap after 2^32 messages, which is
//! more than one window.) Memory begins as zeros, and 0 is not a tag that is awaited in the first round.
//!
//! **Nothing is overwritten before it was copied out**: message `n` may be sent once the receiver has reported more
//! than `n - window` returned buffers, and it takes messages out in order, each before its buffer can be returned.
//!
//! Data is odd numbers of lines apart, so that those of different messages are not all in the same set of a cache.
//!
//! Neither side trusts the other, which may store anything at any time: a header is loaded once and validated; lengths
//! and positions come from this side's limits; data is copied, and may be any mixture.

use std::sync::atomic::{Ordering, fence};

use pmem::{Kind, LINE, Line, Lines, Region};

use super::header::Header;
use crate::{Error, Failure, Source};

/// Lines and words of the area beside the messages.
const CREDITS: (usize, usize) = (0, 0);
const SENDER_CLOSED: (usize, usize) = (0, 1);
const SENDER_JOINED: (usize, usize) = (0, 2);
const RECEIVER_CLOSED: (usize, usize) = (1, 0);
/// The line of the first header, and the words of a header's line.
const HEADERS: usize = 2;
const HEADER: usize = 0;
const IMMEDIATE: usize = 1;

/// The sender gets the lines of headers so many messages before it stores to them.
const AHEAD: u32 = 4;
/// The largest window, and the longest message in bytes, that a peer may have.
const WINDOW_MAX: u32 = 1 << 16;
const MESSAGE_MAX: u32 = 1 << 24;

/// Layout of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Messages that it holds.
    pub window: u32,
    /// Bytes of the longest.
    pub message_bytes: u32,
}

impl RingLayout {
    /// Nothing if no ring can be like this.
    pub fn new(window: u32, message_bytes: u32) -> Option<RingLayout> {
        let possible = (1..=WINDOW_MAX).contains(&window) && message_bytes <= MESSAGE_MAX;
        possible.then_some(RingLayout {
            window,
            message_bytes,
        })
    }

    /// Lines before the data.
    fn head(self) -> usize {
        HEADERS + self.window as usize
    }

    /// The line of the header so many messages after one: fewer, if the window is smaller.
    #[inline]
    fn header_ahead(self, cursor: Cursor, ahead: u32) -> usize {
        let slot = cursor.slot + ahead.min(self.window);
        let slot = if slot >= self.window {
            slot - self.window
        } else {
            slot
        };
        HEADERS + slot as usize
    }

    fn stride(self) -> u64 {
        let lines = u64::from(self.message_bytes).div_ceil(LINE as u64);
        (lines | 1) * LINE as u64
    }

    fn bytes(self) -> u64 {
        self.data(self.window)
    }

    /// Where the data of a message is.
    fn data(self, slot: u32) -> u64 {
        (self.head() * LINE) as u64 + u64::from(slot) * self.stride()
    }
}

/// A place in a ring that goes around.
#[derive(Clone, Copy)]
struct Cursor {
    /// Messages that went through.
    count: u32,
    /// The slot of the next one. (`count % window` would jump where the count wraps.)
    slot: u32,
}

impl Cursor {
    const START: Cursor = Cursor { count: 0, slot: 0 };

    #[inline]
    fn tag(self) -> u32 {
        self.count.wrapping_add(1)
    }

    #[inline]
    fn next(self, window: u32) -> Cursor {
        let slot = self.slot + 1;
        Cursor {
            count: self.count.wrapping_add(1),
            slot: if slot == window { 0 } else { slot },
        }
    }
}

/// The receiver's side of a ring.
pub struct Incoming {
    head: Lines,
    cursor: Cursor,
    layout: RingLayout,
    /// Number of returned buffers that was reported to the sender.
    told: u32,
    memory: Region,
    /// The sender's last report of credits beside its messages.
    credits: u64,
}

/// A message that has come, not yet copied out.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Header of the message.
    pub header: Header,
    /// The 32 bits beside it.
    pub immediate: Option<u32>,
}

impl Incoming {
    /// A ring for a sender.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn new(layout: RingLayout) -> Result<Incoming, Error> {
        let memory = Region::memory(layout.bytes(), false)?;
        Ok(Incoming {
            head: lines(&memory, layout.head()),
            cursor: Cursor::START,
            layout,
            told: 0,
            memory,
            credits: 0,
        })
    }

    /// Returns the memory of the ring, to be shared with the sender.
    pub fn memory(&self) -> &Region {
        &self.memory
    }

    /// Returns the layout of the ring.
    pub fn layout(&self) -> RingLayout {
        self.layout
    }

    #[inline]
    fn line(&self) -> Line<'_> {
        self.head.line(HEADERS + self.cursor.slot as usize)
    }

    /// Whether a message, or what should be one, has come. One load.
    #[inline]
    pub fn has_come(&self) -> bool {
        Header::tag_of(self.line().load(HEADER)) == self.cursor.tag()
    }

    /// Returns the next message without removing it.
    ///
    /// # Errors
    /// [`Failure::Violation`] for an invalid message, or one for which the sender had no credit.
    #[inline]
    pub fn peek(&self) -> Result<Option<Arrived>, Failure> {
        // The one load; later stores change nothing.
        let line = self.line();
        let word = line.load(HEADER);
        if Header::tag_of(word) != self.cursor.tag() {
            return Ok(None);
        }
        let header = Header::of(word, self.layout.message_bytes).ok_or(Failure::Violation)?;
        if self.cursor.count.wrapping_sub(self.told) >= self.layout.window {
            return Err(Failure::Violation);
        }
        let immediate = match header.immediate {
            true => Some(line.load(IMMEDIATE) as u32),
            false => None,
        };
        Ok(Some(Arrived { header, immediate }))
    }

    /// Copies the message's data out, to `offset`. `arrived` is what [`Incoming::peek`] gave last.
    #[inline]
    pub fn copy_out(&self, arrived: &Arrived, into: &Region, offset: u64) {
        let (from, length) = (self.layout.data(self.cursor.slot), arrived.header.length);
        into.copy_from(offset, &self.memory, from, length as usize);
    }

    /// Fetches the headers of so many messages that will be taken next.
    #[inline]
    pub fn prefetch(&self, count: u32) {
        for ahead in 0..count {
            let line = self.layout.header_ahead(self.cursor, ahead);
            self.head.line(line).prefetch();
        }
    }

    /// The message has been copied out.
    #[inline]
    pub fn advance(&mut self) {
        self.cursor = self.cursor.next(self.layout.window);
    }

    /// Whether a quarter of its window was returned since the last report to the sender.
    #[inline]
    pub fn is_to_be_told(&self, returned: u32) -> bool {
        returned.wrapping_sub(self.told) >= (self.layout.window / 4).max(1)
    }

    /// The sender is being notified that it has so many buffers back in all.
    #[inline]
    pub fn tell(&mut self, returned: u32) {
        self.told = returned;
    }

    /// The sender's report of credits, if it is new, and whether it asks for this side's.
    pub fn credits(&mut self) -> Option<(u32, bool)> {
        let word = self.head.load(CREDITS.0, CREDITS.1);
        let before = std::mem::replace(&mut self.credits, word);
        (word != before).then_some((word as u32, word >> 32 != before >> 32))
    }

    /// The sender's total of returned buffers.
    #[inline]
    pub fn returned(&self) -> u32 {
        self.head.load(CREDITS.0, CREDITS.1) as u32
    }

    /// Whether [`Incoming::credits`] or [`Incoming::is_closed`] would report something.
    pub fn has_changed(&self) -> bool {
        self.head.load(CREDITS.0, CREDITS.1) != self.credits || self.is_closed()
    }

    /// Whether the sender has closed its side, and so has no memory of this side mapped any more.
    pub fn is_closed(&self) -> bool {
        is_closed(&self.head)
    }

    /// Lines by which [`has_nothing`] checks when this is gone.
    pub fn head(&self) -> Lines {
        self.head.clone()
    }

    /// Notifies a sender, which this side may never have known, that there is no receiver.
    pub fn close(&self) {
        self.head.store(RECEIVER_CLOSED.0, RECEIVER_CLOSED.1, 1);
    }
}

/// Whether the sender into the ring with this head has closed its side.
pub fn is_closed(head: &Lines) -> bool {
    head.load(SENDER_CLOSED.0, SENDER_CLOSED.1) != 0
}

/// Whether the sender into the ring with this header has no memory of this side mapped, nor ever will: it has closed
/// its side, or had not joined when this side was closed. For a sender of this process, since it is trusted.
pub fn has_nothing(head: &Lines) -> bool {
    let closed = head.load(RECEIVER_CLOSED.0, RECEIVER_CLOSED.1) != 0;
    // Pairs with the fence of `Outgoing::join`: at least one of the two sides sees the other's store.
    fence(Ordering::SeqCst);
    is_closed(head) || closed && head.load(SENDER_JOINED.0, SENDER_JOINED.1) == 0
}

/// The first lines of memory that is mapped, as rings and bells are.
pub fn lines(memory: &Region, count: usize) -> Lines {
    memory.lines(0, count).expect("memory that was just mapped")
}

/// The sender's side of a ring.
pub struct Outgoing {
    head: Lines,
    cursor: Cursor,
    layout: RingLayout,
    memory: Region,
    asked: u32,
}

impl Outgoing {
    /// Maps a receiver's ring.
    ///
    /// # Errors
    /// [`Error::Peer`], [`Error::Region`].
    pub fn attach(descriptor: std::os::fd::OwnedFd, layout: RingLayout) -> Result<Outgoing, Error> {
        let memory = attach(descriptor, layout.bytes(), "ring")?;
        Ok(Outgoing {
            head: lines(&memory, layout.head()),
            cursor: Cursor::START,
            layout,
            memory,
            asked: 0,
        })
    }

    /// Announces that this side is about to map memory of the receiver's, and returns whether it may: not if the
    /// receiver has closed.
    pub fn join(&self) -> bool {
        self.head.store(SENDER_JOINED.0, SENDER_JOINED.1, 1);
        fence(Ordering::SeqCst);
        !self.is_closed()
    }

    /// Number of messages sent; it wraps.
    #[inline]
    pub fn sent(&self) -> u32 {
        self.cursor.count
    }

    /// Number of messages it holds.
    #[inline]
    pub fn window(&self) -> u32 {
        self.layout.window
    }

    /// Stores a message, which the receiver can see from now on. (`from` is not copied: where it was just stored in narrower
    /// pieces, a wide load of it waits for all stores before, and so for lines to come over, as a fence does.)
    ///
    /// # Errors
    /// [`Failure::Violation`] if the receiver's ring is too small for messages of that length, though it reported
    /// otherwise.
    #[inline]
    pub fn send(&mut self, from: &Source<'_>, immediate: Option<u32>) -> Result<(), Failure> {
        let length = from.length();
        if length > u64::from(self.layout.message_bytes) {
            return Err(Failure::Violation);
        }
        let (slot, length) = (self.cursor.slot, length as u32);
        let line = self.head.line(HEADERS + slot as usize);
        store(from, &self.memory, self.layout.data(slot));
        if let Some(immediate) = immediate {
            line.store(IMMEDIATE, immediate.into());
        }
        let header = Header {
            tag: self.cursor.tag(),
            length,
            immediate: immediate.is_some(),
        };
        // Release: the stores above, and all writes of this thread to the peer's memory, are visible before.
        line.store(HEADER, header.word());
        // It is the receiver's until then, and to get it takes longer than to make a message.
        let ahead = self.layout.header_ahead(self.cursor, AHEAD);
        self.head.line(ahead).prefetch_to_store();
        self.cursor = self.cursor.next(self.layout.window);
        Ok(())
    }

    /// Reports to the receiver its total of returned buffers.
    pub fn credit(&mut self, returned: u32, ask: bool) {
        self.asked = self.asked.wrapping_add(ask.into());
        let word = u64::from(self.asked) << 32 | u64::from(returned);
        self.head.store(CREDITS.0, CREDITS.1, word);
    }

    /// Whether there is no receiver any more.
    pub fn is_closed(&self) -> bool {
        self.head.load(RECEIVER_CLOSED.0, RECEIVER_CLOSED.1) != 0
    }

    /// Nothing more will be sent, and no memory of the receiver is mapped here.
    pub fn close(&self) {
        self.head.store(SENDER_CLOSED.0, SENDER_CLOSED.1, 1);
    }
}

/// Copies a request's data to a place in a peer's memory.
#[inline]
pub fn store(from: &Source<'_>, to: &Region, mut offset: u64) {
    match *from {
        Source::Inline(bytes) => to.write(offset, bytes),
        Source::Pieces(pieces) => {
            for piece in pieces {
                let region = piece.registration.region();
                to.copy_from(offset, region, piece.offset, piece.length as usize);
                offset += u64::from(piece.length);
            }
        }
    }
}

/// Maps memory of a peer that it cannot take away while it is mapped: a file could shrink, and what goes through it would
/// have to be asked for again and again ([`Region::is_cut`]); or its file system could make loads last forever.
pub fn attach(
    descriptor: std::os::fd::OwnedFd,
    bytes: u64,
    what: &'static str,
) -> Result<Region, Error> {
    match Region::attach(descriptor, bytes, true) {
        Ok(memory) if memory.kind() == Kind::Memory => Ok(memory),
        Err(error @ (pmem::Error::Io { .. } | pmem::Error::Unsealed)) => Err(Error::Region(error)),
        _ => Err(Error::Peer { what }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(window: u32, message_bytes: u32) -> (Incoming, Outgoing) {
        let layout = RingLayout::new(window, message_bytes).unwrap();
        let incoming = Incoming::new(layout).unwrap();
        let descriptor = incoming.memory().share(true).unwrap();
        (incoming, Outgoing::attach(descriptor, layout).unwrap())
    }

    fn receive(incoming: &mut Incoming) -> Option<(Vec<u8>, Option<u32>)> {
        let arrived = incoming.peek().unwrap()?;
        let region = Region::memory(8192, false).unwrap();
        let length = arrived.header.length;
        let offset = [64, 33][length as usize % 2];
        incoming.copy_out(&arrived, &region, offset);
        incoming.advance();
        let mut bytes = vec![0; length as usize];
        region.read(offset, &mut bytes);
        Some((bytes, arrived.immediate))
    }

    #[test]
    fn messages_of_every_length_go_around() {
        let (mut incoming, mut outgoing) = pair(3, 300);
        for length in (0..=300).chain([49, 55, 300, 0]) {
            // Imitations of the next expected header, everywhere in the data.
            let fake = Header {
                tag: incoming.cursor.tag().wrapping_add(1),
                length: 5,
                immediate: true,
            };
            let bytes = fake.word().to_ne_bytes().repeat(38);
            let bytes = &bytes[..length];
            assert!(!incoming.has_come() && receive(&mut incoming).is_none());
            let immediate = (length % 2 == 0).then_some(length as u32);
            outgoing.send(&Source::Inline(bytes), immediate).unwrap();
            assert!(incoming.has_come());
            let received = receive(&mut incoming).unwrap();
            assert_eq!(received, (bytes.to_vec(), immediate));
            incoming.tell(incoming.cursor.count);
        }
    }

    #[test]
    fn counts_of_messages_wrap() {
        let (mut incoming, mut outgoing) = pair(3, 64);
        incoming.cursor.count = u32::MAX - 4;
        outgoing.cursor.count = u32::MAX - 4;
        incoming.tell(u32::MAX - 4);
        for number in 0..10u8 {
            for _ in 0..3 {
                outgoing.send(&Source::Inline(&[number; 60]), None).unwrap();
            }
            for _ in 0..3 {
                assert_eq!(receive(&mut incoming).unwrap().0, [number; 60]);
            }
            assert!(!incoming.has_come());
            incoming.tell(incoming.cursor.count);
        }
    }

    #[test]
    fn sending_without_credit_or_too_much_breaks_the_rules() {
        let (mut incoming, mut outgoing) = pair(2, 64);
        let long = outgoing.send(&Source::Inline(&[0; 65]), None);
        assert_eq!(long, Err(Failure::Violation));
        for _ in 0..2 {
            outgoing.send(&Source::Inline(b"in time"), None).unwrap();
            receive(&mut incoming).unwrap();
        }
        outgoing.send(&Source::Inline(b"too early"), None).unwrap();
        assert_eq!(incoming.peek().unwrap_err(), Failure::Violation);
        incoming.tell(1);
        assert_eq!(receive(&mut incoming).unwrap().0, b"too early");
    }

    #[test]
    fn credits_and_ends_are_told_beside_the_messages() {
        let (mut incoming, mut outgoing) = pair(2, 64);
        assert_eq!((incoming.credits(), incoming.has_changed()), (None, false));
        outgoing.credit(5, false);
        assert!(incoming.has_changed());
        assert_eq!(incoming.credits(), Some((5, false)));
        outgoing.credit(5, true);
        assert_eq!(incoming.credits(), Some((5, true)));
        outgoing.credit(6, false);
        assert_eq!(
            (incoming.credits(), incoming.credits()),
            (Some((6, false)), None)
        );
        outgoing.close();
        assert!(incoming.is_closed() && incoming.has_changed() && !outgoing.is_closed());
        incoming.close();
        assert!(outgoing.is_closed());
    }

    #[test]
    fn only_memory_that_stays_is_a_ring() {
        let layout = RingLayout::new(4, 64).unwrap();
        let short = Region::memory(layout.bytes() - 1, false).unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        for descriptor in [short.share(true).unwrap(), file.into()] {
            let outcome = Outgoing::attach(descriptor, layout);
            assert!(matches!(outcome, Err(Error::Peer { what: "ring" })));
        }
        assert!(RingLayout::new(0, 64).is_none() && RingLayout::new(WINDOW_MAX + 1, 64).is_none());
        assert!(RingLayout::new(1, MESSAGE_MAX + 1).is_none());
    }
}
