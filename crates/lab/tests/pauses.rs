//! Units in which processes are stopped for a while, and nothing else happens: a pause of one does not count against others.
#![forbid(unsafe_code)]

use lab::cluster::plan::{Fault, Party, Plan, Planned};
use lab::cluster::time::{MILLISECOND, SECOND, Time};
use lab::cluster::world::{Setup, Summary, World};
use protocol::{Defect, Defects};

/// Virtual time of a run.
const DURATION: Time = 24 * SECOND;
/// Seeds of each kind of run.
const SEEDS: std::ops::Range<u64> = 0..40;

fn run(seed: u64, faults: Vec<Planned>, defects: &Defects) -> Result<Summary, String> {
    run_of(3, seed, faults, defects)
}

fn run_of(
    members: u32,
    seed: u64,
    faults: Vec<Planned>,
    defects: &Defects,
) -> Result<Summary, String> {
    let usual = Setup::usual(seed, DURATION);
    let mut setup = Setup {
        members,
        metadata_only: usual.metadata_only.filter(|_| members > 1),
        defects: defects.clone(),
        is_punctual: true,
        ..usual
    };
    setup.options.min_sync = members.min(2) as usize;
    let plan = Plan {
        seed,
        duration: setup.duration,
        faults,
    };
    World::new(setup, plan)?.run()
}

fn pause(at: Time, node: Party, for_ns: Time, is_in_step: bool) -> Planned {
    Planned {
        at,
        cue: None,
        fault: Fault::Pause {
            node,
            is_in_step,
            for_ns,
        },
    }
}

/// The primary is stopped a few times, for about as long as a lease lasts: at times another member is primary afterwards.
fn run_with_a_paused_primary(seed: u64, defects: &Defects) -> Result<Summary, String> {
    let faults = (0..5).map(|number| {
        let at = (3 + 2 * number) * SECOND + seed * 37 * MILLISECOND;
        let for_ns = (700 + (seed + number) * 53 % 400) * MILLISECOND;
        pause(at, Party::Primary, for_ns, seed.is_multiple_of(3))
    });
    run(seed, faults.collect(), defects)
}

/// The host of all members is suspended for longer than a session lasts, with its clients or without them. The only member of a
/// unit stays its primary.
fn run_with_a_suspended_host(seed: u64, defects: &Defects) -> Result<Summary, String> {
    let count = if seed % 4 < 2 { 1 } else { 3 };
    let members = (0..count).map(Party::Member);
    let clients = (0..4).map(Party::Client).filter(|_| seed.is_multiple_of(2));
    let for_ns = 3500 * MILLISECOND + seed * 41 * MILLISECOND;
    let at = 5 * SECOND + seed * 37 * MILLISECOND;
    let stopped = members.chain(clients);
    let faults = stopped.map(|node| pause(at, node, for_ns, false));
    run_of(count, seed, faults.collect(), defects)
}

/// The time from which a member is lost, and its end.
const LOST: std::ops::Range<Time> = 3 * SECOND..15 * SECOND;

/// The member that is lost.
fn lost(seed: u64) -> u32 {
    (seed % 3) as u32
}

/// A member is lost, and the primary is stopped again and again for nearly all of the time.
fn run_with_a_lost_member(seed: u64, defects: &Defects) -> Result<Summary, String> {
    let lost = Planned {
        at: LOST.start,
        cue: None,
        fault: Fault::Isolate {
            node: Party::Member(lost(seed)),
            for_ns: LOST.end - LOST.start,
        },
    };
    let pauses = (0..20).map(|number| {
        let at = LOST.start + number * 600 * MILLISECOND;
        pause(at, Party::Primary, 550 * MILLISECOND, false)
    });
    run(seed, std::iter::once(lost).chain(pauses).collect(), defects)
}

/// No member is left out that was never away, and no session ends.
fn blames_none(ended: &Result<Summary, String>) -> bool {
    let blames_none = |it: &Summary| it.left_out.is_empty() && it.ended_sessions == 0;
    ended.as_ref().is_ok_and(blames_none)
}

#[test]
fn a_primary_that_was_paused_leaves_out_no_member_and_ends_no_session() {
    for seed in SEEDS {
        let ended = run_with_a_paused_primary(seed, &Defects::default());
        assert!(blames_none(&ended), "seed {seed}: {ended:?}");
    }
}

#[test]
fn sessions_outlive_a_suspension_of_the_host() {
    for seed in SEEDS {
        let ended = run_with_a_suspended_host(seed, &Defects::default());
        assert!(blames_none(&ended), "seed {seed}: {ended:?}");
    }
}

/// Whether the lost member is left out while it is lost. If it was the primary, the others elect another one instead.
fn goes_on(seed: u64, defects: &Defects) -> bool {
    let node = lost(seed);
    let Ok(ended) = run_with_a_lost_member(seed, defects) else {
        return false;
    };
    let mut before = ended.takeovers.iter().rev();
    let primary = before.find(|(at, _)| *at < LOST.start);
    match primary.is_some_and(|(_, primary)| *primary == node) {
        true => {
            let mut elected = ended.takeovers.iter();
            elected.any(|(at, primary)| LOST.contains(at) && *primary != node)
        }
        false => {
            let mut left_out = ended.left_out.iter();
            left_out.any(|(at, out)| LOST.contains(at) && *out == node)
        }
    }
}

#[test]
fn a_primary_that_is_paused_again_and_again_leaves_out_a_lost_member() {
    for seed in SEEDS {
        assert!(goes_on(seed, &Defects::default()), "seed {seed}");
    }
}

#[test]
fn each_defect_of_pauses_is_found() {
    for defect in Defect::OF_PAUSES {
        let defects = Defects::of(defect);
        let finds = |seed: &u64| match defect {
            Defect::CountPauses => !blames_none(&run_with_a_paused_primary(*seed, &defects)),
            Defect::ExpirePaused => !blames_none(&run_with_a_suspended_host(*seed, &defects)),
            _ => !goes_on(*seed, &defects),
        };
        let found = SEEDS.into_iter().find(finds);
        println!("{defect:?} is found by seed {found:?}");
        assert!(found.is_some(), "{defect:?}");
    }
}
