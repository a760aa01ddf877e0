//! The method by which a payload arrives soonest, by its size: in the message, written before it, or pulled.
//!
//! Each way ends when the near side has the far side's answer that it has the data.

use fabric::buffers::Class;
use fabric::{
    Access, Pool, Provider, QueueOptions, Registration, RemoteRegion, Source, Work, WorkRequest,
};

use super::ping::{await_message, round_trips};
use super::{Ends, Placement, device, memory, with_far};
use crate::Error;
use crate::harness::{Measured, Side, interleave};
use crate::report::{Quantity, Row};
use crate::setup::Bench;

/// Sizes to compare at, in bytes.
const SIZES: [u32; 9] = [64, 256, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];
const LARGEST: u32 = SIZES[SIZES.len() - 1];
/// Pings in a round.
const COUNT: u64 = 50;

/// A message needs no place in the peer's memory that is known beforehand: it may be a little slower.
const GOOD_ENOUGH: f64 = 0.9;

/// Method by which a request's data is transferred.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The message contains the data.
    Message,
    /// Written, and announced by the write itself.
    Pushed,
    /// The message contains the location; the far side reads it.
    Pulled,
}

/// A few sizes, for the table; [`tune`] shows all of them.
pub fn measure(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for provider in super::with_ways() {
        let mut ways = Ways::new(provider)?;
        for size in [256, 4096, 65_536] {
            let measured = ways.compare(bench, size)?;
            for (side, what) in [(1, "pushed"), (2, "pulled")] {
                let row_name = format!("{name}: {provider}, {size} B {what}");
                let ratio = measured.ratio((0, 0), (side, 0));
                let row = Row::new(&row_name, Quantity::ns(measured.median(side, 0)));
                let limit = Quantity::ns(measured.median(0, 0));
                rows.push(row.beside("in the message", limit, ratio, None));
            }
        }
        rows.push(pooled(bench, provider)?);
    }
    Ok(rows)
}

/// The rows with this in their names, or all rows if it is in the group's name.
///
/// # Errors
/// [`Error::NotTuned`].
pub fn tuned(only: Option<&str>) -> Result<Vec<Provider>, Error> {
    let part = only.unwrap_or_default();
    let is_wanted =
        |provider: &Provider| provider.name().contains(part) || super::GROUP.contains(part);
    let known: Vec<_> = super::with_ways().collect();
    let wanted: Vec<_> = known.iter().copied().filter(is_wanted).collect();
    if wanted.is_empty() {
        let names: Vec<_> = known.iter().map(|provider| provider.name()).collect();
        let names = names.join(", ");
        return Err(Error::NotTuned {
            name: part.to_owned(),
            names: format!("{}, {names}", super::GROUP),
        });
    }
    Ok(wanted)
}

/// `tako bench fabric --tune`: all sizes, and up to which one a payload should travel in its message.
pub fn tune(bench: &Bench, providers: Vec<Provider>) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for provider in providers {
        let mut ways = Ways::new(provider)?;
        let mut best = 0;
        for size in SIZES {
            let measured = ways.compare(bench, size)?;
            let ratio = measured
                .ratio((1, 0), (0, 0))
                .min(measured.ratio((2, 0), (0, 0)));
            if ratio >= GOOD_ENOUGH {
                best = size;
            }
            let row = Row::new(
                &format!("{provider}: {size} B in the message"),
                Quantity::ns(measured.median(0, 0)),
            );
            let other = measured.median(1, 0).min(measured.median(2, 0));
            let limit_name = match measured.median(1, 0) <= measured.median(2, 0) {
                true => "pushed",
                false => "pulled",
            };
            rows.push(row.beside(limit_name, Quantity::ns(other), ratio, None));
        }
        let found = Quantity::new(f64::from(best), "bytes");
        let now = device(provider)?.capabilities().in_message_bytes;
        let row = Row::new(&format!("{provider}: in the message up to"), found);
        let limit = Quantity::new(f64::from(now), "bytes");
        rows.push(row.beside("the default", limit, f64::from(best) / f64::from(now), None));
    }
    Ok(rows)
}

/// Options of a queue for messages of all sizes.
pub fn options() -> QueueOptions {
    QueueOptions {
        message_bytes: LARGEST,
        // A wake-up takes longer than any of the ways.
        ..super::options(true)
    }
}

/// Two peers with memory for each way.
struct Ways {
    ends: Ends,
    /// The near side's data, which the far side may read.
    near: Registration,
    /// The far side's place for it, which the near side may write.
    far: Registration,
    far_for_near: RemoteRegion,
    near_for_far: RemoteRegion,
}

impl Ways {
    fn new(provider: Provider) -> Result<Ways, Error> {
        let device = device(provider)?;
        let mut ends = Ends::new(&*device, options())?;
        let near = memory(&*device, LARGEST.into(), Access::READ)?;
        let far = memory(&*device, LARGEST.into(), Access::WRITE)?;
        let far_for_near = ends.import(&far)?;
        let export = ends.near.queue.export(ends.to_far, &near)?;
        let near_for_far = ends.far.queue.import(ends.to_near, export)?;
        Ok(Ways {
            ends,
            near,
            far,
            far_for_near,
            near_for_far,
        })
    }

    fn compare(&mut self, bench: &Bench, size: u32) -> Result<Measured, Error> {
        let ways = std::cell::RefCell::new(self);
        let side = |way| -> Side<'_> {
            let ways = &ways;
            Box::new(move || Ok(vec![ways.borrow_mut().round(way, size)? / COUNT as f64]))
        };
        let sides = vec![side(Way::Message), side(Way::Pushed), side(Way::Pulled)];
        interleave(bench.scale.rounds, sides)
    }

    fn round(&mut self, way: Way, size: u32) -> Result<f64, Error> {
        let Ways {
            ends,
            near: data,
            far: place,
            far_for_near,
            near_for_far,
        } = self;
        let Ends {
            near,
            far,
            to_far,
            to_near,
        } = ends;
        let pieces = [data.piece(0, size)];
        let there = match way {
            Way::Message => Work::Send {
                from: Source::Pieces(&pieces),
                immediate: None,
            },
            Way::Pushed => Work::Write {
                from: Source::Pieces(&pieces),
                to: far_for_near.at(0),
                immediate: Some(1),
            },
            Way::Pulled => Work::Send {
                from: Source::Inline(&[0; 32]),
                immediate: Some(2),
            },
        };
        let answer = Work::Send {
            from: Source::Inline(&[0; 8]),
            immediate: None,
        };
        let serve = || {
            for id in 0..COUNT {
                await_message(far)?;
                if way == Way::Pulled {
                    let into = [place.piece(0, size)];
                    let read = Work::Read {
                        into: &into,
                        from: near_for_far.at(0),
                    };
                    far.post(*to_near, &WorkRequest::new(id, read))?;
                    while far.count_waiting()?.0 == 0 {}
                }
                far.post(*to_near, &WorkRequest::new(id, answer).quiet())?;
                far.queue.submit();
            }
            Ok(())
        };
        with_far(Placement::Apart, serve, || {
            round_trips(near, *to_far, there, COUNT)
        })
    }
}

/// Buffers of a pool beside memory that is made and registered for each use.
fn pooled(bench: &Bench, provider: Provider) -> Result<Row, Error> {
    const BYTES: u32 = 65_536;
    let device = device(provider)?;
    let classes = [Class {
        bytes: BYTES,
        count: 4,
    }];
    let pool = Pool::new(&*device, &classes, Access::READ)?;
    let data = vec![3; BYTES as usize];
    let pooled = crate::harness::repeated(bench.scale.effort, || {
        let Some(buffer) = pool.allocate(BYTES) else {
            return Err(Error::Fabric("the pool is empty".into()));
        };
        buffer.write(0, &data);
        Ok(())
    })?;
    let registered = crate::harness::repeated(bench.scale.effort, || {
        let region = pmem::Region::memory(BYTES.into(), false)?;
        let registration = device.register(&region, Access::READ)?;
        registration.region().write(0, &data);
        // Its key goes with it.
        device.revoke(&registration);
        Ok(())
    })?;
    let measured = interleave(bench.scale.rounds, vec![pooled, registered])?;
    let name = format!("64 KiB into a pooled buffer, {provider}");
    Ok(measured.row(0, &name, "registered for each use", None))
}
