//! Packets that have come: checked, put in order, and executed once.

use std::ops::Range;
use std::time::Instant;

use xdp::Missing;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::frames::empty_before;
use super::link::{Answer, Asked, Coming, Landing, Link, Owed, RESEND_AFTER, Run, SLICE, State};
use super::local::Local;
use super::output::AIMED;
use super::placement::{self, Progress};
use super::protection::is_same;
use super::window::PacketOrder;
use super::wire::{self, IMMEDIATE, Kind, LAST, Packet, UNSEQUENCED};
use super::{TRANSFER_MAX, count, fetch};
use crate::{Access, Failure, Key, Origin, Report};

/// Requests of a peer that can wait for their answers.
const ANSWERS_MAX: usize = 1 << 16;
/// Where the hardware address of its sender is in a frame.
const SOURCE: Range<usize> = 6..12;

/// Result of a packet.
pub enum Outcome {
    Executed,
    /// There is no buffer for it.
    Stalled,
    /// The peer broke the rules.
    Violation,
}

/// Next state of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Stays,
    /// Nothing more has to be done for it.
    Goes,
}

/// Executes a packet for this link, in a frame with a valid header.
pub fn take(link: &mut Link, local: &mut Local, frame: &mut [u8], now: Instant) -> Fate {
    let Some(other) = &link.other else {
        return Fate::Stays;
    };
    let is_from_it = frame.get(SOURCE) == Some(&other.target.hardware[..]);
    let is_right = is_from_it && other.from.open(frame);
    let Some(packet) = wire::parse(frame).filter(|_| is_right) else {
        count(&local.shared.counts.rejected);
        return Fate::Stays;
    };
    execute_opened(link, local, &packet, frame, now)
}

fn execute_opened(
    link: &mut Link,
    local: &mut Local,
    packet: &Packet<'_>,
    frame: &[u8],
    now: Instant,
) -> Fate {
    let number = packet.header.sequence.get();
    let is_sequenced = number & UNSEQUENCED == 0;
    if !is_sequenced && !link.incoming.is_news(number & !UNSEQUENCED) {
        count(&local.shared.counts.duplicates);
        return Fate::Stays;
    }
    // One that was executed before may have been recorded long ago, and sent again by another host.
    if !is_sequenced || link.incoming.place(number) != PacketOrder::Drop {
        link.heard = now;
        link.is_heard = true;
        link.outgoing.allow(packet.header.window);
    }
    let (expected, selective) = (packet.header.expected.get(), packet.header.selective.get());
    let frames = &mut local.frames;
    let known = link
        .outgoing
        .acknowledge(expected, selective, now, |frame| frames.release(frame));
    if known.is_none() {
        link.lose(Failure::Violation, local);
        return Fate::Stays;
    }
    if let State::Leaving { .. } = link.state {
        if packet.kind == Kind::Closed {
            return Fate::Goes;
        }
        if link.is_quiet() {
            link.tell(local, Kind::Closed, 0, &[]);
        }
        return Fate::Stays;
    }
    if link.ended {
        return Fate::Stays;
    }
    link.complete(local);
    match is_sequenced {
        true => take_in_order(link, local, packet, frame),
        false => hear(link, local, packet),
    }
    Fate::Stays
}

/// A packet that is not repeated.
fn hear(link: &mut Link, local: &mut Local, packet: &Packet<'_>) {
    match packet.kind {
        Kind::Probe => link.owed = Owed::Now,
        Kind::Credit => {
            if let Ok((returned, _)) = U32::read_from_prefix(packet.body) {
                local.news.push(Report::Credit {
                    endpoint: link.id,
                    returned: returned.get(),
                    ask: packet.header.flags & wire::ASK != 0,
                });
            }
        }
        Kind::Resend => resend(link, local, packet),
        Kind::Refetch => fetch::refetch(link, local, packet),
        Kind::Closed => {
            link.closed_there = true;
            if link.run.as_ref().is_some_and(Run::is_stuck) {
                link.avoid();
            }
            link.lose(Failure::PeerLost, local);
        }
        _ => {}
    }
}

fn take_in_order(link: &mut Link, local: &mut Local, packet: &Packet<'_>, frame: &[u8]) {
    let sequence = packet.header.sequence.get();
    match link.incoming.place(sequence) {
        PacketOrder::Drop => {
            count(&local.shared.counts.duplicates);
            link.owed = Owed::Now;
        }
        PacketOrder::Later => {
            count(&local.shared.counts.reordered);
            link.incoming.keep(sequence, frame);
            link.owed = Owed::Now;
        }
        PacketOrder::Next => {
            if execute_next(link, local, packet, frame) {
                resume(link, local);
            }
        }
    }
}

/// Executes kept packets that are next in order.
pub fn resume(link: &mut Link, local: &mut Local) {
    link.stalled = false;
    while let Some(frame) = link.incoming.take_next() {
        let Some(packet) = wire::parse(&frame) else {
            return;
        };
        if !execute_next(link, local, &packet, &frame) {
            return;
        }
    }
}

/// Whether to continue with the packet after it.
fn execute_next(link: &mut Link, local: &mut Local, packet: &Packet<'_>, frame: &[u8]) -> bool {
    match execute(link, local, packet) {
        // Not acknowledged: that would report success.
        Outcome::Executed if link.refused => false,
        Outcome::Executed => {
            link.incoming.expected += 1;
            link.owe();
            // Its requester waits for nothing else.
            if matches!(packet.kind, Kind::Write | Kind::Placed) && packet.header.flags & LAST != 0
            {
                link.owed = Owed::Now;
            }
            !link.ended
        }
        Outcome::Stalled => {
            link.incoming.keep(packet.header.sequence.get(), frame);
            link.stalled = true;
            false
        }
        Outcome::Violation => {
            link.lose(Failure::Violation, local);
            false
        }
    }
}

fn execute(link: &mut Link, local: &mut Local, packet: &Packet<'_>) -> Outcome {
    let executed = match packet.kind {
        Kind::Send => return receive(link, local, packet),
        Kind::Write => write(link, local, packet),
        Kind::Read => read(link, local, packet),
        Kind::Swap | Kind::Add => atomic(link, local, packet),
        Kind::Data => data(link, local, packet),
        Kind::Value => value(link, local, packet),
        Kind::Refused => refused(link, local, packet),
        Kind::Aim => aim(link, local, packet),
        Kind::Aimed => aimed(link, local, packet),
        Kind::Placed => return placed(link, local, packet),
        Kind::Fetch => fetch::fetch(link, local, packet),
        Kind::Fetched => return fetch::fetched(link, local, packet),
        _ => None,
    };
    match executed {
        Some(()) => Outcome::Executed,
        None => Outcome::Violation,
    }
}

fn immediate(packet: &Packet<'_>) -> Option<u32> {
    let has = packet.header.flags & IMMEDIATE != 0;
    has.then(|| packet.header.immediate.get())
}

fn receive(link: &mut Link, local: &mut Local, packet: &Packet<'_>) -> Outcome {
    let Ok((head, data)) = wire::Send::ref_from_prefix(packet.body) else {
        return Outcome::Violation;
    };
    let (total, at) = (head.total.get(), head.at.get());
    if link.coming.is_none() {
        if at != 0 {
            return Outcome::Violation;
        }
        let buffer = match total {
            0 => None,
            _ => match local.free.pop() {
                None => return Outcome::Stalled,
                Some(buffer) if buffer.length < total => {
                    local.free.push(buffer);
                    return Outcome::Violation;
                }
                Some(buffer) => Some(buffer),
            },
        };
        link.coming = Some(Coming { buffer, total, at });
        local.news.push(Report::Credit {
            endpoint: link.id,
            returned: head.returned.get(),
            ask: false,
        });
    }
    let Some(coming) = &mut link.coming else {
        return Outcome::Violation;
    };
    let rest = coming.total - coming.at;
    let is_last = packet.header.flags & LAST != 0;
    let fits = coming.total == total && coming.at == at && data.len() <= rest as usize;
    if !fits || is_last != (data.len() == rest as usize) {
        return Outcome::Violation;
    }
    if let Some(buffer) = &coming.buffer {
        let start = buffer.offset + u64::from(at);
        buffer.memory.region().write(start, data);
    }
    coming.at += data.len() as u32;
    if is_last && let Some(Coming { buffer, .. }) = link.coming.take() {
        local.news.push(Report::Received {
            origin: Origin::Endpoint(link.id),
            buffer: buffer.map(|buffer| buffer.arrival(total)),
            immediate: immediate(packet),
        });
    }
    Outcome::Executed
}

pub fn refuse(link: &mut Link, local: &mut Local, request: u64, failure: Failure) {
    link.refused = true;
    link.answers.push_back(Answer::Refused { request, failure });
    count(&local.shared.counts.refused);
    link.lose(Failure::Violation, local);
}

fn write(link: &mut Link, local: &mut Local, packet: &Packet<'_>) -> Option<()> {
    let (head, data) = wire::Transfer::ref_from_prefix(packet.body).ok()?;
    let (offset, total, at) = (head.offset.get(), head.total.get(), head.at.get());
    let end = u64::from(at) + data.len() as u64;
    let is_last = packet.header.flags & LAST != 0;
    if end > total.into() || is_last != (end == u64::from(total)) {
        return None;
    }
    let key = Key(head.key.get());
    let written = local
        .shared
        .with(key, Access::WRITE, offset, total.into(), |memory| {
            memory.region().write(offset + u64::from(at), data);
        });
    match written {
        Ok(()) => announce(link, local, packet),
        Err(failure) => refuse(link, local, head.request.get(), failure),
    }
    Some(())
}

fn read(link: &mut Link, local: &mut Local, packet: &Packet<'_>) -> Option<()> {
    let (head, _) = wire::Transfer::ref_from_prefix(packet.body).ok()?;
    let (request, total) = (head.request.get(), head.total.get());
    if total > TRANSFER_MAX || link.answers.len() >= ANSWERS_MAX {
        return None;
    }
    let (key, offset) = (head.key.get(), head.offset.get());
    let found = local
        .shared
        .with(Key(key), Access::READ, offset, total.into(), |_| ());
    match found {
        Ok(()) => link.answers.push_back(Answer::Read {
            request,
            key,
            offset,
            total,
            at: 0,
        }),
        Err(failure) => refuse(link, local, request, failure),
    }
    Some(())
}

fn atomic(link: &mut Link, local: &mut Local, packet: &Packet<'_>) -> Option<()> {
    let (head, _) = wire::Atomic::ref_from_prefix(packet.body).ok()?;
    if link.answers.len() >= ANSWERS_MAX {
        return None;
    }
    let (offset, operand, new) = (head.offset.get(), head.operand.get(), head.new.get());
    let request = head.request.get();
    let key = Key(head.key.get());
    let found = local
        .shared
        .with(key, Access::ATOMIC, offset, 8, |memory| match packet.kind {
            Kind::Swap => memory.region().compare_and_swap(offset, operand, new),
            _ => memory.region().fetch_and_add(offset, operand),
        });
    match found {
        Ok(value) => link.answers.push_back(Answer::Value { request, value }),
        Err(failure) => refuse(link, local, request, failure),
    }
    Some(())
}

/// The request with this number, if it was sent whole.
pub fn sent(link: &mut Link, request: u64) -> Option<&mut super::link::Pending> {
    let first = link.requests.front()?.sequence;
    let index = usize::try_from(request.checked_sub(first)?).ok()?;
    let found = link.requests.get_mut(index)?;
    found.last.is_some().then_some(found)
}

fn data(link: &mut Link, local: &mut Local, packet: &Packet<'_>) -> Option<()> {
    let (head, data) = wire::Data::ref_from_prefix(packet.body).ok()?;
    let request = head.request.get();
    // Frames could land in its memory after its end.
    if fetch::is_placed(link, request) {
        return None;
    }
    let pending = sent(link, request)?;
    let Asked::Read { into, at, .. } = &mut pending.asked else {
        return None;
    };
    let rest = into.length() - *at;
    if head.at.get() != *at || data.len() > rest as usize || pending.answered {
        return None;
    }
    into.scatter(*at, data);
    *at += data.len() as u32;
    pending.answered = *at == into.length();
    link.complete(local);
    Some(())
}

fn value(link: &mut Link, local: &mut Local, packet: &Packet<'_>) -> Option<()> {
    let (head, _) = wire::Answer::ref_from_prefix(packet.body).ok()?;
    let pending = sent(link, head.request.get())?;
    if pending.answered || !matches!(pending.asked, Asked::Atomic { .. }) {
        return None;
    }
    pending.answered = true;
    pending.value = head.value.get();
    link.complete(local);
    Some(())
}

fn refused(link: &mut Link, local: &mut Local, packet: &Packet<'_>) -> Option<()> {
    let (head, _) = wire::Answer::ref_from_prefix(packet.body).ok()?;
    let failure = wire::failure(head.value.get())?;
    let sequence = head.request.get();
    let first = link.requests.front()?;
    if first.sequence != sequence {
        return None;
    }
    local.news.push(Report::Failed {
        endpoint: link.id,
        sequence,
        failure,
    });
    link.ended = true;
    link.closed_there = true;
    link.release(local);
    Some(())
}

/// The peer wants to place blocks.
fn aim(link: &mut Link, local: &mut Local, packet: &Packet<'_>) -> Option<()> {
    let (head, _) = wire::Transfer::ref_from_prefix(packet.body).ok()?;
    let (request, bytes) = (head.request.get(), head.total.get());
    let (key, offset) = (Key(head.key.get()), head.offset.get());
    let source = link.other.as_ref()?.target.hardware;
    if link.landing.is_some() || link.answers.len() >= ANSWERS_MAX {
        return None;
    }
    let owner = (local.member.slot, link.id);
    let shared = &local.shared;
    // Aimed while the key cannot be withdrawn.
    let aimed = shared.with(key, Access::WRITE, offset, bytes.into(), |memory| {
        let (placement, shape) = shared.placement.as_ref()?;
        if !placement::is_placeable(shared, memory, offset, bytes.into()) {
            return None;
        }
        let run = placement::Run {
            key,
            offset,
            blocks: bytes / placement::BLOCK,
            source: xdp::Hardware(source),
        };
        placement.lock().aim(shared, *shape, owner, run)
    });
    match aimed {
        Ok(aimed) => {
            let is_alone = shared.is_on_one_queue();
            let landing = |aimed| Landing::new(request, bytes, aimed, is_alone);
            link.landing = aimed.map(landing);
            link.answers.push_back(Answer::Aimed { request, aimed });
        }
        Err(failure) => refuse(link, local, request, failure),
    }
    Some(())
}

/// The peer has aimed, or will not.
fn aimed(link: &mut Link, local: &Local, packet: &Packet<'_>) -> Option<()> {
    let (head, _) = wire::Answer::ref_from_prefix(packet.body).ok()?;
    let (request, value) = (head.request.get(), head.value.get());
    let is_asked = |run: &Run| run.request == request && run.first.is_none();
    let run = link.run.as_mut().filter(|run| is_asked(run))?;
    if value & AIMED != 0 {
        run.first = Some(value as u32);
        run.empty = empty_before(local, packet);
    } else {
        link.run = None;
        let cursor = link.cursor;
        link.requests.get_mut(cursor)?.unplaced = true;
    }
    Some(())
}

/// The peer misses frames.
fn resend(link: &mut Link, local: &mut Local, packet: &Packet<'_>) {
    let Ok((head, _)) = wire::Answer::ref_from_prefix(packet.body) else {
        return;
    };
    let value = head.value.get();
    let (first, from) = (value as u32, (value >> 32) as u32);
    if let Some(run) = &mut link.run
        && run.request == head.request.get()
        && run.first.is_some()
        && run.empty == 0
        && from <= run.frames
    {
        run.is_asked_for(from, Instant::now());
        run.first = Some(first);
        run.empty = empty_before(local, packet);
        run.next = from;
        count(&local.shared.counts.repeated);
    }
}

/// The peer has sent all frames of the blocks.
fn placed(link: &mut Link, local: &mut Local, packet: &Packet<'_>) -> Outcome {
    let Ok((head, _)) = wire::Placed::ref_from_prefix(packet.body) else {
        return Outcome::Violation;
    };
    let request = head.request.get();
    let awaited = link.landing.as_mut().filter(|it| it.request == request);
    let (Some(landing), Some(other)) = (awaited, &link.other) else {
        return Outcome::Violation;
    };
    let shared = local.shared.clone();
    let Some((placement, shape)) = shared.placement.as_ref() else {
        return Outcome::Violation;
    };
    let owner = (local.member.slot, link.id);
    let frames = landing.bytes / placement::BLOCK * shape.frames();
    let mut placement = placement.lock();
    let now = Instant::now();
    let wanted = match placement.progress(&shared, *shape, owner, landing.first) {
        None => {
            drop(placement);
            end_withdrawn(link, local, request);
            return Outcome::Executed;
        }
        Some(Progress::All) => {
            let (aim, made) = ((owner, landing.first), (&other.from, request));
            let seal = placement.seal(&shared, *shape, aim, made);
            if seal.is_some_and(|seal| is_same(&seal, &head.seal)) {
                placement.finish(&shared, *shape, owner, landing.first);
                drop(placement);
                link.landing = None;
                shared.count_placed(frames);
                announce(link, local, packet);
                return Outcome::Executed;
            }
            count(&shared.counts.rejected);
            landing.expects(frames, now);
            None
        }
        Some(Progress::Astray) => None,
        Some(Progress::Expects(frame)) => Some(frame),
    };
    if let Some(frame) = wanted {
        landing.expects(frame, now);
    }
    if landing.is_lost(now, shared.options.lost_after) {
        drop(placement);
        link.give_up(local);
        return Outcome::Stalled;
    }
    // If the last frame was taken but is not there, the kernel has lost one.
    let wanted = wanted.filter(|frame| *frame < frames || !landing.has_waited(now, RESEND_AFTER));
    let from = match wanted {
        Some(frame) if frame == frames || !landing.is_late(now) => return Outcome::Stalled,
        Some(frame) => frame,
        None if landing.is_paused(now) => return Outcome::Stalled,
        None => {
            let again = placement.aim_again(&shared, *shape, owner, landing.first);
            let Some((aimed, from)) = again else {
                landing.wait(now, placement.is_in_use());
                return Outcome::Stalled;
            };
            landing.aimed(aimed, from, now);
            from
        }
    };
    drop(placement);
    landing.ask(now);
    let first = landing.first;
    ask_again(link, local, request, (first, from));
    Outcome::Stalled
}

/// Asks for the frames of a run from this one on, counted from the first one.
fn ask_again(link: &mut Link, local: &mut Local, request: u64, (first, from): (u32, u32)) {
    let value = u64::from(from) << 32 | u64::from(first);
    let answer = wire::Answer {
        request: request.into(),
        value: value.into(),
    };
    let front = local.shared.front();
    link.tell_with(local, Kind::Resend, (0, front), answer.as_bytes());
}

/// The program has dropped frames behind a missing one: it is asked for at once, so that its sender does not send the rest of the run in
/// vain.
pub fn ask_for_missing(link: &mut Link, local: &mut Local, missing: Missing, now: Instant) {
    let Some(shape) = local.shared.placement.as_ref().map(|(_, shape)| *shape) else {
        return;
    };
    let frames = |landing: &Landing| landing.bytes / placement::BLOCK * shape.frames();
    if let Some(landing) = &mut link.landing {
        let count = frames(landing);
        if let Some(frame) = landing.misses(missing, count, now) {
            let (request, first) = (landing.request, landing.first);
            return ask_again(link, local, request, (first, frame));
        }
    }
    for landing in &mut link.fetches {
        let count = frames(landing);
        if let Some(frame) = landing.misses(missing, count, now) {
            let request = landing.request;
            return fetch::ask_again(link, local, request, frame);
        }
    }
}

/// On one queue nothing else arrives while frames of a write are missing: they are asked for without waiting for its seal, and after
/// [`SLICE`] at most nothing is aimed at for as long, which lets other frames and runs pass. A run without its seal ends, too.
pub fn prompt(link: &mut Link, local: &mut Local, now: Instant) {
    if !local.shared.is_on_one_queue() {
        return;
    }
    fetch::prompt(link, local, now);
    let shared = local.shared.clone();
    let (Some(landing), Some((placement, shape))) = (&mut link.landing, &shared.placement) else {
        return;
    };
    let owner = (local.member.slot, link.id);
    let mut placement = placement.lock();
    let frames = landing.bytes / placement::BLOCK * shape.frames();
    let from = match placement.progress(&shared, *shape, owner, landing.first) {
        Some(Progress::Expects(frame)) => {
            landing.expects(frame, now);
            if landing.is_stalled(now) {
                placement.pause(&shared, *shape, owner, landing.first);
                landing.pause(now, SLICE);
            }
            Some(frame)
        }
        Some(Progress::All) => {
            landing.expects(frames, now);
            Some(frames)
        }
        Some(Progress::Astray) => None,
        None => {
            drop(placement);
            let request = landing.request;
            return end_withdrawn(link, local, request);
        }
    };
    if landing.is_lost(now, shared.options.lost_after) {
        drop(placement);
        return link.give_up(local);
    }
    let from = match from {
        Some(_) if !landing.is_late(now) => return,
        None if landing.is_paused(now) => return,
        Some(frame) => frame,
        None => {
            let again = placement.aim_again(&shared, *shape, owner, landing.first);
            let Some((aimed, from)) = again else {
                landing.wait(now, placement.is_in_use());
                return;
            };
            landing.aimed(aimed, from, now);
            from
        }
    };
    drop(placement);
    landing.ask(now);
    let (request, first) = (landing.request, landing.first);
    if from < frames {
        ask_again(link, local, request, (first, from));
    }
}

/// The key of a run was withdrawn.
fn end_withdrawn(link: &mut Link, local: &mut Local, request: u64) {
    link.landing = None;
    refuse(link, local, request, Failure::Access);
}

/// Reports a write that announces itself.
fn announce(link: &Link, local: &mut Local, packet: &Packet<'_>) {
    if let Some(immediate) = immediate(packet) {
        local.news.push(Report::Received {
            origin: Origin::Endpoint(link.id),
            buffer: None,
            immediate: Some(immediate),
        });
    }
}
