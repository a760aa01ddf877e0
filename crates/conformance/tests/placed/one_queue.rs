//! Data and other frames come by one queue, and take descriptors from one ring: frames without content use up those in front of the
//! data, as in the seed.

use std::time::{Duration, Instant};

use fabric::ethernet::{FrameFaults, Shape};
use fabric::{Access, Failure, Source, Work, WorkRequest};

use super::super::raw::{HEADER, Packet, RawHost, parts};
use super::super::suite::{Pair, Random, join};
use super::liar::Lied;
use super::reads::reads_by;
use super::{BLOCK, BLOCKS, Placing, Target, writes};

/// Kinds of packets.
const AIM: u8 = 9;
const AIMED: u8 = 10;
const ACKNOWLEDGE: u8 = 16;
const PROBE: u8 = 17;
const RESEND: u8 = 20;
const UNSEQUENCED: u64 = 1 << 63;

const SHAPES: [Shape; 2] = [Shape::Strip, Shape::Overlay];

#[test]
fn blocks_on_one_queue_land_where_they_belong_and_nothing_else_changes() {
    for shape in SHAPES {
        let setup = Placing::on_one_queue(shape, FrameFaults::default());
        writes(&setup, 40);
    }
}

#[test]
fn blocks_of_reads_on_one_queue_land_in_the_buffer_and_nothing_else_changes() {
    for shape in SHAPES {
        let setup = Placing::on_one_queue(shape, FrameFaults::default());
        let counters = reads_by(&setup, 40);
        assert!(counters.placed >= 35, "{shape:?}: {counters:?}");
    }
}

/// Frames without content are lost, too: then there are descriptors in front of the data, which the receiver announces again.
#[test]
fn lost_doubled_reordered_and_damaged_frames_on_one_queue_misplace_nothing() {
    let faults = FrameFaults {
        loss_permille: 5,
        duplication_permille: 10,
        reorder_permille: 5,
        corruption_permille: 1,
        seed: 5,
    };
    for shape in SHAPES {
        writes(&Placing::on_one_queue(shape, faults), 20);
        let counters = reads_by(&Placing::on_one_queue(shape, faults), 20);
        assert!(counters.placed >= 5, "{shape:?}: {counters:?}");
    }
}

/// Messages of another endpoint come between the frames.
#[test]
fn messages_pass_while_blocks_are_placed_on_one_queue() {
    const MESSAGES: u64 = 500;
    let setup = Placing::on_one_queue(Shape::Strip, FrameFaults::default());
    let mut pair = Pair::new(&setup);
    let mut random = Random(51);
    let mut target = Target::new(&pair, &setup, &mut random);
    let remote = pair.import(&target.memory);
    let (other_far, _) = join(&setup, &mut pair.near, &mut pair.far);
    let near = pair.near.memory(BLOCKS * BLOCK, Access::LOCAL);
    let bytes = random.bytes(500 * BLOCK as usize);
    near.region().write(0, &bytes);
    let pieces = [near.piece(0, bytes.len() as u32)];
    let write = Work::Write {
        from: Source::Pieces(&pieces),
        to: remote.at(BLOCK),
        immediate: None,
    };
    let (mut sent, mut received, mut written) = (0_u64, 0, 0);
    let to_far = pair.to_far;
    let mut is_posted = false;
    pair.until("all messages and writes", |near, far| {
        if !is_posted && written < 10 {
            let request = WorkRequest::new(written, write);
            is_posted = near.queue.post(to_far, &request).is_ok();
        }
        let send = Work::Send {
            from: Source::Inline(&sent.to_le_bytes()),
            immediate: None,
        };
        if sent < MESSAGES
            && near
                .queue
                .post(other_far, &WorkRequest::new(sent, send))
                .is_ok()
        {
            sent += 1;
        }
        if let Some(outcome) = near.outcome(to_far, written) {
            assert_eq!(outcome, Ok(0));
            (written, is_posted) = (written + 1, false);
        }
        for message in far.messages.drain(..) {
            let mut found = [0; 8];
            message.read(0, &mut found);
            assert_eq!(u64::from_le_bytes(found), received);
            received += 1;
        }
        written == 10 && received == MESSAGES
    });
    target.model[BLOCK as usize..][..bytes.len()].copy_from_slice(&bytes);
    target.check("all writes");
    assert!(setup.placed() >= 10);
}

/// An aim at these blocks of the memory, from block 100 on.
fn aim(memory: &fabric::Registration, blocks: u32) -> Vec<u8> {
    let words = [0, memory.descriptor().key.0, 100 * BLOCK].map(u64::to_le_bytes);
    let bytes = (blocks * BLOCK as u32).to_le_bytes();
    [&words.concat(), &bytes[..], &[0; 4]].concat()
}

/// One probe after the other is answered, for a while. Frames are dropped for a moment while descriptors are withdrawn.
fn expect_answers(lied: &mut Lied, greeting: &fabric::Parameters, number: &mut u64) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(400) {
        let mut again_at = Instant::now();
        lied.until("an answer", |_, liar| {
            if Instant::now() >= again_at {
                again_at = Instant::now() + Duration::from_millis(1);
                *number += 1;
                let probe = Packet {
                    kind: PROBE,
                    flags: 0,
                    sequence: UNSEQUENCED | *number,
                    body: &[],
                };
                liar.tell(greeting, probe);
            }
            let frames = liar.receive();
            frames.iter().any(|frame| parts(frame).0 == ACKNOWLEDGE)
        });
    }
}

/// A peer has had a long run aimed at, and has ended. Others are answered, and descriptors are withdrawn at most twice in 70 ms.
#[test]
fn a_peer_that_dies_after_its_aim_holds_no_other_peer_up() {
    SHAPES.into_iter().for_each(die_after_aim);
}

fn die_after_aim(shape: Shape) {
    let mut lied = Lied::on_one_queue(shape);
    let model = Random(53).bytes((BLOCKS * BLOCK) as usize);
    lied.pool.write(0, &model);
    let memory = lied.near.device.register(&lied.pool, Access::ALL).unwrap();
    let (_, greeting) = lied.join();
    let (_, second) = lied.join();
    let mut number = 0;
    expect_answers(&mut lied, &second, &mut number);
    let body = aim(&memory, 256);
    let packet = Packet {
        kind: AIM,
        flags: 1,
        sequence: 0,
        body: &body,
    };
    let start = Instant::now();
    lied.liar.tell(&greeting, packet);
    expect_answers(&mut lied, &second, &mut number);
    // A withdrawal keeps all frames away for a moment: one after 20 ms without frames, and one after a pause of 50 ms, when descriptors of
    // other frames are aimed.
    let stops = lied.setup.devices.borrow()[0].counters().stops;
    let most = start.elapsed().as_millis() as u64 / 35 + 1;
    assert!((1..=most).contains(&stops), "{stops} stops, at most {most}");
    lied.check(&model, 0..0);
}

/// A peer has had a run aimed at, and sends no data. Another one asks until it is aimed at, too, and sends no data, either. Then the
/// first one is aimed at again.
#[test]
fn peers_that_make_no_progress_have_time_slices_one_after_the_other() {
    for shape in SHAPES {
        let mut lied = Lied::on_one_queue(shape);
        let memory = lied.near.device.register(&lied.pool, Access::ALL).unwrap();
        let (_, first) = lied.join();
        let (_, second) = lied.join();
        let number = aimed(&mut lied, &first, &memory, 0);
        assert_ne!(number, None, "{shape:?}");
        aimed_at_last(&mut lied, &second, &memory);
        lied.until("the first one is aimed at again", |_, liar| {
            is_aimed_again(liar, &first)
        });
    }
}

/// A peer sends all frames of its run, and nothing that ends it. Another one waits meanwhile, and is aimed at when the first is lost.
#[test]
fn a_peer_that_does_not_end_its_run_is_lost_and_those_that_wait_are_not() {
    let shape = Shape::Strip;
    let mut setup = Placing::on_one_queue(shape, FrameFaults::default());
    setup.options.lost_after = Duration::from_secs(1);
    let mut lied = Lied::over(setup, shape);
    let memory = lied.near.device.register(&lied.pool, Access::ALL).unwrap();
    let ((lost, first), (_, second)) = (lied.join(), lied.join());
    // It waits from the end of its pause on.
    let number = aimed(&mut lied, &second, &memory, 0);
    assert_ne!(number, None);
    let (front, number) = aimed_at_last(&mut lied, &first, &memory);
    for _ in 0..front {
        let frame = lied.liar.empty(&first);
        lied.liar.send_data(&frame);
    }
    for frame in 0..6 {
        let (_, bytes) = shape.segment(frame % 3);
        let frame = lied
            .liar
            .data(&first, number + frame, &vec![7; bytes as usize]);
        lied.liar.send_data(&frame);
    }
    let mut sequence = UNSEQUENCED;
    let mut probed_at = Instant::now();
    lied.until("the second one is aimed at", |near, liar| {
        if probed_at.elapsed() >= Duration::from_millis(10) {
            probed_at = Instant::now();
            sequence += 1;
            let probe = Packet {
                kind: PROBE,
                flags: 0,
                sequence,
                body: &[],
            };
            liar.tell(&first, probe);
            liar.tell(&second, probe);
        }
        is_aimed_again(liar, &second) && !near.lost.is_empty()
    });
    assert_eq!(lied.near.lost, [(lost, Failure::PeerLost)]);
}

/// Whether frames of the run of this peer were asked for.
fn is_aimed_again(liar: &mut RawHost, greeting: &fabric::Parameters) -> bool {
    let frames = liar.receive();
    let mut answers = frames.iter().map(|frame| parts(frame));
    answers.any(|(kind, _, body)| kind == RESEND && body[0] == greeting.bytes[4])
}

/// Asks until two blocks are aimed at.
fn aimed_at_last(
    lied: &mut Lied,
    greeting: &fabric::Parameters,
    memory: &fabric::Registration,
) -> (u32, u32) {
    // The answers fit in the window, since the peer acknowledges none.
    for sequence in 0..7 {
        if let Some(found) = aimed(lied, greeting, memory, sequence) {
            return found;
        }
        let again_at = Instant::now() + Duration::from_millis(10);
        lied.until("a while", |_, _| Instant::now() >= again_at);
    }
    panic!("it is never aimed at");
}

/// Frames without content to send first, and number of the first frame, if a request with this number has two blocks aimed at.
fn aimed(
    lied: &mut Lied,
    greeting: &fabric::Parameters,
    memory: &fabric::Registration,
    sequence: u64,
) -> Option<(u32, u32)> {
    // No other request has this number.
    let request = sequence << 8 | u64::from(greeting.bytes[4]);
    let mut body = aim(memory, 2);
    body[..8].copy_from_slice(&request.to_le_bytes());
    let (mut again_at, mut found) = (Instant::now(), None);
    lied.until("an answer", |_, liar| {
        if Instant::now() >= again_at {
            again_at = Instant::now() + Duration::from_millis(1);
            let packet = Packet {
                kind: AIM,
                flags: 1,
                sequence,
                body: &body,
            };
            liar.tell(greeting, packet);
        }
        liar.receive().iter().any(|frame| {
            let (kind, _, body) = parts(frame);
            let word = |at: usize| u64::from_le_bytes(*body[at..].first_chunk().unwrap());
            let is_it = kind == AIMED && word(0) == request;
            if is_it && word(8) != 0 {
                let front = u32::from_le_bytes(*frame[28..].first_chunk().unwrap());
                found = Some((front, word(8) as u32));
            }
            is_it
        })
    });
    found
}

/// A peer has had a long run aimed at, and is silent for a while: it is aimed at again and again, and its data lands afterwards.
#[test]
fn a_peer_that_pauses_after_its_aim_is_aimed_at_again() {
    let mut lied = Lied::on_one_queue(Shape::Strip);
    let model = Random(54).bytes((BLOCKS * BLOCK) as usize);
    lied.pool.write(0, &model);
    let memory = lied.near.device.register(&lied.pool, Access::ALL).unwrap();
    let (_, greeting) = lied.join();
    let body = aim(&memory, 256);
    let packet = Packet {
        kind: AIM,
        flags: 1,
        sequence: 0,
        body: &body,
    };
    lied.liar.tell(&greeting, packet);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        lied.near.poll();
        lied.liar.receive();
    }
    let last = (100 + 255) * BLOCK;
    let mut found = [0; 1496];
    lied.until("the first frame lands", |_, liar| {
        let frames = liar.receive();
        if let Some(asks) = frames.iter().rfind(|frame| parts(frame).0 == RESEND) {
            let number = |at: usize| u32::from_le_bytes(*asks[at..].first_chunk().unwrap());
            // The answer's value is behind the number of the request.
            let (front, first) = (number(28), number(HEADER + 8));
            let frame = liar.empty(&greeting);
            (0..front).for_each(|_| liar.send_data(&frame));
            let frame = liar.data(&greeting, first, &[7; 1496]);
            liar.send_data(&frame);
        }
        memory.region().read(last + 2600, &mut found);
        found == [7; 1496]
    });
    lied.check(&model, last..last + BLOCK);
}

/// A peer has used up all descriptors in front, and sends no data: the descriptors are withdrawn, since all other frames wait for them.
#[test]
fn a_peer_that_sends_no_data_keeps_other_frames_away_for_a_moment_only() {
    SHAPES.into_iter().for_each(send_no_data);
}

fn send_no_data(shape: Shape) {
    let mut lied = Lied::on_one_queue(shape);
    let model = Random(52).bytes((BLOCKS * BLOCK) as usize);
    lied.pool.write(0, &model);
    let memory = lied.near.device.register(&lied.pool, Access::ALL).unwrap();
    let (_, greeting) = lied.join();
    let (_, second) = lied.join();
    let body = aim(&memory, 2);
    lied.liar.tell(
        &greeting,
        Packet {
            kind: AIM,
            flags: 1,
            sequence: 0,
            body: &body,
        },
    );
    let mut front = 0;
    lied.until("it aims", |_, liar| {
        let frames = liar.receive();
        let mut found = frames.iter().filter(|frame| parts(frame).0 == AIMED);
        found.next().is_some_and(|frame| {
            front = u32::from_le_bytes(*frame[28..32].first_chunk().unwrap());
            true
        })
    });
    assert!(front >= 64, "{front}");
    for _ in 0..2 * front {
        let frame = lied.liar.empty(&greeting);
        lied.liar.send_data(&frame);
    }
    for round in 1..20 {
        let mut number = round * 1000;
        lied.until("an answer", |_, liar| {
            number += 1;
            let probe = Packet {
                kind: PROBE,
                flags: 0,
                sequence: UNSEQUENCED | number,
                body: &[],
            };
            liar.tell(&second, probe);
            let frames = liar.receive();
            frames.iter().any(|frame| parts(frame).0 == ACKNOWLEDGE)
        });
        // Descriptors that were aimed are in front now, until they are used up.
        for _ in 0..200 {
            let frame = lied.liar.empty(&greeting);
            lied.liar.send_data(&frame);
        }
    }
    lied.check(&model, 0..0);
}
