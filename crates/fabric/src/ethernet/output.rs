//! Packets that are numbered: made of requests and of answers.

use zerocopy::IntoBytes;

use super::link::{Answer, Asked, Link};
use super::local::Local;
use super::payload::Payload;
use super::wire::{self, IMMEDIATE, Kind, LAST};
use crate::{Access, Failure, Key};

/// A packet whose body is made.
pub struct Made {
    pub kind: Kind,
    pub flags: u8,
    pub immediate: u32,
    /// Of an answer, not of a request.
    is_answer: bool,
    /// Bytes of data in it.
    bytes: u32,
    /// Nothing of what it is made of remains.
    is_last: bool,
}

/// Makes the body of the next packet: answers and requests take turns.
pub fn next_packet(link: &mut Link, local: &mut Local) -> Option<Made> {
    let body_bytes = link.other.as_ref()?.body_bytes;
    let has_request = !link.refused && link.cursor < link.requests.len();
    if !link.answers.is_empty() && (link.answers_first || !has_request) {
        return answer(link, local, body_bytes);
    }
    has_request.then(|| request(link, local, body_bytes))
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
            let read =
                local
                    .shared
                    .table
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
    match &mut pending.asked {
        Asked::Send { at, .. } | Asked::Write { at, .. } => *at += made.bytes,
        Asked::Read { .. } | Asked::Atomic { .. } => {}
    }
    if made.is_last {
        pending.last = Some(sequence);
        link.cursor += 1;
    }
}
