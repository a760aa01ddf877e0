//! Runs that are withdrawn, at an interface that is not there.

use smallvec::smallvec;

use super::super::fuzzing::interface;
use super::super::shared::PlacedFrame;
use super::*;

const OWNER: (u32, EndpointId) = (0, EndpointId(0));
const SHAPE: Shape = Shape::Overlay;

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

/// The kernel has not freed the queue when it is to be aimed at again, and a thread that sends opens the next socket.
#[test]
fn a_run_stays_astray_when_frames_are_sent_by_a_new_socket() {
    let (local, memory) = interface(false);
    let shared = &local.shared;
    let mut placement = placement(shared).lock();
    let aimed = placement.aim(shared, SHAPE, OWNER, run(&memory)).unwrap();
    let again = placement.aim_again(shared, SHAPE, OWNER, aimed.first);
    assert_eq!(again, None, "no socket can be opened here");
    placement.open(DataSocket::detached(64));
    let progress = placement.progress(shared, SHAPE, OWNER, aimed.first);
    assert_eq!(progress, Some(Progress::Astray));
    // It has nothing aimed, so it need not be closed for the next attempt.
    let again = placement.aim_again(shared, SHAPE, OWNER, aimed.first);
    let first = again.unwrap().0.first;
    let progress = placement.progress(shared, SHAPE, OWNER, first);
    assert_eq!(progress, Some(Progress::Expects(0)));
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
