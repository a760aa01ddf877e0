//! Packets that are numbered: made of requests and of answers.

use zerocopy::IntoBytes;

use super::link::{Answer, Asked, Link, Pending, RESERVED, Run};
use super::local::Local;
use super::payload::Payload;
use super::placement::{self, BLOCK, BLOCKS_MAX};
use super::wire::{self, IMMEDIATE, Kind, LAST};
use crate::{Access, Failure, Key};

/// A packet with a finished body.
pub struct Made {
    pub kind: Kind,
    pub flags: u8,
    pub immediate: u32,
    /// Part of an answer, not of a request.
    is_answer: bool,
    /// Bytes of data in it.
    bytes: u32,
    /// No part of its source remains.
    is_last: bool,
}

/// Makes the body of the next packet: answers and requests alternate.
pub fn next_packet(link: &mut Link, local: &mut Local) -> Option<Made> {
    let body_bytes = link.other.as_ref()?.body_bytes;
    let has_request = !link.refused && link.cursor < link.requests.len();
    if !link.answers.is_empty() && (link.answers_first || !has_request) {
        return answer(link, local, body_bytes);
    }
    if !has_request {
        return None;
    }
    match next_of_run(link, local) {
        Turn::Packets => Some(request(link, local, body_bytes)),
        Turn::Waits => None,
        Turn::Packet(made) => Some(made),
    }
}

fn request(link: &Link, local: &mut Local, body_bytes: usize) -> Made {
    let pending = &link.requests[link.cursor];
    let number = pending.sequence;
    local.body.clear();
    match &pending.asked {
        Asked::Send {
            data,
            at,
            immediate,
            returned,
        } => {
            let head = wire::Send {
                total: data.length().into(),
                at: (*at).into(),
                returned: (*returned).into(),
            };
            local.body.extend_from_slice(head.as_bytes());
            part(local, Kind::Send, data, *at, *immediate, body_bytes)
        }
        Asked::Write {
            data,
            at,
            key,
            offset,
            immediate,
        } => {
            let head = transfer(number, *key, *offset, data.length(), *at);
            local.body.extend_from_slice(head.as_bytes());
            part(local, Kind::Write, data, *at, *immediate, body_bytes)
        }
        Asked::Read {
            into, key, offset, ..
        } => {
            let head = transfer(number, *key, *offset, into.length(), 0);
            local.body.extend_from_slice(head.as_bytes());
            whole(Kind::Read)
        }
        Asked::Atomic {
            kind,
            key,
            offset,
            operand,
            new,
        } => {
            let head = wire::Atomic {
                request: number.into(),
                key: (*key).into(),
                offset: (*offset).into(),
                operand: (*operand).into(),
                new: (*new).into(),
            };
            local.body.extend_from_slice(head.as_bytes());
            whole(*kind)
        }
    }
}

/// A request in one packet without data.
fn whole(kind: Kind) -> Made {
    Made {
        kind,
        flags: LAST,
        immediate: 0,
        is_answer: false,
        bytes: 0,
        is_last: true,
    }
}

/// Adds as much of the data from `at` on as fits.
fn part(
    local: &mut Local,
    kind: Kind,
    data: &Payload,
    at: u32,
    announced: Option<u32>,
    body_bytes: usize,
) -> Made {
    let head_bytes = local.body.len();
    let bytes = (data.length() - at).min((body_bytes - head_bytes) as u32);
    local.body.resize(head_bytes + bytes as usize, 0);
    data.gather(at, &mut local.body[head_bytes..]);
    let is_last = at + bytes == data.length();
    let immediate = announced.filter(|_| is_last);
    let flags = [
        if is_last { LAST } else { 0 },
        immediate.map_or(0, |_| IMMEDIATE),
    ];
    Made {
        kind,
        flags: flags[0] | flags[1],
        immediate: immediate.unwrap_or(0),
        is_answer: false,
        bytes,
        is_last,
    }
}

fn transfer(request: u64, key: u64, offset: u64, total: u32, at: u32) -> wire::Transfer {
    wire::Transfer {
        request: request.into(),
        key: key.into(),
        offset: offset.into(),
        total: total.into(),
        at: at.into(),
    }
}

fn answer(link: &mut Link, local: &mut Local, body_bytes: usize) -> Option<Made> {
    let mut made = Made {
        kind: Kind::Value,
        flags: LAST,
        immediate: 0,
        is_answer: true,
        bytes: 0,
        is_last: true,
    };
    local.body.clear();
    let (request, value) = match link.answers.front()? {
        Answer::Read {
            request,
            key,
            offset,
            total,
            at,
        } => {
            let head = wire::Data {
                request: (*request).into(),
                at: (*at).into(),
            };
            local.body.extend_from_slice(head.as_bytes());
            let head_bytes = local.body.len();
            let bytes = (*total - *at).min((body_bytes - head_bytes) as u32);
            local.body.resize(head_bytes + bytes as usize, 0);
            let start = *offset + u64::from(*at);
            let into = &mut local.body[head_bytes..];
            let read = local
                .shared
                .with(Key(*key), Access::READ, start, bytes.into(), |memory| {
                    memory.region().read(start, into)
                });
            made.kind = Kind::Data;
            made.bytes = bytes;
            made.is_last = *at + bytes == *total;
            if read.is_ok() {
                return Some(made);
            }
            // The key was withdrawn before all was read: the request is refused in its place.
            let request = *request;
            link.answers.clear();
            link.answers.push_back(Answer::Refused {
                request,
                failure: Failure::Access,
            });
            link.refused = true;
            link.lose(Failure::Violation, local);
            local.body.clear();
            made.kind = Kind::Refused;
            made.is_last = true;
            (request, wire::failure_number(Failure::Access))
        }
        Answer::Value { request, value } => (*request, *value),
        Answer::Aimed { request, first } => {
            made.kind = Kind::Aimed;
            let value = first.map_or(0, |first| AIMED | u64::from(first));
            (*request, value)
        }
        Answer::Refused { request, failure } => {
            made.kind = Kind::Refused;
            (*request, wire::failure_number(*failure))
        }
    };
    let head = wire::Answer {
        request: request.into(),
        value: value.into(),
    };
    local.body.extend_from_slice(head.as_bytes());
    Some(made)
}

/// A packet was sent with this number.
pub fn advance(link: &mut Link, made: &Made, sequence: u64) {
    link.answers_first = !made.is_answer;
    if made.is_answer {
        if made.is_last {
            link.answers.pop_front();
        } else if let Some(Answer::Read { at, .. }) = link.answers.front_mut() {
            *at += made.bytes;
        }
        return;
    }
    let pending = &mut link.requests[link.cursor];
    if made.kind == Kind::Aim {
        link.run = Some(Run {
            request: pending.sequence,
            at: write_at(pending),
            blocks: made.bytes / BLOCK,
            first: None,
            next: 0,
            sealed: None,
            asked: (0, 0),
        });
        return;
    }
    if let Some(run) = link.run.as_mut().filter(|_| made.kind == Kind::Placed) {
        run.sealed = Some(sequence);
    }
    match &mut pending.asked {
        Asked::Send { at, .. } | Asked::Write { at, .. } => *at += made.bytes,
        Asked::Read { .. } | Asked::Atomic { .. } => {}
    }
    if made.is_last {
        pending.last = Some(sequence);
        link.cursor += 1;
    }
}

/// Set in an answer that blocks are aimed at.
pub const AIMED: u64 = 1 << 32;
/// Set in the tag of frames that are placed.
const PLACED_TAG: u16 = 0x8000;
/// Frames that are given to the kernel in one call.
const BATCH: usize = 64;

/// Needs of the next request.
enum Turn {
    /// Packets, as usual.
    Packets,
    /// Something that has to come first.
    Waits,
    /// A packet about blocks that are placed.
    Packet(Made),
}

fn write_at(pending: &Pending) -> u32 {
    match &pending.asked {
        Asked::Write { at, .. } => *at,
        _ => 0,
    }
}

/// Long aligned parts of writes are placed, if both sides can.
fn next_of_run(link: &mut Link, local: &mut Local) -> Turn {
    let Some(other) = &link.other else {
        return Turn::Waits;
    };
    let pending = &link.requests[link.cursor];
    let Asked::Write {
        data,
        at,
        key,
        offset,
        immediate,
    } = &pending.asked
    else {
        return Turn::Packets;
    };
    let number = pending.sequence;
    let run = link.run.as_ref();
    if let Some(run) = run.filter(|run| run.request == number && run.sealed.is_none()) {
        if run.first.is_none() || run.has_frames() {
            return Turn::Waits;
        }
        let bytes = run.blocks * BLOCK;
        let body = wire::Placed {
            request: number.into(),
            seal: placement::seal_of_payload(&other.to, number, data, run.at, bytes),
        };
        local.body.clear();
        local.body.extend_from_slice(body.as_bytes());
        let is_last = *at + bytes == data.length();
        let announced = immediate.filter(|_| is_last);
        let mut made = whole(Kind::Placed);
        made.flags = if is_last { LAST } else { 0 };
        if let Some(immediate) = announced {
            made.flags |= IMMEDIATE;
            made.immediate = immediate;
        }
        (made.bytes, made.is_last) = (bytes, is_last);
        return Turn::Packet(made);
    }
    let rest = data.length() - at;
    let start = offset + u64::from(*at);
    let can = other.places && !pending.unplaced && local.shared.placement.is_some();
    if !can || rest < BLOCK || !start.is_multiple_of(BLOCK.into()) {
        return Turn::Packets;
    }
    if run.is_some() {
        return Turn::Waits;
    }
    let bytes = (rest / BLOCK).min(BLOCKS_MAX) * BLOCK;
    local.body.clear();
    let head = transfer(number, *key, start, bytes, 0);
    local.body.extend_from_slice(head.as_bytes());
    let mut made = whole(Kind::Aim);
    (made.bytes, made.is_last) = (bytes, false);
    Turn::Packet(made)
}

/// Sends frames of blocks that the other side has aimed at, as far as there is room.
pub fn send_run(link: &mut Link, local: &mut Local) {
    let Some(run) = link.run.as_mut().filter(|run| run.has_frames()) else {
        return;
    };
    let (Some(other), Some(first)) = (&link.other, run.first) else {
        return;
    };
    let Some(shape) = local.shared.placement.as_ref().map(|(_, shape)| *shape) else {
        return;
    };
    let found = link
        .requests
        .iter()
        .find(|found| found.sequence == run.request);
    let Some(Asked::Write { data, .. }) = found.map(|found| &found.asked) else {
        return;
    };
    let [data_type, _] = local.shared.options.types;
    loop {
        let mut batch = Vec::with_capacity(BATCH);
        let mut sent = 0;
        let end = run.frames().min(run.next + BATCH as u32);
        for number in run.next..end {
            if local.frames.available() <= RESERVED {
                break;
            }
            let Some(frame) = local.frames.take() else {
                break;
            };
            let (at, bytes) = placement::place(shape, run.blocks, number);
            let tag = PLACED_TAG | (first.wrapping_add(number) as u16 & !PLACED_TAG);
            local.body.clear();
            local.body.extend_from_slice(&other.target.hardware);
            local
                .body
                .extend_from_slice(&local.shared.interface.hardware.0);
            local.body.extend_from_slice(&data_type.to_be_bytes());
            local.body.extend_from_slice(&tag.to_be_bytes());
            let header = local.body.len();
            local.body.resize(header + bytes as usize, 0);
            data.gather(run.at + at, &mut local.body[header..]);
            put_frame(local, frame, &mut batch);
            sent += 1;
        }
        let given = local.shared.transmit_placed(&batch);
        for (frame, _) in &batch {
            local.frames.release(*frame);
        }
        // Frames behind one that was not taken are asked for again.
        run.next += if given == batch.len() {
            sent
        } else {
            given as u32
        };
        if sent == 0 || given < batch.len() || !run.has_frames() {
            return;
        }
    }
}

/// Adds the frame in the thread's body to a batch.
fn put_frame(local: &mut Local, frame: u32, batch: &mut Vec<(u32, u32)>) {
    let address = local.shared.address(frame);
    let length = local.body.len() as u32;
    let Some(faults) = &mut local.faults else {
        local.shared.region.write(address, &local.body);
        return batch.push((frame, length));
    };
    let mut arrive = faults.treat(&local.body).into_iter();
    let Some(first) = arrive.next() else {
        return local.frames.release(frame);
    };
    local.shared.region.write(address, &first);
    batch.push((frame, first.len() as u32));
    for next in arrive {
        if let Some(frame) = local.frames.take() {
            let address = local.shared.address(frame);
            local.shared.region.write(address, &next);
            batch.push((frame, next.len() as u32));
        }
    }
}
