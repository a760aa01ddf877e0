//! Data from a connection: parsed, checked, executed.
//!
//! Nothing in it is trusted. Heads are received into a small stage, and short data with them; long data is received
//! straight to where it goes, together with the heads of what comes behind it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use pmem::socket::{self, Target};
use smallvec::SmallVec;

use super::frame::{self, BAD, Frame, GOOD, HEADS_BYTES, Kind, TRAILER_BYTES, parse};
use super::link::Link;
use super::output::{Data, Due, ranges};
use super::requests::Requests;
use crate::transport::Arrival;
use crate::{Access, Failure, Key, Origin, Registration, Report, Supply, Table};

/// Bytes that are received at once when it is not known what comes.
const STAGE_BYTES: usize = 16 << 10;
/// Data of which more is missing is received to where it goes.
const DIRECT_BYTES: u64 = 2 << 10;
/// Data of which more is missing is followed by one frame's heads at most in the stage: the next frame's data, long too
/// as like as not, then goes where it belongs.
const LONG_BYTES: u64 = 32 << 10;
/// Receptions before others have their turn, and the bytes.
const TURNS: usize = 16;
const TURN_BYTES: usize = 128 << 10;

/// A buffer for a message.
#[derive(Clone, Debug)]
pub struct Supplied {
    pub supply: Supply,
    pub registration: Registration,
    pub offset: u64,
    pub length: u32,
}

/// Why a connection is not read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The connection was cut.
    Cut,
    /// This frame, if any, is refused.
    Refuse(u64, Failure),
    /// The other side refused, and the queue was notified.
    Ended,
}

const VIOLATION: End = End::Refuse(u64::MAX, Failure::Violation);

/// Destination of received data.
#[derive(Debug)]
enum Destination {
    Message(Supplied),
    Memory {
        key: Key,
        offset: u64,
    },
    /// To the read that is answered; behind the data comes whether it is good.
    Read {
        trailer: [u8; TRAILER_BYTES],
    },
}

/// A frame with data that is arriving.
#[derive(Debug)]
struct Incoming {
    place: Destination,
    signaled: bool,
    immediate: Option<u32>,
    /// Bytes of data, a trailer included, and how many of them have come.
    length: u64,
    done: u64,
    /// How long it was awaited without success.
    in_vain: Duration,
}

pub struct Input {
    /// Numbered frames that were executed.
    pub expected: u64,
    /// Greatest number of credits that the other side knows of, and the number of messages it has sent.
    pub told: u32,
    messages: u32,
    /// The last count of credits it reported.
    returned: u32,
    stage: Box<[u8]>,
    start: usize,
    end: usize,
    current: Option<Incoming>,
}

/// State that the endpoints of a queue share.
pub struct Shared<'a> {
    pub table: &'a Table,
    /// Buffers that wait for messages of any endpoint.
    pub free: &'a mut Vec<Supplied>,
    pub reports: &'a mut Vec<Report>,
}

impl Input {
    pub fn new() -> Input {
        Input {
            expected: 0,
            told: 0,
            messages: 0,
            returned: 0,
            stage: vec![0; STAGE_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            current: None,
        }
    }

    /// Bytes of long data still to come, if some has arrived.
    pub fn missing(&self) -> u64 {
        let long = self.current.as_ref().filter(|it| it.length > LONG_BYTES);
        long.map_or(0, Incoming::rest)
    }

    /// Whether the rest of long data comes soon, as far as was seen.
    pub fn is_worth_waiting(&self, in_vain_max: Duration) -> bool {
        let current = self.current.as_ref();
        self.missing() > 0 && current.is_some_and(|it| it.in_vain < in_vain_max)
    }

    /// The rest was waited for and did not come, or only a little of it.
    pub fn waited_in_vain(&mut self, time: Duration) {
        if let Some(current) = &mut self.current {
            current.in_vain += time;
        }
    }

    /// Begins on another connection: partly received frames are sent again as a whole. Returns their buffer.
    pub fn restart(&mut self) -> Option<Supplied> {
        (self.start, self.end) = (0, 0);
        let current = self.current.take()?;
        if matches!(current.place, Destination::Message(_)) || current.immediate.is_some() {
            // It is counted when it comes again.
            self.messages = self.messages.wrapping_sub(1);
        }
        match current.place {
            Destination::Message(buffer) => Some(buffer),
            _ => None,
        }
    }
}

impl Link {
    /// Receives available data and executes complete frames.
    /// Returns whether there may be more.
    ///
    /// # Errors
    /// [`End`].
    pub fn receive(&mut self, shared: &mut Shared<'_>) -> Result<bool, End> {
        let mut turn = 0;
        for _ in 0..TURNS {
            let (offered, taken) = self.fill(shared.table)?;
            if taken == 0 {
                return Ok(false);
            }
            self.consume(shared)?;
            turn += taken;
            if taken < offered {
                return Ok(false);
            }
            if turn >= TURN_BYTES {
                break;
            }
        }
        Ok(true)
    }

    /// Receives once: how many bytes could have come, and how many have.
    fn fill(&mut self, table: &Table) -> Result<(usize, usize), End> {
        let Some(connection) = &self.connection else {
            return Ok((0, 0));
        };
        let input = &mut self.input;
        let kept = input.end - input.start;
        input.stage.copy_within(input.start..input.end, 0);
        (input.start, input.end) = (0, kept);
        let (offered, direct, result) = match &mut input.current {
            Some(current) if current.rest() > DIRECT_BYTES => {
                let direct = current.rest() as usize;
                let tail = match current.rest() > LONG_BYTES {
                    true => HEADS_BYTES,
                    false => STAGE_BYTES,
                };
                let behind = Target::Bytes(&mut input.stage[..tail]);
                let received = current.receive(connection.as_fd(), &self.requests, table, behind);
                let result = received.map_err(|failure| End::Refuse(input.expected, failure))?;
                (direct + tail, direct, result)
            }
            _ => {
                let stage = Target::Bytes(&mut input.stage[kept..]);
                let result = socket::receive(connection.as_fd(), &mut [stage]);
                (STAGE_BYTES - kept, 0, result)
            }
        };
        match result {
            Ok(0) => Err(End::Cut),
            Ok(taken) => {
                let placed = taken.min(direct);
                if let Some(current) = input.current.as_mut().filter(|_| direct > 0) {
                    current.done += placed as u64;
                }
                input.end += taken - placed;
                Ok((offered, taken))
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok((0, 0)),
                _ => Err(End::Cut),
            },
        }
    }
}

impl Incoming {
    /// Number of bytes that have not arrived yet.
    fn rest(&self) -> u64 {
        self.length - self.done
    }

    /// Receives the rest into its destination, and the data after it.
    fn receive(
        &mut self,
        connection: BorrowedFd<'_>,
        requests: &Requests,
        table: &Table,
        behind: Target<'_>,
    ) -> Result<io::Result<usize>, Failure> {
        let (done, rest) = (self.done, self.rest() as usize);
        match &mut self.place {
            Destination::Message(buffer) => {
                let target = Target::Region {
                    region: buffer.registration.region(),
                    offset: buffer.offset + done,
                    length: rest,
                };
                Ok(socket::receive(connection, &mut [target, behind]))
            }
            // The key cannot be withdrawn between its check and the kernel's copy.
            Destination::Memory { key, offset } => {
                table.with(*key, Access::WRITE, *offset, self.length, |found| {
                    let target = Target::Region {
                        region: found.region(),
                        offset: *offset + done,
                        length: rest,
                    };
                    socket::receive(connection, &mut [target, behind])
                })
            }
            Destination::Read { trailer } => {
                let (into, _) = requests.awaited_read().ok_or(Failure::Violation)?;
                let mut targets: SmallVec<[Target<'_>; 18]> = ranges(into, done)
                    .map(|(region, offset, length)| Target::Region {
                        region,
                        offset,
                        length,
                    })
                    .collect();
                // More than a trailer is missing.
                targets.push(Target::Bytes(trailer));
                targets.push(behind);
                Ok(socket::receive(connection, &mut targets))
            }
        }
    }

    /// Copies the part that arrived with the headers.
    fn copy(&mut self, bytes: &[u8], requests: &Requests, table: &Table) -> Result<(), Failure> {
        let done = self.done;
        self.done += bytes.len() as u64;
        match &mut self.place {
            Destination::Message(buffer) => {
                let region = buffer.registration.region();
                region.write(buffer.offset + done, bytes);
                Ok(())
            }
            Destination::Memory { key, offset } => {
                table.with(*key, Access::WRITE, *offset, self.length, |found| {
                    found.region().write(*offset + done, bytes);
                })
            }
            Destination::Read { trailer } => {
                let (into, length) = requests.awaited_read().ok_or(Failure::Violation)?;
                let mut rest = bytes;
                for (region, offset, length) in ranges(into, done) {
                    let (here, behind) = rest.split_at(length.min(rest.len()));
                    region.write(offset, here);
                    rest = behind;
                }
                let at = (done + (bytes.len() - rest.len()) as u64).saturating_sub(length.into());
                trailer[at as usize..][..rest.len()].copy_from_slice(rest);
                Ok(())
            }
        }
    }
}

/// Frames, one after the other.
impl Link {
    /// Executes the frames in the stage.
    fn consume(&mut self, shared: &mut Shared<'_>) -> Result<(), End> {
        loop {
            if let Some(current) = &mut self.input.current {
                let staged = self.input.end - self.input.start;
                let here = current.rest().min(staged as u64) as usize;
                if here > 0 {
                    let bytes = &self.input.stage[self.input.start..][..here];
                    current
                        .copy(bytes, &self.requests, shared.table)
                        .map_err(|failure| End::Refuse(self.input.expected, failure))?;
                    self.input.start += here;
                }
                if current.rest() > 0 {
                    return Ok(());
                }
                if let Some(whole) = self.input.current.take() {
                    self.finish(whole, shared)?;
                }
            } else {
                let staged = &self.input.stage[self.input.start..self.input.end];
                let Some(frame) = parse(staged).map_err(|_| VIOLATION)? else {
                    return Ok(());
                };
                self.input.start += frame.heads_bytes();
                self.begin(&frame, shared)?;
            }
        }
    }

    /// The headers of a frame have arrived. A frame without data is executed.
    fn begin(&mut self, frame: &Frame, shared: &mut Shared<'_>) -> Result<(), End> {
        let acknowledged = self.output.acknowledged(frame.acknowledged);
        acknowledged.map_err(|_| VIOLATION)?;
        self.settle(shared.reports);
        if frame.kind.is_numbered() && frame.number != self.input.expected {
            return Err(VIOLATION);
        }
        let refuse = |failure| End::Refuse(frame.number, failure);
        let key = Key(frame.key);
        match frame.kind {
            Kind::Send => self.begin_message(frame, shared),
            Kind::Write => {
                if frame.immediate.is_some() {
                    self.count_message()?;
                }
                let (offset, length) = (frame.offset, frame.length.into());
                let found = shared
                    .table
                    .with(key, Access::WRITE, offset, length, |_| ());
                found.map_err(refuse)?;
                self.await_data(Destination::Memory { key, offset }, frame, shared)
            }
            Kind::Read => self.begin_read(frame, shared.table),
            Kind::CompareAndSwap | Kind::FetchAndAdd => self.begin_atomic(frame, shared.table),
            Kind::ReadAnswer => match self.requests.awaited_read() {
                Some((_, bytes)) if bytes == frame.length => {
                    let trailer = [0; TRAILER_BYTES];
                    self.await_data(Destination::Read { trailer }, frame, shared)
                }
                _ => Err(VIOLATION),
            },
            Kind::AtomicAnswer => self.answered(true, frame.first, shared),
            Kind::Credit => {
                self.credit(frame.returned, frame.ask, shared);
                Ok(())
            }
            Kind::Acknowledgement => Ok(()),
            Kind::Refusal => {
                let failure = frame::failure(frame.second);
                self.refused(frame.first, failure, shared.reports);
                Err(End::Ended)
            }
        }
    }

    /// The answer takes its data from memory when it goes.
    fn begin_read(&mut self, frame: &Frame, table: &Table) -> Result<(), End> {
        self.owe_answer()?;
        let (key, offset, length) = (Key(frame.key), frame.offset, frame.first);
        let found = table.with(key, Access::READ, offset, length, |_| ());
        found.map_err(|failure| End::Refuse(frame.number, failure))?;
        let answer = Frame {
            length: length as u32,
            // It does not go out: the request, should it be refused yet.
            first: frame.number,
            ..Frame::new(Kind::ReadAnswer)
        };
        let withdrawn = false;
        let data = Data::Memory {
            key,
            offset,
            withdrawn,
        };
        self.answer(answer, data);
        Ok(())
    }

    /// It is executed now; the answer is kept until it is acknowledged.
    fn begin_atomic(&mut self, frame: &Frame, table: &Table) -> Result<(), End> {
        self.owe_answer()?;
        let (key, offset) = (Key(frame.key), frame.offset);
        let found = table.with(key, Access::ATOMIC, offset, 8, |found| match frame.kind {
            Kind::CompareAndSwap => {
                let region = found.region();
                region.compare_and_swap(offset, frame.first, frame.second)
            }
            _ => found.region().fetch_and_add(offset, frame.first),
        });
        let answer = Frame {
            first: found.map_err(|failure| End::Refuse(frame.number, failure))?,
            ..Frame::new(Kind::AtomicAnswer)
        };
        self.answer(answer, Data::None);
        Ok(())
    }

    fn begin_message(&mut self, frame: &Frame, shared: &mut Shared<'_>) -> Result<(), End> {
        if frame.length > self.limits.message_bytes {
            return Err(VIOLATION);
        }
        self.count_message()?;
        if frame.returned != self.input.returned {
            self.credit(frame.returned, false, shared);
        }
        if frame.length == 0 {
            return self.received(None, frame.immediate, frame.signaled, shared);
        }
        // While all peers keep to their credits there is one.
        let buffer = shared.free.pop().ok_or(VIOLATION)?;
        if frame.length > buffer.length {
            shared.free.push(buffer);
            return Err(VIOLATION);
        }
        self.await_data(Destination::Message(buffer), frame, shared)
    }

    /// The other side may send no more messages than it has credits for.
    fn count_message(&mut self) -> Result<(), End> {
        let unreturned = self.input.messages.wrapping_sub(self.input.told);
        if unreturned >= self.limits.window {
            return Err(VIOLATION);
        }
        self.input.messages = self.input.messages.wrapping_add(1);
        Ok(())
    }

    /// One more answer is owed. The other side knows those to earlier requests before it posts one beyond its bound,
    /// and has acknowledged them with it.
    fn owe_answer(&self) -> Result<(), End> {
        let bound = self.other.as_ref().map_or(0, |other| other.outstanding);
        match self.output.answers() < bound as usize {
            true => Ok(()),
            false => Err(VIOLATION),
        }
    }

    fn answer(&mut self, answer: Frame, data: Data) {
        self.output.push(answer, data);
        self.input.expected += 1;
    }

    fn answered(&mut self, atomic: bool, value: u64, shared: &mut Shared<'_>) -> Result<(), End> {
        let acknowledged = self.output.first();
        let answered = self.requests.answered(atomic, value, acknowledged);
        answered.ok_or(VIOLATION)?;
        self.input.expected += 1;
        self.settle(shared.reports);
        Ok(())
    }

    fn credit(&mut self, returned: u32, ask: bool, shared: &mut Shared<'_>) {
        self.input.returned = returned;
        shared.reports.push(Report::Credit {
            endpoint: self.id,
            returned,
            ask,
        });
    }

    fn await_data(
        &mut self,
        place: Destination,
        frame: &Frame,
        shared: &mut Shared<'_>,
    ) -> Result<(), End> {
        let trailer = match place {
            Destination::Read { .. } => TRAILER_BYTES as u64,
            _ => 0,
        };
        let incoming = Incoming {
            place,
            signaled: frame.signaled,
            immediate: frame.immediate,
            length: u64::from(frame.length) + trailer,
            done: 0,
            in_vain: Duration::ZERO,
        };
        if incoming.length == 0 {
            return self.finish(incoming, shared);
        }
        self.input.current = Some(incoming);
        Ok(())
    }

    /// The data has come as a whole.
    fn finish(&mut self, whole: Incoming, shared: &mut Shared<'_>) -> Result<(), End> {
        match whole.place {
            Destination::Message(buffer) => {
                let arrival = Arrival {
                    buffer: buffer.supply,
                    start: 0,
                    length: whole.length as u32,
                };
                self.received(Some(arrival), whole.immediate, whole.signaled, shared)
            }
            Destination::Memory { .. } if whole.immediate.is_some() => {
                self.received(None, whole.immediate, whole.signaled, shared)
            }
            Destination::Memory { .. } => {
                self.input.expected += 1;
                if whole.signaled {
                    self.output.acknowledge(Due::Now);
                }
                Ok(())
            }
            Destination::Read { trailer: GOOD } => self.answered(false, 0, shared),
            Destination::Read { trailer: BAD } => {
                let first = self.requests.first_number().unwrap_or(u64::MAX);
                self.refused(first, Failure::Access, shared.reports);
                Err(End::Ended)
            }
            Destination::Read { .. } => Err(VIOLATION),
        }
    }

    fn received(
        &mut self,
        buffer: Option<Arrival>,
        immediate: Option<u32>,
        signaled: bool,
        shared: &mut Shared<'_>,
    ) -> Result<(), End> {
        self.input.expected += 1;
        shared.reports.push(Report::Received {
            origin: Origin::Endpoint(self.id),
            buffer,
            immediate,
        });
        // Its reader is likely to answer.
        if signaled {
            self.output.acknowledge(Due::Soon);
        }
        Ok(())
    }
}
