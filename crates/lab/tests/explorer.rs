//! Crashes of workloads on simulated memory.
#![forbid(unsafe_code)]

use std::time::Instant;

use client::Geometry;
use lab::explorer::{
    Bounds, Counts, Event, Explorer, Prepared, Workload, events, explore_all, in_parallel,
};
use lab::operation::Operation;
use lab::random::Mix;
use lab::runner::shrink;
use lab::workloads;
use store::Defects;

/// TAKO_SOAK multiplies the bounds by this.
fn factor() -> usize {
    if std::env::var_os("TAKO_SOAK").is_some() {
        20
    } else {
        1
    }
}

fn prepare(operations: &[Operation]) -> Prepared {
    Prepared::new(workloads::POOL_LENGTH, &Geometry::small(), operations)
        .expect("the pool is prepared")
}

fn prepared() -> Prepared {
    prepare(&workloads::preparation())
}

fn in_pieces() -> Prepared {
    prepare(&workloads::preparation_in_pieces())
}

fn explore(what: &str, workloads: &[Workload], bounds: Bounds) {
    let start = Instant::now();
    match explore_all(&prepared(), workloads, bounds, Defects::default()) {
        Ok(counts) => tell(what, start, counts, bounds),
        Err(objection) => panic!("{what}: {objection}"),
    }
}

fn tell(what: &str, start: Instant, counts: Counts, bounds: Bounds) {
    let seconds = start.elapsed().as_secs_f32();
    println!(
        "{what}: {counts}; at most {} of a moment; {seconds:.1} s",
        bounds.images
    );
}

#[test]
fn every_single_operation() {
    let bounds = Bounds {
        images: 200 * factor(),
        deep_one_in: 10,
        ..Bounds::default()
    };
    explore("one operation", &workloads::single(), bounds);
}

#[test]
fn every_pair_of_operations() {
    let bounds = Bounds {
        images: 24 * factor(),
        ..Bounds::default()
    };
    explore("two operations", &workloads::pairs(), bounds);
}

#[test]
fn a_sample_of_three_operations() {
    let sample = workloads::sample(3, 1000 * factor(), 3);
    explore("three operations", &sample, Bounds::default());
}

/// Wraps the ring several times, reuses blocks at once, and goes on after crashes.
#[test]
fn long_workloads() {
    let bounds = Bounds {
        images: 6,
        fences_one_in: 7,
        deep_one_in: 60,
        ..Bounds::default()
    };
    let (prepared, mix) = (prepared(), Mix::small());
    let start = Instant::now();
    let run = |seed, events: &[Event]| {
        let mut explorer = Explorer::new(workloads::POOL_LENGTH, bounds, Defects::default())?;
        let result = explorer.explore_events(&prepared, events);
        result
            .map(|()| explorer.counts())
            .map_err(|objection| format!("seed {seed}: {objection}"))
    };
    let counts = in_parallel(12 * factor(), |index| {
        let seed = index as u64;
        let events = events(&prepared, seed, &mix, 4, 250);
        run(seed, &events).map_err(|objection| {
            let minimal = shrink(events, |events| run(seed, events).is_err());
            format!("{objection}\nThese are enough: {minimal:#?}")
        })
    });
    match counts {
        Ok(counts) => tell("long workloads", start, counts, bounds),
        Err(objection) => panic!("{objection}"),
    }
}

/// Each of two operations is stopped at each of its fences while the other comes as far as its own.
#[test]
fn two_operations_at_once() {
    let bounds = Bounds {
        images: 48 * factor(),
        ..Bounds::default()
    };
    let [first, second] = workloads::stages();
    let start = Instant::now();
    let pools = [prepared(), in_pieces()];
    let cases: Vec<_> = (pools.iter())
        .flat_map(|pool| first.iter().map(move |one| (pool, one)))
        .flat_map(|(pool, one)| second.iter().map(move |two| (pool, one, two)))
        .collect();
    let counts = in_parallel(cases.len(), |index| {
        let (pool, one, two) = cases[index];
        let mut explorer = Explorer::new(workloads::POOL_LENGTH, bounds, Defects::default())?;
        for (one, two) in [(one, two), (two, one)] {
            let mut fence = 0;
            while explorer.explore_stage(pool, one, two, fence)? {
                fence += 1;
            }
        }
        Ok(explorer.counts())
    });
    match counts {
        Ok(counts) => tell("two operations at once", start, counts, bounds),
        Err(objection) => panic!("{objection}"),
    }
}

#[test]
fn two_busy_threads() {
    let bounds = Bounds {
        images: 12,
        fences_one_in: 5,
        ..Bounds::default()
    };
    let (start, prepared) = (Instant::now(), prepared());
    let counts = in_parallel(60 * factor(), |index| {
        let seed = index as u64;
        let bounds = Bounds { seed, ..bounds };
        let mut explorer = Explorer::new(workloads::POOL_LENGTH, bounds, Defects::default())?;
        let duet = workloads::duet(seed, 60);
        let result = explorer.explore_duet(&prepared, &duet);
        result.map_err(|objection| format!("seed {seed}: {objection}"))?;
        Ok(explorer.counts())
    });
    match counts {
        Ok(counts) => tell("two busy threads", start, counts, bounds),
        Err(objection) => panic!("{objection}"),
    }
}
