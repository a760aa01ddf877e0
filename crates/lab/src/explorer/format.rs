//! Crashes while a pool is made.

use std::sync::Arc;

use client::{FileSystem, Geometry};
use pmem::Simulation;
use store::Defects;

use super::{Bounds, Counts, Inspector, Prepared, Recorder};
use crate::model::Model;

/// Makes a pool where there was another, or zeros. A crash leaves the old pool, an empty new one, or none.
pub fn explore_format(
    old: &Prepared,
    geometry: &Geometry,
    bounds: Bounds,
) -> Result<Counts, String> {
    let length = old.image.len();
    let mut inspector = Inspector::new(length as u64, bounds, Defects::default())?;
    let allowed = [
        old.model.tree(),
        Model::new(Arc::default()).tree().without_times(),
    ];
    for image in [old.image.clone(), vec![0; length]] {
        inspector.counts.workloads += 1;
        let simulation = Simulation::from_image(image);
        let recorder = Recorder::new(&simulation);
        recorder.start(1);
        FileSystem::format_region(&simulation.region(), geometry)
            .map_err(|error| error.to_string())?;
        for moment in recorder.take() {
            inspector.inspect_or_refuse(&moment, &allowed)?;
        }
        inspector.inspect(&simulation.moment(), &allowed[1..])?;
    }
    Ok(inspector.counts)
}
