//! Frames that are sent to be placed: of writes of this side, and of reads of the other one.

use std::sync::atomic::Ordering;

use smallvec::smallvec;
use xdp::Shape;

use super::link::{Asked, Link, RESERVED};
use super::local::Local;
use super::placement::{self, BLOCK};
use super::shared::PlacedFrame;
use crate::{Access, Key};

/// Set in the tag of frames that are placed.
const PLACED_TAG: u16 = 0x8000;
/// Frames that are given to the kernel in one call.
const BATCH: usize = 64;
/// Bytes of the link-layer header, the only one of these frames.
const HEADER: usize = 16;

/// Blocks that the other side has aimed at.
struct Aimed {
    hardware: [u8; 6],
    blocks: u32,
    /// Number of the first frame.
    first: u32,
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
        // Frames behind one that was not taken are asked for again.
        next += if given == batch.len() {
            sent
        } else {
            given as u32
        };
        if sent == 0 || given < batch.len() || next == frames {
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
