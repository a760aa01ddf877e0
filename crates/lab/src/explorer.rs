//! Crashes: every image that a power failure may leave is recovered, checked and compared with the model.
//!
//! A workload runs on a [`Simulation`]. At each fence, before it takes effect, the moment is kept; when the operation
//! has answered, its moments are inspected: from each, a bounded number of the images that the hardware allows goes
//! through the ordinary opening of a pool, and through `store::check`. The tree must be that of the model after all
//! finished operations, or also that after the one in flight. See [`Inspector`] for the other checks of an image.

mod format;
mod grow;
mod inspector;
mod together;

use std::fmt;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use client::{Geometry, PoolOptions};
use pmem::{Fault, Moment, Random, Region, Simulation};
use store::Defects;

pub use format::explore_format;
pub use grow::explore_grow;
pub use inspector::{Inspector, guarded};
pub use together::Duet;

use crate::call::{Call, Errno, System};
use crate::embedded::Embedded;
use crate::model::Model;
use crate::pool::{format, options};
use crate::random::{Generator, Mix};
use crate::runner::compare_answers;
use crate::tree::{Tree, snapshot};

/// Bounds of the exploration.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Images of one moment.
    pub images: usize,
    /// One image in so many is also worked on after recovery, and crashed during it.
    pub deep_one_in: usize,
    /// Images of one moment of such a recovery.
    pub nested_images: usize,
    /// One fence in so many is examined.
    pub fences_one_in: u64,
    /// Seed of the choice among images.
    pub seed: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            images: 24,
            deep_one_in: 40,
            nested_images: 6,
            fences_one_in: 1,
            seed: 1,
        }
    }
}

/// Counts of what was explored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Number of workloads run.
    pub workloads: u64,
    /// Number of inspected moments.
    pub moments: u64,
    /// Images that these moments allowed.
    pub possible: f64,
    /// Images recovered, checked and compared.
    pub images: u64,
    /// Images of crashes during recovery, recovered and compared.
    pub nested: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.workloads += other.workloads;
        self.moments += other.moments;
        self.possible += other.possible;
        self.images += other.images;
        self.nested += other.nested;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} workloads, {} moments, {} images of {:.3e} possible ones, {} images of crashes during recovery",
            self.workloads, self.moments, self.images, self.possible, self.nested
        )
    }
}

/// A closed pool, and the model of its contents.
#[derive(Clone)]
pub struct Prepared {
    image: Vec<u8>,
    model: Model,
}

impl Prepared {
    /// A new pool of `length` bytes on which the operations were executed, as far as there was space.
    pub fn new(length: u64, geometry: &Geometry, operations: &[Call]) -> Result<Prepared, String> {
        let clock = Arc::new(AtomicI64::new(1_000_000_000));
        let region = Region::memory(length, false).map_err(|error| error.to_string())?;
        format(&region, geometry)?;
        let mut model = Model::new(clock.clone());
        let options = options(&clock, Defects::default());
        let mut system =
            Embedded::open(region.clone(), options).map_err(|error| error.to_string())?;
        for operation in operations {
            clock.fetch_add(1000, Ordering::Relaxed);
            match compare_answers(&mut system, &mut model, operation)? {
                Ok(_) | Err(Errno(libc::ENOSPC)) => {}
                Err(error) => return Err(format!("{operation:?} does not work: {error:?}")),
            }
        }
        if let Some(difference) = snapshot(&mut system)?.difference("it", &model.tree(), "model") {
            return Err(difference);
        }
        let file_system = system.file_system().clone();
        drop(system);
        file_system.close().map_err(|error| error.to_string())?;
        let mut image = vec![0; length as usize];
        region.read(0, &mut image);
        model.restart();
        Ok(Prepared { image, model })
    }

    /// The bytes of the pool.
    pub fn image(&self) -> &[u8] {
        &self.image
    }

    /// The model of its contents, with a separate clock.
    pub fn model(&self, clock: &Arc<AtomicI64>) -> Model {
        self.model.with_clock(clock.clone())
    }
}

/// A sequence of operations, explored from one of them on.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Operations of the workload.
    pub operations: Vec<Call>,
    /// The operations before this one only lead there: those were explored in a shorter workload.
    pub explored_from: usize,
    /// Whether crashes while the pool is closed in the end are explored too.
    pub close: bool,
}

/// Keeps the moments of the fences of a simulation.
pub struct Recorder(Arc<Recording>);

struct Recording {
    one_in: AtomicU64,
    seen: AtomicU64,
    moments: Mutex<Vec<Moment>>,
}

impl Recorder {
    /// Keeps nothing until [`Recorder::start`].
    pub fn new(simulation: &Simulation) -> Recorder {
        let recording = Arc::new(Recording {
            one_in: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            moments: Mutex::default(),
        });
        let shared = recording.clone();
        simulation.observe_fences(Some(Box::new(move |moment| shared.see(moment))));
        Recorder(recording)
    }

    /// Keeps one moment in `one_in` from now on.
    pub fn start(&self, one_in: u64) {
        self.0.one_in.store(one_in, Ordering::Relaxed);
    }

    /// Returns the kept moments, and clears them.
    pub fn take(&self) -> Vec<Moment> {
        let mut moments = self
            .0
            .moments
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *moments)
    }
}

impl Recording {
    fn see(&self, moment: &Moment) {
        let one_in = self.one_in.load(Ordering::Relaxed);
        if one_in > 0
            && self
                .seen
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(one_in)
        {
            let mut moments = self.moments.lock().unwrap_or_else(PoisonError::into_inner);
            moments.push(moment.clone());
        }
    }
}

/// Runs workloads and inspects their crashes.
pub struct Explorer {
    clock: Arc<AtomicI64>,
    inspector: Inspector,
    defects: Defects,
    fault: Fault,
}

impl Explorer {
    /// An explorer of pools of this many bytes.
    pub fn new(length: u64, bounds: Bounds, defects: Defects) -> Result<Explorer, String> {
        let clock = Arc::new(AtomicI64::new(0));
        let inspector = Inspector::new(length, bounds, defects)?;
        Ok(Explorer {
            clock,
            inspector,
            defects,
            fault: Fault::None,
        })
    }

    /// Makes the simulated hardware do this wrong in every workload from now on.
    pub fn break_hardware(&mut self, fault: Fault) {
        self.fault = fault;
    }

    /// Returns counts of what was examined so far.
    pub fn counts(&self) -> Counts {
        self.inspector.counts
    }

    /// Runs one workload; an error describes the objection.
    pub fn explore(&mut self, prepared: &Prepared, workload: &Workload) -> Result<(), String> {
        self.inspector.counts.workloads += 1;
        let mut run = Run::new(self, prepared.image.clone(), prepared.model(&self.clock))?;
        for (index, operation) in workload.operations.iter().enumerate() {
            let is_explored = index >= workload.explored_from;
            let result = run.step(operation, is_explored);
            result.map_err(|error| report(workload, index, &error))?;
        }
        let result = run
            .pause()
            .and_then(|()| if workload.close { run.close() } else { Ok(()) });
        result.map_err(|error| report(workload, workload.operations.len(), &error))
    }
}

fn report(workload: &Workload, index: usize, error: &str) -> String {
    let operations = &workload.operations;
    format!("a crash at operation {index} of {operations:#?}\n{error}")
}

/// A simulated pool being worked on.
pub struct Run<'a> {
    explorer: &'a mut Explorer,
    simulation: Simulation,
    recorder: Recorder,
    system: Embedded,
    model: Model,
}

impl<'a> Run<'a> {
    /// Opens the pool in `image`, which `model` describes.
    pub fn new(
        explorer: &'a mut Explorer,
        image: Vec<u8>,
        model: Model,
    ) -> Result<Run<'a>, String> {
        let simulation = Simulation::from_image(image);
        let recorder = Recorder::new(&simulation);
        let options = PoolOptions {
            // Both, alternately.
            between_system_calls: explorer.inspector.bounds.seed.is_multiple_of(2),
            ..options(&explorer.clock, explorer.defects)
        };
        let system = Embedded::open(simulation.region(), options)
            .map_err(|error| format!("the pool does not open: {error}"))?;
        simulation.break_flushes(explorer.fault);
        Ok(Run {
            explorer,
            simulation,
            recorder,
            system,
            model,
        })
    }

    /// Executes an operation and inspects the crashes during it.
    pub fn step(&mut self, operation: &Call, is_explored: bool) -> Result<(), String> {
        let bounds = self.explorer.inspector.bounds;
        self.recorder
            .start(if is_explored { bounds.fences_one_in } else { 0 });
        let before = is_explored.then(|| self.model.tree());
        self.explorer.clock.fetch_add(1000, Ordering::Relaxed);
        let between = self.between(operation).filter(|_| is_explored);
        let answer = compare_answers(&mut self.system, &mut self.model, operation).map(drop);
        let moments = self.recorder.take();
        answer?;
        if let Some(before) = before
            && !moments.is_empty()
        {
            let mut allowed = vec![before, self.model.tree()];
            allowed.extend(between.map(|model| model.tree()));
            for moment in moments {
                self.explorer.inspector.inspect(&moment, &allowed)?;
            }
        }
        Ok(())
    }

    /// The model as an operation leaves it half-way, if the pool is too full to do it in one change.
    fn between(&self, operation: &Call) -> Option<Model> {
        let Call::Fallocate { length, .. } = operation else {
            return None;
        };
        let half = operation.without_space()?;
        let available = self
            .system
            .file_system()
            .statistics()
            .ok()?
            .blocks_available;
        // The range may begin and end inside a block.
        if available > length / 4096 + 2 {
            return None;
        }
        let mut model = self.model.clone();
        model.apply(&half).ok().map(|_| model)
    }

    /// Inspects a crash now that no operation is in flight.
    pub fn pause(&mut self) -> Result<(), String> {
        let moment = self.simulation.moment();
        let allowed = [self.model.tree()];
        self.explorer.inspector.inspect(&moment, &allowed)
    }

    /// Inspects crashes while the pool is closed.
    fn close(self) -> Result<(), String> {
        let file_system = self.system.file_system().clone();
        self.recorder.start(1);
        drop(self.system);
        file_system.close().map_err(|error| error.to_string())?;
        let allowed = [self.model.tree()];
        let mut moments = self.recorder.take();
        moments.push(self.simulation.moment());
        for moment in moments {
            self.explorer.inspector.inspect(&moment, &allowed)?;
        }
        Ok(())
    }

    /// Crashes in the middle of an operation, and continues with the recovered pool.
    fn crash_in(mut self, operation: &Call, seed: u64) -> Result<Run<'a>, String> {
        let mut models = vec![self.model.clone(), self.model.clone()];
        models.extend(self.between(operation));
        self.recorder.start(1);
        let answer = compare_answers(&mut self.system, &mut self.model, operation).map(drop);
        let mut moments = self.recorder.take();
        moments.push(self.simulation.moment());
        answer?;
        models[1] = self.model;
        let mut random = Random::new(seed);
        let chosen = random.below(moments.len());
        let images: Vec<_> = moments[chosen].images(IMAGES_TO_GO_ON, seed).collect();
        let image = random.pick(&images).clone();
        let is_finished = chosen == moments.len() - 1;
        let models = if is_finished {
            &models[1..2]
        } else {
            &models[..]
        };
        let allowed: Vec<Tree> = models.iter().map(Model::tree).collect();
        let which = self.explorer.inspector.expect(&image, &allowed)?;
        let mut model = models[which].clone();
        model.restart();
        Run::new(self.explorer, image, model)
    }
}

/// Images of a moment from which one is chosen to continue.
const IMAGES_TO_GO_ON: usize = 16;

/// A step of a long workload.
#[derive(Clone, Debug)]
pub enum Event {
    /// An operation is executed.
    Do(Call),
    /// An operation in which the power fails, at a moment and with an image that the number chooses.
    CrashIn(Call, u64),
}

/// A long random workload: several times `count` operations, with a crash in the one that follows.
pub fn events(
    prepared: &Prepared,
    seed: u64,
    mix: &Mix,
    crashes: usize,
    count: usize,
) -> Vec<Event> {
    let mut generator = Generator::on(prepared.model(&Arc::default()), seed, mix);
    let mut events = Vec::new();
    for _ in 0..crashes {
        events.extend((0..count).map(|_| Event::Do(generator.operation())));
        let operation = generator.operation();
        events.push(Event::CrashIn(operation, generator.number()));
    }
    events
}

impl Explorer {
    /// Runs a long workload, through its crashes; an error describes the objection.
    pub fn explore_events(&mut self, prepared: &Prepared, events: &[Event]) -> Result<(), String> {
        self.inspector.counts.workloads += 1;
        let model = prepared.model(&self.clock);
        let mut run = Run::new(self, prepared.image.clone(), model)?;
        for (index, event) in events.iter().enumerate() {
            let place = |error| format!("at event {index}, {event:?}:\n{error}");
            match event {
                Event::Do(operation) => run.step(operation, true).map_err(place)?,
                Event::CrashIn(operation, seed) => {
                    run = run.crash_in(operation, *seed).map_err(place)?;
                }
            }
        }
        run.pause()
    }
}

const WORKERS: usize = 2;

/// Explores all workloads, on two threads. An error describes the first objection.
pub fn explore_all(
    prepared: &Prepared,
    workloads: &[Workload],
    bounds: Bounds,
    defects: Defects,
) -> Result<Counts, String> {
    let length = prepared.image.len() as u64;
    let batch = workloads.len().div_ceil(4 * WORKERS).min(BATCH_MAX);
    let batches: Vec<_> = workloads.chunks(batch.max(1)).collect();
    in_parallel(batches.len(), |index| {
        let seed = bounds.seed + index as u64;
        let mut explorer = Explorer::new(length, Bounds { seed, ..bounds }, defects)?;
        for workload in batches[index] {
            explorer.explore(prepared, workload)?;
        }
        Ok(explorer.counts())
    })
}

/// Most workloads that share an explorer.
const BATCH_MAX: usize = 16;

/// Does `work` for every index below `count`, on two threads, and adds up; ends at the first error.
pub fn in_parallel(
    count: usize,
    work: impl Fn(usize) -> Result<Counts, String> + Sync,
) -> Result<Counts, String> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut total = Counts::default();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return Ok(total);
            }
            match work(index) {
                Ok(counts) => total += counts,
                Err(objection) => {
                    next.store(count, Ordering::Relaxed);
                    return Err(objection);
                }
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
        let mut total = Counts::default();
        for worker in workers {
            let counts: Result<Counts, String> = worker
                .join()
                .unwrap_or_else(|_| Err("the explorer panicked".to_string()));
            total += counts?;
        }
        Ok(total)
    })
}
