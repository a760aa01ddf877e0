//! The side with the adapter.

use std::collections::HashSet;
use std::time::Instant;

use e1000e::{Card, Frame};
use pmem::Region;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xdp::Shape;

use super::{BLOCK, BLOCKS, CHUNK, Command, HEADER, PATIENCE, data};

/// Bytes of the pool; the memory for frames is behind it.
const POOL: u64 = 1 << 20;
/// Memory for received frames that are not placed, and the chunk for sent ones.
const CHUNKS: u64 = 32;
const SENT: u64 = POOL + CHUNKS * CHUNK;
/// First block that is placed.
const FIRST: u64 = 17;

struct Side {
    card: Card,
    peer: Option<[u8; 6]>,
}

pub fn run(address: &str) {
    let region = Region::memory(SENT + CHUNK, false).unwrap();
    let model: Vec<u8> = (0..POOL)
        .map(|at| (at * 13) as u8 ^ (at >> 9) as u8)
        .collect();
    region.write(0, &model);
    let mut card = Card::open(address, &region).unwrap();
    for chunk in 0..CHUNKS {
        assert!(card.fill(POOL + chunk * CHUNK));
    }
    card.filled();
    let mut side = Side { card, peer: None };
    side.await_command(Command::Ask);
    println!("passed e1000e: a frame is received");
    side.say(Command::Hold);
    side.await_command(Command::Held);
    println!("passed e1000e: a frame is sent");
    side.place(&region, model);
    println!("passed e1000e: frames land in blocks of the pool, and nothing else changes");
    side.say(Command::Right);
}

impl Side {
    /// The next frame, or none within the time.
    fn next(&mut self) -> Frame {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(frame) = self.card.receive() {
                assert!(frame.is_whole);
                return frame;
            }
            assert!(Instant::now() < until, "no frame comes");
            if !self.card.arm() {
                let mut sockets = [PollFd::from_borrowed_fd(
                    self.card.interrupt(),
                    PollFlags::IN,
                )];
                let timeout = Timespec::try_from(PATIENCE).unwrap();
                poll(&mut sockets, Some(&timeout)).unwrap();
            }
        }
    }

    fn read(&self, frame: Frame) -> Vec<u8> {
        let mut bytes = vec![0; frame.length as usize];
        self.card.region().read(frame.address, &mut bytes);
        bytes
    }

    /// Takes commands until this one.
    fn await_command(&mut self, wanted: Command) {
        loop {
            let frame = self.next();
            let bytes = self.read(frame);
            self.card.fill(frame.address);
            self.card.filled();
            if Command::of(&bytes) == Some(wanted) {
                self.peer = bytes[6..12].try_into().ok();
                return;
            }
        }
    }

    fn say(&mut self, command: Command) {
        let bytes = command.frame(self.peer.unwrap(), self.card.hardware());
        self.card.region().write(SENT, &bytes);
        assert!(self.card.transmit(SENT, bytes.len() as u16));
        self.card.flush();
        self.sent();
    }

    /// Waits until the adapter has sent a frame.
    fn sent(&mut self) {
        let until = Instant::now() + PATIENCE;
        while self.card.completed().is_none() {
            assert!(Instant::now() < until, "the frame is not sent");
            std::thread::yield_now();
        }
    }

    /// Receives blocks of the peer in the pool.
    fn place(&mut self, region: &Region, mut model: Vec<u8>) {
        let start = FIRST * BLOCK;
        let surplus = CHUNKS as u32;
        let first = self.card.position();
        let mut targets = Vec::new();
        for block in (0..u64::from(BLOCKS)).rev() {
            for frame in 0..3 {
                let (at, bytes) = Shape::Overlay.segment(frame);
                let address = start + block * BLOCK + u64::from(at) - HEADER as u64;
                targets.push((address, HEADER as u32 + bytes));
                assert!(self.card.fill(address));
            }
        }
        self.card.filled();
        self.say(Command::Aimed(surplus));
        for _ in 0..surplus {
            let frame = self.next();
            assert_eq!(Command::of(&self.read(frame)), Some(Command::Skip));
        }
        for (number, (address, length)) in targets.into_iter().enumerate() {
            let frame = self.next();
            assert_eq!(frame.position, first + number as u64);
            assert_eq!((frame.address, frame.length), (address, length));
        }
        // The last header lies in front of the blocks.
        let covered = start as usize - HEADER..start as usize;
        region.write(covered.start as u64, &model[covered]);
        model[start as usize..][..data().len()].copy_from_slice(&data());
        let mut found = vec![0; model.len()];
        region.read(0, &mut found);
        let wrong: HashSet<usize> = (0..found.len())
            .filter(|&at| found[at] != model[at])
            .map(|at| at / BLOCK as usize)
            .collect();
        assert_eq!(wrong, HashSet::new(), "wrong blocks");
    }
}
