//! Several threads over the same few names: every answer is allowed for a file system, and the final state is valid,
//! before and after the process is killed.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use client::{FileKind, FileSystem, Geometry};
use lab::call::{Call, Errno, System};
use lab::embedded::Embedded;
use lab::pool::Pool;
use lab::random::{Generator, Mix};
use lab::runner::Subject;
use lab::tree::snapshot;

const THREADS: usize = 4;

fn operations() -> usize {
    let soak = std::env::var_os("TAKO_SOAK").is_some();
    // More take ever longer to choose, as the tree grows: each path in it is known to the generator.
    if soak { 10_000 } else { 2_000 }
}

/// Errors that are allowed when others work on the same names.
const USUAL: [i32; 14] = [
    libc::ENOENT,
    libc::EEXIST,
    libc::ENOTDIR,
    libc::EISDIR,
    libc::ENOTEMPTY,
    libc::EINVAL,
    libc::ELOOP,
    libc::ENOSPC,
    libc::ENODATA,
    libc::ENXIO,
    libc::EBADF,
    libc::EPERM,
    libc::EBUSY,
    libc::EACCES,
];

/// Operations after which the threads wait for each other.
const STEP: usize = 8;

fn work(file_system: FileSystem, operations: &[Call], step: &Barrier) -> Result<usize, String> {
    let mut system = Embedded::new(file_system);
    let mut result = Ok(0);
    for operations in operations.chunks(STEP) {
        step.wait();
        if let Ok(succeeded) = &mut result {
            match work_on(&mut system, operations) {
                Ok(count) => *succeeded += count,
                Err(failure) => result = Err(failure),
            }
        }
    }
    result
}

fn work_on(system: &mut Embedded, operations: &[Call]) -> Result<usize, String> {
    let mut succeeded = 0;
    for operation in operations {
        match system.apply(operation) {
            Ok(_) => succeeded += 1,
            Err(Errno(errno)) if USUAL.contains(&errno) => {}
            Err(Errno(libc::ENAMETOOLONG)) if may_have_a_long_path(operation) => {}
            Err(errno) => return Err(format!("{operation:?} answers {errno:?}")),
        }
    }
    Ok(succeeded)
}

/// Long runs nest directories with long names so deep that paths become longer than any may be.
fn may_have_a_long_path(operation: &Call) -> bool {
    format!("{operation:?}").len() >= libc::PATH_MAX as usize
}

/// One sequence, distributed over the threads in order: while they keep pace, most operations succeed.
fn deal(mix: &Mix, seed: u64) -> [Vec<Call>; THREADS] {
    let mut generator = Generator::new(seed, mix);
    let mut hands = [const { Vec::new() }; THREADS];
    for _ in 0..operations() {
        for hand in &mut hands {
            hand.push(generator.operation());
        }
    }
    hands
}

/// Makes the pool longer, a little at a time, until it is long enough or the others are done.
fn grow(
    file_system: &FileSystem,
    (mut length, grown): (u64, u64),
    is_over: &AtomicBool,
) -> Result<usize, String> {
    while length < grown && !is_over.load(Ordering::Relaxed) {
        // Less than a group of the smallest, so that it often ends in the middle of one.
        length += 700 << 10;
        file_system.grow(length).map_err(|it| it.to_string())?;
        thread::yield_now();
    }
    Ok(0)
}

/// Threads that work on a pool of `length` bytes, which becomes one of `grown` meanwhile.
fn stress(
    mix: &Mix,
    (length, grown): (u64, u64),
    geometry: &Geometry,
    seed: u64,
) -> Result<usize, String> {
    let mut pool = Pool::new(length, geometry, &Arc::default())?;
    let file_system = pool.file_system().ok_or("the pool is closed")?.clone();
    let (hands, step) = (deal(mix, seed), Barrier::new(THREADS));
    let is_over = AtomicBool::new(false);
    let results: Vec<_> = thread::scope(|scope| {
        let growing = scope.spawn(|| grow(&file_system, (length, grown), &is_over));
        let workers: Vec<_> = hands
            .iter()
            .map(|hand| {
                let (file_system, step) = (file_system.clone(), &step);
                scope.spawn(move || work(file_system, hand, step))
            })
            .collect();
        let ends = workers.into_iter().map(|worker| worker.join());
        let panicked = || Err("a thread panicked".into());
        let mut ends: Vec<_> = ends.map(|end| end.unwrap_or_else(|_| panicked())).collect();
        is_over.store(true, Ordering::Relaxed);
        ends.push(growing.join().unwrap_or_else(|_| panicked()));
        ends
    });
    drop(file_system);
    let mut succeeded = 0;
    for result in results {
        succeeded += result?;
    }
    let before = snapshot(&mut pool)?;
    pool.examine()?;
    for orderly in [false, true] {
        pool.restart(orderly)?;
        if let Some(difference) = snapshot(&mut pool)?.difference("it", &before, "the pool before")
        {
            return Err(format!("after a restart, orderly {orderly}:\n{difference}"));
        }
        pool.examine()?;
    }
    Ok(succeeded)
}

fn run(mix: &Mix, length: u64, geometry: Geometry) {
    run_growing(mix, (length, length), geometry);
}

fn run_growing(mix: &Mix, lengths: (u64, u64), geometry: Geometry) {
    for seed in 0..16 {
        match stress(mix, lengths, &geometry, seed) {
            Ok(succeeded) => println!("{succeeded} operations succeeded"),
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
    }
}

fn geometry() -> Geometry {
    Geometry {
        inodes_per_group: 128,
        ..Geometry::small()
    }
}

#[test]
fn few_names() {
    run(&Mix::usual(), 16 << 20, geometry());
}

#[test]
fn full_pool() {
    run(&Mix::large(), 2 << 20, Geometry::small());
}

#[test]
fn growing_pool() {
    run_growing(&Mix::large(), (1 << 20, 24 << 20), Geometry::small());
}

#[test]
fn many_names() {
    run(&Mix::names(), 8 << 20, geometry());
}

#[test]
fn many_pieces() {
    run(&Mix::pieces(), 8 << 20, geometry());
}

/// A path and the number that it led to are two questions: between them, the directory may go.
#[test]
fn a_directory_that_goes_while_it_is_used() {
    const ROUNDS: usize = 20_000;
    let pool = Pool::new(2 << 20, &Geometry::small(), &Arc::default()).unwrap();
    let file_system = pool.file_system().unwrap();
    let path = || "d".to_owned();
    let comes_and_goes = [
        Call::Make {
            path: path(),
            kind: FileKind::Directory,
            permissions: 0o755,
        },
        Call::RemoveDirectory { path: path() },
    ];
    let used = [
        Call::List { path: path() },
        Call::Stat { path: path() },
        Call::Make {
            path: "d/pipe".into(),
            kind: FileKind::Fifo,
            permissions: 0o644,
        },
        Call::Unlink {
            path: "d/pipe".into(),
        },
    ];
    let is_over = AtomicBool::new(false);
    let repeat = |hand: &[Call], is_enough: fn(usize, usize) -> bool| {
        let mut system = Embedded::new(file_system.clone());
        let (mut rounds, mut succeeded) = (0, 0);
        let mut result = Ok(());
        while result.is_ok() && !is_enough(rounds, succeeded) && !is_over.load(Ordering::Relaxed) {
            result = work_on(&mut system, hand).map(|count| succeeded += count);
            rounds += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        result.unwrap();
        assert!(succeeded > 0, "nothing succeeds");
    };
    // On a busy machine the directory may not be there for long, whenever its user runs.
    let is_enough = |rounds, succeeded| match succeeded {
        0 => rounds == 100 * ROUNDS,
        _ => rounds >= ROUNDS,
    };
    thread::scope(|scope| {
        scope.spawn(|| repeat(&comes_and_goes, |_, _| false));
        scope.spawn(|| repeat(&used, is_enough));
    });
}
