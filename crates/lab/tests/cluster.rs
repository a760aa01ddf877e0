//! Seeded runs of a whole unit.

use lab::cluster::plan::Plan;
use lab::cluster::time::SECOND;
use lab::cluster::world::{Setup, World};

fn run(
    seed: u64,
    seconds: u64,
    faults: bool,
) -> Result<lab::cluster::world::Summary, (String, Vec<String>)> {
    let setup = Setup::usual(seed, seconds * SECOND);
    let plan = if faults {
        Plan::random(seed, setup.members, setup.clients, setup.duration)
    } else {
        Plan {
            seed,
            duration: setup.duration,
            faults: Vec::new(),
        }
    };
    let mut world = World::new(setup, plan)
        .map_err(|e| (e, vec![]))?
        .with_trace();
    let result = world.run();
    result.map_err(|error| (error, world.trace().to_vec()))
}

#[test]
fn seeds() {
    let from: u64 = std::env::var("SEED")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(0);
    let count: u64 = std::env::var("SEEDS")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(20);
    let seconds: u64 = std::env::var("SECONDS")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(30);
    let mut failed = 0;
    let started = std::time::Instant::now();
    let mut virtual_time = 0;
    for seed in from..from + count {
        match run(seed, seconds, std::env::var("CALM").is_err()) {
            Ok(summary) => {
                virtual_time += summary.time;
                println!("{seed}: {summary:?}")
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
    assert_eq!(failed, 0);
}
