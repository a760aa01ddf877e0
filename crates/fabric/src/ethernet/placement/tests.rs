//! Runs that are withdrawn, wait, or do not end, at an interface that is not there.

use std::time::{Duration, Instant};

use smallvec::smallvec;

use zerocopy::{FromZeros, IntoBytes};

use super::super::fuzzing::{interface, interface_with, joined, packet};
use super::super::input;
use super::super::link::{Landing, Link};
use super::super::local::Local;
use super::super::shared::PlacedFrame;
use super::super::wire::{self, Kind};
use super::*;

const OWNER: (u32, EndpointId) = (0, EndpointId(0));
const OTHER: (u32, EndpointId) = (0, EndpointId(1));
const SHAPE: Shape = Shape::Overlay;
/// Frames for one queue: a run can be aimed at again by descriptors of other frames, since the kernel consumes none here.
const FEW: u32 = 300;

/// Two blocks of the memory that peers reach.
fn run(memory: &Registration) -> Run {
    Run {
        key: memory.key(),
        offset: 3 * u64::from(BLOCK),
        blocks: 2,
        source: Hardware([2, 0, 0, 0, 0, 2]),
    }
}

fn placement(shared: &Shared) -> &Mutex<Placement> {
    &shared.placement.as_ref().unwrap().0
}

/// The socket is closed before it has reported the frames.
#[test]
fn a_withdrawal_gives_back_frames_that_are_being_sent() {
    let (mut local, memory) = interface(false);
    let shared = local.shared.clone();
    let run = run(&memory);
    let aimed = placement(&shared).lock().aim(&shared, SHAPE, OWNER, run);
    assert!(aimed.is_some());
    let frames: Vec<u32> = (0..20).map(|_| local.frames.take().unwrap()).collect();
    let placed = frames
        .iter()
        .map(|&frame| PlacedFrame(smallvec![(frame, 64)]));
    let placed: Vec<PlacedFrame> = placed.collect();
    assert_eq!(shared.transmit_placed(&placed), frames.len());
    assert!(frames.iter().all(|&frame| !shared.is_back(frame)));
    placement(&shared)
        .lock()
        .withdraw(&shared, SHAPE, memory.key());
    assert!(frames.iter().all(|&frame| shared.is_back(frame)));
}

/// A run ends before it is whole, so the socket is closed, and a thread that sends opens the next one.
#[test]
fn a_run_stays_astray_when_frames_are_sent_by_a_new_socket() {
    let (local, memory) = interface(false);
    let shared = &local.shared;
    let (shape, run) = (Shape::Strip, run(&memory));
    let mut placement = placement(shared).lock();
    let [first, second] = [(); 2].map(|()| {
        let aimed = placement.aim_next(shared, shape, OWNER, run);
        aimed.unwrap().first
    });
    placement.finish(shared, shape, OWNER, first);
    placement.open(DataSocket::detached(64));
    let progress = placement.progress(shared, shape, OWNER, second);
    assert_eq!(progress, Some(Progress::Astray));
}

/// Bytes before the blocks are restored when the socket is closed. After that no header comes, but another component may write there.
#[test]
fn bytes_before_a_run_are_restored_once() {
    let (local, memory) = interface(false);
    let shared = &local.shared;
    let run = run(&memory);
    let at = run.offset - HEADER;
    let mut placement = placement(shared).lock();
    shared.region.write(at, &[1; HEADER as usize]);
    let aimed = placement.aim(shared, SHAPE, OWNER, run).unwrap();
    shared.region.write(at, &[2; HEADER as usize]);
    let found = || {
        let mut found = [0; HEADER as usize];
        shared.region.read(at, &mut found);
        found
    };
    let again = placement.aim_again(shared, SHAPE, OWNER, aimed.first);
    assert_eq!((again, found()), (None, [1; HEADER as usize]));
    shared.region.write(at, &[3; HEADER as usize]);
    let again = placement.aim_again(shared, SHAPE, OWNER, aimed.first);
    assert_eq!((again, found()), (None, [3; HEADER as usize]));
    placement.finish_all(shared, SHAPE, OWNER);
    assert_eq!(found(), [3; HEADER as usize]);
}

/// The kernel has not freed the queue when it is to be aimed at again, and the run of another peer comes after it has.
#[test]
fn a_new_run_does_not_precede_one_that_waits() {
    let (local, memory) = interface(false);
    let shared = &local.shared;
    let run = run(&memory);
    let mut placement = placement(shared).lock();
    let first = placement.aim(shared, SHAPE, OWNER, run).unwrap().first;
    let again = placement.aim_again(shared, SHAPE, OWNER, first);
    assert_eq!(again, None, "no socket can be opened here");
    placement.open(DataSocket::detached(64));
    assert_eq!(placement.aim(shared, SHAPE, OTHER, run), None);
    let again = placement.aim_again(shared, SHAPE, OWNER, first);
    let first = again.unwrap().0.first;
    let progress = placement.progress(shared, SHAPE, OWNER, first);
    assert_eq!(progress, Some(Progress::Expects(0)));
    placement.finish_all(shared, SHAPE, OWNER);
    placement.open(DataSocket::detached(64));
    assert!(placement.aim(shared, SHAPE, OTHER, run).is_some());
}

/// A run in its pause does not wait: others may be aimed at.
#[test]
fn a_new_run_on_one_queue_does_not_precede_one_that_waits() {
    let (local, memory) = interface_with(true, FEW);
    let shared = &local.shared;
    let run = run(&memory);
    let mut placement = placement(shared).lock();
    let first = placement.aim(shared, SHAPE, OWNER, run).unwrap().first;
    placement.pause(shared, SHAPE, OWNER, first);
    assert!(placement.aim_next(shared, SHAPE, OTHER, run).is_some());
    let again = placement.aim_again(shared, SHAPE, OWNER, first);
    assert_eq!(again, None, "another one is aimed at");
    placement.finish_all(shared, SHAPE, OTHER);
    assert_eq!(placement.aim_next(shared, SHAPE, OTHER, run), None);
    let again = placement.aim_again(shared, SHAPE, OWNER, first);
    assert!(again.is_some());
}

/// The ring is full.
#[test]
fn a_run_keeps_its_number_when_the_port_refuses_to_aim_again() {
    let (local, memory) = interface(true);
    let shared = &local.shared;
    let mut placement = placement(shared).lock();
    let aimed = placement.aim(shared, SHAPE, OWNER, run(&memory)).unwrap();
    let again = placement.aim_again(shared, SHAPE, OWNER, aimed.first);
    assert_eq!(again, None);
    let progress = placement.progress(shared, SHAPE, OWNER, aimed.first);
    assert_eq!(progress, Some(Progress::Astray));
}

/// A link with a write or a read of two blocks that is aimed at.
fn landing(local: &Local, memory: &Registration, is_read: bool) -> Link {
    let mut link = joined(local, memory);
    link.requests.clear();
    let shared = &local.shared;
    let aimed = placement(shared)
        .lock()
        .aim(shared, SHAPE, OWNER, run(memory));
    let landing = Landing::new(0, 2 * BLOCK, aimed.unwrap(), true);
    match is_read {
        true => link.fetches.push_back(landing),
        false => link.landing = Some(landing),
    }
    link
}

/// Checks a link of a peer that answers probes for so long. The thread does not spin meanwhile.
fn check_for(link: &mut Link, local: &mut Local, start: Instant, time: Duration) {
    let step = Duration::from_millis(10);
    for number in 0..=time.as_millis() / step.as_millis() {
        let now = start + step * number as u32;
        link.heard = now;
        link.check(local, now);
        let due = link.deadline(local.shared.options.lost_after);
        assert!(due.is_none_or(|due| due > now), "step {number}");
    }
}

/// The packet that ends it never comes.
#[test]
fn a_link_with_a_whole_run_that_does_not_end_is_lost() {
    for is_read in [false, true] {
        let (mut local, memory) = interface(true);
        let mut link = landing(&local, &memory, is_read);
        placement(&local.shared).lock().aims[0].landed = 6;
        let (start, lost_after) = (Instant::now(), local.shared.options.lost_after);
        check_for(&mut link, &mut local, start, lost_after / 2);
        assert!(!link.ended && !placement(&local.shared).lock().aims.is_empty());
        let start = start + lost_after / 2;
        check_for(&mut link, &mut local, start, lost_after);
        assert!(link.ended && placement(&local.shared).lock().aims.is_empty());
    }
}

/// The packet that ends it waits behind a message without a buffer.
#[test]
fn a_link_with_a_whole_read_behind_a_message_without_a_buffer_is_not_lost() {
    let (mut local, memory) = interface(true);
    let mut link = landing(&local, &memory, true);
    placement(&local.shared).lock().aims[0].landed = 6;
    link.stalled = true;
    let time = 2 * local.shared.options.lost_after;
    check_for(&mut link, &mut local, Instant::now(), time);
    assert!(!link.ended);
}

/// The packet that ends it never comes. A write is refused, and a read is repeated in packets.
#[test]
fn a_run_on_one_queue_with_a_withdrawn_key_ends() {
    for is_read in [false, true] {
        let (mut local, memory) = interface(true);
        let mut link = landing(&local, &memory, is_read);
        let shared = local.shared.clone();
        placement(&shared)
            .lock()
            .withdraw(&shared, SHAPE, memory.key());
        check_for(&mut link, &mut local, Instant::now(), Duration::ZERO);
        assert_eq!(link.refused, !is_read);
        assert!(link.landing.is_none() && link.fetches.is_empty());
    }
}

/// A run waits for that of another peer, or the port refuses it.
#[test]
fn time_counts_as_without_progress_unless_another_run_is_aimed_at() {
    for is_alone in [false, true] {
        let frames = if is_alone { 512 } else { FEW };
        let (mut local, memory) = interface_with(true, frames);
        let mut link = landing(&local, &memory, false);
        let shared = local.shared.clone();
        let first = link.landing.as_ref().unwrap().first;
        let start = Instant::now();
        placement(&shared)
            .lock()
            .pause(&shared, SHAPE, OWNER, first);
        let other = placement(&shared)
            .lock()
            .aim(&shared, SHAPE, OTHER, run(&memory));
        assert_eq!(other.is_none(), is_alone);
        let time = 3 * shared.options.lost_after;
        check_for(&mut link, &mut local, start, time);
        assert_eq!(link.ended, is_alone);
    }
}

/// All frames were counted, and the kernel has lost one: jumbo frames behind it were misplaced.
#[test]
fn no_block_is_kept_on_two_queues() {
    let (local, memory) = interface(false);
    let shared = &local.shared;
    let mut placement = placement(shared).lock();
    let aimed = placement.aim(shared, SHAPE, OWNER, run(&memory)).unwrap();
    placement.aims[0].landed = 3;
    let again = placement.aim_again(shared, SHAPE, OWNER, aimed.first);
    assert_eq!(again, None, "no socket can be opened here");
    placement.open(DataSocket::detached(64));
    let again = placement.aim_again(shared, SHAPE, OWNER, aimed.first);
    assert_eq!(again.map(|(_, from)| from), Some(0));
}

/// The program has counted all frames, and the kernel has lost one. Placed waits, and the thread polls when something is due.
#[test]
fn a_run_that_the_kernel_has_lost_a_frame_of_is_aimed_at_again_without_a_pause() {
    let (mut local, memory) = interface_with(true, FEW);
    let mut link = landing(&local, &memory, false);
    let first = link.landing.as_ref().unwrap().first;
    let port = local.shared.port.lock();
    let lane = port.lane().unwrap();
    lane.open(run(&memory).source, first.wrapping_add(6), 0);
    drop(port);
    let placed = wire::Placed::new_zeroed();
    let head = [0, 0, Kind::Placed as u8, 0, 0, 0];
    let frame = packet(&link, &head, placed.as_bytes()).unwrap();
    link.incoming.keep(link.incoming.expected, &frame);
    for _ in 0..10 {
        while link
            .deadline(local.shared.options.lost_after)
            .is_some_and(|due| Instant::now() < due)
        {}
        link.check(&mut local, Instant::now());
        input::resume(&mut link, &mut local);
        let landing = link.landing.as_ref().unwrap();
        assert!(!landing.is_paused(Instant::now()));
        if landing.first != first {
            return;
        }
    }
    panic!("it is not aimed at again");
}
