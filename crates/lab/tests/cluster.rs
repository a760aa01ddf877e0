//! Seeded runs of a whole unit, and rules of the protocol broken on purpose.

use lab::cluster::plan::Plan;
use lab::cluster::time::SECOND;
use lab::cluster::world::{Setup, Summary, World};
use protocol::{Defect, Defects};

fn run(seed: u64, defects: Defects) -> Result<Summary, (String, Vec<String>)> {
    let mut setup = Setup::usual(seed, 30 * SECOND);
    setup.defects = defects;
    let plan = Plan::random(seed, setup.members, setup.clients, setup.duration);
    let world = World::new(setup, plan).map_err(|error| (error, Vec::new()))?;
    let mut world = if std::env::var("TRACE").is_ok() {
        world.with_trace()
    } else {
        world
    };
    let result = world.run();
    result.map_err(|error| (error, world.trace().to_vec()))
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

#[test]
fn seeds() {
    let (from, count) = (number("SEED", 0), number("SEEDS", 20));
    let mut failed = 0;
    let started = std::time::Instant::now();
    let (mut virtual_time, mut writes, mut reads) = (0, 0, 0);
    for seed in from..from + count {
        match run(seed, Defects::default()) {
            Ok(summary) => {
                virtual_time += summary.time;
                writes += summary.one_sided_writes;
                reads += summary.one_sided_reads;
            }
            Err((error, trace)) => {
                failed += 1;
                println!("seed {seed}: {error}");
                if count == 1 {
                    for line in trace {
                        println!("  {line}");
                    }
                }
            }
        }
    }
    println!(
        "{} virtual seconds per second, {failed} failed",
        virtual_time as f64 / 1e9 / started.elapsed().as_secs_f64()
    );
    println!("{writes} writes and {reads} reads were one-sided");
    assert_eq!(failed, 0);
}

#[test]
fn defects() {
    let only = std::env::var("DEFECT").ok();
    for defect in Defect::ALL {
        if only
            .as_ref()
            .is_some_and(|only| *only != format!("{defect:?}"))
        {
            continue;
        }
        let found = (0..number("SEEDS", 20)).find_map(|seed| {
            run(seed, Defects::of(defect))
                .err()
                .map(|(error, _)| (seed, error))
        });
        match found {
            Some((seed, error)) => println!(
                "{defect:?}: seed {seed}: {}",
                error.lines().next().unwrap_or_default()
            ),
            None => println!("{defect:?}: NOT FOUND"),
        }
    }
}
