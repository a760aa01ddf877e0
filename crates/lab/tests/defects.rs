//! Without a flush, a fence, an ordering or a checksum, the explorer objects.
#![forbid(unsafe_code)]

use client::{FileKind, Geometry};
use lab::call::Call;
use lab::damage;
use lab::explorer::{
    Bounds, Counts, Event, Explorer, Prepared, Workload, events, explore_all, in_parallel,
};
use lab::random::Mix;
use lab::workloads::{POOL_LENGTH, append, copy, make, preparation, preparation_in_pieces, rename};
use lab::workloads::{unlink, write};
use pmem::{Fault, Simulation};
use store::{BLOCK, Defects, NewInode, PoolOptions, Store, Transaction, WriteAt};

type Result = std::result::Result<Counts, String>;

/// The exploration finds nothing without the defect, and something with it.
fn expect_objection(defects: Defects, explore: impl Fn(Defects) -> Result) {
    let counts = explore(Defects::default());
    let counts = counts.unwrap_or_else(|objection| panic!("nothing is broken, but {objection}"));
    match explore(defects) {
        Ok(_) => panic!("{defects:?} goes unnoticed: {counts}"),
        Err(objection) => println!("{defects:?} is noticed:\n{}", last_lines(&objection)),
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(4)..].join("\n")
}

fn prepare(operations: &[Call]) -> Prepared {
    Prepared::new(POOL_LENGTH, &Geometry::small(), operations).expect("the pool is prepared")
}

/// A few operations of each sort, one after the other.
fn assorted() -> Vec<Call> {
    vec![
        write("a", 10, 100),
        make("n", FileKind::Regular),
        append("n", 5000),
        write("a", 0, 12_288),
        rename("b", "d/n", client::RenameMode::Replace),
        unlink("d/f"),
        make("e/n", FileKind::Directory),
    ]
}

fn run(defects: Defects, operations: &[Call]) -> Result {
    run_on(&prepare(&preparation()), defects, operations)
}

fn run_on(prepared: &Prepared, defects: Defects, operations: &[Call]) -> Result {
    let workload = Workload {
        operations: operations.to_vec(),
        explored_from: 0,
        close: true,
    };
    explore_all(prepared, &[workload], Bounds::default(), defects)
}

/// Stops the first operation at each of its fences while the second continues.
fn stage(prepared: &Prepared, defects: Defects, first: &Call, second: &Call) -> Result {
    let mut explorer = Explorer::new(POOL_LENGTH, Bounds::default(), defects)?;
    let mut fence = 0;
    while explorer.explore_stage(prepared, first, second, fence)? {
        fence += 1;
    }
    Ok(explorer.counts())
}

fn wrap_the_ring(defects: Defects) -> Result {
    let bounds = Bounds {
        images: 4,
        fences_one_in: 7,
        ..Bounds::default()
    };
    let prepared = prepare(&preparation());
    in_parallel(2, |index| {
        let mut explorer = Explorer::new(POOL_LENGTH, bounds, defects)?;
        let events: Vec<Event> = events(&prepared, index as u64, &Mix::small(), 1, 400);
        explorer.explore_events(&prepared, &events)?;
        Ok(explorer.counts())
    })
}

#[test]
fn records_that_are_not_flushed() {
    let skip_record_flush = true;
    let defects = Defects {
        skip_record_flush,
        ..Defects::default()
    };
    expect_objection(defects, |defects| run(defects, &assorted()));
}

#[test]
fn records_that_are_not_fenced() {
    let skip_record_fence = true;
    let defects = Defects {
        skip_record_fence,
        ..Defects::default()
    };
    expect_objection(defects, |defects| run(defects, &assorted()));
}

#[test]
fn data_that_is_not_fenced() {
    let skip_data_fence = true;
    let defects = Defects {
        skip_data_fence,
        ..Defects::default()
    };
    expect_objection(defects, |defects| run(defects, &[write("a", 0, 12_288)]));
}

#[test]
fn changes_before_their_record() {
    let apply_before_commit = true;
    let defects = Defects {
        apply_before_commit,
        ..Defects::default()
    };
    expect_objection(defects, |defects| run(defects, &assorted()));
}

#[test]
fn records_that_are_not_checked() {
    let skip_record_checksum = true;
    let defects = Defects {
        skip_record_checksum,
        ..Defects::default()
    };
    expect_objection(defects, |defects| run(defects, &assorted()));
}

#[test]
fn records_of_an_earlier_epoch() {
    let skip_epoch_check = true;
    let defects = Defects {
        skip_epoch_check,
        ..Defects::default()
    };
    let prepared = prepare(&preparation());
    expect_objection(defects, |defects| {
        stage(
            &prepared,
            defects,
            &write("a", 10, 100),
            &write("b", 10, 300),
        )
    });
}

#[test]
fn ring_space_before_its_image_lines() {
    let reclaim_without_flush = true;
    let defects = Defects {
        reclaim_without_flush,
        ..Defects::default()
    };
    expect_objection(defects, wrap_the_ring);
}

/// One thread overwrites a block and rests; another one's records take the ring space of that.
fn wrap_past_a_resting_thread(defects: Defects) -> Result {
    let simulation = Simulation::new(POOL_LENGTH);
    let open = |region| {
        let options = PoolOptions {
            defects,
            ..PoolOptions::default()
        };
        Store::open(region, options).map_err(|error| error.to_string())
    };
    let at = WriteAt::Offset;
    let failed = |error: store::Error| error.to_string();
    Store::format(&simulation.region(), &Geometry::small()).map_err(failed)?;
    let store = open(simulation.region())?;
    let root = store.root();
    let new = NewInode::new(FileKind::Regular, 0o600);
    let [block, small] = [b"block", b"small"].map(|name| {
        store
            .names()
            .create(&mut Transaction::embedded(), &root, name, &new)
    });
    let (block, small) = (block.map_err(failed)?, small.map_err(failed)?);
    store
        .files()
        .write(&mut Transaction::embedded(), &block, at(0), &[1; BLOCK])
        .map_err(failed)?;
    let overwrite = || {
        store
            .files()
            .write(&mut Transaction::embedded(), &block, at(0), &[2; BLOCK])
    };
    std::thread::scope(|scope| scope.spawn(overwrite).join())
        .expect("the thread ends")
        .map_err(failed)?;
    for round in 0..500u32 {
        let data = round.to_le_bytes();
        store
            .files()
            .write(&mut Transaction::embedded(), &small, at(0), &data)
            .map_err(failed)?;
    }
    let mut counts = Counts::default();
    for image in simulation.moment().images(50, 1) {
        counts.images += 1;
        let store = open(Simulation::from_image(image).region())?;
        let node = store.inodes().node(block.number()).map_err(failed)?;
        let mut found = [0; BLOCK];
        store.files().read(&node, 0, &mut found).map_err(failed)?;
        if found != [2; BLOCK] {
            return Err("an overwrite that was answered is lost".to_string());
        }
    }
    Ok(counts)
}

#[test]
fn ring_space_before_a_resting_threads_stores() {
    let reclaim_unfenced = true;
    let defects = Defects {
        reclaim_unfenced,
        ..Defects::default()
    };
    expect_objection(defects, wrap_past_a_resting_thread);
}

fn overwrite_blocks(defects: Defects) -> Result {
    let bounds = Bounds {
        images: 8,
        ..Bounds::default()
    };
    let rows = (0..2).map(|seed| lab::workloads::overwritten_blocks(seed, 40));
    explore_all(
        &prepare(&preparation()),
        &rows.collect::<Vec<_>>(),
        bounds,
        defects,
    )
}

#[test]
fn ring_space_before_the_lines_of_overwritten_blocks() {
    let reclaim_without_flush = true;
    let defects = Defects {
        reclaim_without_flush,
        ..Defects::default()
    };
    expect_objection(defects, overwrite_blocks);
}

#[test]
fn blocks_before_they_are_free() {
    let reuse_before_commit = true;
    let defects = Defects {
        reuse_before_commit,
        ..Defects::default()
    };
    let prepared = prepare(&preparation_in_pieces());
    let (first, second) = (write("a", 0, 12_288), write("b", 0, 12_288));
    expect_objection(defects, |defects| {
        stage(&prepared, defects, &first, &second)
    });
}

#[test]
fn old_data_over_references() {
    let replay_over_references = true;
    let defects = Defects {
        replay_over_references,
        ..Defects::default()
    };
    let prepared = prepare(&preparation_in_pieces());
    let operations = [
        write("a", 10, 100),
        write("a", 0, 12_288),
        write("b", 0, 12_288),
    ];
    expect_objection(defects, |defects| run_on(&prepared, defects, &operations));
}

#[test]
fn forgotten_orphans() {
    let forget_orphans = true;
    let defects = Defects {
        forget_orphans,
        ..Defects::default()
    };
    let path = "a".to_string();
    let operations = [Call::Hold { path, slot: 0 }, unlink("a")];
    expect_objection(defects, |defects| run(defects, &operations));
}

#[test]
fn blocks_that_are_not_cleared() {
    let skip_clearing = true;
    let defects = Defects {
        skip_clearing,
        ..Defects::default()
    };
    expect_objection(defects, |defects| {
        run(defects, &[make("n", FileKind::Regular), append("n", 700)])
    });
}

#[test]
fn shared_blocks_that_are_overwritten() {
    let overwrite_shared = true;
    let defects = Defects {
        overwrite_shared,
        ..Defects::default()
    };
    let operations = [copy(("a", 0), ("b", 0), 12_388), write("a", 10, 100)];
    expect_objection(defects, |defects| run(defects, &operations));
}

#[test]
fn owners_that_are_not_counted() {
    let forget_owners = true;
    let defects = Defects {
        forget_owners,
        ..Defects::default()
    };
    let operations = [copy(("a", 0), ("b", 0), 12_388)];
    expect_objection(defects, |defects| run(defects, &operations));
}

#[test]
fn data_that_is_not_checked() {
    let skip_data_checksum = true;
    let defects = Defects {
        skip_data_checksum,
        ..Defects::default()
    };
    let prepared = prepare(&preparation());
    expect_objection(defects, |defects| {
        damage::inflict(&prepared, 3000, 1, defects).map(|fates| {
            println!("{fates:?}");
            Counts::default()
        })
    });
}

/// Explores the assorted operations with broken hardware.
fn with_fault(fault: Fault) -> Result {
    let prepared = prepare(&preparation());
    let bounds = Bounds {
        images: 8,
        deep_one_in: 1000,
        ..Bounds::default()
    };
    let mut explorer = Explorer::new(POOL_LENGTH, bounds, Defects::default())?;
    explorer.break_hardware(fault);
    let workload = Workload {
        operations: assorted(),
        explored_from: 0,
        close: false,
    };
    explorer.explore(&prepared, &workload)?;
    Ok(explorer.counts())
}

#[test]
fn flushes_that_do_nothing() {
    with_fault(Fault::None).expect("nothing is broken");
    with_fault(Fault::IgnoreFlushes).expect_err("flushes are needed");
    let needed: Vec<u64> = (0..40)
        .filter(|number| with_fault(Fault::IgnoreNthFlush(*number)).is_err())
        .collect();
    println!("needed flushes: {needed:?}");
    assert!(
        needed.len() >= assorted().len(),
        "each record needs its own: {needed:?}"
    );
}

#[test]
fn fences_that_do_nothing() {
    with_fault(Fault::IgnoreFences).expect_err("fences are needed");
    let needed: Vec<u64> = (0..40)
        .filter(|number| with_fault(Fault::IgnoreNthFence(*number)).is_err())
        .collect();
    println!("needed fences: {needed:?}");
    // One for each record, and one for the data that a record names.
    let all: Vec<u64> = (0..assorted().len() as u64 + 1).collect();
    assert_eq!(needed, all);
}
