//! One-sided reads and writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fabric::{Access, EndpointId, Provider, Registration, RemoteRegion, Source, Work, WorkRequest};

use super::raw::RawSocket;
use super::{End, Ends, Placement, device, memory, options, with_far};
use crate::Error;
use crate::harness::{Random, Side, interleave, repeated};
use crate::report::{Quantity, Row};
use crate::setup::{Bench, bytes};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// Allowed cost of one-sided access beside the copy, in ns.
const OVERHEAD_NS: f64 = 100.0;

pub fn shm(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let device = device(Provider::Shm)?;
    let mut ends = Ends::new(&*device, options(true))?;
    let length = bench.scale.file_length;
    let far = memory(&*device, length, Access::ALL)?;
    let near = memory(&*device, MIB as u64, Access::LOCAL)?;
    let remote = ends.import(&far)?;
    let mut rows = Vec::new();
    for (size, reads) in [(PAGE, true), (PAGE, false), (MIB, true), (MIB, false)] {
        let (mut random, mut same) = (Random::new(3), Random::new(3));
        let place = TransferMemory {
            near: &near,
            near_at: 0,
            remote,
            size,
            reads,
        };
        let tako = repeated(bench.scale.effort, || {
            carry_out(
                &mut ends.near,
                ends.to_far,
                &place,
                random.offset(length, size),
            )
        })?;
        let mut copy = repeated(bench.scale.effort, || {
            let offset = same.offset(length, size);
            match reads {
                true => near.region().copy_from(0, far.region(), offset, size),
                false => far.region().copy_from(offset, near.region(), 0, size),
            }
            Ok(())
        })?;
        let is_short = size == PAGE;
        let limit: Side<'_> = Box::new(move || {
            let figures = copy()?;
            let more = if is_short { OVERHEAD_NS } else { 0.0 };
            Ok(figures.into_iter().map(|figure| figure + more).collect())
        });
        let mut sides = vec![tako, limit];
        if !is_short && !reads {
            sides.push(streamed(bench, &far)?);
        }
        let count = sides.len();
        let measured = interleave(bench.scale.rounds, sides)?;
        let is_streamed = count > 2 && measured.median(2, 0) < measured.median(1, 0);
        let (limit, limit_name) = match (is_short, is_streamed) {
            (true, _) => (1, "memcpy + 100 ns"),
            (false, false) => (1, "memcpy, cached"),
            (false, true) => (2, "memcpy, non-temporal"),
        };
        let time = |side| Quantity::ns(measured.median(side, 0));
        let bar = (is_short && reads).then_some(1.0 / 1.2);
        let row = Row::new(&title(name, size, reads), time(0));
        let ratio = measured.ratio((limit, 0), (0, 0));
        rows.push(row.beside(limit_name, time(limit), ratio, bar));
    }
    Ok(rows)
}

/// A side that copies a mebibyte around the caches, where the processor has stores for that.
fn streamed<'a>(bench: &Bench, far: &'a Registration) -> Result<Side<'a>, Error> {
    let (data, length) = (bytes(MIB), bench.scale.file_length);
    let mut random = Random::new(3);
    repeated(bench.scale.effort, move || {
        far.region()
            .write_flushed(random.offset(length, MIB), &data);
        far.region().fence();
        Ok(())
    })
}

pub fn tcp(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let device = device(Provider::Tcp)?;
    let mut ends = Ends::new(&*device, options(false))?;
    let length = 64 * MIB as u64;
    let far = memory(&*device, length, Access::ALL)?;
    let near = memory(&*device, MIB as u64, Access::LOCAL)?;
    let remote = ends.import(&far)?;
    let mut raw = RawSocket::new(false)?;
    let (mut data, mut other) = (vec![1; MIB], vec![2; length as usize]);
    let mut rows = Vec::new();
    for (size, reads) in [(MIB, true), (MIB, false), (PAGE, true), (PAGE, false)] {
        let count = if size == MIB { 20 } else { 200 };
        let place = TransferMemory {
            near: &near,
            near_at: 0,
            remote,
            size,
            reads,
        };
        let mut offset = 0;
        let mut next = move || {
            offset = (offset + size as u64) % length;
            offset
        };
        let sides: Vec<Side<'_>> = vec![
            Box::new(|| {
                let to_far = ends.to_far;
                let took = served(&mut ends, |near| {
                    let start = Instant::now();
                    for _ in 0..count {
                        carry_out(near, to_far, &place, next())?;
                    }
                    Ok(start.elapsed().as_nanos() as f64)
                })?;
                Ok(vec![took / count as f64])
            }),
            Box::new(|| {
                let took = raw.transfer(count, &mut data[..size], &mut other, reads)?;
                Ok(vec![took / count as f64])
            }),
        ];
        let measured = interleave(bench.scale.rounds, sides)?;
        let title = title(name, size, reads);
        if size == MIB {
            rows.push(measured.throughput_row(size, &title, "the socket alone", 0.95));
        } else {
            rows.push(measured.row(0, &title, "the socket alone", None));
        }
    }
    Ok(rows)
}

fn title(name: &str, size: usize, reads: bool) -> String {
    let what = if reads { "read" } else { "write" };
    let size = if size == MIB { "1 MiB" } else { "4 KiB" };
    format!("{name} {what}, {size}")
}

pub struct TransferMemory<'a> {
    pub near: &'a Registration,
    /// Offset of the data in the near memory, in bytes.
    pub near_at: u64,
    pub remote: RemoteRegion,
    pub size: usize,
    pub reads: bool,
}

/// One request, until it has ended.
pub fn carry_out(
    near: &mut End,
    to_far: EndpointId,
    place: &TransferMemory<'_>,
    offset: u64,
) -> Result<(), Error> {
    let pieces = [place.near.piece(place.near_at, place.size as u32)];
    let at = place.remote.at(offset);
    let operation = match place.reads {
        true => Work::Read {
            into: &pieces,
            from: at,
        },
        false => Work::Write {
            from: Source::Pieces(&pieces),
            to: at,
            immediate: None,
        },
    };
    near.post(to_far, &WorkRequest::new(1, operation))?;
    loop {
        let (done, _) = near.count_waiting()?;
        if done > 0 {
            return Ok(());
        }
    }
}

/// Runs an operation at the near side while a thread polls at the far one.
pub fn served<T: Send>(
    ends: &mut Ends,
    act: impl FnOnce(&mut End) -> Result<T, Error>,
) -> Result<T, Error> {
    let Ends {
        near, far, to_far, ..
    } = ends;
    let stop = AtomicBool::new(false);
    let serve = || {
        while !stop.load(Ordering::Acquire) {
            far.count_waiting()?;
        }
        Ok(())
    };
    with_far(Placement::Apart, serve, || {
        let result = act(near);
        stop.store(true, Ordering::Release);
        // So that it wakes up.
        let last = Work::Send {
            from: Source::Inline(b""),
            immediate: None,
        };
        near.post(*to_far, &WorkRequest::new(0, last).quiet())?;
        near.queue.submit();
        result
    })
}
