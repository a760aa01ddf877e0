//! The plainest loops over memory and sockets, as limits.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use pmem::Region;

use super::{Placement, with_far};
use crate::Error;

/// Two words in memory, on separate lines, that two threads increment alternately.
pub struct RawMemory(Region);

const THERE: u64 = 0;
const BACK: u64 = 256;

impl RawMemory {
    pub fn new() -> Result<RawMemory, Error> {
        Ok(RawMemory(Region::memory(4096, false)?))
    }

    /// So many times there and back, in ns.
    pub fn ping(&self, count: u64, sleeps: bool) -> Result<f64, Error> {
        let region = &self.0;
        let set = |at, value: u32| {
            region.store_u32(at, value);
            if sleeps {
                region.wake(at);
            }
        };
        let await_value = |at, value: u32| {
            loop {
                let seen = region.load_u32(at);
                if seen == value {
                    break;
                }
                if sleeps {
                    region.sleep_while(at, seen, None);
                } else {
                    std::hint::spin_loop();
                }
            }
        };
        set(THERE, 0);
        set(BACK, 0);
        let answer = || {
            for number in 1..=count as u32 {
                await_value(THERE, number);
                set(BACK, number);
            }
            Ok(())
        };
        let place = Placement::of(sleeps);
        with_far(place, answer, || {
            let start = Instant::now();
            for number in 1..=count as u32 {
                set(THERE, number);
                await_value(BACK, number);
            }
            Ok(start.elapsed().as_nanos() as f64)
        })
    }
}

/// A connection over the loopback interface.
pub struct RawSocket {
    near: TcpStream,
    far: TcpStream,
    /// Which piece of its memory the far side used last.
    place: usize,
}

impl RawSocket {
    /// Whether a waiting side polls all the time or blocks.
    pub fn new(spins: bool) -> Result<RawSocket, Error> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        for stream in [&near, &far] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(spins)?;
        }
        Ok(RawSocket {
            near,
            far,
            place: 0,
        })
    }

    /// So many messages there and back, in ns.
    pub fn ping(&mut self, count: u64, bytes: usize, place: Placement) -> Result<f64, Error> {
        let (near, far) = (&mut self.near, &mut self.far);
        let mut there = vec![0; bytes];
        let mut back = vec![0; bytes];
        let answer = || {
            for _ in 0..count {
                receive(far, &mut there)?;
                send(far, &there)?;
            }
            Ok(())
        };
        with_far(place, answer, || {
            let start = Instant::now();
            for _ in 0..count {
                send(near, &back)?;
                receive(near, &mut back)?;
            }
            Ok(start.elapsed().as_nanos() as f64)
        })
    }

    /// So many requests of 16 bytes, each answered by data; or so much data, each answered by 16 bytes. In ns. The far side
    /// goes through its memory, a piece as long as the data after the other.
    pub fn transfer(
        &mut self,
        count: u64,
        data: &mut [u8],
        other: &mut [u8],
        reads: bool,
    ) -> Result<f64, Error> {
        let (near, far) = (&mut self.near, &mut self.far);
        let mut request = [0; 16];
        let mut request_there = [0; 16];
        let size = data.len();
        let (place, pieces) = (&mut self.place, other.len() / size);
        let answer = || {
            for _ in 0..count {
                *place = (*place + 1) % pieces;
                let piece = &mut other[*place * size..][..size];
                if reads {
                    receive(far, &mut request_there)?;
                    send(far, piece)?;
                } else {
                    receive(far, piece)?;
                    send(far, &request_there)?;
                }
            }
            Ok(())
        };
        with_far(Placement::Apart, answer, || {
            let start = Instant::now();
            for _ in 0..count {
                if reads {
                    send(near, &request)?;
                    receive(near, data)?;
                } else {
                    send(near, data)?;
                    receive(near, &mut request)?;
                }
            }
            Ok(start.elapsed().as_nanos() as f64)
        })
    }
}

fn send(stream: &mut TcpStream, mut bytes: &[u8]) -> Result<(), Error> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) => look_again(error)?,
        }
    }
    Ok(())
}

fn receive(stream: &mut TcpStream, mut bytes: &mut [u8]) -> Result<(), Error> {
    while !bytes.is_empty() {
        match stream.read(bytes) {
            Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(received) => bytes = &mut bytes[received..],
            Err(error) => look_again(error)?,
        }
    }
    Ok(())
}

fn look_again(error: io::Error) -> Result<(), Error> {
    match error.kind() {
        ErrorKind::WouldBlock => Ok(()),
        _ => Err(error.into()),
    }
}

/// Messages of one line each from one thread to another, through a ring in memory.
pub struct RawQueue {
    region: Region,
    /// Where its first line is.
    start: u64,
}

const LINE: u64 = 64;
const SLOTS: u64 = 1024;
const HEAD: u64 = SLOTS * LINE;

impl RawQueue {
    /// One of several. Each begins at another line of a page: those that all begin at the same one have their lines in the
    /// same set of a cache, and with 32 of them they drive each other out of it.
    pub fn new(number: usize) -> Result<RawQueue, Error> {
        let region = Region::memory(HEAD + 2 * 4096, false)?;
        region.populate();
        let start = number as u64 * LINE % 4096;
        Ok(RawQueue { region, start })
    }

    /// Puts the message with this number in, if there is room: the number comes last, and the rest behind it. (Whether this is
    /// a call decides about a third of the speed, so it is not left to the compiler.)
    #[inline(always)]
    pub fn put(&self, number: u64, bytes: &[u8; 56], known_head: &mut u64) -> bool {
        if number - *known_head > SLOTS {
            *known_head = self.region.load(self.start + HEAD);
            if number - *known_head > SLOTS {
                return false;
            }
        }
        let at = self.start + number % SLOTS * LINE;
        self.region.write(at + 8, bytes);
        self.region.store(at, number);
        true
    }

    /// Takes the message with this number out, if it is there.
    #[inline(always)]
    pub fn take(&self, number: u64, bytes: &mut [u8; 56]) -> bool {
        let at = self.start + number % SLOTS * LINE;
        if self.region.load(at) != number {
            return false;
        }
        self.region.read(at + 8, bytes);
        if number.is_multiple_of(SLOTS / 4) {
            self.region.store(self.start + HEAD, number);
        }
        true
    }
}
