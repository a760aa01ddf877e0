//! Packets that are numbered: made of requests and of answers.

use xdp::Shape;
use zerocopy::IntoBytes;

use super::fetch;
use super::input::sent;
use super::link::{Answer, Asked, Link, Pending, Run};
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
    if link.answers_first {
        let made = answer(link, local, body_bytes);
        made.or_else(|| next_request(link, local, body_bytes))
    } else {
        let made = next_request(link, local, body_bytes);
        made.or_else(|| answer(link, local, body_bytes))
    }
}

fn next_request(link: &mut Link, local: &mut Local, body_bytes: usize) -> Option<Made> {
    if link.refused {
        return None;
    }
    if let Some(&number) = link.again.front() {
        return read_again(link, local, number);
    }
    if link.cursor == link.requests.len() {
        return None;
    }
    match next_of_run(link, local) {
        Turn::Packets => Some(request(link, local, body_bytes)),
        Turn::Waits => None,
        Turn::Packet(made) => Some(made),
    }
}

/// Asks for a read in packets that could not be placed.
fn read_again(link: &mut Link, local: &mut Local, number: u64) -> Option<Made> {
    let Asked::Read {
        into, key, offset, ..
    } = &sent(link, number)?.asked
    else {
        return None;
    };
    let head = transfer(number, *key, *offset, into.length(), 0);
    local.body.clear();
    local.body.extend_from_slice(head.as_bytes());
    Some(whole(Kind::Read))
}

fn request(link: &mut Link, local: &mut Local, body_bytes: usize) -> Made {
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
            let (key, offset, total) = (*key, *offset, into.length());
            let aimed = fetch::aim(link, local);
            let first = aimed.map_or(0, |aimed| aimed.first);
            let head = transfer(number, key, offset, total, first);
            local.body.extend_from_slice(head.as_bytes());
            Made {
                immediate: aimed.map_or(0, |aimed| aimed.front),
                ..whole(aimed.map_or(Kind::Read, |_| Kind::Fetch))
            }
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
        is_answer: true,
        ..whole(Kind::Value)
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
            made.is_last = true;
            refuse_late(link, local, &mut made)?
        }
        &Answer::Fetched { request } => {
            if let Ok(seal) = fetch::seal(link, local, request)? {
                let body = wire::Placed {
                    request: request.into(),
                    seal,
                };
                local.body.extend_from_slice(body.as_bytes());
                made.kind = Kind::Fetched;
                return Some(made);
            }
            refuse_late(link, local, &mut made)?
        }
        Answer::Value { request, value } => (*request, *value),
        Answer::Aimed { request, aimed } => {
            made.kind = Kind::Aimed;
            made.immediate = aimed.map_or(0, |aimed| aimed.front);
            let value = aimed.map_or(0, |aimed| AIMED | u64::from(aimed.first));
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

/// The key was withdrawn before all was read: the first request is refused in its place.
fn refuse_late(link: &mut Link, local: &mut Local, made: &mut Made) -> Option<(u64, u64)> {
    let request = match link.answers.front()? {
        Answer::Read { request, .. } | Answer::Fetched { request } => *request,
        _ => return None,
    };
    let failure = Failure::Access;
    link.answers.clear();
    link.answers.push_back(Answer::Refused { request, failure });
    link.refused = true;
    link.lose(Failure::Violation, local);
    local.body.clear();
    made.kind = Kind::Refused;
    Some((request, wire::failure_number(failure)))
}

/// A packet was sent with this number.
pub fn advance(link: &mut Link, made: &Made, sequence: u64) {
    link.answers_first = !made.is_answer;
    if made.is_answer {
        if made.is_last {
            let answer = link.answers.pop_front();
            fetch::is_sealed(link, answer, sequence);
        } else if let Some(Answer::Read { at, .. }) = link.answers.front_mut() {
            *at += made.bytes;
        }
        return;
    }
    if made.kind == Kind::Read
        && let Some(number) = link.again.pop_front()
    {
        if let Some(pending) = sent(link, number) {
            pending.last = Some(sequence);
        }
        return;
    }
    let pending = &mut link.requests[link.cursor];
    if made.kind == Kind::Aim {
        let shape = link.other.as_ref().and_then(|other| other.places);
        let blocks = made.bytes / BLOCK;
        link.run = Some(Run {
            request: pending.sequence,
            at: write_at(pending),
            blocks,
            frames: blocks * shape.map_or(0, Shape::frames),
            first: None,
            empty: 0,
            next: 0,
            sealed: None,
            asked: None,
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

/// Needs of the next request.
enum Turn {
    /// The request travels in packets, as usual.
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
    let can = other.places.is_some() && !pending.unplaced && local.shared.placement.is_some();
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
