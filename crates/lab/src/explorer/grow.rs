//! Crashes while an open pool is made larger, and while its new part is used.

use client::FileKind;
use pmem::Simulation;

use super::{Bounds, Counts, Explorer, Prepared, Run};
use crate::call::{At, Call};
use crate::embedded::Embedded;
use crate::pool::options;
use store::{Defects, read_superblock};

/// Makes a pool take `length` bytes while it is open, and fills the new part. A crash leaves the same files, and a pool that
/// grows when it is tried again.
pub fn explore_grow(old: &Prepared, length: u64, bounds: Bounds) -> Result<Counts, String> {
    let mut explorer = Explorer::new(length, bounds, Defects::default())?;
    // Bytes beyond the old pool may be anything.
    for byte in [0, 0xff] {
        explorer.inspector.counts.workloads += 1;
        let mut image = old.image.clone();
        image.resize(length as usize, byte);
        let model = old.model(&explorer.clock);
        let mut run = Run::new(&mut explorer, image, model)?;
        let before = run
            .system
            .file_system()
            .statistics()
            .map_err(|it| it.to_string())?;
        // Both in the old part and in the new one.
        let mut operations = more_than(before.blocks_free, before.inodes_free);
        let first = operations.remove(0);
        run.step(&first, true)?;
        run.grow(length)?;
        let after = run
            .system
            .file_system()
            .statistics()
            .map_err(|it| it.to_string())?;
        if (after.blocks, after.inodes) <= (before.blocks, before.inodes) {
            return Err(format!("{before:?} became {after:?}"));
        }
        for (index, operation) in operations.iter().enumerate() {
            run.step(operation, index % 32 == 0)?;
        }
        run.close()?;
    }
    Ok(explorer.counts())
}

/// Operations that take so many blocks and inodes and some more.
fn more_than(blocks: u64, inodes: u64) -> Vec<Call> {
    let path = |index: u64| format!("grown-{index}");
    let make = |index| Call::Make {
        path: path(index),
        kind: FileKind::Regular,
        permissions: 0o600,
    };
    let write = |index| Call::Write {
        path: path(index),
        at: At::End,
        length: 20 * 4096 + 100,
        fill: index,
    };
    let files = (0..inodes + 3).map(make);
    files.chain((0..blocks / 20 + 3).map(write)).collect()
}

impl Run<'_> {
    /// Makes the pool take `length` bytes, which the simulation has.
    fn grow(&mut self, length: u64) -> Result<(), String> {
        self.recorder.start(1);
        grow(&self.system, &self.simulation, length)?;
        let allowed = [self.model.tree()];
        for moment in self.recorder.take() {
            let inspector = &mut self.explorer.inspector;
            // One of the superblocks may be partly written, which the check reports. None is refused: below, they are
            // opened.
            inspector.inspect_or_refuse(&moment, &allowed)?;
            for image in moment.images(8, inspector.bounds.seed) {
                let again = Simulation::from_image(image);
                let options = options(&self.explorer.clock, Defects::default());
                let system = Embedded::open(again.region(), options);
                grow(&system.map_err(|error| error.to_string())?, &again, length)?;
                inspector.inspect(&again.moment(), &allowed)?;
            }
        }
        Ok(())
    }
}

fn grow(system: &Embedded, simulation: &Simulation, length: u64) -> Result<(), String> {
    let grown = system.file_system().grow(length);
    grown.map_err(|error| error.to_string())?;
    let superblock = read_superblock(&simulation.region()).map_err(|error| error.to_string())?;
    match superblock.pool_length {
        found if found == length => Ok(()),
        found => Err(format!("the pool grew to {found} bytes")),
    }
}
