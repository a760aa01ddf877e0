//! Crashes with two operations in flight.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use client::FileSystem;
use pmem::{Moment, Simulation};

use super::{Explorer, Prepared, Run};
use crate::call::{Call, System};
use crate::embedded::Embedded;
use crate::model::Model;
use crate::pool::options;
use crate::tree::Tree;

/// Operations of two threads at the same time. Neither may depend on the other: their operations must succeed in every
/// order and lead to the same tree.
#[derive(Clone, Debug)]
pub struct Duet(pub [Vec<Call>; 2]);

/// Progress of the threads.
#[derive(Default)]
struct Progress {
    started: [AtomicUsize; 2],
    finished: [AtomicUsize; 2],
}

/// A moment, and how many operations of each thread had certainly finished and possibly started.
struct Seen {
    moment: Moment,
    finished: [usize; 2],
    started: [usize; 2],
}

impl Progress {
    /// To be called while the moment's fence waits. Whatever has finished by now had its own fence before, so its
    /// record is persistent in the moment.
    fn see(&self, moment: Moment) -> Seen {
        let load = |counts: &[AtomicUsize; 2]| {
            [&counts[0], &counts[1]].map(|count| count.load(Ordering::SeqCst))
        };
        let finished = load(&self.finished);
        let started = load(&self.started);
        Seen {
            moment,
            finished,
            started,
        }
    }

    /// Executes the operations of one thread.
    fn perform(
        &self,
        thread: usize,
        file_system: FileSystem,
        operations: &[Call],
    ) -> Result<(), String> {
        let mut system = Embedded::new(file_system);
        for operation in operations {
            self.started[thread].fetch_add(1, Ordering::SeqCst);
            let answer = system.apply(operation);
            answer.map_err(|error| format!("{operation:?} fails beside another: {error:?}"))?;
            self.finished[thread].fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// The trees after so many operations of each thread.
struct Trees<'a> {
    model: Model,
    duet: &'a Duet,
    known: HashMap<[usize; 2], Tree>,
}

impl Trees<'_> {
    fn after(&mut self, counts: [usize; 2]) -> Result<Tree, String> {
        if let Some(tree) = self.known.get(&counts) {
            return Ok(tree.clone());
        }
        let mut model = self.model.clone();
        for (operations, count) in self.duet.0.iter().zip(counts) {
            for operation in &operations[..count] {
                let answer = model.apply(operation);
                answer.map_err(|error| format!("{operation:?} fails in the model: {error:?}"))?;
            }
        }
        let tree = model.tree().without_times();
        self.known.insert(counts, tree.clone());
        Ok(tree)
    }

    /// All possible results of a crash: each thread's operation in flight is whole or absent.
    fn allowed(&mut self, seen: &Seen) -> Result<Vec<Tree>, String> {
        let mut allowed = Vec::new();
        for first in seen.finished[0]..=seen.started[0] {
            for second in seen.finished[1]..=seen.started[1] {
                allowed.push(self.after([first, second])?);
            }
        }
        Ok(allowed)
    }
}

impl Explorer {
    /// Lets two threads work at once, and inspects one fence in so many.
    pub fn explore_duet(&mut self, prepared: &Prepared, duet: &Duet) -> Result<(), String> {
        self.inspector.counts.workloads += 1;
        let simulation = Simulation::from_image(prepared.image.clone());
        let file_system = self.open(&simulation)?;
        let progress = Arc::new(Progress::default());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let observer = {
            let (progress, seen, fences) = (progress.clone(), seen.clone(), AtomicU64::new(0));
            let one_in = self.inspector.bounds.fences_one_in;
            move |moment: &Moment| {
                let number = fences.fetch_add(1, Ordering::Relaxed);
                if number.is_multiple_of(one_in) {
                    lock(&seen).push(progress.see(moment.clone()));
                }
            }
        };
        simulation.observe_fences(Some(Box::new(observer)));
        let start = Barrier::new(2);
        let play = |thread: usize| {
            start.wait();
            progress.perform(thread, file_system.clone(), &duet.0[thread])
        };
        let results = thread::scope(|scope| {
            let other = scope.spawn(|| play(1));
            [
                play(0),
                other
                    .join()
                    .unwrap_or_else(|_| Err("a thread panicked".into())),
            ]
        });
        simulation.observe_fences(None);
        for result in results {
            result?;
        }
        let mut seen = std::mem::take(&mut *lock(&seen));
        seen.push(progress.see(simulation.moment()));
        self.inspect_seen(prepared, duet, &seen)
    }

    fn open(&self, simulation: &Simulation) -> Result<FileSystem, String> {
        let options = options(&self.clock, self.defects);
        let file_system = FileSystem::open_region(simulation.region(), options)
            .map_err(|error| format!("the pool does not open: {error}"))?;
        simulation.break_flushes(self.fault);
        Ok(file_system)
    }

    fn inspect_seen(
        &mut self,
        prepared: &Prepared,
        duet: &Duet,
        seen: &[Seen],
    ) -> Result<(), String> {
        let mut trees = Trees {
            model: prepared.model(&self.clock),
            duet,
            known: HashMap::new(),
        };
        for seen in seen {
            let allowed = trees.allowed(seen)?;
            let result = self.inspector.inspect(&seen.moment, &allowed);
            result.map_err(|error| {
                let Seen {
                    finished, started, ..
                } = seen;
                format!("with {finished:?} operations finished of {started:?} started:\n{error}")
            })?;
        }
        Ok(())
    }

    /// Stops `first` at its fence number `fence`, counted from 0, lets `second` proceed to its own first fence, and
    /// inspects the crashes of this moment. After each, recovery and `first` run again, and crash again: the record of
    /// `second`, which may be whole after a torn one, must not reappear. False when `first` has no such fence.
    pub fn explore_stage(
        &mut self,
        prepared: &Prepared,
        first: &Call,
        second: &Call,
        fence: u64,
    ) -> Result<bool, String> {
        let duet = Duet([vec![first.clone()], vec![second.clone()]]);
        let Some(seen) = self.stage(prepared, &duet, fence)? else {
            return Ok(false);
        };
        self.inspector.counts.workloads += 1;
        let describe = |error| {
            format!("{first:?} stopped at its fence {fence} while {second:?} goes on:\n{error}")
        };
        self.inspect_seen(prepared, &duet, std::slice::from_ref(&seen))
            .and_then(|()| self.go_on(prepared, &duet, &seen))
            .map_err(describe)?;
        Ok(true)
    }

    /// The moment when both operations are in flight.
    fn stage(
        &mut self,
        prepared: &Prepared,
        duet: &Duet,
        fence: u64,
    ) -> Result<Option<Seen>, String> {
        let simulation = Simulation::from_image(prepared.image.clone());
        let file_system = self.open(&simulation)?;
        let progress = Arc::new(Progress::default());
        let (go, entrance) = channel();
        let seen = Arc::new(Mutex::new(None));
        let observer = {
            let (progress, seen, go) = (progress.clone(), seen.clone(), go.clone());
            let (simulation, fences) = (simulation.clone(), AtomicU64::new(0));
            let first = thread::current().id();
            move |_: &Moment| {
                let own = thread::current().id() == first;
                if own && fences.fetch_add(1, Ordering::Relaxed) == fence {
                    let _ = go.send(());
                    let moment = when_quiet(&simulation, &progress);
                    *lock(&seen) = Some(progress.see(moment));
                }
            }
        };
        simulation.observe_fences(Some(Box::new(observer)));
        let other = file_system.clone();
        let results = thread::scope(|scope| {
            let progress = &progress;
            let other = scope.spawn(move || {
                // Both ends of the channel live until the threads have ended.
                let _ = entrance.recv();
                progress.perform(1, other, &duet.0[1])
            });
            let result = progress.perform(0, file_system.clone(), &duet.0[0]);
            // In case the fence did not come: the other thread still waits.
            let _ = go.send(());
            [
                result,
                other
                    .join()
                    .unwrap_or_else(|_| Err("a thread panicked".into())),
            ]
        });
        simulation.observe_fences(None);
        for result in results {
            result?;
        }
        let seen = lock(&seen).take();
        Ok(seen)
    }

    /// Recovers images of the moment, repeats the first operation on each, and crashes again.
    fn go_on(&mut self, prepared: &Prepared, duet: &Duet, seen: &Seen) -> Result<(), String> {
        let mut models = Vec::new();
        for (first, second) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            let mut model = prepared.model(&self.clock);
            for operation in duet.0[0]
                .iter()
                .take(first)
                .chain(duet.0[1].iter().take(second))
            {
                let answer = model.apply(operation);
                answer.map_err(|error| format!("{operation:?} fails in the model: {error:?}"))?;
            }
            models.push(model);
        }
        let allowed: Vec<Tree> = models.iter().map(|m| m.tree().without_times()).collect();
        let bounds = self.inspector.bounds;
        self.inspector.bounds.images = IMAGES_AFTERWARDS;
        for image in seen.moment.images(bounds.images, bounds.seed) {
            let which = self.inspector.expect(&image, &allowed)?;
            let result = Run::new(self, image, models[which].clone()).and_then(|mut run| {
                run.step(&duet.0[0][0], false)?;
                run.pause()
            });
            result.map_err(|error| format!("and the first goes on after recovery:\n{error}"))?;
        }
        self.inspector.bounds = bounds;
        Ok(())
    }
}

/// Images of the moment after an operation that follows a recovery.
const IMAGES_AFTERWARDS: usize = 3;
/// How long the second thread may take to change something: it may be waiting for the first.
const PATIENCE: Duration = Duration::from_millis(200);
/// Polls without a change after which the second thread counts as blocked.
const QUIET: u32 = 60;

/// The moment when the second thread has changed something and then blocks, at its own fence.
fn when_quiet(simulation: &Simulation, progress: &Progress) -> Moment {
    let start = Instant::now();
    let before = simulation.moment().pending_lines();
    let (mut last, mut quiet) = (before, 0);
    while progress.finished[1].load(Ordering::SeqCst) == 0
        && (last == before || quiet < QUIET)
        && start.elapsed() < PATIENCE
    {
        thread::yield_now();
        let now = simulation.moment().pending_lines();
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
    }
    simulation.moment()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
