//! Crashes while a pool is made larger.

use client::Store;
use pmem::Simulation;
use store::Defects;

use super::{Bounds, Counts, Inspector, Prepared, Recorder};

/// Makes a pool take `length` bytes. A crash leaves the same files, and a pool that grows when it is tried again.
pub fn explore_grow(old: &Prepared, length: u64, bounds: Bounds) -> Result<Counts, String> {
    let mut inspector = Inspector::new(length, bounds, Defects::default())?;
    let allowed = [old.model.tree()];
    // What is behind the old pool may be anything.
    for byte in [0, 0xff] {
        inspector.counts.workloads += 1;
        let mut image = old.image.clone();
        image.resize(length as usize, byte);
        let simulation = Simulation::from_image(image);
        let recorder = Recorder::new(&simulation);
        recorder.start(1);
        Store::grow(&simulation.region()).map_err(|error| error.to_string())?;
        for moment in recorder.take() {
            inspector.inspect_or_refuse(&moment, &allowed)?;
            for image in moment.images(8, bounds.seed) {
                let again = Simulation::from_image(image);
                let grown = Store::grow(&again.region()).map_err(|error| error.to_string())?;
                if grown.pool_length != length {
                    return Err("growing again does not end".into());
                }
                inspector.inspect(&again.moment(), &allowed)?;
            }
        }
        inspector.inspect(&simulation.moment(), &allowed)?;
    }
    Ok(inspector.counts)
}
