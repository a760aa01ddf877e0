//! Crashes of workloads on simulated memory.
#![forbid(unsafe_code)]

use std::time::Instant;

use client::{FileKind, Geometry};
use lab::call::Call;
use lab::explorer::{
    Bounds, Counts, Event, Explorer, Prepared, Workload, events, explore_all, explore_format,
    explore_grow, in_parallel,
};
use lab::random::Mix;
use lab::runner::shrink;
use lab::workloads;
use store::Defects;

/// TAKO_SOAK multiplies the bounds by this.
fn factor() -> usize {
    if std::env::var_os("TAKO_SOAK").is_some() {
        5
    } else {
        1
    }
}

fn prepare(operations: &[Call]) -> Prepared {
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
    explore_on(&prepared(), what, workloads, bounds);
}

fn explore_on(prepared: &Prepared, what: &str, workloads: &[Workload], bounds: Bounds) {
    let start = Instant::now();
    match explore_all(prepared, workloads, bounds, Defects::default()) {
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
        images: 32 * factor(),
        ..Bounds::default()
    };
    explore("two operations", &workloads::pairs(), bounds);
}

#[test]
fn a_sample_of_three_operations() {
    let sample = workloads::sample(3, 2000 * factor(), 3);
    explore("three operations", &sample, Bounds::default());
}

/// Wraps the ring several times, and continues after crashes. Besides the first `count` seeds, those that once failed.
fn explore_long(what: &str, prepared: &Prepared, mix: &Mix, count: usize, failed: &[u64]) {
    let count = (count * factor()) as u64;
    let seeds: Vec<u64> = (0..count).chain(failed.iter().copied()).collect();
    let bounds = Bounds {
        images: 6,
        fences_one_in: 7,
        deep_one_in: 60,
        ..Bounds::default()
    };
    let start = Instant::now();
    let run = |seed, events: &[Event]| {
        let bounds = Bounds { seed, ..bounds };
        let length = prepared.image().len() as u64;
        let mut explorer = Explorer::new(length, bounds, Defects::default())?;
        let result = explorer.explore_events(prepared, events);
        result.map(|()| explorer.counts())
    };
    let counts = in_parallel(seeds.len(), |index| {
        let seed = seeds[index];
        let events = events(prepared, seed, mix, 4, 250);
        run(seed, &events).map_err(|objection| {
            println!("seed {seed}: {objection}\nLooking for what is enough of it");
            let minimal = shrink(events, |events| run(seed, events).is_err());
            format!("seed {seed}: {objection}\nThese are enough: {minimal:#?}")
        })
    });
    match counts {
        Ok(counts) => tell(what, start, counts, bounds),
        Err(objection) => panic!("{what}: {objection}"),
    }
}

#[test]
fn long_workloads() {
    explore_long("long workloads", &prepared(), &Mix::small(), 24, &[]);
}

#[test]
fn long_workloads_on_a_full_pool() {
    explore_long("full pool", &in_pieces(), &Mix::small(), 8, &[22]);
}

#[test]
fn long_workloads_of_many_names() {
    explore_long("many names", &prepared(), &Mix::names(), 8, &[]);
}

#[test]
fn long_workloads_of_many_pieces() {
    explore_long("many pieces", &prepared(), &Mix::small_pieces(), 8, &[]);
}

#[test]
fn overwritten_blocks() {
    let bounds = Bounds {
        images: 12,
        deep_one_in: 30,
        ..Bounds::default()
    };
    let rows = (0..16 * factor() as u64).map(|seed| workloads::overwritten_blocks(seed, 60));
    explore("overwritten blocks", &rows.collect::<Vec<_>>(), bounds);
}

#[test]
fn names_that_change_leaves() {
    let bounds = Bounds {
        images: 40 * factor(),
        deep_one_in: 30,
        ..Bounds::default()
    };
    let prepared = prepare(&workloads::preparation_of_leaves());
    let workload = workloads::renames_between_leaves();
    explore_on(&prepared, "names that change leaves", &[workload], bounds);
}

#[test]
fn files_of_many_extents() {
    let length = workloads::POOL_LENGTH_EXTENTS;
    let operations = workloads::preparation_of_many_extents();
    let prepared =
        Prepared::new(length, &Geometry::small(), &operations).expect("the pool is prepared");
    let bounds = Bounds {
        images: 60 * factor(),
        ..Bounds::default()
    };
    explore_on(
        &prepared,
        "many extents",
        &workloads::many_extents(),
        bounds,
    );
}

/// Several groups, a longer ring, and writes of 1 MiB.
#[test]
fn large_pool() {
    let geometry = Geometry {
        ring_length: 2 << 20,
        ..Geometry::small()
    };
    let mebibyte = 1 << 20;
    let files = [
        workloads::make("m", FileKind::Regular),
        workloads::write("m", 0, mebibyte),
    ];
    let operations = [&workloads::preparation()[..], &files].concat();
    let prepared = Prepared::new(8 << 20, &geometry, &operations).expect("the pool is prepared");
    let writes = [
        workloads::write("m", 0, mebibyte),
        workloads::write("m", 5, mebibyte),
        workloads::write("a", 4096, mebibyte),
        workloads::append("b", mebibyte),
        workloads::unlink("m"),
    ];
    let workload = |operation| Workload {
        operations: vec![operation],
        explored_from: 0,
        close: false,
    };
    let workloads = writes.map(workload);
    let bounds = Bounds {
        images: 24 * factor(),
        ..Bounds::default()
    };
    explore_on(&prepared, "large pool", &workloads, bounds);
}

#[test]
fn without_data_checksums() {
    let geometry = Geometry {
        data_checksums: false,
        ..Geometry::small()
    };
    let operations = workloads::preparation();
    let prepared = Prepared::new(workloads::POOL_LENGTH, &geometry, &operations)
        .expect("the pool is prepared");
    let sample = workloads::sample(2, 150 * factor(), 2);
    explore_on(&prepared, "no data checksums", &sample, Bounds::default());
}

fn shared_blocks() -> Prepared {
    prepare(&workloads::preparation_of_shared_blocks())
}

#[test]
fn two_operations_at_once() {
    let pools = [prepared(), in_pieces()];
    explore_stages("two operations at once", &pools, workloads::stages());
}

#[test]
fn two_operations_on_shared_blocks() {
    let stages = workloads::stages_of_shared_blocks();
    explore_stages(
        "two operations on shared blocks",
        &[shared_blocks()],
        stages,
    );
}

/// Each of two operations is stopped at each of its fences while the other comes as far as its own.
fn explore_stages(what: &str, pools: &[Prepared], [first, second]: [Vec<Call>; 2]) {
    let bounds = Bounds {
        images: 48 * factor(),
        ..Bounds::default()
    };
    let start = Instant::now();
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
        Ok(counts) => tell(what, start, counts, bounds),
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
    let (start, prepared) = (Instant::now(), shared_blocks());
    let counts = in_parallel(100 * factor(), |index| {
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

#[test]
fn making_a_pool() {
    let bounds = Bounds {
        images: 300 * factor(),
        ..Bounds::default()
    };
    let start = Instant::now();
    match explore_format(&prepared(), &Geometry::small(), bounds) {
        Ok(counts) => tell("making a pool", start, counts, bounds),
        Err(objection) => panic!("{objection}"),
    }
}

#[test]
fn growing_an_open_pool() {
    let bounds = Bounds {
        images: 40 * factor(),
        ..Bounds::default()
    };
    let start = Instant::now();
    match explore_grow(&prepared(), 2600 << 10, bounds) {
        Ok(counts) => tell("growing an open pool", start, counts, bounds),
        Err(objection) => panic!("{objection}"),
    }
}
