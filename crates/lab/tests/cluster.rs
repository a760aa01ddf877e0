//! Seeded runs of a whole unit, and rules of the protocol broken on purpose.
//!
//! `make soak` tries many more; `TAKO_FIRST_SEED=7 TAKO_SEEDS=1` tries one. A seed that fails is run again with ever
//! fewer faults, and the remaining ones are printed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lab::cluster::plan::{self, Fault, Party, Plan, Planned};
use lab::cluster::time::SECOND;
use lab::cluster::world::{Setup, Summary, World};
use operations::Operation;
use protocol::{Defect, Defects};

/// Virtual time of a run, with its faults.
const DURATION: u64 = 30 * SECOND;
/// Seeds among which each defect must be found.
const SEEDS_PER_DEFECT: u64 = 800;

fn setup(seed: u64, defects: &Defects) -> Setup {
    Setup {
        defects: defects.clone(),
        ..Setup::usual(seed, DURATION)
    }
}

fn plan(seed: u64) -> Plan {
    let setup = setup(seed, &Defects::default());
    Plan::random(seed, setup.members, setup.clients, setup.duration)
}

fn run(seed: u64, plan: &Plan, defects: &Defects) -> Result<Summary, String> {
    World::new(setup(seed, defects), plan.clone())?.run()
}

fn number(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.and_then(|it| it.parse().ok()).unwrap_or(otherwise)
}

/// Calls `work` with each number, on as many threads as there are processors, until it returns that this is enough.
fn in_parallel(numbers: std::ops::Range<u64>, work: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(numbers.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= numbers.end {
                        return;
                    }
                    if work(number) {
                        next.store(numbers.end, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

/// The error, and the fewest faults with which it still occurs.
fn explained(seed: u64, error: &str) -> String {
    println!("seed {seed} fails: {error}");
    let sound = Defects::default();
    let least = plan::shrink(plan(seed), |plan| run(seed, plan, &sound).is_err());
    let last = run(seed, &least, &sound).err().unwrap_or_default();
    format!("seed {seed}: {error}\nthe fewest faults with which it fails:\n{least}\n{last}")
}

#[test]
fn seeds_hold() {
    let usual = if std::env::var_os("TAKO_SOAK").is_some() {
        5000
    } else {
        200
    };
    let first = number("TAKO_FIRST_SEED", 0);
    let count = number("TAKO_SEEDS", usual);
    let [virtual_ns, operations, given_up, replaced] = [0; 4].map(AtomicU64::new);
    let [locally_read, read_at_once] = [0; 2].map(AtomicU64::new);
    let failures = std::sync::Mutex::new(Vec::new());
    let started = std::time::Instant::now();
    in_parallel(first..first + count, |seed| {
        match run(seed, &plan(seed), &Defects::default()) {
            Ok(summary) => {
                virtual_ns.fetch_add(summary.time, Ordering::Relaxed);
                operations.fetch_add(summary.operations as u64, Ordering::Relaxed);
                given_up.fetch_add(summary.gave_up as u64, Ordering::Relaxed);
                replaced.fetch_add(u64::from(summary.is_replaced), Ordering::Relaxed);
                locally_read.fetch_add(summary.locally_read as u64, Ordering::Relaxed);
                read_at_once.fetch_add(summary.read_at_once as u64, Ordering::Relaxed);
                false
            }
            Err(error) => {
                let mut failures = failures.lock().expect("no other run panicked");
                failures.push(explained(seed, &error));
                failures.len() > 2
            }
        }
    });
    let seconds = virtual_ns.into_inner() / SECOND;
    println!(
        "{count} seeds, {seconds} s of virtual time in {:.1} s, {} operations, {} of them local reads, {} read at once, \
         {} machines replaced, {} histories given up",
        started.elapsed().as_secs_f64(),
        operations.into_inner(),
        locally_read.into_inner(),
        read_at_once.load(Ordering::Relaxed),
        replaced.into_inner(),
        given_up.load(Ordering::Relaxed),
    );
    let failures = failures.into_inner().expect("no run panicked");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(count < 20 || read_at_once.into_inner() > 0);
    assert_eq!(
        given_up.into_inner(),
        0,
        "histories that were given up are not proved right"
    );
}

#[test]
fn a_seed_gives_the_same_run() {
    for seed in [3, 11, 42] {
        let runs = [(); 2].map(|()| run(seed, &plan(seed), &Defects::default()));
        assert_eq!(runs[0], runs[1], "seed {seed}");
    }
}

/// Seeds that have found errors without any fault, but lost messages.
const WITHOUT_FAULTS: [u64; 4] = [46, 58, 111, 187];

#[test]
fn runs_without_faults_hold_and_find_their_defects() {
    let run = |seed, defects: &Defects| {
        let setup = setup(seed, defects);
        let plan = Plan {
            seed,
            duration: setup.duration,
            faults: Vec::new(),
        };
        World::new(setup, plan)?.run()
    };
    for seed in WITHOUT_FAULTS {
        let ended = run(seed, &Defects::default());
        assert!(ended.is_ok(), "seed {seed}: {ended:?}");
    }
    for defect in Defect::OF_QUIET_RUNS {
        let defects = Defects::of(defect);
        let finds = |seed: u64| run(seed, &defects).is_err();
        if WITHOUT_FAULTS.into_iter().any(finds) {
            continue;
        }
        let is_found = AtomicBool::new(false);
        in_parallel(0..SEEDS_PER_DEFECT, |seed| {
            let finds = finds(seed);
            if finds {
                println!("{defect:?} is found by seed {seed} without faults");
                is_found.store(true, Ordering::Relaxed);
            }
            finds
        });
        assert!(is_found.into_inner(), "{defect:?}");
    }
}

/// A member is cut from all others and from the clients, not from the membership service.
fn run_with_a_member_cut_off(seed: u64, member: u32, defects: &Defects) -> Result<Summary, String> {
    let mut setup = setup(seed, defects);
    setup.options.min_sync = 2;
    setup.is_punctual = true;
    let isolated = Planned {
        at: 5 * SECOND,
        cue: None,
        fault: Fault::Isolate {
            node: Party::Member(member),
            for_ns: 8 * SECOND,
        },
    };
    let plan = Plan {
        seed,
        duration: setup.duration,
        faults: vec![isolated],
    };
    World::new(setup, plan)?.run()
}

/// Seeds and members of runs with a member that is cut off.
fn cuts() -> impl Iterator<Item = (u64, u32)> {
    (0..4).flat_map(|seed| (0..3).map(move |member| (seed, member)))
}

/// The member does not become primary before the primary has left it out; and if it was the primary, the others elect one before
/// it leaves them out, and sessions resume with that.
#[test]
fn the_sessions_of_clients_outlive_a_member_that_is_cut_off() {
    for (seed, member) in cuts() {
        let summary = run_with_a_member_cut_off(seed, member, &Defects::default());
        let summary = summary.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(summary.ended_sessions, 0, "seed {seed}, member {member}");
    }
}

#[test]
fn each_defect_of_cuts_is_found() {
    for defect in Defect::OF_CUTS {
        let outlives = |(seed, member)| {
            let run = run_with_a_member_cut_off(seed, member, &Defects::of(defect));
            run.is_ok_and(|it| it.ended_sessions == 0)
        };
        let found = cuts().find(|cut| !outlives(*cut));
        println!("{defect:?} is found by seed and member {found:?}");
        assert!(found.is_some(), "{defect:?}");
    }
}

#[test]
fn clients_send_every_operation() {
    let mut missing: BTreeSet<&str> = Operation::NAMES.iter().copied().collect();
    // With these seeds clients use all operations.
    for seed in (2..).step_by(7).take(12) {
        let world = World::new(setup(seed, &Defects::default()), plan(seed));
        let mut world = world.expect("a world").with_trace();
        let ended = world.run();
        assert!(ended.is_ok(), "seed {seed}: {ended:?}");
        for line in world
            .trace()
            .iter()
            .filter(|line| line.contains(": Request {"))
        {
            let (_, operation) = line.split_once("operation: ").expect("a request has one");
            let end = operation.find(|it: char| !it.is_alphanumeric());
            let name = &operation[..end.unwrap_or(operation.len())];
            assert!(Operation::NAMES.contains(&name), "{name} is not listed");
            missing.remove(name);
        }
        if missing.is_empty() {
            return;
        }
    }
    panic!("no client sends {missing:?}");
}

/// Which seed found a defect when this was written. It is tried first; if the runs have changed since, the others are.
const FOUND_BY: [(Defect, u64); Defect::ALL.len()] = [
    (Defect::TakeNeighboursPosition, 0),
    (Defect::LocalReadBeforeTails, 732),
    (Defect::RepairWithoutCheck, 76),
    (Defect::AcknowledgeBeforeTails, 2),
    (Defect::SyncBeforeTails, 234),
    (Defect::ReadBeforeTails, 47),
    (Defect::SkipEpochCheck, 7),
    (Defect::ReportBeforeIngest, 0),
    (Defect::DropGapRequest, 87),
    (Defect::ServeWithoutLease, 13),
    (Defect::PromoteBeforeLease, 5),
    (Defect::PromoteOutOfSync, 20),
    (Defect::KeepForeignRecords, 4),
    (Defect::InSyncTooEarly, 13),
    (Defect::OmitBeforeMap, 4),
    (Defect::ForgetSlots, 1),
    (Defect::ForgetSlotsAtTakeover, 27),
    (Defect::ForgetUnconfirmed, 2),
    (Defect::ReplayOutOfOrder, 81),
    (Defect::RefillBeforeTails, 197),
    (Defect::ServeBeforeReplay, 3),
    (Defect::ReviveSession, 0),
    (Defect::ForgetLocksAtTakeover, 3),
    (Defect::AcceptOldReply, 501),
    (Defect::ReuseBeforeTails, 0),
    (Defect::ExpireInMemory, 0),
    (Defect::ForgetPromiseAtRestart, 21),
    (Defect::WindowUnbounded, 47),
    (Defect::PushUnbounded, 318),
    (Defect::ChangeNamedData, 13),
    (Defect::GrantWhileProposing, 4),
    (Defect::PromoteMetadataOnly, 22),
    (Defect::CountBeforeData, 2),
    (Defect::CommitWithoutCheck, 53),
    (Defect::CommitBeforeCompletion, 5),
    (Defect::RefillBeforeCompletion, 0),
    (Defect::LandAgain, 13),
    (Defect::GrantBeforeTails, 0),
    (Defect::ReturnUnsettled, 0),
    (Defect::AskWhileReturning, 22),
    (Defect::KeepUnusedGrants, 0),
    (Defect::ForgetQuarantine, 15),
    (Defect::ForgetQuarantineAtTakeover, 116),
    (Defect::KeepKeys, 15),
    (Defect::IgnoreVersion, 0),
    (Defect::IgnoreChecksums, 18),
    (Defect::LayoutBeforeTails, 47),
    (Defect::IgnoreValidity, 405),
    (Defect::ReadAfterLease, 0),
    (Defect::ReadUnderLaterLease, 0),
    (Defect::ForgetOwnChanges, 10),
    (Defect::SkipCheckAtOnce, 0),
    (Defect::ForgetRefused, 11),
    (Defect::ForgetHolds, 3),
    (Defect::GrantReservedLock, 100),
    (Defect::ForgetCircles, 2),
    (Defect::KeepEndedWaits, 58),
    (Defect::PutWaitsFirst, 2),
    (Defect::ForgetWaits, 2),
    (Defect::TrustBlankPool, 207),
    (Defect::ChangeBeforeRecall, 0),
    (Defect::GrantDuringChange, 8),
    (Defect::GrantWithRepeatedAnswer, 270),
    (Defect::GrantBeyondLease, 50),
    (Defect::IgnoreOvertaking, 0),
    (Defect::AnswerBeforeInvalidation, 0),
    (Defect::KeepMissingNames, 0),
    (Defect::CreateWithoutRecall, 0),
    (Defect::AnswerEndsNewLease, 14),
    (Defect::ReviveLease, 0),
    (Defect::ForgetRenewal, 1),
    (Defect::RenewBeyondLease, 84),
    (Defect::ForgetLease, 0),
    (Defect::KeepOldPages, 0),
    (Defect::DropPagesAfterAnswer, 0),
    (Defect::UseOldWindow, 9),
    (Defect::UseWindowAfterLease, 9),
    (Defect::ForgetLeftBehind, 122),
    (Defect::GrantOwned, 0),
    (Defect::ReadOwned, 0),
    (Defect::DropOwner, 1),
    (Defect::ForgetOwners, 622),
    (Defect::AnswerBeforeFlush, 0),
    (Defect::DropAnswered, 11),
    (Defect::SkipAnswered, 1),
    (Defect::AnswerAfterLease, 0),
    (Defect::FlushInNextSession, 216),
    (Defect::LocalReadOwned, 2),
    (Defect::StampByOwnClock, 3),
    (Defect::ServeByOldTime, 324),
    (Defect::TrustOldTime, 14),
];

/// The seed that notices a defect: the hint, or else the first that is met.
fn found_by(defect: Defect, hint: u64) -> Option<u64> {
    let defects = Defects::of(defect);
    let finds = |seed: u64| run(seed, &plan(seed), &defects).is_err();
    if finds(hint) {
        return Some(hint);
    }
    let found = AtomicU64::new(u64::MAX);
    in_parallel(0..SEEDS_PER_DEFECT, |seed| {
        let is_found = finds(seed);
        if is_found {
            found.fetch_min(seed, Ordering::Relaxed);
        }
        is_found
    });
    Some(found.into_inner()).filter(|seed| *seed != u64::MAX)
}

#[test]
fn each_defect_is_found() {
    let is_listed = |defect: &Defect| FOUND_BY.iter().any(|(known, _)| known == defect);
    assert!(Defect::ALL.iter().all(is_listed), "each has a seed");
    let mut missed = Vec::new();
    for (defect, hint) in FOUND_BY {
        match found_by(defect, hint) {
            None => missed.push(defect),
            Some(seed) if seed == hint => {}
            Some(seed) => println!("{defect:?} is found by seed {seed}, not by {hint} any more"),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// All that the other members send reaches the primary late: answers wait, and its leases are short.
fn run_with_late_members(seed: u64, defects: &Defects) -> Result<Summary, String> {
    let late = Planned {
        at: 3 * SECOND,
        cue: None,
        fault: Fault::LateLink {
            from: Party::Bystanders,
            to: Party::Primary,
            by_ms: 400,
            for_ns: 12 * SECOND,
        },
    };
    let setup = setup(seed, defects);
    let plan = Plan {
        seed,
        duration: setup.duration,
        faults: vec![late],
    };
    World::new(setup, plan)?.run()
}

/// Seeds that find the defects of late members, of these.
const LATE: std::ops::Range<u64> = 0..200;

#[test]
fn runs_with_late_members_hold_and_find_their_defects() {
    for seed in LATE.take(4) {
        let ended = run_with_late_members(seed, &Defects::default());
        assert!(ended.is_ok(), "seed {seed}: {ended:?}");
    }
    for defect in Defect::OF_LATE_MEMBERS {
        let defects = Defects::of(defect);
        let found = LATE
            .into_iter()
            .find(|seed| run_with_late_members(*seed, &defects).is_err());
        println!("{defect:?} is found by seed {found:?}");
        assert!(found.is_some(), "{defect:?}");
    }
}

/// Seeds that find reads at a new primary before the replays, if the primary is cut from the other members for a while.
const BEFORE_REPLAY: [u64; 1] = [183];

#[test]
fn a_local_read_before_the_replays_is_found() {
    let run = |seed, defects: &Defects| {
        let setup = setup(seed, defects);
        let cut = |from, to| Planned {
            at: 5 * SECOND,
            cue: None,
            fault: Fault::Cut {
                from,
                to,
                for_ns: 4 * SECOND,
            },
        };
        let plan = Plan {
            seed,
            duration: setup.duration,
            faults: vec![
                cut(Party::Primary, Party::Bystanders),
                cut(Party::Bystanders, Party::Primary),
            ],
        };
        World::new(setup, plan)?.run()
    };
    for seed in BEFORE_REPLAY {
        let ended = run(seed, &Defects::default());
        assert!(ended.is_ok(), "seed {seed}: {ended:?}");
    }
    let defects = Defects::of(Defect::LocalReadBeforeReplay);
    let finds = |seed| run(seed, &defects).is_err();
    if BEFORE_REPLAY.into_iter().any(finds) {
        return;
    }
    let is_found = AtomicBool::new(false);
    in_parallel(0..SEEDS_PER_DEFECT, |seed| {
        let finds = finds(seed);
        if finds {
            println!("a local read before the replays is found by seed {seed}");
            is_found.store(true, Ordering::Relaxed);
        }
        finds
    });
    assert!(is_found.into_inner());
}
