//! The side with the adapter.

use std::collections::{BTreeSet, VecDeque};
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
/// Where blocks are placed in the pool.
const START: u64 = 17 * BLOCK;

struct Side {
    card: Card,
    peer: Option<[u8; 6]>,
}

/// An adapter with memory for frames, and its region.
fn open(address: &str) -> (Card, Region) {
    let region = Region::memory(SENT + CHUNK, false).unwrap();
    let mut card = Card::open(address, &region).unwrap();
    for chunk in 0..CHUNKS {
        assert!(card.fill(POOL + chunk * CHUNK));
    }
    card.filled();
    (card, region)
}

/// Holds the adapter until it is killed.
pub fn victim(address: &str) {
    let _held = open(address);
    println!("held");
    loop {
        std::thread::park();
    }
}

pub fn run(address: &str) {
    let (card, region) = open(address);
    let mut model: Vec<u8> = (0..POOL)
        .map(|at| (at * 13) as u8 ^ (at >> 9) as u8)
        .collect();
    region.write(0, &model);
    let mut side = Side { card, peer: None };
    side.await_command(Command::Ask);
    println!("passed e1000e: a frame is received, after a process with the adapter was killed");
    side.say(Command::Hold);
    side.await_command(Command::Held);
    println!("passed e1000e: a frame is sent");
    // As if two frames had been lost.
    assert!(!side.place(CHUNKS as u32 - 2, CHUNKS as u32));
    side.realign();
    println!("passed e1000e: displaced frames are noticed, and what is aimed is withdrawn");
    assert!(side.place(CHUNKS as u32, CHUNKS as u32));
    model[START as usize..][..data().len()].copy_from_slice(&data());
    check(&region, &model);
    println!("passed e1000e: frames land in blocks of the pool, and nothing else changes");
    side.say(Command::Right);
}

/// The pool is as it should be.
fn check(region: &Region, model: &[u8]) {
    let mut found = vec![0; model.len()];
    region.read(0, &mut found);
    let wrong: BTreeSet<usize> = (0..found.len())
        .filter(|&at| found[at] != model[at])
        .map(|at| at / BLOCK as usize)
        .collect();
    assert_eq!(wrong, BTreeSet::new(), "wrong blocks");
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

    /// Receives blocks of the peer in the pool, behind so many other descriptors. Returns whether each frame landed where it
    /// belongs.
    fn place(&mut self, announced: u32, surplus: u32) -> bool {
        let region = self.card.region().clone();
        // The last header lies in front of the blocks.
        let mut covered = [0; HEADER];
        region.read(START - HEADER as u64, &mut covered);
        let mut targets = VecDeque::new();
        for number in 0..3 * BLOCKS {
            let block = u64::from(BLOCKS - 1 - number / 3) * BLOCK;
            let (at, bytes) = Shape::Overlay.segment(number % 3);
            let address = START + block + u64::from(at) - HEADER as u64;
            targets.push_back((address, HEADER as u32 + bytes));
            assert!(self.card.fill(address));
        }
        self.card.filled();
        self.say(Command::Aimed(announced));
        let mut taken = 0;
        let mut is_right = true;
        loop {
            let frame = self.next();
            let command = Command::of(&self.read(frame));
            if frame.address >= POOL {
                self.card.fill(frame.address);
                self.card.filled();
                taken += 1;
                is_right &= taken > surplus || command == Some(Command::Skip);
            } else {
                is_right &= targets.pop_front() == Some((frame.address, frame.length));
            }
            if command == Some(Command::Sent) {
                break;
            }
        }
        region.write(START - HEADER as u64, &covered);
        is_right && targets.is_empty()
    }

    /// Withdraws all descriptors, and gives only those that are not aimed again.
    fn realign(&mut self) {
        assert!(self.card.stop());
        assert_eq!(self.card.receive(), None);
        let left = self.card.restart();
        let (aimed, rest): (Vec<u64>, Vec<u64>) = left.into_iter().partition(|&at| at < POOL);
        // The last frame of the lowest block has not come.
        assert_eq!(aimed, [START - HEADER as u64]);
        assert_eq!(rest.len(), CHUNKS as usize);
        for chunk in rest {
            assert!(self.card.fill(chunk));
        }
        self.card.filled();
    }
}
