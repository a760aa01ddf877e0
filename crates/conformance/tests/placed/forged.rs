//! Frames of data that are not those of a write: nothing of them is exposed, and they displace nothing.

use std::time::{Duration, Instant};

use fabric::ethernet::{FrameFaults, Shape};
use fabric::{Access, Failure, Parameters, Registration};
use pmem::checksum::crc32c_of;

use super::super::raw::{COMMAND, HEADER, Packet, parts};
use super::super::suite::Random;
use super::liar::{Lied, PATIENCE};
use super::{BLOCK, BLOCKS, Placing};

/// Kinds of packets, as `docs/ETHERNET.md` numbers them.
const AIM: u8 = 9;
const AIMED: u8 = 10;
const PLACED: u8 = 11;
const PROBE: u8 = 17;
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
        Written::over(Lied::new(shape))
    }

    fn over(mut lied: Lied) -> Written {
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
        self.ask_for_aim();
        let [first, _, front] = self.words_in(AIMED);
        self.send_empty(front);
        first
    }

    fn ask_for_aim(&mut self) {
        let words = [0, self.memory.descriptor().key.0, START].map(u64::to_le_bytes);
        let total = (self.data.len() as u32).to_le_bytes();
        let body = [&words.concat(), &total[..], &[0; 4]].concat();
        self.tell(AIM, 0, &body);
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
        self.numbers_in(kind)[0]
    }

    /// Number of the first frame in the next answer of this kind, and of the expected one, counted from it.
    fn numbers_in(&mut self, kind: u8) -> [u32; 2] {
        let [first, frame, _] = self.words_in(kind);
        [first, frame]
    }

    /// The same, and how many frames without content have to come first.
    fn words_in(&mut self, kind: u8) -> [u32; 3] {
        let mut number = None;
        self.lied.until("an answer", |_, liar| {
            let frames = liar.receive();
            for frame in frames.iter().filter(|frame| parts(frame).0 == kind) {
                let body = parts(frame).2;
                let word = |bytes: &[u8]| bytes.first_chunk().map(|it| u32::from_le_bytes(*it));
                let words = [&body[8..], &body[12..], &frame[28..]].map(word);
                number = words[0].zip(words[1]).zip(words[2]);
            }
            number.is_some()
        });
        let ((first, frame), front) = number.unwrap();
        [first, frame, front]
    }

    /// The same by the queue of all other frames: first frames without content use up the descriptors in front.
    fn send_empty(&mut self, count: u32) {
        for _ in 0..count {
            let frame = self.lied.liar.empty(&self.greeting);
            self.lied.liar.send_data(&frame);
        }
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

    /// Whether the data of a frame is where it belongs.
    fn has_landed(&self, frame: u32) -> bool {
        let block = COUNT - 1 - u64::from(frame) / 3;
        let (at, bytes) = Shape::Strip.segment(frame % 3);
        let mut found = vec![0; bytes as usize];
        let region = self.memory.region();
        region.read(START + block * BLOCK + u64::from(at), &mut found);
        found == self.segment(frame)
    }

    /// How often frames are asked for until something is so.
    fn asked_until(&mut self, what: &str, is_so: impl Fn(&Written) -> bool) -> usize {
        let (start, mut asked) = (Instant::now(), 0);
        loop {
            self.lied.near.poll();
            let frames = self.lied.liar.receive();
            asked += frames.iter().filter(|it| parts(it).0 == RESEND).count();
            if is_so(self) {
                return asked;
            }
            assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        }
    }

    /// Ends the write: the receiver compares the seal with the blocks.
    fn seal(&mut self) {
        let request = 0u64.to_le_bytes();
        let (first, last) = self.data.split_at(BLOCK as usize);
        let mut seal = crc32c_of(&[last, first, &request]).to_le_bytes().to_vec();
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

/// The sender has not announced that all frames were sent, so only the dropped ones tell the receiver.
#[test]
fn a_frame_that_later_ones_overtake_is_asked_for_at_once_each_time_that_it_is_lost() {
    for shape in [Shape::Strip, Shape::Overlay] {
        let mut written = Written::new(shape);
        let first = written.aim();
        written.send(first, 0);
        for _ in 0..3 {
            (2..6).for_each(|frame| written.send(first, frame));
            assert_eq!(written.numbers_in(RESEND), [first, 1], "{shape:?}");
        }
        (1..4).for_each(|frame| written.send(first, frame));
        written.send(first, 5);
        assert_eq!(written.numbers_in(RESEND), [first, 4], "{shape:?}");
        (4..6).for_each(|frame| written.send(first, frame));
        written.seal();
        written.is_done();
    }
}

/// A frame that has come before displaces nothing, and none is missing.
#[test]
fn repeated_frames_of_a_run_are_not_answered() {
    let mut written = Written::new(Shape::Strip);
    let first = written.aim();
    for frame in 0..5 {
        written.send(first, frame);
        (0..=frame).for_each(|before| written.send(first, before));
    }
    let mut asked = written.asked_until("frame 4 lands", |written| written.has_landed(4));
    written.send(first, 5);
    asked += written.asked_until("frame 5 lands", |written| written.has_landed(5));
    written.seal();
    asked += written.asked_until("the end", |written| !written.lied.near.messages.is_empty());
    assert_eq!(asked, 0);
    written.is_done();
}

/// Each number that is not higher than the one before could mean that the sender has restarted, and the frame was lost once more.
#[test]
fn forged_numbers_do_not_make_the_receiver_ask_without_limit() {
    let mut written = Written::new(Shape::Strip);
    let first = written.aim();
    written.send(first, 0);
    let (start, mut asked) = (Instant::now(), 0);
    for _ in 0..2000 {
        written.send(first, 5);
        written.send(first, 4);
        asked += written.asked_until("a poll", |_| true);
    }
    // Four within a millisecond of the first of them.
    let most = 4 * (start.elapsed().as_millis() as usize + 1);
    assert!((1..=most).contains(&asked), "{asked}, at most {most}");
    (1..6).for_each(|frame| written.send(first, frame));
    written.seal();
    written.is_done();
}

/// On one queue, too, and the bytes that headers cover are back before it aims again.
#[test]
fn a_forged_frame_on_one_queue_is_found_before_its_block_is_exposed() {
    for shape in [Shape::Strip, Shape::Overlay] {
        let mut written = Written::over(Lied::on_one_queue(shape));
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
        let [again, frame, front] = written.words_in(RESEND);
        assert_eq!(frame, 0);
        let counters = written.lied.setup.devices.borrow()[0].counters();
        assert_eq!((counters.placed, counters.rejected), (0, 1), "{shape:?}");
        assert!(written.lied.near.messages.is_empty(), "it was announced");
        let end = START + COUNT * BLOCK;
        written.lied.check(&written.model, START..end);
        written.send_empty(front);
        for frame in 0..3 * COUNT as u32 {
            written.send(again, frame);
        }
        written.is_done();
    }
}

/// The peer answers probes and sends everything that it is asked for, but the seal never matches.
#[test]
fn an_endpoint_with_wrong_seals_only_is_lost() {
    let shape = Shape::Strip;
    for mut setup in [
        Placing::new(shape, FrameFaults::default()),
        Placing::on_one_queue(shape, FrameFaults::default()),
    ] {
        setup.options.lost_after = Duration::from_secs(1);
        let mut written = Written::over(Lied::over(setup, shape));
        let first = written.aim();
        (0..3 * COUNT as u32).for_each(|frame| written.send(first, frame));
        written.data[0] ^= 1;
        written.seal();
        written.data[0] ^= 1;
        let (start, mut number) = (Instant::now(), 1 << 63);
        while written.lied.near.lost.is_empty() {
            assert!(start.elapsed() < PATIENCE / 4, "it is asked without end");
            number += 1;
            written.tell(PROBE, number, &[]);
            written.lied.near.poll();
            for frame in written.lied.liar.receive() {
                if parts(&frame).0 != RESEND {
                    continue;
                }
                let word = |at: usize| u32::from_le_bytes(*frame[at..].first_chunk().unwrap());
                let (front, first) = (word(28), word(HEADER + 8));
                written.send_empty(front);
                for frame in word(HEADER + 12)..3 * COUNT as u32 {
                    written.send(first, frame);
                    // The receiver counts progress.
                    written.lied.near.poll();
                }
            }
        }
        assert_eq!(written.lied.near.lost[0].1, Failure::PeerLost);
        written.lied.near.lost.clear();
        let counters = written.lied.setup.devices.borrow()[0].counters();
        assert!(
            counters.rejected > 1 && counters.placed == 0,
            "{counters:?}"
        );
        let end = START + COUNT * BLOCK;
        written.lied.check(&written.model, START..end);
    }
}

/// Only the second block is aimed at again.
#[test]
fn a_block_that_landed_in_a_time_slice_on_one_queue_is_kept() {
    for shape in [Shape::Strip, Shape::Overlay] {
        let mut written = Written::over(Lied::on_one_queue(shape));
        let first = written.aim();
        (0..4).for_each(|frame| written.send(first, frame));
        let (again, frame, front) = loop {
            let [again, frame, front] = written.words_in(RESEND);
            if again != first {
                break (again, frame, front);
            }
        };
        assert_eq!(frame, 3, "{shape:?}");
        written.send_empty(front);
        (3..6).for_each(|frame| written.send(again, frame));
        written.seal();
        written.is_done();
    }
}
