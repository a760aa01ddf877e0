//! Frames that are sent to be placed: of writes of this side, and of reads of the other one.

use std::sync::atomic::Ordering;

use smallvec::smallvec;
use xdp::Shape;

use super::link::{Asked, Link, RESERVED};
use super::local::Local;
use super::placement::{self, BLOCK};
use super::shared::PlacedFrame;
use super::wire::Packet;
use crate::{Access, Key};

/// Set in the tag of frames that are placed.
const PLACED_TAG: u16 = 0x8000;
/// Most frames without content before those of a run: a peer has no more descriptors.
const EMPTY_MAX: u32 = 4096;
/// Bytes of a frame without content.
const EMPTY_BYTES: u32 = 64;
/// Frames that are given to the kernel in one call.
const BATCH: usize = 16;
/// Bytes of the link-layer header, the only one of these frames.
const HEADER: usize = 16;

/// Blocks that the other side has aimed at.
struct Aimed {
    hardware: [u8; 6],
    blocks: u32,
    /// Number of the first frame.
    first: u32,
}

/// Frames without content that have to precede the data that a packet asks for.
pub fn empty_before(local: &Local, packet: &Packet<'_>) -> u32 {
    match local.shared.is_on_one_queue() {
        true => packet.header.immediate.get().min(EMPTY_MAX),
        false => 0,
    }
}

/// Whether a frame has no content: it only used up a descriptor.
pub fn is_empty(frame: &[u8]) -> bool {
    let tag = frame.get(14..16).and_then(|tag| tag.first_chunk());
    tag.is_some_and(|tag| u16::from_be_bytes(*tag) & PLACED_TAG != 0)
}

/// Sends frames of blocks that the other side has aimed at, as far as there is room.
pub fn send_placed(link: &mut Link, local: &mut Local) {
    if link.is_placing() {
        send_run(link, local);
        send_served(link, local);
    }
}

fn send_run(link: &mut Link, local: &mut Local) {
    let Some(run) = link.run.as_mut().filter(|run| run.has_frames()) else {
        return;
    };
    let (Some(other), Some(first)) = (&link.other, run.first) else {
        return;
    };
    let found = link
        .requests
        .iter()
        .find(|found| found.sequence == run.request);
    let Some(Asked::Write { data, .. }) = found.map(|found| &found.asked) else {
        return;
    };
    let aimed = Aimed {
        hardware: other.target.hardware,
        blocks: run.blocks,
        first,
    };
    let region = local.shared.region.clone();
    if !send_empty(local, aimed.hardware, &mut run.empty) {
        return;
    }
    run.next = send(local, &aimed, run.next, |at, start, length| {
        data.copy_to(run.at + at, &region, start, length);
    });
}

fn send_served(link: &mut Link, local: &mut Local) {
    let Some(other) = &link.other else {
        return;
    };
    let shared = local.shared.clone();
    for serving in link.served.iter_mut().filter(|found| found.has_frames()) {
        let aimed = Aimed {
            hardware: other.target.hardware,
            blocks: serving.blocks,
            first: serving.first,
        };
        let (key, offset) = (Key(serving.key), serving.offset);
        if !send_empty(local, aimed.hardware, &mut serving.empty) {
            return;
        }
        serving.next = send(local, &aimed, serving.next, |at, start, length| {
            let from = offset + u64::from(at);
            let bytes = length as usize;
            let copied = shared.with(key, Access::READ, from, length.into(), |memory| {
                shared.region.copy_from(start, memory.region(), from, bytes);
            });
            // If the key was withdrawn, the seal or the read in packets is refused.
            if copied.is_err() {
                shared.region.write(start, &[0; BLOCK as usize][..bytes]);
            }
        });
        if serving.has_frames() {
            return;
        }
        let counter = &shared.counts.fetched_frames;
        counter.fetch_add(serving.frames.into(), Ordering::Relaxed);
    }
}

/// Sends frames without content, as many as there are descriptors in front of those that are aimed; whether all were sent.
fn send_empty(local: &mut Local, hardware: [u8; 6], count: &mut u32) -> bool {
    while *count > 0 {
        if local.frames.available() <= RESERVED {
            return false;
        }
        let Some(frame) = local.frames.take() else {
            return false;
        };
        let [_, command] = local.shared.options.types;
        let mut bytes = [0; EMPTY_BYTES as usize];
        bytes[..6].copy_from_slice(&hardware);
        bytes[6..12].copy_from_slice(&local.shared.interface.hardware.0);
        bytes[12..14].copy_from_slice(&command.to_be_bytes());
        bytes[14..HEADER].copy_from_slice(&PLACED_TAG.to_be_bytes());
        let shared = local.shared.clone();
        shared.region.write(shared.address(frame), &bytes);
        let batch = (*count).min(BATCH as u32);
        let faults = &mut local.faults;
        let mut is_sent = || {
            faults
                .as_mut()
                .is_none_or(|it| !it.treat(&bytes).is_empty())
        };
        // All are the same frame.
        let frames = (0..batch).filter(|_| is_sent());
        let frames = frames.map(|_| PlacedFrame(smallvec![(frame, EMPTY_BYTES)]));
        let frames: Vec<PlacedFrame> = frames.collect();
        let given = shared.transmit_placed(&frames);
        local.frames.release(frame);
        if given < frames.len() {
            *count -= given as u32;
            return false;
        }
        *count -= batch;
    }
    true
}

/// Sends frames from this one on, as far as there is room. Returns the number of the next one. `copy` copies so many bytes at an
/// offset of the blocks into the memory for frames.
fn send(
    local: &mut Local,
    aimed: &Aimed,
    mut next: u32,
    mut copy: impl FnMut(u32, u64, u32),
) -> u32 {
    let Some(shape) = local.shared.placement.as_ref().map(|(_, shape)| *shape) else {
        return next;
    };
    let frames = aimed.blocks * shape.frames();
    let [data_type, _] = local.shared.options.types;
    loop {
        let mut batch = Vec::with_capacity(BATCH);
        let mut sent = 0;
        for number in next..frames.min(next + BATCH as u32) {
            if local.frames.available() <= RESERVED {
                break;
            }
            let (at, bytes) = placement::place(shape, aimed.blocks, number);
            let Some(frame) = take(local, shape, bytes) else {
                break;
            };
            let tag = PLACED_TAG | (aimed.first.wrapping_add(number) as u16 & !PLACED_TAG);
            let mut header = [0; HEADER];
            header[..6].copy_from_slice(&aimed.hardware);
            header[6..12].copy_from_slice(&local.shared.interface.hardware.0);
            header[12..14].copy_from_slice(&data_type.to_be_bytes());
            header[14..].copy_from_slice(&tag.to_be_bytes());
            let address = local.shared.address(frame.0[0].0);
            local.shared.region.write(address, &header);
            let data = match frame.0.get(1) {
                Some((second, _)) => local.shared.address(*second),
                None => address + HEADER as u64,
            };
            copy(at, data, bytes);
            put_frame(local, shape, frame, &mut batch);
            sent += 1;
        }
        let given = local.shared.transmit_placed(&batch);
        for PlacedFrame(parts) in &batch {
            parts.iter().for_each(|part| local.frames.release(part.0));
        }
        // Those that were not taken are sent by a later call.
        next += if given == batch.len() {
            sent
        } else {
            given as u32
        };
        // What has come may ask for a frame again: those behind it are in vain.
        let is_interrupted = local.socket.has_come();
        if sent == 0 || given < batch.len() || next == frames || is_interrupted {
            return next;
        }
    }
}

/// Memory for a frame with so many bytes of data. In a jumbo frame the data has a chunk of its own.
fn take(local: &mut Local, shape: Shape, bytes: u32) -> Option<PlacedFrame> {
    let header = HEADER as u32;
    let first = local.frames.take()?;
    if shape != Shape::Jumbo {
        return Some(PlacedFrame(smallvec![(first, header + bytes)]));
    }
    let Some(second) = local.frames.take() else {
        local.frames.release(first);
        return None;
    };
    Some(PlacedFrame(smallvec![(first, header), (second, bytes)]))
}

/// Adds a frame to a batch, unless something happens to it.
fn put_frame(local: &mut Local, shape: Shape, frame: PlacedFrame, batch: &mut Vec<PlacedFrame>) {
    let Some(mut faults) = local.faults.take() else {
        return batch.push(frame);
    };
    if let Some(is_lost) = faults.loses() {
        match is_lost {
            true => frame.0.iter().for_each(|part| local.frames.release(part.0)),
            false => batch.push(frame),
        }
        local.faults = Some(faults);
        return;
    }
    let shared = local.shared.clone();
    let mut bytes = Vec::new();
    for &(part, length) in &frame.0 {
        let at = bytes.len();
        bytes.resize(at + length as usize, 0);
        shared.region.read(shared.address(part), &mut bytes[at..]);
    }
    let PlacedFrame(parts) = frame;
    parts.iter().for_each(|part| local.frames.release(part.0));
    for arrives in faults.treat(&bytes) {
        let data = (arrives.len() - HEADER) as u32;
        let Some(frame) = take(local, shape, data) else {
            break;
        };
        let mut rest = &arrives[..];
        for &(part, length) in &frame.0 {
            let (now, later) = rest.split_at(length as usize);
            shared.region.write(shared.address(part), now);
            rest = later;
        }
        batch.push(frame);
    }
    local.faults = Some(faults);
}
