//! Outgoing data of one side of an endpoint: frames, kept until the other side has executed them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use pmem::Region;
use pmem::socket::{self, Source};
use smallvec::SmallVec;

use super::frame::{self, BAD, Frame, GOOD, HEADS_BYTES, Kind, TRAILER_BYTES, Wrong};
use crate::registration::TableGuard;
use crate::{Access, Failure, Key, Piece, Registration, Table};

/// Frames with headers that are sent with one system call, at most.
const BATCH: usize = 32;
/// Pieces of memory that go out with one system call, at most.
const SOURCES: usize = 64;
/// Greatest number of bytes of one system call. During it the kernel copies, but often sends nothing: acknowledgements
/// of the other side are processed when the call ends. With a much smaller value there are more calls than pieces.
const CALL_BYTES: usize = 512 << 10;
/// Bytes that are handed to the kernel before others have their turn.
const TURN_BYTES: u64 = 4 << 20;

static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// A range of registered memory that is kept registered.
#[derive(Clone, Debug)]
pub struct Part {
    registration: Registration,
    offset: u64,
    length: u32,
}

pub type Parts = SmallVec<[Part; 2]>;

/// Keeps the memory that a request names.
pub fn parts(pieces: &[Piece<'_>]) -> Parts {
    let part = |piece: &Piece<'_>| Part {
        registration: piece.registration.clone(),
        offset: piece.offset,
        length: piece.length,
    };
    pieces.iter().map(part).collect()
}

/// The rest of the parts when `skip` bytes are done.
pub fn ranges(parts: &[Part], mut skip: u64) -> impl Iterator<Item = (&Region, u64, usize)> {
    parts.iter().filter_map(move |part| {
        let length = u64::from(part.length);
        let done = skip.min(length);
        skip -= done;
        let rest = (length - done) as usize;
        (rest > 0).then(|| (part.registration.region(), part.offset + done, rest))
    })
}

/// Where a frame's data is.
#[derive(Debug)]
pub enum Data {
    None,
    /// Among [`Output::values`], from this byte on.
    Value(u64),
    Parts(Parts),
    /// Memory that the peer asked for; or not any more.
    Memory {
        key: Key,
        offset: u64,
        withdrawn: bool,
    },
}

#[derive(Debug)]
struct Outgoing {
    /// Its number and acknowledgement are filled in when it goes.
    frame: Frame,
    data: Data,
}

impl Outgoing {
    /// Bytes behind the heads.
    fn data_bytes(&self) -> u64 {
        let trailer = match self.data {
            Data::Memory { .. } => TRAILER_BYTES as u64,
            _ => 0,
        };
        u64::from(self.frame.length) + trailer
    }

    fn is_answer(&self) -> bool {
        matches!(self.frame.kind, Kind::ReadAnswer | Kind::AtomicAnswer)
    }
}

/// When to acknowledge received frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// With the next frame, whenever that is.
    No,
    /// At the next poll of the queue: the answer to a message may include it.
    Soon,
    Now,
}

/// Result of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    All,
    /// The connection takes no more for now.
    Full,
    /// The socket takes more, but others have their turn.
    More,
}

/// The frames of one direction.
///
/// ```text
///   first                first + next
///     │ sent, kept          │ being sent │ to be sent
/// ```
#[derive(Debug)]
pub struct Output {
    /// The number of `frames[0]`: so many were executed by the other side.
    first: u64,
    frames: VecDeque<Outgoing>,
    /// Of the frames, the first one that was not completely sent.
    next: usize,
    /// Its heads have gone, or are in `carry`; and so much of its data has gone.
    begun: bool,
    done: u64,
    /// The rest of heads that went in part: it has to go as it was begun.
    carry: SmallVec<[u8; HEADS_BYTES]>,
    /// Inline data of all frames; the first byte's number.
    values: VecDeque<u8>,
    values_first: u64,
    answers: usize,
    credit: Option<(u32, bool)>,
    due: Due,
    /// The last frame was added.
    closing: bool,
    /// Kept from one sending to the next.
    batch: Batch,
}

/// Heads of the frames that go out together.
#[derive(Debug, Default)]
struct Batch {
    heads: Vec<Heads>,
    /// The first of them is a credit or an acknowledgement.
    control: bool,
}

#[derive(Debug)]
struct Heads {
    bytes: [u8; HEADS_BYTES],
    length: usize,
}

impl Heads {
    fn of(frame: &Frame) -> Heads {
        let mut bytes = [0; HEADS_BYTES];
        let length = frame.write(&mut bytes);
        Heads { bytes, length }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Batch {
    fn add(&mut self, frame: &Frame) {
        self.heads.push(Heads::of(frame));
    }
}

impl Output {
    pub fn new() -> Output {
        Output {
            first: 0,
            frames: VecDeque::new(),
            next: 0,
            begun: false,
            done: 0,
            carry: SmallVec::new(),
            values: VecDeque::new(),
            values_first: 0,
            answers: 0,
            credit: None,
            due: Due::No,
            closing: false,
            batch: Batch::default(),
        }
    }

    /// Adds a frame, and returns its number.
    pub fn push(&mut self, frame: Frame, data: Data) -> u64 {
        let number = self.first + self.frames.len() as u64;
        if !self.closing {
            let outgoing = Outgoing { frame, data };
            self.answers += usize::from(outgoing.is_answer());
            self.frames.push_back(outgoing);
        }
        number
    }

    /// Copies inline data, and returns its position.
    pub fn value(&mut self, bytes: &[u8]) -> Data {
        let start = self.values_first + self.values.len() as u64;
        self.values.extend(bytes);
        Data::Value(start)
    }

    /// Answers that are kept.
    pub fn answers(&self) -> usize {
        self.answers
    }

    pub fn credit(&mut self, returned: u32, ask: bool) {
        let asked = self.credit.is_some_and(|(_, ask)| ask);
        self.credit = Some((returned, ask || asked));
    }

    pub fn acknowledge(&mut self, due: Due) {
        self.due = self.due.max(due);
    }

    pub fn due(&self) -> Due {
        self.due
    }

    /// Refuses the frame with this number. Nothing more is sent after that.
    pub fn refuse(&mut self, number: u64, failure: Failure) {
        self.push(refusal(number, failure), Data::None);
        self.closing = true;
    }

    /// The endpoint is closed, and callers may reuse their memory: its data is not sent any more, nor anything behind
    /// it. The refusal stays, to be sent on another connection.
    pub fn keep_refusal(&mut self) {
        (self.begun, self.done) = (false, 0);
        self.carry.clear();
        let is_theirs = |outgoing: &Outgoing| matches!(outgoing.data, Data::Parts(_));
        if let Some(from) = self.frames.iter().position(is_theirs)
            && let Some(last) = self.frames.pop_back()
        {
            self.frames.truncate(from);
            let last = match last.frame.kind {
                // Without those before it, it would have another number.
                Kind::ReadAnswer => refusal(last.frame.first, Failure::Access),
                _ => last.frame,
            };
            self.frames.push_back(Outgoing {
                frame: last,
                data: Data::None,
            });
            let answers = self.frames.iter().filter(|outgoing| outgoing.is_answer());
            self.answers = answers.count();
        }
        self.next = self.frames.len();
    }

    /// Everything has gone, the refusal too.
    pub fn is_closed(&self) -> bool {
        self.closing && self.next == self.frames.len() && self.carry.is_empty()
    }

    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Number of frames that the other side has executed.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The other side has executed so many frames in all.
    ///
    /// # Errors
    /// [`Wrong`] if it cannot have.
    pub fn acknowledged(&mut self, count: u64) -> Result<(), Wrong> {
        let news = count.checked_sub(self.first).ok_or(Wrong)?;
        if news > self.next as u64 {
            return Err(Wrong);
        }
        for _ in 0..news {
            let Some(outgoing) = self.frames.pop_front() else {
                return Err(Wrong);
            };
            self.answers -= usize::from(outgoing.is_answer());
            if let Data::Value(_) = outgoing.data {
                self.values.drain(..outgoing.frame.length as usize);
                self.values_first += u64::from(outgoing.frame.length);
            }
            self.next -= 1;
            self.first += 1;
        }
        Ok(())
    }

    /// Begins on another connection; its other side has executed so many frames.
    ///
    /// # Errors
    /// [`Wrong`] if it cannot have.
    pub fn restart(&mut self, count: u64) -> Result<(), Wrong> {
        // Frames before a refusal may be missing; the refusal is sent in any case.
        let count = match self.closing {
            true => count.min(self.first + self.frames.len().saturating_sub(1) as u64),
            false => count,
        };
        self.begun = false;
        self.done = 0;
        self.carry.clear();
        self.next = self.frames.len();
        self.acknowledged(count)?;
        self.next = 0;
        Ok(())
    }

    /// Whether there is nothing to send, but acknowledgements that can wait.
    pub fn is_idle(&self) -> bool {
        self.next == self.frames.len()
            && self.carry.is_empty()
            && self.credit.is_none()
            && self.due < Due::Now
    }

    /// Sends as much as the connection takes. `expected`: number of executed frames of the other side.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    pub fn transmit(
        &mut self,
        connection: BorrowedFd<'_>,
        table: &Table,
        expected: u64,
    ) -> io::Result<Sent> {
        let mut turn = 0;
        while !self.is_idle() {
            // No key is withdrawn between its check and the kernel's copy.
            let held = table.hold();
            let batch = self.batch(&held, expected);
            let mut sources = SmallVec::new();
            self.gather(&batch, &held, &mut sources);
            shorten(&mut sources, CALL_BYTES);
            let offered: u64 = sources.iter().map(length).sum();
            let taken = match socket::send(connection, &sources) {
                Ok(taken) => taken as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Sent::Full),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error),
            };
            drop(sources);
            drop(held);
            self.advance(taken, &batch);
            self.batch = batch;
            if taken < offered {
                return Ok(Sent::Full);
            }
            turn += taken;
            if turn >= TURN_BYTES && !self.is_idle() {
                return Ok(Sent::More);
            }
        }
        Ok(Sent::All)
    }

    /// The heads of what may go next.
    fn batch(&mut self, held: &TableGuard<'_>, expected: u64) -> Batch {
        let mut batch = std::mem::take(&mut self.batch);
        batch.heads.clear();
        batch.control = false;
        if self.begun {
            self.check(self.next, held);
        }
        let start = self.next + usize::from(self.begun);
        let control = match self.credit {
            Some((returned, ask)) => Some(Frame {
                returned,
                ask,
                ..Frame::new(Kind::Credit)
            }),
            None if start == self.frames.len() && self.due > Due::No => {
                Some(Frame::new(Kind::Acknowledgement))
            }
            None => None,
        };
        // Nothing may follow a refusal.
        if let Some(control) = control.filter(|_| !self.closing) {
            batch.control = true;
            batch.add(&Frame {
                acknowledged: expected,
                ..control
            });
        } else if self.closing {
            (self.credit, self.due) = (None, Due::No);
        }
        let mut bytes = 0;
        for index in start.. {
            if index >= self.frames.len() || batch.heads.len() > BATCH || bytes > TURN_BYTES / 4 {
                break;
            }
            self.check(index, held);
            let outgoing = &self.frames[index];
            let number = match outgoing.frame.kind.is_numbered() {
                true => self.first + index as u64,
                false => 0,
            };
            batch.add(&Frame {
                number,
                acknowledged: expected,
                ..outgoing.frame
            });
            bytes += outgoing.data_bytes();
        }
        batch
    }

    /// Memory that a peer requested may have been withdrawn: then this is the last frame. If it was begun, it ends with
    /// zeros and a mark.
    fn check(&mut self, index: usize, held: &TableGuard<'_>) {
        let begun = self.begun && index == self.next;
        let done = self.done;
        let outgoing = &mut self.frames[index];
        let length = u64::from(outgoing.frame.length);
        let Data::Memory {
            key,
            offset,
            withdrawn,
        } = &mut outgoing.data
        else {
            return;
        };
        let is_read = begun && done >= length;
        if is_read || *withdrawn || held.find(*key, Access::READ, *offset, length).is_ok() {
            return;
        }
        if begun {
            *withdrawn = true;
        } else {
            outgoing.frame = refusal(outgoing.frame.first, Failure::Access);
            outgoing.data = Data::None;
        }
        self.frames.truncate(index + 1);
        self.closing = true;
    }

    /// Next data to send, in order.
    fn gather<'a>(
        &'a self,
        batch: &'a Batch,
        held: &'a TableGuard<'_>,
        sources: &mut SmallVec<[Source<'a>; SOURCES]>,
    ) {
        if !self.carry.is_empty() {
            sources.push(Source::Bytes(&self.carry));
        }
        let mut index = self.next;
        if self.begun {
            self.gather_data(index, self.done, held, sources);
            index += 1;
        }
        let mut heads = batch.heads.iter();
        if batch.control
            && let Some(heads) = heads.next()
        {
            sources.push(Source::Bytes(heads.as_bytes()));
        }
        for heads in heads {
            if sources.len() + 1 >= SOURCES {
                break;
            }
            sources.push(Source::Bytes(heads.as_bytes()));
            self.gather_data(index, 0, held, sources);
            index += 1;
        }
    }

    fn gather_data<'a>(
        &'a self,
        index: usize,
        skip: u64,
        held: &'a TableGuard<'_>,
        sources: &mut SmallVec<[Source<'a>; SOURCES]>,
    ) {
        let outgoing = &self.frames[index];
        let length = u64::from(outgoing.frame.length);
        match &outgoing.data {
            Data::None => {}
            Data::Value(start) => {
                let from = (start + skip - self.values_first) as usize;
                let to = (start + length - self.values_first) as usize;
                let (front, back) = self.values.as_slices();
                let middle = front.len();
                for (slice, base) in [(front, 0), (back, middle)] {
                    let (from, to) = (from.max(base), to.min(base + slice.len()));
                    if from < to {
                        sources.push(Source::Bytes(&slice[from - base..to - base]));
                    }
                }
            }
            Data::Parts(parts) => {
                sources.extend(ranges(parts, skip).map(|(region, offset, length)| {
                    Source::Region {
                        region,
                        offset,
                        length,
                    }
                }));
            }
            Data::Memory {
                key,
                offset,
                withdrawn,
            } => {
                let mut rest = length.saturating_sub(skip);
                let trailer = if *withdrawn { &BAD } else { &GOOD };
                if *withdrawn {
                    while rest > 0 && sources.len() < SOURCES {
                        let chunk = (ZEROS.len() as u64).min(rest);
                        sources.push(Source::Bytes(&ZEROS[..chunk as usize]));
                        rest -= chunk;
                    }
                } else if rest > 0
                    && let Ok(found) = held.find(*key, Access::READ, *offset, length)
                {
                    sources.push(Source::Region {
                        region: found.region(),
                        offset: offset + skip,
                        length: rest as usize,
                    });
                    rest = 0;
                }
                if rest == 0 {
                    sources.push(Source::Bytes(
                        &trailer[skip.saturating_sub(length) as usize..],
                    ));
                }
            }
        }
    }

    /// So many bytes of the gathered data were sent.
    fn advance(&mut self, taken: u64, batch: &Batch) {
        let mut left = taken as usize;
        let carried = left.min(self.carry.len());
        self.carry.drain(..carried);
        left -= carried;
        if !self.carry.is_empty() {
            return;
        }
        if self.begun && !self.advance_data(&mut left) {
            return;
        }
        for (place, heads) in batch.heads.iter().enumerate() {
            if left == 0 {
                return;
            }
            let bytes = heads.as_bytes();
            let gone = left.min(bytes.len());
            left -= gone;
            self.carry.extend_from_slice(&bytes[gone..]);
            self.due = Due::No;
            if batch.control && place == 0 {
                self.credit = None;
            } else {
                self.begun = true;
            }
            if !self.carry.is_empty() || self.begun && !self.advance_data(&mut left) {
                return;
            }
        }
    }

    /// The same for the data of the frame that was begun; whether it has gone as a whole.
    fn advance_data(&mut self, left: &mut usize) -> bool {
        let rest = self.frames[self.next].data_bytes() - self.done;
        let gone = rest.min(*left as u64);
        *left -= gone as usize;
        self.done += gone;
        if gone < rest {
            return false;
        }
        self.next += 1;
        self.begun = false;
        self.done = 0;
        true
    }
}

fn refusal(number: u64, failure: Failure) -> Frame {
    Frame {
        first: number,
        second: frame::failure_number(failure),
        ..Frame::new(Kind::Refusal)
    }
}

/// Leaves so many bytes at most.
fn shorten(sources: &mut SmallVec<[Source<'_>; SOURCES]>, bytes_max: usize) {
    let mut left = bytes_max;
    for index in 0..sources.len() {
        let here = length(&sources[index]) as usize;
        if here >= left {
            match &mut sources[index] {
                Source::Bytes(bytes) => *bytes = &bytes[..left],
                Source::Region { length, .. } => *length = left,
            }
            return sources.truncate(index + 1);
        }
        left -= here;
    }
}

fn length(source: &Source<'_>) -> u64 {
    match source {
        Source::Bytes(bytes) => bytes.len() as u64,
        Source::Region { length, .. } => *length as u64,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// All that goes out of a message, when so many bytes of it have gone before.
    fn rest_after(taken: usize) -> Vec<u8> {
        let mut output = Output::new();
        let data = output.value(b"a short message");
        let frame = Frame {
            length: 15,
            ..Frame::new(Kind::Send)
        };
        output.push(frame, data);
        if taken > 0 {
            let batch = output.batch(&Table::default().hold(), 3);
            output.advance(taken as u64, &batch);
            output.batch = batch;
        }
        let (near, mut far) = UnixStream::pair().unwrap();
        let sent = output.transmit(near.as_fd(), &Table::default(), 3).unwrap();
        assert!(sent == Sent::All && output.is_idle());
        drop(near);
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).unwrap();
        rest
    }

    #[test]
    fn a_frame_continues_where_the_connection_took_no_more() {
        let all = rest_after(0);
        assert_eq!(all.len(), frame::HEAD_BYTES + 15);
        assert!(all.ends_with(b"a short message"));
        for taken in 1..=all.len() {
            assert_eq!(rest_after(taken), all[taken..], "after {taken} bytes");
        }
    }

    #[test]
    fn a_call_takes_so_many_bytes_at_most() {
        for bytes_max in 1..=40 {
            let mut sources = SmallVec::new();
            sources.push(Source::Bytes(&[1; 10]));
            sources.push(Source::Bytes(&[2; 20]));
            sources.push(Source::Bytes(&[3; 5]));
            shorten(&mut sources, bytes_max);
            let lengths: u64 = sources.iter().map(length).sum();
            assert_eq!(lengths, bytes_max.min(35) as u64);
        }
    }
}
