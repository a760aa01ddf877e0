//! Frames of data that are not those of a write: nothing of them is exposed, and they displace nothing.

use fabric::ethernet::Shape;
use fabric::{Access, Parameters, Registration};
use pmem::checksum::crc32c_of;

use super::super::raw::{COMMAND, Packet, parts};
use super::super::suite::Random;
use super::liar::Lied;
use super::{BLOCK, BLOCKS};

/// Kinds of packets, as `docs/ETHERNET.md` numbers them.
const AIM: u8 = 9;
const AIMED: u8 = 10;
const PLACED: u8 = 11;
const RESEND: u8 = 20;
/// The last packet of a request, with a valid immediate.
const ANNOUNCED: u8 = 3;
/// Blocks of the write, and where it begins.
const COUNT: u64 = 2;
const START: u64 = 100 * BLOCK;

/// A write of a peer that sends its frames one by one.
struct Written {
    lied: Lied,
    greeting: Parameters,
    memory: Registration,
    model: Vec<u8>,
    data: Vec<u8>,
}

impl Written {
    fn new(shape: Shape) -> Written {
        let mut lied = Lied::new(shape);
        let mut random = Random(41);
        let model = random.bytes((BLOCKS * BLOCK) as usize);
        lied.pool.write(0, &model);
        let memory = lied.near.device.register(&lied.pool, Access::ALL).unwrap();
        let (_, greeting) = lied.join();
        Written {
            lied,
            greeting,
            memory,
            model,
            data: random.bytes((COUNT * BLOCK) as usize),
        }
    }

    /// The receiver aims at the blocks. Number of the first frame.
    fn aim(&mut self) -> u32 {
        let words = [0, self.memory.descriptor().key.0, START].map(u64::to_le_bytes);
        let total = (self.data.len() as u32).to_le_bytes();
        let body = [&words.concat(), &total[..], &[0; 4]].concat();
        self.tell(AIM, 0, &body);
        self.number_in(AIMED)
    }

    fn tell(&mut self, kind: u8, sequence: u64, body: &[u8]) {
        let packet = Packet {
            kind,
            flags: ANNOUNCED,
            sequence,
            body,
        };
        self.lied.liar.tell(&self.greeting, packet);
    }

    /// Number of the first frame in the next answer of this kind.
    fn number_in(&mut self, kind: u8) -> u32 {
        let mut number = None;
        self.lied.until("an answer", |_, liar| {
            let frames = liar.receive();
            let found = frames.iter().map(|frame| parts(frame));
            for (_, _, body) in found.filter(|(it, ..)| *it == kind) {
                number = body[8..12].first_chunk().map(|it| u32::from_le_bytes(*it));
            }
            number.is_some()
        });
        number.unwrap()
    }

    /// Data of a frame of the write.
    fn segment(&self, frame: u32) -> &[u8] {
        let (at, bytes) = Shape::Strip.segment(frame % 3);
        let block = COUNT as usize - 1 - frame as usize / 3;
        &self.data[block * BLOCK as usize + at as usize..][..bytes as usize]
    }

    fn send(&mut self, first: u32, frame: u32) {
        let segment = self.segment(frame);
        let frame = self.lied.liar.data(&self.greeting, first + frame, segment);
        self.lied.liar.send_data(&frame);
    }

    /// Ends the write: the receiver compares the seal with the blocks.
    fn seal(&mut self) {
        let request = 0u64.to_le_bytes();
        let mut seal = crc32c_of(&[&request, &self.data]).to_le_bytes().to_vec();
        seal.resize(32, 0);
        self.tell(PLACED, 1, &[&request[..], &seal].concat());
    }

    /// Waits for the message that announces the write, and checks the whole pool.
    fn is_done(&mut self) {
        self.lied
            .until("the end", |near, _| !near.messages.is_empty());
        let start = START as usize;
        self.model[start..start + self.data.len()].copy_from_slice(&self.data);
        self.lied.check(&self.model, 0..0);
        assert_eq!(self.lied.near.messages.len(), 1);
        assert!(self.lied.near.lost.is_empty());
    }

    /// Frames that are not the expected one: of a foreign host, with another number, cut, and too long.
    fn wrong(&self, first: u32, frame: u32) -> Vec<Vec<u8>> {
        let (to, number) = (&self.greeting, first + frame);
        let liar = &self.lied.liar;
        let right = liar.data(to, number, &vec![0xee; self.segment(frame).len()]);
        let numbers = [1, 2, 3, 100, 0x7fff].map(|more| number.wrapping_add(more));
        let mut wrong: Vec<Vec<u8>> = numbers
            .iter()
            .flat_map(|number| [1496, 1104].map(|bytes| liar.data(to, *number, &vec![0xee; bytes])))
            .collect();
        for byte in 6..12 {
            wrong.push(right.clone());
            wrong.last_mut().unwrap()[byte] ^= 4;
        }
        let mut other = right.clone();
        other[12..14].copy_from_slice(&COMMAND);
        wrong.push(other);
        let mut other = right.clone();
        other[14] &= 0x7f;
        wrong.push(other);
        let lengths = [16, 17, 100, right.len() - 1, right.len() + 1];
        wrong.extend(lengths.map(|length| {
            let mut frame = right.clone();
            frame.resize(length, 0xee);
            frame
        }));
        wrong
    }
}

#[test]
fn only_the_expected_frame_lands() {
    for shape in [Shape::Strip, Shape::Overlay] {
        let mut written = Written::new(shape);
        let first = written.aim();
        for frame in 0..3 * COUNT as u32 {
            for wrong in written.wrong(first, frame) {
                written.lied.liar.send_data(&wrong);
            }
            written.send(first, frame);
        }
        // Once more, and one that nothing is aimed for.
        written.send(first, 5);
        let more = written
            .lied
            .liar
            .data(&written.greeting, first + 6, &[0xee; 1496]);
        written.lied.liar.send_data(&more);
        // Whatever has landed, it is in the blocks, or in the 16 bytes that are restored.
        let end = START + COUNT * BLOCK;
        written.lied.check(&written.model, START - 16..end);
        written.seal();
        written.is_done();
        let counters = written.lied.setup.devices.borrow()[0].counters();
        assert_eq!((counters.placed, counters.rejected), (1, 0), "{shape:?}");
    }
}

/// A host that knows the number of the expected frame sends it first.
#[test]
fn a_forged_frame_is_found_before_its_block_is_exposed() {
    for shape in [Shape::Strip, Shape::Overlay] {
        let mut written = Written::new(shape);
        let first = written.aim();
        for frame in 0..3 * COUNT as u32 {
            if frame == 4 {
                let forged = written
                    .lied
                    .liar
                    .data(&written.greeting, first + 4, &[0xee; 1496]);
                written.lied.liar.send_data(&forged);
            }
            written.send(first, frame);
        }
        written.seal();
        // It aims again, and wants all frames.
        let again = written.number_in(RESEND);
        let counters = written.lied.setup.devices.borrow()[0].counters();
        assert_eq!((counters.placed, counters.rejected), (0, 1), "{shape:?}");
        assert!(written.lied.near.messages.is_empty(), "it was announced");
        let end = START + COUNT * BLOCK;
        written.lied.check(&written.model, START - 16..end);
        for frame in 0..3 * COUNT as u32 {
            written.send(again, frame);
        }
        written.is_done();
    }
}
