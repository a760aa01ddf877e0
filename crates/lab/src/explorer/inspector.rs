//! One crash image: recovered, checked, compared; now and then worked on, and crashed again.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use client::{FileFlags, FileKind, ROOT};
use pmem::{Moment, Random, Region, Simulation};
use store::{CheckOptions, Defects};

use super::{Bounds, Counts, Recorder};
use crate::call::{At, Call, Errno, System};
use crate::embedded::Embedded;
use crate::pool::options;
use crate::tree::{Tree, snapshot};

/// Recovers crash images, in a memory that is used again for each.
pub struct Inspector {
    scratch: Region,
    clock: Arc<AtomicI64>,
    defects: Defects,
    random: Random,
    /// Bounds of the inspection.
    pub(crate) bounds: Bounds,
    /// Counts of the inspection.
    pub(crate) counts: Counts,
}

impl Inspector {
    /// An inspector of images of `length` bytes.
    pub fn new(length: u64, bounds: Bounds, defects: Defects) -> Result<Inspector, String> {
        Ok(Inspector {
            scratch: Region::memory(length, false).map_err(|error| error.to_string())?,
            clock: Arc::default(),
            defects,
            random: Random::new(bounds.seed),
            bounds,
            counts: Counts::default(),
        })
    }

    /// Inspects images of a moment. Each must recover to one of the allowed trees.
    pub fn inspect(&mut self, moment: &Moment, allowed: &[Tree]) -> Result<(), String> {
        self.counts.moments += 1;
        self.counts.possible += moment.images_total() as f64;
        let seed = self.random.next_number();
        for (index, image) in moment.images(self.bounds.images, seed).enumerate() {
            let result = self.inspect_image(image, allowed);
            result.map_err(|error| {
                let lines = moment.pending_lines();
                format!("image {index} of seed {seed} ({lines} lines were pending):\n{error}")
            })?;
        }
        Ok(())
    }

    /// Inspects images of a moment. Each must recover to one of the allowed trees, or be refused as no pool.
    pub fn inspect_or_refuse(&mut self, moment: &Moment, allowed: &[Tree]) -> Result<(), String> {
        self.counts.moments += 1;
        self.counts.possible += moment.images_total() as f64;
        let seed = self.random.next_number();
        for image in moment.images(self.bounds.images, seed) {
            self.scratch.write(0, &image);
            if guarded(|| Ok(self.open_and(|_| Ok(())).is_ok()))? {
                // Not checked: with one of the two superblocks a pool can be used, but is not in order.
                self.recover(allowed)?;
            }
            self.counts.images += 1;
        }
        Ok(())
    }

    fn inspect_image(&mut self, image: Vec<u8>, allowed: &[Tree]) -> Result<(), String> {
        self.counts.images += 1;
        let which = self.expect(&image, allowed)?;
        if self.random.one_in(self.bounds.deep_one_in) {
            self.check_crashed(&image)?;
            self.work_on(&image, &allowed[which])?;
            self.crash_recovery(image, &allowed[which])?;
        }
        Ok(())
    }

    /// Recovers an image, and returns which of the trees it contains.
    pub fn expect(&mut self, image: &[u8], allowed: &[Tree]) -> Result<usize, String> {
        self.scratch.write(0, image);
        let which = self.recover(allowed)?;
        guarded(|| self.check()).map_err(|error| format!("after recovery, {error}"))?;
        Ok(which)
    }

    /// Opens the pool in the scratch memory.
    fn recover(&self, allowed: &[Tree]) -> Result<usize, String> {
        let tree = guarded(|| self.open_and(snapshot))?;
        let which = allowed.iter().position(|allowed| *allowed == tree);
        which.ok_or_else(|| contradiction(&tree, allowed))
    }

    /// Opens the pool in the scratch memory, for some work.
    fn open_and<T>(
        &self,
        work: impl FnOnce(&mut Embedded) -> Result<T, String>,
    ) -> Result<T, String> {
        let options = options(&self.clock, self.defects);
        let system = Embedded::open(self.scratch.clone(), options);
        work(&mut system.map_err(|error| format!("the pool does not open: {error}"))?)
    }

    fn check(&self) -> Result<(), String> {
        let report = store::check(&self.scratch, &CheckOptions::default())
            .map_err(|error| format!("the check fails: {error}"))?;
        if report.is_clean() {
            return Ok(());
        }
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        Err(format!("the check finds {findings:#?}"))
    }

    /// Checks an image that no store has opened.
    fn check_crashed(&self, image: &[u8]) -> Result<(), String> {
        self.scratch.write(0, image);
        guarded(|| self.check()).map_err(|error| format!("before recovery, {error}"))
    }

    /// Recovers an image, works, and opens it again: the earlier contents must still be there.
    fn work_on(&self, image: &[u8], expected: &Tree) -> Result<(), String> {
        self.scratch.write(0, image);
        guarded(|| {
            self.open_and(work)?;
            self.check()?;
            let tree = self.open_and(snapshot)?.without_times();
            let expected = expected.clone().without_times();
            tree.difference("the pool", &expected, "the model")
                .map_or(Ok(()), Err)
        })
        .map_err(|error| format!("after recovery and some work, {error}"))
    }

    /// Crashes while an image is recovered. Recovery from that must lead to the same tree.
    fn crash_recovery(&mut self, image: Vec<u8>, expected: &Tree) -> Result<(), String> {
        let simulation = Simulation::from_image(image);
        let recorder = Recorder::new(&simulation);
        recorder.start(1);
        let options = options(&self.clock, self.defects);
        let system = Embedded::open(simulation.region(), options)
            .map_err(|error| format!("the simulated pool does not open: {error}"))?;
        let mut moments = recorder.take();
        moments.push(simulation.moment());
        drop(system);
        let allowed = std::slice::from_ref(expected);
        for moment in moments {
            let seed = self.random.next_number();
            for image in moment.images(self.bounds.nested_images, seed) {
                self.counts.nested += 1;
                self.expect(&image, allowed)
                    .map_err(|error| format!("after a crash during recovery:\n{error}"))?;
            }
        }
        Ok(())
    }
}

/// Does work in which damage may lead to a panic, which is an objection like others.
pub fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(format!("it panics: {}", message(&*panic))))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

/// Allocates and frees blocks and inodes: errors of recovery about them become visible.
fn work(system: &mut Embedded) -> Result<(), String> {
    let path = || "probe".to_string();
    let write = |offset, length| Call::Write {
        path: path(),
        at: At::Offset(offset),
        length,
        fill: 1,
    };
    let operations = [
        Call::Make {
            path: path(),
            kind: FileKind::Regular,
            permissions: 0o600,
        },
        write(100, 5000),
        write(8192, 40_960),
        Call::Truncate {
            path: path(),
            size: 9000,
        },
        write(9000, 9000),
        Call::Unlink { path: path() },
    ];
    let flags = set_root_flags(system, FileFlags::default())?;
    for operation in operations {
        match system.apply(&operation) {
            Ok(_) | Err(Errno(libc::ENOSPC)) => {}
            // Without an inode for it, or a block for the list that it gets from its directory, there is no file.
            Err(Errno(libc::ENOENT)) if is_full(system) => {}
            Err(error) => return Err(format!("{operation:?} fails: {error:?}")),
        }
    }
    set_root_flags(system, flags).map(drop)
}

fn is_full(system: &Embedded) -> bool {
    let statistics = system.file_system().statistics();
    statistics.is_ok_and(|found| found.inodes_free == 0 || found.blocks_available == 0)
}

/// Gives the root directory these flags, and returns the former ones.
fn set_root_flags(system: &Embedded, flags: FileFlags) -> Result<FileFlags, String> {
    let file_system = system.file_system();
    let before = file_system.attributes(ROOT).map(|it| it.flags);
    let set = before.and_then(|before| file_system.set_flags(ROOT, flags).map(|()| before));
    set.map_err(|error| format!("the flags of the root are not set: {error}"))
}

fn contradiction(tree: &Tree, allowed: &[Tree]) -> String {
    let names = ["the model", "the model after the operation in flight"];
    let names = names
        .iter()
        .chain(std::iter::repeat(&"another allowed tree"));
    let differences = allowed.iter().zip(names);
    differences
        .filter_map(|(allowed, name)| tree.difference("the crashed pool", allowed, name))
        .collect::<Vec<_>>()
        .join("and\n")
}
