//! Time of a short message and its answer.

use std::time::Instant;

use fabric::{EndpointId, Provider, Source, Work, WorkRequest};

use super::raw::{RawMemory, RawSocket};
use super::{End, Ends, Placement, device, options, with_far};
use crate::Error;
use crate::harness::{Side, interleave};
use crate::report::Row;
use crate::setup::Bench;

/// Bytes of a message.
const BYTES: usize = 8;

pub fn shm(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let device = device(Provider::Shm)?;
    let (mut spinning, mut sleeping) = (
        Ends::new(&*device, options(true))?,
        Ends::new(&*device, options(false))?,
    );
    let (raw, raw_sleeping) = (RawMemory::new()?, RawMemory::new()?);
    let count = count(bench, true);
    let few = self::count(bench, false);
    let sides: Vec<Side<'_>> = vec![
        Box::new(|| per_ping(count, ping(&mut spinning, count, Placement::Apart))),
        Box::new(|| per_ping(count, raw.ping(count, false))),
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    let mut rows = vec![measured.row(
        0,
        &format!("{name}, both spinning"),
        "words in memory",
        Some(1.0 / 1.3),
    )];
    let sides: Vec<Side<'_>> = vec![
        Box::new(|| per_ping(few, ping(&mut sleeping, few, Placement::Anywhere))),
        Box::new(|| per_ping(few, raw_sleeping.ping(few, true))),
    ];
    let measured = interleave(bench.scale.rounds, sides)?;
    rows.push(measured.row(0, "  both sleeping", "futexes", None));
    Ok(rows)
}

pub fn tcp(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let device = device(Provider::Tcp)?;
    let mut rows = Vec::new();
    for (sleeps, title) in [
        (false, format!("{name}, both spinning")),
        (true, "  both sleeping".into()),
    ] {
        let mut ends = Ends::new(&*device, options(!sleeps))?;
        let mut raw = RawSocket::new(!sleeps)?;
        let place = Placement::of(sleeps);
        let count = count(bench, !sleeps);
        let sides: Vec<Side<'_>> = vec![
            Box::new(|| per_ping(count, ping(&mut ends, count, place))),
            Box::new(|| per_ping(count, raw.ping(count, BYTES, place))),
        ];
        let measured = interleave(bench.scale.rounds, sides)?;
        rows.push(measured.row(0, &title, "the socket alone", Some(1.0 / 1.15)));
    }
    Ok(rows)
}

/// A side of pings without Tako, both ends spinning: its figure is the time of one, in ns.
pub fn raw(bench: &Bench, provider: Provider) -> Result<Side<'static>, Error> {
    let count = count(bench, true);
    Ok(match provider {
        Provider::Tcp => {
            let mut raw = RawSocket::new(true)?;
            let place = Placement::of(false);
            Box::new(move || per_ping(count, raw.ping(count, BYTES, place)))
        }
        _ => {
            let raw = RawMemory::new()?;
            Box::new(move || per_ping(count, raw.ping(count, false)))
        }
    })
}

/// Pings of a round: with blocking each takes 40 µs and more.
pub fn count(bench: &Bench, spins: bool) -> u64 {
    let effort_us = bench.scale.effort.as_micros() as u64;
    if spins { effort_us } else { effort_us / 20 }
}

pub fn per_ping(count: u64, took_ns: Result<f64, Error>) -> Result<Vec<f64>, Error> {
    took_ns.map(|took| vec![took / count as f64])
}

/// So many messages there and back, in ns. Both sides wait as their queues' options require.
pub(super) fn ping(ends: &mut Ends, count: u64, place: Placement) -> Result<f64, Error> {
    let Ends {
        near,
        far,
        to_far,
        to_near,
    } = ends;
    let note = Work::Send {
        from: Source::Inline(&[7; BYTES]),
        immediate: None,
    };
    let answer = || {
        for id in 0..count {
            await_message(far)?;
            far.post(*to_near, &WorkRequest::new(id, note).quiet())?;
            far.queue.submit();
        }
        Ok(())
    };
    with_far(place, answer, || round_trips(near, *to_far, note, count))
}

/// Time of so many requests, each of which the other end answers by a message, in ns.
pub(super) fn round_trips(
    near: &mut End,
    to_far: EndpointId,
    request: Work<'_>,
    count: u64,
) -> Result<f64, Error> {
    let start = Instant::now();
    for id in 0..count {
        near.post(to_far, &WorkRequest::new(id, request).quiet())?;
        near.queue.submit();
        await_message(near)?;
    }
    Ok(start.elapsed().as_nanos() as f64)
}

/// Waits for a message, as the queue's options require.
pub(super) fn await_message(end: &mut End) -> Result<(), Error> {
    while end.count_waiting()?.1 == 0 {}
    Ok(())
}
