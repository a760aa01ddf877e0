//! Units that grow while members crash, rejoin, lead, and learn of it late; and the rule of it broken on purpose.
#![forbid(unsafe_code)]

use std::thread;

use lab::cluster::plan::Plan;
use lab::cluster::time::SECOND;
use lab::cluster::world::{Setup, Summary, World};
use protocol::{Defect, Defects};

const DURATION: u64 = 20 * SECOND;
const SEEDS: u64 = 40;
/// Seeds that found the defects when this was written, and then others.
const FOUND_BY: [u64; 1] = [0];
/// Runs of this seed differed between threads.
const SAME_SEED: u64 = 14;
const SEEDS_PER_DEFECT: u64 = 400;

/// Pools are nearly full at first, so that the new part is soon in use.
fn run(seed: u64, defects: Defects) -> Result<Summary, String> {
    let setup = Setup {
        defects,
        is_full: true,
        grows_at: Some((2 + seed % 9) * SECOND),
        ..Setup::usual(seed, DURATION)
    };
    let plan = Plan::random(seed, setup.members, setup.clients, setup.duration);
    World::new(setup, plan)?.run()
}

#[test]
fn units_grow_while_members_come_and_go() {
    let mut operations = 0;
    for seed in 0..SEEDS {
        match run(seed, Defects::default()) {
            Ok(summary) => operations += summary.operations,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    println!("{SEEDS} seeds, {operations} operations");
}

/// Threads spread over the image when they allocate; those of members do not.
#[test]
fn a_run_does_not_depend_on_its_thread() {
    let on_new_thread = || thread::spawn(|| run(SAME_SEED, Defects::default()));
    let [first, second] = [(); 2].map(|()| on_new_thread().join().expect("the run ends"));
    assert_eq!(first.expect("it holds"), second.expect("it holds"));
}

#[test]
fn each_defect_of_growth_is_found() {
    for defect in Defect::OF_GROWTH {
        let mut seeds = FOUND_BY.into_iter().chain(0..SEEDS_PER_DEFECT);
        let found = seeds.find(|seed| run(*seed, Defects::of(defect)).is_err());
        println!("{defect:?} is found by seed {found:?}");
        assert!(found.is_some(), "{defect:?}");
    }
}
