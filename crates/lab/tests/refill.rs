//! A member that comes back is in sync after a while although clients write without pause; and the rule of it broken on purpose.
#![forbid(unsafe_code)]

use lab::cluster::plan::{Fault, Party, Plan, Planned};
use lab::cluster::time::{MILLISECOND, SECOND};
use lab::cluster::world::{Setup, Summary, World};
use protocol::{Defect, Defects, UnitOptions};

const DURATION: u64 = 12 * SECOND;
/// Seeds that found the defect when this was written.
const SEEDS: [u64; 1] = [4];
/// Blocks of 4 KiB that a client writes each time: four clients fill the ring of 64 KiB in 50 ms.
const BLOCKS: u32 = 8;

/// One member is away for so long that the others do not have the records any more that it needs, and is refilled in small parts.
fn run(seed: u64, defects: Defects) -> Result<Summary, String> {
    let usual = Setup::usual(seed, DURATION);
    let setup = Setup {
        defects,
        is_full: false,
        // An early answer keeps the data at the client: it fills no ring.
        is_early: false,
        is_punctual: true,
        metadata_only: None,
        options: UnitOptions {
            refill: 4 << 10,
            fetch_window: 4 << 10,
            ..usual.options.clone()
        },
        ..usual
    };
    let at = |at, fault| Planned {
        at,
        cue: None,
        fault,
    };
    let away = Fault::Crash {
        member: Party::Member(2),
        after_fences: 0,
        for_ns: 2 * SECOND,
    };
    let clients = setup.clients;
    let writes = (SECOND / 2..DURATION / 3 * 2).step_by(20 * MILLISECOND as usize);
    let writes = writes.flat_map(|time| {
        let rush = move |client| Fault::Rush {
            client: Party::Client(client),
            blocks: BLOCKS,
        };
        (0..clients).map(move |client| at(time, rush(client)))
    });
    let plan = Plan {
        seed,
        duration: setup.duration,
        faults: [at(SECOND, away)].into_iter().chain(writes).collect(),
    };
    World::new(setup, plan)?.run()
}

#[test]
fn a_refill_ends_although_clients_write_without_pause() {
    for seed in SEEDS {
        let summary = run(seed, Defects::default());
        let summary = summary.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(summary.was_whole, "seed {seed}: {summary:?}");
        println!("seed {seed}: {} operations", summary.operations);
    }
}

#[test]
fn each_defect_of_load_is_found() {
    for defect in Defect::OF_LOAD {
        let is_found = |seed| !run(seed, Defects::of(defect)).is_ok_and(|it| it.was_whole);
        let found = SEEDS.into_iter().find(|seed| is_found(*seed));
        println!("{defect:?} is found by seed {found:?}");
        assert!(found.is_some(), "{defect:?}");
    }
}
