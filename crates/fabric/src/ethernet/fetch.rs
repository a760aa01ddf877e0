//! Reads with data that is received where it belongs. The reader aims at its own memory, which needs no answer.
//!
//! ```text
//!   reader                              owner of the memory
//!   aims 3 descriptors at each block
//!   Fetch: blocks, first number  ───►   may it?
//!                                ◄═══   3 frames for each block
//!                                ◄───   Fetched: seal
//!   all there? the seal right? then it is acknowledged, and the read has ended
//!   Refetch: from this number    ───►   a frame was lost
//!   Read                         ───►   the seal is wrong: the data comes in packets
//! ```

use std::time::Instant;

use zerocopy::{FromBytes, IntoBytes};

use super::count;
use super::frames::empty_before;
use super::input::{Outcome, refuse, sent};
use super::link::{Answer, Asked, Landing, Link, RESEND_AFTER};
use super::local::Local;
use super::placement::{self, Aimed, BLOCK, BLOCKS_MAX, Progress, Run};
use super::protection::is_same;
use super::wire::{self, Kind, Packet};
use crate::{Access, Failure, Key};

/// Fetches of one endpoint that are served at once.
const SERVED_MAX: usize = 1 << 10;

/// Blocks that a peer reads, and has aimed at.
pub struct Serving {
    pub request: u64,
    /// Frames without content to send before.
    pub empty: u32,
    pub key: u64,
    pub offset: u64,
    pub blocks: u32,
    /// Frames of all blocks.
    pub frames: u32,
    /// Number of the first frame.
    pub first: u32,
    /// The frame to send next.
    pub next: u32,
    /// The packet that ends it, once that was sent.
    pub sealed: Option<u64>,
}

impl Serving {
    pub fn has_frames(&self) -> bool {
        self.next < self.frames
    }
}

/// Aims at the memory of the read that is sent next. Nothing is returned if its data comes in packets.
pub fn aim(link: &mut Link, local: &Local) -> Option<Aimed> {
    let pending = &link.requests[link.cursor];
    let (Asked::Read { into, .. }, Some(other)) = (&pending.asked, &link.other) else {
        return None;
    };
    let request = pending.sequence;
    if let Some(fetch) = link.fetches.back().filter(|last| last.request == request) {
        let (first, front) = (fetch.first, fetch.front);
        return Some(Aimed { first, front });
    }
    let (placement, shape) = local.shared.placement.as_ref()?;
    let (key, offset) = into.range_of(&local.shared.region)?;
    let bytes = into.length();
    // Behind a write of the peer both could wait for ever: a lost frame of the write keeps those of the read away, and the read's
    // end keeps the packet back upon which that frame is asked for again.
    if link.landing.is_some() || other.places.is_none() {
        return None;
    }
    if !placement::is_run(&local.shared, offset, bytes.into()) {
        return None;
    }
    let run = Run {
        key,
        offset,
        blocks: bytes / BLOCK,
        source: xdp::Hardware(other.target.hardware),
    };
    let owner = (local.member.slot, link.id);
    let mut placement = placement.lock();
    let aimed = placement.aim_next(&local.shared, *shape, owner, run)?;
    let is_alone = local.shared.is_on_one_queue();
    let landing = Landing::new(request, bytes, aimed, is_alone);
    link.fetches.push_back(landing);
    Some(aimed)
}

/// The peer wants to read, and has aimed.
pub fn fetch(link: &mut Link, local: &mut Local, packet: &Packet<'_>) -> Option<()> {
    let (head, _) = wire::Transfer::ref_from_prefix(packet.body).ok()?;
    let (request, bytes, first) = (head.request.get(), head.total.get(), head.at.get());
    let (key, offset) = (head.key.get(), head.offset.get());
    let blocks = bytes / BLOCK;
    let shape = link.other.as_ref()?.places?;
    let is_run = bytes.is_multiple_of(BLOCK) && (1..=BLOCKS_MAX).contains(&blocks);
    if !is_run || link.served.len() >= SERVED_MAX {
        return None;
    }
    let found = local
        .shared
        .with(Key(key), Access::READ, offset, bytes.into(), |_| ());
    if let Err(failure) = found {
        refuse(link, local, request, failure);
        return Some(());
    }
    link.served.push_back(Serving {
        request,
        empty: empty_before(local, packet),
        key,
        offset,
        blocks,
        frames: blocks * shape.frames(),
        first,
        next: 0,
        sealed: None,
    });
    link.answers.push_back(Answer::Fetched { request });
    Some(())
}

/// The seal of blocks that a peer reads; nothing before all their frames were sent.
pub fn seal(link: &Link, local: &Local, request: u64) -> Option<Result<[u8; 32], Failure>> {
    let found = link.served.iter().find(|found| found.request == request);
    let (serving, other) = (found?, link.other.as_ref()?);
    if serving.has_frames() {
        return None;
    }
    let (offset, bytes) = (serving.offset, serving.blocks * BLOCK);
    let (key, shared) = (Key(serving.key), &local.shared);
    Some(
        shared.with(key, Access::READ, offset, bytes.into(), |memory| {
            placement::seal_of_region(&other.to, request, memory.region(), offset, bytes)
        }),
    )
}

/// The seal of a read was sent with this packet, if the answer is one.
pub fn is_sealed(link: &mut Link, answer: Option<Answer>, sequence: u64) {
    if let Some(Answer::Fetched { request }) = answer {
        let found = link.served.iter_mut();
        for serving in found.filter(|found| found.request == request) {
            serving.sealed = Some(sequence);
        }
    }
}

/// The peer misses a frame: it is sent again, and so are those behind it, which the peer has dropped.
pub fn refetch(link: &mut Link, local: &Local, packet: &Packet<'_>) {
    let Ok((head, _)) = wire::Answer::ref_from_prefix(packet.body) else {
        return;
    };
    let (request, from) = (head.request.get(), head.value.get());
    let is_it = |found: &Serving| found.request == request;
    let Some(index) = link.served.iter().position(is_it) else {
        return;
    };
    let missed = &mut link.served[index];
    // Frames without content that were announced before are still to be sent.
    if missed.empty == 0 && from < u64::from(missed.next) {
        missed.next = from as u32;
        missed.empty = empty_before(local, packet);
        for later in link.served.iter_mut().skip(index + 1) {
            later.next = 0;
        }
        count(&local.shared.counts.repeated);
    }
}

/// The peer has sent all frames of a read.
pub fn fetched(link: &mut Link, local: &mut Local, packet: &Packet<'_>) -> Outcome {
    let Ok((head, _)) = wire::Placed::ref_from_prefix(packet.body) else {
        return Outcome::Violation;
    };
    let request = head.request.get();
    let Some(Asked::Read { .. }) = sent(link, request).map(|found| &found.asked) else {
        return Outcome::Violation;
    };
    let awaits = |fetch: &&mut Landing| fetch.request == request;
    let (Some(fetch), Some(other)) = (link.fetches.front_mut().filter(awaits), &link.other) else {
        // It was asked for in packets meanwhile.
        return Outcome::Executed;
    };
    let shared = local.shared.clone();
    let Some((placement, shape)) = shared.placement.as_ref() else {
        return Outcome::Violation;
    };
    let now = Instant::now();
    let frames = fetch.bytes / BLOCK * shape.frames();
    let owner = (local.member.slot, link.id);
    let mut placing = placement.lock();
    let wanted = match placing.progress(&shared, *shape, owner, fetch.first) {
        Some(Progress::All) => {
            let (aim, made) = ((owner, fetch.first), (&other.from, request));
            let seal = placing.seal(&shared, *shape, aim, made);
            placing.finish(&shared, *shape, owner, fetch.first);
            drop(placing);
            let is_right = seal.is_some_and(|seal| is_same(&seal, &head.seal));
            link.fetches.pop_front();
            if is_right {
                shared.count_placed(frames);
                return end(link, local, request);
            }
            count(&shared.counts.rejected);
            link.again.push_back(request);
            return Outcome::Executed;
        }
        Some(Progress::Expects(frame)) => {
            fetch.expects(frame, now);
            // If the last frame was taken but is not there, the kernel has lost it.
            let is_possible = frame < frames || !fetch.has_waited(now, RESEND_AFTER);
            is_possible.then_some(frame)
        }
        _ => None,
    };
    drop(placing);
    let Some(frame) = wanted else {
        ask_in_packets(link, local);
        return Outcome::Executed;
    };
    if fetch.is_lost(now, shared.options.lost_after) {
        link.give_up(local);
        return Outcome::Stalled;
    }
    if fetch.is_late(now) {
        fetch.ask(now);
        ask_again(link, local, request, frame);
    }
    Outcome::Stalled
}

/// Asks for the frames of a read from this one on.
pub fn ask_again(link: &mut Link, local: &mut Local, request: u64, frame: u32) {
    let body = wire::Answer {
        request: request.into(),
        value: u64::from(frame).into(),
    };
    let front = local.shared.front();
    link.tell_with(local, Kind::Refetch, (0, front), body.as_bytes());
}

/// On one queue nothing else arrives while frames of a read are missing: they are asked for without waiting for its seal. A read without
/// its seal ends, too.
pub fn prompt(link: &mut Link, local: &mut Local, now: Instant) {
    let Some(fetch) = link.fetches.front_mut() else {
        return;
    };
    let shared = local.shared.clone();
    let Some((placement, shape)) = shared.placement.as_ref() else {
        return;
    };
    let owner = (local.member.slot, link.id);
    let progress = placement
        .lock()
        .progress(&shared, *shape, owner, fetch.first);
    let frames = fetch.bytes / BLOCK * shape.frames();
    let frame = match progress {
        Some(Progress::Expects(frame)) => frame,
        Some(Progress::All) => frames,
        Some(Progress::Astray) | None => return ask_in_packets(link, local),
    };
    fetch.expects(frame, now);
    if progress == Some(Progress::All) {
        // Its seal may wait behind a message without a buffer.
        if !link.stalled && fetch.is_lost(now, shared.options.lost_after) {
            return link.give_up(local);
        }
    } else if fetch.is_stalled(now) {
        return ask_in_packets(link, local);
    }
    if fetch.is_late(now) {
        fetch.ask(now);
        let request = fetch.request;
        if frame < frames {
            ask_again(link, local, request, frame);
        }
    }
}

/// A read has all its data.
fn end(link: &mut Link, local: &mut Local, request: u64) -> Outcome {
    let Some(pending) = sent(link, request) else {
        return Outcome::Violation;
    };
    pending.answered = true;
    link.complete(local);
    Outcome::Executed
}

/// Whether the data of a read does not come in packets, or not yet.
pub fn is_placed(link: &Link, request: u64) -> bool {
    let mut aimed = link.fetches.iter();
    aimed.any(|fetch| fetch.request == request) || link.again.contains(&request)
}

/// Something landed elsewhere, or the key was withdrawn: no read is aimed at any more.
fn ask_in_packets(link: &mut Link, local: &Local) {
    let owner = (local.member.slot, link.id);
    for fetch in std::mem::take(&mut link.fetches) {
        if let Some((placement, shape)) = &local.shared.placement {
            let mut placement = placement.lock();
            placement.finish(&local.shared, *shape, owner, fetch.first);
        }
        // The last one may not have been sent: then it is the next request.
        if sent(link, fetch.request).is_some() {
            link.again.push_back(fetch.request);
        }
    }
}
